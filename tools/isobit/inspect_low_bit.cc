// SPDX-License-Identifier: Apache-2.0
// isobit inspect of saved low-bit weights, of GPTQ and AWQ checkpoints, and of weights that others quantised.
#include <string>
#include <utility>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "low_bit.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

/// A row of the report, and its entry.
void describe_matrix(const std::string& name, const LowBitMatrix& matrix, bool permuted, Outcome& out,
                     Value& matrices) {
  const std::vector<int64_t> shape = {matrix.rows(), matrix.columns()};
  Value entry = Value::object();
  entry.set("name", name).set("shape", shape_json(shape));
  set_form(matrix.parameters(), entry);
  entry.set("bits_per_weight", bits_per_weight(matrix)).set("bytes", matrix.size_bytes()).set("permuted", permuted);
  matrices.add(std::move(entry));
  out.text += format("  %-44s %-14s %-36s %6.3f bits a weight %12lld bytes%s\n", escaped(name).c_str(),
                     shape_text(shape).c_str(), form_text(matrix.parameters()).c_str(), bits_per_weight(matrix),
                     static_cast<long long>(matrix.size_bytes()), permuted ? ", columns permuted" : "");
}

void describe_array(const std::string& name, const std::vector<int64_t>& shape, Dtype dtype, Outcome& out,
                    Value& arrays) {
  uint64_t bytes = size_in_bytes(dtype);
  for (const int64_t dimension : shape) bytes *= static_cast<uint64_t>(dimension);
  Value entry = Value::object();
  entry.set("name", name).set("shape", shape_json(shape)).set("dtype", to_string(dtype)).set("bytes", bytes);
  arrays.add(std::move(entry));
  out.text +=
      format("  %-44s %-14s %-36s %34llu bytes\n", name.empty() ? "(no name)" : escaped(name).c_str(),
             shape_text(shape).c_str(), std::string(to_string(dtype)).c_str(), static_cast<unsigned long long>(bytes));
}

void describe_arrays(const std::map<std::string, Array>& arrays, const char* title, Outcome& out) {
  Value entries = Value::array();
  out.text += title;
  for (const auto& [name, array] : arrays) describe_array(name, array.shape, array.dtype, out, entries);
  out.json.set("arrays", std::move(entries));
}

Result<Outcome> export_tensor(const LowBitFile& content, const InspectOptions& options) {
  Array array;
  if (const auto matrix = content.matrices.find(options.tensor); matrix != content.matrices.end()) {
    ISOBIT_ASSIGN_OR_RETURN(array, dense_weights(matrix->second, low_bit_permutation(content, options.tensor)));
  } else if (const auto other = content.arrays.find(options.tensor); other != content.arrays.end()) {
    array = Array::copy_of(other->second.to_float().data(), other->second.shape);
  } else {
    std::string hint = nearest_key(options.tensor, content.matrices);
    if (hint.empty()) hint = nearest_key(options.tensor, content.arrays);
    return Status(StatusCode::kInvalidArgument, options.file + ": no tensor is called '" + escaped(options.tensor) +
                                                    "'; isobit inspect lists them" + hint);
  }
  ISOBIT_RETURN_IF_ERROR(save_npy(options.output, array));
  Outcome out;
  out.json.set("file", options.file).set("tensor", options.tensor).set("shape", shape_json(array.shape));
  out.json.set("output", options.output);
  out.text = options.output + ": " + escaped(options.tensor) + ", " + shape_text(array.shape) + " as float32\n";
  return out;
}

}  // namespace

void describe_arrays(const ArrayReader& file, const char* title, Outcome& out) {
  Value arrays = Value::array();
  out.text += title;
  for (const ArrayEntry& entry : file.entries())
    if (entry.dtype) describe_array(entry.name, entry.shape, *entry.dtype, out, arrays);
  out.json.set("arrays", std::move(arrays));
}

