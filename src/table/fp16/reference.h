// SPDX-License-Identifier: Apache-2.0
// The normative evaluation of FP16 tables, docs/numerics.md, section 13, on raw pointers, for host and device.
//
// Every float32 operation here is one IEEE operation, rounded to nearest even. The host is compiled with
// -ffp-contract=off; nvcc contracts unless it is told otherwise, so the device names the operation.
#ifndef ISOBIT_TABLE_FP16_REFERENCE_H_
#define ISOBIT_TABLE_FP16_REFERENCE_H_

#include <cstdint>

#include "core/half.h"
#include "core/hd.h"
#include "isobit/fp16_table.h"

namespace isobit {

#ifdef __CUDA_ARCH__
ISOBIT_HD float f32_add(float a, float b) { return __fadd_rn(a, b); }
ISOBIT_HD float f32_sub(float a, float b) { return __fsub_rn(a, b); }
ISOBIT_HD float f32_mul(float a, float b) { return __fmul_rn(a, b); }
ISOBIT_HD float f32_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
ISOBIT_HD float f32_floor(float a) { return floorf(a); }
ISOBIT_HD float f32_rint(float a) { return rintf(a); }
#else
ISOBIT_HD float f32_add(float a, float b) { return a + b; }
ISOBIT_HD float f32_sub(float a, float b) { return a - b; }
ISOBIT_HD float f32_mul(float a, float b) { return a * b; }
ISOBIT_HD float f32_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ISOBIT_HD float f32_floor(float a) { return __builtin_floorf(a); }
ISOBIT_HD float f32_rint(float a) { return __builtin_rintf(a); }
#endif
ISOBIT_HD constexpr float f32_through_f16(float a) { return f16_to_f32(f32_to_f16(a)); }

inline constexpr uint16_t kFp16Nan = 0x7e00;
inline constexpr uint16_t kFp16Infinity = 0x7c00;

// pi/2 and ln 2 in three float32 parts, each the nearest to what the parts before it leave.
inline constexpr float kTwoOverPi = 0x1.45f306p-1f;
inline constexpr float kHalfPi1 = 0x1.921fb6p+0f;
inline constexpr float kHalfPi2 = -0x1.777a5cp-25f;
inline constexpr float kHalfPi3 = -0x1.ee59dap-50f;
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2Part1 = 0x1.62e430p-1f;
inline constexpr float kLn2Part2 = -0x1.05c610p-29f;
inline constexpr float kLn2Part3 = -0x1.950d88p-54f;
/// m >= sqrt(2), for a significand m of 11 bits.
inline constexpr float kSqrt2Up = 0x1.6a4p+0f;

/// An Fp16Pieces without its vectors; the pointers may be device memory.
struct Fp16PiecesView {
  int32_t intervals;
  const int32_t* steps;
  const float* cut_points;
  const float* scales;
  const float* values;
};

struct Fp16TableView {
  Fp16Model model;
  Fp16Reduction reduction;
  Fp16PiecesView pieces[2];
};

/// Where an argument lies in interval i, whose start is c.
struct Fp16Position {
  int32_t step;    // j, 0..length
  float fraction;  // p - floor(p)
};
ISOBIT_HD Fp16Position fp16_position(Fp16Model model, float x, float c, float scale, int32_t length) {
  float distance = f32_sub(x, c);
  if (model == Fp16Model::kNliCpu) distance = f32_through_f16(distance);
  float p = f32_mul(distance, scale);
  if (model == Fp16Model::kNliCpu) p = f32_through_f16(p);
  const float whole = f32_floor(p);
  const int32_t step = whole < static_cast<float>(length) ? static_cast<int32_t>(whole) : length;
  return {step, f32_sub(p, whole)};
}

ISOBIT_HD float fp16_interpolate(Fp16Model model, float fraction, float left, float right) {
  const float difference = f32_sub(right, left);
  if (model == Fp16Model::kNliCpu) return f32_add(f32_mul(difference, fraction), left);
  return f32_fma(fraction, difference, left);
}

/// The piecewise linear function in float32; x is not NaN.
ISOBIT_HD float fp16_look_up(const Fp16PiecesView& pieces, Fp16Model model, float x) {
  int32_t base = 0;
  if (x <= pieces.cut_points[0]) return pieces.values[0];
  if (x >= pieces.cut_points[pieces.intervals]) {
    for (int32_t i = 0; i < pieces.intervals; ++i) base += pieces.steps[i];
    return pieces.values[base];
  }
  int32_t i = 0;
  for (; pieces.cut_points[i + 1] <= x; ++i) base += pieces.steps[i];
  const int32_t length = pieces.steps[i];
  const Fp16Position at = fp16_position(model, x, pieces.cut_points[i], pieces.scales[i], length);
  const float* left = pieces.values + base + at.step;
  return fp16_interpolate(model, at.fraction, left[0], left[at.step < length ? 1 : 0]);
}

/// An argument before the look-up and what is done with the value after it. `done`: the result is `code` already.
struct Fp16Reduced {
  bool done;
  uint16_t code;
  int32_t piece;
  float argument;
  float factor;  // the result is value * factor (a power of two, or its negative) ...
  float addend;  // ... or, for kLog, fma(addend, ln 2, value)
};

/// 2^exponent, a normal number.
ISOBIT_HD constexpr float f32_power_of_two(int32_t exponent) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(exponent + 127) << 23);
}

