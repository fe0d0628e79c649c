// SPDX-License-Identifier: Apache-2.0
// Convolutions of static codes at random, for tests.
#ifndef ISOBIT_CONV_RANDOM_LAYER_H_
#define ISOBIT_CONV_RANDOM_LAYER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "conv/random_shape.h"
#include "core/random.h"
#include "isobit/conv.h"

namespace isobit {

/// Weights, biases and rescales at random; one output in four saturates.
inline StaticLinearParameters random_conv_linear(Random& random, int64_t outputs, int64_t depth, const Grid& input,
                                                 const std::optional<Grid>& output) {
  StaticLinearParameters p;
  p.rows = outputs;
  p.columns = depth;
  p.weight_bits = random.one_in(3) ? 1 << random.between(0, 2) : 8;
  p.input = input;
  p.output = output;
  p.weights = Array::zeros(Dtype::kS8, {outputs, depth});
  const int64_t most = (int64_t{1} << (p.weight_bits - 1)) - 1;
  for (int64_t i = 0; i < p.weights.size(); ++i)
    p.weights.data<int8_t>()[i] =
        static_cast<int8_t>(p.weight_bits == 1 ? 2 * random.between(0, 1) - 1 : random.between(-most - 1, most));
  p.scales = Array::zeros(Dtype::kF32, {outputs});
  std::fill_n(p.scales.data<float>(), outputs, 1.0f);
  p.bias = Array::zeros(Dtype::kS32, {outputs});
  for (int64_t o = 0; o < outputs; ++o) p.bias.data<int32_t>()[o] = static_cast<int32_t>(random.between(-20000, 20000));
  p.rounding = static_cast<Rounding>(random.between(0, 3));
  if (!output) {
    p.lo = INT32_MIN, p.hi = INT32_MAX;
    return p;
  }
  const auto reach =
      static_cast<double>(depth) * static_cast<double>(most + 1) * static_cast<double>(int64_t{1} << input.bits);
  const int shift = 30 + static_cast<int>(std::log2(std::max(1.0, std::sqrt(reach))));
  for (int64_t o = 0; o < outputs; ++o)
    p.rescales.push_back({static_cast<int32_t>(random.between(1 << 20, 1 << 30)), shift - output->bits + 8});
  p.lo = static_cast<int32_t>(random.one_in(2) ? output->min() : output->zero_point);
  p.hi = static_cast<int32_t>(output->max());
  return p;
}

inline Grid random_code_grid(Random& random, int bits) {
  Grid grid{.bits = bits, .is_signed = random.one_in(2)};
  const int64_t points[] = {grid.min(), grid.is_signed ? -1 : grid.max() / 2, std::max<int64_t>(grid.min(), 0),
                            grid.max()};
  grid.zero_point = static_cast<int32_t>(points[random.between(0, 3)]);
  return grid;
}

/// A layer, and images that it takes.
struct RandomStaticConv {
  StaticConvParameters p;
  ImageSize image, size;
  int64_t images = 1;

  static RandomStaticConv random(Random& random) {
    for (;;) {
      RandomStaticConv c;
      c.p.shape = random_conv_shape(random);
      c.image = {random.between(1, 9), random.between(1, 9)};
      if (c.p.shape.channels < 5 && random.one_in(3)) c.image = {random.between(20, 45), random.between(15, 40)};
      c.images = random.between(1, 3);
      const Result<ImageSize> size = conv_output_size(c.p.shape, c.image, "conv");
      if (!size.ok()) continue;
      c.size = *size;
      constexpr int kBits[] = {8, 8, 8, 16, 5, 12};
      const Grid input = random_code_grid(random, kBits[random.between(0, 5)]);
      std::optional<Grid> output;
      if (!random.one_in(6)) output = random_code_grid(random, kBits[random.between(0, 5)]);
      c.p.linear = random_conv_linear(random, c.p.shape.outputs, c.p.shape.depth(), input, output);
      if (output && random.one_in(3))
        c.p.residual = StaticResidual{random_code_grid(random, kBits[random.between(0, 5)]),
                                      {static_cast<int32_t>(random.between(1, 1 << 30)), 29}};
      return c;
    }
  }
  [[nodiscard]] std::string text() const {
    return conv_text(p.shape, images, image) + "; x of " + std::to_string(p.linear.input.bits) + " bits, weights of " +
           std::to_string(p.linear.weight_bits) + (p.residual ? ", residual" : "");
  }
};

}  // namespace isobit

#endif  // ISOBIT_CONV_RANDOM_LAYER_H_
