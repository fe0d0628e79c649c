// SPDX-License-Identifier: Apache-2.0
// Importers on matrices that were written by hand; what others write is in tests/pack_test.py and tests/gguf_test.py.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "io/gguf/seed.h"
#include "isobit/low_bit_import.h"

namespace isobit {
namespace {

std::vector<float> weights(const LowBitMatrix& matrix) {
  std::vector<float> w(static_cast<size_t>(matrix.rows() * matrix.columns()));
  EXPECT_TRUE(matrix.dequantize(w).ok());
  return w;
}

GgufFile seed_view(const std::vector<std::byte>& bytes) {
  Result<GgufFile> file = GgufFile::view(bytes.data(), bytes.size(), "seed.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return *std::move(file);
}

TEST(ImportGguf, HasTheBitsOfRead) {
  const std::map<std::string, std::string> forms = {
      {"Q4_0", "symmetric 4 32 f16"}, {"Q4_1", "offset 4 32 f16"},     {"Q5_0", "symmetric 8 32 f16"},
      {"Q5_1", "offset 8 32 f16"},    {"Q8_0", "symmetric 8 32 f16"},  {"Q2_K", "offset 2 16 f32"},
      {"Q3_K", "symmetric 4 16 f32"}, {"Q4_K", "offset 4 32 f32"},     {"Q5_K", "offset 8 32 f32"},
      {"Q6_K", "symmetric 8 16 f32"}, {"IQ4_NL", "symmetric 8 32 f16"}};
  for (const int fill : {0x11, 0x92, 0x35}) {
    const std::vector<std::byte> bytes = gguf_seed_file(static_cast<std::byte>(fill));
    const GgufFile file = seed_view(bytes);
    for (const GgufTensor& tensor : file.tensors()) {
      SCOPED_TRACE(std::string(tensor.type) + " of bytes " + std::to_string(fill));
      const Result<ImportedLowBit> imported = import_gguf(file, tensor.name);
      ASSERT_EQ(imported.ok(), is_importable(tensor));
      if (!imported.ok()) {
        EXPECT_EQ(imported.status().code(), StatusCode::kUnsupported);
        EXPECT_NE(imported.status().message().find(tensor.type), std::string::npos);
        continue;
      }
      const LowBitParameters& p = imported->matrix.parameters();
      if (const auto form = forms.find(std::string(tensor.type)); form != forms.end()) {
        EXPECT_EQ(std::string(to_string(p.kind)) + " " + std::to_string(p.bits) + " " + std::to_string(p.group) + " " +
                      std::string(to_string(p.scales.dtype)),
                  form->second);
      }
      const std::vector<float> w = weights(imported->matrix);
      const Result<Array> expected = file.read(tensor.name);
      ASSERT_TRUE(expected.ok());
      EXPECT_EQ(std::memcmp(w.data(), expected->bytes.data(), expected->bytes.size()), 0);
      EXPECT_EQ(imported->cleared_groups, 0);
      EXPECT_TRUE(imported->permutation.empty());
    }
  }
}

TEST(ImportGguf, TernaryWeightsAreSymmetricUnlessOneIsTwo) {
  for (const auto& [fill, kind] : {std::pair{0x26, LowBitKind::kSymmetric}, std::pair{0x36, LowBitKind::kZeroPoint}}) {
    const std::vector<std::byte> bytes = gguf_seed_file(static_cast<std::byte>(fill));
    const Result<ImportedLowBit> imported = import_gguf(seed_view(bytes), "35");
    ASSERT_TRUE(imported.ok()) << imported.status().message();
    const LowBitParameters& p = imported->matrix.parameters();
    EXPECT_EQ(p.kind, kind);
    EXPECT_EQ(p.group, 256);
    EXPECT_EQ(imported->matrix.value(0, 0), 1);                                        // code 2
    EXPECT_EQ(imported->matrix.value(0, 64), kind == LowBitKind::kSymmetric ? 1 : 2);  // 2, or 3
  }
}

TEST(ImportGguf, CodesOfAScaleOfZeroBecomeZero) {
  std::vector<std::byte> bytes = gguf_seed_file();
  const uint64_t offset = seed_view(bytes).find_tensor("8")->offset;
  bytes[offset] = bytes[offset + 1] = std::byte{0};
  const Result<ImportedLowBit> imported = import_gguf(seed_view(bytes), "8");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(imported->cleared_groups, 1);
  for (int64_t k = 0; k < 32; ++k) EXPECT_EQ(imported->matrix.code(0, k), 128);
  EXPECT_EQ(weights(imported->matrix), std::vector<float>(32));
}

TEST(ImportGguf, RefusesByName) {
  std::vector<std::byte> bytes = gguf_seed_file();
  Result<ImportedLowBit> imported = import_gguf(seed_view(bytes), "none");
  EXPECT_EQ(imported.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(imported.status().message(), "seed.gguf: no tensor is called 'none'; it holds 15 others");
  bytes[seed_view(bytes).find_tensor("2")->offset + 1] = std::byte{0x7c};
  imported = import_gguf(seed_view(bytes), "2");
  EXPECT_EQ(imported.status().code(), StatusCode::kInvalidFile);
  EXPECT_NE(imported.status().message().find("seed.gguf: tensor '2' (Q4_0): scales[0, 0] is nan"), std::string::npos)
      << imported.status().message();
}

// ---------------------------------------------------------------------------------------------------------------

using Arrays = std::map<std::string, Array>;

template <typename T>
Array filled(Dtype dtype, const std::vector<int64_t>& shape, T value) {
  Array array = Array::zeros(dtype, shape);
  for (int64_t i = 0; i < array.size(); ++i) array.data<T>()[i] = value;
  return array;
}

/// N = 8, scales of 1: code k in column k of every row, modulo 8.
Arrays gptq(int64_t columns, int64_t groups) {
  return {{"m.qweight", filled<uint32_t>(Dtype::kS32, {columns / 8, 8}, 0x76543210)},
          {"m.qzeros", filled<uint32_t>(Dtype::kS32, {groups, 1}, 0x77777777)},
          {"m.scales", filled<float>(Dtype::kF32, {groups, 8}, 1)}};
}

std::string message(const Arrays& arrays, const CheckpointOptions& options) {
  const Result<ImportedLowBit> imported = import_checkpoint(arrays, "m", options, "file");
  return imported.ok() ? "" : imported.status().message();
}

TEST(ImportCheckpoint, Gptq) {
  for (const auto format : {CheckpointFormat::kGptq, CheckpointFormat::kGptqV2}) {
    const Result<ImportedLowBit> imported = import_checkpoint(gptq(8, 1), "m", {.format = format}, "file");
    ASSERT_TRUE(imported.ok()) << imported.status().message();
    const bool first = format == CheckpointFormat::kGptq;  // zero points 7 + 1, which is the symmetric kind
    EXPECT_EQ(imported->matrix.parameters().kind, first ? LowBitKind::kSymmetric : LowBitKind::kZeroPoint);
    for (int64_t n = 0; n < 8; ++n)
      for (int64_t k = 0; k < 8; ++k) EXPECT_EQ(imported->matrix.value(n, k), k - (first ? 8 : 7));
  }
}

TEST(ImportCheckpoint, Awq) {
  Arrays arrays = gptq(8, 1);
  arrays["m.qweight"] = filled<uint32_t>(Dtype::kS32, {8, 1}, 0x75316420);  // code n in row n
  const Result<ImportedLowBit> imported =
      import_checkpoint(arrays, "m", {.format = CheckpointFormat::kAwq, .group = -1}, "file");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  for (int64_t n = 0; n < 8; ++n)
    for (int64_t k = 0; k < 8; ++k) EXPECT_EQ(imported->matrix.value(n, k), n - 7);
}

TEST(ImportCheckpoint, SortsColumnsByGroup) {
  Arrays arrays = gptq(16, 2);
  for (int64_t n = 0; n < 8; ++n) arrays["m.scales"].data<float>()[8 + n] = 2;
  Array& group_of = arrays["m.g_idx"] = Array::zeros(Dtype::kS32, {16});
  for (int32_t k = 0; k < 16; ++k) group_of.data<int32_t>()[k] = 1 - k % 2;
  const Result<ImportedLowBit> imported = import_checkpoint(arrays, "m", {.group = 8}, "file");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  ASSERT_EQ(imported->permutation.size(), 16U);
  const std::vector<float> w = weights(imported->matrix);
  for (size_t j = 0; j < 16; ++j) {
    const int32_t k = imported->permutation[j];
    EXPECT_EQ(k, static_cast<int32_t>(j < 8 ? 2 * j + 1 : 2 * j - 16));
    EXPECT_EQ(w[j], static_cast<float>((k % 8 - 8) * (k % 2 == 1 ? 1 : 2)));
  }
  for (int32_t k = 0; k < 16; ++k) group_of.data<int32_t>()[k] = k / 8;
  EXPECT_TRUE(import_checkpoint(arrays, "m", {.group = 8}, "file")->permutation.empty());
}

TEST(ImportCheckpoint, RefusesByName) {
  const Arrays good = gptq(8, 1);
  EXPECT_EQ(message(good, {}), "");
  EXPECT_EQ(message(good, {.bits = 3}), "file: gptq of 3 bits; imported are 2, 4 and 8");
  EXPECT_EQ(message(good, {.format = CheckpointFormat::kAwq, .bits = 8}), "file: awq of 8 bits; imported are 4");
  EXPECT_EQ(message(good, {.group = 0}), "file: group is 0, must be -1 (K) or at least 8");
  EXPECT_EQ(
      message(good, {.format = CheckpointFormat::kGptqV2, .symmetric = true}),
      "file: tensor 'm.qzeros': the zero point of row 0, group 0 is 7, must be 8 in a symmetric checkpoint; is its "
      "format gptq?");
  const auto with = [&](const std::string& name, const Array& array) {
    Arrays arrays = good;
    arrays[name] = array;
    return message(arrays, {});
  };
  EXPECT_EQ(with("m.qzeros", filled<int32_t>(Dtype::kS32, {1, 2}, 0)),
            "file: tensor 'm.qzeros' has the shape (1, 2), must be (1, 1) (gptq, 4 bits, group 128)");
  // Sizes without bytes: nothing may be allocated from them.
  EXPECT_EQ(
      with("m.qweight", Array::zeros(Dtype::kS32, {int64_t{1} << 27, 0})),
      "file: tensor 'm.scales' has the shape (1, 8), must have 8388608 rows for K = 1073741824 (gptq, 4 bits, group "
      "128)");
  EXPECT_NE(with("m.scales", Array::zeros(Dtype::kF32, {1, 0})).find("N is 0, must be 1.."), std::string::npos);
}

TEST(ImportCheckpoint, SuspectsZeroPointsThatAreOneOff) {
  const CheckpointOptions said = {.format = CheckpointFormat::kGptqV2, .symmetric_by_default = true};
  EXPECT_NE(message(gptq(8, 1), said).find("is 7, must be 8 in a symmetric checkpoint; is its format gptq?"),
            std::string::npos);
  Arrays mixed = gptq(8, 1);
  mixed["m.qzeros"] = filled<uint32_t>(Dtype::kS32, {1, 1}, 0x77787777);
  EXPECT_EQ(message(mixed, said), "");
  const auto suspected = [](const Arrays& arrays, CheckpointFormat format) {
    return import_checkpoint(arrays, "m", {.format = format}, "file")->suspected;
  };
  EXPECT_EQ(suspected(gptq(8, 1), CheckpointFormat::kGptqV2), CheckpointFormat::kGptq);
  EXPECT_EQ(suspected(gptq(8, 1), CheckpointFormat::kGptq), std::nullopt);  // 7 + 1
  EXPECT_EQ(suspected(mixed, CheckpointFormat::kGptqV2), std::nullopt);
  Arrays eights = gptq(8, 1);
  eights["m.qzeros"] = filled<uint32_t>(Dtype::kS32, {1, 1}, 0x88888888);
  EXPECT_EQ(suspected(eights, CheckpointFormat::kGptq), CheckpointFormat::kGptqV2);
}

TEST(ImportCheckpoint, ListsMatrices) {
  Arrays arrays = gptq(8, 1);
  arrays["eetq.qweight"] = arrays["eetq.weight_scales"] = arrays["m.scales"];
  arrays[".qweight"] = arrays["b.qweight"] = arrays["b.qweights"] = arrays["m.qweight"];
  arrays["c.qzeros"] = arrays["m.qzeros"];
  EXPECT_EQ(list_checkpoint_matrices(arrays), (std::vector<std::string>{"b", "c", "m"}));
}

// ---------------------------------------------------------------------------------------------------------------

/// "FORMAT: tensor tensor ...; FORMAT: ..." of a list in which every tensor has two dimensions.
std::string foreign(const std::vector<std::pair<std::string, std::string>>& tensors) {
  std::vector<ListedTensor> list;
  list.reserve(tensors.size());
  for (const auto& [name, type] : tensors) list.push_back({name, type, {8, 8}});
  std::string text;
  for (const ForeignFormat& format : find_foreign_formats(list)) {
    text += (text.empty() ? "" : "; ") + format.name + " " + std::to_string(format.matrices) + ":";
    for (const std::string& name : format.tensors) text += " " + name;
  }
  return text;
}

TEST(FindForeignFormats, KnowsTypesThatNoArrayHas) {
  EXPECT_EQ(foreign({{"a.weight", "F8_E4M3"},
                     {"a.weight_scale_inv", "F32"},
                     {"b.weight", "f8_e5m2"},
                     {"b.weight_scale", "BF16"},
                     {"c.weight", "F8_E4M3"},
                     {"c.scale_weight", "F32"},
                     {"d.weight", "F32"}}),
            "FP8 3: a.weight a.weight_scale_inv b.weight b.weight_scale c.scale_weight c.weight");
  EXPECT_EQ(foreign({{"a.weight", "U8"}, {"a.weight_scale", "F8_E4M3"}, {"a.weight_scale_2", "F32"}}),
            "NVFP4 1: a.weight a.weight_scale a.weight_scale_2");
  EXPECT_EQ(foreign({{"a.weight", "F4"}, {"a.weight.scale", "F32"}}),
            "another tool (codes and scales) 1: a.weight a.weight.scale");
  EXPECT_EQ(foreign({{"a.weight", "U64"}, {"b.weight", "BOOL"}, {"c.weight", "C64"}}), "");
}

TEST(FindForeignFormats, KnowsMoreTools) {
  EXPECT_EQ(foreign({{"a.B_24", "I32"}, {"a.s", "F16"}, {"a.B_meta", "I16"}}), "Marlin 2:4 1: a.B_24 a.B_meta a.s");
  EXPECT_EQ(foreign({{"a.weight", "I8"}, {"a.per_channel_scale", "F32"}}),
            "TensorRT-LLM 1: a.per_channel_scale a.weight");
  EXPECT_EQ(foreign({{"a.weight._data._data", "U8"}, {"a.weight._scale", "F16"}, {"a.weight._shift", "F16"}}),
            "quanto 1: a.weight._data._data a.weight._scale a.weight._shift");
  EXPECT_EQ(foreign({{"a.W_q", "U8"}, {"a.scale", "F16"}, {"a.scale2", "F16"}}), "SINQ 1: a.W_q a.scale a.scale2");
  EXPECT_EQ(foreign({{"a.W_q", "U8"}, {"a.scale", "F16"}, {"a.zero", "F16"}}), "HQQ 1: a.W_q a.scale a.zero");
  for (const auto& [codes, scale] : {std::pair{"a.weight_int8", "a.weight_scale"}, std::pair{"a.w_q", "a.w_scale"},
                                     std::pair{"a.weight_q", "a.weight_s"}, std::pair{"a.wq", "a.wscale"}}) {
    EXPECT_EQ(foreign({{codes, "I8"}, {scale, "F32"}, {"b.weight", "F32"}}),
              std::string("another tool (codes and scales) 1: ") + codes + " " + scale);
    EXPECT_EQ(foreign({{codes, "F32"}, {scale, "F32"}}), "") << "floats are no codes";
  }
}

TEST(FindForeignFormats, SpellsTypesEitherWay) {
  for (const char* type : {"I8", "i8", "s8"})
    EXPECT_EQ(foreign({{"a.weight", type}, {"a.SCB", "f32"}}), "bitsandbytes (LLM.int8) 1: a.SCB a.weight");
}

TEST(FindForeignFormats, TellsFormatsApart) {
  EXPECT_EQ(foreign({{"a.weight", "U32"},
                     {"a.scales", "F16"},
                     {"a.biases", "F16"},
                     {"b.weight", "U32"},
                     {"b.scales", "U8"},
                     {"c.weight", "U8"},
                     {"c.weight.absmax", "F32"},
                     {"c.bias", "F16"}}),
            "bitsandbytes (4 bits) 1: c.weight c.weight.absmax; MLX 2: a.biases a.scales a.weight b.scales b.weight");
  // GPTQ and AWQ are imported; floats are no codes, and codes without scales are no weights.
  EXPECT_EQ(foreign({{"a.qweight", "I32"},
                     {"a.qzeros", "I32"},
                     {"a.scales", "F16"},
                     {"a.g_idx", "I32"},
                     {"b.weight", "F16"},
                     {"b.scales", "F16"},
                     {"c.weight", "I8"}}),
            "");
}

}  // namespace
}  // namespace isobit