ISOBIT_HD float fp16_reduce_argument(float x, float k, float part1, float part2, float part3) {
  return f32_fma(-k, part3, f32_fma(-k, part2, f32_fma(-k, part1, x)));
}

ISOBIT_HD Fp16Reduced fp16_reduce(Fp16Reduction reduction, uint16_t code) {
  const auto finished = [](uint32_t result) {
    return Fp16Reduced{true, static_cast<uint16_t>(result), 0, 0.0f, 1.0f, 0.0f};
  };
  const uint32_t sign = code & 0x8000u;
  const uint32_t magnitude = code & 0x7fffu;
  if (magnitude > kFp16Infinity) return finished(kFp16Nan);
  const bool infinite = magnitude == kFp16Infinity;
  const float x = f16_to_f32(code);
  Fp16Reduced result{false, 0, 0, x, 1.0f, 0.0f};
  switch (reduction) {
    case Fp16Reduction::kNone: return result;
    case Fp16Reduction::kSin:
    case Fp16Reduction::kCos: {
      if (infinite) return finished(kFp16Nan);
      if (reduction == Fp16Reduction::kSin && magnitude == 0) return finished(code);
      const float k = f32_rint(f32_mul(x, kTwoOverPi));
      result.argument = fp16_reduce_argument(x, k, kHalfPi1, kHalfPi2, kHalfPi3);
      const int32_t quadrant = (static_cast<int32_t>(k) + (reduction == Fp16Reduction::kCos ? 1 : 0)) & 3;
      result.piece = quadrant & 1;
      result.factor = quadrant >= 2 ? -1.0f : 1.0f;
      return result;
    }
    case Fp16Reduction::kExp: {
      if (infinite) return finished(sign != 0 ? 0u : kFp16Infinity);
      const float k = f32_rint(f32_mul(x, kLog2E));
      result.argument = fp16_reduce_argument(x, k, kLn2Part1, kLn2Part2, kLn2Part3);
      // 2^+-64 times anything in the table is infinity or 0 in float16, and no float32 overflows on the way.
      const float limited = k < -64.0f ? -64.0f : (k > 64.0f ? 64.0f : k);
      result.factor = f32_power_of_two(static_cast<int32_t>(limited));
      return result;
    }
    case Fp16Reduction::kInverseSigmoid:
      if (magnitude == 0) return finished(0x8000u | kFp16Infinity);
      if (code == 0x3c00u) return finished(kFp16Infinity);
      if (code > 0x3c00u) return finished(kFp16Nan);
      return result;
    case Fp16Reduction::kLog:
    case Fp16Reduction::kReciprocal:
    case Fp16Reduction::kRsqrt:
    case Fp16Reduction::kSqrt: break;
  }
  // The functions of the exponent: x = +-2^k m.
  if (reduction == Fp16Reduction::kLog) {
    if (magnitude == 0) return finished(0x8000u | kFp16Infinity);
    if (sign != 0) return finished(kFp16Nan);
    if (infinite) return finished(kFp16Infinity);
  } else if (reduction == Fp16Reduction::kReciprocal) {
    if (magnitude == 0) return finished(sign | kFp16Infinity);
    if (infinite) return finished(sign);
  } else {
    const bool is_sqrt = reduction == Fp16Reduction::kSqrt;
    if (magnitude == 0) return finished(is_sqrt ? code : sign | kFp16Infinity);
    if (sign != 0) return finished(kFp16Nan);
    if (infinite) return finished(is_sqrt ? kFp16Infinity : 0u);
  }
  const uint32_t bits = __builtin_bit_cast(uint32_t, x) & 0x7fffffffu;  // every float16 is a normal float32 or 0
  int32_t k = static_cast<int32_t>(bits >> 23) - 127;
  float m = __builtin_bit_cast(float, (bits & 0x7fffffu) | 0x3f800000u);
  switch (reduction) {
    case Fp16Reduction::kLog:
      if (m >= kSqrt2Up) {
        m = f32_mul(m, 0.5f);
        ++k;
      }
      result.addend = static_cast<float>(k);
      break;
    case Fp16Reduction::kReciprocal:
      result.factor = f32_power_of_two(-k);
      if (sign != 0) result.factor = -result.factor;
      break;
    default:
      if ((k & 1) != 0) {
        m = f32_mul(m, 2.0f);
        --k;
      }
      result.factor = f32_power_of_two(reduction == Fp16Reduction::kSqrt ? k / 2 : -(k / 2));
      break;
  }
  result.argument = m;
  return result;
}

