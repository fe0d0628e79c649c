// SPDX-License-Identifier: Apache-2.0
// What a layer needs to run on the persistent kernel (cuda_persistent.cuh), in device memory.
#ifndef ISOBIT_GRU_CUDA_PERSISTENT_H_
#define ISOBIT_GRU_CUDA_PERSISTENT_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "isobit/gru.h"
#include "isobit/status.h"
#include "linear/cuda_product.h"

namespace isobit::cuda {

/// Constants of the gates in float lanes, exact by GruProof::gates_f32; nearest_even. Codes minus zero point.
struct PersistentGates {
  float hh_low, hh_high;
  float hh_to_gate[3];              // [2] is r * hh -> n_in
  float gate_low[3], gate_high[3];  // plus magic
  uint32_t gate_to_byte[3];         // added to four times the bits of magic + sum: byte offset in the three tables
  float n_to_h, u_to_one, one;
  float h_low, h_high;
  float h_to_code;  // magic + what makes h a byte
  int32_t h_to_unsigned;
};

struct PersistentLayer {
  bool supported = false;
  int32_t cluster = 1, unit_blocks = 1, k_tiles = 4, k_splits = 1;  // cuda_persistent.cuh
  int32_t tiles = 1;                                                // of 16 units: cluster * unit_blocks
  int32_t hidden_size = 0;
  PersistentGates gates{};
  const uint4* fragments = nullptr;  // R
  const int32_t* start = nullptr;    // of hh's accumulators
  const float* ratio = nullptr;      // accumulator -> hh
  const float* tables = nullptr;     // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries = 0;
  uint32_t h_flip = 0;  // the sign bit of signed codes, in all four bytes
  DeviceProduct W;      // accumulator -> ih -> gate input, in the order of PersistentArgs::ih
  uint8_t x_flip = 0;
};

/// The arrays behind the pointers, on the host.
struct PersistentPack {
  PersistentLayer layer;
  std::vector<uint8_t> fragments;
  std::vector<int32_t> start;
  std::vector<float> ratio, tables;
  ProductPack W;
};

/// Packs a layer for the current device, and prepares the device's kernels. kUnsupported says why the layer cannot run
/// there.
Result<PersistentPack> pack_persistent(const GruLayerParameters& p);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PERSISTENT_H_
