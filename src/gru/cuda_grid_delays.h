// SPDX-License-Identifier: Apache-2.0
// A hook for tests of the grid kernels (cuda_grid.cuh).
#ifndef ISOBIT_GRU_CUDA_GRID_DELAYS_H_
#define ISOBIT_GRU_CUDA_GRID_DELAYS_H_

#include <cstdint>

namespace isobit::cuda {

/// From now on every part of the exchange waits a pseudo-random time first; other seeds, other times. 0: no more. Bytes
/// do not depend on it.
void set_grid_delays(uint32_t seed);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRID_DELAYS_H_
