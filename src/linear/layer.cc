// SPDX-License-Identifier: Apache-2.0
// Layers with floating-point rows: what is checked, and who does which part.
#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "core/float_mode.h"
#include "isobit/linear.h"
#include "linear/layer_engine.h"
#include "linear/layer_parts.h"

namespace isobit {
namespace {

/// The first row that cannot be quantised, or m.
int64_t quantize_rows(const LinearEngine& engine, const LinearCall& call, std::byte* scratch, int64_t scratch_stride,
                      ThreadPool* pool) {
  std::atomic<int64_t> first{call.m};
  const auto part = [&](int index, int64_t begin, int64_t end) {
    int64_t bad = call.m;
    for (int64_t i = begin; i < end; ++i)
      if (!engine.quantize_row(call, i, scratch + index * scratch_stride)) bad = std::min(bad, i);
    int64_t seen = first.load();
    while (bad < seen && !first.compare_exchange_weak(seen, bad)) {
    }
  };
  if (pool == nullptr || call.m == 1) {
    part(0, 0, call.m);
  } else {
    pool->for_ranges(call.m, part);
  }
  return first.load();
}

}  // namespace

struct LinearLayer::Impl {
  int64_t rows = 0;
  int64_t columns = 0;
  LinearActivations activations = LinearActivations::kFloat;
  CpuPath path = CpuPath::kReference;
  const LinearLayerKernel* kernel = nullptr;
  std::unique_ptr<const LinearEngine> engine;

  [[nodiscard]] int64_t scratch_stride(int64_t m) const { return round_up_64(engine->scratch_bytes(m)); }
  [[nodiscard]] int64_t workspace_bytes(int64_t m, int threads) const {
    return engine->rows_bytes(m) + threads * scratch_stride(m);
  }
};

Result<LinearLayer> LinearLayer::create(const LowBitMatrix& matrix, const LinearOptions& options,
                                        std::string_view name) {
  const DefaultFloatMode mode;
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_linear_options(options, matrix.rows(), text));
  ISOBIT_ASSIGN_OR_RETURN(CpuPath path, linear_path(options.path, text));
  LinearEpilogue epilogue{{options.bias.begin(), options.bias.end()}, options.clamp};
  epilogue.bias.resize(static_cast<size_t>(matrix.rows()));
  auto engine = make_linear_engine(matrix, options.activations, path, epilogue, text);
  if (!engine.ok() && engine.status().code() == StatusCode::kUnsupported && !options.path) {
    path = CpuPath::kReference;
    engine = make_linear_engine(matrix, options.activations, path, std::move(epilogue), text);
  }
  if (!engine.ok()) return engine.status();
  auto impl = std::make_shared<Impl>();
  impl->rows = matrix.rows();
  impl->columns = matrix.columns();
  impl->activations = options.activations;
  impl->path = path;
  impl->engine = *std::move(engine);
  impl->kernel = &linear_layer_kernel(options.activations == LinearActivations::kFloat ? "linear_float" : "linear_int8",
                                      impl->engine->kernel_path(path));
  LinearLayer layer;
  layer.impl_ = std::move(impl);
  return layer;
}

int64_t LinearLayer::rows() const { return impl_->rows; }
int64_t LinearLayer::columns() const { return impl_->columns; }
LinearActivations LinearLayer::activations() const { return impl_->activations; }
CpuPath LinearLayer::path() const { return impl_->path; }
std::string_view LinearLayer::kernel_name() const { return impl_->kernel->name; }
int64_t LinearLayer::size_bytes() const { return impl_->engine->size_bytes(); }

Workspace LinearLayer::workspace(int64_t m, int32_t threads) const {
  return Workspace(impl_->workspace_bytes(std::max<int64_t>(m, 0), std::max(threads, 1)));
}

Status LinearLayer::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                            int64_t m, Workspace& workspace, const RunOptions& options) const {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_linear_types(x_dtype, y_dtype, impl_->activations));
  ISOBIT_RETURN_IF_ERROR(check_row_options(options, impl_->path));
  LinearRows x_rows{"x", x.data(), x.size(), x_dtype, impl_->columns, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), y_dtype, impl_->rows, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_linear_rows(x_rows, y_rows, m));
  if (m == 0) return {};
  const int threads = threads_of(options.pool);
  ISOBIT_RETURN_IF_ERROR(check_linear_workspace(workspace, impl_->workspace_bytes(m, threads), m, threads));
  const LinearEngine& engine = *impl_->engine;
  std::byte* const scratch = workspace.data() + engine.rows_bytes(m);
  const int64_t stride = impl_->scratch_stride(m);
  const LinearCall call{x.data(), x_dtype, x_rows.stride, y.data(), y_dtype, y_rows.stride, m, workspace.data()};
  if (engine.rows_bytes(m) > 0) {
    const int64_t bad = quantize_rows(engine, call, scratch, stride, options.pool);
    if (bad < m && !options.unchecked)
      return refuse_linear("x[" + std::to_string(bad) + "] has a NaN, an infinity, or a group whose range is infinite" +
                           ", must be finite, or the call unchecked");
  }
  for_rectangles(options.pool, m, engine.blocks(), [&](int part, const LinearRectangle& rectangle) {
    engine.run(call, rectangle, scratch + part * stride);
  });
  return {};
}

}  // namespace isobit
