// SPDX-License-Identifier: Apache-2.0
// The C++ of docs/conv.md, compiled as it stands there, against the reference.
#include <gtest/gtest.h>

#include <vector>

#include "conv/reference.h"
#include "conv_example.inc"
#include "core/codes.h"

namespace isobit {
namespace {

TEST(ConvExample, EqualsTheReference) {
  constexpr int64_t kOutputs = 5, kChannels = 3, kRows = 6, kColumns = 4, kDepth = 9 * kChannels;
  Array values = Array::zeros(Dtype::kF32, {kOutputs, kDepth});
  for (int64_t i = 0; i < values.size(); ++i) values.data<float>()[i] = static_cast<float>(i * 7 % 13) / 8 - 0.75f;
  const Result<LowBitMatrix> weights = quantize_low_bit(values, {.bits = 8, .group = kDepth}, "W");
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const StaticLinearOptions options{.input = {.bits = 8, .is_signed = true, .shift = 6, .zero_point = -20},
                                    .output = Grid{.bits = 8, .is_signed = true, .shift = 4}};
  std::vector<std::byte> x(kRows * kColumns * kChannels), y(kRows * kColumns * kOutputs);
  std::vector<int32_t> centred;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto code = static_cast<int32_t>(i * 37 % 256) - 128;
    x[i] = static_cast<std::byte>(code);
    centred.push_back(code - static_cast<int32_t>(options.input.zero_point));
  }
  const Status status = convolve(*weights, options, x, y, 1, kRows, kColumns, kChannels);
  ASSERT_TRUE(status.ok()) << status.message();

  const Result<StaticLinearParameters> linear = derive_static_linear(*weights, options, "conv1");
  ASSERT_TRUE(linear.ok()) << linear.status().message();
  const ConvAxis same{.kernel = 3, .pad_before = 1, .pad_after = 1};
  const StaticConvParameters p{{.channels = kChannels, .outputs = kOutputs, .rows = same, .columns = same}, *linear};
  const ImageSize image{kRows, kColumns};
  std::vector<int64_t> codes;
  codes.reserve(y.size());
  for (const std::byte code : y) codes.push_back(static_cast<int8_t>(code));
  EXPECT_EQ(codes, reference_static_conv(p, image, image, centred.data(), nullptr));
}

}  // namespace
}  // namespace isobit
