// SPDX-License-Identifier: Apache-2.0
// Float and integer forward side by side, tensor by tensor: isobit/compare.h.
#include "isobit/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <mutex>
#include <utility>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/number_text.h"
#include "gru/float.h"
#include "verify/sequences.h"

namespace isobit {
namespace {

// Both forwards carry their state across pieces of this many steps, so that memory does not grow with a sequence.
constexpr int64_t kPieceSteps = 64;
// Sequences that the float forward computes together, whose weights it then reads once.
constexpr int64_t kTogether = 4;
constexpr int64_t kGroupsPerThread = 4;

constexpr GruTensor kFlow[] = {kX, kW, kBw, kIh, kR, kBr, kHh, kUIn, kRIn, kNIn, kU, kRGate, kN, kH};
static_assert(std::size(kFlow) == kGruTensorCount);

constexpr size_t kBins = 60;      // of histograms: 48 of what a grid covers, 6 on each side
constexpr int kMostCodeBits = 8;  // of bins of codes

using Slot = size_t;
Slot slot_of(int32_t tensor, int64_t layer) {
  return static_cast<size_t>(layer) * kGruTensorCount + static_cast<size_t>(tensor);
}

/// Values that a tensor's grid is meant to cover, and half a step.
struct Covered {
  double low = 0;
  double high = 0;
};
Covered covered_by(const Grid& grid, int32_t tensor) {
  const double scale = static_cast<double>(grid.scale());
  // A scale that was rounded to float32 may miss the far end of its range by one part in 2^24.
  const double half = scale * (0.5 + static_cast<double>(grid.max() - grid.min()) * 0x1p-24);
  if (tensor == kU || tensor == kRGate) return {-half, 1 + half};
  if (tensor == kN) return {-1 - half, 1 + half};
  // Rows of weights have 2^bits steps, whose upper end has no code.
  const int64_t end = tensor >= kW && tensor <= kBr ? grid.max() + 1 : grid.max();
  return {static_cast<double>(grid.min() - grid.zero_point) * scale - half,
          static_cast<double>(end - grid.zero_point) * scale + half};
}

/// The same in codes, without the half step. No bins for biases: each of them has a grid of its own.
GridHistogram histogram_of(const Grid& grid, int32_t tensor) {
  const double scale = static_cast<double>(grid.scale()), zero = static_cast<double>(grid.zero_point);
  GridHistogram out;
  out.covered_low = static_cast<double>(grid.min());
  out.covered_high = static_cast<double>(grid.max());
  if (tensor >= kW && tensor <= kBr) out.covered_high += 1;
  if (tensor == kU || tensor == kRGate) out.covered_low = zero;
  if (tensor == kN) out.covered_low = zero - 1 / scale;
  if (tensor == kU || tensor == kRGate || tensor == kN) out.covered_high = zero + 1 / scale;
  const double margin = (out.covered_high - out.covered_low) / 8;
  out.low = out.covered_low - margin;
  out.high = out.covered_high + margin;
  if (tensor != kBw && tensor != kBr) out.counts.resize(kBins);
  return out;
}

/// Finds bins of a histogram for values on a grid.
struct Binning {
  double factor = 0, offset = 0;

  Binning() = default;
  Binning(const GridHistogram& histogram, const Grid& grid) {
    const double bins_per_code = static_cast<double>(kBins) / (histogram.high - histogram.low);
    factor = bins_per_code / static_cast<double>(grid.scale());
    offset = bins_per_code * (static_cast<double>(grid.zero_point) - histogram.low);
  }
  [[nodiscard]] size_t operator()(double a) const {
    return static_cast<size_t>(std::clamp(a * factor + offset, 0.0, static_cast<double>(kBins - 1)));
  }
};

bool is_gate_input(int32_t tensor) { return tensor == kUIn || tensor == kRIn || tensor == kNIn; }

/// What GruCompareOptions::profile counts of one tensor.
struct Counts {
  GridHistogram values;
  std::vector<uint64_t> codes;

