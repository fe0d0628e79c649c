// SPDX-License-Identifier: Apache-2.0
// numerics.md, section 4, for ranges that are not float32: bin edges and the EMA range are float64.
#ifndef ISOBIT_CALIBRATE_DERIVE_GRID_H_
#define ISOBIT_CALIBRATE_DERIVE_GRID_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "isobit/grid.h"
#include "isobit/status.h"

namespace isobit {

/// The shift never exceeds this: min(62, bits + 30).
constexpr int derived_shift_limit(int bits) { return std::min(62, bits + 30); }

/// The scale in float64; exact for both kinds.
inline double scale_f64(const Grid& grid) {
  return grid.kind == ScaleKind::kPow2 ? std::ldexp(1.0, -grid.shift) : static_cast<double>(grid.real_scale);
}

/// clamp(anchor - rint(bound / S)): the zero point that puts the real number `bound` on the code `anchor`.
/// `bound` / S must stay below 2^62 in magnitude.
inline int64_t zero_point_for(const Grid& grid, double bound, int64_t anchor) {
  const auto steps = static_cast<int64_t>(std::nearbyint(bound / scale_f64(grid)));
  return std::clamp(anchor - steps, grid.min(), grid.max());
}

/// derive_grid() for a float64 range.
Result<Grid> derive_grid_f64(double min, double max, const GridOptions& options, ScaleKind kind, int64_t default_steps,
                             std::string_view name);

}  // namespace isobit

#endif  // ISOBIT_CALIBRATE_DERIVE_GRID_H_
