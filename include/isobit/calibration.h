// SPDX-License-Identifier: Apache-2.0
// Ranges from data. numerics.md, section 5. Statistics are independent of the order of the data and of the
// number of threads, and merge exactly.
#ifndef ISOBIT_CALIBRATION_H_
#define ISOBIT_CALIBRATION_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/grid.h"
#include "isobit/status.h"

namespace isobit {

enum class CalibrationMethod : int32_t { kMinMax = 0, kPercentile = 1, kSqnr = 2, kEma = 3 };

/// How a range is chosen from statistics.
struct CalibrationOptions {
  CalibrationMethod method = CalibrationMethod::kMinMax;
  /// percentile: the exact decimal P = percentile_numerator / percentile_denominator (a power of ten up to 10^9),
  /// 0 < P <= 100; m = floor(count * (100 - P) / 200) samples may lie outside each end, computed in integers.
  int64_t percentile_numerator = 100;
  int64_t percentile_denominator = 1;
  double ema_decay = 0.9;  // r <- decay * r + (1 - decay) * r_t, 0 <= decay < 1
  bool operator==(const CalibrationOptions&) const = default;
};

/// Refuses values outside the limits above, each only where the method uses it.
Status check_calibration_options(const CalibrationOptions& options);

/// "minmax", "percentile:99.99", "sqnr" or "ema:0.9"; "invalid" for a percentile outside its limits.
std::string to_string(const CalibrationOptions& options);

/// The inverse of to_string(); "ema" is "ema:0.9". P has at most 9 decimals. Trailing zeros are dropped, so equal
/// percentiles give equal options. Anything else is refused with the value and the allowed forms.
Result<CalibrationOptions> parse_calibration_options(std::string_view text);

/// Statistics of one tensor: exact range, two integer histograms, and the EMA range. The first histogram has 4096 bins
/// i = floor(x * 2^(11-E)) in [-2048, 2047] with the least E such that max|x| < 2^E. Bin i holds the samples in
/// [i, i + 1) * 2^(E-11); when E grows by one, bin i joins bin floor(i/2), which is where its samples would have
/// gone. The second has a bin for each value of the 16 high bits of the float32 itself, so that an outlier does not make
/// it coarser. All of it depends on the set of samples only, not on their order or partition.
class TensorStatistics {
 public:
  /// Decay of the EMA range, 0 <= decay < 1; fixed before the first observation.
  explicit TensorStatistics(double ema_decay = 0.9) : ema_decay_(ema_decay) {}

  /// Adds samples to range and histograms. Values must be finite (the caller has checked). Allocates for the first
  /// sample, and for the first of each sign and exponent. count <= 0 adds nothing.
  void observe(const float* x, int64_t count);
  /// Adds one sequence to the EMA range: per-step minima and maxima in the direction's own time order.
  /// In float64, r = decay * r + (1 - decay) * r_t from r = r_0; sequences merge by min and max.
  void observe_sequence_ranges(const float* step_min, const float* step_max, int64_t steps);
  /// Adds another's statistics, which must have the same decay; exact, commutative and associative.
  void merge(const TensorStatistics& other);

  [[nodiscard]] uint64_t count() const { return count_; }
  /// Smallest and largest sample; 0 while count() is 0, never -0.
  [[nodiscard]] float min() const { return min_; }
  [[nodiscard]] float max() const { return max_; }
  /// E, -148 to 128; 0 while every sample is zero.
  [[nodiscard]] int exponent() const { return exponent_; }
  /// Index i + 2048; empty while count() is 0.
  [[nodiscard]] const std::vector<uint64_t>& bins() const { return bins_; }
  /// A bin of the second histogram: the samples whose float32 has these 16 high bits; -0 counts as +0.
  struct FloatBin {
    uint16_t high_bits = 0;
    uint64_t count = 0;
    bool operator==(const FloatBin&) const = default;
  };
  /// The bins that hold samples, in the order of the numbers that they hold.
  [[nodiscard]] std::vector<FloatBin> float_bins() const;
  /// Empty until a sequence was observed.
  [[nodiscard]] std::optional<std::pair<double, double>> ema_range() const;
  [[nodiscard]] double ema_decay() const { return ema_decay_; }
  bool operator==(const TensorStatistics&) const = default;

 private:
  void grow_exponent(int exponent);

  double ema_decay_;
  uint64_t count_ = 0;
  float min_ = 0;
  float max_ = 0;
  int exponent_ = 0;            // meaningful once has_exponent_
  bool has_exponent_ = false;   // false while every sample was zero
  std::vector<uint64_t> bins_;  // 4096, empty while count_ == 0
  // 512, one for each sign and exponent, empty while count_ == 0; each empty or 128 bins, by the mantissa's high bits
  std::vector<std::vector<uint64_t>> float_bins_;
  bool has_ema_ = false;
  double ema_min_ = 0;
  double ema_max_ = 0;
};

/// A grid for a calibrated activation: a range by the method, then section 4 with N = 2^bits - 1 steps unless
/// options.steps is set.
/// minmax: [min, max]. percentile: the ends of the innermost bins of 16 high bits with at most m samples outside each,
/// cut to [min, max]; [0, 0] is refused unless all samples are 0. ema: the EMA range. sqnr: of the grid of minmax and
/// those with finer scales (shift + j, or S / 2^(j/4); j up to 3 or 12, or to the scale of percentile 99 where that is
/// finer; none above the limits of section 4) and, if asymmetric, 17 zero points each, the one with the least squared
/// error of the first histogram, every sample taken to lie at the centre of its bin.
/// Errors: the options' limits, those of derive_grid(), and kFailedPrecondition for statistics without samples, or
/// for ema without sequences or with another decay than they were observed with. All name the tensor `name`.
Result<Grid> choose_grid(const TensorStatistics& statistics, const GridOptions& options, ScaleKind kind,
                         const CalibrationOptions& calibration, std::string_view name);

/// One symmetric grid for each row of a rows x columns matrix (weights), or for each value when columns is 1
/// (biases), from the row's minimum and maximum: section 4 with N = 2^bits steps unless options.steps is set.
/// A row without anything to represent, or with values too small for a normal float32 scale, has shift 0 or S = 1; if
/// `zero_rows_follow` (W and R) it has the smallest scale of the other rows instead, so that its bias keeps its
/// precision.
/// Errors name the tensor, and the row where there is one: options.symmetric is false, a value is not finite, the
/// sizes disagree, or derive_grid() refuses.
Result<std::vector<Grid>> derive_row_grids(std::span<const float> values, int64_t rows, int64_t columns,
                                           const GridOptions& options, ScaleKind kind, std::string_view name,
                                           bool zero_rows_follow);

}  // namespace isobit

#endif  // ISOBIT_CALIBRATION_H_
