// SPDX-License-Identifier: Apache-2.0
// Quantisation-aware training of GRUs on a CUDA device: GruQatRun (isobit/gru_qat.h) with arrays on the device. Part of
// isobit::cuda.
//
//   const auto gru = DeviceGruQat::create(model, quantization, "gru").value();  // grids and tables of activations
//   gru.forward(weights, x, steps, batch, y, saved, workspace);                 // weights: floats that are trained
//   gru.backward(steps, batch, saved, dy, dx, gradients, workspace);
#ifndef ISOBIT_CUDA_GRU_QAT_H_
#define ISOBIT_CUDA_GRU_QAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "isobit/gru.h"
#include "isobit/gru_training.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// The shares of GruQatRun: numbers that clamps of a forward changed.
struct GruQatShares {
  double clipped_units = 0, clipped_inputs = 0;
  std::vector<std::array<double, kGruTensorCount>> clipped;  // [layers * directions], by GruTensor
};

/// Grids, tables and rescales of activations are those of a model; each forward quantises the weights, which are on the
/// device, to the integers that with_weights() makes of them. y has the bytes of GruModel::forward of these integers.
/// Gradients are the formulas of docs/numerics.md, section 14, with sums in an order of the device's own: on one
/// device, calls of the same sizes and options give the same bytes, on any stream, in a CUDA graph or not. Grids are
/// not learned here. Immutable; safe to share between threads and streams; two calls at once need memory of their own
/// each.
class DeviceGruQat {
 public:
  /// The widest codes of x, h, W and R.
  static constexpr int kMostBits = 16;

  /// Arguments as of with_weights(); no result depends on the codes of weights that `model` has. For the device with
  /// this number, or the current one; leaves it the thread's current device. Copies tables to the device and waits for
  /// that. Errors: kUnsupported, naming the tensor, for codes of more than kMostBits bits, for sums of products that
  /// can reach 2^52 and for an ih that can reach 2^30 on a gate input's scale, and for a device for which the build has
  /// no code; kInvalidArgument for a quantization of other layers or widths than the model's.
  static Result<DeviceGruQat> create(const GruModel& model, const GruQuantization& quantization, std::string_view name,
                                     std::optional<int> device = {}, GruRowGrids rows = GruRowGrids::kDerived);

  /// The number of the device.
  [[nodiscard]] int device() const;
  /// "team": R stays in the registers of a block, or of a cluster of them, for all steps, as in DeviceGruTraining.
  /// "steps": a product for each step, where R does not fit, or where W, R and h are too wide for exact float sums.
  [[nodiscard]] std::string_view kernel_name() const;
  /// Bytes of device memory for what a backward needs of its forward, and for either of them.
  [[nodiscard]] int64_t saved_bytes(int64_t steps, int64_t batch) const;
  [[nodiscard]] int64_t workspace_bytes(int64_t steps, int64_t batch) const;

  /// Arguments as of GruQatRun::forward and backward; all arrays, lengths and the mask are memory of this device, saved
  /// and workspace aligned to 256 bytes. Lengths outside 0..T count as the nearer end. Of the options kernel, stream,
  /// lengths and zoneout_mask: those of a backward must be those of its forward. Asynchronous on options.stream: no
  /// allocation of device memory, no synchronisation; can be captured in a graph. What only the numbers tell, check()
  /// says. Errors: kInvalidArgument for another size, naming the argument, for steps * batch or batch * directions of
  /// 2^31 or more, for arrays that overlap, and for memory that is not this device's; kUnsupported for a kernel that
  /// does not run the model.
  [[nodiscard]] Status forward(std::span<const GruTrainingWeights> weights, std::span<const float> x, int64_t steps,
                               int64_t batch, std::span<float> y, std::span<std::byte> saved,
                               std::span<std::byte> workspace, const GruTrainingStates& states = {},
                               const RunOptions& options = {}) const;
  [[nodiscard]] Status backward(int64_t steps, int64_t batch, std::span<const std::byte> saved,
                                std::span<const float> dy, std::span<float> dx,
                                std::span<const GruTrainingGradients> gradients, std::span<std::byte> workspace,
                                const GruTrainingStates& states = {}, const RunOptions& options = {}) const;

  /// Waits for the stream, then says what the forward that wrote `saved` met; its results are undetermined after an
  /// error. kInvalidArgument: a NaN of x or states.first, a weight that is not finite, weights that have no grid;
  /// kOverflow: rows that with_weights() or GruModel::create() refuse. Messages name the tensor and the place.
  [[nodiscard]] Result<GruQatShares> check(int64_t steps, int64_t batch, std::span<std::byte> saved,
                                           CUstream_st* stream = nullptr) const;

 private:
  DeviceGruQat() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_GRU_QAT_H_
