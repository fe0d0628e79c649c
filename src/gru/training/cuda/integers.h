// SPDX-License-Identifier: Apache-2.0
// Quantisation-aware training on a device: from the floats of weights and x to integers, and the sums of integers.
#ifndef ISOBIT_GRU_TRAINING_CUDA_INTEGERS_H_
#define ISOBIT_GRU_TRAINING_CUDA_INTEGERS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "calibrate/derive_scale.h"
#include "core/bounds.h"
#include "gru/reference.h"
#include "gru/training/cuda/products.h"
#include "isobit/gru.h"
#include "isobit/rounding.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// Why a row of weights or biases has no integers.
enum class RowFault : uint8_t { kNone, kNotFinite, kNoScale, kOverflow };

/// How a row's sum of codes becomes a code of ih or hh.
struct QatRow {
  int64_t bias;  // on the accumulator
  RescaleParameters to_result;
};
/// The same in doubles, exact with sums of less than 2^52. bias: NaN where that of QatRow is 2^52 or more.
struct QatRowLanes {
  double bias, ratio;
};
/// Rows of a matrix, both ways.
struct QatRows {
  QatRow* integers;
  QatRowLanes* lanes;
};

/// W x + bw, or R h + br, of one direction: what does not depend on the weights.
struct QatLinear {
  ScaleOptions weights, biases;
  Scale activation, result;
  int64_t largest_activation, result_zero;  // max |code - z|; |z| of the result
  int64_t rows, columns;
  const Scale* kept_weights;  // [rows], of grids that are kept; null: they are derived
};
/// Without grids that are kept.
QatLinear qat_linear_of(const GruLayerParameters& p, const GruLayerQuantization& wanted, bool of_h);
/// What the weights of a step become.
struct QatWeights {
  float* codes;    // [rows][columns]
  float* numbers;  // [rows][columns]: code * S
  QatRows of_rows;
  RowFault *of_weights, *of_biases;  // [rows]
};
/// Bytes of memory that quantize_weights needs for so many rows.
int64_t weight_scales_bytes(int64_t rows);

/// The clamps of a unit past a length.
inline constexpr uint16_t kNoUnit = 0x8000;

/// Floats [rows][columns] on a grid. Rows past a length are not read: their codes and numbers are zeros.
struct QatInputs {
  const float* values;
  CodeRange range;
  float inverse_scale, scale;
  float* codes;            // minus the zero point; null: not wanted
  float* numbers;          // codes * S
  uint8_t* passes;         // [rows][pass_row(columns)]
  const int64_t* lengths;  // null: all rows count
  int64_t rows, columns;
  int32_t batch;
};
Status quantize_inputs(const QatInputs& inputs, cudaStream_t stream);

/// Of a direction: first W, then R. scales: weight_scales_bytes(rows of both). inputs: quantised beside; null: none.
Status quantize_weights(const QatLinear (&linear)[2], const float* const (&weights)[2], const float* const (&biases)[2],
                        const QatWeights (&to)[2], Rounding rounding, void* scales, const QatInputs* inputs,
                        cudaStream_t stream);

Status stop_gradients(const StoppedGradients& stopped, cudaStream_t stream);

/// Adds to counts: for each bit of a unit the numbers that did not pass, then all.
Status count_units(const uint16_t* passes, int64_t count, unsigned long long* counts, cudaStream_t stream);
/// Adds to counts those that did not pass, then all; the third becomes the inverted place of the first NaN, if that is
/// larger.
inline constexpr int kInputCounts = 3;
Status count_inputs(const uint8_t* passes, int64_t rows, int64_t columns, unsigned long long* counts,
                    cudaStream_t stream);

/// W x, whose sums become ih and go on to the gate inputs.
struct QatGateInputs {
  QatRows rows;   // [3H]
  bool in_lanes;  // rounding is to nearest even, and intermediates are exact as double
  CodeRange ih;
  RescaleParameters ih_to_gate[3];
  Rounding rounding;
  int64_t hidden;
  int32_t* out;  // [M][3H]: twice the rescaled ih, and 1 where the clamp of ih passed
};
/// wide: sums of doubles. Else those of floats are exact.
Status product_to_gate_inputs(FloatRows x, FloatRows weights, const QatGateInputs& to, int64_t M, int64_t K, bool wide,
                              cudaStream_t stream);
/// out[m][n] = sum_k a[m][k] * b[n][k], exact.
Status product_of_codes(FloatRows a, FloatRows b, double* out, int64_t M, int64_t N, int64_t K, bool wide,
                        cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_INTEGERS_H_
