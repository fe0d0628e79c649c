// SPDX-License-Identifier: Apache-2.0
// What a layer needs to run on the persistent kernel (cuda_persistent.cuh), in device memory.
#ifndef ISOBIT_GRU_CUDA_PERSISTENT_H_
#define ISOBIT_GRU_CUDA_PERSISTENT_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gru/cuda_gates.cuh"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

struct PersistentLayer {
  bool supported = false;
  int32_t cluster = 1, unit_blocks = 1, k_tiles = 4, k_splits = 1;  // cuda_persistent.cuh
  int32_t tiles = 1;                                                // of 16 units: cluster * unit_blocks
  int32_t hidden_size = 0;
  GateLanes<float> gates{};
  const uint4* fragments = nullptr;  // R
  const int32_t* start = nullptr;    // of hh's accumulators
  const float* ratio = nullptr;      // accumulator -> hh
  const float* tables = nullptr;     // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries = 0;
  uint32_t h_flip = 0;  // the sign bit of signed codes, in all four bytes
  // W x, in the order of PersistentArgs::ih
  int64_t x_size = 0, x_padded = 0;  // bytes of a row of x, and of one that is padded
  uint8_t x_flip = 0;
  const int8_t* W = nullptr;  // [ih_rows, x_padded]
  int64_t ih_rows = 0;        // padded to whole tiles of the product
  const int32_t* W_start = nullptr;
  const float* W_ratio = nullptr;  // accumulator -> ih
  const float* W_again = nullptr;  // ih -> gate input
  float ih_low = 0, ih_high = 0;
};

/// The arrays behind the pointers, on the host.
struct PersistentPack {
  PersistentLayer layer;
  std::vector<uint8_t> fragments;
  std::vector<int32_t> start, W_start;
  std::vector<float> ratio, tables, W_ratio, W_again;
  std::vector<int8_t> W;
};

/// Packs a layer for the current device, and prepares the device's kernels. kUnsupported says why the layer cannot run
/// there.
Result<PersistentPack> pack_persistent(const GruLayerParameters& p);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PERSISTENT_H_
