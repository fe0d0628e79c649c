// SPDX-License-Identifier: Apache-2.0
// The loops of training in floats: numerics.md, section 14. Included by the files of each instruction set, so it holds
// plain structs only. Lanes are outputs: no addition is reordered.
#ifndef ISOBIT_GRU_TRAINING_KERNELS_H_
#define ISOBIT_GRU_TRAINING_KERNELS_H_

#include <cstdint>

#include "gru/clamps.h"

namespace isobit {

inline constexpr int64_t kChainTerms = 256;  // of a chunk

/// out[i][j] = chain over k of a(i, k) * b(k, j), plus add[i][j] where that is not null.
struct ChainProduct {
  const float* a;  // a(i, k) = a[i * a_row + k * a_term]
  int64_t a_row, a_term;
  const float* b;  // packed, see GruTrainingKernels::panel
  int64_t rows, terms, columns;
  float* out;
  int64_t out_row;
  const float* add;
  int64_t add_row;  // 0: the same for all rows
};

/// One step of one sequence.
struct GruGatesForward {
  const float* ih;      // [3H]
  const float* hh;      // [3H]
  const float* h;       // [H], the state before
  const uint8_t* mask;  // [H]; null: all 1
  float* saved;         // [4H]: u, r, n, q
  float* y;             // [H]
  int64_t units;        // H
};
struct GruGatesBackward {
  const float* saved;
  const float* h;
  const float* dy;  // [H]
  const uint8_t* mask;
  const uint16_t* passes;  // [H], bits from kPassIh on; null: all 1
  const float* g;          // [H]
  float* gx;               // [3H]
  float* gh;               // [3H]
  float* b;                // [H]; may be g
  float* clamped;          // [4H]: gradients behind u_in, r_in, n_in and h', before their clamps; null: not wanted
  int64_t units;
};

/// What one step of one sequence adds to the sums of grids, of units [first, end).
struct GruGridUnits {
  const float* clamped;  // of GruGatesBackward
  const float* r;        // [H]
  const float* rests;    // [kClamps][H], 0 where the clamp did not pass
  const uint16_t* passes;
  const uint16_t* above;  // [H], bits as of passes: 1 where the number was above the grid
  float* sums;            // [inside, below, above][kClamps][H]
  int64_t units, first, end;
};
/// The same of inputs, whose only clamp has bit 0.
struct GruGridInputs {
  const float* g;      // [C]
  const float* rests;  // [C]
  const uint16_t* passes;
  const uint16_t* above;
  float* sums;  // [inside, below, above][C]
  int64_t inputs, first, end;
};

/// Numbers of codes of up to 16 bits, and what the clamp was given: numerics.md, section 3. No x is NaN.
struct QuantizedNumbers {
  const float* x;
  float inverse_scale, scale;
  float low, high;   // limits of the grid minus its zero point
  float* numbers;    // float32(code - zero point) * scale
  uint16_t* passes;  // 1 where the number was in the grid
  uint16_t* above;   // these of learned grids, else null
  float* rests;
  int64_t first, end;  // of x
};

struct GruTrainingKernels {
  /// Columns of b lie in panels of so many, filled up with 0: [panel][k][column of the panel].
  int64_t panel;
  void (*product)(const ChainProduct&);
  void (*forward)(const GruGatesForward&);
  void (*backward)(const GruGatesBackward&);
  /// sums[c] = sum over m of rows[m][c], rows being `columns` floats apart.
  void (*sum_rows)(const float* rows, int64_t count, int64_t columns, float* sums);
  void (*grid_units)(const GruGridUnits&);
  void (*grid_inputs)(const GruGridInputs&);
  void (*quantize)(const QuantizedNumbers&);
  /// E of -abs(x), sigmoid and tanh of `count` numbers, for tests.
  void (*functions)(const float* x, int64_t count, float* e, float* sigmoid, float* tanh);
};

#define ISOBIT_GRU_TRAINING_KERNELS(path, name) GruTrainingKernels name();
#include "gru/training/kernels.inc"
#undef ISOBIT_GRU_TRAINING_KERNELS

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_KERNELS_H_
