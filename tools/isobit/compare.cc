// SPDX-License-Identifier: Apache-2.0
// Float and integer forward side by side on the same data, tensor by tensor, and what wider tensors would give.
#include "isobit/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data.h"
#include "device.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "models.h"
#include "progress.h"
#include "sequences.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr double kFullBarDb = 60.0;
constexpr int kBarWidth = 10;

/// One layer of a model, with its directions, as a model of its own.
Result<GruModel> layer_model(const GruModel& model, int64_t layer) {
  GruModelParameters parameters;
  parameters.directions = model.parameters().directions;
  const auto first = model.parameters().layers.begin() + layer * parameters.directions;
  parameters.layers.assign(first, first + parameters.directions);
  return GruModel::create(std::move(parameters));
}

/// The integer side on a device, layer by layer. x and h of every layer are seen, what lies between stays there.
class DeviceLayers : public GruCodeSource {
 public:
  static Result<DeviceLayers> create(const GruModel& model, const Device& device) {
    DeviceLayers out;
    for (int64_t l = 0; l < model.layer_count(); ++l) {
      ISOBIT_ASSIGN_OR_RETURN(GruModel layer, layer_model(model, l));
      ISOBIT_ASSIGN_OR_RETURN(auto on_device, device.gru(layer));
      out.layers_.push_back({std::move(layer), std::move(on_device), {}});
    }
    return out;
  }

  Status start(std::span<const float> h0) override {
    for (size_t l = 0; l < layers_.size(); ++l) {
      Layer& layer = layers_[l];
      layer.state = layer.model.initial_state(1);
      if (h0.empty()) continue;
      const auto count = static_cast<size_t>(layer.model.output_size());  // of all directions
      ISOBIT_ASSIGN_OR_RETURN(layer.state, layer.model.state_from_float(h0.subspan(l * count, count), 1));
    }
    return {};
  }

  Status run(const std::byte* x_codes, int64_t steps, GruCodeObserver& observer) override {
    const Grid& x_grid = layers_[0].model.input_grid();
    const auto x_bytes = static_cast<size_t>(steps * layers_[0].model.input_size()) * size_in_bytes(x_grid.dtype());
    std::vector<std::byte> x(x_codes, x_codes + x_bytes), y;
    for (size_t l = 0; l < layers_.size(); ++l) {
      Layer& layer = layers_[l];
      const GruModel& model = layer.model;
      const int32_t directions = model.parameters().directions;
      const Dtype x_dtype = model.input_grid().dtype(), y_dtype = model.output_grid().dtype();
      y.resize(static_cast<size_t>(steps * model.output_size()) * size_in_bytes(y_dtype));
      ISOBIT_RETURN_IF_ERROR(layer.gru->forward_codes(x.data(), y.data(), steps, layer.state, ""));
      for (int32_t d = 0; d < directions; ++d) {
        const auto index = static_cast<int64_t>(l) * directions + d;
        for (int64_t s = 0; s < steps; ++s) {  // in the reference's order: sums of doubles depend on it
          const int64_t t = d == 1 ? steps - 1 - s : s;
          observe(observer, kX, index, t, x, x_dtype, t * model.input_size(), model.input_size());
          observe(observer, kH, index, t, y, y_dtype, t * model.output_size() + d * model.hidden_size(),
                  model.hidden_size());
        }
      }
      std::swap(x, y);
    }
    return {};
  }

 private:
  struct Layer {
    GruModel model;
    std::unique_ptr<DeviceGru> gru;
    GruState state;
  };

  static void observe(GruCodeObserver& observer, int32_t tensor, int64_t layer, int64_t step,
                      const std::vector<std::byte>& codes, Dtype dtype, int64_t first, int64_t count) {
    std::vector<int64_t> values;
    for (int64_t i = first; i < first + count; ++i)
      values.push_back(code_at(codes.data(), dtype, static_cast<size_t>(i)));
    observer.observe(tensor, layer, 0, step, values);
  }

