// SPDX-License-Identifier: Apache-2.0
// The C++ of docs/linear.md, compiled as it stands there, against sums in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "io/test_files.h"
#include "layer_example.inc"

namespace isobit {
namespace {

constexpr int64_t kM = 5;
constexpr int64_t kN = 20;
constexpr int64_t kK = 192;

Array waves(const std::vector<int64_t>& shape, double step) {
  Array array = Array::zeros(Dtype::kF32, shape);
  for (int64_t i = 0; i < array.size(); ++i)
    array.data<float>()[i] = static_cast<float>(std::sin(step * static_cast<double>(i + 1)));
  return array;
}

double product(const Array& weights, std::span<const float> x, int64_t m, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < kK; ++k)
    sum += static_cast<double>(weights.data<float>()[n * kK + k]) *
           static_cast<double>(x[static_cast<size_t>(m * kK + k)]);
  return sum;
}

TEST(LinearExample, Layer) {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.safetensors");
  const Array weights = waves({kN, kK}, 0.7);
  const Array bias = waves({kN}, 0.3);
  ASSERT_TRUE(save_safetensors(path, {.arrays = {{"fc.weight", weights}, {"fc.bias", bias}}, .metadata = {}}).ok());
  const std::vector<float> x = waves({kM, kK}, 0.7).to_float();
  std::vector<float> y(static_cast<size_t>(kM * kN), -1.0f);
  const Status status = run_layer(path, x, y, kM);
  ASSERT_TRUE(status.ok()) << status.message();
  double error = 0;
  double norm = 0;
  for (int64_t m = 0; m < kM; ++m)
    for (int64_t n = 0; n < kN; ++n) {
      const double expected = std::max(0.0, product(weights, x, m, n) + static_cast<double>(bias.data<float>()[n]));
      const double difference = static_cast<double>(y[static_cast<size_t>(m * kN + n)]) - expected;
      error += difference * difference;
      norm += expected * expected;
    }
  EXPECT_GT(norm, 0.0);
  EXPECT_LT(std::sqrt(error / norm), 0.03);  // weights of four bits
}

TEST(LinearExample, StaticLayer) {
  const Array weights = waves({kN, kK}, 0.7);
  const std::vector<float> x = waves({kM, kK}, 0.7).to_float();
  const Grid x_grid{.bits = 8, .shift = 7};                                    // [-1, 1)
  const Grid y_grid{.bits = 8, .kind = ScaleKind::kReal, .real_scale = 1.0f};  // [-128, 128)
  const Result<StaticLinearLayer> layer = static_layer(weights, x_grid, y_grid);
  ASSERT_TRUE(layer.ok()) << layer.status().message();
  std::vector<int8_t> codes(x.size());
  ASSERT_TRUE(quantize(x_grid, x, codes.data(), "x").ok());
  std::vector<int8_t> y(static_cast<size_t>(kM * kN));
  LinearWorkspace workspace = layer->workspace(kM);
  const Status status =
      layer->forward(std::as_bytes(std::span(codes)), std::as_writable_bytes(std::span(y)), kM, workspace);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t m = 0; m < kM; ++m)
    for (int64_t n = 0; n < kN; ++n) {
      const double expected = product(weights, x, m, n);  // at most 97
      EXPECT_NEAR(static_cast<double>(dequantize_value(y_grid, y[static_cast<size_t>(m * kN + n)])), expected, 1.0);
    }
}

}  // namespace
}  // namespace isobit
