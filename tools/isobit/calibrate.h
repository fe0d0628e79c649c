// SPDX-License-Identifier: Apache-2.0
// The data of --calibrate into a calibrator, for the verbs that make integer models.
#ifndef ISOBIT_TOOLS_CALIBRATE_H_
#define ISOBIT_TOOLS_CALIBRATE_H_

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "data.h"
#include "isobit/compare.h"
#include "isobit/files.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "sequences.h"
#include "verbs.h"

namespace isobit::tool {

/// The last tenth of the sequences that pass by, at least one.
class LastTenth {
 public:
  /// x [T, C]; h0 [layers * directions, H] or empty.
  void add(std::vector<float> x, std::vector<float> h0, int64_t channels);
  [[nodiscard]] Status add_to(GruValidation& validation) const;
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(kept_.size()); }

 private:
  struct Sequence {
    int64_t steps = 0;
    std::vector<float> x, h0;
  };
  std::deque<Sequence> kept_;
  int64_t seen_ = 0;
};

class CalibrationData {
 public:
  /// `data`: the arguments of --calibrate. Lengths and first states belong to one file.
  static Result<CalibrationData> open(const std::vector<std::string>& data, const CalibrationDataOptions& options,
                                      FileClaims& claims);

  struct Count {
    int64_t files = 0, sequences = 0, steps = 0;
    [[nodiscard]] std::string text() const;  // "1 file, 3 sequences, 120 steps"
  };
  /// Observes every sequence. Optional: the last tenth of them, and hashes of all, for count_repeated().
  Result<Count> observe(GruCalibrator& calibrator, ThreadPool& pool, bool quiet, std::vector<std::string>& warnings,
                        LastTenth* last_tenth, std::set<uint64_t>* hashes) const;

 private:
  std::vector<std::string> files_;
  Companion lengths_, states_;
  bool batch_first_ = false;
  float zoneout_ = 0.0f;
};

/// The sequences of --validate.
Result<SequenceFiles> open_validation(const std::vector<std::string>& data, bool batch_first,
                                      const std::string& lengths, const std::string& h0, int64_t channels,
                                      FileClaims& claims);

/// How many of the sequences are among those that CalibrationData::observe() saw.
int64_t count_repeated(const GruSequences& data, int64_t channels, const std::set<uint64_t>& seen);
/// The warning about them.
std::string repeated_text(int64_t repeated);

/// The settings that the options of quantize and tune stand for; refuses a scale or rounding mode that there is none
/// of.
Result<ScaleKind> parse_scale(const std::string& text);
Result<Rounding> parse_rounding(const std::string& text);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_CALIBRATE_H_
