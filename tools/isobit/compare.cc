// SPDX-License-Identifier: Apache-2.0
// Float and integer forward side by side on the same data, tensor by tensor.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data.h"
#include "device.h"
#include "isobit/gru.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

// Both forwards carry their state across pieces of this many steps, so that memory does not grow with a sequence.
constexpr int64_t kPieceSteps = 512;
constexpr double kFullBarDb = 60.0;
constexpr int kBarWidth = 20;

struct Place {
  std::string sequence;
  int64_t step = -1;
  int64_t index = -1;
};

/// Sums over every value of one tensor.
struct TensorComparison {
  uint64_t count = 0;
  uint64_t clipped = 0;
  double signal = 0, error = 0, fixed = 0, product = 0;  // sums of a^2, (a-b)^2, b^2, a*b: a float, b fixed
  double largest = 0;
  Place largest_at, first_part;

  [[nodiscard]] double sqnr_db() const {
    if (error == 0) return std::numeric_limits<double>::infinity();
    return signal == 0 ? -std::numeric_limits<double>::infinity() : 10 * std::log10(signal / error);
  }
  [[nodiscard]] double cosine() const {
    if (signal == 0 || fixed == 0) return signal == fixed ? 1 : 0;
    return std::min(1.0, product / std::sqrt(signal * fixed));
  }
  [[nodiscard]] double clipped_percent() const {
    return count == 0 ? 0 : 100.0 * static_cast<double>(clipped) / static_cast<double>(count);
  }
};

using Slot = size_t;
Slot slot_of(int32_t tensor, int64_t layer) {
  return static_cast<size_t>(layer) * kGruTensorCount + static_cast<size_t>(tensor);
}

/// Keeps the float tensors of one piece of one sequence.
class Recorder : public GruObserver {
 public:
  Recorder(size_t slots, int64_t max_steps) : max_steps_(static_cast<size_t>(max_steps)), values_(slots) {}

  void observe(int32_t tensor, int64_t layer, int64_t, int64_t step, std::span<const float> values) override {
    auto& stored = values_[slot_of(tensor, layer)];
    stored.resize(max_steps_ * values.size());
    std::copy(values.begin(), values.end(), stored.begin() + step * static_cast<int64_t>(values.size()));
  }
  [[nodiscard]] std::span<const float> at(Slot slot, int64_t step, size_t width) const {
    const auto& stored = values_[slot];
    const size_t begin = static_cast<size_t>(step) * width;
    if (begin + width > stored.size()) return {};
    return {stored.data() + begin, width};
  }

 private:
  size_t max_steps_;
  std::vector<std::vector<float>> values_;
};

/// Sees the codes of the same piece and compares.
class Comparer : public GruCodeObserver {
 public:
  Comparer(const GruModel& model, double part)
      : model_(model), part_(part), tensors_(model.parameters().layers.size() * kGruTensorCount) {}

  void begin(const Recorder& recorder, const std::string& sequence, int64_t first_step) {
    recorder_ = &recorder;
    sequence_ = &sequence;
    first_step_ = first_step;
  }

  void observe(int32_t tensor, int64_t layer, int64_t, int64_t step, std::span<const int64_t> codes) override {
    const Slot slot = slot_of(tensor, layer);
    const std::span<const float> wanted = recorder_->at(slot, step, codes.size());
    if (wanted.empty()) return;  // a tensor that the float forward does not show
    const Grid& grid = model_.parameters().layers[static_cast<size_t>(layer)].grids[static_cast<size_t>(tensor)];
    const double scale = static_cast<double>(grid.scale());
    const double low = (static_cast<double>(grid.min() - grid.zero_point) - 0.5) * scale;
    const double high = (static_cast<double>(grid.max() - grid.zero_point) + 0.5) * scale;
    TensorComparison& sums = tensors_[slot];
    const int64_t at = first_step_ + step;
    for (size_t i = 0; i < codes.size(); ++i) {
      const double a = static_cast<double>(wanted[i]);
      const double b = static_cast<double>(codes[i] - grid.zero_point) * scale;
      const double difference = std::abs(a - b);
      ++sums.count;
      if (a < low || a > high) ++sums.clipped;
      sums.signal += a * a;
      sums.fixed += b * b;
      sums.product += a * b;
      sums.error += difference * difference;
      if (difference > sums.largest) {
        sums.largest = difference;
        sums.largest_at = {*sequence_, at, static_cast<int64_t>(i)};
      }
      if (difference > part_ * scale && (sums.first_part.step < 0 || at < sums.first_part.step)) {
        sums.first_part = {*sequence_, at, static_cast<int64_t>(i)};
      }
    }
  }

