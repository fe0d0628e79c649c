// SPDX-License-Identifier: Apache-2.0
// With exact.cc the only file with multi-precision arithmetic: 168-bit binary floating point (50 digits; 101 digits for
// sin and cos), no libm, so the results are the same on every machine.
//
// Why 168 bits always decide a rounding. A float16 rounding is in doubt only next to a tie, a number halfway between
// two float16 numbers; a value next to a float16 number is not in doubt. Values here are good to 2^-130 of themselves
// (the worst loss is 30 bits, in expm1, log1p and the tails). Ties are dyadic numbers of at most 12 bits.
//   - exp, log, sin, cos, tanh, sigmoid and what is made from them by +, -, *, / with algebraic numbers: transcendental
//     at every algebraic x other than their trivial point (Lindemann, Weierstrass), so never a tie. erf at a rational
//     number is not proved to be irrational; it is among the functions that are checked below.
//   - x * g(x) with g(0) = 1/2: ties of x/2 are missed by about x^2 / 4 >= 2^-50.
//   - Rational functions and square: the value may be a tie. Then 168 bits hold it exactly (one correctly rounded
//     division, at the end), and ties go to even. When it is none, it differs by 1 / (100 * 2^60) of itself or more.
//   - sqrt, rsqrt, reciprocal: never a tie, since the square or the inverse of a 12-bit odd number has more than 11
//   bits.
// None of this is taken on trust: round_to_f16 refuses a value within 2^-90 of a tie, and every code of every function
// goes through it.
#include "table/fp16/exact.h"

#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "core/float_mode.h"
#include "core/half.h"
#include "isobit/fp16_table.h"
#include "isobit/nearest.h"
#include "table/fp16/reference.h"

