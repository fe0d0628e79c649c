// SPDX-License-Identifier: Apache-2.0
// GGUF: magic, version, counts, metadata, the table of tensors, then, aligned, the tensors.
#include "isobit/gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <unordered_set>

#include "core/float_mode.h"
#include "io/container.h"
#include "io/gguf/types.h"

namespace isobit {

namespace {

constexpr const char* kAlignmentKey = "general.alignment";
constexpr uint32_t kMaxGgufDimensions = 4;
constexpr int kMaxNesting = 8;            // of arrays in arrays; files in use have none
constexpr uint64_t kMaxKeyBytes = 65535;  // the format's limit
// The least that an entry takes: a length, a type and one byte; a length, the number of dimensions, a type, an offset.
constexpr uint64_t kMinMetadataBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

constexpr std::string_view kValueTypeNames[] = {"u8",   "s8",     "u16",   "s16", "u32", "s32", "f32",
                                                "bool", "string", "array", "u64", "s64", "f64"};

uint64_t min_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kS8:
    case GgufValueType::kBool: return 1;
    case GgufValueType::kU16:
    case GgufValueType::kS16: return 2;
    case GgufValueType::kU32:
    case GgufValueType::kS32:
    case GgufValueType::kF32: return 4;
    case GgufValueType::kString:
    case GgufValueType::kU64:
    case GgufValueType::kS64:
    case GgufValueType::kF64: return 8;
    case GgufValueType::kArray: return 12;
  }
  return 1;
}

}  // namespace

std::string_view to_string(GgufValueType type) { return kValueTypeNames[static_cast<size_t>(type)]; }

// Reads the directory from the beginning; `what` names in messages what is being read.
class GgufReader {
 public:
  GgufReader(const void* data, size_t size_bytes, const std::string& name) {
    file_.data_ = static_cast<const std::byte*>(data);
    file_.size_bytes_ = size_bytes;
    file_.name_ = name;
  }

  Result<GgufFile> run() {
    uint64_t tensors = 0, entries = 0;
    ISOBIT_RETURN_IF_ERROR(read_header(tensors, entries));
    ISOBIT_RETURN_IF_ERROR(read_metadata(entries));
    ISOBIT_RETURN_IF_ERROR(check_count(tensors, kMinTensorBytes, "the table of tensors"));
    file_.tensors_.resize(tensors);
    std::unordered_set<std::string_view> names;
    for (size_t i = 0; i < file_.tensors_.size(); ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      ISOBIT_RETURN_IF_ERROR(read_tensor(tensor, "tensor " + std::to_string(i)));
      if (!names.insert(tensor.name).second) return invalid(in_tensor(tensor), "is there twice");
    }
    ISOBIT_RETURN_IF_ERROR(place_tensors());
    return std::move(file_);
  }

 private:
  [[nodiscard]] Status invalid(const std::string& what, const std::string& text) const {
    return {StatusCode::kInvalidFile, file_.name_ + ": " + what + " " + text};
  }

  static std::string in_tensor(const GgufTensor& tensor) { return "tensor " + in_quotes(tensor.name); }

  [[nodiscard]] uint64_t rest() const { return file_.size_bytes_ - position_; }

  Status need(uint64_t bytes, const std::string& what) const {
    if (bytes <= rest()) return {};
    return invalid(what, "needs " + std::to_string(bytes) + " bytes at byte " + std::to_string(position_) +
                             ", but the file has " + std::to_string(file_.size_bytes_) +
                             cut_short(file_.size_bytes_, end_of(position_, bytes)));
  }

  /// The largest number where there is no such byte.
  static uint64_t end_of(uint64_t begin, uint64_t bytes) {
    return bytes > UINT64_MAX - begin ? UINT64_MAX : begin + bytes;
  }

  Status check_count(uint64_t count, uint64_t bytes_each, const std::string& what) const {
    if (count <= rest() / bytes_each) return {};
    return invalid(what, "has " + std::to_string(count) + " entries; the " + std::to_string(rest()) +
                             " bytes that are left hold at most " + std::to_string(rest() / bytes_each) +
                             "; that number is wrong, or the file is cut short");
  }

  template <typename T>
  Status read(T& value, const std::string& what) {
    ISOBIT_RETURN_IF_ERROR(need(sizeof value, what));
    std::memcpy(&value, file_.data_ + position_, sizeof value);
    position_ += sizeof value;
    return {};
  }

