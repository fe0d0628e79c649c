// SPDX-License-Identifier: Apache-2.0
// Integers in float and double lanes on a device: x * ratio + magic rounds to the nearest integer, ties to even, which
// is then in the low bits. Whoever uses them proves that every value is exact.
#ifndef ISOBIT_CORE_CUDA_LANES_CUH_
#define ISOBIT_CORE_CUDA_LANES_CUH_

#include <cstdint>

#include "core/magic.h"

namespace isobit::cuda {

__device__ __forceinline__ float fused(float x, float ratio, float c) { return __fmaf_rn(x, ratio, c); }
__device__ __forceinline__ double fused(double x, double ratio, double c) { return __fma_rn(x, ratio, c); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float clamp_lane(float x, float low, float high) { return fminf(fmaxf(x, low), high); }
__device__ __forceinline__ double clamp_lane(double x, double low, double high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
/// The low 32 bits of a sum with magic.
__device__ __forceinline__ uint32_t low_bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ uint32_t low_bits(double x) { return static_cast<uint32_t>(__double2loint(x)); }
/// Sums wrap where only the complete one fits.
__device__ __forceinline__ int32_t wrapping_add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
/// Exact; float: |x| <= 2^24.
template <typename Real>
__device__ __forceinline__ Real to_lane(int32_t x) {
  if constexpr (sizeof(Real) == 4) {
    return static_cast<float>(x);
  } else {
    // Behind 2^52, less that: a conversion instruction takes several times as long.
    return __dsub_rn(__hiloint2double(0x43300000, x ^ static_cast<int32_t>(0x80000000)),
                     4503599627370496.0 + 2147483648.0);
  }
}
/// x < 2^16, minus `zero` - kFromCode.
template <typename Real>
__device__ __forceinline__ Real from_code(uint32_t x, Real zero) {
  if constexpr (sizeof(Real) == 4) {
    return __fsub_rn(__uint_as_float(0x4b000000u | x), zero);
  } else {
    return __dsub_rn(__hiloint2double(0x43300000, static_cast<int>(x)), zero);
  }
}
/// x < 2^16, minus 2^15.
template <typename Real>
__device__ __forceinline__ Real from_biased(uint32_t x) {
  return from_code<Real>(x, kFromCode<Real> + Real{32768});
}

template <typename Real>
__device__ __forceinline__ Real to_magic(Real x, Real ratio) {
  return fused(x, ratio, kMagic<Real>);
}
template <typename Real>
__device__ __forceinline__ Real rescale_even(Real x, Real ratio) {
  return add(to_magic(x, ratio), -kMagic<Real>);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_LANES_CUH_
