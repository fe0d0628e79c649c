// SPDX-License-Identifier: Apache-2.0
// Both fits look for a monotone piecewise-linear curve inside a tube around the function, one interval of allowed
// values for every input code, and narrow the tube by bisection. Where the exact code is at `low` or `high` the tube
// is open on that side, because the final clamp catches the curve. Heights are "fine" units (2^-24 LSB).
//
// Odd symmetry: when f(0) has an integer code, the left half of the tube is folded onto the right half, one half is
// fitted outwards from the exact point f(0), and its mirror image is the other half.
#include "table/fit.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/fixed.h"

namespace isobit {
namespace {

__extension__ typedef __int128 Int128;

/// Stands for "no bound": outside every code, yet small enough for products with 2^17 in int64.
constexpr int64_t kFree = int64_t{1} << 44;
constexpr int64_t kOne = int64_t{1} << kFineBits;

constexpr int64_t to_fine(int64_t code) { return shift_left(code, kFineBits); }
/// Floor and ceiling of value * 2^to / 2^from.
constexpr int64_t floor_scale(int64_t value, int from, int to) {
  return to >= from ? shift_left(value, to - from) : value >> (from - to);
}
constexpr int64_t ceil_scale(int64_t value, int from, int to) { return -floor_scale(-value, from, to); }

struct Tube {
  std::vector<int64_t> value, lower, upper;
  explicit Tube(size_t size) : value(size), lower(size, -kFree), upper(size, kFree) {}
  bool empty_somewhere() const {
    for (size_t i = 0; i < value.size(); ++i)
      if (lower[i] > upper[i]) return true;
    return false;
  }
};

/// floor drops the fraction: curves are fitted one half above the function, and the half stays in the table.
int64_t half_of(Rounding rounding) { return rounding == Rounding::kFloor ? kOne / 2 : 0; }

/// The tube of +-tolerance for codes min()..max() + 1, the last unbounded. `within_one_code` also keeps every rounded
/// value within 1 of the exact code (the ends themselves are ties, so they are left out).
Tube make_tube(const ExactFunction& exact, int64_t tolerance, bool within_one_code, int64_t half) {
  const size_t size = exact.codes.size();
  const int64_t low = to_fine(exact.low);
  const int64_t high = to_fine(exact.high);
  Tube tube(size + 1);
  for (size_t i = 0; i <= size; ++i) {
    const int64_t value = exact.values[i];
    tube.value[i] = value + half;
    if (i == size) break;
    int64_t lower = value - tolerance > low ? std::min(value, high) - tolerance : -kFree;
    int64_t upper = value + tolerance < high ? std::max(value, low) + tolerance : kFree;
    if (within_one_code) {
      const int64_t code = exact.codes[i];
      if (code - 1 > exact.low) lower = std::max(lower, to_fine(code) - kOne * 3 / 2 + 1);
      if (code + 1 < exact.high) upper = std::min(upper, to_fine(code) + kOne * 3 / 2 - 1);
    }
    if (lower != -kFree) tube.lower[i] = lower + half;
    if (upper != kFree) tube.upper[i] = upper + half;
  }
  return tube;
}

/// The tube at distances 0, 1, ... from index `zero`, to the right and, mirrored about twice_center / 2, to the left.
Tube fold(const Tube& tube, int64_t zero, int64_t twice_center) {
  const int64_t right = static_cast<int64_t>(tube.value.size()) - 1 - zero;
  const int64_t longer = std::max(right, zero);
  Tube folded(static_cast<size_t>(longer) + 1);
  for (int64_t d = 0; d <= longer; ++d) {
    const size_t i = static_cast<size_t>(d);
    if (d <= zero) {
      const size_t left = static_cast<size_t>(zero - d);
      folded.value[i] = twice_center - tube.value[left];
      if (tube.upper[left] != kFree) folded.lower[i] = twice_center - tube.upper[left];
      if (tube.lower[left] != -kFree) folded.upper[i] = twice_center - tube.lower[left];
    }
    if (d <= right) {
      const size_t other = static_cast<size_t>(zero + d);
      folded.value[i] = tube.value[other];
      folded.lower[i] = std::max(folded.lower[i], tube.lower[other]);
      folded.upper[i] = std::min(folded.upper[i], tube.upper[other]);
    }
  }
  return folded;
}

bool can_mirror(const ExactFunction& exact) {
  return exact.has_center && exact.low < exact.center && exact.center < exact.high;
}

// ---- interpolated -------------------------------------------------------------------------------------------------

/// Anchors for consecutive intervals of 2^fraction_bits codes, inside the tube, non-decreasing, each within
/// `tolerance` of the function: the path of least squared deviation through a lattice of candidate anchors (at most 67
/// for each). `fixed_start`: the first anchor is exactly the function.
std::optional<std::vector<int64_t>> anchors_inside(const Tube& tube, int fraction_bits, int guard_bits,
                                                   int64_t tolerance, bool fixed_start) {
  constexpr int64_t kUnreached = INT64_MAX;
  const int u_bits = fraction_bits + guard_bits;  // the interpolated sum is in units of 2^-u_bits
  const int64_t length = int64_t{1} << fraction_bits;
  const size_t intervals = (tube.value.size() - 1) >> fraction_bits;
  const int64_t step = int64_t{1} << std::max(0, guard_bits - 4);
  const int64_t radius = ceil_scale(tolerance, kFineBits, guard_bits) / step + 1;
  const size_t width = static_cast<size_t>(2 * radius + 1);

  std::vector<int64_t> lower(tube.lower.size()), upper(tube.upper.size());
  for (size_t i = 0; i < lower.size(); ++i) {
    lower[i] = ceil_scale(tube.lower[i], kFineBits, u_bits);
    upper[i] = floor_scale(tube.upper[i], kFineBits, u_bits);
  }
  const auto first_candidate = [&](size_t anchor) {
    return floor_scale(tube.value[anchor << fraction_bits] + kOne / 2 / (int64_t{1} << guard_bits), kFineBits,
                       guard_bits) -
           radius * step;
  };
  const auto allowed = [&](size_t anchor, int64_t a) {
    const size_t i = anchor << fraction_bits;
    return lower[i] <= a * length && a * length <= upper[i];
  };

  std::vector<int16_t> previous((intervals + 1) * width, -1);
  std::vector<int64_t> cost(width, kUnreached), next_cost(width);
  for (size_t j = 0; j < width; ++j) {
    const int64_t offset = static_cast<int64_t>(j) - radius;
    const int64_t a = first_candidate(0) + static_cast<int64_t>(j) * step;
    if (fixed_start ? offset == 0 : allowed(0, a)) cost[j] = offset * offset;
  }
  for (size_t i = 0; i < intervals; ++i) {
    std::fill(next_cost.begin(), next_cost.end(), kUnreached);
    const int64_t base = first_candidate(i);
    const int64_t next_base = first_candidate(i + 1);
    const int64_t* low = &lower[i << fraction_bits];
    const int64_t* high = &upper[i << fraction_bits];
    bool reached = false;
    for (size_t j = 0; j < width; ++j) {
      if (cost[j] == kUnreached) continue;
      // The next anchors that keep a * (length - t) + next * t in the tube for all t. Divisions are rare: only when
      // a code narrows the range.
      const int64_t a = base + static_cast<int64_t>(j) * step;
      int64_t least = std::max(a, next_base);
      int64_t most = next_base + 2 * radius * step;
      for (int64_t t = 1; t < length && least <= most; ++t) {
        const int64_t rest = a * (length - t);
        if (rest + least * t < low[t]) least += (low[t] - rest - least * t + t - 1) / t;
        if (rest + most * t > high[t]) most -= (rest + most * t - high[t] + t - 1) / t;
      }
      if (least > most) continue;
      for (int64_t n = (least - next_base + step - 1) / step; n <= (most - next_base) / step; ++n) {
        const size_t to = static_cast<size_t>(n);
        const int64_t total = cost[j] + (n - radius) * (n - radius);
        if (total >= next_cost[to] || !allowed(i + 1, next_base + n * step)) continue;
        next_cost[to] = total;
        previous[(i + 1) * width + to] = static_cast<int16_t>(j);
        reached = true;
      }
    }
    if (!reached) return std::nullopt;
    cost.swap(next_cost);
  }
  const auto best = std::min_element(cost.begin(), cost.end());
  if (*best == kUnreached) return std::nullopt;
  std::vector<int64_t> anchors(intervals + 1);
  size_t j = static_cast<size_t>(best - cost.begin());
  for (size_t i = intervals + 1; i-- > 0;) {
    anchors[i] = first_candidate(i) + static_cast<int64_t>(j) * step;
    if (i > 0) j = static_cast<size_t>(previous[i * width + j]);
  }
  return anchors;
}

// ---- segments -----------------------------------------------------------------------------------------------------

struct Point {
  int64_t x, y;
  Point operator-(const Point& other) const { return {x - other.x, y - other.y}; }
};
/// Compares slopes y / x of differences whose x have the same sign. |x| <= 2^16, |y| < 2^46.
bool flatter(const Point& a, const Point& b) { return a.y * b.x < b.y * a.x; }
/// Above 0 when b - origin is steeper than a - origin.
int64_t cross(const Point& origin, const Point& a, const Point& b) {
  const Point p = a - origin;
  const Point q = b - origin;
  return p.x * q.y - p.y * q.x;
}

/// All lines through a growing run of vertical intervals (O'Rourke 1981): the flattest touches an upper end and then
/// a lower end, the steepest a lower end and then an upper end; two convex hulls make each step O(1) on average.
class LinesThrough {
 public:
  /// Adds [lower, upper] at the next x, or returns false when no line meets all intervals.
  bool add(int64_t x, int64_t lower, int64_t upper) {
    const Point high{x, upper};
    const Point low{x, lower};
    if (lower > upper) return false;
    if (count_ < 2) {
      if (count_ == 0) {
        flattest_[0] = high;
        steepest_[0] = low;
      } else {
        flattest_[1] = low;
        steepest_[1] = high;
      }
      upper_hull_.push_back(high);
      lower_hull_.push_back(low);
      ++count_;
      return true;
    }
    if (flatter(high - flattest_[1], flattest()) || flatter(steepest(), low - steepest_[1])) return false;
    if (flatter(high - steepest_[0], steepest())) {
      for (; lower_start_ + 1 < lower_hull_.size(); ++lower_start_)
        if (!flatter(lower_hull_[lower_start_ + 1] - high, lower_hull_[lower_start_] - high)) break;
      steepest_[0] = lower_hull_[lower_start_];
      steepest_[1] = high;
      while (upper_hull_.size() >= upper_start_ + 2 &&
             cross(upper_hull_[upper_hull_.size() - 2], upper_hull_.back(), high) <= 0)
        upper_hull_.pop_back();
      upper_hull_.push_back(high);
    }
    if (flatter(flattest(), low - flattest_[0])) {
      for (; upper_start_ + 1 < upper_hull_.size(); ++upper_start_)
        if (!flatter(upper_hull_[upper_start_] - low, upper_hull_[upper_start_ + 1] - low)) break;
      flattest_[0] = upper_hull_[upper_start_];
      flattest_[1] = low;
      while (lower_hull_.size() >= lower_start_ + 2 &&
             cross(lower_hull_[lower_hull_.size() - 2], lower_hull_.back(), low) >= 0)
        lower_hull_.pop_back();
      lower_hull_.push_back(low);
    }
    ++count_;
    return true;
  }