  Status read_string(std::string& text, const std::string& what, uint64_t limit = UINT64_MAX) {
    uint64_t size = 0;
    ISOBIT_RETURN_IF_ERROR(read(size, what));
    ISOBIT_RETURN_IF_ERROR(need(size, what));
    if (size > limit) {
      return invalid(what, "has " + std::to_string(size) + " bytes; at most " + std::to_string(limit) + " are allowed");
    }
    text.assign(reinterpret_cast<const char*>(file_.data_ + position_), size);
    position_ += size;
    return {};
  }

  Status read_header(uint64_t& tensors, uint64_t& entries) {
    uint32_t magic = 0;
    ISOBIT_RETURN_IF_ERROR(read(magic, "the GGUF header"));
    if (std::memcmp(&magic, "GGUF", sizeof magic) != 0) return invalid("the file", "does not begin with 'GGUF'");
    ISOBIT_RETURN_IF_ERROR(read(file_.version_, "the GGUF header"));
    if (file_.version_ != 2 && file_.version_ != 3) {
      return {StatusCode::kUnsupported, file_.name_ + ": GGUF version " + std::to_string(file_.version_) +
                                            ((file_.version_ & 0xffff) == 0 ? " (a big-endian file)" : "") +
                                            "; 2 and 3, little-endian, are read"};
    }
    ISOBIT_RETURN_IF_ERROR(read(tensors, "the GGUF header"));
    return read(entries, "the GGUF header");
  }

  Status read_metadata(uint64_t entries) {
    ISOBIT_RETURN_IF_ERROR(check_count(entries, kMinMetadataBytes, "the metadata"));
    file_.metadata_.resize(entries);
    std::unordered_set<std::string_view> keys;
    for (size_t i = 0; i < file_.metadata_.size(); ++i) {
      auto& [key, value] = file_.metadata_[i];
      ISOBIT_RETURN_IF_ERROR(read_string(key, "the key of metadata entry " + std::to_string(i), kMaxKeyBytes));
      const std::string what = "metadata " + in_quotes(key);
      if (!keys.insert(key).second) return invalid(what, "is there twice");
      ISOBIT_RETURN_IF_ERROR(read_type(value.type, what));
      ISOBIT_RETURN_IF_ERROR(read_value(value, 0, what));
    }
    const GgufValue* alignment = file_.find_metadata(kAlignmentKey);
    if (alignment == nullptr) return {};
    if (alignment->type != GgufValueType::kU32) {
      return invalid(std::string("metadata '") + kAlignmentKey + "'",
                     "is of type " + std::string(to_string(alignment->type)) + ", not u32");
    }
    file_.alignment_ = static_cast<uint32_t>(std::get<uint64_t>(alignment->value));
    if (file_.alignment_ == 0 || file_.alignment_ % 8 != 0) {
      return invalid(std::string("metadata '") + kAlignmentKey + "'",
                     "is " + std::to_string(file_.alignment_) + ", not a positive multiple of 8");
    }
    return {};
  }

  Status read_type(GgufValueType& type, const std::string& what) {
    uint32_t number = 0;
    ISOBIT_RETURN_IF_ERROR(read(number, what));
    if (number >= std::size(kValueTypeNames)) {
      return invalid(what, "has the unknown type " + std::to_string(number) + "; the largest is " +
                               std::to_string(std::size(kValueTypeNames) - 1));
    }
    type = static_cast<GgufValueType>(number);
    return {};
  }

  // As the widest type of its kind.
  template <typename T>
  Status read_number(GgufValue& value, const std::string& what) {
    using Widest = std::conditional_t<std::is_floating_point_v<T>, double,
                                      std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    T number = 0;
    ISOBIT_RETURN_IF_ERROR(read(number, what));
    value.value = static_cast<Widest>(number);
    return {};
  }

