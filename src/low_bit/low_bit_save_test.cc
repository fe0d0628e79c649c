// SPDX-License-Identifier: Apache-2.0
// Saved low-bit matrices: what is saved is what is read, and every damage is refused by name.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "io/test_files.h"
#include "isobit/low_bit.h"

namespace isobit {
namespace {

using Json = nlohmann::json;

LowBitMatrix small_matrix(LowBitKind kind, int bits, Dtype scales) {
  Array weights = iota_f32({3, 21});
  for (int64_t i = 0; i < weights.size(); ++i) weights.data<float>()[i] -= 17.5f;
  const LowBitOptions options{.bits = bits, .group = 8, .kind = kind, .method = LowBitMethod::kMse, .scales = scales};
  const Result<LowBitMatrix> matrix = quantize_low_bit(weights, options, "W");
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  return *matrix;
}

/// Every kind, width and type of scales, and two arrays.
LowBitFile everything() {
  LowBitFile file;
  for (const auto kind : {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset})
    for (const int bits : {1, 2, 4, 8})
      for (const Dtype scales : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
        file.matrices.emplace(
            std::string(to_string(kind)) + "." + std::to_string(bits) + std::string(to_string(scales)),
            small_matrix(kind, bits, scales));
  file.arrays["bias"] = iota_f32({3});
  file.arrays["ids"] = Array::zeros(Dtype::kS64, {2, 0});
  file.metadata = {{"format", "pt"}, {"gguf", "[{\"key\": \"\u00fc\\n\"}]"}, {"", ""}};
  return file;
}

LowBitFile small_file() {
  LowBitFile file;
  file.matrices.emplace("fc", small_matrix(LowBitKind::kOffset, 4, Dtype::kF32));
  file.matrices.emplace("out", small_matrix(LowBitKind::kZeroPoint, 8, Dtype::kF16));
  file.arrays["bias"] = iota_f32({3});
  return file;
}

class SavedLowBit : public ::testing::Test {
 protected:
  /// Saves a good file, changes it, and returns what loading it says.
  std::string refusal(const std::function<void(ArrayFile&, Json&)>& change) {
    EXPECT_TRUE(save_low_bit(path_, small_file()).ok());
    Result<ArrayFile> file = load_arrays(path_);
    EXPECT_TRUE(file.ok());
    Json json = Json::parse(file->metadata["isobit"]);
    change(*file, json);
    file->metadata["isobit"] = json.dump();
    EXPECT_TRUE(save_safetensors(path_, *file).ok());
    const Result<LowBitFile> loaded = load_low_bit(path_);
    EXPECT_FALSE(loaded.ok());
    EXPECT_NE(loaded.status().code(), StatusCode::kInvalidArgument);
    return loaded.ok() ? "accepted" : loaded.status().message();
  }
  static Json& fc(Json& json) { return json["matrices"][0]; }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("packed.safetensors");
};

#define EXPECT_REFUSES(text, ...) EXPECT_NE(refusal(__VA_ARGS__).find(text), std::string::npos) << refusal(__VA_ARGS__)

TEST_F(SavedLowBit, ComesBackAsItWas) {
  const LowBitFile file = everything();
  const Status status = save_low_bit(path_, file);
  ASSERT_TRUE(status.ok()) << status.message();
  const Result<LowBitFile> loaded = load_low_bit(path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_TRUE(*loaded == file);
  const Result<std::vector<std::byte>> first = read_file(path_);
  ASSERT_TRUE(save_low_bit(path_, *loaded).ok());
  const Result<std::vector<std::byte>> second = read_file(path_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(*saved_low_bit(file), *first);
  EXPECT_EQ(saved_low_bit({}).status().message(), "low-bit weights: no low-bit matrix to save, must be at least 1");
}

TEST_F(SavedLowBit, TensorsAreThoseOfTheDocumentation) {
  ASSERT_TRUE(save_low_bit(path_, small_file()).ok());
  const Result<ArrayFile> file = load_arrays(path_);
  ASSERT_TRUE(file.ok());
  std::vector<std::string> names;
  for (const auto& [name, array] : file->arrays)
    names.push_back(name + " " + std::string(to_string(array.dtype)) + " " + shape_text(array.shape));
  EXPECT_EQ(names, (std::vector<std::string>{"bias f32 (3,)", "fc.codes u8 (3, 12)", "fc.offsets f32 (3, 3)",
                                             "fc.scales f32 (3, 3)", "out.codes u8 (3, 24)", "out.scales f16 (3, 3)",
                                             "out.zero_points u16 (3, 3)"}));
  EXPECT_EQ(Json::parse(file->metadata.at("isobit")).dump(),
            R"({"arrays":["bias"],"format_version":1,"matrices":[)"
            R"({"bits":4,"columns":21,"group":8,"kind":"offset","name":"fc","rows":3,"scales":"f32","zero_point":0},)"
            R"({"bits":8,"columns":21,"group":8,"kind":"zero_point","name":"out","rows":3,"scales":"f16"}]})");
}

TEST_F(SavedLowBit, WhatCannotBeSavedLeavesNoFile) {
  const LowBitMatrix matrix = small_matrix(LowBitKind::kSymmetric, 4, Dtype::kF32);
  const auto refused = [this](const LowBitFile& file, const std::string& text) {
    const Status status = save_low_bit(path_, file);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    EXPECT_EQ(folder_.count(), 0U);
  };
  refused({}, "no low-bit matrix to save");
  refused({.matrices = {{"", matrix}}}, "a matrix has no name");
  refused({.matrices = {{"\xff", matrix}}}, "not valid UTF-8");
  refused({.matrices = {{"W", matrix}}, .arrays = {{"", iota_f32({1})}}}, "an array has no name");
  refused({.matrices = {{"W", matrix}}, .arrays = {{"W", iota_f32({1})}}}, "a matrix and an array are named 'W'");
  refused({.matrices = {{"W", matrix}}, .arrays = {{"W.codes", iota_f32({1})}}}, "would be named 'W.codes'");
  refused({.matrices = {{"W", matrix}}, .metadata = {{"isobit", "{}"}}}, "metadata is named 'isobit'");
  refused({.matrices = {{"W", matrix}}, .metadata = {{"a", "\xff"}}}, "metadata 'a' is not valid UTF-8");
  Array wrong = iota_f32({2});
  wrong.shape = {3};
  refused({.matrices = {{"W", matrix}}, .arrays = {{"b", wrong}}}, "tensor 'b'");
}

TEST_F(SavedLowBit, EveryMissingUnknownOrWrongFieldIsNamed) {
  for (const char* field : {"name", "rows", "columns", "bits", "group", "kind", "scales", "zero_point"})
    EXPECT_REFUSES(std::string("matrix 0: field '") + field + "' is missing",
                   [&](ArrayFile&, Json& j) { fc(j).erase(field); });
  for (const char* field : {"format_version", "matrices", "arrays"})
    EXPECT_REFUSES(std::string("field '") + field + "' is missing", [&](ArrayFile&, Json& j) { j.erase(field); });
  EXPECT_REFUSES("format version 3 is not supported", [](ArrayFile&, Json& j) { j["format_version"] = 3; });
  EXPECT_REFUSES("format version 2 is of files with weights of convolutions, must be 1",
                 [](ArrayFile&, Json& j) { j["format_version"] = 2; });
  EXPECT_REFUSES("unknown field 'extra'", [](ArrayFile&, Json& j) { j["extra"] = 1; });
  EXPECT_REFUSES("unknown field 'extra'", [](ArrayFile&, Json& j) { fc(j)["extra"] = 1; });
  EXPECT_REFUSES("matrix 1: unknown field 'zero_point'",
                 [](ArrayFile&, Json& j) { j["matrices"][1]["zero_point"] = 0; });
  EXPECT_REFUSES("field 'rows' is 0, must be an integer in 1..2147483647",
                 [](ArrayFile&, Json& j) { fc(j)["rows"] = 0; });
  EXPECT_REFUSES("field 'columns' is 2147483648", [](ArrayFile&, Json& j) { fc(j)["columns"] = 2147483648; });
  EXPECT_REFUSES("matrix 'fc': bits is 3, must be 1, 2, 4 or 8", [](ArrayFile&, Json& j) { fc(j)["bits"] = 3; });
  EXPECT_REFUSES("matrix 'fc': group is 24, must be K, 21,", [](ArrayFile&, Json& j) { fc(j)["group"] = 24; });
  EXPECT_REFUSES("field 'kind' is 'minmax'", [](ArrayFile&, Json& j) { fc(j)["kind"] = "minmax"; });
  EXPECT_REFUSES("field 'scales' is 'f64'", [](ArrayFile&, Json& j) { fc(j)["scales"] = "f64"; });
  EXPECT_REFUSES("the zero point of the matrix is 7, must be 0 or 8",
                 [](ArrayFile&, Json& j) { fc(j)["zero_point"] = 7; });
  EXPECT_REFUSES("field 'name' is 'fc', must be another", [](ArrayFile&, Json& j) { j["matrices"][1]["name"] = "fc"; });
  EXPECT_REFUSES("field 'name' is ''", [](ArrayFile&, Json& j) { fc(j)["name"] = ""; });
  EXPECT_REFUSES("field 'arrays' is a number, must be a list", [](ArrayFile&, Json& j) { j["arrays"] = 5; });
  EXPECT_REFUSES("field 'arrays' holds what is no name", [](ArrayFile&, Json& j) { j["arrays"] = {5}; });
  EXPECT_REFUSES("field 'arrays' holds 'fc', the name of a matrix", [](ArrayFile&, Json& j) { j["arrays"] = {"fc"}; });
}

TEST_F(SavedLowBit, EveryDamagedTensorIsNamed) {
  for (const char* name : {"fc.codes", "fc.scales", "fc.offsets", "out.zero_points"}) {
    const std::string quoted = std::string("tensor '") + name + "'";
    EXPECT_REFUSES(quoted + " is missing", [&](ArrayFile& f, Json&) { f.arrays.erase(name); });
    EXPECT_REFUSES(quoted + " is s8",
                   [&](ArrayFile& f, Json&) { f.arrays[name] = Array::zeros(Dtype::kS8, f.arrays[name].shape); });
    EXPECT_REFUSES(quoted + " has the shape (1,)",
                   [&](ArrayFile& f, Json&) { f.arrays[name] = Array::zeros(f.arrays[name].dtype, {1}); });
  }
  EXPECT_REFUSES("tensor 'bias' is missing", [](ArrayFile& f, Json&) { f.arrays.erase("bias"); });
  EXPECT_REFUSES("unknown tensor 'stranger'", [](ArrayFile& f, Json&) { f.arrays["stranger"] = iota_f32({1}); });
  EXPECT_REFUSES("tensor 'fc.codes' has the shape (3, 12), must be (2147483647, 12)",
                 [](ArrayFile&, Json& j) { fc(j)["rows"] = 2147483647; });
  EXPECT_REFUSES("matrix 'fc': scales[1, 2] is 0, must be not 0",
                 [](ArrayFile& f, Json&) { f.arrays["fc.scales"].data<float>()[5] = 0; });
  EXPECT_REFUSES("matrix 'out': scales[0, 1] is inf, must be finite",
                 [](ArrayFile& f, Json&) { f.arrays["out.scales"].data<uint16_t>()[1] = 0x7c00; });
  EXPECT_REFUSES("matrix 'fc': offsets[0, 0] is nan, must be finite",
                 [](ArrayFile& f, Json&) { f.arrays["fc.offsets"].data<uint32_t>()[0] = 0x7fc00000; });
  EXPECT_REFUSES("matrix 'out': zero_points[2, 2] is 257, must be 0..256",
                 [](ArrayFile& f, Json&) { f.arrays["out.zero_points"].data<uint16_t>()[8] = 257; });
  EXPECT_REFUSES("matrix 'fc': codes[0, 21] is 1, must be 0 (padding)",
                 [](ArrayFile& f, Json&) { f.arrays["fc.codes"].data<uint8_t>()[10] |= 0x10; });
}

TEST_F(SavedLowBit, OtherFilesAreRefused) {
  ASSERT_TRUE(save_safetensors(path_, {}).ok());
  const Result<LowBitFile> loaded = load_low_bit(path_);
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().message().find("not a saved isobit file of low-bit weights"), std::string::npos);
  EXPECT_FALSE(load_low_bit(folder_.file("absent")).ok());
}

TEST_F(SavedLowBit, EveryCutIsRefused) {
  ASSERT_TRUE(save_low_bit(path_, small_file()).ok());
  const Result<std::vector<std::byte>> valid = read_file(path_);
  ASSERT_TRUE(valid.ok());
  ASSERT_TRUE(parse_low_bit(valid->data(), valid->size(), "valid").ok());
  for (size_t size = 0; size < valid->size(); ++size) {
    const std::vector<std::byte> cut(valid->begin(), valid->begin() + static_cast<ptrdiff_t>(size));
    const Result<LowBitFile> loaded = parse_low_bit(cut.data(), cut.size(), "cut");
    EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidFile) << size;
    EXPECT_EQ(loaded.status().message().rfind("cut: ", 0), 0U) << loaded.status().message();
  }
}

TEST_F(SavedLowBit, ChecksPermutations) {
  const auto with = [](std::vector<int32_t> permutation) {
    LowBitFile file = small_file();
    file.arrays["fc.permutation"] = Array::copy_of(permutation.data(), {static_cast<int64_t>(permutation.size())});
    return file;
  };
  std::vector<int32_t> backwards(21);
  for (int32_t j = 0; j < 21; ++j) backwards[static_cast<size_t>(j)] = 20 - j;
  ASSERT_TRUE(save_low_bit(path_, with(backwards)).ok());
  const Result<LowBitFile> loaded = load_low_bit(path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(*loaded, with(backwards));
  const std::string what = path_ + ": tensor 'fc.permutation'";
  EXPECT_EQ(save_low_bit(path_, with({0, 1})).message(),
            what + " is s32 of the shape (2,), must be s32 of the shape (21,)");
  backwards[3] = 21;
  EXPECT_EQ(save_low_bit(path_, with(backwards)).message(), what + ": element 3 is 21, must be another of 0..20");
  backwards[3] = 20;
  EXPECT_EQ(save_low_bit(path_, with(backwards)).message(), what + ": element 3 is 20, must be another of 0..20");
  EXPECT_NE(refusal([](ArrayFile& file, Json& json) {
              file.arrays["out.permutation"] = iota_f32({21});
              json["arrays"].push_back("out.permutation");
            }).find("'out.permutation' is f32 of the shape (21,), must be s32"),
            std::string::npos);
}

TEST(LowBitTensor, ByName) {
  const LowBitFile file = everything();
  const std::string name = "symmetric.4f32";
  const Result<Array> matrix = low_bit_tensor(file, name);
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  EXPECT_EQ(*matrix, *dequantize_low_bit(file.matrices.at(name), {}));
  EXPECT_EQ(*low_bit_tensor(file, "bias"), file.arrays.at("bias"));
  EXPECT_EQ(low_bit_tensor(file, "ids")->dtype, Dtype::kF32);
  const Status missing = low_bit_tensor(file, "symetric.4f32").status();
  EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(missing.message().find("'symetric.4f32'"), std::string::npos);
  EXPECT_NE(missing.message().find("nearest: symmetric.4f32"), std::string::npos);
}

TEST(FindLowBitMatrix, ByNameOrTheOnlyOne) {
  LowBitFile file = small_file();
  EXPECT_EQ(find_low_bit_matrix(file, "f", "out").value(), "out");
  EXPECT_EQ(find_low_bit_matrix(file, "f", "").status().message(),
            "f: holds 2 matrices; name one; isobit inspect lists them");
  EXPECT_EQ(find_low_bit_matrix(file, "f", "outs").status().message(),
            "f: no matrix is called 'outs'; isobit inspect lists them; nearest: out");
  file.matrices.erase("fc");
  EXPECT_EQ(find_low_bit_matrix(file, "f", "").value(), "out");
}

}  // namespace
}  // namespace isobit
