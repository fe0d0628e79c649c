// SPDX-License-Identifier: Apache-2.0
// GruTraining: what is checked, and the layers one after the other.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/float_mode.h"
#include "core/run_options.h"
#include "gru/training/layer.h"
#include "gru/training/reference.h"
#include "isobit/gru_training.h"

namespace isobit {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 40;

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

int64_t product_of(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(product, size, &product)) return INT64_MAX;
  return product;
}

/// An array of the call, for its checks.
struct Array {
  std::string name, axes;
  const void* data;
  size_t size;  // elements
  size_t element_bytes;
  int64_t wanted;
  bool optional = false;  // may be empty
  bool written = false;

  template <typename T>
  Array(std::string array, std::string shape, std::span<T> values, int64_t count, bool may_be_empty = false)
      : name(std::move(array)),
        axes(std::move(shape)),
        data(values.data()),
        size(values.size()),
        element_bytes(sizeof(T)),
        wanted(count),
        optional(may_be_empty),
        written(!std::is_const_v<T>) {}
};

Status check_arrays(const std::string& who, const std::vector<Array>& arrays) {
  for (const Array& a : arrays)
    if (a.size != static_cast<size_t>(a.wanted) && !(a.optional && a.size == 0))
      return invalid(who + ": " + a.name + " has " + std::to_string(a.size) + " elements, must have " +
                     std::to_string(a.wanted) + ": [" + a.axes + "]");
  for (const Array& a : arrays)
    for (const Array& b : arrays) {
      const auto begin = [](const Array& array) { return reinterpret_cast<uintptr_t>(array.data); };
      const auto end = [&](const Array& array) { return begin(array) + array.size * array.element_bytes; };
      if (&a != &b && a.written && a.size > 0 && b.size > 0 && begin(a) < end(b) && begin(b) < end(a))
        return invalid(who + ": " + a.name + " overlaps " + b.name + ", must be apart from it");
    }
  return {};
}

int64_t inputs_of(const GruTrainingSizes& s, int64_t layer) {
  return layer == 0 ? s.input_size : s.directions * s.hidden_size;
}
int64_t y_size(const GruTrainingSizes& s) { return s.steps * s.batch * s.directions * s.hidden_size; }
int64_t gates_size(const GruTrainingSizes& s) { return s.steps * s.batch * 4 * s.hidden_size; }
/// Of `saved`: y of a layer but the last, then u, r, n and q of all directions of all layers.
int64_t y_at(const GruTrainingSizes& s, int64_t layer) { return layer * y_size(s); }
int64_t gates_at(const GruTrainingSizes& s, int64_t layer, int64_t direction) {
  return (s.layers - 1) * y_size(s) + (layer * s.directions + direction) * gates_size(s);
}

/// What backward keeps of a call: gradients of y of layers below, and dx of a direction.
struct Between {
  float* dy[2];
  float* dx;

  Between(Scratch& scratch, const GruTrainingSizes& s) {
    for (float*& of_layer : dy) of_layer = scratch.floats(s.layers > 1 ? y_size(s) : 0);
    const int64_t inputs = std::max(s.input_size, s.layers > 1 ? s.directions * s.hidden_size : 0);
    dx = scratch.floats(s.directions > 1 ? s.steps * s.batch * inputs : 0);
  }
};

int64_t workspace_bytes(const GruTrainingSizes& s, int threads) {
  Scratch scratch(nullptr);
  const Between between(scratch, s);
  int64_t most = 0;
  for (int64_t layer = 0; layer < std::min<int64_t>(s.layers, 2); ++layer)
    most = std::max(most, training_scratch_bytes(s.steps, s.batch, inputs_of(s, layer), s.hidden_size, threads));
  return scratch.used() + most;
}

}  // namespace

Result<GruTraining> GruTraining::create(const GruTrainingSizes& sizes, std::string_view name) {
  const std::string who(name);
  const struct {
    const char* name;
    int64_t value, least, most;
  } limits[] = {{"steps", sizes.steps, 0, kMostNumbers},
                {"batch", sizes.batch, 0, kMostNumbers},
                {"input_size", sizes.input_size, 1, kMostNumbers},
                {"hidden_size", sizes.hidden_size, 1, kMostNumbers},
                {"layers", sizes.layers, 1, 1 << 20},
                {"directions", sizes.directions, 1, 2}};
  for (const auto& limit : limits)
    if (limit.value < limit.least || limit.value > limit.most)
      return invalid(who + ": " + limit.name + " is " + std::to_string(limit.value) + ", must be " +
                     std::to_string(limit.least) + " to " + std::to_string(limit.most));
  const int64_t rows = product_of({sizes.steps, sizes.batch});
  const int64_t states = product_of({sizes.layers, sizes.directions});
  const int64_t inputs = std::max(sizes.input_size, product_of({sizes.directions, sizes.hidden_size}));
  const std::pair<const char*, int64_t> tensors[] = {
      {"x", product_of({rows, sizes.input_size})},
      {"W of a layer", product_of({3, sizes.hidden_size, inputs})},
      {"what forward keeps", product_of({rows, states, 5, sizes.hidden_size})},
      {"the states", product_of({states, sizes.batch, sizes.hidden_size})}};
  for (const auto& [what, count] : tensors)
    if (count > kMostNumbers)
      return invalid(who + ": " + what + " would have " + (count == INT64_MAX ? "2^63" : std::to_string(count)) +
                     " numbers or more, must have at most " + std::to_string(kMostNumbers));
  GruTraining training;
  training.sizes_ = sizes;
  training.name_ = who;
  return training;
}