  Status read_value(GgufValue& value, int nesting, const std::string& what) {
    switch (value.type) {
      case GgufValueType::kU8: return read_number<uint8_t>(value, what);
      case GgufValueType::kS8: return read_number<int8_t>(value, what);
      case GgufValueType::kU16: return read_number<uint16_t>(value, what);
      case GgufValueType::kS16: return read_number<int16_t>(value, what);
      case GgufValueType::kU32: return read_number<uint32_t>(value, what);
      case GgufValueType::kS32: return read_number<int32_t>(value, what);
      case GgufValueType::kF32: return read_number<float>(value, what);
      case GgufValueType::kU64: return read_number<uint64_t>(value, what);
      case GgufValueType::kS64: return read_number<int64_t>(value, what);
      case GgufValueType::kF64: return read_number<double>(value, what);
      case GgufValueType::kString: return read_string(value.value.emplace<std::string>(), what);
      case GgufValueType::kArray: return read_list(value, nesting, what);
      case GgufValueType::kBool: break;
    }
    uint8_t byte = 0;
    ISOBIT_RETURN_IF_ERROR(read(byte, what));
    if (byte > 1) return invalid(what, "is the boolean " + std::to_string(byte) + ", neither 0 nor 1");
    value.value = byte == 1;
    return {};
  }

  Status read_list(GgufValue& value, int nesting, const std::string& what) {
    if (nesting == kMaxNesting) {
      return invalid(what, "has arrays nested more than " + std::to_string(kMaxNesting) + " deep");
    }
    uint64_t count = 0;
    ISOBIT_RETURN_IF_ERROR(read_type(value.element_type, what));
    ISOBIT_RETURN_IF_ERROR(read(count, what));
    ISOBIT_RETURN_IF_ERROR(check_count(count, min_bytes(value.element_type), what));
    auto& list = value.value.emplace<GgufValue::List>(count);
    for (GgufValue& item : list) {
      item.type = value.element_type;
      ISOBIT_RETURN_IF_ERROR(read_value(item, nesting + 1, what));
    }
    return {};
  }

  // All but the check of its offset, which is still relative to the data.
  Status read_tensor(GgufTensor& tensor, const std::string& number) {
    ISOBIT_RETURN_IF_ERROR(read_string(tensor.name, "the name of " + number));
    const std::string what = in_tensor(tensor);
    uint32_t dimensions = 0, type_id = 0;
    ISOBIT_RETURN_IF_ERROR(read(dimensions, what));
    if (dimensions > kMaxGgufDimensions) {
      return invalid(what, "has " + std::to_string(dimensions) + " dimensions; at most " +
                               std::to_string(kMaxGgufDimensions) + " are allowed");
    }
    tensor.shape.resize(dimensions);
    for (size_t i = tensor.shape.size(); i-- > 0;) {  // the file begins with the length of a row
      ISOBIT_RETURN_IF_ERROR(read(tensor.shape[i], what));
    }
    ISOBIT_RETURN_IF_ERROR(read(type_id, what));
    // A dimension of 2^63 or more has become negative. As float32 it must fit, too, so no product below overflows.
    const std::optional<size_t> float_bytes = array_size_bytes(Dtype::kF32, tensor.shape);
    if (!float_bytes) return invalid(what, "has the shape " + shape_text(tensor.shape) + ", beyond 2^63 bytes");
    const GgufType* type = find_gguf_type(type_id);
    if (type == nullptr) {
      tensor.type = std::to_string(type_id);
      return read(tensor.offset, what);
    }
    tensor.type = type->name;
    tensor.readable = type->dtype || type->quantization != nullptr;
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % type->block_elements != 0) {
      return invalid(what, "has rows of " + std::to_string(row) + " elements; " + std::string(type->name) +
                               " needs a multiple of " + std::to_string(type->block_elements));
    }
    const uint64_t blocks = *float_bytes / sizeof(float) / static_cast<uint64_t>(type->block_elements);
    tensor.size_bytes = blocks * static_cast<uint64_t>(type->block_bytes);
    return read(tensor.offset, what);
  }

  Status place_tensors() {
    const uint64_t alignment = file_.alignment_;
    const uint64_t begin = (position_ + alignment - 1) / alignment * alignment;
    const uint64_t data_bytes = file_.size_bytes_ > begin ? file_.size_bytes_ - begin : 0;
    std::vector<const GgufTensor*> order;
    uint64_t end = 0;
    for (const GgufTensor& tensor : file_.tensors_)
      end = std::max(end, end_of(begin, end_of(tensor.offset, tensor.size_bytes)));
    for (GgufTensor& tensor : file_.tensors_) {
      if (tensor.offset % alignment != 0) {
        return invalid(in_tensor(tensor), "begins at byte " + std::to_string(tensor.offset) +
                                              " of the data, not at a multiple of the alignment, " +
                                              std::to_string(alignment));
      }
      if (tensor.offset > data_bytes || tensor.size_bytes > data_bytes - tensor.offset) {
        return invalid(in_tensor(tensor), "has " + std::to_string(tensor.size_bytes) + " bytes from byte " +
                                              std::to_string(tensor.offset) + " of the data, which has " +
                                              std::to_string(data_bytes) + cut_short(file_.size_bytes_, end));
      }
      tensor.offset += begin;
    }
    measure_unknown_types();
    for (const GgufTensor& tensor : file_.tensors_)
      if (tensor.size_bytes > 0) order.push_back(&tensor);
    std::sort(order.begin(), order.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i]->offset < order[i - 1]->offset + order[i - 1]->size_bytes) {
        return invalid(in_tensor(*order[i]), "begins at byte " + std::to_string(order[i]->offset) +
                                                 " of the file, before the end of " + in_tensor(*order[i - 1]) +
                                                 " at " +
                                                 std::to_string(order[i - 1]->offset + order[i - 1]->size_bytes));
      }
    }
    return {};
  }

  /// Nothing says how long a block of an unknown type is.
  void measure_unknown_types() {
    std::set<uint64_t> begins;
    for (const GgufTensor& tensor : file_.tensors_) begins.insert(tensor.offset);
    for (GgufTensor& tensor : file_.tensors_) {
      const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
      if (empty || find_gguf_type(tensor.type) != nullptr) continue;
      const auto next = begins.upper_bound(tensor.offset);
      tensor.size_bytes = (next == begins.end() ? file_.size_bytes_ : *next) - tensor.offset;
    }
  }

  GgufFile file_;
  uint64_t position_ = 0;
};

