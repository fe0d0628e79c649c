// SPDX-License-Identifier: Apache-2.0
// One call of a convolution on a device: what its sizes may be.
#ifndef ISOBIT_CONV_CUDA_CALL_H_
#define ISOBIT_CONV_CUDA_CALL_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "conv/cuda/kernels.h"
#include "isobit/conv.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// What is gathered together is still in the second-level cache when it is multiplied.
inline constexpr int64_t kGatheredBytes = 24 << 20;
/// Rows of so many bytes that are gathered together.
inline int64_t conv_rows_together(int64_t row_bytes) {
  constexpr int64_t kStep = 1024;
  return std::max<int64_t>(kGatheredBytes / row_bytes / kStep, 1) * kStep;
}
inline constexpr int64_t kMostImageSize = (int64_t{1} << 31) - 1;  // kernels count so

struct DeviceConvCall {
  int64_t images;
  ImageSize image, size;

  [[nodiscard]] int64_t pixels() const { return images * image.rows * image.columns; }
  [[nodiscard]] int64_t outputs() const { return images * size.rows * size.columns; }
};

/// Errors: as of DeviceStaticConv::workspace_bytes for sizes.
Result<DeviceConvCall> device_conv_call(const ConvShape& shape, int64_t images, const ImageSize& image,
                                        const std::string& name);

/// All outputs; x, and what is known of codes, is not set.
ConvSource device_source(const ConvShape& shape, const DeviceConvCall& call);

/// In messages.
inline std::string images_text(int64_t images) { return std::to_string(images) + " images of this size"; }

}  // namespace isobit::cuda

#endif  // ISOBIT_CONV_CUDA_CALL_H_
