// SPDX-License-Identifier: Apache-2.0
// GruQatRun: what is checked, and the layers one after the other.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "gru/model.h"
#include "gru/training/arrays.h"
#include "gru/training/grids.h"
#include "gru/training/layers.h"
#include "gru/training/parts.h"
#include "gru/training/qat.h"
#include "isobit/gru_qat.h"

namespace isobit {

namespace {

constexpr char kWho[] = "training";

/// Whether an array is deleted; that of the caller is not.
struct Owner {
  bool owns = true;
  template <typename T>
  void operator()(T* array) const {
    if (owns) delete[] array;
  }
};
/// Arrays whose elements past a length stay as they are, and are not read.
template <typename T>
using Array = std::unique_ptr<T[], Owner>;
template <typename T>
Array<T> array_of(int64_t count) {
  return Array<T>(std::make_unique_for_overwrite<T[]>(static_cast<size_t>(count)).release());
}

/// What clamps of quantisation were given, of x and of first states.
struct NumberClamps {
  Array<uint16_t> passes;  // 1: it was in the grid
  Array<uint16_t> above;   // these of learned grids, else null
  Array<float> rests;

  NumberClamps() = default;
  NumberClamps(int64_t count, bool learns)
      : passes(array_of<uint16_t>(count)),
        above(learns ? array_of<uint16_t>(count) : nullptr),
        rests(learns ? array_of<float>(count) : nullptr) {}
};

/// Numbers that clamps were given, and those that they changed.
struct Share {
  int64_t all = 0, clipped = 0;
  Share& operator+=(const Share& other) {
    all += other.all;
    clipped += other.clipped;
    return *this;
  }
  [[nodiscard]] double value() const {
    return all == 0 ? 0.0 : static_cast<double>(clipped) / static_cast<double>(all);
  }
};

Status refuse_nan(const char* name, int64_t index) {
  return refuse_training(std::string(kWho) + ": " + name + "[" + std::to_string(index) + "] is NaN, must be a number");
}

/// Codes of floats in [first, end), and what their clamps were given. None is NaN.
void quantize_codes(const Grid& grid, const float* x, int64_t first, int64_t end, const NumberClamps& clamps,
                    int64_t* codes) {
  constexpr float kFarthest = 0x1p33f;  // beyond every code
  const float inverse = grid.inverse_scale();
  for (int64_t i = first; i < end; ++i) {
    const float product = x[i] * inverse, rounded = std::nearbyint(product);
    const int64_t code = static_cast<int64_t>(std::clamp(rounded, -kFarthest, kFarthest)) + grid.zero_point;
    const bool passed = code >= grid.min() && code <= grid.max();
    codes[i] = std::clamp(code, grid.min(), grid.max());
    const auto at = static_cast<size_t>(i);
    clamps.passes[at] = passed ? 1 : 0;
    if (clamps.rests == nullptr) continue;
    clamps.above[at] = code > grid.max() ? 1 : 0;
    clamps.rests[at] = passed ? rounded - product : 0.0f;
  }
}

/// Codes of one tensor, in the type that a forward takes: int64 of the reference, that of the grid of packed kernels.
struct Codes {
  std::vector<int64_t> wide;
  std::vector<std::byte> narrow;
};

}  // namespace

struct GruQatRun::Data {
  /// Of one direction of one layer, as numbers.
  struct Direction {
    std::vector<float> W, R;
    Array<float> saved;
    Array<uint16_t> passes;
    Array<uint16_t> above;  // these of learned grids, else null
    Array<float> rests;
    std::array<double, kGruTensorCount> clipped{};
  };

