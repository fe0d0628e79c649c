// SPDX-License-Identifier: Apache-2.0
// Integer GRUs on a CUDA device: the bytes of GruModel. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_GRU_H_
#define ISOBIT_CUDA_GRU_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "isobit/dtype.h"
#include "isobit/gru.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// A GruModel on one device. Immutable; safe to share between threads and streams; two runs at once need a state and a
/// workspace each. Arrays are on the device, or on the host as those of GruModel.
class DeviceGru {
 public:
  /// kUnsupported where the build has no code for the current device, of any kernel of isobit::cuda.
  [[nodiscard]] static Status check_device();
  /// Copies the model to the device with this number, or to the current one, and waits for that. Leaves it the thread's
  /// current device.
  static Result<DeviceGru> create(const GruModel& model, std::optional<int> device = {});

  [[nodiscard]] const GruModel& model() const;
  /// The number of the device.
  [[nodiscard]] int device() const;

  /// The kernel of a run of `steps` steps of `batch` sequences, and why it, or another that was asked for, cannot run.
  /// codes_with_next_state: of forward_codes with an options.next_state, for one step of which the fastest may be
  /// another one; false: of forward, or over its own state.
  [[nodiscard]] Result<std::string_view> choose_kernel(int64_t batch, int64_t steps, std::string_view requested = {},
                                                       bool codes_with_next_state = false) const;

  // ---- Arrays on the host

  /// Device memory for calls of up to `steps` steps of `batch` sequences with arrays on the host.
  [[nodiscard]] Result<Workspace> workspace(int64_t batch, int64_t steps) const;

  /// GruModel::forward with the arithmetic on the device: the same arguments but for options.kernel and stream in place
  /// of path and pool, the same bytes. Copies in and out on options.stream and waits for it; errors before the results
  /// are copied back leave y and `state` as they were. Leaves the model's device the thread's current one. Where speed
  /// counts, keep the arrays on the device.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t steps, GruState& state, Workspace& workspace,
                               const RunOptions& options = {}) const;
  [[nodiscard]] Status forward(std::span<const float> x, std::span<float> y, int64_t steps, GruState& state,
                               Workspace& workspace, const RunOptions& options = {}) const {
    return forward(std::as_bytes(x), Dtype::kF32, std::as_writable_bytes(y), Dtype::kF32, steps, state, workspace,
                   options);
  }
  [[nodiscard]] Status forward_codes(std::span<const std::byte> x, std::span<std::byte> y, int64_t steps,
                                     GruState& state, Workspace& workspace, const RunOptions& options = {}) const {
    return forward(x, model().input_grid().dtype(), y, model().output_grid().dtype(), steps, state, workspace, options);
  }

  // ---- Arrays on the device

  /// Bytes of device memory that hold the codes of h: [layers * directions][N][H] in each layer's h grid, every
  /// [N, H] from a multiple of 256 bytes on.
  [[nodiscard]] int64_t state_bytes(int64_t batch) const;
  /// Bytes of device memory for runs of at most `steps` steps of at most `batch` sequences.
  [[nodiscard]] int64_t workspace_bytes(int64_t batch, int64_t steps) const;

  /// Every code of h is z_h. Asynchronous.
  [[nodiscard]] Status initial_state(std::span<std::byte> state, int64_t batch, CUstream_st* stream) const;
  /// Between codes and floats, f32 in device memory: h [layers * directions, N, H]. A NaN counts as zero. Asynchronous;
  /// the bytes of GruModel::state_from_float and state_to_float.
  [[nodiscard]] Status state_from_float(std::span<const float> h, std::span<std::byte> state, int64_t batch,
                                        CUstream_st* stream) const;
  [[nodiscard]] Status state_to_float(std::span<const std::byte> state, std::span<float> h, int64_t batch,
                                      CUstream_st* stream) const;
  /// Between host and device; these wait for the stream.
  [[nodiscard]] Status upload_state(const GruState& from, std::span<std::byte> state, CUstream_st* stream) const;
  [[nodiscard]] Status download_state(std::span<const std::byte> state, GruState& to, CUstream_st* stream) const;

  /// x [T, N, C] and y [T, N, directions * H]: codes of model().input_grid().dtype() and output_grid().dtype(), or f32
  /// both, which the kernels quantise where they read x and dequantise where they write y. All buffers, lengths and the
  /// zoneout mask are device memory of this device; state and workspace aligned to 256 bytes, the others to their
  /// elements. Lengths outside 0..T count as the nearer end. Continues from `state` and leaves the last state there, or
  /// in options.next_state.
  /// Asynchronous on options.stream: no allocation of device memory, no synchronisation, no copy between host and
  /// device; can be captured in a graph. (CUDA itself loads the code of a kernel before its first launch, unless
  /// CUDA_MODULE_LOADING is EAGER.) So a run cannot return what it finds in x later: a NaN counts as zero, and
  /// check_input says where it was.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t steps, int64_t batch, std::span<std::byte> state, std::span<std::byte> workspace,
                               const RunOptions& options = {}) const;
  [[nodiscard]] Status forward(std::span<const float> x, std::span<float> y, int64_t steps, int64_t batch,
                               std::span<std::byte> state, std::span<std::byte> workspace,
                               const RunOptions& options = {}) const {
    return forward(std::as_bytes(x), Dtype::kF32, std::as_writable_bytes(y), Dtype::kF32, steps, batch, state,
                   workspace, options);
  }
  [[nodiscard]] Status forward_codes(std::span<const std::byte> x, std::span<std::byte> y, int64_t steps, int64_t batch,
                                     std::span<std::byte> state, std::span<std::byte> workspace,
                                     const RunOptions& options = {}) const {
    return forward(x, model().input_grid().dtype(), y, model().output_grid().dtype(), steps, batch, state, workspace,
                   options);
  }
  /// Waits for the stream; kInvalidArgument with the index of the first NaN of x in the last run of floats that used
  /// this workspace. Of a workspace that none has used it says nothing of use.
  [[nodiscard]] static Status check_input(std::span<const std::byte> workspace, CUstream_st* stream);

 private:
  DeviceGru() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

/// One row of src/gru/cuda/kernels.inc: name and what it computes.
struct DeviceGruKernel {
  std::string_view name;
  std::string_view what;
};
std::span<const DeviceGruKernel> gru_kernels();

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_GRU_H_
