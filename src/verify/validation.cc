// SPDX-License-Identifier: Apache-2.0
// Float outputs on data, and integer models measured against them: isobit/compare.h.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "core/codes.h"
#include "core/float_mode.h"
#include "gru/float.h"
#include "isobit/compare.h"
#include "verify/sequences.h"

namespace isobit {
namespace {

// Sequences that run together, and those that are sorted by length first, so that little is padded.
constexpr size_t kBatch = 32;
constexpr size_t kSorted = 4 * kBatch;
constexpr int64_t kSortedFloats = int64_t{1} << 24;

/// Sequences of similar length, padded to one batch.
struct Batch {
  int64_t steps = 0;
  int64_t count = 0;
  std::vector<float> x;               // [T, N, C]
  std::vector<int64_t> lengths;       // [N]
  std::vector<int64_t> numbers;       // [N]
  std::vector<float> h0;              // [layers * directions, N, H]
  std::vector<std::vector<float>> h;  // [layers] of [T, N, directions * H]
};

/// Keeps h of every layer of a batch.
class StateRecorder : public GruObserver {
 public:
  StateRecorder(Batch& batch, int64_t directions, int64_t hidden)
      : batch_(batch), directions_(directions), hidden_(hidden) {}
  void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step, std::span<const float> values) override {
    if (tensor != kH) return;
    const int64_t row = step * batch_.count + sequence;
    std::copy(values.begin(), values.end(),
              batch_.h[static_cast<size_t>(layer / directions_)].begin() +
                  (row * directions_ + layer % directions_) * hidden_);
  }

 private:
  Batch& batch_;
  int64_t directions_;
  int64_t hidden_;
};

template <typename Body>
void for_ranges(ThreadPool* pool, int64_t items, const Body& body) {
  if (pool != nullptr) return pool->for_ranges(items, body);
  body(0, int64_t{0}, items);
}

}  // namespace

struct GruValidation::Impl {
  Impl(GruWeights float_weights, GruValidationOptions validation_options)
      : weights(std::move(float_weights)),
        options(std::move(validation_options)),
        gru(weights),
        signals(static_cast<size_t>(weights.layer_count())) {}

  [[nodiscard]] int64_t width() const { return weights.output_size(); }

  /// The float outputs of all pending sequences.
  void flush() {
    std::stable_sort(pending.begin(), pending.end(),
                     [](const Sequence& a, const Sequence& b) { return a.steps > b.steps; });
    for (size_t first = 0, end = 0; first < pending.size(); first = end) {
      // Padding at most doubles a batch.
      for (end = first; end < std::min(first + kBatch, pending.size()); ++end) {
        if (2 * pending[end].steps < pending[first].steps) break;
      }
      batches.push_back(batch_of(std::span<const Sequence>(pending).subspan(first, end - first)));
      done += static_cast<int64_t>(end - first);
      if (options.progress) options.progress(done);
    }
    pending.clear();
    pending_floats = 0;
  }

