// SPDX-License-Identifier: Apache-2.0
// The kernel of few.h. A warp loads stages; four warps, each of 16 rows of W, decode blocks into the registers of
// mma.sync, multiply, and promote the sums of a part in the order of numerics.md, sections 10 and 11; of static codes
// they make y of the sums of whole rows (section 12). Before sm_90, which has no bulk copies, the four warps load as
// well. Why not wgmma: docs/notes/linear_cuda.md.
//
// Blocks of threads that share a strip have chunks of it one after the other. The first one gets the sums of all
// others' chunks, adds them in order and stores the results.
#ifndef ISOBIT_LINEAR_CUDA_FEW_CUH_
#define ISOBIT_LINEAR_CUDA_FEW_CUH_

#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "core/cuda/tensor_core.cuh"
#include "linear/cuda/codec.cuh"
#include "linear/cuda/few.h"
#include "linear/cuda/static_epilogue.cuh"

namespace isobit::cuda {

inline constexpr int kFewThreads = kFewWorkers + 32;

/// An instruction takes 32 bytes of a row of x. Float32 has three halves for each element.
template <RowsKind Kind>
struct FewKind {
  using Type =
      std::conditional_t<is_integer(Kind), UInt8Int8, std::conditional_t<Kind == RowsKind::kF16, Float16, BFloat16>>;
  static constexpr int kPlanes = Kind == RowsKind::kF32 ? 3 : 1;
  static constexpr int kInstructions = static_cast<int>(row_block_bytes(Kind)) / kXTileRows / 32;
};

__device__ __forceinline__ float one_nan(float y) { return isnan(y) ? __uint_as_float(0x7fc00000u) : y; }
__device__ __forceinline__ void store_result(void* y, int32_t type, int64_t at, float value) {
  if (type == 0) {
    static_cast<float*>(y)[at] = one_nan(value);
  } else if (type == 1) {
    static_cast<uint16_t*>(y)[at] = isnan(value) ? uint16_t{0x7e00} : __half_as_ushort(__float2half_rn(value));
  } else {
    static_cast<uint16_t*>(y)[at] = isnan(value) ? uint16_t{0x7fc0} : __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
}

/// Of the threads that multiply.
__device__ __forceinline__ void few_barrier() { asm volatile("bar.sync 1, %0;" ::"n"(kFewWorkers) : "memory"); }

__device__ __forceinline__ uint32_t bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ uint32_t bits_of(int32_t value) { return static_cast<uint32_t>(value); }

/// What a group of a row of W has for its results.
struct FewRow {
  float scale, offset, sums;
  int32_t zero_point;
};

template <int Bits, RowsKind Kind, int Columns, bool Fine, bool General>
struct FewBody {
  using K = FewKind<Kind>;
  using T = typename K::Type;
  using Sum = typename T::Result;
  static constexpr bool kCodes = Kind == RowsKind::kCodes;
  static constexpr bool kStatic = Kind == RowsKind::kStatic;
  static constexpr int kTiles = Columns / kXTileRows;
  static constexpr int kSums = Columns / 2;  // of a thread
  static constexpr int kXBlock = static_cast<int>(row_block_bytes(Kind));
  static constexpr int kTurn = few_turn_blocks(Bits);  // blocks of a stage
  static constexpr int kParts = Fine ? 4 : 1;

  const FewArgs& a;
  uint8_t* shared;
  int thread, row, column;  // of the first results: rows row and row + 8, columns column and column + 1 of each tile
  float acc[kSums];         // of a chunk
  float finished[kSums];    // of the chunks before, where no other block of threads has any
  int32_t total[kSums];     // of a group
  int group, group_block;

  /// One group of integers: blocks of threads have parts of it, and the first one uses their sum.
  static __device__ __forceinline__ bool whole(const FewArgs& a) { return kStatic || (kCodes && a.whole); }

  __device__ __forceinline__ FewRow row_of(const uint8_t* record, int r) const {
    FewRow result{reinterpret_cast<const float*>(record)[r], 0, 0, a.zero_point};
    if constexpr (General) {
      if (a.zero_points_at > 0) result.zero_point = reinterpret_cast<const uint16_t*>(record + a.zero_points_at)[r];
      if (a.offsets_at > 0) result.offset = reinterpret_cast<const float*>(record + a.offsets_at)[r];
      if (a.sums_at > 0) result.sums = reinterpret_cast<const float*>(record + a.sums_at)[r];
    }
    return result;
  }

  /// Section 11, one group: d stands for sum a * w.
  __device__ __forceinline__ void promote_codes(float& sum, int32_t d, const FewRow& w, const RowGroup& x) const {
    constexpr int32_t kFactor = 2;  // 1 bit, symmetric: v = 2 w - 1
    const int32_t product = Bits == 1 && a.code_factor == kFactor ? kFactor * d : d;
    const int32_t v = static_cast<int32_t>(static_cast<uint32_t>(product) -
                                           static_cast<uint32_t>(w.zero_point) * static_cast<uint32_t>(x.sum));
    sum = __fmaf_rn(__int2float_rn(v), __fmul_rn(w.scale, x.scale), sum);
    if constexpr (General) {
      if (a.asymmetric) sum = __fmaf_rn(w.sums, __fmul_rn(w.scale, x.offset), sum);
      if (a.offsets_at > 0) {
        float all = __fmul_rn(x.scale, __int2float_rn(x.sum));
        if (a.asymmetric) all = __fmaf_rn(x.offset, x.elements, all);
        sum = __fmaf_rn(w.offset, all, sum);
      }
    }
  }
  /// A part of floats: p stands for the sum of x * (w - 2^(bits - 1)), of 1 bit x * (2 w - 1); all: of x.
  __device__ __forceinline__ void promote_floats(float& sum, float p, const FewRow& w, float all) const {
    if constexpr (General) {
      constexpr float kMiddle = Bits == 1 ? 0.5f : static_cast<float>(1 << (Bits - 1));
      if (a.code_factor != 2) {
        if (Bits == 1) p *= 0.5f;
        p = __fmaf_rn(kMiddle - static_cast<float>(w.zero_point), all, p);
      }
      if (a.offsets_at > 0) sum = __fmaf_rn(w.offset, all, sum);
    }
    sum = __fmaf_rn(p, w.scale, sum);
  }

  __device__ __forceinline__ void add_sums(const int32_t (&d)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      total[i] = static_cast<int32_t>(static_cast<uint32_t>(total[i]) + static_cast<uint32_t>(d[i]));
  }

  /// The sums of one part. record: of its group; x: of its group or part, in each tile x_stride bytes on.
  __device__ __forceinline__ void promote(const Sum (&d)[kSums], const uint8_t* record, const uint8_t* x, int x_stride,
                                          bool group_ends) {
    if constexpr (kCodes) {
      add_sums(d);
      if (!group_ends || a.whole) return;
    }
    const FewRow rows[2] = {row_of(record, row), row_of(record, row + 8)};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if constexpr (kCodes) {
        const auto* const groups = reinterpret_cast<const RowGroup*>(x + tile * x_stride) + column;
        const RowGroup both[2] = {groups[0], groups[1]};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          promote_codes(acc[4 * tile + i], total[4 * tile + i], rows[i / 2], both[i % 2]);
          total[4 * tile + i] = 0;
        }
      } else {
        float both[2]{};
        if constexpr (General) {
          if (a.x_part_bytes > 0) {
            const auto* const sums = reinterpret_cast<const float*>(x + tile * x_stride) + column;
            both[0] = sums[0], both[1] = sums[1];
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) promote_floats(acc[4 * tile + i], d[4 * tile + i], rows[i / 2], both[i % 2]);
      }
    }
  }

  /// Sums of a chunk, or integers of one group, to the first block of the cluster: to place `at` of what it gets.
  template <typename Value>
  __device__ __forceinline__ void send_sums(int at, const Value (&values)[kSums], uint32_t barrier) const {
#if __CUDA_ARCH__ >= 900
    const uint32_t to = address_in(shared_address(shared + kFewExchange), 0), barrier_there = address_in(barrier, 0);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const Value* const four = values + 4 * tile;
      send(to + static_cast<uint32_t>(((at * kTiles + tile) * kFewWorkers + thread) * 16),
           make_uint4(bits_of(four[0]), bits_of(four[1]), bits_of(four[2]), bits_of(four[3])), barrier_there);
    }
#endif
  }
  __device__ __forceinline__ uint4 received(int at, int tile) const {
    return reinterpret_cast<const uint4*>(shared + kFewExchange)[(at * kTiles + tile) * kFewWorkers + thread];
  }
  /// What `others` blocks have sent of a whole group.
  __device__ __forceinline__ void add_received(int32_t (&sums)[4], int others, int tile) const {
    for (int other = 0; other < others; ++other) {
      const uint4 more = received(other, tile);
      sums[0] += static_cast<int32_t>(more.x), sums[1] += static_cast<int32_t>(more.y);
      sums[2] += static_cast<int32_t>(more.z), sums[3] += static_cast<int32_t>(more.w);
    }
  }

