// SPDX-License-Identifier: Apache-2.0
// What a run of a layer on a device checks of memory and stream, before it enqueues anything.
#ifndef ISOBIT_LINEAR_CUDA_ARGUMENTS_H_
#define ISOBIT_LINEAR_CUDA_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/cuda/arguments.h"

namespace isobit::cuda {

/// Of a run of `what` ("3 rows"); needed: bytes of its workspace.
inline Status check_linear_memory(std::span<const std::byte> x, std::span<const std::byte> y,
                                  std::span<const std::byte> workspace, const std::string& what, int64_t needed,
                                  int device, cudaStream_t stream) {
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
  ISOBIT_RETURN_IF_ERROR(check_alignment("workspace", workspace.data()));
  if (static_cast<int64_t>(workspace.size()) < needed)
    return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must have " +
                           std::to_string(needed) + " for " + what + " (workspace_bytes)");
  ISOBIT_RETURN_IF_ERROR(check_current_device(device, "the layer"));
  const std::initializer_list<NamedBuffer> buffers = {{"x", x}, {"y", y}, {"workspace", workspace}};
  ISOBIT_RETURN_IF_ERROR(check_apart(buffers));
  for (const NamedBuffer& buffer : buffers) ISOBIT_RETURN_IF_ERROR(check_on_device(buffer, device));
  return check_stream(stream, device);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_ARGUMENTS_H_
