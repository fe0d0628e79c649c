// SPDX-License-Identifier: Apache-2.0
// Streams of one dimension: numerics.md, section 12. The columns that were seen last stand before those of a chunk.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/codes.h"
#include "core/rescale.h"
#include "isobit/conv.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"

namespace isobit {
namespace {

Status check_stream(const ConvShape& shape, const std::string& name) {
  ISOBIT_RETURN_IF_ERROR(check_conv_shape(shape, name));
  const auto refuse = [&](const std::string& what) { return refuse_linear(name + ": " + what + " in a stream"); };
  if (shape.transposed) return refuse("the convolution is transposed, must not be");
  const ConvAxis& rows = shape.rows;
  if (rows.kernel != 1 || rows.stride != 1 || rows.pad_before != 0 || rows.pad_after != 0)
    return refuse("rows have a kernel, a stride or pads, must have none");
  const ConvAxis& columns = shape.columns;
  if (columns.pad_after != 0)
    return refuse("columns.pad_after is " + std::to_string(columns.pad_after) + ", must be 0");
  const int64_t least = std::max<int64_t>(0, columns.extent() - columns.stride), most = columns.extent() - 1;
  if (columns.pad_before < least || columns.pad_before > most)
    return refuse("columns.pad_before is " + std::to_string(columns.pad_before) + ", must be " + std::to_string(least) +
                  ".." + std::to_string(most));
  return {};
}

Status check_extents(const std::string& name, int64_t images, int64_t columns) {
  for (const auto& [what, value] : {std::pair("images", images), std::pair("columns", columns)})
    if (value < 1 || value > INT32_MAX)
      return refuse_linear(name + ": " + what + " is " + std::to_string(value) + ", must be 1 to " +
                           std::to_string(INT32_MAX));
  return {};
}

}  // namespace

struct StaticConvStream::Impl {
  StaticConvParameters parameters;
  StaticConvLayer layer;  // without the pad

  [[nodiscard]] int64_t seen() const { return parameters.shape.columns.pad_before; }
  [[nodiscard]] int64_t pixel_bytes() const {
    return parameters.shape.channels * static_cast<int64_t>(size_in_bytes(parameters.linear.x_dtype()));
  }
  /// Of a state: what was seen; then for a run that, and a chunk.
  [[nodiscard]] Int128 state_bytes(int64_t images, int64_t columns) const {
    return bound_multiply(bound_multiply(images, 2 * seen() + columns), pixel_bytes());
  }
};

Result<StaticConvStream> StaticConvStream::create(StaticConvParameters parameters, std::string_view name,
                                                  std::optional<CpuPath> path) {
  ISOBIT_RETURN_IF_ERROR(check_stream(parameters.shape, std::string(name)));
  StaticConvParameters inside = parameters;
  inside.shape.columns.pad_before = 0;
  ISOBIT_ASSIGN_OR_RETURN(StaticConvLayer layer, StaticConvLayer::create(std::move(inside), name, path));
  StaticConvStream stream;
  stream.impl_ = std::make_shared<Impl>(Impl{std::move(parameters), std::move(layer)});
  return stream;
}

const StaticConvParameters& StaticConvStream::parameters() const { return impl_->parameters; }

Result<StaticConvState> StaticConvStream::state(int64_t images, int64_t columns) const {
  const Impl& impl = *impl_;
  const std::string& name = impl.layer.name();
  ISOBIT_RETURN_IF_ERROR(check_extents(name, images, columns));
  if (impl.state_bytes(images, columns) > INT64_MAX)
    return refuse_linear(name + ": a state of " + std::to_string(images) + " images and chunks of " +
                         std::to_string(columns) + " columns has more than " + std::to_string(INT64_MAX) + " bytes");
  StaticConvState state;
  state.images_ = images;
  state.columns_ = columns;
  state.codes_bytes_ = static_cast<size_t>(images * impl.seen() * impl.pixel_bytes());
  state.memory_.resize(static_cast<size_t>(impl.state_bytes(images, columns)));
  const StaticLinearParameters& p = impl.parameters.linear;
  for (int64_t i = 0; i < images * impl.seen() * impl.parameters.shape.channels; ++i)
    store_code(state.memory_.data(), p.x_dtype(), i, p.input.zero_point);
  return state;
}

Result<Workspace> StaticConvStream::workspace(int64_t images, int64_t columns, int32_t threads) const {
  const Impl& impl = *impl_;
  ISOBIT_RETURN_IF_ERROR(check_extents(impl.layer.name(), images, columns));
  const int64_t stride = impl.parameters.shape.columns.stride;
  return impl.layer.chunk_workspace(images, impl.seen(), std::max<int64_t>(1, columns / stride), threads);
}

Status StaticConvStream::forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t images, int64_t columns,
                                 StaticConvState& state, Workspace& workspace, const RunOptions& options,
                                 std::span<const std::byte> residual) const {
  const Impl& impl = *impl_;
  const std::string& name = impl.layer.name();
  const ConvShape& shape = impl.parameters.shape;
  const int64_t seen = impl.seen(), bytes = impl.pixel_bytes();
  if (images != state.images() || state.codes_bytes_ != static_cast<size_t>(images * seen * bytes) ||
      state.memory_.size() != static_cast<size_t>(impl.state_bytes(images, state.columns())))
    return refuse_linear(name + ": images is " + std::to_string(images) + ", but the state is of " +
                         std::to_string(state.images()) + ", or of another stream");
  if (columns < 0 || columns > state.columns() || columns % shape.columns.stride != 0)
    return refuse_linear(name + ": columns is " + std::to_string(columns) + ", must be 0 to " +
                         std::to_string(state.columns()) + ", those of the state, and a multiple of the stride, " +
                         std::to_string(shape.columns.stride));
  LinearRows x_rows{"x", x.data(), x.size(), impl.parameters.linear.x_dtype(), shape.channels, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), impl.parameters.linear.y_dtype(), shape.outputs, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_rows_apart(x_rows, images * columns, y_rows, images * columns / shape.columns.stride));
  if (columns == 0) return {};
  ISOBIT_RETURN_IF_ERROR(
      check_codes(x.data(), impl.parameters.linear.input, images * columns, shape.channels, x_rows.stride, name));
  // Of each image: what was seen, then the chunk.
  std::byte* const all = state.memory_.data() + state.codes_bytes_;
  const int64_t together = (seen + columns) * bytes;
  for (int64_t b = 0; b < images; ++b) {
    std::byte* const to = all + b * together;
    std::memcpy(to, state.memory_.data() + b * seen * bytes, static_cast<size_t>(seen * bytes));
    const std::byte* const from = x.data() + b * columns * x_rows.stride * (bytes / shape.channels);
    for (int64_t i = 0; i < columns; ++i)
      std::memcpy(to + (seen + i) * bytes, from + i * x_rows.stride * (bytes / shape.channels),
                  static_cast<size_t>(bytes));
  }
  RunOptions inner = options;
  inner.x_stride = 0;
  ISOBIT_RETURN_IF_ERROR(impl.layer.forward({all, static_cast<size_t>(images * together)}, y, images,
                                            {1, seen + columns}, workspace, inner, residual));
  for (int64_t b = 0; b < images; ++b)
    std::memcpy(state.memory_.data() + b * seen * bytes, all + b * together + columns * bytes,
                static_cast<size_t>(seen * bytes));
  return {};
}

}  // namespace isobit
