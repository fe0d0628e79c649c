// SPDX-License-Identifier: Apache-2.0
// Plans of packing, and what comes of them. What other tools write is in tests/pack_test.py and tests/gguf_test.py.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "io/gguf/seed.h"
#include "io/test_files.h"
#include "isobit/pack.h"

namespace isobit {
namespace {

using Actions = std::map<std::string, std::string>;

Actions actions_of(const Packing& packing) {
  Actions actions;
  for (const PackTensor& tensor : packing.tensors()) actions[tensor.name] = to_string(tensor.action);
  return actions;
}

class PackPlan : public ::testing::Test {
 protected:
  std::string save(const std::map<std::string, Array>& arrays) {
    std::string path = folder_.file("model.safetensors");
    EXPECT_TRUE(save_safetensors(path, {arrays, {}}).ok());
    return path;
  }
  /// A matrix, an embedding and a bias.
  std::string floats() {
    return save({{"fc.weight", iota_f32({4, 16})}, {"emb.weight", iota_f32({3, 16})}, {"fc.bias", iota_f32({4})}});
  }
  /// GPTQ of 8 rows and 16 columns in groups of 8, whose columns are in the order of activations, and a float head.
  std::string gptq() {
    Array qweight = Array::zeros(Dtype::kS32, {2, 8}), qzeros = Array::zeros(Dtype::kS32, {2, 1});
    for (int64_t i = 0; i < 16; ++i) qweight.data<uint32_t>()[i] = 0x76543210U + static_cast<uint32_t>(i);
    Array scales = iota_f32({2, 8}), g_idx = Array::zeros(Dtype::kS32, {16});
    for (int64_t i = 0; i < 16; ++i) scales.data<float>()[i] += 1;
    for (int64_t k = 0; k < 16; ++k) g_idx.data<int32_t>()[k] = static_cast<int32_t>(k % 2);
    return save({{"m.qweight", qweight},
                 {"m.qzeros", qzeros},
                 {"m.scales", scales},
                 {"m.g_idx", g_idx},
                 {"head", iota_f32({4, 16})}});
  }
  static Result<Packing> plan(const std::string& path, const PackOptions& options) {
    return Packing::plan(path, options);
  }
  static std::string error(const std::string& path, const PackOptions& options) {
    const Result<Packing> packing = Packing::plan(path, options);
    return packing.ok() ? "" : packing.status().message();
  }

