// SPDX-License-Identifier: Apache-2.0
// What the host decides before it packs a layer or launches a kernel, and what tests ask of it; without code for a
// device, so that any compiler can include it.
#ifndef ISOBIT_GRU_CUDA_PLAN_H_
#define ISOBIT_GRU_CUDA_PLAN_H_

#include <cstdint>

#include "gru/proof.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// The device that a model is on.
struct DeviceLimits {
  int device = 0;
  int processors = 0;
  int major = 0;             // of the compute capability
  int block_shared = 0;      // bytes of shared memory that a block may ask for
  int processor_shared = 0;  // that a processor has
};
/// Of the current device.
Result<DeviceLimits> current_device_limits();

/// What the persistent kernels rescale a layer's sums by (core/ratio.h). kShift, kFixed: Fixed, or WideFixed for R h of
/// two planes; kShift: without multipliers, where all ratios of a matrix are powers of two.
enum class RatioType { kFloat, kShift, kFixed, kDouble };
/// Of W x and R h. kDouble of R h: gates in double lanes, too.
struct LayerRatios {
  RatioType x = RatioType::kFloat, h = RatioType::kFloat;
};
LayerRatios choose_ratios(const GruLayerParameters& p, const GruProof& proof);

/// What a block of gru_step_many (step_many.cuh) takes: `groups` times so many units, `row_tiles` times so many
/// sequences. No groups: the step is left to gru_step.
inline constexpr int64_t kStepTileUnits = 16, kStepTileSequences = 32;
struct StepTile {
  int32_t groups = 0, row_tiles = 0;
};
/// kUnsupported: `step` cannot run the layer.
Result<StepTile> step_tile(const GruLayerParameters& p, int64_t batch, const DeviceLimits& limits);

// ---- For tests of `persistent`

/// From now on every part of an exchange through global memory (grid_few.cuh, grid_many.cuh, portable.cuh) waits a
/// pseudo-random time first; other seeds, other times. 0: no more. Bytes do not depend on it.
void set_exchange_delays(uint32_t seed);

/// From now on the x and ih of a chunk of steps have at most so many bytes, or those of one step; workspaces are as
/// much smaller, so none may be kept across a change. 0: as many as without tests. Bytes do not depend on it.
void set_chunk_bytes(int64_t bytes);
/// Chunks of a run of a layer.
Result<int64_t> chunks_of(const GruLayerParameters& p, int64_t batch, int64_t steps);

/// How a batch of bytes with H from 513 to 768 is spread where so many teams of gru_cluster_many, with so many tiles
/// each, and so many blocks of gru_products are on a device at once; no device is needed. tiles: of a team.
struct BatchSpread {
  int64_t waves, tiles, product_rounds;
};
BatchSpread batch_spread(int32_t hidden, int32_t teams, int32_t team_tiles, int32_t blocks, int64_t batch);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PLAN_H_