Result<Outcome> inspect_low_bit(const InspectOptions& options, const ArrayReader& file) {
  ISOBIT_ASSIGN_OR_RETURN(const LowBitFile content, load_low_bit(file));
  if (!options.tensor.empty()) return export_tensor(content, options);
  Outcome out;
  out.json.set("file", options.file).set("kind", "low_bit");
  out.text =
      options.file + ": low-bit weights, " +
      format("%zu %s\n\nmatrices\n", content.matrices.size(), content.matrices.size() == 1 ? "matrix" : "matrices");
  Value matrices = Value::array();
  for (const auto& [name, matrix] : content.matrices)
    describe_matrix(name, matrix, content.arrays.contains(low_bit_permutation_name(name)), out, matrices);
  out.json.set("matrices", std::move(matrices));
  describe_arrays(content.arrays, "\narrays\n", out);
  Value metadata;
  if (const auto found = content.metadata.find(std::string(kGgufMetadataKey)); found != content.metadata.end()) {
    ISOBIT_ASSIGN_OR_RETURN(const GgufMetadata values,
                            gguf_metadata_from_text(found->second, options.file + ": metadata 'gguf'"));
    out.text += "\nmetadata of the GGUF file\n";
    metadata = describe_gguf_metadata(values, out.text);
  }
  out.json.set("gguf_metadata", std::move(metadata));
  return out;
}

Result<Outcome> inspect_checkpoint(const InspectOptions& options, const ArrayFile& file) {
  const auto found = find_checkpoint_description(options.file, file.metadata);
  const std::optional<CheckpointDescription> description = found.ok() ? *found : std::nullopt;
  Outcome out;
  out.json.set("file", options.file).set("kind", "checkpoint");
  out.json.set("checkpoint", description ? checkpoint_json(*description) : Value());
  if (!description) {
    const std::string refusal = found.ok() ? "" : checkpoint_refusal(found.status(), options.file, file.metadata);
    out.json.set("refusal", found.ok() ? Value() : Value(refusal));
    out.text = options.file + ": GPTQ or AWQ checkpoint; " +
               (found.ok() ? "neither a JSON file beside it nor its metadata says how it is stored" : refusal) + "\n";
    describe_arrays(file.arrays, "\ntensors\n", out);
    return out;
  }
  out.text = options.file + ": " + checkpoint_text(*description) + "\n\nmatrices\n";
  std::map<std::string, Array> others = file.arrays;
  Value matrices = Value::array(), refused = Value::array();
  for (const std::string& prefix : list_checkpoint_matrices(file.arrays)) {
    const Result<ImportedLowBit> imported = import_checkpoint(file.arrays, prefix, description->options, options.file);
    if (!imported.ok()) {
      out.warnings.push_back(imported.status().message());
      refused.add(Value::object().set("name", prefix).set("problem", imported.status().message()));
      out.text += "  " + escaped(prefix) + ": not read as that\n";
      continue;
    }
    describe_matrix(prefix, imported->matrix, !imported->permutation.empty(), out, matrices);
    for (const char* suffix : {".qweight", ".qzeros", ".scales", ".g_idx"}) others.erase(prefix + suffix);
  }
  out.json.set("matrices", std::move(matrices)).set("refused", std::move(refused));
  describe_arrays(others, "\narrays\n", out);
  return out;
}

Result<Outcome> inspect_foreign(const InspectOptions& options, const ArrayReader& file,
                                const std::vector<ForeignFormat>& formats, const std::string& said) {
  Outcome out;
  Value entries = Value::array();
  out.json.set("file", options.file).set("kind", "foreign");
  for (const ForeignFormat& format : formats) {
    out.text += options.file + ": " + foreign_text(format) + "\n";
    Value entry = Value::object();
    entry.set("name", format.name).set("matrices", format.matrices).set("sign", format.sign);
    entries.add(std::move(entry));
  }
  if (!said.empty()) out.text += options.file + ": " + said + "\n";
  out.text += "isobit does not import that; isobit pack --include takes float weights of the file\n";
  out.json.set("formats", std::move(entries)).set("description", said.empty() ? Value() : Value(said));
  describe_arrays(file, "\ntensors\n", out);
  return out;
}

}  // namespace isobit::tool