  /// `others`: blocks of threads that have sent sums of a whole group, else chunks.
  __device__ __forceinline__ void store_floats(int64_t strip, int64_t x_tile, int others) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float(&all)[4] = reinterpret_cast<float(&)[4]>(finished[4 * tile]);
      if (kCodes && a.whole) {
        int32_t(&sums)[4] = reinterpret_cast<int32_t(&)[4]>(total[4 * tile]);
        add_received(sums, others, tile);
        const uint8_t* const record = a.parameters + strip * a.record_bytes;
        const FewRow rows[2] = {row_of(record, row), row_of(record, row + 8)};
        const auto* const groups =
            reinterpret_cast<const RowGroup*>(a.x_parameters) + (x_tile + tile) * kXTileRows + column;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float one = 0;
          promote_codes(one, sums[i], rows[i / 2], groups[i % 2]);
          all[i] = __fadd_rn(0.0f, one);
        }
      } else {
#pragma unroll 4
        for (int other = 0; other < others; ++other) {
          const uint4 more = received(other, tile);
          all[0] = __fadd_rn(all[0], __uint_as_float(more.x));
          all[1] = __fadd_rn(all[1], __uint_as_float(more.y));
          all[2] = __fadd_rn(all[2], __uint_as_float(more.z));
          all[3] = __fadd_rn(all[3], __uint_as_float(more.w));
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t m = (x_tile + tile) * kXTileRows + column + i % 2;
        const int64_t n = strip * kStripRows + row + i / 2 * 8;
        if (m >= a.m || n >= a.n) continue;
        const float y = __fadd_rn(all[i], a.bias[n]);
        store_result(a.y, a.y_type, m * a.y_stride + n, y < a.lo ? a.lo : y > a.hi ? a.hi : y);
      }
    }
  }
  /// Static codes: a tile of x is one tile of sums, or of 16 bits one of high and one of low bytes.
  __device__ __forceinline__ void store_codes(int64_t strip, int64_t x_tile, int others) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      add_received(reinterpret_cast<int32_t(&)[4]>(total[4 * tile]), others, tile);
    const StaticEpilogue& e = a.static_codes;
    const bool two_planes = kTiles == 2 && e.planes == 2;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int tile = i / 4;
      const int64_t m = (two_planes ? x_tile / 2 : x_tile + tile) * kXTileRows + column + i % 2;
      const int64_t n = strip * kStripRows + row + i % 4 / 2 * 8;
      if ((two_planes && tile == 1) || m >= a.m || n >= a.n) continue;
      store_static(e, e.channels[n], e.rows[m].sum, two_planes ? total[i] : 0,
                   two_planes ? total[(i + 4) % kSums] : total[i], a.y, m * a.y_stride + n);
    }
  }
};

