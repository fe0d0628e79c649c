// SPDX-License-Identifier: Apache-2.0
// CUDA's errors as Status.
#ifndef ISOBIT_CORE_CUDA_STATUS_H_
#define ISOBIT_CORE_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "isobit/status.h"

namespace isobit::cuda {

inline Status cuda_status(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  return {error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ? StatusCode::kUnsupported
                                                                             : StatusCode::kFailedPrecondition,
          what + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")"};
}

/// Of a kernel launch just made: errors of the launch itself, not of what runs.
inline Status launch_status(const std::string& kernel) { return cuda_status(cudaGetLastError(), "kernel " + kernel); }

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_STATUS_H_
