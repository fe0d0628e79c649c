// SPDX-License-Identifier: Apache-2.0
// One direction of one layer: what the reference and the packed loops are given. Everything is checked.
#ifndef ISOBIT_GRU_TRAINING_DIRECTION_H_
#define ISOBIT_GRU_TRAINING_DIRECTION_H_

#include <cstdint>
#include <span>

#include "isobit/gru_qat.h"
#include "isobit/gru_training.h"

namespace isobit {

struct TrainingDirection {
  int64_t steps, batch, inputs, hidden;  // T, N, C, H
  bool reverse;
  std::span<const int64_t> lengths;  // empty: T for all
  GruTrainingWeights weights;
  const float* x;       // [T, N, C]
  const uint8_t* mask;  // null: none; rows as of y
  const float* first;   // [N, H]; null: zeros
  int64_t y_row;        // from (t, n) to the next, of y, dy and masks

  [[nodiscard]] int64_t length(int64_t n) const { return lengths.empty() ? steps : lengths[static_cast<size_t>(n)]; }
  [[nodiscard]] bool is_whole() const { return lengths.empty(); }
  [[nodiscard]] int64_t rows() const { return steps * batch; }
  /// The step that is computed as the i-th. Past its length a sequence waits, so that its first state is still there.
  [[nodiscard]] int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  /// The state before step t of sequence n; null: zeros.
  [[nodiscard]] const float* before(const float* y, int64_t t, int64_t n) const {
    const int64_t last = reverse ? t + 1 : t - 1;
    if (last < 0 || last >= length(n)) return first == nullptr ? nullptr : first + n * hidden;
    return y + (last * batch + n) * y_row;
  }
};

struct TrainingForward {
  float* y;
  float* last;   // [N, H]; null: not wanted
  float* saved;  // [T, N, 4H]
};
struct TrainingBackward {
  const float* y;
  const float* saved;
  const uint16_t* passes;  // [T, N, H], bits from kPassIh on; null: all 1
  const float* dy;
  const float* last_gradient;  // [N, H]; null: zeros
  float* first_gradient;       // [N, H]; null: not wanted
  float* dx;                   // [T, N, C]; null: not wanted
  const float* dx_add;         // of the other direction; null: none
  GruTrainingGradients gradients;
  // Of learned grids, as in GruGridUnits: [T, N, H], [T, N, kClamps, H]. Sums of h, ih, hh, u_in, r_in and n_in of this
  // direction; null: not wanted.
  const uint16_t* above = nullptr;
  const float* rests = nullptr;
  GruGridGradients* grids = nullptr;
};

/// x of the first layer, of whose clamps grids are learned: [T, N, C] each, bit 0.
struct InputClamps {
  const float* rests;
  const uint16_t *passes, *above;
};

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_DIRECTION_H_
