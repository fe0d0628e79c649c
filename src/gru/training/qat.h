// SPDX-License-Identifier: Apache-2.0
// Quantisation-aware training of one direction of one layer: the integer forward, with what its clamps passed, and the
// numbers that the backward of floats runs on (numerics.md, section 14).
#ifndef ISOBIT_GRU_TRAINING_QAT_H_
#define ISOBIT_GRU_TRAINING_QAT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "gru/training/kernels.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"

namespace isobit {

/// One direction, whose parameters a GruModel has checked and proved.
struct QatDirection {
  const GruLayerParameters* layer;
  int64_t steps, batch;
  bool reverse;
  std::span<const int64_t> lengths;  // empty: T for all
  const int64_t* x;                  // codes, [T, N, C]
  const uint8_t* mask;               // null: none; rows as of y
  const int64_t* first;              // codes, [N, H]; null: z_h
  int64_t y_row;
};
struct QatForward {
  int64_t* y;        // codes; z_h past a length
  int64_t* last;     // [N, H]; null: not wanted
  float* saved;      // [T, N, 4H]: u, r, n and hh_n as numbers
  uint16_t* passes;  // [T, N, H], bits from kPassIh on
  // Of learned grids; null: not wanted.
  uint16_t* above = nullptr;  // [T, N, H], bits as of passes: 1 where the number was above the grid
  float* rests = nullptr;     // [T, N, kClamps, H]: what roundings added, 0 where the clamp did not pass
};
void qat_forward(const QatDirection& d, const QatForward& f, ThreadPool* pool);

/// result - x * ratio, of result = rescale(ratio, x): what rounding added, in steps of the result.
float rest_of(const RescaleParameters& ratio, int64_t x, int64_t result);

/// float32(q - z) * S of codes of one grid; of rows with a grid each.
void dequantize_codes(const Grid& grid, std::span<const int64_t> codes, std::span<float> numbers);
std::vector<float> dequantized_rows(const CodeMatrix& codes, std::span<const Grid> rows);

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_QAT_H_
