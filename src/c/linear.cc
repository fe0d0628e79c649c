// SPDX-License-Identifier: Apache-2.0
#include "c/linear.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c/boundary.h"
#include "c/low_bit.h"

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

namespace {

/// Without a clamp its ends must be zero, so that a forgotten has_clamp is not taken for none.
Result<LinearClamp> clamp_of(int32_t has_clamp, float lo, float hi) {
  ISOBIT_RETURN_IF_ERROR(check_flag(has_clamp, "options->has_clamp"));
  if (has_clamp == 1) return LinearClamp{lo, hi};
  if (lo != 0.0f || hi != 0.0f) return refuse("options->has_clamp is 0, so clamp_lo and clamp_hi must be 0");
  return LinearClamp::none();
}

/// Of a linear layer or a convolution: activations up to `last`.
template <typename Options>
Result<Options> read_options(const isobit_linear_options* in, int32_t last) {
  isobit_linear_options c;
  ISOBIT_RETURN_IF_ERROR(read_optional_struct(in, c, "options"));
  ISOBIT_RETURN_IF_ERROR(check_between(c.activations, ISOBIT_ACTIVATIONS_FLOAT, last, "options->activations"));
  Options out;
  out.activations = static_cast<decltype(out.activations)>(c.activations);
  ISOBIT_ASSIGN_OR_RETURN(out.path, cpu_path_of(c.cpu_path, "options->cpu_path"));
  ISOBIT_ASSIGN_OR_RETURN(out.clamp, clamp_of(c.has_clamp, c.clamp_lo, c.clamp_hi));
  ISOBIT_ASSIGN_OR_RETURN(out.bias, span_of(c.bias, c.bias_count, "options->bias"));
  return out;
}

/// Either kind of layer.
template <typename Layer>
int32_t make_workspace(const Layer* layer, int64_t m, int32_t threads, isobit_linear_workspace** workspace) {
  return make_handle(workspace, "workspace", [&]() -> Result<isobit_linear_workspace> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(m, 0, kMaxExtent, "m"));
    ISOBIT_RETURN_IF_ERROR(check_between(threads, 1, kMaxThreads, "threads"));
    int64_t x_bytes = 0;
    if (!layer->permutation.empty() &&
        (__builtin_mul_overflow(m * layer->x_bytes(), layer->columns(), &x_bytes) || x_bytes > kMaxCount))
      return refuse("m is " + std::to_string(m) + ", too many rows of " + std::to_string(layer->columns()) +
                    " elements");
    return isobit_linear_workspace{layer->layer.workspace(m, threads),
                                   std::vector<std::byte>(static_cast<size_t>(x_bytes))};
  });
}

/// Rows of x, elements of `size` bytes, for the layer: in the order of its columns, so in the workspace, where it has a
/// permutation. What the layer itself refuses is left to it.
template <typename Layer>
Status take_rows(const Layer& layer, size_t size, int64_t m, std::span<const std::byte>& x, std::span<std::byte> y,
                 isobit_linear_workspace& workspace, RunOptions& how) {
  const std::vector<int32_t>& permutation = layer.permutation;
  if (permutation.empty() || m == 0 || static_cast<int64_t>(size) > layer.x_bytes()) return {};
  const auto columns = static_cast<int64_t>(permutation.size());
  const int64_t stride = how.x_stride == 0 ? columns : how.x_stride;
  const auto count = static_cast<int64_t>(x.size() / size);
  if (stride < columns || count < columns || (m > 1 && (count - columns) / (m - 1) < stride)) return {};
  if (!y.empty() && std::less<>()(x.data(), y.data() + y.size()) && std::less<>()(y.data(), x.data() + x.size()))
    return refuse("y overlaps x, must not");
  const auto row_bytes = static_cast<size_t>(columns) * size;
  const size_t needed = static_cast<size_t>(m) * row_bytes;
  if (workspace.x.size() < needed)
    return refuse("workspace has " + std::to_string(workspace.x.size()) + " bytes for rows of x, must have " +
                  std::to_string(needed));
  std::byte* to = workspace.x.data();
  for (int64_t row = 0; row < m; ++row) {
    const std::byte* const from = x.data() + static_cast<size_t>(row * stride) * size;
    for (const int32_t k : permutation) {
      std::memcpy(to, from + static_cast<size_t>(k) * size, size);
      to += size;
    }
  }
  x = std::span(workspace.x).first(needed);
  how.x_stride = 0;
  return {};
}

}  // namespace

