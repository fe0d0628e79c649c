// SPDX-License-Identifier: Apache-2.0
// What the kernels of the GRU take, and the list of kernels.
#ifndef ISOBIT_GRU_CUDA_GRU_H_
#define ISOBIT_GRU_CUDA_GRU_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/cuda/floats.h"
#include "gru/cuda/gates.cuh"
#include "gru/cuda/persistent.h"
#include "gru/cuda/plan.h"
#include "gru/reference.h"
#include "isobit/dtype.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

// ---- What a layer needs to run on the kernel of one launch a step (step.cuh), in device memory

/// Rows of codes are read as they are, without a launch that copies them, where each begins at a multiple of it.
inline constexpr int kRowAlignment = 16;  // bytes

/// What holds the integers of the gates: F32Lanes, F64Lanes, S64Lanes.
enum class StepLanes : int32_t { kF32, kF64, kS64 };

/// The gates in lanes of Real, and what turns ih into gate inputs.
template <typename Real>
struct StepGates {
  GateLanes<Real> cell;
  Real ih_low, ih_high;
  Real ih_to_gate[3];
};

/// W with x, or R with h.
struct StepMatrix {
  const uint4* fragments = nullptr;  // weights in the order in which warps load them
  int32_t size = 0;                  // columns
  int32_t pieces = 0;                // of 64 columns
  int32_t code_bytes = 1;            // of x or h
  uint32_t flip = 0;                 // the sign bit of signed codes: code ^ flip is unsigned
};

struct StepLayer {
  bool supported = false;
  StepLanes lanes = StepLanes::kS64;
  int32_t groups = 0;              // of 8 hidden units: a block each
  int32_t warps = 2, x_warps = 1;  // of a block; the first x_warps multiply W x, the others R h
  StepMatrix W, R;
  const std::byte* rows = nullptr;  // Row of the lanes: [groups][W, R][gate][8]
  StepGates<float> f32{};           // those of `lanes` are set
  StepGates<double> f64{};
  const float* tables = nullptr;  // of f32 and f64
  int32_t table_entries = 0;
  uint32_t h_zero = 0;    // the unsigned code of z_h
  bool float_ih = false;  // float holds ih rescaled to the gate inputs
};

/// The arrays behind the pointers, on the host.
struct StepPack {
  StepLayer layer;
  std::vector<uint8_t> W, R;
  std::vector<std::byte> rows;
  std::vector<float> tables;
};

/// kUnsupported says why the layer cannot run.
Result<StepPack> pack_step(const GruLayerParameters& p);

// ---- Layers and runs

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
  const int64_t* lengths;  // [N], or null
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
  /// Whether a run takes it where no kernel was asked for; else it is left to a later row. copies: a run of one step
  /// for which `step` copies what it reads first; addresses and later layers are not looked at.
  using IsTaken = bool(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool copies,
                       const DeviceLimits& limits);
  /// Whether the kernel runs `steps` steps of `batch` sequences through these layers, and why not.
  using Supports = Status(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps,
                          const DeviceLimits& limits);
  /// Enough for any of the layers, in every run of at most so many sequences and steps that the kernel supports.
  using ScratchBytes = int64_t(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps,
                               const DeviceLimits& limits);
  /// `run.steps` and `run.batch` are at least 1.
  using Launch = Status(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits& limits,
                        cudaStream_t stream);
  /// Whether the two directions of a layer should run beside each other.
  using Beside = bool(const DeviceLayer& layer, int64_t batch, int64_t steps);

  std::string_view name;
  std::string_view what;
  IsTaken* is_taken;
  Supports* supports;
  ScratchBytes* scratch_bytes;
  Launch* launch;
  Beside* beside;
};

// What the rows of kernels.inc name.
DeviceKernel::IsTaken persistent_is_taken, products_is_taken, step_is_taken, generic_is_taken, only_if_asked;
DeviceKernel::Supports step_supports, generic_supports;
DeviceKernel::ScratchBytes persistent_scratch_bytes, products_scratch_bytes, step_scratch_bytes, generic_scratch_bytes;
DeviceKernel::Launch step_launch, generic_launch;
DeviceKernel::Beside step_beside, generic_beside;

Status persistent_supports(std::span<const DeviceLayer> layers, PersistentForm form, int64_t batch, int64_t steps);
Status persistent_launch(const DeviceLayer& layer, PersistentForm form, const DeviceRun& run, cudaStream_t stream);
bool persistent_beside(const DeviceLayer& layer, PersistentForm form, int64_t batch, int64_t steps);
template <PersistentForm kForm>
Status form_supports(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, const DeviceLimits&) {
  return persistent_supports(layers, kForm, batch, steps);
}
template <PersistentForm kForm>
Status form_launch(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits&, cudaStream_t stream) {
  return persistent_launch(layer, kForm, run, stream);
}
template <PersistentForm kForm>
bool form_beside(const DeviceLayer& layer, int64_t batch, int64_t steps) {
  return persistent_beside(layer, kForm, batch, steps);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRU_H_
