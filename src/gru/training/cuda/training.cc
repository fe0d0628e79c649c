// SPDX-License-Identifier: Apache-2.0
// DeviceGruTraining: what is checked, and the layers one after the other.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/status.h"
#include "core/scratch.h"
#include "gru/training/arrays.h"
#include "gru/training/cuda/call.h"
#include "gru/training/cuda/direction.h"
#include "gru/training/layers.h"
#include "isobit/cuda/gru.h"
#include "isobit/cuda/gru_training.h"

namespace isobit::cuda {
struct DeviceGruTraining::Data {
  GruTraining training;
  std::string name;
  int device = 0;
  TeamPlan plan;

  explicit Data(GruTraining of) : training(std::move(of)) {}
  [[nodiscard]] const GruTrainingSizes& sizes() const { return training.sizes(); }
  [[nodiscard]] int64_t scratch_bytes() const {
    Scratch scratch(nullptr);
    const TrainingScratch all(scratch, sizes());
    return scratch.used();
  }

  Status check(std::span<const GruTrainingWeights> weights, std::span<const float> x, const GruTrainingStates& states,
               std::span<std::byte> workspace, const RunOptions& options, std::vector<TrainingArray> arrays) const {
    const std::string hidden = plan.blocks == 0 ? "hidden_size " + std::to_string(sizes().hidden_size) : "";
    const TrainingCall call{name, device, hidden};
    ISOBIT_RETURN_IF_ERROR(call.check_options(options));
    ISOBIT_RETURN_IF_ERROR(add_call_arrays(name, sizes(), weights, x, states, options, arrays));
    const TrainingCall::Room rooms[] = {{"workspace", workspace, scratch_bytes()}};
    return call.check_arrays(std::move(arrays), rooms, sizes().batch, options.stream);
  }

  [[nodiscard]] bool uses_team(const RunOptions& options) const { return plan.blocks > 0 && options.kernel != kSteps; }

  /// x of a layer.
  [[nodiscard]] const float* input_of(int64_t layer, const float* x, const float* saved) const {
    return layer == 0 ? x : moved(saved, saved_y_at(sizes(), layer - 1));
  }
  [[nodiscard]] TrainingSteps steps_of(const GruTrainingWeights& weights, int64_t layer, int64_t d,
                                       const GruTrainingStates& states, const RunOptions& options) const {
    TrainingSteps steps = isobit::cuda::steps_of(sizes(), layer, d, options);
    steps.R = weights.R.data();
    steps.first = state_of(states.first, layer * sizes().directions + d, sizes());
    return steps;
  }
};

Result<DeviceGruTraining> DeviceGruTraining::create(const GruTrainingSizes& sizes, std::string_view name,
                                                    std::optional<int> device) {
  ISOBIT_ASSIGN_OR_RETURN(GruTraining training, GruTraining::create(sizes, name));
  ISOBIT_RETURN_IF_ERROR(check_training_rows(std::string(name), sizes));
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  ISOBIT_RETURN_IF_ERROR(DeviceGru::check_device());
  auto data = std::make_shared<Data>(std::move(training));
  data->name = name;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&data->device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(plan_teams(sizes.hidden_size, data->plan));
  DeviceGruTraining made;
  made.data_ = std::move(data);
  return made;
}

const GruTrainingSizes& DeviceGruTraining::sizes() const { return data_->sizes(); }
int DeviceGruTraining::device() const { return data_->device; }
std::string_view DeviceGruTraining::kernel_name() const { return data_->plan.blocks > 0 ? kTeam : kSteps; }
int64_t DeviceGruTraining::saved_size() const { return data_->training.saved_size(); }
int64_t DeviceGruTraining::workspace_bytes() const { return data_->scratch_bytes(); }

Status DeviceGruTraining::forward(std::span<const GruTrainingWeights> weights, std::span<const float> x,
                                  std::span<float> y, std::span<float> saved, std::span<std::byte> workspace,
                                  const GruTrainingStates& states, const RunOptions& options) const {
  const Data& data = *data_;
  const GruTrainingSizes& s = data.sizes();
  ISOBIT_RETURN_IF_ERROR(data.check(weights, x, states, workspace, options,
                                    {TrainingArray("y", "T, N, directions * H", y, y_size(s)),
                                     TrainingArray("saved", "numbers", saved, saved_size())}));
  Scratch scratch(workspace.data());
  const TrainingScratch memory(scratch, s);
  const int64_t rows = s.steps * s.batch, gates = 3 * s.hidden_size;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const int64_t C = inputs_of(s, layer);
    float* const out = layer + 1 == s.layers ? y.data() : moved(saved.data(), saved_y_at(s, layer));
    for (int64_t d = 0; d < s.directions; ++d) {
      const int64_t index = layer * s.directions + d;
      const GruTrainingWeights& w = weights[static_cast<size_t>(index)];
      ISOBIT_RETURN_IF_ERROR(product_by_rows({data.input_of(layer, x.data(), saved.data()), C}, {w.W.data(), C},
                                             w.bw.data(), memory.gx, gates, rows, gates, C, options.stream));
      const TrainingForwardSteps run{{data.steps_of(w, layer, d, states, options)},
                                     memory.gx,
                                     w.br.data(),
                                     moved(out, d * s.hidden_size),
                                     moved(saved.data(), saved_gates_at(s, layer, d)),
                                     state_of(states.last, index, s)};
      ISOBIT_RETURN_IF_ERROR(data.uses_team(options) ? run_team_forward(data.plan, run, options.stream)
                                                     : run_step_forward(run, memory.recurrence, options.stream));
    }
  }
  return {};
}

