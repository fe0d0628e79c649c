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

/// What a forward met, on the device; zeros: nothing. Places are inverted, so that the largest is the first.
struct QatReport {
  unsigned long long nan_of_x, nan_of_first, refused;
};
/// A refused row of a matrix: W, R, bw, br are 0 to 3.
enum class RowFault : uint8_t { kNone, kNotFinite, kNoScale, kOverflow };
ISOBIT_HD unsigned long long refused_place(int64_t direction, int matrix, int64_t row, RowFault fault) {
  return ~((static_cast<unsigned long long>(direction * 4 + matrix) << 40) |
           (static_cast<unsigned long long>(row) << 8) | static_cast<unsigned long long>(fault));
}

/// How a row's sum of codes becomes a code of ih or hh.
struct QatRow {
  int64_t bias;  // on the accumulator
  RescaleParameters to_result;
};

/// W x + bw, or R h + br, of one direction: what does not depend on the weights.
struct QatLinear {
  ScaleOptions weights, biases;
  Scale activation, result;
  int64_t largest_activation, result_zero;  // max |code - z|; |z| of the result
  int64_t rows, columns;
  const Scale* kept_weights;  // [rows], of grids that are kept; null: they are derived
  const Scale* kept_biases;
};
/// Without grids that are kept.
QatLinear qat_linear_of(const GruLayerParameters& p, const GruLayerQuantization& wanted, bool of_h);
/// What the weights of a step become.
struct QatWeights {
  float* codes;    // [rows][columns]
  float* numbers;  // [rows][columns]: code * S
  QatRow* of_rows;
};
/// Bytes of memory that quantize_weights needs for so many rows.
int64_t weight_scales_bytes(int64_t rows);
/// Of a direction: first W, then R. scales: weight_scales_bytes(rows of both); `finest`, two zeros.
Status quantize_weights(const QatLinear (&linear)[2], const float* const (&weights)[2], const float* const (&biases)[2],
                        const QatWeights (&to)[2], Rounding rounding, int64_t direction, void* scales, unsigned* finest,
                        QatReport* report, cudaStream_t stream);

/// Passes past a length, of which there are no numbers.
inline constexpr uint8_t kNoInput = 0xff;
inline constexpr uint16_t kNoUnit = 0x8000;

/// Floats [rows][columns] on a grid. Rows past a length are not read: their codes and numbers are zeros.
struct QatInputs {
  const float* values;
  CodeRange range;
  float inverse_scale, scale;
  float* codes;    // minus the zero point; null: not wanted
  float* numbers;  // codes * S
  uint8_t* passes;
  unsigned long long* nan;  // of QatReport
  int64_t nan_from;         // the place of values[0]
  const int64_t* lengths;   // null: all rows count
  int64_t rows, columns;
  int32_t batch;
};
Status quantize_inputs(const QatInputs& inputs, cudaStream_t stream);

/// gradients[i] = 0 where a clamp stopped what it is of.
Status stop_gradients(float* gradients, const uint8_t* passes, int64_t count, cudaStream_t stream);

/// counts[bit] of the numbers that did not pass, and counts[bits] of all.
Status count_clipped(const uint16_t* passes, int64_t count, unsigned long long* counts, cudaStream_t stream);
Status count_clipped(const uint8_t* passes, int64_t count, unsigned long long* counts, cudaStream_t stream);

/// W x, whose sums become ih and go on to the gate inputs.
struct QatGateInputs {
  const QatRow* rows;  // [3H]
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
