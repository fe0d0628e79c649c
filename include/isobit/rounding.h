// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_ROUNDING_H_
#define ISOBIT_ROUNDING_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace isobit {

/// How round_shift(x, n) turns x / 2^n into an integer (numerics.md, section 1). It is part of a saved
/// model and holds for every rescale and every table of that model. Float to code is always nearest even.
enum class Rounding : int32_t {
  kNearestEven = 0,  // ties to even
  kNearestUp = 1,    // floor(v + 1/2)
  kNearestAway = 2,  // ties away from zero
  kFloor = 3,        // floor(v)
};

inline constexpr Rounding kAllRoundings[] = {Rounding::kNearestEven, Rounding::kNearestUp,
                                             Rounding::kNearestAway, Rounding::kFloor};

/// "nearest_even", "nearest_up", "nearest_away" or "floor".
std::string_view to_string(Rounding rounding);
std::optional<Rounding> rounding_from_string(std::string_view text);

/// A rescale as stored, round_shift(x * multiplier, shift), shift in [-62, 127]: numerics.md, section 2.
struct RescaleParameters {
  int32_t multiplier = 1;
  int32_t shift = 0;
  bool operator==(const RescaleParameters&) const = default;
};

}  // namespace isobit

#endif  // ISOBIT_ROUNDING_H_
