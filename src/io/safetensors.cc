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

struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;
};

// Fills dtype and shape of `array`, and checks them against the offsets.
Status read_entry(const Entry& entry, uint64_t data_bytes, const std::string& what, Array& array, Span& span) {
  if (!entry.dtype || !entry.shape || !entry.offsets) {
    return invalid(what, std::string("has no '") + (!entry.dtype   ? "dtype'"
                                                    : !entry.shape ? "shape'"
                                                                   : "data_offsets'"));
  }
  const auto* known = std::find_if(std::begin(kDtypeNames), std::end(kDtypeNames),
                                   [&entry](const DtypeName& row) { return row.name == *entry.dtype; });
  if (known == std::end(kDtypeNames)) {
    return {StatusCode::kUnsupported, what + ": dtype " + in_quotes(*entry.dtype) +
                                          " is not one of F16 BF16 F32 F64 I8 U8 I16 U16 I32 U32 I64 BOOL"};
  }
  array.dtype = known->dtype;
  // A dimension of 2^63 or more becomes negative, which array_size_bytes refuses.
  array.shape.assign(entry.shape->begin(), entry.shape->end());
  if (entry.offsets->size() != 2) {
    return invalid(what, "'data_offsets' has " + std::to_string(entry.offsets->size()) + " numbers, not 2");
  }
  span.begin = (*entry.offsets)[0];
  span.end = (*entry.offsets)[1];
  if (span.begin > span.end || span.end > data_bytes) {
    return invalid(what, "data_offsets [" + std::to_string(span.begin) + ", " + std::to_string(span.end) +
                             "] do not lie in the file's " + std::to_string(data_bytes) + " bytes of data");
  }
  const std::optional<size_t> needed = array_size_bytes(array.dtype, array.shape);
  if (!needed || *needed != span.end - span.begin) {
    return invalid(what, "shape " + shape_text(array.shape) + " of " + *entry.dtype + " needs " +
                             (needed ? std::to_string(*needed) : "2^63 or more") + " bytes, but data_offsets span " +
                             std::to_string(span.end - span.begin));
  }
  return {};
}

Result<ArrayFile> parse(const char* data, size_t size_bytes, const std::string& name) {
  if (size_bytes < kLengthBytes) return invalid(name, "ends before the length of the safetensors header");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, data, kLengthBytes);
  const uint64_t limit = std::min<uint64_t>(size_bytes - kLengthBytes, kMaxHeaderBytes);
  if (header_bytes > limit) {
    return invalid(name, "safetensors header of " + std::to_string(header_bytes) + " bytes; at most " +
                             std::to_string(limit) + " are possible");
  }
  const char* header = data + kLengthBytes;
  // The JSON library takes a zero byte for the end and skips a byte order mark.
  if (header_bytes == 0 || header[0] != '{' || std::memchr(header, 0, header_bytes) != nullptr) {
    return invalid(name, "the safetensors header does not begin with '{' or holds a zero byte");
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, header + header_bytes, &reader)) return invalid(name, reader.error);

  const char* elements = header + header_bytes;
  const uint64_t data_bytes = size_bytes - kLengthBytes - header_bytes;
  ArrayFile file;
  file.metadata = std::move(reader.metadata);
  std::vector<Span> spans;
  spans.reserve(reader.entries.size());
  for (const auto& [tensor, entry] : reader.entries) {
    Array array;
    Span span;
    ISOBIT_RETURN_IF_ERROR(read_entry(entry, data_bytes, name + ": tensor " + in_quotes(tensor), array, span));
    span.name = &file.arrays.emplace(tensor, std::move(array)).first->first;
    spans.push_back(span);
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  uint64_t position = 0;
  for (const Span& span : spans) {
    if (span.begin != position) {
      return invalid(name, "tensor " + in_quotes(*span.name) + " begins at " + std::to_string(span.begin) +
                               ", but the tensor before it ends at " + std::to_string(position));
    }
    position = span.end;
  }
  if (position != data_bytes) {
    return invalid(name, "the tensors end at " + std::to_string(position) + ", but the file has " +
                             std::to_string(data_bytes) + " bytes of data");
  }
  // Only now, when the spans are known not to overlap: together they are no larger than the file.
  for (const Span& span : spans) {
    std::vector<std::byte>& bytes = file.arrays.at(*span.name).bytes;
    bytes.resize(span.end - span.begin);
    if (!bytes.empty()) std::memcpy(bytes.data(), elements + span.begin, bytes.size());
  }
  return file;
}

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

Result<ArrayFile> parse_safetensors(const void* data, size_t size_bytes, const std::string& name) {
  return without_exceptions(name, [&] { return parse(static_cast<const char*>(data), size_bytes, name); });
}

namespace {

Status invalid_index(const std::string& path, const std::string& what) {
  return {StatusCode::kInvalidFile, path + ": " + what};
}

}  // namespace

Result<std::map<std::string, std::set<std::string>>> list_shards(const void* data, size_t size_bytes,
                                                                 const std::string& path) {
  const auto* text = static_cast<const char*>(data);
  const auto json = nlohmann::json::parse(text, text + size_bytes, nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object() || map->empty())
    return invalid_index(path, "no object 'weight_map' that names tensors and their files");
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, file] : map->items()) {
    // A name with a folder in it could be any file of this machine.
    if (!file.is_string() || file.get_ref<const std::string&>().find('/') != std::string::npos)
      return invalid_index(path,
                           "tensor " + in_quotes(tensor) + " is in the file " +
                               in_quotes(file.is_structured() ? file.type_name() : file.dump()) +  // dump() recurses
                               ", must be the name of a file in the same folder");
    shards[file.get<std::string>()].insert(tensor);
  }
  return shards;
}

Result<ArrayFile> load_shards(const void* data, size_t size_bytes, const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const auto shards, list_shards(data, size_bytes, path));
  ArrayFile out;
  for (const auto& [shard, tensors] : shards) {
    const std::string shard_path = (std::filesystem::path(path).parent_path() / shard).string();
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> content, read_file(shard_path));
    ISOBIT_ASSIGN_OR_RETURN(ArrayFile file, parse_safetensors(content.data(), content.size(), shard_path));
    for (const std::string& tensor : tensors)
      if (!file.arrays.contains(tensor))
        return invalid_index(path, "tensor " + in_quotes(tensor) + " is missing in " + in_quotes(shard));
    for (const auto& [tensor, array] : file.arrays)
      if (!tensors.contains(tensor))
        return invalid_index(path,
                             "'weight_map' does not name tensor " + in_quotes(tensor) + " of " + in_quotes(shard));
    out.arrays.merge(file.arrays);
  }
  return out;
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
