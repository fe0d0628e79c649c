// SPDX-License-Identifier: Apache-2.0
#include "io/onnx/tensor.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <protozero/pbf_reader.hpp>
#include <system_error>

namespace isobit::onnx {
namespace {

namespace fs = std::filesystem;
using protozero::tag_and_type;
using Wire = protozero::pbf_wire_type;

struct Type {
  const char* name;
  std::optional<Dtype> dtype;  // nothing: not read
};
/// By their number in TensorProto.DataType.
constexpr Type kTypes[] = {{"UNDEFINED", {}},
                           {"FLOAT", Dtype::kF32},
                           {"UINT8", Dtype::kU8},
                           {"INT8", Dtype::kS8},
                           {"UINT16", Dtype::kU16},
                           {"INT16", Dtype::kS16},
                           {"INT32", Dtype::kS32},
                           {"INT64", Dtype::kS64},
                           {"STRING", {}},
                           {"BOOL", Dtype::kU8},
                           {"FLOAT16", Dtype::kF16},
                           {"DOUBLE", Dtype::kF64},
                           {"UINT32", Dtype::kU32},
                           {"UINT64", {}},
                           {"COMPLEX64", {}},
                           {"COMPLEX128", {}},
                           {"BFLOAT16", Dtype::kBF16}};

const Type* find_type(int64_t number) { return number >= 0 && number < std::ssize(kTypes) ? &kTypes[number] : nullptr; }

Status invalid(const std::string& what, const std::string& text) {
  return {StatusCode::kInvalidFile, what + ": " + text};
}

template <typename T>
void append(T value, std::vector<std::byte>& out) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

/// An element of int32_data, where the narrow types are.
Status append_narrow(int64_t value, Dtype dtype, const std::string& what, std::vector<std::byte>& out) {
  const bool is_signed = dtype == Dtype::kS8 || dtype == Dtype::kS16 || dtype == Dtype::kS32;
  const int64_t bits = 8 * static_cast<int64_t>(size_in_bytes(dtype));
  const int64_t low = is_signed ? -(int64_t{1} << (bits - 1)) : 0;
  const int64_t high = (int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  if (value < low || value > high)
    return invalid(what, "int32_data holds " + std::to_string(value) + ", must be " + std::to_string(low) + " to " +
                             std::to_string(high));
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);  // little-endian: the low bytes come first
  out.insert(out.end(), bytes, bytes + bits / 8);
  return {};
}

/// The elements of float_data, int32_data, int64_data or double_data, where those of `dtype` are.
Result<std::vector<std::byte>> typed_elements(const Tensor& tensor, Dtype dtype, const std::string& what) {
  std::vector<std::byte> out;
  const bool is_f32 = dtype == Dtype::kF32, is_f64 = dtype == Dtype::kF64, is_s64 = dtype == Dtype::kS64;
  const uint32_t field = is_f32 ? 4 : is_s64 ? 7 : is_f64 ? 10 : 5;
  for (protozero::pbf_reader reader(tensor.message.data(), tensor.message.size()); reader.next();) {
    if (reader.tag() != field) {
      reader.skip();
      continue;
    }
    switch (reader.tag_and_type()) {
      case tag_and_type(4, Wire::fixed32): append(reader.get_float(), out); break;
      case tag_and_type(4, Wire::length_delimited):
        for (const float value : reader.get_packed_float()) append(value, out);
        break;
      case tag_and_type(5, Wire::varint):
        ISOBIT_RETURN_IF_ERROR(append_narrow(reader.get_int64(), dtype, what, out));
        break;
      case tag_and_type(5, Wire::length_delimited):
        for (const int64_t value : reader.get_packed_int64())
          ISOBIT_RETURN_IF_ERROR(append_narrow(value, dtype, what, out));
        break;
      case tag_and_type(7, Wire::varint): append(reader.get_int64(), out); break;
      case tag_and_type(7, Wire::length_delimited):
        for (const int64_t value : reader.get_packed_int64()) append(value, out);
        break;
      case tag_and_type(10, Wire::fixed64): append(reader.get_double(), out); break;
      case tag_and_type(10, Wire::length_delimited):
        for (const double value : reader.get_packed_double()) append(value, out);
        break;
      default: reader.skip();
    }
  }
  return out;
}

std::optional<std::string_view> external_value(const Tensor& tensor, std::string_view key) {
  for (const auto& [name, value] : tensor.external)
    if (name == key) return value;
  return std::nullopt;
}

/// A decimal number of external_data; `otherwise` where there is none.
Result<uint64_t> external_number(const Tensor& tensor, std::string_view key, uint64_t otherwise,
                                 const std::string& what) {
  const std::optional<std::string_view> text = external_value(tensor, key);
  if (!text) return otherwise;
  uint64_t value = 0;
  const char* const end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end) return value;
  return invalid(what, "external_data has the " + std::string(key) + " " + in_quotes(*text) +
                           ", must be a number of bytes from 0 to 18446744073709551615");
}

Status read_external(const Tensor& tensor, uint64_t needed, const std::string& model_path, const std::string& what,
                     std::vector<std::byte>& out) {
  ISOBIT_ASSIGN_OR_RETURN(const std::string path, external_path(tensor, model_path, what));
  ISOBIT_ASSIGN_OR_RETURN(const uint64_t offset, external_number(tensor, "offset", 0, what));
  ISOBIT_ASSIGN_OR_RETURN(const uint64_t length, external_number(tensor, "length", needed, what));
  if (length != needed)
    return invalid(what, "external_data has the length " + std::to_string(length) + ", but shape " +
                             shape_text(tensor.shape) + " of " + type_name(tensor.type) + " needs " +
                             std::to_string(needed) + " bytes");
  ISOBIT_ASSIGN_OR_RETURN(const SharedContent content, FileContent::open(path));
  if (offset > content->size_bytes() || needed > content->size_bytes() - offset)
    return invalid(what, "external_data has " + std::to_string(needed) + " bytes from byte " + std::to_string(offset) +
                             " of " + path + ", which has " + std::to_string(content->size_bytes()));
  out.resize(needed);
  return content->read(offset, out.data(), needed);
}

}  // namespace

