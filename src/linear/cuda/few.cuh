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

#include "core/cuda/ptx.cuh"
#include "linear/cuda/few.h"
#include "linear/cuda/promote.cuh"
#include "linear/cuda/static_epilogue.cuh"
#include "linear/cuda/store.cuh"

namespace isobit::cuda {

inline constexpr int kFewThreads = kFewWorkers + 32;

/// Of the threads that multiply.
__device__ __forceinline__ void few_barrier() { asm volatile("bar.sync 1, %0;" ::"n"(kFewWorkers) : "memory"); }

__device__ __forceinline__ uint32_t bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ uint32_t bits_of(int32_t value) { return static_cast<uint32_t>(value); }

/// Fine: a block has four parts, as groups smaller than it need; sums of integers may have them for any group.
template <int Bits, RowsKind Kind, int Columns, bool Fine, bool General>
struct FewBody {
  using K = ProductKind<Kind>;
  using T = typename K::Type;
  using Sum = typename T::Result;
  static constexpr bool kCodes = Kind == RowsKind::kCodes;
  static constexpr bool kStatic = Kind == RowsKind::kStatic;
  static constexpr int kTiles = Columns / kXTileRows;
  static constexpr int kSums = Columns / 2;  // of a thread
  static constexpr int kXBlock = kTiles * static_cast<int>(row_block_bytes(Kind));
  static constexpr int kTurn = few_turn_blocks(Bits);  // blocks of a stage
  static constexpr int kParts = Fine ? 4 : 1;

  Promotion<Bits, Kind, General> promotion;  // of rows row and row + 8, columns column and column + 1 of each tile
  uint8_t* shared;
  int thread;
  float acc[kSums];        // of a chunk
  float finished[kSums];   // of the chunks before, where no other block of threads has any
  int32_t total[kSums];    // of a group
  int group, group_steps;  // steps of the group that are done

