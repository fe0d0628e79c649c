// SPDX-License-Identifier: Apache-2.0
// The normative convolutions: numerics.md, section 12, an output at a time, of static codes and of floats in float64.
#ifndef ISOBIT_CONV_REFERENCE_H_
#define ISOBIT_CONV_REFERENCE_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "isobit/conv.h"
#include "linear/layer_reference.h"

namespace isobit {

/// The row over (r, s, c) that output o of pixel (p, q) multiplies: floats, or codes less the zero point; 0 outside x.
/// x: one image of such, [H, W, C].
template <typename T>
std::vector<T> reference_conv_row(const ConvShape& shape, const ImageSize& image, const T* x, int64_t p, int64_t q,
                                  int64_t o) {
  std::vector<T> row;
  row.reserve(static_cast<size_t>(shape.depth()));
  for (int64_t r = 0; r < shape.rows.kernel; ++r) {
    const std::optional<int64_t> i = conv_pixel(shape.rows, shape.transposed, image.rows, p, r);
    for (int64_t s = 0; s < shape.columns.kernel; ++s) {
      const std::optional<int64_t> j = conv_pixel(shape.columns, shape.transposed, image.columns, q, s);
      for (int64_t c = 0; c < shape.group_channels(); ++c)
        row.push_back(i && j ? x[(*i * image.columns + *j) * shape.channels + shape.first_channel(o) + c] : T{0});
    }
  }
  return row;
}

/// One result of codes: with a residual, of its code.
inline int64_t reference_static_conv_code(const StaticConvParameters& p, int64_t o, const int32_t* row, int64_t code) {
  if (!p.residual) return reference_static(p.linear, o, row);
  const auto rescaled = [&](const RescaleParameters& r, int64_t operand) {
    return Rescale{r.multiplier, r.shift}.apply(operand, p.linear.rounding);
  };
  const int64_t sum = rescaled(p.linear.rescales[static_cast<size_t>(o)], reference_static_acc(p.linear, o, row)) +
                      rescaled(p.residual->rescale, code - p.residual->grid.zero_point);
  return clamp_s64(sum + p.linear.output->zero_point, p.linear.lo, p.linear.hi);
}

/// y [P, Q, O] of one image; residual: as y, where there is one.
inline std::vector<int64_t> reference_static_conv(const StaticConvParameters& p, const ImageSize& image,
                                                  const ImageSize& size, const int32_t* x, const int64_t* residual) {
  std::vector<int64_t> y;
  for (int64_t row = 0; row < size.rows; ++row)
    for (int64_t column = 0; column < size.columns; ++column)
      for (int64_t o = 0; o < p.shape.outputs; ++o)
        y.push_back(reference_static_conv_code(p, o, reference_conv_row(p.shape, image, x, row, column, o).data(),
                                               residual == nullptr ? 0 : residual[y.size()]));
  return y;
}

/// Section 10, one result in float64, bias included. w: of either form of the weights of ConvLayer.
inline ReferenceSum reference_conv_sum(const ConvShape& shape, const ReferenceWeights& w, int64_t o, const float* row,
                                       float bias) {
  if (w.n == shape.outputs) return reference_sum(w, o, row, bias);
  const int64_t taps = shape.rows.kernel * shape.columns.kernel;
  ReferenceSum y{static_cast<double>(bias), std::abs(static_cast<double>(bias))};
  for (int64_t tap = 0; tap < taps; ++tap) {
    const ReferenceSum part = reference_sum(w, o * taps + tap, row + tap * shape.group_channels(), 0.0f);
    y.value += part.value;
    y.terms += part.terms;
  }
  return y;
}

}  // namespace isobit

#endif  // ISOBIT_CONV_REFERENCE_H_
