// SPDX-License-Identifier: Apache-2.0
// What the kernels of the GRU take, and the list of kernels.
#ifndef ISOBIT_GRU_CUDA_GRU_H_
#define ISOBIT_GRU_CUDA_GRU_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/cuda/floats.h"
#include "gru/cuda/limits.h"
#include "gru/cuda/persistent.h"
#include "gru/cuda/step.h"
#include "gru/reference.h"
#include "isobit/dtype.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// W or R of one direction, and what turns the sum of a row into ih or hh. Pointers are device memory; [rows] each.
struct DeviceMatrix {
  const void* codes;  // [rows, columns] of dtype, row by row
  Dtype dtype;
  int64_t columns;
  int64_t zero_point;  // of the codes that the matrix is multiplied with
  const int64_t* row_sums;
  const int64_t* biases;  // codes
  const RescaleParameters* bias_to_acc;
  const RescaleParameters* acc_to_out;
};

/// One direction of one layer; the pointers of its tables are device memory.
struct DeviceLayer {
  int64_t input_size;   // C
  int64_t hidden_size;  // H
  Dtype x_dtype;
  Dtype h_dtype;
  DeviceMatrix W;  // [3H, C]
  DeviceMatrix R;  // [3H, H]
  CellView cell;
  CodeRange x;
  float x_inverse_scale;  // numerics.md, section 3
  float h_scale;
  PersistentLayer persistent;
  const char* persistent_refusals[kPersistentForms];  // host memory; why a form cannot run the layer
  StepLayer step;
  const char* step_refusal;  // the same of `step`, or null
};

/// Where the codes of sequence n at step t begin: t * step + n * sequence elements.
struct DeviceStrides {
  int64_t step;
  int64_t sequence;
};

/// One run of one direction of one layer. Pointers are device memory.
struct DeviceRun {
  int64_t steps;
  int64_t batch;
  const void* x;  // codes of the x grid, or what `floats` quantises
  DeviceStrides x_strides;
  void* y;  // codes of the h grid, or floats where y_scale is not 0; already at this direction's columns
  DeviceStrides y_strides;
  const void* state;       // [N, H] codes of the h grid
  void* next_state;        // the same after the last step; may be `state`
  const int32_t* lengths;  // [N], or null
  const uint8_t* mask;     // [T, N, mask_width], already at this direction's columns, or null
  int64_t mask_width;
  bool reverse;
  DeviceFloats floats;  // floats.begins: for the first launch that reads x; no block of a later one may set places
  float y_scale;        // 0: y is codes; else floats, differences from z_h by this
  std::byte* scratch;   // the kernel's scratch_bytes, from a multiple of 256 on

  int64_t x_element_bytes(int64_t code_bytes) const {
    return floats.first == nullptr ? code_bytes : int64_t{sizeof(float)};
  }
  int64_t y_element_bytes(int64_t code_bytes) const { return y_scale == 0 ? code_bytes : int64_t{sizeof(float)}; }
};

struct DeviceKernel {
  std::string_view name;
  std::string_view what;
  /// Whether a run takes it where no kernel was asked for; else it is left to a later row. copies: a run of one step
  /// for which `step` copies what it reads first; addresses and later layers are not looked at.
  bool (*is_taken)(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool copies);
  /// Whether the kernel runs `steps` steps of `batch` sequences through these layers, and why not.
  Status (*supports)(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, const DeviceLimits& limits);
  /// Enough for any of the layers, in every run of at most so many sequences and steps that the kernel supports.
  int64_t (*scratch_bytes)(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps,
                           const DeviceLimits& limits);
  /// `run.steps` and `run.batch` are at least 1.
  Status (*launch)(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits& limits, cudaStream_t stream);
  /// Whether the two directions of a layer should run beside each other.
  bool (*beside)(const DeviceLayer& layer, int64_t batch, int64_t steps);
};

#define ISOBIT_CUDA_GRU_KERNEL(name, what, is_taken, supports, scratch_bytes, launch, beside) \
  bool is_taken(std::span<const DeviceLayer>, int64_t, int64_t, bool);                        \
  Status supports(std::span<const DeviceLayer>, int64_t, int64_t, const DeviceLimits&);       \
  int64_t scratch_bytes(std::span<const DeviceLayer>, int64_t, int64_t, const DeviceLimits&); \
  Status launch(const DeviceLayer&, const DeviceRun&, const DeviceLimits&, cudaStream_t);     \
  bool beside(const DeviceLayer&, int64_t, int64_t);
#include "gru/cuda/kernels.inc"
#undef ISOBIT_CUDA_GRU_KERNEL

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRU_H_
