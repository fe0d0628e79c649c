// SPDX-License-Identifier: Apache-2.0
// numerics.md, section 5: the methods that choose a range from statistics.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "calibrate/derive_grid.h"
#include "core/float_mode.h"
#include "core/number_text.h"
#include "isobit/calibration.h"

namespace isobit {
namespace {

__extension__ typedef unsigned __int128 Uint128;

constexpr int kHalfBins = 2048;

Status not_ready(std::string_view name, const std::string& message) {
  return {StatusCode::kFailedPrecondition, std::string(name) + ": " + message};
}

/// The width of a bin in units of the tensor.
double bin_width(const TensorStatistics& statistics) { return std::ldexp(1.0, statistics.exponent() - 11); }

/// The ends, all low bits set, of the innermost bins with at most m samples outside each, m = floor(count * (100 - P) /
/// 200), cut to [min, max]; 0 for the bin of +0. P > 0 makes 2m < count, so lo's bin does not lie above hi's.
std::pair<double, double> percentile_range(const TensorStatistics& statistics, const CalibrationOptions& calibration) {
  const auto denominator = static_cast<uint64_t>(calibration.percentile_denominator);
  const uint64_t excluded_hundredths = 100 * denominator - static_cast<uint64_t>(calibration.percentile_numerator);
  const auto m =
      static_cast<uint64_t>(static_cast<Uint128>(statistics.count()) * excluded_hundredths / (200 * denominator));
  const std::vector<TensorStatistics::FloatBin> bins = statistics.float_bins();
  // Stops at the first bin whose samples no longer fit outside; there is one, because m < count.
  auto lo = bins.begin();
  for (uint64_t outside = lo->count; outside <= m; outside += lo->count) ++lo;
  auto hi = bins.rbegin();
  for (uint64_t outside = hi->count; outside <= m; outside += hi->count) ++hi;
  const auto end_of = [&](const TensorStatistics::FloatBin& bin) {
    if (bin.high_bits == 0) return 0.0;
    const auto end = std::bit_cast<float>(uint32_t{bin.high_bits} << 16 | 0xffff);
    return static_cast<double>(std::clamp(end, statistics.min(), statistics.max()));
  };
  return {end_of(*lo), end_of(*hi)};
}

/// The samples of a bin, all taken to lie at its centre.
struct Centre {
  double value;
  double samples;
};

/// Squared error plus clipping error of the centres on a grid: section 3's codes, in float64.
double squared_error(const std::vector<Centre>& centres, const Grid& grid) {
  const double scale = scale_f64(grid);
  // A general grid multiplies by the float32 nearest to 1/S.
  const double inverse = grid.kind == ScaleKind::kPow2 ? 1.0 / scale : static_cast<double>(1.0f / grid.real_scale);
  // The clamp on q - z instead of q: integers below 2^34, exact in float64.
  const auto low = static_cast<double>(grid.min() - grid.zero_point);
  const auto high = static_cast<double>(grid.max() - grid.zero_point);
  double sum = 0;
  for (const Centre& centre : centres) {
    const double code = std::min(std::max(std::nearbyint(centre.value * inverse), low), high);
    const double error = code * scale - centre.value;
    sum += error * error * centre.samples;
  }
  return sum;
}

/// The covering grid with its scale made finer for the j-th time, or nothing when no grid has such a scale.
std::optional<Grid> finer(const Grid& covering, int j) {
  // 2^(i/4), written out: libm does not promise the last bit.
  constexpr double kQuarterPowers[] = {1.0, 0x1.306fe0a31b715p+0, 0x1.6a09e667f3bcdp+0, 0x1.ae89f995ad3adp+0};
  Grid grid = covering;
  if (grid.kind == ScaleKind::kPow2) {
    grid.shift += j;
    if (grid.shift > derived_shift_limit(grid.bits)) return std::nullopt;
  } else {
    const double divisor = std::ldexp(kQuarterPowers[j % 4], j / 4);
    grid.real_scale = static_cast<float>(static_cast<double>(grid.real_scale) / divisor);
    if (grid.real_scale < std::numeric_limits<float>::min()) return std::nullopt;
  }
  return grid;
}

/// The scale at which the search may end: that of the range of percentile 99, infinite where there is none.
double searched_scale(const TensorStatistics& statistics, const GridOptions& options, ScaleKind kind,
                      int64_t default_steps) {
  CalibrationOptions most;
  most.method = CalibrationMethod::kPercentile;
  most.percentile_numerator = 99;
  const auto [min, max] = percentile_range(statistics, most);
  const bool has_step = max > 0 || (min < 0 && (options.is_signed || !options.symmetric));
  const Result<Grid> grid = derive_grid_f64(min, max, options, kind, default_steps, "percentile 99");
  return has_step && grid.ok() ? scale_f64(*grid) : std::numeric_limits<double>::infinity();
}

/// The grid with the least squared error over the histogram: the scale of the covering grid and finer ones down to
/// `last_scale`, each with 17 zero points. Ties go to the smaller j, then to the smaller i.
Grid search_grid(const TensorStatistics& statistics, const Grid& covering, bool symmetric, double last_scale) {
  std::vector<Centre> centres;
  const double width = bin_width(statistics);
  for (int i = -kHalfBins; i < kHalfBins; ++i) {
    const uint64_t samples = statistics.bins()[static_cast<size_t>(i + kHalfBins)];
    if (samples > 0) centres.push_back({(i + 0.5) * width, static_cast<double>(samples)});
  }
  const double min = std::min(static_cast<double>(statistics.min()), 0.0);
  const double max = std::max(static_cast<double>(statistics.max()), 0.0);
  const int least_last_j = covering.kind == ScaleKind::kPow2 ? 3 : 12;
  const int last_i = symmetric ? 0 : 16;
  Grid best = covering;
  double least = std::numeric_limits<double>::infinity();
  for (int j = 0;; ++j) {
    std::optional<Grid> grid = finer(covering, j);
    if (!grid) break;
    // z_a = clamp(qmin - rint(min/S)): the minimum just has a code, so a scale too fine clips only the top.
    // z_b = clamp(qmax - rint(max/S)): the maximum just has a code, so it clips only the bottom.
    const int64_t z_a = symmetric ? 0 : zero_point_for(*grid, min, grid->min());
    const int64_t z_b = symmetric ? 0 : zero_point_for(*grid, max, grid->max());
    for (int i = 0; i <= last_i; ++i) {
      // Sixteenths of integers below 2^33: exact in float64.
      grid->zero_point = z_a + static_cast<int64_t>(std::nearbyint(static_cast<double>((z_b - z_a) * i) / 16));
      const double error = squared_error(centres, *grid);
      if (error < least) {
        least = error;
        best = *grid;
      }
    }
    if (j >= least_last_j && scale_f64(*grid) <= last_scale) break;
  }
  return best;
}

}  // namespace

Result<Grid> choose_grid(const TensorStatistics& statistics, const GridOptions& options, ScaleKind kind,
                         const CalibrationOptions& calibration, std::string_view name) {
  const DefaultFloatMode mode;
  const Status usable = check_calibration_options(calibration);
  if (!usable.ok()) return Status(usable.code(), std::string(name) + ": " + usable.message());
  if (statistics.count() == 0) return not_ready(name, "no samples were observed; a range needs at least 1");
  // Every value of an activation must have a code. Widths that are no width are refused further down.
  const int64_t default_steps = (int64_t{1} << std::clamp(options.bits, 1, 32)) - 1;
  auto min = static_cast<double>(statistics.min());
  auto max = static_cast<double>(statistics.max());
  if (calibration.method == CalibrationMethod::kPercentile) {
    const bool zeros_only = min == 0 && max == 0;
    std::tie(min, max) = percentile_range(statistics, calibration);
    if (min == 0 && max == 0 && !zeros_only) {
      return Status(StatusCode::kInvalidArgument, std::string(name) + ": the range of " + to_string(calibration) +
                                                      " is [0, 0], as nearly all samples are 0; use a higher "
                                                      "percentile, or minmax");
    }
  } else if (calibration.method == CalibrationMethod::kEma) {
    if (!statistics.ema_range()) return not_ready(name, "no sequence was observed; the method ema needs at least 1");
    if (statistics.ema_decay() != calibration.ema_decay) {
      return not_ready(name, "the decay " + number_text(calibration.ema_decay) + " was asked, but the sequences were " +
                                 "observed with " + number_text(statistics.ema_decay()));
    }
    std::tie(min, max) = *statistics.ema_range();
  }
  ISOBIT_ASSIGN_OR_RETURN(const Grid covering, derive_grid_f64(min, max, options, kind, default_steps, name));
  const bool all_zero = min == 0 && max == 0;
  if (calibration.method != CalibrationMethod::kSqnr || all_zero) return covering;
  return search_grid(statistics, covering, options.symmetric, searched_scale(statistics, options, kind, default_steps));
}

}  // namespace isobit