  void add(const Counts& other) {
    for (size_t i = 0; i < values.counts.size(); ++i) values.counts[i] += other.values.counts[i];
    for (size_t i = 0; i < codes.size(); ++i) codes[i] += other.codes[i];
  }
};

/// Sums over the values of one tensor: a float, b fixed, q the float on the tensor's grid.
struct Sums {
  uint64_t count = 0;
  uint64_t clipped = 0;
  double fixed = 0;    // b^2
  double product = 0;  // a b
  double largest = 0;
  ComparePlace largest_at, first_part;
  std::vector<double> signal, error, own_error;  // of each channel: a^2, (a - b)^2, (a - q)^2
  ErrorOverTime over_time;

  void add(const Sums& other) {
    over_time.add(other.over_time);
    count += other.count;
    clipped += other.clipped;
    fixed += other.fixed;
    product += other.product;
    if (other.largest > largest) {
      largest = other.largest;
      largest_at = other.largest_at;
    }
    if (other.first_part.step >= 0 && (first_part.step < 0 || other.first_part.step < first_part.step)) {
      first_part = other.first_part;
    }
    signal.resize(std::max(signal.size(), other.signal.size()));
    error.resize(signal.size());
    own_error.resize(signal.size());
    for (size_t c = 0; c < other.signal.size(); ++c) {
      signal[c] += other.signal[c];
      error[c] += other.error[c];
      own_error[c] += other.own_error[c];
    }
  }
};

/// Of the output y: the last layer's h, both directions together.
struct Output {
  uint64_t count = 0;
  double signal = 0, error = 0;
  int64_t first_part = -1;
  ErrorOverTime over_time;
};

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

ChannelSqnr worst_channel(const std::vector<double>& signal, const std::vector<double>& error) {
  ChannelSqnr worst;
  for (size_t c = 0; c < signal.size(); ++c) {
    if (signal[c] == 0) continue;
    const double db = sqnr_db(signal[c], error[c]);
    if (worst.channel < 0 || db < worst.sqnr_db) worst = {static_cast<int64_t>(c), db};
  }
  return worst;
}

TensorComparison comparison_of(const Sums& sums, int64_t layer, GruTensor tensor) {
  TensorComparison out;
  out.layer = layer;
  out.tensor = tensor;
  out.count = sums.count;
  const double signal = total(sums.signal), error = total(sums.error);
  out.exact = error == 0;
  out.sqnr_db = sqnr_db(signal, error);
  out.own_sqnr_db = sqnr_db(signal, total(sums.own_error));
  out.worst = worst_channel(sums.signal, sums.error);
  out.own_worst = worst_channel(sums.signal, sums.own_error);
  if (signal == 0 || sums.fixed == 0) {
    out.cosine = signal == sums.fixed ? 1 : 0;
  } else {
    out.cosine = std::min(1.0, sums.product / std::sqrt(signal * sums.fixed));
  }
  out.largest_error = sums.largest;
  out.largest_error_at = sums.largest_at;
  out.clipped = sums.clipped;
  out.first_part = sums.first_part;
  out.over_time = sums.over_time;
  return out;
}

/// W, R, bw or br: the row is the channel.
Sums compare_rows(std::span<const float> values, const CodeMatrix& codes, const std::vector<Grid>& grids,
                  GruTensor tensor) {
  Sums sums;
  const int64_t columns = codes.columns();
  sums.count = values.size();
  sums.signal.resize(static_cast<size_t>(codes.rows()));
  sums.error.resize(sums.signal.size());
  for (int64_t row = 0; row < codes.rows(); ++row) {
    const auto r = static_cast<size_t>(row);
    const double scale = static_cast<double>(grids[r].scale());
    const Covered covered = covered_by(grids[r], tensor);
    for (int64_t column = 0; column < columns; ++column) {
      const double a = static_cast<double>(values[static_cast<size_t>(row * columns + column)]);
      const double b = static_cast<double>(codes.at(row, column)) * scale;
      const double difference = std::abs(a - b);
      if (a < covered.low || a > covered.high) ++sums.clipped;
      sums.signal[r] += a * a;
      sums.error[r] += difference * difference;
      sums.fixed += b * b;
      sums.product += a * b;
      if (difference > sums.largest) {
        sums.largest = difference;
        sums.largest_at = {-1, row, column};
      }
    }
  }
  sums.own_error = sums.error;
  return sums;
}

/// Adds to the histogram of compare_rows()'s tensor.
void count_rows(std::span<const float> values, const CodeMatrix& codes, const std::vector<Grid>& grids,
                GridHistogram& histogram) {
  const auto columns = static_cast<size_t>(codes.columns());
  for (size_t row = 0; row < grids.size(); ++row) {
    const Binning bin_of(histogram, grids[row]);
    for (const float value : values.subspan(row * columns, columns)) {
      ++histogram.counts[bin_of(static_cast<double>(value))];
    }
  }
}

/// Keeps the float tensors of one piece of some sequences.
class Recorder : public GruObserver {
 public:
  void begin(size_t slots, int64_t sequences, int64_t steps) {
    sequences_ = sequences;
    steps_ = steps;
    values_.resize(slots);
    status_ = {};
  }