/// The float32 value of a table to the float16 result. It is NaN where the difference of two values overflowed.
ISOBIT_HD uint16_t fp16_finish(Fp16Reduction reduction, const Fp16Reduced& reduced, float value) {
  const float result =
      reduction == Fp16Reduction::kLog ? f32_fma(reduced.addend, kLn2Part1, value) : f32_mul(value, reduced.factor);
  return result != result ? kFp16Nan : f32_to_f16(result);
}

ISOBIT_HD uint16_t fp16_evaluate(const Fp16TableView& table, uint16_t code) {
  const Fp16Reduced reduced = fp16_reduce(table.reduction, code);
  if (reduced.done) return reduced.code;
  const float value = fp16_look_up(table.pieces[reduced.piece], table.model, reduced.argument);
  return fp16_finish(table.reduction, reduced, value);
}

/// e of a softmax: what the exp table gives for d = x - m <= 0, not rounded to float16.
ISOBIT_HD float fp16_softmax_exp(const Fp16TableView& exp, float d) {
  if (d < -131008.0f) return 0.0f;  // -infinity: finite float16 numbers are no further apart
  const float k = f32_rint(f32_mul(d, kLog2E));
  const float r = fp16_reduce_argument(d, k, kLn2Part1, kLn2Part2, kLn2Part3);
  const float limited = k < -64.0f ? -64.0f : k;
  return f32_mul(fp16_look_up(exp.pieces[0], exp.model, r), f32_power_of_two(static_cast<int32_t>(limited)));
}

/// q of a softmax whose sum is `sum` > 0.
ISOBIT_HD float fp16_softmax_quotient(const Fp16TableView& reciprocal, int64_t sum) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(sum));
  const int32_t k = static_cast<int32_t>(bits >> 23) - 127;
  const float m = __builtin_bit_cast(float, (bits & 0x7fffffu) | 0x3f800000u);
  return f32_mul(fp16_look_up(reciprocal.pieces[0], reciprocal.model, m), f32_power_of_two(30 - k));
}

/// The saved scale of an interval of `steps` steps from c0 to c1 > c0.
inline float fp16_scale(Fp16Model model, int32_t steps, float c0, float c1) {
  const float count = static_cast<float>(steps);
  if (model == Fp16Model::kF32) return count / (c1 - c0);
  return f32_through_f16(count / f32_through_f16(c1 - c0));
}

/// `pieces` must outlive the view.
inline Fp16PiecesView view_of(const Fp16Pieces& pieces) {
  return {static_cast<int32_t>(pieces.steps.size()), pieces.steps.data(), pieces.cut_points.data(),
          pieces.scales.data(), pieces.values.data()};
}
/// `table` must outlive the view and have passed check_fp16_table.
inline Fp16TableView view_of(const Fp16Table& table) {
  Fp16TableView view{table.model, table.reduction, {view_of(table.pieces.front()), view_of(table.pieces.back())}};
  return view;
}

}  // namespace isobit

#endif  // ISOBIT_TABLE_FP16_REFERENCE_H_
