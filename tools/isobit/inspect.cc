// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data.h"
#include "isobit/arrays.h"
#include "isobit/gguf.h"
#include "isobit/gru.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "isobit/report.h"
#include "low_bit.h"
#include "models.h"
#include "tables.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

Outcome outcome_of(Description description) {
  Outcome out;
  out.json = Value::parsed(std::move(description.json));
  out.text = std::move(description.text);
  out.warnings = std::move(description.warnings);
  return out;
}

/// Writes a tensor as float32. `type`: what it was; empty: not said.
Result<Outcome> export_tensor(const InspectOptions& options, const Array& tensor, const std::string& type) {
  const bool is_f32 = tensor.dtype == Dtype::kF32;
  ISOBIT_RETURN_IF_ERROR(
      save_npy(options.output, is_f32 ? tensor : Array::copy_of(tensor.to_float().data(), tensor.shape)));
  Outcome out;
  out.json.set("file", options.file).set("tensor", options.tensor);
  if (!type.empty()) out.json.set("type", type);
  out.json.set("shape", Value::list(tensor.shape)).set("output", options.output);
  out.text = options.output + ": " + escaped(options.tensor) + ", " + shape_text(tensor.shape) +
             (type.empty() ? "" : ", " + type) + " as float32\n";
  return out;
}

Result<Outcome> inspect_gguf(const InspectOptions& options, const GgufFile& file) {
  if (options.tensor.empty() && options.output.empty()) return outcome_of(describe_gguf(file));
  ISOBIT_ASSIGN_OR_RETURN(const Array array, file.read(options.tensor));
  return export_tensor(options, array, file.find_tensor(options.tensor)->type);
}

Result<Outcome> inspect_low_bit(const InspectOptions& options, const ArrayReader& file) {
  ISOBIT_ASSIGN_OR_RETURN(const LowBitFile content, load_low_bit(file));
  if (options.tensor.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(Description description, describe_low_bit(content, options.file));
    return outcome_of(std::move(description));
  }
  if (const auto matrix = content.matrices.find(options.tensor); matrix != content.matrices.end()) {
    ISOBIT_ASSIGN_OR_RETURN(const Array array,
                            dequantize_low_bit(matrix->second, low_bit_permutation(content, options.tensor)));
    return export_tensor(options, array, "");
  }
  if (const auto other = content.arrays.find(options.tensor); other != content.arrays.end())
    return export_tensor(options, other->second, "");
  std::string hint = nearest_key(options.tensor, content.matrices);
  if (hint.empty()) hint = nearest_key(options.tensor, content.arrays);
  return bad_option(options.file + ": no tensor is called '" + escaped(options.tensor) +
                    "'; isobit inspect lists them" + hint);
}

Result<Outcome> inspect_integer(const InspectOptions& options, const ArrayReader& file) {
  ISOBIT_ASSIGN_OR_RETURN(const std::string name, gru_prefix(options.source));
  ISOBIT_ASSIGN_OR_RETURN(Description description, describe_integer_models(file, name, options.full));
  Outcome out = outcome_of(std::move(description));
  if (!options.full) out.text += "\n--full shows rescales and the whole overflow proof\n";
  return out;
}

void describe_float(const FloatModel& model, const std::string& file, Value& grus, std::string& text,
                    std::vector<std::string>& warnings) {
  const GruWeights& weights = model.weights;
  Value gru = Value::object();
  gru.set("name", weights.name).set("directions", weights.directions);
  gru.set("input_size", weights.input_size()).set("hidden_size", weights.hidden_size());
  gru.set("output_size", weights.output_size());
  set_assumptions(model, gru);
  gru.set("source_hash", weights.source_hash);
  text += "\n" + gru_text(weights.name, weights.layer_count(), weights.directions, weights.input_size(),
                          weights.output_size());
  text += "\n" + assumptions_text(model) + "source " + weights.source_hash + "\n";
  warn_of_doubts(model, file, warnings);
  Value layers = Value::array();
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const GruLayerWeights& layer = weights.layers[i];
    const std::string label = layer_label(static_cast<int64_t>(i), weights.directions);
    const std::vector<int64_t> w = {3 * layer.hidden_size, layer.input_size};
    const std::vector<int64_t> r = {3 * layer.hidden_size, layer.hidden_size};
    const size_t parameters = layer.W.size() + layer.R.size() + layer.bw.size() + layer.br.size();
    Value entry = Value::object();
    entry.set("layer", label).set("input_size", layer.input_size).set("hidden_size", layer.hidden_size);
    entry.set("parameters", parameters);
    layers.add(std::move(entry));
    text += format("layer %s: W %s, R %s, bw and br [%lld], %zu parameters\n", label.c_str(), shape_text(w).c_str(),
                   shape_text(r).c_str(), static_cast<long long>(3 * layer.hidden_size), parameters);
  }
  gru.set("layers", std::move(layers));
  grus.add(std::move(gru));
}