Status DeviceGruTraining::backward(std::span<const GruTrainingWeights> weights, std::span<const float> x,
                                   std::span<const float> y, std::span<const float> saved, std::span<const float> dy,
                                   std::span<float> dx, std::span<const GruTrainingGradients> gradients,
                                   std::span<std::byte> workspace, const GruTrainingStates& states,
                                   const RunOptions& options) const {
  const Data& data = *data_;
  const GruTrainingSizes& s = data.sizes();
  std::vector<TrainingArray> arrays = {TrainingArray("y", "T, N, directions * H", y, y_size(s)),
                                       TrainingArray("saved", "numbers", saved, saved_size()),
                                       TrainingArray("dy", "T, N, directions * H", dy, y_size(s)),
                                       TrainingArray("dx", "T, N, C", dx, s.steps * s.batch * s.input_size, true)};
  ISOBIT_RETURN_IF_ERROR(add_gradients(data.name, s, gradients, arrays));
  ISOBIT_RETURN_IF_ERROR(data.check(weights, x, states, workspace, options, std::move(arrays)));
  Scratch scratch(workspace.data());
  const TrainingScratch memory(scratch, s);
  const int64_t H = s.hidden_size;
  for (int64_t layer = s.layers - 1; layer >= 0; --layer) {
    const int64_t C = inputs_of(s, layer);
    const float* const out = layer + 1 == s.layers ? y.data() : moved(saved.data(), saved_y_at(s, layer));
    const float* const dout = layer + 1 == s.layers ? dy.data() : memory.dy[(layer + 1) % 2];
    float* const din = layer > 0 ? memory.dy[layer % 2] : dx.empty() ? nullptr : dx.data();
    for (int64_t d = 0; d < s.directions; ++d) {
      const int64_t index = layer * s.directions + d;
      const GruTrainingWeights& w = weights[static_cast<size_t>(index)];
      const TrainingSteps steps = data.steps_of(w, layer, d, states, options);
      const TrainingBackwardSteps run{{steps},
                                      moved(out, d * H),
                                      moved(saved.data(), saved_gates_at(s, layer, d)),
                                      nullptr,
                                      moved(dout, d * H),
                                      state_of(states.last_gradient, index, s),
                                      state_of(states.first_gradient, index, s),
                                      nullptr,
                                      nullptr};
      ISOBIT_RETURN_IF_ERROR(run_direction_backward({run,
                                                     {data.input_of(layer, x.data(), saved.data()), C},
                                                     w.W.data(),
                                                     C,
                                                     din,
                                                     gradients[static_cast<size_t>(index)]},
                                                    data.uses_team(options) ? &data.plan : nullptr, memory,
                                                    options.stream));
    }
  }
  return {};
}

}  // namespace isobit::cuda