  std::vector<Layer> layers_;
};

Value place_json(const ComparePlace& place, const std::vector<std::string>& names) {
  if (place.step < 0) return {};
  Value json = Value::object();
  if (place.sequence < 0) return std::move(json.set("row", place.step).set("column", place.index));
  return std::move(json.set("sequence", names[static_cast<size_t>(place.sequence)])
                       .set("step", place.step)
                       .set("index", place.index));
}

Value channel_json(const ChannelSqnr& worst) {
  if (worst.channel < 0) return {};
  Value json = Value::object();
  return std::move(json.set("channel", worst.channel).set("sqnr_db", worst.sqnr_db));
}

std::string bar_text(double db) {
  const double share = std::clamp(db / kFullBarDb, 0.0, 1.0);
  const int filled = static_cast<int>(std::lround(share * kBarWidth));
  return std::string(filled, '#') + std::string(kBarWidth - filled, '.');
}

std::string db_text(double db) { return std::isfinite(db) ? format("%.1f", db) : (db > 0 ? "exact" : "-inf"); }

void describe_tensors(const GruComparisonReport& report, int32_t directions, const std::vector<std::string>& names,
                      Outcome& out) {
  out.text += format("%-11s %-5s %8s  %-*s %9s %12s %8s  %-16s %9s  %s\n", "layer", "name", "SQNR dB", kBarWidth, "",
                     "cosine", "largest err", "own dB", "worst channel", "clipped", "parts");
  Value tensors = Value::array();
  for (const TensorComparison& row : report.tensors) {
    const std::string layer = layer_label(row.layer, directions);
    const std::string name(kGruTensorNames[row.tensor]);
    const double clipped = 100.0 * static_cast<double>(row.clipped) / static_cast<double>(row.count);
    const bool is_weight = row.tensor >= kW && row.tensor <= kBr;
    Value entry = Value::object();
    entry.set("layer", layer).set("tensor", name).set("values", row.count).set("exact", row.exact);
    entry.set("sqnr_db", row.sqnr_db).set("worst_channel", channel_json(row.worst));
    entry.set("own_sqnr_db", row.own_sqnr_db).set("own_worst_channel", channel_json(row.own_worst));
    entry.set("cosine", row.cosine).set("largest_error", row.largest_error);
    entry.set("largest_error_at", place_json(row.largest_error_at, names)).set("clipped_percent", clipped);
    entry.set("first_part", place_json(row.first_part, names));
    tensors.add(std::move(entry));
    const ChannelSqnr& worst = row.own_worst;
    const std::string parts = is_weight ? ""
                              : row.first_part.step < 0
                                  ? "never"
                                  : format("step %lld (%s)", static_cast<long long>(row.first_part.step),
                                           names[static_cast<size_t>(row.first_part.sequence)].c_str());
    const std::string channel = worst.channel < 0
                                    ? ""
                                    : format("%s %lld: %s", is_weight ? "row" : "",
                                             static_cast<long long>(worst.channel), db_text(worst.sqnr_db).c_str());
    out.text += format("%-11s %-5s %8s  %s %9.6f %12.5g %8s  %-16s %7.3f %%  %s\n", layer.c_str(), name.c_str(),
                       db_text(row.sqnr_db).c_str(), bar_text(row.sqnr_db).c_str(), row.cosine, row.largest_error,
                       db_text(row.own_sqnr_db).c_str(), channel.c_str(), clipped, parts.c_str());
  }
  out.json.set("tensors", std::move(tensors));
}

/// Its numbers as cells of a table, and as JSON.
void describe_sqnr(const GruOutputSqnr& sqnr, std::string& text, Value& json) {
  Value layers = Value::array();
  for (const double db : sqnr.layer_db) {
    text += format(" %8s", db_text(db).c_str());
    layers.add(db);
  }
  json.set("sqnr_db", sqnr.output_db).set("layer_sqnr_db", std::move(layers));
}

