// SPDX-License-Identifier: Apache-2.0
// The product of product.cuh for many rows, by wgmma (sm_90a): the same bytes.
//
// product_wgmma: a block has a tile of columns for its whole life: its part of W, for all of k, stays in shared memory,
// with what rescales its results. Tiles of 64 rows of x pass through a ring of stages (64 rows x 128 bytes of k). Warps
// 0-3 and 4-7, a warpgroup each, take the tiles in turns, so that one multiplies while the other rescales and stores.
// Warp 8 fills the stages. Results cross to rows in shared memory, each warp's 16, so that they leave in pieces of 16
// bytes.
//
// Whoever waits for a barrier sees the parity of its phase only, so it may be one phase behind and no more. A tile may
// need more stages than there are: a warpgroup starts when the other one has met every stage of the tile before.
//
// Blocks of a cluster have tiles of columns beside each other and the same rows: each loads its share of a stage for
// all of them. So a stage is free when every block's warpgroup has read its own copy. Nobody's bytes can arrive in a
// phase too early: who sends them has heard from all readers of the phase before, so that one is over.
//
// product_wgmma_deep, for greater depths, where W for all of k leaves little room or none: a stage is 128 rows x 128
// bytes of x and as deep a piece of W. Tiles are 128 rows x 192 columns, so that the cache keeps up; a warpgroup has
// all of one, again in turns. The two blocks of a cluster have the same columns and rows beneath each other: each loads
// half of the piece of W for both. Tiles follow each other along n, so that x comes from memory once. What rescales a
// tile is copied by its warpgroup. Of codes of two bytes a tile is 64 rows, both planes of them: a thread has both sums
// of a result.
//
// W comes in the order of shared memory: rows of 128 bytes whose 16-byte pieces are exchanged (piece ^ row % 8), which
// is the 128-byte swizzle of wgmma. So the part of any columns, a multiple of 8 from a multiple of 8 on, of 128 bytes
// of k is one bulk copy. So is a stage of x: of rows that were padded in the same order, or of the caller's own, by a
// tensor map.
#ifndef ISOBIT_PRODUCT_CUDA_WGMMA_CUH_
#define ISOBIT_PRODUCT_CUDA_WGMMA_CUH_

#include <cstdint>

#include "core/cuda/ptx.cuh"
#include "core/cuda/wgmma.cuh"
#include "product/cuda/product.cuh"
#include "product/cuda/rows_in_place.h"

