// SPDX-License-Identifier: Apache-2.0
// Sequences in files: npy, npz or safetensors arrays [T, C] or [T, N, C]. One file is in memory at a time.
#ifndef ISOBIT_TOOLS_DATA_H_
#define ISOBIT_TOOLS_DATA_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/files.h"
#include "isobit/status.h"

namespace isobit::tool {

/// Files, folders (every .npy, .npz and .safetensors below them) and glob patterns, in the order given; what a folder
/// or a pattern stands for is sorted. An argument that stands for nothing is an error.
Result<std::vector<std::string>> find_data_files(const std::vector<std::string>& arguments);
/// The same, and all of them are read: `option` names the arguments.
Result<std::vector<std::string>> find_data_files(const std::vector<std::string>& arguments, const std::string& option,
                                                 FileClaims& claims);

/// Sequences of one array.
struct Sequences {
  std::string name;      // file and array
  std::string array;     // the array's own name, empty in an npy
  int64_t steps = 0;     // T
  int64_t batch = 0;     // N; 1 for [T, C]
  std::vector<float> x;  // [T, N, C], finite
  double done = 0;       // share of the file's arrays before this one
  double share = 1;      // this one's
};

/// "FILE: array "NAME"", or the file alone for an npy.
std::string array_label(const std::string& path, const std::string& name);
/// T, N and whether the array is [T, C]; refuses any other rank and another C.
struct SequenceShape {
  int64_t steps = 0;
  int64_t batch = 0;
  bool single = false;
};
Result<SequenceShape> sequence_shape(const Array& array, int64_t channels, const std::string& label,
                                     bool batch_first = false);

/// Where element `index` of [T, N, C] is in the array as it was given.
std::string place_text(int64_t index, const SequenceShape& shape, int64_t channels, bool batch_first);

/// [N, T, ...] to [T, N, ...], and back. The array has at least two dimensions.
Array swap_batch_and_time(const Array& array);
/// What to give where [T, N, C] may well be [N, T, C]: there are at least 8 times as many sequences as steps. Else
/// empty.
std::string layout_hint(const SequenceShape& shape, const std::string& label);

/// The arrays of a file of data that can be read. `warnings` names the others, such as strings; a file that holds
/// others only is refused.
Result<ArrayFile> load_data(const std::string& path, std::vector<std::string>& warnings);

/// Calls `use` for every array of load_data() in the order of names, one in memory at a time. batch_first: arrays of
/// three dimensions are [N, T, C]; otherwise layout_hint() is among the warnings.
Status for_each_array(const std::string& path, int64_t channels, const std::function<Status(const Sequences&)>& use,
                      bool batch_first, std::vector<std::string>& warnings);
Status for_each_array(const ArrayReader& file, int64_t channels, const std::function<Status(const Sequences&)>& use,
                      bool batch_first, std::vector<std::string>& warnings);

/// A file that holds one more array for each array of the data: lengths, first states, masks.
class Companion {
 public:
  /// `option` names the argument; an empty path is a companion of nothing.
  static Result<Companion> load(const std::string& option, const std::string& path);
  [[nodiscard]] bool empty() const { return option_.empty(); }
  /// The array for the array `name` of the data: that of the same name, or the only one of an npy.
  [[nodiscard]] Result<const Array*> find(const std::string& name) const;
  /// [N] lengths, 0..T; none without a file.
  [[nodiscard]] Result<std::vector<int64_t>> lengths(const std::string& name, const SequenceShape& shape) const;
  /// "--lengths FILE: array "NAME"".
  [[nodiscard]] std::string label(const std::string& name) const;

 private:
  std::string option_;  // --lengths FILE
  std::optional<ArrayReader> reader_;
  ArrayFile file_;  // what can be read of it
};

/// One of an array of codes, whose type is that of a grid.
int64_t code_at(const std::byte* codes, Dtype dtype, size_t index);

/// What is written, and so how its name may end.
enum class OutputKind { kSafetensors, kTensor, kArray, kArrays, kState, kSvg, kHex };
/// Fails early when a file cannot be created at `path`, is among `files` already, or has the ending of another kind,
/// before hours of work. `option` names the argument.
Status check_output(const std::string& path, const std::string& option, OutputKind kind, FileClaims& files);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_DATA_H_