  void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step, std::span<const float> values) override {
    const auto finite = std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
    if (!finite && status_.ok()) {
      // x, h0 and the weights are finite: only their products can overflow.
      status_ = {StatusCode::kInvalidArgument, "layer-direction " + std::to_string(layer) + " " +
                                                   std::string(kGruTensorNames[static_cast<size_t>(tensor)]) +
                                                   " exceeds float32; the weights or x are too large"};
    }
    std::vector<float>& stored = values_[slot_of(tensor, layer)];
    stored.resize(static_cast<size_t>(sequences_ * steps_) * values.size());
    std::copy(values.begin(), values.end(),
              stored.begin() + (sequence * steps_ + step) * static_cast<int64_t>(values.size()));
  }
  [[nodiscard]] std::span<const float> at(int32_t tensor, int64_t layer, int64_t sequence, int64_t step,
                                          size_t width) const {
    const auto first = static_cast<size_t>(sequence * steps_ + step) * width;
    return std::span<const float>(values_[slot_of(tensor, layer)]).subspan(first, width);
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  int64_t sequences_ = 0;
  int64_t steps_ = 0;
  std::vector<std::vector<float>> values_;
  Status status_;
};

/// Sees the codes of the same piece and adds to the sums of each sequence.
class CodeComparer : public GruCodeObserver {
 public:
  CodeComparer(const GruModel& model, double part_codes, bool profile) : model_(model), part_(part_codes) {
    for (const GruLayerParameters& layer : model.parameters().layers) {
      for (int32_t t = 0; t < kGruTensorCount; ++t) {
        const Grid& grid = layer.grids[static_cast<size_t>(t)];
        covered_.push_back(covered_by(grid, t));
        if (!profile) continue;
        counts_.push_back(counts_of(grid, t));
        binning_.emplace_back(counts_.back().values, grid);
      }
    }
  }

  static Counts counts_of(const Grid& grid, int32_t tensor) {
    Counts counts{histogram_of(grid, tensor), {}};
    if (is_gate_input(tensor)) counts.codes.resize(size_t{1} << std::min(grid.bits, kMostCodeBits));
    return counts;
  }

  /// [slots]; empty without a profile.
  [[nodiscard]] const std::vector<Counts>& counts() const { return counts_; }

  /// sums: [sequences][slots].
  void begin(const Recorder& recorder, const Sequence* sequences, std::vector<Sums>* sums, int64_t first_step) {
    recorder_ = &recorder;
    sequences_ = sequences;
    sums_ = sums;
    first_step_ = first_step;
  }