void describe_ablation(const GruAblation& ablation, Outcome& out) {
  size_t width = ablation.bits.size();
  for (const GruAblationRow& row : ablation.rows) width = std::max(width, row.set.size());
  const auto line = [&](const std::string& set) { return format("%-*s", static_cast<int>(width), set.c_str()); };
  Value json = Value::object(), rows = Value::array();
  out.text +=
      "\nwith these tensors at 16 bits over the same range, everything else as it is: SQNR of h in dB\n" + line("");
  for (size_t l = 0; l < ablation.sqnr.layer_db.size(); ++l) out.text += format(" %8s", format("l%zu", l).c_str());
  out.text += format(" %8s %14s\n", "gain", "weights grow") + line(ablation.bits);
  json.set("bits", ablation.bits);
  describe_sqnr(ablation.sqnr, out.text, json);
  out.text += "\n";
  for (const GruAblationRow& row : ablation.rows) {
    Value entry = Value::object();
    entry.set("set", row.set).set("bits", row.bits);
    out.text += line(row.set);
    if (row.refused.empty()) {
      describe_sqnr(row.sqnr, out.text, entry);
      out.text += format(" %+8.1f %8lld bytes\n", row.gain_db, static_cast<long long>(row.weight_bytes));
      entry.set("gain_db", row.gain_db);
    } else {
      entry.set("refused", row.refused);
      out.text += "  refused: " + row.refused + "\n";
    }
    entry.set("weight_bytes", row.weight_bytes);
    rows.add(std::move(entry));
  }
  json.set("goal_db", ablation.goal_db).set("rows", std::move(rows));
  Value advice;
  if (ablation.advice >= 0) {
    const GruAblationRow& row = ablation.rows[static_cast<size_t>(ablation.advice)];
    advice = Value::object();
    advice.set("set", row.set).set("bits", row.bits).set("sqnr_db", row.sqnr.output_db);
  }
  json.set("advice", std::move(advice)).set("sentence", ablation.sentence);
  out.json.set("ablation", std::move(json));
  out.text += "\n" + ablation.sentence + "\n";
}

Result<GruComparisonReport> compare_on(const SequenceFiles& files, int64_t sequences, const GruWeights& weights,
                                       const GruModel& model, const CompareOptions& options,
                                       GruCompareOptions compare_options, std::vector<std::string>& names) {
  Progress progress("comparing", options.quiet);
  compare_options.progress = [&](int64_t done) {
    progress.update(static_cast<double>(done) / static_cast<double>(sequences));
  };
  Result<GruComparison> comparison = GruComparison::create(weights, model, compare_options);
  if (!comparison.ok()) {
    return Status(comparison.status().code(),
                  options.float_model + ", " + options.fixed_model + ": " + comparison.status().message());
  }
  const auto add = [&](const GruSequences& data, const Sequences& source) -> Status {
    for (int64_t n = 0; n < data.batch; ++n) {
      names.push_back(data.batch > 1 ? source.name + ", sequence " + std::to_string(n) : source.name);
    }
    return comparison->add(data);
  };
  std::vector<std::string> given;  // by SequenceFiles::extents() already
  ISOBIT_RETURN_IF_ERROR(files.for_each(add, given));
  return comparison->finish();
}

Result<GruAblation> ablate_on(const SequenceFiles& files, const GruWeights& weights, const GruModel& model,
                              const CompareOptions& options, ThreadPool& pool) {
  Progress progress("trying wider tensors", options.quiet);
  GruValidationOptions validation_options;
  validation_options.zoneout = options.zoneout;
  validation_options.pool = &pool;
  ISOBIT_ASSIGN_OR_RETURN(GruValidation validation, GruValidation::create(weights, validation_options));
  std::vector<std::string> given;
  ISOBIT_RETURN_IF_ERROR(
      files.for_each([&](const GruSequences& data, const Sequences&) { return validation.add(data); }, given));
  GruAblationOptions ablation_options;
  ablation_options.progress = [&](double fraction) { progress.update(fraction); };
  return ablate(validation, model, ablation_options);
}

}  // namespace

