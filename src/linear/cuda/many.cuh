// SPDX-License-Identifier: Apache-2.0
// The kernel of many.h. A warp loads stages, each a block of 128 positions; warpgroups decode W into the registers of
// wgmma, multiply with x in shared memory, and promote the sums of a part in the order of numerics.md, sections 10 and
// 11, or make y of the sums of whole rows of static codes (section 12). While one warpgroup promotes, the other
// multiplies.
//
// Blocks of threads take tiles of results in turn. Where there are few tiles, those of a cluster share one: each has
// chunks of it one after the other, and the first one gets the sums of all others' chunks and adds them in order.
#ifndef ISOBIT_LINEAR_CUDA_MANY_CUH_
#define ISOBIT_LINEAR_CUDA_MANY_CUH_

#include "core/cuda/ptx.cuh"
#include "linear/cuda/many.h"
#include "linear/cuda/promote.cuh"
#include "linear/cuda/static_epilogue.cuh"

namespace isobit::cuda {

inline constexpr int kManyThreads = 128 * (kManyGroups + 1);
inline constexpr int kManyStartRegisters = 168, kManyWorkRegisters = 232, kManyLoadRegisters = 40;
static_assert(kManyGroups * kManyWorkRegisters + kManyLoadRegisters <= (kManyGroups + 1) * kManyStartRegisters);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// Where a tile is.
struct ManyTile {
  int strip, slab;  // the first ones
};
__device__ __forceinline__ ManyTile many_tile(const ManyArgs& a, int tile) {
  const int in_group = kManyTileGroup * a.x_tiles;
  const int first = tile / in_group * kManyTileGroup;
  const int height = min(kManyTileGroup, a.w_tiles - first);
  const int rest = tile % in_group;
  return {(first + rest % height) * a.tile_strips, rest / height * a.tile_slabs};
}

/// What a block of threads has of a tile.
struct ManyPart {
  int first_block, end_block, first_group;
};

template <int Bits, RowsKind Kind, int Columns>
struct ManyShape {
  static constexpr bool kCodes = Kind == RowsKind::kCodes, kStatic = Kind == RowsKind::kStatic;
  static constexpr bool kInteger = is_integer(Kind);
  static constexpr int kTileBytes = static_cast<int>(row_block_bytes(Kind));  // of a block
  static constexpr int kSlabBytes = kManySlabTiles * kTileBytes;
  static constexpr int kBlockBytes = kStripRows * kBlockDepth * Bits / 8;
  static constexpr int kSums = Columns / 2;  // of a thread
};

/// The warp that loads. Each lane has one copy of every stage: a strip's codes or parameters, a slab's block or
/// parameters.
template <typename Shape>
struct ManyLoader {
  enum Kind { kCodes, kParameters, kRows, kRowParameters, kNothing };

  const ManyArgs& a;
  uint8_t* shared;
  const ManyPart& part;
  int lane, index;  // index: of the strip or slab
  Kind kind;
  int slot = 0;
  // Of the next block:
  const uint8_t* from = nullptr;
  bool there = false;
  int strips = 0;  // of the tile
  int block = 0, group = 0, group_block = 0;

  __device__ __forceinline__ ManyLoader(const ManyArgs& args, uint8_t* memory, const ManyPart& its_part, int its_lane)
      : a(args), shared(memory), part(its_part), lane(its_lane) {
    constexpr int kSlabLane = 2 * kManyGroups;
    if (lane < kSlabLane) {
      kind = lane < kManyGroups ? kCodes : kParameters;
      index = lane % kManyGroups;
    } else {
      const int slab_lane = lane - kSlabLane;
      kind = slab_lane < a.tile_slabs ? kRows : slab_lane < 2 * a.tile_slabs ? kRowParameters : kNothing;
      index = slab_lane % a.tile_slabs;
    }
  }
  [[nodiscard]] __device__ __forceinline__ bool is_of_rows() const { return kind == kRows || kind == kRowParameters; }
  [[nodiscard]] __device__ __forceinline__ int groups() const { return min(a.block_groups, a.groups - group); }
  [[nodiscard]] __device__ __forceinline__ int row_parameters() const {
    return (Shape::kCodes ? groups() : a.x_block_parts) * kManySlabTiles * a.x_part_bytes;
  }