namespace {

template <typename Items, typename Name>
auto find_named(const Items& items, std::string_view name, Name name_of) -> decltype(items.data()) {
  const auto found = std::find_if(items.begin(), items.end(), [&](const auto& item) { return name_of(item) == name; });
  return found == items.end() ? nullptr : &*found;
}

}  // namespace

const GgufValue* GgufFile::find_metadata(std::string_view key) const {
  const auto* entry = find_named(metadata_, key, [](const auto& item) -> std::string_view { return item.first; });
  return entry == nullptr ? nullptr : &entry->second;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  return find_named(tensors_, name, [](const GgufTensor& item) -> std::string_view { return item.name; });
}

Result<GgufFile> GgufFile::view(const void* data, size_t size_bytes, const std::string& name) {
  const DefaultFloatMode mode;
  return without_exceptions(name, [&] { return GgufReader(data, size_bytes, name).run(); });
}

Result<GgufFile> GgufFile::load(const std::string& path) {
  const DefaultFloatMode mode;
  return without_exceptions(path, [&]() -> Result<GgufFile> {
    ISOBIT_ASSIGN_OR_RETURN(std::vector<std::byte> content, read_file(path));
    const auto shared = std::make_shared<const std::vector<std::byte>>(std::move(content));
    ISOBIT_ASSIGN_OR_RETURN(GgufFile file, GgufReader(shared->data(), shared->size(), path).run());
    file.content_ = shared;
    return file;
  });
}

namespace {

/// One block; false if a scale or offset is not finite.
bool dequantize(const GgufType& type, const uint8_t* block, float* out) {
  const GgufQuantization& quantization = *type.quantization;
  std::array<float, kMaxGgufGroups> scales{}, offsets{};
  std::array<uint8_t, kMaxGgufBlock> codes{};
  quantization.split(block, scales.data(), offsets.data(), codes.data());
  const int groups = static_cast<int>(type.block_elements) / quantization.group;
  for (int g = 0; g < groups; ++g) {
    if (!std::isfinite(scales[g]) || !std::isfinite(offsets[g])) return false;
    for (int i = g * quantization.group; i < (g + 1) * quantization.group; ++i) {
      out[i] = scales[g] * static_cast<float>(codes[i] - quantization.zero);
      if (quantization.has_offsets) out[i] = out[i] + offsets[g];
    }
  }
  return true;
}

}  // namespace

std::span<const std::byte> GgufFile::stored(const GgufTensor& tensor) const {
  return {data_ + tensor.offset, tensor.size_bytes};
}

