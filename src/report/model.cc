// SPDX-License-Identifier: Apache-2.0
// Integer models as text and JSON.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>

#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"
#include "report/model.h"

namespace isobit {
namespace {

constexpr std::string_view kGateNames[] = {"u", "r", "n"};

/// A tensor whose rows have grids of their own; nothing: one that has a single grid.
struct Rows {
  const std::vector<Grid>* grids = nullptr;
  const CodeMatrix* codes = nullptr;
};
Rows rows_of(const GruLayerParameters& layer, int32_t tensor) {
  switch (tensor) {
    case kW: return {&layer.W_grid, &layer.W};
    case kR: return {&layer.R_grid, &layer.R};
    case kBw: return {&layer.bw_grid, &layer.bw};
    case kBr: return {&layer.br_grid, &layer.br};
    default: return {};
  }
}

std::string range_text(int64_t low, int64_t high) {
  return low == high ? std::to_string(low) : std::to_string(low) + ".." + std::to_string(high);
}

OrderedJson json_of(std::span<const RescaleParameters> rescales) {
  OrderedJson multipliers = OrderedJson::array(), shifts = OrderedJson::array();
  for (const auto& rescale : rescales) {
    multipliers.push_back(rescale.multiplier);
    shifts.push_back(rescale.shift);
  }
  return {{"multiplier", std::move(multipliers)}, {"shift", std::move(shifts)}};
}

std::string rescales_text(std::string_view name, std::span<const RescaleParameters> rescales) {
  if (rescales.empty()) return "";
  int64_t low_multiplier = rescales[0].multiplier, high_multiplier = low_multiplier;
  int64_t low_shift = rescales[0].shift, high_shift = low_shift;
  for (const auto& rescale : rescales) {
    low_multiplier = std::min<int64_t>(low_multiplier, rescale.multiplier);
    high_multiplier = std::max<int64_t>(high_multiplier, rescale.multiplier);
    low_shift = std::min<int64_t>(low_shift, rescale.shift);
    high_shift = std::max<int64_t>(high_shift, rescale.shift);
  }
  return format("    %-10s multiplier %s, shift %s%s\n", std::string(name).c_str(),
                range_text(low_multiplier, high_multiplier).c_str(), range_text(low_shift, high_shift).c_str(),
                rescales.size() > 3 ? format(", %zu rows", rescales.size()).c_str() : "");
}

struct NamedRescales {
  std::string_view name;
  std::span<const RescaleParameters> rescales;
};

std::vector<NamedRescales> rescales_of(const GruLayerParameters& layer) {
  return {{"bw_to_acc", layer.bw_to_acc},     {"br_to_acc", layer.br_to_acc},   {"acc_to_ih", layer.acc_to_ih},
          {"acc_to_hh", layer.acc_to_hh},     {"ih_to_gate", layer.ih_to_gate}, {"hh_to_gate", layer.hh_to_gate},
          {"rhh_to_n", {&layer.rhh_to_n, 1}}, {"n_to_h", {&layer.n_to_h, 1}},   {"u_to_one", {&layer.u_to_one, 1}}};
}

void describe_grids(const GruLayerParameters& layer, OrderedJson& json, std::string& text) {
  OrderedJson grids = OrderedJson::object();
  text += "  grids\n";
  for (int32_t t = 0; t < kGruTensorCount; ++t) {
    const std::string name(kGruTensorNames[static_cast<size_t>(t)]);
    const Grid& grid = layer.grids[static_cast<size_t>(t)];
    const Rows rows = rows_of(layer, t);
    if (rows.grids == nullptr) {
      grids[name] = isobit::json_of(grid);
      text += format("    %-5s %s\n", name.c_str(), grid_text(grid).c_str());
      continue;
    }
    OrderedJson values = OrderedJson::array();
    float low = rows.grids->empty() ? 0 : rows.grids->front().scale(), high = low;
    const bool pow2 = grid.kind == ScaleKind::kPow2;
    for (const Grid& row : *rows.grids) {
      values.push_back(pow2 ? OrderedJson(row.shift) : OrderedJson(row.real_scale));
      low = std::min(low, row.scale());
      high = std::max(high, row.scale());
    }
    grids[name] = {{"bits", grid.bits},
                   {"signed", grid.is_signed},
                   {"kind", to_string(grid.kind)},
                   {"dtype", to_string(rows.codes->dtype())},
                   {"rows", rows.codes->rows()},
                   {"columns", rows.codes->columns()},
                   {pow2 ? "shift" : "scale", std::move(values)}};
    text += format("    %-5s %2d bits %-8s  scale %.4g..%.4g a row, [%lld, %lld]\n", name.c_str(), grid.bits,
                   grid.is_signed ? "signed" : "unsigned", static_cast<double>(low), static_cast<double>(high),
                   static_cast<long long>(rows.codes->rows()), static_cast<long long>(rows.codes->columns()));
  }
  json["grids"] = std::move(grids);
}

void describe_tables(const GruLayerParameters& layer, OrderedJson& json, std::string& text) {
  OrderedJson tables = OrderedJson::array();
  text += "  tables\n";
  for (size_t i = 0; i < layer.tables.size(); ++i) {
    const ActivationTable& table = layer.tables[i];
    const size_t entries = table.kind == TableKind::kDirect         ? table.entries.size()
                           : table.kind == TableKind::kInterpolated ? table.anchors.size()
                                                                    : table.slopes.size();
    tables.push_back({{"gate", kGateNames[i]},
                      {"function", to_string(table.function)},
                      {"kind", to_string(table.kind)},
                      {"entries", entries},
                      {"max_error_lsb", table.certificate.max_error_lsb},
                      {"worst_code", table.certificate.worst_code}});
    text += format(
        "    %-5s %-8s %-12s %6zu %-9s largest error %lld LSB at input code %lld\n", std::string(kGateNames[i]).c_str(),
        std::string(to_string(table.function)).c_str(), std::string(to_string(table.kind)).c_str(), entries,
        table.kind == TableKind::kDirect         ? "entries"
        : table.kind == TableKind::kInterpolated ? "anchors"
                                                 : "segments",
        static_cast<long long>(table.certificate.max_error_lsb), static_cast<long long>(table.certificate.worst_code));
  }
  json["tables"] = std::move(tables);
}

void describe_proof(const std::vector<OverflowBound>& rows, bool full, OrderedJson& json, std::string& text) {
  OrderedJson proof = OrderedJson::array();
  for (const OverflowBound& bound : rows)
    proof.push_back({{"intermediate", bound.intermediate}, {"bound", bound.bound}, {"bits", bound.bits}});
  json["overflow_proof"] = std::move(proof);
  if (!full) {
    const auto nearest = std::min_element(rows.begin(), rows.end(), [](const OverflowBound& a, const OverflowBound& b) {
      return spare_bits(a) < spare_bits(b);
    });
    if (nearest == rows.end()) return;
    text += format("  overflow proof of %zu intermediates; nearest to its limit: %s, at most %s in %d bits\n",
                   rows.size(), nearest->intermediate.c_str(), nearest->bound.c_str(), nearest->bits);
    return;
  }
  text += "  overflow proof\n";
  for (const OverflowBound& bound : rows)
    text += format("    %-28s at most %20s in %d bits\n", bound.intermediate.c_str(), bound.bound.c_str(), bound.bits);
}

OrderedJson describe_layer(const GruModel& model, int64_t index, bool full, std::string& text) {
  const GruModelParameters& parameters = model.parameters();
  const GruLayerParameters& layer = parameters.layers[static_cast<size_t>(index)];
  const std::string label = layer_label(index, parameters.directions);
  OrderedJson json = {{"layer", label},
                      {"input_size", layer.input_size},
                      {"hidden_size", layer.hidden_size},
                      {"rounding", to_string(layer.rounding)},
                      {"one", layer.one}};
  text += format("layer %s: %lld -> %lld, rounding %s\n", label.c_str(), static_cast<long long>(layer.input_size),
                 static_cast<long long>(layer.hidden_size), std::string(to_string(layer.rounding)).c_str());
  describe_grids(layer, json, text);
  OrderedJson rescales = OrderedJson::object();
  if (full) text += "  rescales, multiplier * x / 2^shift\n";
  for (const auto& [name, values] : rescales_of(layer)) {
    rescales[std::string(name)] = json_of(values);
    if (full) text += rescales_text(name, values);
  }
  json["rescales"] = std::move(rescales);
  describe_tables(layer, json, text);
  describe_proof(model.overflow_proof(index), full, json, text);
  return json;
}

Result<OrderedJson> describe_gru(const GruModel& model, bool full, std::string& text) {
  const GruModelParameters& parameters = model.parameters();
  text += "\n" + gru_text(parameters.name, model.layer_count(), parameters.directions, model.input_size(),
                          model.output_size());
  text += "\ngate order urn (update, reset, new), reset after the matrix product\nsource " + parameters.source_hash +
          "\nkernels";
  OrderedJson kernels = OrderedJson::array(), notes = OrderedJson::object(), layers = OrderedJson::array();
  for (const CpuPath path : kAllCpuPaths) {
    if (!model.supports(path).ok()) continue;
    kernels.push_back(to_string(path));
    text += " " + std::string(to_string(path));
  }
  text += "\n";
  for (const auto& [key, note] : parameters.notes) {
    notes[key] = note;
    text.append("note ").append(key).append(": ").append(note).append("\n");
  }
  ISOBIT_ASSIGN_OR_RETURN(const Description sizes, describe_sizes(model));
  text += sizes.text;
  for (size_t i = 0; i < parameters.layers.size(); ++i)
    layers.push_back(describe_layer(model, static_cast<int64_t>(i), full, text));
  return OrderedJson{{"name", parameters.name},
                     {"directions", parameters.directions},
                     {"input_size", model.input_size()},
                     {"hidden_size", model.hidden_size()},
                     {"output_size", model.output_size()},
                     {"gate_order", "urn"},
                     {"reset", "after"},
                     {"source_hash", parameters.source_hash},
                     {"kernels", std::move(kernels)},
                     {"notes", std::move(notes)},
                     {"sizes", parse_json(sizes.json)},
                     {"layers", std::move(layers)}};
}

}  // namespace

double spare_bits(const OverflowBound& row) {
  return row.bits - 1 - std::log2(std::max(1.0, std::strtod(row.bound.c_str(), nullptr)));
}

std::string layer_label(int64_t index, int32_t directions) {
  return "l" + std::to_string(index / directions) + (index % directions == 1 ? "_reverse" : "");
}

std::string gru_text(const std::string& name, int64_t layers, int32_t directions, int64_t input, int64_t output) {
  return "GRU \"" + name + "\", " + count_text(layers, "layer") + (directions == 2 ? ", bidirectional" : "") + ", " +
         std::to_string(input) + " -> " + std::to_string(output);
}

Result<Description> describe_sizes(const GruModel& model) {
  ISOBIT_ASSIGN_OR_RETURN(const GruSizes sizes, model.sizes());
  const int64_t workspace = model.workspace(/*batch=*/1, /*steps=*/1).size_bytes();
  const OrderedJson json = {{"weights_bytes", sizes.weights_bytes}, {"tables_bytes", sizes.tables_bytes},
                            {"other_bytes", sizes.other_bytes},     {"header_bytes", sizes.header_bytes},
                            {"total_bytes", sizes.total_bytes()},   {"workspace_bytes", workspace}};
  return Description{
      .text = format("sizes: weights %lld, tables %lld, rest %lld, names and settings %lld, together %lld bytes; "
                     "workspace for one step of one sequence %lld bytes\n",
                     static_cast<long long>(sizes.weights_bytes), static_cast<long long>(sizes.tables_bytes),
                     static_cast<long long>(sizes.other_bytes), static_cast<long long>(sizes.header_bytes),
                     static_cast<long long>(sizes.total_bytes()), static_cast<long long>(workspace)),
      .json = json_line(json)};
}

std::vector<GateTable> gate_tables(const GruModel& model) {
  std::vector<GateTable> tables;
  const GruModelParameters& p = model.parameters();
  for (size_t i = 0; i < p.layers.size(); ++i)
    for (size_t gate = 0; gate < p.layers[i].tables.size(); ++gate)
      tables.push_back({layer_label(static_cast<int64_t>(i), p.directions) + "." + std::string(kGateNames[gate]),
                        &p.layers[i].tables[gate]});
  return tables;
}

OrderedJson json_of(const Grid& grid) {
  OrderedJson json = {{"bits", grid.bits}, {"signed", grid.is_signed}, {"kind", to_string(grid.kind)}};
  if (grid.kind == ScaleKind::kPow2) json["shift"] = grid.shift;
  json["scale"] = grid.scale();
  json["zero_point"] = grid.zero_point;
  return json;
}

std::string grid_json(const Grid& grid) { return json_line(json_of(grid)); }

std::string grid_text(const Grid& grid) {
  const std::string scale = grid.kind == ScaleKind::kPow2 ? format("2^%d", -grid.shift)
                                                          : format("%.7g", static_cast<double>(grid.real_scale));
  return format("%2d bits %-8s  scale %-12s zero point %lld", grid.bits, grid.is_signed ? "signed" : "unsigned",
                scale.c_str(), static_cast<long long>(grid.zero_point));
}

Result<Description> describe_integer_models(const ArrayReader& file, const std::string& name, bool full) {
  std::vector<GruModel> models;
  if (name.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(models, GruModel::load_all(file));
  } else {
    ISOBIT_ASSIGN_OR_RETURN(GruModel model, GruModel::load(file, name));
    models.push_back(std::move(model));
  }
  std::error_code error;
  const auto bytes = std::filesystem::file_size(file.name(), error);
  OrderedJson grus = OrderedJson::array();
  std::string text = file.name() + ": integer model" + (error ? "" : ", " + std::to_string(bytes) + " bytes") + "\n";
  for (const GruModel& model : models) {
    ISOBIT_ASSIGN_OR_RETURN(OrderedJson gru, describe_gru(model, full, text));
    grus.push_back(std::move(gru));
  }
  const OrderedJson json = {{"file", file.name()},
                            {"kind", "integer"},
                            {"bytes", error ? OrderedJson() : OrderedJson(bytes)},
                            {"grus", std::move(grus)}};
  return Description{.text = std::move(text), .json = json_line(json)};
}

}  // namespace isobit
