// SPDX-License-Identifier: Apache-2.0
// The fitter of FP16 tables. Three stages, all deterministic:
//
// 1. Cut points. Around the function lies a tube, for every float16 input the real values within `e` units in the last
//    place of the result. With the position arithmetic of the model done for real, an input in step j demands
//    low <= (1 - a) T[j] + a T[j+1] <= high, a linear constraint on two neighbours, so the values are a chain: from the
//    feasible interval of T[j] follows that of T[j+1], exactly (a convex polygon clipped by half planes). Intervals
//    are taken from the left, each as long as the tube allows; the narrowest tube for which they reach the right end is
//    found by bisection.
// 2. Values inside the feasible chain, from the right end back, next to the function where there is a choice.
// 3. Polishing: candidates around every value, and the path through them with the least cost (dynamic programming; two
//    neighbours share all inputs between them), judged by the table's own arithmetic on every input. float16 values are
//    chosen here, from the float16 numbers near the function.
//
// For the mean relative error there are other cut points: dynamic programming over candidates for them, with the
// function itself as values and an expected error in the place of the rounded one. Stage 3 follows, with the true cost.
// It also begins from the result of the three stages, and the best of all is taken: the mean is never worse than that
// of the other goal.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/float_mode.h"
#include "core/half.h"
#include "isobit/fp16_table.h"
#include "table/fp16/exact.h"
#include "table/fp16/fit.h"
#include "table/fp16/reference.h"

namespace isobit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLn2 = static_cast<double>(kLn2Part1);  // as fp16_finish has it
/// Stands for infinite results: the next number after 65504, if there were one.
constexpr double kBeyond = 65536.0;
/// Smaller results have the absolute precision of this one; errors are relative to it then.
constexpr double kLeastNormal = 0x1p-14;
/// A tube this narrow is as good as none: one result in a hundred may be rounded to the other side.
constexpr double kNarrowest = 0x1p-7;
constexpr double kWidest = 0x1p44;
/// Relative room in the tube for the float32 roundings of two values, their difference and the multiply-add.
constexpr double kFloatRoom = 0x1p-21;

double value_of(uint16_t code) {
  if (code == kFp16Infinity) return kBeyond;
  if (code == (0x8000u | kFp16Infinity)) return -kBeyond;
  return static_cast<double>(f16_to_f32(code));
}
bool is_nan(uint16_t code) { return (code & 0x7fffu) > kFp16Infinity; }
bool is_infinite(uint16_t code) { return (code & 0x7fffu) == kFp16Infinity; }
double unit_of(uint16_t code) { return std::ldexp(1.0, std::clamp((code >> 10) & 0x1f, 1, 30) - 25); }

/// Neighbours in the order of the real numbers; -0 counts as +0.
uint16_t next_up(uint16_t code) {
  if ((code & 0x7fffu) == 0) return 1;
  return static_cast<uint16_t>((code & 0x8000u) != 0 ? code - 1 : code + 1);
}
uint16_t negated(uint16_t code) { return static_cast<uint16_t>(code ^ 0x8000u); }
uint16_t next_down(uint16_t code) { return negated(next_up(negated(code))); }

struct Span {
  double low = -kInfinity;
  double high = kInfinity;
  bool empty() const { return !(low <= high); }
  void cut(const Span& other) {
    low = std::max(low, other.low);
    high = std::min(high, other.high);
  }
};

/// The real numbers that round to `code` or to one at most `reach` (0 or 1) codes away, never to an infinity if `code`
/// is finite.
Span window_of(uint16_t code, int reach) {
  Span span;
  if (code != (0x8000u | kFp16Infinity)) {
    const uint16_t lowest = reach == 0 ? code : next_down(code);
    if (is_infinite(code)) {
      span.low = 65520.0;
    } else {
      span.low = is_infinite(lowest) ? -65520.0 : (value_of(lowest) + value_of(next_down(lowest))) / 2;
    }
  }
  if (code != kFp16Infinity) {
    const uint16_t highest = reach == 0 ? code : next_up(code);
    if (is_infinite(code)) {
      span.high = -65520.0;
    } else {
      span.high = is_infinite(highest) ? 65520.0 : (value_of(highest) + value_of(next_up(highest))) / 2;
    }
  }
  return span;
}

/// A part of the fit, in the caller's eyes.
class Progress {
 public:
  explicit Progress(const Fp16FitOptions& options) : options_(options) {}
  Progress part(double from, double to) const {
    Progress inner = *this;
    inner.from_ = from_ + (to_ - from_) * from;
    inner.to_ = from_ + (to_ - from_) * to;
    return inner;
  }
  void report(double share) const {
    if (options_.progress != nullptr) options_.progress(options_.progress_context, from_ + (to_ - from_) * share);
  }

 private:
  const Fp16FitOptions& options_;
  double from_ = 0;
  double to_ = 1;
};

/// One float16 input. Real numbers are "in the table": before what fp16_finish does to them.
struct Sample {
  float argument = 0;
  Fp16Reduced reduced{};
  uint16_t truth = 0;
  double result = 0;                         // the real result
  double target = 0;                         // the same in the table
  double unit = 0;                           // one ULP of the result, in the table
  bool exact = false;                        // the real result is a float16 number
  bool at_zero = false;                      // f(0) shall be the correctly rounded one
  Span same, near;                           // what rounds to the truth, and to it or its neighbours
  Span finite;                               // what does not round to an infinity
  double unlimited = 0;                      // the target, without a limit at infinite results
  double weight = 0;                         // of an error in ULP, for the mean relative error
  double truth_value = 0, inverse_unit = 0;  // of the result, not of the table
};

/// Everything about one piece that does not depend on the table.
struct Problem {
  std::vector<Sample> samples;  // arguments ascending
  std::vector<float> cuts;      // allowed cut points, ascending
  std::vector<size_t> starts;   // samples below each
  std::vector<float> anchors;   // zeros of the function that must be cut points with the value 0
  bool narrow_cuts = false;     // cut points are float16 numbers

  Fp16Reduction reduction = Fp16Reduction::kNone;
  Fp16FitOptions options;
};

double into_table(Fp16Reduction reduction, const Fp16Reduced& reduced, double result) {
  if (reduction == Fp16Reduction::kLog) return result - static_cast<double>(reduced.addend) * kLn2;
  return result / static_cast<double>(reduced.factor);
}
Span into_table(Fp16Reduction reduction, const Fp16Reduced& reduced, const Span& span) {
  Span image{into_table(reduction, reduced, span.low), into_table(reduction, reduced, span.high)};
  if (image.low > image.high) std::swap(image.low, image.high);
  return image;
}

