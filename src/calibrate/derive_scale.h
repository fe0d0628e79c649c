// SPDX-License-Identifier: Apache-2.0
// numerics.md, section 4: from a range to the scale of a grid, in float64, for host and device.
#ifndef ISOBIT_CALIBRATE_DERIVE_SCALE_H_
#define ISOBIT_CALIBRATE_DERIVE_SCALE_H_

#include <cmath>
#include <cstdint>

#include "core/bounds.h"
#include "core/hd.h"
#include "isobit/grid.h"

namespace isobit {

inline constexpr int kMinDerivedShift = -32;
/// The shift never exceeds this: min(62, bits + 30).
ISOBIT_HD constexpr int derived_shift_limit(int bits) { return bits < 32 ? bits + 30 : 62; }

inline constexpr double kMinRealScale = 0x1p-126;             // the smallest normal float32
inline constexpr double kMaxRealScale = 0x1.fffffep127;       // the largest
inline constexpr double kRealScaleOverflow = 0x1.ffffffp127;  // from here on float64 rounds to an infinite float32

/// What section 4 needs of a grid before its range is known.
struct ScaleOptions {
  ScaleKind kind;
  int32_t bits;
  bool is_signed, symmetric;
  int64_t steps;  // N
};

enum class ScaleRefusal : uint8_t { kNone, kShift, kReal };  // a shift below -32; no normal float32
struct DerivedScale {
  double raw = 0;  // the real step; 0: nothing but 0 needs a code, and the scale is 1
  Scale scale;
  ScaleRefusal refusal = ScaleRefusal::kNone;
};

/// min <= 0 <= max, finite.
ISOBIT_HD DerivedScale derive_scale(double min, double max, const ScaleOptions& options) {
  DerivedScale derived;
  derived.scale.kind = options.kind;
  if (!options.symmetric) {
    derived.raw = (max - min) / static_cast<double>(options.steps);
  } else if (!options.is_signed) {
    derived.raw = max / static_cast<double>(options.steps);
  } else {
    const int64_t above = options.steps / 2;
    const double upper = max / static_cast<double>(above), lower = -min / static_cast<double>(options.steps - above);
    derived.raw = upper < lower ? lower : upper;
  }
  if (derived.raw == 0) return derived;
  if (options.kind == ScaleKind::kPow2) {
    int exponent = 0;
    const double fraction = std::frexp(derived.raw, &exponent);
    const int covering = fraction == 0.5 ? 1 - exponent : -exponent;  // floor(log2(1/raw)), exactly
    const int limit = derived_shift_limit(options.bits);
    derived.scale.shift = covering < limit ? covering : limit;
    if (derived.scale.shift < kMinDerivedShift) derived.refusal = ScaleRefusal::kShift;
    return derived;
  }
  if (derived.raw < kRealScaleOverflow) derived.scale.real = static_cast<float>(derived.raw);
  if (derived.raw >= kRealScaleOverflow || static_cast<double>(derived.scale.real) < kMinRealScale)
    derived.refusal = ScaleRefusal::kReal;
  return derived;
}

/// Of a row of weights. is_zero: it counts as zeros, and may take the scale of another row.
struct DerivedRow {
  DerivedScale derived;
  bool is_zero = false;
};
ISOBIT_HD DerivedRow derive_row_scale(float min, float max, const ScaleOptions& options) {
  DerivedRow row;
  row.derived = derive_scale(static_cast<double>(min), static_cast<double>(max), options);
  const bool too_small =
      options.kind == ScaleKind::kReal && static_cast<double>(static_cast<float>(row.derived.raw)) < kMinRealScale;
  row.is_zero = row.derived.raw == 0 || too_small;
  if (row.is_zero) row.derived = {.raw = 0, .scale = unit_scale(options.kind)};
  return row;
}

}  // namespace isobit

#endif  // ISOBIT_CALIBRATE_DERIVE_SCALE_H_