Result<Array> GgufFile::read(const GgufTensor& tensor) const {
  const std::string what = name_ + ": tensor " + in_quotes(tensor.name);
  const GgufType* known = find_gguf_type(tensor.type);
  if (!tensor.readable || known == nullptr) {
    return Status(StatusCode::kUnsupported,
                  what + " is of type " + tensor.type + "; read are " + readable_gguf_types());
  }
  const GgufType& type = *known;
  const std::byte* bytes = data_ + tensor.offset;
  if (type.dtype) {
    Array array = Array::zeros(*type.dtype, tensor.shape);
    if (!array.bytes.empty()) std::memcpy(array.bytes.data(), bytes, array.bytes.size());
    return array;
  }
  Array array = Array::zeros(Dtype::kF32, tensor.shape);
  const auto* block = reinterpret_cast<const uint8_t*>(bytes);
  auto* out = array.data<float>();
  const int64_t blocks = array.size() / type.block_elements;
  for (int64_t i = 0; i < blocks; ++i, block += type.block_bytes, out += type.block_elements) {
    if (dequantize(type, block, out)) continue;
    return Status(StatusCode::kInvalidFile, what + ": a scale of block " + std::to_string(i) + " of " +
                                                std::to_string(blocks) + " (" + std::string(type.name) +
                                                ") is infinite or NaN; scales must be finite");
  }
  return array;
}

Result<Array> GgufFile::read(std::string_view name) const {
  const DefaultFloatMode mode;
  return without_exceptions(name_, [&]() -> Result<Array> {
    const GgufTensor* tensor = find_tensor(name);
    if (tensor != nullptr) return read(*tensor);
    return Status(StatusCode::kInvalidArgument,
                  name_ + ": no tensor is called " + in_quotes(name) + "; " +
                      (split_text().empty() ? "it holds " + std::to_string(tensors_.size()) + " others"
                                            : "the file is " + split_text()));
  });
}

std::string GgufFile::split_text() const {
  const auto number = [this](std::string_view key) -> int64_t {
    const GgufValue* value = find_metadata(key);
    if (value == nullptr) return 0;
    if (const auto* count = std::get_if<uint64_t>(&value->value)) return static_cast<int64_t>(*count);
    const auto* count = std::get_if<int64_t>(&value->value);
    return count == nullptr ? 0 : *count;
  };
  const int64_t count = number("split.count");
  if (count < 2) return "";
  const int64_t all = number("split.tensors.count");
  return "part " + std::to_string(number("split.no") + 1) + " of " + std::to_string(count) +
         " of a model that was split; it holds " + std::to_string(tensors_.size()) +
         (all > 0 ? " of " + std::to_string(all) : "") + " tensors, the other parts hold the rest";
}

namespace {

class GgufContainer : public Container {
 public:
  GgufContainer(SharedContent content, GgufFile file) : content_(std::move(content)), file_(std::move(file)) {
    for (const GgufTensor& tensor : file_.tensors()) {
      std::optional<Dtype> dtype;  // of a type that is not known there is none
      if (tensor.readable) dtype = find_gguf_type(tensor.type)->dtype.value_or(Dtype::kF32);
      add({tensor.name, tensor.type, dtype, tensor.shape, tensor.size_bytes},
          dtype ? Status() : file_.read(tensor.name).status(), 0);
    }
  }
  [[nodiscard]] Result<Array> read(size_t index) const override { return file_.read(entries[index].name); }
  [[nodiscard]] const GgufFile* gguf() const override { return &file_; }

 private:
  SharedContent content_;  // file_ points into it
  GgufFile file_;
};

Result<SharedContainer> open(const SharedContent& content) {
  ISOBIT_ASSIGN_OR_RETURN(SharedContent whole, FileContent::load(content));
  ISOBIT_ASSIGN_OR_RETURN(GgufFile file, GgufFile::view(whole->data(), whole->size_bytes(), whole->name()));
  const auto container = std::make_shared<GgufContainer>(std::move(whole), std::move(file));
  ISOBIT_RETURN_IF_ERROR(container->finish(content->name()));
  return SharedContainer(container);
}

}  // namespace

Result<SharedContainer> open_gguf(const SharedContent& content) { return open(content); }

Result<ArrayFile> parse_gguf(const void* data, size_t size_bytes, const std::string& name) {
  return without_exceptions(name, [&]() -> Result<ArrayFile> {
    ISOBIT_ASSIGN_OR_RETURN(const SharedContainer container, open(FileContent::view(data, size_bytes, name)));
    return read_all(*container);
  });
}

}  // namespace isobit
