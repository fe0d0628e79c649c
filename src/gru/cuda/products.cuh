// SPDX-License-Identifier: Apache-2.0
// A step of many sequences of a large layer as one launch, by wgmma (sm_90a): W x, R h and the gates.
//
// A block has a tile of 64 sequences and Columns columns, which are in the order of Recurrence::ih, 48 for the
// gates u, r and n of 16 units. Its cells need no sum of another block. Warps 0-3 and 4-7, a warpgroup each, multiply
// about half of the columns: first W x, 128 codes of x at a time, then R h into other registers. Then all sums go to
// shared memory, where the stages were, and become gates in a loop that each thread of the block goes through for rows
// of the same two units. Without that it would be thousands of instructions that run once, which take longer to come
// from memory than to run.
//
// Warps 8 and 9 fill a ring of stages: 64 rows x 128 codes of x or h, each plane of bytes, and as deep a piece of W or
// R. Weights, which are constant, warp 8 asks for before x and h are there. Those come in the order of WgmmaArgs::x,
// or, where rows of bytes are aligned, from where they are, by a tensor map. Both and two more warps, which have
// nothing to do before, take part in the gates; registers are traded twice.
//
// Blocks of a cluster have the same columns and rows beneath each other: each loads its share of the piece of weights
// for all. So a stage is free when every block's warps have read their own copy. Nobody's bytes arrive in a phase too
// early, for the reason that product/cuda/wgmma.cuh gives.
//
// That warps read rows of codes as the caller has them was slower than a launch before that pads them: what four of
// them have on its way to registers does not keep up with the tensor cores.
#ifndef ISOBIT_GRU_CUDA_PRODUCTS_CUH_
#define ISOBIT_GRU_CUDA_PRODUCTS_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "core/cuda/wgmma.cuh"
#include "gru/cuda/recurrence.cuh"
#include "product/cuda/wgmma.cuh"

namespace isobit::cuda {

inline constexpr int kProductsColumns[] = {48, 96, 144, 192};
inline constexpr int kProductsThreads = 128 * (kWgmmaGroups + 1);
inline constexpr int kProductsShared = 227 * 1024;      // that a block has on sm_90
inline constexpr int kProductsMaxTable = 3 * 4096 * 4;  // gate inputs of 12 bits

/// A tile in dynamic shared memory: stages, what rescales its columns, barriers. Later sums are where the first stages
/// were, rows of kPitch words of 32 bits, planes behind each other, those of x first; then tables.
template <int Columns, int XPlanes, typename XRatio_, int HPlanes, typename Ratio_>
struct ProductsTile {
  using XRatio = XRatio_;
  using Ratio = Ratio_;
  static constexpr int kColumns = Columns, kXPlanes = XPlanes, kHPlanes = HPlanes;
  static constexpr int kCodeBytes = (kXPlanes > kHPlanes ? kXPlanes : kHPlanes) * kWgmmaStageBytes;
  static constexpr int kWeightBytes = Columns * kWgmmaDepth;
  static constexpr int kStageBytes = kCodeBytes + kWeightBytes;
  static constexpr int kXParameters = Columns / 2 * kWgmmaPairBytes<XRatio>;
  static constexpr int kParameters = kXParameters + Columns / 2 * kWgmmaPairBytes<Ratio>;
  static constexpr int kMaxStages = 8;
  static constexpr int kFit = (kProductsShared - kParameters - 8 * (2 * kMaxStages + 2)) / kStageBytes;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int kParametersAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kParametersAt + kParameters;  // full, released, parameters, tables
  static constexpr int kTotal = kBarriersAt + 8 * (2 * kStages + 2);
  static constexpr int kPitch = Columns + 8;  // so that stores of fragments meet no bank twice
  // Sums of x of two planes are one where they fit a word.
  static constexpr int kXSums = std::is_same_v<XRatio, double> ? XPlanes : 1, kSums = kXSums + kHPlanes;
  static constexpr int kPlane = kWgmmaRows * kPitch, kSumBytes = kSums * kPlane * 4;
  static_assert(kParameters % 16 == 0 && kXParameters % 16 == 0);
  static_assert(kSumBytes + kProductsMaxTable <= kParametersAt);
};

/// What a launch is told beside the recurrence.
template <typename XRatio, typename Ratio>
struct ProductsArgs {
  WgmmaMatrix<XRatio> W;
  WgmmaMatrix<Ratio> R;
  const uint8_t *x, *h;        // in the order of WgmmaArgs::x; or null: they are in place
  RowsInPlace x_rows, h_rows;  // both or none where a tile may begin in the one before it
  int32_t n_tiles, cluster;
  int32_t t;   // the step of the chunk
  bool pairs;  // two units beside each other are aligned in state, next_state and y
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// Where a block is, and its barriers.
template <typename Tile>
struct ProductsPlace {
  uint32_t memory, full, released, parameters, tables;
  uint32_t cluster, rank;
  int n_tile, row_tile;  // row_tile: of those that have rows
  int64_t first_row;
  int rows;     // of the tile, 0 to 64
  int skipped;  // of those, which are the tile's before