  __device__ __forceinline__ void start(int number) {
    const ManyTile tile = many_tile(a, number);
    block = part.first_block;
    group = part.first_group;
    group_block = a.group_blocks == 1 ? 0 : block - group * a.group_blocks;
    strips = min(a.tile_strips, a.strips - tile.strip);
    const int64_t strip = tile.strip + index, slab = tile.slab + index;
    there = is_of_rows() || (kind != kNothing && index < strips);
    switch (kind) {
      case kCodes: from = a.w + (strip * a.blocks + block) * Shape::kBlockBytes; break;
      case kParameters: from = a.parameters + (strip * a.groups + group) * a.record_bytes; break;
      case kRows: from = a.x + (slab * a.blocks + block) * Shape::kSlabBytes; break;
      default:
        from = a.x_parameters + (slab * a.x_parts + (Shape::kCodes ? group : block * a.x_block_parts)) *
                                    (kManySlabTiles * a.x_part_bytes);
        there = there && a.x_part_bytes > 0;
    }
  }
  /// What the next stage gets in all.
  __device__ __forceinline__ void expect() const {
    if (lane == 0)
      barrier_expect(full(), static_cast<uint32_t>(strips * (Shape::kBlockBytes + groups() * a.record_bytes) +
                                                   a.tile_slabs * (Shape::kSlabBytes + row_parameters())));
  }
  /// This lane's copy for it.
  __device__ __forceinline__ void load() {
    const bool next_group = ++group_block >= a.group_blocks;
    int to = 0, bytes = 0, step = 0;
    switch (kind) {
      case kCodes: to = index * Shape::kBlockBytes, bytes = step = Shape::kBlockBytes; break;
      case kParameters:
        to = a.parameters_at + index * a.block_groups * a.record_bytes;
        bytes = groups() * a.record_bytes;
        step = next_group ? bytes : 0;
        break;
      case kRows: to = a.x_at + index * Shape::kSlabBytes, bytes = step = Shape::kSlabBytes; break;
      default:
        bytes = row_parameters();
        to = a.x_parameters_at + index * a.x_slab_parameters;
        step = !Shape::kCodes || next_group ? bytes : 0;
    }
    if (there)
      fetch(shared_address(shared + a.stages_at + slot * a.stage_bytes + to), from, static_cast<uint32_t>(bytes),
            full());
    from += step;
    ++block;
    if (next_group) {
      group_block = 0;
      group += a.block_groups;
    }
    if (++slot == a.stages) slot = 0;
  }
  [[nodiscard]] __device__ __forceinline__ uint32_t full() const {
    return shared_address(shared) + 8 * static_cast<uint32_t>(1 + slot);
  }

  __device__ __forceinline__ void run(int tiles) {
    const int first = static_cast<int>(cluster_in_grid()), stride = static_cast<int>(gridDim.x) / a.cluster;
    // W is constant; x comes from the grid before.
    const int early = min(a.stages, part.end_block - part.first_block);
    start(first);
    if (is_of_rows()) wait_for_grid_before();
    for (int i = 0; i < early; ++i) {
      expect();
      load();
    }
    __syncwarp();
    uint32_t phase = early == a.stages ? 0 : 1;  // of the first round nobody need wait
    for (int tile = first; tile < tiles; tile += stride) {
      if (tile != first) start(tile);
      while (block < part.end_block) {
        barrier_wait(full() + 8 * static_cast<uint32_t>(a.stages), phase);
        expect();
        __syncwarp();
        load();
        __syncwarp();
        if (slot == 0) phase ^= 1;
      }
    }
  }
};

template <int Bits, RowsKind Kind, int Columns, bool Fine, bool General>
struct ManyBody {
  using Shape = ManyShape<Bits, Kind, Columns>;
  using K = ProductKind<Kind>;
  using T = typename K::Type;
  using Sum = typename T::Result;
  static constexpr int kSums = Shape::kSums;
  static constexpr int kSteps = kBlockDepth / kStepDepth;
  static constexpr int kShares =
      Shape::kInteger && !Fine ? 1 : 2;  // of a block, whose operands are in registers at once
  using Packed = PackedCodes<Bits, kShares>;

