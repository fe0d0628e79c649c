// SPDX-License-Identifier: Apache-2.0
// Saved layers of static codes: what is saved is what is read, and every damage is refused by name.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/random.h"
#include "io/test_files.h"
#include "isobit/linear.h"

namespace isobit {
namespace {

using Json = nlohmann::json;

StaticLinearLayer layer_of(int32_t weight_bits, const Grid& input, const std::optional<Grid>& output,
                           const std::string& name) {
  Random random(static_cast<uint64_t>(weight_bits));
  Array weights = Array::zeros(Dtype::kF32, {3, 5});
  for (int64_t i = 0; i < weights.size(); ++i)
    weights.data<float>()[i] = static_cast<float>(random.between(-1000, 1000)) / 1000.0f;
  const LowBitMatrix matrix = *quantize_low_bit(weights, {.bits = weight_bits, .group = 5}, name);
  const std::vector<float> bias = {0.5f, -0.25f, 0};
  const Result<StaticLinearParameters> p =
      derive_static_linear(matrix,
                           {.input = input,
                            .output = output,
                            .bias = bias,
                            .clamp = output ? LinearClamp::relu6() : LinearClamp::none(),
                            .rounding = Rounding::kNearestUp},
                           name);
  EXPECT_TRUE(p.ok()) << p.status().message();
  const Result<StaticLinearLayer> layer = StaticLinearLayer::create(*p, name);
  EXPECT_TRUE(layer.ok()) << layer.status().message();
  return *layer;
}

constexpr Grid kWide{.bits = 16, .is_signed = true, .shift = 14, .zero_point = -5};
constexpr Grid kReal{.bits = 12, .is_signed = false, .kind = ScaleKind::kReal, .real_scale = 0.003f, .zero_point = 99};

/// Every width of weights, both kinds of scales, and accumulators.
std::vector<StaticLinearLayer> everything() {
  return {layer_of(8, kWide, kReal, "fc"), layer_of(4, kReal, kWide, "enc.out"), layer_of(2, kWide, {}, "acc"),
          layer_of(1, kReal, kReal, "signs")};
}

Status save(const std::string& path, const std::vector<StaticLinearLayer>& layers) {
  std::vector<const StaticLinearLayer*> pointers;
  pointers.reserve(layers.size());
  for (const StaticLinearLayer& layer : layers) pointers.push_back(&layer);
  return StaticLinearLayer::save_all(path, pointers);
}

class SavedStaticLinear : public ::testing::Test {
 protected:
  /// Saves good layers, changes the file, and returns what loading it says.
  std::string refusal(const std::function<void(ArrayFile&, Json&)>& change) {
    EXPECT_TRUE(save(path_, everything()).ok());
    Result<ArrayFile> file = load_arrays(path_);
    EXPECT_TRUE(file.ok());
    Json json = Json::parse(file->metadata["isobit"]);
    change(*file, json);
    if (file->metadata.contains("isobit")) file->metadata["isobit"] = json.dump();
    EXPECT_TRUE(save_safetensors(path_, *file).ok());
    const Result<StaticLinearLayer> one = StaticLinearLayer::load(path_, "fc");
    const Result<ArrayReader> reader = ArrayReader::open(path_);
    const Result<std::vector<StaticLinearLayer>> all = StaticLinearLayer::load_all(*reader);
    EXPECT_FALSE(all.ok());
    if (all.ok()) return "accepted";
    EXPECT_NE(all.status().code(), StatusCode::kInvalidArgument);
    if (!one.ok()) {
      EXPECT_EQ(one.status().message(), all.status().message());
    }
    return all.status().message();
  }
  static Json& layer(Json& json, size_t i) { return json["static_linears"][i]; }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("layers.safetensors");
};

#define EXPECT_REFUSES(text, ...) EXPECT_NE(refusal(__VA_ARGS__).find(text), std::string::npos) << refusal(__VA_ARGS__)

TEST_F(SavedStaticLinear, ComesBackAsItWas) {
  const std::vector<StaticLinearLayer> layers = everything();
  ASSERT_TRUE(save(path_, layers).ok());
  const Result<std::vector<std::byte>> first = read_file(path_);
  const Result<ArrayReader> reader = ArrayReader::open(path_);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->kind(), FileKind::kStaticLinear);
  const Result<std::vector<StaticLinearLayer>> loaded = StaticLinearLayer::load_all(*reader);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_EQ(loaded->size(), layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ((*loaded)[i].name(), layers[i].name());
    EXPECT_EQ((*loaded)[i].parameters(), layers[i].parameters());
    const Result<StaticLinearLayer> named = StaticLinearLayer::load(path_, layers[i].name(), CpuPath::kReference);
    ASSERT_TRUE(named.ok()) << named.status().message();
    EXPECT_EQ(named->parameters(), layers[i].parameters());
    EXPECT_EQ(named->path(), CpuPath::kReference);
  }
  ASSERT_TRUE(save(path_, *loaded).ok());
  const Result<std::vector<std::byte>> second = read_file(path_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
}

TEST_F(SavedStaticLinear, OneLayerNeedsNoName) {
  const StaticLinearLayer only = layer_of(8, kWide, kReal, "");
  ASSERT_TRUE(only.save(path_).ok());
  EXPECT_EQ(*only.saved_bytes(), *read_file(path_));
  const Result<StaticLinearLayer> loaded = StaticLinearLayer::load(path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->parameters(), only.parameters());
  ASSERT_TRUE(save(path_, everything()).ok());
  EXPECT_EQ(StaticLinearLayer::load(path_).status().message(),
            path_ + ": 4 layers; the name must be one of 'fc', 'enc.out', 'acc', 'signs'");
  EXPECT_EQ(StaticLinearLayer::load(path_, "enc.ou").status().message(),
            path_ + ": no layer 'enc.ou'; the name must be one of 'fc', 'enc.out', 'acc', 'signs'; nearest: enc.out");
}

TEST_F(SavedStaticLinear, TensorsAreThoseOfTheDocumentation) {
  ASSERT_TRUE(save(path_, everything()).ok());
  const Result<ArrayFile> file = load_arrays(path_);
  ASSERT_TRUE(file.ok());
  std::vector<std::string> names;
  for (const auto& [name, array] : file->arrays)
    names.push_back(name + " " + std::string(to_string(array.dtype)) + " " + shape_text(array.shape));
  EXPECT_EQ(names, (std::vector<std::string>{
                       "acc.bias s32 (3,)", "acc.scales f32 (3,)", "acc.weights u8 (3, 2)", "enc.out.bias s32 (3,)",
                       "enc.out.multiplier s32 (3,)", "enc.out.scales f32 (3,)", "enc.out.shift s32 (3,)",
                       "enc.out.weights u8 (3, 3)", "fc.bias s32 (3,)", "fc.multiplier s32 (3,)", "fc.scales f32 (3,)",
                       "fc.shift s32 (3,)", "fc.weights s8 (3, 5)", "signs.bias s32 (3,)", "signs.multiplier s32 (3,)",
                       "signs.scales f32 (3,)", "signs.shift s32 (3,)", "signs.weights u8 (3, 1)"}));
  const Json json = Json::parse(file->metadata.at("isobit"));
  EXPECT_EQ(json.at("format_version"), 1);
  const Json& first = json.at("static_linears").at(0);
  const StaticLinearLayer fc = everything()[0];
  EXPECT_EQ(first.dump(),
            R"({"accumulator":{"bits":32,"bound":")" + std::to_string(fc.accumulator_bound()) +
                R"("},"columns":5,"hi":)" + std::to_string(fc.parameters().hi) +
                R"(,"input":{"bits":16,"kind":"pow2","shift":14,"signed":true,"zero_point":-5},"lo":99,"name":"fc",)"
                R"("output":{"bits":12,"kind":"real","scale":"0x1.89374cp-9","signed":false,"zero_point":99},)"
                R"("rounding":"nearest_up","rows":3,"weight_bits":8})");
  // Weight 0 of the 4-bit layer, as an unsigned number in the low bits of the first byte.
  const StaticLinearLayer packed = everything()[1];
  EXPECT_EQ(static_cast<int>(file->arrays.at("enc.out.weights").data<uint8_t>()[0] & 15),
            packed.parameters().weights.data<int8_t>()[0] + 8);
  // Weights of 1 bit: bit k is set for 1, clear for -1.
  const StaticLinearLayer signs = everything()[3];
  for (int64_t k = 0; k < 5; ++k)
    EXPECT_EQ(file->arrays.at("signs.weights").data<uint8_t>()[0] >> k & 1,
              signs.parameters().weights.data<int8_t>()[k] == 1 ? 1 : 0);
}

