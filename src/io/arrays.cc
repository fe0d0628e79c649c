// SPDX-License-Identifier: Apache-2.0
#include "isobit/arrays.h"

#include <bit>
#include <cstring>
#include <limits>

#include "core/float_mode.h"
#include "core/half.h"
#include "io/container.h"

namespace isobit {

static_assert(std::endian::native == std::endian::little, "all formats are read and written as they lie in memory");

std::optional<size_t> array_size_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxDimensions) return std::nullopt;
  auto bytes = static_cast<int64_t>(size_in_bytes(dtype));
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      empty = true;
    } else if (bytes > std::numeric_limits<int64_t>::max() / dimension) {
      return std::nullopt;
    } else {
      bytes *= dimension;
    }
  }
  return empty ? 0 : static_cast<size_t>(bytes);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLimit = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kLimit)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kLimit ? "...'" : "'");
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

namespace {

Result<ArrayFile> parse_any(const std::vector<std::byte>& content, const std::string& path) {
  const auto begins_with = [&content](std::string_view magic) {
    return content.size() >= magic.size() && std::memcmp(content.data(), magic.data(), magic.size()) == 0;
  };
  if (begins_with("\x93NUMPY")) {
    ISOBIT_ASSIGN_OR_RETURN(Array array, parse_npy(content.data(), content.size(), path));
    ArrayFile file;
    file.arrays.emplace("", std::move(array));
    return file;
  }
  if (begins_with("PK\x03\x04") || begins_with("PK\x05\x06")) {
    return parse_npz(content.data(), content.size(), path);
  }
  if (begins_with("GGUF")) return parse_gguf(content.data(), content.size(), path);
  if (content.size() > 8 && content[8] == std::byte{'{'}) {
    return parse_safetensors(content.data(), content.size(), path);
  }
  return Status(StatusCode::kInvalidFile, path + ": neither npy nor npz nor safetensors nor GGUF (" +
                                              std::to_string(content.size()) + " bytes, unknown beginning)");
}

}  // namespace

Result<ArrayFile> load_arrays(const std::string& path) {
  return without_exceptions(path, [&]() -> Result<ArrayFile> {
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> content, read_file(path));
    if (is_index_name(path)) return load_shards(content.data(), content.size(), path);
    return parse_any(content, path);
  });
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
