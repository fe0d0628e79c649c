// SPDX-License-Identifier: Apache-2.0
// The only file with multi-precision arithmetic: 168-bit binary floating point (50 digits), no libm, so the result
// is the same on every machine.
//
// Why 168 bits always decide a rounding. Powers of two are exact, and 65536 products of e^-S lose 16 bits at most.
// For x != 0 both functions are irrational, so an exact tie exists at x = 0 only. Near-ties that are not accidental
// come from tiny x: sigmoid(x) ~ 1/2 + x/4 with x >= 2^-126 stays 2^-128 away from the tie, far more than the error;
// tanh(x) ~ x - x^3/3 may be closer than that to a tie of x / S_out, so small arguments use the series, which keeps
// the sign of x^3 (see small_tanh).
#include "table/exact.h"

#include <algorithm>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <utility>

#include "core/fixed.h"

namespace isobit {
namespace {

using Float = boost::multiprecision::cpp_bin_float_50;

Float power_of_two(int exponent) { return ldexp(Float(1), exponent); }

/// The scale exactly: Grid::scale() would do for both kinds; this one does not depend on subnormal float32.
Float scale_of(const Grid& grid) {
  return grid.kind == ScaleKind::kPow2 ? power_of_two(-grid.shift) : Float(grid.real_scale);
}

/// A magnitude v >= 0 in fine units (truncated) and rounded to an integer, ties to even.
struct Magnitude {
  int64_t fine;
  int64_t code;
};

Magnitude split(const Float& v) {
  constexpr int64_t kLimit = int64_t{1} << kMaxMagnitudeBits;
  if (v >= kLimit) return {shift_left(kLimit, kFineBits), kLimit};
  const Float scaled = ldexp(v, kFineBits);
  const int64_t fine = static_cast<int64_t>(scaled);
  const int64_t quotient = fine >> kFineBits;
  const int64_t fraction = fine - shift_left(quotient, kFineBits);
  constexpr int64_t kHalf = int64_t{1} << (kFineBits - 1);
  bool up = fraction > kHalf;
  if (fraction == kHalf) up = (quotient & 1) != 0 || scaled > fine;
  return {fine, quotient + (up ? 1 : 0)};
}

/// tanh(x) for 0 <= x < 2^-20: x - x^3/3 + 2x^5/15 - 17x^7/315. Below 2^-80 the cubic term leaves the 168 bits; it
/// is then kept at x * 2^-160/3, so that the value stays below x and a tie of x / S_out goes the right way. No
/// half-integer lies between the two: x / S_out is a fraction with a denominator far below 2^160.
Float small_tanh(const Float& x) {
  const Float square = std::max(Float(x * x), power_of_two(-160));
  return x * (1 - square * (Float(1) / 3 - square * (Float(2) / 15 - square * (Float(17) / 315))));
}

/// f(x) and, for sigmoid, f(-x), for x >= 0, over the output scale.
struct Pair {
  Magnitude positive;
  Magnitude negative;  // of -f(-x) for tanh
};

class Sampler {
 public:
  Sampler(Activation function, const Grid& input, const Grid& output)
      : function_(function), step_(scale_of(input)), inverse_(1 / scale_of(output)) {
    const Float exponent = function == Activation::kTanh ? Float(2 * step_) : step_;
    ratio_ = step_ < kSaturated ? Float(exp(-exponent)) : Float(0);
  }

  /// The pair at x = distance * S_in; call with distance = 0, 1, 2, ... in order.
  Pair next() {
    const Float x = step_ * distance_;
    if (distance_ > 0) power_ *= ratio_;
    ++distance_;
    if (x >= kSaturated) {
      // 1 - f < 2^-369: no code and no tie is that close to the bound (1 / S_out is half an odd integer for
      // S_out = 2 only, where both 1/2 and a little less round to 0).
      if (saturated_.positive.fine < 0) saturated_ = pair(1, 0);
      return saturated_;
    }
    if (function_ == Activation::kSigmoid) {
      const Float positive = 1 / (1 + power_);
      return pair(positive, power_ * positive);
    }
    if (x < power_of_two(-20)) return pair(small_tanh(x), 0);
    return pair((1 - power_) / (1 + power_), 0);
  }

 private:
  static constexpr int kSaturated = 256;

  Pair pair(const Float& positive, const Float& negative) const {
    Pair result{};
    result.positive = split(positive * inverse_);
    result.negative = function_ == Activation::kTanh ? result.positive : split(negative * inverse_);
    return result;
  }

  Activation function_;
  Float step_, inverse_, ratio_;
  Float power_ = 1;  // e^(-distance * S_in), or its square for tanh
  int64_t distance_ = 0;
  Pair saturated_{{-1, 0}, {-1, 0}};
};

}  // namespace

void code_bounds(Activation function, const Grid& output, int64_t* low, int64_t* high) {
  const int64_t one = split(1 / scale_of(output)).code;
  const int64_t z = output.zero_point;
  *low = clamp_s64(z - (function == Activation::kTanh ? one : 0), output.min(), output.max());
  *high = clamp_s64(z + one, output.min(), output.max());
}

ExactFunction exact_function(Activation function, const Grid& input, const Grid& output) {
  ExactFunction result;
  code_bounds(function, output, &result.low, &result.high);
  const int64_t size = int64_t{1} << input.bits;
  const int64_t zero = input.zero_point - input.min();  // index of x = 0
  const int64_t sign = function == Activation::kTanh ? -1 : 1;
  result.values.resize(static_cast<size_t>(size) + 1);
  result.codes.resize(static_cast<size_t>(size));

  const auto store = [&](int64_t index, const Magnitude& magnitude, int64_t factor) {
    result.values[static_cast<size_t>(index)] = factor * magnitude.fine + shift_left(output.zero_point, kFineBits);
    if (index < size) {
      const int64_t code = clamp_s64(factor * magnitude.code + output.zero_point, result.low, result.high);
      result.codes[static_cast<size_t>(index)] = static_cast<int32_t>(code);
    }
  };
  Sampler sampler(function, input, output);
  for (int64_t distance = 0; distance <= std::max(size - zero, zero); ++distance) {
    const Pair pair = sampler.next();
    if (zero - distance >= 0) store(zero - distance, pair.negative, sign);
    if (zero + distance <= size) store(zero + distance, pair.positive, 1);
  }

  const Float center = function == Activation::kTanh ? Float(0) : Float(Float(0.5) / scale_of(output));
  if (center < (1 << kMaxMagnitudeBits)) {
    const int64_t rounded = split(center).code;
    result.has_center = center == rounded;
    result.center = rounded + output.zero_point;
  }
  return result;
}

}  // namespace isobit