std::string type_name(int64_t type) {
  const Type* const known = find_type(type);
  return known != nullptr ? known->name : "type " + std::to_string(type);
}

Result<std::string> external_path(const Tensor& tensor, const std::string& model_path, const std::string& what) {
  const std::string location(external_value(tensor, "location").value_or(""));
  const std::string text = "its elements are in the file " + in_quotes(location);
  if (model_path.empty())
    return Status(StatusCode::kUnsupported, what + ": " + text + ", and a model in memory has no folder to find it in");
  const fs::path path(location);
  const bool climbs = std::find(path.begin(), path.end(), "..") != path.end();
  if (location.empty() || path.is_absolute() || climbs || location.find('\0') != std::string::npos)
    return invalid(what, text + ", must be a relative path without .. in the model's folder");
  const fs::path parent = fs::path(model_path).parent_path();
  std::error_code error;
  const fs::path folder = fs::canonical(parent.empty() ? fs::path(".") : parent, error);
  const fs::path file = error ? fs::path() : fs::canonical(folder / path, error);
  if (error) return Status(StatusCode::kIo, what + ": " + text + ", which cannot be opened: " + error.message());
  if (std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first != folder.end())
    return invalid(what, text + ", a link to " + file.string() + ", which is not in the model's folder");
  if (!fs::is_regular_file(file, error)) return invalid(what, text + ", which is no regular file");
  return file.string();
}

Result<Array> read_tensor(const Tensor& tensor, const std::string& model_path, const std::string& what) {
  const Type* const type = find_type(tensor.type);
  if (type == nullptr || !type->dtype)
    return Status(StatusCode::kUnsupported, what + ": is of type " + type_name(tensor.type) + ", which is not read");
  const std::optional<size_t> needed = array_size_bytes(*type->dtype, tensor.shape);
  if (!needed)
    return invalid(what, "has the shape " + shape_text(tensor.shape) +
                             "; dimensions must be 0 or more, at most 64, and their product below 2^63 bytes");
  Array array;
  array.dtype = *type->dtype;
  array.shape = tensor.shape;
  if (tensor.is_external) {
    ISOBIT_RETURN_IF_ERROR(read_external(tensor, *needed, model_path, what, array.bytes));
    return array;
  }
  ISOBIT_ASSIGN_OR_RETURN(array.bytes, typed_elements(tensor, *type->dtype, what));
  if (tensor.raw && !array.bytes.empty()) return invalid(what, "has its elements twice, in raw_data and typed");
  if (tensor.raw) {
    array.bytes.resize(tensor.raw->size());
    if (!array.bytes.empty()) std::memcpy(array.bytes.data(), tensor.raw->data(), array.bytes.size());
  }
  if (array.bytes.size() == *needed) return array;
  return invalid(what, "shape " + shape_text(tensor.shape) + " of " + type->name + " needs " + std::to_string(*needed) +
                           " bytes, but the tensor has " + std::to_string(array.bytes.size()));
}

}  // namespace isobit::onnx
