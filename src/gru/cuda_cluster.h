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

/// layer.cut, those that find room on the current device, which has `shared` bytes for a block; k_tiles, k_splits,
/// k_shared and groups; the kernel's attributes there.
template <typename Ratio>
Status prepare_cluster(PersistentLayer& layer, int shared);

/// R in the order of ClusterArgs::fragments.
void pack_cluster(const GruLayerParameters& p, PersistentPack& pack);

/// Just after launch_product in the stream: it begins while that runs.
template <typename Ratio>
Status launch_cluster(const PersistentLayer& layer, const PersistentChunk& chunk, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_H_
