// SPDX-License-Identifier: Apache-2.0
// Integers in float and double lanes on a device: x * ratio + magic rounds to the nearest integer, ties to even, which
// is then in the low bits. Whoever uses them proves that every value is exact. What rescales sums is a type Ratio:
// float or double in such lanes, Fixed for integers of 32 bits.
#ifndef ISOBIT_CORE_CUDA_LANES_CUH_
#define ISOBIT_CORE_CUDA_LANES_CUH_

#include <cstdint>
#include <type_traits>

#include "core/magic.h"
#include "core/ratio.h"

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
/// |x| < 2^22.
__device__ __forceinline__ float small_to_float(int32_t x) {
  return __fsub_rn(__int_as_float(0x4b400000 + x), kMagic<float>);
}

/// nearest_even(sum * ratio), clamped. Integers: to less than 2^22; by_shifts: as core/ratio.h says.
template <typename Ratio, int N>
__device__ __forceinline__ void rescale_clamped(const SumOf<Ratio> (&sum)[N], const Ratio (&ratio)[N], bool by_shifts,
                                                LimitOf<Ratio> low, LimitOf<Ratio> high, LaneOf<Ratio> (&result)[N]) {
  if constexpr (kIsInteger<Ratio>) {
    int32_t rounded[N];
    if (by_shifts) {
#pragma unroll
      for (int i = 0; i < N; ++i) rounded[i] = static_cast<int32_t>(shift_even(sum[i], ratio[i].shift));
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) rounded[i] = rescale_even(sum[i], ratio[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = small_to_float(min(max(rounded[i], low), high));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      LaneOf<Ratio> lane;
      if constexpr (std::is_same_v<Ratio, float>) {
        lane = to_lane<float>(sum[i]);
      } else {
        lane = sum[i];
      }
      result[i] = clamp_lane(rescale_even(lane, ratio[i]), low, high);
    }
  }
}

/// The complete sum of an accumulator, of one plane of bytes or, high bytes first, of two. Where the product has
/// started with `start` (kStartsInProduct), in the plane of low bytes, it is zero here.
template <typename Ratio, int Planes>
__device__ __forceinline__ SumOf<Ratio> complete_sum(const int32_t (&planes)[Planes], SumOf<Ratio> start) {
  if constexpr (std::is_same_v<SumOf<Ratio>, double>) {
    double sum = to_lane<double>(planes[0]);
    if constexpr (Planes == 2) sum = fused(sum, 256.0, to_lane<double>(planes[1]));
    return add(sum, start);
  } else if constexpr (std::is_same_v<Ratio, WideFixed>) {
    return int64_t{planes[0]} * 256 + planes[1] + start;
  } else {
    uint32_t sum = static_cast<uint32_t>(planes[0]);
    if constexpr (Planes == 2) sum = sum * 256 + static_cast<uint32_t>(planes[1]);
    return static_cast<int32_t>(sum + static_cast<uint32_t>(start));
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_LANES_CUH_
