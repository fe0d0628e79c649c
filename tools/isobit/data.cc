// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "isobit/nearest.h"
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

/// A file may be read for more than one purpose.
void add_once(const std::string& text, std::vector<std::string>& warnings) {
  if (std::find(warnings.begin(), warnings.end(), text) == warnings.end()) warnings.push_back(text);
}

/// The arrays of a file of data that can be read; `warnings` names the others.
Result<std::vector<ArrayEntry>> list_data(const ArrayReader& file, std::vector<std::string>& warnings) {
  if (file.entries().empty()) return Status(StatusCode::kInvalidFile, file.name() + ": the file holds no array");
  std::vector<ArrayEntry> out;
  std::vector<std::string> unread;
  for (const ArrayEntry& entry : file.entries()) {
    if (entry.dtype) {
      out.push_back(entry);
    } else {
      unread.push_back(array_label(file.name(), escaped(entry.name)) + " is of type " + escaped(entry.type) +
                       ", which isobit does not read; it is left out");
    }
  }
  if (out.empty()) return file.read(file.entries().front().name).status();
  for (const std::string& text : unread) add_once(text, warnings);
  return out;
}

Result<ArrayFile> read_data(const ArrayReader& file, std::vector<std::string>& warnings) {
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<ArrayEntry> entries, list_data(file, warnings));
  ArrayFile out;
  out.metadata = file.metadata();
  for (const ArrayEntry& entry : entries) {
    ISOBIT_ASSIGN_OR_RETURN(Array array, file.read(entry.name));
    out.arrays.emplace(entry.name, std::move(array));
  }
  return out;
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

Result<SequenceShape> sequence_shape(const Array& array, int64_t channels, const std::string& label, bool batch_first) {
  const size_t rank = array.shape.size();
  if ((rank != 2 && rank != 3) || array.shape.back() != channels) {
    const std::string c = std::to_string(channels);
    return Status(StatusCode::kInvalidArgument, label + " has the shape " + shape_text(array.shape) +
                                                    "; the model takes [T, " + c + "] or [" +
                                                    (batch_first ? "N, T, " : "T, N, ") + c + "]");
  }
  if (rank == 2) return SequenceShape{array.shape[0], 1, true};
  return SequenceShape{array.shape[batch_first ? 1 : 0], array.shape[batch_first ? 0 : 1], false};
}

std::string place_text(int64_t index, const SequenceShape& shape, int64_t channels, bool batch_first) {
  const int64_t row = index / channels;
  std::vector<int64_t> at = {row / shape.batch, row % shape.batch, index % channels};
  if (shape.single) at = {row, index % channels};
  if (batch_first && !shape.single) std::swap(at[0], at[1]);
  return shape_text(at);
}

Array swap_batch_and_time(const Array& array) {
  std::vector<int64_t> shape = array.shape;
  std::swap(shape[0], shape[1]);
  Array out = Array::zeros(array.dtype, shape);
  const auto rows = static_cast<size_t>(array.shape[0]), columns = static_cast<size_t>(array.shape[1]);
  const size_t bytes = rows * columns == 0 ? 0 : array.bytes.size() / (rows * columns);
  for (size_t row = 0; row < rows; ++row)
    for (size_t column = 0; column < columns; ++column)
      std::copy_n(&array.bytes[(row * columns + column) * bytes], bytes, &out.bytes[(column * rows + row) * bytes]);
  return out;
}

std::string layout_hint(const SequenceShape& shape, const std::string& label) {
  constexpr int64_t kManyTimes = 8;
  if (shape.single || shape.steps == 0 || shape.batch / kManyTimes < shape.steps) return "";
  return label + " is taken as " + count_text(shape.steps, "step") + " of " + count_text(shape.batch, "sequence") +
         ", [T, N, C]; where it is [N, T, C], give --batch-first";
}

Result<ArrayFile> load_data(const std::string& path, std::vector<std::string>& warnings) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return read_data(file, warnings);
}

Result<Companion> Companion::load(const std::string& option, const std::string& path) {
  Companion out;
  if (path.empty()) return out;
  out.option_ = option + " " + path;
  ISOBIT_ASSIGN_OR_RETURN(out.reader_, ArrayReader::open(path));
  std::vector<std::string> unread;  // refused when find() asks for one
  ISOBIT_ASSIGN_OR_RETURN(out.file_, read_data(*out.reader_, unread));
  return out;
}

std::string Companion::label(const std::string& name) const {
  return file_.arrays.contains(name) ? array_label(option_, name) : option_;
}

Result<const Array*> Companion::find(const std::string& name) const {
  auto found = file_.arrays.find(name);
  if (found == file_.arrays.end() && file_.arrays.size() == 1 && (name.empty() || file_.arrays.contains("")))
    found = file_.arrays.begin();
  if (found != file_.arrays.end()) return &found->second;
  if (reader_->find(name) != nullptr) return reader_->read(name).status();
  std::vector<std::string_view> names;
  for (const auto& [known, array] : file_.arrays) names.push_back(known);
  return Status(StatusCode::kInvalidArgument,
                option_ + ": no array \"" + escaped(name) + "\", as the data has one" + nearest_hint(name, names));
}

