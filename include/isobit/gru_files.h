// SPDX-License-Identifier: Apache-2.0
// What GRUs take from files: sequences to calibrate and validate on, states, masks. Shape letters as in gru.h.
#ifndef ISOBIT_GRU_FILES_H_
#define ISOBIT_GRU_FILES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "isobit/compare.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "isobit/sequences.h"
#include "isobit/status.h"

namespace isobit {

/// Which arrays of a file are a GRU, as text: its prefix, or NAME=W,R[,BW,BR] or NAME=W,R,B (both biases in B) for arrays
/// with names of their own, where NAME may end in _lK or _lK_reverse; one text for each layer and direction. Adds to
/// prefix and arrays of `options`.
Status apply_layer(const std::string& text, GruLoadOptions& options);

/// What sequences for these weights have to fit.
SequenceSizes sequence_sizes(const GruWeights& weights);
/// A view of the arrays of `data`.
GruSequences view_of(const Sequences& data);

/// The last tenth of the sequences with at least one step that pass by, rounded up.
class LastTenth {
 public:
  void add(const Sequences& data, const SequenceSizes& sizes);
  [[nodiscard]] Status add_to(GruValidation& validation) const;
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(kept_.size()); }

 private:
  struct Kept {
    int64_t steps = 0;
    std::vector<float> x;   // [steps, C]
    std::vector<float> h0;  // [layers * directions, H], or empty
  };
  std::deque<Kept> kept_;
  int64_t seen_ = 0;
};

/// Sequences that were seen, told apart by their values of x: what is measured on them says little about other data.
class SeenSequences {
 public:
  void add(const Sequences& data, const SequenceSizes& sizes);
  /// How many sequences of `data`, with at least one step, were added before.
  [[nodiscard]] int64_t count(const Sequences& data, const SequenceSizes& sizes) const;

 private:
  std::set<uint64_t> hashes_;
};

struct ObserveOptions {
  ThreadPool* pool = nullptr;                       // default: the caller's thread
  float zoneout = 0.0f;                             // as in GruFloatArguments
  LastTenth* last_tenth = nullptr;                  // optional: gets the sequences
  SeenSequences* seen = nullptr;                    // optional: gets the sequences
  std::function<void(double fraction)> progress{};  // 0 to 1
};
struct ObservedCount {
  int64_t files = 0;
  int64_t sequences = 0;
  int64_t steps = 0;  // of all sequences together
};
/// GruCalibrator::observe for every sequence of the files: many sequences of an array in parts, and those that are
/// arrays of their own, [T, C], together with others, so that threads have something to share. Statistics do
/// not depend on that. kInvalidArgument where the data has no step. `warnings`: those of SequenceFiles::for_each().
Result<ObservedCount> observe_files(const SequenceFiles& files, GruCalibrator& calibrator,
                                    const ObserveOptions& options, std::vector<std::string>& warnings);

/// GruComparison on the sequences of files; `names` gets theirs, for describe_comparison().
Result<GruComparisonReport> compare_files(const SequenceFiles& files, const GruWeights& weights, const GruModel& model,
                                          const GruCompareOptions& options, std::vector<std::string>& names);

/// Refuses an array that is not of the grid's type, and a code outside the grid: one of 6 bits is stored in 8.
Status check_codes(const Array& array, const Grid& grid, const std::string& label);

/// h of every layer and direction from a file: codes h0, h1, ... [N, H] as save_state() writes them, or one array of
/// floats [layers * directions, N, H], which are quantised on each layer's h grid. A warning says where more than a
/// hundredth of the floats lies outside that. `what` names the argument in messages.
Result<GruState> load_state(const std::string& path, const GruModel& model, int64_t batch, const std::string& what,
                            std::vector<std::string>& warnings);
/// npz with the codes of each layer and direction, h0, h1, ... [N, H].
Status save_state(const std::string& path, const GruModel& model, const GruState& state);

/// RunOptions::zoneout_mask for the array `name` of the data: u8 or bool [T, N, directions * H], [N, T, ...] with
/// batch_first, or [T, directions * H] of one sequence; 1 takes the new state, 0 keeps the old one. None without a
/// file.
Result<std::vector<uint8_t>> zoneout_mask(const Companion& file, const std::string& name, const SequenceShape& shape,
                                          const GruModel& model, bool batch_first = false);

}  // namespace isobit

#endif  // ISOBIT_GRU_FILES_H_
