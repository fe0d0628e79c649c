// SPDX-License-Identifier: Apache-2.0
// What a device rescales sums by, a type Ratio, decides what sums and results are.
#ifndef ISOBIT_CORE_RATIO_H_
#define ISOBIT_CORE_RATIO_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

#include "core/hd.h"
#include "isobit/rounding.h"

namespace isobit {

/// multiplier * 2^-(32 + shift), shift 1 to 30: the rescale of a sum of 32 bits is one product of 64. Less time than
/// double lanes, whose instructions wait for the tensor cores. A matrix whose ratios are all powers of two takes less
/// still: 2^-shift without a multiplier, and start values that have 2^(shift - 1) - 1 more (`by_shifts`).
struct Fixed {
  int32_t multiplier = 0;
  int32_t shift = 1;
  static constexpr int32_t kMostShift = 30;
  static constexpr int kSumBits = 31;  // of a magnitude
};
/// The same for sums of two planes of bytes, below 2^39, whose results are below 2^30; shift to 40, or 30 by shifts.
/// The start value is one of 32 bits.
struct WideFixed {
  int32_t multiplier = 0;
  int32_t shift = 1;
  static constexpr int32_t kMostShift = 40;
  static constexpr int kSumBits = 39;
};
template <typename Ratio>
inline constexpr bool kIsInteger = std::is_same_v<Ratio, Fixed> || std::is_same_v<Ratio, WideFixed>;

/// One instruction on a device, where the compiler makes four of a product of two converted integers.
ISOBIT_HD int64_t wide_product(int32_t a, int32_t b) {
#ifdef __CUDA_ARCH__
  int64_t product = 0;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return int64_t{a} * b;
#endif
}
/// The nearest integer to x * ratio, ties to even; below 2^30 in magnitude.
ISOBIT_HD int32_t rescale_even(int32_t x, Fixed ratio) {
  const int64_t product = wide_product(x, ratio.multiplier);
  const auto high = static_cast<int32_t>(static_cast<uint32_t>(product >> 32) + (1U << (ratio.shift - 1)));
  const int32_t up = high >> ratio.shift;
  // A tie leaves nothing below the unit.
  const uint32_t rest =
      ((static_cast<uint32_t>(up) << ratio.shift) ^ static_cast<uint32_t>(high)) | static_cast<uint32_t>(product);
  return rest == 0 ? up & ~1 : up;
}
/// The same: a product of the high bits of x and one of its low 16.
ISOBIT_HD int32_t rescale_even(int64_t x, WideFixed ratio) {
  const int64_t low = wide_product(static_cast<int32_t>(x & 0xffff), ratio.multiplier);
  const int shift = 16 + ratio.shift;
  const int64_t raised =
      wide_product(static_cast<int32_t>(x >> 16), ratio.multiplier) + (low >> 16) + (int64_t{1} << (shift - 1));
  const int64_t up = raised >> shift;
  const int64_t rest = (raised ^ up << shift) | (low & 0xffff);
  return static_cast<int32_t>(rest == 0 ? up & ~int64_t{1} : up);
}
/// sum * 2^-shift of a sum that has 2^(shift - 1) - 1 more: ties go downward; one more makes an odd result the next
/// one.
template <typename Sum>
ISOBIT_HD Sum shift_even(Sum sum, int32_t shift) {
  return (sum + (sum >> shift & 1)) >> shift;
}

/// The same ratio. Empty where it has too many bits: at a quarter and above.
template <typename Ratio = Fixed>
std::optional<Ratio> to_fixed(const RescaleParameters& r) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t multiplier = r.multiplier;
  int64_t shift = int64_t{r.shift} - 32;
  for (; shift < 1; ++shift)
    if ((multiplier *= 2) > kMost) return {};
  for (; shift > Ratio::kMostShift && multiplier % 2 == 0; --shift) multiplier /= 2;
  // Products below 2^62, or 2^70, of which half a unit is as much at least: zero.
  if (shift > Ratio::kMostShift) return Ratio{};
  return Ratio{static_cast<int32_t>(multiplier), static_cast<int32_t>(shift)};
}

/// The same ratio as 2^-shift, shift 1 to 30, where it is one.
template <typename Ratio = Fixed>
std::optional<Ratio> to_shift(const RescaleParameters& r) {
  const int shift = r.shift - std::countr_zero(static_cast<uint32_t>(r.multiplier));
  if (!std::has_single_bit(static_cast<uint32_t>(r.multiplier)) || shift < 1 || shift > 30) return {};
  return Ratio{0, shift};
}

/// float: sums of 24 bits, in float lanes. Fixed, WideFixed: results in float lanes. double: of more, in double lanes.
template <typename Ratio>
using LaneOf = std::conditional_t<std::is_same_v<Ratio, double>, double, float>;
/// A complete sum, and what it starts from. One of 32 bits may wrap on its way.
template <typename Ratio>
using SumOf = std::conditional_t<std::is_same_v<Ratio, double>, double,
                                 std::conditional_t<std::is_same_v<Ratio, WideFixed>, int64_t, int32_t>>;
/// Whether sums can begin with that. Where they need more than 32 bits it is added to the complete sum.
template <typename Ratio>
inline constexpr bool kStartsInProduct = !std::is_same_v<Ratio, double>;
/// What a rescaled sum is clamped to.
template <typename Ratio>
using LimitOf = std::conditional_t<kIsInteger<Ratio>, int32_t, Ratio>;

}  // namespace isobit

#endif  // ISOBIT_CORE_RATIO_H_