int64_t GruTraining::saved_size() const { return gates_at(sizes_, sizes_.layers, 0); }

Workspace GruTraining::workspace(int threads) const { return Workspace(workspace_bytes(sizes_, std::max(threads, 1))); }

namespace {

/// What both check of a call.
struct Call {
  const GruTrainingSizes& s;
  const std::string& name;
  std::span<const GruTrainingWeights> weights;
  std::span<const float> x;
  const GruTrainingStates& states;
  const RunOptions& options;
  CpuPath path = CpuPath::kReference;

  [[nodiscard]] int64_t state_size() const { return s.batch * s.hidden_size; }
  [[nodiscard]] int threads() const { return options.pool == nullptr ? 1 : options.pool->threads(); }

  Status check(Workspace& workspace, std::vector<Array> arrays) {
    ISOBIT_RETURN_IF_ERROR(
        refuse_options(options, kPathOption | kPoolOption | kSequenceOptions, "the training of a GRU"));
    if (options.batch_first) return invalid(name + ": batch_first is set, must be false: x is [T, N, C] in training");
    if (options.path) {
      if (!cpu_can_run(*options.path))
        return {StatusCode::kUnsupported,
                name + ": path is " + std::string(to_string(*options.path)) +
                    ", which cannot run here: " + std::string(cpu_cannot_run_reason(*options.path))};
      path = *options.path;
    } else {
      ISOBIT_ASSIGN_OR_RETURN(path, default_cpu_path());
    }
    const int64_t H = s.hidden_size, directions = s.layers * s.directions;
    if (static_cast<int64_t>(weights.size()) != directions)
      return invalid(name + ": weights has " + std::to_string(weights.size()) + " elements, must have " +
                     std::to_string(directions) + ": [layers * directions]");
    for (int64_t i = 0; i < directions; ++i) {
      const GruTrainingWeights& w = weights[static_cast<size_t>(i)];
      const std::string which = "weights[" + std::to_string(i) + "].";
      const int64_t inputs = inputs_of(s, i / s.directions);
      arrays.emplace_back(which + "W", "3H, C", w.W, 3 * H * inputs);
      arrays.emplace_back(which + "R", "3H, H", w.R, 3 * H * H);
      arrays.emplace_back(which + "bw", "3H", w.bw, 3 * H);
      arrays.emplace_back(which + "br", "3H", w.br, 3 * H);
    }
    const int64_t all_states = directions * state_size();
    arrays.emplace_back("x", "T, N, C", x, s.steps * s.batch * s.input_size);
    arrays.emplace_back("states.first", "layers * directions, N, H", states.first, all_states, true);
    arrays.emplace_back("states.last", "layers * directions, N, H", states.last, all_states, true);
    arrays.emplace_back("states.last_gradient", "layers * directions, N, H", states.last_gradient, all_states, true);
    arrays.emplace_back("states.first_gradient", "layers * directions, N, H", states.first_gradient, all_states, true);
    arrays.emplace_back("options.lengths", "N", options.lengths, s.batch, true);
    arrays.emplace_back("options.zoneout_mask", "layers, T, N, directions * H", options.zoneout_mask,
                        s.layers * y_size(s), true);
    const std::span<std::byte> scratch(workspace.data(), static_cast<size_t>(workspace.size_bytes()));
    arrays.emplace_back("workspace", "bytes", scratch, workspace.size_bytes());
    ISOBIT_RETURN_IF_ERROR(check_arrays(name, arrays));
    for (size_t n = 0; n < options.lengths.size(); ++n)
      if (options.lengths[n] < 0 || options.lengths[n] > s.steps)
        return invalid(name + ": options.lengths[" + std::to_string(n) + "] is " + std::to_string(options.lengths[n]) +
                       ", must be 0 to " + std::to_string(s.steps));
    const int64_t needed = workspace_bytes(s, threads());
    if (!workspace_fits(workspace, needed))
      return refuse_workspace(workspace, needed, {}, "training" + on_threads(threads()), "GruTraining::workspace");
    return {};
  }

  [[nodiscard]] TrainingDirection direction(int64_t layer, int64_t d, const float* below) const {
    const int64_t index = layer * s.directions + d;
    const uint8_t* mask = nullptr;
    if (!options.zoneout_mask.empty()) mask = options.zoneout_mask.data() + layer * y_size(s) + d * s.hidden_size;
    return {.steps = s.steps,
            .batch = s.batch,
            .inputs = inputs_of(s, layer),
            .hidden = s.hidden_size,
            .reverse = d == 1,
            .lengths = options.lengths,
            .weights = weights[static_cast<size_t>(index)],
            .x = layer == 0 ? x.data() : below,
            .mask = mask,
            .first = states.first.empty() ? nullptr : states.first.data() + index * state_size(),
            .y_row = s.directions * s.hidden_size};
  }
};

/// Where an optional array has the state of a direction.
template <typename T>
T* state_of(std::span<T> states, int64_t index, int64_t size) {
  return states.empty() ? nullptr : states.data() + index * size;
}

}  // namespace

