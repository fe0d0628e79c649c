// SPDX-License-Identifier: Apache-2.0
// The host side of gru_cluster (cluster.cuh) and gru_cluster_many (cluster_many.cuh): layers to H = 1024.
#ifndef ISOBIT_GRU_CUDA_CLUSTER_H_
#define ISOBIT_GRU_CUDA_CLUSTER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gru/cuda/persistent.h"
#include "isobit/status.h"

namespace isobit::cuda {

inline constexpr int64_t kMaxClusterHidden = 1024;

/// gru_cluster: layer.cut, those that find room on the current device, which has `shared` bytes for a block, and
/// groups; the kernel's attributes there. kUnsupported: there are none.
template <typename Ratio>
Status prepare_cluster(PersistentLayer& layer, int shared);
/// The same of gru_cluster_many: layer.many.
template <typename Ratio>
Status prepare_cluster_many(PersistentLayer& layer, int shared);

/// Whether gru_cluster_many is the faster of both for so many sequences and steps.
bool takes_cluster_many(const PersistentLayer& layer, int64_t batch, int64_t steps);

/// How gru_cluster_many goes through so many sequences and steps: teams that are on the device at once make a wave, and
/// a team has so many tiles, those of guests included.
struct ClusterWaves {
  int64_t count, tiles;
};
ClusterWaves cluster_many_waves(const PersistentLayer& layer, int64_t batch, int64_t steps);

/// Sequences with which the teams of gru_cluster_many take turns in a run of so many sequences and steps; 0: each
/// sequence has its team.
int32_t cluster_guests(const PersistentLayer& layer, int64_t batch, int64_t steps);

/// Device memory that crosses between the teams of gru_cluster_many.
int64_t cluster_exchange_bytes(const PersistentLayer& layer);

/// Of these, those that are zero when a run of so many sequences and steps begins.
int64_t cluster_zeroed_bytes(const PersistentLayer& layer, int64_t batch, int64_t steps);

/// Just after launch_product in the stream: it begins while that runs. many: gru_cluster_many; `exchange`: its
/// cluster_exchange_bytes, of which the first cluster_zeroed_bytes are zero.
template <typename Ratio>
Status launch_cluster(const PersistentLayer& layer, const PersistentChunk& chunk, bool many, std::byte* exchange,
                      cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_H_
