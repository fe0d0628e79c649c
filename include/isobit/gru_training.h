// SPDX-License-Identifier: Apache-2.0
// Training of GRUs in float32: docs/numerics.md, section 14. The bytes of y and of every gradient are the same on every
// path of a CPU, and for any number of threads.
//
//   GruTraining gru = GruTraining::create(sizes, "gru").value();      // once for each size of a batch
//   Workspace workspace = gru.workspace();
//   std::vector<float> saved(gru.saved_size());
//   gru.forward(weights, x, y, saved, workspace);
//   ...                                                               // dy from y
//   gru.backward(weights, x, y, saved, dy, dx, gradients, workspace);
#ifndef ISOBIT_GRU_TRAINING_H_
#define ISOBIT_GRU_TRAINING_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit {

struct GruTrainingSizes {
  int64_t steps = 0, batch = 0;             // T, N
  int64_t input_size = 0, hidden_size = 0;  // C, H
  int64_t layers = 1, directions = 1;       // layer l + 1 reads directions * H inputs
};

/// One direction of one layer; rows are those of the gates u, r, n.
struct GruTrainingWeights {
  std::span<const float> W;   // [3H, C], above the first layer [3H, directions * H]
  std::span<const float> R;   // [3H, H]
  std::span<const float> bw;  // [3H]
  std::span<const float> br;  // [3H]
};
/// Gradients of a GruTrainingWeights.
struct GruTrainingGradients {
  std::span<float> W, R, bw, br;
};

/// Of states; empty spans are zeros, or are not wanted.
struct GruTrainingStates {
  std::span<const float> first{};          // h_0 [layers * directions, N, H]
  std::span<float> last{};                 // of forward: [layers * directions, N, H]
  std::span<const float> last_gradient{};  // of backward
  std::span<float> first_gradient{};       // of backward
};

class GruTraining {
 public:
  /// Errors: kInvalidArgument for sizes below 1 (steps and batch: below 0), directions other than 1 and 2, and more
  /// than 2^40 numbers in a tensor.
  static Result<GruTraining> create(const GruTrainingSizes& sizes, std::string_view name);

  [[nodiscard]] const GruTrainingSizes& sizes() const { return sizes_; }
  /// Numbers that forward keeps for backward: u, r, n and q of each step of a layer, and y of the layers below.
  [[nodiscard]] int64_t saved_size() const;
  /// Scratch memory of forward and backward, on so many threads.
  [[nodiscard]] Workspace workspace(int threads = 1) const;

  /// weights: [layers * directions], layer by layer. x [T, N, C], y [T, N, directions * H], saved [saved_size()]. Of
  /// the options path, pool, lengths and zoneout_mask [layers, T, N, directions * H]. Errors: kInvalidArgument for
  /// another size, naming the argument, for a length outside 0..T, and for arrays that overlap.
  [[nodiscard]] Status forward(std::span<const GruTrainingWeights> weights, std::span<const float> x,
                               std::span<float> y, std::span<float> saved, Workspace& workspace,
                               const GruTrainingStates& states = {}, const RunOptions& options = {}) const;
  /// Everything but the gradients as of the forward, unchanged. dx [T, N, C], or empty: not wanted. Gradients are
  /// written, not added to.
  [[nodiscard]] Status backward(std::span<const GruTrainingWeights> weights, std::span<const float> x,
                                std::span<const float> y, std::span<const float> saved, std::span<const float> dy,
                                std::span<float> dx, std::span<const GruTrainingGradients> gradients,
                                Workspace& workspace, const GruTrainingStates& states = {},
                                const RunOptions& options = {}) const;

 private:
  GruTraining() = default;
  GruTrainingSizes sizes_;
  std::string name_;
};

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_H_
