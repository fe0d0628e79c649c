// SPDX-License-Identifier: Apache-2.0
#include "core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace isobit {
namespace {

uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

float f32_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// A 16-bit float with `mantissa_bits` bits after the point, read in arithmetic instead of bit moves.
double value_of(uint16_t half, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (half & 0x7fff) >> mantissa_bits;
  const int mantissa = half & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_special(uint16_t half, int mantissa_bits) {  // infinity or NaN
  return (half & 0x7fff) >= (0x7fff >> mantissa_bits << mantissa_bits);
}

TEST(Half, WidensEveryValueExactlyAndBack) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float f16 = f16_to_f32(half);
    const float bf16 = bf16_to_f32(half);
    if (is_special(half, 10)) {
      const bool nan = (half & 0x3ff) != 0;
      EXPECT_EQ(std::isnan(f16), nan) << i;
      EXPECT_EQ(std::isinf(f16), !nan) << i;
      EXPECT_EQ(std::signbit(f16), half >> 15 != 0) << i;
      EXPECT_EQ(f32_to_f16(f16), nan ? half | 0x200 : half) << i;
    } else {
      ASSERT_EQ(static_cast<double>(f16), value_of(half, 10)) << i;
      ASSERT_EQ(f32_to_f16(f16), half) << i;
    }
    if (is_special(half, 7)) {
      const bool nan = (half & 0x7f) != 0;
      EXPECT_EQ(bits_of(bf16), i << 16) << i;
      EXPECT_EQ(f32_to_bf16(bf16), nan ? half | 0x40 : half) << i;
    } else {
      ASSERT_EQ(static_cast<double>(bf16), value_of(half, 7)) << i;
      ASSERT_EQ(f32_to_bf16(bf16), half) << i;
    }
  }
}

// Between every two neighbours: the middle goes to the even one, its float32 neighbours to the nearer one.
TEST(Half, RoundsTiesOfEveryIntervalToEven) {
  for (uint32_t i = 0; i < 0x7f80; ++i) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t low = sign | i;
      const uint32_t even = low + (low & 1u);
      if (i < 0x7c00) {
        // The upper neighbour of 65504 is infinity, which stands for 65536 here.
        const double upper = i == 0x7bff ? 65536.0 : value_of(static_cast<uint16_t>(i + 1), 10);
        const auto middle = static_cast<float>((value_of(static_cast<uint16_t>(i), 10) + upper) / 2);
        const uint32_t middle_bits = bits_of(middle) | sign << 16;
        ASSERT_EQ(f32_to_f16(f32_of(middle_bits)), even) << low;
        ASSERT_EQ(f32_to_f16(f32_of(middle_bits - 1)), low) << low;
        ASSERT_EQ(f32_to_f16(f32_of(middle_bits + 1)), low + 1) << low;
      }
      const uint32_t middle_bits = low << 16 | 0x8000u;
      ASSERT_EQ(f32_to_bf16(f32_of(middle_bits)), even) << low;
      ASSERT_EQ(f32_to_bf16(f32_of(middle_bits - 1)), low) << low;
      ASSERT_EQ(f32_to_bf16(f32_of(middle_bits + 1)), low + 1) << low;
    }
  }
}

// A float64 next to a middle: its nearest float32 is the middle itself.
TEST(Half, RoundsFloat64OnceByWayOfOdd) {
  for (const double sign : {1.0, -1.0}) {
    const uint32_t sign_bit = sign < 0 ? 0x8000 : 0;
    for (uint32_t i = 0; i < 0x7f80; ++i) {
      for (const int mantissa_bits : {10, 7}) {
        if (i >= 0x7bff && mantissa_bits == 10) continue;
        if (i == 0x7f7f) continue;
        const auto low = static_cast<uint16_t>(i);
        const double middle = (value_of(low, mantissa_bits) + value_of(low + 1, mantissa_bits)) / 2;
        const auto rounded = [&](double value) {
          const float odd = f64_to_f32_odd(sign * value);
          return static_cast<uint32_t>(mantissa_bits == 10 ? f32_to_f16(odd) : f32_to_bf16(odd));
        };
        ASSERT_EQ(rounded(middle), sign_bit | (i + (i & 1))) << i;
        ASSERT_EQ(rounded(std::nextafter(middle, 0.0)), sign_bit | i) << i;
        ASSERT_EQ(rounded(std::nextafter(middle, 1e300)), sign_bit | (i + 1)) << i;
      }
    }
    EXPECT_EQ(f32_to_f16(f64_to_f32_odd(sign * 1e300)), sign_bit | 0x7c00);
    EXPECT_EQ(f32_to_bf16(f64_to_f32_odd(sign * 1e300)), sign_bit | 0x7f80);
    EXPECT_EQ(f32_to_bf16(f64_to_f32_odd(sign * 0x1.fep127)), sign_bit | 0x7f7f);
  }
}

TEST(Half, ExtremesAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(f32_to_f16(infinity), 0x7c00);
  EXPECT_EQ(f32_to_f16(-largest), 0xfc00);
  EXPECT_EQ(f32_to_bf16(-infinity), 0xff80);
  EXPECT_EQ(f32_to_bf16(largest), 0x7f80);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::denorm_min()), 0);
  // A NaN whose payload lies only in bits that do not fit must not become an infinity.
  EXPECT_EQ(f32_to_f16(f32_of(0x7f800001)), 0x7e00);
  EXPECT_EQ(f32_to_f16(f32_of(0xffffffff)), 0xffff);
  EXPECT_EQ(f32_to_bf16(f32_of(0x7f800001)), 0x7fc0);
  EXPECT_EQ(f32_to_bf16(f32_of(0xffffffff)), 0xffff);
  EXPECT_EQ(bits_of(f16_to_f32(0xfc01)), 0xffc02000u);  // signalling in, quiet out
}

}  // namespace
}  // namespace isobit
