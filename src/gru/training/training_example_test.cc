// SPDX-License-Identifier: Apache-2.0
// The C++ of docs/training.md, compiled as it stands there.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace isobit
