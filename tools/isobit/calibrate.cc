// SPDX-License-Identifier: Apache-2.0
#include "calibrate.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "isobit/nearest.h"
#include "progress.h"
#include "text.h"

namespace isobit::tool {
namespace {

// Single sequences of a file are observed together, so that threads have something to share, and many of an array in
// parts, so that the bar moves.
constexpr size_t kMaxTogether = 64;
constexpr int64_t kMaxTogetherFloats = int64_t{1} << 24;

/// Tells sequences [T, C] apart, by their values.
uint64_t sequence_hash(const std::vector<float>& x) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float)});
}

/// Sequence n of [T, N, C] in its first `steps` steps.
std::vector<float> one_sequence(std::span<const float> x, int64_t batch, int64_t channels, int64_t n, int64_t steps) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>(steps * channels));
  for (int64_t t = 0; t < steps; ++t) {
    const auto row = x.subspan(static_cast<size_t>((t * batch + n) * channels), static_cast<size_t>(channels));
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

/// Feeds a calibrator, single sequences of one file padded to one batch.
class Feeder {
 public:
  Feeder(GruCalibrator& calibrator, ThreadPool& pool, float zoneout, LastTenth* last_tenth, std::set<uint64_t>* hashes)
      : calibrator_(calibrator), pool_(pool), zoneout_(zoneout), last_tenth_(last_tenth), hashes_(hashes) {}

  /// `lengths` [N] and `h0` [layers * directions, N, H] may be empty. `progress` gets the share that was observed.
  Status add(const Sequences& sequences, const std::vector<int64_t>& lengths, const std::vector<float>& h0,
             const std::function<void(double)>& progress) {
    count_.sequences += sequences.batch;
    if (lengths.empty()) count_.steps += sequences.batch * sequences.steps;
    for (const int64_t length : lengths) count_.steps += length;
    if (sequences.steps == 0 || sequences.batch == 0) return {};
    keep(sequences, lengths, h0);
    if (sequences.batch > 1 || !lengths.empty() || !h0.empty()) {
      const int64_t part = std::max<int64_t>(kMaxTogether, int64_t{16} * pool_.threads());
      for (int64_t n = 0; n < sequences.batch; n += part) {
        const int64_t count = std::min(part, sequences.batch - n);
        ISOBIT_RETURN_IF_ERROR(observe(sequences, lengths, h0, n, count));
        progress(static_cast<double>(n + count) / static_cast<double>(sequences.batch));
      }
      return {};
    }
    const int64_t steps = std::max(longest_, sequences.steps);
    const auto together = static_cast<int64_t>(pending_.size()) + 1;
    const int64_t channels = calibrator_.weights().input_size();
    if (pending_.size() == kMaxTogether || steps > kMaxTogetherFloats / (together * channels)) {
      ISOBIT_RETURN_IF_ERROR(flush());
    }
    longest_ = std::max(longest_, sequences.steps);
    pending_.push_back(sequences);
    return {};
  }

  Status flush() {
    if (pending_.empty()) return {};
    const size_t batch = pending_.size();
    const auto channels = static_cast<size_t>(calibrator_.weights().input_size());
    std::vector<float> x(static_cast<size_t>(longest_) * batch * channels);
    std::vector<int64_t> lengths;
    for (size_t n = 0; n < batch; ++n) {
      lengths.push_back(pending_[n].steps);
      for (size_t t = 0; t < static_cast<size_t>(pending_[n].steps); ++t) {
        std::copy_n(&pending_[n].x[t * channels], channels, &x[(t * batch + n) * channels]);
      }
    }
    const int64_t steps = longest_;
    pending_.clear();
    longest_ = 0;
    return calibrator_.observe(x, steps, static_cast<int64_t>(batch), lengths, {}, &pool_, zoneout_);
  }

  [[nodiscard]] const CalibrationData::Count& count() const { return count_; }
  void count_file() { ++count_.files; }

 private:
  void keep(const Sequences& all, const std::vector<int64_t>& lengths, const std::vector<float>& h0) {
    if (last_tenth_ == nullptr && hashes_ == nullptr) return;
    const GruWeights& weights = calibrator_.weights();
    for (int64_t n = 0; n < all.batch; ++n) {
      std::vector<float> x = one_sequence(all.x, all.batch, weights.input_size(), n,
                                          lengths.empty() ? all.steps : lengths[static_cast<size_t>(n)]);
      if (hashes_ != nullptr) hashes_->insert(sequence_hash(x));
      if (last_tenth_ == nullptr) continue;
      last_tenth_->add(std::move(x), columns(h0, all.batch, weights.hidden_size(), n, 1), weights.input_size());
    }
  }

  /// Sequences [n, n + count).
  Status observe(const Sequences& all, const std::vector<int64_t>& lengths, const std::vector<float>& h0, int64_t n,
                 int64_t count) {
    const std::vector<int64_t> some_lengths =
        lengths.empty() ? lengths : std::vector<int64_t>(lengths.begin() + n, lengths.begin() + n + count);
    const GruWeights& weights = calibrator_.weights();
    const std::vector<float> x = columns(all.x, all.batch, weights.input_size(), n, count);
    return calibrator_.observe(x, all.steps, count, some_lengths,
                               columns(h0, all.batch, weights.hidden_size(), n, count), &pool_, zoneout_);
  }

  /// [rows, N, width] to its sequences [n, n + count).
  static std::vector<float> columns(const std::vector<float>& values, int64_t batch, int64_t width, int64_t n,
                                    int64_t count) {
    std::vector<float> out;
    const int64_t row = batch * width;
    for (auto at = values.begin(); at != values.end(); at += row)
      out.insert(out.end(), at + n * width, at + (n + count) * width);
    return out;
  }

  GruCalibrator& calibrator_;
  ThreadPool& pool_;
  float zoneout_;
  LastTenth* last_tenth_;
  std::set<uint64_t>* hashes_;
  std::vector<Sequences> pending_;
  int64_t longest_ = 0;
  CalibrationData::Count count_;
};

/// First states [layers * directions, N, H] for the array `name`; none without a file.
Result<std::vector<float>> load_h0(const Companion& file, const Sequences& sequences, const GruWeights& weights) {
  if (file.empty()) return std::vector<float>();
  ISOBIT_ASSIGN_OR_RETURN(const Array* array, file.find(sequences.array));
  const std::vector<int64_t> wanted = {std::ssize(weights.layers), sequences.batch, weights.hidden_size()};
  if (array->shape == wanted && is_float(array->dtype)) return array->to_float();
  return Status(StatusCode::kInvalidArgument,
                file.label(sequences.array) + " is " + std::string(to_string(array->dtype)) + " " +
                    shape_text(array->shape) + "; expected floats [layers * directions, N, H] = " + shape_text(wanted));
}

}  // namespace

