// SPDX-License-Identifier: Apache-2.0
// Statistics of every tensor of the float forward. numerics.md, section 5: they do not depend on the order of the
// sequences, on how they were batched, or on the number of threads.
#include <algorithm>
#include <cmath>

#include "core/float_mode.h"
#include "core/number_text.h"
#include "gru/float.h"

namespace isobit {
namespace {

using LayerStatistics = std::vector<std::array<TensorStatistics, kGruTensorCount>>;

constexpr double kDefaultDecay = 0.9;

LayerStatistics no_statistics(size_t layers, double ema_decay) {
  std::array<TensorStatistics, kGruTensorCount> empty;
  empty.fill(TensorStatistics(ema_decay));
  return LayerStatistics(layers, empty);
}

/// W, R and the biases have their own ranges, u, r and n known ones.
constexpr bool is_calibrated(int32_t tensor) {
  return tensor == kX || tensor == kH || (tensor >= kIh && tensor <= kNIn);
}

bool all_finite(std::span<const float> values) {
  bool finite = true;
  for (const float value : values) finite &= std::isfinite(value);
  return finite;
}

/// One thread's statistics over its range of sequences.
class StatisticsObserver : public GruObserver {
 public:
  /// empty: statistics without samples, with the decays to use.
  explicit StatisticsObserver(const LayerStatistics& empty)
      : statistics_(empty), ranges_(static_cast<size_t>(FloatGru::kSequences) * empty.size() * kGruTensorCount) {}

  void begin(int64_t first_sequence) { first_sequence_ = first_sequence; }

  void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step, std::span<const float> values) override {
    if (!is_calibrated(tensor) || !status_.ok()) return;
    if (!all_finite(values)) {
      // x, h0 and the weights are finite: only their products can overflow.
      status_ = {StatusCode::kInvalidArgument, "layer-direction " + std::to_string(layer) + " " +
                                                   std::string(kGruTensorNames[static_cast<size_t>(tensor)]) +
                                                   " of sequence " + std::to_string(sequence) + " at step " +
                                                   std::to_string(step) +
                                                   " exceeds float32; the weights or x are too large"};
      return;
    }
    statistics_[static_cast<size_t>(layer)][static_cast<size_t>(tensor)].observe(values.data(),
                                                                                 static_cast<int64_t>(values.size()));
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    Ranges& ranges = ranges_of(static_cast<size_t>(sequence - first_sequence_), static_cast<size_t>(layer),
                               static_cast<size_t>(tensor));
    ranges.min.push_back(*low);
    ranges.max.push_back(*high);
  }

  void observe_initial_state(int64_t layer, std::span<const float> h) {
    statistics_[static_cast<size_t>(layer)][kH].observe(h.data(), static_cast<int64_t>(h.size()));
  }

  /// The sequences since begin() are complete.
  void end() {
    for (size_t s = 0; s < static_cast<size_t>(FloatGru::kSequences); ++s) {
      for (size_t layer = 0; layer < statistics_.size(); ++layer) {
        for (size_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
          Ranges& ranges = ranges_of(s, layer, tensor);
          statistics_[layer][tensor].observe_sequence_ranges(ranges.min.data(), ranges.max.data(),
                                                             static_cast<int64_t>(ranges.min.size()));
          ranges.min.clear();
          ranges.max.clear();
        }
      }
    }
  }

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] const LayerStatistics& statistics() const { return statistics_; }

 private:
  struct Ranges {  // per step, in the direction's own time order
    std::vector<float> min;
    std::vector<float> max;
  };
  Ranges& ranges_of(size_t sequence, size_t layer, size_t tensor) {
    return ranges_[(sequence * statistics_.size() + layer) * kGruTensorCount + tensor];
  }

  LayerStatistics statistics_;
  std::vector<Ranges> ranges_;
  int64_t first_sequence_ = 0;
  Status status_;
};

void merge_into(LayerStatistics& statistics, const LayerStatistics& other) {
  for (size_t layer = 0; layer < statistics.size(); ++layer) {
    for (size_t tensor = 0; tensor < kGruTensorCount; ++tensor) statistics[layer][tensor].merge(other[layer][tensor]);
  }
}

bool same_values(const GruWeights& a, const GruWeights& b) {
  const auto same = [](const GruLayerWeights& v, const GruLayerWeights& w) {
    return v.input_size == w.input_size && v.hidden_size == w.hidden_size && v.W == w.W && v.R == w.R && v.bw == w.bw &&
           v.br == w.br;
  };
  return a.directions == b.directions &&
         std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), same);
}

}  // namespace

