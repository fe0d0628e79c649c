// SPDX-License-Identifier: Apache-2.0
// Training of GRUs in float32 on a CUDA device: GruTraining (isobit/gru_training.h) with arrays on the device. Part of
// isobit::cuda.
#ifndef ISOBIT_CUDA_GRU_TRAINING_H_
#define ISOBIT_CUDA_GRU_TRAINING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "isobit/gru_training.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// The formulas of docs/numerics.md, section 14, with sums in an order of the device's own: on one device, calls of the
/// same sizes and options give the same bytes, on any stream, in a CUDA graph or not; they are near the CPU's, not
/// equal to them. Immutable; safe to share between threads and streams; two calls at once need a workspace each.
class DeviceGruTraining {
 public:
  /// For the device with this number, or the current one; leaves it the thread's current device. Errors: those of
  /// GruTraining::create; kInvalidArgument for steps * batch or batch * directions of 2^31 or more; kUnsupported: a
  /// device for which the build has no code.
  static Result<DeviceGruTraining> create(const GruTrainingSizes& sizes, std::string_view name,
                                          std::optional<int> device = {});

  [[nodiscard]] const GruTrainingSizes& sizes() const;
  /// The number of the device.
  [[nodiscard]] int device() const;
  /// "team": R stays in the registers of a block, or of a cluster of them, for all steps; to H = 128 on every device,
  /// to H = 512 with compute capability 9.0. "steps": a product for each step, where R does not fit.
  [[nodiscard]] std::string_view kernel_name() const;
  /// As of GruTraining.
  [[nodiscard]] int64_t saved_size() const;
  /// Bytes of device memory for forward and for backward.
  [[nodiscard]] int64_t workspace_bytes() const;

  /// Arguments as of GruTraining; all arrays, lengths and the mask are memory of this device, the workspace aligned to
  /// 256 bytes. Lengths outside 0..T count as the nearer end. Of the options kernel, stream, lengths and zoneout_mask.
  /// Asynchronous on options.stream: no allocation of device memory, no synchronisation; can be captured in a graph.
  /// Errors: kInvalidArgument for another size, naming the argument, for arrays that overlap, and for memory that is
  /// not this device's; kUnsupported for a kernel that does not run these sizes.
  [[nodiscard]] Status forward(std::span<const GruTrainingWeights> weights, std::span<const float> x,
                               std::span<float> y, std::span<float> saved, std::span<std::byte> workspace,
                               const GruTrainingStates& states = {}, const RunOptions& options = {}) const;
  [[nodiscard]] Status backward(std::span<const GruTrainingWeights> weights, std::span<const float> x,
                                std::span<const float> y, std::span<const float> saved, std::span<const float> dy,
                                std::span<float> dx, std::span<const GruTrainingGradients> gradients,
                                std::span<std::byte> workspace, const GruTrainingStates& states = {},
                                const RunOptions& options = {}) const;

 private:
  DeviceGruTraining() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_GRU_TRAINING_H_