  const ManyArgs& a;
  uint8_t* shared;
  int warpgroup, thread;       // of the warpgroup
  int its_strip, its_columns;  // of the tile
  Promotion<Bits, Kind, General> promotion;
  int slot;
  uint32_t phase;

  [[nodiscard]] __device__ __forceinline__ uint32_t barrier(int index) const {
    return shared_address(shared) + 8 * static_cast<uint32_t>(index);
  }
  __device__ __forceinline__ void acquire() const { barrier_wait(barrier(1 + slot), phase); }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(barrier(1 + a.stages + slot));
    if (++slot == a.stages) {
      slot = 0;
      phase ^= 1;
    }
  }

  /// Starts d = (or, where `add`, d +) the products of steps first to first + Steps - 1 of a share. x: of the share.
  template <int Steps>
  __device__ __forceinline__ void multiply(Sum (&d)[kSums], const Packed& packed, uint64_t x, int first,
                                           bool add) const {
    constexpr int kOfStep = K::kInstructions / K::kPlanes / kSteps;  // operands
    uint32_t left[Steps * kOfStep][4];
#pragma unroll
    for (int i = 0; i < Steps * kOfStep; ++i) Codec<Bits, Kind>::decode(packed, first * kOfStep + i, left[i]);
    keep_in_registers(d);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Steps * kOfStep; ++i)
#pragma unroll
      for (int plane = 0; plane < K::kPlanes; ++plane)
        // An instruction takes 256 bytes of a tile.
        wgmma<T, Columns>(d, left[i], x + static_cast<uint64_t>(16 * ((first * kOfStep + i) * K::kPlanes + plane)),
                          add || i > 0 || plane > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void wait_for_products(Sum (&d)[kSums]) const {
    wgmma_wait<0>();
    keep_in_registers(d);
  }

  /// Of sums 4 * i to 4 * i + 3 of this thread, in what a first block gets.
  [[nodiscard]] __device__ __forceinline__ int place(int at, int i) const {
    return ((at * a.tile_strips * a.tile_columns + warpgroup) * (kSums / 4) + i) * 128 + thread;
  }

  template <typename Value>
  __device__ __forceinline__ void send_sums(int at, const Value (&values)[kSums]) const {
    const uint32_t to = address_in(shared_address(shared + kManyExchange), 0), there = address_in(barrier(0), 0);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      uint4 four;
      memcpy(&four, &values[4 * i], sizeof four);
      send(to + static_cast<uint32_t>(place(at, i)) * 16, four, there);
    }
  }
  [[nodiscard]] __device__ __forceinline__ uint4 received(int at, int i) const {
    return reinterpret_cast<const uint4*>(shared + kManyExchange)[place(at, i)];
  }