void LastTenth::add(std::vector<float> x, std::vector<float> h0, int64_t channels) {
  const auto steps = static_cast<int64_t>(x.size()) / channels;
  if (steps == 0) return;
  ++seen_;
  kept_.push_back({steps, std::move(x), std::move(h0)});
  if (size() > std::max<int64_t>(1, (seen_ + 9) / 10)) kept_.pop_front();
}

Status LastTenth::add_to(GruValidation& validation) const {
  for (const Sequence& sequence : kept_) {
    GruSequences data;
    data.steps = sequence.steps;
    data.batch = 1;
    data.x = sequence.x;
    data.h0 = sequence.h0;
    ISOBIT_RETURN_IF_ERROR(validation.add(data));
  }
  return {};
}

Result<CalibrationData> CalibrationData::open(const std::vector<std::string>& data,
                                              const CalibrationDataOptions& options, FileClaims& claims) {
  CalibrationData out;
  out.batch_first_ = options.batch_first;
  out.zoneout_ = options.zoneout;
  if (!(options.zoneout >= 0.0f && options.zoneout <= 1.0f)) {
    return Status(StatusCode::kInvalidArgument,
                  format("--zoneout %g: expected a probability, 0 to 1", static_cast<double>(options.zoneout)));
  }
  ISOBIT_ASSIGN_OR_RETURN(out.files_, find_data_files(data, "--calibrate", claims));
  for (const auto& [option, path] : {std::pair{"--lengths", &options.lengths}, std::pair{"--state", &options.h0}}) {
    if (path->empty()) continue;
    ISOBIT_RETURN_IF_ERROR(claims.reads(*path, option));
    if (out.files_.size() > 1)
      return Status(StatusCode::kInvalidArgument, std::string(option) + " " + *path +
                                                      ": belongs to one file of data, but --calibrate names " +
                                                      count_text(std::ssize(out.files_), "file"));
  }
  ISOBIT_ASSIGN_OR_RETURN(out.lengths_, Companion::load("--lengths", options.lengths));
  ISOBIT_ASSIGN_OR_RETURN(out.states_, Companion::load("--state", options.h0));
  return out;
}

