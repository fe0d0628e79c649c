// SPDX-License-Identifier: Apache-2.0
#include "isobit/rounding.h"

namespace isobit {

std::string_view to_string(Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearestEven: return "nearest_even";
    case Rounding::kNearestUp: return "nearest_up";
    case Rounding::kNearestAway: return "nearest_away";
    case Rounding::kFloor: return "floor";
  }
  return "unknown";
}

std::optional<Rounding> rounding_from_string(std::string_view text) {
  for (const Rounding rounding : kAllRoundings)
    if (to_string(rounding) == text) return rounding;
  return std::nullopt;
}

}  // namespace isobit
