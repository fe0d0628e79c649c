// SPDX-License-Identifier: Apache-2.0
// The backward of one direction of one layer on a device, and the memory of a call: of floats and of integers.
#ifndef ISOBIT_GRU_TRAINING_CUDA_DIRECTION_H_
#define ISOBIT_GRU_TRAINING_CUDA_DIRECTION_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "core/scratch.h"
#include "gru/training/cuda/products.h"
#include "gru/training/cuda/recurrence.h"
#include "gru/training/layers.h"
#include "isobit/gru_training.h"
#include "isobit/run.h"

namespace isobit::cuda {

/// Floats of a call's device memory.
struct TrainingScratch {
  float* dy[2];       // gradients of y of layers below
  float *gx, *gh;     // [rows][3H]; forward: gx is ih
  float* gradients;   // parts of gradients of weights
  float* recurrence;  // of the kernel "steps"

  TrainingScratch(Scratch& scratch, const GruTrainingSizes& s) {
    const auto take = [&](int64_t count) { return scratch.take<float>(count); };
    const int64_t rows = s.steps * s.batch, gates = 3 * s.hidden_size;
    for (float*& of_layer : dy) of_layer = take(s.layers > 1 ? y_size(s) : 0);
    gx = take(rows * gates);
    gh = take(rows * gates);
    int64_t bytes = 0;
    for (int64_t layer = 0; layer < std::min<int64_t>(s.layers, 2); ++layer)
      bytes = std::max(bytes, weight_gradients_bytes(rows, gates, inputs_of(s, layer), s.hidden_size));
    gradients = take(bytes / static_cast<int64_t>(sizeof(float)));
    recurrence = take(step_workspace_floats(s.batch, s.hidden_size));
  }
};

/// Of a direction, without R and the first states.
inline TrainingSteps steps_of(const GruTrainingSizes& s, int64_t layer, int64_t d, const RunOptions& options) {
  return {.R = nullptr,
          .first = nullptr,
          .lengths = given(options.lengths),
          .mask = moved(given(options.zoneout_mask), layer * y_size(s) + d * s.hidden_size),
          .y_row = s.directions * s.hidden_size,
          .steps = static_cast<int32_t>(s.steps),
          .batch = static_cast<int32_t>(s.batch),
          .hidden = static_cast<int32_t>(s.hidden_size),
          .reverse = d == 1};
}

/// `steps` is complete but for gx and gh.
struct DirectionBackward {
  TrainingBackwardSteps steps;
  FloatRows x;     // of the layer
  const float* W;  // [3H][C]
  int64_t C;
  float* dx;  // null: not wanted
  GruTrainingGradients gradients;
  const uint8_t* dx_passes = nullptr;  // dx is 0 where these are 0; null: it stays
};
/// plan: null, the kernel "steps". dx of the reverse direction is added to what is there.
Status run_direction_backward(const DirectionBackward& backward, const TeamPlan* plan, const TrainingScratch& memory,
                              cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_DIRECTION_H_