namespace isobit::c {

Result<LinearOptions> layer_options(const isobit_linear_options* in) {
  static_assert(static_cast<int32_t>(LinearActivations::kInt8Asymmetric) == ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC);
  return read_options<LinearOptions>(in, ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC);
}

Result<ConvOptions> conv_layer_options(const isobit_linear_options* in) {
  static_assert(static_cast<int32_t>(ConvActivations::kInt8Asymmetric) == ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC &&
                static_cast<int32_t>(ConvActivations::kInt8PerImage) == ISOBIT_ACTIVATIONS_INT8_PER_IMAGE);
  return read_options<ConvOptions>(in, ISOBIT_ACTIVATIONS_INT8_PER_IMAGE);
}

Result<StaticOptions> static_layer_options(const isobit_static_linear_options* in) {
  isobit_static_linear_options c;
  ISOBIT_RETURN_IF_ERROR(read_struct(in, c, "options"));
  ISOBIT_RETURN_IF_ERROR(check_flag(c.has_output, "options->has_output"));
  ISOBIT_RETURN_IF_ERROR(check_between(c.rounding, ISOBIT_NEAREST_EVEN, ISOBIT_FLOOR, "options->rounding"));
  ISOBIT_RETURN_IF_ERROR(check_zero(c.reserved, "options->reserved"));
  StaticOptions out;
  ISOBIT_ASSIGN_OR_RETURN(out.path, cpu_path_of(c.cpu_path, "options->cpu_path"));
  ISOBIT_ASSIGN_OR_RETURN(out.derive.clamp, clamp_of(c.has_clamp, c.clamp_lo, c.clamp_hi));
  ISOBIT_ASSIGN_OR_RETURN(out.derive.input, grid_from_c(c.input, "options->input"));
  if (c.has_output == 1) {
    ISOBIT_ASSIGN_OR_RETURN(out.derive.output, grid_from_c(c.output, "options->output"));
  }
  out.derive.rounding = static_cast<Rounding>(c.rounding);
  ISOBIT_ASSIGN_OR_RETURN(out.derive.bias, span_of(c.bias, c.bias_count, "options->bias"));
  return out;
}

Result<RunOptions> run_options(const isobit_linear_run_options* in) {
  isobit_linear_run_options c;
  ISOBIT_RETURN_IF_ERROR(read_optional_struct(in, c, "options"));
  ISOBIT_RETURN_IF_ERROR(check_flag(c.unchecked, "options->unchecked"));
  RunOptions out;
  out.unchecked = c.unchecked == 1;
  out.x_stride = c.x_stride;
  out.y_stride = c.y_stride;
  out.pool = pool_of(c.pool);
  return out;
}

Result<RunOptions> static_run_options(const isobit_linear_run_options* in) {
  ISOBIT_ASSIGN_OR_RETURN(const RunOptions out, run_options(in));
  ISOBIT_RETURN_IF_ERROR(check_zero(out.unchecked ? 1 : 0, "options->unchecked"));
  return out;
}

}  // namespace isobit::c

int32_t isobit_linear_create(const isobit_low_bit* matrix, const isobit_linear_options* options,
                             isobit_linear** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_linear> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(matrix, "matrix"));
    ISOBIT_ASSIGN_OR_RETURN(const auto how, layer_options(options));
    ISOBIT_ASSIGN_OR_RETURN(auto made, LinearLayer::create(matrix->matrix, how, "layer"));
    return isobit_linear{std::move(made), matrix->permutation};
  });
}

void isobit_linear_destroy(isobit_linear* layer) { delete layer; }

int32_t isobit_linear_get_info(const isobit_linear* layer, isobit_linear_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    isobit_linear_info out{};
    out.activations = static_cast<int32_t>(layer->layer.activations());
    out.cpu_path = number_of(layer->layer.path());
    out.rows = layer->layer.rows();
    out.columns = layer->layer.columns();
    out.size_bytes = layer->layer.size_bytes();
    return write_struct(info, out, "info");
  });
}

// Names of kernels are literals, so they end with a zero.
const char* isobit_linear_kernel(const isobit_linear* layer) {
  return layer == nullptr ? "" : layer->layer.kernel_name().data();
}

int32_t isobit_linear_workspace_create(const isobit_linear* layer, int64_t m, int32_t threads,
                                       isobit_linear_workspace** workspace) {
  return make_workspace(layer, m, threads, workspace);
}