std::string CalibrationData::Count::text() const {
  return count_text(files, "file") + ", " + count_text(sequences, "sequence") + ", " + count_text(steps, "step");
}

Result<CalibrationData::Count> CalibrationData::observe(GruCalibrator& calibrator, ThreadPool& pool, bool quiet,
                                                        std::vector<std::string>& warnings, LastTenth* last_tenth,
                                                        std::set<uint64_t>* hashes) const {
  Feeder feeder(calibrator, pool, zoneout_, last_tenth, hashes);
  const GruWeights& weights = calibrator.weights();
  Progress progress("calibrating", quiet);
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto update = [&](double share) {
      progress.update((static_cast<double>(i) + share) / static_cast<double>(files_.size()));
    };
    feeder.count_file();
    const auto add = [&](const Sequences& sequences) -> Status {
      const SequenceShape shape{sequences.steps, sequences.batch, false};
      ISOBIT_ASSIGN_OR_RETURN(const auto lengths, lengths_.lengths(sequences.array, shape));
      ISOBIT_ASSIGN_OR_RETURN(const auto h0, load_h0(states_, sequences, weights));
      update(sequences.done);
      return feeder.add(sequences, lengths, h0,
                        [&](double share) { update(sequences.done + share * sequences.share); });
    };
    ISOBIT_RETURN_IF_ERROR(for_each_array(files_[i], weights.input_size(), add, batch_first_, warnings));
    ISOBIT_RETURN_IF_ERROR(feeder.flush());
  }
  if (feeder.count().steps == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "--calibrate " + files_.front() + ": the data has no time step; ranges need at least one");
  }
  return feeder.count();
}

Result<SequenceFiles> open_validation(const std::vector<std::string>& data, bool batch_first,
                                      const std::string& lengths, const std::string& h0, int64_t channels,
                                      FileClaims& claims) {
  SequenceOptions options;
  options.batch_first = batch_first;
  options.lengths = lengths;
  options.state = h0;
  options.lengths_option = "--validate-lengths";
  options.state_option = "--validate-state";
  return SequenceFiles::open(data, "--validate", options, channels, claims);
}

int64_t count_repeated(const GruSequences& data, int64_t channels, const std::set<uint64_t>& seen) {
  int64_t repeated = 0;
  for (int64_t n = 0; n < data.batch; ++n) {
    const int64_t steps = data.lengths.empty() ? data.steps : data.lengths[static_cast<size_t>(n)];
    if (steps == 0) continue;
    repeated += static_cast<int64_t>(seen.count(sequence_hash(one_sequence(data.x, data.batch, channels, n, steps))));
  }
  return repeated;
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

}  // namespace isobit::tool
