// SPDX-License-Identifier: Apache-2.0
// Sequences in files, as calibration, comparison and runs take them: arrays [T, C], or [T, N, C] of N sequences, in
// npy, npz, safetensors and GGUF files. T steps, C channels. Nothing here knows an operation.
#ifndef ISOBIT_SEQUENCES_H_
#define ISOBIT_SEQUENCES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/files.h"
#include "isobit/grid.h"
#include "isobit/status.h"

namespace isobit {

/// Files, folders (every .npy, .npz and .safetensors below them) and glob patterns, in the order given; what a folder
/// or a pattern stands for is sorted. An argument that stands for no file is an error.
Result<std::vector<std::string>> find_data_files(const std::vector<std::string>& arguments);

/// The arrays of a file of data that can be read. `warnings` names the others, such as strings, once each; a file
/// without an array that can be read is refused.
Result<ArrayFile> load_data(const std::string& path, std::vector<std::string>& warnings);

/// "FILE: array "NAME"", or the file alone for an npy, whose array has no name.
std::string array_label(const std::string& path, const std::string& name);

struct SequenceShape {
  int64_t steps = 0;    // T
  int64_t batch = 0;    // N; 1 for [T, C]
  bool single = false;  // the array is [T, C]
};
/// T and N of an array, [N, T, C] with batch_first; refuses any other rank and another C.
Result<SequenceShape> sequence_shape(const Array& array, int64_t channels, const std::string& label,
                                     bool batch_first = false);
/// Where element `index` of [T, N, C] is in the array as it was given: "[4, 0, 2]".
std::string place_text(int64_t index, const SequenceShape& shape, int64_t channels, bool batch_first);
/// [N, T, ...] to [T, N, ...], and back. The array has at least two dimensions.
Array swap_batch_and_time(const Array& array);
/// What to give, "--batch-first" say, where [T, N, C] may well be [N, T, C]: there are at least 8 times as many
/// sequences as steps. Else empty.
std::string layout_hint(const SequenceShape& shape, const std::string& label, const std::string& option);

/// A file that holds one more array for each array of the data: lengths, first states, masks.
class Companion {
 public:
  /// `what` names the argument in messages, as in FileClaims; an empty path is a companion of nothing.
  static Result<Companion> load(const std::string& what, const std::string& path);
  [[nodiscard]] bool empty() const { return what_.empty(); }
  /// The array for the array `name` of the data: that of the same name, or the only one of an npy.
  [[nodiscard]] Result<const Array*> find(const std::string& name) const;
  /// Integers [N], 0..T: the steps of each sequence; none without a file.
  [[nodiscard]] Result<std::vector<int64_t>> lengths(const std::string& name, const SequenceShape& shape) const;
  /// Floats [states, N, hidden] as float32, all finite; none without a file.
  [[nodiscard]] Result<std::vector<float>> states(const std::string& name, int64_t states, int64_t batch,
                                                  int64_t hidden) const;
  /// "--lengths FILE: array "NAME"".
  [[nodiscard]] std::string label(const std::string& name) const;

 private:
  std::string what_;  // with the file: "--lengths FILE"
  std::optional<ArrayReader> reader_;
  ArrayFile file_;  // what can be read of it
};

/// The sequences of one array, and what is said of them beside it.
struct Sequences {
  std::string name;              // file and array
  std::string array;             // the array's own name, empty in an npy
  int64_t steps = 0;             // T
  int64_t batch = 0;             // N
  std::vector<float> x;          // [T, N, C], finite
  std::vector<int64_t> lengths;  // [N], 0..T, or empty: T for all
  std::vector<float> h0;         // [layers * directions, N, H], finite, or empty: 0
  double done = 0;               // share of all arrays before this one
  double share = 1;              // this one's

  /// Of all sequences together.
  [[nodiscard]] int64_t total_steps() const;
};

/// How many of `values` values the grid does not reach, as count_clipped() of a grid counts.
struct ClippedInputs {
  int64_t clipped = 0, values = 0;

  /// x [T, N, C]. `lengths` [N], or empty: T for all; what follows a length is padding and does not count.
  void add(const Grid& grid, std::span<const float> x, int64_t channels, std::span<const int64_t> lengths);
};

struct SequenceOptions {
  bool batch_first = false;  // arrays of three dimensions are [N, T, C]
  std::string lengths{};     // file with lengths [N] for every array of the data
  std::string h0{};          // file with first states [layers * directions, N, H]
  bool one_file = false;     // these two belong to one file: refuse data of more
  /// How messages call the arguments.
  std::string data_name = "data", batch_first_name = "batch_first", lengths_name = "lengths", h0_name = "h0";
};

/// What the sequences have to fit.
struct SequenceSizes {
  int64_t channels = 0;  // C
  int64_t states = 0;    // layers * directions
  int64_t hidden = 0;    // H
};

/// Files of sequences. One array is in memory at a time.
class SequenceFiles {
 public:
  /// `data`: as in find_data_files(). Reads the files of `options`; `claims` gets all of them. Errors name argument,
  /// file and array.
  static Result<SequenceFiles> open(const std::vector<std::string>& data, const SequenceOptions& options,
                                    const SequenceSizes& sizes, FileClaims& claims);

  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }

  /// Calls `use` for every array, in the order of files and names. `warnings` names arrays that are left out, and those
  /// whose batch and steps look exchanged. An error of `use` gets the name of the array.
  using Use = std::function<Status(const Sequences&)>;
  Status for_each(const Use& use, std::vector<std::string>& warnings) const;

  /// What for_each() would show; every array is read and checked.
  struct Extents {
    int64_t sequences = 0;
    int64_t steps = 0;  // of all sequences together
    std::vector<std::string> warnings;
  };
  [[nodiscard]] Result<Extents> extents() const;

 private:
  Status for_each_array(const ArrayReader& file, double done, const Use& use, std::vector<std::string>& warnings) const;

  SequenceOptions options_;
  SequenceSizes sizes_;
  std::vector<std::string> files_;
  std::map<std::string, ArrayReader> pipes_;  // those of them that can be read once only
  Companion lengths_, h0_;
};

}  // namespace isobit

#endif  // ISOBIT_SEQUENCES_H_