Problem make_problem(const Fp16Exact& exact, Fp16Reduction reduction, int32_t piece, const Fp16FitOptions& options) {
  Problem problem;
  problem.reduction = reduction;
  problem.options = options;
  const bool plain = reduction == Fp16Reduction::kNone || reduction == Fp16Reduction::kInverseSigmoid;
  for (uint32_t x = 0; x < 65536; ++x) {
    const uint16_t code = static_cast<uint16_t>(x);
    if ((code & 0x7fffu) >= kFp16Infinity || is_nan(exact.codes[code])) continue;
    Sample sample;
    sample.reduced = fp16_reduce(reduction, code);
    if (sample.reduced.done || sample.reduced.piece != piece) continue;
    sample.argument = sample.reduced.argument;
    if (plain && (sample.argument < options.low || sample.argument > options.high)) continue;
    sample.truth = exact.codes[code];
    // A float16 value is no more than 65504, so this result is out of reach whatever the table.
    if (options.half_values && plain && is_infinite(sample.truth)) continue;
    // Results far beyond float16 are decided whatever is in the table, and would only disturb the search.
    if (reduction == Fp16Reduction::kExp && (sample.reduced.factor > 0x1p30f || sample.reduced.factor < 0x1p-30f))
      continue;
    sample.result = plain ? std::clamp(exact.values[code], -kBeyond, kBeyond) : exact.values[code];
    sample.target = into_table(reduction, sample.reduced, sample.result);
    const double factor = reduction == Fp16Reduction::kLog ? 1.0 : std::abs(static_cast<double>(sample.reduced.factor));
    sample.unit = unit_of(sample.truth) / factor;
    sample.truth_value = value_of(sample.truth);
    sample.inverse_unit = 1 / unit_of(sample.truth);
    sample.exact = exact.values[code] == value_of(sample.truth) && !is_infinite(sample.truth);
    sample.at_zero = (code & 0x7fff) == 0 && sample.truth_value != 0;  // where f(0) is 0 a value is pinned
    sample.same = into_table(reduction, sample.reduced, window_of(sample.truth, 0));
    sample.near = into_table(reduction, sample.reduced, window_of(sample.truth, 1));
    sample.finite = into_table(reduction, sample.reduced, {-65520.0, 65520.0});
    sample.unlimited = plain ? std::clamp(exact.values[code], -0x1p100, 0x1p100) : sample.target;
    sample.weight = unit_of(sample.truth) / std::max(std::abs(sample.result), kLeastNormal);
    problem.samples.push_back(sample);
  }
  std::vector<Sample>& samples = problem.samples;
  std::stable_sort(samples.begin(), samples.end(),
                   [](const Sample& a, const Sample& b) { return a.argument < b.argument; });

  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].target != 0 || !samples[i].exact) continue;
    const float at = samples[i].argument;
    // The end of a stretch of zeros, unless the function just became too small for float16.
    const bool isolated = (i > 0 && std::abs(samples[i - 1].target) > 0x1p-30) ||
                          (i + 1 < samples.size() && std::abs(samples[i + 1].target) > 0x1p-30);
    if (at != 0 && !isolated) continue;
    if (problem.anchors.empty() || problem.anchors.back() != at) problem.anchors.push_back(at);
  }

  for (const Sample& sample : samples)
    if (problem.cuts.empty() || problem.cuts.back() < sample.argument) problem.cuts.push_back(sample.argument);
  problem.narrow_cuts = plain;
  constexpr size_t kMostCuts = 4096;
  if (!plain && problem.cuts.size() > kMostCuts) {
    std::vector<float> fewer;
    for (size_t i = 0; i < kMostCuts; ++i)
      fewer.push_back(problem.cuts[i * (problem.cuts.size() - 1) / (kMostCuts - 1)]);
    fewer.insert(fewer.end(), problem.anchors.begin(), problem.anchors.end());
    std::sort(fewer.begin(), fewer.end());
    fewer.erase(std::unique(fewer.begin(), fewer.end()), fewer.end());
    problem.cuts = std::move(fewer);
  }
  for (const float cut : problem.cuts)
    problem.starts.push_back(static_cast<size_t>(
        std::lower_bound(samples.begin(), samples.end(), cut,
                         [](const Sample& sample, float value) { return sample.argument < value; }) -
        samples.begin()));
  return problem;
}

// ---- Stage 1: cut points ------------------------------------------------------------------------------------------

struct Point {
  double x, y;
  double slack = 0;  // how much a constraint may be violated: the tube was made narrower by as much
};

/// Keeps the part of a convex polygon (possibly a segment or a point) with a x + b y >= c.
void clip(std::vector<Point>& polygon, std::vector<Point>& scratch, double a, double b, double c) {
  scratch.clear();
  for (size_t i = 0; i < polygon.size(); ++i) {
    const Point& p = polygon[i];
    const Point& q = polygon[i + 1 == polygon.size() ? 0 : i + 1];
    const double dp = a * p.x + b * p.y - c;
    const double dq = a * q.x + b * q.y - c;
    if (dp >= 0) scratch.push_back(p);
    if ((dp > 0 && dq < 0) || (dp < 0 && dq > 0)) {
      const double t = dp / (dp - dq);
      scratch.push_back({p.x + t * (q.x - p.x), p.y + t * (q.y - p.y)});
    }
  }
  polygon.swap(scratch);
}

/// The corners of the upper (sign 1) or lower (sign -1) hull of points that come in order of x.
void add_to_hull(std::vector<Point>& hull, Point p, double sign) {
  while (!hull.empty() && hull.back().x == p.x) {
    if (sign * (hull.back().y - p.y) >= 0) return;
    hull.pop_back();
  }
  while (hull.size() >= 2) {
    const Point& a = hull[hull.size() - 2];
    const Point& b = hull.back();
    if (sign * ((b.x - a.x) * (p.y - a.y) - (b.y - a.y) * (p.x - a.x)) < 0) break;
    hull.pop_back();
  }
  hull.push_back(p);
}

double slack_of(const Span& tube, const Sample& sample) {
  return std::max(std::min(tube.high - tube.low, sample.unit) / 256, 0x1p-44 * std::abs(sample.target));
}

/// What is known where interval i begins.
struct State {
  size_t cut = 0;  // index of the cut point
  Span span;       // feasible values there
};

class CutSearch {
 public:
  CutSearch(const Problem& problem, double e, bool use_anchors) : problem_(problem), model_(problem.options.model) {
    const std::vector<Sample>& samples = problem.samples;
    const size_t count = samples.size();
    tube_.resize(count);
    for (size_t i = 0; i < count; ++i) tube_[i] = tube_of(samples[i], e);
    tail_.resize(count + 1);
    for (size_t i = count; i-- > 0;) {
      tail_[i] = tail_[i + 1];
      tail_[i].cut(tube_[i]);
    }
    falls_.assign(count + 1, 0);
    rises_.assign(count + 1, 0);
    for (size_t i = 1; i < count; ++i) {
      const double change = samples[i].target - samples[i - 1].target;
      const double noise = 0x1p-40 * std::abs(samples[i].target);
      falls_[i] = falls_[i - 1] + (change < -noise ? 1 : 0);
      rises_[i] = rises_[i - 1] + (change > noise ? 1 : 0);
    }
    if (use_anchors)
      for (const float anchor : problem.anchors)
        anchors_.push_back(static_cast<size_t>(std::lower_bound(problem.cuts.begin(), problem.cuts.end(), anchor) -
                                               problem.cuts.begin()));
  }

  /// Cut points for every interval, or none.
  std::optional<std::vector<float>> run() {
    if (auto found = run_from(constant_head())) return found;
    State first{0, tube_.empty() ? Span{} : at_cut(0)};
    return run_from(first);
  }

  const std::vector<Span>& tube() const { return tube_; }

  /// From the feasible values at a cut point to those at a later one; `nodes`, if given, gets the spans of the steps
  /// between, the first and the last one too.
  bool advance(const State& from, size_t to, int32_t steps, Span* reached, std::vector<Span>* nodes = nullptr) {
    const std::vector<Sample>& samples = problem_.samples;
    const float c0 = problem_.cuts[from.cut];
    const float c1 = problem_.cuts[to];
    const float scale = fp16_scale(model_, steps, c0, c1);
    if (!(scale > 0) || !std::isfinite(scale)) return false;
    int32_t pinned = -1;  // the step that ends at an anchor
    for (const size_t anchor : anchors_) {
      if (anchor <= from.cut || anchor >= to) continue;
      const Fp16Position at = fp16_position(model_, problem_.cuts[anchor], c0, scale, steps);
      if (pinned >= 0 || at.fraction != 0 || at.step >= steps) return false;
      pinned = at.step - 1;
    }
    Span span = from.span;
    if (nodes != nullptr) nodes->assign(1, span);
    size_t k = problem_.starts[from.cut];
    const size_t end = problem_.starts[to];
    for (int32_t j = 0; j < steps; ++j) {
      lower_.clear();
      upper_.clear();
      const size_t begin = k;
      Span at_end;  // inputs whose position was rounded up to the end of the interval
      for (; k < end; ++k) {
        const Fp16Position at = fp16_position(model_, samples[k].argument, c0, scale, steps);
        if (at.step > j && at.step < steps) break;
        if (at.step >= steps) {
          if (j + 1 < steps) break;
          at_end.cut(tube_[k]);
          continue;
        }
        const double a = static_cast<double>(at.fraction);
        if (tube_[k].low > -kInfinity) add_to_hull(lower_, {a, tube_[k].low, slack_of(tube_[k], samples[k])}, 1);
        if (tube_[k].high < kInfinity) add_to_hull(upper_, {a, tube_[k].high, slack_of(tube_[k], samples[k])}, -1);
      }
      if (!step(begin, k, &span)) return false;
      span.cut(at_end);
      if (j == pinned) span.cut({0, 0});
      if (j + 1 == steps) span.cut(at_cut(to));
      if (span.empty()) return false;
      if (nodes != nullptr) nodes->push_back(span);
    }
    *reached = span;
    return true;
  }

