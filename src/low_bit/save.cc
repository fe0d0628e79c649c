// SPDX-License-Identifier: Apache-2.0
// Saved low-bit matrices: docs/formats.md.
#include <algorithm>
#include <iterator>
#include <utility>

#include "io/metadata.h"
#include "isobit/nearest.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr int64_t kVersion = 1, kConvVersion = 2;  // of files without and with weights of convolutions

std::optional<Dtype> parse_scale_type(std::string_view text) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
    if (text == to_string(dtype)) return dtype;
  return std::nullopt;
}

void put(ArrayFile& file, const std::string& path, const std::string& name, const Array& array) {
  if (!file.arrays.emplace(name, array).second)
    refuse_argument(path + ": two tensors of the file would be named " + in_quotes(name));
}

/// The same of a matrix of a file, which may have none.
std::string file_permutation_error(const std::string& path, const std::string& matrix, int64_t columns,
                                   const LowBitFile& content) {
  const std::string name = low_bit_permutation_name(matrix);
  const auto found = content.arrays.find(name);
  if (found == content.arrays.end()) return "";
  const Array& array = found->second;
  if (array.dtype != Dtype::kS32 || array.shape != std::vector<int64_t>{columns})
    return path + ": tensor " + in_quotes(name) + " is " + std::string(to_string(array.dtype)) + " of the shape " +
           shape_text(array.shape) + ", must be s32 of the shape " + shape_text({columns});
  const std::string error = permutation_error({array.data<int32_t>(), static_cast<size_t>(columns)}, columns);
  return error.empty() ? error : path + ": tensor " + in_quotes(name) + ": " + error;
}

/// Why a matrix cannot be weights of such a convolution; empty: it can.
std::string conv_error(const std::string& path, const std::string& name, const ConvWeights& conv,
                       const LowBitFile& content) {
  const std::string where = path + ": convolution " + in_quotes(name) + ": ";
  const auto found = content.matrices.find(name);
  if (found == content.matrices.end()) return where + "no matrix has this name";
  for (const int64_t size : {conv.outputs, conv.kernel_rows, conv.kernel_columns, conv.channels})
    if (size < 1 || size > kMaxLowBitSize)
      return where + "a size is " + std::to_string(size) + ", must be 1.." + std::to_string(kMaxLowBitSize);
  const LowBitMatrix& matrix = found->second;
  const std::vector<int64_t> sizes = {matrix.rows(), matrix.columns()};
  const int64_t taps = conv.kernel_rows * conv.kernel_columns;
  const bool of_elements = sizes[0] % taps == 0 && sizes[0] / taps == conv.outputs && sizes[1] == conv.channels;
  const bool of_outputs = sizes[0] == conv.outputs && sizes[1] % taps == 0 && sizes[1] / taps == conv.channels;
  if (!of_elements && !(of_outputs && matrix.groups() == 1))
    return where + "the matrix has the shape " + shape_text(sizes) + " and " + std::to_string(matrix.groups()) +
           " groups a row, must have (O * R * S, C), or (O, R * S * C) and 1, of " + conv_text(conv);
  const int64_t groups = conv.transposed_groups;
  if (groups < 0 || groups > conv.outputs || (groups > 0 && conv.outputs % groups != 0))
    return where + "groups is " + std::to_string(groups) + ", must divide " + std::to_string(conv.outputs) + " outputs";
  if (content.arrays.contains(low_bit_permutation_name(name))) return where + "it has a permutation, must have none";
  return "";
}

Json json_of(const ConvWeights& conv) {
  Json json = {{"outputs", conv.outputs},
               {"kernel_rows", conv.kernel_rows},
               {"kernel_columns", conv.kernel_columns},
               {"channels", conv.channels}};
  if (conv.transposed_groups > 0) json["transposed_groups"] = conv.transposed_groups;
  return json;
}

ConvWeights read_conv(Fields fields) {
  ConvWeights conv;
  conv.outputs = fields.integer("outputs", 1, kMaxLowBitSize);
  conv.kernel_rows = fields.integer("kernel_rows", 1, kMaxLowBitSize);
  conv.kernel_columns = fields.integer("kernel_columns", 1, kMaxLowBitSize);
  conv.channels = fields.integer("channels", 1, kMaxLowBitSize);
  if (fields.has("transposed_groups")) conv.transposed_groups = fields.integer("transposed_groups", 1, kMaxLowBitSize);
  fields.finish();
  return conv;
}

