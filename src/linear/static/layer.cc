// SPDX-License-Identifier: Apache-2.0
// Layers of static 8-bit codes: numerics.md, section 12.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/number_text.h"
#include "core/rescale.h"
#include "io/container.h"
#include "isobit/linear.h"
#include "linear/layer_parts.h"
#include "linear/layer_reference.h"
#include "linear/static/static.h"
#include "low_bit/parts.h"
#include "product/product.h"

namespace isobit {
namespace {

std::string number(float value) { return number_text(static_cast<double>(value)); }

bool is_code(Dtype dtype) { return dtype == Dtype::kS8 || dtype == Dtype::kU8; }

/// X: what acc of a row can reach.
Int128 acc_bound(const int8_t* v, int64_t columns, int32_t bias, const Grid& x) {
  int64_t magnitude = 0;
  for (int64_t k = 0; k < columns; ++k) magnitude += std::abs(v[k]);
  return bound_multiply(magnitude, largest_difference(x)) + std::abs(static_cast<int64_t>(bias));
}

/// The grid of codes of a type; only width, sign and zero point matter here.
Grid grid_of(Dtype dtype, int32_t zero_point) {
  return {.bits = 8, .is_signed = dtype == Dtype::kS8, .zero_point = zero_point};
}

Status check_grid8(const Grid& grid, const std::string& what) {
  ISOBIT_RETURN_IF_ERROR(check_grid(grid, what));
  if (grid.bits == 8) return {};
  return refuse_linear(what + ": bits is " + std::to_string(grid.bits) + ", must be 8");
}

Status check_weights(const LowBitParameters& weights, const std::string& name) {
  if (weights.bits != 8) return refuse_linear(name + ": bits is " + std::to_string(weights.bits) + ", must be 8");
  if (weights.kind != LowBitKind::kSymmetric)
    return refuse_linear(name + ": kind is " + std::string(to_string(weights.kind)) + ", must be symmetric");
  if (weights.group != weights.columns)
    return refuse_linear(name + ": group is " + std::to_string(weights.group) + ", must be K, " +
                         std::to_string(weights.columns));
  return {};
}

Status check_tensor(const Array& array, Dtype dtype, const std::vector<int64_t>& shape, const std::string& what) {
  if (array.dtype != dtype)
    return refuse_linear(what + " is " + std::string(to_string(array.dtype)) + ", must be " +
                         std::string(to_string(dtype)));
  if (array.shape != shape)
    return refuse_linear(what + " has the shape " + shape_text(array.shape) + ", must have " + shape_text(shape));
  return check_array(array, what);
}

Status check_code(int32_t code, Dtype dtype, const std::string& what) {
  const Grid grid = grid_of(dtype, 0);
  if (code >= grid.min() && code <= grid.max()) return {};
  return refuse_linear(what + " is " + std::to_string(code) + ", must be " + std::to_string(grid.min()) + ".." +
                       std::to_string(grid.max()) + ", a code of " + std::string(to_string(dtype)));
}

Status check_output(const StaticLinearParameters& p, const std::string& name) {
  if (p.rescales.empty()) {
    if (p.y_dtype != Dtype::kS32)
      return refuse_linear(name + ": y_dtype is " + std::string(to_string(p.y_dtype)) +
                           ", must be s32 without rescales");
    const std::pair<const char*, std::pair<int32_t, int32_t>> fields[] = {
        {"y_zero_point", {p.y_zero_point, 0}}, {"lo", {p.lo, INT32_MIN}}, {"hi", {p.hi, INT32_MAX}}};
    for (const auto& [field, value] : fields)
      if (value.first != value.second)
        return refuse_linear(name + ": " + field + " is " + std::to_string(value.first) + ", must be " +
                             std::to_string(value.second) + " without rescales");
    return {};
  }
  if (!is_code(p.y_dtype))
    return refuse_linear(name + ": y_dtype is " + std::string(to_string(p.y_dtype)) + ", must be s8 or u8");
  ISOBIT_RETURN_IF_ERROR(check_code(p.y_zero_point, p.y_dtype, name + ": y_zero_point"));
  ISOBIT_RETURN_IF_ERROR(check_code(p.lo, p.y_dtype, name + ": lo"));
  ISOBIT_RETURN_IF_ERROR(check_code(p.hi, p.y_dtype, name + ": hi"));
  if (p.lo > p.hi)
    return refuse_linear(name + ": lo is " + std::to_string(p.lo) + ", must be at most hi, " + std::to_string(p.hi));
  if (static_cast<int64_t>(p.rescales.size()) != p.rows)
    return refuse_linear(name + ": there are " + std::to_string(p.rescales.size()) + " rescales, must be " +
                         std::to_string(p.rows) + " or none");
  for (size_t n = 0; n < p.rescales.size(); ++n) {
    const RescaleParameters& r = p.rescales[n];
    const std::string row = name + ": rescales[" + std::to_string(n) + "]";
    if (r.multiplier < 1)
      return refuse_linear(row + ".multiplier is " + std::to_string(r.multiplier) + ", must be at least 1");
    if (r.shift < kMinShift || r.shift > kMaxShift)
      return refuse_linear(row + ".shift is " + std::to_string(r.shift) + ", must be " + std::to_string(kMinShift) +
                           ".." + std::to_string(kMaxShift));
  }
  return {};
}

Status check(const StaticLinearParameters& p, const std::string& name) {
  ISOBIT_RETURN_IF_ERROR(check_low_bit_form(p.rows, p.columns, 8, p.columns, LowBitKind::kSymmetric, name));
  ISOBIT_RETURN_IF_ERROR(check_tensor(p.weights, Dtype::kS8, {p.rows, p.columns}, name + ": weights"));
  ISOBIT_RETURN_IF_ERROR(check_tensor(p.bias, Dtype::kS32, {p.rows}, name + ": bias"));
  if (!is_code(p.x_dtype))
    return refuse_linear(name + ": x_dtype is " + std::string(to_string(p.x_dtype)) + ", must be s8 or u8");
  ISOBIT_RETURN_IF_ERROR(check_code(p.x_zero_point, p.x_dtype, name + ": x_zero_point"));
  if (p.rounding < Rounding::kNearestEven || p.rounding > Rounding::kFloor)
    return refuse_linear(name + ": rounding is " + std::to_string(static_cast<int32_t>(p.rounding)) + ", must be 0..3");
  return check_output(p, name);
}

Status too_large(const std::string& what, Int128 bound, int64_t limit) {
  return {StatusCode::kOverflow,
          what + " can reach " + to_decimal(bound) + ", must stay within " + std::to_string(limit)};
}

/// Every intermediate of a row fits int64, or int32 where it is the result.
Status prove_row(const StaticLinearParameters& p, int64_t n, Int128 acc, const std::string& name) {
  const std::string row = name + ": row " + std::to_string(n) + ": ";
  if (p.rescales.empty()) {
    if (acc > INT32_MAX) return too_large(row + "the accumulator", acc, INT32_MAX);
    return {};
  }
  const RescaleParameters& r = p.rescales[static_cast<size_t>(n)];
  const Int128 product = bound_multiply(acc, r.multiplier);
  if (product > INT64_MAX) return too_large(row + "accumulator * multiplier", product, INT64_MAX);
  const Int128 result = bound_add(bound_rescale(acc, r), std::abs(p.y_zero_point));
  if (result > INT64_MAX) return too_large(row + "y before its clamp", result, INT64_MAX);
  return {};
}

}  // namespace

Result<std::vector<float>> static_channel_scales(const LowBitMatrix& matrix, const std::string& name) {
  std::vector<float> scales;
  float smallest = std::numeric_limits<float>::infinity();
  for (int64_t n = 0; n < matrix.rows(); ++n) {
    scales.push_back(matrix.scale(n, 0));
    if (scales.back() < 0)
      return refuse_linear(name + ": " + low_bit_element("scales", n, 0) + " is " + number(scales.back()) +
                           ", must be positive, or 0 in a row of zeros");
    if (scales.back() > 0) smallest = std::min(smallest, scales.back());
  }
  if (std::isinf(smallest)) smallest = 1.0f;
  std::replace(scales.begin(), scales.end(), 0.0f, smallest);
  return scales;
}

Result<StaticLinearParameters> derive_static_linear(const LowBitMatrix& matrix, const StaticLinearOptions& options,
                                                    std::string_view name) {
  const DefaultFloatMode mode;
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_weights(matrix.parameters(), text));
  ISOBIT_RETURN_IF_ERROR(check_grid8(options.input, text + ": input"));
  if (options.output) ISOBIT_RETURN_IF_ERROR(check_grid8(*options.output, text + ": output"));
  ISOBIT_RETURN_IF_ERROR(check_clamp(options.clamp, text));
  if (!options.output && options.clamp != LinearClamp::none())
    return refuse_linear(text + ": a clamp of " + number(options.clamp.lo) + ".." + number(options.clamp.hi) +
                         " was given, must be none without an output grid");
  ISOBIT_RETURN_IF_ERROR(check_bias(options.bias, matrix.rows(), text));
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<float> scales, static_channel_scales(matrix, text));

  StaticLinearParameters p;
  p.rows = matrix.rows();
  p.columns = matrix.columns();
  p.weights = Array::zeros(Dtype::kS8, {p.rows, p.columns});
  p.bias = Array::zeros(Dtype::kS32, {p.rows});
  p.x_dtype = options.input.dtype();
  p.x_zero_point = static_cast<int32_t>(options.input.zero_point);
  p.rounding = options.rounding;
  if (options.output) {
    p.y_dtype = options.output->dtype();
    p.y_zero_point = static_cast<int32_t>(options.output->zero_point);
    p.lo = static_cast<int32_t>(quantize_value(*options.output, options.clamp.lo));
    p.hi = static_cast<int32_t>(quantize_value(*options.output, options.clamp.hi));
  } else {
    p.y_dtype = Dtype::kS32;
    p.lo = INT32_MIN;
    p.hi = INT32_MAX;
  }
  for (int64_t n = 0; n < p.rows; ++n) {
    auto* v = p.weights.data<int8_t>() + n * p.columns;
    for (int64_t k = 0; k < p.columns; ++k) v[k] = static_cast<int8_t>(matrix.value(n, k));
    const double product =  // exact
        static_cast<double>(options.input.scale()) * static_cast<double>(scales[static_cast<size_t>(n)]);
    int32_t& bias = p.bias.data<int32_t>()[n];
    if (!options.bias.empty()) {
      const float given = options.bias[static_cast<size_t>(n)];
      if (!std::isfinite(given))
        return refuse_linear(text + ": bias[" + std::to_string(n) + "] is " + number(given) + ", must be finite");
      bias = static_cast<int32_t>(std::clamp(std::rint(static_cast<double>(given) / product),
                                             static_cast<double>(INT32_MIN), static_cast<double>(INT32_MAX)));
    }
    if (!options.output) continue;
    const Int128 acc = acc_bound(v, p.columns, bias, options.input);
    const Result<RescaleParameters> rescale = encode_ratio(product / static_cast<double>(options.output->scale()), acc);
    if (!rescale.ok())
      return Status(rescale.status().code(),
                    text + ": row " + std::to_string(n) + ": accumulator -> y: " + rescale.status().message());
    p.rescales.push_back(*rescale);
  }
  return p;
}