  /// In every thread, first.
  template <typename Args>
  __device__ __forceinline__ ProductsPlace(const Args& p, int64_t batch, const uint8_t* shared)
      : memory(shared_address(shared)),
        full(memory + Tile::kBarriersAt),
        released(full + 8 * Tile::kStages),
        parameters(released + 8 * Tile::kStages),
        tables(parameters + 8),
        cluster(static_cast<uint32_t>(p.cluster)),
        rank(block_in_cluster()) {
    const int index = static_cast<int>(blockIdx.x / cluster);
    n_tile = index % p.n_tiles;
    row_tile = index / p.n_tiles * p.cluster + static_cast<int>(rank);
    first_row = int64_t{row_tile} * kWgmmaRows;
    rows = static_cast<int>(max(min(batch - first_row, int64_t{kWgmmaRows}), int64_t{0}));
    skipped = 0;
    if (rows > 0 && p.x == nullptr && p.h == nullptr) {
      skipped = static_cast<int>(first_row) - begin_tile(p.x_rows, row_tile);
      first_row -= skipped;
      rows += skipped;
    }
    row_tile = min(row_tile, static_cast<int>((batch - 1) / kWgmmaRows));
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < Tile::kStages; ++i) {
        barrier_init(full + 8 * i, 1);
        barrier_init(released + 8 * i, 4 * kWgmmaGroups * cluster);
      }
      barrier_init(parameters, 1);
      barrier_init(tables, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    cluster_sync();
  }
};

// ---- loading

// What a thread does for each stage is on the way of all products, so weights and codes have one each, and what divides
// or multiplies is done beforehand.

/// This block's share of each piece of weights, for all blocks of the cluster. In one thread, which says how many bytes
/// a stage gets.
template <typename Tile, typename Args>
__device__ __forceinline__ void load_weights_of_tile(const Args& p, const ProductsPlace<Tile>& at) {
  const uint32_t share = Tile::kWeightBytes / at.cluster, offset = at.rank * share;
  const uint32_t first_to = at.memory + Tile::kCodeBytes + offset;
  const auto everyone = static_cast<uint16_t>((1u << at.cluster) - 1);
  StagePhase next;
  uint32_t to = first_to;
  const auto load = [&](const auto& matrix, uint32_t code_bytes) {
    const uint8_t* from = matrix.w + int64_t{at.n_tile} * Tile::kWeightBytes + offset;
    const int64_t piece = matrix.n_image * kWgmmaDepth;
    for (int block = 0; block < matrix.k_blocks; ++block, from += piece) {
      const uint32_t barrier = at.full + 8 * next.stage;
      barrier_wait(at.released + 8 * next.stage, next.phase ^ 1);
      barrier_expect(barrier, Tile::kWeightBytes + code_bytes);
      at.cluster == 1 ? fetch(to, from, share, barrier) : fetch_for_cluster(to, from, share, barrier, everyone);
      next.advance(Tile::kStages);
      to = next.stage == 0 ? first_to : to + Tile::kStageBytes;
    }
  };
  const auto bytes_of = [](const uint8_t* padded, const RowsInPlace& rows, int planes) {
    return static_cast<uint32_t>(padded == nullptr ? rows.box_bytes : planes * kWgmmaStageBytes);
  };
  load(p.W, bytes_of(p.x, p.x_rows, Tile::kXPlanes));
  load(p.R, bytes_of(p.h, p.h_rows, Tile::kHPlanes));
}

/// The block's rows of x and h, each plane. Where it has none they are the last ones, and nothing of them is stored. In
/// one thread.
template <typename Tile, typename Args>
__device__ __forceinline__ void load_codes_of_tile(const Args& p, const ProductsPlace<Tile>& at) {
  if (p.x == nullptr) prefetch_map(&p.x_rows.map);
  if (p.h == nullptr) prefetch_map(&p.h_rows.map);
  const int64_t first_column = int64_t{at.n_tile} * Tile::kColumns;
  barrier_expect(at.parameters, Tile::kParameters);
  fetch_parameters<Tile::kColumns>(p.W, first_column, at.memory + Tile::kParametersAt, at.parameters);
  fetch_parameters<Tile::kColumns>(p.R, first_column, at.memory + Tile::kParametersAt + Tile::kXParameters,
                                   at.parameters);
  StagePhase next;
  uint32_t to = at.memory;
  const auto load_blocks = [&](int blocks, auto fetch_block) {
    for (int block = 0; block < blocks; ++block) {
      barrier_wait(at.released + 8 * next.stage, next.phase ^ 1);
      fetch_block(block, at.full + 8 * next.stage);
      next.advance(Tile::kStages);
      to = next.stage == 0 ? at.memory : to + Tile::kStageBytes;
    }
  };
  const auto load = [&](auto planes, const uint8_t* codes, const RowsInPlace& rows, const RowInPlace& first,
                        int blocks) {
    constexpr int kPlanes = decltype(planes)::value;
    if (kPlanes == 1 && codes == nullptr) {
      load_blocks(blocks, [&](int block, uint32_t barrier) {
        fetch_box(to, &rows.map, block * kWgmmaDepth, first.row, first.step, barrier);
      });
      return;
    }
    const int64_t plane_bytes = int64_t{blocks} * kWgmmaStageBytes;
    const uint8_t* from = codes + at.row_tile * kPlanes * plane_bytes;
    load_blocks(blocks, [&](int, uint32_t barrier) {
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        fetch(to + static_cast<uint32_t>(plane * kWgmmaStageBytes), from + plane * plane_bytes, kWgmmaStageBytes,
              barrier);
      from += kWgmmaStageBytes;
    });
  };
  const RowInPlace x_first(p.x_rows, begin_tile(p.x_rows, at.row_tile)),
      h_first(p.h_rows, begin_tile(p.h_rows, at.row_tile));
  wait_for_grid_before();
  load(std::integral_constant<int, Tile::kXPlanes>(), p.x, p.x_rows, x_first, p.W.k_blocks);
  load(std::integral_constant<int, Tile::kHPlanes>(), p.h, p.h_rows, h_first, p.R.k_blocks);
}

// ---- products

/// Adds the products of N columns from `first_column` of the tile on, of so many blocks of k, to nothing.
template <int N, int Planes, typename Tile>
__device__ __forceinline__ void multiply_blocks(int32_t (&sums)[Planes][N / 2], const ProductsPlace<Tile>& at,
                                                int blocks, int first_column, StagePhase& next) {
  const int lane = read_lane();
  const bool releases = static_cast<uint32_t>(lane) < at.cluster;
  const uint32_t free_there = address_in(at.released, releases ? static_cast<uint32_t>(lane) : 0);
  uint32_t before = 0;  // the stage that the products under way but one read
  for (int block = 0; block < blocks; ++block) {
    barrier_wait(at.full + 8 * next.stage, next.phase);
    const uint64_t x = wgmma_matrix(at.memory + next.stage * Tile::kStageBytes);
    const uint64_t w = x + static_cast<uint64_t>((Tile::kCodeBytes + first_column * kWgmmaDepth) >> 4);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kWgmmaDepth / 32; ++k)
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane)
        wgmma_s8<N, Planes == 1>(sums[plane], x + (plane * kWgmmaStageBytes >> 4) + 2 * k, w + 2 * k,
                                 block > 0 || k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0 && releases) barrier_arrive_in(free_there + 8 * before);
    before = next.stage;
    next.advance(Tile::kStages);
  }
  wgmma_wait<0>();
  if (releases) barrier_arrive_in(free_there + 8 * before);
  for (auto& plane : sums) keep_in_registers(plane);
}