  void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step, std::span<const int64_t> codes) override {
    const size_t width = codes.size();
    const Slot slot = slot_of(tensor, layer);
    const std::span<const float> wanted = recorder_->at(tensor, layer, sequence, step, width);
    const Grid& grid = model_.parameters().layers[static_cast<size_t>(layer)].grids[static_cast<size_t>(tensor)];
    const double scale = static_cast<double>(grid.scale());
    own_codes_.resize(width * sizeof(int32_t));
    own_.resize(width);
    // Values are finite: nothing is refused.
    if (!quantize(grid, wanted, own_codes_.data(), "").ok()) return;
    dequantize(grid, own_codes_.data(), own_);

    Sums& sums = sums_[sequence][slot];
    sums.signal.resize(width);
    sums.error.resize(width);
    sums.own_error.resize(width);
    sums.count += width;
    const ComparePlace place{sequences_[sequence].number, first_step_ + step, -1};
    for (size_t i = 0; i < width; ++i) {
      const double a = static_cast<double>(wanted[i]);
      const double b = static_cast<double>(codes[i] - grid.zero_point) * scale;
      const double own = a - static_cast<double>(own_[i]);
      const double difference = std::abs(a - b);
      if (a < covered_[slot].low || a > covered_[slot].high) ++sums.clipped;
      sums.signal[i] += a * a;
      sums.error[i] += difference * difference;
      sums.own_error[i] += own * own;
      sums.fixed += b * b;
      sums.product += a * b;
      if (difference > sums.largest) {
        sums.largest = difference;
        sums.largest_at = {place.sequence, place.step, static_cast<int64_t>(i)};
      }
      if (difference > part_ * scale && (sums.first_part.step < 0 || place.step < sums.first_part.step)) {
        sums.first_part = {place.sequence, place.step, static_cast<int64_t>(i)};
      }
    }
    if (!counts_.empty()) profile(tensor, slot, place.step, wanted, codes, sums);
  }

 private:
  void profile(int32_t tensor, Slot slot, int64_t step, std::span<const float> wanted, std::span<const int64_t> codes,
               Sums& sums) {
    const Grid& grid = model_.parameters().layers[slot / kGruTensorCount].grids[static_cast<size_t>(tensor)];
    Counts& counts = counts_[slot];
    for (const float a : wanted) ++counts.values.counts[binning_[slot](static_cast<double>(a))];
    if (is_gate_input(tensor)) {
      const int shift = std::max(0, grid.bits - kMostCodeBits);
      for (const int64_t code : codes) ++counts.codes[static_cast<size_t>((code - grid.min()) >> shift)];
    }
    if (tensor != kH) return;
    ErrorOverTime::Slice slice{codes.size(), 0, 0};
    for (size_t i = 0; i < codes.size(); ++i) {
      const double b = static_cast<double>(codes[i] - grid.zero_point) * static_cast<double>(grid.scale());
      const double difference = std::abs(static_cast<double>(wanted[i]) - b);
      slice.error += difference * difference;
      slice.largest = std::max(slice.largest, difference);
    }
    sums.over_time.add(step, slice);
  }

  const GruModel& model_;
  double part_;
  std::vector<Covered> covered_;  // [slots]
  std::vector<Counts> counts_;    // [slots], or none
  std::vector<Binning> binning_;  // [slots], or none
  const Recorder* recorder_ = nullptr;
  const Sequence* sequences_ = nullptr;
  std::vector<Sums>* sums_ = nullptr;
  int64_t first_step_ = 0;
  std::vector<std::byte> own_codes_;
  std::vector<float> own_;
};

/// [layers * directions, N, H] of some sequences.
std::vector<float> states_of(std::span<const Sequence> sequences, const GruShape& shape) {
  const auto count = static_cast<int64_t>(sequences.size());
  std::vector<float> h(static_cast<size_t>(shape.states * count * shape.hidden));
  for (int64_t n = 0; n < count; ++n) {
    const std::vector<float>& h0 = sequences[static_cast<size_t>(n)].h0;
    for (int64_t s = 0; s < shape.states && !h0.empty(); ++s) {
      std::copy_n(h0.begin() + s * shape.hidden, shape.hidden, h.begin() + (s * count + n) * shape.hidden);
    }
  }
  return h;
}

void coarsen(ErrorOverTime& errors) {
  const auto merged = [](ErrorOverTime::Slice a, const ErrorOverTime::Slice& b) {
    return ErrorOverTime::Slice{a.count + b.count, a.error + b.error, std::max(a.largest, b.largest)};
  };
  std::vector<ErrorOverTime::Slice> slices((errors.slices.size() + 1) / 2);
  for (size_t i = 0; i < errors.slices.size(); ++i) slices[i / 2] = merged(slices[i / 2], errors.slices[i]);
  errors.slices = std::move(slices);
  errors.slice_steps *= 2;
}

}  // namespace

