// SPDX-License-Identifier: Apache-2.0
// Grids of a static layer from data.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/float_mode.h"
#include "isobit/linear.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"

namespace isobit {
namespace {

using Range = std::optional<std::pair<float, float>>;

Result<Grid> grid_of(const Range& range, std::span<const float> values, const std::string& what) {
  std::pair<float, float> ends = range.value_or(std::pair(0.0f, 0.0f));
  if (!range && !values.empty()) {
    const auto bad = std::find_if_not(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
    if (bad != values.end())
      return refuse_linear(what + " is not finite at flat index " + std::to_string(bad - values.begin()) +
                           "; it has no grid");
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    ends = {*low, *high};
  }
  return derive_grid(ends.first, ends.second, {}, ScaleKind::kReal, 255, what);
}

/// The clamped results of the layer on `x` as real numbers, rounded to float32.
Result<std::vector<float>> results(const LowBitMatrix& matrix, std::span<const float> x,
                                   const StaticLinearOptions& options, std::string_view name, ThreadPool* pool) {
  StaticLinearOptions accumulators = options;
  accumulators.output.reset();
  accumulators.clamp = {};
  ISOBIT_ASSIGN_OR_RETURN(StaticLinearParameters parameters, derive_static_linear(matrix, accumulators, name));
  ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer layer, StaticLinearLayer::create(std::move(parameters), name));
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<float> scales, channel_scales(matrix, std::string(name)));
  const int64_t m = std::ssize(x) / matrix.columns();
  Array codes = Array::zeros(options.input.dtype(), {m, matrix.columns()});
  ISOBIT_RETURN_IF_ERROR(quantize(options.input, x, codes.bytes.data(), "X"));
  Array sums = Array::zeros(Dtype::kS32, {m, matrix.rows()});
  Workspace workspace = layer.workspace(m, threads_of(pool));
  ISOBIT_RETURN_IF_ERROR(layer.forward_codes(codes.bytes, sums.bytes, m, workspace, {.pool = pool}));
  std::vector<float> out(static_cast<size_t>(sums.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const double scale = static_cast<double>(options.input.scale()) * static_cast<double>(scales[i % scales.size()]);
    const auto value = static_cast<float>(scale * sums.data<int32_t>()[i]);
    out[i] = value < options.clamp.lo ? options.clamp.lo : value > options.clamp.hi ? options.clamp.hi : value;
  }
  return out;
}

}  // namespace

Result<StaticLinearOptions> choose_static_grids(const LowBitMatrix& matrix, std::span<const float> x,
                                                const StaticLinearOptions& options, const StaticLinearRanges& ranges,
                                                std::string_view name, ThreadPool* pool) {
  const DefaultFloatMode mode;
  if (std::ssize(x) % matrix.columns() != 0)
    return refuse_linear(std::string(name) + ": x has " + std::to_string(x.size()) +
                         " elements, must have a multiple of K, " + std::to_string(matrix.columns()));
  ISOBIT_RETURN_IF_ERROR(check_clamp(options.clamp, std::string(name)));
  StaticLinearOptions out = options;
  ISOBIT_ASSIGN_OR_RETURN(out.input, grid_of(ranges.x, x, "X"));
  std::vector<float> y;
  if (!ranges.y) {
    ISOBIT_ASSIGN_OR_RETURN(y, results(matrix, x, out, name, pool));
  }
  ISOBIT_ASSIGN_OR_RETURN(out.output, grid_of(ranges.y, y, "the result"));
  return out;
}

}  // namespace isobit