/// Both products of N columns, to shared memory. In both warpgroups, in one of them from `first_column` on.
template <int N, typename Tile, typename Args, typename Meanwhile>
__device__ __forceinline__ void multiply_columns(const Args& p, const ProductsPlace<Tile>& at, int first_column,
                                                 uint8_t* shared, Meanwhile meanwhile) {
  int32_t x[Tile::kXPlanes][N / 2], h[Tile::kHPlanes][N / 2];
  StagePhase next;
  multiply_blocks<N>(x, at, p.W.k_blocks, first_column, next);
  if constexpr (Tile::kXPlanes > Tile::kXSums)
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      x[0][i] = static_cast<int32_t>(static_cast<uint32_t>(x[0][i]) * 256 + static_cast<uint32_t>(x[1][i]));
  multiply_blocks<N>(h, at, p.R.k_blocks, first_column, next);
  named_barrier_sync_apart(1, kProductsThreads);  // both warpgroups have read all stages
  meanwhile();
  const int lane = read_lane();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  auto* const to =
      reinterpret_cast<int32_t*>(shared) + (warp % 4 * 16 + lane / 4) * Tile::kPitch + first_column + lane % 4 * 2;
#pragma unroll
  for (int plane = 0; plane < Tile::kSums; ++plane)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 4 * j + 2 * r;
        const bool of_x = plane < Tile::kXSums;
        const auto& sums = of_x ? x[plane % Tile::kXPlanes] : h[(plane - Tile::kXSums + 2) % Tile::kHPlanes];
        *reinterpret_cast<int2*>(to + plane * Tile::kPlane + r * 8 * Tile::kPitch + 8 * j) = int2{sums[i], sums[i + 1]};
      }
}

