// SPDX-License-Identifier: Apache-2.0
// Quantisation-aware training of GRUs: docs/numerics.md, section 14. The forward is the integer model that is deployed,
// byte for byte; gradients go straight through its roundings and stop where it clamped. Their bytes are the same on
// every path of a CPU, and for any number of threads.
//
//   with_weights(parameters, weights, quantization)       // each step: integers of the floats that are trained
//   GruModel model = GruModel::create(...).value();       // what is exported after the last step
//   GruQatRun run = GruQatRun::forward(model, x, steps, batch, y).value();
//   run.backward(dy, dx, gradients);                      // of those floats
//
// Grids of activations can be learned, too: GruQatOptions::learn_grids, the last argument of backward, with_grids().
#ifndef ISOBIT_GRU_QAT_H_
#define ISOBIT_GRU_QAT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "isobit/gru.h"
#include "isobit/gru_training.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit {

/// What a grid does to the loss: sums of G, the gradient of a number behind a clamp to the grid.
struct GruGridGradient {
  float below = 0;   // of numbers below the grid: the gradient of the lower end of its range
  float above = 0;   // of numbers above it: of the upper end
  float inside = 0;  // of G * (what rounding added, in steps), of numbers in the grid
  bool operator==(const GruGridGradient&) const = default;
};
/// The gradient of the grid's step S, inside + (min - z) * below + (max - z) * above, and of log2(S), which is S * ln 2
/// times that; in float32, from left to right.
float step_gradient(const GruGridGradient& sums, const Grid& grid);
float log2_step_gradient(const GruGridGradient& sums, const Grid& grid);
/// Of one direction of one layer, by GruTensor: h, ih, hh, u_in, r_in, n_in, and x of the first layer. 0 of others: the
/// x of a layer above is the h of the layer below. Directions share x and h: both have the sum.
using GruGridGradients = std::array<GruGridGradient, kGruTensorCount>;

struct GruQatOptions {
  /// Keeps what gradients of grids need, 42 bytes of each unit and step.
  bool learn_grids = false;
};

/// A forward and what its backward needs. Immutable; backward may be called many times.
class GruQatRun {
 public:
  /// x [T, N, C] is quantised on the model's input grid, y [T, N, directions * H] are the numbers of its codes, those
  /// of GruModel::forward; past a length they are 0. Of `states` first and last, floats. Of the options path (of
  /// backward), pool, lengths and zoneout_mask [layers, T, N, directions * H]. Errors: kInvalidArgument for another
  /// size, for a NaN of x or of states.first, for a length outside 0..T, and for arrays that overlap.
  static Result<GruQatRun> forward(const GruModel& model, std::span<const float> x, int64_t steps, int64_t batch,
                                   std::span<float> y, const GruTrainingStates& states = {},
                                   const RunOptions& options = {}, const GruQatOptions& training = {});

  [[nodiscard]] const GruTrainingSizes& sizes() const;
  /// The share of numbers that clamps of the forward changed, over steps within their lengths: those of units (ten
  /// each), and x. Gradients stop there.
  [[nodiscard]] double clipped_units() const;
  [[nodiscard]] double clipped_inputs() const;
  /// The same of one tensor of `layer`, l * directions + d: h, ih, hh, u_in, r_in, n_in, and x of the first layer. 0 of
  /// others, which have no clamp of their own.
  [[nodiscard]] double clipped(int64_t layer, GruTensor tensor) const;

  /// What backward needs, as bytes, for those who keep it in memory of their own. They depend on the arguments of the
  /// forward alone, and serve this build of the library. A restored run has no shares of clamps: they are 0.
  [[nodiscard]] int64_t saved_size() const;
  /// kInvalidArgument: not saved_size() bytes.
  [[nodiscard]] Status save(std::span<std::byte> bytes) const;
  /// The run reads the bytes, which must stay as they are. kInvalidArgument: not what save() wrote, or not at a
  /// multiple of 8 bytes.
  static Result<GruQatRun> restore(std::span<const std::byte> bytes);

  /// Gradients of the floats that x, the first states and the weights were quantised from. dy [T, N, directions * H];
  /// dx [T, N, C], or empty: not wanted. Of `states` last_gradient and first_gradient. grids [layers * directions]
  /// after a forward with learn_grids, or empty: not wanted. Gradients are written, not added to.
  [[nodiscard]] Status backward(std::span<const float> dy, std::span<float> dx,
                                std::span<const GruTrainingGradients> gradients, const GruTrainingStates& states = {},
                                ThreadPool* pool = nullptr, std::span<GruGridGradients> grids = {}) const;

 private:
  GruQatRun() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

/// h [layers * directions, N, H], last states of `from`, as first states of `to`: `out` has the numbers of the codes of
/// GruModel::state_from, the same shape. The gradient of out is that of h where `passed` is 1, and stops where it is 0:
/// a clamp changed the number. Errors: kInvalidArgument for another size or a NaN; those of state_from.
[[nodiscard]] Status hand_over(const GruModel& from, const GruModel& to, std::span<const float> h, int64_t batch,
                               std::span<float> out, std::span<uint8_t> passed);

}  // namespace isobit

#endif  // ISOBIT_GRU_QAT_H_
