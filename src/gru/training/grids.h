// SPDX-License-Identifier: Apache-2.0
// Gradients of learned grids: docs/numerics.md, section 14.
#ifndef ISOBIT_GRU_TRAINING_GRIDS_H_
#define ISOBIT_GRU_TRAINING_GRIDS_H_

#include <cstdint>

#include "gru/training/direction.h"
#include "gru/training/kernels.h"
#include "isobit/parallel.h"

namespace isobit {

/// Floats of the scratch that grids_of_units takes.
constexpr int64_t grid_sums_floats(int64_t hidden) { return 2 * 3 * kClamps * hidden; }
/// Writes b.grids. place [T, N]: of a step among those within their lengths, or -1; clamped: [steps within their
/// lengths, 4H], of GruGatesBackward.
void grids_of_units(const TrainingDirection& d, const TrainingBackward& b, const GruTrainingKernels& kernels,
                    const int64_t* place, const float* clamped, float* scratch, ThreadPool* pool);
/// Of x of the first layer; g [T, N, C], the gradient behind its clamp. Of d the steps, lengths and inputs are read.
GruGridGradient grid_of_inputs(const TrainingDirection& d, const float* g, const InputClamps& clamps,
                               const GruTrainingKernels& kernels, ThreadPool* pool);

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_GRIDS_H_
