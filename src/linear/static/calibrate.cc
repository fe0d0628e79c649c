// SPDX-License-Identifier: Apache-2.0
// Statistics of a layer of float weights, and the static codes that are derived from them: numerics.md, section 12.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/float_mode.h"
#include "core/number_text.h"
#include "io/container.h"
#include "isobit/linear.h"
#include "linear/layer_parts.h"
#include "linear/layer_reference.h"
#include "linear/static/parts.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr int64_t kRowsTogether = 256;
constexpr double kBiasRoom = 0x1p30;  // of a row that was dead

std::string number(float value) { return number_text(static_cast<double>(value)); }

/// The first element that is not finite, or count.
int64_t first_not_finite(const float* values, int64_t count) {
  return std::find_if_not(values, values + count, [](float v) { return std::isfinite(v); }) - values;
}

/// y = act(x W^T + bias) of one row. weights: [K, N]; sums: N elements of scratch.
void float_row(const float* weights, const std::vector<float>& bias, const LinearClamp& clamp, const float* x,
               int64_t columns, std::vector<double>& sums, float* y) {
  std::fill(sums.begin(), sums.end(), 0.0);
  const size_t rows = sums.size();
  for (int64_t k = 0; k < columns; ++k, weights += rows) {
    const auto value = static_cast<double>(x[k]);
    for (size_t n = 0; n < rows; ++n) sums[n] += value * static_cast<double>(weights[n]);
  }
  for (size_t n = 0; n < rows; ++n) {
    const double sum = bias.empty() ? sums[n] : sums[n] + static_cast<double>(bias[n]);
    y[n] = static_cast<float>(sum);
    if (std::isfinite(y[n])) y[n] = reference_act(y[n], clamp);
  }
}

/// Least and greatest of every step, sequence by sequence.
struct StepRanges {
  explicit StepRanges(int64_t count) : min(static_cast<size_t>(count)), max(static_cast<size_t>(count)) {}

  void set(int64_t at, const float* values, int64_t count) {
    const auto [low, high] = std::minmax_element(values, values + count);
    min[static_cast<size_t>(at)] = *low;
    max[static_cast<size_t>(at)] = *high;
  }
  void observe(TensorStatistics& statistics, int64_t steps) const {
    for (size_t at = 0; at < min.size(); at += static_cast<size_t>(steps))
      statistics.observe_sequence_ranges(min.data() + at, max.data() + at, steps);
  }

  std::vector<float> min, max;
};

/// A row of weights and what decides on its scale.
struct Row {
  const Grid& x;
  float bias;
  bool is_accumulator;  // y is acc

  [[nodiscard]] double bias_magnitude(float scale) const { return std::fabs(unclamped_bias(bias, x, scale)); }

  /// The bias alone is at fault. v: the row's integers.
  [[nodiscard]] bool is_dead(const int8_t* v, int64_t columns, float scale) const {
    const double code = unclamped_bias(bias, x, scale);
    if (code < static_cast<double>(INT32_MIN) || code > static_cast<double>(INT32_MAX)) return true;
    return is_accumulator && largest_accumulator(v, columns, static_cast<int32_t>(code), x) > INT32_MAX &&
           largest_accumulator(v, columns, 0, x) <= INT32_MAX;
  }

  /// The least scale, not below `scale`, on which the bias has room.
  [[nodiscard]] std::optional<float> coarser(float scale) const {
    // The bits of positive floats have the order of the floats, and a larger scale never leaves less room.
    auto low = std::bit_cast<uint32_t>(scale);
    auto high = std::bit_cast<uint32_t>(std::numeric_limits<float>::max());
    if (bias_magnitude(std::bit_cast<float>(high)) > kBiasRoom) return std::nullopt;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (bias_magnitude(std::bit_cast<float>(middle)) <= kBiasRoom) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return std::bit_cast<float>(high);
  }
};

