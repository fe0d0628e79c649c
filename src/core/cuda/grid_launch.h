// SPDX-License-Identifier: Apache-2.0
// Launches of kernels with attributes: clusters, cooperative launches, early starts.
#ifndef ISOBIT_CORE_CUDA_GRID_LAUNCH_H_
#define ISOBIT_CORE_CUDA_GRID_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "core/cuda/launch.h"
#include "core/cuda/status.h"
#include "isobit/status.h"

namespace isobit::cuda {

struct GridLaunch {
  dim3 blocks;
  int64_t threads = 0;
  int64_t shared = 0;  // bytes of dynamic shared memory
  int32_t cluster = 0;
  bool cooperative = false;  // all blocks are on the device at once, or the launch fails
  bool early = false;        // early_start()

  /// Calls body(configuration).
  template <typename Body>
  auto with_config(cudaStream_t stream, Body body) const {
    cudaLaunchAttribute attributes[3]{};
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream;
    config.attrs = attributes;
    if (cluster > 0) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    }
    if (cooperative) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    }
    if (early) attributes[config.numAttrs++] = early_start();
    return body(config);
  }
  template <typename... Parameters>
  Status run(const char* name, void (*kernel)(Parameters...), cudaStream_t stream, const Parameters&... args) const {
    return with_config(stream, [&](const cudaLaunchConfig_t& config) {
      return cuda_status(cudaLaunchKernelEx(&config, kernel, args...), name);
    });
  }
  /// Clusters that are on the device at once; 0 where there are none of this size.
  template <typename Kernel>
  int32_t clusters_on_device(Kernel kernel) const {
    GridLaunch plain = *this;
    plain.early = false;
    return plain.with_config(nullptr, [&](const cudaLaunchConfig_t& config) -> int32_t {
      int clusters = 0;
      if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess) return clusters;
      cudaGetLastError();
      return 0;
    });
  }
};

/// So many bytes of dynamic shared memory in a block of a kernel.
template <typename Kernel>
Status allow_shared(Kernel kernel, int64_t bytes, const char* name) {
  return cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                     name);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_GRID_LAUNCH_H_
