// SPDX-License-Identifier: Apache-2.0
// The error of a float16 result, as certificates and pictures count it.
#ifndef ISOBIT_TABLE_FP16_ERROR_H_
#define ISOBIT_TABLE_FP16_ERROR_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/half.h"

namespace isobit {

/// Infinite where one of the two is infinite or NaN and the other is not that.
inline double fp16_absolute_error(uint16_t code, uint16_t exact) {
  const auto value = static_cast<double>(f16_to_f32(code)), truth = static_cast<double>(f16_to_f32(exact));
  if (std::isfinite(value) && std::isfinite(truth)) return std::abs(value - truth);
  const bool same = value == truth || (std::isnan(value) && std::isnan(truth));
  return same ? 0 : std::numeric_limits<double>::infinity();
}

/// An absolute error in units of the last place of the exact result.
inline double fp16_ulp(double absolute, uint16_t exact) {
  return std::ldexp(absolute, 25 - std::max(exact >> 10 & 31, 1));
}

}  // namespace isobit

#endif  // ISOBIT_TABLE_FP16_ERROR_H_