// ---- gates

/// Codes of two units beside each other as they are in memory.
template <int Planes>
__device__ __forceinline__ uint32_t read_pair(const uint8_t* from, bool pairs, bool second) {
  if constexpr (Planes == 1) {
    if (pairs) return __ldcg(reinterpret_cast<const uint16_t*>(from));
    return __ldcg(from) | (second ? __ldcg(from + 1) << 8 : 0);
  } else {
    if (pairs) return __ldcg(reinterpret_cast<const uint32_t*>(from));
    uint32_t codes = static_cast<uint32_t>(__ldcg(from)) | static_cast<uint32_t>(__ldcg(from + 1)) << 8;
    if (second) codes |= static_cast<uint32_t>(__ldcg(from + 2)) << 16 | static_cast<uint32_t>(__ldcg(from + 3)) << 24;
    return codes;
  }
}
/// The same, unsigned, 16 bits each; and back.
template <int Planes>
__device__ __forceinline__ uint32_t to_halves(uint32_t pair, uint32_t flip) {
  return Planes == 1 ? __byte_perm(pair ^ (flip & 0xffff), 0, 0x4140) : pair ^ (flip & 0xff00ff00);
}
template <int Planes>
__device__ __forceinline__ uint32_t to_pair(uint32_t halves, uint32_t flip) {
  return Planes == 1 ? __byte_perm(halves, 0, 0x4420) ^ (flip & 0xffff) : halves ^ (flip & 0xff00ff00);
}
template <int Planes>
__device__ __forceinline__ void write_pair(uint8_t* to, uint32_t pair, bool pairs, bool second) {
  if (pairs) {
    if constexpr (Planes == 1) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(pair);
    } else {
      *reinterpret_cast<uint32_t*>(to) = pair;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 2 * Planes; ++i)
    if (i < Planes || second) to[i] = static_cast<uint8_t>(pair >> 8 * i);
}

