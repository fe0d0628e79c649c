// SPDX-License-Identifier: Apache-2.0
// Low-bit weights, GPTQ and AWQ checkpoints, and weights that other tools quantised, as text and JSON.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/container.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "low_bit/importers.h"
#include "report/gguf.h"
#include "report/json.h"

namespace isobit {
namespace {

/// conv: null, or of which convolution the matrix is.
OrderedJson describe_matrix(const std::string& name, const LowBitMatrix& matrix, bool permuted, const ConvWeights* conv,
                            std::string& text) {
  const LowBitParameters& p = matrix.parameters();
  OrderedJson convolution;
  if (conv != nullptr)
    convolution = {{"outputs", conv->outputs},
                   {"kernel", {conv->kernel_rows, conv->kernel_columns}},
                   {"channels", conv->channels},
                   {"transposed_groups", conv->transposed_groups}};
  const std::vector<int64_t> shape = {p.rows, p.columns};
  text += format("  %-44s %-14s %-36s %6.3f bits a weight %12lld bytes%s%s\n", escaped(name).c_str(),
                 list_text(shape).c_str(), form_text(p).c_str(), matrix.bits_per_weight(),
                 static_cast<long long>(matrix.size_bytes()), permuted ? ", columns permuted" : "",
                 conv == nullptr ? "" : (", convolution " + conv_text(*conv)).c_str());
  return {{"name", name},
          {"shape", shape},
          {"bits", p.bits},
          {"kind", to_string(p.kind)},
          {"group", p.group},
          {"scales", to_string(p.scales.dtype)},
          {"bits_per_weight", matrix.bits_per_weight()},
          {"bytes", matrix.size_bytes()},
          {"permuted", permuted},
          {"convolution", std::move(convolution)}};
}

OrderedJson describe_array(const std::string& name, const std::vector<int64_t>& shape, Dtype dtype, std::string& text) {
  uint64_t bytes = size_in_bytes(dtype);
  for (const int64_t dimension : shape) bytes *= static_cast<uint64_t>(dimension);
  text +=
      format("  %-44s %-14s %-36s %34llu bytes\n", name.empty() ? "(no name)" : escaped(name).c_str(),
             list_text(shape).c_str(), std::string(to_string(dtype)).c_str(), static_cast<unsigned long long>(bytes));
  return {{"name", name}, {"shape", shape}, {"dtype", to_string(dtype)}, {"bytes", bytes}};
}

OrderedJson describe_arrays(const std::map<std::string, Array>& arrays, std::string& text) {
  OrderedJson entries = OrderedJson::array();
  for (const auto& [name, array] : arrays) entries.push_back(describe_array(name, array.shape, array.dtype, text));
  return entries;
}

OrderedJson describe_arrays(const ArrayReader& file, std::string& text) {
  OrderedJson entries = OrderedJson::array();
  for (const ArrayEntry& entry : file.entries())
    if (entry.dtype) entries.push_back(describe_array(entry.name, entry.shape, *entry.dtype, text));
  return entries;
}

}  // namespace

OrderedJson json_of(const CheckpointDescription& description) {
  const CheckpointOptions& options = description.options;
  return {{"format", to_string(options.format)},
          {"format_assumed", description.format_assumed},
          {"bits", options.bits},
          {"group", options.group},
          {"source", description.source.empty() ? kCheckpointOptionsSay : description.source},
          {"overruled", description.overruled}};
}

std::string checkpoint_json(const CheckpointDescription& description) { return json_line(json_of(description)); }

Result<Description> describe_low_bit(const LowBitFile& content, const std::string& path) {
  std::string text =
      path + ": low-bit weights, " +
      format("%zu %s\n\nmatrices\n", content.matrices.size(), content.matrices.size() == 1 ? "matrix" : "matrices");
  OrderedJson matrices = OrderedJson::array();
  for (const auto& [name, matrix] : content.matrices) {
    const auto conv = content.convolutions.find(name);
    matrices.push_back(describe_matrix(name, matrix, content.arrays.contains(low_bit_permutation_name(name)),
                                       conv == content.convolutions.end() ? nullptr : &conv->second, text));
  }
  text += "\narrays\n";
  OrderedJson json = {{"file", path}, {"kind", "low_bit"}, {"matrices", std::move(matrices)}};
  json["arrays"] = describe_arrays(content.arrays, text);
  json["gguf_metadata"] = nullptr;
  if (const auto found = content.metadata.find(std::string(kGgufMetadataKey)); found != content.metadata.end()) {
    ISOBIT_ASSIGN_OR_RETURN(const GgufMetadata values,
                            gguf_metadata_from_text(found->second, path + ": metadata 'gguf'"));
    text += "\nmetadata of the GGUF file\n";
    json["gguf_metadata"] = describe_gguf_metadata(values, text);
  }
  return Description{.text = std::move(text), .json = json_line(json)};
}

Result<Description> describe_checkpoint(const ArrayFile& file, const std::string& path) {
  const auto found = find_checkpoint_description(path, file.metadata);
  Description out;
  OrderedJson json = {{"file", path}, {"kind", "checkpoint"}};
  if (!found.ok() || !*found) {
    const std::string refusal = found.ok() ? "" : checkpoint_refusal(found.status(), path, file.metadata);
    json["checkpoint"] = nullptr;
    json["refusal"] = found.ok() ? OrderedJson() : OrderedJson(refusal);
    out.text = path + ": GPTQ or AWQ checkpoint; " +
               (found.ok() ? "neither a JSON file beside it nor its metadata says how it is stored" : refusal) +
               "\n\ntensors\n";
    json["arrays"] = describe_arrays(file.arrays, out.text);
    out.json = json_line(json);
    return out;
  }
  const CheckpointDescription& description = **found;
  json["checkpoint"] = json_of(description);
  out.text = path + ": " + checkpoint_text(description) + "\n\nmatrices\n";
  std::map<std::string, Array> others = file.arrays;
  OrderedJson matrices = OrderedJson::array(), refused = OrderedJson::array();
  for (const std::string& prefix : list_checkpoint_matrices(file.arrays)) {
    const Result<ImportedLowBit> imported = import_checkpoint(file.arrays, prefix, description.options, path);
    if (!imported.ok()) {
      out.warnings.push_back(imported.status().message());
      refused.push_back({{"name", prefix}, {"problem", imported.status().message()}});
      out.text += "  " + escaped(prefix) + ": not read as that\n";
      continue;
    }
    matrices.push_back(describe_matrix(prefix, imported->matrix, !imported->permutation.empty(), nullptr, out.text));
    for (const std::string& name : checkpoint_parts(file.arrays, prefix)) others.erase(name);
  }
  json["matrices"] = std::move(matrices);
  json["refused"] = std::move(refused);
  out.text += "\narrays\n";
  json["arrays"] = describe_arrays(others, out.text);
  out.json = json_line(json);
  return out;
}

Description describe_foreign(const ArrayReader& file, const std::vector<ForeignFormat>& formats,
                             const std::string& said) {
  std::string text;
  OrderedJson entries = OrderedJson::array();
  for (const ForeignFormat& format : formats) {
    text += file.name() + ": " + foreign_text(format) + "\n";
    entries.push_back({{"name", format.name}, {"matrices", format.matrices}, {"sign", format.sign}});
  }
  if (!said.empty()) text += file.name() + ": " + said + "\n";
  text += "isobit does not import that; isobit pack --include takes float weights of the file\n\ntensors\n";
  OrderedJson json = {{"file", file.name()}, {"kind", "foreign"}, {"formats", std::move(entries)}};
  json["description"] = said.empty() ? OrderedJson() : OrderedJson(said);
  json["arrays"] = describe_arrays(file, text);
  return {.text = std::move(text), .json = json_line(json)};
}

Description describe_arrays(const ArrayReader& file) {
  std::string text;
  const OrderedJson json = describe_arrays(file, text);
  return {.text = std::move(text), .json = json_line(json)};
}

}  // namespace isobit
