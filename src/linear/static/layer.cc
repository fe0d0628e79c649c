// SPDX-License-Identifier: Apache-2.0
// Layers of static codes: numerics.md, section 12.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/number_text.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "io/container.h"
#include "isobit/linear.h"
#include "linear/layer_parts.h"
#include "linear/layer_reference.h"
#include "linear/static/parts.h"
#include "linear/static/static.h"
#include "low_bit/parts.h"
#include "product/product.h"

namespace isobit {
namespace {

Status check_tensor(const Array& array, Dtype dtype, const std::vector<int64_t>& shape, const std::string& what) {
  if (array.dtype != dtype)
    return refuse_linear(what + " is " + std::string(to_string(array.dtype)) + ", must be " +
                         std::string(to_string(dtype)));
  if (array.shape != shape)
    return refuse_linear(what + " has the shape " + shape_text(array.shape) + ", must have " + shape_text(shape));
  return check_array(array, what);
}

Status check_code(int32_t code, const Grid& grid, const std::string& what) {
  if (code >= grid.min() && code <= grid.max()) return {};
  return refuse_linear(what + " is " + std::to_string(code) + ", must be " + std::to_string(grid.min()) + ".." +
                       std::to_string(grid.max()) + ", a code of the output grid");
}

/// Weights and scales one by one; their tensors are checked.
Status check_values(const StaticLinearParameters& p, const std::string& name) {
  const bool is_sign = p.weight_bits == 1;
  const int64_t least = code_min(p.weight_bits, true);
  const int64_t most = is_sign ? 1 : code_max(p.weight_bits, true);
  for (int64_t i = 0; i < p.weights.size(); ++i) {
    const int8_t v = p.weights.data<int8_t>()[i];
    if (v < least || v > most || (is_sign && v == 0))
      return refuse_linear(name + ": " + low_bit_element("weights", i / p.columns, i % p.columns) + " is " +
                           std::to_string(v) + ", must be " + std::to_string(least) + (is_sign ? " or " : "..") +
                           std::to_string(most));
  }
  for (int64_t n = 0; n < p.rows; ++n) {
    const float scale = p.scales.data<float>()[n];
    if (!(scale > 0) || std::isinf(scale))
      return refuse_linear(name + ": scales[" + std::to_string(n) + "] is " + number_text(static_cast<double>(scale)) +
                           ", must be positive and finite");
  }
  return {};
}

Status check_output(const StaticLinearParameters& p, const std::string& name) {
  if (!p.output) {
    const std::pair<const char*, std::pair<int32_t, int32_t>> fields[] = {{"lo", {p.lo, INT32_MIN}},
                                                                          {"hi", {p.hi, INT32_MAX}}};
    for (const auto& [field, value] : fields)
      if (value.first != value.second)
        return refuse_linear(name + ": " + field + " is " + std::to_string(value.first) + ", must be " +
                             std::to_string(value.second) + " without an output grid");
    if (p.rescales.empty()) return {};
    return refuse_linear(name + ": there are " + std::to_string(p.rescales.size()) +
                         " rescales, must be none without an output grid");
  }
  ISOBIT_RETURN_IF_ERROR(check_code_grid(*p.output, name + ": output"));
  ISOBIT_RETURN_IF_ERROR(check_code(p.lo, *p.output, name + ": lo"));
  ISOBIT_RETURN_IF_ERROR(check_code(p.hi, *p.output, name + ": hi"));
  if (p.lo > p.hi)
    return refuse_linear(name + ": lo is " + std::to_string(p.lo) + ", must be at most hi, " + std::to_string(p.hi));
  if (static_cast<int64_t>(p.rescales.size()) != p.rows)
    return refuse_linear(name + ": there are " + std::to_string(p.rescales.size()) + " rescales, must be " +
                         std::to_string(p.rows));
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

Status too_large(const std::string& what, Int128 bound, int64_t limit) {
  return {StatusCode::kOverflow,
          what + " can reach " + to_decimal(bound) + ", must stay within " + std::to_string(limit)};
}

/// Every intermediate of a row fits int64, or int32 where it is the result.
Status prove_row(const StaticLinearParameters& p, int64_t n, Int128 acc, const std::string& name) {
  const std::string row = name + ": row " + std::to_string(n) + ": ";
  if (!p.output) {
    if (acc > INT32_MAX) return too_large(row + "the accumulator", acc, INT32_MAX);
    return {};
  }
  const RescaleParameters& r = p.rescales[static_cast<size_t>(n)];
  const Int128 product = bound_multiply(acc, r.multiplier);
  if (product > INT64_MAX) return too_large(row + "accumulator * multiplier", product, INT64_MAX);
  const Int128 result = bound_add(bound_rescale(acc, r), std::abs(p.output->zero_point));
  if (result > INT64_MAX) return too_large(row + "y before its clamp", result, INT64_MAX);
  return {};
}

}  // namespace

Status check_static_integers(const StaticLinearParameters& p, const std::string& name) {
  ISOBIT_RETURN_IF_ERROR(check_low_bit_form(p.rows, p.columns, 8, p.columns, LowBitKind::kSymmetric, name));
  ISOBIT_RETURN_IF_ERROR(check_weight_bits(p.weight_bits, name + ": weight_bits"));
  ISOBIT_RETURN_IF_ERROR(check_tensor(p.weights, Dtype::kS8, {p.rows, p.columns}, name + ": weights"));
  ISOBIT_RETURN_IF_ERROR(check_tensor(p.scales, Dtype::kF32, {p.rows}, name + ": scales"));
  ISOBIT_RETURN_IF_ERROR(check_tensor(p.bias, Dtype::kS32, {p.rows}, name + ": bias"));
  ISOBIT_RETURN_IF_ERROR(check_values(p, name));
  ISOBIT_RETURN_IF_ERROR(check_code_grid(p.input, name + ": input"));
  if (p.rounding < Rounding::kNearestEven || p.rounding > Rounding::kFloor)
    return refuse_linear(name + ": rounding is " + std::to_string(static_cast<int32_t>(p.rounding)) + ", must be 0..3");
  return {};
}

struct StaticLinearLayer::Impl {
  StaticLinearParameters parameters;
  std::string name;
  int64_t acc_bound = 0;
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

