// SPDX-License-Identifier: Apache-2.0
// What every user of wgmma needs, and to know whether there is code for sm_90a.
#ifndef ISOBIT_CORE_CUDA_WGMMA_CUH_
#define ISOBIT_CORE_CUDA_WGMMA_CUH_

#include <cstdint>

#include "core/cuda/status.h"

namespace isobit::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static __device__ const int32_t compiled_for_90a = 1;
#else
static __device__ const int32_t compiled_for_90a = 0;
#endif
/// Whether the kernels of this file are code for sm_90a on the current device, which alone has wgmma and setmaxnreg.
/// Which code the driver has loaded is known on the device only.
static inline Result<bool> has_90a_code() {
  int32_t compiled = 0;
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMemcpyFromSymbol(&compiled, compiled_for_90a, sizeof compiled), "code for sm_90a"));
  return compiled != 0;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// All but the last `Pending` groups are done.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
/// Between the asynchronous products and whatever else touches their results.
template <int kCount>
__device__ __forceinline__ void keep_in_registers(int32_t (&acc)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(acc[i])::"memory");
}
/// A matrix of k tiles in shared memory without swizzle: 8 rows of 16 codes are 128 bytes behind each other, and so are
/// the next 16 codes; `stride` bytes on are the next 8 rows. An address in a cluster has the block's rank above the 18
/// bits of shared memory. Adding n to the result is moving by 16 n bytes.
__device__ __forceinline__ uint64_t core_matrices(uint32_t address, int stride) {
  return uint64_t{static_cast<uint32_t>(stride) >> 4} << 32 | uint64_t{128 >> 4} << 16 | (address & 0x3ffff) >> 4;
}
/// d (64 rows by 16 or 32 columns) is a (signed codes, 64 by 32, in registers) times b (unsigned codes, 32 by the
/// columns, in shared memory), plus d where `add`.
__device__ __forceinline__ void wgmma_s8u8(int32_t (&d)[8], const uint4& a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.u8 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, add;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(static_cast<int32_t>(add)));
}
__device__ __forceinline__ void wgmma_s8u8(int32_t (&d)[16], const uint4& a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.u8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, add;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(static_cast<int32_t>(add)));
}
#endif

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_WGMMA_CUH_
