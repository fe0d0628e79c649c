// SPDX-License-Identifier: Apache-2.0
// Quantisation-aware training of GRUs: docs/numerics.md, section 14. The forward is the integer model that is deployed,
// byte for byte; gradients go straight through its roundings and stop where it clamped. Their bytes are the same on
// every path of a CPU, and for any number of threads.
//
//   with_weights(parameters, weights, quantization)       // each step: integers of the floats that are trained
//   GruModel model = GruModel::create(...).value();       // what is exported after the last step
//   GruQatRun run = GruQatRun::forward(model, x, steps, batch, y).value();
//   run.backward(dy, dx, gradients);                      // of those floats
#ifndef ISOBIT_GRU_QAT_H_
#define ISOBIT_GRU_QAT_H_

#include <cstdint>
#include <memory>
#include <span>

#include "isobit/gru.h"
#include "isobit/gru_training.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit {

/// A forward and what its backward needs. Immutable; backward may be called many times.
class GruQatRun {
 public:
  /// x [T, N, C] is quantised on the model's input grid, y [T, N, directions * H] are the numbers of its codes, those
  /// of GruModel::forward; past a length they are 0. Of `states` first and last, floats. Of the options path (of
  /// backward), pool, lengths and zoneout_mask [layers, T, N, directions * H]. Errors: kInvalidArgument for another
  /// size, for a NaN of x or of states.first, for a length outside 0..T, and for arrays that overlap.
  static Result<GruQatRun> forward(const GruModel& model, std::span<const float> x, int64_t steps, int64_t batch,
                                   std::span<float> y, const GruTrainingStates& states = {},
                                   const RunOptions& options = {});

  [[nodiscard]] const GruTrainingSizes& sizes() const;
  /// The share of numbers that clamps of the forward changed, over steps within their lengths: those of units (ten
  /// each), and x. Gradients stop there.
  [[nodiscard]] double clipped_units() const;
  [[nodiscard]] double clipped_inputs() const;

  /// Gradients of the floats that x, the first states and the weights were quantised from. dy [T, N, directions * H];
  /// dx [T, N, C], or empty: not wanted. Of `states` last_gradient and first_gradient. Gradients are written, not added
  /// to.
  [[nodiscard]] Status backward(std::span<const float> dy, std::span<float> dx,
                                std::span<const GruTrainingGradients> gradients, const GruTrainingStates& states = {},
                                ThreadPool* pool = nullptr) const;

 private:
  GruQatRun() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

}  // namespace isobit

#endif  // ISOBIT_GRU_QAT_H_
