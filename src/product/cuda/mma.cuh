// SPDX-License-Identifier: Apache-2.0
// The matrix instruction of 8-bit integers, with activations or weights as its rows. Sums are modulo 2^32.
#ifndef ISOBIT_PRODUCT_CUDA_MMA_CUH_
#define ISOBIT_PRODUCT_CUDA_MMA_CUH_

#include <cstdint>

namespace isobit::cuda {

/// d += a (16 x 32 unsigned) * b (32 x 8 signed). Lane 4g + q has: of a, rows g and g + 8 of columns 4q to
/// 4q + 3, then both of columns 16 + 4q to 19 + 4q; of b, the same columns of its column g; of d, columns 2q and 2q + 1
/// of row g, then of row g + 8.
__device__ __forceinline__ void mma_u8s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// The same, a signed.
__device__ __forceinline__ void mma_s8s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// d = a (16 x 32 signed) * b (32 x 8 unsigned) + c, which is the same in both columns of a row.
__device__ __forceinline__ void mma_s8u8(int32_t (&d)[4], const uint4& a, uint32_t b0, uint32_t b1, int32_t c0,
                                         int32_t c1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%11,%11};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
}
/// d += a (16 x 32 signed) * b (32 x 8 unsigned).
__device__ __forceinline__ void mma_s8u8(int32_t (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

}  // namespace isobit::cuda

#endif  // ISOBIT_PRODUCT_CUDA_MMA_CUH_
