// SPDX-License-Identifier: Apache-2.0
// safetensors: the length of a JSON header (8 bytes), the header, then the elements, without gaps. The header is read
// event by event, so that nesting costs no stack, duplicate keys are seen, and no tree of it is kept.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/container.h"

namespace isobit {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100000000;  // the limit of the reference implementation
constexpr size_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";

struct DtypeName {
  const char* name;
  Dtype dtype;
};
constexpr DtypeName kDtypeNames[] = {
    {"F16", Dtype::kF16}, {"BF16", Dtype::kBF16}, {"F32", Dtype::kF32}, {"F64", Dtype::kF64},
    {"I8", Dtype::kS8},   {"U8", Dtype::kU8},     {"I16", Dtype::kS16}, {"U16", Dtype::kU16},
    {"I32", Dtype::kS32}, {"U32", Dtype::kU32},   {"I64", Dtype::kS64}, {"BOOL", Dtype::kU8},
};  // BOOL last: the writer takes the first name of a dtype

struct OtherType {
  const char* name;
  uint64_t bits;  // of an element
};
constexpr OtherType kOtherTypes[] = {{"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"F8_E4M3", 8},
                                     {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8},
                                     {"U64", 64},    {"C64", 64},        {"C128", 128}};

Status invalid(const std::string& name, const std::string& text) {
  return {StatusCode::kInvalidFile, name + ": " + text};
}

struct Entry {
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Accepts {"__metadata__": {"k": "v"}, "name": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}} and nothing
// else. The member functions are the events that nlohmann::json::sax_parse calls; false stops it.
class HeaderReader {
 public:
  std::map<std::string, Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool null() { return unexpected("null"); }
  bool boolean(bool /*value*/) { return unexpected("a boolean"); }
  bool number_integer(int64_t value) { return unexpected(std::to_string(value)); }
  bool number_float(double /*value*/, const std::string& text) { return unexpected(text); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return unexpected("binary data"); }

  bool number_unsigned(uint64_t value) {
    if (depth_ != 3) return unexpected(std::to_string(value));
    if (numbers_->size() == kMaxDimensions) return fail("'" + key_ + "' has too many numbers");
    numbers_->push_back(value);
    return true;
  }

  bool string(std::string& value) {
    if (depth_ != 2) return unexpected("a string");
    if (entry_ == nullptr) return metadata.emplace(key_, value).second || fail(in_quotes(key_) + " is there twice");
    if (key_ != "dtype") return unexpected("a string");
    if (entry_->dtype) return fail("'dtype' is there twice");
    entry_->dtype = value;
    return true;
  }

  bool start_object(size_t /*size*/) {
    if (depth_ >= 2) return unexpected("an object");
    ++depth_;
    return true;
  }

  bool end_object() {
    --depth_;
    return true;
  }

  bool start_array(size_t /*size*/) {
    if (depth_ != 2 || entry_ == nullptr || (key_ != "shape" && key_ != "data_offsets")) return unexpected("a list");
    std::optional<std::vector<uint64_t>>& field = key_ == "shape" ? entry_->shape : entry_->offsets;
    if (field) return fail("'" + key_ + "' is there twice");
    numbers_ = &field.emplace();
    ++depth_;
    return true;
  }

  bool end_array() {
    --depth_;
    return true;
  }

  bool key(std::string& text) {
    key_ = text;
    if (depth_ == 2) {
      if (entry_ == nullptr || text == "dtype" || text == "shape" || text == "data_offsets") return true;
      return fail("unknown key " + in_quotes(text));
    }
    name_ = text;
    if (text == kMetadataKey) {
      entry_ = nullptr;
      if (has_metadata_) return fail("is there twice");
      has_metadata_ = true;
      return true;
    }
    const auto [position, is_new] = entries.try_emplace(text);
    entry_ = &position->second;
    return is_new || fail("is there twice");
  }

  bool parse_error(size_t position, const std::string& /*last_token*/, const nlohmann::json::exception& /*exception*/) {
    error = "the header is not JSON at its byte " + std::to_string(position);
    return false;
  }

 private:
  bool unexpected(const std::string& what) {
    return fail((depth_ == 1 ? "" : in_quotes(key_) + " ") + "cannot be or hold " + what.substr(0, 80));
  }

  bool fail(const std::string& text) {
    error = in_quotes(name_) + ": " + text;
    return false;
  }

  int depth_ = 0;           // 1 in the header, 2 in a tensor or the metadata, 3 in a list
  Entry* entry_ = nullptr;  // nullptr in the metadata
  std::vector<uint64_t>* numbers_ = nullptr;
  bool has_metadata_ = false;
  std::string name_;
  std::string key_;
};

/// Begin and end of a tensor in the data; `out` gets its type and shape, checked against them. `cut`: cut_short() of
/// the file.
Result<std::pair<uint64_t, uint64_t>> read_entry(const Entry& entry, uint64_t data_bytes, const std::string& cut,
                                                 const std::string& what, ArrayEntry& out, Status& refusal) {
  if (!entry.dtype || !entry.shape || !entry.offsets) {
    return invalid(what, std::string("has no '") + (!entry.dtype   ? "dtype'"
                                                    : !entry.shape ? "shape'"
                                                                   : "data_offsets'"));
  }
  std::optional<uint64_t> bits;
  for (const DtypeName& known : kDtypeNames)
    if (known.name == *entry.dtype) out.dtype = known.dtype;
  for (const OtherType& known : kOtherTypes)
    if (known.name == *entry.dtype) bits = known.bits;
  if (out.dtype) {
    bits = 8 * size_in_bytes(*out.dtype);
  } else {
    refusal = {StatusCode::kUnsupported, what + ": dtype " + in_quotes(*entry.dtype) +
                                             " is not one of F16 BF16 F32 F64 I8 U8 I16 U16 I32 U32 I64 BOOL"};
  }
  out.type = *entry.dtype;
  // A dimension of 2^63 or more becomes negative, which stored_size_bytes refuses.
  out.shape.assign(entry.shape->begin(), entry.shape->end());
  if (entry.offsets->size() != 2) {
    return invalid(what, "'data_offsets' has " + std::to_string(entry.offsets->size()) + " numbers, not 2");
  }
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end || end > data_bytes) {
    return invalid(what, "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) +
                             "] do not lie in the file's " + std::to_string(data_bytes) + " bytes of data" + cut);
  }
  out.size_bytes = end - begin;
  const std::optional<uint64_t> needed = stored_size_bytes(bits.value_or(8), out.shape);
  if (!needed || (bits && *needed != out.size_bytes)) {
    return invalid(what, "shape " + shape_text(out.shape) + " of " + *entry.dtype + " needs " +
                             (needed ? std::to_string(*needed) : "2^63 or more") + " bytes, but data_offsets span " +
                             std::to_string(out.size_bytes));
  }
  return std::pair{begin, end};
}

class SafetensorsContainer : public Container {
 public:
  explicit SafetensorsContainer(SharedContent content) : content_(std::move(content)) {}