void ErrorOverTime::add(int64_t step, const Slice& values) {
  while (step / slice_steps >= kMostSlices) coarsen(*this);
  const auto index = static_cast<size_t>(step / slice_steps);
  if (index >= slices.size()) slices.resize(index + 1);
  slices[index].count += values.count;
  slices[index].error += values.error;
  slices[index].largest = std::max(slices[index].largest, values.largest);
}

void ErrorOverTime::add(const ErrorOverTime& other) {
  ErrorOverTime same = other;
  while (slice_steps < same.slice_steps) coarsen(*this);
  while (same.slice_steps < slice_steps) coarsen(same);
  for (size_t i = 0; i < same.slices.size(); ++i) add(static_cast<int64_t>(i) * slice_steps, same.slices[i]);
}

struct GruComparison::Impl {
  Impl(const GruWeights& weights, const GruModel& integer_model, GruCompareOptions compare_options)
      : shape(shape_of(weights)),
        gru(weights),
        model(integer_model),
        options(std::move(compare_options)),
        sums(weights.layers.size() * kGruTensorCount) {
    for (size_t l = 0; l < weights.layers.size(); ++l) {
      const GruLayerWeights& w = weights.layers[l];
      const GruLayerParameters& p = model.parameters().layers[l];
      const auto layer = static_cast<int64_t>(l);
      sums[slot_of(kW, layer)] = compare_rows(w.W, p.W, p.W_grid, kW);
      sums[slot_of(kR, layer)] = compare_rows(w.R, p.R, p.R_grid, kR);
      sums[slot_of(kBw, layer)] = compare_rows(w.bw, p.bw, p.bw_grid, kBw);
      sums[slot_of(kBr, layer)] = compare_rows(w.br, p.br, p.br_grid, kBr);
      if (!options.profile) continue;
      for (int32_t t = 0; t < kGruTensorCount; ++t) {
        counts.push_back(CodeComparer::counts_of(p.grids[static_cast<size_t>(t)], t));
      }
      count_rows(w.W, p.W, p.W_grid, counts[slot_of(kW, layer)].values);
      count_rows(w.R, p.R, p.R_grid, counts[slot_of(kR, layer)].values);
    }
  }

  [[nodiscard]] bool bidirectional() const { return model.parameters().directions == 2; }
  [[nodiscard]] ThreadPool* pool() const { return options.source == nullptr ? options.pool : nullptr; }
  /// A reverse direction needs whole sequences, whose tensors are in memory at once.
  [[nodiscard]] int64_t together() const { return options.source != nullptr || bidirectional() ? 1 : kTogether; }
  [[nodiscard]] size_t round() const {
    return static_cast<size_t>(together() * kGroupsPerThread * (pool() == nullptr ? 1 : pool()->threads()));
  }

