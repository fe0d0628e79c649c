// SPDX-License-Identifier: Apache-2.0
// numerics.md, section 4: from a range to the parameters of a grid, all in float64.
#include "calibrate/derive_grid.h"

#include <limits>
#include <string>

#include "core/float_mode.h"
#include "core/number_text.h"
#include "isobit/calibration.h"

namespace isobit {
namespace {

Status invalid(std::string_view name, const std::string& message) {
  return {StatusCode::kInvalidArgument, std::string(name) + ": " + message};
}

std::string range_text(double min, double max) {
  return "the range [" + number_text(min) + ", " + number_text(max) + "]";
}

/// N, or why it cannot be.
Result<int64_t> check_steps(const GridOptions& options, int64_t default_steps, std::string_view name) {
  if (options.bits < 1 || options.bits > 32) {
    return invalid(name, std::to_string(options.bits) + " bits; the width must be 1 to 32");
  }
  const int64_t steps = options.steps.value_or(default_steps);
  const int64_t least = options.symmetric && options.is_signed ? 2 : 1;  // floor(N/2) divides
  const int64_t most = int64_t{1} << options.bits;
  if (steps < least || steps > most) {
    return invalid(name, std::to_string(steps) + " steps; a grid of " + std::to_string(options.bits) + " bits" +
                             (least == 2 ? ", symmetric and signed," : "") + " has " + std::to_string(least) + " to " +
                             std::to_string(most));
  }
  return steps;
}

ScaleOptions scale_options(const GridOptions& options, ScaleKind kind, int64_t steps) {
  return {kind, options.bits, options.is_signed, options.symmetric, steps};
}

}  // namespace

Result<Grid> derive_grid_f64(double min, double max, const GridOptions& options, ScaleKind kind, int64_t default_steps,
                             std::string_view name) {
  ISOBIT_ASSIGN_OR_RETURN(const int64_t steps, check_steps(options, default_steps, name));
  if (!std::isfinite(min) || !std::isfinite(max) || min > max) {
    return invalid(name, range_text(min, max) + " must be finite and ascending");
  }
  min = std::min(min, 0.0);
  max = std::max(max, 0.0);
  Grid grid;
  grid.bits = options.bits;
  grid.is_signed = options.is_signed;
  grid.kind = kind;
  const DerivedScale derived = derive_scale(min, max, scale_options(options, kind, steps));
  if (derived.raw == 0) return grid;  // shift 0 or S = 1, zero point 0
  if (derived.refusal == ScaleRefusal::kShift)
    return invalid(name, range_text(min, max) + " needs the shift " + std::to_string(derived.scale.shift) +
                             "; the smallest is " + std::to_string(kMinDerivedShift) + ", so use general scales");
  if (derived.refusal == ScaleRefusal::kReal)
    return invalid(name, range_text(min, max) + " needs the scale " + number_text(derived.raw) +
                             "; it must be a normal " + "float32, " + number_text(kMinRealScale) + " to " +
                             number_text(kMaxRealScale) +
                             (derived.raw < 1 ? "; set values this small to 0, or use power-of-two scales" : ""));
  grid.shift = derived.scale.shift;
  grid.real_scale = derived.scale.real;
  if (!options.symmetric) grid.zero_point = zero_point_for(grid, min, grid.min());
  return grid;
}

Result<Grid> derive_grid(float min, float max, const GridOptions& options, ScaleKind kind, int64_t default_steps,
                         std::string_view name) {
  const DefaultFloatMode mode;
  return derive_grid_f64(static_cast<double>(min), static_cast<double>(max), options, kind, default_steps, name);
}

Result<std::vector<Grid>> derive_row_grids(std::span<const float> values, int64_t rows, int64_t columns,
                                           const GridOptions& options, ScaleKind kind, std::string_view name,
                                           bool zero_rows_follow) {
  const DefaultFloatMode mode;
  return derive_named_row_grids(values, rows, columns, options, kind, name, zero_rows_follow,
                                [&](int64_t row) { return std::string(name) + "[" + std::to_string(row) + "]"; });
}

Result<std::vector<Grid>> derive_named_row_grids(std::span<const float> values, int64_t rows, int64_t columns,
                                                 const GridOptions& options, ScaleKind kind, std::string_view name,
                                                 bool zero_rows_follow, const RowName& row_name) {
  const auto size = static_cast<int64_t>(values.size());
  if (rows < 0 || columns < 1 || size % columns != 0 || size / columns != rows) {
    return invalid(name, std::to_string(size) + " values are not " + std::to_string(rows) + " rows of " +
                             std::to_string(columns) + " columns");
  }
  if (!options.symmetric) return invalid(name, "a grid per row must be symmetric; asymmetric was asked");
  const int64_t default_steps = int64_t{1} << std::clamp(options.bits, 1, 32);
  ISOBIT_ASSIGN_OR_RETURN(const int64_t steps, check_steps(options, default_steps, name));

  std::vector<Grid> grids;
  grids.reserve(static_cast<size_t>(rows));
  std::vector<bool> is_zero(static_cast<size_t>(rows));
  int64_t finest = -1;  // the row with the smallest scale among those that are not all zero
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = values.data() + row * columns;
    // Several at a time, which compilers make lanes of.
    constexpr int64_t kTogether = 8;
    float least[kTogether] = {}, most[kTogether] = {};
    unsigned not_finite = 0;
    const auto see = [&](int64_t lane, float value) {
      least[lane] = value < least[lane] ? value : least[lane];
      most[lane] = value > most[lane] ? value : most[lane];
      not_finite |= std::abs(value) <= std::numeric_limits<float>::max() ? 0u : 1u;
    };
    int64_t done = 0;
    for (; done + kTogether <= columns; done += kTogether)
      for (int64_t lane = 0; lane < kTogether; ++lane) see(lane, x[done + lane]);
    for (; done < columns; ++done) see(0, x[done]);
    for (int64_t column = 0; not_finite != 0 && column < columns; ++column) {
      if (!std::isfinite(x[column])) {
        return invalid(name, "the value at row " + std::to_string(row) + ", column " + std::to_string(column) + " is " +
                                 number_text(static_cast<double>(x[column])) + "; it must be finite");
      }
    }
    float min = *std::min_element(least, least + kTogether);
    float max = *std::max_element(most, most + kTogether);
    const bool counts_as_zero = derive_row_scale(min, max, scale_options(options, kind, steps)).is_zero;
    if (counts_as_zero) min = max = 0;
    auto grid = derive_grid(min, max, options, kind, steps, row_name(row));
    if (!grid.ok()) return grid.status();
    grids.push_back(*grid);
    is_zero[static_cast<size_t>(row)] = counts_as_zero;
    if (counts_as_zero) continue;
    if (finest < 0 || scale_f64(*grid) < scale_f64(grids[static_cast<size_t>(finest)])) finest = row;
  }
  if (zero_rows_follow && finest >= 0) {
    // Symmetric grids of one tensor differ in scale only, so the whole grid can be copied.
    for (size_t row = 0; row < grids.size(); ++row) {
      if (is_zero[row]) grids[row] = grids[static_cast<size_t>(finest)];
    }
  }
  return grids;
}

}  // namespace isobit
