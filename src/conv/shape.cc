// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "isobit/conv.h"

namespace isobit {
namespace {

constexpr int64_t kMostSize = INT32_MAX;  // products of two fit int64

/// The message is made of parts here: a check that passes allocates nothing.
Status refuse_size(std::string_view name, std::string_view axis, std::string_view field, int64_t value,
                   const std::string& must) {
  return {StatusCode::kInvalidArgument, std::string(name) + ": " + std::string(axis) + std::string(field) + " is " +
                                            std::to_string(value) + ", must be " + must};
}

Status check_size(std::string_view name, std::string_view axis, std::string_view field, int64_t value, int64_t least) {
  if (value >= least && value <= kMostSize) return {};
  return refuse_size(name, axis, field, value, std::to_string(least) + " to " + std::to_string(kMostSize));
}

Status check_axis(std::string_view name, std::string_view axis, const ConvAxis& a, bool transposed) {
  ISOBIT_RETURN_IF_ERROR(check_size(name, axis, ".kernel", a.kernel, 1));
  ISOBIT_RETURN_IF_ERROR(check_size(name, axis, ".stride", a.stride, 1));
  ISOBIT_RETURN_IF_ERROR(check_size(name, axis, ".dilation", a.dilation, 1));
  ISOBIT_RETURN_IF_ERROR(check_size(name, axis, ".pad_before", a.pad_before, 0));
  ISOBIT_RETURN_IF_ERROR(check_size(name, axis, ".pad_after", a.pad_after, 0));
  ISOBIT_RETURN_IF_ERROR(check_size(name, axis, ": dilation * (kernel - 1) + 1", a.extent(), 1));
  const int64_t most = transposed ? std::max(a.stride, a.dilation) - 1 : 0;
  if (a.more >= 0 && a.more <= most) return {};
  return refuse_size(name, axis, ".more", a.more,
                     transposed ? "0 to " + std::to_string(most) + ", less than stride or dilation"
                                : "0 where the convolution is not transposed");
}

Result<int64_t> output_size(std::string_view name, std::string_view axis, const ConvAxis& a, bool transposed,
                            int64_t pixels) {
  ISOBIT_RETURN_IF_ERROR(check_size(name, "the image's ", axis, pixels, 1));
  const int64_t pads = a.pad_before + a.pad_after;
  if (transposed) {
    const int64_t outputs = (pixels - 1) * a.stride + a.extent() - pads + a.more;
    ISOBIT_RETURN_IF_ERROR(check_size(name, axis, " of y", outputs, 1));
    return outputs;
  }
  if (a.extent() > pixels + pads)
    return refuse_size(name, axis, ": dilation * (kernel - 1) + 1", a.extent(),
                       "at most the padded image, " + std::to_string(pixels + pads));
  const int64_t outputs = (pixels + pads - a.extent()) / a.stride + 1;
  ISOBIT_RETURN_IF_ERROR(check_size(name, axis, " of y", outputs, 1));
  return outputs;
}

}  // namespace

Status check_conv_shape(const ConvShape& shape, std::string_view name) {
  ISOBIT_RETURN_IF_ERROR(check_size(name, "channels", "", shape.channels, 1));
  ISOBIT_RETURN_IF_ERROR(check_size(name, "outputs", "", shape.outputs, 1));
  ISOBIT_RETURN_IF_ERROR(check_size(name, "groups", "", shape.groups, 1));
  if (shape.channels % shape.groups != 0 || shape.outputs % shape.groups != 0)
    return refuse_size(name, "groups", "", shape.groups,
                       "a divisor of " + std::to_string(shape.channels) + " channels and " +
                           std::to_string(shape.outputs) + " outputs");
  ISOBIT_RETURN_IF_ERROR(check_axis(name, "rows", shape.rows, shape.transposed));
  ISOBIT_RETURN_IF_ERROR(check_axis(name, "columns", shape.columns, shape.transposed));
  const int64_t taps = shape.rows.kernel * shape.columns.kernel;
  if (taps > kMostSize / shape.group_channels())
    return refuse_size(name, "kernel elements", "", taps,
                       "at most " + std::to_string(kMostSize / shape.group_channels()) + " for " +
                           std::to_string(shape.group_channels()) + " channels");
  return {};
}

Result<ConvShape> conv_shape_of(const ConvWeights& weights, const ConvAttributes& attributes, std::string_view name) {
  const int64_t groups = attributes.groups;
  if (groups < 1 || groups > weights.outputs)
    return refuse_size(name, "groups", "", groups, "1 to " + std::to_string(weights.outputs) + ", the output channels");
  const auto axis = [&](size_t i, int64_t kernel) {
    return ConvAxis{.kernel = kernel,
                    .stride = attributes.stride[i],
                    .dilation = attributes.dilation[i],
                    .pad_before = attributes.padding[2 * i],
                    .pad_after = attributes.padding[2 * i + 1],
                    .more = attributes.output_padding[i]};
  };
  ConvShape shape{.channels = weights.channels,
                  .outputs = weights.outputs,
                  .groups = 1,
                  .rows = axis(0, weights.kernel_rows),
                  .columns = axis(1, weights.kernel_columns),
                  .transposed = attributes.transposed};
  ISOBIT_RETURN_IF_ERROR(check_conv_shape(shape, name));  // so that the product below fits
  shape.groups = groups;
  shape.channels *= groups;
  ISOBIT_RETURN_IF_ERROR(check_conv_shape(shape, name));
  return shape;
}

Result<ImageSize> conv_output_size(const ConvShape& shape, const ImageSize& image, std::string_view name) {
  ISOBIT_RETURN_IF_ERROR(check_conv_shape(shape, name));
  ImageSize y;
  ISOBIT_ASSIGN_OR_RETURN(y.rows, output_size(name, "rows", shape.rows, shape.transposed, image.rows));
  ISOBIT_ASSIGN_OR_RETURN(y.columns, output_size(name, "columns", shape.columns, shape.transposed, image.columns));
  return y;
}

std::optional<int64_t> conv_pixel(const ConvAxis& axis, bool transposed, int64_t pixels, int64_t output, int64_t tap) {
  int64_t at = 0;
  if (transposed) {
    const int64_t strides = output + axis.pad_before - tap * axis.dilation;
    if (strides % axis.stride != 0) return std::nullopt;
    at = strides / axis.stride;
  } else {
    at = output * axis.stride + tap * axis.dilation - axis.pad_before;
  }
  if (at < 0 || at >= pixels) return std::nullopt;
  return at;
}

}  // namespace isobit