template <int Bits, RowsKind Kind, int Columns, bool Fine, bool General>
__global__ void __launch_bounds__(kFewThreads) few(const __grid_constant__ FewArgs a) {
  using Body = FewBody<Bits, Kind, Columns, Fine, General>;
  using T = typename Body::T;
  using Sum = typename Body::Sum;
  constexpr int kTurn = Body::kTurn, kTiles = Body::kTiles, kXBlock = Body::kXBlock;
  constexpr int kBlockBytes = kStripRows * kBlockDepth * Bits / 8;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  [[maybe_unused]] const auto cluster = static_cast<uint32_t>(a.cluster);
#if __CUDA_ARCH__ >= 900
  const int64_t strip = cluster_in_grid();
  const uint32_t rank = block_in_cluster();
#else
  const int64_t strip = blockIdx.x;
  const uint32_t rank = 0;
#endif
  const int64_t x_tile = static_cast<int64_t>(blockIdx.y) * kTiles;
  const int rank_blocks = a.rank_chunks * a.chunk_blocks;
  const int first_block = min(a.blocks, static_cast<int>(rank) * rank_blocks);
  const int turns = (min(a.blocks, first_block + rank_blocks) - first_block) / kTurn;
  // Divisions take long: only where groups are larger than blocks.
  const auto group_of = [&](int block) {
    return min(a.groups, a.group_blocks == 1 ? block * a.block_groups : block / a.group_blocks);
  };
  const int first_group = group_of(first_block);

  // What a stage has, in turn. What fills up the last blocks belongs to no group.
  struct Stage {
    const uint8_t *w, *parameters, *x, *x_parameters;
    int block, group;
  };
  Stage next{a.w + (strip * a.blocks + first_block) * kBlockBytes,
             a.parameters + (strip * a.groups + first_group) * a.record_bytes,
             a.x + (x_tile * a.blocks + first_block) * kXBlock,
             a.x_parameters +
                 (x_tile * a.x_parts + (Body::kCodes ? first_group : first_block * a.x_block_parts)) * a.x_part_bytes,
             first_block,
             first_group};
  const auto groups_of = [&](const Stage& stage) {
    return min(a.groups, group_of(stage.block + kTurn - 1) + a.block_groups) - stage.group;
  };
  const auto x_parts_of = [&](int groups) { return Body::kCodes ? groups : kTurn * a.x_block_parts; };
  const bool has_x_parameters = Body::kCodes || (General && a.x_part_bytes > 0);
  // Their copies: copy(to, from, bytes), all multiples of 16 bytes, some 0.
  const auto copy_w = [&](const Stage& stage, uint8_t* to, int groups, auto copy) {
    copy(to, stage.w, kTurn * kBlockBytes);
    copy(to + a.parameters_at, stage.parameters, groups * a.record_bytes);
  };
  const auto copy_x = [&](const Stage& stage, uint8_t* to, int groups, auto copy) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      copy(to + a.x_at + tile * kTurn * kXBlock, stage.x + static_cast<int64_t>(tile) * a.blocks * kXBlock,
           kTurn * kXBlock);
      if (has_x_parameters)
        copy(to + a.x_parameters_at + tile * a.x_parameters_bytes,
             stage.x_parameters + static_cast<int64_t>(tile) * a.x_parts * a.x_part_bytes,
             x_parts_of(groups) * a.x_part_bytes);
    }
  };
  const auto advance = [&](Stage& stage) {
    stage.w += kTurn * kBlockBytes;
    stage.x += kTurn * kXBlock;
    stage.block += kTurn;
    const int groups = group_of(stage.block) - stage.group;
    stage.group += groups;
    stage.parameters += groups * a.record_bytes;
    stage.x_parameters += x_parts_of(groups) * a.x_part_bytes;
  };
  uint8_t* const stages = shared + a.stages_at;

  // ---- The loading warp, or its threads' share of loading.
