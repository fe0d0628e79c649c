// SPDX-License-Identifier: Apache-2.0
// The kernels of convolutions on a device, beside those of linear layers.
#ifndef ISOBIT_CONV_CUDA_KERNELS_H_
#define ISOBIT_CONV_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <numeric>

#include "core/fixed.h"
#include "isobit/dtype.h"
#include "isobit/status.h"
#include "linear/cuda/rows.h"
#include "linear/cuda/static_epilogue.h"

namespace isobit::cuda {

struct DeviceAxis {
  int32_t pixels, outputs;  // H and P, or W and Q
  int32_t kernel, stride, dilation, before;
};

/// Of depthwise kernels, whose outputs of a thread are so many columns apart or more.
inline constexpr int64_t kMostDepthwiseDilation = 1 << 16;
/// From an output of a row to the next that reads some of the same columns, in dilations.
constexpr int64_t depthwise_step(int64_t stride, int64_t dilation) { return stride / std::gcd(stride, dilation); }
/// Outputs of a row that a thread of a depthwise kernel computes: `together`, each `apart` from the one before.
struct DepthwiseStrips {
  int32_t apart, together, count;

  /// step: depthwise_step().
  static constexpr DepthwiseStrips of(const DeviceAxis& columns, int32_t step, int32_t together) {
    const int32_t apart = columns.dilation * step / columns.stride, outputs = apart * together;
    return {apart, together, (columns.outputs + outputs - 1) / outputs * apart};
  }
  [[nodiscard]] constexpr int32_t first(int32_t strip) const {
    if (apart == 1) return strip * together;
    return strip / apart * apart * together + strip % apart;
  }
};

/// x of a run, and which outputs.
struct ConvSource {
  const void* x;
  int64_t x_stride;  // elements from pixel to pixel
  int64_t first, m;  // outputs of all images
  DeviceAxis rows, columns;
  int32_t transposed;
  int32_t channels, group_channels;  // C, C / groups
  int32_t zero, least, most;         // codes of x: the zero point, the ends of the grid
  unsigned long long* outside;       // the least of outside_key; null: every code is inside
};

/// A code outside the grid: element of x, counted without strides, and the code.
constexpr unsigned long long outside_key(int64_t element, int32_t code) {
  return static_cast<unsigned long long>(element) << 16 | (static_cast<uint32_t>(code) & 0xffff);
}
inline constexpr unsigned long long kNoneOutside = ~0ull;

/// Rows of a product (linear/cuda/rows.h) of one group of channels, whose first is first_channel.
Status gather_rows(const RowsLayout& layout, const ConvSource& source, Dtype x_dtype, int32_t first_channel,
                   std::byte* to, cudaStream_t stream);

struct ConvResidual {
  const void* codes;  // null: there is none
  Dtype dtype;
  int32_t zero, least, most;
  Rescale rescale;
};

struct ConvDirect {
  ConvSource source;
  const int8_t* weights;  // [R * S * C / groups, O]
  int32_t outputs, group_outputs;
  StaticEpilogue epilogue;  // channels: start is the bias
  ConvResidual residual;
  void* y;
  int64_t y_stride;  // of the residual, too
};
Status run_direct(const ConvDirect& conv, Dtype x_dtype, cudaStream_t stream);

/// y of acc [m, n], behind each other, and a residual.
struct ConvAdd {
  const int32_t* acc;
  int64_t m;
  int32_t n;
  StaticEpilogue epilogue;
  ConvResidual residual;
  void* y;
  int64_t y_stride;
};
Status add_residual(const ConvAdd& add, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_CONV_CUDA_KERNELS_H_
