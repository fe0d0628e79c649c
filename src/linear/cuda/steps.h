// SPDX-License-Identifier: Apache-2.0
// The parts of DeviceLinear::forward, for benchmarks that time one of them.
#ifndef ISOBIT_LINEAR_CUDA_STEPS_H_
#define ISOBIT_LINEAR_CUDA_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "isobit/cuda/linear.h"

namespace isobit::cuda {

struct LinearSteps {
  /// DeviceLinear::forward. Unless it prepares, without the launch that quantises or arranges x: the workspace has the
  /// rows that a forward of as many rows of the same type left there.
  static Status run(const DeviceLinear& layer, std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y,
                    Dtype y_dtype, int64_t m, std::span<std::byte> workspace, const RunOptions& options, bool prepares);
};

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_STEPS_H_
