// SPDX-License-Identifier: Apache-2.0
// The product of product.cuh for as many rows as the device takes at once, a tile a block, by wgmma (sm_90a): the
// same bytes. What counts is the time of one tile, not how many follow each other: it is as narrow as possible while
// every tile has a block.
//
// A tile is 128 rows of x, or 64 of codes of two bytes, both planes, and kOneTileColumns columns. Warps 0-3 and 4-7, a
// warpgroup each, multiply 64 of the rows, or one of the planes, by all columns: half of 96 columns by all rows would
// read 146 bytes of shared memory a cycle at the rate of the tensor cores, which is more than there are. Warps 8 and 9
// fill a ring of stages: 128 rows x 128 bytes of x and as deep a piece of W. W, which is constant, warp 8 asks for
// before x is there. Two more warps do nothing, so that registers can be traded.
//
// Sums go to shared memory, where the stages were, and what becomes of them is a loop that each thread goes through for
// rows of the same columns. Without that it would be thousands of instructions that run once, which take longer to
// come from memory than to run.
//
// Blocks of a cluster have the same columns and rows beneath each other: each loads its share of the piece of W for
// all. So a stage is free when every block's warps have read their own copy. Nobody's bytes arrive in a phase too
// early, for the reason that wgmma.cuh gives.
#ifndef ISOBIT_PRODUCT_CUDA_ONE_TILE_CUH_
#define ISOBIT_PRODUCT_CUDA_ONE_TILE_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "product/cuda/product.h"
#include "product/cuda/wgmma.cuh"

