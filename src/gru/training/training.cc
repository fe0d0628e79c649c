// SPDX-License-Identifier: Apache-2.0
// GruTraining: what is checked, and the layers one after the other.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/float_mode.h"
#include "core/run_options.h"
#include "gru/training/arrays.h"
#include "gru/training/layers.h"
#include "isobit/gru_training.h"

namespace isobit {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 40;

int64_t product_of(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(product, size, &product)) return INT64_MAX;
  return product;
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
      return refuse_training(who + ": " + limit.name + " is " + std::to_string(limit.value) + ", must be " +
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
      return refuse_training(who + ": " + what + " would have " +
                             (count == INT64_MAX ? "2^63" : std::to_string(count)) +
                             " numbers or more, must have at most " + std::to_string(kMostNumbers));
  GruTraining training;
  training.sizes_ = sizes;
  training.name_ = who;
  return training;
}

int64_t GruTraining::saved_size() const { return saved_gates_at(sizes_, sizes_.layers, 0); }

Workspace GruTraining::workspace(int threads) const {
  return Workspace(training_workspace_bytes(sizes_, std::max(threads, 1)));
}

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

  [[nodiscard]] int threads() const { return options.pool == nullptr ? 1 : options.pool->threads(); }

  Status check(Workspace& workspace, std::vector<TrainingArray> arrays) {
    ISOBIT_RETURN_IF_ERROR(
        refuse_options(options, kPathOption | kPoolOption | kSequenceOptions, "the training of a GRU"));
    if (options.batch_first)
      return refuse_training(name + ": batch_first is set, must be false: x is [T, N, C] in training");
    if (options.path) {
      if (!cpu_can_run(*options.path))
        return {StatusCode::kUnsupported,
                name + ": path is " + std::string(to_string(*options.path)) +
                    ", which cannot run here: " + std::string(cpu_cannot_run_reason(*options.path))};
      path = *options.path;
    } else {
      ISOBIT_ASSIGN_OR_RETURN(path, default_cpu_path());
    }
    ISOBIT_RETURN_IF_ERROR(add_call_arrays(name, s, weights, x, states, options, arrays));
    const std::span<std::byte> scratch(workspace.data(), static_cast<size_t>(workspace.size_bytes()));
    arrays.emplace_back("workspace", "bytes", scratch, workspace.size_bytes());
    ISOBIT_RETURN_IF_ERROR(check_training_arrays(name, arrays));
    ISOBIT_RETURN_IF_ERROR(check_lengths(name, options.lengths, s.steps));
    const int64_t needed = training_workspace_bytes(s, threads());
    if (!workspace_fits(workspace, needed))
      return refuse_workspace(workspace, needed, {}, "training" + on_threads(threads()), "GruTraining::workspace");
    return {};
  }

  [[nodiscard]] TrainingDirection direction(int64_t layer, int64_t d, const float* below) const {
    const int64_t index = layer * s.directions + d;
    const uint8_t* const mask = moved(given(options.zoneout_mask), layer * y_size(s) + d * s.hidden_size);
    return {.steps = s.steps,
            .batch = s.batch,
            .inputs = inputs_of(s, layer),
            .hidden = s.hidden_size,
            .reverse = d == 1,
            .lengths = options.lengths,
            .weights = weights[static_cast<size_t>(index)],
            .x = layer == 0 ? x.data() : below,
            .mask = mask,
            .first = state_of(states.first, index, s),
            .y_row = s.directions * s.hidden_size};
  }
};

}  // namespace

Status GruTraining::forward(std::span<const GruTrainingWeights> weights, std::span<const float> x, std::span<float> y,
                            std::span<float> saved, Workspace& workspace, const GruTrainingStates& states,
                            const RunOptions& options) const {
  const DefaultFloatMode mode;
  const GruTrainingSizes& s = sizes_;
  Call call{s, name_, weights, x, states, options};
  ISOBIT_RETURN_IF_ERROR(call.check(workspace, {TrainingArray("y", "T, N, directions * H", y, y_size(s)),
                                                TrainingArray("saved", "numbers", saved, saved_size())}));
  const GruTrainingKernels kernels = training_kernels_of(call.path);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    float* const out = layer + 1 == s.layers ? y.data() : moved(saved.data(), saved_y_at(s, layer));
    for (int64_t d = 0; d < s.directions; ++d) {
      const TrainingDirection direction =
          call.direction(layer, d, layer == 0 ? nullptr : moved(saved.data(), saved_y_at(s, layer - 1)));
      const TrainingForward f{.y = moved(out, d * s.hidden_size),
                              .last = state_of(states.last, layer * s.directions + d, s),
                              .saved = moved(saved.data(), saved_gates_at(s, layer, d))};
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
  std::vector<TrainingArray> arrays = {TrainingArray("y", "T, N, directions * H", y, y_size(s)),
                                       TrainingArray("saved", "numbers", saved, saved_size()),
                                       TrainingArray("dy", "T, N, directions * H", dy, y_size(s)),
                                       TrainingArray("dx", "T, N, C", dx, s.steps * s.batch * s.input_size, true)};
  ISOBIT_RETURN_IF_ERROR(add_gradients(name_, s, gradients, arrays));
  Call call{s, name_, weights, x, states, options};
  ISOBIT_RETURN_IF_ERROR(call.check(workspace, std::move(arrays)));
  const auto run_of = [&](int64_t layer, int64_t d) {
    const float* const out = layer + 1 == s.layers ? y.data() : moved(saved.data(), saved_y_at(s, layer));
    return DirectionRun{call.direction(layer, d, layer == 0 ? nullptr : moved(saved.data(), saved_y_at(s, layer - 1))),
                        moved(out, d * H),
                        moved(saved.data(), saved_gates_at(s, layer, d)),
                        nullptr,
                        nullptr,
                        nullptr};
  };
  backward_layers(s, call.path, options.pool, workspace.data(), run_of, dy.data(), dx.empty() ? nullptr : dx.data(),
                  gradients, states);
  return {};
}

}  // namespace isobit
