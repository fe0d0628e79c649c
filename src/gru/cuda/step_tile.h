// SPDX-License-Identifier: Apache-2.0
// How `step` cuts many sequences; apart from its kernels, so that a test can ask for it.
#ifndef ISOBIT_GRU_CUDA_STEP_TILE_H_
#define ISOBIT_GRU_CUDA_STEP_TILE_H_

#include <cstdint>

#include "gru/cuda/limits.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// What a block of gru_step_many (step_many.cuh) takes: `groups` times so many units, `row_tiles` times so many
/// sequences. No groups: the step is left to gru_step.
inline constexpr int64_t kStepTileUnits = 16, kStepTileSequences = 32;
struct StepTile {
  int32_t groups = 0, row_tiles = 0;
};

/// kUnsupported: `step` cannot run the layer.
Result<StepTile> step_tile(const GruLayerParameters& p, int64_t batch, const DeviceLimits& limits);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_STEP_TILE_H_
