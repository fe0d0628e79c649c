// SPDX-License-Identifier: Apache-2.0
// The backward of all layers and directions, of floats and of integers.
#ifndef ISOBIT_GRU_TRAINING_LAYERS_H_
#define ISOBIT_GRU_TRAINING_LAYERS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gru/clamps.h"
#include "gru/training/arrays.h"
#include "gru/training/direction.h"
#include "gru/training/layer.h"
#include "gru/training/reference.h"
#include "isobit/cpu.h"
#include "isobit/gru_training.h"

namespace isobit {

inline int64_t inputs_of(const GruTrainingSizes& s, int64_t layer) {
  return layer == 0 ? s.input_size : s.directions * s.hidden_size;
}
inline int64_t y_size(const GruTrainingSizes& s) { return s.steps * s.batch * s.directions * s.hidden_size; }

/// The tensor whose grid the clamp of a bit is of.
inline GruTensor tensor_of_clamp(int bit) {
  if (bit == kPassState) return kH;
  if (bit >= kPassGate) return static_cast<GruTensor>(kUIn + bit - kPassGate);
  return bit >= kPassHh ? kHh : kIh;
}

/// Of what a forward keeps: y of a layer but the last, then u, r, n and q of all directions of all layers.
inline int64_t saved_y_at(const GruTrainingSizes& s, int64_t layer) { return layer * y_size(s); }
inline int64_t saved_gates_at(const GruTrainingSizes& s, int64_t layer, int64_t direction) {
  return (s.layers - 1) * y_size(s) + (layer * s.directions + direction) * s.steps * s.batch * 4 * s.hidden_size;
}

/// p + offset; of no array, null.
template <typename T>
T* moved(T* p, int64_t offset) {
  return p == nullptr ? nullptr : p + offset;
}

/// The start of an optional array; null where it is empty, whatever its pointer.
template <typename T>
T* given(std::span<T> array) {
  return array.empty() ? nullptr : array.data();
}
/// Where an optional array has the state of a direction.
template <typename T>
T* state_of(std::span<T> states, int64_t index, const GruTrainingSizes& s) {
  return moved(given(states), index * s.batch * s.hidden_size);
}

/// Gradients of y of layers below, and dx of a direction.
struct BetweenLayers {
  float* dy[2];
  float* dx;