__device__ __forceinline__ void write_floats(uint8_t* to, float one, float another, bool pairs, bool second) {
  auto* const floats = reinterpret_cast<float*>(to);
  if (pairs) {
    *reinterpret_cast<float2*>(to) = float2{one, another};
    return;
  }
  floats[0] = one;
  if (second) floats[1] = another;
}

/// In all threads: each has two units beside each other of some rows, whose sums are in shared memory.
template <typename Tile, typename Args>
struct ProductsGates {
  using Ratio = typename Tile::Ratio;
  using XRatio = typename Tile::XRatio;
  using Real = LaneOf<Ratio>;
  static constexpr int kHPlanes = Tile::kHPlanes;
  static constexpr int kPairs = Tile::kColumns / 6, kRowsAtOnce = kProductsThreads / kPairs;
  // Rows whose instructions fill each other's gaps.
  static constexpr int kNeeded = (kWgmmaRows + kRowsAtOnce - 1) / kRowsAtOnce;
  static constexpr int kMost = sizeof(Real) == 8 ? 2 : 4, kTurns = (kNeeded + kMost - 1) / kMost;
  static constexpr int kAtOnce = (kNeeded + kTurns - 1) / kTurns, kCells = 2 * kAtOnce;

  const Args& p;
  const RecurrenceArgs<Ratio>& a;
  const ProductsPlace<Tile>& at;
  int pair, row, unit, column;  // column: of gate u in the tile
  bool active, second;
  int64_t h_pitch, n;
  uint32_t now[kAtOnce], next[kAtOnce];  // states

