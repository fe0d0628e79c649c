// SPDX-License-Identifier: Apache-2.0
// The C++ of docs/training.md, compiled as it stands there.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "training_example.inc"

namespace isobit {
namespace {

TEST(GruTrainingExample, LearnsToAddUp) {
  constexpr int64_t kSteps = 8, kBatch = 4, kInputs = 1, kHidden = 6;
  const GruTraining gru =
      GruTraining::create({.steps = kSteps, .batch = kBatch, .input_size = kInputs, .hidden_size = kHidden}, "gru")
          .value();
  std::vector<std::vector<float>> parameters = {std::vector<float>(3 * kHidden * kInputs),
                                                std::vector<float>(3 * kHidden * kHidden),
                                                std::vector<float>(3 * kHidden), std::vector<float>(3 * kHidden)};
  for (std::vector<float>& p : parameters)
    for (size_t i = 0; i < p.size(); ++i) p[i] = static_cast<float>(i * 37 % 17) / 17 - 0.5f;
  std::vector<float> x(kSteps * kBatch * kInputs), wanted(kSteps * kBatch * kHidden);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 29 % 11) / 11 - 0.5f;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const size_t row = i / kHidden;
    const float before = row < kBatch ? 0.0f : wanted[i - kBatch * kHidden];
    wanted[i] = 0.5f * before + 0.4f * x[row];
  }
  const float first = step(gru, parameters, x, wanted, 0.05f).value();
  float last = first;
  for (int i = 0; i < 400; ++i) last = step(gru, parameters, x, wanted, 0.05f).value();
  EXPECT_LT(last, 0.05f * first);
}

TEST(GruTrainingExample, GivesGradientsOfIntegers) {
  constexpr int64_t kSteps = 2, kBatch = 3;
  GruWeights weights;
  weights.layers.push_back({1,
                            2,
                            {0.5f, -0.4f, 0.3f, 0.2f, 0.1f, 0.6f},
                            std::vector<float>(12, 0.1f),
                            std::vector<float>(6, 0.2f),
                            std::vector<float>(6, -0.1f)});
  const std::vector<float> x = {0.1f, -0.5f, 0.9f, 0.3f, -0.2f, 0.7f}, wanted(kSteps * kBatch * 2, 0.5f);
  GruCalibrator calibrator = GruCalibrator::create(weights).value();
  ASSERT_TRUE(calibrator.observe(x, kSteps, kBatch).ok());
  GruModelParameters integers = calibrator.derive({}).value();
  std::vector<float> W(6), R(12), bw(6), br(6);
  const std::vector<GruTrainingGradients> into = {{W, R, bw, br}};
  const Status done = gradients_of_integers(integers, weights, {}, x, kSteps, kBatch, wanted, into);
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_NE(W, std::vector<float>(6));
  EXPECT_NE(R, std::vector<float>(12));
}

TEST(GruTrainingExample, LearnsSteps) {
  constexpr int64_t kSteps = 6, kBatch = 8, kInputs = 2, kHidden = 4;
  const auto floats = [](size_t count, float scale) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = scale * (static_cast<float>(i * 37 % 101) / 50 - 1);
    return values;
  };
  GruWeights weights;
  weights.layers.push_back({kInputs, kHidden, floats(24, 1.0f), floats(48, 0.6f), floats(12, 0.3f), floats(12, 0.2f)});
  const std::vector<float> x = floats(kSteps * kBatch * kInputs, 1.0f);
  // What the floats give, from integers of 5 bits whose grids reach over an eighth of it.
  std::vector<float> wanted(kSteps * kBatch * kHidden), last;
  ASSERT_TRUE(gru_forward_float(weights, {.steps = kSteps, .batch = kBatch, .x = x, .y = wanted}).ok());
  GruQuantization quantization;
  ASSERT_TRUE(apply_bits("5:symmetric,weights=8,biases=8,gate_out=8", quantization).ok());
  GruCalibrator calibrator = GruCalibrator::create(weights).value();
  ASSERT_TRUE(calibrator.observe(x, kSteps, kBatch).ok());
  TableCache tables;
  GruModelParameters integers = calibrator.derive(quantization, &tables).value();
  std::vector<Log2Steps> log2_steps(1);
  for (const GruTensor tensor : kGruCalibratedTensors)
    log2_steps[0][tensor] = -integers.layers[0].grids[tensor].shift - (tensor == kX ? 0 : 3);
  std::vector<float> W(24), R(48), bw(12), br(12);
  const std::vector<GruTrainingGradients> into = {{W, R, bw, br}};
  std::vector<double> losses;
  for (int i = 0; i < 300; ++i) {
    const Result<double> loss =
        learn_steps(integers, log2_steps, weights, quantization, tables, x, kSteps, kBatch, wanted, 0.02, into);
    ASSERT_TRUE(loss.ok()) << loss.status().message();
    losses.push_back(*loss);
  }
  EXPECT_LT(losses.back(), 0.1 * losses.front());
}

}  // namespace
}  // namespace isobit