Result<Outcome> compare(const CompareOptions& options) {
  if (!(options.part > 0) || !std::isfinite(options.part)) {
    return Status(StatusCode::kInvalidArgument, format("--part %g: expected a number of codes above 0", options.part));
  }
  if (!(options.zoneout >= 0.0f && options.zoneout <= 1.0f)) {
    return Status(StatusCode::kInvalidArgument,
                  format("--zoneout %g: expected a probability, 0 to 1", static_cast<double>(options.zoneout)));
  }
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  if (device && options.threads != 0 && !options.ablate) {
    return refuse_on_device(options.device, "--threads " + std::to_string(options.threads), "they are the CPU's");
  }
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader float_file, ArrayReader::open(options.float_model));
  if (is_integer_model(float_file)) {
    return Status(StatusCode::kInvalidArgument, options.float_model +
                                                    ": is an integer model; give the float model first, then the "
                                                    "integer one");
  }
  ISOBIT_ASSIGN_OR_RETURN(const std::string prefix, gru_prefix(options.source));
  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(options.fixed_model, prefix));
  FloatModelOptions source = options.source;
  if (source.layer.empty()) source.layer.push_back(model.parameters().name);
  ISOBIT_ASSIGN_OR_RETURN(const FloatModel float_model, load_float_model(float_file, source));
  const GruWeights& weights = float_model.weights;

  std::optional<DeviceLayers> device_layers;
  if (device) {
    ISOBIT_ASSIGN_OR_RETURN(device_layers, DeviceLayers::create(model, *device));
  }
  FileClaims claims;
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles files,
                          SequenceFiles::open(options.data, "--data", options.sequences, weights.input_size(), claims));
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles::Extents extents, files.extents());
  if (extents.steps == 0) {
    return Status(StatusCode::kInvalidArgument, "--data " + options.data.front() + ": the data has no time step");
  }
  ThreadPool pool(options.threads);
  GruCompareOptions compare_options;
  compare_options.part_codes = options.part;
  compare_options.zoneout = options.zoneout;
  compare_options.pool = &pool;
  compare_options.source = device_layers ? &*device_layers : nullptr;
  std::vector<std::string> names;  // of sequences
  ISOBIT_ASSIGN_OR_RETURN(const GruComparisonReport report,
                          compare_on(files, extents.sequences, weights, model, options, compare_options, names));

  Outcome out;
  out.json.set("float_model", options.float_model).set("fixed_model", options.fixed_model);
  set_assumptions(float_model, out.json);
  out.json.set("sequences", report.sequences).set("steps", report.steps).set("part_codes", options.part);
  const bool same_source = weights.source_hash == model.parameters().source_hash;
  out.json.set("same_source", same_source);
  out.json.set("hint", extents.warnings.empty() ? Value() : Value(extents.warnings.front()));
  out.text = assumptions_text(float_model);
  warn_of_doubts(float_model, options.float_model, out.warnings);
  if (!same_source) {
    out.text += options.fixed_model + " was made from other weights than " + options.float_model + "\n";
  }
  out.warnings.insert(out.warnings.end(), extents.warnings.begin(), extents.warnings.end());
  if (device) {
    out.json.set("device", options.device);
    out.text +=
        "fixed on " + device->text() + ": x and h of every layer; what lies between does not leave the device\n";
  }
  out.text += count_text(report.sequences, "sequence") + ", " + count_text(report.steps, "step") +
              format(
                  "; bars: SQNR, full at %.0f dB; own: of the tensor's float values on its own grid, and the worst "
                  "channel of that; parts: first step with |float - fixed| > %g codes\n",
                  kFullBarDb, options.part);
  describe_tensors(report, model.parameters().directions, names, out);
  if (options.ablate) {
    ISOBIT_ASSIGN_OR_RETURN(const GruAblation ablation, ablate_on(files, weights, model, options, pool));
    describe_ablation(ablation, out);
  }
  return out;
}

}  // namespace isobit::tool
