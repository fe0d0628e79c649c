// SPDX-License-Identifier: Apache-2.0
#include "isobit/tune.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace isobit {
namespace {

GruWeights random_weights(uint32_t seed, int64_t layers, int32_t directions, int64_t input, int64_t hidden) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  GruWeights weights;
  weights.directions = directions;
  weights.name = "gru";
  for (int64_t i = 0; i < layers * directions; ++i) {
    GruLayerWeights layer;
    layer.input_size = i < directions ? input : directions * hidden;
    layer.hidden_size = hidden;
    const auto fill = [&](std::vector<float>& values, int64_t count, double scale) {
      for (int64_t k = 0; k < count; ++k) values.push_back(normal(random) * static_cast<float>(scale));
    };
    fill(layer.W, 3 * hidden * layer.input_size, 1 / std::sqrt(static_cast<double>(layer.input_size)));
    fill(layer.R, 3 * hidden * hidden, 1 / std::sqrt(static_cast<double>(hidden)));
    fill(layer.bw, 3 * hidden, 0.5);
    fill(layer.br, 3 * hidden, 0.5);
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

std::vector<float> random_sequence(uint32_t seed, int64_t steps, int64_t channels) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(steps * channels));
  for (float& value : x) value = normal(random);
  return x;
}

struct Tuned {
  GruWeights weights;
  GruCalibrator calibrator;
  GruValidation validation;
};

Tuned make_tuned(uint32_t seed, int64_t layers = 1, int32_t directions = 1, ThreadPool* pool = nullptr) {
  GruWeights weights = random_weights(seed, layers, directions, 6, 10);
  auto calibrator = GruCalibrator::create(weights);
  GruValidationOptions options;
  options.pool = pool;
  auto validation = GruValidation::create(weights, options);
  EXPECT_TRUE(calibrator.ok() && validation.ok());
  for (uint32_t i = 0; i < 3; ++i) {
    const std::vector<float> x = random_sequence(100 * seed + i, 40, 6);
    EXPECT_TRUE(calibrator->observe(x, 40, 1).ok());
    const std::vector<float> unseen = random_sequence(100 * seed + 50 + i, 30, 6);
    GruSequences data;
    data.steps = 30;
    data.batch = 1;
    data.x = unseen;
    EXPECT_TRUE(validation->add(data).ok());
  }
  return {std::move(weights), *std::move(calibrator), *std::move(validation)};
}

TEST(Tune, Smoke) {
  Tuned t = make_tuned(1, 2);
  GruTuneOptions options;
  auto result = tune_gru(t.calibrator, t.validation, options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  for (const GruTunePoint& p : result->front)
    std::printf("%6.2f dB %6lld %d  %s\n", p.quality, (long long)p.bytes, (int)p.speed, p.settings.command_options().c_str());
  std::printf("chosen %6.2f %lld evals %lld\n", result->chosen.quality, (long long)result->chosen.bytes, (long long)result->evaluations);
}

}  // namespace
}  // namespace isobit