namespace isobit {
namespace {

using Float = boost::multiprecision::cpp_bin_float_50;
using Wide = boost::multiprecision::cpp_bin_float_100;

/// A real value, or one of the special results.
struct Value {
  enum Kind { kReal, kNan, kInfinite } kind = kReal;
  Float real = 0;
  bool negative = false;  // sign of an infinity and of a zero (or of a value too small to be anything else)
  bool may_tie = false;   // exact: a tie is a tie
};

Value nan_value() { return {Value::kNan, 0, false, false}; }
Value infinite(bool negative) { return {Value::kInfinite, 0, negative, false}; }
Value zero(bool negative) { return {Value::kReal, 0, negative, true}; }
Value real(const Float& v) { return {Value::kReal, v, v < 0, false}; }
Value rational(const Float& v) { return {Value::kReal, v, v < 0, true}; }

/// Rounds to 0, and is no 0: for what is smaller than anything in float16.
Value vanishing(bool negative) { return {Value::kReal, ldexp(Float(negative ? -1 : 1), -140), negative, false}; }

/// Beyond this |argument| of the exponential function every result below is decided: e^-100 < 2^-144.
constexpr int kFar = 100;

/// x * sigmoid(z), z of the sign of `x * slope`.
Value times_sigmoid(const Float& x, Float z) {
  if (x == 0) return zero(false);  // the caller restores the sign of a zero argument
  if (z > kFar) return real(x);    // x - |x| e^-100
  if (z < -kFar) return vanishing(x < 0);
  // x/2 + xz/4 may miss a tie of x/2 by less than 168 bits can hold (swish with a tiny beta); what counts is the side.
  const Float least = ldexp(Float(1), -60);
  if (z > 0 && z < least) z = least;
  if (z < 0 && z > -least) z = -least;
  return real(x / (1 + exp(-z)));
}

/// e^-(z^2) * sum of 2^n z^(2n+1) / (1 * 3 * ... * (2n+1)) * 2 / sqrt(pi), z >= 0: all terms positive.
Float erf_of(const Float& z) {
  static const Float kScale = 2 / sqrt(boost::math::constants::pi<Float>());
  const Float square = z * z;
  Float term = z;
  Float sum = z;
  for (int n = 1; term > sum * ldexp(Float(1), -175); ++n) {
    term *= 2 * square / (2 * n + 1);
    sum += term;
  }
  return kScale * exp(-square) * sum;
}

Value elu_of(const Float& x, const Float& scale, const Float& alpha, bool rational_scale) {
  if (x >= 0) return rational_scale ? rational(scale * x) : real(scale * x);
  if (x < -kFar) return real(-scale * alpha);
  return real(scale * alpha * (exp(x) - 1));
}

Value sin_of(const Float& x, bool cosine) {
  const Wide wide(x);
  return real(Float(cosine ? Wide(cos(wide)) : Wide(sin(wide))));
}

struct Function {
  std::string_view name;
  Value (*at)(const Float& x, const Float& beta);
  /// Results at +infinity and -infinity, as float16 codes.
  uint16_t at_infinity, at_minus_infinity;
  bool keeps_zero_sign;  // f(-0) = -0
};

constexpr uint16_t kInf = kFp16Infinity;
constexpr uint16_t kMinus = 0x8000;
constexpr uint16_t kOne = 0x3c00;

const Function kFunctions[] = {
    // x / (1 + e^-x)
    {"silu", [](const Float& x, const Float&) { return times_sigmoid(x, x); }, kInf, kMinus, true},
    // x (1 + erf(x / sqrt 2)) / 2
    {"gelu",
     [](const Float& x, const Float&) {
       if (x == 0) return zero(false);
       if (x < -8) return vanishing(true);  // above -2^-47; further out 1 - erf would cancel to nothing
       if (x > 16) return real(x);
       const Float half_erf = erf_of(abs(x) / sqrt(Float(2))) / 2;
       return real(x * (x > 0 ? Float(0.5 + half_erf) : Float(0.5 - half_erf)));
     },
     kInf, kMinus, true},
    // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
    {"gelu_tanh",
     [](const Float& x, const Float&) {
       static const Float kScale = 2 * sqrt(2 / boost::math::constants::pi<Float>());
       static const Float kCubic = Float(44715) / 1000000;
       return times_sigmoid(x, kScale * (x + kCubic * x * x * x));
     },
     kInf, kMinus, true},
    // 1 / (1 + e^-x)
    {"sigmoid",
     [](const Float& x, const Float&) {
       if (x == 0) return rational(Float(0.5));
       if (x < -kFar) return vanishing(false);
       return real(x > kFar ? Float(1) : Float(1 / (1 + exp(-x))));
     },
     kOne, 0, false},
    // (e^2x - 1) / (e^2x + 1)
    {"tanh",
     [](const Float& x, const Float&) {
       if (x == 0) return zero(false);
       if (abs(x) > kFar) return real(x > 0 ? 1 : -1);
       const Float power = exp(2 * x);
       return real((power - 1) / (power + 1));
     },
     kOne, kMinus | kOne, true},
    {"exp",
     [](const Float& x, const Float&) {
       if (x == 0) return rational(1);
       if (x < -kFar) return vanishing(false);
       return real(exp(x > kFar ? Float(kFar) : x));
     },
     kInf, 0, false},
    {"log",
     [](const Float& x, const Float&) {
       if (x == 0) return infinite(true);
       if (x < 0) return nan_value();
       return x == 1 ? zero(false) : real(log(x));
     },
     kInf, kFp16Nan, false},
    {"sin", [](const Float& x, const Float&) { return x == 0 ? zero(false) : sin_of(x, false); }, kFp16Nan, kFp16Nan,
     true},
    {"cos", [](const Float& x, const Float&) { return x == 0 ? rational(1) : sin_of(x, true); }, kFp16Nan, kFp16Nan,
     false},
    // x tanh(ln(1 + e^x)) = x w (w + 2) / (w (w + 2) + 2), w = e^x
    {"mish",
     [](const Float& x, const Float&) {
       if (x == 0) return zero(false);
       if (x > kFar) return real(x);
       if (x < -kFar) return vanishing(true);
       const Float w = exp(x);
       const Float product = w * (w + 2);
       return real(x * product / (product + 2));
     },
     kInf, kMinus, true},
    // ln(1 + e^x)
    {"softplus",
     [](const Float& x, const Float&) {
       if (x > kFar) return real(x);
       if (x < -kFar) return vanishing(false);
       return real(log(1 + exp(x)));
     },
     kInf, 0, false},
    // x for x >= 0, else e^x - 1
    {"elu", [](const Float& x, const Float&) { return elu_of(x, 1, 1, true); }, kInf, kMinus | kOne, true},
    // scale * x for x >= 0, else scale * alpha (e^x - 1), with the two decimal fractions below
    {"selu",
     [](const Float& x, const Float&) {
       static const Float kScale("1.0507009873554804934193349852946");
       static const Float kAlpha("1.6732632423543772848170429916717");
       return elu_of(x, kScale, kAlpha, false);
     },
     kInf, 0xbf08, true},
    // x min(max(x + 3, 0), 6) / 6
    {"hardswish",
     [](const Float& x, const Float&) {
       if (x >= 3) return rational(x);
       if (x <= -3) return zero(true);
       return rational(x * (x + 3) / 6);
     },
     kInf, kMinus, true},
    // min(max(x + 3, 0), 6) / 6
    {"hardsigmoid",
     [](const Float& x, const Float&) {
       if (x >= 3) return rational(1);
       return x <= -3 ? zero(false) : rational((x + 3) / 6);
     },
     kOne, 0, false},
    // x / (1 + e^(-beta x))
    {"swish",
     [](const Float& x, const Float& beta) { return beta == 0 ? rational(x / 2) : times_sigmoid(x, beta * x); }, kInf,
     kMinus, true},
    // x / (1 + e^(-1.702 x))
    {"quick_gelu", [](const Float& x, const Float&) { return times_sigmoid(x, x * 851 / 500); }, kInf, kMinus, true},
    {"relu", [](const Float& x, const Float&) { return x > 0 ? rational(x) : zero(false); }, kInf, 0, false},
    // x for x >= 0, else x / 100
    {"leaky_relu", [](const Float& x, const Float&) { return rational(x >= 0 ? x : Float(x / 100)); }, kInf,
     kMinus | kInf, true},
    // min(max(x, 0), 6)
    {"relu6",
     [](const Float& x, const Float&) {
       if (x <= 0) return zero(false);
       return rational(x > 6 ? Float(6) : x);
     },
     0x4600, 0, false},
    {"erf",
     [](const Float& x, const Float&) {
       if (x == 0) return zero(false);
       if (abs(x) > 16) return real(x > 0 ? 1 : -1);
       const Float magnitude = erf_of(abs(x));
       return real(x > 0 ? magnitude : Float(-magnitude));
     },
     kOne, kMinus | kOne, true},
    {"sqrt", [](const Float& x, const Float&) { return x < 0 ? nan_value() : real(sqrt(x)); }, kInf, kFp16Nan, true},
    // 1 / sqrt(x), at +-0 as 1 / x
    {"rsqrt",
     [](const Float& x, const Float&) {
       if (x == 0) return infinite(false);
       return x < 0 ? nan_value() : real(1 / sqrt(x));
     },
     0, kFp16Nan, false},
    {"reciprocal", [](const Float& x, const Float&) { return x == 0 ? infinite(false) : real(1 / x); }, 0, kMinus,
     false},
    {"square", [](const Float& x, const Float&) { return rational(x * x); }, kInf, kInf, false},
    // ln(x / (1 - x))
    {"inverse_sigmoid",
     [](const Float& x, const Float&) {
       if (x < 0 || x > 1) return nan_value();
       if (x == 0 || x == 1) return infinite(x == 0);
       return x == 0.5 ? zero(false) : real(log(x / (1 - x)));
     },
     kFp16Nan, kFp16Nan, false},
};

const Function* find(std::string_view name) {
  for (const Function& function : kFunctions)
    if (function.name == name) return &function;
  return nullptr;
}

/// Ties to even; nothing if the value is too close to a tie for its precision.
std::optional<uint16_t> round_to_f16(const Value& value) {
  const uint16_t sign = value.negative ? kMinus : uint16_t{0};
  if (value.kind == Value::kNan) return kFp16Nan;
  if (value.kind == Value::kInfinite) return static_cast<uint16_t>(sign | kInf);
  if (value.real == 0) return sign;
  int exponent = 0;
  const Float magnitude = abs(value.real);
  frexp(magnitude, &exponent);  // magnitude in [2^(exponent - 1), 2^exponent)
  if (exponent > 17) return static_cast<uint16_t>(sign | kInf);
  const int quantum = std::max(exponent - 11, -24);
  const Float scaled = ldexp(magnitude, -quantum);
  const int whole = static_cast<int>(scaled);
  const Float beyond = scaled - whole - 0.5;
  if (beyond == 0 ? !value.may_tie : abs(beyond) < ldexp(Float(1), -90)) return std::nullopt;
  const bool up = beyond > 0 || (beyond == 0 && (whole & 1) != 0);
  // A normal number keeps its leading bit in `whole`, which counts as one step of the exponent field.
  const int code = whole + (up ? 1 : 0) + ((quantum + 24) << 10);
  return static_cast<uint16_t>(sign | std::min<int>(code, kInf));
}

double to_double(const Value& value) {
  if (value.kind == Value::kNan) return std::numeric_limits<double>::quiet_NaN();
  const double sign = value.negative ? -1.0 : 1.0;
  if (value.kind == Value::kInfinite) return sign * std::numeric_limits<double>::infinity();
  if (value.real == 0) return sign * 0.0;
  return static_cast<double>(value.real);
}

double to_double(uint16_t code) {
  if (code == kFp16Nan) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(f16_to_f32(code));
}

}  // namespace

bool is_fp16_function(std::string_view name) { return find(name) != nullptr; }

std::vector<std::string_view> fp16_functions() {
  std::vector<std::string_view> names;
  for (const Function& function : kFunctions) names.push_back(function.name);
  return names;
}

Result<Fp16Exact> fp16_exact_values(std::string_view name, double beta) {
  const DefaultFloatMode mode;
  const Function* function = find(name);
  if (function == nullptr)
    return Status(StatusCode::kInvalidArgument,
                  "function is \"" + std::string(name) + "\"; " + expected_one_of(name, fp16_functions()));
  if (!std::isfinite(beta))
    return Status(StatusCode::kInvalidArgument, "beta is " + std::to_string(beta) + ", must be finite");
  uint16_t ends[2] = {function->at_infinity, function->at_minus_infinity};
  if (name == "swish" && beta == 0) ends[1] = kMinus | kInf;
  if (name == "swish" && beta < 0) {
    ends[0] = 0;
    ends[1] = kMinus | kInf;
  }
  Fp16Exact result;
  result.codes.assign(65536, kFp16Nan);
  result.values.assign(65536, std::numeric_limits<double>::quiet_NaN());
  const Float precise_beta(beta);
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint32_t magnitude = code & 0x7fffu;
    if (magnitude > kInf) continue;
    if (magnitude == kInf) {
      result.codes[code] = ends[code >> 15];
      result.values[code] = to_double(result.codes[code]);
      continue;
    }
    Value value = function->at(Float(f16_to_f32(static_cast<uint16_t>(code))), precise_beta);
    const bool infinite_at_zero = value.kind == Value::kInfinite && (name == "rsqrt" || name == "reciprocal");
    if (code == 0x8000u && (function->keeps_zero_sign || infinite_at_zero)) value.negative = true;
    if (code == 0 && function->keeps_zero_sign) value.negative = false;
    const std::optional<uint16_t> rounded = round_to_f16(value);
    if (!rounded)
      return Status(StatusCode::kUnsupported,
                    std::string(name) + " at float16 code " + std::to_string(code) + " is too close to a tie");
    result.codes[code] = *rounded;
    result.values[code] = to_double(value);
  }
  return result;
}