  __device__ __forceinline__ ProductsGates(const Args& args, const RecurrenceArgs<Ratio>& recurrence,
                                           const ProductsPlace<Tile>& place)
      : p(args), a(recurrence), at(place) {
    const int thread = static_cast<int>(threadIdx.x);
    pair = thread % kPairs;
    row = at.skipped + thread / kPairs;
    unit = at.n_tile * (Tile::kColumns / 3) + pair * 2;
    column = pair / 8 * 48 + pair % 8 * 2;
    active = thread < kPairs * kRowsAtOnce && unit < a.hidden;
    second = unit + 1 < a.hidden;
    h_pitch = int64_t{a.hidden} * kHPlanes;
    n = at.first_row + row;
  }
  /// States of the rows from `first` of this thread's on.
  __device__ __forceinline__ void read(int first, uint32_t (&states)[kAtOnce]) {
    const uint8_t* const from = a.state + (at.first_row + first) * h_pitch + int64_t{unit} * kHPlanes;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      states[i] = active && first + i * kRowsAtOnce < at.rows
                      ? read_pair<kHPlanes>(from + i * kRowsAtOnce * h_pitch, p.pairs, second)
                      : 0;
  }
  __device__ __forceinline__ void begin() {
    wait_for_grid_before();
    read(row, now);
  }
  /// What rescales the sums of this thread's two units.
  struct Rows {
    XRatio x_ratio[3][2];
    LaneOf<XRatio> x_again[3][2];
    SumOf<XRatio> x_start[3][2];
    Ratio h_ratio[3][2];
    SumOf<Ratio> h_start[3][2];
  };
  __device__ __forceinline__ void load_rows(const uint8_t* shared, Rows& rows) const {
    const auto* const x_ratios = reinterpret_cast<const WgmmaRatios<XRatio>*>(shared + Tile::kParametersAt);
    const auto* const x_starts = reinterpret_cast<const WgmmaStarts<XRatio>*>(x_ratios + Tile::kColumns / 2);
    const auto* const h_ratios =
        reinterpret_cast<const WgmmaRatios<Ratio>*>(shared + Tile::kParametersAt + Tile::kXParameters);
    const auto* const h_starts = reinterpret_cast<const WgmmaStarts<Ratio>*>(h_ratios + Tile::kColumns / 2);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int index = column / 2 + gate * 8;
        rows.x_ratio[gate][i] = x_ratios[index].ratio[i];
        rows.x_again[gate][i] = x_ratios[index].again[i];
        rows.x_start[gate][i] = x_starts[index].start[i];
        rows.h_ratio[gate][i] = h_ratios[index].ratio[i];
        rows.h_start[gate][i] = h_starts[index].start[i];
      }
  }
  /// Of a gate, both inputs of this thread's cells of some rows, by their sums.
  __device__ __forceinline__ void load_gate(const int32_t* sums, const Rows& rows, int gate, Real (&from_x)[kCells],
                                            Real (&hh)[kCells]) const {
    SumOf<XRatio> x_sum[kCells];
    XRatio x_by[kCells];
    SumOf<Ratio> h_sum[kCells];
    Ratio h_by[kCells];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // A row beyond the last one is computed from it, and not stored.
      const int at_row = min(row + i * kRowsAtOnce, kWgmmaRows - 1);
      int2 two[Tile::kSums];
#pragma unroll
      for (int plane = 0; plane < Tile::kSums; ++plane)
        two[plane] = *reinterpret_cast<const int2*>(sums + plane * Tile::kPlane + at_row * Tile::kPitch + gate * 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int32_t x[Tile::kXSums], hs[kHPlanes];
#pragma unroll
        for (int plane = 0; plane < Tile::kXSums; ++plane) x[plane] = j == 0 ? two[plane].x : two[plane].y;
#pragma unroll
        for (int plane = 0; plane < kHPlanes; ++plane)
          hs[plane] = j == 0 ? two[Tile::kXSums + plane].x : two[Tile::kXSums + plane].y;
        x_sum[2 * i + j] = complete_sum<XRatio>(x, rows.x_start[gate][j]);
        x_by[2 * i + j] = rows.x_ratio[gate][j];
        h_sum[2 * i + j] = complete_sum<Ratio>(hs, rows.h_start[gate][j]);
        h_by[2 * i + j] = rows.h_ratio[gate][j];
      }
    }
    LaneOf<XRatio> ih[kCells];
    rescale_clamped(x_sum, x_by, p.W.by_shifts, p.W.low, p.W.high, ih);
