// SPDX-License-Identifier: Apache-2.0
// An integer GRU beside the float one that it was made from, on the same data: tensor by tensor (GruComparison), the
// outputs alone (GruValidation), and what wider tensors would give (ablate). docs/tutorial.md, section 5.
//
//   SQNR(a, b) = 10 log10(sum a^2 / sum (a - b)^2) dB, a float, b fixed; infinite where every b equals its a,
//   minus infinity where only a is 0 throughout.
//
// Data is given piece by piece. Results depend neither on the pieces nor on the number of threads: sums are made for
// each sequence and added in the order of the sequences.
#ifndef ISOBIT_COMPARE_H_
#define ISOBIT_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "isobit/status.h"

namespace isobit {

/// Sequences to compare on. Shape letters as in gru.h; every value finite.
struct GruSequences {
  int64_t steps = 0;                    // T
  int64_t batch = 0;                    // N
  std::span<const float> x;             // [T, N, C]
  bool batch_first = false;             // x is [N, T, C]
  std::span<const int64_t> lengths{};   // [N], 0..T; default T for all
  std::span<const float> h0{};          // [layers * directions, N, H]; default 0
};

// ---------------------------------------------------------------------------------------------------------------
// Tensor by tensor

/// Where a value is; -1 throughout: nowhere. Activations: sequences are numbered in the order in which they were added,
/// `index` is the channel. Weights and biases: `step` is the row, `index` the column, `sequence` -1.
struct ComparePlace {
  int64_t sequence = -1;
  int64_t step = -1;
  int64_t index = -1;
};

/// A channel of an activation (0 to C - 1, 3H - 1 or H - 1), or a row of a weight. -1: no channel has a value but 0.
struct ChannelSqnr {
  int64_t channel = -1;
  double sqnr_db = 0;
};

/// GruCompareOptions::profile: where the float values of a tensor lie on its grid, in codes that need not be whole:
/// a / scale + zero_point. Weights: each value on the grid of its row.
struct GridHistogram {
  double low = 0, high = 0;                  // of the bins, which have one width; what lies beyond is in the outer ones
  double covered_low = 0, covered_high = 0;  // what the grid is meant to cover, see `clipped`
  std::vector<uint64_t> counts;              // a bin each; empty: not asked for, or a bias
};

/// GruCompareOptions::profile: errors of an h by step. Slice i: steps i * slice_steps to (i + 1) * slice_steps - 1.
struct ErrorOverTime {
  static constexpr int64_t kMostSlices = 128;
  struct Slice {
    uint64_t count = 0;  // values
    double error = 0;    // sum (a - b)^2
    double largest = 0;  // max |a - b|
  };
  int64_t slice_steps = 1;  // a power of two, the least that needs at most kMostSlices
  std::vector<Slice> slices;

