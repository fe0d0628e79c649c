// SPDX-License-Identifier: Apache-2.0
// Quantisers of low-bit weights: docs/numerics.md, section 9. All arithmetic is float64, rounded operation by
// operation.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/number_text.h"
#include "io/container.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr std::string_view kMethodNames[] = {"absmax", "minmax", "mse"};
constexpr int kMseFactors = 32;
constexpr double kSmallestF16Scale = 0x1p-14;  // the smallest normal number: below it codes lose their resolution

Status refuse(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

/// f32, f16 or bf16; rounded once, which f32_to_f16 of the nearest float32 would not be. Zero is +0.
double rounded_to(Dtype dtype, double value) {
  auto narrow = static_cast<float>(value);
  if (dtype == Dtype::kF16) narrow = f16_to_f32(f32_to_f16(f64_to_f32_odd(value)));
  if (dtype == Dtype::kBF16) narrow = bf16_to_f32(f32_to_bf16(f64_to_f32_odd(value)));
  return static_cast<double>(narrow) + 0.0;
}

/// What is stored of a group.
struct Group {
  double scale = 0;
  double offset = 0;
  int32_t zero_point = 0;
};

struct Range {
  double min = 0;
  double max = 0;
  double mean_magnitude = 0;
};

class Quantizer {
 public:
  explicit Quantizer(const LowBitOptions& options) : o_(options), codes_((1 << options.bits) - 1) {}

  static Range range_of(std::span<const double> w) {
    Range range{w[0], w[0], 0};
    double sum = 0;
    for (const double value : w) {
      range.min = std::min(range.min, value);
      range.max = std::max(range.max, value);
      sum += std::fabs(value);
    }
    range.mean_magnitude = sum / static_cast<double>(w.size());
    return range;
  }

  /// S before it is rounded.
  double raw_scale(const Range& range, double factor) const {
    if (o_.kind != LowBitKind::kSymmetric) return (factor * high(range) - factor * low(range)) / codes_;
    if (o_.bits == 1) return range.mean_magnitude;
    const double middle = 1 << (o_.bits - 1);
    return std::max(factor * range.max / (middle - 1), -(factor * range.min) / middle);
  }

  /// S, O and z of a factor of the range; none if S would be an f16 without its full precision.
  std::optional<Group> parameters(const Range& range, double factor) const {
    const double raw = raw_scale(range, factor);
    Group group{rounded_to(o_.scales, raw), 0, 1 << (o_.bits - 1)};
    if (o_.scales == Dtype::kF16 && raw != 0 && group.scale < kSmallestF16Scale) return std::nullopt;
    if (o_.kind == LowBitKind::kSymmetric) return group;
    group.zero_point = 0;
    if (o_.kind == LowBitKind::kOffset) {
      group.offset = rounded_to(o_.scales, factor * range.min);
    } else if (group.scale != 0) {
      const double z = std::rint(-(factor * low(range)) / group.scale);
      group.zero_point = static_cast<int32_t>(std::clamp(z, 0.0, codes_));
    }
    return group;
  }

  int32_t code(double w, const Group& group) const {
    if (is_sign_only()) return w >= 0 || group.scale == 0 ? 1 : 0;
    if (group.scale == 0) return group.zero_point;
    const double code = std::rint((w - group.offset) / group.scale) + group.zero_point;
    return static_cast<int32_t>(std::clamp(code, 0.0, codes_));
  }

  double squared_error(std::span<const double> w, const Group& group) const {
    double sum = 0;
    for (const double value : w) {
      const int32_t v = low_bit_value(o_.kind, o_.bits, group.zero_point, code(value, group));
      const double error = value - (group.scale * v + group.offset);
      sum += error * error;
    }
    return sum;
  }

  /// The group's parameters, or why there are none.
  Result<Group> fit(std::span<const double> w, const std::string& where) const {
    const Range range = range_of(w);
    std::optional<Group> best = parameters(range, 1);
    if (!best)
      return refuse(where + ": the scale " + number_text(raw_scale(range, 1)) +
                    " is below the smallest normal float16 number, " + number_text(kSmallestF16Scale) +
                    "; choose scales in bf16 or f32");
    for (const auto& [what, value] : {std::pair{"scale", best->scale}, std::pair{"offset", best->offset}})
      if (!std::isfinite(value))
        return refuse(where + ": the " + what + " is above the largest number of its type, " +
                      std::string(to_string(o_.scales)) + "; the weights are " + number_text(range.min) + ".." +
                      number_text(range.max));
    if (o_.method != LowBitMethod::kMse || is_sign_only()) return *best;  // a mean is no range to search
    double least = squared_error(w, *best);
    for (int i = 1; i < kMseFactors; ++i) {
      const std::optional<Group> group = parameters(range, 1 - i / 64.0);
      if (!group) break;  // nor will smaller ones do
      if (const double error = squared_error(w, *group); error < least) {
        least = error;
        best = group;
      }
    }
    return *best;
  }

 private:
  bool is_sign_only() const { return o_.kind == LowBitKind::kSymmetric && o_.bits == 1; }
  /// A zero point needs a range with 0 in it.
  double low(const Range& range) const {
    return o_.kind == LowBitKind::kZeroPoint ? std::min(range.min, 0.0) : range.min;
  }
  double high(const Range& range) const {
    return o_.kind == LowBitKind::kZeroPoint ? std::max(range.max, 0.0) : range.max;
  }

  LowBitOptions o_;
  double codes_;  // 2^bits - 1
};

Status check_weights(const Array& weights, const std::string& name) {
  if (!is_low_bit_scale(weights.dtype))
    return refuse(name + ": weights are " + std::string(to_string(weights.dtype)) + ", must be f32, f16 or bf16");
  if (weights.shape.size() != 2)
    return refuse(name + ": weights have the shape " + shape_text(weights.shape) +
                  ", must have two dimensions, (N, K)");
  return check_array(weights, name + ": weights");
}

/// Row n as float64; the first element that is not finite is refused.
Status read_row(const Array& weights, int64_t n, std::span<double> row, const std::string& name) {
  const auto columns = static_cast<int64_t>(row.size());
  for (int64_t k = 0; k < columns; ++k) {
    const auto value = static_cast<double>(float_at(weights, n * columns + k));
    if (!std::isfinite(value))
      return refuse(low_bit_element(name, n, k) + " is " + (std::isnan(value) ? "nan" : number_text(value)) +
                    ", must be finite");
    row[static_cast<size_t>(k)] = value;
  }
  return {};
}

LowBitMethod own_method(LowBitKind kind) {
  return kind == LowBitKind::kSymmetric ? LowBitMethod::kAbsmax : LowBitMethod::kMinmax;
}

Status check_options(const LowBitOptions& options, const Array& weights, const std::string& name) {
  ISOBIT_RETURN_IF_ERROR(
      check_low_bit_form(weights.shape[0], weights.shape[1], options.bits, options.group, options.kind, name));
  if (!is_low_bit_scale(options.scales))
    return refuse(name + ": scales are " + std::string(to_string(options.scales)) + ", must be f32, f16 or bf16");
  if (options.method < LowBitMethod::kAbsmax || options.method > LowBitMethod::kMse)
    return refuse(name + ": method is " + std::to_string(static_cast<int32_t>(options.method)) + ", must be 0..2");
  const LowBitMethod own = own_method(options.kind);
  if (options.method != own && options.method != LowBitMethod::kMse)
    return refuse(name + ": method is " + std::string(to_string(options.method)) + ", must be " +
                  std::string(to_string(own)) + " or mse for the kind " + std::string(to_string(options.kind)));
  return {};
}

}  // namespace