  GruTrainingSizes sizes;
  CpuPath path = CpuPath::kReference;
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;
  std::vector<Array<float>> inputs;  // x, then y of each layer
  std::vector<Direction> directions;
  std::vector<int64_t> first_codes;  // of states.first; empty: every code is z_h
  std::vector<float> first;          // their numbers
  NumberClamps x_clamps, first_clamps;
  bool learns_grids = false;
  bool is_packed = false;  // the packed kernels run it
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
                          .x = inputs[static_cast<size_t>(layer)].get(),
                          .mask = moved(mask.data(), layer * y_size(sizes) + d * H),
                          .first = state_of(std::span<const float>(first), index, sizes),
                          .y_row = sizes.directions * H},
            .y = moved(inputs[static_cast<size_t>(layer + 1)].get(), d * H),
            .saved = of.saved.get(),
            .passes = of.passes.get(),
            .above = of.above.get(),
            .rests = of.rests.get()};
  }

  /// Of steps past a length nothing is written: zeros, so that what is saved is determined.
  template <typename T>
  [[nodiscard]] Array<T> array_of_steps(int64_t count) const {
    if (lengths.empty()) return array_of<T>(count);
    return Array<T>(std::make_unique<T[]>(static_cast<size_t>(count)).release());
  }
  [[nodiscard]] int64_t rows() const { return sizes.steps * sizes.batch; }
  [[nodiscard]] int64_t state_size() const { return sizes.batch * sizes.hidden_size; }
  /// For each bit the numbers within lengths, of passes [T, N, width].
  [[nodiscard]] std::array<Share, kClamps> shares_of(const uint16_t* passes, int bits, int64_t width,
                                                     ThreadPool* pool) const;
  Status quantize_inputs(const GruModel& model, std::span<const float> x, ThreadPool* pool, Codes& codes);
  Status quantize_states(const GruModel& model, std::span<const float> states);
  /// One direction of a layer: y as codes and as numbers, columns of this direction; last [N, H].
  void run_reference(const GruLayerParameters& p, int64_t layer, int64_t d, const Codes& in, Codes& out,
                     const Direction& of, std::vector<int64_t>& last, ThreadPool* pool) const;
  void run_packed(const GruLayer& kernels, int64_t layer, int64_t d, const float* x, const Codes& in, Codes& out,
                  const Direction& of, std::vector<int64_t>& last, ThreadPool* pool) const;
};

std::array<Share, kClamps> GruQatRun::Data::shares_of(const uint16_t* passes, int bits, int64_t width,
                                                      ThreadPool* pool) const {
  std::vector<std::array<Share, kClamps>> parts(static_cast<size_t>(pool == nullptr ? 1 : pool->threads()));
  in_parts(pool, rows(), [&](int part, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (row / sizes.batch >= length(row % sizes.batch)) continue;
      const uint16_t* const of_row = passes + row * width;
      uint16_t all = 0xffff;
      for (int64_t k = 0; k < width; ++k) all &= of_row[k];
      for (int bit = 0; bit < bits; ++bit) {
        Share& share = parts[static_cast<size_t>(part)][static_cast<size_t>(bit)];
        share.all += width;
        if ((all >> bit & 1) != 0) continue;
        share.clipped += std::count_if(of_row, of_row + width, [=](uint16_t p) { return (p >> bit & 1) == 0; });
      }
    }
  });
  for (size_t part = 1; part < parts.size(); ++part)
    for (size_t bit = 0; bit < kClamps; ++bit) parts[0][bit] += parts[part][bit];
  return parts[0];
}

Status GruQatRun::Data::quantize_inputs(const GruModel& model, std::span<const float> x, ThreadPool* pool,
                                        Codes& codes) {
  const Grid& grid = model.input_grid();
  const auto count = static_cast<int64_t>(x.size());
  const int64_t nan = is_packed ? model.impl_->layers[0].find_nan(path, x)
                                : std::find_if(x.begin(), x.end(), [](float v) { return std::isnan(v); }) - x.begin();
  if (nan < count) return refuse_nan("x", nan);
  x_clamps = NumberClamps(count, learns_grids);
  inputs.push_back(array_of<float>(count));
  if (!is_packed) {
    codes.wide.resize(x.size());
    quantize_codes(grid, x.data(), 0, count, x_clamps, codes.wide.data());
    dequantize_codes(grid, codes.wide, {inputs[0].get(), x.size()});
    return {};
  }
  const GruTrainingKernels kernels = training_kernels_of(path);
  constexpr int64_t kTogether = 1024;
  in_parts(pool, pieces(count, kTogether), [&](int, int64_t begin, int64_t end) {
    kernels.quantize({.x = x.data(),
                      .inverse_scale = grid.inverse_scale(),
                      .scale = grid.scale(),
                      .low = static_cast<float>(grid.min() - grid.zero_point),
                      .high = static_cast<float>(grid.max() - grid.zero_point),
                      .numbers = inputs[0].get(),
                      .passes = x_clamps.passes.get(),
                      .above = x_clamps.above.get(),
                      .rests = x_clamps.rests.get(),
                      .first = begin * kTogether,
                      .end = std::min(count, end * kTogether)});
  });
  return {};
}

