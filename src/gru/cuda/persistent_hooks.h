// SPDX-License-Identifier: Apache-2.0
// What tests ask of `persistent`, and nothing else does; apart from its kernels.
#ifndef ISOBIT_GRU_CUDA_PERSISTENT_HOOKS_H_
#define ISOBIT_GRU_CUDA_PERSISTENT_HOOKS_H_

#include <cstdint>

#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// From now on every part of an exchange through global memory (grid.cuh, portable.cuh, the guests of
/// cluster_many.cuh) waits a pseudo-random time first; other seeds, other times. 0: no more. Bytes do not depend
/// on it.
void set_exchange_delays(uint32_t seed);

/// From now on the x and ih of a chunk of steps have at most so many bytes, or those of one step; workspaces are as
/// much smaller, so none may be kept across a change. 0: as many as without tests. Bytes do not depend on it.
void set_chunk_bytes(int64_t bytes);
/// Chunks of a run of a layer.
Result<int64_t> chunks_of(const GruLayerParameters& p, int64_t batch, int64_t steps);

/// Teams of gru_cluster_many (cluster_many.cuh) that the current device has room for, and the sequences with which
/// they take turns in a run of a layer. kUnsupported: it cannot run the layer.
Result<int32_t> cluster_many_teams(const GruLayerParameters& p);
Result<int32_t> guests_of_run(const GruLayerParameters& p, int64_t batch, int64_t steps);
/// From now on there may be guests in runs, or chunks, of this many steps and more. 0: where it is faster. Bytes do not
/// depend on it.
void set_fewest_guest_steps(int64_t steps);

/// Teams of gru_grid_many (grid.cuh) that a run of so many sequences and steps takes on the current device; 0:
/// clusters, or gru_grid_few, run it. kUnsupported: `persistent` cannot run the layer.
Result<int32_t> grid_teams(const GruLayerParameters& p, int64_t batch, int64_t steps);

/// How a batch of bytes with H from 513 to 768 is spread where so many teams of gru_cluster_many, with so many tiles
/// each, and so many blocks of gru_products are on a device at once; no device is needed. tiles: of a team.
struct BatchSpread {
  int64_t waves, tiles, product_rounds;
};
BatchSpread batch_spread(int32_t hidden, int32_t teams, int32_t team_tiles, int32_t blocks, int64_t batch,
                         int64_t steps);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PERSISTENT_HOOKS_H_
