// SPDX-License-Identifier: Apache-2.0
#include "isobit/arrays.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <type_traits>
#include <utility>

#include "core/float_mode.h"
#include "core/half.h"
#include "io/container.h"
#include "isobit/sequences.h"

namespace isobit {

static_assert(std::endian::native == std::endian::little, "all formats are read and written as they lie in memory");

namespace {

/// `unit` times every dimension but zeros; nothing where that exceeds 2^63 - 1.
std::optional<int64_t> product(int64_t unit, const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxDimensions) return std::nullopt;
  for (const int64_t dimension : shape) {
    if (dimension < 0 || (dimension > 0 && unit > std::numeric_limits<int64_t>::max() / dimension)) return std::nullopt;
    if (dimension > 0) unit *= dimension;
  }
  return unit;
}

bool is_empty(const std::vector<int64_t>& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

}  // namespace

std::optional<size_t> array_size_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  const std::optional<int64_t> bytes = product(static_cast<int64_t>(size_in_bytes(dtype)), shape);
  if (!bytes) return std::nullopt;
  return is_empty(shape) ? 0 : static_cast<size_t>(*bytes);
}

std::optional<uint64_t> stored_size_bytes(uint64_t bits, const std::vector<int64_t>& shape) {
  if (bits % 8 == 0) {
    const std::optional<int64_t> bytes = product(static_cast<int64_t>(bits / 8), shape);
    if (!bytes) return std::nullopt;
    return is_empty(shape) ? 0 : static_cast<uint64_t>(*bytes);
  }
  // Elements of less than a byte: an odd number of them fills the last one in part.
  const std::optional<int64_t> elements = product(1, shape);
  if (!elements || *elements > std::numeric_limits<int64_t>::max() / static_cast<int64_t>(bits)) return std::nullopt;
  return is_empty(shape) ? 0 : (static_cast<uint64_t>(*elements) * bits + 7) / 8;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string list_text(std::span<const int64_t> numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

std::string array_label(const std::string& path, const std::string& name) {
  return name.empty() ? path : path + ": array \"" + escaped(name) + "\"";
}

std::string escaped(std::string_view text) {
  const std::string json =
      nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  return json.substr(1, json.size() - 2);
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLimit = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kLimit)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kLimit ? "...'" : "'");
}

std::string cut_short(uint64_t size_bytes, uint64_t needed_bytes) {
  if (size_bytes >= needed_bytes) return {};
  return "; the file is cut short: it has " + std::to_string(size_bytes) + " bytes of at least " +
         std::to_string(needed_bytes);
}

Status check_array(const Array& array, const std::string& what) {
  const std::optional<size_t> bytes = array_size_bytes(array.dtype, array.shape);
  if (!bytes || *bytes != array.bytes.size()) {
    return {StatusCode::kInvalidArgument, what + ": shape " + shape_text(array.shape) + " of " +
                                              std::string(to_string(array.dtype)) + " does not fit the array's " +
                                              std::to_string(array.bytes.size()) + " bytes"};
  }
  return {};
}

Array reordered(const Array& array, std::span<const size_t> order) {
  size_t moved = order.size(), bytes = size_in_bytes(array.dtype);
  for (; moved > 0 && order[moved - 1] == moved - 1; --moved) bytes *= static_cast<size_t>(array.shape[moved - 1]);
  std::vector<int64_t> shape;
  for (const size_t from : order) shape.push_back(array.shape[from]);
  Array out = Array::zeros(array.dtype, shape);
  if (out.bytes.empty()) return out;
  std::vector<size_t> strides(moved, bytes);  // of the array
  for (size_t i = moved; i-- > 1;) strides[i - 1] = strides[i] * static_cast<size_t>(array.shape[i]);
  std::vector<int64_t> at(moved);
  size_t from = 0;
  for (size_t to = 0; to < out.bytes.size(); to += bytes) {
    std::copy_n(&array.bytes[from], bytes, &out.bytes[to]);
    for (size_t i = moved; i-- > 0;) {
      from += strides[order[i]];
      if (++at[i] < shape[i]) break;
      from -= strides[order[i]] * static_cast<size_t>(shape[i]);
      at[i] = 0;
    }
  }
  return out;
}