  BetweenLayers(Scratch& scratch, const GruTrainingSizes& s) {
    for (float*& of_layer : dy) of_layer = scratch.take<float>(s.layers > 1 ? y_size(s) : 0);
    const int64_t inputs = std::max(s.input_size, s.layers > 1 ? s.directions * s.hidden_size : 0);
    dx = scratch.take<float>(s.directions > 1 ? s.steps * s.batch * inputs : 0);
  }
};

/// Of forward and backward, on so many threads; grids: with gradients of grids.
inline int64_t training_workspace_bytes(const GruTrainingSizes& s, int threads, bool grids = false) {
  Scratch scratch(nullptr);
  const BetweenLayers between(scratch, s);
  int64_t most = 0;
  for (int64_t layer = 0; layer < std::min<int64_t>(s.layers, 2); ++layer)
    most = std::max(most, training_scratch_bytes(s.steps, s.batch, inputs_of(s, layer), s.hidden_size, threads, grids));
  return scratch.used() + most;
}

inline Status check_lengths(const std::string& who, std::span<const int64_t> lengths, int64_t steps) {
  for (size_t n = 0; n < lengths.size(); ++n)
    if (lengths[n] < 0 || lengths[n] > steps)
      return refuse_training(who + ": options.lengths[" + std::to_string(n) + "] is " + std::to_string(lengths[n]) +
                             ", must be 0 to " + std::to_string(steps));
  return {};
}

/// What forward and backward read, as arrays of a call.
inline Status add_call_arrays(const std::string& who, const GruTrainingSizes& s,
                              std::span<const GruTrainingWeights> weights, std::span<const float> x,
                              const GruTrainingStates& states, const RunOptions& options,
                              std::vector<TrainingArray>& arrays) {
  const int64_t H = s.hidden_size, directions = s.layers * s.directions;
  if (static_cast<int64_t>(weights.size()) != directions)
    return refuse_training(who + ": weights has " + std::to_string(weights.size()) + " elements, must have " +
                           std::to_string(directions) + ": [layers * directions]");
  for (int64_t i = 0; i < directions; ++i) {
    const GruTrainingWeights& w = weights[static_cast<size_t>(i)];
    const std::string which = "weights[" + std::to_string(i) + "].";
    arrays.emplace_back(which + "W", "3H, C", w.W, 3 * H * inputs_of(s, i / s.directions));
    arrays.emplace_back(which + "R", "3H, H", w.R, 3 * H * H);
    arrays.emplace_back(which + "bw", "3H", w.bw, 3 * H);
    arrays.emplace_back(which + "br", "3H", w.br, 3 * H);
  }
  const int64_t all_states = directions * s.batch * H;
  arrays.emplace_back("x", "T, N, C", x, s.steps * s.batch * s.input_size);
  arrays.emplace_back("states.first", "layers * directions, N, H", states.first, all_states, true);
  arrays.emplace_back("states.last", "layers * directions, N, H", states.last, all_states, true);
  arrays.emplace_back("states.last_gradient", "layers * directions, N, H", states.last_gradient, all_states, true);
  arrays.emplace_back("states.first_gradient", "layers * directions, N, H", states.first_gradient, all_states, true);
  arrays.emplace_back("options.lengths", "N", options.lengths, s.batch, true);
  arrays.emplace_back("options.zoneout_mask", "layers, T, N, directions * H", options.zoneout_mask,
                      s.layers * y_size(s), true);
  return {};
}

/// Gradients of all weights, as arrays of a call.
inline Status add_gradients(const std::string& who, const GruTrainingSizes& s,
                            std::span<const GruTrainingGradients> gradients, std::vector<TrainingArray>& arrays) {
  const int64_t H = s.hidden_size, directions = s.layers * s.directions;
  if (static_cast<int64_t>(gradients.size()) != directions)
    return refuse_training(who + ": gradients has " + std::to_string(gradients.size()) + " elements, must have " +
                           std::to_string(directions) + ": [layers * directions]");
  for (int64_t i = 0; i < directions; ++i) {
    const GruTrainingGradients& of = gradients[static_cast<size_t>(i)];
    const std::string which = "gradients[" + std::to_string(i) + "].";
    arrays.emplace_back(which + "W", "3H, C", of.W, 3 * H * inputs_of(s, i / s.directions));
    arrays.emplace_back(which + "R", "3H, H", of.R, 3 * H * H);
    arrays.emplace_back(which + "bw", "3H", of.bw, 3 * H);
    arrays.emplace_back(which + "br", "3H", of.br, 3 * H);
  }
  return {};
}

/// What a forward left of a direction.
struct DirectionRun {
  TrainingDirection direction;
  const float* y;
  const float* saved;
  const uint16_t* passes;
  const uint16_t* above;  // null: grids are not learned
  const float* rests;
};

inline GruGridGradient operator+(const GruGridGradient& a, const GruGridGradient& b) {
  return {a.below + b.below, a.above + b.above, a.inside + b.inside};
}

/// run_of(layer, direction): a DirectionRun. dx: null where it is not wanted. grids: all but x, or empty.
template <typename RunOf>
void backward_layers(const GruTrainingSizes& s, CpuPath path, ThreadPool* pool, std::byte* workspace,
                     const RunOf& run_of, const float* dy, float* dx, std::span<const GruTrainingGradients> gradients,
                     const GruTrainingStates& states, std::span<GruGridGradients> grids = {}) {
  const GruTrainingKernels kernels = training_kernels_of(path);
  Scratch scratch(workspace);
  const BetweenLayers between(scratch, s);
  for (int64_t layer = s.layers - 1; layer >= 0; --layer) {
    const float* const dout = layer + 1 == s.layers ? dy : between.dy[(layer + 1) % 2];
    float* const din = layer > 0 ? between.dy[layer % 2] : dx;
    for (int64_t d = 0; d < s.directions; ++d) {
      const int64_t index = layer * s.directions + d;
      const DirectionRun run = run_of(layer, d);
      const bool first_of_two = s.directions == 2 && d == 0;
      const TrainingBackward b{.y = run.y,
                               .saved = run.saved,
                               .passes = run.passes,
                               .dy = moved(dout, d * s.hidden_size),
                               .last_gradient = state_of(states.last_gradient, index, s),
                               .first_gradient = state_of(states.first_gradient, index, s),
                               .dx = din == nullptr ? nullptr
                                     : first_of_two ? between.dx
                                                    : din,
                               .dx_add = d == 1 ? between.dx : nullptr,
                               .gradients = gradients[static_cast<size_t>(index)],
                               .above = run.above,
                               .rests = run.rests,
                               .grids = grids.empty() ? nullptr : &grids[static_cast<size_t>(index)]};
      if (path == CpuPath::kReference) {
        reference_backward(run.direction, b);
      } else {
        train_backward(run.direction, b, kernels, workspace + scratch.used(), pool);
      }
    }
    if (!grids.empty() && s.directions == 2) {  // which share their h
      const std::span<GruGridGradients> both = grids.subspan(static_cast<size_t>(2 * layer), 2);
      both[0][kH] = both[1][kH] = both[0][kH] + both[1][kH];
    }
  }
}

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_LAYERS_H_
