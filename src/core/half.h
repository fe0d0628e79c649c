// SPDX-License-Identifier: Apache-2.0
// float16 and bfloat16, as bits in a uint16_t, to and from float32. Integer arithmetic only (but for f64_to_f32_odd):
// the results do not depend on the rounding mode, on flush-to-zero or on the instruction set.
//
// NaN keeps its sign and the payload bits that fit, and comes out quiet (as the F16C instructions do it). The one
// exception is bf16_to_f32, a plain shift, which keeps a signalling NaN as it is.
#ifndef ISOBIT_CORE_HALF_H_
#define ISOBIT_CORE_HALF_H_

#include <cstdint>

#include "core/hd.h"

namespace isobit {

/// Exact.
ISOBIT_HD constexpr float f16_to_f32(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  uint32_t mantissa = half & 0x3ffu;
  uint32_t bits = 0;
  if (exponent == 0x1f) {
    bits = 0x7f800000u | (mantissa != 0 ? 0x400000u : 0u) | (mantissa << 13);
  } else if (exponent != 0) {
    bits = ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa != 0) {  // subnormal: every one is a normal float32
    uint32_t float_exponent = 113;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --float_exponent;
    }
    bits = (float_exponent << 23) | ((mantissa & 0x3ffu) << 13);
  }
  return __builtin_bit_cast(float, sign | bits);
}

/// To nearest, ties to even; from 65520 on, infinity; subnormal results are kept.
ISOBIT_HD constexpr uint16_t f32_to_f16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x47800000u) {  // 65536; what lies between 65520 and it gets here by the carry below
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal float16
    const uint32_t rebased = magnitude - (112u << 23);
    half = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  } else if (magnitude > 0x33000000u) {  // above 2^-25, half the smallest subnormal (a tie: to 0)
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126 - (magnitude >> 23);  // 14..24
    half = (mantissa + (1u << (shift - 1)) - 1 + ((mantissa >> shift) & 1u)) >> shift;
  }
  return static_cast<uint16_t>(sign | half);
}

/// Exact.
ISOBIT_HD constexpr float bf16_to_f32(uint16_t half) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(half) << 16);
}

/// To nearest, ties to even.
ISOBIT_HD constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// A float64 rounded to odd: toward zero, with the last bit set where that is not exact. Rounded again to float16 or
/// bfloat16, the result is that of a single rounding; from the nearest float32 it would not be. Not for NaN.
ISOBIT_HD constexpr float f64_to_f32_odd(double value) {
  const auto nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  if (back == value) return nearest;
  uint32_t bits = __builtin_bit_cast(uint32_t, nearest);
  if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) --bits;
  return __builtin_bit_cast(float, bits | 1u);
}

static_assert(f16_to_f32(0x3c00) == 1.0f && f16_to_f32(0x0001) == 0x1p-24f && f16_to_f32(0xfbff) == -65504.0f);
static_assert(f32_to_f16(65519.996f) == 0x7bff && f32_to_f16(65520.0f) == 0x7c00);
static_assert(f32_to_f16(0x1p-25f) == 0 && f32_to_f16(0x1.8p-24f) == 2 && f32_to_f16(0x1.000002p-25f) == 1);
static_assert(f32_to_bf16(0x1.01p0f) == 0x3f80 && f32_to_bf16(0x1.03p0f) == 0x3f82);
static_assert(f32_to_f16(f64_to_f32_odd(0x1.002000001p0)) == 0x3c01 && f32_to_f16(0x1.002p0f) == 0x3c00);

}  // namespace isobit

#endif  // ISOBIT_CORE_HALF_H_
