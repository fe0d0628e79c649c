// SPDX-License-Identifier: Apache-2.0
// The kernel of many.h. A warp loads stages, each a block of 128 positions; warpgroups decode W into the registers of
// wgmma, multiply with x in shared memory, and promote the sums of a part in the order of numerics.md, sections 10 and
// 11, or make y of the sums of whole rows of static codes (section 12). While one warpgroup promotes, the other
// multiplies.
//
// Blocks of threads take tiles of results in turn. Where there are many tiles, those of a cluster have neighbouring
// strips and the same rows of x, of which each loads its part for all. Where there are few tiles, those of a cluster
// share one: each has chunks of it one after the other, and the first one gets the sums of all others' chunks and adds
// them in order.
#ifndef ISOBIT_LINEAR_CUDA_MANY_CUH_
#define ISOBIT_LINEAR_CUDA_MANY_CUH_

#include "core/cuda/ptx.cuh"
#include "linear/cuda/many.h"
#include "linear/cuda/promote.cuh"
#include "linear/cuda/static_epilogue.cuh"
#include "linear/cuda/store.cuh"

namespace isobit::cuda {

inline constexpr int kManyThreads = 128 * (kManyGroups + 1);
inline constexpr int kManyStartRegisters = 168, kManyWorkRegisters = 232, kManyLoadRegisters = 40;
static_assert(kManyGroups * kManyWorkRegisters + kManyLoadRegisters <= (kManyGroups + 1) * kManyStartRegisters);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// Where a tile is.
struct ManyTile {
  int strip, slab;  // the first ones
};
/// neighbour: of the blocks of threads that share rows of x.
__device__ __forceinline__ ManyTile many_tile(const ManyArgs& a, int tile, int neighbour) {
  const int in_group = kManyTileGroup * a.x_tiles;
  const int first = tile / in_group * kManyTileGroup;
  const int height = min(kManyTileGroup, a.w_tiles - first);
  const int rest = tile % in_group;
  return {((first + rest % height) * a.neighbours + neighbour) * kManyGroups, rest / height * a.tile_slabs};
}

/// A cluster's next tile is so many behind.
__device__ __forceinline__ int many_stride(const ManyArgs& a) {
  return static_cast<int>(gridDim.x) / (a.cluster * a.neighbours);
}

/// What a block of threads has of a tile.
struct ManyPart {
  int first_block, end_block, first_group;
  int rank;       // of those that share a tile
  int neighbour;  // of those that share rows of x
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
  bool is_mine = true;  // no neighbour loads it
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
      is_mine = index % a.neighbours == part.neighbour;
    }
  }
  [[nodiscard]] __device__ __forceinline__ bool is_of_rows() const { return kind == kRows || kind == kRowParameters; }
  [[nodiscard]] __device__ __forceinline__ int groups() const { return min(a.block_groups, a.groups - group); }
  [[nodiscard]] __device__ __forceinline__ int row_parameters() const {
    return (Shape::kCodes ? groups() : a.x_block_parts) * kManySlabTiles * a.x_part_bytes;
  }

  __device__ __forceinline__ void start(int number) {
    const ManyTile tile = many_tile(a, number, part.neighbour);
    block = part.first_block;
    group = part.first_group;
    group_block = a.group_blocks == 1 ? 0 : block - group * a.group_blocks;
    strips = max(0, min(kManyGroups, a.strips - tile.strip));
    const int64_t strip = tile.strip + index, slab = tile.slab + index;
    there = is_of_rows() ? is_mine : kind != kNothing && index < strips;
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
    const uint32_t address = shared_address(shared + a.stages_at + slot * a.stage_bytes + to);
    if (there && is_of_rows() && a.neighbours > 1) {
      fetch_for_cluster(address, from, static_cast<uint32_t>(bytes), full(),
                        static_cast<uint16_t>((1 << a.neighbours) - 1));
    } else if (there) {
      fetch(address, from, static_cast<uint32_t>(bytes), full());
    }
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
    const int first = static_cast<int>(cluster_in_grid()), stride = many_stride(a);
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
  static constexpr int kOfStep = K::kInstructions / K::kPlanes / kSteps;  // left operands
  static constexpr int kShares = 2;  // of a block, whose operands are in registers at once
  using Packed = PackedCodes<Bits, kShares>;
  template <int Steps>
  using Left = uint32_t[Steps * kOfStep][4];

  const ManyArgs& a;
  uint8_t* shared;
  int warpgroup, thread;  // of the warpgroup
  uint32_t empty;         // the first barrier of the loader of the block of threads that this lane tells
  Promotion<Bits, Kind, General> promotion;
  int slot = 0, used_slot = 0;  // the next stage to come, and to be given back
  uint32_t phase = 0;

  [[nodiscard]] __device__ __forceinline__ uint32_t barrier(int index) const {
    return shared_address(shared) + 8 * static_cast<uint32_t>(index);
  }
  /// Waits for the next stage.
  __device__ __forceinline__ const uint8_t* acquire() {
    barrier_wait(barrier(1 + slot), phase);
    const uint8_t* const stage = shared + a.stages_at + slot * a.stage_bytes;
    if (++slot == a.stages) {
      slot = 0;
      phase ^= 1;
    }
    return stage;
  }
  /// Gives the oldest one back.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (thread % 32 < a.neighbours) barrier_arrive_in(empty + 8 * static_cast<uint32_t>(used_slot));
    if (++used_slot == a.stages) used_slot = 0;
  }

  // Of a stage, what this thread's warpgroup uses.
  [[nodiscard]] __device__ __forceinline__ const uint8_t* codes_in(const uint8_t* stage) const {
    return stage + warpgroup * Shape::kBlockBytes + thread / 32 * (Shape::kBlockBytes / 4);
  }
  [[nodiscard]] __device__ __forceinline__ uint64_t x_in(const uint8_t* stage) const {
    return core_matrices(shared_address(stage + a.x_at), Shape::kTileBytes);
  }
  [[nodiscard]] __device__ __forceinline__ const uint8_t* record_in(const uint8_t* stage) const {
    return stage + a.parameters_at + warpgroup * a.block_groups * a.record_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ const uint8_t* x_parameters_in(const uint8_t* stage) const {
    return stage + a.x_parameters_at;
  }

  /// Operands of steps first to first + Steps - 1 of a share.
  template <int Steps>
  static __device__ __forceinline__ void decode(Left<Steps>& left, const Packed& packed, int first) {
#pragma unroll
    for (int i = 0; i < Steps * kOfStep; ++i) Codec<Bits, Kind>::decode(packed, first * kOfStep + i, left[i]);
  }
  /// Starts d = (or, where `add`, d +) their products with x, step `first` of a block and on.
  template <int Steps>
  static __device__ __forceinline__ void multiply(Sum (&d)[kSums], const Left<Steps>& left, uint64_t x, int first,
                                                  bool add) {
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
  static __device__ __forceinline__ void wait_for_products(Sum (&d)[kSums]) {
    wgmma_wait<0>();
    keep_in_registers(d);
  }

  /// Of sums 4 * i to 4 * i + 3 of this thread, in what a first block gets.
  [[nodiscard]] __device__ __forceinline__ int place(int at, int i) const {
    return ((at * kManyGroups + warpgroup) * (kSums / 4) + i) * 128 + thread;
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

  /// Sums of the chunks before the present one. In memory, as registers are for other sums.
  struct Finished {
    float sums[kSums];
    __device__ __forceinline__ Finished() { asm volatile("" ::"l"(&sums[0]) : "memory"); }
  };
  /// After chunk `chunk`: its sums go to the first block of the cluster, or are added to those before.
  __device__ __forceinline__ void end_chunk(float (&acc)[kSums], Finished& finished, int& chunk, int rank,
                                            bool is_last) const {
    if (rank > 0) send_sums((rank - 1) * a.rank_chunks + chunk, acc);
#pragma unroll
    for (int i = 0; i < kSums; ++i) acc[i] = __fadd_rn(chunk == 0 ? 0.0f : finished.sums[i], acc[i]);
    if (is_last) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      finished.sums[i] = acc[i];
      acc[i] = 0;
    }
    ++chunk;
  }

  /// Blocks, of which a group has one or more. While the second share of a block is multiplied, the first one of the
  /// next is decoded. Whole: d gets the integers of all of them, and nothing is promoted.
  template <bool Whole>
  __device__ __forceinline__ void add_blocks(Sum (&d)[kSums], float (&acc)[kSums], const ManyPart& part) {
    constexpr int kOfShare = kSteps / kShares;
    Finished finished;
    int chunk = 0, blocks = 0;  // blocks: of the chunk
    int group_block = 0;        // parts begin with a group, but where there is one for all
    Packed packed;
    Left<kOfShare> first, second;
    const uint8_t* stage = acquire();
    packed.load(codes_in(stage), thread % 32, 0);
    decode<kOfShare>(first, packed, 0);
    for (int block = part.first_block; block < part.end_block; ++block) {
      multiply<kOfShare>(d, first, x_in(stage), 0, Shape::kInteger && group_block > 0);
      packed.load(codes_in(stage), thread % 32, 1);
      decode<kOfShare>(second, packed, 0);
      multiply<kOfShare>(d, second, x_in(stage), kOfShare, true);
      const uint8_t* const before = stage;
      const bool is_last = block + 1 == part.end_block;
      if (!is_last) {
        wgmma_wait<1>();
        stage = acquire();
        packed.load(codes_in(stage), thread % 32, 0);
        decode<kOfShare>(first, packed, 0);
      }
      wait_for_products(d);
      ++group_block;
      if constexpr (!Whole) {
        const bool ends_group = group_block == a.group_blocks || is_last;
        if (!Shape::kCodes || ends_group)
          promotion.add(acc, d, record_in(before), x_parameters_in(before), a.x_slab_parameters);
        keep_in_registers(d);  // keeps those of d and acc apart
        if (ends_group) group_block = 0;
      }
      release();
      if constexpr (!Whole)
        if (++blocks == a.chunk_blocks || is_last) {
          end_chunk(acc, finished, chunk, part.rank, is_last);
          blocks = 0;
        }
    }
  }

  /// Parts of Steps steps of a block, where groups are smaller than one.
  template <int Steps>
  __device__ __forceinline__ void add_parts(Sum (&d)[kSums], float (&acc)[kSums], const ManyPart& part) {
    constexpr int kParts = kSteps / Steps;            // of a block
    const int group_parts = kParts / a.block_groups;  // more than one of floats only
    Finished finished;
    int chunk = 0, blocks = 0;  // blocks: of the chunk
    int left = a.groups * group_parts - part.first_block * kParts;
    for (int block = part.first_block; block < part.end_block; ++block) {
      const uint8_t* const stage = acquire();
#pragma unroll 1
      for (int share = 0; share < kShares; ++share) {
        Packed packed;
        packed.load(codes_in(stage), thread % 32, share);
#pragma unroll
        for (int i = 0; i < kParts / kShares; ++i) {
          if (--left < 0) continue;
          const int at = share * (kParts / kShares) + i;  // of the block
          Left<Steps> operands;
          decode<Steps>(operands, packed, i * Steps);
          multiply<Steps>(d, operands, x_in(stage), at * Steps, false);
          wait_for_products(d);
          promotion.add(acc, d, record_in(stage) + at / group_parts * a.record_bytes,
                        x_parameters_in(stage) + at * kManySlabTiles * a.x_part_bytes, a.x_slab_parameters);
          keep_in_registers(d);
        }
      }
      release();
      const bool is_last = block + 1 == part.end_block;
      if (++blocks == a.chunk_blocks || is_last) {
        end_chunk(acc, finished, chunk, part.rank, is_last);
        blocks = 0;
      }
    }
  }

  /// The part of a tile, and its results where this is the first block of a cluster.
  __device__ __forceinline__ void run(const ManyTile& tile, const ManyPart& part) {
    const int strip = tile.strip + warpgroup;
    if (strip >= a.strips) {
      for (int block = part.first_block; block < part.end_block; ++block) {
        acquire();
        release();
      }
      return;
    }
    if constexpr (Shape::kInteger && !Fine) {
      if (Shape::kStatic || a.whole) return run_whole(tile, strip, part);
    }
    if constexpr (!Shape::kStatic) {
      float acc[kSums]{};
      Sum d[kSums]{};
      if constexpr (!Fine) {
        add_blocks<false>(d, acc, part);
      } else if constexpr (Shape::kCodes) {
        if (a.block_groups == 2) {
          add_parts<2>(d, acc, part);
        } else {
          add_parts<1>(d, acc, part);
        }
      } else {
        add_parts<1>(d, acc, part);  // each step is one
      }
      if (part.rank > 0) return;
      if (a.cluster > 1) {
        barrier_wait(barrier(0), 0);
        add_received(acc);
      }
      finish(tile, strip, acc);
    }
  }
  /// The same where integers of all blocks are added.
  __device__ __forceinline__ void run_whole(const ManyTile& tile, int strip, const ManyPart& part) {
    Sum d[kSums]{};
    float sums[kSums]{};
    add_blocks<true>(d, sums, part);
    if (part.rank > 0) return send_sums(part.rank - 1, d);
    if (a.cluster > 1) {
      barrier_wait(barrier(0), 0);
      add_received(d);
    }
    if constexpr (Shape::kStatic) {
      finish_static(tile, strip, d);
    } else {
      promotion.add(sums, d, a.parameters + static_cast<int64_t>(strip) * a.record_bytes,
                    a.x_parameters + first_row(tile) / kXTileRows * a.x_part_bytes, kManySlabTiles * a.x_part_bytes);
      finish(tile, strip, sums);
    }
  }

  /// What other blocks of the cluster have: of a whole group, or of chunks in order.
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
    return static_cast<int64_t>(tile.slab) * kManySlabTiles * kXTileRows;
  }

  __device__ __forceinline__ void add_received(float (&sums)[kSums]) const {
    for (int other = 0; other < a.chunks - a.rank_chunks; ++other)
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        const uint4 more = received(other, i);
        sums[4 * i] = __fadd_rn(sums[4 * i], __uint_as_float(more.x));
        sums[4 * i + 1] = __fadd_rn(sums[4 * i + 1], __uint_as_float(more.y));
        sums[4 * i + 2] = __fadd_rn(sums[4 * i + 2], __uint_as_float(more.z));
        sums[4 * i + 3] = __fadd_rn(sums[4 * i + 3], __uint_as_float(more.w));
      }
  }

  __device__ __forceinline__ void finish(const ManyTile& tile, int strip, const float (&sums)[kSums]) const {
    const float bias[2] = {a.bias[first_channel(strip)], a.bias[first_channel(strip) + 8]};
    float y[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) y[i] = __fadd_rn(sums[i], bias[i % 4 / 2]);
    constexpr float kInfinity = __builtin_huge_valf();
    if (a.lo > -kInfinity || a.hi < kInfinity)
#pragma unroll
      for (int i = 0; i < kSums; ++i) y[i] = clamped(a, y[i]);
    const TurnedTile turned(thread % 32);
    const int64_t m = first_row(tile) + turned.m, n = first_channel(strip) - thread % 32 / 4 + turned.n;
    if (a.y_type == 0) {
      store_tiles<uint32_t, kSums, 4>(a, m, n, [&](int i) {
        return turned.words(float32_bits(y[i]), float32_bits(y[i + 1]), float32_bits(y[i + 2]), float32_bits(y[i + 3]));
      });
      return;
    }
    bool is_nan = false;
#pragma unroll
    for (int i = 0; i < kSums; ++i) is_nan |= isnan(y[i]);
    const bool any_nan = __any_sync(0xffffffffu, is_nan ? 1 : 0) != 0;
    const auto store_halves = [&](const auto& pair, uint32_t nan) {
      store_tiles<uint16_t, kSums, 4>(a, m, n, [&](int i) {
        uint32_t upper = pair(y[i], y[i + 1]), lower = pair(y[i + 2], y[i + 3]);
        if (any_nan) upper = with_nan(upper, nan), lower = with_nan(lower, nan);
        return turned.halves(upper, lower);
      });
    };
    if (a.y_type == 1) {
      store_halves([](float low, float high) { return float16_pair(low, high); }, kFloat16NaN);
    } else {
      store_halves([](float low, float high) { return bfloat16_pair(low, high); }, kBFloat16NaN);
    }
  }

  /// Sums of whole rows of codes. Those of 16 bits have a tile of sums of high bytes and one of low bytes in turn.
  __device__ __forceinline__ void finish_static(const ManyTile& tile, int strip, const int32_t (&d)[kSums]) const {
    const StaticEpilogue& e = a.static_codes;
    const StaticChannel channels[2] = {e.channels[first_channel(strip)], e.channels[first_channel(strip) + 8]};
    const bool is_quick = e.y_bytes == kAccumulatorBytes || (channels[0].quick & channels[1].quick) != 0;
    const bool all_quick = __all_sync(0xffffffffu, is_quick ? 1 : 0) != 0;
    const auto quick = [&](const StaticChannel& c, auto acc) { return quick_code(e, c, acc); };
    const auto any = [&](const StaticChannel& c, auto acc) { return any_code(e, c, acc); };
    if (e.planes == 1 && !e.wide && all_quick) {
      store_codes<1, int32_t>(tile, strip, d, channels, quick);
    } else if (e.planes == 2 && all_quick) {
      store_codes<2, int64_t>(tile, strip, d, channels, quick);
    } else if (e.planes == 2) {
      store_codes<2, int64_t>(tile, strip, d, channels, any);
    } else {
      store_codes<1, int64_t>(tile, strip, d, channels, any);
    }
  }
  /// Out of line, as it is long and seldom used.
  static __device__ __noinline__ int32_t any_code(const StaticEpilogue& e, const StaticChannel& c, int64_t acc) {
    return static_code(e, c, acc);
  }

  template <int Planes, typename Acc, typename Code>
  __device__ __forceinline__ void store_codes(const ManyTile& tile, int strip, const int32_t (&d)[kSums],
                                              const StaticChannel (&channels)[2], const Code& code) const {
    const StaticEpilogue& e = a.static_codes;
    constexpr int kStep = 4 * Planes, kBatch = 16;  // tiles of x whose sums are loaded at once
    const TurnedTile turned(thread % 32);
    const int64_t first = first_row(tile) / Planes, n = first_channel(strip) - thread % 32 / 4 + turned.n;
    Acc sums[kBatch][2];
    // Of the tile of sums i and on.
    const auto load_sums = [&](int i) {
      if (i / kStep % kBatch > 0) return;
#pragma unroll
      for (int j = 0; j < kBatch && i + j * kStep < kSums; ++j)
#pragma unroll
        for (int column = 0; column < 2; ++column)
          sums[j][column] =
              static_cast<Acc>(e.rows[first + (i / kStep + j) * kXTileRows + thread % 4 * 2 + column].sum);
    };
    const auto acc = [&](int i, int j) {
      return static_sum<Acc>(e, channels[j / 2].start, sums[i / kStep % kBatch][j % 2], Planes == 1 ? 0 : d[i + j],
                             d[i + j + 4 * (Planes - 1)]);
    };
    const auto halves = [&](int i) {
      load_sums(i);
      const auto y = [&](int j) { return static_cast<uint32_t>(code(channels[j / 2], acc(i, j))); };
      return turned.halves(__byte_perm(y(0), y(1), 0x5410), __byte_perm(y(2), y(3), 0x5410));
    };
    const int64_t m = first + turned.m;
    switch (e.y_bytes) {
      case 1:
        store_tiles<uint8_t, kSums, kStep>(a, m, n, [&](int i) {
          const uint2 four = halves(i);
          return __byte_perm(four.x, four.y, 0x6420);
        });
        break;
      case 2: store_tiles<uint16_t, kSums, kStep>(a, m, n, halves); break;
      default:
        store_tiles<uint32_t, kSums, kStep>(a, m, n, [&](int i) {
          load_sums(i);
          const auto y = [&](int j) { return static_cast<uint32_t>(acc(i, j)); };
          return turned.words(y(0), y(1), y(2), y(3));
        });
    }
  }

  /// The first of this thread's two rows of W, which are 8 apart.
  [[nodiscard]] __device__ __forceinline__ int64_t first_channel(int strip) const {
    return static_cast<int64_t>(strip) * kStripRows + promotion.row;
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
  const int in_cluster = static_cast<int>(block_in_cluster()), cluster = static_cast<int>(cluster_in_grid());
  const int rank = a.cluster > 1 ? in_cluster : 0, neighbour = a.neighbours > 1 ? in_cluster : 0;
  const int others = a.cluster == 1 ? 0 : a.whole ? a.cluster - 1 : a.chunks - a.rank_chunks;
  if (threadIdx.x == 0) {
    const uint32_t barriers = shared_address(shared);
    barrier_init(barriers, 1);
    for (uint32_t i = 0; i < static_cast<uint32_t>(a.stages); ++i) {
      barrier_init(barriers + 8 * (1 + i), 1);
      barrier_init(barriers + 8 * (1 + static_cast<uint32_t>(a.stages) + i),
                   static_cast<uint32_t>(4 * kManyGroups * a.neighbours));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    // Warpgroups without a strip send nothing.
    const int strips = min(kManyGroups, a.strips - many_tile(a, cluster, neighbour).strip);
    if (a.cluster > 1 && rank == 0)
      barrier_expect(barriers, static_cast<uint32_t>(others * strips) *
                                   static_cast<uint32_t>(Columns * kStripRows * static_cast<int>(sizeof(float))));
  }
  let_next_grid_start();
  __syncthreads();
  if (a.cluster * a.neighbours > 1) {
    cluster_arrive();
    cluster_wait();  // nobody sends before the others' barriers are there
  }
  ManyPart part;
  part.first_block = min(a.used_blocks, rank * a.rank_chunks * a.chunk_blocks);
  part.end_block = min(a.used_blocks, part.first_block + a.rank_chunks * a.chunk_blocks);
  part.first_group = a.group_blocks == 1 ? part.first_block * a.block_groups : part.first_block / a.group_blocks;
  part.rank = rank;
  part.neighbour = neighbour;
  const int tiles = a.w_tiles * a.x_tiles;
  if (warp >= 4 * kManyGroups) {
    trade_registers<kManyLoadRegisters, kManyStartRegisters>();
    if (warp == 4 * kManyGroups) ManyLoader<Shape>(a, shared, part, static_cast<int>(threadIdx.x) % 32).run(tiles);
  } else {
    trade_registers<kManyWorkRegisters, kManyStartRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    Body body{a,
              shared,
              warp / 4,
              thread,
              address_in(shared_address(shared) + 8 * static_cast<uint32_t>(1 + a.stages),
                         static_cast<uint32_t>(a.neighbours > 1 ? min(thread % 32, a.neighbours - 1) : in_cluster)),
              {a, thread / 32 * kTileRows + thread % 32 / 4, thread % 4 * 2}};
    for (int tile = cluster; tile < tiles; tile += many_stride(a)) body.run(many_tile(a, tile, neighbour), part);
  }
  if (a.neighbours > 1) {
    cluster_arrive();
    cluster_wait();  // others tell this block's barriers that they have read a stage
  }
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_MANY_CUH_
