// SPDX-License-Identifier: Apache-2.0
// GruQatRun: what is checked, and the layers one after the other.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "core/float_mode.h"
#include "core/run_options.h"
#include "gru/training/arrays.h"
#include "gru/training/grids.h"
#include "gru/training/layers.h"
#include "gru/training/qat.h"
#include "isobit/gru_qat.h"

namespace isobit {

namespace {

/// What clamps of quantisation were given, of x and of first states.
struct NumberClamps {
  std::vector<uint16_t> passes;  // 1: it was in the grid
  std::vector<uint16_t> above;   // these of learned grids, else empty
  std::vector<float> rests;
};

}  // namespace

struct GruQatRun::Data {
  /// Of one direction of one layer, as numbers.
  struct Direction {
    std::vector<float> W, R, saved;
    std::vector<uint16_t> passes;
    std::vector<uint16_t> above{};  // these of learned grids, else empty
    std::vector<float> rests{};
    std::array<double, kGruTensorCount> clipped{};
  };

  GruTrainingSizes sizes;
  CpuPath path = CpuPath::kReference;
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;
  std::vector<std::vector<float>> inputs;  // x, then y of each layer
  std::vector<Direction> directions;
  std::vector<float> first;  // of the states' codes; empty: every code is z_h
  NumberClamps x_clamps, first_clamps;
  bool learns_grids = false;
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
            .passes = of.passes.data(),
            .above = learns_grids ? of.above.data() : nullptr,
            .rests = of.rests.data()};
  }
};

namespace {

constexpr char kWho[] = "training";

/// Codes of floats, and what their clamps were given.
Status quantize_numbers(const Grid& grid, std::span<const float> values, const char* name, bool learns,
                        std::vector<int64_t>& codes, NumberClamps& clamps) {
  constexpr float kFarthest = 0x1p33f;  // beyond every code
  const float inverse = grid.inverse_scale();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i]))
      return refuse_training(std::string(kWho) + ": " + name + "[" + std::to_string(i) + "] is NaN, must be a number");
    const float product = values[i] * inverse, rounded = std::nearbyint(product);
    const int64_t code = static_cast<int64_t>(std::clamp(rounded, -kFarthest, kFarthest)) + grid.zero_point;
    const bool passed = code >= grid.min() && code <= grid.max();
    codes.push_back(std::clamp(code, grid.min(), grid.max()));
    clamps.passes.push_back(passed ? 1 : 0);
    if (!learns) continue;
    clamps.above.push_back(code > grid.max() ? 1 : 0);
    clamps.rests.push_back(passed ? rounded - product : 0.0f);
  }
  return {};
}

/// Numbers that clamps were given, and those that they changed.
struct Share {
  int64_t all = 0, clipped = 0;
  [[nodiscard]] double value() const {
    return all == 0 ? 0.0 : static_cast<double>(clipped) / static_cast<double>(all);
  }
};

/// The tensor whose grid the clamp of a bit is of.
GruTensor tensor_of_clamp(int bit) {
  if (bit == kPassState) return kH;
  if (bit >= kPassGate) return static_cast<GruTensor>(kUIn + bit - kPassGate);
  return bit >= kPassHh ? kHh : kIh;
}

}  // namespace

Result<GruQatRun> GruQatRun::forward(const GruModel& model, std::span<const float> x, int64_t steps, int64_t batch,
                                     std::span<float> y, const GruTrainingStates& states, const RunOptions& options,
                                     const GruQatOptions& training) {
  const DefaultFloatMode mode;
  const std::vector<GruLayerParameters>& layers = model.parameters().layers;
  auto data = std::make_shared<Data>();
  data->learns_grids = training.learn_grids;
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
  ISOBIT_RETURN_IF_ERROR(quantize_numbers(model.input_grid(), x, "x", training.learn_grids, codes, data->x_clamps));
  std::vector<std::vector<int64_t>> first(layers.size());
  for (size_t i = 0; i < layers.size() && !states.first.empty(); ++i) {
    const auto of_layer = states.first.subspan(i * static_cast<size_t>(state_size), static_cast<size_t>(state_size));
    ISOBIT_RETURN_IF_ERROR(
        quantize_numbers(layers[i].grids[kH], of_layer, "states.first", false, first[i], data->first_clamps));
    data->first.resize(data->first.size() + of_layer.size());
    dequantize_codes(layers[i].grids[kH], first[i], std::span(data->first).last(of_layer.size()));
  }
  data->inputs.emplace_back(x.size());
  dequantize_codes(model.input_grid(), codes, data->inputs.back());

  Share units;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    std::vector<int64_t> out(static_cast<size_t>(y_size(s)));
    for (int64_t d = 0; d < s.directions; ++d) {
      const auto index = static_cast<size_t>(layer * s.directions + d);
      const GruLayerParameters& p = layers[index];
      Data::Direction of{dequantized_rows(p.W, p.W_grid), dequantized_rows(p.R, p.R_grid),
                         std::vector<float>(static_cast<size_t>(4 * rows * H)),
                         std::vector<uint16_t>(static_cast<size_t>(rows * H), kPassAll)};
      if (training.learn_grids) {
        of.above.resize(static_cast<size_t>(rows * H));
        of.rests.resize(static_cast<size_t>(rows * kClamps * H));
      }
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
                  {.y = moved(out.data(), d * H),
                   .last = last.data(),
                   .saved = of.saved.data(),
                   .passes = of.passes.data(),
                   .above = training.learn_grids ? of.above.data() : nullptr,
                   .rests = of.rests.data()},
                  options.pool);
      if (!states.last.empty())
        dequantize_codes(p.grids[kH], last,
                         states.last.subspan(index * static_cast<size_t>(state_size), static_cast<size_t>(state_size)));
      std::array<Share, kGruTensorCount> shares{};
      for (int64_t row = 0; row < rows; ++row) {
        if (row / batch >= data->length(row % batch)) continue;
        for (int bit = 0; bit < kClamps; ++bit) {
          const auto begin = of.passes.begin() + row * H;
          Share& share = shares[tensor_of_clamp(bit)];
          share.all += H;
          share.clipped += std::count_if(begin, begin + H, [=](uint16_t passes) { return (passes >> bit & 1) == 0; });
        }
      }
      for (size_t tensor = 0; tensor < shares.size(); ++tensor) {
        of.clipped[tensor] = shares[tensor].value();
        units.all += shares[tensor].all;
        units.clipped += shares[tensor].clipped;
      }
      data->directions.push_back(std::move(of));
    }
    data->inputs.emplace_back(out.size());
    dequantize_codes(layers[static_cast<size_t>(layer * s.directions)].grids[kH], out, data->inputs.back());
    codes = std::move(out);
  }
  std::copy(data->inputs.back().begin(), data->inputs.back().end(), y.begin());
  data->clipped_units = units.value();
  Share numbers;
  for (int64_t row = 0; row < rows; ++row) {
    if (row / batch >= data->length(row % batch)) continue;
    const auto begin = data->x_clamps.passes.begin() + row * s.input_size;
    numbers.all += s.input_size;
    numbers.clipped += std::count(begin, begin + s.input_size, 0);
  }
  data->clipped_inputs = numbers.value();
  for (int64_t d = 0; d < s.directions; ++d)
    data->directions[static_cast<size_t>(d)].clipped[kX] = data->clipped_inputs;
  GruQatRun run;
  run.data_ = std::move(data);
  return run;
}

