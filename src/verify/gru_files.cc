// SPDX-License-Identifier: Apache-2.0
// Sequences of files into a calibrator and a validation.
#include "isobit/gru_files.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "verify/sequences.h"

namespace isobit {
namespace {

// Single sequences are observed together, so that threads have something to share, and many of an array in
// parts, so that progress is seen.
constexpr size_t kMaxTogether = 64;
constexpr int64_t kMaxTogetherFloats = int64_t{1} << 24;

GruShape shape_of(const SequenceSizes& sizes) { return {sizes.channels, sizes.states, sizes.hidden}; }

uint64_t hash_of(const Sequence& sequence) {
  return std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(sequence.x.data()), sequence.x.size() * sizeof(float)});
}

/// [rows, N, width] to its sequences [n, n + count).
std::vector<float> columns(const std::vector<float>& values, int64_t batch, int64_t width, int64_t n, int64_t count) {
  std::vector<float> out;
  for (auto at = values.begin(); at != values.end(); at += batch * width)
    out.insert(out.end(), at + n * width, at + (n + count) * width);
  return out;
}

/// Feeds a calibrator.
class Feeder {
 public:
  Feeder(GruCalibrator& calibrator, const ObserveOptions& options)
      : calibrator_(calibrator), options_(options), sizes_(sequence_sizes(calibrator.weights())) {}

  Status add(const Sequences& data) {
    tell(data.done);
    if (data.steps == 0 || data.batch == 0) return {};
    if (options_.seen != nullptr) options_.seen->add(data, sizes_);
    if (options_.last_tenth != nullptr) options_.last_tenth->add(data, sizes_);
    if (data.batch > 1 || !data.lengths.empty() || !data.h0.empty()) return add_parts(data);
    const int64_t steps = std::max(longest_, data.steps);
    const auto together = static_cast<int64_t>(pending_.size()) + 1;
    if (pending_.size() == kMaxTogether || steps > kMaxTogetherFloats / (together * sizes_.channels))
      ISOBIT_RETURN_IF_ERROR(flush());
    longest_ = std::max(longest_, data.steps);
    pending_.push_back(data.x);
    return {};
  }

  /// Single sequences, padded to one batch.
  Status flush() {
    if (pending_.empty()) return {};
    const size_t batch = pending_.size();
    const auto channels = static_cast<size_t>(sizes_.channels);
    std::vector<float> x(static_cast<size_t>(longest_) * batch * channels);
    std::vector<int64_t> lengths;
    for (size_t n = 0; n < batch; ++n) {
      const size_t steps = pending_[n].size() / channels;
      lengths.push_back(static_cast<int64_t>(steps));
      for (size_t t = 0; t < steps; ++t)
        std::copy_n(&pending_[n][t * channels], channels, &x[(t * batch + n) * channels]);
    }
    pending_.clear();
    return calibrator_.observe(x, std::exchange(longest_, 0), static_cast<int64_t>(batch), lengths, {}, options_.pool,
                               options_.zoneout);
  }

 private:
  Status add_parts(const Sequences& data) {
    const int64_t threads = options_.pool == nullptr ? 1 : options_.pool->threads();
    const int64_t part = std::max<int64_t>(kMaxTogether, int64_t{16} * threads);
    for (int64_t n = 0; n < data.batch; n += part) {
      const int64_t count = std::min(part, data.batch - n);
      std::vector<int64_t> lengths;
      if (!data.lengths.empty()) lengths.assign(data.lengths.begin() + n, data.lengths.begin() + n + count);
      ISOBIT_RETURN_IF_ERROR(calibrator_.observe(columns(data.x, data.batch, sizes_.channels, n, count), data.steps,
                                                 count, lengths, columns(data.h0, data.batch, sizes_.hidden, n, count),
                                                 options_.pool, options_.zoneout));
      tell(data.done + data.share * static_cast<double>(n + count) / static_cast<double>(data.batch));
    }
    return {};
  }

  void tell(double fraction) const {
    if (options_.progress) options_.progress(fraction);
  }

  GruCalibrator& calibrator_;
  const ObserveOptions& options_;
  SequenceSizes sizes_;
  std::vector<std::vector<float>> pending_;
  int64_t longest_ = 0;
};

}  // namespace

SequenceSizes sequence_sizes(const GruWeights& weights) {
  return {weights.input_size(), std::ssize(weights.layers), weights.hidden_size()};
}

GruSequences view_of(const Sequences& data) {
  GruSequences out;
  out.steps = data.steps;
  out.batch = data.batch;
  out.x = data.x;
  out.lengths = data.lengths;
  out.h0 = data.h0;
  return out;
}

void LastTenth::add(const Sequences& data, const SequenceSizes& sizes) {
  for (int64_t n = 0; n < data.batch; ++n) {
    Sequence one = sequence_of(view_of(data), shape_of(sizes), n);
    if (one.steps == 0) continue;
    ++seen_;
    kept_.push_back({one.steps, std::move(one.x), std::move(one.h0)});
    if (size() > (seen_ + 9) / 10) kept_.pop_front();
  }
}

Status LastTenth::add_to(GruValidation& validation) const {
  for (const Kept& one : kept_) {
    GruSequences data;
    data.steps = one.steps;
    data.batch = 1;
    data.x = one.x;
    data.h0 = one.h0;
    ISOBIT_RETURN_IF_ERROR(validation.add(data));
  }
  return {};
}

void SeenSequences::add(const Sequences& data, const SequenceSizes& sizes) {
  for (int64_t n = 0; n < data.batch; ++n) hashes_.insert(hash_of(sequence_of(view_of(data), shape_of(sizes), n)));
}

int64_t SeenSequences::count(const Sequences& data, const SequenceSizes& sizes) const {
  int64_t repeated = 0;
  for (int64_t n = 0; n < data.batch; ++n) {
    const Sequence one = sequence_of(view_of(data), shape_of(sizes), n);
    repeated += one.steps > 0 && hashes_.contains(hash_of(one)) ? 1 : 0;
  }
  return repeated;
}

Result<ObservedCount> observe_files(const SequenceFiles& files, GruCalibrator& calibrator,
                                    const ObserveOptions& options, std::vector<std::string>& warnings) {
  ObservedCount count;
  count.files = std::ssize(files.files());
  Feeder feeder(calibrator, options);
  const auto add = [&](const Sequences& data) {
    count.sequences += data.batch;
    count.steps += data.total_steps();
    return feeder.add(data);
  };
  ISOBIT_RETURN_IF_ERROR(files.for_each(add, warnings));
  ISOBIT_RETURN_IF_ERROR(feeder.flush());
  if (count.steps > 0) return count;
  return Status(StatusCode::kInvalidArgument,
                files.files().front() + ": the data has no time step; ranges need at least one");
}

Result<GruComparisonReport> compare_files(const SequenceFiles& files, const GruWeights& weights, const GruModel& model,
                                          const GruCompareOptions& options, std::vector<std::string>& names) {
  ISOBIT_ASSIGN_OR_RETURN(GruComparison comparison, GruComparison::create(weights, model, options));
  const auto add = [&](const Sequences& data) -> Status {
    for (int64_t n = 0; n < data.batch; ++n)
      names.push_back(data.batch > 1 ? data.name + ", sequence " + std::to_string(n) : data.name);
    return comparison.add(view_of(data));
  };
  std::vector<std::string> warnings;  // extents() has them, too
  ISOBIT_RETURN_IF_ERROR(files.for_each(add, warnings));
  return comparison.finish();
}

}  // namespace isobit