/// The matrix with a scale for rows of zeros, and a larger one for nearly dead rows. weights: f32 [N, K], what it was
/// made from.
Result<LowBitMatrix> revive_rows(const LowBitMatrix& matrix, const Array& weights, const std::vector<float>& bias,
                                 const Grid& x, bool is_accumulator, const std::string& name) {
  LowBitParameters p = matrix.parameters();
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<float> scales, channel_scales(matrix, name));
  std::copy(scales.begin(), scales.end(), p.scales.data<float>());
  std::vector<int8_t> v(static_cast<size_t>(p.columns));
  const int32_t z = 1 << (p.bits - 1);
  for (int64_t n = 0; n < p.rows && !bias.empty(); ++n) {
    const Row row{x, bias[static_cast<size_t>(n)], is_accumulator};
    float& scale = p.scales.data<float>()[n];
    for (int64_t k = 0; k < p.columns; ++k) v[static_cast<size_t>(k)] = static_cast<int8_t>(matrix.value(n, k));
    if (!row.is_dead(v.data(), p.columns, scale)) continue;
    if (p.bits == 1)
      return Status(StatusCode::kOverflow,
                    name + ": row " + std::to_string(n) + ": the bias " + number(row.bias) +
                        " has too many steps of x on the scale of the weights, and a larger scale would change weights "
                        "of 1 bit, which have no zero; use 2 bits or more");
    const std::optional<float> coarser = row.coarser(scale);
    if (!coarser)
      return Status(StatusCode::kOverflow, name + ": row " + std::to_string(n) + ": the bias " + number(row.bias) +
                                               " has more than 2^30 steps of x on every scale of the weights");
    scale = *coarser;
    uint8_t* const codes = p.codes.data<uint8_t>() + n * matrix.row_bytes();
    std::fill_n(codes, matrix.row_bytes(), uint8_t{0});
    for (int64_t k = 0; k < p.columns; ++k) {
      const auto value = static_cast<double>(weights.data<float>()[n * p.columns + k]);
      const double code = std::rint(value / static_cast<double>(scale)) + z;
      pack_code(codes, k, p.bits, static_cast<uint32_t>(std::clamp(code, 0.0, 2.0 * z - 1)));
    }
  }
  return LowBitMatrix::create(std::move(p), name);
}

}  // namespace

Result<StaticLinearCalibrator> StaticLinearCalibrator::create(const Array& weights, std::span<const float> bias,
                                                              const LinearClamp& clamp, std::string_view name,
                                                              double ema_decay) {
  const DefaultFloatMode mode;
  const std::string text(name);
  if (!is_low_bit_scale(weights.dtype))
    return refuse_linear(text + ": weights are " + std::string(to_string(weights.dtype)) +
                         ", must be f32, f16 or bf16");
  if (weights.shape.size() != 2 || weights.shape[0] < 1 || weights.shape[1] < 1)
    return refuse_linear(text + ": weights have the shape " + shape_text(weights.shape) +
                         ", must have two dimensions, (N, K), of at least 1");
  ISOBIT_RETURN_IF_ERROR(check_array(weights, text + ": weights"));
  const int64_t columns = weights.shape[1];
  const std::vector<float> values = weights.to_float();
  if (const int64_t bad = first_not_finite(values.data(), weights.size()); bad < weights.size())
    return refuse_linear(text + ": " + low_bit_element("weights", bad / columns, bad % columns) + " is " +
                         number(values[static_cast<size_t>(bad)]) + ", must be finite");
  ISOBIT_RETURN_IF_ERROR(check_bias(bias, weights.shape[0], text));
  const auto count = static_cast<int64_t>(bias.size());
  if (const int64_t bad = first_not_finite(bias.data(), count); bad < count)
    return refuse_linear(text + ": bias[" + std::to_string(bad) + "] is " + number(bias[static_cast<size_t>(bad)]) +
                         ", must be finite");
  ISOBIT_RETURN_IF_ERROR(check_clamp(clamp, text));
  if (!(ema_decay >= 0 && ema_decay < 1))
    return refuse_linear(text + ": ema decay " + number_text(ema_decay) + "; it must be at least 0 and below 1");
  StaticLinearCalibrator calibrator;
  calibrator.weights_ = Array::copy_of(values.data(), weights.shape);
  calibrator.bias_.assign(bias.begin(), bias.end());
  calibrator.clamp_ = clamp;
  calibrator.name_ = text;
  calibrator.x_ = calibrator.y_ = TensorStatistics(ema_decay);
  return calibrator;
}