Status GruQatRun::Data::quantize_states(const GruModel& model, std::span<const float> states) {
  const auto count = static_cast<int64_t>(states.size());
  for (int64_t i = 0; i < count; ++i)
    if (std::isnan(states[static_cast<size_t>(i)])) return refuse_nan("states.first", i);
  first_codes.resize(states.size());
  first.resize(states.size());
  first_clamps = NumberClamps(count, false);
  for (int64_t begin = 0; begin < count; begin += state_size()) {
    const Grid& grid = model.parameters().layers[static_cast<size_t>(begin / state_size())].grids[kH];
    quantize_codes(grid, states.data(), begin, begin + state_size(), first_clamps, first_codes.data());
    const auto at = static_cast<size_t>(begin), size = static_cast<size_t>(state_size());
    dequantize_codes(grid, std::span(first_codes).subspan(at, size), std::span(first).subspan(at, size));
  }
  return {};
}

void GruQatRun::Data::run_reference(const GruLayerParameters& p, int64_t layer, int64_t d, const Codes& in, Codes& out,
                                    const Direction& of, std::vector<int64_t>& last, ThreadPool* pool) const {
  const int64_t H = sizes.hidden_size, index = layer * sizes.directions + d;
  qat_forward({.layer = &p,
               .steps = sizes.steps,
               .batch = sizes.batch,
               .reverse = d == 1,
               .lengths = lengths,
               .x = in.wide.data(),
               .mask = moved(mask.data(), layer * y_size(sizes) + d * H),
               .first = state_of(std::span(first_codes), index, sizes),
               .y_row = sizes.directions * H},
              {.y = moved(out.wide.data(), d * H),
               .last = last.data(),
               .saved = of.saved.get(),
               .passes = of.passes.get(),
               .above = of.above.get(),
               .rests = of.rests.get()},
              pool);
}