/// One GRU that is asked for, or all; what is beside them and no GRU is named.
Result<Outcome> inspect_float(const InspectOptions& options, const ArrayReader& file) {
  Outcome out;
  Value grus = Value::array(), others = Value::array();
  std::string grus_text, others_text;
  int64_t count = 0;
  if (!options.source.layer.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(const FloatModel model, load_float_model(file, options.source));
    describe_float(model, options.file, grus, grus_text, out.warnings);
    count = 1;
  } else {
    ISOBIT_ASSIGN_OR_RETURN(const auto candidates, find_grus(file));
    const bool alone = candidates.size() == 1;
    for (const GruCandidate& candidate : candidates) {
      std::string problem = candidate.problem;
      if (candidate.is_gru) {
        const Result<FloatModel> model = load_float_model(file, options.source, candidate.prefix);
        if (!model.ok() && alone) return model.status();
        if (model.ok()) {
          describe_float(*model, options.file, grus, grus_text, out.warnings);
          ++count;
          continue;
        }
        problem = model.status().message();
        if (problem.starts_with(file.name() + ": ")) problem.erase(0, file.name().size() + 2);
      }
      others.add(Value::object().set("name", candidate.prefix).set("problem", problem));
      others_text += "\nnot a GRU that isobit converts: \"" + escaped(candidate.prefix) + "\"\n  " + problem + "\n";
    }
  }
  out.json.set("file", options.file).set("kind", count > 0 ? "float" : "arrays");
  out.json.set("grus", std::move(grus)).set("others", std::move(others));
  if (count > 0) {
    out.text = options.file + ": float model, " + count_text(count, "GRU") + "\n" + grus_text + others_text;
    return out;
  }
  out.text = options.file + ": " + count_text(std::ssize(file.entries()), "array") + ", no GRU found\n" + others_text;
  out.warnings.push_back(options.file +
                         ": no GRU found; expected names ending in weight_ih_l0 weight_hh_l0, weight_ih weight_hh, "
                         "w_ih w_hh, W R or kernel recurrent_kernel, --layer NAME=W,R,BW,BR, or an integer model of "
                         "isobit");
  const Description arrays = describe_arrays(file);
  out.json.set("arrays", Value::parsed(arrays.json));
  out.text += "\narrays\n" + arrays.text;
  return out;
}

/// Arrays of types that isobit does not read.
void describe_unread(const ArrayReader& file, Outcome& out) {
  Value unread = Value::array();
  std::string text;
  for (const ArrayEntry& entry : file.entries()) {
    if (entry.dtype) continue;
    Value item = Value::object();
    item.set("name", entry.name).set("type", entry.type).set("shape", Value::list(entry.shape));
    item.set("bytes", entry.size_bytes);
    unread.add(std::move(item));
    text += format("  %-44s %-14s %-12s %12llu bytes\n", escaped(entry.name).c_str(), shape_text(entry.shape).c_str(),
                   escaped(entry.type).c_str(), static_cast<unsigned long long>(entry.size_bytes));
  }
  out.json.set("not_read", std::move(unread));
  if (!text.empty()) out.text += "\narrays of types that isobit does not read\n" + text;
}

bool may_hold_checkpoint(const ArrayReader& file) {
  return std::any_of(file.entries().begin(), file.entries().end(), [](const ArrayEntry& entry) {
    return entry.name.ends_with(".qweight") || entry.name.ends_with(".qzeros");
  });
}

/// Or may, where find_grus() refuses the file.
bool holds_gru(const ArrayReader& file) {
  const auto candidates = find_grus(file);
  return !candidates.ok() || std::any_of(candidates->begin(), candidates->end(),
                                         [](const GruCandidate& candidate) { return candidate.is_gru; });
}

Result<Outcome> inspect_arrays(const InspectOptions& options, const ArrayReader& file) {
  if (file.kind() == FileKind::kLowBit) return inspect_low_bit(options, file);
  if (!options.tensor.empty() || !options.output.empty()) {
    return bad_option(options.file + ": is neither a GGUF file nor low-bit weights; --tensor " + options.tensor +
                      " is for those only");
  }
  if (may_hold_checkpoint(file)) {
    ISOBIT_ASSIGN_OR_RETURN(const ArrayFile arrays, file.read_readable());
    if (!list_checkpoint_matrices(arrays.arrays).empty()) {
      ISOBIT_ASSIGN_OR_RETURN(Description description, describe_checkpoint(arrays, options.file));
      return outcome_of(std::move(description));
    }
  }
  if (file.kind() == FileKind::kFp16Table) {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, load_fp16_table(file));
    return outcome_of(describe_table(table));
  }
  if (file.kind() == FileKind::kStaticLinear) {
    ISOBIT_ASSIGN_OR_RETURN(Description description, describe_static_linear(file));
    return outcome_of(std::move(description));
  }
  if (file.kind() == FileKind::kGruModels || file.kind() == FileKind::kOtherSaved) return inspect_integer(options, file);
  if (options.source.layer.empty() && !holds_gru(file)) {
    const std::vector<ListedTensor> tensors = list_tensors(file);
    const std::vector<ForeignFormat> foreign = find_foreign_formats(tensors);
    ISOBIT_ASSIGN_OR_RETURN(const std::optional<std::string> said, find_foreign_description(options.file, tensors));
    if (!foreign.empty() || said) return outcome_of(describe_foreign(file, foreign, said.value_or("")));
  }
  return inspect_float(options, file);
}

}  // namespace

Result<Outcome> inspect(const InspectOptions& options) {
  FileClaims files;
  if (!options.output.empty()) ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kTensor, files));
  ISOBIT_RETURN_IF_ERROR(claim_checkpoint(options.file, "FILE", files));
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(options.file));
  if (file.gguf() != nullptr) {
    const FloatModelOptions& source = options.source;
    if (source.layer.empty() && source.gate_order.empty() && source.layout.empty() && source.reset.empty())
      return inspect_gguf(options, *file.gguf());
    return bad_option(options.file +
                      ": is a GGUF file; --layer, --gate-order, --layout and --reset are for float models");
  }
  ISOBIT_ASSIGN_OR_RETURN(Outcome out, inspect_arrays(options, file));
  describe_unread(file, out);
  return out;
}

}  // namespace isobit::tool
