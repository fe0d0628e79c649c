// SPDX-License-Identifier: Apache-2.0
// Saved FP16 tables: docs/formats.md.
#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <utility>

#include "core/float_mode.h"
#include "core/half.h"
#include "io/metadata.h"
#include "isobit/arrays.h"
#include "isobit/fp16_table.h"

namespace isobit {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kMaxIntervals = 256;  // as in check_fp16_table
constexpr int64_t kMaxSteps = 4096;

std::string tensor_name(size_t piece, const char* what) { return "pieces." + std::to_string(piece) + "." + what; }

template <typename T>
Array vector_array(const std::vector<T>& values) {
  return Array::copy_of(values.data(), {static_cast<int64_t>(values.size())});
}

Array f16_array(const std::vector<float>& values) {
  Array array = Array::zeros(Dtype::kF16, {static_cast<int64_t>(values.size())});
  std::transform(values.begin(), values.end(), array.data<uint16_t>(), [](float value) { return f32_to_f16(value); });
  return array;
}

/// "inf": a result that should be infinite is not.
std::optional<double> parse_error(std::string_view text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  return parse_hexadecimal<double>(text);
}

std::optional<Fp16Reduction> parse_reduction(std::string_view text) {
  for (int32_t i = 0; i <= static_cast<int32_t>(Fp16Reduction::kInverseSigmoid); ++i)
    if (text == to_string(static_cast<Fp16Reduction>(i))) return static_cast<Fp16Reduction>(i);
  return std::nullopt;
}

ArrayFile file_of(const Fp16Table& table) {
  ArrayFile file;
  Json pieces = Json::array();
  for (size_t i = 0; i < table.pieces.size(); ++i) {
    const Fp16Pieces& piece = table.pieces[i];
    pieces.push_back({{"intervals", piece.steps.size()}, {"entries", piece.values.size()}});
    file.arrays[tensor_name(i, "steps")] = vector_array(piece.steps);
    file.arrays[tensor_name(i, "cut_points")] = vector_array(piece.cut_points);
    file.arrays[tensor_name(i, "scales")] = vector_array(piece.scales);
    file.arrays[tensor_name(i, "values")] = table.half_values ? f16_array(piece.values) : vector_array(piece.values);
  }
  const Fp16Certificate& c = table.certificate;
  const Json json = {{"format_version", kVersion},
                     {"fp16_table",
                      {{"function", table.function},
                       {"beta", hexadecimal(table.beta)},
                       {"model", std::string(to_string(table.model))},
                       {"values", table.half_values ? "f16" : "f32"},
                       {"reduction", std::string(to_string(table.reduction))},
                       {"pieces", std::move(pieces)},
                       {"certificate",
                        {{"max_ulp", hexadecimal(c.max_ulp)},
                         {"mean_ulp", hexadecimal(c.mean_ulp)},
                         {"worst_code", c.worst_code},
                         {"max_absolute", hexadecimal(c.max_absolute)},
                         {"share_exact", hexadecimal(c.share_exact)},
                         {"share_within_ulp", hexadecimal(c.share_within_ulp)}}}}}};
  file.metadata[kMetadataKey] = json.dump();
  return file;
}

Fp16Certificate read_certificate(Fields fields) {
  Fp16Certificate certificate;
  const auto number = [&fields](const char* name) {
    return fields.choice(name, parse_error, "a hexadecimal float64 such as 0x1.8p-5, or inf");
  };
  certificate.max_ulp = number("max_ulp");
  certificate.mean_ulp = number("mean_ulp");
  certificate.worst_code = static_cast<uint16_t>(fields.integer("worst_code", 0, UINT16_MAX));
  certificate.max_absolute = number("max_absolute");
  certificate.share_exact = number("share_exact");
  certificate.share_within_ulp = number("share_within_ulp");
  fields.finish();
  return certificate;
}

Fp16Pieces read_pieces(const std::string& path, Fields fields, size_t index, bool half_values,
                       std::map<std::string, Array>& arrays) {
  const int64_t intervals = fields.integer("intervals", 1, kMaxIntervals);
  const int64_t entries = fields.integer("entries", 2, kMaxIntervals * kMaxSteps + 1);
  fields.finish();
  const auto take = [&](const char* what, Dtype dtype, int64_t count) {
    return take_tensor(path, arrays, tensor_name(index, what), dtype, {count});
  };
  const auto floats = [](const Array& array) {
    return std::vector<float>(array.data<float>(), array.data<float>() + array.size());
  };
  Fp16Pieces pieces;
  const Array steps = take("steps", Dtype::kS32, intervals);
  pieces.steps.assign(steps.data<int32_t>(), steps.data<int32_t>() + intervals);
  pieces.cut_points = floats(take("cut_points", Dtype::kF32, intervals + 1));
  pieces.scales = floats(take("scales", Dtype::kF32, intervals));
  const Array values = take("values", half_values ? Dtype::kF16 : Dtype::kF32, entries);
  pieces.values = values.to_float();
  return pieces;
}

std::optional<bool> parse_value_type(std::string_view text) {
  if (text == "f16") return true;
  if (text == "f32") return false;
  return std::nullopt;
}

Result<Fp16Table> table_of(const std::string& path, ArrayFile file) {
  const Json json = parse_metadata(path, file, "table");
  Fields root(json, path + ": metadata 'isobit'");
  check_format_version(root, path, kVersion);
  Fields fields = root.object("fp16_table");
  root.finish();
  Fp16Table table;
  table.function = fields.string("function");
  table.beta = fields.choice("beta", parse_hexadecimal<double>, "a hexadecimal float64 such as 0x1.8p+0");
  table.model = fields.choice("model", fp16_model_from_string, "f32, nli_gpu or nli_cpu");
  table.half_values = fields.choice("values", parse_value_type, "f32 or f16");
  table.reduction = fields.choice("reduction", parse_reduction, "none or the name of a range reduction");
  table.certificate = read_certificate(fields.object("certificate"));
  const Json& pieces = fields.list("pieces");
  fields.finish();
  for (const Json& piece : pieces) {
    const size_t index = table.pieces.size();
    const std::string where = fields.where() + ": piece " + std::to_string(index);
    table.pieces.push_back(read_pieces(path, Fields(piece, where), index, table.half_values, file.arrays));
  }
  if (!file.arrays.empty()) refuse_file(path + ": unknown tensor " + in_quotes(file.arrays.begin()->first));
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, path));
  return table;
}

}  // namespace

Status save_fp16_table(const std::string& path, const Fp16Table& table) {
  const DefaultFloatMode mode;
  return without_refusal(path, [&]() -> Status {
    if (const Status status = check_fp16_table(table, table.function); !status.ok())
      refuse_argument(path + ": " + status.message());
    return save_safetensors(path, file_of(table));
  });
}

Result<Fp16Table> load_fp16_table(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load_fp16_table(file);
}

Result<Fp16Table> load_fp16_table(const ArrayReader& file) {
  const DefaultFloatMode mode;
  return without_refusal(file.name(), [&]() -> Result<Fp16Table> {
    ISOBIT_ASSIGN_OR_RETURN(ArrayFile arrays, file.read_all());
    return table_of(file.name(), std::move(arrays));
  });
}

Result<Fp16Table> parse_fp16_table(const void* data, size_t size_bytes, const std::string& name) {
  const DefaultFloatMode mode;
  return without_refusal(name, [&]() -> Result<Fp16Table> {
    ISOBIT_ASSIGN_OR_RETURN(ArrayFile file, parse_safetensors(data, size_bytes, name));
    return table_of(name, std::move(file));
  });
}

}  // namespace isobit
