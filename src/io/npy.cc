// SPDX-License-Identifier: Apache-2.0
// The .npy format, versions 1 to 3: magic, version, header length, a Python dictionary literal, the elements.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "io/container.h"

namespace isobit {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct DescrName {
  std::string_view name;  // without the byte order
  Dtype dtype;
};
constexpr DescrName kDescrNames[] = {
    {"i1", Dtype::kS8},  {"u1", Dtype::kU8},  {"i2", Dtype::kS16}, {"u2", Dtype::kU16},
    {"i4", Dtype::kS32}, {"u4", Dtype::kU32}, {"i8", Dtype::kS64}, {"f2", Dtype::kF16},
    {"f4", Dtype::kF32}, {"f8", Dtype::kF64}, {"b1", Dtype::kU8},  // last: the writer takes the first name of a dtype
};

Status invalid(const std::string& name, const std::string& text) {
  return {StatusCode::kInvalidFile, name + ": " + text};
}

/// Of an element: strings of n characters have 4 bytes each, dates ("M8[ns]") and the others say their bytes.
std::optional<uint64_t> element_bits_of(std::string_view descr) {
  if (descr.size() < 3) return std::nullopt;
  const std::string_view digits = descr.substr(2);
  const char* const end = digits.data() + digits.size();
  uint32_t count = 0;
  const std::from_chars_result read = std::from_chars(digits.data(), end, count);
  const bool is_date = descr[1] == 'M' || descr[1] == 'm';
  if (read.ec != std::errc() || (read.ptr != end && !(is_date && *read.ptr == '['))) return std::nullopt;
  return uint64_t{count} * (descr[1] == 'U' ? 32 : 8);
}

std::string_view hint_of(std::string_view type) {
  if (type == "O") return " (pickled Python objects)";
  if (type.starts_with('U') || type.starts_with('S')) return " (strings)";
  if (type == "V2")
    return " (probably bfloat16, which npy cannot say; save array.astype('float32'), or a safetensors file)";
  if (type == "V1") return " (probably an 8-bit float, which npy cannot say; save array.astype('float32'))";
  return "";
}

/// Fills type, dtype, element_bits and refusal.
Status read_descr(std::string_view descr, const std::string& name, NpyHeader& header) {
  if (descr.empty()) return invalid(name, "the npy header's descr is empty");
  header.type = descr;
  if (descr[0] == '<' || descr[0] == '|' || descr[0] == '=') {
    for (const DescrName& known : kDescrNames) {
      if (known.name != descr.substr(1)) continue;
      header.dtype = known.dtype;
      header.element_bits = 8 * size_in_bytes(known.dtype);
      return {};
    }
  }
  header.element_bits = element_bits_of(descr);
  std::string why;
  if (descr[0] == '>') {
    why.append("big-endian dtype ").append(in_quotes(descr));
    why += "; convert it with array.astype(array.dtype.newbyteorder('<'))";
  } else {
    why.append("dtype ").append(in_quotes(descr)).append(" is not one of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 b1");
    why += hint_of(descr.substr(1));
  }
  header.refusal = {StatusCode::kUnsupported, name + ": " + why};
  return {};
}

// Reads {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, the keys in any order. No recursion.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Status parse(NpyHeader& header) {
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    if (!take('{')) return error("'{'");
    while (!take('}')) {
      std::string_view key;
      if (!take_string(key)) return error("a key");
      if (!take(':')) return error("':'");
      bool* seen = key == "descr"           ? &has_descr
                   : key == "fortran_order" ? &has_order
                   : key == "shape"         ? &has_shape
                                            : nullptr;
      if (seen == nullptr) return invalid(name_, "the npy header has an unknown key " + in_quotes(key));
      if (*seen) return invalid(name_, "the npy header has " + in_quotes(key) + " twice");
      *seen = true;
      if (key == "descr") {
        ISOBIT_RETURN_IF_ERROR(parse_descr(header));
      } else if (key == "fortran_order") {
        header.fortran_order = take_word("True");
        if (!header.fortran_order && !take_word("False")) return error("True or False");
      } else {
        ISOBIT_RETURN_IF_ERROR(parse_shape(header.shape));
      }
      if (!take(',') && peek() != '}') return error("',' or '}'");
    }
    if (peek() != '\0' || position_ != text_.size()) return error("nothing more");
    if (!has_descr || !has_order || !has_shape) {
      return invalid(name_, std::string("the npy header has no ") + (!has_descr   ? "'descr'"
                                                                     : !has_order ? "'fortran_order'"
                                                                                  : "'shape'"));
    }
    return {};
  }

 private:
  char peek() {  // '\0' at the end
    while (position_ < text_.size() && std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos) {
      ++position_;
    }
    return position_ < text_.size() ? text_[position_] : '\0';
  }

  bool take(char c) {
    if (peek() != c) return false;
    ++position_;
    return true;
  }

  bool take_word(std::string_view word) {
    peek();
    if (text_.substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }

  bool take_string(std::string_view& out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(position_ + 1, end - position_ - 1);
    position_ = end + 1;
    return true;
  }

  Status parse_descr(NpyHeader& header) {
    if (peek() == '[' || peek() == '(' || peek() == '{') {
      const size_t begin = position_;
      header.refusal = {StatusCode::kUnsupported, name_ + ": structured dtype " + in_quotes(text_.substr(position_)) +
                                                      "; save one plain array for each field"};
      if (!skip_list()) return error("the end of a structured dtype");
      header.type = text_.substr(begin, position_ - begin);
      return {};
    }
    std::string_view descr;
    if (!take_string(descr)) return error("the dtype as a string");
    return read_descr(descr, name_, header);
  }

  // Lists, tuples and dictionaries in each other, with strings in them.
  bool skip_list() {
    size_t depth = 0;
    for (char c = peek(); c != '\0'; c = peek()) {
      std::string_view text;
      if (c == '\'' || c == '"') {
        if (!take_string(text)) return false;
        continue;
      }
      ++position_;
      if (c == '[' || c == '(' || c == '{') ++depth;
      if ((c == ']' || c == ')' || c == '}') && --depth == 0) return true;
    }
    return false;
  }

  Status parse_shape(std::vector<int64_t>& shape) {
    if (!take('(')) return error("'('");
    while (!take(')')) {
      if (peek() < '0' || peek() > '9') return error("a dimension");
      int64_t dimension = 0;
      const char* begin = text_.data() + position_;
      const std::from_chars_result read = std::from_chars(begin, text_.data() + text_.size(), dimension);
      if (read.ec != std::errc()) return error("a dimension below 2^63");
      if (shape.size() == kMaxDimensions) {
        return invalid(name_, "more than " + std::to_string(kMaxDimensions) + " dimensions");
      }
      shape.push_back(dimension);
      position_ += static_cast<size_t>(read.ptr - begin);
      take('L');  // written by Python 2
      if (!take(',') && peek() != ')') return error("',' or ')'");
    }
    return {};
  }

  Status error(const std::string& expected) {
    return invalid(name_, "npy header, character " + std::to_string(position_) + ": " + expected + " expected, not " +
                              in_quotes(text_.substr(position_)));
  }

  std::string_view text_;
  const std::string& name_;
  size_t position_ = 0;
};

