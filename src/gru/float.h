// SPDX-License-Identifier: Apache-2.0
// Internal to gru: the float forward over a range of sequences, shared by GruFloatModel and the calibrator,
// which gives each thread a range.
#ifndef ISOBIT_GRU_FLOAT_H_
#define ISOBIT_GRU_FLOAT_H_

#include <cstdint>
#include <vector>

#include "isobit/gru.h"

namespace isobit {

/// A matrix and its bias in panels of kPanel outputs, so that the inner loop runs over outputs and vectorises although
/// no addition is reordered.
class PackedMatrix {
 public:
  /// weights [outputs, depth], bias [outputs].
  PackedMatrix(const std::vector<float>& weights, const std::vector<float>& bias, int64_t outputs, int64_t depth);
  /// out[i, c] = sum over ascending k of rows[i][k] * weights[c, k], then + bias[c]; the same bits for any `count`.
  void multiply(const float* const* rows, int64_t count, float* out) const;

 private:
  static constexpr int64_t kPanel = 8;
  template <int kCount>
  void multiply_block(const float* const* rows, float* out) const;

  int64_t outputs_;
  int64_t depth_;
  std::vector<float> panels_;  // [ceil(outputs / kPanel), depth, kPanel]
  std::vector<float> bias_;    // padded to whole panels
};

/// Checked weights, packed. Immutable; safe to share between threads.
class FloatGru {
 public:
  /// Sequences that run() computes together.
  static constexpr int64_t kSequences = 16;

  explicit FloatGru(const GruWeights& weights);
  /// Everything that a forward refuses of its arguments.
  [[nodiscard]] Status check(const GruFloatArguments& arguments) const;
  /// Computes sequences begin..end of checked arguments; y is written at valid steps only.
  void run(const GruFloatArguments& arguments, int64_t begin, int64_t end, GruObserver* observer) const;

 private:
  struct Layer {
    PackedMatrix W;
    PackedMatrix R;
  };
  /// Row (t, s) of a time-major tensor begins at data + (t * batch + first + s) * width.
  struct Rows {
    int64_t batch;
    int64_t first;
    int64_t width;
    [[nodiscard]] int64_t at(int64_t step, int64_t sequence) const { return (step * batch + first + sequence) * width; }
  };
  void run_direction(const GruFloatArguments& arguments, int64_t index, int64_t first, int64_t count, const float* in,
                     const Rows& in_rows, float* out, const Rows& out_rows, GruObserver* observer) const;

  int64_t directions_;
  int64_t input_size_;
  int64_t hidden_size_;
  std::vector<Layer> layers_;
};

}  // namespace isobit

#endif  // ISOBIT_GRU_FLOAT_H_
