// SPDX-License-Identifier: Apache-2.0
// Layouts of a convolution's weights, the matrices that they become, and the file that remembers them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/test_files.h"
#include "isobit/low_bit.h"
#include "isobit/pack.h"

namespace isobit {
namespace {

/// Element (a, b, c, d).
float at(const Array& array, int64_t a, int64_t b, int64_t c, int64_t d) {
  const std::vector<int64_t>& n = array.shape;
  return array.data<float>()[((a * n[1] + b) * n[2] + c) * n[3] + d];
}

std::string error_of(const Array& weights, ConvLayout layout, int64_t groups) {
  const Result<Array> made = conv_weights_from(weights, layout, groups, "w");
  return made.ok() ? "" : made.status().message();
}

TEST(ConvWeights, EveryLayoutIsTheDefinition) {
  const Array oihw = iota_f32({6, 2, 3, 4});
  const Array ohwi = conv_weights_from(oihw, ConvLayout::kOihw, 1, "w").value();
  ASSERT_EQ(ohwi.shape, (std::vector<int64_t>{6, 3, 4, 2}));
  for (int64_t o = 0; o < 6; ++o)
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t s = 0; s < 4; ++s)
        for (int64_t c = 0; c < 2; ++c) ASSERT_EQ(at(ohwi, o, r, s, c), at(oihw, o, c, r, s));
  EXPECT_EQ(conv_weights_from(ohwi, ConvLayout::kOhwi, 1, "w").value(), ohwi);
  const Array iohw = iota_f32({6, 2, 3, 4});  // 3 groups of 2 channels and 2 outputs
  const Array transposed = conv_weights_from(iohw, ConvLayout::kIohw, 3, "w").value();
  ASSERT_EQ(transposed.shape, (std::vector<int64_t>{6, 3, 4, 2}));
  for (int64_t o = 0; o < 6; ++o)
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t s = 0; s < 4; ++s)
        for (int64_t c = 0; c < 2; ++c) ASSERT_EQ(at(transposed, o, r, s, c), at(iohw, o / 2 * 2 + c, o % 2, r, s));
}

TEST(ConvWeights, RefusesByName) {
  const Array weights = iota_f32({6, 2, 3, 4});
  EXPECT_EQ(error_of(iota_f32({6, 2}), ConvLayout::kOihw, 1), "w has the shape [6, 2], must be [O, C / groups, R, S]");
  for (const int64_t groups : {int64_t{0}, int64_t{-1}, int64_t{4}, int64_t{12}, INT64_MAX})
    EXPECT_EQ(error_of(weights, ConvLayout::kIohw, groups),
              "w: groups is " + std::to_string(groups) + ", must be 1 to 6 and divide 6 channels of weights in iohw");
  EXPECT_EQ(error_of(weights, ConvLayout::kOihw, 2),
            "w: groups is 2, must be 1 of weights in oihw, which do not depend on it");
  EXPECT_FALSE(conv_layout_from_string("OIHW"));
  for (const ConvLayout layout : {ConvLayout::kOhwi, ConvLayout::kOihw, ConvLayout::kIohw})
    EXPECT_EQ(conv_layout_from_string(to_string(layout)), layout);
}

TEST(ConvWeights, BothFormsOfMatrices) {
  const Array weights = iota_f32({3, 2, 2, 16});
  Array rows = weights;
  rows.shape = {12, 16};
  const LowBitOptions options{.bits = 4, .group = 8};
  EXPECT_EQ(quantize_conv_weights(weights, options, "w").value(), quantize_low_bit(rows, options, "w").value());
  rows.shape = {3, 64};
  EXPECT_EQ(quantize_conv_weights(weights, {.bits = 4, .group = 0}, "w").value(),
            quantize_low_bit(rows, {.bits = 4, .group = 64}, "w").value());
  const Result<LowBitMatrix> wide = quantize_conv_weights(weights, {.bits = 4, .group = 24}, "w");
  ASSERT_FALSE(wide.ok());
  EXPECT_EQ(wide.status().message(), "w: group is 24, must be K, 16, or a multiple of 8 below it");
}