const GruTrainingSizes& GruQatRun::sizes() const { return data_->sizes; }
double GruQatRun::clipped_units() const { return data_->clipped_units; }
double GruQatRun::clipped_inputs() const { return data_->clipped_inputs; }
double GruQatRun::clipped(int64_t layer, GruTensor tensor) const {
  return data_->directions[static_cast<size_t>(layer)].clipped[tensor];
}

double step_gradient(const GruGridGradient& sums, const Grid& grid) {
  const DefaultFloatMode mode;
  const auto steps = [&](int64_t code) { return static_cast<double>(code - grid.zero_point); };
  const double below = steps(grid.min()) * static_cast<double>(sums.below);
  const double above = steps(grid.max()) * static_cast<double>(sums.above);
  return static_cast<double>(sums.inside) + below + above;
}
double log2_step_gradient(const GruGridGradient& sums, const Grid& grid) {
  const DefaultFloatMode mode;
  return static_cast<double>(grid.scale()) * std::numbers::ln2 * step_gradient(sums, grid);
}

Status GruQatRun::backward(std::span<const float> dy, std::span<float> dx,
                           std::span<const GruTrainingGradients> gradients, const GruTrainingStates& states,
                           ThreadPool* pool, std::span<GruGridGradients> grids) const {
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
  if (!grids.empty() && !data.learns_grids)
    return refuse_training(std::string(kWho) + ": grids has " + std::to_string(grids.size()) +
                           " elements, must have 0: forward was called without learn_grids");
  arrays.emplace_back("grids", "layers * directions", grids, s.layers * s.directions, true);
  ISOBIT_RETURN_IF_ERROR(check_training_arrays(kWho, arrays));
  const bool wants_grids = !grids.empty();
  std::vector<float> dx_of_grid(wants_grids && dx.empty() ? data.inputs[0].size() : 0);
  const std::span<float> din = dx_of_grid.empty() ? dx : std::span(dx_of_grid);
  Workspace workspace(training_workspace_bytes(s, pool == nullptr ? 1 : pool->threads(), wants_grids));
  backward_layers(
      s, data.path, pool, workspace.data(), [&](int64_t layer, int64_t d) { return data.run_of(layer, d); }, dy.data(),
      din.empty() ? nullptr : din.data(), gradients, states, grids);
  if (wants_grids) {
    const TrainingDirection direction = data.run_of(0, 0).direction;
    const InputClamps x{data.x_clamps.rests.data(), data.x_clamps.passes.data(), data.x_clamps.above.data()};
    const GruGridGradient of_x = data.path == CpuPath::kReference
                                     ? reference_grid_of_inputs(direction, din.data(), x)
                                     : grid_of_inputs(direction, din.data(), x, training_kernels_of(data.path), pool);
    for (int64_t d = 0; d < s.directions; ++d) grids[static_cast<size_t>(d)][kX] = of_x;
  }
  for (size_t i = 0; i < dx.size(); ++i)
    if (data.x_clamps.passes[i] == 0) dx[i] = 0.0f;
  for (size_t i = 0; i < data.first_clamps.passes.size() && !states.first_gradient.empty(); ++i)
    if (data.first_clamps.passes[i] == 0) states.first_gradient[i] = 0.0f;
  return {};
}

}  // namespace isobit