#if __CUDA_ARCH__ >= 900
  const uint32_t all_sums = shared_address(shared), full = all_sums + 8;
  const uint32_t released = full + 8 * static_cast<uint32_t>(a.stages);
  const int others = Body::whole(a) ? a.cluster - 1 : a.chunks - a.rank_chunks;  // that send, or chunks
  if (thread == 0) {
    barrier_init(all_sums, 1);
    for (uint32_t i = 0; i < static_cast<uint32_t>(a.stages); ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(released + 8 * i, kFewWorkers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  let_next_grid_start();
  __syncthreads();
  if (cluster > 1) {
    if (rank == 0 && thread == 0) barrier_expect(all_sums, static_cast<uint32_t>(others * kTiles * kFewWorkers * 16));
    cluster_arrive();
  }
  if (warp == kFewWorkers / 32) {
    if (is_elected()) {
      uint32_t barrier = full;
      const auto copy = [&](uint8_t* to, const uint8_t* from, int bytes) {
        if (bytes > 0) fetch(shared_address(to), from, static_cast<uint32_t>(bytes), barrier);
      };
      const auto expect = [&](int groups) {
        barrier_expect(
            barrier,
            static_cast<uint32_t>(kTurn * kBlockBytes + groups * a.record_bytes +
                                  kTiles * (kTurn * kXBlock + has_x_parameters * x_parts_of(groups) * a.x_part_bytes)));
      };
      // W is constant; x comes from the grid before.
      const int early = min(turns, a.stages);
      const Stage first = next;
      uint8_t* to = stages;
      for (int turn = 0; turn < early; ++turn, barrier += 8, to += a.stage_bytes) {
        const int groups = groups_of(next);
        expect(groups);
        copy_w(next, to, groups, copy);
        advance(next);
      }
      wait_for_grid_before();
      next = first;
      barrier = full;
      to = stages;
      for (int turn = 0; turn < early; ++turn, barrier += 8, to += a.stage_bytes) {
        copy_x(next, to, groups_of(next), copy);
        advance(next);
      }
      uint32_t phase = 0;
      for (int turn = early, slot = a.stages; turn < turns; ++turn, ++slot, barrier += 8, to += a.stage_bytes) {
        if (slot == a.stages) {
          phase ^= turn > early;
          slot = 0;
          barrier = full;
          to = stages;
        }
        barrier_wait(barrier + 8 * static_cast<uint32_t>(a.stages), phase);
        const int groups = groups_of(next);
        expect(groups);
        copy_w(next, to, groups, copy);
        copy_x(next, to, groups, copy);
        advance(next);
      }
    }
    __syncwarp();
    if (cluster > 1) cluster_wait();
    return;
  }
  if (cluster > 1) cluster_wait();  // nobody sends before the first block's barrier is there
#else
  if (warp == kFewWorkers / 32) return;
  constexpr uint32_t all_sums = 0;
  constexpr int others = 0;
  int loaded = 0;
  const auto load_share = [&]() {
    if (loaded < turns) {
      const auto copy = [&](uint8_t* to, const uint8_t* from, int bytes) {
        for (int i = thread * 16; i < bytes; i += kFewWorkers * 16)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + i)), "l"(from + i)
                       : "memory");
      };
      uint8_t* const to = stages + loaded % kFewOldStages * a.stage_bytes;
      const int groups = groups_of(next);
      copy_w(next, to, groups, copy);
      copy_x(next, to, groups, copy);
      advance(next);
      ++loaded;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int turn = 0; turn < kFewOldStages - 1; ++turn) load_share();
#endif

  // ---- The warps that multiply, each 16 rows of W.
  Body body{a, shared, thread, warp * kTileRows + lane / 4, lane % 4 * 2, {}, {}, {}, first_group, 0};
  body.group_block = a.group_blocks == 1 ? 0 : first_block - first_group * a.group_blocks;
  int chunk = 0, chunk_blocks = 0;
  int slot = 0;
  [[maybe_unused]] uint32_t phase = 0;
  for (int turn = 0; turn < turns; ++turn) {
#if __CUDA_ARCH__ >= 900
    barrier_wait(full + 8 * static_cast<uint32_t>(slot), phase);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(kFewOldStages - 2) : "memory");
    few_barrier();
#endif
    const uint8_t* const stage = stages + slot * a.stage_bytes;
    const int block = first_block + turn * kTurn;
    const int stage_group = body.group;
    const uint8_t* const tile_codes = stage + warp * (kBlockBytes / (kStripRows / kTileRows));
    // The sums of a part of block i.
    const auto promote = [&](const Sum(&d)[Body::kSums], int i, int part, bool group_ends) {
      if constexpr (Body::kStatic) {
        body.add_sums(d);
      } else {
        const int at = body.group - stage_group;
        const int x_at = Body::kCodes ? at : i * a.x_block_parts + part;
        body.promote(d, stage + a.parameters_at + at * a.record_bytes,
                     stage + a.x_parameters_at + x_at * a.x_part_bytes, a.x_parameters_bytes, group_ends);
      }
      if (group_ends) ++body.group;
    };
    // Instructions of different blocks in turn, so that none waits for the one before it.
    PackedCodes<Bits> packed[kTurn];
    Sum d[kTurn][Body::kParts][Body::kSums]{};
#pragma unroll
    for (int i = 0; i < kTurn; ++i) packed[i].load(tile_codes + i * kBlockBytes, lane);
    constexpr int kPlanes = Body::K::kPlanes, kOfPart = Body::K::kInstructions / Body::kParts;
#pragma unroll
    for (int j = 0; j < Body::K::kInstructions; j += kPlanes) {
#pragma unroll
      for (int i = 0; i < kTurn; ++i) {
        uint32_t left[4];
        Codec<Bits, Kind>::decode(packed[i], j / kPlanes, left);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const auto* const right =
              reinterpret_cast<const uint32_t*>(stage + a.x_at + (tile * kTurn + i) * kXBlock) + lane;
#pragma unroll
          for (int plane = j; plane < j + kPlanes; ++plane)
            mma<T>(reinterpret_cast<Sum(&)[4]>(d[i][j / kOfPart][4 * tile]), left, right[64 * plane],
                   right[64 * plane + 32]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTurn; ++i)
#pragma unroll
      for (int part = 0; part < Body::kParts; ++part) {
        if (body.group >= a.groups) continue;
        if constexpr (Fine) {
          promote(d[i][part], i, part, (part + 1) * a.block_groups % 4 == 0);
        } else {
          const bool ends = ++body.group_block == a.group_blocks || block + i + 1 == a.blocks;
          if (ends) body.group_block = 0;
          promote(d[i][part], i, 0, ends);
        }
      }
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (lane == 0) barrier_arrive(released + 8 * static_cast<uint32_t>(slot));
    if (++slot == a.stages) {
      slot = 0;
      phase ^= 1;
    }
#else
    few_barrier();
    load_share();
    if (++slot == kFewOldStages) slot = 0;
#endif
    chunk_blocks += kTurn;
    if (!Body::whole(a) && (chunk_blocks == a.chunk_blocks || turn + 1 == turns)) {
      if (rank > 0) body.send_sums((static_cast<int>(rank) - 1) * a.rank_chunks + chunk, body.acc, all_sums);
      ++chunk;
      chunk_blocks = 0;
#pragma unroll
      for (int i = 0; i < Body::kSums; ++i) {
        body.finished[i] = __fadd_rn(body.finished[i], body.acc[i]);
        body.acc[i] = 0;
      }
    }
  }
  if (rank > 0) {
    if (Body::whole(a)) body.send_sums(static_cast<int>(rank) - 1, body.total, all_sums);
    return;
  }

  // ---- The first block of a cluster adds what the others have sent, in order.
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) barrier_wait(all_sums, 0);
#endif
  if constexpr (Body::kStatic) {
    body.store_codes(strip, x_tile, others);
  } else {
    body.store_floats(strip, x_tile, others);
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_FEW_CUH_