  int64_t count() const { return count_; }
  /// At least two intervals were added.
  Point flattest() const { return flattest_[1] - flattest_[0]; }
  Point steepest() const { return steepest_[1] - steepest_[0]; }

 private:
  int64_t count_ = 0;
  Point flattest_[2] = {}, steepest_[2] = {};
  std::vector<Point> upper_hull_, lower_hull_;
  size_t upper_start_ = 0, lower_start_ = 0;
};

/// u(x) = slope * x + intercept in units of 2^-shift, for tube indices from `start`.
struct Segment {
  int64_t start, slope, intercept;
};

/// A tube to be covered with segments. x of index i is i + first_x.
struct SegmentProblem {
  Tube tube;
  int64_t size = 0;  // indices to cover
  int64_t first_x = 0;
  bool folded = false;
  int64_t left = 0, right = 0;  // folded: indices up to these exist on each side

  /// How many table entries the segment that starts here takes: folded segments have a mirror image, but the
  /// first, which is its own.
  int64_t entries(int64_t start) const {
    if (!folded || start == 0) return 1;
    return (start <= left ? 1 : 0) + (start <= right ? 1 : 0);
  }
};

SegmentProblem segment_problem(const ExactFunction& exact, int64_t zero, int64_t tolerance, int64_t half) {
  const int64_t size = static_cast<int64_t>(exact.codes.size());
  SegmentProblem problem{make_tube(exact, tolerance, false, half), size, -zero};
  if (can_mirror(exact)) {
    problem.tube = fold(problem.tube, zero, 2 * (to_fine(exact.center) + half));
    problem.tube.lower[0] = problem.tube.upper[0] = problem.tube.value[0];
    problem.folded = true;
    problem.first_x = 0;
    problem.left = zero;
    problem.right = size - 1 - zero;
    problem.size = std::max(problem.left, problem.right) + 1;
  }
  return problem;
}

/// The slope in units of 2^-shift, rounded.
int64_t slope_code(const Point& difference, int shift) {
  const Int128 numerator = static_cast<Int128>(difference.y) * (int64_t{1} << shift);
  const Int128 denominator = static_cast<Int128>(difference.x) * kOne;
  const Int128 quotient = (2 * numerator + denominator) / (2 * denominator);  // numerator < 0 becomes 0 below
  return std::max<int64_t>(0, static_cast<int64_t>(quotient));
}

/// The segment for [start, end): the slope of the chord as far as the tube allows, then the intercept of least error;
/// not below `previous_end` (in units of 2^-shift) at its start.
Segment choose_segment(const SegmentProblem& problem, int64_t start, int64_t end, const LinesThrough& lines, int shift,
                       std::optional<int64_t> previous_end) {
  const Tube& tube = problem.tube;
  Segment segment{start, 0, 0};
  if (lines.count() >= 2) {
    Point chord{end - 1 - start, tube.value[static_cast<size_t>(end - 1)] - tube.value[static_cast<size_t>(start)]};
    if (flatter(chord, lines.flattest())) chord = lines.flattest();
    if (flatter(lines.steepest(), chord)) chord = lines.steepest();
    segment.slope = slope_code(chord, shift);
  }
  int64_t least = -INT64_MAX, most = INT64_MAX;  // intercepts inside the tube
  int64_t value_min = INT64_MAX, value_max = -INT64_MAX;
  for (int64_t i = start; i < end; ++i) {
    const size_t k = static_cast<size_t>(i);
    const int64_t product = segment.slope * (i + problem.first_x);
    least = std::max(least, ceil_scale(tube.lower[k], kFineBits, shift) - product);
    most = std::min(most, floor_scale(tube.upper[k], kFineBits, shift) - product);
    const int64_t value = floor_scale(tube.value[k], kFineBits, shift) - product;
    value_min = std::min(value_min, value);
    value_max = std::max(value_max, value);
  }
  // The rounded slope may miss a tight tube by a fraction of 2^-shift * length: then the middle.
  segment.intercept = least <= most ? clamp_s64((value_min + value_max) >> 1, least, most) : (least + most) >> 1;
  if (problem.folded && start == 0) segment.intercept = floor_scale(tube.value[0], kFineBits, shift);
  if (previous_end)
    segment.intercept = std::max(segment.intercept, *previous_end - segment.slope * (start + problem.first_x));
  return segment;
}

/// Covers the tube from the first index on, each segment as long as possible, with at most `limit` table entries and
/// slopes in s32.
std::optional<std::vector<Segment>> cover(const SegmentProblem& problem, int limit, int shift) {
  if (problem.tube.empty_somewhere()) return std::nullopt;
  std::vector<Segment> segments;
  std::optional<int64_t> previous_end;
  int64_t entries = 0;
  for (int64_t start = 0; start < problem.size;) {
    entries += problem.entries(start);
    if (entries > limit) return std::nullopt;
    LinesThrough lines;
    int64_t end = start;
    for (; end < problem.size; ++end) {
      const size_t i = static_cast<size_t>(end);
      int64_t lower = problem.tube.lower[i];
      if (end == start && previous_end)
        lower = std::max(lower, std::min(ceil_scale(*previous_end, shift, kFineBits), problem.tube.upper[i]));
      if (!lines.add(end + problem.first_x, lower, problem.tube.upper[i])) break;
    }
    const Segment segment = choose_segment(problem, start, end, lines, shift, previous_end);
    if (segment.slope > INT32_MAX) return std::nullopt;
    previous_end = segment.slope * (end - 1 + problem.first_x) + segment.intercept;
    segments.push_back(segment);
    start = end;
  }
  return segments;
}

/// The finest shift at which no step between neighbouring codes overflows s32 as a slope. At least 11: a step is at
/// most 2^18 LSB, or 2^19 from bound to bound.
int safe_shift(const ExactFunction& exact) {
  int64_t step = 1;
  for (size_t i = 1; i < exact.values.size(); ++i) step = std::max(step, exact.values[i] - exact.values[i - 1]);
  int shift = 31;
  while (slope_code({1, step + 1}, shift) > INT32_MAX) --shift;
  return shift;
}

}  // namespace

bool fit_anchors(const ExactFunction& exact, int interval_bits, ActivationTable* table) {
  const int fraction_bits = table->input.bits - interval_bits;
  const int64_t length = int64_t{1} << fraction_bits;
  const int64_t half = half_of(table->rounding);
  const int64_t zero = table->input.zero_point - table->input.min();
  const bool mirror = can_mirror(exact) && zero % length == 0 && (half == 0 || table->guard_bits >= 1);
  const int64_t twice_center = 2 * (to_fine(exact.center) + half);
  const auto inside = [&](int64_t tolerance) {
    Tube tube = make_tube(exact, tolerance, true, half);
    if (mirror) tube = fold(tube, zero, twice_center);
    return anchors_inside(tube, fraction_bits, table->guard_bits, tolerance, mirror);
  };

  // A rounded value within 1 of the exact code is a value within 2 of the function: feasible there or nowhere.
  auto anchors = inside(2 * kOne);
  if (!anchors) return false;
  for (int64_t bad = 0, good = 32; good - bad > 1;) {  // sixteenths of an LSB
    const int64_t middle = (good + bad) / 2;
    if (auto closer = inside(middle * (kOne / 16))) {
      anchors = std::move(closer);
      good = middle;
    } else {
      bad = middle;
    }
  }
  if (mirror) {
    const int64_t size = int64_t{1} << interval_bits;
    const int64_t middle = zero >> fraction_bits;
    const int64_t twice = floor_scale(twice_center, kFineBits, table->guard_bits);
    std::vector<int64_t> both(static_cast<size_t>(size) + 1);
    for (int64_t i = 0; i <= size; ++i) {
      const int64_t distance = i < middle ? middle - i : i - middle;
      const int64_t anchor = (*anchors)[static_cast<size_t>(distance)];
      both[static_cast<size_t>(i)] = i < middle ? twice - anchor : anchor;
    }
    anchors = std::move(both);
  }
  table->origin = table->input.min();
  table->interval_bits = interval_bits;
  table->fraction_bits = fraction_bits;
  table->anchors = *std::move(anchors);
  return true;
}

void fit_segments(const ExactFunction& exact, int segments, ActivationTable* table) {
  const int64_t half = half_of(table->rounding);
  const int64_t zero = table->input.zero_point - table->input.min();
  int shift = safe_shift(exact);
  int64_t bad = -1;
  int64_t good = to_fine(exact.high - exact.low) + kOne;  // the tube is open on both sides: one segment will do
  auto best = cover(segment_problem(exact, zero, good, half), segments, shift);
  while (good - bad > kOne / 256) {
    const int64_t tolerance = bad + (good - bad) / 2;
    if (auto found = cover(segment_problem(exact, zero, tolerance, half), segments, shift)) {
      best = std::move(found);
      good = tolerance;
    } else {
      bad = tolerance;
    }
  }
  const SegmentProblem problem = segment_problem(exact, zero, good, half);
  for (int finer = 31; finer > shift; --finer) {
    if (auto found = cover(problem, segments, finer)) {
      best = std::move(found);
      shift = finer;
    }
  }

  const auto append = [&](int64_t first_code, int64_t slope, int64_t intercept) {
    if (!table->slopes.empty()) table->thresholds.push_back(static_cast<int32_t>(first_code));
    table->slopes.push_back(static_cast<int32_t>(slope));
    table->intercepts.push_back(intercept);
  };
  const int64_t z = table->input.zero_point;
  if (problem.folded) {  // the mirror images, outermost first
    const int64_t twice_center = 2 * floor_scale(to_fine(exact.center) + half, kFineBits, shift);
    for (size_t i = best->size() - 1; i > 0; --i) {
      const Segment& segment = (*best)[i];
      if (segment.start > problem.left) continue;
      const int64_t outer = i + 1 < best->size() ? (*best)[i + 1].start : problem.size;
      append(z - outer + 1, segment.slope, twice_center - segment.intercept);
    }
  }
  for (size_t i = 0; i < best->size(); ++i) {
    const Segment& segment = (*best)[i];
    if (!problem.folded) {
      append(table->input.min() + segment.start, segment.slope, segment.intercept);
    } else if (i == 0) {
      append(best->size() > 1 ? z - (*best)[1].start + 1 : z, segment.slope, segment.intercept);
    } else if (segment.start <= problem.right) {
      append(z + segment.start, segment.slope, segment.intercept);
    }
  }
  // Unused entries repeat the last segment.
  while (static_cast<int>(table->slopes.size()) < segments)
    append(table->input.max(), table->slopes.back(), table->intercepts.back());
  table->shift = shift;
}

}  // namespace isobit
