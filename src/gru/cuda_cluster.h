// SPDX-License-Identifier: Apache-2.0
// The host side of gru_cluster (cuda_cluster.cuh): layers to H = 1024 of the kernel `persistent`.
#ifndef ISOBIT_GRU_CUDA_CLUSTER_H_
#define ISOBIT_GRU_CUDA_CLUSTER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gru/cuda_persistent.h"
#include "isobit/status.h"

namespace isobit::cuda {

inline constexpr int64_t kMaxClusterHidden = 1024;
/// Rows and turns are counted in 32 bits.
inline constexpr int64_t kMaxClusterSteps = INT32_MAX / 8;

/// The ways to cut a layer of H hidden units into teams, few, found by timing on an H200: layer.cut, k_tiles, k_splits,
/// k_shared and groups. More blocks have less to multiply and more to exchange; smaller clusters leave room for more.
void cut_cluster(int64_t hidden, PersistentLayer& layer);

/// Attributes of the kernel on the current device, which has `shared` bytes for a block; drops the cuts that find no
/// room there.
template <typename Real, typename Sum>
Status prepare_cluster(PersistentLayer& layer, int shared);

/// Steps of a run, of which ih holds those from `first_step` on.
struct PersistentChunk {
  const uint16_t* ih;
  int64_t first_step, steps, batch;
  uint8_t* state;              // [batch][hidden] codes, in and out
  uint8_t* y;                  // of the first of these steps, at this direction's columns
  int64_t y_step, y_sequence;  // bytes
  const int32_t* lengths;      // [batch], or null
  const uint8_t* mask;         // [all steps][batch][mask_width], or null
  int64_t mask_width;
  bool reverse;
};
template <typename Real, typename Sum>
Status launch_cluster(const PersistentLayer& layer, const PersistentChunk& chunk, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_H_
