// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "calibrate.h"
#include "isobit/files.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "isobit/sequences.h"
#include "isobit/tune.h"
#include "models.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr double kGoodDb = 30;

Result<GruSettings> parse_settings(const QuantizeOptions& options) {
  GruSettings out;
  out.bits = options.bits;
  out.method = options.method;
  out.table = options.table;
  ISOBIT_ASSIGN_OR_RETURN(out.scale, parse_scale(options.scale));
  ISOBIT_ASSIGN_OR_RETURN(out.rounding, parse_rounding(options.rounding));
  out.reason = options.reason;
  return out;
}

/// The SQNR of the outputs on --validate, or else on the last tenth of the calibration data.
Status validate(const QuantizeOptions& options, const CalibrationInput& input, const GruModel& model,
                const LastTenth& last_tenth, const SeenSequences& seen, ThreadPool& pool, Outcome& out) {
  const std::optional<SequenceFiles>& files = input.validation;
  ISOBIT_ASSIGN_OR_RETURN(GruValidation validation,
                          GruValidation::create(input.weights, {.zoneout = options.of_data.zoneout, .pool = &pool}));
  int64_t repeated = 0;
  ClippedInputs inputs;
  const auto add = [&](const Sequences& data) {
    repeated += seen.count(data, input.sizes);
    inputs.add(model.input_grid(), data.x, input.sizes.channels, data.lengths);
    return validation.add(view_of(data));
  };
  ISOBIT_RETURN_IF_ERROR(files ? files->for_each(add, out.warnings) : last_tenth.add_to(validation));
  if (repeated > 0) out.warnings.push_back(repeated_text(repeated));
  if (files) out.add(describe_clipping(inputs, model.input_grid(), "--validate", kOtherUnits));
  if (validation.steps() == 0) {
    return bad_option("--validate " + options.validate.front() + ": the data has no time step");
  }
  ISOBIT_ASSIGN_OR_RETURN(const GruOutputSqnr sqnr, validation.measure(model));
  Value json = Value::object();
  json.set("unseen", files.has_value() && repeated == 0);
  json.set("sequences", validation.sequences()).set("steps", validation.steps());
  json.set("output_sqnr_db", sqnr.output_db).set("layer_sqnr_db", sqnr.layer_db);
  out.json.set("validation", std::move(json));
  out.text += sqnr_text(sqnr) + ", on " + count_text(validation.sequences(), "sequence") +
              (files ? " of --validate\n" : ", the last tenth of the calibration data (--validate takes other data)\n");
  const double least = *std::min_element(sqnr.layer_db.begin(), sqnr.layer_db.end());
  if (least < kGoodDb) {
    out.text += "below " + format("%.0f", kGoodDb) +
                " dB: isobit tune with this data, --validate DATA and --target DB finds widths that give more; "
                "isobit compare --ablate says which tensors are at fault\n";
  }
  return {};
}

}  // namespace

Result<Outcome> quantize(const QuantizeOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims claims;
  ISOBIT_RETURN_IF_ERROR(claim_output(options.output, options.dry_run, claims));
  ISOBIT_ASSIGN_OR_RETURN(const GruSettings settings, parse_settings(options));
  ISOBIT_ASSIGN_OR_RETURN(const GruQuantization quantization, settings.quantization());
  ISOBIT_ASSIGN_OR_RETURN(const CalibrationInput input, open_input(options, claims));
  const GruWeights& weights = input.weights;
  Outcome out = outcome_of(options, weights);
  out.json.set("layers", weights.layer_count()).set("directions", weights.directions);
  out.json.set("input_size", weights.input_size()).set("hidden_size", weights.hidden_size());

  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(weights, quantization));
  ThreadPool pool(options.threads);
  LastTenth last_tenth;
  SeenSequences seen;
  ObserveOptions observed{.pool = &pool};
  if (input.validation) observed.seen = &seen;
  if (!input.validation) observed.last_tenth = &last_tenth;
  ISOBIT_ASSIGN_OR_RETURN(const ObservedCount count, observe(options, input.data, calibrator, observed, out.warnings));
  Value counts = Value::object();
  counts.set("files", count.files).set("sequences", count.sequences).set("steps", count.steps);
  out.json.set("calibration", std::move(counts));
  out.text += "calibrated on " + observed_text(count) + "\n";

  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, calibrator.finish(quantization));
  out.json.set("bits", options.bits).set("method", options.method);
  out.json.set("scale", to_string(quantization.scale)).set("rounding", to_string(quantization.rounding));
  out.json.set("table", options.table);
  out.json.set("reason", options.reason.empty() ? Value() : Value(options.reason));
  out.add(describe_calibration(model, calibrator));
  const std::string& path = options.output.empty() ? options.model : options.output;
  ISOBIT_ASSIGN_OR_RETURN(const Description size, prefixed(path + ": ", describe_sizes(model)));
  out.json.set("sizes", Value::parsed(size.json));
  out.text += size.text;
  ISOBIT_RETURN_IF_ERROR(validate(options, input, model, last_tenth, seen, pool, out));
  if (!options.dry_run) ISOBIT_RETURN_IF_ERROR(model.save(options.output));
  add_saved(options.dry_run ? "" : options.output, out);
  return out;
}

}  // namespace isobit::tool
