// SPDX-License-Identifier: Apache-2.0
// Products of low-bit weights with many rows of x, by wgmma: sm_90a only. A block of threads has two warpgroups for two
// neighbouring strips of 64 rows of W, each with the same 64 or 128 rows of x, of static codes 256, too.
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
// Rows of x of a warpgroup; kManyStaticColumns: of static codes.
inline constexpr int kManyFewColumns = 64, kManyMostColumns = 128, kManyStaticColumns = 256;
// Blocks of threads of a cluster that share rows of x, each of which loads whole slabs for all. Larger clusters do not
// fill all processors.
inline constexpr int kManyMostNeighbours = 2;
inline constexpr int kManyTileGroup = 8;  // tiles of W that take turns with tiles of x

struct ManyArgs : ProductArgs {
  int32_t tile_slabs;        // of a tile, which has kManyGroups strips
  int32_t neighbours;        // blocks of threads of a cluster with neighbouring strips and the same rows of x
  int32_t w_tiles, x_tiles;  // of the layer; w_tiles: for all neighbours
  // Of a stage, in bytes.
  int32_t parameters_at, x_at, x_parameters_at, x_slab_parameters, stage_bytes;
  int32_t stages_at;
};

struct ManyPlan {
  int32_t columns = 0;  // of a warpgroup: 64, 128 or 256
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
