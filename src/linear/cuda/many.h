// SPDX-License-Identifier: Apache-2.0
// Products of low-bit weights with many rows of x, by wgmma: sm_90a only. A warpgroup has a strip of 64 rows of W and
// 32 or 128 rows of x; a block of threads has two of them, for neighbouring strips or rows of x.
#ifndef ISOBIT_LINEAR_CUDA_MANY_H_
#define ISOBIT_LINEAR_CUDA_MANY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "isobit/status.h"
#include "linear/cuda/image.h"
#include "linear/cuda/product.h"
#include "linear/cuda/rows.h"

namespace isobit::cuda {

inline constexpr int kManyGroups = 2;      // warpgroups of a block of threads that multiply
inline constexpr int kManySlabTiles = 8;   // rows.h
inline constexpr int kManyExchange = 256;  // where sums of other blocks come to, behind the barriers
inline constexpr int kManyFewColumns = 32, kManyMostColumns = 128;  // rows of x of a warpgroup
inline constexpr int kManyTileGroup = 8;                            // tiles of W that take turns with tiles of x
// Results of a warp on their way to y: rows of x, each with 16 of W.
inline constexpr int kManyTurnRows = 16, kManyTurnStride = 20;
inline constexpr int kManyResultsBytes = 4 * kManyGroups * kManyTurnRows * kManyTurnStride * 4;

struct ManyArgs : ProductArgs {
  // Of a tile, which a block of threads does: strips, warpgroups for each, slabs that these read.
  int32_t tile_strips, tile_columns, tile_slabs;
  int32_t w_tiles, x_tiles;  // of the layer
  // Of a stage, in bytes.
  int32_t parameters_at, x_at, x_parameters_at, x_slab_parameters, stage_bytes;
  int32_t results_at, stages_at;
};

struct ManyPlan {
  int32_t columns = 0;  // of a warpgroup: 32 or 128
  int32_t blocks = 0;   // of threads
  int64_t shared = 0;   // bytes
};

/// Sums of a warpgroup, in bytes.
constexpr int64_t many_sums_bytes(int32_t columns) {
  return int64_t{columns} * kStripRows * static_cast<int64_t>(sizeof(float));
}

/// Whether there is code for the current device, of compute capability 9.0.
Result<bool> many_can_run();
/// kind, bits and groups of `image` choose the kernel. early: the launch before lets this one start.
Status run_many(const ImageLayout& image, RowsKind kind, bool general, const ManyPlan& plan, const ManyArgs& args,
                bool early, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_MANY_H_