  Status read_directory() {
    const std::string& name = content_->name();
    HeaderReader reader;
    ISOBIT_ASSIGN_OR_RETURN(const uint64_t begin, read_header(reader));
    const uint64_t data_bytes = content_->size_bytes() - begin;
    metadata = std::move(reader.metadata);
    std::vector<std::pair<std::pair<uint64_t, uint64_t>, const std::string*>> spans;
    spans.reserve(reader.entries.size());
    uint64_t end = 0;
    for (const auto& [tensor, entry] : reader.entries)
      for (const uint64_t offset : entry.offsets.value_or(std::vector<uint64_t>())) end = std::max(end, offset);
    const std::string cut = cut_short(content_->size_bytes(), end > UINT64_MAX - begin ? UINT64_MAX : begin + end);
    for (const auto& [tensor, entry] : reader.entries) {
      ArrayEntry out;
      Status refusal;
      out.name = tensor;
      ISOBIT_ASSIGN_OR_RETURN(const auto span,
                              read_entry(entry, data_bytes, cut, name + ": tensor " + in_quotes(tensor), out, refusal));
      spans.emplace_back(span, &tensor);
      add(std::move(out), std::move(refusal), begin + span.first);
    }
    std::sort(spans.begin(), spans.end());
    uint64_t position = 0;
    for (const auto& [span, tensor] : spans) {
      if (span.first != position) {
        return invalid(name, "tensor " + in_quotes(*tensor) + " begins at " + std::to_string(span.first) +
                                 ", but the tensor before it ends at " + std::to_string(position));
      }
      position = span.second;
    }
    if (position != data_bytes) {
      return invalid(name, "the tensors end at " + std::to_string(position) + ", but the file has " +
                               std::to_string(data_bytes) + " bytes of data");
    }
    return finish(name);
  }

