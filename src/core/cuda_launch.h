// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch, the host's side.
#ifndef ISOBIT_CORE_CUDA_LAUNCH_H_
#define ISOBIT_CORE_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

namespace isobit::cuda {

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
