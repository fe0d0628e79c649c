// SPDX-License-Identifier: Apache-2.0
// What quantize and tune share: the options about data and settings.
#ifndef ISOBIT_TOOLS_CALIBRATE_H_
#define ISOBIT_TOOLS_CALIBRATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "isobit/files.h"
#include "isobit/gru_files.h"
#include "verbs.h"

namespace isobit::tool {

/// The float model, and the files of --calibrate and --validate.
struct CalibrationInput {
  GruWeights weights;
  SequenceSizes sizes;
  SequenceFiles data;
  std::optional<SequenceFiles> validation;
};
/// `claims` has the outputs.
Result<CalibrationInput> open_input(const CalibrationOptions& options, FileClaims& claims);
/// What there is to say of the float model.
Outcome outcome_of(const CalibrationOptions& options, const GruWeights& weights);

/// Observes the sequences of --calibrate with a bar. `observed`: last_tenth, seen and pool count.
Result<ObservedCount> observe(const CalibrationOptions& options, const SequenceFiles& data, GruCalibrator& calibrator,
                              ObserveOptions observed, std::vector<std::string>& warnings);
/// "1 file, 3 sequences, 120 steps".
std::string observed_text(const ObservedCount& count);

/// The warning about sequences of --validate that are in --calibrate.
std::string repeated_text(int64_t repeated);

/// The settings that the options of quantize and tune stand for; refuses a scale or rounding mode that there is none
/// of.
Result<ScaleKind> parse_scale(const std::string& text);
Result<Rounding> parse_rounding(const std::string& text);
Status check_zoneout(float zoneout);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_CALIBRATE_H_