  Batch batch_of(std::span<const Sequence> sequences) {
    const GruShape shape = shape_of(weights);
    Batch batch;
    batch.count = static_cast<int64_t>(sequences.size());
    batch.steps = sequences[0].steps;
    batch.x.resize(static_cast<size_t>(batch.steps * batch.count * shape.input));
    batch.h0.resize(static_cast<size_t>(shape.states * batch.count * shape.hidden));
    for (int64_t n = 0; n < batch.count; ++n) {
      const Sequence& sequence = sequences[static_cast<size_t>(n)];
      batch.lengths.push_back(sequence.steps);
      batch.numbers.push_back(sequence.number);
      for (int64_t t = 0; t < sequence.steps; ++t) {
        std::copy_n(sequence.x.begin() + t * shape.input, shape.input,
                    batch.x.begin() + (t * batch.count + n) * shape.input);
      }
      for (int64_t s = 0; s < shape.states && !sequence.h0.empty(); ++s) {
        std::copy_n(sequence.h0.begin() + s * shape.hidden, shape.hidden,
                    batch.h0.begin() + (s * batch.count + n) * shape.hidden);
      }
    }
    batch.h.assign(static_cast<size_t>(weights.layer_count()),
                   std::vector<float>(static_cast<size_t>(batch.steps * batch.count * width())));
    GruFloatArguments arguments;
    arguments.steps = batch.steps;
    arguments.batch = batch.count;
    arguments.x = batch.x;
    arguments.lengths = batch.lengths;
    arguments.h0 = batch.h0;
    arguments.zoneout = options.zoneout;
    StateRecorder recorder(batch, weights.directions, weights.hidden_size());
    for_ranges(options.pool, batch.count,
               [&](int, int64_t begin, int64_t end) { gru.run(arguments, begin, end, &recorder); });
    for (size_t l = 0; l < signals.size(); ++l) {
      signals[l].resize(static_cast<size_t>(added));
      for (int64_t t = 0; t < batch.steps; ++t) {
        for (int64_t n = 0; n < batch.count; ++n) {  // past a sequence's length h is 0
          double& signal = signals[l][static_cast<size_t>(batch.numbers[static_cast<size_t>(n)])];
          const float* a = batch.h[l].data() + (t * batch.count + n) * width();
          for (int64_t i = 0; i < width(); ++i) signal += static_cast<double>(a[i]) * static_cast<double>(a[i]);
        }
      }
    }
    return batch;
  }

  /// Adds the squared error of each sequence at one layer; codes: [T, N, width].
  void add_errors(const Batch& batch, size_t layer, const Grid& grid, const std::vector<std::byte>& codes,
                  std::vector<double>& errors) {
    for_ranges(options.pool, batch.count, [&](int, int64_t begin, int64_t end) {
      const double scale = static_cast<double>(grid.scale());
      with_code_type(grid.dtype(), [&](auto zero) {
        const auto* b = reinterpret_cast<const decltype(zero)*>(codes.data());
        for (int64_t n = begin; n < end; ++n) {
          double error = 0;
          for (int64_t t = 0; t < batch.lengths[static_cast<size_t>(n)]; ++t) {
            const int64_t row = (t * batch.count + n) * width();
            for (int64_t i = row; i < row + width(); ++i) {
              const double difference = static_cast<double>(batch.h[layer][static_cast<size_t>(i)]) -
                                        static_cast<double>(b[i] - grid.zero_point) * scale;
              error += difference * difference;
            }
          }
          errors[static_cast<size_t>(batch.numbers[static_cast<size_t>(n)])] = error;
        }
      });
    });
  }

  Result<GruOutputSqnr> measure(std::span<const GruModel> layers) {
    flush();
    if (steps == 0) {
      return Status(StatusCode::kFailedPrecondition, "no time step was added; a measurement needs at least one");
    }
    std::vector<std::vector<double>> errors(layers.size(), std::vector<double>(static_cast<size_t>(added)));
    const auto hidden = static_cast<size_t>(weights.hidden_size());
    for (const Batch& batch : batches) {
      std::vector<std::byte> x(batch.x.size() * size_in_bytes(layers[0].input_grid().dtype())), y;
      ISOBIT_RETURN_IF_ERROR(quantize(layers[0].input_grid(), batch.x, x.data(), "x"));
      for (size_t l = 0; l < layers.size(); ++l) {
        const GruModel& layer = layers[l];
        const size_t states = static_cast<size_t>(weights.directions * batch.count) * hidden;
        ISOBIT_ASSIGN_OR_RETURN(
            GruState state,
            layer.state_from_float(std::span<const float>(batch.h0).subspan(l * states, states), batch.count));
        Workspace workspace =
            layer.workspace(batch.count, batch.steps, options.pool == nullptr ? 1 : options.pool->threads());
        RunOptions run;
        run.lengths = batch.lengths;
        run.pool = options.pool;
        run.whole_sequence = true;
        y.resize(batch.h[l].size() * size_in_bytes(layer.output_grid().dtype()));
        ISOBIT_RETURN_IF_ERROR(layer.forward_codes(x, y, batch.steps, state, workspace, run));
        add_errors(batch, l, layer.output_grid(), y, errors[l]);
        x.swap(y);
      }
    }
    GruOutputSqnr out;
    for (size_t l = 0; l < layers.size(); ++l) {
      const double signal = std::accumulate(signals[l].begin(), signals[l].end(), 0.0);
      const double error = std::accumulate(errors[l].begin(), errors[l].end(), 0.0);
      if (!std::isfinite(signal)) {
        return Status(StatusCode::kInvalidArgument, "the float forward of layer " + std::to_string(l) +
                                                        " exceeds float32; the weights or x are too large");
      }
      out.layer_db.push_back(sqnr_db(signal, error));
    }
    out.output_db = out.layer_db.back();
    return out;
  }