namespace isobit::cuda {

inline constexpr int kWgmmaMostColumns = 192;  // of a tile of any kernel
inline constexpr int kWgmmaRows = 64, kWgmmaDepth = 128, kWgmmaGroups = 2, kWgmmaMaxStages = 8;
inline constexpr int kWgmmaThreads = 128 * kWgmmaGroups + 32;
inline constexpr int kWgmmaStageBytes = kWgmmaRows * kWgmmaDepth;
// Of product_wgmma_deep; a third warpgroup, for the warp that loads, so that registers can be traded.
inline constexpr int kDeepRowTiles = 2, kDeepColumns = 192, kDeepStages = 4, kDeepCluster = 2;
inline constexpr int kDeepThreads = 128 * (kWgmmaGroups + 1);
inline constexpr int kDeepXBytes = kDeepRowTiles * kWgmmaStageBytes, kDeepWBytes = kDeepColumns * kWgmmaDepth;
inline constexpr int kDeepStageBytes = kDeepXBytes + kDeepWBytes;

/// What rescales the results of two columns beside each other.
template <typename Ratio>
struct alignas(16) WgmmaRatios {
  Ratio ratio[2];
  LaneOf<Ratio> again[2];
};
template <typename Ratio>
struct alignas(2 * sizeof(SumOf<Ratio>)) WgmmaStarts {
  SumOf<Ratio> start[2];
};
template <typename Ratio>
inline constexpr int kWgmmaPairBytes = sizeof(WgmmaRatios<Ratio>) + sizeof(WgmmaStarts<Ratio>);

/// Weights and what rescales the results.
template <typename Ratio>
struct WgmmaMatrix {
  /// [k_blocks][n_image][128], pieces exchanged, zeros beyond k and n; then WgmmaRatios of each pair of columns; then
  /// WgmmaStarts of each.
  const uint8_t* w;
  int64_t n_image;  // as many columns as tiles of any width reach
  int32_t k_blocks;
  bool by_shifts;  // rows of Fixed
  LimitOf<Ratio> low, high;
};
template <typename Ratio>
struct WgmmaArgs : WgmmaMatrix<Ratio> {
  /// [ceil(m / 64)][planes][k_blocks][64][128], pieces exchanged; what is beyond m and k is read, k times 0. One plane
  /// is signed bytes; two are those of unsigned codes, high bytes first. Or null: x is in_place.
  const uint8_t* x;
  int64_t m, n;  // n a multiple of 8
  int32_t n_tiles;
  int32_t stages, cluster;  // of product_wgmma: cluster is blocks of a cluster and divides n_tiles
  uint16_t* out;            // [m][n], 16-byte aligned
  RowsInPlace in_place;     // one plane; a box is a tile's rows, or a block's share of them
};

template <typename Ratio>
WgmmaMatrix<Ratio> wgmma_weights(const DeviceProduct<Ratio>& product) {
  const ProductShape& p = product.shape;
  return {p.image, p.n_image, p.k_blocks, product.by_shifts, product.low, product.high};
}

/// Of columns from `column` on.
template <typename Ratio>
__device__ __forceinline__ const WgmmaRatios<Ratio>* ratios_of(const WgmmaMatrix<Ratio>& a, int64_t column) {
  return reinterpret_cast<const WgmmaRatios<Ratio>*>(a.w + a.k_blocks * a.n_image * kWgmmaDepth) + column / 2;
}
template <typename Ratio>
__device__ __forceinline__ const WgmmaStarts<Ratio>* starts_of(const WgmmaMatrix<Ratio>& a, int64_t column) {
  return reinterpret_cast<const WgmmaStarts<Ratio>*>(ratios_of(a, a.n_image)) + column / 2;
}

/// Bytes of a row of codes in shared memory: those of eight rows are in different banks.
constexpr int32_t wgmma_pitch(int32_t columns) { return columns * 2 + 16; }

/// Offsets in dynamic shared memory. x: of product_wgmma; in the other kernel stages come first.
struct WgmmaShared {
  int32_t x, parameters, codes, barriers, total;
};
template <typename Ratio>
__host__ __device__ constexpr WgmmaShared wgmma_shared(int32_t columns, int32_t k_blocks, int32_t stages) {
  WgmmaShared at{};
  at.x = k_blocks * columns * kWgmmaDepth;
  at.parameters = at.x + stages * kWgmmaStageBytes;
  at.codes = at.parameters + columns / 2 * kWgmmaPairBytes<Ratio>;
  at.barriers = at.codes + kWgmmaGroups * kWgmmaRows * wgmma_pitch(columns);
  at.total = at.barriers + 8 * (2 * stages + k_blocks);
  return at;
}
/// Of product_wgmma_deep.
template <typename Ratio>
__host__ __device__ constexpr WgmmaShared deep_shared() {
  WgmmaShared at{};
  at.parameters = kDeepStages * kDeepStageBytes;
  at.codes = at.parameters + kWgmmaGroups * (kDeepColumns / 2 * kWgmmaPairBytes<Ratio>);
  at.barriers = at.codes + kWgmmaGroups * kWgmmaRows * wgmma_pitch(kDeepColumns);
  at.total = at.barriers + 8 * 2 * kDeepStages;
  return at;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// Rows of 128 bytes, groups of 8 rows 1024 bytes apart, 128-byte swizzle. n bytes further: add n / 16. An address in
/// a cluster has the block's rank above the 18 bits of shared memory.
__device__ __forceinline__ uint64_t wgmma_matrix(uint32_t address) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}
/// d = x (64 x 32, signed or unsigned) * w (N rows of 32, signed), plus d where `add`. Of a warp's 16 rows,
/// d[4 j + 2 r + c] is row lane / 4 + 8 r, column 8 j + lane % 4 * 2 + c.
template <int N, bool IsSigned>
__device__ __forceinline__ void wgmma_s8(int32_t (&d)[N / 2], uint64_t x, uint64_t w, bool add);
#define ISOBIT_D4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
// registers: of d; x, w, add: the numbers of these operands.
#define ISOBIT_WGMMA_OF(N, is_signed, type, registers, x_at, w_at, add_at, ...)                                  \
  template <>                                                                                                    \
  __device__ __forceinline__ void wgmma_s8<N, is_signed>(int32_t(&d)[N / 2], uint64_t x, uint64_t w, bool add) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_at                                                  \
                 ", 0;\n"                                                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32." type ".s8 {" registers "}, " x_at ", " w_at   \
                 ", add;\n}\n"                                                                                   \
                 : __VA_ARGS__                                                                                   \
                 : "l"(x), "l"(w), "r"(static_cast<int32_t>(add)));                                              \
  }
