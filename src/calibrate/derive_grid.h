// SPDX-License-Identifier: Apache-2.0
// numerics.md, section 4, for ranges that are not float32: bin edges and the EMA range are float64.
#ifndef ISOBIT_CALIBRATE_DERIVE_GRID_H_
#define ISOBIT_CALIBRATE_DERIVE_GRID_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/derive_scale.h"
#include "isobit/grid.h"
#include "isobit/status.h"

namespace isobit {

/// The scale in float64; exact for both kinds.
inline double scale_f64(const Grid& grid) {
  return grid.kind == ScaleKind::kPow2 ? std::ldexp(1.0, -grid.shift) : static_cast<double>(grid.real_scale);
}

/// clamp(anchor - rint(bound / S)): the zero point that puts the real number `bound` on the code `anchor`.
inline int64_t zero_point_for(const Grid& grid, double bound, int64_t anchor) {
  // Codes have at most 32 bits, so that farther steps end at the same limit.
  const auto steps = static_cast<int64_t>(std::nearbyint(std::clamp(bound / scale_f64(grid), -0x1p40, 0x1p40)));
  return std::clamp(anchor - steps, grid.min(), grid.max());
}

/// derive_grid() for a float64 range.
Result<Grid> derive_grid_f64(double min, double max, const GridOptions& options, ScaleKind kind, int64_t default_steps,
                             std::string_view name);

/// derive_row_grids() with the name of a row in messages.
using RowName = std::function<std::string(int64_t row)>;
Result<std::vector<Grid>> derive_named_row_grids(std::span<const float> values, int64_t rows, int64_t columns,
                                                 const GridOptions& options, ScaleKind kind, std::string_view name,
                                                 bool zero_rows_follow, const RowName& row_name);

}  // namespace isobit

#endif  // ISOBIT_CALIBRATE_DERIVE_GRID_H_