namespace isobit::cuda {

inline constexpr int kOneTileThreads = 128 * (kWgmmaGroups + 1), kOneTileRowTiles = 2, kOneTileMaxCluster = 2;
inline constexpr int kOneTileXBytes = kOneTileRowTiles * kWgmmaStageBytes;
inline constexpr int kOneTileShared = 227 * 1024;  // that a block has on sm_90
/// A tile in dynamic shared memory: stages, parameters, barriers. Sums: where the first stages were, rows of kPitch
/// words of 32 bits: those of the rows 0-63 and 64-127, or of the planes.
template <int Columns, typename Ratio>
struct OneTile {
  static constexpr int kStageBytes = kOneTileXBytes + Columns * kWgmmaDepth;
  static constexpr int kParameters = Columns / 2 * kWgmmaPairBytes<Ratio>;
  static constexpr int kMaxStages = 8, kBarrierBytes = 8 * 2 * kMaxStages;
  static constexpr int kFit = (kOneTileShared - kParameters - kBarrierBytes) / kStageBytes;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int kParametersAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kParametersAt + kParameters;  // full, released
  static constexpr int kTotal = kBarriersAt + 8 * 2 * kStages;
  static constexpr int kPitch = Columns + 8;  // so that stores of fragments meet no bank twice
  static constexpr int kSumBytes = kOneTileRowTiles * kWgmmaRows * kPitch * 4;
  static_assert(kSumBytes <= kParametersAt && kParameters % 16 == 0);
};

// ---- host

/// Calls body with one of kOneTileColumns as a constant.
template <typename Body>
auto with_columns(int32_t columns, Body body) {
  return columns == 48   ? body(std::integral_constant<int, 48>())
         : columns == 96 ? body(std::integral_constant<int, 96>())
                         : body(std::integral_constant<int, 144>());
}
/// Blocks for all rows of a tile's columns, in whole clusters.
inline int64_t one_tile_row_blocks(const ProductShape& p, int64_t rows) {
  const int64_t tile_rows = int64_t{kOneTileRowTiles} * kWgmmaRows / p.planes;
  const int64_t blocks = (rows + tile_rows - 1) / tile_rows;
  return blocks == 1 ? 1 : (blocks + kOneTileMaxCluster - 1) / kOneTileMaxCluster * kOneTileMaxCluster;
}
/// Sets what depends on the tiles, and the launch but for its stream and kernel. attribute: config's.
template <typename Ratio>
void cut_one_tile(WgmmaArgs<Ratio>& a, const ProductShape& p, int32_t columns, cudaLaunchConfig_t& config,
                  cudaLaunchAttribute& attribute) {
  const int64_t row_blocks = one_tile_row_blocks(p, a.m);
  a.n_tiles = static_cast<int32_t>((p.n + columns - 1) / columns);
  a.cluster = row_blocks == 1 ? 1 : kOneTileMaxCluster;
  config.gridDim = dim3(static_cast<unsigned>(row_blocks * a.n_tiles));
  config.blockDim = dim3(kOneTileThreads);
  config.dynamicSmemBytes =
      with_columns(columns, [](auto width) { return static_cast<size_t>(OneTile<width(), Ratio>::kTotal); });
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(a.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
}

// ---- device

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// Where a block is, and its barriers.
template <int Columns, typename Ratio>
struct OneTilePlace {
  using Tile = OneTile<Columns, Ratio>;
  uint32_t memory, full, released;
  uint32_t cluster, rank;
  int n_tile, row_block;

  /// In every thread, first.
  __device__ __forceinline__ OneTilePlace(const WgmmaArgs<Ratio>& a, const uint8_t* shared)
      : memory(shared_address(shared)),
        full(memory + Tile::kBarriersAt),
        released(full + 8 * Tile::kStages),
        cluster(static_cast<uint32_t>(a.cluster)),
        rank(block_in_cluster()) {
    // Clusters of the same rows are beside each other: x comes from memory once.
    const int index = static_cast<int>(blockIdx.x / cluster);
    n_tile = index % a.n_tiles;
    row_block = index / a.n_tiles * a.cluster + static_cast<int>(rank);
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < Tile::kStages; ++i) {
        barrier_init(full + 8 * i, 1);
        barrier_init(released + 8 * i, 4 * kWgmmaGroups * cluster);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    cluster_sync();
  }
};

// What a thread does for each stage is on the way of all products, so weights and codes have one each.

/// This block's share of each piece of weights, for all blocks of the cluster. In one thread, which says how many bytes
/// a stage gets.
template <int Planes, int Columns, typename Ratio>
__device__ __forceinline__ void load_weights_of_tile(const WgmmaArgs<Ratio>& a,
                                                     const OneTilePlace<Columns, Ratio>& at) {
  using Tile = OneTile<Columns, Ratio>;
  const uint32_t share = Columns * kWgmmaDepth / at.cluster, offset = at.rank * share;
  const auto everyone = static_cast<uint16_t>((1u << at.cluster) - 1);
  const int64_t first_column = int64_t{at.n_tile} * Columns, piece = a.n_image * kWgmmaDepth;
  const uint8_t* from = a.w + first_column * kWgmmaDepth + offset;
  const uint32_t bytes =
      Columns * kWgmmaDepth +
      (Planes == 1 && a.x == nullptr ? kOneTileRowTiles * static_cast<uint32_t>(a.in_place.box_bytes) : kOneTileXBytes);
  StagePhase next;
  for (int block = 0; block < a.k_blocks; ++block, from += piece) {
    const uint32_t barrier = at.full + 8 * next.stage;
    const uint32_t to = at.memory + next.stage * Tile::kStageBytes + kOneTileXBytes + offset;
    barrier_wait(at.released + 8 * next.stage, next.phase ^ 1);
    barrier_expect(barrier, bytes + (block == 0 ? Tile::kParameters : 0));
    at.cluster == 1 ? fetch(to, from, share, barrier) : fetch_for_cluster(to, from, share, barrier, everyone);
    if (block == 0) fetch_parameters<Columns>(a, first_column, at.memory + Tile::kParametersAt, barrier);
    next.advance(Tile::kStages);
  }
}
/// The rows of x. Where a row tile has no rows it is the last one, and nothing of it is stored. In one thread.
template <int Planes, int Columns, typename Ratio>
__device__ __forceinline__ void load_codes_of_tile(const WgmmaArgs<Ratio>& a, const OneTilePlace<Columns, Ratio>& at) {
  using Tile = OneTile<Columns, Ratio>;
  static_assert(kOneTileRowTiles == 2);
  const int m_tiles = static_cast<int>((a.m + kWgmmaRows - 1) / kWgmmaRows) * Planes;
  const int one = min(at.row_block * 2, m_tiles - 1), another = min(at.row_block * 2 + 1, m_tiles - 1);
  StagePhase next;
  // fetch_both(to, block, barrier)
  const auto load_blocks = [&](auto fetch_both) {
    for (int block = 0; block < a.k_blocks; ++block) {
      barrier_wait(at.released + 8 * next.stage, next.phase ^ 1);
      fetch_both(at.memory + next.stage * Tile::kStageBytes, block, at.full + 8 * next.stage);
      next.advance(Tile::kStages);
    }
  };
  if (Planes == 1 && a.x == nullptr) {
    const void* const map = &a.in_place.map;
    prefetch_map(map);
    const RowInPlace row(a.in_place, begin_tile(a.in_place, one)), second(a.in_place, begin_tile(a.in_place, another));
    wait_for_grid_before();
    load_blocks([&](uint32_t to, int block, uint32_t barrier) {
      fetch_box(to, map, block * kWgmmaDepth, row.row, row.step, barrier);
      fetch_box(to + kWgmmaStageBytes, map, block * kWgmmaDepth, second.row, second.step, barrier);
    });
  } else {
    const int64_t tile_bytes = int64_t{a.k_blocks} * kWgmmaStageBytes;
    const uint8_t *row = a.x + one * tile_bytes, *second = a.x + another * tile_bytes;
    wait_for_grid_before();
    load_blocks([&](uint32_t to, int, uint32_t barrier) {
      fetch(to, row, kWgmmaStageBytes, barrier);
      fetch(to + kWgmmaStageBytes, second, kWgmmaStageBytes, barrier);
      row += kWgmmaStageBytes;
      second += kWgmmaStageBytes;
    });
  }
}

/// In a warpgroup each, of 64 rows or of a plane of them: leaves sums in shared memory.
template <int Planes, int Columns, typename Ratio>
__device__ __forceinline__ void multiply_one_tile(const WgmmaArgs<Ratio>& a, const OneTilePlace<Columns, Ratio>& at,
                                                  int warp, uint8_t* shared) {
  using Tile = OneTile<Columns, Ratio>;
  static_assert(kOneTileRowTiles == kWgmmaGroups);
  int32_t acc[Columns / 2];
  const int lane = read_lane();
  const int rows = warp / 4;
  const bool releases = static_cast<uint32_t>(lane) < at.cluster;
  const uint32_t free_there = address_in(at.released, releases ? static_cast<uint32_t>(lane) : 0);
  uint32_t stage = 0, phase = 0, before = 0;  // before: the stage that the products under way but one read
  for (int block = 0; block < a.k_blocks; ++block) {
    barrier_wait(at.full + 8 * stage, phase);
    const uint64_t pieces = wgmma_matrix(at.memory + stage * Tile::kStageBytes);
    const uint64_t x = pieces + static_cast<uint64_t>(rows * kWgmmaStageBytes >> 4);
    const uint64_t w = pieces + (kOneTileXBytes >> 4);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kWgmmaDepth / 32; ++k)
      wgmma_s8<Columns, Planes == 1>(acc, x + 2 * k, w + 2 * k, block > 0 || k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0 && releases) barrier_arrive_in(free_there + 8 * before);
    before = stage;
    if (++stage == Tile::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  wgmma_wait<0>();
  if (releases) barrier_arrive_in(free_there + 8 * before);
  keep_in_registers(acc);
  named_barrier_sync_apart(1, 128 * kWgmmaGroups);  // both warpgroups have read all stages
  auto* const to = reinterpret_cast<int32_t*>(shared) +
                   (rows * kWgmmaRows + warp % 4 * 16 + lane / 4) * Tile::kPitch + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < Columns / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      *reinterpret_cast<int2*>(to + r * 8 * Tile::kPitch + 8 * j) = int2{acc[4 * j + 2 * r], acc[4 * j + 2 * r + 1]};
  named_barrier_sync_apart(1, 128 * kWgmmaGroups);
}

/// In 256 threads: each has eight columns of some rows.
template <int Planes, int Columns, typename Ratio>
__device__ __forceinline__ void store_one_tile(const WgmmaArgs<Ratio>& a, const OneTilePlace<Columns, Ratio>& at,
                                               const uint8_t* shared) {
  using Tile = OneTile<Columns, Ratio>;
  constexpr int kChunks = Columns / 8, kRowsAtOnce = 128 * kWgmmaGroups / kChunks, kRows = 2 * kWgmmaRows / Planes;
  const int thread = static_cast<int>(threadIdx.x);
  const int chunk = thread % kChunks;
  const int64_t column = int64_t{at.n_tile} * Columns + chunk * 8;
  if (thread >= kChunks * kRowsAtOnce || column >= a.n) return;
  const auto* const ratios = reinterpret_cast<const WgmmaRatios<Ratio>*>(shared + Tile::kParametersAt);
  const auto* const starts = reinterpret_cast<const WgmmaStarts<Ratio>*>(ratios + Columns / 2);
  Ratio by[8];
  LaneOf<Ratio> again[8];
  SumOf<Ratio> start[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    by[i] = ratios[chunk * 4 + i / 2].ratio[i % 2];
    again[i] = ratios[chunk * 4 + i / 2].again[i % 2];
    start[i] = starts[chunk * 4 + i / 2].start[i % 2];
  }
  const int64_t first_row = int64_t{at.row_block} * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, a.m - first_row));
  // The last tile may begin in the one before it.
  int late_from = kRows, late_by = 0;
  if (Planes == 1 && a.x == nullptr) {
    const int last = static_cast<int>((a.m - 1) / kWgmmaRows);
    late_from = last * kWgmmaRows - at.row_block * kRows;
    late_by = last * kWgmmaRows - begin_tile(a.in_place, last);
  }
  for (int row = thread / kChunks; row < rows; row += kRowsAtOnce) {
    const int at_row = row + (row >= late_from ? late_by : 0);
    int4 four[Planes][2];
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        four[plane][half] = reinterpret_cast<const int4*>(
            reinterpret_cast<const int32_t*>(shared) + (at_row + plane * kWgmmaRows) * Tile::kPitch + chunk * 8)[half];
    SumOf<Ratio> sum[8];
    uint32_t code[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int32_t planes[Planes];
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane) {
        const int4& of = four[plane][i / 4];
        planes[plane] = i % 4 == 0 ? of.x : i % 4 == 1 ? of.y : i % 4 == 2 ? of.z : of.w;
      }
      sum[i] = complete_sum<Ratio>(planes, start[i]);
    }
    product_codes(a, sum, by, again, code);
    __stcg(reinterpret_cast<uint4*>(a.out + (first_row + row) * a.n + column),
           uint4{both_codes(code[0], code[1]), both_codes(code[2], code[3]), both_codes(code[4], code[5]),
                 both_codes(code[6], code[7])});
  }
}
#endif

template <int Columns, int Planes, typename Ratio>
__global__ void __launch_bounds__(kOneTileThreads, 1) product_one_tile(const __grid_constant__ WgmmaArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t wgmma_memory[];
  let_next_grid_start();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const OneTilePlace<Columns, Ratio> at(a, wgmma_memory);
  if (warp >= 4 * kWgmmaGroups) {
    trade_registers<40>();
    if (warp == 4 * kWgmmaGroups && is_elected()) load_weights_of_tile<Planes>(a, at);
    if (warp == 4 * kWgmmaGroups + 1 && is_elected()) load_codes_of_tile<Planes>(a, at);
    __syncwarp();
  } else {
    trade_registers<232>();
    multiply_one_tile<Planes>(a, at, warp, wgmma_memory);
    store_one_tile<Planes>(a, at, wgmma_memory);
    __syncwarp();
  }
  // Blocks of the cluster may still arrive at barriers here.
  cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_PRODUCT_CUDA_ONE_TILE_CUH_
