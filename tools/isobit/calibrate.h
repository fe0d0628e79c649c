// SPDX-License-Identifier: Apache-2.0
// What quantize, tune and compare share: the options about data and settings.
#ifndef ISOBIT_TOOLS_CALIBRATE_H_
#define ISOBIT_TOOLS_CALIBRATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "isobit/files.h"
#include "isobit/gru_files.h"
#include "verbs.h"

namespace isobit::tool {

/// The sequences of --validate.
Result<SequenceFiles> open_validation(const std::vector<std::string>& data, bool batch_first,
                                      const std::string& lengths, const std::string& h0, const SequenceSizes& sizes,
                                      FileClaims& claims);

/// Observes the sequences of --calibrate with a bar. `options`: last_tenth, seen and pool count.
Result<ObservedCount> observe(const SequenceFiles& data, GruCalibrator& calibrator, float zoneout, bool quiet,
                              ObserveOptions options, std::vector<std::string>& warnings);
/// "1 file, 3 sequences, 120 steps".
std::string count_text(const ObservedCount& count);

/// The warning about sequences of --validate that are in --calibrate.
std::string repeated_text(int64_t repeated);

/// The settings that the options of quantize and tune stand for; refuses a scale or rounding mode that there is none
/// of.
Result<ScaleKind> parse_scale(const std::string& text);
Result<Rounding> parse_rounding(const std::string& text);
Status check_zoneout(float zoneout);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_CALIBRATE_H_
