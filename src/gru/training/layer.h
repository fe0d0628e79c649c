// SPDX-License-Identifier: Apache-2.0
// The packed loops of training, of one direction of one layer.
#ifndef ISOBIT_GRU_TRAINING_LAYER_H_
#define ISOBIT_GRU_TRAINING_LAYER_H_

#include <cstddef>
#include <cstdint>

#include "gru/training/direction.h"
#include "gru/training/kernels.h"
#include "isobit/parallel.h"

namespace isobit {

/// Scratch memory in pieces of whole lines. Without a base it only counts.
class Scratch {
 public:
  explicit Scratch(std::byte* base) : base_(base) {}
  [[nodiscard]] float* floats(int64_t count) { return reinterpret_cast<float*>(take(count * 4)); }
  [[nodiscard]] int64_t* integers(int64_t count) { return reinterpret_cast<int64_t*>(take(count * 8)); }
  [[nodiscard]] int64_t used() const { return used_; }

 private:
  [[nodiscard]] std::byte* take(int64_t bytes) {
    std::byte* const piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return piece;
  }

  std::byte* base_;
  int64_t used_ = 0;
};

/// Kernels of a path that can run here, kScalar at least.
GruTrainingKernels training_kernels_of(CpuPath path);

/// Bytes that either takes of `scratch`, on so many threads, with the widest panels.
int64_t training_scratch_bytes(int64_t steps, int64_t batch, int64_t inputs, int64_t hidden, int threads);
void train_forward(const TrainingDirection& d, const TrainingForward& f, const GruTrainingKernels& kernels,
                   std::byte* scratch, ThreadPool* pool);
void train_backward(const TrainingDirection& d, const TrainingBackward& b, const GruTrainingKernels& kernels,
                    std::byte* scratch, ThreadPool* pool);

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_LAYER_H_