  [[nodiscard]] const TensorComparison& tensor(Slot slot) const { return tensors_[slot]; }

 private:
  const GruModel& model_;
  double part_;
  std::vector<TensorComparison> tensors_;
  const Recorder* recorder_ = nullptr;
  const std::string* sequence_ = nullptr;
  int64_t first_step_ = 0;
};

/// One layer of a model, with its directions, as a model of its own.
Result<GruModel> layer_model(const GruModel& model, int64_t layer) {
  GruModelParameters parameters;
  parameters.directions = model.parameters().directions;
  const auto first = model.parameters().layers.begin() + layer * parameters.directions;
  parameters.layers.assign(first, first + parameters.directions);
  return GruModel::create(std::move(parameters));
}

/// The fixed-point side on a device, layer by layer. x and h of every layer are seen, what lies between stays there.
class DeviceLayers {
 public:
  static Result<DeviceLayers> create(const GruModel& model, const Device& device) {
    DeviceLayers out;
    for (int64_t l = 0; l < model.layer_count(); ++l) {
      ISOBIT_ASSIGN_OR_RETURN(GruModel layer, layer_model(model, l));
      ISOBIT_ASSIGN_OR_RETURN(auto on_device, device.gru(layer));
      out.layers_.push_back({std::move(layer), std::move(on_device), {}});
    }
    return out;
  }

  void start() {
    for (Layer& layer : layers_) layer.state = layer.model.initial_state(1);
  }

  /// GruModel::forward_observed for one sequence, states kept here; `x` becomes y.
  Status forward_observed(std::vector<std::byte>& x, int64_t steps, GruCodeObserver& observer) {
    std::vector<std::byte> y;
    for (size_t l = 0; l < layers_.size(); ++l) {
      Layer& layer = layers_[l];
      const GruModel& model = layer.model;
      const int32_t directions = model.parameters().directions;
      const Dtype x_dtype = model.input_grid().dtype(), y_dtype = model.output_grid().dtype();
      y.resize(static_cast<size_t>(steps * model.output_size()) * size_in_bytes(y_dtype));
      ISOBIT_RETURN_IF_ERROR(layer.gru->forward_codes(x.data(), y.data(), steps, layer.state, ""));
      for (int32_t d = 0; d < directions; ++d) {
        const auto index = static_cast<int64_t>(l) * directions + d;
        for (int64_t s = 0; s < steps; ++s) {  // in the reference's order: sums of doubles depend on it
          const int64_t t = d == 1 ? steps - 1 - s : s;
          observe(observer, kX, index, t, x, x_dtype, t * model.input_size(), model.input_size());
          observe(observer, kH, index, t, y, y_dtype, t * model.output_size() + d * model.hidden_size(),
                  model.hidden_size());
        }
      }
      std::swap(x, y);
    }
    return {};
  }

 private:
  struct Layer {
    GruModel model;
    std::unique_ptr<DeviceGru> gru;
    GruState state;
  };

  static void observe(GruCodeObserver& observer, int32_t tensor, int64_t layer, int64_t step,
                      const std::vector<std::byte>& codes, Dtype dtype, int64_t first, int64_t count) {
    std::vector<int64_t> values;
    for (int64_t i = first; i < first + count; ++i)
      values.push_back(code_at(codes.data(), dtype, static_cast<size_t>(i)));
    observer.observe(tensor, layer, 0, step, values);
  }

  std::vector<Layer> layers_;
};

