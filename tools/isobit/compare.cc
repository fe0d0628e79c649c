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

#include "calibrate.h"
#include "device.h"
#include "isobit/gru.h"
#include "isobit/gru_files.h"
#include "isobit/parallel.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr double kFullBarDb = 60.0;
constexpr int kBarWidth = 10;

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
  const auto add = [&](const Sequences& data) -> Status {
    for (int64_t n = 0; n < data.batch; ++n) {
      names.push_back(data.batch > 1 ? data.name + ", sequence " + std::to_string(n) : data.name);
    }
    return comparison->add(view_of(data));
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
      files.for_each([&](const Sequences& data) { return validation.add(view_of(data)); }, given));
  GruAblationOptions ablation_options;
  ablation_options.progress = [&](double fraction) { progress.update(fraction); };
  return ablate(validation, model, ablation_options);
}

}  // namespace

Result<Outcome> compare(const CompareOptions& options) {
  if (!(options.part > 0) || !std::isfinite(options.part)) {
    return Status(StatusCode::kInvalidArgument, format("--part %g: expected a number of codes above 0", options.part));
  }
  ISOBIT_RETURN_IF_ERROR(check_zoneout(options.zoneout));
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  if (device && options.threads != 0 && !options.ablate) {
    return refuse_on_device(options.device, "--threads " + std::to_string(options.threads), "they are the CPU's");
  }
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader float_file, ArrayReader::open(options.float_model));
  if (float_file.kind() == FileKind::kGruModels) {
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

  std::unique_ptr<GruCodeSource> source_of_codes;
  if (device) {
    ISOBIT_ASSIGN_OR_RETURN(source_of_codes, device->code_source(model));
  }
  FileClaims claims;
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles files,
                          SequenceFiles::open(options.data, options.sequences, sequence_sizes(weights), claims));
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles::Extents extents, files.extents());
  if (extents.steps == 0) {
    return Status(StatusCode::kInvalidArgument, "--data " + options.data.front() + ": the data has no time step");
  }
  ThreadPool pool(options.threads);
  GruCompareOptions compare_options;
  compare_options.part_codes = options.part;
  compare_options.zoneout = options.zoneout;
  compare_options.pool = &pool;
  compare_options.source = source_of_codes.get();
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
