// SPDX-License-Identifier: Apache-2.0
// Sums that become codes of one byte where they are, in registers. Included by the files of each instruction set, so it
// holds plain structs only. numerics.md, section 12:
//
//   y = clamp(round(sum * multiplier * 2^-shift) + zero_point, lo, hi), to the nearest
//
// Float lanes compute p = sum * ratio + addend in one fused multiply-add, in units of which one code has
// 2^kCodeFractionBits. p has the code, moved up by kCodeMiddle, in its high bits wherever that is one of 0 .. 511; of
// other sums it is below or above those, and their codes are lo or hi. The error is
//   half a unit for the rounding of p, and 384 * 2^-24 codes, which are 3 / 8 of a unit, for that of ratio:
// below a unit. So rounding down gives the code, unless all bits below it are 0: then the sum may lie on either side,
// or in the middle of two codes. Such sums are left to `exact`.
#ifndef ISOBIT_PRODUCT_CODES_H_
#define ISOBIT_PRODUCT_CODES_H_

#include <cstdint>

namespace isobit {

inline constexpr int kCodeFractionBits = 14;
/// Of a float with this exponent the bits above the fraction fit int16.
inline constexpr int kCodeExponent = 60;
/// p of code 0 is 512 units of 2^kCodeScale, and its bits are kCodeBits above the fraction.
inline constexpr int kCodeScale = kCodeExponent - 127 - (23 - kCodeFractionBits);
inline constexpr int kCodeBits = kCodeExponent << (23 - kCodeFractionBits);
inline constexpr int kCodeMiddle = 128;

struct SumCodes {
  const float* ratio;  // [columns, up to a multiple of 16]: multiplier * 2^(kCodeScale - shift), rounded
  float addend;        // (512 + kCodeMiddle + zero_point + offset + 1/2) * 2^kCodeScale
  int32_t offset;      // of codes made unsigned: 128 where they are signed
  int32_t lo, hi;      // so made
  uint8_t* y;          // column 0 of row 0
  int64_t y_stride;
  int64_t columns;  // that exist
  /// `count` codes from `column` on, of a row's sums.
  void (*exact)(const void* context, const int32_t* sums, int64_t column, int64_t count, uint8_t* y);
  const void* context;
};

}  // namespace isobit

#endif  // ISOBIT_PRODUCT_CODES_H_
