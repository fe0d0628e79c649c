// SPDX-License-Identifier: Apache-2.0
#include "isobit/sequences.h"

#include <glob.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/codes.h"
#include "io/container.h"
#include "isobit/nearest.h"
#include "isobit/text.h"

namespace isobit {
namespace {

namespace fs = std::filesystem;

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

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
  if (found.empty()) return invalid(folder + ": the folder holds no .npy, .npz or .safetensors file");
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
  if (file.kind() == FileKind::kOnnx)  // whose weights may have the shape of sequences
    return Status(StatusCode::kUnsupported, file.name() + ": is an ONNX model; data is npy, npz or safetensors");
  std::vector<ArrayEntry> out;
  std::vector<std::string> unread;
  for (const ArrayEntry& entry : file.entries()) {
    if (entry.dtype) {
      out.push_back(entry);
    } else {
      unread.push_back(array_label(file.name(), entry.name) + " is of type " + escaped(entry.type) +
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

int64_t integer_at(const Array& array, int64_t index) {
  return array.dtype == Dtype::kS64 ? array.data<int64_t>()[index] : load_code(array.bytes.data(), array.dtype, index);
}

/// "s8 [4, 3]".
std::string form_text(const Array& array) { return std::string(to_string(array.dtype)) + " " + list_text(array.shape); }

/// Refuses the first value of [T, N, C] that is not finite.
Status check_finite(const std::vector<float>& values, const std::string& label, const SequenceShape& shape,
                    int64_t channels, bool batch_first) {
  const auto bad = std::find_if_not(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  if (bad == values.end()) return {};
  return invalid(label + ": value " + (std::isnan(*bad) ? "nan" : "inf") + " at " +
                 place_text(bad - values.begin(), shape, channels, batch_first) + "; every value must be finite");
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

Result<ArrayFile> load_data(const std::string& path, std::vector<std::string>& warnings) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return read_data(file, warnings);
}

Result<SequenceShape> sequence_shape(const Array& array, int64_t channels, const std::string& label, bool batch_first) {
  const size_t rank = array.shape.size();
  if ((rank != 2 && rank != 3) || array.shape.back() != channels) {
    const std::string c = std::to_string(channels);
    return invalid(label + " has the shape " + list_text(array.shape) + "; the model takes [T, " + c + "] or [" +
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
  return list_text(at);
}

Array swap_batch_and_time(const Array& array) {
  std::vector<size_t> order(array.shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::swap(order[0], order[1]);
  return reordered(array, order);
}

std::string layout_hint(const SequenceShape& shape, const std::string& label, const std::string& option) {
  constexpr int64_t kManyTimes = 8;
  if (shape.single || shape.steps == 0 || shape.batch / kManyTimes < shape.steps) return "";
  return label + " is taken as " + count_text(shape.steps, "step") + " of " + count_text(shape.batch, "sequence") +
         ", [T, N, C]; where it is [N, T, C], give " + option;
}

Result<Companion> Companion::load(const std::string& what, const std::string& path) {
  Companion out;
  if (path.empty()) return out;
  out.what_ = what + " " + path;
  ISOBIT_ASSIGN_OR_RETURN(out.reader_, ArrayReader::open(path));
  std::vector<std::string> unread;  // refused when find() asks for one
  ISOBIT_ASSIGN_OR_RETURN(out.file_, read_data(*out.reader_, unread));
  return out;
}

std::string Companion::label(const std::string& name) const {
  return file_.arrays.contains(name) ? array_label(what_, name) : what_;
}

Result<const Array*> Companion::find(const std::string& name) const {
  auto found = file_.arrays.find(name);
  if (found == file_.arrays.end() && file_.arrays.size() == 1 && (name.empty() || file_.arrays.contains("")))
    found = file_.arrays.begin();
  if (found != file_.arrays.end()) return &found->second;
  if (reader_->find(name) != nullptr) return reader_->read(name).status();
  std::vector<std::string_view> names;
  for (const auto& [known, array] : file_.arrays) names.push_back(known);
  return invalid(what_ + ": no array \"" + escaped(name) + "\", as the data has one" + nearest_hint(name, names));
}

Result<std::vector<int64_t>> Companion::lengths(const std::string& name, const SequenceShape& shape) const {
  std::vector<int64_t> out;
  if (empty()) return out;
  ISOBIT_ASSIGN_OR_RETURN(const Array* array, find(name));
  const std::vector<int64_t> wanted = {shape.batch};
  if (array->shape != wanted || is_float(array->dtype))
    return invalid(label(name) + " is " + form_text(*array) + "; expected integers [N] = " + list_text(wanted));
  for (int64_t n = 0; n < shape.batch; ++n) {
    const int64_t length = integer_at(*array, n);
    if (length < 0 || length > shape.steps)
      return invalid(label(name) + ": length " + std::to_string(length) + " of sequence " + std::to_string(n) +
                     "; expected 0 to T = " + std::to_string(shape.steps));
    out.push_back(length);
  }
  return out;
}

Result<std::vector<float>> Companion::states(const std::string& name, int64_t states, int64_t batch,
                                             int64_t hidden) const {
  if (empty()) return std::vector<float>();
  ISOBIT_ASSIGN_OR_RETURN(const Array* array, find(name));
  const std::vector<int64_t> wanted = {states, batch, hidden};
  if (array->shape != wanted || !is_float(array->dtype))
    return invalid(label(name) + " is " + form_text(*array) +
                   "; expected floats, not codes, [layers * directions, N, H] = " + list_text(wanted));
  std::vector<float> h0 = array->to_float();
  ISOBIT_RETURN_IF_ERROR(check_finite(h0, label(name), {states, batch, false}, hidden, false));
  return h0;
}

int64_t Sequences::total_steps() const {
  if (lengths.empty()) return steps * batch;
  int64_t sum = 0;
  for (const int64_t length : lengths) sum += length;
  return sum;
}

void ClippedInputs::add(const Grid& grid, std::span<const float> x, int64_t channels,
                        std::span<const int64_t> lengths) {
  if (lengths.empty()) {
    clipped += count_clipped(grid, x);
    values += std::ssize(x);
    return;
  }
  const auto width = static_cast<size_t>(channels);
  for (size_t row = 0; row * width < x.size(); ++row) {
    if (static_cast<int64_t>(row / lengths.size()) >= lengths[row % lengths.size()]) continue;
    clipped += count_clipped(grid, x.subspan(row * width, width));
    values += channels;
  }
}

Result<SequenceFiles> SequenceFiles::open(const std::vector<std::string>& data, const SequenceOptions& options,
                                          const SequenceSizes& sizes, FileClaims& claims) {
  SequenceFiles out;
  out.options_ = options;
  out.sizes_ = sizes;
  ISOBIT_ASSIGN_OR_RETURN(out.files_, find_data_files(data));
  for (const std::string& file : out.files_) {
    ISOBIT_RETURN_IF_ERROR(claims.reads(file, options.data_name));
    std::error_code error;
    if (fs::is_regular_file(file, error)) continue;
    ISOBIT_ASSIGN_OR_RETURN(ArrayReader reader, ArrayReader::open(file));
    out.pipes_.emplace(file, std::move(reader));
  }
  for (const auto& [name, path] :
       {std::pair{options.lengths_name, options.lengths}, std::pair{options.h0_name, options.h0}}) {
    if (path.empty()) continue;
    ISOBIT_RETURN_IF_ERROR(claims.reads(path, name));
    if (options.one_file && out.files_.size() > 1)
      return invalid(std::string(name).append(" ").append(path) + ": belongs to one file of data, but " +
                     options.data_name + " names " + count_text(std::ssize(out.files_), "file"));
  }
  ISOBIT_ASSIGN_OR_RETURN(out.lengths_, Companion::load(options.lengths_name, options.lengths));
  ISOBIT_ASSIGN_OR_RETURN(out.h0_, Companion::load(options.h0_name, options.h0));
  return out;
}

Status SequenceFiles::for_each(const Use& use, std::vector<std::string>& warnings) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    const double done = static_cast<double>(i) / static_cast<double>(files_.size());
    const auto pipe = pipes_.find(files_[i]);
    if (pipe != pipes_.end()) {
      ISOBIT_RETURN_IF_ERROR(for_each_array(pipe->second, done, use, warnings));
      continue;
    }
    ISOBIT_ASSIGN_OR_RETURN(const ArrayReader reader, ArrayReader::open(files_[i]));
    ISOBIT_RETURN_IF_ERROR(for_each_array(reader, done, use, warnings));
  }
  return {};
}

Status SequenceFiles::for_each_array(const ArrayReader& file, double done, const Use& use,
                                     std::vector<std::string>& warnings) const {
  const bool batch_first = options_.batch_first;
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<ArrayEntry> entries, list_data(file, warnings));
  const double all = static_cast<double>(files_.size()) * static_cast<double>(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    Sequences out;
    out.name = array_label(file.name(), entries[i].name);
    out.array = entries[i].name;
    out.share = 1 / all;
    out.done = done + static_cast<double>(i) * out.share;
    ISOBIT_ASSIGN_OR_RETURN(Array array, file.read(out.array));
    ISOBIT_ASSIGN_OR_RETURN(const SequenceShape shape, sequence_shape(array, sizes_.channels, out.name, batch_first));
    if (batch_first && !shape.single) array = swap_batch_and_time(array);
    if (const std::string hint = batch_first ? "" : layout_hint(shape, out.name, options_.batch_first_name);
        !hint.empty())
      add_once(hint, warnings);
    out.steps = shape.steps;
    out.batch = shape.batch;
    out.x = array.to_float();
    array.bytes = {};
    ISOBIT_RETURN_IF_ERROR(check_finite(out.x, out.name, shape, sizes_.channels, batch_first));
    ISOBIT_ASSIGN_OR_RETURN(out.lengths, lengths_.lengths(out.array, shape));
    ISOBIT_ASSIGN_OR_RETURN(out.h0, h0_.states(out.array, sizes_.states, shape.batch, sizes_.hidden));
    if (const Status status = use(out); !status.ok()) return {status.code(), out.name + ": " + status.message()};
  }
  return {};
}

Result<SequenceFiles::Extents> SequenceFiles::extents() const {
  Extents out;
  const auto count = [&](const Sequences& data) -> Status {
    out.sequences += data.batch;
    out.steps += data.total_steps();
    return {};
  };
  ISOBIT_RETURN_IF_ERROR(for_each(count, out.warnings));
  return out;
}

}  // namespace isobit