  Span at_cut(size_t cut) const {
    Span span;
    for (size_t k = problem_.starts[cut];
         k < problem_.samples.size() && problem_.samples[k].argument == problem_.cuts[cut]; ++k)
      span.cut(tube_[k]);
    if (std::find(anchors_.begin(), anchors_.end(), cut) != anchors_.end()) span.cut({0, 0});
    return span;
  }
  /// Values that may stand for everything from this cut point on.
  Span tail_at(size_t cut) const { return tail_[problem_.starts[cut]]; }
  /// Values that may stand for everything up to this cut point.
  Span head_at(size_t cut) const {
    Span span = at_cut(cut);
    for (size_t k = 0; k < problem_.starts[cut]; ++k) span.cut(tube_[k]);
    return span;
  }

  /// The direction in which the function may only go between samples begin and end and their neighbours: 1, -1, or 0.
  int direction(size_t begin, size_t end) const {
    const size_t count = problem_.samples.size();
    if (count == 0) return 0;
    const size_t first = begin > 0 ? begin - 1 : 0;
    const size_t last = std::min(end, count - 1);
    if (falls_[last] == falls_[first]) return 1;
    return rises_[last] == rises_[first] ? -1 : 0;
  }

 private:
  Span tube_of(const Sample& sample, double e) const {
    const double half_width = e * sample.unit;
    Span span{sample.target - half_width, sample.target + half_width};
    if (is_infinite(sample.truth) && e < kWidest / 16) {
      span = sample.same;
    } else {
      if (e < kWidest / 16) span.cut(sample.finite);
      if (e <= 2) span.cut(sample.near);
      if (e <= 1 && sample.exact) span.cut(sample.same);
    }
    const double room = kFloatRoom * std::abs(sample.target) + slack_of(span, sample);
    if (span.high - span.low > 4 * room) {
      span.low += room;
      span.high -= room;
    }
    return span;
  }

  State constant_head() const {
    State state{0, tube_.empty() ? Span{} : at_cut(0)};
    Span head;
    for (size_t cut = 0; cut < problem_.cuts.size(); ++cut) {
      head.cut(at_cut(cut));
      const size_t end = cut + 1 < problem_.cuts.size() ? problem_.starts[cut + 1] : problem_.samples.size();
      if (head.empty()) break;
      state = {cut, head};
      for (size_t k = problem_.starts[cut]; k < end; ++k) head.cut(tube_[k]);
      if (head.empty()) break;
    }
    return state;
  }

  std::optional<std::vector<float>> run_from(const State& state) {
    std::vector<State> path(1, state);
    if (!complete(&path, 0, true)) return std::nullopt;
    std::vector<float> result(path.size());
    std::transform(path.begin(), path.end(), result.begin(), [&](const State& at) { return problem_.cuts[at.cut]; });
    result.resize(problem_.options.steps.size() + 1, result.back());
    return result;
  }

  bool ends(const State& state) const {
    if (!anchors_.empty() && anchors_.back() > state.cut) return false;
    Span rest = state.span;
    rest.cut(tail_at(state.cut));
    return !rest.empty();
  }

  /// Extends the path by interval i and those after it to the right end.
  bool complete(std::vector<State>* path, size_t i, bool may_straddle) {
    const std::vector<int32_t>& steps = problem_.options.steps;
    const State state = path->back();
    const size_t last = problem_.cuts.size() - 1;
    if (state.cut == last || i == steps.size() || (i > 0 && ends(state))) return ends(state);
    const auto stop = std::upper_bound(anchors_.begin(), anchors_.end(), state.cut);
    const size_t limit = stop == anchors_.end() ? last : *stop;
    std::optional<State> next = longest(state, limit, steps[i]);
    if (!next) return false;
    if (i + 1 < steps.size() && next->cut != limit) next = with_room(state, *next, limit, steps[i], steps[i + 1]);
    if (i + 1 == steps.size()) next = finish(state, *next, steps[i]);
    if (!next) return false;
    const size_t kept = path->size();
    if (may_straddle && stop != anchors_.end() && problem_.cuts[limit] == 0 && i + 1 < steps.size() &&
        straddle(path, i, *next))
      return true;
    path->resize(kept);
    path->push_back(*next);
    return complete(path, i + 1, may_straddle);
  }

  /// The end of a longest interval may leave so little choice for its value that the next interval gets nowhere. Then a
  /// slightly shorter one is better.
  State with_room(const State& from, const State& farthest, size_t limit, int32_t steps, int32_t next_steps) {
    const auto reach = [&](const State& state) {
      const auto next = longest(state, limit, next_steps);
      return next ? next->cut : state.cut;
    };
    State best = farthest;
    size_t best_reach = reach(farthest);
    const size_t free_reach = reach(State{farthest.cut, at_cut(farthest.cut)});
    for (size_t back = 1; back < 200 && farthest.cut - back > from.cut && back < farthest.cut; back += 1 + back / 3) {
      if (best_reach >= limit || best_reach * 64 >= free_reach * 63) break;
      const auto shorter = try_to(from, farthest.cut - back, steps);
      if (!shorter) continue;
      const size_t its_reach = reach(*shorter);
      if (its_reach > best_reach) {
        best = *shorter;
        best_reach = its_reach;
      }
    }
    return best;
  }

  /// An interval with 0 at one of its inner nodes: where the function is bent at 0, the steps next to 0 must be short
  /// for the sake of the relative error, and one interval may serve both sides. Interval i ends at -step * left, and
  /// interval i + 1 goes from there to step * (count - left). Steps have 6 bits, so that these are float16 numbers.
  bool straddle(std::vector<State>* path, size_t i, const State& reach) {
    const int32_t count = problem_.options.steps[i + 1];
    const State state = path->back();
    const size_t kept = path->size();
    for (int32_t eighth = 1; eighth < 8; ++eighth) {
      const int32_t left = count * eighth / 8;
      if (left < 1 || left * 8 != count * eighth) continue;
      const double nearest = -static_cast<double>(problem_.cuts[reach.cut]) / left;
      const double farthest = -static_cast<double>(problem_.cuts[state.cut]) / left;
      const auto at = [&](int32_t step) { return std::ldexp(32 + (step & 31), (step >> 5) - 24); };
      const auto around = [&](int32_t step, const State* start) -> std::optional<State> {
        const size_t begin = cut_index(-at(step) * left);
        const size_t end = cut_index(at(step) * (count - left));
        if (begin == problem_.cuts.size() || end == problem_.cuts.size()) return std::nullopt;
        return try_to(start != nullptr ? *start : State{begin, at_cut(begin)}, end, count);
      };
      int32_t& widest = widest_[{count, left}];
      if (widest == 0) {
        int32_t high = 32 * 24;
        while (high - widest > 1) {
          const int32_t middle = (widest + high) / 2;
          (around(middle, nullptr) ? widest : high) = middle;
        }
        for (int32_t more = 1; more <= 3; ++more)
          if (around(high + more, nullptr)) widest = high + more;
      }
      for (int32_t step = widest; step > widest - 6 && step > 0 && at(step) >= nearest; --step) {
        if (at(step) >= farthest) continue;
        path->resize(kept);
        const size_t begin = cut_index(-at(step) * left);
        if (begin == problem_.cuts.size()) continue;
        const auto middle = try_to(state, begin, problem_.options.steps[i]);
        if (!middle) continue;
        const auto after = around(step, &*middle);
        if (!after) continue;
        path->push_back(*middle);
        path->push_back(*after);
        if (complete(path, i + 2, false)) return true;
      }
    }
    path->resize(kept);
    return false;
  }