  [[nodiscard]] Result<Array> read(size_t index) const override {
    Array array;
    array.dtype = *entries[index].dtype;
    array.shape = entries[index].shape;
    array.bytes.resize(entries[index].size_bytes);
    ISOBIT_RETURN_IF_ERROR(content_->read(places[index], array.bytes.data(), array.bytes.size()));
    return array;
  }

 private:
  /// Where the data begin.
  Result<uint64_t> read_header(HeaderReader& reader) const {
    const std::string& name = content_->name();
    if (content_->size_bytes() < kLengthBytes) return invalid(name, "ends before the length of the safetensors header");
    uint64_t header_bytes = 0;
    ISOBIT_RETURN_IF_ERROR(content_->read(0, &header_bytes, kLengthBytes));
    const uint64_t limit = std::min<uint64_t>(content_->size_bytes() - kLengthBytes, kMaxHeaderBytes);
    if (header_bytes > limit) {
      return invalid(
          name,
          "safetensors header of " + std::to_string(header_bytes) + " bytes; at most " + std::to_string(limit) +
              " are possible" +
              (header_bytes > kMaxHeaderBytes ? "" : cut_short(content_->size_bytes(), kLengthBytes + header_bytes)));
    }
    std::string header(header_bytes, '\0');
    ISOBIT_RETURN_IF_ERROR(content_->read(kLengthBytes, header.data(), header_bytes));
    // The JSON library takes a zero byte for the end and skips a byte order mark.
    if (!header.starts_with('{') || header.find('\0') != std::string::npos) {
      return invalid(name, "the safetensors header does not begin with '{' or holds a zero byte");
    }
    if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) return invalid(name, reader.error);
    return kLengthBytes + header_bytes;
  }

  SharedContent content_;
};

Result<SharedContainer> open(const SharedContent& content) {
  const auto container = std::make_shared<SafetensorsContainer>(content);
  ISOBIT_RETURN_IF_ERROR(container->read_directory());
  return SharedContainer(container);
}

/// The files of an index; places are their numbers.
class ShardsContainer : public Container {
 public:
  explicit ShardsContainer(std::string path) : path_(std::move(path)) {}

  Status read_directory(std::string_view text) {
    ISOBIT_ASSIGN_OR_RETURN(const auto shards, list_shards(text, path_));
    for (const auto& [shard, tensors] : shards) ISOBIT_RETURN_IF_ERROR(add_shard(shard, tensors));
    return finish(path_);
  }

  [[nodiscard]] Result<Array> read(size_t index) const override {
    const Container& shard = *shards_[places[index]];
    return shard.read(*shard.find(entries[index].name));
  }

 private:
  Status add_shard(const std::string& shard, const std::set<std::string>& tensors) {
    const std::string shard_path = (std::filesystem::path(path_).parent_path() / shard).string();
    const Result<SharedContent> content = FileContent::open(shard_path);
    if (!content.ok()) {
      const std::string some =
          tensors.size() == 1 ? "the tensor " : std::to_string(tensors.size()) + " tensors such as ";
      return {content.status().code(), path_ + ": the shard " + in_quotes(shard) + ", of " + some +
                                           in_quotes(*tensors.begin()) + ": " + content.status().message()};
    }
    ISOBIT_ASSIGN_OR_RETURN(const FileKind kind, kind_of(*content));
    if (kind != FileKind::kSafetensors) {
      const Status refusal = refuse_kind(kind, **content);
      return {refusal.code(), path_ + ": the shard " + in_quotes(shard) + ": " + refusal.message()};
    }
    ISOBIT_ASSIGN_OR_RETURN(SharedContainer file, open(*content));
    for (const std::string& tensor : tensors)
      if (!file->find(tensor))
        return invalid(path_, "tensor " + in_quotes(tensor) + " is missing in " + in_quotes(shard));
    for (size_t i = 0; i < file->entries.size(); ++i) {
      const ArrayEntry& entry = file->entries[i];
      if (!tensors.contains(entry.name))
        return invalid(path_, "'weight_map' does not name tensor " + in_quotes(entry.name) + " of " + in_quotes(shard));
      add(entry, file->refusals[i], shards_.size());
    }
    shards_.push_back(std::move(file));
    return {};
  }

  std::string path_;
  std::vector<SharedContainer> shards_;
};