  [[nodiscard]] int planes() const { return activation_planes(parameters.x_dtype()); }
  [[nodiscard]] int64_t row_bytes() const { return packed_row_bytes(parameters.x_dtype(), parameters.columns); }
  [[nodiscard]] bool tiled(int64_t m) const { return planes() == 1 && takes_tiles(product, weights, m); }
  [[nodiscard]] int64_t rows_bytes(int64_t m) const {
    return product == nullptr ? 0 : (tiled(m) ? round_up_to_tile(m) : m) * row_bytes();
  }
  [[nodiscard]] int64_t scratch_stride(int64_t m) const {
    if (product == nullptr) return round_up_64(parameters.columns * static_cast<int64_t>(sizeof(int32_t)));
    return std::min(m, kStaticRows) * kColumns * (wide ? 8 : 4);
  }
  [[nodiscard]] int64_t workspace_bytes(int64_t m, int threads) const {
    return rows_bytes(m) + threads * scratch_stride(m);
  }

  Status pack();
  void run_reference(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const;
  void run(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const;
  void run_accumulators(const LinearCall& call, BlockRange blocks, int64_t m_begin, const ActivationRows& rows,
                        int32_t* acc) const;
};

Status StaticLinearLayer::Impl::pack() {
  const StaticLinearParameters& p = parameters;
  if (p.columns > kMaxLinearK)
    return {StatusCode::kUnsupported, name + ": K is " + std::to_string(p.columns) + ", must be at most " +
                                          std::to_string(kMaxLinearK) + " on the path " + std::string(to_string(path))};
  const auto* v = p.weights.data<int8_t>();
  const std::vector<int32_t> codes(v, v + p.rows * p.columns);
  ISOBIT_ASSIGN_OR_RETURN(weights, pack_weights(codes.data(), p.rows, p.columns, 1, kStaticBlockTiles));
  const int64_t zero = p.input.zero_point + storage_offset(p.x_dtype());  // of what the product takes
  wide_start.resize(static_cast<size_t>(weights.padded_n()));
  std::vector<int64_t> bounds;
  for (int64_t n = 0; n < p.rows; ++n) {
    const int32_t bias = p.bias.data<int32_t>()[n];
    int64_t sum = 0;
    for (int64_t k = 0; k < p.columns; ++k) sum += v[n * p.columns + k];
    wide_start[static_cast<size_t>(n)] = bias - zero * sum;
    bounds.push_back(static_cast<int64_t>(largest_accumulator(v + n * p.columns, p.columns, bias, p.input)));
  }
  wide = acc_bound > INT32_MAX;
  if (!wide) start.assign(wide_start.begin(), wide_start.end());
  if (p.output)
    output.emplace(p.rescales, bounds, p.rounding, static_cast<int32_t>(p.output->zero_point), p.lo, p.hi,
                   static_cast<int32_t>(size_in_bytes(p.y_dtype())));
  product = linear_kernel(path);
  rescale = static_rescale(path);
  return {};
}

void StaticLinearLayer::Impl::run_reference(const LinearCall& call, const LinearRectangle& part,
                                            std::byte* scratch) const {
  const StaticLinearParameters& p = parameters;
  auto* row = reinterpret_cast<int32_t*>(scratch);
  for (int64_t i = part.m_begin; i < part.m_end; ++i) {
    for (int64_t k = 0; k < p.columns; ++k)
      row[k] = static_cast<int32_t>(load_code(call.x_row(i), p.x_dtype(), k) - p.input.zero_point);
    for (int64_t n = part.n_begin; n < part.n_end; ++n)
      store_code(call.y_row(i), p.y_dtype(), n, reference_static(p, n, row));
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
  const ActivationRows rows{reinterpret_cast<const uint8_t*>(call.rows) + part.m_begin * row_bytes(), row_bytes(),
                            planes(), part.m_end - part.m_begin, tiled(call.m)};
  if (!output) return run_accumulators(call, blocks, part.m_begin, rows, reinterpret_cast<int32_t*>(scratch));
  std::byte* const y = call.y_row(part.m_begin) + first * output->y_bytes();
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
  ISOBIT_RETURN_IF_ERROR(check_static_integers(parameters, text));
  ISOBIT_RETURN_IF_ERROR(check_output(parameters, text));
  auto impl = std::make_shared<Impl>();
  for (int64_t n = 0; n < parameters.rows; ++n) {
    const Int128 acc = largest_accumulator(parameters.weights.data<int8_t>() + n * parameters.columns,
                                           parameters.columns, parameters.bias.data<int32_t>()[n], parameters.input);
    ISOBIT_RETURN_IF_ERROR(prove_row(parameters, n, acc, text));
    impl->acc_bound = std::max(impl->acc_bound, static_cast<int64_t>(acc));
  }
  ISOBIT_ASSIGN_OR_RETURN(impl->path, linear_path(path, text));
  impl->parameters = std::move(parameters);
  impl->name = text;
  if (impl->path != CpuPath::kReference) {
    const Status packed = impl->pack();
    if (!packed.ok() && (path || packed.code() != StatusCode::kUnsupported)) return packed;
    if (!packed.ok()) impl->path = CpuPath::kReference;
  }
  impl->kernel = &linear_layer_kernel("linear_static", impl->path);
  StaticLinearLayer layer;
  layer.impl_ = std::move(impl);
  return layer;
}

const StaticLinearParameters& StaticLinearLayer::parameters() const { return impl_->parameters; }
const std::string& StaticLinearLayer::name() const { return impl_->name; }
int64_t StaticLinearLayer::accumulator_bound() const { return impl_->acc_bound; }
CpuPath StaticLinearLayer::path() const { return impl_->path; }
std::string_view StaticLinearLayer::kernel_name() const { return impl_->kernel->name; }

Workspace StaticLinearLayer::workspace(int64_t m, int32_t threads) const {
  return Workspace(impl_->workspace_bytes(std::max<int64_t>(m, 0), std::max(threads, 1)));
}

Status StaticLinearLayer::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                                  int64_t m, Workspace& workspace, const RunOptions& options) const {
  const DefaultFloatMode mode;
  const Impl& impl = *impl_;
  const StaticLinearParameters& p = impl.parameters;
  if (x_dtype != p.x_dtype() || y_dtype != p.y_dtype())
    return refuse_types(x_dtype, y_dtype, p.x_dtype(), p.y_dtype(), false);
  ISOBIT_RETURN_IF_ERROR(check_row_options(options, impl.path));
  LinearRows x_rows{"x", x.data(), x.size(), p.x_dtype(), p.columns, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), p.y_dtype(), p.rows, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_linear_rows(x_rows, y_rows, m));
  if (m == 0) return {};
  const int threads = threads_of(options.pool);
  ISOBIT_RETURN_IF_ERROR(check_linear_workspace(workspace, impl.workspace_bytes(m, threads), m, threads));
  std::byte* const base = workspace.data();
  const LinearCall call{x.data(), p.x_dtype(), x_rows.stride, y.data(), p.y_dtype(), y_rows.stride, m, base};
  ISOBIT_RETURN_IF_ERROR(check_codes(x.data(), p.input, m, p.columns, x_rows.stride, impl.name));
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
          call.x_row(i), p.x_dtype(), p.columns,
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
