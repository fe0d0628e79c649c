// SPDX-License-Identifier: Apache-2.0
// Convolutions of floating-point images at random, for tests and for verify. The fingerprint depends on every line.
#ifndef ISOBIT_CONV_RANDOM_FLOAT_LAYER_H_
#define ISOBIT_CONV_RANDOM_FLOAT_LAYER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conv/random_shape.h"
#include "core/random.h"
#include "isobit/arrays.h"
#include "isobit/conv.h"
#include "linear/random_layer.h"

namespace isobit {

/// A layer, and images that it takes.
struct RandomConv {
  ConvShape shape{};
  ImageSize image{}, size{};
  int64_t images = 1;
  ConvActivations activations = ConvActivations::kFloat;
  LowBitMatrix weights;
  std::vector<float> bias{};
  LinearClamp clamp{};
  Array x{};  // [images, H, W, C]
  Dtype y_dtype = Dtype::kF32;

  [[nodiscard]] int64_t pixels() const { return images * image.rows * image.columns; }
  [[nodiscard]] int64_t outputs() const { return images * size.rows * size.columns; }  // pixels of y
  [[nodiscard]] ConvOptions options(std::optional<CpuPath> path) const {
    return {.activations = activations, .bias = bias, .clamp = clamp, .path = path};
  }

  /// `wild`: pixels of very different sizes, and in one image of three numbers that are special or not finite.
  /// `change`: of the shape and the image; false: another one.
  static Result<RandomConv> random(Random& random, ConvActivations activations, bool wild,
                                   const std::function<bool(ConvShape&, ImageSize&)>& change = {}) {
    for (;;) {
      ConvShape shape = random_conv_shape(random);
      ImageSize image{random.between(1, 9), random.between(1, 9)};
      if (change ? !change(shape, image) : shape.outputs > 80) continue;
      const Result<ImageSize> size = conv_output_size(shape, image, "random");
      if (!size.ok()) continue;
      ISOBIT_ASSIGN_OR_RETURN(LowBitMatrix weights, random_weights(random, shape, activations, !wild));
      RandomConv c{.shape = shape,
                   .image = image,
                   .size = *size,
                   .images = random.between(1, 3),
                   .activations = activations,
                   .weights = std::move(weights)};
      const Status made = ConvLayer::create(shape, c.weights, c.options(CpuPath::kReference), "random").status();
      if (made.code() == StatusCode::kUnsupported) continue;  // what blocks of channels cannot be filled up with
      ISOBIT_RETURN_IF_ERROR(made);
      c.bias = random_bias(random, shape.outputs);
      c.clamp = random_clamp(random);
      const bool is_float = activations == ConvActivations::kFloat;
      const Dtype x_dtype = is_float ? random_of(random, kRandomStores) : random_of(random, kRandomRows);
      c.y_dtype = is_float ? x_dtype : random_of(random, kRandomStores);
      c.x = Array::zeros(x_dtype, {c.images, image.rows, image.columns, shape.channels});
      const size_t row_bytes = static_cast<size_t>(shape.channels) * size_in_bytes(x_dtype);
      for (int64_t b = 0, i = 0; b < c.images; ++b) {
        const bool special = wild && random.one_in(3);
        for (int64_t pixel = 0; pixel < image.rows * image.columns; ++pixel, ++i) {
          const int scale = wild ? static_cast<int>(random.between(-20, 12)) : 0;
          const bool special_pixel = special && random.one_in(8);
          random_row(random, c.x.bytes.data() + static_cast<size_t>(i) * row_bytes, shape.channels, x_dtype, scale,
                     special_pixel);
        }
      }
      return c;
    }
  }

  [[nodiscard]] std::string text() const {
    return conv_text(shape, images, image) + ", " + form_text(weights.parameters()) + ", " +
           std::string(to_string(activations)) + ", " + std::string(to_string(x.dtype)) + " -> " +
           std::string(to_string(y_dtype));
  }

 private:
  /// Of both forms, with groups along the channels of the first.
  static Result<LowBitMatrix> random_weights(Random& random, const ConvShape& shape, ConvActivations activations,
                                             bool ordinary) {
    const bool per_image = activations == ConvActivations::kInt8PerImage;
    const bool shared = per_image || random.one_in(3);
    const int64_t taps = shape.rows.kernel * shape.columns.kernel;
    RandomMatrix form{.rows = shared ? shape.outputs : shape.outputs * taps,
                      .columns = shared ? shape.depth() : shape.group_channels(),
                      .ordinary = ordinary};
    form.group = form.columns;
    if (!shared && form.columns > 8 && random.one_in(2)) form.group = form.columns > 16 && random.one_in(2) ? 16 : 8;
    if (per_image) form.kind = LowBitKind::kSymmetric;
    form.zero_is_a_code = activations == ConvActivations::kInt8Asymmetric && random.one_in(2);
    return random_matrix(random, form);
  }
};

}  // namespace isobit

#endif  // ISOBIT_CONV_RANDOM_FLOAT_LAYER_H_