ArrayFile file_of(const std::string& path, const LowBitFile& content) {
  if (content.matrices.empty()) refuse_argument(path + ": no low-bit matrix to save, must be at least 1");
  ArrayFile file;
  Json matrices = Json::array();
  for (const auto& [name, matrix] : content.matrices) {
    if (name.empty()) refuse_argument(path + ": a matrix has no name");
    const LowBitParameters& p = matrix.parameters();
    if (const std::string error = file_permutation_error(path, name, p.columns, content); !error.empty())
      refuse_argument(error);
    Json json = {{"name", name},
                 {"rows", p.rows},
                 {"columns", p.columns},
                 {"bits", p.bits},
                 {"group", p.group},
                 {"kind", std::string(to_string(p.kind))},
                 {"scales", std::string(to_string(p.scales.dtype))}};
    put(file, path, name + ".codes", p.codes);
    put(file, path, name + ".scales", p.scales);
    if (p.kind == LowBitKind::kZeroPoint) put(file, path, name + ".zero_points", p.zero_points);
    if (p.kind == LowBitKind::kOffset) {
      put(file, path, name + ".offsets", p.offsets);
      json["zero_point"] = p.zero_point;
    }
    if (const auto conv = content.convolutions.find(name); conv != content.convolutions.end())
      json["convolution"] = json_of(conv->second);
    matrices.push_back(std::move(json));
  }
  for (const auto& [name, conv] : content.convolutions)
    if (const std::string error = conv_error(path, name, conv, content); !error.empty()) refuse_argument(error);
  Json arrays = Json::array();
  for (const auto& [name, array] : content.arrays) {
    if (name.empty()) refuse_argument(path + ": an array has no name");
    if (content.matrices.contains(name)) refuse_argument(path + ": a matrix and an array are named " + in_quotes(name));
    put(file, path, name, array);
    arrays.push_back(name);
  }
  const Json root = {{"format_version", content.convolutions.empty() ? kVersion : kConvVersion},
                     {"matrices", std::move(matrices)},
                     {"arrays", std::move(arrays)}};
  for (const auto& [key, text] : content.metadata) {
    try {
      static_cast<void>(Json({key, text}).dump());
    } catch (const Json::exception&) {
      refuse_argument(path + ": metadata " + in_quotes(key) + " is not valid UTF-8");
    }
  }
  file.metadata = content.metadata;
  if (!file.metadata.emplace(kMetadataKey, root.dump()).second)
    refuse_argument(path + ": metadata is named " + in_quotes(kMetadataKey) + ", the key of the weights' own");
  return file;
}

LowBitMatrix read_matrix(const std::string& path, Fields& fields, const std::string& name,
                         std::map<std::string, Array>& arrays) {
  LowBitParameters p;
  p.rows = fields.integer("rows", 1, kMaxLowBitSize);
  p.columns = fields.integer("columns", 1, kMaxLowBitSize);
  p.bits = fields.integer32("bits", 1, 8);
  p.group = fields.integer("group", 1, kMaxLowBitSize);
  p.kind = fields.choice("kind", low_bit_kind_from_string, "symmetric, zero_point or offset");
  const Dtype scales = fields.choice("scales", parse_scale_type, "f32, f16 or bf16");
  if (p.kind == LowBitKind::kOffset) p.zero_point = fields.integer32("zero_point", 0, 128);
  fields.finish();
  const std::string where = path + ": matrix " + in_quotes(name);
  if (const Status status = check_low_bit_form(p.rows, p.columns, p.bits, p.group, p.kind, where); !status.ok())
    refuse_file(status.message());
  const auto take = [&](const char* what, Dtype dtype, int64_t columns) {
    return take_tensor(path, arrays, name + "." + what, dtype, {p.rows, columns});
  };
  const int64_t groups = low_bit_groups(p.columns, p.group);
  p.codes = take("codes", Dtype::kU8, low_bit_row_bytes(p.columns, p.bits));
  p.scales = take("scales", scales, groups);
  if (p.kind == LowBitKind::kZeroPoint) p.zero_points = take("zero_points", low_bit_zero_point_dtype(p.bits), groups);
  if (p.kind == LowBitKind::kOffset) p.offsets = take("offsets", scales, groups);
  Result<LowBitMatrix> matrix = LowBitMatrix::create(std::move(p), where);
  if (!matrix.ok()) refuse_file(matrix.status().message());
  return *std::move(matrix);
}

