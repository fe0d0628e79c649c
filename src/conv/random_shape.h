// SPDX-License-Identifier: Apache-2.0
// Shapes of convolutions at random, for tests and for verify.
#ifndef ISOBIT_CONV_RANDOM_SHAPE_H_
#define ISOBIT_CONV_RANDOM_SHAPE_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/random.h"
#include "isobit/conv.h"

namespace isobit {

inline ConvAxis random_conv_axis(Random& random, bool transposed, bool padded) {
  ConvAxis a{.kernel = random.between(1, 5), .stride = random.between(1, 3), .dilation = random.between(1, 3)};
  if (padded) {
    a.pad_before = random.between(0, a.kernel);
    a.pad_after = random.between(0, a.kernel);
  }
  if (transposed) a.more = random.between(0, std::max(a.stride, a.dilation) - 1);
  return a;
}

/// One in four is depthwise, one in four has no pads, one in five is transposed.
inline ConvShape random_conv_shape(Random& random) {
  constexpr int64_t kChannels[] = {1, 3, 4, 15, 16, 17, 33, 64};
  ConvShape shape{.channels = kChannels[random.between(0, 7)], .transposed = random.one_in(5)};
  const bool depthwise = random.one_in(4);
  shape.groups = depthwise ? shape.channels : random.one_in(4) ? random.between(2, 3) : 1;
  if (!depthwise) shape.channels *= shape.groups;
  shape.outputs = shape.groups * random.between(1, depthwise ? 2 : 40);
  const bool padded = !random.one_in(4);
  shape.rows = random_conv_axis(random, shape.transposed, padded);
  shape.columns = random_conv_axis(random, shape.transposed, padded);
  return shape;
}

/// What a case is called in a difference.
inline std::string conv_text(const ConvShape& shape, int64_t images, const ImageSize& image) {
  const auto axis = [](const ConvAxis& a) {
    return std::to_string(a.kernel) + " stride " + std::to_string(a.stride) + " dilation " +
           std::to_string(a.dilation) + " pads " + std::to_string(a.pad_before) + " " + std::to_string(a.pad_after) +
           (a.more == 0 ? "" : " and " + std::to_string(a.more) + " more");
  };
  return std::to_string(images) + " of " + std::to_string(image.rows) + "x" + std::to_string(image.columns) + "x" +
         std::to_string(shape.channels) + " to " + std::to_string(shape.outputs) + ", groups " +
         std::to_string(shape.groups) + (shape.transposed ? ", transposed, " : ", ") + axis(shape.rows) + ", " +
         axis(shape.columns);
}

/// For depthwise kernels that take columns of an image together: outputs are one or two columns apart, of those that
/// lie a dilation apart.
inline ConvAxis random_depthwise_axis(Random& random, int64_t kernel) {
  ConvAxis axis{.kernel = kernel, .stride = random.between(1, 2)};
  axis.dilation = random.one_in(2) ? 1 : random.between(2, 4);
  if (random.one_in(2)) axis.stride *= axis.dilation;
  axis.pad_before = random.between(0, axis.extent() - 1);
  axis.pad_after = random.between(0, axis.extent() - 1);
  return axis;
}

}  // namespace isobit

#endif  // ISOBIT_CONV_RANDOM_SHAPE_H_
