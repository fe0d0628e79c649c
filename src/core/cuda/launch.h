// SPDX-License-Identifier: Apache-2.0
// Launches of kernels.
#ifndef ISOBIT_CORE_CUDA_LAUNCH_H_
#define ISOBIT_CORE_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/cuda/status.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// An ordinary launch. Its own error, not the last one of the thread, which may be of a call that the caller made.
template <typename... Parameters, typename... Arguments>
Status launch_kernel(const char* name, void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared,
                     cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  return error == cudaSuccess ? Status() : cuda_status(error, std::string("kernel ") + name);
}

/// Of a launch of a kernel that waits for the grid before it by itself (wait_for_grid_before). Compute capability 9.0
/// and later.
inline cudaLaunchAttribute early_start() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_LAUNCH_H_