  size_t cut_index(double where) const {
    const auto found = std::lower_bound(problem_.cuts.begin(), problem_.cuts.end(), where,
                                        [](float cut, double value) { return static_cast<double>(cut) < value; });
    if (found == problem_.cuts.end() || static_cast<double>(*found) != where) return problem_.cuts.size();
    return static_cast<size_t>(found - problem_.cuts.begin());
  }

  std::optional<State> try_to(const State& from, size_t to, int32_t steps) {
    State state{to, {}};
    if (!advance(from, to, steps, &state.span)) return std::nullopt;
    return state;
  }

  /// Bisection, then a look beyond its result, for whether a step grid fits is not quite monotone in its length.
  std::optional<State> longest(const State& from, size_t limit, int32_t steps) {
    if (auto all = try_to(from, limit, steps)) return all;
    std::optional<State> best;
    size_t good = from.cut;
    size_t bad = limit;
    // The shortest interval may be too short for a model with float16 scales: begin with a longer one.
    for (size_t width = 1; from.cut + width < limit && !best; width *= 2)
      if (auto next = try_to(from, from.cut + width, steps)) {
        best = next;
        good = next->cut;
      }
    if (!best) return best;
    while (bad - good > 1) {
      const size_t middle = good + (bad - good) / 2;
      if (auto next = try_to(from, middle, steps)) {
        best = next;
        good = middle;
      } else {
        bad = middle;
      }
    }
    for (size_t beyond = 2; beyond <= 256 && good + beyond < limit; beyond += 1 + beyond / 4)
      if (auto next = try_to(from, good + beyond, steps)) {
        best = next;
        good += beyond;
        beyond = 1;
      }
    return best;
  }

  /// The last interval must end where a constant can go on.
  std::optional<State> finish(const State& from, const State& longest_state, int32_t steps) {
    if (ends(longest_state)) return longest_state;
    for (size_t cut = longest_state.cut; cut > from.cut && longest_state.cut - cut < 64; --cut)
      if (auto state = try_to(from, cut, steps); state && ends(*state)) return state;
    return std::nullopt;
  }

  /// One step: `span` holds the values at its left end, and those at the right end afterwards.
  bool step(size_t begin, size_t end, Span* span) {
    const std::vector<Sample>& samples = problem_.samples;
    // A box for the right end, no larger than needed, because its corners limit the precision.
    double size = std::max(std::abs(span->low), std::abs(span->high));
    if (!std::isfinite(size)) size = 0;
    const size_t first = begin > 0 ? begin - 1 : 0;
    for (size_t k :
         {first, std::min(begin, samples.size() - 1), end > 0 ? end - 1 : 0, std::min(end, samples.size() - 1)})
      size = std::max(size, std::abs(samples[k].target) + samples[k].unit);
    for (const Point& p : lower_) size = std::max(size, std::abs(p.y));
    for (const Point& p : upper_) size = std::max(size, std::abs(p.y));
    size *= 8;
    const double low = std::max(span->low, -size);
    const double high = std::min(span->high, size);
    polygon_ = {{low, -size}, {high, -size}, {high, size}, {low, size}};
    if (!cut_polygon(lower_, 1) || !cut_polygon(upper_, -1)) return false;
    const int way = direction(begin, end);
    if (way != 0) clip(polygon_, scratch_, -way, way, 0);
    if (polygon_.empty()) return false;
    *span = {kInfinity, -kInfinity};
    for (const Point& p : polygon_) {
      span->low = std::min(span->low, p.y);
      span->high = std::max(span->high, p.y);
    }
    return true;
  }

  /// Clips the polygon by the constraints of a hull, as far as any corner still violates one: a hull has up to
  /// thousands of corners, and few of them matter. Along a hull the violation by one line has a single peak.
  bool cut_polygon(const std::vector<Point>& hull, double sign) {
    if (hull.empty()) return true;
    double slack = kInfinity;
    double size = 0;
    for (const Point& p : hull) slack = std::min(slack, p.slack);
    for (const Point& p : polygon_) size = std::max({size, std::abs(p.x), std::abs(p.y)});
    slack = std::max(slack, size * 0x1p-46);
    bool changed = true;
    for (int round = 0; changed; ++round) {
      if (round == 200) {  // rounding errors must not keep it busy for ever
        for (const Point& p : hull) clip(polygon_, scratch_, sign * (1 - p.x), sign * p.x, sign * p.y);
        return !polygon_.empty();
      }
      changed = false;
      for (size_t corner = 0; corner < polygon_.size(); ++corner) {
        const Point line = polygon_[corner];
        const double slope = line.y - line.x;
        size_t low = 0;
        size_t high = hull.size() - 1;
        while (low < high) {
          const size_t middle = (low + high) / 2;
          const Point& p = hull[middle];
          const Point& q = hull[middle + 1];
          if (sign * (q.y - p.y) > sign * slope * (q.x - p.x)) {
            low = middle + 1;
          } else {
            high = middle;
          }
        }
        const Point& p = hull[low];
        if (sign * (p.y - (line.x + slope * p.x)) <= slack) continue;
        clip(polygon_, scratch_, sign * (1 - p.x), sign * p.x, sign * p.y);
        if (polygon_.empty()) return false;
        changed = true;
        break;
      }
    }
    return true;
  }

  const Problem& problem_;
  Fp16Model model_;
  std::vector<Span> tube_, tail_;
  std::vector<int32_t> falls_, rises_;
  std::vector<size_t> anchors_;
  std::map<std::pair<int32_t, int32_t>, int32_t> widest_;  // step around 0, by count and left part
  std::vector<Point> lower_, upper_, polygon_, scratch_;
};

struct Cuts {
  std::vector<float> points;
  double e = 0;
  bool anchored = true;
};

/// The narrowest tube that the greedy search can cover.
std::optional<Cuts> find_cuts(const Problem& problem, const Progress& progress) {
  int attempts = 0;
  for (const bool anchored : {true, false}) {
    std::optional<Cuts> best;
    const auto attempt = [&](double e) {
      CutSearch search(problem, e, anchored);
      auto points = search.run();
      if (points) best = Cuts{*points, e, anchored};
      return points.has_value();
    };
    double e = kNarrowest;
    while (e <= kWidest && !attempt(e)) {
      e *= e < 64 ? 2 : 64;
      ++attempts;  // how many there will be is not known
      progress.report(0.5 * attempts / (attempts + 4));
    }
    if (!best) continue;
    if (e == kNarrowest) return best;
    // No logarithms, for the bytes must not depend on a libm.
    double high = e;
    double low = e / (e > 64 ? 64 : 2);
    for (int i = 0; i < 8; ++i) {
      progress.report(0.5 + i / 16.0);
      const double middle = (low + high) / 2;
      (attempt(middle) ? high : low) = middle;
    }
    return best;
  }
  return std::nullopt;
}

// ---- Stages 2 and 3: values ---------------------------------------------------------------------------------------