  /// Some sequences through both; `out`: [sequences][slots].
  Status compare(std::span<const Sequence> sequences, CodeComparer& comparer, Recorder& recorder,
                 std::vector<Sums>* out) {
    const auto count = static_cast<int64_t>(sequences.size());
    int64_t longest = 0;
    for (const Sequence& sequence : sequences) longest = std::max(longest, sequence.steps);
    if (longest == 0) return {};
    const int64_t piece = bidirectional() ? longest : std::min(longest, kPieceSteps);
    std::vector<float> h = states_of(sequences, shape), h_last(h.size());
    if (options.source != nullptr) ISOBIT_RETURN_IF_ERROR(options.source->start(sequences[0].h0));
    ISOBIT_ASSIGN_OR_RETURN(GruState state, model.state_from_float(h, count));
    std::vector<float> x;
    std::vector<std::byte> x_codes, y_codes;
    std::vector<int64_t> lengths(sequences.size());
    for (int64_t begin = 0; begin < longest; begin += piece) {
      const int64_t piece_steps = std::min(piece, longest - begin);
      x.assign(static_cast<size_t>(piece_steps * count * shape.input), 0.0f);
      for (int64_t n = 0; n < count; ++n) {
        const Sequence& sequence = sequences[static_cast<size_t>(n)];
        const int64_t length = std::clamp<int64_t>(sequence.steps - begin, 0, piece_steps);
        lengths[static_cast<size_t>(n)] = length;
        for (int64_t t = 0; t < length; ++t) {
          std::copy_n(sequence.x.begin() + (begin + t) * shape.input, shape.input,
                      x.begin() + (t * count + n) * shape.input);
        }
      }
      GruFloatArguments arguments;
      arguments.steps = piece_steps;
      arguments.batch = count;
      arguments.x = x;
      arguments.lengths = lengths;
      arguments.h0 = h;
      arguments.h_last = h_last;
      arguments.zoneout = options.zoneout;
      recorder.begin(sums.size(), count, piece_steps);
      gru.run(arguments, 0, count, &recorder);
      ISOBIT_RETURN_IF_ERROR(recorder.status());
      h.swap(h_last);

      x_codes.resize(x.size() * size_in_bytes(model.input_grid().dtype()));
      ISOBIT_RETURN_IF_ERROR(quantize(model.input_grid(), x, x_codes.data(), "x"));
      comparer.begin(recorder, sequences.data(), out, begin);
      if (options.source != nullptr) {
        ISOBIT_RETURN_IF_ERROR(options.source->run(x_codes.data(), piece_steps, comparer));
        continue;
      }
      y_codes.resize(static_cast<size_t>(piece_steps * count * model.output_size()) *
                     size_in_bytes(model.output_grid().dtype()));
      RunOptions run;
      run.lengths = lengths;
      run.whole_sequence = true;  // in pieces where there is one direction only
      ISOBIT_RETURN_IF_ERROR(model.forward_observed(x_codes, y_codes, piece_steps, state, comparer, run));
    }
    return {};
  }

  /// All pending sequences.
  Status flush() {
    const std::vector<Sequence> now = std::exchange(pending, {});
    const auto count = static_cast<int64_t>(now.size());
    const int64_t groups = (count + together() - 1) / together();
    std::vector<std::vector<Sums>> found(now.size(), std::vector<Sums>(sums.size()));
    std::vector<Status> results(static_cast<size_t>(groups));
    std::mutex mutex;  // of `done`, `counts` and the caller's function
    const auto body = [&](int, int64_t first_group, int64_t end_group) {
      CodeComparer comparer(model, options.part_codes, options.profile);
      Recorder recorder;
      for (int64_t g = first_group; g < end_group; ++g) {
        const auto first = static_cast<size_t>(g * together());
        const size_t size = std::min(static_cast<size_t>(together()), now.size() - first);
        results[static_cast<size_t>(g)] =
            compare(std::span<const Sequence>(now).subspan(first, size), comparer, recorder, &found[first]);
        const std::lock_guard<std::mutex> lock(mutex);
        done += static_cast<int64_t>(size);
        if (options.progress) options.progress(done);
      }
      const std::lock_guard<std::mutex> lock(mutex);
      for (size_t slot = 0; slot < comparer.counts().size(); ++slot) counts[slot].add(comparer.counts()[slot]);
    };
    if (pool() == nullptr) {
      body(0, 0, groups);
    } else {
      pool()->for_ranges(groups, body);
    }
    for (const Status& status : results) ISOBIT_RETURN_IF_ERROR(status);
    for (size_t i = 0; i < found.size(); ++i) {
      if (options.profile) add_sequence(now[i].steps, found[i]);
      for (size_t slot = 0; slot < sums.size(); ++slot) sums[slot].add(found[i][slot]);
    }
    return {};
  }

