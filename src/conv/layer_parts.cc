// SPDX-License-Identifier: Apache-2.0
#include "conv/layer_parts.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "linear/layer_parts.h"

namespace isobit {
namespace {

constexpr std::string_view kActivationNames[] = {"float", "int8", "int8_asymmetric", "int8_per_image"};
constexpr int64_t kMaxPerImageDepth = 65535;

Status check_per_image(const ConvShape& shape, const LowBitMatrix& weights, const std::string& name) {
  if (weights.parameters().kind != LowBitKind::kSymmetric)
    return refuse_linear(name + ": kind is " + std::string(to_string(weights.parameters().kind)) +
                         ", must be symmetric for int8_per_image");
  if (weights.rows() != shape.outputs || weights.columns() != shape.depth() || weights.groups() != 1)
    return refuse_linear(name + ": weights are [" + std::to_string(weights.rows()) + ", " +
                         std::to_string(weights.columns()) + "] with " + std::to_string(weights.groups()) +
                         " groups a row, must be [" + std::to_string(shape.outputs) + ", " +
                         std::to_string(shape.depth()) + "] with 1 for int8_per_image");
  if (shape.depth() > kMaxPerImageDepth)
    return {StatusCode::kUnsupported, name + ": R * S * C / groups is " + std::to_string(shape.depth()) +
                                          ", must be at most " + std::to_string(kMaxPerImageDepth) +
                                          " for int8_per_image"};
  return {};
}

}  // namespace

std::string_view to_string(ConvActivations activations) { return kActivationNames[static_cast<size_t>(activations)]; }

std::optional<ConvActivations> conv_activations_from_string(std::string_view text) {
  for (size_t i = 0; i < std::size(kActivationNames); ++i)
    if (kActivationNames[i] == text) return static_cast<ConvActivations>(i);
  return std::nullopt;
}

LinearActivations linear_activations(ConvActivations activations) {
  return activations == ConvActivations::kInt8PerImage ? LinearActivations::kInt8
                                                       : static_cast<LinearActivations>(activations);
}

Status check_conv_layer(const ConvShape& shape, const LowBitMatrix& weights, const ConvOptions& options,
                        const std::string& name) {
  ISOBIT_RETURN_IF_ERROR(check_conv_shape(shape, name));
  const auto number = static_cast<int32_t>(options.activations);
  if (number < 0 || number >= static_cast<int32_t>(std::size(kActivationNames)))
    return refuse_linear(name + ": activations is " + std::to_string(number) + ", must be 0.." +
                         std::to_string(std::size(kActivationNames) - 1));
  ISOBIT_RETURN_IF_ERROR(check_linear_options(
      {.activations = linear_activations(options.activations), .bias = options.bias, .clamp = options.clamp},
      shape.outputs, name));
  if (options.activations != ConvActivations::kInt8PerImage) return {};
  return check_per_image(shape, weights, name);
}

bool is_conv_linear(const ConvShape& shape) {
  const auto plain = [](const ConvAxis& a) {
    return a.kernel == 1 && a.stride == 1 && a.pad_before == 0 && a.pad_after == 0 && a.more == 0;
  };
  return plain(shape.rows) && plain(shape.columns);
}

Status refuse_conv_pixel(int64_t pixel, const ImageSize& image) {
  const int64_t of_image = image.rows * image.columns;
  return refuse_linear("x[" + std::to_string(pixel / of_image) + ", " +
                       std::to_string(pixel % of_image / image.columns) + ", " + std::to_string(pixel % image.columns) +
                       "] has a NaN, an infinity, or a block of channels whose range is infinite, must be finite, or " +
                       "the call unchecked");
}

Status refuse_conv_image(int64_t image) {
  return refuse_linear("x[" + std::to_string(image) +
                       "] has a NaN or an infinity, must be finite, or the call unchecked");
}

StaticConvParameters per_image_sums(const ConvShape& shape, const LowBitMatrix& weights) {
  StaticConvParameters p{.shape = shape};
  StaticLinearParameters& linear = p.linear;
  linear.rows = weights.rows();
  linear.columns = weights.columns();
  linear.weight_bits = weights.parameters().bits;
  linear.weights = Array::zeros(Dtype::kS8, {linear.rows, linear.columns});
  for (int64_t n = 0; n < linear.rows; ++n)
    for (int64_t k = 0; k < linear.columns; ++k)
      linear.weights.data<int8_t>()[n * linear.columns + k] = static_cast<int8_t>(weights.value(n, k));
  linear.scales = Array::zeros(Dtype::kF32, {linear.rows});
  std::fill_n(linear.scales.data<float>(), linear.rows, 1.0f);  // no sum depends on them
  linear.bias = Array::zeros(Dtype::kS32, {linear.rows});
  linear.input = {.bits = 8, .is_signed = false, .kind = ScaleKind::kPow2, .shift = 0, .zero_point = 128};
  linear.lo = INT32_MIN;
  linear.hi = INT32_MAX;
  return p;
}

}  // namespace isobit
