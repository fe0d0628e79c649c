// SPDX-License-Identifier: Apache-2.0
// The packed loops of training, of one direction of one layer.
#ifndef ISOBIT_GRU_TRAINING_LAYER_H_
#define ISOBIT_GRU_TRAINING_LAYER_H_

#include <cstddef>
#include <cstdint>

#include "core/scratch.h"
#include "gru/training/direction.h"
#include "gru/training/kernels.h"
#include "isobit/parallel.h"

namespace isobit {

/// Kernels of a path that can run here, kScalar at least.
GruTrainingKernels training_kernels_of(CpuPath path);

/// Bytes that either takes of `scratch`, on so many threads, with the widest panels. grids: gradients of grids, too.
int64_t training_scratch_bytes(int64_t steps, int64_t batch, int64_t inputs, int64_t hidden, int threads,
                               bool grids = false);
void train_forward(const TrainingDirection& d, const TrainingForward& f, const GruTrainingKernels& kernels,
                   std::byte* scratch, ThreadPool* pool);
void train_backward(const TrainingDirection& d, const TrainingBackward& b, const GruTrainingKernels& kernels,
                    std::byte* scratch, ThreadPool* pool);

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_LAYER_H_