void GruQatRun::Data::run_packed(const GruLayer& kernels, int64_t layer, int64_t d, const float* x, const Codes& in,
                                 Codes& out, const Direction& of, std::vector<int64_t>& last, ThreadPool* pool) const {
  const int64_t H = sizes.hidden_size, N = sizes.batch, width = sizes.directions * H;
  const Grid& grid = kernels.parameters().grids[kH];
  const auto code_bytes = static_cast<int64_t>(size_in_bytes(grid.dtype()));
  const int64_t* const start = state_of(std::span(first_codes), layer * sizes.directions + d, sizes);
  std::vector<std::byte> state(static_cast<size_t>(state_size() * code_bytes));
  for (int64_t i = 0; i < state_size(); ++i)
    store_code(state.data(), grid.dtype(), i, start == nullptr ? grid.zero_point : start[i]);
  const LayerRecord record{of.saved.get(), of.passes.get(), of.above.get(), of.rests.get()};
  LayerRun run;
  run.steps = sizes.steps;
  run.reverse = d == 1;
  if (layer == 0) {
    run.x_float = x;
  } else {
    run.x = in.narrow.data();
  }
  run.x_strides = {N * inputs_of(sizes, layer), inputs_of(sizes, layer)};
  run.y = moved(out.narrow.data(), d * H * code_bytes);
  run.y_float = moved(inputs.back().get(), d * H);
  run.y_strides = {N * width, width};
  run.h = state.data();
  run.lengths = lengths;
  run.mask = moved(mask.data(), layer * y_size(sizes) + d * H);
  run.batch = N;
  run.mask_width = width;
  run.record = &record;
  const int64_t scratch_bytes = (kernels.scratch_bytes(N, sizes.steps) + 63) / 64 * 64;
  Workspace scratch(scratch_bytes * (pool == nullptr ? 1 : pool->threads()));
  const int64_t sequences = sizes.steps == 0 ? 0 : N;  // kernels take one step at least
  in_parts(pool, sequences, [&](int part, int64_t begin, int64_t end) {
    LayerRun of_part = run;
    of_part.begin = begin;
    of_part.end = end;
    of_part.scratch = scratch.data() + part * scratch_bytes;
    kernels.run(path, of_part);
  });
  for (int64_t i = 0; i < state_size(); ++i) last[static_cast<size_t>(i)] = load_code(state.data(), grid.dtype(), i);
}

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

  data->is_packed = data->path != CpuPath::kReference && model.supports(data->path).ok();
  Codes codes;  // of x, then of y of each layer
  ISOBIT_RETURN_IF_ERROR(data->quantize_inputs(model, x, options.pool, codes));
  ISOBIT_RETURN_IF_ERROR(data->quantize_states(model, states.first));
  Share units;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const Grid& h_grid = layers[static_cast<size_t>(layer * s.directions)].grids[kH];
    Codes out;
    if (data->is_packed) {
      out.narrow.resize(static_cast<size_t>(y_size(s)) * size_in_bytes(h_grid.dtype()));
    } else {
      out.wide.resize(static_cast<size_t>(y_size(s)));
    }
    data->inputs.push_back(array_of<float>(y_size(s)));
    for (int64_t d = 0; d < s.directions; ++d) {
      const auto index = static_cast<size_t>(layer * s.directions + d);
      const GruLayerParameters& p = layers[index];
      Data::Direction of{dequantized_rows(p.W, p.W_grid),
                         dequantized_rows(p.R, p.R_grid),
                         data->array_of_steps<float>(4 * rows * H),
                         data->array_of_steps<uint16_t>(rows * H),
                         training.learn_grids ? data->array_of_steps<uint16_t>(rows * H) : nullptr,
                         training.learn_grids ? data->array_of_steps<float>(rows * kClamps * H) : nullptr};
      std::vector<int64_t> last(static_cast<size_t>(state_size));
      if (data->is_packed) {
        data->run_packed(model.impl_->layers[index], layer, d, x.data(), codes, out, of, last, options.pool);
      } else {
        data->run_reference(p, layer, d, codes, out, of, last, options.pool);
      }
      if (!states.last.empty())
        dequantize_codes(h_grid, last,
                         states.last.subspan(index * static_cast<size_t>(state_size), static_cast<size_t>(state_size)));
      std::array<Share, kGruTensorCount> shares{};
      const std::array<Share, kClamps> of_bits = data->shares_of(of.passes.get(), kClamps, H, options.pool);
      for (int bit = 0; bit < kClamps; ++bit) shares[tensor_of_clamp(bit)] += of_bits[static_cast<size_t>(bit)];
      for (size_t tensor = 0; tensor < shares.size(); ++tensor) {
        of.clipped[tensor] = shares[tensor].value();
        units += shares[tensor];
      }
      data->directions.push_back(std::move(of));
    }
    if (!data->is_packed) dequantize_codes(h_grid, out.wide, {data->inputs.back().get(), out.wide.size()});
    codes = std::move(out);
  }
  std::copy_n(data->inputs.back().get(), y_size(s), y.begin());
  data->clipped_units = units.value();
  data->clipped_inputs = data->shares_of(data->x_clamps.passes.get(), 1, s.input_size, options.pool)[0].value();
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

