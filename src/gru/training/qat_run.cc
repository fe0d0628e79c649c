// SPDX-License-Identifier: Apache-2.0
// GruQatRun: what is checked, and the layers one after the other.
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/float_mode.h"
#include "core/run_options.h"
#include "gru/training/arrays.h"
#include "gru/training/layers.h"
#include "gru/training/qat.h"
#include "isobit/gru_qat.h"

namespace isobit {

struct GruQatRun::Data {
  /// Of one direction of one layer, as numbers.
  struct Direction {
    std::vector<float> W, R, saved;
    std::vector<uint16_t> passes;
  };

  GruTrainingSizes sizes;
  CpuPath path = CpuPath::kReference;
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;
  std::vector<std::vector<float>> inputs;  // x, then y of each layer
  std::vector<Direction> directions;
  std::vector<float> first;                    // of the states' codes; empty: every code is z_h
  std::vector<bool> x_clipped, first_clipped;  // whether the clamp of a number's quantisation changed it
  double clipped_units = 0, clipped_inputs = 0;

  [[nodiscard]] int64_t length(int64_t n) const {
    return lengths.empty() ? sizes.steps : lengths[static_cast<size_t>(n)];
  }
  [[nodiscard]] DirectionRun run_of(int64_t layer, int64_t d) const {
    const int64_t H = sizes.hidden_size, index = layer * sizes.directions + d;
    const Direction& of = directions[static_cast<size_t>(index)];
    return {.direction = {.steps = sizes.steps,
                          .batch = sizes.batch,
                          .inputs = inputs_of(sizes, layer),
                          .hidden = H,
                          .reverse = d == 1,
                          .lengths = lengths,
                          .weights = {of.W, of.R, {}, {}},
                          .x = inputs[static_cast<size_t>(layer)].data(),
                          .mask = moved(mask.data(), layer * y_size(sizes) + d * H),
                          .first = state_of(std::span<const float>(first), index, sizes),
                          .y_row = sizes.directions * H},
            .y = moved(inputs[static_cast<size_t>(layer + 1)].data(), d * H),
            .saved = of.saved.data(),
            .passes = of.passes.data()};
  }
};

namespace {

constexpr char kWho[] = "training";

/// Codes of floats, and which of them are ends of the grid in place of what they were.
Status quantize_numbers(const Grid& grid, std::span<const float> values, const char* name, std::vector<int64_t>& codes,
                        std::vector<bool>& clipped) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i]))
      return refuse_training(std::string(kWho) + ": " + name + "[" + std::to_string(i) + "] is NaN, must be a number");
    codes.push_back(quantize_value(grid, values[i]));
    clipped.push_back(count_clipped(grid, values.subspan(i, 1)) > 0);
  }
  return {};
}

}  // namespace

