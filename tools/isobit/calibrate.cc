// SPDX-License-Identifier: Apache-2.0
#include "calibrate.h"

#include "isobit/nearest.h"
#include "progress.h"
#include "text.h"

namespace isobit::tool {

Result<SequenceFiles> open_validation(const std::vector<std::string>& data, bool batch_first,
                                      const std::string& lengths, const std::string& h0, const SequenceSizes& sizes,
                                      FileClaims& claims) {
  DataOptions options("--validate");
  options.batch_first = batch_first;
  options.lengths = lengths;
  options.h0 = h0;
  options.lengths_name = "--validate-lengths";
  options.h0_name = "--validate-state";
  return SequenceFiles::open(data, options, sizes, claims);
}

Result<ObservedCount> observe(const SequenceFiles& data, GruCalibrator& calibrator, float zoneout, bool quiet,
                              ObserveOptions options, std::vector<std::string>& warnings) {
  Progress progress("calibrating", quiet);
  options.zoneout = zoneout;
  options.progress = [&](double fraction) { progress.update(fraction); };
  return observe_files(data, calibrator, options, warnings);
}

std::string count_text(const ObservedCount& count) {
  return count_text(count.files, "file") + ", " + count_text(count.sequences, "sequence") + ", " +
         count_text(count.steps, "step");
}

std::string repeated_text(int64_t repeated) {
  return count_text(repeated, "sequence") + " of --validate " + (repeated == 1 ? "is" : "are") +
         " in --calibrate, too: what is measured there says little about other data";
}

Result<ScaleKind> parse_scale(const std::string& text) {
  const auto scale = scale_kind_from_string(text);
  if (scale) return *scale;
  return Status(StatusCode::kInvalidArgument, "--scale " + text + ": " + expected_one_of(text, {"pow2", "real"}));
}

Result<Rounding> parse_rounding(const std::string& text) {
  const auto rounding = rounding_from_string(text);
  if (rounding) return *rounding;
  return Status(
      StatusCode::kInvalidArgument,
      "--rounding " + text + ": " + expected_one_of(text, {"nearest_even", "nearest_up", "nearest_away", "floor"}));
}

Status check_zoneout(float zoneout) {
  if (zoneout >= 0.0f && zoneout <= 1.0f) return {};
  return {StatusCode::kInvalidArgument,
          format("--zoneout %g: expected a probability, 0 to 1", static_cast<double>(zoneout))};
}

}  // namespace isobit::tool
