// SPDX-License-Identifier: Apache-2.0
#include "c/conv.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "c/boundary.h"
#include "c/linear.h"
#include "c/low_bit.h"

struct isobit_conv {
  isobit::ConvLayer layer;
};

struct isobit_static_conv_stream {
  isobit::StaticConvStream stream;
};

// The stream is the owner's, shared: it outlives the handle that it came from.
struct isobit_static_conv_state {
  isobit::StaticConvStream stream;
  isobit::StaticConvState state;
};

struct isobit_static_pool {
  isobit::StaticPool layer;
};

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

namespace {

int64_t or_one(int64_t value) { return value == 0 ? 1 : value; }

ConvAxis axis_from_c(const isobit_conv_axis& axis) {
  return {.kernel = or_one(axis.kernel),
          .stride = or_one(axis.stride),
          .dilation = or_one(axis.dilation),
          .pad_before = axis.pad_before,
          .pad_after = axis.pad_after,
          .more = axis.more};
}

isobit_conv_axis axis_to_c(const ConvAxis& axis) {
  return {axis.kernel, axis.stride, axis.dilation, axis.pad_before, axis.pad_after, axis.more};
}

Result<ConvShape> shape_from_c(const isobit_conv_shape* in) {
  isobit_conv_shape c;
  ISOBIT_RETURN_IF_ERROR(read_struct(in, c, "shape"));
  ISOBIT_RETURN_IF_ERROR(check_flag(c.transposed, "shape->transposed"));
  const ConvShape shape{.channels = c.channels,
                        .outputs = c.outputs,
                        .groups = or_one(c.groups),
                        .rows = axis_from_c(c.rows),
                        .columns = axis_from_c(c.columns),
                        .transposed = c.transposed == 1};
  ISOBIT_RETURN_IF_ERROR(check_conv_shape(shape, "shape"));
  return shape;
}

/// In what a layer says of itself, of either kind.
template <typename Info>
void write_shape(const ConvShape& in, Info& out) {
  out.transposed = in.transposed ? 1 : 0;
  out.channels = in.channels;
  out.outputs = in.outputs;
  out.groups = in.groups;
  out.rows = axis_to_c(in.rows);
  out.columns = axis_to_c(in.columns);
}

Status check_order(const isobit_low_bit& matrix) {
  if (matrix.permutation.empty()) return {};
  return refuse("matrix has its columns in another order than x, must have them in the order (r, s, c)");
}

Status check_weights(const isobit_low_bit& matrix, const ConvShape& shape) {
  ISOBIT_RETURN_IF_ERROR(check_order(matrix));
  if (matrix.matrix.rows() != shape.outputs)
    return refuse("matrix has " + std::to_string(matrix.matrix.rows()) + " rows, must have " +
                  std::to_string(shape.outputs) + ", the outputs of shape");
  if (matrix.matrix.columns() == shape.depth()) return {};
  return refuse("matrix has " + std::to_string(matrix.matrix.columns()) + " columns, must have " +
                std::to_string(shape.rows.kernel) + " * " + std::to_string(shape.columns.kernel) + " * " +
                std::to_string(shape.group_channels()) + " (R * S * C / groups)");
}

/// A layer of either kind.
template <typename Layer>
int32_t make_workspace(const Layer* layer, int64_t images, const ImageSize& image, int32_t threads,
                       isobit_linear_workspace** workspace) {
  return make_handle(workspace, "workspace", [&]() -> Result<isobit_linear_workspace> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    ISOBIT_RETURN_IF_ERROR(check_between(threads, 1, kMaxThreads, "threads"));
    ISOBIT_ASSIGN_OR_RETURN(Workspace made, layer->layer.workspace(images, image, threads));
    return isobit_linear_workspace{std::move(made)};
  });
}

Status write_size(const Result<ImageSize>& size, int64_t* output_rows, int64_t* output_columns) {
  ISOBIT_RETURN_IF_ERROR(check_pointer(output_rows, "output_rows"));
  ISOBIT_RETURN_IF_ERROR(check_pointer(output_columns, "output_columns"));
  if (!size.ok()) return size.status();
  *output_rows = size->rows;
  *output_columns = size->columns;
  return {};
}

/// A call of a layer.
struct Run {
  ConvArrays arrays;
  RunOptions options;
};
/// Of static codes; what is a residual where the layer adds none is left to it.
Result<Run> check_run(const StaticConvParameters& p, const void* x, int64_t x_count, void* y, int64_t y_count,
                      const void* residual, int64_t residual_count, const isobit_linear_workspace* workspace,
                      const isobit_linear_run_options* options) {
  ISOBIT_RETURN_IF_ERROR(check_pointer(workspace, "workspace"));
  Run run;
  ISOBIT_ASSIGN_OR_RETURN(run.arrays, conv_arrays(ConvTypes(p), x, x_count, y, y_count, residual, residual_count));
  ISOBIT_ASSIGN_OR_RETURN(run.options, static_run_options(options));
  return run;
}

