// SPDX-License-Identifier: Apache-2.0
// Saved convolutions: what is saved is what is read, and every damage of what they have beyond linear layers is
// refused by name. The rest: linear/static/save_test.cc.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/random.h"
#include "io/test_files.h"
#include "isobit/conv.h"

namespace isobit {
namespace {

using Json = nlohmann::json;

constexpr Grid kX{.bits = 8, .is_signed = true, .shift = 5, .zero_point = -5};
constexpr Grid kY{.bits = 8, .is_signed = false, .kind = ScaleKind::kReal, .real_scale = 0.03f, .zero_point = 99};

StaticConvLayer layer_of(const ConvShape& shape, bool residual, const std::string& name) {
  Random random(7);
  Array weights = Array::zeros(Dtype::kF32, {shape.outputs, shape.depth()});
  for (int64_t i = 0; i < weights.size(); ++i)
    weights.data<float>()[i] = static_cast<float>(random.between(-1000, 1000)) / 1000.0f;
  const LowBitMatrix matrix = *quantize_low_bit(weights, {.bits = 4, .group = shape.depth()}, name);
  StaticConvParameters p{.shape = shape};
  const Result<StaticLinearParameters> linear = derive_static_linear(matrix, {.input = kX, .output = kY}, name);
  EXPECT_TRUE(linear.ok()) << linear.status().message();
  p.linear = *linear;
  if (residual) p.residual = *derive_static_residual(kX, kY, name);
  const Result<StaticConvLayer> layer = StaticConvLayer::create(p, name);
  EXPECT_TRUE(layer.ok()) << layer.status().message();
  return *layer;
}

std::vector<StaticConvLayer> everything() {
  return {layer_of({.channels = 6,
                    .outputs = 4,
                    .groups = 2,
                    .rows = {.kernel = 3, .stride = 2, .pad_before = 0, .pad_after = 1},
                    .columns = {.kernel = 2, .dilation = 3, .pad_before = 1}},
                   true, "stem"),
          layer_of({.channels = 3, .outputs = 5, .rows = {.kernel = 2, .stride = 2, .more = 1}, .transposed = true},
                   false, "up")};
}

Status save(const std::string& path, const std::vector<StaticConvLayer>& layers) {
  std::vector<const StaticConvLayer*> pointers;
  pointers.reserve(layers.size());
  for (const StaticConvLayer& layer : layers) pointers.push_back(&layer);
  return StaticConvLayer::save_all(path, pointers);
}

class SavedStaticConv : public ::testing::Test {
 protected:
  /// Saves good layers, changes the metadata, and returns what loading the file says.
  std::string refusal(const std::function<void(Json&)>& change) {
    EXPECT_TRUE(save(path_, everything()).ok());
    ArrayFile file = *load_arrays(path_);
    Json json = Json::parse(file.metadata["isobit"]);
    change(json["static_convs"][0]);
    file.metadata["isobit"] = json.dump();
    EXPECT_TRUE(save_safetensors(path_, file).ok());
    const Result<std::vector<StaticConvLayer>> all = StaticConvLayer::load_all(*ArrayReader::open(path_));
    EXPECT_FALSE(all.ok());
    return all.ok() ? "accepted" : all.status().message();
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("convs.safetensors");
};

TEST_F(SavedStaticConv, ComesBackAsItWas) {
  const std::vector<StaticConvLayer> layers = everything();
  ASSERT_TRUE(save(path_, layers).ok());
  const std::vector<std::byte> first = *read_file(path_);
  const Result<ArrayReader> reader = ArrayReader::open(path_);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->kind(), FileKind::kStaticConv);
  const Result<std::vector<StaticConvLayer>> loaded = StaticConvLayer::load_all(*reader);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_EQ(loaded->size(), layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ((*loaded)[i].name(), layers[i].name());
    EXPECT_EQ((*loaded)[i].parameters(), layers[i].parameters());
    const Result<StaticConvLayer> named = StaticConvLayer::load(path_, layers[i].name(), CpuPath::kReference);
    ASSERT_TRUE(named.ok()) << named.status().message();
    EXPECT_EQ(named->parameters(), layers[i].parameters());
    EXPECT_EQ(named->path(), CpuPath::kReference);
  }
  ASSERT_TRUE(save(path_, *loaded).ok());
  EXPECT_EQ(*read_file(path_), first);
  ASSERT_TRUE(layers[1].save(path_).ok());
  EXPECT_EQ(*layers[1].saved_bytes(), *read_file(path_));
  EXPECT_EQ(StaticConvLayer::load(path_)->parameters(), layers[1].parameters());
}

TEST_F(SavedStaticConv, FieldsAreThoseOfTheDocumentation) {
  ASSERT_TRUE(save(path_, everything()).ok());
  const Json json = Json::parse(load_arrays(path_)->metadata.at("isobit"));
  EXPECT_EQ(json.at("format_version"), 1);
  const Json& stem = json.at("static_convs").at(0);
  EXPECT_EQ(stem.at("shape").dump(),
            R"({"channels":6,"columns":{"dilation":3,"kernel":2,"more":0,"pad_after":0,"pad_before":1,"stride":1},)"
            R"("groups":2,"outputs":4,"rows":{"dilation":1,"kernel":3,"more":0,"pad_after":1,"pad_before":0,)"
            R"("stride":2},"transposed":false})");
  EXPECT_EQ(stem.at("residual").at("grid").dump(),
            R"({"bits":8,"kind":"pow2","shift":5,"signed":true,"zero_point":-5})");
  EXPECT_EQ(stem.at("rows"), 4);
  EXPECT_EQ(stem.at("columns"), 18);
}

TEST_F(SavedStaticConv, RefusesMetadata) {
  const auto refuses = [this](const std::string& text, const std::function<void(Json&)>& change) {
    const std::string told = refusal(change);
    EXPECT_NE(told.find(text), std::string::npos) << told;
  };
  refuses("field 'shape' is missing", [](Json& j) { j.erase("shape"); });
  refuses("field 'channels' is 0, must be an integer in 1..", [](Json& j) { j["shape"]["channels"] = 0; });
  refuses("unknown field 'depth'", [](Json& j) { j["shape"]["depth"] = 1; });
  refuses("unknown field 'pad'", [](Json& j) { j["shape"]["rows"]["pad"] = 1; });
  refuses("field 'kernel' is missing", [](Json& j) { j["shape"]["rows"].erase("kernel"); });
  refuses("field 'pad_before' is -1", [](Json& j) { j["shape"]["rows"]["pad_before"] = -1; });
  refuses("stride is 0, must be", [](Json& j) { j["shape"]["rows"]["stride"] = 0; });
  refuses("field 'transposed' is a number", [](Json& j) { j["shape"]["transposed"] = 1; });
  refuses("groups is 4, must be a divisor of", [](Json& j) { j["shape"]["groups"] = 4; });
  refuses("linear.columns is 18, must be 27",
          [](Json& j) { j["shape"]["rows"]["kernel"] = 3, j["shape"]["columns"]["kernel"] = 3; });
  refuses("field 'bits' is 17", [](Json& j) { j["residual"]["grid"]["bits"] = 17; });
  refuses("field 'multiplier' is missing", [](Json& j) { j["residual"].erase("multiplier"); });
  refuses("residual.rescale is 0 * 2^-", [](Json& j) { j["residual"]["multiplier"] = 0; });
  refuses("unknown field 'x'", [](Json& j) { j["residual"]["x"] = 0; });
  refuses("but the accumulator can reach", [](Json& j) { j["accumulator"]["bound"] = "7"; });
}

}  // namespace
}  // namespace isobit