int64_t Array::size() const {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension;
  return count;
}

Array Array::zeros(Dtype dtype, std::vector<int64_t> shape) {
  Array array;
  array.dtype = dtype;
  array.shape = std::move(shape);
  array.bytes.resize(static_cast<size_t>(array.size()) * size_in_bytes(dtype));
  return array;
}

namespace {

template <typename T, typename Convert>
std::vector<float> converted(const Array& array, Convert convert) {
  std::vector<float> out(array.bytes.size() / sizeof(T));
  const T* in = array.data<T>();
  for (size_t i = 0; i < out.size(); ++i) out[i] = convert(in[i]);
  return out;
}

}  // namespace

std::vector<float> Array::to_float() const {
  const DefaultFloatMode mode;
  const auto cast = [](auto value) { return static_cast<float>(value); };
  switch (dtype) {
    case Dtype::kS8: return converted<int8_t>(*this, cast);
    case Dtype::kU8: return converted<uint8_t>(*this, cast);
    case Dtype::kS16: return converted<int16_t>(*this, cast);
    case Dtype::kU16: return converted<uint16_t>(*this, cast);
    case Dtype::kS32: return converted<int32_t>(*this, cast);
    case Dtype::kU32: return converted<uint32_t>(*this, cast);
    case Dtype::kS64: return converted<int64_t>(*this, cast);
    case Dtype::kF16: return converted<uint16_t>(*this, [](uint16_t half) { return f16_to_f32(half); });
    case Dtype::kBF16: return converted<uint16_t>(*this, [](uint16_t half) { return bf16_to_f32(half); });
    case Dtype::kF32: return converted<float>(*this, cast);
    case Dtype::kF64: return converted<double>(*this, cast);
  }
  return {};
}

void Container::add(ArrayEntry entry, Status refusal, uint64_t place) {
  entries.push_back(std::move(entry));
  refusals.push_back(std::move(refusal));
  places.push_back(place);
}

Status Container::finish(const std::string& name) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return entries[a].name < entries[b].name; });
  const auto sorted = [&order](auto& items) {
    std::remove_reference_t<decltype(items)> out;
    out.reserve(items.size());
    for (const size_t i : order) out.push_back(std::move(items[i]));
    items = std::move(out);
  };
  sorted(entries);
  sorted(refusals);
  sorted(places);
  for (size_t i = 1; i < entries.size(); ++i)
    if (entries[i].name == entries[i - 1].name)
      return {StatusCode::kInvalidFile, name + ": two arrays have the same name"};
  return {};
}

std::optional<size_t> Container::find(std::string_view name) const {
  const auto found = std::lower_bound(entries.begin(), entries.end(), name,
                                      [](const ArrayEntry& entry, std::string_view text) { return entry.name < text; });
  if (found == entries.end() || found->name != name) return std::nullopt;
  return static_cast<size_t>(found - entries.begin());
}

Result<ArrayFile> read_all(const Container& container) {
  for (const Status& refusal : container.refusals) ISOBIT_RETURN_IF_ERROR(refusal);
  ArrayFile file;
  file.metadata = container.metadata;
  for (size_t i = 0; i < container.entries.size(); ++i) {
    ISOBIT_ASSIGN_OR_RETURN(Array array, container.read(i));
    file.arrays.emplace_hint(file.arrays.end(), container.entries[i].name, std::move(array));
  }
  return file;
}