#define ISOBIT_WGMMA(N, ...)                  \
  ISOBIT_WGMMA_OF(N, true, "s8", __VA_ARGS__) \
  ISOBIT_WGMMA_OF(N, false, "u8", __VA_ARGS__)
// clang-format off
ISOBIT_WGMMA(24,
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11", "%12", "%13", "%14",
  ISOBIT_D4(0), ISOBIT_D4(4), ISOBIT_D4(8))
ISOBIT_WGMMA(48,
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
  "%16,%17,%18,%19,%20,%21,%22,%23", "%24", "%25", "%26",
  ISOBIT_D4(0), ISOBIT_D4(4), ISOBIT_D4(8), ISOBIT_D4(12), ISOBIT_D4(16), ISOBIT_D4(20))
ISOBIT_WGMMA(64,
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31", "%32", "%33", "%34",
  ISOBIT_D4(0), ISOBIT_D4(4), ISOBIT_D4(8), ISOBIT_D4(12), ISOBIT_D4(16), ISOBIT_D4(20), ISOBIT_D4(24), ISOBIT_D4(28))
ISOBIT_WGMMA(80,
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
  "%32,%33,%34,%35,%36,%37,%38,%39", "%40", "%41", "%42",
  ISOBIT_D4(0), ISOBIT_D4(4), ISOBIT_D4(8), ISOBIT_D4(12), ISOBIT_D4(16), ISOBIT_D4(20), ISOBIT_D4(24), ISOBIT_D4(28),
  ISOBIT_D4(32), ISOBIT_D4(36))
ISOBIT_WGMMA(96,
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47", "%48", "%49", "%50",
  ISOBIT_D4(0), ISOBIT_D4(4), ISOBIT_D4(8), ISOBIT_D4(12), ISOBIT_D4(16), ISOBIT_D4(20), ISOBIT_D4(24), ISOBIT_D4(28),
  ISOBIT_D4(32), ISOBIT_D4(36), ISOBIT_D4(40), ISOBIT_D4(44))
ISOBIT_WGMMA(144,
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
  "%64,%65,%66,%67,%68,%69,%70,%71", "%72", "%73", "%74",
  ISOBIT_D4(0), ISOBIT_D4(4), ISOBIT_D4(8), ISOBIT_D4(12), ISOBIT_D4(16), ISOBIT_D4(20), ISOBIT_D4(24), ISOBIT_D4(28),
  ISOBIT_D4(32), ISOBIT_D4(36), ISOBIT_D4(40), ISOBIT_D4(44), ISOBIT_D4(48), ISOBIT_D4(52), ISOBIT_D4(56), ISOBIT_D4(60),
  ISOBIT_D4(64), ISOBIT_D4(68))
ISOBIT_WGMMA(192,
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95", "%96", "%97", "%98",
  ISOBIT_D4(0), ISOBIT_D4(4), ISOBIT_D4(8), ISOBIT_D4(12), ISOBIT_D4(16), ISOBIT_D4(20), ISOBIT_D4(24), ISOBIT_D4(28),
  ISOBIT_D4(32), ISOBIT_D4(36), ISOBIT_D4(40), ISOBIT_D4(44), ISOBIT_D4(48), ISOBIT_D4(52), ISOBIT_D4(56), ISOBIT_D4(60),
  ISOBIT_D4(64), ISOBIT_D4(68), ISOBIT_D4(72), ISOBIT_D4(76), ISOBIT_D4(80), ISOBIT_D4(84), ISOBIT_D4(88), ISOBIT_D4(92))
// clang-format on
#undef ISOBIT_WGMMA
#undef ISOBIT_WGMMA_OF
#undef ISOBIT_D4

