// SPDX-License-Identifier: Apache-2.0
// From weights and grids to the integers of a layer of static codes: numerics.md, section 12.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/number_text.h"
#include "isobit/linear.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

std::string number(float value) { return number_text(static_cast<double>(value)); }

}  // namespace

Int128 largest_accumulator(const int8_t* v, int64_t columns, int32_t bias, const Grid& x) {
  int64_t magnitude = 0;
  for (int64_t k = 0; k < columns; ++k) magnitude += std::abs(v[k]);
  return bound_multiply(magnitude, largest_difference(x)) + std::abs(static_cast<int64_t>(bias));
}

Status check_code_grid(const Grid& grid, const std::string& what) {
  ISOBIT_RETURN_IF_ERROR(check_grid(grid, what));
  if (grid.bits >= kLeastStaticBits && grid.bits <= kMostStaticBits) return {};
  return refuse_linear(what + ": bits is " + std::to_string(grid.bits) + ", must be " +
                       std::to_string(kLeastStaticBits) + ".." + std::to_string(kMostStaticBits));
}

Status refuse_code(const Grid& grid, int64_t row, int64_t column, int64_t code, const std::string& name,
                   const std::string& tensor) {
  return refuse_linear(name + ": " + low_bit_element(tensor.c_str(), row, column) + " is " + std::to_string(code) +
                       ", must be " + std::to_string(grid.min()) + ".." + std::to_string(grid.max()) +
                       ", a code of the " + (tensor == "x" ? "input" : tensor) + " grid");
}

Status check_codes(const std::byte* codes, const Grid& grid, int64_t rows, int64_t columns, int64_t stride,
                   const std::string& name, const std::string& tensor) {
  if (grid.bits == 8 || grid.bits == 16) return {};
  Status status;
  with_code_type(grid.dtype(), [&](auto zero) {
    using Code = decltype(zero);
    const auto least = static_cast<Code>(grid.min());
    const auto most = static_cast<Code>(grid.max());
    for (int64_t i = 0; i < rows; ++i) {
      const auto* row = reinterpret_cast<const Code*>(codes) + i * stride;
      bool inside = true;
      for (int64_t k = 0; k < columns; ++k) inside &= row[k] >= least && row[k] <= most;
      if (inside) continue;
      int64_t k = 0;
      while (row[k] >= least && row[k] <= most) ++k;
      status = refuse_code(grid, i, k, row[k], name, tensor);
      return;
    }
  });
  return status;
}

Status check_weight_bits(int32_t bits, const std::string& what) {
  if (bits == 1 || bits == 2 || bits == 4 || bits == 8) return {};
  return refuse_linear(what + " is " + std::to_string(bits) + ", must be 1, 2, 4 or 8");
}

Status check_static_weights(const LowBitParameters& weights, const std::string& name) {
  ISOBIT_RETURN_IF_ERROR(check_weight_bits(weights.bits, name + ": bits"));
  if (weights.kind != LowBitKind::kSymmetric)
    return refuse_linear(name + ": kind is " + std::string(to_string(weights.kind)) + ", must be symmetric");
  if (weights.group != weights.columns)
    return refuse_linear(name + ": group is " + std::to_string(weights.group) + ", must be K, " +
                         std::to_string(weights.columns));
  return {};
}

Result<std::vector<float>> channel_scales(const LowBitMatrix& matrix, const std::string& name) {
  std::vector<float> scales;
  float smallest = std::numeric_limits<float>::infinity();
  for (int64_t n = 0; n < matrix.rows(); ++n) {
    scales.push_back(matrix.scale(n, 0));
    if (scales.back() < 0)
      return refuse_linear(name + ": " + low_bit_element("scales", n, 0) + " is " + number(scales.back()) +
                           ", must be positive, or 0 in a row of zeros");
    if (scales.back() == 0 && matrix.parameters().bits == 1)
      return refuse_linear(name + ": " + low_bit_element("scales", n, 0) + " is 0: row " + std::to_string(n) +
                           " has zeros only, which weights of 1 bit cannot be; use 2 bits or more");
    if (scales.back() > 0) smallest = std::min(smallest, scales.back());
  }
  if (std::isinf(smallest)) smallest = 1.0f;
  std::replace(scales.begin(), scales.end(), 0.0f, smallest);
  return scales;
}