/// A table's values as a chain: nodes, and steps between neighbouring ones. Intervals of width 0 have no steps.
struct Chain {
  struct Step {
    size_t begin, end;  // samples
    int way;            // monotone: 1, -1 or 0
  };
  std::vector<Step> steps;      // step k lies between nodes k and k + 1
  std::vector<double> where;    // argument at each node
  std::vector<size_t> node_of;  // table entry -> node
  std::vector<float> fraction;  // of each sample
  std::vector<uint8_t> at_end;  // sample takes the right node alone
  size_t head_end = 0;          // samples below take node 0
  size_t tail_begin = 0;        // samples from here on take the last node
  std::vector<uint8_t> pinned;  // nodes whose value must be 0
};

Chain make_chain(const Problem& problem, const CutSearch& search, const Fp16Pieces& pieces, bool anchored) {
  const std::vector<Sample>& samples = problem.samples;
  Chain chain;
  chain.fraction.assign(samples.size(), 0.0f);
  chain.at_end.assign(samples.size(), 0);
  size_t k = 0;
  while (k < samples.size() && samples[k].argument <= pieces.cut_points.front()) ++k;
  chain.head_end = k;
  chain.where.push_back(pieces.cut_points.front());
  chain.node_of.push_back(0);
  for (size_t i = 0; i < pieces.steps.size(); ++i) {
    const float c0 = pieces.cut_points[i];
    const float c1 = pieces.cut_points[i + 1];
    const int32_t count = pieces.steps[i];
    for (int32_t j = 0; j < count; ++j) {
      if (c0 < c1) {
        const size_t begin = k;
        for (; k < samples.size() && samples[k].argument < c1; ++k) {
          const Fp16Position at =
              fp16_position(problem.options.model, samples[k].argument, c0, pieces.scales[i], count);
          if (at.step > j && j + 1 < count) break;
          chain.fraction[k] = at.fraction;
          chain.at_end[k] = at.step >= count ? 1 : 0;
        }
        chain.steps.push_back({begin, k, search.direction(begin, k)});
        chain.where.push_back(static_cast<double>(c0) +
                              (static_cast<double>(c1) - static_cast<double>(c0)) * (j + 1) / count);
      }
      chain.node_of.push_back(chain.steps.size());
    }
  }
  chain.tail_begin = k;
  chain.pinned.assign(chain.where.size(), 0);
  for (size_t node = 0; anchored && node < chain.where.size(); ++node)
    for (const float anchor : problem.anchors)
      if (chain.where[node] == static_cast<double>(anchor)) chain.pinned[node] = 1;
  return chain;
}

/// The function between the two inputs next to `at`: `member` of them, and the smaller unit.
double interpolate(const std::vector<Sample>& samples, double at, double Sample::*member, double* unit = nullptr) {
  const auto after = std::lower_bound(samples.begin(), samples.end(), at, [](const Sample& sample, double x) {
    return static_cast<double>(sample.argument) < x;
  });
  if (after == samples.end() || after == samples.begin()) {
    const Sample& only = after == samples.end() ? samples.back() : samples.front();
    if (unit != nullptr) *unit = only.unit;
    return only.*member;
  }
  const Sample& left = *(after - 1);
  const Sample& right = *after;
  if (unit != nullptr) *unit = std::min(left.unit, right.unit);
  const double x0 = static_cast<double>(left.argument);
  const double x1 = static_cast<double>(right.argument);
  const double t = (at - x0) / (x1 - x0);
  return t >= 1 ? right.*member : left.*member + t * (right.*member - left.*member);
}

class ValueSearch {
 public:
  ValueSearch(const Problem& problem, const Chain& chain, Fp16Goal goal)
      : problem_(problem), chain_(chain), relative_(goal == Fp16Goal::kMeanRelative), model_(problem.options.model) {
    const size_t nodes = chain.where.size();
    unit_.resize(nodes);
    target_.resize(nodes);
    for (size_t node = 0; node < nodes; ++node)
      target_[node] = interpolate(problem.samples, chain.where[node], &Sample::target, &unit_[node]);
  }

  /// Stage 2. `spans` are the feasible values of each node in the tube.
  std::vector<float> inside(const std::vector<Span>& tube, const std::vector<Span>& spans) const {
    std::vector<float> values(spans.size());
    double right = choose(spans.back(), target_.back());
    values.back() = static_cast<float>(right);
    for (size_t s = chain_.steps.size(); s-- > 0;) {
      const Chain::Step& step = chain_.steps[s];
      Span span = spans[s];
      for (size_t k = step.begin; k < step.end; ++k) {
        const double a = static_cast<double>(chain_.fraction[k]);
        if (chain_.at_end[k] != 0) continue;
        const double slack = slack_of(tube[k], problem_.samples[k]);
        span.cut({(tube[k].low - slack - a * right) / (1 - a), (tube[k].high + slack - a * right) / (1 - a)});
      }
      if (step.way > 0) span.high = std::min(span.high, right);
      if (step.way < 0) span.low = std::max(span.low, right);
      right = choose(span.empty() ? spans[s] : span, target_[s]);
      values[s] = static_cast<float>(right);
    }
    return values;
  }

  /// Stage 3. `error` is about what the values leave, in ULP.
  std::vector<float> polish(std::vector<float> values, double error, const Progress& progress) const {
    const int rounds = problem_.options.half_values ? 2 : 4;
    double scale = std::clamp(error, 0.125, relative_ ? 64.0 : 1.0) / 8;
    for (int round = 0; round < rounds; ++round, scale /= 2.5) {
      const Progress part =
          progress.part(round / static_cast<double>(rounds), (round + 1) / static_cast<double>(rounds));
      values = problem_.options.half_values ? improve(values, 4, 0, part) : improve(values, 5, scale, part);
    }
    return values;
  }

  /// Before the rounding to float16, of results that are finite.
  double mean_ulp(const std::vector<float>& values) const {
    double sum = 0;
    double count = 1;
    for (size_t s = 0; s < chain_.steps.size(); ++s)
      for (size_t k = chain_.steps[s].begin; k < chain_.steps[s].end; ++k) {
        const Sample& sample = problem_.samples[k];
        if (is_infinite(sample.truth)) continue;
        const float y = chain_.at_end[k] != 0 ? values[s + 1]
                                              : fp16_interpolate(model_, chain_.fraction[k], values[s], values[s + 1]);
        sum += std::abs(static_cast<double>(y) - sample.target) / sample.unit;
        ++count;
      }
    return sum / count;
  }

  double cost(const std::vector<float>& values) const {
    double sum = end_cost(values.front(), 0, chain_.head_end) +
                 end_cost(values.back(), chain_.tail_begin, problem_.samples.size());
    for (size_t s = 0; s < chain_.steps.size(); ++s) sum += step_cost(s, values[s], values[s + 1], kInfinity);
    return sum;
  }

 private:
  static double choose(const Span& span, double wanted) {
    if (span.empty()) return (span.low + span.high) / 2;
    return std::clamp(wanted, span.low, span.high);
  }

  double sample_cost(const Sample& sample, float value) const {
    // Ties, and the multiply-add of log, are left to the real arithmetic.
    const double y = static_cast<double>(value);
    if (!relative_ && problem_.reduction != Fp16Reduction::kLog && y > sample.same.low && y < sample.same.high)
      return 0;
    const uint16_t code = fp16_finish(problem_.reduction, sample.reduced, value);
    if (is_infinite(code) != is_infinite(sample.truth)) return relative_ ? 1e9 : 1e15;
    const double got = value_of(code);
    if (relative_) {
      if (is_infinite(code)) return 0;
      return std::abs(got - sample.result) * sample.inverse_unit * sample.weight;
    }
    if (code == sample.truth) return 0;
    if (sample.at_zero && got != sample.truth_value) return 1e12;
    const double error = std::abs(got - sample.truth_value) * sample.inverse_unit;
    if (error > 1) return 1e3 * error * error * error * error;
    return sample.exact && error > 0 ? 100.0 : error;
  }