Result<GruCalibrator> GruCalibrator::create(GruWeights weights, double ema_decay) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_weights(weights));
  if (!(ema_decay >= 0 && ema_decay < 1)) {
    return Status(StatusCode::kInvalidArgument,
                  "ema decay " + number_text(ema_decay) + "; it must be at least 0 and below 1");
  }
  GruCalibrator calibrator;
  calibrator.statistics_ = no_statistics(weights.layers.size(), ema_decay);
  calibrator.weights_ = std::move(weights);
  return calibrator;
}

Result<GruCalibrator> GruCalibrator::create(GruWeights weights, const GruQuantization& quantization) {
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, create(std::move(weights)));
  for (size_t i = 0; i < calibrator.statistics_.size(); ++i) {
    const auto layer = static_cast<int64_t>(i) / calibrator.weights_.directions;
    for (size_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      const CalibrationOptions& method = quantization.layer(layer).methods[tensor];
      ISOBIT_RETURN_IF_ERROR(check_calibration_options(method));
      const double decay = method.method == CalibrationMethod::kEma ? method.ema_decay : kDefaultDecay;
      calibrator.statistics_[i][tensor] = TensorStatistics(decay);
    }
  }
  return calibrator;
}

Status GruCalibrator::observe(std::span<const float> x, int64_t steps, int64_t batch, std::span<const int64_t> lengths,
                              std::span<const float> h0, ThreadPool* pool, float zoneout) {
  const DefaultFloatMode mode;
  GruFloatArguments arguments;
  arguments.steps = steps;
  arguments.batch = batch;
  arguments.x = x;
  arguments.lengths = lengths;
  arguments.h0 = h0;
  arguments.zoneout = zoneout;
  const FloatGru gru(weights_);
  ISOBIT_RETURN_IF_ERROR(gru.check(arguments));

  const auto threads = static_cast<size_t>(pool == nullptr ? 1 : pool->threads());
  const size_t layers = weights_.layers.size();
  LayerStatistics empty = statistics_;
  for (auto& tensors : empty) {
    for (TensorStatistics& tensor : tensors) tensor = TensorStatistics(tensor.ema_decay());
  }
  std::vector<StatisticsObserver> parts(threads, StatisticsObserver(empty));
  const auto run_part = [&](int part, int64_t begin, int64_t end) {
    StatisticsObserver& observer = parts[static_cast<size_t>(part)];
    for (int64_t first = begin; first < end; first += FloatGru::kSequences) {
      observer.begin(first);
      gru.run(arguments, first, std::min(end, first + FloatGru::kSequences), &observer);
      observer.end();
    }
  };
  if (pool == nullptr) {
    run_part(0, 0, batch);
  } else {
    pool->for_ranges(batch, run_part);
  }
  if (!h0.empty()) {
    const size_t states = h0.size() / layers;
    for (size_t layer = 0; layer < layers; ++layer) {
      parts[0].observe_initial_state(static_cast<int64_t>(layer), h0.subspan(layer * states, states));
    }
  }
  for (const StatisticsObserver& part : parts) ISOBIT_RETURN_IF_ERROR(part.status());
  for (const StatisticsObserver& part : parts) merge_into(statistics_, part.statistics());
  return {};
}

Status GruCalibrator::merge(const GruCalibrator& other) {
  const DefaultFloatMode mode;
  if (weights_.source_hash != other.weights_.source_hash || !same_values(weights_, other.weights_)) {
    return {StatusCode::kInvalidArgument, "the calibrator to merge has other weights (source hash '" +
                                              other.weights_.source_hash + "', must be '" + weights_.source_hash +
                                              "' with the same shapes and values)"};
  }
  for (size_t i = 0; i < statistics_.size(); ++i) {
    for (size_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      const double decay = statistics_[i][tensor].ema_decay();
      const double other_decay = other.statistics_[i][tensor].ema_decay();
      if (decay == other_decay) continue;
      return {StatusCode::kInvalidArgument, "the calibrator to merge has the ema decay " + number_text(other_decay) +
                                                " for " + std::string(kGruTensorNames[tensor]) + ", must be " +
                                                number_text(decay)};
    }
  }
  merge_into(statistics_, other.statistics_);
  return {};
}

const TensorStatistics& GruCalibrator::statistics(int64_t layer, GruTensor tensor) const {
  return statistics_[static_cast<size_t>(layer)][tensor];
}

}  // namespace isobit
