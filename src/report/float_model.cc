// SPDX-License-Identifier: Apache-2.0
// Float GRUs in files, and how they are read, as text and JSON.
#include <string>
#include <utility>
#include <vector>

#include "isobit/gru.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
namespace {

std::string gate_order_text(GateOrder order) {
  switch (order) {
    case GateOrder::kUrn: return "urn (update, reset, new)";
    case GateOrder::kRun: return "pytorch (reset, update, new: r z n)";
    case GateOrder::kOnnx: return "onnx (update, reset, new: z r h)";
  }
  return "";
}

std::string given_text(bool assumed, const char* option) {
  return assumed ? std::string(", assumed (") + option + " says otherwise)\n" : ", as given\n";
}

OrderedJson json_of(const GruLoadReport& report) {
  std::vector<std::string> notes = report.notes;
  if (!report.layout_note.empty()) notes.push_back(report.layout_note);
  return {{"gate_order", to_string(report.gate_order)},
          {"gate_order_assumed", report.gate_order_assumed},
          {"layout", to_string(report.layout)},
          {"layout_assumed", report.layout_assumed},
          {"reset", "after"},
          {"reset_assumed", report.reset_assumed},
          {"notes", std::move(notes)},
          {"unused", report.unused}};
}

OrderedJson describe_gru(const GruWeights& weights, const std::string& path, Description& out) {
  Description reading = describe_reading(weights, path);
  out.text += "\n" + gru_text(weights) + "\n" + reading.text + "source " + weights.source_hash + "\n";
  for (std::string& warning : reading.warnings) out.warnings.push_back(std::move(warning));
  OrderedJson json = {{"name", weights.name},
                      {"directions", weights.directions},
                      {"input_size", weights.input_size()},
                      {"hidden_size", weights.hidden_size()},
                      {"output_size", weights.output_size()}};
  json.update(json_of(weights.report));
  json["source_hash"] = weights.source_hash;
  OrderedJson layers = OrderedJson::array();
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const GruLayerWeights& layer = weights.layers[i];
    const std::string label = layer_label(static_cast<int64_t>(i), weights.directions);
    const std::vector<int64_t> w = {3 * layer.hidden_size, layer.input_size};
    const std::vector<int64_t> r = {3 * layer.hidden_size, layer.hidden_size};
    const size_t parameters = layer.W.size() + layer.R.size() + layer.bw.size() + layer.br.size();
    layers.push_back({{"layer", label},
                      {"input_size", layer.input_size},
                      {"hidden_size", layer.hidden_size},
                      {"parameters", parameters}});
    out.text += format("layer %s: W %s, R %s, bw and br [%lld], %zu parameters\n", label.c_str(), list_text(w).c_str(),
                       list_text(r).c_str(), static_cast<long long>(3 * layer.hidden_size), parameters);
  }
  json["layers"] = std::move(layers);
  return json;
}

}  // namespace

std::string gru_text(const GruWeights& weights) {
  return gru_text(weights.name, weights.layer_count(), weights.directions, weights.input_size(), weights.output_size());
}

Description describe_reading(const GruWeights& weights, const std::string& path) {
  const GruLoadReport& report = weights.report;
  const bool rows = report.layout == GruLayout::kRows;
  Description out{
      .text =
          "gate order: " + gate_order_text(report.gate_order) + given_text(report.gate_order_assumed, "--gate-order") +
          "layout: " + (rows ? "rows, W [3H, C] and R [3H, H]" : "columns, W [C, 3H] and R [H, 3H]") +
          given_text(report.layout_assumed, "--layout") + "reset: after the matrix product, r * (R h + br)" +
          given_text(report.reset_assumed, "--reset") + "activations: sigmoid (u), sigmoid (r), tanh (n), assumed\n",
      .json = json_line(json_of(report))};
  for (const std::string& note : report.notes) out.text += "read: " + note + "\n";
  const std::string gru = path + ": GRU \"" + escaped(weights.name) + "\": ";
  if (!report.layout_note.empty()) out.warnings.push_back(gru + report.layout_note + "; --layout says otherwise");
  if (report.unused.empty()) return out;
  std::string names;
  for (const std::string& name : report.unused) names += (names.empty() ? "" : ", ") + escaped(name);
  out.warnings.push_back(gru + "arrays that are not used: " + names +
                         "; if the network computes with them, it is another one");
  return out;
}

Result<Description> describe_float_models(const ArrayReader& file, const GruLoadOptions& load) {
  Description out;
  OrderedJson grus = OrderedJson::array(), others = OrderedJson::array();
  std::string others_text;
  Status refusal;
  std::vector<std::string> refusals;
  if (!load.prefix.empty() || !load.arrays.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(const GruWeights weights, load_gru(file, load));
    grus.push_back(describe_gru(weights, file.name(), out));
  } else {
    ISOBIT_ASSIGN_OR_RETURN(const auto candidates, find_grus(file));
    for (const GruCandidate& candidate : candidates) {
      const std::string name = escaped(candidate.prefix);
      std::string problem = candidate.problem;
      if (candidate.is_gru) {
        GruLoadOptions one = load;
        one.prefix = candidate.prefix;
        one.unprefixed = candidate.prefix.empty();
        const Result<GruWeights> weights = load_gru(file, one);
        if (weights.ok()) {
          grus.push_back(describe_gru(*weights, file.name(), out));
          continue;
        }
        if (refusal.ok()) refusal = weights.status();
        problem = weights.status().message();
        if (problem.starts_with(file.name() + ": ")) problem.erase(0, file.name().size() + 2);
        refusals.push_back(
            format("%s: the GRU \"%s\" cannot be read: %s", file.name().c_str(), name.c_str(), problem.c_str()));
      } else if (file.kind() == FileKind::kOnnx) {
        refusals.push_back(file.name() + ": " + problem);
      }
      others.push_back({{"name", candidate.prefix}, {"problem", problem}});
      others_text += format("\n%s: \"%s\"\n  %s\n",
                            candidate.is_gru ? "a GRU that cannot be read" : "not a GRU that isobit converts",
                            name.c_str(), problem.c_str());
    }
  }
  const size_t count = grus.size();
  if (count == 0 && !refusal.ok() && (load.gate_order || load.layout || load.reset_after)) return refusal;
  OrderedJson json = {{"file", file.name()},
                      {"kind", count > 0 ? "float" : "arrays"},
                      {"grus", std::move(grus)},
                      {"others", std::move(others)}};
  if (count > 0) {
    out.text = file.name() + ": float model, " + count_text(static_cast<int64_t>(count), "GRU") + "\n" + out.text +
               others_text;
  } else {
    const Description arrays = describe_arrays(file);
    json["arrays"] = parse_json(arrays.json);
    out.text = file.name() + ": " + count_text(std::ssize(file.entries()), "array") +
               (refusals.empty() ? ", no GRU found\n" : ", no GRU that can be read\n") + others_text + "\narrays\n" +
               arrays.text;
    out.warnings = std::move(refusals);
    if (out.warnings.empty())
      out.warnings.push_back(
          file.name() +
          ": no GRU found; expected names ending in weight_ih_l0 weight_hh_l0, weight_ih weight_hh, w_ih w_hh, W R or "
          "kernel recurrent_kernel, --layer NAME=W,R,BW,BR, or an integer model of isobit");
  }
  out.json = json_line(json);
  return out;
}

}  // namespace isobit
