// SPDX-License-Identifier: Apache-2.0
// CUDA's errors as Status.
#ifndef ISOBIT_CORE_CUDA_STATUS_H_
#define ISOBIT_CORE_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "isobit/status.h"

namespace isobit::cuda {

/// An error is told once: the runtime would otherwise give it again to whoever asks for the last one. No text is made
/// where there is none: runs come here several times.
inline Status cuda_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return {error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ? StatusCode::kUnsupported
                                                                             : StatusCode::kFailedPrecondition,
          std::string(what) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")"};
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_STATUS_H_