LowBitFile content_of(const std::string& path, ArrayFile file) {
  const Json json = parse_metadata(path, file, "file of low-bit weights");
  Fields root(json, path + ": metadata 'isobit'");
  const int64_t version = check_format_version(root, path, kConvVersion);
  const Json& matrices = root.list("matrices");
  const Json& arrays = root.get("arrays");
  root.finish();
  LowBitFile content;
  for (const Json& matrix : matrices) {
    Fields fields(matrix, root.where() + ": matrix " + std::to_string(content.matrices.size()));
    const std::string& name = fields.string("name");
    if (name.empty() || content.matrices.contains(name))
      refuse_file(fields.where() + ": field 'name' is " + in_quotes(name) + ", must be another for each, not empty");
    if (version == kConvVersion && fields.has("convolution"))
      content.convolutions.emplace(name, read_conv(fields.object("convolution")));
    content.matrices.emplace(name, read_matrix(path, fields, name, file.arrays));
  }
  if (version == kConvVersion && content.convolutions.empty())
    refuse_file(path + ": format version " + std::to_string(version) + " is of files with weights of convolutions, " +
                "must be " + std::to_string(kVersion));
  if (!arrays.is_array())
    refuse_file(root.where() + ": field 'arrays' is a " + arrays.type_name() + ", must be a list");
  for (const Json& item : arrays) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty())
      refuse_file(root.where() + ": field 'arrays' holds what is no name of a tensor");
    const auto& name = item.get_ref<const std::string&>();
    if (content.matrices.contains(name))
      refuse_file(root.where() + ": field 'arrays' holds " + in_quotes(name) + ", the name of a matrix");
    auto node = file.arrays.extract(name);
    if (node.empty()) refuse_file(path + ": tensor " + in_quotes(name) + " is missing");
    content.arrays.insert(std::move(node));
  }
  if (!file.arrays.empty()) refuse_file(path + ": unknown tensor " + in_quotes(file.arrays.begin()->first));
  content.metadata = std::move(file.metadata);
  content.metadata.erase(kMetadataKey);
  for (const auto& [name, matrix] : content.matrices)
    if (const std::string error = file_permutation_error(path, name, matrix.columns(), content); !error.empty())
      refuse_file(error);
  for (const auto& [name, conv] : content.convolutions)
    if (const std::string error = conv_error(path, name, conv, content); !error.empty()) refuse_file(error);
  return content;
}

}  // namespace

std::string permutation_error(std::span<const int32_t> permutation, int64_t columns) {
  if (std::ssize(permutation) != columns)
    return "has " + std::to_string(permutation.size()) + " elements, must have " + std::to_string(columns);
  std::vector<bool> seen(permutation.size());
  for (size_t j = 0; j < permutation.size(); ++j) {
    const int64_t k = permutation[j];
    if (k < 0 || k >= columns || seen[static_cast<size_t>(k)])
      return "element " + std::to_string(j) + " is " + std::to_string(k) + ", must be another of 0.." +
             std::to_string(columns - 1);
    seen[static_cast<size_t>(k)] = true;
  }
  return "";
}

Result<Array> dequantize_low_bit(const LowBitMatrix& matrix, std::span<const int32_t> permutation) {
  if (!permutation.empty())
    if (const std::string error = permutation_error(permutation, matrix.columns()); !error.empty())
      return Status(StatusCode::kInvalidArgument, "permutation: " + error);
  Array out = Array::zeros(Dtype::kF32, {matrix.rows(), matrix.columns()});
  const std::span<float> w(out.data<float>(), static_cast<size_t>(out.size()));
  ISOBIT_RETURN_IF_ERROR(matrix.dequantize(w));
  std::vector<float> row(permutation.size());
  for (size_t begin = 0; !row.empty() && begin < w.size(); begin += row.size()) {
    for (size_t j = 0; j < row.size(); ++j) row[static_cast<size_t>(permutation[j])] = w[begin + j];
    std::copy(row.begin(), row.end(), w.begin() + static_cast<ptrdiff_t>(begin));
  }
  return out;
}

