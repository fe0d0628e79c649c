// SPDX-License-Identifier: Apache-2.0
// The float32 products of training on a device: x W^T, dx, and the gradients of weights. Of one shape the same bytes in
// every run: no sum depends on which block is first.
#ifndef ISOBIT_GRU_TRAINING_CUDA_PRODUCTS_H_
#define ISOBIT_GRU_TRAINING_CUDA_PRODUCTS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/hd.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// Rows of a row-major matrix.
struct FloatRows {
  const float* data;
  int64_t stride;
};

/// out[m][n] = sum_k a[m][k] * b[n][k] + bias[n]. bias: null, none.
Status product_by_rows(FloatRows a, FloatRows b, const float* bias, float* out, int64_t out_stride, int64_t M,
                       int64_t N, int64_t K, cudaStream_t stream);
/// out[m][n] = sum_k a[m][k] * b[k][n], and what was in out before, where `add` is set.
Status product_by_columns(FloatRows a, FloatRows b, float* out, int64_t out_stride, bool add, int64_t M, int64_t N,
                          int64_t K, cudaStream_t stream);

/// A row for each step t and sequence n, t * batch + n: of x, or of the state before the step. Rows past a length are
/// zeros, and so are states before the first step where `first` is null.
struct StepRows {
  FloatRows rows;
  int32_t shift = 0;                 // 0: the row itself; -1, 1: of the step before, after
  const float* first = nullptr;      // [batch][columns]
  const int64_t* lengths = nullptr;  // null: all are `steps`
  int32_t steps = 0, batch = 0;
};
/// weights[m][n] = sum over rows k of gates[k][m] * inputs[k][n], bias[m] = sum_k gates[k][m].
struct WeightGradient {
  FloatRows gates;
  StepRows inputs;
  float *weights, *bias;
  int64_t columns;  // of inputs
};
/// What the clamp of a float was given. Past a length there is nothing.
inline constexpr uint8_t kInputClipped = 0, kInputPassed = 1, kInputNan = 2, kNoInput = 0xff;
/// Passes of floats lie in rows of whole words.
ISOBIT_HD constexpr int64_t pass_row(int64_t columns) { return (columns + 3) / 4 * 4; }
/// gradients[row][column] = 0 where a clamp stopped what it is of.
struct StoppedGradients {
  float* gradients = nullptr;
  const uint8_t* passes = nullptr;  // [rows][pass_row(columns)]
  int64_t rows = 0, columns = 0;
};

/// Of W and of R: two products of steps * batch rows each, with 3H columns of gates.
int64_t weight_gradients_bytes(int64_t rows, int64_t gates, int64_t inputs, int64_t hidden);
/// stopped: made 0 beside; rows 0: none.
Status weight_gradients(const WeightGradient (&of)[2], int64_t rows, int64_t gates, float* workspace,
                        const StoppedGradients& stopped, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_PRODUCTS_H_
