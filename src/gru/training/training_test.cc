// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "gru/training/layer.h"
#include "gru/training/reference.h"
#include "gru/training/training_case_test.h"
#include "isobit/cpu.h"
#include "isobit/gru_training.h"
#include "testing/sanitized.h"

namespace isobit {
namespace {

std::vector<uint32_t> bits_of(const Floats& values) {
  std::vector<uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

std::vector<CpuPath> paths() {
  std::vector<CpuPath> found;
  for (const CpuPath path : {CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512Vnni})
    if (cpu_can_run(path)) found.push_back(path);
  return found;
}

TEST(GruTraining, EveryPathGivesTheBytesOfTheReference) {
  Random random(14);
  int64_t compared = 0;
  for (int i = 0; i < (testing::kSanitized ? 12 : 120) && !::testing::Test::HasFailure(); ++i) {
    const int64_t sizes[] = {1, 2, 5, 8, 15, 16, 17, 31, 33, 48};
    const auto size = [&] { return sizes[random.between(0, 9)]; };
    TrainingCase c = TrainingCase::random(random, {.steps = random.between(0, 9),
                                                   .batch = random.one_in(12) ? 0 : random.between(1, 15),
                                                   .input_size = size(),
                                                   .hidden_size = size(),
                                                   .layers = random.between(1, 3),
                                                   .directions = random.between(1, 2)});
    SCOPED_TRACE(c.text());
    const Floats expected = c.run(CpuPath::kReference, 1);
    for (const float value : expected) ASSERT_FALSE(std::isnan(value));
    for (const CpuPath path : paths())
      for (const int threads : {1, 3}) {
        EXPECT_EQ(bits_of(c.run(path, threads)), bits_of(expected)) << to_string(path) << ", " << threads << " threads";
        compared += static_cast<int64_t>(expected.size());
      }
  }
  std::printf("%lld numbers compared\n", static_cast<long long>(compared));
}

/// An empty array is an absent one, whatever its pointer.
TEST(GruTraining, EmptyArraysAreAbsent) {
  Random random(16);
  TrainingCase c =
      TrainingCase::random(random, {.steps = 3, .batch = 2, .input_size = 4, .hidden_size = 5, .directions = 2});
  c.lengths.clear(), c.mask.clear(), c.first.clear(), c.last_gradient.clear();
  const Floats expected = c.run(CpuPath::kReference, 1);
  c.lengths.reserve(2), c.mask.reserve(60), c.first.reserve(20), c.last_gradient.reserve(20);
  for (const CpuPath path : paths()) EXPECT_EQ(bits_of(c.run(path, 1)), bits_of(expected)) << to_string(path);
  EXPECT_EQ(bits_of(c.run(CpuPath::kReference, 1)), bits_of(expected));
}

/// Sums of more terms than a chunk has: over k, over gates, over steps.
TEST(GruTraining, ChunksOfLongSums) {
  if (testing::kSanitized) GTEST_SKIP() << "too much arithmetic";
  Random random(15);
  for (const GruTrainingSizes& sizes : {GruTrainingSizes{.steps = 2, .batch = 3, .input_size = 600, .hidden_size = 90},
                                        GruTrainingSizes{.steps = 3, .batch = 2, .input_size = 2, .hidden_size = 300},
                                        GruTrainingSizes{.steps = 90, .batch = 7, .input_size = 9, .hidden_size = 6}}) {
    TrainingCase c = TrainingCase::random(random, sizes);
    SCOPED_TRACE(c.text());
    const std::vector<uint32_t> expected = bits_of(c.run(CpuPath::kReference, 1));
    for (const CpuPath path : paths())
      for (const int threads : {1, 7}) EXPECT_EQ(bits_of(c.run(path, threads)), expected) << to_string(path);
  }
}

/// Units in the last place of a float near `exact`.
double ulps(float value, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::abs(static_cast<double>(value) - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(GruTraining, FunctionsAreWithinTheirErrors) {
  Floats x;
  const uint32_t step = testing::kSanitized ? 40009 : 1009;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step) {
    const auto pattern = static_cast<uint32_t>(bits);
    float value = 0;
    std::memcpy(&value, &pattern, sizeof value);
    if (!std::isnan(value)) x.push_back(value);
  }
  const auto count = static_cast<int64_t>(x.size());
  Floats e(x.size()), sigmoid(x.size()), tanh(x.size());
  double most[3] = {};
  for (const CpuPath path : paths()) {
    training_kernels_of(path).functions(x.data(), count, e.data(), sigmoid.data(), tanh.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = x[i];
      if (exact <= 0) {
        ASSERT_EQ(e[i], reference_e(x[i])) << x[i];
        if (exact >= -87) most[0] = std::max(most[0], ulps(e[i], std::exp(exact)));
      }
      ASSERT_EQ(sigmoid[i], reference_sigmoid(x[i])) << x[i];
      ASSERT_EQ(tanh[i], reference_tanh(x[i])) << x[i];
      if (exact >= -87) most[1] = std::max(most[1], ulps(sigmoid[i], 1 / (1 + std::exp(-exact))));
      most[2] = std::max(most[2], ulps(tanh[i], std::tanh(exact)));
    }
  }
  std::printf("%lld numbers: at most %.2f, %.2f, %.2f units in the last place\n", static_cast<long long>(count),
              most[0], most[1], most[2]);
  const double limits[] = {2.0, 2.5, 2.0};
  for (size_t i = 0; i < std::size(limits); ++i) EXPECT_LT(most[i], limits[i]);
}

TEST(GruTraining, RefusesByName) {
  const auto begins = [](const Status& status, const std::string& text) {
    EXPECT_EQ(status.message().substr(0, text.size()), text);
  };
  begins(GruTraining::create({.steps = 1, .batch = 1, .input_size = 0, .hidden_size = 1}, "gru").status(),
         "gru: input_size is 0, must be 1 to");
  begins(GruTraining::create({.steps = -1, .batch = 1, .input_size = 1, .hidden_size = 1}, "gru").status(),
         "gru: steps is -1, must be 0 to");
  begins(GruTraining::create({.input_size = 1, .hidden_size = 1, .directions = 3}, "gru").status(),
         "gru: directions is 3, must be 1 to 2");
  begins(GruTraining::create({.steps = 1 << 20, .batch = 1 << 20, .input_size = 3, .hidden_size = 1}, "gru").status(),
         "gru: x would have 3298534883328 numbers or more, must have at most 1099511627776");

  Random random(3);
  TrainingCase c =
      TrainingCase::random(random, {.steps = 2, .batch = 3, .input_size = 4, .hidden_size = 5, .directions = 1});
  c.lengths.clear(), c.mask.clear(), c.first.clear();
  const GruTraining gru = GruTraining::create(c.sizes, "gru").value();
  Workspace workspace = gru.workspace();
  Floats y(c.dy.size()), saved(static_cast<size_t>(gru.saved_size()));
  const auto forward = [&](std::span<const GruTrainingWeights> weights, std::span<const float> x, std::span<float> out,
                           const RunOptions& options = {}) {
    return gru.forward(weights, x, out, saved, workspace, {}, options);
  };
  const std::vector<GruTrainingWeights> weights = c.weights();
  EXPECT_TRUE(forward(weights, c.x, y).ok());
  begins(forward({}, c.x, y), "gru: weights has 0 elements, must have 1: [layers * directions]");
  begins(forward(weights, std::span(c.x).first(23), y), "gru: x has 23 elements, must have 24: [T, N, C]");
  std::vector<GruTrainingWeights> short_bias = weights;
  short_bias[0].br = short_bias[0].br.first(2);
  begins(forward(short_bias, c.x, y), "gru: weights[0].br has 2 elements, must have 15: [3H]");
  begins(forward(weights, std::span<const float>(saved).first(24), y), "gru: saved overlaps x");
  const std::vector<int64_t> lengths = {1, 3, 0};
  begins(forward(weights, c.x, y, {.lengths = lengths}), "gru: options.lengths[1] is 3, must be 0 to 2");
  const std::vector<uint8_t> mask(4);
  begins(forward(weights, c.x, y, {.zoneout_mask = mask}),
         "gru: options.zoneout_mask has 4 elements, must have 30: [layers, T, N, directions * H]");
  begins(forward(weights, c.x, y, {.batch_first = true}), "gru: batch_first is set");
  Workspace small(64);
  EXPECT_EQ(gru.forward(weights, c.x, y, saved, small).code(), StatusCode::kInvalidArgument);
  begins(gru.backward(weights, c.x, y, saved, c.dy, {}, {}, workspace), "gru: gradients has 0 elements, must have 1");
}

}  // namespace
}  // namespace isobit
