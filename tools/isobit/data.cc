// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "text.h"

namespace isobit::tool {
namespace {

namespace fs = std::filesystem;

bool is_data_file(const fs::path& path) {
  const auto extension = path.extension();
  return extension == ".npy" || extension == ".npz" || extension == ".safetensors";
}

Status add_folder(const std::string& folder, std::vector<std::string>& files) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored) && is_data_file(entry->path())) found.push_back(entry->path().string());
  }
  if (error) return {StatusCode::kIo, folder + ": " + error.message()};
  if (found.empty()) {
    return {StatusCode::kInvalidArgument, folder + ": the folder holds no .npy, .npz or .safetensors file"};
  }
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
  return {};
}

Status add_path(const std::string& path, std::vector<std::string>& files) {
  std::error_code error;
  if (fs::is_directory(path, error)) return add_folder(path, files);
  files.push_back(path);
  return {};
}

}  // namespace

Result<std::vector<std::string>> find_data_files(const std::vector<std::string>& arguments) {
  std::vector<std::string> files;
  for (const std::string& argument : arguments) {
    std::error_code error;
    if (fs::exists(argument, error)) {
      ISOBIT_RETURN_IF_ERROR(add_path(argument, files));
      continue;
    }
    if (argument.find_first_of("*?[") == std::string::npos) {
      return Status(StatusCode::kIo, argument + ": no such file or folder");
    }
    glob_t matches{};
    const int result = glob(argument.c_str(), 0, nullptr, &matches);
    std::vector<std::string> paths;
    for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) paths.emplace_back(matches.gl_pathv[i]);
    globfree(&matches);
    if (paths.empty()) return Status(StatusCode::kIo, argument + ": the pattern matches no file");
    for (const std::string& path : paths) ISOBIT_RETURN_IF_ERROR(add_path(path, files));
  }
  return files;
}

Result<std::vector<std::string>> find_data_files(const std::vector<std::string>& arguments, const std::string& option,
                                                 FileClaims& claims) {
  ISOBIT_ASSIGN_OR_RETURN(auto files, find_data_files(arguments));
  for (const std::string& file : files) ISOBIT_RETURN_IF_ERROR(claims.reads(file, option));
  return files;
}

std::string array_label(const std::string& path, const std::string& name) {
  return name.empty() ? path : path + ": array \"" + name + "\"";
}

Result<SequenceShape> sequence_shape(const Array& array, int64_t channels, const std::string& label) {
  const size_t rank = array.shape.size();
  if ((rank != 2 && rank != 3) || array.shape.back() != channels) {
    const std::string c = std::to_string(channels);
    return Status(StatusCode::kInvalidArgument, label + " has the shape " + shape_text(array.shape) +
                                                    "; the model takes [T, " + c + "] or [T, N, " + c + "]");
  }
  return SequenceShape{array.shape[0], rank == 3 ? array.shape[1] : 1, rank == 2};
}

Status for_each_array(const std::string& path, int64_t channels, const std::function<Status(const Sequences&)>& use) {
  ISOBIT_ASSIGN_OR_RETURN(ArrayFile file, load_arrays(path));
  if (file.arrays.empty()) return {StatusCode::kInvalidFile, path + ": the file holds no array"};
  for (auto& [name, array] : file.arrays) {
    Sequences sequences;
    sequences.name = array_label(path, name);
    ISOBIT_ASSIGN_OR_RETURN(const SequenceShape shape, sequence_shape(array, channels, sequences.name));
    sequences.steps = shape.steps;
    sequences.batch = shape.batch;
    sequences.x = array.to_float();
    array.bytes = {};
    for (size_t i = 0; i < sequences.x.size(); ++i) {
      if (std::isfinite(sequences.x[i])) continue;
      const auto index = static_cast<int64_t>(i);
      const int64_t row = index / channels;
      const std::vector<int64_t> at =
          shape.single ? std::vector<int64_t>{row, index % channels}
                       : std::vector<int64_t>{row / shape.batch, row % shape.batch, index % channels};
      return {StatusCode::kInvalidArgument, sequences.name + ": value " + (std::isnan(sequences.x[i]) ? "nan" : "inf") +
                                                " at " + shape_text(at) + "; every value must be finite"};
    }
    ISOBIT_RETURN_IF_ERROR(use(sequences));
  }
  return {};
}

int64_t code_at(const std::byte* codes, Dtype dtype, size_t index) {
  switch (dtype) {
    case Dtype::kS8: return reinterpret_cast<const int8_t*>(codes)[index];
    case Dtype::kU8: return reinterpret_cast<const uint8_t*>(codes)[index];
    case Dtype::kS16: return reinterpret_cast<const int16_t*>(codes)[index];
    case Dtype::kU16: return reinterpret_cast<const uint16_t*>(codes)[index];
    case Dtype::kU32: return reinterpret_cast<const uint32_t*>(codes)[index];
    default: return reinterpret_cast<const int32_t*>(codes)[index];
  }
}

Status check_output(const std::string& path, const std::string& option, FileClaims& files) {
  std::error_code error;
  if (path.empty()) return {StatusCode::kInvalidArgument, option + " must not be empty"};
  if (fs::is_directory(path, error)) {
    return {StatusCode::kInvalidArgument, option + " " + path + ": is a folder; give a file name"};
  }
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!fs::is_directory(folder, error)) {
    return {StatusCode::kIo, option + " " + path + ": there is no folder " + folder + "; create it first"};
  }
  if (access(folder.c_str(), W_OK) != 0) {
    return {StatusCode::kIo, option + " " + path + ": the folder " + folder + " is not writable"};
  }
  return files.writes(path, option);
}

}  // namespace isobit::tool
