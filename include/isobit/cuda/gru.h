// SPDX-License-Identifier: Apache-2.0
// Integer GRUs on a CUDA device: the bytes of GruModel. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_GRU_H_
#define ISOBIT_CUDA_GRU_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

struct GruRunOptions {
  std::string_view kernel{};              // empty: the fastest for the run (DeviceGru::choose_kernel)
  const int32_t* lengths = nullptr;       // device memory, [N]; values outside 0..T count as the nearer end
  const uint8_t* zoneout_mask = nullptr;  // device memory, [T, N, directions * H]; models of one layer
  bool batch_first = false;               // x [N, T, C] and y [N, T, directions * H]
  /// Device memory as large as `state` and apart from it, where the last state goes instead: `state` is only read,
  /// then. Runs of one step of codes are one launch instead of two so, if x and the rows of h are multiples of 16
  /// bytes: two buffers in turn.
  std::span<std::byte> next_state{};
  bool whole_sequence = false;  // x holds whole sequences: isobit::RunOptions
};

/// A GruModel on one device. Immutable; safe to share between threads and streams; two runs at once need a state and a
/// workspace each. Runs are asynchronous on the caller's stream: no allocation of device memory, no synchronisation, no
/// copy between host and device; all of them can be captured in a graph. (CUDA itself loads the code of a kernel before
/// its first launch, unless CUDA_MODULE_LOADING is EAGER.)
class DeviceGru {
 public:
  /// kUnsupported where the build has no code for the current device, of any kernel of isobit::cuda.
  [[nodiscard]] static Status check_device();
  /// Copies the model to the current device, and waits for that.
  static Result<DeviceGru> create(const GruModel& model);

  [[nodiscard]] const GruModel& model() const;

  /// The kernel of a run of `steps` steps of `batch` sequences, and why it, or another that was asked for, cannot run.
  /// codes_with_next_state: of forward_codes with an options.next_state, for one step of which the fastest may be
  /// another one; false: of forward, or over its own state.
  [[nodiscard]] Result<std::string_view> choose_kernel(int64_t batch, int64_t steps, std::string_view requested = {},
                                                       bool codes_with_next_state = false) const;

  /// Bytes of device memory that hold the codes of h: [layers * directions][N][H] in each layer's h grid, every
  /// [N, H] from a multiple of 256 bytes on.
  [[nodiscard]] int64_t state_bytes(int64_t batch) const;
  /// Bytes of device memory for runs of at most `steps` steps of at most `batch` sequences.
  [[nodiscard]] int64_t workspace_bytes(int64_t batch, int64_t steps) const;

  /// Every code of h is z_h. Asynchronous.
  [[nodiscard]] Status initial_state(std::span<std::byte> state, int64_t batch, cudaStream_t stream) const;
  /// Between host and device; these wait for the stream.
  [[nodiscard]] Status upload_state(const GruState& from, std::span<std::byte> state, cudaStream_t stream) const;
  [[nodiscard]] Status download_state(std::span<const std::byte> state, GruState& to, cudaStream_t stream) const;

  /// Codes in and out: x elements of model().input_grid().dtype() [T, N, C], y of output_grid().dtype()
  /// [T, N, directions * H]. All buffers are device memory of this device; state and workspace aligned to 256 bytes, x
  /// and y to their elements. Continues from `state` and leaves the last state there, or in
  /// options.next_state.
  [[nodiscard]] Status forward_codes(std::span<const std::byte> x, std::span<std::byte> y, int64_t steps, int64_t batch,
                                     std::span<std::byte> state, std::span<std::byte> workspace, cudaStream_t stream,
                                     const GruRunOptions& options = {}) const;
  /// Float in and out: the kernels quantise x where they read it, and dequantise y where they write it. A run cannot
  /// return what it finds in x later: NaN counts as zero, and check_input says where it was.
  [[nodiscard]] Status forward(std::span<const float> x, std::span<float> y, int64_t steps, int64_t batch,
                               std::span<std::byte> state, std::span<std::byte> workspace, cudaStream_t stream,
                               const GruRunOptions& options = {}) const;
  /// Waits for the stream; kInvalidArgument with the index of the first NaN of x in the last `forward` that used this
  /// workspace. Of a workspace that none has used it says nothing of use.
  [[nodiscard]] static Status check_input(std::span<const std::byte> workspace, cudaStream_t stream);

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