TEST_F(SavedStaticLinear, WhatCannotBeSavedLeavesNoFile) {
  const StaticLinearLayer fc = everything()[0];
  const auto refused = [this](const std::vector<StaticLinearLayer>& layers, const std::string& text) {
    const Status status = save(path_, layers);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    EXPECT_EQ(folder_.count(), 0u);
  };
  refused({}, "no layer to save, must be at least 1");
  refused({fc, fc}, "two layers are named 'fc', the names in a file must differ");
  refused({layer_of(8, kWide, kReal, "a\xff")}, "is not valid UTF-8");
}

TEST_F(SavedStaticLinear, RefusesMetadata) {
  EXPECT_REFUSES("not a saved isobit static linear layer", [](ArrayFile& f, Json&) { f.metadata.erase("isobit"); });
  EXPECT_REFUSES("format version 2 is not supported", [](ArrayFile&, Json& j) { j["format_version"] = 2; });
  EXPECT_REFUSES("field 'static_linears' is an empty array",
                 [](ArrayFile&, Json& j) { j["static_linears"] = Json::array(); });
  EXPECT_REFUSES("unknown field 'more'", [](ArrayFile&, Json& j) { j["more"] = 1; });
  EXPECT_REFUSES("unknown field 'notes'", [](ArrayFile&, Json& j) { layer(j, 0)["notes"] = Json::object(); });
  EXPECT_REFUSES("two layers are named 'fc'", [](ArrayFile&, Json& j) { layer(j, 1)["name"] = "fc"; });
  EXPECT_REFUSES("field 'rounding' is 'up'", [](ArrayFile&, Json& j) { layer(j, 0)["rounding"] = "up"; });
  EXPECT_REFUSES("field 'weight_bits' is 3, must be 1, 2, 4 or 8",
                 [](ArrayFile&, Json& j) { layer(j, 0)["weight_bits"] = 3; });
  EXPECT_REFUSES("field 'weight_bits' is 16", [](ArrayFile&, Json& j) { layer(j, 0)["weight_bits"] = 16; });
  EXPECT_REFUSES("field 'bits' is 17, must be an integer in 2..16",
                 [](ArrayFile&, Json& j) { layer(j, 0)["input"]["bits"] = 17; });
  EXPECT_REFUSES("field 'bits' is 1, must be an integer in 2..16",
                 [](ArrayFile&, Json& j) { layer(j, 0)["output"]["bits"] = 1; });
  EXPECT_REFUSES("field 'zero_point' is 40000",
                 [](ArrayFile&, Json& j) { layer(j, 0)["input"]["zero_point"] = 40000; });
  EXPECT_REFUSES("unknown field 'scale'", [](ArrayFile&, Json& j) { layer(j, 0)["input"]["scale"] = "0x1p+0"; });
  EXPECT_REFUSES("shift", [](ArrayFile&, Json& j) { layer(j, 0)["input"]["shift"] = 63; });
  EXPECT_REFUSES("scale", [](ArrayFile&, Json& j) { layer(j, 0)["output"]["scale"] = "0x1p-140"; });
  EXPECT_REFUSES("unknown field 'hi'", [](ArrayFile&, Json& j) { layer(j, 2)["hi"] = 3; });
  EXPECT_REFUSES("field 'lo' is missing", [](ArrayFile&, Json& j) { layer(j, 0).erase("lo"); });
  EXPECT_REFUSES("lo is 4096, must be 0..4095", [](ArrayFile&, Json& j) { layer(j, 0)["lo"] = 4096; });
  EXPECT_REFUSES("must be at most hi", [](ArrayFile&, Json& j) { layer(j, 0)["hi"] = 0; });
  EXPECT_REFUSES("field 'accumulator' is missing", [](ArrayFile&, Json& j) { layer(j, 0).erase("accumulator"); });
  EXPECT_REFUSES("field 'bits' is 64, must be 32",
                 [](ArrayFile&, Json& j) { layer(j, 0)["accumulator"]["bits"] = 64; });
  EXPECT_REFUSES("field 'bound' is 7, but the accumulator can reach",
                 [](ArrayFile&, Json& j) { layer(j, 0)["accumulator"]["bound"] = "7"; });
}