/// All that says what a grid is.
bool is_zero(const isobit_grid& grid) {
  return grid.bits == 0 && grid.is_signed == 0 && grid.scale_kind == 0 && grid.shift == 0 && grid.real_scale == 0.0f &&
         grid.reserved == 0 && grid.zero_point == 0;
}

Result<StaticPoolParameters> pool_parameters(const isobit_static_pool_options* in) {
  isobit_static_pool_options c;
  ISOBIT_RETURN_IF_ERROR(read_struct(in, c, "options"));
  ISOBIT_RETURN_IF_ERROR(check_between(c.kind, ISOBIT_POOL_MAX, ISOBIT_POOL_AVERAGE, "options->kind"));
  ISOBIT_RETURN_IF_ERROR(check_flag(c.counts_outside, "options->counts_outside"));
  ISOBIT_RETURN_IF_ERROR(check_between(c.rounding, ISOBIT_NEAREST_EVEN, ISOBIT_FLOOR, "options->rounding"));
  StaticPoolParameters p;
  p.kind = static_cast<PoolKind>(c.kind);
  p.rows = axis_from_c(c.rows);
  p.columns = axis_from_c(c.columns);
  ISOBIT_ASSIGN_OR_RETURN(p.input, grid_from_c(c.input, "options->input"));
  p.output = p.input;
  if (!is_zero(c.output)) {
    ISOBIT_ASSIGN_OR_RETURN(p.output, grid_from_c(c.output, "options->output"));
  }
  p.counts_outside = c.counts_outside == 1;
  p.rounding = static_cast<Rounding>(c.rounding);
  return p;
}

}  // namespace

namespace isobit::c {

Result<ConvForm> conv_form(const isobit_low_bit* matrix, const isobit_conv_shape* shape,
                           const isobit_linear_options* options) {
  ISOBIT_RETURN_IF_ERROR(check_pointer(matrix, "matrix"));
  ConvForm form;
  ISOBIT_ASSIGN_OR_RETURN(form.shape, shape_from_c(shape));
  ISOBIT_RETURN_IF_ERROR(check_order(*matrix));
  ISOBIT_ASSIGN_OR_RETURN(form.options, conv_layer_options(options));
  return form;
}

Result<ConvArrays> conv_arrays(const ConvTypes& types, const void* x, int64_t x_count, void* y, int64_t y_count,
                               const void* residual, int64_t residual_count) {
  ConvArrays arrays;
  ISOBIT_ASSIGN_OR_RETURN(arrays.x, bytes_of(x, x_count, types.x, "x"));
  ISOBIT_ASSIGN_OR_RETURN(arrays.y, writable_bytes_of(y, y_count, types.y, "y"));
  ISOBIT_ASSIGN_OR_RETURN(arrays.residual, bytes_of(residual, residual_count, types.residual, "residual"));
  return arrays;
}

}  // namespace isobit::c

int32_t isobit_conv_create(const isobit_low_bit* matrix, const isobit_conv_shape* shape,
                           const isobit_linear_options* options, isobit_conv** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_conv> {
    ISOBIT_ASSIGN_OR_RETURN(const ConvForm form, conv_form(matrix, shape, options));
    ISOBIT_ASSIGN_OR_RETURN(auto made, ConvLayer::create(form.shape, matrix->matrix, form.options, "layer"));
    return isobit_conv{std::move(made)};
  });
}

void isobit_conv_destroy(isobit_conv* layer) { delete layer; }

int32_t isobit_conv_get_info(const isobit_conv* layer, isobit_conv_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    isobit_conv_info out{};
    out.activations = static_cast<int32_t>(layer->layer.activations());
    out.cpu_path = number_of(layer->layer.path());
    write_shape(layer->layer.shape(), out);
    return write_struct(info, out, "info");
  });
}

int32_t isobit_conv_output_size(const isobit_conv* layer, int64_t rows, int64_t columns, int64_t* output_rows,
                                int64_t* output_columns) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    return write_size(conv_output_size(layer->layer.shape(), {rows, columns}, "layer"), output_rows, output_columns);
  });
}

int32_t isobit_conv_workspace_create(const isobit_conv* layer, int64_t images, int64_t rows, int64_t columns,
                                     int32_t threads, isobit_linear_workspace** workspace) {
  return make_workspace(layer, images, {rows, columns}, threads, workspace);
}