Result<std::vector<uint16_t>> fp16_exact(std::string_view function, double beta) {
  ISOBIT_ASSIGN_OR_RETURN(Fp16Exact exact, fp16_exact_values(function, beta));
  return std::move(exact.codes);
}

Result<Fp16Exact> fp16_exact_values(const std::vector<double>& values) {
  const DefaultFloatMode mode;
  if (values.size() != 65536)
    return Status(StatusCode::kInvalidArgument, "values: " + std::to_string(values.size()) + " of them, must be 65536");
  Fp16Exact exact;
  exact.values = values;
  exact.codes.assign(65536, kFp16Nan);
  for (size_t x = 0; x < 65536; ++x) {
    const size_t magnitude = x & 0x7fffu;
    if (magnitude > kInf) continue;
    if (magnitude < kInf && !std::isfinite(values[x]))
      return Status(StatusCode::kInvalidArgument,
                    "values[" + std::to_string(x) + "] is " + std::to_string(values[x]) + ", must be finite");
    exact.codes[x] = f64_to_f16(values[x]);
  }
  return exact;
}

Result<std::vector<uint16_t>> fp16_exact(const std::vector<double>& values) {
  ISOBIT_ASSIGN_OR_RETURN(Fp16Exact exact, fp16_exact_values(values));
  return std::move(exact.codes);
}

double fp16_function_at(std::string_view function, double beta, double x) {
  const Function* found = find(function);
  if (found == nullptr || !std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  return to_double(found->at(Float(x), Float(beta)));
}

uint16_t f64_to_f16(double value) {
  if (std::isnan(value)) return kFp16Nan;
  const uint16_t sign = std::signbit(value) ? kMinus : uint16_t{0};
  if (std::isinf(value)) return static_cast<uint16_t>(sign | kInf);
  if (value == 0) return sign;
  Value exact = rational(Float(value));
  return *round_to_f16(exact);
}

}  // namespace isobit