std::string_view to_string(LowBitMethod method) { return kMethodNames[static_cast<size_t>(method)]; }

std::optional<LowBitMethod> low_bit_method_from_string(std::string_view text) {
  for (size_t i = 0; i < std::size(kMethodNames); ++i)
    if (kMethodNames[i] == text) return static_cast<LowBitMethod>(i);
  return std::nullopt;
}

LowBitMethod default_low_bit_method(int32_t bits, LowBitKind kind) {
  return bits <= 2 ? LowBitMethod::kMse : own_method(kind);
}

Result<LowBitMatrix> quantize_low_bit(const Array& weights, const LowBitOptions& options, std::string_view name,
                                      ThreadPool* pool) {
  const DefaultFloatMode mode;
  const std::string what(name);
  ISOBIT_RETURN_IF_ERROR(check_weights(weights, what));
  ISOBIT_RETURN_IF_ERROR(check_options(options, weights, what));
  LowBitParameters p;
  p.rows = weights.shape[0];
  p.columns = weights.shape[1];
  p.bits = options.bits;
  p.group = options.group;
  p.kind = options.kind;
  const int64_t groups = low_bit_groups(p.columns, p.group);
  const int64_t row_bytes = low_bit_row_bytes(p.columns, p.bits);
  p.codes = Array::zeros(Dtype::kU8, {p.rows, row_bytes});
  p.scales = Array::zeros(options.scales, {p.rows, groups});
  if (p.kind == LowBitKind::kZeroPoint) p.zero_points = Array::zeros(low_bit_zero_point_dtype(p.bits), p.scales.shape);
  if (p.kind == LowBitKind::kOffset) p.offsets = Array::zeros(options.scales, p.scales.shape);

  const Quantizer quantizer(options);
  const auto quantize_rows = [&](int64_t begin, int64_t end) -> Status {
    std::vector<double> row(static_cast<size_t>(p.columns));
    for (int64_t n = begin; n < end; ++n) {
      ISOBIT_RETURN_IF_ERROR(read_row(weights, n, row, what));
      uint8_t* codes = p.codes.data<uint8_t>() + n * row_bytes;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * p.group;
        const int64_t count = std::min(p.group, p.columns - first);
        const std::span<const double> w(row.data() + first, static_cast<size_t>(count));
        ISOBIT_ASSIGN_OR_RETURN(const Group group,
                                quantizer.fit(w, what + ": row " + std::to_string(n) + ", group " + std::to_string(g)));
        for (int64_t k = 0; k < count; ++k)
          pack_code(codes, first + k, p.bits, static_cast<uint32_t>(quantizer.code(w[static_cast<size_t>(k)], group)));
        const int64_t index = n * groups + g;
        // Exact: rounded_to made them.
        set_float_at(p.scales, index, static_cast<float>(group.scale));
        if (p.kind == LowBitKind::kOffset) set_float_at(p.offsets, index, static_cast<float>(group.offset));
        if (p.kind == LowBitKind::kZeroPoint)
          store_code(p.zero_points.bytes.data(), p.zero_points.dtype, index, group.zero_point);
      }
    }
    return {};
  };
  ISOBIT_RETURN_IF_ERROR(for_rows(pool, p.rows, quantize_rows));
  return LowBitMatrix::create(std::move(p), name);
}