namespace {

Result<SharedContainer> open_container(FileKind kind, const SharedContent& content) {
  switch (kind) {
    case FileKind::kNpy: return open_npy(content);
    case FileKind::kNpz: return open_npz(content);
    case FileKind::kSafetensors: return open_safetensors(content);
    case FileKind::kSafetensorsIndex: return open_shards(content);
    case FileKind::kGguf: return open_gguf(content);
    case FileKind::kOnnx: return open_onnx(content);
    default: return refuse_kind(kind, *content);
  }
}

/// Names the first file of arrays in it, an index before its parts.
Status is_folder(const std::string& path) {
  const auto rank = [](const std::filesystem::path& file) {
    return std::pair(is_index_name(file.string()) ? 0 : 1, file);
  };
  std::error_code error;
  std::optional<std::filesystem::path> first;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string ending = entry.path().extension().string();
    const bool arrays =
        ending == ".safetensors" || ending == ".npz" || ending == ".npy" || ending == ".gguf" || ending == ".onnx";
    if ((arrays || is_index_name(entry.path().string())) && (!first || rank(entry.path()) < rank(*first)))
      first = entry.path();
  }
  return {StatusCode::kIo, path + ": is a folder; give a file" + (first ? " of it, such as " + first->string() : "")};
}

}  // namespace

Result<ArrayReader> ArrayReader::open(const std::string& path) {
  return without_exceptions(path, [&]() -> Result<ArrayReader> {
    if (std::error_code error; std::filesystem::is_directory(path, error)) return is_folder(path);
    ISOBIT_ASSIGN_OR_RETURN(const SharedContent content, FileContent::open(path));
    ISOBIT_ASSIGN_OR_RETURN(FileKind kind, kind_of(content));
    ISOBIT_ASSIGN_OR_RETURN(SharedContainer container, open_container(kind, content));
    if (kind == FileKind::kSafetensors) kind = kind_of_saved(*container);
    return ArrayReader(path, kind, std::move(container));
  });
}

Result<ArrayReader> ArrayReader::view(const void* data, size_t size_bytes, const std::string& name) {
  return without_exceptions(name, [&]() -> Result<ArrayReader> {
    const SharedContent content = FileContent::view(data, size_bytes, name);
    ISOBIT_ASSIGN_OR_RETURN(FileKind kind, kind_of(content));
    ISOBIT_ASSIGN_OR_RETURN(SharedContainer container, open_container(kind, content));
    if (kind == FileKind::kSafetensors) kind = kind_of_saved(*container);
    return ArrayReader(name, kind, std::move(container));
  });
}

const std::vector<ArrayEntry>& ArrayReader::entries() const { return container_->entries; }

const std::map<std::string, std::string>& ArrayReader::metadata() const { return container_->metadata; }

const ArrayEntry* ArrayReader::find(std::string_view name) const {
  const std::optional<size_t> index = container_->find(name);
  return index ? &container_->entries[*index] : nullptr;
}

Result<Array> ArrayReader::read(std::string_view name) const {
  return without_exceptions(name_, [&]() -> Result<Array> {
    const std::optional<size_t> index = container_->find(name);
    if (!index) {
      return Status(StatusCode::kInvalidArgument, name_ + ": no array is called " + in_quotes(name) + "; it holds " +
                                                      std::to_string(entries().size()) + " others");
    }
    if (const Status& refusal = container_->refusals[*index]; !refusal.ok()) return refusal;
    return container_->read(*index);
  });
}

Result<ArrayFile> ArrayReader::read_all() const {
  return without_exceptions(name_, [&] { return isobit::read_all(*container_); });
}

Result<ArrayFile> ArrayReader::read_readable() const {
  ArrayFile file;
  file.metadata = metadata();
  for (const ArrayEntry& entry : entries()) {
    if (!entry.dtype) continue;
    ISOBIT_ASSIGN_OR_RETURN(Array array, read(entry.name));
    file.arrays.emplace_hint(file.arrays.end(), entry.name, std::move(array));
  }
  return file;
}

const GgufFile* ArrayReader::gguf() const { return container_->gguf(); }

Result<ArrayFile> load_arrays(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader reader, ArrayReader::open(path));
  return reader.read_all();
}

Status save_npy(const std::string& path, const Array& array) {
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> content, encode_npy(array, path));
  return write_file_atomically(path, content.data(), content.size());
}

Status save_npz(const std::string& path, const std::map<std::string, Array>& arrays) {
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> content, encode_npz(arrays, path));
  return write_file_atomically(path, content.data(), content.size());
}

Status save_safetensors(const std::string& path, const ArrayFile& file) {
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> content, encode_safetensors(file, path));
  return write_file_atomically(path, content.data(), content.size());
}

}  // namespace isobit
