// SPDX-License-Identifier: Apache-2.0
// Calls of training with random sizes, weights and options.
#ifndef ISOBIT_GRU_TRAINING_TRAINING_CASE_TEST_H_
#define ISOBIT_GRU_TRAINING_TRAINING_CASE_TEST_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/random.h"
#include "isobit/cpu.h"
#include "isobit/gru_training.h"

namespace isobit {

using Floats = std::vector<float>;

inline Floats random_floats(Random& random, int64_t count, float scale) {
  Floats values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(random.between(-1 << 20, 1 << 20)) * 0x1p-20f * scale;
  return values;
}

/// A call and what it gives.
struct TrainingCase {
  GruTrainingSizes sizes;
  std::vector<Floats> parameters;  // W, R, bw, br of each direction
  Floats x, dy, first, last_gradient;
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;
  bool wants_dx = true;

  static TrainingCase random(Random& random, const GruTrainingSizes& sizes) {
    TrainingCase c;
    c.sizes = sizes;
    const int64_t H = sizes.hidden_size, states = sizes.layers * sizes.directions;
    const float scale = random.one_in(6) ? 30.0f : random.one_in(8) ? 1e-30f : 1.0f;
    for (int64_t i = 0; i < states; ++i) {
      const int64_t inputs = i < sizes.directions ? sizes.input_size : sizes.directions * H;
      for (const int64_t count : {3 * H * inputs, 3 * H * H, 3 * H, 3 * H})
        c.parameters.push_back(random_floats(random, count, scale * 0.5f));
    }
    const int64_t rows = sizes.steps * sizes.batch;
    c.x = random_floats(random, rows * sizes.input_size, 2.0f);
    c.dy = random_floats(random, rows * sizes.directions * H, 1.0f);
    if (random.one_in(2)) c.first = random_floats(random, states * sizes.batch * H, 1.0f);
    if (random.one_in(2)) c.last_gradient = random_floats(random, states * sizes.batch * H, 1.0f);
    if (random.one_in(2))
      for (int64_t n = 0; n < sizes.batch; ++n) c.lengths.push_back(random.between(0, sizes.steps));
    if (random.one_in(3))
      for (int64_t i = 0; i < sizes.layers * rows * sizes.directions * H; ++i)
        c.mask.push_back(static_cast<uint8_t>(random.between(0, 1)));
    c.wants_dx = !random.one_in(4);
    return c;
  }

  /// Weights as PyTorch begins with: of larger ones, gradients are differences of rounded numbers.
  void set_usual_weights(Random& random) {
    const float limit = 1.0f / std::sqrt(static_cast<float>(sizes.hidden_size));
    for (Floats& p : parameters) p = random_floats(random, static_cast<int64_t>(p.size()), limit);
  }

  [[nodiscard]] std::vector<GruTrainingWeights> weights() const {
    std::vector<GruTrainingWeights> all;
    for (size_t i = 0; i < parameters.size(); i += 4)
      all.push_back({parameters[i], parameters[i + 1], parameters[i + 2], parameters[i + 3]});
    return all;
  }
  /// y, the last states, dx, first_gradient and all gradients of weights.
  [[nodiscard]] std::vector<Floats> tensors(CpuPath path, int threads) const {
    const GruTraining gru = GruTraining::create(sizes, "gru").value();
    std::optional<ThreadPool> pool;
    if (threads > 1) pool.emplace(threads);
    const RunOptions options{.path = path, .pool = pool ? &*pool : nullptr, .lengths = lengths, .zoneout_mask = mask};
    Workspace workspace = gru.workspace(threads);
    const auto nan = std::numeric_limits<float>::quiet_NaN();
    Floats y(dy.size(), nan), saved(static_cast<size_t>(gru.saved_size()), nan);
    Floats dx(wants_dx ? x.size() : 0, nan);
    const auto state_size = static_cast<size_t>(sizes.layers * sizes.directions * sizes.batch * sizes.hidden_size);
    Floats last(state_size, nan), first_gradient(state_size, nan);
    std::vector<Floats> gradients;
    for (const Floats& p : parameters) gradients.emplace_back(p.size(), nan);
    std::vector<GruTrainingGradients> spans;
    for (size_t i = 0; i < gradients.size(); i += 4)
      spans.push_back({gradients[i], gradients[i + 1], gradients[i + 2], gradients[i + 3]});
    const Status forward = gru.forward(weights(), x, y, saved, workspace, {.first = first, .last = last}, options);
    EXPECT_TRUE(forward.ok()) << forward.message();
    const Status backward =
        gru.backward(weights(), x, y, saved, dy, dx, spans, workspace,
                     {.first = first, .last_gradient = last_gradient, .first_gradient = first_gradient}, options);
    EXPECT_TRUE(backward.ok()) << backward.message();
    std::vector<Floats> all = {y, last, dx, first_gradient};
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
  /// The same, behind each other.
  [[nodiscard]] Floats run(CpuPath path, int threads) const {
    Floats all;
    for (const Floats& part : tensors(path, threads)) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  [[nodiscard]] std::string text() const {
    return "T " + std::to_string(sizes.steps) + " N " + std::to_string(sizes.batch) + " C " +
           std::to_string(sizes.input_size) + " H " + std::to_string(sizes.hidden_size) + " layers " +
           std::to_string(sizes.layers) + " directions " + std::to_string(sizes.directions) + " lengths " +
           std::to_string(lengths.size()) + " mask " + std::to_string(mask.size());
  }
};

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_TRAINING_CASE_TEST_H_
