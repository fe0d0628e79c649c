// SPDX-License-Identifier: Apache-2.0
// The integer primitives: rounding, rescale, saturation. numerics.md, sections 1 and 2. Every kernel is
// compared with these byte for byte.
#ifndef ISOBIT_CORE_FIXED_H_
#define ISOBIT_CORE_FIXED_H_

#include <cstdint>

#include "core/hd.h"
#include "isobit/rounding.h"

namespace isobit {

inline constexpr int kMinShift = -62;
inline constexpr int kMaxShift = 127;

/// x * 2^bits for 0 <= bits <= 62, where the caller has proved that the product fits. Shifted as unsigned:
/// a left shift of a negative value is rejected by nvcc's front end in constant expressions.
ISOBIT_HD constexpr int64_t shift_left(int64_t x, int bits) {
  return static_cast<int64_t>(static_cast<uint64_t>(x) << bits);
}

/// The real number x / 2^n rounded to an integer. x: any int64. n in [-62, 127]; for n < 0 the exact product
/// x * 2^-n, which the caller has proved to fit. No intermediate overflows: the fraction is compared with
/// one half instead of adding one half.
ISOBIT_HD constexpr int64_t round_shift(int64_t x, int n, Rounding mode) {
  if (n <= 0) return shift_left(x, -n);
  if (n >= 64) {  // |x / 2^n| <= 1/2, and exactly -1/2 for INT64_MIN at n = 64 only
    if (mode == Rounding::kFloor) return x < 0 ? -1 : 0;
    return n == 64 && x == INT64_MIN && mode == Rounding::kNearestAway ? -1 : 0;
  }
  const int64_t quotient = x >> n;  // floor
  const uint64_t fraction = static_cast<uint64_t>(x) & ((uint64_t{1} << n) - 1);
  const uint64_t half = uint64_t{1} << (n - 1);
  bool up = false;
  switch (mode) {
    case Rounding::kNearestEven: up = fraction > half || (fraction == half && (quotient & 1) != 0); break;
    case Rounding::kNearestUp: up = fraction >= half; break;
    case Rounding::kNearestAway: up = fraction > half || (fraction == half && x >= 0); break;
    case Rounding::kFloor: break;
  }
  return quotient + (up ? 1 : 0);
}

ISOBIT_HD constexpr int64_t clamp_s64(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

/// A ratio rho encoded as multiplier * 2^-shift: apply(x) = round_shift(x * multiplier, shift). The product is
/// proved to fit int64 when a model is built. Power-of-two models have multiplier 1.
struct Rescale {
  int32_t multiplier = 1;
  int32_t shift = 0;

  ISOBIT_HD constexpr int64_t apply(int64_t x, Rounding mode) const {
    return round_shift(x * multiplier, shift, mode);
  }
  bool operator==(const Rescale&) const = default;
};

// Ties of every mode, and the ends of the domain.
static_assert(round_shift(5, 1, Rounding::kNearestEven) == 2 && round_shift(7, 1, Rounding::kNearestEven) == 4);
static_assert(round_shift(-5, 1, Rounding::kNearestEven) == -2 && round_shift(-7, 1, Rounding::kNearestEven) == -4);
static_assert(round_shift(5, 1, Rounding::kNearestUp) == 3 && round_shift(-5, 1, Rounding::kNearestUp) == -2);
static_assert(round_shift(5, 1, Rounding::kNearestAway) == 3 && round_shift(-5, 1, Rounding::kNearestAway) == -3);
static_assert(round_shift(5, 1, Rounding::kFloor) == 2 && round_shift(-5, 1, Rounding::kFloor) == -3);
static_assert(round_shift(-1, 127, Rounding::kFloor) == -1 && round_shift(INT64_MIN, 64, Rounding::kNearestAway) == -1);
static_assert(round_shift(INT64_MIN, 64, Rounding::kNearestEven) == 0);
static_assert(round_shift(INT64_MAX, 63, Rounding::kNearestEven) == 1);
static_assert(round_shift(INT64_MIN, 63, Rounding::kNearestEven) == -1);
static_assert(round_shift(-3, -61, Rounding::kFloor) == -3 * (int64_t{1} << 61));
static_assert(Rescale{3, 2}.apply(-2, Rounding::kNearestEven) == -2);  // -6/4 = -1.5, to even

}  // namespace isobit

#endif  // ISOBIT_CORE_FIXED_H_
