// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "data.h"
#include "isobit/arrays.h"
#include "isobit/gru.h"
#include "isobit/low_bit_import.h"
#include "low_bit.h"
#include "models.h"
#include "tables.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr GruTensor kRowTensors[] = {kW, kR, kBw, kBr};
constexpr std::string_view kGateNames[] = {"u", "r", "n"};

const std::vector<Grid>& row_grids(const GruLayerParameters& layer, GruTensor tensor) {
  switch (tensor) {
    case kW: return layer.W_grid;
    case kR: return layer.R_grid;
    case kBw: return layer.bw_grid;
    default: return layer.br_grid;
  }
}

const CodeMatrix& codes_of(const GruLayerParameters& layer, GruTensor tensor) {
  switch (tensor) {
    case kW: return layer.W;
    case kR: return layer.R;
    case kBw: return layer.bw;
    default: return layer.br;
  }
}

bool is_per_row(int32_t tensor) {
  return std::find(std::begin(kRowTensors), std::end(kRowTensors), tensor) != std::end(kRowTensors);
}

std::string range_text(int64_t low, int64_t high) {
  return low == high ? std::to_string(low) : std::to_string(low) + ".." + std::to_string(high);
}

Value rescales_json(std::span<const RescaleParameters> rescales) {
  Value multipliers = Value::array(), shifts = Value::array();
  for (const auto& rescale : rescales) {
    multipliers.add(rescale.multiplier);
    shifts.add(rescale.shift);
  }
  Value json = Value::object();
  json.set("multiplier", std::move(multipliers)).set("shift", std::move(shifts));
  return json;
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

void describe_grids(const GruLayerParameters& layer, Value& json, std::string& text) {
  Value grids = Value::object();
  text += "  grids\n";
  for (int32_t t = 0; t < kGruTensorCount; ++t) {
    const std::string name(kGruTensorNames[static_cast<size_t>(t)]);
    const Grid& grid = layer.grids[static_cast<size_t>(t)];
    if (!is_per_row(t)) {
      grids.set(name, grid_json(grid));
      text += format("    %-5s %s\n", name.c_str(), grid_text(grid).c_str());
      continue;
    }
    const auto tensor = static_cast<GruTensor>(t);
    const auto& rows = row_grids(layer, tensor);
    const CodeMatrix& codes = codes_of(layer, tensor);
    Value entry = Value::object();
    entry.set("bits", grid.bits).set("signed", grid.is_signed).set("kind", to_string(grid.kind));
    entry.set("dtype", to_string(codes.dtype())).set("rows", codes.rows()).set("columns", codes.columns());
    Value values = Value::array();
    float low = rows.empty() ? 0 : rows[0].scale(), high = low;
    const bool pow2 = grid.kind == ScaleKind::kPow2;
    for (const Grid& row : rows) {
      values.add(pow2 ? Value(row.shift) : Value(static_cast<double>(row.real_scale)));
      low = std::min(low, row.scale());
      high = std::max(high, row.scale());
    }
    entry.set(pow2 ? "shift" : "scale", std::move(values));
    grids.set(name, std::move(entry));
    text += format("    %-5s %2d bits %-8s  scale %.4g..%.4g a row, [%lld, %lld]\n", name.c_str(), grid.bits,
                   grid.is_signed ? "signed" : "unsigned", static_cast<double>(low), static_cast<double>(high),
                   static_cast<long long>(codes.rows()), static_cast<long long>(codes.columns()));
  }
  json.set("grids", std::move(grids));
}

void describe_tables(const GruLayerParameters& layer, Value& json, std::string& text) {
  Value tables = Value::array();
  text += "  tables\n";
  for (size_t i = 0; i < layer.tables.size(); ++i) {
    const ActivationTable& table = layer.tables[i];
    const size_t entries = table.kind == TableKind::kDirect         ? table.entries.size()
                           : table.kind == TableKind::kInterpolated ? table.anchors.size()
                                                                    : table.slopes.size();
    Value entry = Value::object();
    entry.set("gate", kGateNames[i]).set("function", to_string(table.function)).set("kind", to_string(table.kind));
    entry.set("entries", entries).set("max_error_lsb", table.certificate.max_error_lsb);
    entry.set("worst_code", table.certificate.worst_code);
    tables.add(std::move(entry));
    text += format(
        "    %-5s %-8s %-12s %6zu %-9s largest error %lld LSB at input code %lld\n", std::string(kGateNames[i]).c_str(),
        std::string(to_string(table.function)).c_str(), std::string(to_string(table.kind)).c_str(), entries,
        table.kind == TableKind::kDirect         ? "entries"
        : table.kind == TableKind::kInterpolated ? "anchors"
                                                 : "segments",
        static_cast<long long>(table.certificate.max_error_lsb), static_cast<long long>(table.certificate.worst_code));
  }
  json.set("tables", std::move(tables));
}

/// Bits of the limit that a bound leaves unused.
double spare_bits(const OverflowBound& row) {
  return row.bits - 1 - std::log2(std::max(1.0, std::strtod(row.bound.c_str(), nullptr)));
}

void describe_proof(const std::vector<OverflowBound>& rows, bool full, Value& json, std::string& text) {
  Value proof = Value::array();
  for (const OverflowBound& bound : rows) {
    Value entry = Value::object();
    entry.set("intermediate", bound.intermediate).set("bound", bound.bound).set("bits", bound.bits);
    proof.add(std::move(entry));
  }
  json.set("overflow_proof", std::move(proof));
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

void describe_layer(const GruModel& model, int64_t index, bool full, Value& layers, std::string& text) {
  const GruModelParameters& parameters = model.parameters();
  const GruLayerParameters& layer = parameters.layers[static_cast<size_t>(index)];
  Value json = Value::object();
  const std::string label = layer_label(index, parameters.directions);
  json.set("layer", label).set("input_size", layer.input_size).set("hidden_size", layer.hidden_size);
  json.set("rounding", to_string(layer.rounding)).set("one", layer.one);
  text += format("layer %s: %lld -> %lld, rounding %s\n", label.c_str(), static_cast<long long>(layer.input_size),
                 static_cast<long long>(layer.hidden_size), std::string(to_string(layer.rounding)).c_str());
  describe_grids(layer, json, text);

  Value rescales = Value::object();
  if (full) text += "  rescales, multiplier * x / 2^shift\n";
  for (const auto& [name, values] : rescales_of(layer)) {
    rescales.set(std::string(name), rescales_json(values));
    if (full) text += rescales_text(name, values);
  }
  json.set("rescales", std::move(rescales));
  describe_tables(layer, json, text);

  describe_proof(model.overflow_proof(index), full, json, text);
  layers.add(std::move(json));
}

Result<Outcome> inspect_integer(const InspectOptions& options, const ArrayReader& file) {
  std::vector<GruModel> models;
  if (options.source.layer.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(models, GruModel::load_all(file));
  } else {
    ISOBIT_ASSIGN_OR_RETURN(const std::string prefix, gru_prefix(options.source));
    ISOBIT_ASSIGN_OR_RETURN(GruModel model, GruModel::load(file, prefix));
    models.push_back(std::move(model));
  }
  Outcome out;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(options.file, error);
  out.json.set("file", options.file).set("kind", "integer").set("bytes", error ? Value() : Value(bytes));
  out.text = options.file + ": integer model" + (error ? "" : ", " + std::to_string(bytes) + " bytes") + "\n";
  Value grus = Value::array();
  for (const GruModel& model : models) {
    const GruModelParameters& parameters = model.parameters();
    Value gru = Value::object();
    gru.set("name", parameters.name).set("directions", parameters.directions);
    gru.set("input_size", model.input_size()).set("hidden_size", model.hidden_size());
    gru.set("output_size", model.output_size()).set("gate_order", "urn").set("reset", "after");
    gru.set("source_hash", parameters.source_hash);
    out.text += "\n" + gru_text(parameters.name, model.layer_count(), parameters.directions, model.input_size(),
                                model.output_size());
    out.text += "\ngate order urn (update, reset, new), reset after the matrix product\nsource " +
                parameters.source_hash + "\nkernels";
    Value kernels = Value::array();
    for (const CpuPath path : kAllCpuPaths) {
      if (!model.supports(path).ok()) continue;
      kernels.add(to_string(path));
      out.text += " " + std::string(to_string(path));
    }
    out.text += "\n";
    Value notes = Value::object();
    for (const auto& [key, text] : parameters.notes) {
      notes.set(key, text);
      out.text.append("note ").append(key).append(": ").append(text).append("\n");
    }
    gru.set("kernels", std::move(kernels)).set("notes", std::move(notes));
    ISOBIT_RETURN_IF_ERROR(describe_sizes(model, gru, out.text));
    Value layers = Value::array();
    for (size_t i = 0; i < parameters.layers.size(); ++i) {
      describe_layer(model, static_cast<int64_t>(i), options.full, layers, out.text);
    }
    gru.set("layers", std::move(layers));
    grus.add(std::move(gru));
  }
  out.json.set("grus", std::move(grus));
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
  describe_arrays(file, "\narrays\n", out);
  return out;
}

Result<Outcome> inspect_table(const ArrayReader& file) {
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, load_fp16_table(file));
  Outcome out;
  out.json = fp16_table_json(table);
  out.text = "FP16 table: " + fp16_table_text(table) + "\n";
  for (const Fp16Pieces& pieces : table.pieces) {
    out.text += "cut points:";
    for (const float cut : pieces.cut_points) out.text += format(" %.9g", static_cast<double>(cut));
    out.text += "\nsteps:";
    for (const int32_t steps : pieces.steps) out.text += " " + std::to_string(steps);
    out.text += "\n";
  }
  out.text += certificate_head() + "\n" + certificate_row(table.function, table) + "\n";
  return out;
}

/// Arrays of types that isobit does not read.
void describe_unread(const ArrayReader& file, Outcome& out) {
  Value unread = Value::array();
  std::string text;
  for (const ArrayEntry& entry : file.entries()) {
    if (entry.dtype) continue;
    Value item = Value::object();
    item.set("name", entry.name).set("type", entry.type).set("shape", shape_json(entry.shape));
    item.set("bytes", entry.size_bytes);
    unread.add(std::move(item));
    text += format("  %-44s %-14s %-12s %12llu bytes\n", escaped(entry.name).c_str(), shape_text(entry.shape).c_str(),
                   escaped(entry.type).c_str(), static_cast<unsigned long long>(entry.size_bytes));
  }
  out.json.set("not_read", std::move(unread));
  if (!text.empty()) out.text += "\narrays of types that isobit does not read\n" + text;
}

/// Those that are read.
Result<ArrayFile> read_arrays(const ArrayReader& file) {
  ArrayFile out;
  out.metadata = file.metadata();
  for (const ArrayEntry& entry : file.entries()) {
    if (!entry.dtype) continue;
    ISOBIT_ASSIGN_OR_RETURN(Array array, file.read(entry.name));
    out.arrays.emplace(entry.name, std::move(array));
  }
  return out;
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
    return Status(StatusCode::kInvalidArgument, options.file +
                                                    ": is neither a GGUF file nor low-bit weights; --tensor " +
                                                    options.tensor + " is for those only");
  }
  if (may_hold_checkpoint(file)) {
    ISOBIT_ASSIGN_OR_RETURN(const ArrayFile arrays, read_arrays(file));
    if (!list_checkpoint_matrices(arrays.arrays).empty()) return inspect_checkpoint(options, arrays);
  }
  if (file.kind() == FileKind::kFp16Table) return inspect_table(file);
  if (file.kind() == FileKind::kGruModels || file.kind() == FileKind::kOtherSaved) return inspect_integer(options, file);
  if (options.source.layer.empty() && !holds_gru(file)) {
    const std::vector<ListedTensor> tensors = list_tensors(file);
    const std::vector<ForeignFormat> foreign = find_foreign_formats(tensors);
    ISOBIT_ASSIGN_OR_RETURN(const std::optional<std::string> said, find_foreign_description(options.file, tensors));
    if (!foreign.empty() || said) return inspect_foreign(options, file, foreign, said.value_or(""));
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
    return Status(StatusCode::kInvalidArgument,
                  options.file + ": is a GGUF file; --layer, --gate-order, --layout and --reset are for float models");
  }
  ISOBIT_ASSIGN_OR_RETURN(Outcome out, inspect_arrays(options, file));
  describe_unread(file, out);
  return out;
}

}  // namespace isobit::tool