class ConvFile : public ::testing::Test {
 protected:
  static LowBitFile file(int64_t group, const ConvWeights& conv) {
    const Array weights = iota_f32({6, 3, 4, 16});
    LowBitFile out;
    out.matrices.emplace("w", quantize_conv_weights(weights, {.bits = 4, .group = group}, "w").value());
    out.convolutions.emplace("w", conv);
    return out;
  }
  static constexpr ConvWeights kWeights{.outputs = 6, .kernel_rows = 3, .kernel_columns = 4, .channels = 16};
  std::string refusal(const LowBitFile& content) {
    const Status status = save_low_bit(path_, content);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message().substr(path_.size());
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.file("conv.safetensors");
};

TEST_F(ConvFile, ComesBackAsItWas) {
  for (const int64_t group : {0, 8, 16})
    for (const int64_t transposed : {0, 1, 3}) {
      ConvWeights conv = kWeights;
      conv.transposed_groups = transposed;
      const LowBitFile content = file(group, conv);
      ASSERT_TRUE(save_low_bit(path_, content).ok());
      EXPECT_EQ(load_low_bit(path_).value(), content);
      EXPECT_EQ(low_bit_tensor(content, "w")->shape, (std::vector<int64_t>{6, 3, 4, 16}));
      EXPECT_EQ(load_arrays(path_)->metadata.at("isobit").find("\"format_version\":1"), std::string::npos);
    }
  LowBitFile plain = file(8, kWeights);
  plain.convolutions.clear();
  ASSERT_TRUE(save_low_bit(path_, plain).ok());
  EXPECT_NE(load_arrays(path_)->metadata.at("isobit").find("\"format_version\":1"), std::string::npos);
}

TEST_F(ConvFile, RefusesWhatDoesNotFit) {
  const auto changed = [](int64_t ConvWeights::*field, int64_t value) {
    ConvWeights conv = kWeights;
    conv.*field = value;
    return conv;
  };
  for (const auto& [conv, message] :
       {std::pair{changed(&ConvWeights::outputs, 5), "the matrix has the shape (72, 16) and 2 groups a row"},
        std::pair{changed(&ConvWeights::kernel_rows, 0), "a size is 0, must be 1..2147483647"},
        std::pair{changed(&ConvWeights::kernel_columns, -4), "a size is -4, must be 1..2147483647"},
        std::pair{changed(&ConvWeights::channels, 8), "the matrix has the shape (72, 16) and 2 groups a row"},
        std::pair{changed(&ConvWeights::kernel_rows, INT64_MAX), "a size is 9223372036854775807"},
        std::pair{changed(&ConvWeights::transposed_groups, 4), "groups is 4, must divide 6 outputs"},
        std::pair{changed(&ConvWeights::transposed_groups, -1), "groups is -1, must divide 6 outputs"}}) {
    const std::string said = refusal(file(8, conv));
    EXPECT_NE(said.find(std::string(": convolution 'w': ") + message), std::string::npos) << said;
  }
  EXPECT_NE(refusal(file(0, changed(&ConvWeights::channels, 17))).find("the matrix has the shape (6, 192)"),
            std::string::npos);
  LowBitFile other = file(8, kWeights);
  other.convolutions = {{"v", kWeights}};
  EXPECT_EQ(refusal(other), ": convolution 'v': no matrix has this name");
  LowBitFile permuted = file(8, kWeights);
  std::vector<int32_t> order(16);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  permuted.arrays["w.permutation"] = Array::copy_of(order.data(), {16});
  EXPECT_EQ(refusal(permuted), ": convolution 'w': it has a permutation, must have none");
}

/// Files are changed by hand.
TEST_F(ConvFile, ReaderTrustsNothing) {
  ASSERT_TRUE(save_low_bit(path_, file(8, kWeights)).ok());
  const ArrayFile good = load_arrays(path_).value();
  const auto said = [&](const std::string& from, const std::string& to) {
    ArrayFile changed = good;
    std::string& text = changed.metadata["isobit"];
    const size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    text.replace(place, from.size(), to);
    EXPECT_TRUE(save_safetensors(path_, changed).ok());
    const Result<LowBitFile> loaded = load_low_bit(path_);
    return loaded.ok() ? "accepted" : loaded.status().message();
  };
  for (const auto& [from, to, message] :
       {std::tuple{"\"kernel_rows\":3", "\"kernel_rows\":0",
                   "field 'kernel_rows' is 0, must be an integer in 1..2147483647"},
        std::tuple{"\"kernel_rows\":3", "\"kernel_rows\":2", "the matrix has the shape (72, 16)"},
        std::tuple{"\"kernel_rows\":3", "\"rows\":3", "kernel_rows"},
        std::tuple{"\"outputs\":6", "\"outputs\":6,\"more\":1", "more"},
        std::tuple{"\"outputs\":6", "\"outputs\":6,\"transposed_groups\":0", "transposed_groups"},
        std::tuple{"\"format_version\":2", "\"format_version\":1", "convolution"},
        std::tuple{"\"format_version\":2", "\"format_version\":3", "reads format version 1 to 2"}}) {
    const std::string text = said(from, to);
    EXPECT_NE(text.find(message), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace isobit