  double end_cost(float value, size_t begin, size_t end) const {
    double sum = 0;
    for (size_t k = begin; k < end; ++k) sum += sample_cost(problem_.samples[k], value);
    return sum;
  }

  /// Gives up, with something larger, beyond `limit`.
  double step_cost(size_t s, float left, float right, double limit) const {
    const Chain::Step& step = chain_.steps[s];
    double sum = 0;
    for (size_t k = step.begin; k < step.end; ++k) {
      const float value = chain_.at_end[k] != 0 ? right : fp16_interpolate(model_, chain_.fraction[k], left, right);
      sum += sample_cost(problem_.samples[k], value);
      if (sum > limit) return sum;
    }
    return sum;
  }

  std::vector<float> candidates(size_t node, float center, int reach, double scale) const {
    std::vector<float> list(1, center);
    if (chain_.pinned[node] != 0) return {0.0f};
    if (problem_.options.half_values) {
      uint16_t code = f64_to_f16(std::clamp(static_cast<double>(center), -65504.0, 65504.0));
      for (int i = 0; i < reach; ++i)
        if (!is_infinite(next_down(code))) code = next_down(code);
      list.clear();
      for (int i = 0; i <= 2 * reach && !is_infinite(code); ++i, code = next_up(code)) list.push_back(f16_to_f32(code));
      return list;
    }
    for (int i = 1; i <= reach; ++i)
      for (const int side : {-1, 1})
        list.push_back(static_cast<float>(static_cast<double>(center) + side * i * scale * unit_[node]));
    return list;
  }

  std::vector<float> improve(const std::vector<float>& values, int reach, double scale,
                             const Progress& progress) const {
    const size_t nodes = values.size();
    std::vector<std::vector<float>> lists(nodes);
    std::vector<std::vector<uint32_t>> from(nodes);
    for (size_t node = 0; node < nodes; ++node) lists[node] = candidates(node, values[node], reach, scale);
    std::vector<double> best(lists[0].size());
    for (size_t b = 0; b < best.size(); ++b) best[b] = end_cost(lists[0][b], 0, chain_.head_end);
    for (size_t s = 0; s < chain_.steps.size(); ++s) {
      progress.report(static_cast<double>(chain_.steps[s].begin) / static_cast<double>(problem_.samples.size()));
      const std::vector<float>& left = lists[s];
      const std::vector<float>& right = lists[s + 1];
      std::vector<double> next(right.size(), kInfinity);
      from[s + 1].assign(right.size(), 0);
      for (size_t b = 0; b < right.size(); ++b)
        for (size_t a = 0; a < left.size(); ++a) {
          const int way = chain_.steps[s].way;
          double total = best[a];
          if ((way > 0 && right[b] < left[a]) || (way < 0 && right[b] > left[a])) total += 1e18;
          if (!(total < next[b])) continue;
          total += step_cost(s, left[a], right[b], next[b] - total);
          if (total < next[b]) {
            next[b] = total;
            from[s + 1][b] = static_cast<uint32_t>(a);
          }
        }
      best.swap(next);
    }
    for (size_t b = 0; b < best.size(); ++b)
      best[b] += end_cost(lists.back()[b], chain_.tail_begin, problem_.samples.size());
    size_t at = static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin());
    std::vector<float> result(nodes);
    for (size_t node = nodes; node-- > 0;) {
      result[node] = lists[node][at];
      if (node > 0) at = from[node][at];
    }
    return result;
  }

  const Problem& problem_;
  const Chain& chain_;
  bool relative_;
  Fp16Model model_;
  std::vector<double> unit_, target_;
};

Fp16Pieces make_pieces(const Problem& problem, const std::vector<float>& cut_points) {
  Fp16Pieces pieces;
  pieces.steps = problem.options.steps;
  pieces.cut_points = cut_points;
  set_scales(pieces, problem.options.model);
  return pieces;
}

// ---- The mean relative error ----------------------------------------------------------------------------------------

/// Cut points by dynamic programming: positions along the table, candidates for each, and the cost of an interval
/// between two candidates with the function's own values in it.
class MeanSearch {
 public:
  explicit MeanSearch(const Problem& problem, bool use_anchors)
      : problem_(problem), steps_(problem.options.steps), model_(problem.options.model) {
    if (!use_anchors) return;
    for (const float anchor : problem.anchors)
      anchors_.push_back(static_cast<size_t>(std::lower_bound(problem.cuts.begin(), problem.cuts.end(), anchor) -
                                             problem.cuts.begin()));
  }

  /// Indices of cut points; nothing if no table has the zeros of the function.
  std::optional<std::vector<size_t>> run(const Progress& progress) {
    // As many candidates as a second or so allows.
    std::vector<int32_t> kinds = steps_;
    std::sort(kinds.begin(), kinds.end());
    kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
    constexpr size_t kInputs = 96;
    size_t pair_cost = 0;
    for (const int32_t kind : kinds) pair_cost += static_cast<size_t>(kind) + kInputs;
    size_t most = 400;
    while (most > 24 && most * most * pair_cost > size_t{50} * 1000 * 1000) most -= most / 8;

    // The same on both sides of 0, so that an interval may have 0 in its middle.
    const size_t last = problem_.cuts.size() - 1;
    const size_t spacing = problem_.cuts.size() / most + 1;
    const size_t middle =
        static_cast<size_t>(std::lower_bound(problem_.cuts.begin(), problem_.cuts.end(), 0.0f) - problem_.cuts.begin());
    std::vector<size_t> candidates = anchors_;
    candidates.insert(candidates.end(), {0, last});
    for (size_t at = std::min(middle, last) % spacing; at <= last; at += spacing) candidates.push_back(at);
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());