Result<double> sqnr(const Array& weights, const LowBitMatrix& matrix, std::string_view name, ThreadPool* pool) {
  const DefaultFloatMode mode;
  const std::string what(name);
  ISOBIT_RETURN_IF_ERROR(check_weights(weights, what));
  if (weights.shape != std::vector<int64_t>{matrix.rows(), matrix.columns()})
    return refuse(what + ": weights have the shape " + shape_text(weights.shape) + ", the low-bit matrix has " +
                  shape_text({matrix.rows(), matrix.columns()}));
  std::vector<float> decoded(static_cast<size_t>(weights.size()));
  ISOBIT_RETURN_IF_ERROR(matrix.dequantize(decoded, pool));
  struct Sums {
    double signal = 0;
    double error = 0;
  };
  std::vector<Sums> sums(static_cast<size_t>(matrix.rows()));
  const auto sum_rows = [&](int64_t begin, int64_t end) -> Status {
    std::vector<double> row(static_cast<size_t>(matrix.columns()));
    for (int64_t n = begin; n < end; ++n) {
      ISOBIT_RETURN_IF_ERROR(read_row(weights, n, row, what));
      const float* out = decoded.data() + n * matrix.columns();
      Sums& of_row = sums[static_cast<size_t>(n)];
      for (const double value : row) {
        const double error = value - static_cast<double>(*out++);
        of_row.signal += value * value;
        of_row.error += error * error;
      }
    }
    return {};
  };
  ISOBIT_RETURN_IF_ERROR(for_rows(pool, matrix.rows(), sum_rows));
  Sums total;
  for (const Sums& of_row : sums) {
    total.signal += of_row.signal;
    total.error += of_row.error;
  }
  if (total.error == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(total.signal / total.error);
}

}  // namespace isobit
