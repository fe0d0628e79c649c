// SPDX-License-Identifier: Apache-2.0
// Shapes of convolutions: numerics.md, section 12. Images are [N, H, W, C], weights [O, R, S, C / groups].
#ifndef ISOBIT_CONV_H_
#define ISOBIT_CONV_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "isobit/status.h"

namespace isobit {

/// What a convolution does along one dimension of an image.
struct ConvAxis {
  int64_t kernel = 1;  // R or S
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t pad_before = 0;  // top or left
  int64_t pad_after = 0;   // bottom or right
  int64_t more = 0;        // of a transposed convolution: outputs beyond the last

  /// What the kernel covers, dilation * (kernel - 1) + 1.
  [[nodiscard]] int64_t extent() const { return dilation * (kernel - 1) + 1; }
};

struct ConvShape {
  int64_t channels = 1;  // C
  int64_t outputs = 1;   // O
  int64_t groups = 1;    // divides both; depthwise: C
  ConvAxis rows{}, columns{};
  bool transposed = false;

  /// K = R * S * C / groups of the linear layer that an output is a row of, k over (r, s, c).
  [[nodiscard]] int64_t depth() const { return rows.kernel * columns.kernel * group_channels(); }
  [[nodiscard]] int64_t group_channels() const { return channels / groups; }
  /// The first channel of x that output o reads.
  [[nodiscard]] int64_t first_channel(int64_t o) const { return o / (outputs / groups) * group_channels(); }
};

/// Errors: kInvalidArgument for sizes below 1, pads below 0, sizes above 2^31 - 1, groups that do not divide channels
/// and outputs, outputs beyond the last of a convolution that is not transposed, or as many as stride and dilation.
/// They name `name`, the field, its value and its limit.
Status check_conv_shape(const ConvShape& shape, std::string_view name);

struct ImageSize {
  int64_t rows = 1;     // H or P
  int64_t columns = 1;  // W or Q

  bool operator==(const ImageSize&) const = default;
};

/// P and Q of images of a size. Errors: those of check_conv_shape; kInvalidArgument for sizes of an image outside 1 to
/// 2^31 - 1, and where P or Q would be: a kernel larger than the padded image.
Result<ImageSize> conv_output_size(const ConvShape& shape, const ImageSize& image, std::string_view name);

/// The pixel of x, of `pixels` along this axis, that kernel element `tap` multiplies for output `output`; none outside
/// x. All of them, and sums of pads and sizes, are below 2^32.
std::optional<int64_t> conv_pixel(const ConvAxis& axis, bool transposed, int64_t pixels, int64_t output, int64_t tap);

}  // namespace isobit

#endif  // ISOBIT_CONV_H_