  [[nodiscard]] Output output_of(const std::vector<Sums>& of) const {
    Output output;
    const auto layers = static_cast<int64_t>(model.parameters().layers.size());
    for (int64_t layer = layers - model.parameters().directions; layer < layers; ++layer) {
      const Sums& h = of[slot_of(kH, layer)];
      output.count += h.count;
      output.signal += total(h.signal);
      output.error += total(h.error);
      output.over_time.add(h.over_time);
      const int64_t step = h.first_part.step;
      if (step >= 0 && (output.first_part < 0 || step < output.first_part)) output.first_part = step;
    }
    return output;
  }

  void add_sequence(int64_t length, const std::vector<Sums>& found) {
    Output output = output_of(found);
    const SequenceComparison sequence{length, sqnr_db(output.signal, output.error), output.first_part};
    if (length > 0 && (worst < 0 || sequence.sqnr_db < by_sequence[static_cast<size_t>(worst)].sqnr_db)) {
      worst = static_cast<int64_t>(by_sequence.size());
      worst_over_time = std::move(output.over_time);
    }
    by_sequence.push_back(sequence);
  }

  GruShape shape;
  FloatGru gru;
  GruModel model;
  GruCompareOptions options;
  std::vector<Sums> sums;      // [layers * directions][tensors]
  std::vector<Counts> counts;  // the same, or none
  std::vector<SequenceComparison> by_sequence;
  int64_t worst = -1;  // of by_sequence
  ErrorOverTime worst_over_time;
  std::vector<Sequence> pending;
  int64_t added = 0, done = 0, steps = 0;
};

GruComparison::GruComparison(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GruComparison::GruComparison(GruComparison&&) noexcept = default;
GruComparison& GruComparison::operator=(GruComparison&&) noexcept = default;
GruComparison::~GruComparison() = default;

Result<GruComparison> GruComparison::create(const GruWeights& weights, const GruModel& model,
                                            const GruCompareOptions& options) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_weights(weights));
  ISOBIT_RETURN_IF_ERROR(check_same_shape(weights, model.parameters()));
  ISOBIT_RETURN_IF_ERROR(check_zoneout(options.zoneout));
  if (!(options.part_codes > 0) || !std::isfinite(options.part_codes)) {
    return Status(StatusCode::kInvalidArgument,
                  "part_codes is " + number_text(options.part_codes) + ", must be a number of codes above 0");
  }
  return GruComparison(std::make_unique<Impl>(weights, model, options));
}

Status GruComparison::add(const GruSequences& data) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_sequences(data, impl_->shape));
  for (int64_t n = 0; n < data.batch; ++n) {
    Sequence sequence = sequence_of(data, impl_->shape, n);
    sequence.number = impl_->added++;
    impl_->steps += sequence.steps;
    impl_->pending.push_back(std::move(sequence));
    if (impl_->pending.size() >= impl_->round()) ISOBIT_RETURN_IF_ERROR(impl_->flush());
  }
  return {};
}

Result<GruComparisonReport> GruComparison::finish() {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(impl_->flush());
  if (impl_->steps == 0) {
    return Status(StatusCode::kFailedPrecondition, "no time step was added; a comparison needs at least one");
  }
  GruComparisonReport report;
  report.sequences = impl_->added;
  report.steps = impl_->steps;
  const Output output = impl_->output_of(impl_->sums);
  report.output_sqnr_db = sqnr_db(output.signal, output.error);
  report.output_rms_error = std::sqrt(output.error / static_cast<double>(output.count));
  for (size_t l = 0; l < impl_->model.parameters().layers.size(); ++l) {
    const auto layer = static_cast<int64_t>(l);
    for (const GruTensor tensor : kFlow) {
      const Sums& sums = impl_->sums[slot_of(tensor, layer)];
      if (sums.count == 0) continue;
      report.tensors.push_back(comparison_of(sums, layer, tensor));
      if (impl_->counts.empty()) continue;
      report.tensors.back().values = impl_->counts[slot_of(tensor, layer)].values;
      report.tensors.back().codes = impl_->counts[slot_of(tensor, layer)].codes;
    }
  }
  report.by_sequence = impl_->by_sequence;
  report.worst_sequence = impl_->worst;
  report.worst_over_time = impl_->worst_over_time;
  return report;
}

}  // namespace isobit