  GruWeights weights;
  GruValidationOptions options;
  FloatGru gru;
  std::vector<std::vector<double>> signals;  // [layers][sequences]: the sum of h^2
  std::vector<Batch> batches;
  std::vector<Sequence> pending;
  int64_t pending_floats = 0;
  int64_t added = 0, done = 0, steps = 0;
};

GruValidation::GruValidation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GruValidation::GruValidation(GruValidation&&) noexcept = default;
GruValidation& GruValidation::operator=(GruValidation&&) noexcept = default;
GruValidation::~GruValidation() = default;

Result<GruValidation> GruValidation::create(GruWeights weights, const GruValidationOptions& options) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_weights(weights));
  ISOBIT_RETURN_IF_ERROR(check_zoneout(options.zoneout));
  return GruValidation(std::make_unique<Impl>(std::move(weights), options));
}

Status GruValidation::add(const GruSequences& data) {
  const DefaultFloatMode mode;
  const GruShape shape = shape_of(impl_->weights);
  ISOBIT_RETURN_IF_ERROR(check_sequences(data, shape));
  for (int64_t n = 0; n < data.batch; ++n) {
    Sequence sequence = sequence_of(data, shape, n);
    sequence.number = impl_->added++;
    impl_->steps += sequence.steps;
    impl_->pending_floats += static_cast<int64_t>(sequence.x.size());
    impl_->pending.push_back(std::move(sequence));
    if (impl_->pending.size() >= kSorted || impl_->pending_floats > kSortedFloats) impl_->flush();
  }
  return {};
}

Result<GruOutputSqnr> GruValidation::measure(const GruModel& model) {
  ISOBIT_RETURN_IF_ERROR(check_same_shape(impl_->weights, model.parameters()));
  if (model.layer_count() == 1) return measure(std::span<const GruModel>(&model, 1));
  std::vector<GruModel> layers;
  for (int64_t l = 0; l < model.layer_count(); ++l) {
    ISOBIT_ASSIGN_OR_RETURN(GruModel layer, layer_model(model.parameters(), l));
    layers.push_back(std::move(layer));
  }
  return measure(layers);
}

Result<GruOutputSqnr> GruValidation::measure(std::span<const GruModel> layers) {
  const DefaultFloatMode mode;
  const GruWeights& weights = impl_->weights;
  if (static_cast<int64_t>(layers.size()) != weights.layer_count()) {
    return Status(StatusCode::kInvalidArgument, "layers has " + std::to_string(layers.size()) +
                                                    " models, must have one for each of the " +
                                                    std::to_string(weights.layer_count()) + " layers");
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    const GruModel& layer = layers[l];
    const bool fits = layer.layer_count() == 1 && layer.parameters().directions == weights.directions &&
                      layer.hidden_size() == weights.hidden_size() &&
                      layer.input_size() == (l == 0 ? weights.input_size() : weights.output_size()) &&
                      (l == 0 || layer.input_grid() == layers[l - 1].output_grid());
    if (fits) continue;
    return Status(StatusCode::kInvalidArgument,
                  "layers[" + std::to_string(l) +
                      "] does not fit; it must be one layer with the sizes of the float model, whose x grid is the h "
                      "grid of the layer below");
  }
  return impl_->measure(layers);
}

const GruWeights& GruValidation::weights() const { return impl_->weights; }
int64_t GruValidation::sequences() const { return impl_->added; }
int64_t GruValidation::steps() const { return impl_->steps; }

}  // namespace isobit