    const size_t count = candidates.size();
    std::map<int32_t, std::vector<double>> costs;
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      std::vector<double>& cost = costs[kinds[kind]];
      cost.resize(count * count);
      for (size_t a = 0; a < count; ++a) {
        progress.report((static_cast<double>(kind) + static_cast<double>(a) / static_cast<double>(count)) /
                        static_cast<double>(kinds.size()) * 0.4);
        for (size_t b = a + 1; b < count; ++b)
          cost[a * count + b] = interval_cost(candidates[a], candidates[b], kinds[kind], kInputs);
      }
    }
    const std::vector<std::vector<size_t>> lists(steps_.size() + 1, candidates);
    auto path = shortest(lists, kInputs, [&](size_t i, size_t a, size_t b) { return costs[steps_[i]][a * count + b]; });
    if (!path) return path;
    return refine(*path, spacing, progress.part(0.4, 1));
  }

  /// Looks around every cut point, closer and closer.
  std::optional<std::vector<size_t>> refine(std::vector<size_t> path, size_t spacing, const Progress& progress) {
    constexpr int64_t kReach = 6;
    constexpr size_t kInputs = 1024;
    const double first = static_cast<double>(spacing);
    for (;;) {
      progress.report(1 - static_cast<double>(spacing) / first);
      spacing = (spacing + 3) / 4;
      std::vector<std::vector<size_t>> lists;
      for (const size_t center : path) {
        std::vector<size_t>& list = lists.emplace_back();
        for (int64_t i = -kReach; i <= kReach; ++i) {
          const int64_t at = static_cast<int64_t>(center) + i * static_cast<int64_t>(spacing);
          if (at >= 0 && at < static_cast<int64_t>(problem_.cuts.size())) list.push_back(static_cast<size_t>(at));
        }
      }
      const auto better = shortest(lists, kInputs, [&](size_t i, size_t a, size_t b) {
        return interval_cost(lists[i][a], lists[i + 1][b], steps_[i], kInputs);
      });
      if (!better) return std::nullopt;
      path = *better;
      if (spacing <= 1) return path;
    }
  }

  /// The value of a node: the function there, as the table can hold it.
  float value_at(double where) const {
    const double value = interpolate(problem_.samples, where, &Sample::unlimited);
    if (!problem_.options.half_values) return static_cast<float>(value);
    return f32_through_f16(static_cast<float>(std::clamp(value, -65504.0, 65504.0)));
  }

 private:
  template <typename Cost>
  std::optional<std::vector<size_t>> shortest(const std::vector<std::vector<size_t>>& lists, size_t inputs,
                                              const Cost& cost) const {
    std::vector<double> best;
    for (const size_t at : lists[0]) best.push_back(constant_cost(at, 0, problem_.starts[at], inputs));
    std::vector<std::vector<size_t>> from(lists.size());
    for (size_t i = 0; i + 1 < lists.size(); ++i) {
      std::vector<double> next(lists[i + 1].size(), kInfinity);
      from[i + 1].resize(next.size());
      for (size_t b = 0; b < next.size(); ++b)
        for (size_t a = 0; a < best.size() && lists[i][a] <= lists[i + 1][b]; ++a) {
          if (!(best[a] < next[b])) continue;
          const double total = best[a] + (lists[i][a] == lists[i + 1][b] ? 0.0 : cost(i, a, b));
          if (!(total < next[b])) continue;
          next[b] = total;
          from[i + 1][b] = a;
        }
      best.swap(next);
    }
    for (size_t b = 0; b < best.size(); ++b)
      best[b] += constant_cost(lists.back()[b], problem_.starts[lists.back()[b]], problem_.samples.size(), inputs);
    size_t at = static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin());
    if (best[at] == kInfinity) return std::nullopt;
    std::vector<size_t> path(lists.size());
    for (size_t i = lists.size(); i-- > 0;) {
      path[i] = lists[i][at];
      if (i > 0) at = from[i][at];
    }
    if (path.front() == path.back()) return std::nullopt;
    return path;
  }

  /// Inputs begin..end of which about `inputs` are looked at, each for as many as lie around it.
  template <typename Value>
  double sum(size_t begin, size_t end, size_t inputs, const Value& value) const {
    if (begin >= end) return 0;
    const size_t stride = (end - begin + inputs - 1) / inputs;
    double total = 0;
    size_t seen = 0;
    for (size_t k = begin + stride / 2; k < end; k += stride, ++seen)
      total += expected_error(problem_.samples[k], static_cast<double>(value(k)));
    return seen == 0 ? 0 : total * static_cast<double>(end - begin) / static_cast<double>(seen);
  }

  /// Of the rounded result: the rounding error is as good as uniform, so that no luck of single inputs decides.
  static double expected_error(const Sample& sample, double y) {
    if (is_infinite(sample.truth)) return y >= sample.same.low && y <= sample.same.high ? 0 : 1e3;
    const double ulps = std::abs(y - sample.target) / sample.unit;
    return sample.weight * (ulps < 0.5 ? ulps * ulps : ulps - 0.25);
  }

  double constant_cost(size_t cut, size_t begin, size_t end, size_t inputs) const {
    const float value = value_at(static_cast<double>(problem_.cuts[cut]));
    for (const size_t anchor : anchors_)
      if (problem_.starts[anchor] >= begin && problem_.starts[anchor] < end && value != 0) return kInfinity;
    return sum(begin, end, inputs, [&](size_t) { return value; });
  }

  double interval_cost(size_t from, size_t to, int32_t steps, size_t inputs) {
    const float c0 = problem_.cuts[from];
    const float c1 = problem_.cuts[to];
    const float scale = fp16_scale(model_, steps, c0, c1);
    if (!(scale > 0) || !std::isfinite(scale)) return kInfinity;
    int32_t pinned = -1;
    for (const size_t anchor : anchors_) {
      if (anchor <= from || anchor >= to) continue;
      const Fp16Position at = fp16_position(model_, problem_.cuts[anchor], c0, scale, steps);
      if (pinned >= 0 || at.fraction != 0 || at.step >= steps) return kInfinity;
      pinned = at.step;
    }
    // Values are computed when they are needed: a long interval of many steps may have few inputs looked at.
    values_.resize(static_cast<size_t>(steps) + 1);
    known_.assign(static_cast<size_t>(steps) + 1, 0);
    const double width = static_cast<double>(c1) - static_cast<double>(c0);
    const auto value = [&](int32_t step) {
      float& known = values_[static_cast<size_t>(step)];
      if (known_[static_cast<size_t>(step)] == 0) {
        known = step == pinned ? 0.0f : value_at(static_cast<double>(c0) + width * step / steps);
        known_[static_cast<size_t>(step)] = 1;
      }
      return known;
    };
    return sum(problem_.starts[from], problem_.starts[to], inputs, [&](size_t k) {
      const Fp16Position at = fp16_position(model_, problem_.samples[k].argument, c0, scale, steps);
      return fp16_interpolate(model_, at.fraction, value(at.step), value(std::min(at.step + 1, steps)));
    });
  }

  const Problem& problem_;
  const std::vector<int32_t>& steps_;
  Fp16Model model_;
  std::vector<size_t> anchors_;
  std::vector<float> values_;
  std::vector<uint8_t> known_;
};

// ---- Together -------------------------------------------------------------------------------------------------------

size_t index_of(const Problem& problem, float cut) {
  return static_cast<size_t>(std::lower_bound(problem.cuts.begin(), problem.cuts.end(), cut) - problem.cuts.begin());
}

void set_values(Fp16Pieces& pieces, const Chain& chain, const std::vector<float>& nodes) {
  pieces.values.clear();
  for (const size_t node : chain.node_of) pieces.values.push_back(nodes[node]);
}

/// Keeps the better of what it is given.
struct BestMean {
  std::optional<Fp16Pieces> pieces;
  double cost = kInfinity;

  void add(const Problem& problem, Fp16Pieces candidate, const Chain& chain, const std::vector<float>& start,
           double error, const Progress& progress) {
    const ValueSearch search(problem, chain, Fp16Goal::kMeanRelative);
    std::vector<float> found = search.polish(start, error, progress);
    double its_cost = search.cost(found);
    const double first_cost = search.cost(start);  // polishing has its mind on monotone values, too
    if (first_cost < its_cost) {
      found = start;
      its_cost = first_cost;
    }
    if (pieces && !(its_cost < cost)) return;
    set_values(candidate, chain, found);
    pieces = std::move(candidate);
    cost = its_cost;
  }
};

/// From cut points alone.
void add_cuts(const Problem& problem, const MeanSearch& search, const std::vector<size_t>& path, bool anchored,
              const Progress& progress, BestMean* best) {
  std::vector<float> cut_points(path.size());
  std::transform(path.begin(), path.end(), cut_points.begin(), [&](size_t cut) { return problem.cuts[cut]; });
  Fp16Pieces pieces = make_pieces(problem, cut_points);
  const Chain chain = make_chain(problem, CutSearch(problem, 1.0, anchored), pieces, anchored);
  std::vector<float> values;
  for (size_t node = 0; node < chain.where.size(); ++node)
    values.push_back(chain.pinned[node] != 0 ? 0.0f : search.value_at(chain.where[node]));
  const double mean_error = ValueSearch(problem, chain, Fp16Goal::kMaxUlp).mean_ulp(values);
  best->add(problem, std::move(pieces), chain, values, 4 * mean_error, progress);
}