// Copies elements that lie in Fortran order (first index fastest) into C order.
void copy_from_fortran_order(const char* in, const std::vector<int64_t>& shape, size_t element_bytes, size_t size_bytes,
                             std::byte* out) {
  std::vector<size_t> strides(shape.size());  // in bytes, of `in`
  size_t stride = element_bytes;
  for (size_t d = 0; d < shape.size(); ++d) {
    strides[d] = stride;
    stride *= static_cast<size_t>(shape[d]);
  }
  std::vector<int64_t> index(shape.size(), 0);
  for (size_t done = 0; done < size_bytes; done += element_bytes) {
    std::memcpy(out + done, in, element_bytes);
    for (size_t d = shape.size(); d-- > 0;) {
      in += strides[d];
      if (++index[d] < shape[d]) break;
      in -= strides[d] * static_cast<size_t>(shape[d]);
      index[d] = 0;
    }
  }
}

Result<Array> parse(const char* data, size_t size_bytes, const std::string& name) {
  ISOBIT_ASSIGN_OR_RETURN(NpyHeader header, parse_npy_header({data, size_bytes}, size_bytes, name));
  if (!header.dtype) return header.refusal;
  const char* elements = data + header.size_bytes;
  Array array;
  array.dtype = *header.dtype;
  array.shape = std::move(header.shape);
  array.bytes.resize(size_bytes - header.size_bytes);
  if (header.fortran_order && array.shape.size() > 1) {
    copy_from_fortran_order(elements, array.shape, size_in_bytes(array.dtype), array.bytes.size(), array.bytes.data());
  } else if (!array.bytes.empty()) {
    std::memcpy(array.bytes.data(), elements, array.bytes.size());
  }
  return array;
}

class NpyContainer : public Container {
 public:
  NpyContainer(SharedContent content, NpyHeader header) : content_(std::move(content)) {
    add({"", std::move(header.type), header.dtype, std::move(header.shape), content_->size_bytes() - header.size_bytes},
        std::move(header.refusal), header.size_bytes);
  }
  [[nodiscard]] Result<Array> read(size_t /*index*/) const override {
    return parse(reinterpret_cast<const char*>(content_->data()), content_->size_bytes(), content_->name());
  }

 private:
  SharedContent content_;
};