  const TemporaryFolder folder_;
};

constexpr auto kGptq = CheckpointFormat::kGptq;

TEST_F(PackPlan, FloatsByPatterns) {
  const std::string path = floats();
  const auto actions = [&](const PackOptions& options) { return actions_of(plan(path, options).value()); };
  EXPECT_EQ(actions({}), (Actions{{"emb.weight", "quantize"}, {"fc.bias", "keep"}, {"fc.weight", "quantize"}}));
  EXPECT_EQ(actions({.include = {"fc.*"}}),
            (Actions{{"emb.weight", "keep"}, {"fc.bias", "keep"}, {"fc.weight", "quantize"}}));
  EXPECT_EQ(actions({.exclude = {"emb*"}}),
            (Actions{{"emb.weight", "keep"}, {"fc.bias", "keep"}, {"fc.weight", "quantize"}}));
  EXPECT_EQ(error(path, {.include = {"fc.*", "out*"}}),
            "--include out*: " + path + " holds no matrix of floats with such a name");
  EXPECT_EQ(error(path, {.exclude = {"fc.bias"}}),
            "--exclude fc.bias: " + path + " holds no matrix of floats or quantised tensor with such a name");
  EXPECT_EQ(error(path, {.exclude = {"*.weight"}}), path + ": holds no matrix to quantise or import");
  EXPECT_EQ(error(path, {.group = -8}), "--group -8: expected 0, a whole row, or more");
}

TEST_F(PackPlan, ConvolutionsWhereTheirLayoutIsSaid) {
  const Array weights = iota_f32({4, 8, 3, 2});
  const std::string path = save({{"conv.weight", weights}, {"fc.weight", iota_f32({4, 16})}, {"b", iota_f32({4})}});
  EXPECT_EQ(actions_of(plan(path, {}).value()),
            (Actions{{"b", "keep"}, {"conv.weight", "keep"}, {"fc.weight", "quantize"}}));
  const PackOptions options{.bits = 8, .group = 64, .conv_layout = ConvLayout::kIohw, .conv_groups = 2};
  Result<Packing> packing = plan(path, options);
  ASSERT_TRUE(packing.ok()) << packing.status().message();
  const Result<LowBitFile> file = std::move(*packing).run();
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<PackedConv> alone = pack_conv(weights, options, "w");
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  EXPECT_EQ(file->matrices.at("conv.weight"), alone->matrix);
  EXPECT_EQ(alone->matrix.parameters().group, 2);  // all channels, which are fewer
  ASSERT_EQ(file->convolutions.size(), 1U);
  EXPECT_EQ(file->convolutions.at("conv.weight"),
            (ConvWeights{.outputs = 16, .kernel_rows = 3, .kernel_columns = 2, .channels = 2, .transposed_groups = 2}));
  EXPECT_EQ(error(path, {.exclude = {"conv*"}, .conv_layout = ConvLayout::kOihw}),
            "--weight-layout oihw: " + path + " holds no floats of 4 dimensions to quantise; leave it out");
  EXPECT_EQ(error(path, {.conv_groups = 2}), "--groups 2: is for --weight-layout iohw, whose weights depend on it");
}

TEST_F(PackPlan, ErrorOfEveryTensor) {
  const std::string path = floats();
  Result<Packing> packing = plan(path, {.bits = 8, .group = 0, .scales = Dtype::kF16});
  ASSERT_TRUE(packing.ok()) << packing.status().message();
  EXPECT_TRUE(packing->refusal().empty());
  EXPECT_FALSE(packing->checkpoint().has_value());
  std::map<std::string, PackedTensor> reported;
  const Result<LowBitFile> file = std::move(*packing).run(
      nullptr, [&](const PackTensor& tensor, const PackedTensor& packed) { reported.emplace(tensor.name, packed); });
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(reported.size(), 3U);
  const LowBitMatrix& matrix = file->matrices.at("fc.weight");
  EXPECT_EQ(matrix.parameters().group, 16);
  EXPECT_EQ(matrix.parameters().scales.dtype, Dtype::kF16);
  EXPECT_EQ(reported.at("fc.weight").sqnr, sqnr(iota_f32({4, 16}), matrix, "W").value());
  EXPECT_GT(*reported.at("fc.weight").sqnr, 40);
  EXPECT_EQ(reported.at("fc.weight").bytes, static_cast<uint64_t>(matrix.size_bytes()));
  EXPECT_FALSE(reported.at("fc.bias").sqnr.has_value());
  EXPECT_EQ(file->arrays.at("fc.bias"), iota_f32({4}));
  EXPECT_TRUE(save_low_bit(folder_.file("packed.safetensors"), *file).ok());
}

TEST_F(PackPlan, Checkpoint) {
  const std::string path = gptq();
  EXPECT_NE(error(path, {}).find("give --checkpoint-format, --bits and --group"), std::string::npos);
  const PackOptions stored{.bits = 4, .group = 8, .checkpoint_format = kGptq};
  Result<Packing> packing = plan(path, stored);
  ASSERT_TRUE(packing.ok()) << packing.status().message();
  EXPECT_EQ(actions_of(*packing), (Actions{{"m.weight", "import"}, {"head", "keep"}}));
  EXPECT_EQ(packing->checkpoint()->options.group, 8);
  const Result<LowBitFile> file = std::move(*packing).run();
  ASSERT_TRUE(file.ok()) << file.status().message();
  const LowBitMatrix& matrix = file->matrices.at("m.weight");
  const std::vector<int32_t> permutation = low_bit_permutation(*file, "m.weight");
  ASSERT_EQ(permutation.size(), 16U);
  EXPECT_EQ(permutation[1], 2);  // groups take turns

  // x in the order of the columns times the matrix is x times the weights.
  const Array weights = dequantize_low_bit(matrix, permutation).value();
  std::vector<float> sorted(8 * 16);
  ASSERT_TRUE(matrix.dequantize(sorted).ok());
  Array x = iota_f32({1, 16});
  ASSERT_TRUE(permute_columns(x, permutation).ok());
  for (int64_t n = 0; n < 8; ++n) {
    double by_matrix = 0, by_weights = 0;
    for (int64_t k = 0; k < 16; ++k) {
      by_matrix +=
          static_cast<double>(x.data<float>()[k]) * static_cast<double>(sorted[static_cast<size_t>(n * 16 + k)]);
      by_weights += static_cast<double>(k) * static_cast<double>(weights.data<float>()[n * 16 + k]);
    }
    EXPECT_EQ(by_matrix, by_weights);
  }

  PackOptions odd = stored;
  odd.kind = LowBitKind::kOffset;
  EXPECT_EQ(error(path, odd), "--kind offset: the matrices of " + path +
                                  " are quantised already and are taken as they are; leave it out, or give "
                                  "--requantize");
  PackOptions parts = stored;
  parts.exclude = {"m.*"};
  parts.include = {"head"};
  EXPECT_EQ(actions_of(plan(path, parts).value()), (Actions{{"m.qweight", "keep"},
                                                            {"m.qzeros", "keep"},
                                                            {"m.scales", "keep"},
                                                            {"m.g_idx", "keep"},
                                                            {"head", "quantize"}}));

  // Quantised again: bits and group are those of the result, where a file says how the checkpoint is stored.
  const std::string config = R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": false})";
  ASSERT_TRUE(write_file_atomically(folder_.file("quantize_config.json"), config.data(), config.size()).ok());
  packing = plan(path, {.bits = 2, .group = 16, .requantize = true});
  ASSERT_TRUE(packing.ok()) << packing.status().message();
  EXPECT_EQ(packing->checkpoint()->options.bits, 4);
  const Result<LowBitFile> again = std::move(*packing).run();
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->matrices.at("m.weight").parameters().bits, 2);
  EXPECT_FALSE(again->arrays.contains("m.weight.permutation"));
}

TEST_F(PackPlan, Gguf) {
  const std::vector<std::byte> bytes = gguf_seed_file();
  const std::string path = folder_.file("seed.gguf");
  ASSERT_TRUE(write_file_atomically(path, bytes.data(), bytes.size()).ok());
  EXPECT_EQ(error(path, {.checkpoint_format = kGptq}),
            "--checkpoint-format gptq: " + path + " holds no tensors of GPTQ or AWQ (NAME.qweight)");
  Result<Packing> packing = plan(path, {});
  ASSERT_TRUE(packing.ok()) << packing.status().message();
  ASSERT_TRUE(packing->metadata().has_value());
  const GgufFile file = GgufFile::view(bytes.data(), bytes.size(), path).value();
  std::vector<std::string> refused;
  for (const PackTensor& tensor : packing->tensors()) {
    const GgufTensor& there = *file.find_tensor(tensor.source);
    EXPECT_EQ(tensor.action == PackAction::kImport, is_importable(there));
    EXPECT_EQ(tensor.action == PackAction::kRefuse, !there.readable);
    if (!there.readable) refused.push_back(tensor.name);
  }
  if (refused.empty()) {
    EXPECT_TRUE(packing->refusal().empty());
    return;
  }
  const std::string refusal = packing->refusal();
  EXPECT_NE(refusal.find("--exclude '" + refused.front() + "' leaves it out"), std::string::npos) << refusal;
  EXPECT_EQ(std::move(*packing).run().status().message(), refusal);
  packing = plan(path, {.exclude = refused});
  ASSERT_TRUE(packing.ok());
  EXPECT_TRUE(std::move(*packing).run().ok());
}

TEST_F(PackPlan, RefusalsComeBeforeTheWork) {
  const std::string path = save({{"fc", iota_f32({4, 16})}, {"none", iota_f32({0, 16})}});
  Result<Packing> packing = plan(path, {});
  ASSERT_TRUE(packing.ok());
  EXPECT_EQ(actions_of(*packing), (Actions{{"fc", "quantize"}, {"none", "refuse"}}));
  int reports = 0;
  const auto count = [&](const PackTensor&, const PackedTensor&) { ++reports; };
  const std::string refusal = packing->refusal();
  EXPECT_NE(refusal.find("array \"none\" has the shape [0, 16], must have elements"), std::string::npos) << refusal;
  const Result<LowBitFile> file = std::move(*packing).run(nullptr, count);
  EXPECT_EQ(file.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(file.status().message(), refusal);
  EXPECT_EQ(reports, 0);
  EXPECT_TRUE(std::move(*plan(path, {})).rehearse(nullptr, count).ok());
  EXPECT_EQ(reports, 2);
  // A value that cannot be quantised is found by the work only.
  Array bad = iota_f32({4, 16});
  bad.data<float>()[17] = std::nanf("");
  const Result<LowBitFile> nan = std::move(*plan(save({{"fc", bad}}), {})).run();
  EXPECT_NE(nan.status().message().find("[1, 1] is nan, must be finite"), std::string::npos) << nan.status().message();
}

TEST(PermuteColumns, Refuses) {
  Array x = iota_f32({2, 3});
  EXPECT_EQ(permute_columns(x, std::vector<int32_t>{0, 1}).message(), "permutation: has 2 elements, must have 3");
  EXPECT_EQ(permute_columns(x, std::vector<int32_t>{0, 1, 1}).message(),
            "permutation: element 2 is 1, must be another of 0..2");
  EXPECT_EQ(x, iota_f32({2, 3}));
}

}  // namespace
}  // namespace isobit