Status permute_columns(Array& x, std::span<const int32_t> permutation) {
  if (permutation.empty()) return {};
  if (const std::string error = permutation_error(permutation, x.shape.empty() ? 0 : x.shape.back()); !error.empty())
    return {StatusCode::kInvalidArgument, "permutation: " + error};
  const size_t size = size_in_bytes(x.dtype);
  std::vector<std::byte> row(permutation.size() * size);
  for (size_t begin = 0; begin < x.bytes.size(); begin += row.size()) {
    for (size_t j = 0; j < permutation.size(); ++j)
      std::copy_n(x.bytes.begin() + static_cast<ptrdiff_t>(begin + static_cast<size_t>(permutation[j]) * size), size,
                  row.begin() + static_cast<ptrdiff_t>(j * size));
    std::copy(row.begin(), row.end(), x.bytes.begin() + static_cast<ptrdiff_t>(begin));
  }
  return {};
}

std::string low_bit_permutation_name(std::string_view matrix) { return std::string(matrix) + ".permutation"; }

std::vector<int32_t> low_bit_permutation(const LowBitFile& file, std::string_view matrix) {
  const auto found = file.arrays.find(low_bit_permutation_name(matrix));
  if (found == file.arrays.end()) return {};
  const auto* const first = found->second.data<int32_t>();
  return {first, first + found->second.size()};
}

Result<std::string> find_low_bit_matrix(const LowBitFile& file, const std::string& path, const std::string& name) {
  if (file.matrices.contains(name)) return name;
  if (name.empty() && file.matrices.size() == 1) return file.matrices.begin()->first;
  std::vector<std::string_view> names;
  for (const auto& [other, matrix] : file.matrices) names.push_back(other);
  return Status(StatusCode::kInvalidArgument,
                path +
                    (name.empty() ? ": holds " + std::to_string(names.size()) + " matrices; name one"
                                  : ": no matrix is called '" + escaped(name) + "'") +
                    "; isobit inspect lists them" + (name.empty() ? "" : escaped(nearest_hint(name, names))));
}

Result<Array> low_bit_tensor(const LowBitFile& file, std::string_view name) {
  const std::string key(name);
  if (const auto matrix = file.matrices.find(key); matrix != file.matrices.end()) {
    ISOBIT_ASSIGN_OR_RETURN(Array out, dequantize_low_bit(matrix->second, low_bit_permutation(file, name)));
    if (const auto found = file.convolutions.find(key); found != file.convolutions.end()) {
      const ConvWeights& conv = found->second;
      out.shape = {conv.outputs, conv.kernel_rows, conv.kernel_columns, conv.channels};
    }
    return out;
  }
  if (const auto array = file.arrays.find(key); array != file.arrays.end())
    return Array::copy_of(array->second.to_float().data(), array->second.shape);
  std::vector<std::string_view> names;
  for (const auto& [other, matrix] : file.matrices) names.push_back(other);
  for (const auto& [other, array] : file.arrays) names.push_back(other);
  return Status(StatusCode::kInvalidArgument, "no tensor is called '" + escaped(name) + "'; isobit inspect lists them" +
                                                  escaped(nearest_hint(name, names)));
}

Status save_low_bit(const std::string& path, const LowBitFile& file) {
  return without_refusal(path, [&]() -> Status { return save_safetensors(path, file_of(path, file)); });
}

Result<std::vector<std::byte>> saved_low_bit(const LowBitFile& file) {
  const std::string name = "low-bit weights";
  return without_refusal(
      name, [&]() -> Result<std::vector<std::byte>> { return encode_safetensors(file_of(name, file), name); });
}

Result<LowBitFile> load_low_bit(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load_low_bit(file);
}

Result<LowBitFile> load_low_bit(const ArrayReader& file) {
  return without_refusal(file.name(), [&]() -> Result<LowBitFile> {
    ISOBIT_ASSIGN_OR_RETURN(ArrayFile arrays, file.read_all());
    return content_of(file.name(), std::move(arrays));
  });
}

Result<LowBitFile> parse_low_bit(const void* data, size_t size_bytes, const std::string& name) {
  return without_refusal(name, [&]() -> Result<LowBitFile> {
    ISOBIT_ASSIGN_OR_RETURN(ArrayFile file, parse_safetensors(data, size_bytes, name));
    return content_of(name, std::move(file));
  });
}

}  // namespace isobit
