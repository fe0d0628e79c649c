// SPDX-License-Identifier: Apache-2.0
// What a layer needs to run on the kernel of one launch a step (step.cuh), in device memory.
#ifndef ISOBIT_GRU_CUDA_STEP_H_
#define ISOBIT_GRU_CUDA_STEP_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gru/cuda/gates.cuh"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

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

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_STEP_H_
