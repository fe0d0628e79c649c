// SPDX-License-Identifier: Apache-2.0
#include "calibrate.h"

#include "models.h"
#include "progress.h"
#include "text.h"

namespace isobit::tool {

Result<CalibrationInput> open_input(const CalibrationOptions& options, FileClaims& claims) {
  ISOBIT_RETURN_IF_ERROR(claims.reads(options.model, "MODEL"));
  ISOBIT_RETURN_IF_ERROR(check_zoneout(options.of_data.zoneout));
  CalibrationInput out;
  ISOBIT_ASSIGN_OR_RETURN(const GruLoadOptions load, parse_source(options.source));
  ISOBIT_ASSIGN_OR_RETURN(out.weights, load_gru(options.model, load));
  out.sizes = sequence_sizes(out.weights);
  ISOBIT_ASSIGN_OR_RETURN(out.data, SequenceFiles::open(options.data, options.of_data, out.sizes, claims));
  if (options.validate.empty()) return out;
  DataOptions validate("--validate");
  validate.batch_first = options.of_data.batch_first;
  validate.lengths = options.validate_lengths;
  validate.h0 = options.validate_h0;
  validate.lengths_name = "--validate-lengths";
  validate.h0_name = "--validate-state";
  ISOBIT_ASSIGN_OR_RETURN(out.validation, SequenceFiles::open(options.validate, validate, out.sizes, claims));
  return out;
}

Outcome outcome_of(const CalibrationOptions& options, const GruWeights& weights) {
  Outcome out;
  out.json.set("model", options.model).set("name", weights.name);
  out.text = options.model + ": " + gru_text(weights) + "\n";
  return out.add(describe_reading(weights, options.model));
}

Result<ObservedCount> observe(const CalibrationOptions& options, const SequenceFiles& data, GruCalibrator& calibrator,
                              ObserveOptions observed, std::vector<std::string>& warnings) {
  Progress progress("calibrating", options.quiet);
  observed.zoneout = options.of_data.zoneout;
  observed.progress = [&](double fraction) { progress.update(fraction); };
  return observe_files(data, calibrator, observed, warnings);
}

std::string observed_text(const ObservedCount& count) {
  return count_text(count.files, "file") + ", " + count_text(count.sequences, "sequence") + ", " +
         count_text(count.steps, "step");
}

std::string repeated_text(int64_t repeated) {
  return count_text(repeated, "sequence") + " of --validate " + (repeated == 1 ? "is" : "are") +
         " in --calibrate, too: what is measured there says little about other data";
}

Result<ScaleKind> parse_scale(const std::string& text) {
  return parse_word("--scale", text, scale_kind_from_string, {"pow2", "real"});
}

Result<Rounding> parse_rounding(const std::string& text) {
  return parse_word("--rounding", text, rounding_from_string, {"nearest_even", "nearest_up", "nearest_away", "floor"});
}

Status check_zoneout(float zoneout) {
  if (zoneout >= 0.0f && zoneout <= 1.0f) return {};
  return bad_option(format("--zoneout %g: expected a probability, 0 to 1", static_cast<double>(zoneout)));
}

}  // namespace isobit::tool