/// Ratios and starts of a tile behind each other, Columns / 2 * kWgmmaPairBytes.
template <int Columns, typename Ratio>
__device__ __forceinline__ void fetch_parameters(const WgmmaMatrix<Ratio>& a, int64_t first_column, uint32_t to,
                                                 uint32_t barrier) {
  constexpr auto kRatioBytes = static_cast<uint32_t>(Columns / 2 * sizeof(WgmmaRatios<Ratio>));
  constexpr auto kStartBytes = static_cast<uint32_t>(Columns / 2 * sizeof(WgmmaStarts<Ratio>));
  static_assert(kStartBytes % 16 == 0);
  fetch(to, ratios_of(a, first_column), kRatioBytes, barrier);
  fetch(to + kRatioBytes, starts_of(a, first_column), kStartBytes, barrier);
}
/// A stage of the ring, and which parity its barriers' phases have.
struct StagePhase {
  uint32_t stage = 0, phase = 0;
  __device__ __forceinline__ void advance(uint32_t stages) {
    if (++stage < stages) return;
    stage = 0;
    phase ^= 1;
  }
};
/// The first row of tile `tile`, or of the 64 last ones.
__device__ __forceinline__ int begin_tile(const RowsInPlace& rows, int tile) {
  const int row = tile * kWgmmaRows;
  return rows.rows >= kWgmmaRows ? min(row, rows.rows - kWgmmaRows) : row;
}
/// Where a copy of rows from `row` on begins.
struct RowInPlace {
  int32_t row, step;
  __device__ __forceinline__ RowInPlace(const RowsInPlace& rows, int row_index)
      : row(row_index % rows.batch), step(row_index / rows.batch) {}
};
/// The number of the lane, read here and no earlier: in product_wgmma_deep what depends on it would find no registers
/// during the products.
__device__ __forceinline__ int read_lane() {
  int lane = 0;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
/// What becomes of a warp's 16 rows of a tile: rescaled, by way of `codes` (16 rows of wgmma_pitch bytes, the warp's
/// own), and stored as far as they are within m and n. acc: of each plane. pair_ratios, pair_starts: of these columns.
template <int Columns, int Planes, typename Ratio>
__device__ __forceinline__ void store_results(const WgmmaArgs<Ratio>& a, const int32_t (*acc)[Columns / 2],
                                              const WgmmaRatios<Ratio>* pair_ratios,
                                              const WgmmaStarts<Ratio>* pair_starts, const uint8_t* codes,
                                              int64_t first_row, int64_t first_column) {
  constexpr int kPitch = wgmma_pitch(Columns);
  const int lane = read_lane();
  const WgmmaRatios<Ratio>* const ratios = pair_ratios + lane % 4;
  const WgmmaStarts<Ratio>* const starts = pair_starts + lane % 4;
  // For stmatrix, the row and the half of 16 columns whose address this lane gives.
  const uint32_t codes_to = shared_address(codes) + static_cast<uint32_t>(lane % 16 * kPitch + lane / 16 * 16);
  // How codes leave: kRows rows at a time, a third of a row is kLanes pieces of 16 bytes.
  // The last of those rows may be beyond the warp's.
  constexpr int kLanes = Columns / 24, kRows = 32 / kLanes, kTurns = (16 + kRows - 1) / kRows;
  static_assert(Columns % 48 == 0 && kPitch % 16 == 0);
  const int lane_row = lane / kLanes;
  const int lane_piece = lane % kLanes;
  const uint8_t* const lane_codes = codes + lane_row * kPitch + lane_piece * 16;

  // Of the next 16 columns before the codes of these are written: the compiler cannot know that they are apart.
  WgmmaRatios<Ratio> ratio[2] = {ratios[0], ratios[4]};
  WgmmaStarts<Ratio> start[2] = {starts[0], starts[4]};
#pragma unroll
  for (int j = 0; j < Columns / 8; j += 2) {
    uint32_t word[4];  // 8 x 8 codes each: rows 0-7 and 8-15 of columns 8 j.., then of columns 8 j + 8..
    SumOf<Ratio> sum[8];
    Ratio by[8];
    LaneOf<Ratio> again[8];
    uint32_t code[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int32_t planes[Planes];
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane) planes[plane] = acc[plane][4 * j + i];
      sum[i] = complete_sum<Ratio>(planes, start[i / 4].start[i % 2]);
      by[i] = ratio[i / 4].ratio[i % 2];
      again[i] = ratio[i / 4].again[i % 2];
    }
    product_codes(a, sum, by, again, code);
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = both_codes(code[2 * i], code[2 * i + 1]);
    if (j + 2 < Columns / 8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ratio[i] = ratios[(j + 2 + i) * 4];
        start[i] = starts[(j + 2 + i) * 4];
      }
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(codes_to + 16 * j), "r"(word[0]),
                 "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
  }
  __syncwarp();
  const int64_t columns = a.n - first_column;
  const int rows = lane >= kLanes * kRows ? 0 : a.m - first_row < 16 ? static_cast<int>(a.m - first_row) : 16;
  uint16_t* const out = a.out + (first_row + lane_row) * a.n + first_column + lane_piece * 8;
  uint4 pieces[kTurns * 3];
#pragma unroll
  for (int i = 0; i < kTurns * 3; ++i)
    if (i / 3 * kRows + 31 / kLanes < 16 || i / 3 * kRows + lane_row < 16)
      pieces[i] = *reinterpret_cast<const uint4*>(lane_codes + i / 3 * kRows * kPitch + i % 3 * kLanes * 16);
#pragma unroll
  for (int i = 0; i < kTurns * 3; ++i)
    if (i / 3 * kRows + lane_row < rows && (i % 3 * kLanes + lane_piece) * 8 < columns)
      __stcg(reinterpret_cast<uint4*>(out + i / 3 * kRows * a.n + i % 3 * kLanes * 8), pieces[i]);
  __syncwarp();  // codes may be written again
}
#endif