Result<std::vector<int64_t>> Companion::lengths(const std::string& name, const SequenceShape& shape) const {
  std::vector<int64_t> out;
  if (empty()) return out;
  ISOBIT_ASSIGN_OR_RETURN(const Array* array, find(name));
  const std::vector<int64_t> wanted = {shape.batch};
  if (array->shape != wanted || is_float(array->dtype)) {
    return Status(StatusCode::kInvalidArgument, label(name) + " is " + std::string(to_string(array->dtype)) + " " +
                                                    shape_text(array->shape) +
                                                    "; expected integers [N] = " + shape_text(wanted));
  }
  for (int64_t n = 0; n < shape.batch; ++n) {
    const int64_t length = code_at(array->bytes.data(), array->dtype, static_cast<size_t>(n));
    if (length < 0 || length > shape.steps) {
      return Status(StatusCode::kInvalidArgument, label(name) + ": length " + std::to_string(length) + " of sequence " +
                                                      std::to_string(n) +
                                                      "; expected 0 to T = " + std::to_string(shape.steps));
    }
    out.push_back(length);
  }
  return out;
}

Status for_each_array(const std::string& path, int64_t channels, const std::function<Status(const Sequences&)>& use,
                      bool batch_first, std::vector<std::string>& warnings) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return for_each_array(file, channels, use, batch_first, warnings);
}

Status for_each_array(const ArrayReader& file, int64_t channels, const std::function<Status(const Sequences&)>& use,
                      bool batch_first, std::vector<std::string>& warnings) {
  const std::string& path = file.name();
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<ArrayEntry> entries, list_data(file, warnings));
  size_t array_index = 0;
  for (const ArrayEntry& entry : entries) {
    Sequences sequences;
    sequences.name = array_label(path, entry.name);
    sequences.array = entry.name;
    sequences.share = 1 / static_cast<double>(entries.size());
    sequences.done = static_cast<double>(array_index++) * sequences.share;
    ISOBIT_ASSIGN_OR_RETURN(Array array, file.read(entry.name));
    ISOBIT_ASSIGN_OR_RETURN(const SequenceShape shape, sequence_shape(array, channels, sequences.name, batch_first));
    if (batch_first && !shape.single) array = swap_batch_and_time(array);
    if (const std::string hint = batch_first ? "" : layout_hint(shape, sequences.name); !hint.empty())
      add_once(hint, warnings);
    sequences.steps = shape.steps;
    sequences.batch = shape.batch;
    sequences.x = array.to_float();
    array.bytes = {};
    for (size_t i = 0; i < sequences.x.size(); ++i) {
      if (std::isfinite(sequences.x[i])) continue;
      return {StatusCode::kInvalidArgument,
              sequences.name + ": value " + (std::isnan(sequences.x[i]) ? "nan" : "inf") + " at " +
                  place_text(static_cast<int64_t>(i), shape, channels, batch_first) + "; every value must be finite"};
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
    case Dtype::kS64: return reinterpret_cast<const int64_t*>(codes)[index];
    default: return reinterpret_cast<const int32_t*>(codes)[index];
  }
}

namespace {

struct OutputForm {
  OutputKind kind;
  const char* what;
  std::vector<std::string_view> endings;  // those of its own
  bool needs_one;                         // no other, and not none
  bool no_other;                          // no other
};
const OutputForm& output_form(OutputKind kind) {
  static const OutputForm kForms[] = {
      {OutputKind::kSafetensors, "safetensors", {".safetensors", ".st"}, false, false},
      {OutputKind::kTensor, "npy", {".npy"}, false, false},
      {OutputKind::kArray, "npy", {".npy"}, true, true},
      {OutputKind::kArrays, "npy or npz", {".npy", ".npz"}, true, true},
      {OutputKind::kState, "npz", {".npz"}, false, false},
      {OutputKind::kSvg, "an SVG picture", {".svg"}, false, true},
      {OutputKind::kHex, "a memory image, text", {".hex", ".mem", ".txt"}, false, false},
  };
  return kForms[static_cast<size_t>(kind)];
}

/// Endings of formats that people keep models, data, pictures and sources in. Any other is a part of the name.
constexpr std::string_view kKnownEndings[] = {
    ".safetensors", ".st",  ".npy",  ".npz",   ".gguf",   ".ggml",    ".onnx", ".pt",  ".pth", ".ckpt", ".bin",  ".pkl",
    ".pb",          ".h5",  ".hdf5", ".keras", ".tflite", ".mlmodel", ".json", ".csv", ".txt", ".wav",  ".flac", ".mp3",
    ".svg",         ".png", ".jpg",  ".pdf",   ".html",   ".c",       ".h",    ".hex", ".mem", ".zip"};

Status check_ending(const std::string& path, const std::string& option, OutputKind kind) {
  const OutputForm& output = output_form(kind);
  std::string ending = fs::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto has = [&](const auto& list) { return std::find(list.begin(), list.end(), ending) != list.end(); };
  if (has(output.endings)) return {};
  const bool known = has(std::span(kKnownEndings));
  if (!output.needs_one && (ending.empty() || (!known && !output.no_other))) return {};
  std::string expected;
  for (const std::string_view own : output.endings) expected.append(expected.empty() ? "" : " or ").append(own);
  return {StatusCode::kInvalidArgument, option + " " + path + ": what is written is " + output.what +
                                            ", so the name must end in " + expected +
                                            (output.needs_one ? "" : ", or have no ending")};
}

}  // namespace

Status check_output(const std::string& path, const std::string& option, OutputKind kind, FileClaims& files) {
  std::error_code error;
  if (path.empty()) return {StatusCode::kInvalidArgument, option + " must not be empty"};
  if (fs::is_directory(path, error)) {
    return {StatusCode::kInvalidArgument, option + " " + path + ": is a folder; give a file name"};
  }
  const auto type = fs::status(path, error).type();
  const bool is_device = type != fs::file_type::not_found && type != fs::file_type::regular;
  if (output_form(kind).needs_one || !is_device) ISOBIT_RETURN_IF_ERROR(check_ending(path, option, kind));
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
