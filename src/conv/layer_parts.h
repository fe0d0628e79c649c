// SPDX-License-Identifier: Apache-2.0
// What layers of floating-point images share on the CPU and on a device.
#ifndef ISOBIT_CONV_LAYER_PARTS_H_
#define ISOBIT_CONV_LAYER_PARTS_H_

#include <cstdint>
#include <string>

#include "isobit/conv.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"

namespace isobit {

/// An image with a smaller largest magnitude has codes 0 (section 11).
inline constexpr float kLeastRange = 0x1p-118f;

/// Of kInt8PerImage: kInt8.
LinearActivations linear_activations(ConvActivations activations);

/// Shape and options; of kInt8PerImage the weights, too.
Status check_conv_layer(const ConvShape& shape, const LowBitMatrix& weights, const ConvOptions& options,
                        const std::string& name);

/// Whether outputs are pixels of x: the layer is linear.
bool is_conv_linear(const ConvShape& shape);

/// The error of a pixel of x, counted over all images, or of an image, that cannot be quantised.
Status refuse_conv_pixel(int64_t pixel, const ImageSize& image);
Status refuse_conv_image(int64_t image);

/// Of kInt8PerImage: the layer of codes a + 128, without zero point or bias, whose results are the sums d.
StaticConvParameters per_image_sums(const ConvShape& shape, const LowBitMatrix& weights);

}  // namespace isobit

#endif  // ISOBIT_CONV_LAYER_PARTS_H_