void isobit_linear_workspace_destroy(isobit_linear_workspace* workspace) { delete workspace; }

int64_t isobit_linear_workspace_size_bytes(const isobit_linear_workspace* workspace) {
  return workspace == nullptr ? 0 : workspace->workspace.size_bytes() + static_cast<int64_t>(workspace->x.size());
}

int32_t isobit_linear_forward(const isobit_linear* layer, const void* x, int32_t x_dtype, int64_t x_count, void* y,
                              int32_t y_dtype, int64_t y_count, int64_t m, isobit_linear_workspace* workspace,
                              const isobit_linear_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(workspace, "workspace"));
    ISOBIT_RETURN_IF_ERROR(check_between(m, 0, kMaxExtent, "m"));
    ISOBIT_ASSIGN_OR_RETURN(TypedArrays of, typed_arrays(x, x_dtype, x_count, y, y_dtype, y_count));
    ISOBIT_ASSIGN_OR_RETURN(auto how, run_options(options));
    ISOBIT_RETURN_IF_ERROR(take_rows(*layer, size_in_bytes(of.x_dtype), m, of.x, of.y, *workspace, how));
    return layer->layer.forward(of.x, of.x_dtype, of.y, of.y_dtype, m, workspace->workspace, how);
  });
}

int32_t isobit_static_linear_create(const isobit_low_bit* matrix, const isobit_static_linear_options* options,
                                    isobit_static_linear** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_static_linear> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(matrix, "matrix"));
    ISOBIT_ASSIGN_OR_RETURN(const auto how, static_layer_options(options));
    ISOBIT_ASSIGN_OR_RETURN(auto parameters, derive_static_linear(matrix->matrix, how.derive, "layer"));
    ISOBIT_ASSIGN_OR_RETURN(auto made, StaticLinearLayer::create(std::move(parameters), "layer", how.path));
    return isobit_static_linear{std::move(made), matrix->permutation};
  });
}

int32_t isobit_static_linear_load(const char* path, const char* name, int32_t cpu_path, isobit_static_linear** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_static_linear> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(path, "path"));
    ISOBIT_ASSIGN_OR_RETURN(const auto packed_for, cpu_path_of(cpu_path, "cpu_path"));
    ISOBIT_ASSIGN_OR_RETURN(auto loaded, StaticLinearLayer::load(path, name == nullptr ? "" : name, packed_for));
    return isobit_static_linear{std::move(loaded), {}};
  });
}

void isobit_static_linear_destroy(isobit_static_linear* layer) { delete layer; }

int32_t isobit_static_linear_get_info(const isobit_static_linear* layer, isobit_static_linear_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    const StaticLinearParameters& in = layer->layer.parameters();
    isobit_static_linear_info out{};
    out.cpu_path = number_of(layer->layer.path());
    out.x_dtype = static_cast<int32_t>(in.x_dtype());
    out.y_dtype = static_cast<int32_t>(in.y_dtype());
    out.rows = in.rows;
    out.columns = in.columns;
    return write_struct(info, out, "info");
  });
}

const char* isobit_static_linear_kernel(const isobit_static_linear* layer) {
  return layer == nullptr ? "" : layer->layer.kernel_name().data();
}

int32_t isobit_static_linear_workspace_create(const isobit_static_linear* layer, int64_t m, int32_t threads,
                                              isobit_linear_workspace** workspace) {
  return make_workspace(layer, m, threads, workspace);
}

int32_t isobit_static_linear_forward(const isobit_static_linear* layer, const void* x, int64_t x_count, void* y,
                                     int64_t y_count, int64_t m, isobit_linear_workspace* workspace,
                                     const isobit_linear_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(workspace, "workspace"));
    ISOBIT_RETURN_IF_ERROR(check_between(m, 0, kMaxExtent, "m"));
    const StaticLinearParameters& parameters = layer->layer.parameters();
    ISOBIT_ASSIGN_OR_RETURN(std::span<const std::byte> in, bytes_of(x, x_count, parameters.x_dtype(), "x"));
    ISOBIT_ASSIGN_OR_RETURN(const auto out, writable_bytes_of(y, y_count, parameters.y_dtype(), "y"));
    ISOBIT_ASSIGN_OR_RETURN(auto how, static_run_options(options));
    ISOBIT_RETURN_IF_ERROR(take_rows(*layer, size_in_bytes(parameters.x_dtype()), m, in, out, *workspace, how));
    return layer->layer.forward_codes(in, out, m, workspace->workspace, how);
  });
}