float step_gradient(const GruGridGradient& sums, const Grid& grid) {
  return in_default_float_mode([&] {
    const auto steps = [&](int64_t code) { return static_cast<float>(code - grid.zero_point); };
    return sums.inside + steps(grid.min()) * sums.below + steps(grid.max()) * sums.above;
  });
}
float log2_step_gradient(const GruGridGradient& sums, const Grid& grid) {
  return in_default_float_mode([&] { return grid.scale() * std::numbers::ln2_v<float> * step_gradient(sums, grid); });
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
  std::vector<float> dx_of_grid(wants_grids && dx.empty() ? static_cast<size_t>(s.steps * s.batch * s.input_size) : 0);
  const std::span<float> din = dx_of_grid.empty() ? dx : std::span(dx_of_grid);
  Workspace workspace(training_workspace_bytes(s, pool == nullptr ? 1 : pool->threads(), wants_grids));
  backward_layers(
      s, data.path, pool, workspace.data(), [&](int64_t layer, int64_t d) { return data.run_of(layer, d); }, dy.data(),
      din.empty() ? nullptr : din.data(), gradients, states, grids);
  if (wants_grids) {
    const TrainingDirection direction = data.run_of(0, 0).direction;
    const InputClamps x{data.x_clamps.rests.get(), data.x_clamps.passes.get(), data.x_clamps.above.get()};
    const GruGridGradient of_x = data.path == CpuPath::kReference
                                     ? reference_grid_of_inputs(direction, din.data(), x)
                                     : grid_of_inputs(direction, din.data(), x, training_kernels_of(data.path), pool);
    for (int64_t d = 0; d < s.directions; ++d) grids[static_cast<size_t>(d)][kX] = of_x;
  }
  for (size_t i = 0; i < dx.size(); ++i)
    if (data.x_clamps.passes[i] == 0) dx[i] = 0.0f;
  for (size_t i = 0; i < data.first.size() && !states.first_gradient.empty(); ++i)
    if (data.first_clamps.passes[i] == 0) states.first_gradient[i] = 0.0f;
  return {};
}

// ---- What backward needs, as bytes

namespace {

/// What saved bytes begin with.
struct SavedHeader {
  static constexpr uint64_t kMagic = 0x3174617175726769;
  uint64_t magic = kMagic;
  GruTrainingSizes sizes;
  uint8_t has_lengths = 0, has_mask = 0, has_first = 0, learns_grids = 0;
  uint32_t unused = 0;

  /// visit(count, width of an element) for every array.
  template <typename Visit>
  void for_each_size(const Visit& visit) const {
    const Int128 H = sizes.hidden_size, D = sizes.directions, rows = static_cast<Int128>(sizes.steps) * sizes.batch;
    const Int128 states = sizes.layers * D * sizes.batch * H, inputs = rows * sizes.input_size;
    visit(has_lengths != 0 ? Int128{sizes.batch} : 0, sizeof(int64_t));
    visit(has_first != 0 ? states : 0, sizeof(float) + sizeof(uint16_t));
    visit(inputs, sizeof(float) + sizeof(uint16_t));
    visit(learns_grids != 0 ? inputs : 0, sizeof(float) + sizeof(uint16_t));
    visit(sizes.layers * rows * D * H, sizeof(float) + (has_mask != 0 ? 1 : 0));
    for (int64_t layer = 0; layer < sizes.layers; ++layer) {
      visit(D * 3 * H * (inputs_of(sizes, layer) + H), sizeof(float));
      visit(D * rows * H, 4 * sizeof(float) + sizeof(uint16_t));
      visit(learns_grids != 0 ? D * rows * H : 0, kClamps * sizeof(float) + sizeof(uint16_t));
    }
  }
  [[nodiscard]] Int128 size() const {
    Int128 size = sizeof(SavedHeader);
    for_each_size([&](Int128 count, size_t width) { size += count * static_cast<Int128>(width); });
    return size;
  }
};

/// visit(array, count) for every array that backward reads, the widest numbers first.
template <typename Data, typename Visit>
void for_each_array(Data& data, const Visit& visit) {
  const GruTrainingSizes& s = data.sizes;
  const int64_t inputs = data.rows() * s.input_size, units = data.rows() * s.hidden_size;
  const int64_t learned = data.learns_grids ? 1 : 0, first = std::ssize(data.first);
  visit(data.lengths, std::ssize(data.lengths));
  visit(data.first, first);
  for (size_t i = 0; i < data.inputs.size(); ++i) visit(data.inputs[i], i == 0 ? inputs : y_size(s));
  visit(data.x_clamps.rests, learned * inputs);
  for (auto& of : data.directions) {
    visit(of.W, std::ssize(of.W));
    visit(of.R, std::ssize(of.R));
    visit(of.saved, 4 * units);
    visit(of.rests, learned * kClamps * units);
  }
  for (auto& of : data.directions) {
    visit(of.passes, units);
    visit(of.above, learned * units);
  }
  visit(data.x_clamps.passes, inputs);
  visit(data.x_clamps.above, learned * inputs);
  visit(data.first_clamps.passes, first);
  visit(data.mask, std::ssize(data.mask));
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& array, int64_t) {
  return std::as_bytes(std::span(array));
}
template <typename T>
std::span<const std::byte> bytes_of(const Array<T>& array, int64_t count) {
  return std::as_bytes(std::span(array.get(), static_cast<size_t>(count)));
}
/// What was saved of an array: a copy, or where it lies.
template <typename T>
void take_from(const std::byte*& from, std::vector<T>& array, int64_t) {
  const std::span<std::byte> to = std::as_writable_bytes(std::span(array));
  std::copy_n(from, to.size(), to.begin());
  from += to.size();
}
template <typename T>
void take_from(const std::byte*& from, Array<T>& array, int64_t count) {
  // Of a run that is restored nothing is written.
  array = Array<T>(reinterpret_cast<T*>(const_cast<std::byte*>(from)), Owner{false});
  from += static_cast<size_t>(count) * sizeof(T);
}

template <typename Data>
SavedHeader saved_header(const Data& data) {
  SavedHeader header;
  header.sizes = data.sizes;
  header.has_lengths = data.lengths.empty() ? 0 : 1;
  header.has_mask = data.mask.empty() ? 0 : 1;
  header.has_first = data.first.empty() ? 0 : 1;
  header.learns_grids = data.learns_grids ? 1 : 0;
  return header;
}

}  // namespace

