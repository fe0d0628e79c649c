// SPDX-License-Identifier: Apache-2.0
// The host side of the grid kernels (grid.cuh): layers of H = 1025 to 2048, and many sequences of H = 769 to 1024.
#ifndef ISOBIT_GRU_CUDA_GRID_H_
#define ISOBIT_GRU_CUDA_GRID_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gru/cuda/persistent.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

inline constexpr int32_t kLeastGridHidden = 769;  // fewer units go as fast or faster in clusters
inline constexpr int64_t kMaxGridHidden = 2048;

/// Which kernels find room on the current device, which has `shared` bytes for a block: of a layer above H = 1024
/// layer.groups and layer.grid_cut; of a smaller one, which has its groups, the second. kUnsupported: none.
template <typename Ratio>
Status prepare_grid(PersistentLayer& layer, int shared);

/// Whether these kernels are the fastest for so many sequences and steps.
bool takes_grid(const PersistentLayer& layer, int64_t batch, int64_t steps);

/// PersistentLayer::grid_fragments.
void pack_grid(const GruLayerParameters& p, PersistentPack& pack);

/// Device memory that crosses between blocks in runs of up to `batch` sequences.
int64_t grid_exchange_bytes(const PersistentLayer& layer, int64_t batch);

/// Of these, from the first one on, those that are zero when a run of so many sequences begins: numbers of states, counts.
int64_t grid_zeroed_bytes(const PersistentLayer& layer, int64_t batch);

/// `exchange`: grid_exchange_bytes, of which the first grid_zeroed_bytes are zero.
template <typename Ratio>
Status launch_grid(const PersistentLayer& layer, const PersistentChunk& chunk, std::byte* exchange,
                   cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRID_H_