Result<Fp16Pieces> fit_pieces(const Problem& problem, const Progress& whole) {
  const bool relative = problem.options.goal == Fp16Goal::kMeanRelative;
  const Progress progress = relative ? whole.part(0, 0.65) : whole;
  BestMean best;
  const std::optional<Cuts> cuts = find_cuts(problem, progress.part(0, 0.9));
  const bool usable = cuts && cuts->points.front() != cuts->points.back();
  if (!usable && !relative) return Status(StatusCode::kUnsupported, "no table with these steps follows the function");
  if (usable) {
    Fp16Pieces pieces = make_pieces(problem, cuts->points);
    CutSearch search(problem, cuts->e, cuts->anchored);
    const Chain chain = make_chain(problem, search, pieces, cuts->anchored);

    // The feasible spans of every node, once more along the cut points that were found.
    std::vector<Span> spans;
    State state{index_of(problem, pieces.cut_points.front()), {}};
    state.span = search.head_at(state.cut);
    spans.push_back(state.span);
    for (size_t i = 0; i < pieces.steps.size(); ++i) {
      if (pieces.cut_points[i] == pieces.cut_points[i + 1]) continue;
      std::vector<Span> nodes;
      const size_t to = index_of(problem, pieces.cut_points[i + 1]);
      if (!search.advance(state, to, pieces.steps[i], &state.span, &nodes))
        return Status(StatusCode::kUnsupported, "the cut points of the search are not those of the table");
      state.cut = to;
      spans.insert(spans.end(), nodes.begin() + 1, nodes.end());
    }
    spans.back().cut(search.tail_at(state.cut));

    const ValueSearch values(problem, chain, Fp16Goal::kMaxUlp);
    const std::vector<float> found = values.polish(values.inside(search.tube(), spans), cuts->e, progress.part(0.9, 1));
    set_values(pieces, chain, found);
    if (!relative) return pieces;
    best.add(problem, std::move(pieces), chain, found, cuts->e, whole.part(0.65, 0.68));
  }
  for (const bool anchored : {true, false}) {
    MeanSearch search(problem, anchored);
    if (const auto path = search.run(whole.part(0.68, 0.85)))
      add_cuts(problem, search, *path, anchored, whole.part(0.85, 0.9), &best);
    if (usable && cuts->anchored == anchored) {
      std::vector<size_t> path;
      for (const float cut : cuts->points) path.push_back(index_of(problem, cut));
      if (const auto better = search.refine(path, 64, whole.part(0.9, 0.96)))
        add_cuts(problem, search, *better, anchored, whole.part(0.96, 1), &best);
    }
    if (best.pieces) break;
  }
  if (!best.pieces) return Status(StatusCode::kUnsupported, "no table with these steps follows the function");
  return *best.pieces;
}

Fp16Reduction reduction_of(std::string_view function, bool plain) {
  if (plain) return Fp16Reduction::kNone;
  for (int32_t i = 1; i <= static_cast<int32_t>(Fp16Reduction::kInverseSigmoid); ++i)
    if (to_string(static_cast<Fp16Reduction>(i)) == function) return static_cast<Fp16Reduction>(i);
  return Fp16Reduction::kNone;
}

Status check_options(const Fp16FitOptions& options) {
  if (options.steps.empty() || options.steps.size() > 256)
    return Status(StatusCode::kInvalidArgument,
                  "number of intervals is " + std::to_string(options.steps.size()) + ", must be 1..256");
  for (const int32_t steps : options.steps)
    if (steps < 1 || steps > 4096)
      return Status(StatusCode::kInvalidArgument, "steps is " + std::to_string(steps) + ", must be 1..4096");
  if (!(options.low < options.high))
    return Status(StatusCode::kInvalidArgument,
                  "low is " + std::to_string(options.low) + ", must be below high, " + std::to_string(options.high));
  return {};
}

Result<Fp16Table> fit(std::string_view function, const Fp16Exact& exact, const Fp16FitOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_options(options));
  Fp16Table table;
  table.function = function;
  table.beta = function == "swish" ? options.beta : 1.0;
  table.model = options.model;
  table.half_values = options.half_values;
  table.reduction = reduction_of(function, options.plain);
  const bool two = table.reduction == Fp16Reduction::kSin || table.reduction == Fp16Reduction::kCos;
  for (int32_t piece = 0; piece < (two ? 2 : 1); ++piece) {
    const Problem problem = make_problem(exact, table.reduction, piece, options);
    if (problem.cuts.size() < 2)
      return Status(StatusCode::kInvalidArgument, std::string(function) + " has no values between low and high");
    const Progress progress = two ? Progress(options).part(piece / 2.0, (piece + 1) / 2.0) : Progress(options);
    ISOBIT_ASSIGN_OR_RETURN(Fp16Pieces pieces, fit_pieces(problem, progress));
    table.pieces.push_back(std::move(pieces));
  }
  ISOBIT_ASSIGN_OR_RETURN(table.certificate, certify(table, exact.codes));
  Progress(options).report(1);
  return table;
}

}  // namespace

double fp16_mean_relative(const Fp16Table& table, const Fp16Exact& exact) {
  double sum = 0;
  int64_t count = 0;
  for (uint32_t x = 0; x < 65536; ++x) {
    if ((x & 0x7fffu) >= kFp16Infinity || (exact.codes[x] & 0x7fffu) >= kFp16Infinity) continue;
    const uint16_t code = table(static_cast<uint16_t>(x));
    if ((code & 0x7fffu) >= kFp16Infinity) return kInfinity;
    sum += std::abs(value_of(code) - exact.values[x]) / std::max(std::abs(exact.values[x]), kLeastNormal);
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

Result<Fp16Table> fit_fp16_table(std::string_view function, const Fp16FitOptions& options) {
  const DefaultFloatMode mode;
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Exact exact, fp16_exact_values(function, options.beta));
  return fit(function, exact, options);
}

Result<Fp16Table> fit_fp16_table(const std::vector<double>& values, const Fp16FitOptions& options) {
  const DefaultFloatMode mode;
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Exact exact, fp16_exact_values(values));
  Fp16FitOptions plain = options;
  plain.plain = true;
  return fit("custom", exact, plain);
}

Result<Fp16Table> import_fp16_table(std::string_view function, const std::vector<float>& cut_points,
                                    const Fp16FitOptions& options) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_options(options));
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Exact exact, fp16_exact_values(function, options.beta));
  Fp16Table table;
  table.function = function;
  table.beta = function == "swish" ? options.beta : 1.0;
  table.model = options.model;
  table.half_values = options.half_values;
  Fp16Pieces pieces;
  pieces.steps = options.steps;
  pieces.cut_points = cut_points;
  if (cut_points.size() != options.steps.size() + 1)
    return Status(StatusCode::kInvalidArgument, "number of cut points is " + std::to_string(cut_points.size()) +
                                                    ", must be " + std::to_string(options.steps.size() + 1));
  // Before the function is asked for values between them.
  for (size_t i = 0; i < cut_points.size(); ++i)
    if (!std::isfinite(cut_points[i]) || (i > 0 && cut_points[i] < cut_points[i - 1]))
      return Status(StatusCode::kInvalidArgument,
                    "cut_points[" + std::to_string(i) + "] is " + std::to_string(cut_points[i]) + ", must be finite" +
                        (i > 0 ? " and at least the one before, " + std::to_string(cut_points[i - 1]) : ""));
  set_scales(pieces, options.model);
  for (size_t i = 0; i < options.steps.size(); ++i) {
    const double c0 = static_cast<double>(cut_points[i]);
    const double step = (static_cast<double>(cut_points[i + 1]) - c0) / options.steps[i];
    const bool last = i + 1 == options.steps.size();
    for (int32_t j = 0; j < options.steps[i] + (last ? 1 : 0); ++j) {
      const double x = j == options.steps[i] ? static_cast<double>(cut_points[i + 1]) : c0 + j * step;
      const double value = fp16_function_at(function, options.beta, x);
      if (!(std::abs(value) < 65520.0))
        return Status(StatusCode::kInvalidArgument, std::string(function) + " at " + std::to_string(x) + " is " +
                                                        std::to_string(value) + ", must be finite in float16");
      pieces.values.push_back(options.half_values ? f16_to_f32(f64_to_f16(value)) : static_cast<float>(value));
    }
  }
  table.pieces.push_back(std::move(pieces));
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, function));
  ISOBIT_ASSIGN_OR_RETURN(table.certificate, certify(table, exact.codes));
  return table;
}

}  // namespace isobit
