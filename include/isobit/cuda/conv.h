// SPDX-License-Identifier: Apache-2.0
// Convolutions on a CUDA device. docs/numerics.md, sections 10 to 12. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_CONV_H_
#define ISOBIT_CUDA_CONV_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "isobit/conv.h"
#include "isobit/cuda/linear.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// A StaticConvLayer on one device, with its bytes. Immutable; safe to share between threads and streams; two runs at
/// once need a workspace each.
class DeviceStaticConv {
 public:
  /// Packs the weights, copies them to the device with this number, or to the current one, and waits for that. Leaves
  /// it the thread's current device. kUnsupported: a device for which the build has no code.
  static Result<DeviceStaticConv> create(const StaticConvLayer& layer, std::optional<int> device = {});

  /// What it was made from.
  [[nodiscard]] const StaticConvLayer& layer() const;
  /// The number of the device.
  [[nodiscard]] int device() const;

  /// What a run takes, the one that is estimated to take the least time: "tile_128x128", "tile_128x64", "tile_64x64",
  /// "tile_64x32", matrix instructions on rows of x that are copied as they are needed, for so many outputs by
  /// channels; "depthwise"; "product", the product of a linear layer on rows that were gathered from images; "direct",
  /// sums for each output. Tiles and depthwise are for grids of 8 bits of x. Where C / groups is a multiple of 16,
  /// tiles copy 16 codes at a time and need x and x_stride to be multiples of 16, and images of less than 2^31 codes;
  /// depthwise needs multiples of 4. Else direct runs in their place.
  [[nodiscard]] Result<std::string_view> kernel_name(int64_t images, const ImageSize& image) const;
  /// Bytes of device memory for a run. Errors: those of StaticConvLayer::workspace; kInvalidArgument for more than 2^46
  /// elements of x or y, 2^31 - 1 pixels or outputs of an image, or such a side with its pads, and for a kernel that is
  /// not there, kUnsupported for one that does not run this layer.
  [[nodiscard]] Result<int64_t> workspace_bytes(int64_t images, const ImageSize& image,
                                                std::string_view kernel = {}) const;

  /// x, y, residual and the workspace are memory of this device; the workspace is aligned to 256 bytes. Sizes, strides
  /// and errors as in StaticConvLayer::forward. Of the options kernel, stream and strides. Asynchronous on
  /// options.stream: no allocation of device memory, no synchronisation; can be captured in a graph. A code of x or of
  /// the residual that is outside its grid counts as the nearer end; check_input tells of those of x.
  [[nodiscard]] Status forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t images,
                               const ImageSize& image, std::span<std::byte> workspace, const RunOptions& options = {},
                               std::span<const std::byte> residual = {}) const;
  /// Waits for the stream; kInvalidArgument with the first code of x outside the grid, of those that outputs read, in
  /// the last run of at least one image that used this workspace.
  [[nodiscard]] Status check_input(std::span<const std::byte> workspace, CUstream_st* stream) const;

 private:
  DeviceStaticConv() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

/// A convolution of floating-point images on low-bit weights (ConvLayer) on one device: of the int8 kinds the bytes of
/// ConvLayer; of kFloat section 10: an output depends on the pixels that it reads and on the layer only. Immutable;
/// safe to share between threads and streams; two runs at once need a workspace each.
class DeviceConv {
 public:
  /// As ConvLayer::create, whose errors it has; options.path must be empty. Packs the weights, copies them to the
  /// device with this number, or to the current one, and waits for that. Leaves it the thread's current device.
  /// kUnsupported besides: of the int8 kinds blocks of 65,536 channels and more; K of about 2^30 and more; a device for
  /// which the build has no code.
  static Result<DeviceConv> create(const ConvShape& shape, const LowBitMatrix& weights, const ConvOptions& options,
                                   std::string_view name, std::optional<int> device = {});

  [[nodiscard]] const ConvShape& shape() const;
  [[nodiscard]] ConvActivations activations() const;
  [[nodiscard]] const std::string& name() const;
  /// The number of the device.
  [[nodiscard]] int device() const;

  /// What every run with x of this type takes: "tile", matrix instructions on rows that are copied from images as they
  /// are needed, of float16, bfloat16, and kInt8 with v of 8 bits, all without offsets; "depthwise", 3 x 3 and 5 x 5, a
  /// channel by itself; "product", the product of a linear layer on rows that were gathered from images; "direct", each
  /// output by itself, where groups have fewer than 16 channels; "sums", of kInt8PerImage, a convolution of static
  /// codes whose sums are scaled.
  [[nodiscard]] std::string_view kernel_name(Dtype x_dtype) const;
  /// Bytes of device memory for a run with x of any type. Errors: as of DeviceStaticConv::workspace_bytes for sizes.
  [[nodiscard]] Result<int64_t> workspace_bytes(int64_t images, const ImageSize& image) const;

  /// x, y and the workspace are memory of this device; the workspace is aligned to 256 bytes. Types, sizes, strides and
  /// errors as in ConvLayer::forward. Of the options stream, strides and unchecked. Asynchronous on options.stream: no
  /// allocation of device memory, no synchronisation; can be captured in a graph. So a run cannot return which pixel or
  /// image of x is not finite: of the int8 kinds every output that reads it is NaN, and check_input says which it was.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t images, const ImageSize& image, std::span<std::byte> workspace,
                               const RunOptions& options = {}) const;
  /// Waits for the stream; kInvalidArgument with the first pixel (kInt8PerImage: image) of x that could not be
  /// quantised in the last run, which was of so many images of this size and used this workspace. A pixel that no
  /// output reads may pass. Always ok for kFloat.
  [[nodiscard]] Status check_input(std::span<const std::byte> workspace, int64_t images, const ImageSize& image,
                                   CUstream_st* stream) const;

 private:
  DeviceConv() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

/// Kernels of convolutions on a device, in a fixed order. Operations: "conv_static", "conv_int8", "conv_float" and
/// "conv_int8_per_image".
std::span<const DeviceLinearKernel> conv_kernels();

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_CONV_H_