/// x [T, C] of one sequence through both. `device`: null for the reference.
Status compare_sequence(const GruWeights& weights, const GruModel& model, DeviceLayers* device,
                        std::span<const float> x, int64_t steps, const std::string& name, Comparer& comparer) {
  const int64_t channels = model.input_size();
  // The reverse direction starts at the end, so a bidirectional model sees the whole sequence at once.
  const int64_t piece = model.parameters().directions == 2 ? steps : std::min(steps, kPieceSteps);
  const size_t slots = model.parameters().layers.size();
  std::vector<float> h0(slots * static_cast<size_t>(model.hidden_size())), h_last(h0.size());
  GruState state = model.initial_state(1);
  if (device != nullptr) device->start();
  std::vector<std::byte> x_codes, y_codes;
  for (int64_t begin = 0; begin < steps; begin += piece) {
    const int64_t count = std::min(piece, steps - begin);
    const auto x_piece = x.subspan(static_cast<size_t>(begin * channels), static_cast<size_t>(count * channels));
    Recorder recorder(slots * kGruTensorCount, count);
    GruFloatArguments arguments;
    arguments.steps = count;
    arguments.batch = 1;
    arguments.x = x_piece;
    arguments.h0 = h0;
    arguments.h_last = h_last;
    ISOBIT_RETURN_IF_ERROR(gru_forward_float(weights, arguments, &recorder));
    h0 = h_last;

    x_codes.resize(x_piece.size() * size_in_bytes(model.input_grid().dtype()));
    y_codes.resize(static_cast<size_t>(count * model.output_size()) * size_in_bytes(model.output_grid().dtype()));
    ISOBIT_RETURN_IF_ERROR(isobit::quantize(model.input_grid(), x_piece, x_codes.data(), name));
    comparer.begin(recorder, name, begin);
    ISOBIT_RETURN_IF_ERROR(device != nullptr ? device->forward_observed(x_codes, count, comparer)
                                             : model.forward_observed(x_codes.data(), y_codes.data(), count, state,
                                                                      comparer, {.whole_sequence = true}));
  }
  return {};
}

Status check_same_shape(const GruWeights& weights, const GruModel& model, const CompareOptions& options) {
  const auto shape = [](int64_t layers, int32_t directions, int64_t input, int64_t hidden) {
    return count_text(layers, "layer") + ", " + count_text(directions, "direction") + ", " + std::to_string(input) +
           " inputs, " + std::to_string(hidden) + " hidden units";
  };
  const std::string a = shape(weights.layer_count(), weights.directions, weights.input_size(), weights.hidden_size());
  const std::string b =
      shape(model.layer_count(), model.parameters().directions, model.input_size(), model.hidden_size());
  if (a == b) return {};
  return {StatusCode::kInvalidArgument, options.float_model + " and " + options.fixed_model + " differ in shape: " + a +
                                            " against " + b +
                                            "; compare an integer model with the float model it was made from"};
}

Value place_json(const Place& place) {
  if (place.step < 0) return {};
  Value json = Value::object();
  json.set("sequence", place.sequence).set("step", place.step).set("index", place.index);
  return json;
}

std::string bar_text(double db) {
  const double share = std::clamp(db / kFullBarDb, 0.0, 1.0);
  const int filled = static_cast<int>(std::lround(share * kBarWidth));
  return std::string(filled, '#') + std::string(kBarWidth - filled, '.');
}

}  // namespace