Status StaticLinearCalibrator::observe(std::span<const float> x, int64_t steps, int64_t batch, ThreadPool* pool) {
  const DefaultFloatMode mode;
  const int64_t rows = weights_.shape[0];
  const int64_t columns = weights_.shape[1];
  for (const auto& [what, value] : {std::pair("steps", steps), std::pair("batch", batch)})
    if (value < 0) return refuse_linear(name_ + ": " + what + " is " + std::to_string(value) + ", must be at least 0");
  const Int128 wanted = static_cast<Int128>(steps) * batch * columns;
  if (static_cast<Int128>(x.size()) != wanted)
    return refuse_linear(name_ + ": x has " + std::to_string(x.size()) + " elements, must have " + to_decimal(wanted) +
                         ": " + std::to_string(steps) + " steps of " + std::to_string(batch) + " sequences of " +
                         std::to_string(columns));
  if (wanted == 0) return {};
  const int64_t m = steps * batch;
  const auto place = [&](const char* tensor, int64_t row, int64_t i) {
    return name_ + ": " + tensor + "[" + std::to_string(row / batch) + ", " + std::to_string(row % batch) + ", " +
           std::to_string(i) + "]";
  };
  const auto count = static_cast<int64_t>(x.size());
  if (const int64_t bad = first_not_finite(x.data(), count); bad < count)
    return refuse_linear(place("x", bad / columns, bad % columns) + " is " + number(x[static_cast<size_t>(bad)]) +
                         ", must be finite");

  std::vector<float> transposed(static_cast<size_t>(rows * columns));
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t k = 0; k < columns; ++k)
      transposed[static_cast<size_t>(k * rows + n)] = weights_.data<float>()[n * columns + k];
  TensorStatistics x_part(x_.ema_decay());
  TensorStatistics y_part(y_.ema_decay());
  StepRanges x_ranges(m);
  StepRanges y_ranges(m);
  std::vector<float> y(static_cast<size_t>(std::min(m, kRowsTogether) * rows));
  for (int64_t first = 0; first < m; first += kRowsTogether) {
    const int64_t together = std::min(kRowsTogether, m - first);
    const auto run = [&](int, int64_t begin, int64_t end) {
      std::vector<double> sums(static_cast<size_t>(rows));
      for (int64_t i = begin; i < end; ++i)
        float_row(transposed.data(), bias_, clamp_, x.data() + (first + i) * columns, columns, sums,
                  y.data() + i * rows);
    };
    if (pool == nullptr) {
      run(0, 0, together);
    } else {
      pool->for_ranges(together, run);
    }
    if (const int64_t bad = first_not_finite(y.data(), together * rows); bad < together * rows)
      return refuse_linear(place("y", first + bad / rows, bad % rows) +
                           " exceeds float32; the weights or x are too large");
    x_part.observe(x.data() + first * columns, together * columns);
    y_part.observe(y.data(), together * rows);
    for (int64_t i = 0; i < together; ++i) {
      const int64_t at = (first + i) % batch * steps + (first + i) / batch;
      x_ranges.set(at, x.data() + (first + i) * columns, columns);
      y_ranges.set(at, y.data() + i * rows, rows);
    }
  }
  x_ranges.observe(x_part, steps);
  y_ranges.observe(y_part, steps);
  x_.merge(x_part);
  y_.merge(y_part);
  return {};
}

Status StaticLinearCalibrator::merge(const StaticLinearCalibrator& other) {
  const DefaultFloatMode mode;
  const auto refuse = [&](const std::string& what) {
    return refuse_linear(name_ + ": the calibrator to merge has " + what);
  };
  if (weights_ != other.weights_) return refuse("other weights, must have the same shape and values");
  if (bias_ != other.bias_) return refuse("another bias, must have the same values");
  if (clamp_ != other.clamp_) return refuse("another clamp, must have the same");
  if (x_.ema_decay() != other.x_.ema_decay())
    return refuse("the ema decay " + number_text(other.x_.ema_decay()) + ", must be " + number_text(x_.ema_decay()));
  x_.merge(other.x_);
  y_.merge(other.y_);
  return {};
}

Result<StaticLinearParameters> StaticLinearCalibrator::derive(const StaticLinearQuantization& q) const {
  const DefaultFloatMode mode;
  StaticLinearOptions options{.bias = bias_, .clamp = clamp_, .rounding = q.rounding};
  if (q.input) {
    options.input = *q.input;
  } else {
    ISOBIT_ASSIGN_OR_RETURN(options.input, choose_grid(x_, q.x, q.scale, q.x_method, name_ + ": x"));
  }
  ISOBIT_RETURN_IF_ERROR(check_code_grid(options.input, name_ + (q.input ? ": input" : ": x")));
  if (q.y) {
    ISOBIT_ASSIGN_OR_RETURN(options.output, choose_grid(y_, *q.y, q.scale, q.y_method, name_ + ": y"));
    ISOBIT_RETURN_IF_ERROR(check_code_grid(*options.output, name_ + ": y"));
  }
  ISOBIT_RETURN_IF_ERROR(check_weight_bits(q.weight_bits, name_ + ": weight_bits"));
  ISOBIT_ASSIGN_OR_RETURN(
      const LowBitMatrix matrix,
      quantize_low_bit(weights_, {.bits = q.weight_bits, .group = weights_.shape[1], .method = q.weight_method},
                       name_));
  ISOBIT_ASSIGN_OR_RETURN(const LowBitMatrix revived, revive_rows(matrix, weights_, bias_, options.input, !q.y, name_));
  return derive_static_linear(revived, options, name_);
}

Result<StaticLinearLayer> StaticLinearCalibrator::finish(const StaticLinearQuantization& quantization,
                                                         std::optional<CpuPath> path) const {
  ISOBIT_ASSIGN_OR_RETURN(StaticLinearParameters parameters, derive(quantization));
  return StaticLinearLayer::create(std::move(parameters), name_, path);
}

}  // namespace isobit
