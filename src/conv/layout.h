// SPDX-License-Identifier: Apache-2.0
// A convolution as a product of rows in pieces (product/product.h): images are copied once into larger ones, where the
// pixels outside x are there too, and a row is what one output reads of such an image.
#ifndef ISOBIT_CONV_LAYOUT_H_
#define ISOBIT_CONV_LAYOUT_H_

#include <cstdint>

#include "isobit/conv.h"

namespace isobit {

/// Along one dimension, in pixels of the padded image. A transposed convolution reads an image with stride - 1 pixels
/// of zero between those of x, the last kernel element first.
struct ConvLayoutAxis {
  int64_t length;                       // of the padded image
  int64_t first, step;                  // pixel i of x is at first + i * step, where that is inside
  int64_t first_output, output_stride;  // kernel element 0 of output p is at first_output + p * output_stride
  int64_t tap;                          // from one kernel element to the next

  static ConvLayoutAxis of(const ConvAxis& a, bool transposed, int64_t outputs) {
    if (!transposed) return {(outputs - 1) * a.stride + a.extent(), a.pad_before, 1, 0, a.stride, a.dilation};
    const int64_t last = a.extent() - 1;
    return {outputs + last, last - a.pad_before, a.stride, last, 1, -a.dilation};
  }
  /// Where pixel i of x is; -1: no output reads it.
  [[nodiscard]] int64_t place(int64_t i) const {
    const int64_t at = first + i * step;
    return at >= 0 && at < length ? at : -1;
  }
};

/// Pieces of the rows of one group: kernel rows, where their pixels and channels lie behind each other, else kernel
/// elements.
struct ConvPieces {
  int64_t count;
  int64_t codes;  // of each in a kernel element's order; weights of the codes up to a multiple of 4 are 0
  bool rows;

  static ConvPieces of(const ConvShape& shape) {
    const bool rows = shape.groups == 1 && !shape.transposed && shape.columns.dilation == 1;
    const int64_t taps = rows ? shape.columns.kernel : 1;
    return {shape.rows.kernel * shape.columns.kernel / taps, taps * shape.group_channels(), rows};
  }
  [[nodiscard]] int64_t padded_codes() const { return (codes + 3) / 4 * 4; }
};

}  // namespace isobit

#endif  // ISOBIT_CONV_LAYOUT_H_
