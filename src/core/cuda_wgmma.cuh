// SPDX-License-Identifier: Apache-2.0
// What every user of wgmma needs: code for sm_90a only.
#ifndef ISOBIT_CORE_CUDA_WGMMA_CUH_
#define ISOBIT_CORE_CUDA_WGMMA_CUH_

#include <cstdint>

namespace isobit::cuda {

// Plain code for sm_90 has no wgmma, and which code the driver has loaded is known on the device only.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static __device__ const int32_t wgmma_compiled = 1;
#else
static __device__ const int32_t wgmma_compiled = 0;
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// All but the last `Pending` groups are done.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
#endif

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_WGMMA_CUH_