int32_t isobit_conv_forward(const isobit_conv* layer, const void* x, int32_t x_dtype, int64_t x_count, void* y,
                            int32_t y_dtype, int64_t y_count, int64_t images, int64_t rows, int64_t columns,
                            isobit_linear_workspace* workspace, const isobit_linear_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(workspace, "workspace"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    ISOBIT_ASSIGN_OR_RETURN(const TypedArrays of, typed_arrays(x, x_dtype, x_count, y, y_dtype, y_count));
    ISOBIT_ASSIGN_OR_RETURN(const RunOptions how, run_options(options));
    return layer->layer.forward(of.x, of.x_dtype, of.y, of.y_dtype, images, {rows, columns}, workspace->workspace, how);
  });
}

int32_t isobit_static_conv_create(const isobit_low_bit* matrix, const isobit_conv_shape* shape,
                                  const isobit_static_linear_options* options, const isobit_grid* residual,
                                  isobit_static_conv** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_static_conv> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(matrix, "matrix"));
    StaticConvParameters parameters;
    ISOBIT_ASSIGN_OR_RETURN(parameters.shape, shape_from_c(shape));
    ISOBIT_RETURN_IF_ERROR(check_weights(*matrix, parameters.shape));
    ISOBIT_ASSIGN_OR_RETURN(const auto how, static_layer_options(options));
    ISOBIT_ASSIGN_OR_RETURN(parameters.linear, derive_static_linear(matrix->matrix, how.derive, "layer"));
    if (residual != nullptr) {
      if (!how.derive.output) return refuse("residual is a grid, must be NULL where options->has_output is 0");
      ISOBIT_ASSIGN_OR_RETURN(const Grid grid, grid_from_c(*residual, "residual"));
      ISOBIT_ASSIGN_OR_RETURN(parameters.residual, derive_static_residual(grid, *how.derive.output, "layer"));
    }
    ISOBIT_ASSIGN_OR_RETURN(auto made, StaticConvLayer::create(std::move(parameters), "layer", how.path));
    return isobit_static_conv{std::move(made)};
  });
}

int32_t isobit_static_conv_load(const char* path, const char* name, int32_t cpu_path, isobit_static_conv** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_static_conv> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(path, "path"));
    ISOBIT_ASSIGN_OR_RETURN(const auto packed_for, cpu_path_of(cpu_path, "cpu_path"));
    ISOBIT_ASSIGN_OR_RETURN(auto loaded, StaticConvLayer::load(path, name == nullptr ? "" : name, packed_for));
    return isobit_static_conv{std::move(loaded)};
  });
}

void isobit_static_conv_destroy(isobit_static_conv* layer) { delete layer; }

int32_t isobit_static_conv_get_info(const isobit_static_conv* layer, isobit_static_conv_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    const StaticConvParameters& in = layer->layer.parameters();
    isobit_static_conv_info out{};
    out.cpu_path = number_of(layer->layer.path());
    out.x_dtype = static_cast<int32_t>(in.linear.x_dtype());
    out.y_dtype = static_cast<int32_t>(in.linear.y_dtype());
    out.has_residual = in.residual ? 1 : 0;
    out.has_output = in.linear.output ? 1 : 0;
    write_shape(in.shape, out);
    out.input = grid_to_c(in.linear.input);
    if (in.linear.output) out.output = grid_to_c(*in.linear.output);
    if (in.residual) {
      out.residual = grid_to_c(in.residual->grid);
      out.residual_dtype = static_cast<int32_t>(in.residual->grid.dtype());
    }
    return write_struct(info, out, "info");
  });
}

int32_t isobit_static_conv_output_size(const isobit_static_conv* layer, int64_t rows, int64_t columns,
                                       int64_t* output_rows, int64_t* output_columns) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    return write_size(conv_output_size(layer->layer.parameters().shape, {rows, columns}, "layer"), output_rows,
                      output_columns);
  });
}

int32_t isobit_static_conv_workspace_create(const isobit_static_conv* layer, int64_t images, int64_t rows,
                                            int64_t columns, int32_t threads, isobit_linear_workspace** workspace) {
  return make_workspace(layer, images, {rows, columns}, threads, workspace);
}

int32_t isobit_static_conv_forward(const isobit_static_conv* layer, const void* x, int64_t x_count, void* y,
                                   int64_t y_count, int64_t images, int64_t rows, int64_t columns,
                                   isobit_linear_workspace* workspace, const void* residual, int64_t residual_count,
                                   const isobit_linear_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    ISOBIT_ASSIGN_OR_RETURN(const Run run, check_run(layer->layer.parameters(), x, x_count, y, y_count, residual,
                                                     residual_count, workspace, options));
    const ConvArrays& arrays = run.arrays;
    return layer->layer.forward(arrays.x, arrays.y, images, {rows, columns}, workspace->workspace, run.options,
                                arrays.residual);
  });
}