Result<std::vector<std::byte>> encode(const Array& array, const std::string& what) {
  ISOBIT_RETURN_IF_ERROR(check_array(array, what));
  const auto* known = std::find_if(std::begin(kDescrNames), std::end(kDescrNames),
                                   [&array](const DescrName& row) { return row.dtype == array.dtype; });
  if (known == std::end(kDescrNames)) {
    return Status(StatusCode::kUnsupported, what + ": npy has no " + std::string(to_string(array.dtype)) +
                                                "; save safetensors, or convert to f32");
  }
  std::string header = "{'descr': '";
  header += size_in_bytes(array.dtype) == 1 ? '|' : '<';
  header += known->name;
  header += "', 'fortran_order': False, 'shape': " + shape_text(array.shape) + ", }";
  // Spaces and a newline, so that the elements begin at a multiple of 64. Version 1 holds any header of
  // kMaxDimensions dimensions (about 1400 characters).
  constexpr size_t kPreamble = 10;
  header.resize((kPreamble + header.size() + 1 + 63) / 64 * 64 - kPreamble - 1, ' ');
  header += '\n';

  std::string start(kMagic);
  start += '\x01';
  start += '\0';
  start += static_cast<char>(header.size() & 0xff);
  start += static_cast<char>(header.size() >> 8);
  start += header;
  std::vector<std::byte> content(start.size() + array.bytes.size());
  std::memcpy(content.data(), start.data(), start.size());
  std::copy(array.bytes.begin(), array.bytes.end(), content.begin() + static_cast<ptrdiff_t>(start.size()));
  return content;
}

}  // namespace

Result<uint64_t> npy_header_bytes(std::string_view beginning, uint64_t file_bytes, const std::string& name) {
  constexpr size_t kVersionEnd = 8;
  if (beginning.size() < kVersionEnd || beginning.substr(0, kMagic.size()) != kMagic) {
    return invalid(name, "does not begin with the npy magic");
  }
  const int version = static_cast<unsigned char>(beginning[6]);
  if (version < 1 || version > 3 || beginning[7] != 0) return uint64_t{0};
  const size_t length_bytes = version == 1 ? 2 : 4;
  uint32_t length = 0;
  if (beginning.size() - kVersionEnd < length_bytes) return invalid(name, "ends inside the npy header");
  std::memcpy(&length, beginning.data() + kVersionEnd, length_bytes);
  const uint64_t header_begin = kVersionEnd + length_bytes;
  if (length > file_bytes - header_begin) {
    return invalid(name, "npy header of " + std::to_string(length) + " bytes, but only " +
                             std::to_string(file_bytes - header_begin) + " follow" +
                             cut_short(file_bytes, header_begin + length));
  }
  return header_begin + length;
}

Result<NpyHeader> parse_npy_header(std::string_view beginning, uint64_t file_bytes, const std::string& name) {
  NpyHeader header;
  ISOBIT_ASSIGN_OR_RETURN(header.size_bytes, npy_header_bytes(beginning, file_bytes, name));
  if (header.size_bytes == 0) {
    const auto number = [&](size_t i) { return std::to_string(static_cast<unsigned char>(beginning[i])); };
    header.type = "npy version " + number(6) + "." + number(7);
    header.refusal = {StatusCode::kUnsupported, name + ": " + header.type + "; known are 1.0, 2.0 and 3.0"};
    return header;
  }
  const size_t text_begin = beginning[6] == 1 ? 10 : 12;
  ISOBIT_RETURN_IF_ERROR(
      HeaderParser(beginning.substr(text_begin, header.size_bytes - text_begin), name).parse(header));
  if (!header.element_bits) return header;
  const uint64_t available = file_bytes - header.size_bytes;
  const std::optional<uint64_t> needed = stored_size_bytes(*header.element_bits, header.shape);
  if (needed && *needed == available) return header;
  const std::string why = "shape " + shape_text(header.shape) + " of " +
                          (header.dtype ? std::string(to_string(*header.dtype)) : in_quotes(header.type)) + " needs " +
                          (needed ? std::to_string(*needed) : "2^63 or more") + " bytes, but the file has " +
                          std::to_string(available) +
                          (needed ? cut_short(file_bytes, header.size_bytes + *needed) : "");
  if (header.dtype) return invalid(name, why);
  header.refusal = {StatusCode::kUnsupported, header.refusal.message() + "; " + why};
  return header;
}

Result<SharedContainer> open_npy(const SharedContent& content) {
  ISOBIT_ASSIGN_OR_RETURN(SharedContent whole, FileContent::load(content));
  const std::string_view text(reinterpret_cast<const char*>(whole->data()), whole->size_bytes());
  ISOBIT_ASSIGN_OR_RETURN(NpyHeader header, parse_npy_header(text, whole->size_bytes(), whole->name()));
  return SharedContainer(std::make_shared<NpyContainer>(std::move(whole), std::move(header)));
}

Result<Array> parse_npy(const void* data, size_t size_bytes, const std::string& name) {
  return without_exceptions(name, [&] { return parse(static_cast<const char*>(data), size_bytes, name); });
}

Result<std::vector<std::byte>> encode_npy(const Array& array, const std::string& what) {
  return without_exceptions(what, [&] { return encode(array, what); });
}

}  // namespace isobit