Result<GruQatRun> GruQatRun::forward(const GruModel& model, std::span<const float> x, int64_t steps, int64_t batch,
                                     std::span<float> y, const GruTrainingStates& states, const RunOptions& options) {
  const DefaultFloatMode mode;
  const std::vector<GruLayerParameters>& layers = model.parameters().layers;
  auto data = std::make_shared<Data>();
  data->sizes = {.steps = steps,
                 .batch = batch,
                 .input_size = model.input_size(),
                 .hidden_size = model.hidden_size(),
                 .layers = model.layer_count(),
                 .directions = model.parameters().directions};
  const GruTrainingSizes& s = data->sizes;
  ISOBIT_RETURN_IF_ERROR(GruTraining::create(s, kWho).status());
  ISOBIT_RETURN_IF_ERROR(
      refuse_options(options, kPathOption | kPoolOption | kSequenceOptions, "the training of a GRU"));
  if (options.batch_first)
    return refuse_training(std::string(kWho) + ": batch_first is set, must be false: x is [T, N, C] in training");
  ISOBIT_ASSIGN_OR_RETURN(data->path, options.path ? Result<CpuPath>(*options.path) : default_cpu_path());
  if (!cpu_can_run(data->path))
    return Status(StatusCode::kUnsupported,
                  std::string(kWho) + ": path is " + std::string(to_string(data->path)) +
                      ", which cannot run here: " + std::string(cpu_cannot_run_reason(data->path)));
  const int64_t H = s.hidden_size, rows = steps * batch, state_size = batch * H;
  const int64_t all_states = s.layers * s.directions * state_size;
  ISOBIT_RETURN_IF_ERROR(check_training_arrays(
      kWho,
      {TrainingArray("x", "T, N, C", x, rows * s.input_size), TrainingArray("y", "T, N, directions * H", y, y_size(s)),
       TrainingArray("states.first", "layers * directions, N, H", states.first, all_states, true),
       TrainingArray("states.last", "layers * directions, N, H", states.last, all_states, true),
       TrainingArray("options.lengths", "N", options.lengths, batch, true),
       TrainingArray("options.zoneout_mask", "layers, T, N, directions * H", options.zoneout_mask, s.layers * y_size(s),
                     true)}));
  ISOBIT_RETURN_IF_ERROR(check_lengths(kWho, options.lengths, steps));
  data->lengths.assign(options.lengths.begin(), options.lengths.end());
  data->mask.assign(options.zoneout_mask.begin(), options.zoneout_mask.end());

  std::vector<int64_t> codes;
  ISOBIT_RETURN_IF_ERROR(quantize_numbers(model.input_grid(), x, "x", codes, data->x_clipped));
  std::vector<std::vector<int64_t>> first(layers.size());
  for (size_t i = 0; i < layers.size() && !states.first.empty(); ++i) {
    const auto of_layer = states.first.subspan(i * static_cast<size_t>(state_size), static_cast<size_t>(state_size));
    ISOBIT_RETURN_IF_ERROR(
        quantize_numbers(layers[i].grids[kH], of_layer, "states.first", first[i], data->first_clipped));
    data->first.resize(data->first.size() + of_layer.size());
    dequantize_codes(layers[i].grids[kH], first[i], std::span(data->first).last(of_layer.size()));
  }
  data->inputs.emplace_back(x.size());
  dequantize_codes(model.input_grid(), codes, data->inputs.back());

  int64_t units = 0, clipped = 0;
  constexpr unsigned kAll = (1u << (kPassState + 1)) - 1;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    std::vector<int64_t> out(static_cast<size_t>(y_size(s)));
    for (int64_t d = 0; d < s.directions; ++d) {
      const auto index = static_cast<size_t>(layer * s.directions + d);
      const GruLayerParameters& p = layers[index];
      Data::Direction of{dequantized_rows(p.W, p.W_grid), dequantized_rows(p.R, p.R_grid),
                         std::vector<float>(static_cast<size_t>(4 * rows * H)),
                         std::vector<uint16_t>(static_cast<size_t>(rows * H), kAll)};
      std::vector<int64_t> last(static_cast<size_t>(state_size));
      qat_forward({.layer = &p,
                   .steps = steps,
                   .batch = batch,
                   .reverse = d == 1,
                   .lengths = data->lengths,
                   .x = codes.data(),
                   .mask = moved(data->mask.data(), layer * y_size(s) + d * H),
                   .first = states.first.empty() ? nullptr : first[index].data(),
                   .y_row = s.directions * H},
                  {moved(out.data(), d * H), last.data(), of.saved.data(), of.passes.data()}, options.pool);
      if (!states.last.empty())
        dequantize_codes(p.grids[kH], last,
                         states.last.subspan(index * static_cast<size_t>(state_size), static_cast<size_t>(state_size)));
      for (int64_t i = 0; i < rows * H; ++i) {
        if (i / H / batch >= data->length(i / H % batch)) continue;
        units += kPassState + 1;
        clipped += std::popcount(~of.passes[static_cast<size_t>(i)] & kAll);
      }
      data->directions.push_back(std::move(of));
    }
    data->inputs.emplace_back(out.size());
    dequantize_codes(layers[static_cast<size_t>(layer * s.directions)].grids[kH], out, data->inputs.back());
    codes = std::move(out);
  }
  std::copy(data->inputs.back().begin(), data->inputs.back().end(), y.begin());
  const auto share = [](int64_t part, int64_t all) {
    return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
  };
  data->clipped_units = share(clipped, units);
  int64_t numbers = 0, clipped_numbers = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (row / batch >= data->length(row % batch)) continue;
    numbers += s.input_size;
    const auto begin = data->x_clipped.begin() + row * s.input_size;
    clipped_numbers += std::count(begin, begin + s.input_size, true);
  }
  data->clipped_inputs = share(clipped_numbers, numbers);
  GruQatRun run;
  run.data_ = std::move(data);
  return run;
}

const GruTrainingSizes& GruQatRun::sizes() const { return data_->sizes; }
double GruQatRun::clipped_units() const { return data_->clipped_units; }
double GruQatRun::clipped_inputs() const { return data_->clipped_inputs; }

Status GruQatRun::backward(std::span<const float> dy, std::span<float> dx,
                           std::span<const GruTrainingGradients> gradients, const GruTrainingStates& states,
                           ThreadPool* pool) const {
  const DefaultFloatMode mode;
  const Data& data = *data_;
  const GruTrainingSizes& s = data.sizes;
  const int64_t all_states = s.layers * s.directions * s.batch * s.hidden_size;
  std::vector<TrainingArray> arrays = {
      TrainingArray("dy", "T, N, directions * H", dy, y_size(s)),
      TrainingArray("dx", "T, N, C", dx, s.steps * s.batch * s.input_size, true),
      TrainingArray("states.last_gradient", "layers * directions, N, H", states.last_gradient, all_states, true),
      TrainingArray("states.first_gradient", "layers * directions, N, H", states.first_gradient, all_states, true)};
  ISOBIT_RETURN_IF_ERROR(add_gradients(kWho, s, gradients, arrays));
  ISOBIT_RETURN_IF_ERROR(check_training_arrays(kWho, arrays));
  Workspace workspace(training_workspace_bytes(s, pool == nullptr ? 1 : pool->threads()));
  backward_layers(
      s, data.path, pool, workspace.data(), [&](int64_t layer, int64_t d) { return data.run_of(layer, d); }, dy.data(),
      dx.empty() ? nullptr : dx.data(), gradients, states);
  for (size_t i = 0; i < dx.size(); ++i)
    if (data.x_clipped[i]) dx[i] = 0.0f;
  for (size_t i = 0; i < data.first_clipped.size() && !states.first_gradient.empty(); ++i)
    if (data.first_clipped[i]) states.first_gradient[i] = 0.0f;
  return {};
}

}  // namespace isobit