int32_t isobit_static_conv_stream_create(const isobit_static_conv* layer, isobit_static_conv_stream** stream) {
  return make_handle(stream, "stream", [&]() -> Result<isobit_static_conv_stream> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    const StaticConvLayer& of = layer->layer;
    ISOBIT_ASSIGN_OR_RETURN(auto made, StaticConvStream::create(of.parameters(), of.name(), of.path()));
    return isobit_static_conv_stream{std::move(made)};
  });
}

void isobit_static_conv_stream_destroy(isobit_static_conv_stream* stream) { delete stream; }

int32_t isobit_static_conv_state_create(const isobit_static_conv_stream* stream, int64_t images, int64_t columns,
                                        isobit_static_conv_state** state) {
  return make_handle(state, "state", [&]() -> Result<isobit_static_conv_state> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(stream, "stream"));
    ISOBIT_ASSIGN_OR_RETURN(auto made, stream->stream.state(images, columns));
    return isobit_static_conv_state{stream->stream, std::move(made)};
  });
}

void isobit_static_conv_state_destroy(isobit_static_conv_state* state) { delete state; }

int32_t isobit_static_conv_state_reset(isobit_static_conv_state* state) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(state, "state"));
    ISOBIT_ASSIGN_OR_RETURN(state->state, state->stream.state(state->state.images(), state->state.columns()));
    return {};
  });
}

int32_t isobit_static_conv_stream_workspace_create(const isobit_static_conv_stream* stream, int64_t images,
                                                   int64_t columns, int32_t threads,
                                                   isobit_linear_workspace** workspace) {
  return make_handle(workspace, "workspace", [&]() -> Result<isobit_linear_workspace> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(stream, "stream"));
    ISOBIT_RETURN_IF_ERROR(check_between(threads, 1, kMaxThreads, "threads"));
    ISOBIT_ASSIGN_OR_RETURN(Workspace made, stream->stream.workspace(images, columns, threads));
    return isobit_linear_workspace{std::move(made)};
  });
}

int32_t isobit_static_conv_stream_forward(const isobit_static_conv_stream* stream, const void* x, int64_t x_count,
                                          void* y, int64_t y_count, int64_t columns, isobit_static_conv_state* state,
                                          isobit_linear_workspace* workspace, const void* residual,
                                          int64_t residual_count, const isobit_linear_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(stream, "stream"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(state, "state"));
    if (&stream->stream.parameters() != &state->stream.parameters()) return refuse("state was made by another stream");
    ISOBIT_ASSIGN_OR_RETURN(const Run run, check_run(stream->stream.parameters(), x, x_count, y, y_count, residual,
                                                     residual_count, workspace, options));
    const ConvArrays& arrays = run.arrays;
    return stream->stream.forward(arrays.x, arrays.y, state->state.images(), columns, state->state,
                                  workspace->workspace, run.options, arrays.residual);
  });
}

int32_t isobit_static_pool_create(const isobit_static_pool_options* options, isobit_static_pool** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_static_pool> {
    ISOBIT_ASSIGN_OR_RETURN(const auto parameters, pool_parameters(options));
    ISOBIT_ASSIGN_OR_RETURN(auto made, StaticPool::create(parameters, "layer"));
    return isobit_static_pool{std::move(made)};
  });
}

void isobit_static_pool_destroy(isobit_static_pool* layer) { delete layer; }

int32_t isobit_static_pool_get_info(const isobit_static_pool* layer, isobit_static_pool_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    const StaticPoolParameters& in = layer->layer.parameters();
    isobit_static_pool_info out{};
    out.kind = static_cast<int32_t>(in.kind);
    out.x_dtype = static_cast<int32_t>(in.input.dtype());
    out.y_dtype = static_cast<int32_t>(in.output.dtype());
    return write_struct(info, out, "info");
  });
}

int32_t isobit_static_pool_output_size(const isobit_static_pool* layer, int64_t rows, int64_t columns,
                                       int64_t* output_rows, int64_t* output_columns) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    const StaticPoolParameters& p = layer->layer.parameters();
    const ConvShape window{.rows = p.rows, .columns = p.columns};
    return write_size(conv_output_size(window, {rows, columns}, "layer"), output_rows, output_columns);
  });
}

int32_t isobit_static_pool_forward(const isobit_static_pool* layer, const void* x, int64_t x_count, void* y,
                                   int64_t y_count, int64_t images, int64_t rows, int64_t columns, int64_t channels,
                                   const isobit_linear_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    const StaticPoolParameters& p = layer->layer.parameters();
    ISOBIT_ASSIGN_OR_RETURN(const auto in, bytes_of(x, x_count, p.input.dtype(), "x"));
    ISOBIT_ASSIGN_OR_RETURN(const auto out, writable_bytes_of(y, y_count, p.output.dtype(), "y"));
    ISOBIT_ASSIGN_OR_RETURN(const RunOptions how, static_run_options(options));
    return layer->layer.forward(in, out, images, {rows, columns}, channels, how);
  });
}