  /// The sums of one part. record: of its group; x: of its group or part.
  __device__ __forceinline__ void promote(const Sum (&d)[kSums], const uint8_t* record, const uint8_t* x,
                                          bool group_ends) {
    if constexpr (is_integer(Kind)) {
#pragma unroll
      for (int i = 0; i < kSums; ++i)
        total[i] = static_cast<int32_t>(static_cast<uint32_t>(total[i]) + static_cast<uint32_t>(d[i]));
    }
    if constexpr (kStatic) {
      return;
    } else if constexpr (kCodes) {
      if (!group_ends || promotion.a.whole) return;
      promotion.add(acc, total, record, x);
#pragma unroll
      for (int i = 0; i < kSums; ++i) total[i] = 0;
    } else {
      promotion.add(acc, d, record, x);
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
  __device__ __forceinline__ void store_floats(int64_t strip, int64_t x_slab, int others) {
    const ProductArgs& a = promotion.a;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float(&all)[4] = reinterpret_cast<float(&)[4]>(finished[4 * tile]);
      if constexpr (kCodes) {
        if (a.whole) {
          int32_t(&sums)[4] = reinterpret_cast<int32_t(&)[4]>(total[4 * tile]);
          add_received(sums, others, tile);
          float one[4]{};
          promotion.add(one, sums, a.parameters + strip * a.record_bytes,
                        a.x_parameters + (x_slab * kTiles + tile) * a.x_part_bytes);
#pragma unroll
          for (int i = 0; i < 4; ++i) all[i] = __fadd_rn(0.0f, one[i]);
        }
      }
      if (!a.whole) {
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
        const int64_t m = (x_slab * kTiles + tile) * kXTileRows + promotion.column + i % 2;
        const int64_t n = strip * kStripRows + promotion.row + i / 2 * 8;
        if (m < a.m && n < a.n) store_result(a, m, n, all[i], a.bias[n]);
      }
    }
  }
  /// Static codes: a tile of x is one tile of sums, or of 16 bits one of high and one of low bytes.
  __device__ __forceinline__ void store_codes(int64_t strip, int64_t x_slab, int others) {
    const ProductArgs& a = promotion.a;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      add_received(reinterpret_cast<int32_t(&)[4]>(total[4 * tile]), others, tile);
    const StaticEpilogue& e = a.static_codes;
    const bool two_planes = kTiles == 2 && e.planes == 2;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int tile = i / 4;
      const int64_t m = (two_planes ? x_slab : x_slab * kTiles + tile) * kXTileRows + promotion.column + i % 2;
      const int64_t n = strip * kStripRows + promotion.row + i % 4 / 2 * 8;
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
  constexpr int kTogether = Fine ? 2 / kTiles : kTurn;  // parts of more blocks would take too many registers
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
  const int64_t x_slab = blockIdx.y;
  const int rank_blocks = a.rank_chunks * a.chunk_blocks;
  const int first_block = min(a.blocks, static_cast<int>(rank) * rank_blocks);
  const int turns = (min(a.blocks, first_block + rank_blocks) - first_block) / kTurn;
  // Divisions take long: only where groups are larger than blocks.
  const auto group_of = [&](int block) {
    return min(a.groups, a.group_blocks == 1 ? block * a.block_groups : block / a.group_blocks);
  };
  const int first_group = group_of(first_block);

  const int x_part_bytes = kTiles * a.x_part_bytes;
  // What a stage has, in turn. What fills up the last blocks belongs to no group.
  struct Stage {
    const uint8_t *w, *parameters, *x, *x_parameters;
    int block, group;
  };
  Stage next{a.w + (strip * a.blocks + first_block) * kBlockBytes,
             a.parameters + (strip * a.groups + first_group) * a.record_bytes,
             a.x + (x_slab * a.blocks + first_block) * kXBlock,
             a.x_parameters +
                 (x_slab * a.x_parts + (Body::kCodes ? first_group : first_block * a.x_block_parts)) * x_part_bytes,
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
    copy(to + a.x_at, stage.x, kTurn * kXBlock);
    if (has_x_parameters) copy(to + a.x_parameters_at, stage.x_parameters, x_parts_of(groups) * x_part_bytes);
  };
  const auto advance = [&](Stage& stage) {
    stage.w += kTurn * kBlockBytes;
    stage.x += kTurn * kXBlock;
    stage.block += kTurn;
    const int groups = group_of(stage.block) - stage.group;
    stage.group += groups;
    stage.parameters += groups * a.record_bytes;
    stage.x_parameters += x_parts_of(groups) * x_part_bytes;
  };
  uint8_t* const stages = shared + a.stages_at;

  // ---- The loading warp, or its threads' share of loading.
#if __CUDA_ARCH__ >= 900
  const uint32_t all_sums = shared_address(shared), full = all_sums + 8;
  const uint32_t released = full + 8 * static_cast<uint32_t>(a.stages);
  const int others = a.whole ? a.cluster - 1 : a.chunks - a.rank_chunks;  // that send, or chunks
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
        barrier_expect(barrier, static_cast<uint32_t>(kTurn * (kBlockBytes + kXBlock) + groups * a.record_bytes +
                                                      has_x_parameters * x_parts_of(groups) * x_part_bytes));
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
  Body body{{a, warp * kTileRows + lane / 4, lane % 4 * 2}, shared, thread, {}, {}, {}, first_group, 0};
  body.group_steps = a.group_blocks == 1 ? 0 : (first_block - first_group * a.group_blocks) * kBlockSteps;
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
      const int at = body.group - stage_group;
      const int x_at = Body::kCodes ? at : i * a.x_block_parts + part;
      body.promote(d, stage + a.parameters_at + at * a.record_bytes, stage + a.x_parameters_at + x_at * x_part_bytes,
                   group_ends);
      if (group_ends) ++body.group;
    };
    // Instructions of different blocks in turn, so that none waits for the one before it.
#pragma unroll 1
    for (int first = 0; first < kTurn; first += kTogether) {
      PackedCodes<Bits> packed[kTogether];
      Sum d[kTogether][Body::kParts][Body::kSums]{};
#pragma unroll
      for (int i = 0; i < kTogether; ++i) packed[i].load(tile_codes + (first + i) * kBlockBytes, lane);
      constexpr int kPlanes = Body::K::kPlanes, kOfPart = Body::K::kInstructions / Body::kParts;
#pragma unroll
      for (int j = 0; j < Body::K::kInstructions; j += kPlanes) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          uint32_t left[4];
          Codec<Bits, Kind>::decode(packed[i], j / kPlanes, left);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            const uint8_t* const x = stage + a.x_at + (first + i) * kXBlock + tile * (kXBlock / kTiles);
            const auto* const right = reinterpret_cast<const uint32_t*>(x) + lane;
#pragma unroll
            for (int plane = j; plane < j + kPlanes; ++plane)
              mma<T>(reinterpret_cast<Sum(&)[4]>(d[i][j / kOfPart][4 * tile]), left, right[64 * plane],
                     right[64 * plane + 32]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
#pragma unroll
        for (int part = 0; part < Body::kParts; ++part) {
          if (body.group >= a.groups) continue;
          body.group_steps += kBlockSteps / Body::kParts;
          const bool ends =
              body.group_steps == a.group_steps || (part + 1 == Body::kParts && block + first + i + 1 == a.blocks);
          if (ends) body.group_steps = 0;
          promote(d[i][part], first + i, part, ends);
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
    if (!a.whole && (chunk_blocks == a.chunk_blocks || turn + 1 == turns)) {
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
    if (a.whole) body.send_sums(static_cast<int>(rank) - 1, body.total, all_sums);
    return;
  }

  // ---- The first block of a cluster adds what the others have sent, in order.
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) barrier_wait(all_sums, 0);
#endif
  if constexpr (Body::kStatic) {
    body.store_codes(strip, x_slab, others);
  } else {
    body.store_floats(strip, x_slab, others);
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_FEW_CUH_