Status GruTraining::forward(std::span<const GruTrainingWeights> weights, std::span<const float> x, std::span<float> y,
                            std::span<float> saved, Workspace& workspace, const GruTrainingStates& states,
                            const RunOptions& options) const {
  const DefaultFloatMode mode;
  const GruTrainingSizes& s = sizes_;
  Call call{s, name_, weights, x, states, options};
  ISOBIT_RETURN_IF_ERROR(call.check(
      workspace, {Array("y", "T, N, directions * H", y, y_size(s)), Array("saved", "numbers", saved, saved_size())}));
  const GruTrainingKernels kernels = training_kernels_of(call.path);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    float* const out = layer + 1 == s.layers ? y.data() : saved.data() + y_at(s, layer);
    for (int64_t d = 0; d < s.directions; ++d) {
      const TrainingDirection direction =
          call.direction(layer, d, layer == 0 ? nullptr : saved.data() + y_at(s, layer - 1));
      const TrainingForward f{.y = out + d * s.hidden_size,
                              .last = state_of(states.last, layer * s.directions + d, call.state_size()),
                              .saved = saved.data() + gates_at(s, layer, d)};
      if (call.path == CpuPath::kReference) {
        reference_forward(direction, f);
      } else {
        train_forward(direction, f, kernels, workspace.data(), options.pool);
      }
    }
  }
  return {};
}

Status GruTraining::backward(std::span<const GruTrainingWeights> weights, std::span<const float> x,
                             std::span<const float> y, std::span<const float> saved, std::span<const float> dy,
                             std::span<float> dx, std::span<const GruTrainingGradients> gradients, Workspace& workspace,
                             const GruTrainingStates& states, const RunOptions& options) const {
  const DefaultFloatMode mode;
  const GruTrainingSizes& s = sizes_;
  const int64_t H = s.hidden_size;
  std::vector<Array> arrays = {Array("y", "T, N, directions * H", y, y_size(s)),
                               Array("saved", "numbers", saved, saved_size()),
                               Array("dy", "T, N, directions * H", dy, y_size(s)),
                               Array("dx", "T, N, C", dx, s.steps * s.batch * s.input_size, true)};
  if (gradients.size() != weights.size())
    return invalid(name_ + ": gradients has " + std::to_string(gradients.size()) + " elements, must have " +
                   std::to_string(weights.size()) + " as weights");
  for (size_t i = 0; i < gradients.size(); ++i) {
    const std::string which = "gradients[" + std::to_string(i) + "].";
    const int64_t inputs = inputs_of(s, static_cast<int64_t>(i) / s.directions);
    arrays.emplace_back(which + "W", "3H, C", gradients[i].W, 3 * H * inputs);
    arrays.emplace_back(which + "R", "3H, H", gradients[i].R, 3 * H * H);
    arrays.emplace_back(which + "bw", "3H", gradients[i].bw, 3 * H);
    arrays.emplace_back(which + "br", "3H", gradients[i].br, 3 * H);
  }
  Call call{s, name_, weights, x, states, options};
  ISOBIT_RETURN_IF_ERROR(call.check(workspace, std::move(arrays)));
  const GruTrainingKernels kernels = training_kernels_of(call.path);
  Scratch scratch(workspace.data());
  const Between between(scratch, s);
  for (int64_t layer = s.layers - 1; layer >= 0; --layer) {
    const bool top = layer + 1 == s.layers;
    const float* const out = top ? y.data() : saved.data() + y_at(s, layer);
    const float* const dout = top ? dy.data() : between.dy[(layer + 1) % 2];
    float* const din = layer > 0 ? between.dy[layer % 2] : dx.empty() ? nullptr : dx.data();
    for (int64_t d = 0; d < s.directions; ++d) {
      const int64_t index = layer * s.directions + d;
      const TrainingDirection direction =
          call.direction(layer, d, layer == 0 ? nullptr : saved.data() + y_at(s, layer - 1));
      const bool first_of_two = s.directions == 2 && d == 0;
      const TrainingBackward b{.y = out + d * H,
                               .saved = saved.data() + gates_at(s, layer, d),
                               .passes = nullptr,
                               .dy = dout + d * H,
                               .last_gradient = state_of(states.last_gradient, index, call.state_size()),
                               .first_gradient = state_of(states.first_gradient, index, call.state_size()),
                               .dx = din == nullptr ? nullptr
                                     : first_of_two ? between.dx
                                                    : din,
                               .dx_add = d == 1 ? between.dx : nullptr,
                               .gradients = gradients[static_cast<size_t>(index)]};
      if (call.path == CpuPath::kReference) {
        reference_backward(direction, b);
      } else {
        train_backward(direction, b, kernels, workspace.data() + scratch.used(), options.pool);
      }
    }
  }
  return {};
}

}  // namespace isobit