  void add(int64_t step, const Slice& values);
  void add(const ErrorOverTime& other);
};

/// GruCompareOptions::profile: the output y, the last layer's h, of one sequence.
struct SequenceComparison {
  int64_t steps = 0;
  double sqnr_db = 0;
  int64_t first_part = -1;  // step; -1: none
};

/// One tensor of one layer and direction. a: its float value, b: what the integer model's code stands for,
/// q: a put on the tensor's own grid and back.
struct TensorComparison {
  int64_t layer = 0;               // l * directions + d
  GruTensor tensor = kX;
  uint64_t count = 0;              // values
  bool exact = false;              // every b equals its a
  double sqnr_db = 0;              // SQNR(a, b): with the errors that it inherits
  double own_sqnr_db = 0;          // SQNR(a, q): the error that arises here. Weights and biases: sqnr_db
  ChannelSqnr worst, own_worst;    // the channel whose SQNR(a, b), SQNR(a, q) is least; those with a = 0 are left out
  double cosine = 1;               // sum a b / sqrt(sum a^2 sum b^2)
  double largest_error = 0;        // max |a - b|
  ComparePlace largest_error_at;
  /// Values more than half a step beyond what the grid is meant to cover: [0, 1] for u and r, [-1, 1] for n, 2^bits
  /// steps for weights and biases, the grid's own ends for the others.
  uint64_t clipped = 0;
  ComparePlace first_part;         // the earliest step with |a - b| > part_codes * scale; weights: none
  GridHistogram values;            // of a
  std::vector<uint64_t> codes;     // u_in, r_in, n_in: of the codes, ascending; 256 bins where there are more codes
  ErrorOverTime over_time;         // h: of all sequences
};

struct GruComparisonReport {
  int64_t sequences = 0;
  int64_t steps = 0;               // of all sequences together
  double output_sqnr_db = 0;       // of the output y, the last layer's h, both directions together
  double output_rms_error = 0;     // sqrt(mean (a - b)^2) of it
  /// Layer by layer, in the order of the data's flow: x W bw ih, R br hh, u_in r_in n_in, u r n, h. A tensor that the
  /// integer side does not show is missing.
  std::vector<TensorComparison> tensors;
  std::vector<SequenceComparison> by_sequence{};  // in the order in which they were added; empty: not asked for
  int64_t worst_sequence = -1;                    // the first one with the least SQNR
  ErrorOverTime worst_over_time{};                // of its output
};

/// Who computes the codes of the integer side, in place of GruModel::forward_observed: a device, say.
class GruCodeSource {
 public:
  virtual ~GruCodeSource() = default;
  /// Begins a sequence. h0: [layers * directions, H], or empty for 0.
  virtual Status start(std::span<const float> h0) = 0;
  /// Its next steps (bidirectional models: all of them): x [steps, C] in codes of the input grid. Shows the tensors
  /// that it has, in the order of forward_observed.
  virtual Status run(const std::byte* x, int64_t steps, GruCodeObserver& observer) = 0;
};

struct GruCompareOptions {
  double part_codes = 1.0;                           // above 0
  float zoneout = 0.0f;                              // of the float side, see GruFloatArguments
  ThreadPool* pool = nullptr;                        // default: the caller's thread
  GruCodeSource* source = nullptr;                   // default: the CPU. One thread uses it.
  std::function<void(int64_t sequences)> progress{}; // sequences done; one call at a time, from any thread
  bool profile = false;                              // histograms, errors over time, sequence by sequence, too
};

class GruComparison {
 public:
  /// Refuses weights of another shape than the model's. Pool and source must outlive the comparison.
  static Result<GruComparison> create(const GruWeights& weights, const GruModel& model,
                                      const GruCompareOptions& options = {});
  GruComparison(GruComparison&&) noexcept;
  GruComparison& operator=(GruComparison&&) noexcept;
  ~GruComparison();

  /// Copies what it does not compute at once: some sequences for each thread.
  Status add(const GruSequences& data);
  /// Computes the rest. kFailedPrecondition where no step was added.
  Result<GruComparisonReport> finish();