#pragma unroll
    for (int i = 0; i < kCells; ++i) from_x[i] = static_cast<Real>(rescale_even(ih[i], rows.x_again[gate][i % 2]));
    rescale_hh(a.gates, h_sum, h_by, hh);
  }
  /// The two new codes of sequence n, where cells keep their state the old ones.
  __device__ __forceinline__ void write_row(uint32_t codes, uint32_t old, uint8_t* y, uint8_t* next_state) const {
    if (kHPlanes == 1) codes &= 0x00ff00ff;
    uint32_t shown = codes;
    if (a.lengths != nullptr || a.mask != nullptr) {
      const bool ended = p.t >= length_of(a, n);
      uint32_t keeps = ended ? 0xffffffff : 0;
      if (is_masked(a, p.t, n, unit)) keeps |= 0xffff;
      if (is_masked(a, p.t, n, unit + 1)) keeps |= 0xffff0000;
      codes = (old & keeps) | (codes & ~keeps);
      shown = ended ? a.gates.h_to_unsigned | a.gates.h_to_unsigned << 16 : codes;
    }
    if (__builtin_expect(a.y_scale == 0, 1)) {
      write_pair<kHPlanes>(y, to_pair<kHPlanes>(shown, a.flip), p.pairs, second);
    } else {
      write_floats(y, y_of<kHPlanes>(a, shown), y_of<kHPlanes>(a, shown >> 16), p.pairs, second);
    }
    write_pair<kHPlanes>(next_state, to_pair<kHPlanes>(codes, a.flip), p.pairs, second);
  }
  __device__ __forceinline__ void run(const uint8_t* shared) {
    if (!active) return;
    Rows rows;
    barrier_wait(at.parameters, 0);
    load_rows(shared, rows);
    uint8_t* y = a.y + p.t * a.y_step + n * a.y_sequence + int64_t{unit} * a.y_unit;
    uint8_t* next_state = a.next_state + n * h_pitch + int64_t{unit} * kHPlanes;
    const auto* const sums = reinterpret_cast<const int32_t*>(shared) + column;
    barrier_wait(at.tables, 0);
#pragma unroll 1
    for (; row < at.rows; row += kAtOnce * kRowsAtOnce) {
      read(row + kAtOnce * kRowsAtOnce, next);
      Real from_x[3][kCells], hh[3][kCells], h[kCells];
      uint32_t fresh[kCells];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) load_gate(sums, rows, gate, from_x[gate], hh[gate]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        now[i] = to_halves<kHPlanes>(now[i], a.flip);
        h[2 * i] = from_code<Real>(now[i] & 0xffff, a.gates.h_from_code);
        h[2 * i + 1] = from_code<Real>(now[i] >> 16, a.gates.h_from_code);
      }
      gru_gates(a.gates, shared_tables(a.gates, shared + Tile::kSumBytes), from_x, hh, h, fresh);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (row + i * kRowsAtOnce < at.rows)
          write_row(__byte_perm(fresh[2 * i], fresh[2 * i + 1], 0x5410), now[i], y, next_state);
        n += kRowsAtOnce;
        y += kRowsAtOnce * a.y_sequence;
        next_state += kRowsAtOnce * h_pitch;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) now[i] = next[i];
    }
  }
};
#endif

template <typename Tile>
__global__ void __launch_bounds__(kProductsThreads, 1)
    gru_products(const __grid_constant__ ProductsArgs<typename Tile::XRatio, typename Tile::Ratio> p,
                 const __grid_constant__ RecurrenceArgs<typename Tile::Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t wgmma_memory[];
  constexpr int kStart = 168, kLoading = 40, kMultiplying = 232;  // registers of a thread
  let_next_grid_start();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const ProductsPlace<Tile> at(p, a.batch, wgmma_memory);
  ProductsGates<Tile, std::remove_cv_t<std::remove_reference_t<decltype(p)>>> gates(p, a, at);
  if (warp >= 4 * kWgmmaGroups) {
    trade_registers<kLoading>();
    if (warp == 4 * kWgmmaGroups && is_elected()) load_weights_of_tile(p, at);
    if (warp == 4 * kWgmmaGroups + 1 && is_elected()) load_codes_of_tile(p, at);
    __syncwarp();
    gates.begin();
    // With all warps that multiply: they have their registers, and what they give back is what this trade waits for.
    named_barrier_sync_apart(1, kProductsThreads);
    trade_registers<kStart, kLoading>();
  } else {
    trade_registers<kMultiplying>();
    const auto meanwhile = [&] {
      if (threadIdx.x == 0) {
        const auto bytes = static_cast<uint32_t>((a.table_entries * 4 + 15) / 16 * 16);
        barrier_expect(at.tables, bytes);
        fetch(at.memory + Tile::kSumBytes, a.tables, bytes, at.tables);
      }
      gates.begin();
    };
    // About half: wgmma takes 24 columns, or a multiple of 16.
    constexpr int kFirst = Tile::kColumns == 48 ? 24 : (Tile::kColumns / 2 + 15) / 16 * 16;
    if (warp < 4) {
      multiply_columns<kFirst>(p, at, 0, wgmma_memory, meanwhile);
    } else {
      multiply_columns<Tile::kColumns - kFirst>(p, at, kFirst, wgmma_memory, meanwhile);
    }
    trade_registers<kStart, kMultiplying>();
  }
  __syncthreads();
  gates.run(wgmma_memory);
  __syncwarp();
  // Blocks of the cluster may still arrive at barriers here.
  cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PRODUCTS_CUH_
