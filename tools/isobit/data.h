// SPDX-License-Identifier: Apache-2.0
// Sequences in files: npy, npz or safetensors arrays [T, C] or [T, N, C]. One file is in memory at a time.
#ifndef ISOBIT_TOOLS_DATA_H_
#define ISOBIT_TOOLS_DATA_H_

#include <cstdint>
#include <functional>
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
  int64_t steps = 0;     // T
  int64_t batch = 0;     // N; 1 for [T, C]
  std::vector<float> x;  // [T, N, C], finite
};

/// "FILE: array "NAME"", or the file alone for an npy.
std::string array_label(const std::string& path, const std::string& name);
/// T, N and whether the array is [T, C]; refuses any other rank and another C.
struct SequenceShape {
  int64_t steps = 0;
  int64_t batch = 0;
  bool single = false;
};
Result<SequenceShape> sequence_shape(const Array& array, int64_t channels, const std::string& label);

/// Calls `use` for every array of a file in the order of names.
Status for_each_array(const std::string& path, int64_t channels, const std::function<Status(const Sequences&)>& use);

/// One of an array of codes, whose type is that of a grid.
int64_t code_at(const std::byte* codes, Dtype dtype, size_t index);

/// Fails early when a file cannot be created at `path`, or is among `files` already, before hours of work. `option`
/// names the argument.
Status check_output(const std::string& path, const std::string& option, FileClaims& files);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_DATA_H_
