// SPDX-License-Identifier: Apache-2.0
#include "conv/cuda/call.h"

#include <tuple>
#include <utility>

#include "core/cuda/arguments.h"

namespace isobit::cuda {

namespace {

DeviceAxis axis_of(const ConvAxis& axis, int64_t pixels, int64_t outputs) {
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  return {narrow(pixels),      narrow(outputs),       narrow(axis.kernel),
          narrow(axis.stride), narrow(axis.dilation), narrow(axis.pad_before)};
}

}  // namespace

Result<DeviceConvCall> device_conv_call(const ConvShape& shape, int64_t images, const ImageSize& image,
                                        const std::string& name) {
  if (images < 0) return refuse_argument(name + ": images is " + std::to_string(images) + ", must be at least 0");
  DeviceConvCall call{images, image, {}};
  ISOBIT_ASSIGN_OR_RETURN(call.size, conv_output_size(shape, image, name));
  const std::pair<const char*, int64_t> sizes[] = {
      {"x", product_of_sizes({images, image.rows, image.columns, shape.channels})},
      {"y", product_of_sizes({images, call.size.rows, call.size.columns, shape.outputs})}};
  constexpr int64_t kMostElements = int64_t{1} << 46;  // outside_key
  for (const auto& [what, elements] : sizes)
    if (elements > kMostElements)
      return refuse_argument(name + ": " + what + " has " + std::to_string(elements) + " elements, must have at most " +
                             std::to_string(kMostElements) + " on a device");
  if (image.rows * image.columns > kMostImageSize || call.size.rows * call.size.columns > kMostImageSize)
    return refuse_argument(name + ": an image has " + std::to_string(image.rows * image.columns) + " pixels and " +
                           std::to_string(call.size.rows * call.size.columns) + " outputs, must have at most " +
                           std::to_string(kMostImageSize) + " on a device");
  // Kernels count with 32 bits along an axis.
  for (const auto& [axis, pixels, outputs] : {std::tuple(&shape.rows, image.rows, call.size.rows),
                                              std::tuple(&shape.columns, image.columns, call.size.columns)}) {
    const int64_t reach = shape.transposed ? outputs + axis->pad_before : pixels + axis->pad_before + axis->pad_after;
    if (reach > kMostImageSize)
      return refuse_argument(name + ": an image with its pads has a side of " + std::to_string(reach) +
                             ", must be at most " + std::to_string(kMostImageSize) + " on a device");
  }
  return call;
}

ConvSource device_source(const ConvShape& shape, const DeviceConvCall& call) {
  ConvSource source{};
  source.m = call.outputs();
  source.rows = axis_of(shape.rows, call.image.rows, call.size.rows);
  source.columns = axis_of(shape.columns, call.image.columns, call.size.columns);
  source.transposed = shape.transposed ? 1 : 0;
  source.channels = static_cast<int32_t>(shape.channels);
  source.group_channels = static_cast<int32_t>(shape.group_channels());
  return source;
}

}  // namespace isobit::cuda
