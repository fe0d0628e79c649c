// SPDX-License-Identifier: Apache-2.0
// Linear layers on low-bit weights on a CUDA device. docs/numerics.md, sections 10 to 12. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_LINEAR_H_
#define ISOBIT_CUDA_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "isobit/dtype.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// A LinearLayer on one device: with activations quantised on the fly the bytes of LinearLayer; of float activations,
/// section 10: a row of y depends on its row of x and on the layer only. Immutable; safe to share between threads and
/// streams; two runs at once need a workspace each.
class DeviceLinear {
 public:
  /// As LinearLayer::create, whose errors it has; options.path must be empty. Packs the weights, copies them to the
  /// device with this number, or to the current one, and waits for that. Leaves it the thread's current device.
  /// kUnsupported besides: of activations quantised on the fly, groups of 65,536 elements and more; a device for which
  /// the build has no code.
  static Result<DeviceLinear> create(const LowBitMatrix& matrix, const LinearOptions& options, std::string_view name,
                                     std::optional<int> device = {});

  [[nodiscard]] int64_t rows() const;     // N
  [[nodiscard]] int64_t columns() const;  // K
  [[nodiscard]] LinearActivations activations() const;
  /// The number of the device.
  [[nodiscard]] int device() const;
  /// Of the packed weights, with scales, bias and what else forward reads.
  [[nodiscard]] int64_t size_bytes() const;

  /// Which of linear_kernels() a run of m rows takes.
  [[nodiscard]] std::string_view kernel_name(int64_t m) const;
  /// Bytes of device memory for runs of at most m rows with x of any type.
  [[nodiscard]] int64_t workspace_bytes(int64_t m) const;

  /// y = act(x W^T + bias) for m rows. x, y and the workspace are memory of this device; the workspace is aligned to
  /// 256 bytes. Types, sizes, strides and errors as in LinearLayer::forward. Of the options stream, x_stride, y_stride
  /// and unchecked. Asynchronous on options.stream: no allocation of device memory, no synchronisation; can be captured
  /// in a graph. So a run cannot return which row of x is not finite: every element of such a row of y is NaN where x
  /// is quantised in the call, and check_input says which it was.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t m, std::span<std::byte> workspace, const RunOptions& options = {}) const;
  /// Waits for the stream; kInvalidArgument with the first row of x that could not be quantised in the last run, which
  /// was of m rows and used this workspace. Always ok for float activations.
  [[nodiscard]] Status check_input(std::span<std::byte> workspace, int64_t m, CUstream_st* stream) const;

 private:
  DeviceLinear() = default;
  struct Data;
  friend struct LinearSteps;  // forward's parts
  std::shared_ptr<const Data> data_;
};

/// A StaticLinearLayer on one device, with its bytes. Immutable; safe to share between threads and streams; two runs at
/// once need a workspace each.
class DeviceStaticLinear {
 public:
  /// Packs the weights, copies them to the device with this number, or to the current one, and waits for that. Leaves
  /// it the thread's current device. kUnsupported: K above 65,793; a device for which the build has no code.
  static Result<DeviceStaticLinear> create(const StaticLinearLayer& layer, std::optional<int> device = {});

  /// What it was made from: parameters, grids, name.
  [[nodiscard]] const StaticLinearLayer& layer() const;
  /// The number of the device.
  [[nodiscard]] int device() const;
  /// Of the packed weights, with rescales and what else forward reads.
  [[nodiscard]] int64_t size_bytes() const;

  /// Which of linear_kernels() a run of m rows takes.
  [[nodiscard]] std::string_view kernel_name(int64_t m) const;
  /// Bytes of device memory for runs of at most m rows.
  [[nodiscard]] int64_t workspace_bytes(int64_t m) const;

  /// x: codes of layer().parameters().x_dtype(), y: of y_dtype(), m rows of each. x, y and the workspace are memory of
  /// this device; the workspace is aligned to 256 bytes. Sizes, strides and errors as in StaticLinearLayer::forward. Of
  /// the options stream, x_stride and y_stride. Asynchronous on options.stream: no allocation of device memory, no
  /// synchronisation; can be captured in a graph. So a run cannot return which code of x is outside the grid: it counts
  /// as the nearer end, and check_input says which it was.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t m, std::span<std::byte> workspace, const RunOptions& options = {}) const;
  /// The same, of the only types that there are.
  [[nodiscard]] Status forward_codes(std::span<const std::byte> x, std::span<std::byte> y, int64_t m,
                                     std::span<std::byte> workspace, const RunOptions& options = {}) const {
    return forward(x, layer().parameters().x_dtype(), y, layer().parameters().y_dtype(), m, workspace, options);
  }
  /// Waits for the stream; the error of StaticLinearLayer::forward for the first code of x outside the grid in the last
  /// run, which was of m rows and used this workspace.
  [[nodiscard]] Status check_input(std::span<const std::byte> workspace, int64_t m, CUstream_st* stream) const;

 private:
  DeviceStaticLinear() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

/// A kernel of linear layers on a device.
struct DeviceLinearKernel {
  std::string_view operation;  // as LinearLayerKernel has it
  std::string_view name;
  std::string_view what;
};
/// In a fixed order.
std::span<const DeviceLinearKernel> linear_kernels();

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_LINEAR_H_
