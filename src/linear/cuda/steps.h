// SPDX-License-Identifier: Apache-2.0
// The parts of DeviceLinear::forward, for those who bring rows of their own, or time one of them.
#ifndef ISOBIT_LINEAR_CUDA_STEPS_H_
#define ISOBIT_LINEAR_CUDA_STEPS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "isobit/cuda/linear.h"
#include "linear/cuda/plan.h"

namespace isobit::cuda {

struct LinearSteps {
  static const ImageLayout& image(const DeviceLinear& layer);
  /// Of a run of m rows, at least one, of x.
  static LinearPlan plan(const DeviceLinear& layer, Dtype x_dtype, int64_t m);
  /// Enough for plan(..).rows of any number of rows up to m.
  static int64_t row_bytes(const DeviceLinear& layer, Dtype x_dtype, int64_t m);
  /// y of rows that are as plan.rows has them.
  static Status multiply(const DeviceLinear& layer, const LinearPlan& plan, const std::byte* rows, std::byte* y,
                         Dtype y_dtype, int64_t y_stride, int64_t m, cudaStream_t stream);
};

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_STEPS_H_
