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
  Workspace workspace = layer->workspace(kM);
  const Status status =
      layer->forward_codes(std::as_bytes(std::span(codes)), std::as_writable_bytes(std::span(y)), kM, workspace);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t m = 0; m < kM; ++m)
    for (int64_t n = 0; n < kN; ++n) {
      const double expected = product(weights, x, m, n);  // at most 97
      EXPECT_NEAR(static_cast<double>(dequantize_value(y_grid, y[static_cast<size_t>(m * kN + n)])), expected, 1.0);
    }
}

/// A GRU with 16-bit states, a layer on its grid, both in integers: the bytes of the reference on every path, and near
/// the floats.
TEST(LinearExample, LayerAfterAGru) {
  constexpr int64_t kSteps = 12, kBatch = 3, kInputs = 6, kHidden = 24;
  const auto floats = [](int64_t count, double step) { return waves({count}, step).to_float(); };
  GruWeights gru_weights;
  gru_weights.layers.push_back({kInputs, kHidden, floats(3 * kHidden * kInputs, 0.7),
                                floats(3 * kHidden * kHidden, 0.9), floats(3 * kHidden, 0.3),
                                floats(3 * kHidden, 0.2)});
  const std::vector<float> x = floats(kSteps * kBatch * kInputs, 1.1);
  Result<GruCalibrator> calibrator = GruCalibrator::create(gru_weights);
  ASSERT_TRUE(calibrator.ok() && calibrator->observe(x, kSteps, kBatch).ok());
  GruQuantization quantization;
  ASSERT_TRUE(apply_bits("8,h=16,linear=16,gate_in=12,gate_out=16", quantization).ok());
  const Result<GruModel> gru = calibrator->finish(quantization);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  ASSERT_EQ(gru->output_grid().dtype(), Dtype::kS16);

  const auto h_of = [&](CpuPath path, std::vector<float>* floats_of_h) {
    std::vector<int16_t> h(static_cast<size_t>(kSteps * kBatch * kHidden));
    std::vector<std::byte> codes(x.size() * size_in_bytes(gru->input_grid().dtype()));
    EXPECT_TRUE(quantize(gru->input_grid(), x, codes.data(), "x").ok());
    GruState state = gru->initial_state(kBatch);
    Workspace workspace = gru->workspace(kBatch, kSteps);
    EXPECT_TRUE(gru->forward_codes(codes, std::as_writable_bytes(std::span(h)), kSteps, state, workspace, {.path = path}).ok());
    if (floats_of_h != nullptr) dequantize(gru->output_grid(), h.data(), *floats_of_h);
    return h;
  };
  std::vector<float> h_floats(static_cast<size_t>(kSteps * kBatch * kHidden));
  const std::vector<int16_t> h = h_of(CpuPath::kReference, &h_floats);

  const Array weights = waves({kN, kHidden}, 0.8);
  const std::vector<float> bias = floats(kN, 0.4);
  const TemporaryFolder folder;
  const std::string path = folder.file("fc.safetensors");
  const Status saved = save_layer_after(*gru, weights, bias, h_floats, kSteps, kBatch, path);
  ASSERT_TRUE(saved.ok()) << saved.message();
  std::vector<int16_t> expected;
  for (const CpuPath cpu_path : kAllCpuPaths) {
    if (!cpu_can_run(cpu_path)) continue;
    const Result<StaticLinearLayer> layer = StaticLinearLayer::load(path, "fc", cpu_path);
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    EXPECT_EQ(h_of(cpu_path, nullptr), h);
    std::vector<int16_t> y(static_cast<size_t>(kSteps * kBatch * kN));
    Workspace workspace = layer->workspace(kSteps * kBatch);
    const Status status =
        layer->forward_codes(std::as_bytes(std::span(h)), std::as_writable_bytes(std::span(y)), kSteps * kBatch,
                             workspace);
    ASSERT_TRUE(status.ok()) << status.message();
    if (expected.empty()) expected = y;
    EXPECT_EQ(y, expected) << to_string(cpu_path);
    for (int64_t m = 0; m < kSteps * kBatch; ++m)
      for (int64_t n = 0; n < kN; ++n) {
        auto sum = static_cast<double>(bias[static_cast<size_t>(n)]);
        for (int64_t k = 0; k < kHidden; ++k)
          sum += static_cast<double>(weights.data<float>()[n * kHidden + k]) *
                 static_cast<double>(h_floats[static_cast<size_t>(m * kHidden + k)]);
        const float y_float = dequantize_value(*layer->output_grid(), y[static_cast<size_t>(m * kN + n)]);
        ASSERT_NEAR(static_cast<double>(y_float), sum, 0.05);  // weights of eight bits
      }
  }
}

}  // namespace
}  // namespace isobit