TEST_F(SavedStaticLinear, RefusesTensors) {
  for (const char* name : {"fc.weights", "fc.scales", "fc.bias", "fc.multiplier", "fc.shift", "acc.weights"}) {
    const std::string quoted = "tensor '" + std::string(name) + "' ";
    EXPECT_REFUSES(quoted + "is missing", [&](ArrayFile& f, Json&) { f.arrays.erase(name); });
    EXPECT_REFUSES(quoted + "is f16",
                   [&](ArrayFile& f, Json&) { f.arrays[name] = Array::zeros(Dtype::kF16, f.arrays[name].shape); });
    EXPECT_REFUSES(quoted + "has the shape", [&](ArrayFile& f, Json&) {
      f.arrays[name] = Array::zeros(f.arrays[name].dtype, {3, 4, 1});
    });
  }
  EXPECT_REFUSES("unknown tensor 'more'", [](ArrayFile& f, Json&) { f.arrays["more"] = iota_f32({1}); });
  EXPECT_REFUSES("unknown tensor 'acc.shift'",
                 [](ArrayFile& f, Json&) { f.arrays["acc.shift"] = Array::zeros(Dtype::kS32, {3}); });
  EXPECT_REFUSES("tensor 'acc.weights' row 1 has padding that is not zero",
                 [](ArrayFile& f, Json&) { f.arrays["acc.weights"].data<uint8_t>()[3] |= 0x40; });
  EXPECT_REFUSES("scales[1] is -1, must be positive",
                 [](ArrayFile& f, Json&) { f.arrays["fc.scales"].data<float>()[1] = -1; });
  EXPECT_REFUSES("rescales[2].multiplier is 0, must be at least 1",
                 [](ArrayFile& f, Json&) { f.arrays["fc.multiplier"].data<int32_t>()[2] = 0; });
  EXPECT_REFUSES("rescales[0].shift is -63",
                 [](ArrayFile& f, Json&) { f.arrays["fc.shift"].data<int32_t>()[0] = -63; });
  EXPECT_REFUSES("row 0: y before its clamp can reach",
                 [](ArrayFile& f, Json&) { f.arrays["fc.shift"].data<int32_t>()[0] = -62; });
  EXPECT_REFUSES("but the accumulator can reach",
                 [](ArrayFile& f, Json&) { f.arrays["fc.bias"].data<int32_t>()[0] = INT32_MIN; });
}

TEST_F(SavedStaticLinear, OtherFilesAreNone) {
  ArrayFile file;
  file.arrays["a"] = iota_f32({2});
  for (const char* text : {"", "{", "[]", R"({"grus":[]})", R"({"format_version":1,"matrices":[]})"}) {
    if (*text != '\0') file.metadata["isobit"] = text;
    ASSERT_TRUE(save_safetensors(path_, file).ok());
    const Result<ArrayReader> reader = ArrayReader::open(path_);
    ASSERT_TRUE(reader.ok());
    EXPECT_NE(reader->kind(), FileKind::kStaticLinear) << text;
    EXPECT_FALSE(StaticLinearLayer::load(*reader).ok()) << text;
  }
}

}  // namespace
}  // namespace isobit
