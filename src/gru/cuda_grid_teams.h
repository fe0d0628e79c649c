// SPDX-License-Identifier: Apache-2.0
// Which layers of H to 1024 `persistent` runs as those above; apart from its kernels, so that a test can ask for it.
#ifndef ISOBIT_GRU_CUDA_GRID_TEAMS_H_
#define ISOBIT_GRU_CUDA_GRID_TEAMS_H_

#include <cstdint>

#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// Teams of gru_grid_many (cuda_grid.cuh) that a run of so many sequences takes on the current device; 0: clusters run
/// it. kUnsupported: `persistent` cannot run the layer.
Result<int32_t> grid_teams(const GruLayerParameters& p, int64_t batch);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRID_TEAMS_H_
