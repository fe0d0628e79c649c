// SPDX-License-Identifier: Apache-2.0
// What a device rescales sums by, a type Ratio, decides what sums and results are.
#ifndef ISOBIT_CORE_RATIO_H_
#define ISOBIT_CORE_RATIO_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

#include "isobit/rounding.h"

namespace isobit {

/// multiplier * 2^-(32 + shift), shift 1 to 30: the rescale of a sum of 32 bits is one product of 64. Less time than
/// double lanes, whose instructions wait for the tensor cores. A matrix whose ratios are all powers of two takes less
/// still: 2^-shift without a multiplier, and start values that have 2^(shift - 1) - 1 more (`by_shifts`).
struct Fixed {
  int32_t multiplier = 0;
  int32_t shift = 1;
};

/// The same ratio, for sums of 32 bits. Empty where it has too many bits: at a quarter and above.
inline std::optional<Fixed> to_fixed(const RescaleParameters& r) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t multiplier = r.multiplier;
  int64_t shift = int64_t{r.shift} - 32;
  for (; shift < 1; ++shift)
    if ((multiplier *= 2) > kMost) return {};
  for (; shift > 30 && multiplier % 2 == 0; --shift) multiplier /= 2;
  if (shift > 30) return Fixed{};  // products below 2^62, of which half a unit is 2^62 at least: zero
  return Fixed{static_cast<int32_t>(multiplier), static_cast<int32_t>(shift)};
}

/// The same ratio as 2^-shift, shift 1 to 30, where it is one.
inline std::optional<Fixed> to_shift(const RescaleParameters& r) {
  const int shift = r.shift - std::countr_zero(static_cast<uint32_t>(r.multiplier));
  if (!std::has_single_bit(static_cast<uint32_t>(r.multiplier)) || shift < 1 || shift > 30) return {};
  return Fixed{0, shift};
}

/// float: sums of 24 bits, in float lanes. Fixed: of 32 bits, results in float lanes. double: of more, in double lanes.
template <typename Ratio>
using LaneOf = std::conditional_t<std::is_same_v<Ratio, double>, double, float>;
/// A complete sum, and what it starts from. One of 32 bits may wrap on its way.
template <typename Ratio>
using SumOf = std::conditional_t<std::is_same_v<Ratio, double>, double, int32_t>;
/// Whether sums can begin with that. Where they need more than 32 bits it is added to the complete sum.
template <typename Ratio>
inline constexpr bool kStartsInProduct = !std::is_same_v<Ratio, double>;
/// What a rescaled sum is clamped to.
template <typename Ratio>
using LimitOf = std::conditional_t<std::is_same_v<Ratio, Fixed>, int32_t, Ratio>;

}  // namespace isobit

#endif  // ISOBIT_CORE_RATIO_H_
