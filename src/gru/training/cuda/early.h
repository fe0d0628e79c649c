// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels of training, which follow each other closely: where a device can, a kernel is on its way
// while the one before ends. Each waits for that one before it reads or writes what others do (wait_for_grid_before).
#ifndef ISOBIT_GRU_TRAINING_CUDA_EARLY_H_
#define ISOBIT_GRU_TRAINING_CUDA_EARLY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/grid_launch.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// Whether the current device can.
inline bool starts_early() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

template <typename... Parameters>
Status launch_early(const char* name, void (*kernel)(Parameters...), dim3 blocks, int64_t threads, cudaStream_t stream,
                    const Parameters&... arguments) {
  const GridLaunch launch{.blocks = blocks, .threads = threads, .early = starts_early()};
  return launch.run(name, kernel, stream, arguments...);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_EARLY_H_