  /// The part of a tile, and its results where this is the first block of a cluster.
  __device__ __forceinline__ void run(const ManyTile& tile, const ManyPart& part, int rank) {
    const int strip = tile.strip + its_strip;
    if (its_columns >= a.tile_columns || strip >= a.strips) {
      for (int block = part.first_block; block < part.end_block; ++block) {
        acquire();
        release();
      }
      return;
    }
    const int first_tile = its_columns * (Columns / kXTileRows);
    Sum d[kSums]{};
    float acc[kSums]{}, finished[kSums]{};  // of a chunk, and of those before it
    int chunk = 0, chunk_blocks = 0, group = part.first_group;
    int group_block = a.group_blocks == 1 ? 0 : part.first_block - part.first_group * a.group_blocks;
    for (int block = part.first_block; block < part.end_block; ++block) {
      acquire();
      const uint8_t* const stage = shared + a.stages_at + slot * a.stage_bytes;
      const uint8_t* const codes = stage + its_strip * Shape::kBlockBytes + thread / 32 * (Shape::kBlockBytes / 4);
      uint64_t x = core_matrices(shared_address(stage + a.x_at + first_tile * Shape::kTileBytes), Shape::kTileBytes);
      const uint8_t* record = stage + a.parameters_at + its_strip * a.block_groups * a.record_bytes;
      const uint8_t* x_parameters = stage + a.x_parameters_at + first_tile * a.x_part_bytes;
      bool add = !Fine && Shape::kInteger && (a.whole ? block > part.first_block : group_block > 0);
      // While a share is multiplied, the next one is decoded.
#pragma unroll(Fine ? 1 : kShares)
      for (int share = 0; share < kShares; ++share, x += Shape::kTileBytes / kShares / 16) {
        Packed packed;
        packed.load(codes, thread % 32, share);
        if constexpr (Fine) {
          const int steps = a.block_groups == 4 ? 1 : 2;  // of a group
#pragma unroll
          for (int step = 0; step < kSteps / kShares; ++step) {
            const bool begins = step % steps == 0, ends = (step + 1) % steps == 0;
            if (group < a.groups) {
              multiply<1>(d, packed, x, step, Shape::kCodes && !begins);
              wait_for_products(d);
              if (!Shape::kCodes || ends) {
                promotion.add(acc, d, record, x_parameters, a.x_slab_parameters);
                x_parameters += kManySlabTiles * a.x_part_bytes;
              }
            }
            if (ends) {
              record += a.record_bytes;
              ++group;
            }
          }
        } else {
          multiply<kSteps / kShares>(d, packed, x, 0, add);
          add = true;
        }
      }
      if constexpr (!Fine) wait_for_products(d);
      if constexpr (!Fine) {
        const bool ends = ++group_block == a.group_blocks || block + 1 == a.used_blocks;
        if (ends) group_block = 0;
        if constexpr (!Shape::kStatic)
          if (!Shape::kCodes || (ends && !a.whole)) promotion.add(acc, d, record, x_parameters, a.x_slab_parameters);
      }
      release();
      const bool last = block + 1 == part.end_block;
      if (a.whole || (++chunk_blocks < a.chunk_blocks && !last)) continue;
      chunk_blocks = 0;
      if (rank > 0) send_sums((rank - 1) * a.rank_chunks + chunk, acc);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        finished[i] = __fadd_rn(finished[i], acc[i]);
        acc[i] = 0;
      }
      ++chunk;
    }
    if (rank > 0) {
      if (a.whole) send_sums(rank - 1, d);
      return;
    }
    if (a.cluster > 1) barrier_wait(barrier(0), 0);
    if constexpr (Shape::kStatic) {
      finish_static(tile, strip, d);
    } else {
      finish(tile, strip, finished, d);
    }
  }

  /// What other blocks have of a whole group.
  __device__ __forceinline__ void add_received(int32_t (&d)[kSums]) const {
    for (int other = 0; other < a.cluster - 1; ++other)
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        const uint4 more = received(other, i);
        d[4 * i] += static_cast<int32_t>(more.x), d[4 * i + 1] += static_cast<int32_t>(more.y);
        d[4 * i + 2] += static_cast<int32_t>(more.z), d[4 * i + 3] += static_cast<int32_t>(more.w);
      }
  }

  /// The first row of x of this warpgroup.
  [[nodiscard]] __device__ __forceinline__ int64_t first_row(const ManyTile& tile) const {
    return static_cast<int64_t>(tile.slab) * kManySlabTiles * kXTileRows + its_columns * Columns;
  }

  __device__ __forceinline__ void finish(const ManyTile& tile, int strip, float (&acc)[kSums], Sum (&d)[kSums]) {
    if constexpr (Shape::kCodes) {
      if (a.whole) {
        add_received(d);
        promotion.add(acc, d, a.parameters + static_cast<int64_t>(strip) * a.record_bytes,
                      a.x_parameters + first_row(tile) / kXTileRows * a.x_part_bytes, kManySlabTiles * a.x_part_bytes);
#pragma unroll
        for (int i = 0; i < kSums; ++i) acc[i] = __fadd_rn(0.0f, acc[i]);
      }
    }
    const int others = a.cluster == 1 ? 0 : a.chunks - a.rank_chunks;  // chunks
    if (!Shape::kCodes || !a.whole)
      for (int other = 0; other < others; ++other)
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
          const uint4 more = received(other, i);
          acc[4 * i] = __fadd_rn(acc[4 * i], __uint_as_float(more.x));
          acc[4 * i + 1] = __fadd_rn(acc[4 * i + 1], __uint_as_float(more.y));
          acc[4 * i + 2] = __fadd_rn(acc[4 * i + 2], __uint_as_float(more.z));
          acc[4 * i + 3] = __fadd_rn(acc[4 * i + 3], __uint_as_float(more.w));
        }
    const int64_t n = first_result(strip);
    const float4 bias = *reinterpret_cast<const float4*>(a.bias + n);
    turn(acc, [&](int first_row_of_turn, const float* turned) {
#pragma unroll 1
      for (int row = thread % 32 / kTurnLanes; row < kManyTurnRows; row += 32 / kTurnLanes) {
        const int64_t m = first_row(tile) + first_row_of_turn + row;
        if (m < a.m) store_results(a, m, n, *reinterpret_cast<const float4*>(turned + row * kManyTurnStride), bias);
      }
    });
  }

  /// Of codes of 16 bits, a tile of sums of high bytes and one of low bytes in turn.
  __device__ __forceinline__ void finish_static(const ManyTile& tile, int strip, int32_t (&d)[kSums]) const {
    add_received(d);
    const StaticEpilogue& e = a.static_codes;
    const int planes = e.planes;
    const int64_t n = first_result(strip);
    turn(d, [&](int first_row_of_turn, const int32_t* turned) {
#pragma unroll 1
      for (int row = thread % 32 / kTurnLanes; row < kManyTurnRows / planes; row += 32 / kTurnLanes) {
        const int64_t m = (first_row(tile) + first_row_of_turn) / planes + row;
        if (m >= a.m) continue;
        const int64_t sum = e.rows[m].sum;
        const int32_t* const of_row = turned + row * kManyTurnStride;
        int32_t y[4];
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
          const int32_t high = planes == 1 ? 0 : of_row[i];
          const int32_t low = of_row[i + (planes - 1) * kXTileRows * kManyTurnStride];
          const StaticChannel& c = e.channels[n + i];
          const int32_t code =
              e.wide ? static_result<int64_t>(e, c, sum, high, low) : static_result<int32_t>(e, c, sum, high, low);
          y[0] = i == 0 ? code : y[0], y[1] = i == 1 ? code : y[1], y[2] = i == 2 ? code : y[2], y[3] = code;
        }
        store_static_results(a, m, n, make_int4(y[0], y[1], y[2], y[3]));
      }
    });
  }

  static constexpr int kTurnLanes = kTileRows / 4;  // of a row of x, each with four results
  /// The first of this thread's four rows of W.
  [[nodiscard]] __device__ __forceinline__ int64_t first_result(int strip) const {
    return static_cast<int64_t>(strip) * kStripRows + thread / 32 * kTileRows + thread % kTurnLanes * 4;
  }
  /// Through shared memory, so that a warp writes neighbouring elements of rows of y: calls store_rows(first row,
  /// this thread's four results of that row) for kManyTurnRows rows of x at a time, kManyTurnStride apart.
  template <typename Value, typename StoreRows>
  __device__ __forceinline__ void turn(const Value (&values)[kSums], const StoreRows& store_rows) const {
    const int lane = thread % 32, warp = warpgroup * 4 + thread / 32;
    auto* const turned = reinterpret_cast<Value*>(shared + a.results_at) + warp * (kManyTurnRows * kManyTurnStride);
#pragma unroll
    for (int first = 0; first < kSums; first += kManyTurnRows / 2) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kManyTurnRows / 2; ++i)
        turned[(i / 4 * kXTileRows + lane % 4 * 2 + i % 2) * kManyTurnStride + lane / 4 + i % 4 / 2 * 8] =
            values[first + i];
      __syncwarp();
      store_rows(2 * first, turned + lane % kTurnLanes * 4);
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int Bits, RowsKind Kind, int Columns, bool Fine, bool General>
__global__ void __launch_bounds__(kManyThreads, 1) many(const __grid_constant__ ManyArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Body = ManyBody<Bits, Kind, Columns, Fine, General>;
  using Shape = typename Body::Shape;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int rank = a.cluster > 1 ? static_cast<int>(block_in_cluster()) : 0;
  const int others = a.cluster == 1 ? 0 : a.whole ? a.cluster - 1 : a.chunks - a.rank_chunks;
  if (threadIdx.x == 0) {
    const uint32_t barriers = shared_address(shared);
    barrier_init(barriers, 1);
    for (uint32_t i = 0; i < static_cast<uint32_t>(a.stages); ++i) {
      barrier_init(barriers + 8 * (1 + i), 1);
      barrier_init(barriers + 8 * (1 + static_cast<uint32_t>(a.stages) + i), 4 * kManyGroups);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    // Warpgroups without a strip send nothing.
    const int strips = min(a.tile_strips, a.strips - many_tile(a, static_cast<int>(cluster_in_grid())).strip);
    if (a.cluster > 1 && rank == 0)
      barrier_expect(barriers, static_cast<uint32_t>(others * strips * a.tile_columns) *
                                   static_cast<uint32_t>(Columns * kStripRows * static_cast<int>(sizeof(float))));
  }
  let_next_grid_start();
  __syncthreads();
  if (a.cluster > 1) {
    cluster_arrive();
    cluster_wait();  // nobody sends before the first block's barrier is there
  }
  ManyPart part;
  part.first_block = min(a.used_blocks, rank * a.rank_chunks * a.chunk_blocks);
  part.end_block = min(a.used_blocks, part.first_block + a.rank_chunks * a.chunk_blocks);
  part.first_group = a.group_blocks == 1 ? part.first_block * a.block_groups : part.first_block / a.group_blocks;
  const int tiles = a.w_tiles * a.x_tiles;
  if (warp >= 4 * kManyGroups) {
    trade_registers<kManyLoadRegisters, kManyStartRegisters>();
    if (warp == 4 * kManyGroups) ManyLoader<Shape>(a, shared, part, static_cast<int>(threadIdx.x) % 32).run(tiles);
    return;
  }
  trade_registers<kManyWorkRegisters, kManyStartRegisters>();
  const int thread = static_cast<int>(threadIdx.x) % 128;
  Body body{a,
            shared,
            warp / 4,
            thread,
            warp / 4 % a.tile_strips,
            warp / 4 / a.tile_strips,
            {a, thread / 32 * kTileRows + thread % 32 / 4, thread % 4 * 2},
            0,
            0};
  for (int tile = static_cast<int>(cluster_in_grid()); tile < tiles; tile += static_cast<int>(gridDim.x) / a.cluster)
    body.run(many_tile(a, tile), part, rank);
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_MANY_CUH_