 private:
  struct Impl;
  explicit GruComparison(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// ---------------------------------------------------------------------------------------------------------------
// Outputs alone

struct GruOutputSqnr {
  double output_db = 0;                              // of y, the last layer's h
  std::vector<double> layer_db;                      // of each layer's h, both directions together
};

struct GruValidationOptions {
  float zoneout = 0.0f;                              // of the float side
  ThreadPool* pool = nullptr;                        // default: the caller's thread
  std::function<void(int64_t sequences)> progress{}; // sequences whose float outputs are there
};

/// Float outputs on data, kept to measure any number of integer models against, with the fastest kernel. Memory: the
/// data and every layer's outputs, (C + layers * directions * H) floats a step.
class GruValidation {
 public:
  static Result<GruValidation> create(GruWeights weights, const GruValidationOptions& options = {});
  GruValidation(GruValidation&&) noexcept;
  GruValidation& operator=(GruValidation&&) noexcept;
  ~GruValidation();

  Status add(const GruSequences& data);
  /// kFailedPrecondition where no step was added; a model of another shape is refused.
  Result<GruOutputSqnr> measure(const GruModel& model);
  /// The same for a model that is given layer by layer: layers[l] is layer l with its directions.
  Result<GruOutputSqnr> measure(std::span<const GruModel> layers);

  [[nodiscard]] const GruWeights& weights() const;
  [[nodiscard]] int64_t sequences() const;
  [[nodiscard]] int64_t steps() const;

 private:
  struct Impl;
  explicit GruValidation(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// ---------------------------------------------------------------------------------------------------------------
// What wider tensors give

/// Tensors of one layer: bit t for GruTensor t.
using GruTensorSet = uint32_t;

/// The model with the tensors of sets[l] of each layer l at `bits` bits over the same range, where they are narrower.
/// Activations: scale / 2^k and zero point * 2^k, k = bits - own width (less where no scale is so fine). Weights and
/// biases: quantised anew from `weights`. Tables are fitted anew where their gate's grids changed; all rescales follow.
/// x of a layer above the first is h of the layer below: sets[l] without it. `tables` (optional) fits the tables.
Result<GruModelParameters> widen(const GruWeights& weights, const GruModelParameters& model,
                                 std::span<const GruTensorSet> sets, int32_t bits = 16, TableCache* tables = nullptr);

/// The widths and signs of a model as a SPEC for apply_bits, "8,linear=16,l1.h=16": its note "bits" where that gives
/// them, else without symmetry and steps. Method, scale and tables are no part of it.
std::string bits_text(const GruModelParameters& model);

/// One set of tensors at 16 bits, everything else as it is.
struct GruAblationRow {
  std::string set;                 // as entries of a SPEC: "h=16,u=16"
  std::string bits;                // the model's own SPEC followed by these
  GruOutputSqnr sqnr;
  double gain_db = 0;              // of sqnr.output_db over the model as it is
  int64_t weight_bytes = 0;        // that W, R, bw and br grow by
  std::string refused;             // why there is no such model; its SQNR says nothing then
};

/// The output where one tensor of a layer, both directions, has its width, and every other one 16 bits.
struct GruTensorAlone {
  int64_t layer = 0;               // l
  GruTensor tensor = kX;
  double sqnr_db = 0;              // of the output
  std::string refused;             // why there is no such model
};

struct GruAblation {
  std::string bits;                // bits_text() of the model
  GruOutputSqnr sqnr;              // of the model as it is
  double goal_db = 0;
  std::vector<GruAblationRow> rows;  // by gain, largest first; refused ones last
  int64_t advice = -1;             // row to take; -1: nothing needs to be wider, or nothing can be
  std::string sentence;            // what to widen, with the SPEC
  std::vector<GruTensorAlone> alone{};  // GruAblationOptions::alone: each tensor below 16 bits, layer by layer
};

struct GruAblationOptions {
  double target_db = 35;
  bool alone = false;              // measure each tensor of each layer alone, too
  std::function<void(double fraction)> progress{};
};

/// Measures the model with sets of tensors at 16 bits: each tensor alone, each group, sets that belong together (the
/// gain of some tensors shows only when others are wide as well), each layer, all, and the set that is left when, from
/// all at 16 bits, W, R, x, h, biases, linear, gate_in and gate_out are taken back to their own width, one after the
/// other, wherever the output stays at the goal. The set of the advice also for each layer alone.
/// Goal: target_db and 1 dB for data that was not measured, or, where the best set gives less than 3 dB more than that,
/// 3 dB below that set. Advice: of the sets that reach it, the one that adds the fewest bytes of W and R; then makes
/// the fewest products slower (x and h above 8 bits); then widens the fewest tensors; then has the highest SQNR.
Result<GruAblation> ablate(GruValidation& validation, const GruModel& model, const GruAblationOptions& options = {});

}  // namespace isobit

#endif  // ISOBIT_COMPARE_H_