Result<Outcome> compare(const CompareOptions& options) {
  if (!(options.part > 0) || !std::isfinite(options.part)) {
    return Status(StatusCode::kInvalidArgument, format("--part %g: expected a number of codes above 0", options.part));
  }
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  ISOBIT_ASSIGN_OR_RETURN(const bool first_is_integer, is_integer_model(options.float_model));
  if (first_is_integer) {
    return Status(StatusCode::kInvalidArgument, options.float_model +
                                                    ": is an integer model; give the float model first, then the "
                                                    "integer one");
  }
  ISOBIT_ASSIGN_OR_RETURN(const std::string prefix, gru_prefix(options.source));
  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(options.fixed_model, prefix));
  FloatModelOptions source = options.source;
  if (source.layer.empty()) source.layer.push_back(model.parameters().name);
  ISOBIT_ASSIGN_OR_RETURN(const FloatModel float_model, load_float_model(options.float_model, source));
  const GruWeights& weights = float_model.weights;
  ISOBIT_RETURN_IF_ERROR(check_same_shape(weights, model, options));
  ISOBIT_ASSIGN_OR_RETURN(const auto files, find_data_files(options.data));

  std::optional<DeviceLayers> device_layers;
  if (device) {
    ISOBIT_ASSIGN_OR_RETURN(device_layers, DeviceLayers::create(model, *device));
  }
  Comparer comparer(model, options.part);
  int64_t sequences = 0, steps = 0;
  {
    Progress progress("comparing", options.quiet);
    size_t file = 0;
    const auto compare_array = [&](const Sequences& data) -> Status {
      const auto channels = static_cast<size_t>(weights.input_size());
      const auto batch = static_cast<size_t>(data.batch);
      std::vector<float> x(static_cast<size_t>(data.steps) * channels);
      for (size_t n = 0; n < batch; ++n) {
        for (size_t t = 0; t < static_cast<size_t>(data.steps); ++t) {
          std::copy_n(&data.x[(t * batch + n) * channels], channels, &x[t * channels]);
        }
        const std::string name = batch > 1 ? data.name + ", sequence " + std::to_string(n) : data.name;
        ISOBIT_RETURN_IF_ERROR(
            compare_sequence(weights, model, device_layers ? &*device_layers : nullptr, x, data.steps, name, comparer));
        ++sequences;
        steps += data.steps;
        const double in_file = static_cast<double>(n + 1) / static_cast<double>(batch);
        progress.update((static_cast<double>(file) + in_file) / static_cast<double>(files.size()));
      }
      return {};
    };
    for (; file < files.size(); ++file) {
      ISOBIT_RETURN_IF_ERROR(for_each_array(files[file], weights.input_size(), compare_array));
    }
  }
  if (steps == 0) {
    return Status(StatusCode::kInvalidArgument, "--data " + options.data.front() + ": the data has no time step");
  }

  Outcome out;
  out.json.set("float_model", options.float_model).set("fixed_model", options.fixed_model);
  set_assumptions(float_model, out.json);
  out.json.set("sequences", sequences).set("steps", steps).set("part_codes", options.part);
  const bool same_source = weights.source_hash == model.parameters().source_hash;
  out.json.set("same_source", same_source);
  out.text = assumptions_text(float_model);
  if (!same_source) {
    out.text += options.fixed_model + " was made from other weights than " + options.float_model + "\n";
  }
  if (device) {
    out.json.set("device", options.device);
    out.text +=
        "fixed on " + device->text() + ": x and h of every layer; what lies between does not leave the device\n";
  }
  out.text += count_text(sequences, "sequence") + ", " + count_text(steps, "step") +
              format("; bars: SQNR, full at %.0f dB; parts: first step with |float - fixed| > %g codes\n", kFullBarDb,
                     options.part);
  out.text += format("%-11s %-5s %8s  %-*s %9s %12s %9s  %s\n", "layer", "name", "SQNR dB", kBarWidth, "", "cosine",
                     "largest err", "clipped", "parts");
  Value tensors = Value::array();
  for (size_t i = 0; i < model.parameters().layers.size(); ++i) {
    const std::string layer = layer_label(static_cast<int64_t>(i), model.parameters().directions);
    for (int32_t t = 0; t < kGruTensorCount; ++t) {
      const TensorComparison& sums = comparer.tensor(slot_of(t, static_cast<int64_t>(i)));
      if (sums.count == 0) continue;
      const std::string name(kGruTensorNames[static_cast<size_t>(t)]);
      const double db = sums.sqnr_db();
      Value entry = Value::object();
      entry.set("layer", layer).set("tensor", name).set("values", sums.count).set("exact", sums.error == 0);
      entry.set("sqnr_db", db).set("cosine", sums.cosine()).set("largest_error", sums.largest);
      entry.set("largest_error_at", place_json(sums.largest_at)).set("clipped_percent", sums.clipped_percent());
      entry.set("first_part", place_json(sums.first_part));
      tensors.add(std::move(entry));
      out.text += format(
          "%-11s %-5s %8s  %s %9.6f %12.5g %7.3f %%  %s\n", layer.c_str(), name.c_str(),
          std::isfinite(db) ? format("%.1f", db).c_str() : (db > 0 ? "exact" : "-inf"), bar_text(db).c_str(),
          sums.cosine(), sums.largest, sums.clipped_percent(),
          sums.first_part.step < 0
              ? "never"
              : format("step %lld (%s)", static_cast<long long>(sums.first_part.step), sums.first_part.sequence.c_str())
                    .c_str());
    }
  }
  out.json.set("tensors", std::move(tensors));
  return out;
}

}  // namespace isobit::tool