struct StaticLinearLayer::Impl {
  StaticLinearParameters parameters;
  CpuPath path = CpuPath::kReference;
  const LinearLayerKernel* kernel = nullptr;
  // Not on the reference:
  LinearKernel product = nullptr;
  StaticRescale rescale = nullptr;
  PackedWeights weights;
  std::optional<StaticOutput> output;  // none: y is acc
  bool wide = false;                   // acc needs int64
  std::vector<int32_t> start;          // [padded N]: bias and everything of the zero point; modulo 2^32 unless wide
  std::vector<int64_t> wide_start;

  static constexpr int64_t kColumns = kStaticBlockTiles * kTileRows;  // of the widest block

  [[nodiscard]] int64_t row_bytes() const { return packed_row_bytes(parameters.x_dtype, parameters.columns); }
  [[nodiscard]] bool tiled(int64_t m) const { return takes_tiles(product, weights, m); }
  [[nodiscard]] int64_t rows_bytes(int64_t m) const {
    return product == nullptr ? 0 : (tiled(m) ? round_up_to_tile(m) : m) * row_bytes();
  }
  [[nodiscard]] int64_t scratch_stride(int64_t m) const {
    if (product == nullptr) return round_up_64(parameters.columns * static_cast<int64_t>(sizeof(int16_t)));
    return std::min(m, kStaticRows) * kColumns * (wide ? 8 : 4);
  }
  [[nodiscard]] int64_t workspace_bytes(int64_t m, int threads) const {
    return rows_bytes(m) + threads * scratch_stride(m);
  }