std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

Result<std::vector<std::byte>> encode(const ArrayFile& file, const std::string& what) {
  using Item = std::pair<const std::string, Array>;
  std::vector<const Item*> items;
  for (const Item& item : file.arrays) {
    if (item.first == kMetadataKey) {
      return Status(StatusCode::kInvalidArgument, what + ": no tensor can be called '__metadata__'");
    }
    ISOBIT_RETURN_IF_ERROR(check_array(item.second, what + ": tensor " + in_quotes(item.first)));
    items.push_back(&item);
  }
  // Wide elements first, as the reference implementation has it: every tensor is aligned to its elements.
  std::stable_sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return size_in_bytes(a->second.dtype) > size_in_bytes(b->second.dtype);
  });

  std::string header;
  for (const auto& [key, value] : file.metadata) {
    header += (header.empty() ? "\"__metadata__\":{" : ",") + json_string(key) + ":" + json_string(value);
  }
  if (!header.empty()) header += "}";
  size_t position = 0;
  for (const Item* item : items) {
    const Array& array = item->second;
    const auto* known = std::find_if(std::begin(kDtypeNames), std::end(kDtypeNames),
                                     [&array](const DtypeName& row) { return row.dtype == array.dtype; });
    std::string shape;
    for (const int64_t dimension : array.shape) shape += (shape.empty() ? "" : ",") + std::to_string(dimension);
    const size_t end = position + array.bytes.size();
    header += (header.empty() ? "" : ",") + json_string(item->first) + R"(:{"dtype":")" + known->name +
              R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(position) + "," +
              std::to_string(end) + "]}";
    position = end;
  }
  header = "{" + header + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the elements begin at a multiple of 8
  if (header.size() > kMaxHeaderBytes) {
    return Status(StatusCode::kInvalidArgument, what + ": safetensors header of " + std::to_string(header.size()) +
                                                    " bytes; at most " + std::to_string(kMaxHeaderBytes) +
                                                    " are possible");
  }

  std::vector<std::byte> content(kLengthBytes + header.size() + position);
  const uint64_t header_bytes = header.size();
  std::memcpy(content.data(), &header_bytes, kLengthBytes);
  std::memcpy(content.data() + kLengthBytes, header.data(), header.size());
  auto out = content.begin() + static_cast<ptrdiff_t>(kLengthBytes + header.size());
  for (const Item* item : items) out = std::copy(item->second.bytes.begin(), item->second.bytes.end(), out);
  return content;
}

}  // namespace

Result<SharedContainer> open_safetensors(const SharedContent& content) { return open(content); }

Result<std::map<std::string, std::set<std::string>>> list_shards(std::string_view text, const std::string& path) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object() || map->empty())
    return invalid(path, "no object 'weight_map' that names tensors and their files");
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, file] : map->items()) {
    // A name with a folder in it could be any file of this machine.
    if (!file.is_string() || file.get_ref<const std::string&>().find('/') != std::string::npos)
      return invalid(path, "tensor " + in_quotes(tensor) + " is in the file " +
                               in_quotes(file.is_structured() ? file.type_name() : file.dump()) +  // dump() recurses
                               ", must be the name of a file in the same folder");
    shards[file.get<std::string>()].insert(tensor);
  }
  return shards;
}

Result<SharedContainer> open_shards(const SharedContent& content) {
  ISOBIT_ASSIGN_OR_RETURN(const std::string text, content->beginning(content->size_bytes()));
  const auto container = std::make_shared<ShardsContainer>(content->name());
  ISOBIT_RETURN_IF_ERROR(container->read_directory(text));
  return SharedContainer(container);
}

Result<ArrayFile> parse_safetensors(const void* data, size_t size_bytes, const std::string& name) {
  return without_exceptions(name, [&]() -> Result<ArrayFile> {
    ISOBIT_ASSIGN_OR_RETURN(const SharedContainer container, open(FileContent::view(data, size_bytes, name)));
    return read_all(*container);
  });
}

Result<std::vector<std::byte>> encode_safetensors(const ArrayFile& file, const std::string& what) {
  return without_exceptions(what, [&]() -> Result<std::vector<std::byte>> {
    try {
      return encode(file, what);
    } catch (const nlohmann::json::exception&) {
      return Status(StatusCode::kInvalidArgument, what + ": a name or a metadata text is not valid UTF-8");
    }
  });
}

}  // namespace isobit