template <int Columns, typename Ratio>
__global__ void __launch_bounds__(kWgmmaThreads, 1) product_wgmma(const __grid_constant__ WgmmaArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t wgmma_memory[];
  constexpr int kBlockBytes = Columns * kWgmmaDepth;
  constexpr int kParameters = Columns / 2 * kWgmmaPairBytes<Ratio>;
  static_assert(kParameters % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const WgmmaShared at = wgmma_shared<Ratio>(Columns, a.k_blocks, a.stages);
  const uint32_t w_at = shared_address(wgmma_memory);
  const uint32_t x_at = w_at + static_cast<uint32_t>(at.x);
  const uint32_t x_full = w_at + static_cast<uint32_t>(at.barriers);  // stages: x is there
  const uint32_t x_free = x_full + 8 * static_cast<uint32_t>(a.stages);
  const uint32_t w_full = x_free + 8 * static_cast<uint32_t>(a.stages);  // k_blocks
  const auto cluster = static_cast<uint32_t>(a.cluster);
  const uint32_t rank = block_in_cluster();
  let_next_grid_start();
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(a.stages); ++i) {
      barrier_init(x_full + 8 * i, 1);
      barrier_init(x_free + 8 * i, 4 * cluster);
    }
    for (uint32_t i = 0; i < static_cast<uint32_t>(a.k_blocks); ++i) barrier_init(w_full + 8 * i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  cluster_sync();

  // Clusters that run together read about the same rows: x comes from memory once.
  const int groups = a.n_tiles / a.cluster;
  const int index = static_cast<int>(blockIdx.x / cluster);
  const int n_tile = index % groups * a.cluster + static_cast<int>(rank);
  const int first_tile = index / groups;
  const int tile_step = static_cast<int>(gridDim.x / cluster) / groups;
  const int m_tiles = static_cast<int>((a.m + kWgmmaRows - 1) / kWgmmaRows);
  uint32_t stage = 0, phase = 0;
  const auto advance = [&](int by) {
    for (stage += static_cast<uint32_t>(by); stage >= static_cast<uint32_t>(a.stages); phase ^= 1)
      stage -= static_cast<uint32_t>(a.stages);
  };

  if (warp == 4 * kWgmmaGroups) {
    // ---- The loading warp.
    if (lane == 0) {
      const int64_t first_column = int64_t{n_tile} * Columns;
      const uint8_t* w = a.w + first_column * kWgmmaDepth;
      for (int block = 0; block < a.k_blocks; ++block, w += a.n_image * kWgmmaDepth) {
        const uint32_t barrier = w_full + 8 * static_cast<uint32_t>(block);
        barrier_expect(barrier, kBlockBytes + (block == 0 ? kParameters : 0));
        if (block == 0)
          fetch_parameters<Columns>(a, first_column, w_at + static_cast<uint32_t>(at.parameters), barrier);
        fetch(w_at + static_cast<uint32_t>(block * kBlockBytes), w, kBlockBytes, barrier);
      }
      if (a.x == nullptr) prefetch_map(&a.in_place.map);
      // W is constant; x comes from the grid before. Nobody writes `out` before x is there.
      wait_for_grid_before();
      const uint32_t share = kWgmmaStageBytes / cluster;
      const auto everyone = static_cast<uint16_t>((1u << cluster) - 1);
      // fetch_share(to, block, barrier): this block's rows of a stage, for all blocks of the cluster.
      const uint32_t bytes = a.x != nullptr ? kWgmmaStageBytes : cluster * static_cast<uint32_t>(a.in_place.box_bytes);
      const auto load_tile = [&](auto fetch_share) {
        for (int block = 0; block < a.k_blocks; ++block) {
          const uint32_t barrier = x_full + 8 * stage;
          barrier_wait(x_free + 8 * stage, phase ^ 1);
          barrier_expect(barrier, bytes);
          fetch_share(x_at + stage * kWgmmaStageBytes + rank * share, block, barrier);
          advance(1);
        }
      };
      for (int tile = first_tile; tile < m_tiles; tile += tile_step) {
        if (a.x != nullptr) {
          const uint8_t* const x = a.x + int64_t{tile} * a.k_blocks * kWgmmaStageBytes + rank * share;
          load_tile([&](uint32_t to, int block, uint32_t barrier) {
            const uint8_t* const from = x + int64_t{block} * kWgmmaStageBytes;
            cluster == 1 ? fetch(to, from, share, barrier) : fetch_for_cluster(to, from, share, barrier, everyone);
          });
        } else {
          const RowInPlace at_row(a.in_place, tile * kWgmmaRows + static_cast<int>(rank * share / kWgmmaDepth));
          load_tile([&](uint32_t to, int block, uint32_t barrier) {
            const int k = block * kWgmmaDepth;
            const void* const map = &a.in_place.map;
            cluster == 1 ? fetch_box(to, map, k, at_row.row, at_row.step, barrier)
                         : fetch_box_for_cluster(to, map, k, at_row.row, at_row.step, barrier, everyone);
          });
        }
      }
    }
    __syncwarp();
  } else {
    // ---- A warpgroup.
    const int group = warp / 4;
    const uint32_t free_there = address_in(x_free, static_cast<uint32_t>(lane) < cluster ? lane : 0);
    const auto release = [&](uint32_t which) {
      if (static_cast<uint32_t>(lane) < cluster) barrier_arrive_in(free_there + 8 * which);
    };
    const uint8_t* const codes = wgmma_memory + at.codes + warp * 16 * wgmma_pitch(Columns);
    bool w_seen = false;
    static_assert(kWgmmaGroups == 2);
    constexpr int kTurn = 1, kTurnThreads = 128 * kWgmmaGroups;  // a named barrier for each warpgroup
    advance(group * a.k_blocks);
    for (int tile = first_tile + group * tile_step; tile < m_tiles; tile += kWgmmaGroups * tile_step) {
      if (tile > first_tile) named_barrier_sync(kTurn + group, kTurnThreads);
      int32_t acc[1][Columns / 2];
      uint32_t before = 0;  // the stage that the products under way but one read
      for (int block = 0; block < a.k_blocks; ++block) {
        if (!w_seen) barrier_wait(w_full + 8 * static_cast<uint32_t>(block), 0);
        barrier_wait(x_full + 8 * stage, phase);
        const uint64_t x = wgmma_matrix(x_at + stage * kWgmmaStageBytes);
        const uint64_t w = wgmma_matrix(w_at + static_cast<uint32_t>(block * kBlockBytes));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kWgmmaDepth / 32; ++k)
          wgmma_s8<Columns, true>(acc[0], x + 2 * k, w + 2 * k, block > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (block > 0) release(before);
        before = stage;
        advance(1);
      }
      if (tile + tile_step < m_tiles) named_barrier_arrive(kTurn + 1 - group, kTurnThreads);
      wgmma_wait<0>();
      release(before);
      advance((kWgmmaGroups - 1) * a.k_blocks);  // the other warpgroup's
      w_seen = true;
#pragma unroll
      for (int i = 0; i < Columns / 2; ++i) asm volatile("" : "+r"(acc[0][i])::"memory");  // not read any earlier

      const auto* const ratios = reinterpret_cast<const WgmmaRatios<Ratio>*>(wgmma_memory + at.parameters);
      store_results<Columns, 1>(a, acc, ratios, reinterpret_cast<const WgmmaStarts<Ratio>*>(ratios + Columns / 2),
                                codes, int64_t{tile} * kWgmmaRows + warp % 4 * 16, int64_t{n_tile} * Columns);
    }
  }
  // Blocks of the cluster may still write here, or arrive at barriers here.
  cluster_sync();
#endif
}

template <int Planes, typename Ratio>
__global__ void __launch_bounds__(kDeepThreads, 1) product_wgmma_deep(const __grid_constant__ WgmmaArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  let_next_grid_start();
  extern __shared__ __align__(1024) uint8_t wgmma_memory[];
  constexpr WgmmaShared kAt = deep_shared<Ratio>();
  constexpr int kParameters = kDeepColumns / 2 * kWgmmaPairBytes<Ratio>;
  static_assert(kParameters % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const uint32_t stages = shared_address(wgmma_memory);
  const uint32_t full = stages + static_cast<uint32_t>(kAt.barriers);  // kDeepStages: x and W are there
  const uint32_t released = full + 8 * kDeepStages;
  const uint32_t rank = block_in_cluster();
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kDeepStages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(released + 8 * i, 4 * kDeepCluster);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  cluster_sync();

  // Tiles of both blocks together, of 64 rows of a plane each. Where one has no rows, it does as if it had the last of
  // x, but stores nothing.
  constexpr int kRowTiles = kDeepRowTiles * kDeepCluster;
  static_assert(kDeepRowTiles % Planes == 0);
  const int m_tiles = static_cast<int>((a.m + kWgmmaRows - 1) / kWgmmaRows) * Planes;
  const int tiles = (m_tiles + kRowTiles - 1) / kRowTiles * a.n_tiles;
  const int first_tile = static_cast<int>(blockIdx.x) / kDeepCluster;
  const int tile_step = static_cast<int>(gridDim.x) / kDeepCluster;
  const auto row_tile_of = [&](int tile) {
    return tile / a.n_tiles * kRowTiles + static_cast<int>(rank) * kDeepRowTiles;
  };
  uint32_t stage = 0, phase = 0;
  const auto advance = [&](int by) {
    const uint32_t to = stage + static_cast<uint32_t>(by);
    stage = to % kDeepStages;
    phase ^= to / kDeepStages & 1;
  };

  if (warp >= 4 * kWgmmaGroups) {
    // ---- Two loading warps, as what a thread does for each stage is on the way of all products: one for both was as
    // slow as the products. And two that do nothing.
    trade_registers<40>();
    StagePhase next;
    // fetch_piece(to, block, barrier)
    const auto load_tile = [&](auto fetch_piece) {
      for (int block = 0; block < a.k_blocks; ++block) {
        barrier_wait(released + 8 * next.stage, next.phase ^ 1);
        fetch_piece(stages + next.stage * kDeepStageBytes, block, full + 8 * next.stage);
        next.advance(kDeepStages);
      }
    };
    if (warp == 4 * kWgmmaGroups && is_elected()) {
      constexpr uint32_t kShare = kDeepWBytes / kDeepCluster;
      constexpr uint16_t kEveryone = (1u << kDeepCluster) - 1;
      const int64_t piece = a.n_image * kWgmmaDepth;
      const uint32_t bytes =
          kDeepWBytes +
          (Planes == 1 && a.x == nullptr ? kDeepRowTiles * static_cast<uint32_t>(a.in_place.box_bytes) : kDeepXBytes);
      for (int tile = first_tile; tile < tiles; tile += tile_step) {
        const uint8_t* w = a.w + int64_t{tile % a.n_tiles} * kDeepWBytes + rank * kShare;
        load_tile([&](uint32_t to, int, uint32_t barrier) {
          barrier_expect(barrier, bytes);
          fetch_for_cluster(to + kDeepXBytes + rank * kShare, w, kShare, barrier, kEveryone);
          w += piece;
        });
      }
    }
    if (warp == 4 * kWgmmaGroups + 1 && is_elected()) {
      static_assert(kDeepRowTiles == 2);
      const bool in_place = Planes == 1 && a.x == nullptr;
      const void* const map = &a.in_place.map;
      const int64_t tile_bytes = int64_t{a.k_blocks} * kWgmmaStageBytes;
      if (in_place) prefetch_map(map);
      wait_for_grid_before();  // x; results are written after it has come
      for (int tile = first_tile; tile < tiles; tile += tile_step) {
        const int one = min(row_tile_of(tile), m_tiles - 1), another = min(row_tile_of(tile) + 1, m_tiles - 1);
        if (in_place) {
          const RowInPlace row(a.in_place, one * kWgmmaRows), second(a.in_place, another * kWgmmaRows);
          load_tile([&](uint32_t to, int block, uint32_t barrier) {
            fetch_box(to, map, block * kWgmmaDepth, row.row, row.step, barrier);
            fetch_box(to + kWgmmaStageBytes, map, block * kWgmmaDepth, second.row, second.step, barrier);
          });
        } else {
          const uint8_t *row = a.x + one * tile_bytes, *second = a.x + another * tile_bytes;
          load_tile([&](uint32_t to, int, uint32_t barrier) {
            fetch(to, row, kWgmmaStageBytes, barrier);
            fetch(to + kWgmmaStageBytes, second, kWgmmaStageBytes, barrier);
            row += kWgmmaStageBytes;
            second += kWgmmaStageBytes;
          });
        }
      }
    }
    __syncwarp();
  } else {
    // ---- A warpgroup.
    trade_registers<232>();
    const int group = warp / 4;
    const uint32_t free_there = address_in(released, static_cast<uint32_t>(lane) < kDeepCluster ? lane : 0);
    const auto release = [&](uint32_t which) {
      if (static_cast<uint32_t>(lane) < kDeepCluster) barrier_arrive_in(free_there + 8 * which);
    };
    uint8_t* const parameters = wgmma_memory + kAt.parameters + group * kParameters;
    const uint8_t* const codes = wgmma_memory + kAt.codes + warp * 16 * wgmma_pitch(kDeepColumns);
    static_assert(kWgmmaGroups == 2);
    constexpr int kTurn = 1, kTurnThreads = 128 * kWgmmaGroups;  // named barriers for each warpgroup
    constexpr int kCopied = kTurn + kWgmmaGroups, kCopiedThreads = 128;
    advance(group * a.k_blocks);
    for (int tile = first_tile + group * tile_step; tile < tiles; tile += kWgmmaGroups * tile_step) {
      const int first_row = row_tile_of(tile) / Planes * kWgmmaRows + warp % 4 * 16;
      const int64_t first_column = int64_t{tile % a.n_tiles} * kDeepColumns;
      named_barrier_sync(kCopied + group, kCopiedThreads);  // the tile before is done with its parameters
      constexpr int kRatios = kDeepColumns / 2 * sizeof(WgmmaRatios<Ratio>) / 16;  // pieces
      const auto* const tile_ratios = reinterpret_cast<const uint4*>(ratios_of(a, first_column));
      const auto* const tile_starts = reinterpret_cast<const uint4*>(starts_of(a, first_column));
      for (int i = warp % 4 * 32 + read_lane(); i < kParameters / 16; i += 128)
        reinterpret_cast<uint4*>(parameters)[i] = __ldg(i < kRatios ? tile_ratios + i : tile_starts + i - kRatios);
      if (tile > first_tile) named_barrier_sync(kTurn + group, kTurnThreads);
      int32_t acc[kDeepRowTiles][kDeepColumns / 2];
      uint32_t before = 0;  // the stage that the products under way but one read
      for (int block = 0; block < a.k_blocks; ++block) {
        barrier_wait(full + 8 * stage, phase);
        const uint64_t x = wgmma_matrix(stages + stage * kDeepStageBytes);
        const uint64_t w = x + (kDeepXBytes >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kWgmmaDepth / 32; ++k)
#pragma unroll
          for (int i = 0; i < kDeepRowTiles; ++i)
            wgmma_s8<kDeepColumns, Planes == 1>(acc[i], x + (i * kWgmmaStageBytes >> 4) + 2 * k, w + 2 * k,
                                                block > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (block > 0) release(before);
        before = stage;
        advance(1);
      }
      if (tile + tile_step < tiles) named_barrier_arrive(kTurn + 1 - group, kTurnThreads);
      wgmma_wait<0>();
      release(before);
      advance((kWgmmaGroups - 1) * a.k_blocks);  // the other warpgroup's
      for (auto& sums : acc) keep_in_registers(sums);
      named_barrier_sync(kCopied + group, kCopiedThreads);  // parameters are there
#pragma unroll
      for (int i = 0; i < kDeepRowTiles; i += Planes) {
        const auto* const ratios = reinterpret_cast<const WgmmaRatios<Ratio>*>(parameters);
        store_results<kDeepColumns, Planes>(a, acc + i, ratios,
                                            reinterpret_cast<const WgmmaStarts<Ratio>*>(ratios + kDeepColumns / 2),
                                            codes, int64_t{first_row} + i * kWgmmaRows, first_column);
      }
    }
  }
  // The other block may still write here, or arrive at barriers here.
  cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_PRODUCT_CUDA_WGMMA_CUH_