  Status pack(const std::string& name);
  void run_reference(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const;
  void run(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const;
  void run_accumulators(const LinearCall& call, BlockRange blocks, int64_t m_begin, const ActivationRows& rows,
                        int32_t* acc) const;
};

Status StaticLinearLayer::Impl::pack(const std::string& name) {
  const StaticLinearParameters& p = parameters;
  if (p.columns > kMaxLinearK)
    return {StatusCode::kUnsupported, name + ": K is " + std::to_string(p.columns) + ", must be at most " +
                                          std::to_string(kMaxLinearK) + " on the path " + std::string(to_string(path))};
  const auto* v = p.weights.data<int8_t>();
  const std::vector<int32_t> codes(v, v + p.rows * p.columns);
  ISOBIT_ASSIGN_OR_RETURN(weights, pack_weights(codes.data(), p.rows, p.columns, 1, kStaticBlockTiles));
  const Grid x = grid_of(p.x_dtype, p.x_zero_point);
  wide_start.resize(static_cast<size_t>(weights.padded_n()));
  std::vector<int64_t> bounds;
  for (int64_t n = 0; n < p.rows; ++n) {
    const int32_t bias = p.bias.data<int32_t>()[n];
    int64_t sum = 0;
    for (int64_t k = 0; k < p.columns; ++k) sum += v[n * p.columns + k];
    wide_start[static_cast<size_t>(n)] = bias - (p.x_zero_point + storage_offset(p.x_dtype)) * sum;
    bounds.push_back(static_cast<int64_t>(acc_bound(v + n * p.columns, p.columns, bias, x)));
    wide |= bounds.back() > INT32_MAX;
  }
  if (!wide) start.assign(wide_start.begin(), wide_start.end());
  if (!p.rescales.empty()) output.emplace(p.rescales, bounds, p.rounding, p.y_zero_point, p.lo, p.hi);
  product = linear_kernel(path);
  rescale = static_rescale(path);
  return {};
}

void StaticLinearLayer::Impl::run_reference(const LinearCall& call, const LinearRectangle& part,
                                            std::byte* scratch) const {
  const StaticLinearParameters& p = parameters;
  auto* row = reinterpret_cast<int16_t*>(scratch);
  for (int64_t i = part.m_begin; i < part.m_end; ++i) {
    for (int64_t k = 0; k < p.columns; ++k)
      row[k] = static_cast<int16_t>(load_code(call.x_row(i), p.x_dtype, k) - p.x_zero_point);
    for (int64_t n = part.n_begin; n < part.n_end; ++n)
      store_code(call.y_row(i), p.y_dtype, n, reference_static(p, n, row));
  }
}

void StaticLinearLayer::Impl::run_accumulators(const LinearCall& call, BlockRange blocks, int64_t m_begin,
                                               const ActivationRows& rows, int32_t* acc) const {
  for (int64_t m = 0; m < rows.m; m += kStaticRows) {
    const ActivationRows some{rows.data + m * rows.stride_bytes, rows.stride_bytes, rows.planes,
                              std::min(kStaticRows, rows.m - m), rows.tiled};
    auto* const y = reinterpret_cast<int32_t*>(call.y_row(m_begin + m));
    const int32_t whole = weights.first_row(blocks.end) <= parameters.rows ? blocks.end : blocks.end - 1;
    const int64_t first = weights.first_row(blocks.begin);
    linear(product, weights, {blocks.begin, whole}, some, start.data() + first, y + first, call.y_stride, true);
    if (whole == blocks.end) continue;
    const int64_t last = weights.first_row(whole);
    linear(product, weights, {whole, blocks.end}, some, start.data() + last, acc, kColumns, true);
    for (int64_t i = 0; i < some.m; ++i)
      std::memcpy(y + i * call.y_stride + last, acc + i * kColumns,
                  static_cast<size_t>(parameters.rows - last) * sizeof *acc);
  }
}

void StaticLinearLayer::Impl::run(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const {
  const BlockRange blocks{static_cast<int32_t>(part.n_begin), static_cast<int32_t>(part.n_end)};
  const int64_t first = weights.first_row(blocks.begin);
  const ActivationRows rows{reinterpret_cast<const uint8_t*>(call.rows) + part.m_begin * row_bytes(), row_bytes(), 1,
                            part.m_end - part.m_begin, tiled(call.m)};
  if (!output) return run_accumulators(call, blocks, part.m_begin, rows, reinterpret_cast<int32_t*>(scratch));
  auto* const y = reinterpret_cast<uint8_t*>(call.y_row(part.m_begin)) + first;
  if (wide) {
    static_product(product, rescale, weights, blocks, rows, wide_start.data() + first, *output, y, call.y_stride,
                   reinterpret_cast<int64_t*>(scratch));
  } else {
    static_product(product, rescale, weights, blocks, rows, start.data() + first, *output, y, call.y_stride,
                   reinterpret_cast<int32_t*>(scratch));
  }
}

Result<StaticLinearLayer> StaticLinearLayer::create(StaticLinearParameters parameters, std::string_view name,
                                                    std::optional<CpuPath> path) {
  const DefaultFloatMode mode;
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check(parameters, text));
  const Grid x = grid_of(parameters.x_dtype, parameters.x_zero_point);
  for (int64_t n = 0; n < parameters.rows; ++n)
    ISOBIT_RETURN_IF_ERROR(prove_row(parameters, n,
                                     acc_bound(parameters.weights.data<int8_t>() + n * parameters.columns,
                                               parameters.columns, parameters.bias.data<int32_t>()[n], x),
                                     text));
  auto impl = std::make_shared<Impl>();
  ISOBIT_ASSIGN_OR_RETURN(impl->path, linear_path(path, text));
  impl->parameters = std::move(parameters);
  if (impl->path != CpuPath::kReference) {
    const Status packed = impl->pack(text);
    if (!packed.ok() && (path || packed.code() != StatusCode::kUnsupported)) return packed;
    if (!packed.ok()) impl->path = CpuPath::kReference;
  }
  impl->kernel = &linear_layer_kernel("linear_static", impl->path);
  StaticLinearLayer layer;
  layer.impl_ = std::move(impl);
  return layer;
}

const StaticLinearParameters& StaticLinearLayer::parameters() const { return impl_->parameters; }
CpuPath StaticLinearLayer::path() const { return impl_->path; }
std::string_view StaticLinearLayer::kernel_name() const { return impl_->kernel->name; }

LinearWorkspace StaticLinearLayer::workspace(int64_t m, int32_t threads) const {
  return LinearWorkspace(impl_->workspace_bytes(std::max<int64_t>(m, 0), std::max(threads, 1)));
}

Status StaticLinearLayer::forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t m,
                                  LinearWorkspace& workspace, const LinearRunOptions& options) const {
  const DefaultFloatMode mode;
  const Impl& impl = *impl_;
  const StaticLinearParameters& p = impl.parameters;
  LinearRows x_rows{"x", x.data(), x.size(), p.x_dtype, p.columns, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), p.y_dtype, p.rows, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_linear_rows(x_rows, y_rows, m));
  if (m == 0) return {};
  const int threads = threads_of(options.pool);
  ISOBIT_RETURN_IF_ERROR(check_linear_workspace(workspace.size_bytes(), impl.workspace_bytes(m, threads), m, threads));
  std::byte* const base = workspace.bytes_.get();
  const LinearCall call{x.data(), p.x_dtype, x_rows.stride, y.data(), p.y_dtype, y_rows.stride, m, base};
  const auto scratch = [&](int part) { return base + impl.rows_bytes(m) + part * impl.scratch_stride(m); };
  if (impl.product == nullptr) {
    for_rectangles(options.pool, m, p.rows, [&](int part, const LinearRectangle& rectangle) {
      impl.run_reference(call, rectangle, scratch(part));
    });
    return {};
  }
  const auto pack_rows = [&](int, int64_t begin, int64_t end) {
    const bool tiled = impl.tiled(m);
    for (int64_t i = begin; i < end; ++i)
      pack_activations_row(
          call.x_row(i), p.x_dtype, p.columns,
          reinterpret_cast<uint8_t*>(call.rows) + (tiled ? tiled_row_at(i, impl.row_bytes()) : i * impl.row_bytes()),
          tiled ? kTileBytes : kTileColumns);
  };
  if (options.pool == nullptr) {
    pack_rows(0, 0, m);
  } else {
    options.pool->for_ranges(m, pack_rows);
  }
  for_rectangles(options.pool, m, impl.weights.all_blocks().end,
                 [&](int part, const LinearRectangle& rectangle) { impl.run(call, rectangle, scratch(part)); });
  return {};
}

}  // namespace isobit