int64_t GruQatRun::saved_size() const { return static_cast<int64_t>(saved_header(*data_).size()); }

Status GruQatRun::save(std::span<std::byte> bytes) const {
  if (std::ssize(bytes) != saved_size())
    return refuse_training(std::string(kWho) + ": saved has " + std::to_string(bytes.size()) + " bytes, must have " +
                           std::to_string(saved_size()));
  const SavedHeader header = saved_header(*data_);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::byte* to = bytes.data() + sizeof(header);
  for_each_array(*data_,
                 [&](const auto& array, int64_t count) { to = std::ranges::copy(bytes_of(array, count), to).out; });
  return {};
}

Result<GruQatRun> GruQatRun::restore(std::span<const std::byte> bytes) {
  static_assert(sizeof(SavedHeader) == 64);
  const std::string who = std::string(kWho) + ": saved";
  SavedHeader header;
  if (bytes.size() < sizeof(header)) return refuse_training(who + " is no more than a part of what save() wrote");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != SavedHeader::kMagic) return refuse_training(who + " is not what save() wrote");
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(int64_t) != 0)
    return refuse_training(who + " must begin at a multiple of " + std::to_string(alignof(int64_t)) + " bytes");
  const GruTrainingSizes& s = header.sizes;
  ISOBIT_RETURN_IF_ERROR(GruTraining::create(s, who).status());
  if (header.size() != static_cast<Int128>(bytes.size()))
    return refuse_training(who + " has " + std::to_string(bytes.size()) + " bytes, which is not what save() wrote");

  auto data = std::make_shared<Data>();
  data->sizes = s;
  data->learns_grids = header.learns_grids != 0;
  ISOBIT_ASSIGN_OR_RETURN(data->path, default_cpu_path());
  const auto count = [](int64_t of) { return static_cast<size_t>(of); };
  const int64_t H = s.hidden_size;
  if (header.has_lengths != 0) data->lengths.resize(count(s.batch));
  if (header.has_mask != 0) data->mask.resize(count(s.layers * y_size(s)));
  if (header.has_first != 0) data->first.resize(count(s.layers * s.directions * data->state_size()));
  data->inputs.resize(count(s.layers + 1));
  data->directions.resize(count(s.layers * s.directions));
  for (int64_t i = 0; i < s.layers * s.directions; ++i) {
    data->directions[count(i)].W.resize(count(3 * H * inputs_of(s, i / s.directions)));
    data->directions[count(i)].R.resize(count(3 * H * H));
  }
  const std::byte* from = bytes.data() + sizeof(header);
  for_each_array(*data, [&](auto& array, int64_t of_array) { take_from(from, array, of_array); });
  ISOBIT_RETURN_IF_ERROR(check_lengths(kWho, data->lengths, s.steps));
  GruQatRun run;
  run.data_ = std::move(data);
  return run;
}

}  // namespace isobit