double unclamped_bias(float bias, const Grid& x, float scale) {
  const double product = static_cast<double>(x.scale()) * static_cast<double>(scale);  // exact
  return std::rint(static_cast<double>(bias) / product);
}

Result<StaticLinearParameters> derive_static_requantization(StaticLinearParameters layer, const LinearClamp& clamp,
                                                            std::string_view name) {
  const DefaultFloatMode mode;
  const std::string text(name);
  StaticLinearParameters& p = layer;
  ISOBIT_RETURN_IF_ERROR(check_static_integers(p, text));
  ISOBIT_RETURN_IF_ERROR(check_clamp(clamp, text));
  p.rescales.clear();
  if (!p.output) {
    if (clamp != LinearClamp::none())
      return refuse_linear(text + ": a clamp of " + number(clamp.lo) + ".." + number(clamp.hi) +
                           " was given, must be none without an output grid");
    p.lo = INT32_MIN;
    p.hi = INT32_MAX;
    return layer;
  }
  ISOBIT_RETURN_IF_ERROR(check_code_grid(*p.output, text + ": output"));
  p.lo = static_cast<int32_t>(quantize_value(*p.output, clamp.lo));
  p.hi = static_cast<int32_t>(quantize_value(*p.output, clamp.hi));
  for (int64_t n = 0; n < p.rows; ++n) {
    const Int128 acc =
        largest_accumulator(p.weights.data<int8_t>() + n * p.columns, p.columns, p.bias.data<int32_t>()[n], p.input);
    const double product =  // exact
        static_cast<double>(p.input.scale()) * static_cast<double>(p.scales.data<float>()[n]);
    const Result<RescaleParameters> rescale = encode_ratio(product / static_cast<double>(p.output->scale()), acc);
    if (!rescale.ok())
      return Status(rescale.status().code(),
                    text + ": row " + std::to_string(n) + ": accumulator -> y: " + rescale.status().message());
    p.rescales.push_back(*rescale);
  }
  return layer;
}

Result<StaticLinearParameters> derive_static_linear(const LowBitMatrix& matrix, const StaticLinearOptions& options,
                                                    std::string_view name) {
  const DefaultFloatMode mode;
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_static_weights(matrix.parameters(), text));
  ISOBIT_RETURN_IF_ERROR(check_code_grid(options.input, text + ": input"));
  ISOBIT_RETURN_IF_ERROR(check_bias(options.bias, matrix.rows(), text));
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<float> scales, channel_scales(matrix, text));

  StaticLinearParameters p;
  p.rows = matrix.rows();
  p.columns = matrix.columns();
  p.weight_bits = matrix.parameters().bits;
  p.weights = Array::zeros(Dtype::kS8, {p.rows, p.columns});
  p.scales = Array::copy_of(scales.data(), {p.rows});
  p.bias = Array::zeros(Dtype::kS32, {p.rows});
  p.input = options.input;
  p.output = options.output;
  p.rounding = options.rounding;
  for (int64_t n = 0; n < p.rows; ++n) {
    auto* v = p.weights.data<int8_t>() + n * p.columns;
    for (int64_t k = 0; k < p.columns; ++k) v[k] = static_cast<int8_t>(matrix.value(n, k));
    if (options.bias.empty()) continue;
    const float bias = options.bias[static_cast<size_t>(n)];
    if (!std::isfinite(bias))
      return refuse_linear(text + ": bias[" + std::to_string(n) + "] is " + number(bias) + ", must be finite");
    p.bias.data<int32_t>()[n] =
        static_cast<int32_t>(std::clamp(unclamped_bias(bias, options.input, scales[static_cast<size_t>(n)]),
                                        static_cast<double>(INT32_MIN), static_cast<double>(INT32_MAX)));
  }
  return derive_static_requantization(std::move(p), options.clamp, name);
}

}  // namespace isobit
