// SPDX-License-Identifier: Apache-2.0
// One step of many sequences in one launch: gru_step's results from the same arguments. There a block has few weights
// and all rows of x and h pass through each block, which is the limit with many of them; here a block has a tile of
// units and sequences, both streamed through shared memory.
//
// The cut. The columns of W, then those of R, come in pieces of 64, four a round, of which each of two sets of four
// warps multiplies two: a stage. A set fetches its own stages, kStages - 1 of them ahead. In a set two by two warps
// share the tile: a warp has kGroups groups of 8 units, all gates, and kRowTiles times 16 sequences. Of a piece it
// loads its rows of x or h once for all units: 16 codes a lane, as in gru_step. After the last round of W, and of R,
// each set hands the other the sums of half of its rows: lane 4g + q of set s ends with units 2q and 2q + 1 of rows g +
// 8s, all gates of them. Of a round that has no pieces for a set, its weights are zeros: that costs less than a test.
//
// Shared memory, a piece: weights [group][gate][lane], codes [sequence][4 times 16 bytes, or 8 of two-byte codes]. Of
// two-byte codes odd rows have their pairs of 16 bytes exchanged, so that eight lanes meet no bank twice.
#ifndef ISOBIT_GRU_CUDA_STEP_MANY_CUH_
#define ISOBIT_GRU_CUDA_STEP_MANY_CUH_

#include "gru/cuda/step.cuh"

namespace isobit::cuda {

inline constexpr int kStepSets = 2;
inline constexpr int kStepSetThreads = 128;
inline constexpr int kManyStepThreads = kStepSets * kStepSetThreads;
inline constexpr int kManyStepEntries = 3 * 4096;  // larger tables stay in global memory
inline constexpr int kRoundPieces = 2 * kStepSets;
inline constexpr int kSetBarrier = 1;  // named barrier of the first set

/// Of one piece, and of a stage, which is two of them.
constexpr int step_piece_bytes(int groups, int row_tiles, int planes) {
  return 2 * groups * 3 * 512 + 32 * row_tiles * kStepDepth * planes;
}
constexpr int step_stage_bytes(int groups, int row_tiles, int planes) {
  return 2 * step_piece_bytes(groups, row_tiles, planes);
}
constexpr int step_stages(int groups, int row_tiles, int planes) {
  return step_stage_bytes(groups, row_tiles, planes) <= 16384 ? 3 : 2;
}
template <typename Lanes>
constexpr int step_row_bytes(int groups) {
  return 2 * groups * 6 * kStepUnits * static_cast<int>(sizeof(typename Lanes::Row));
}
/// Sums that threads hand each other.
constexpr int step_sum_words(int groups, int row_tiles, int planes) {
  return planes * row_tiles * groups * 3 * 2 * kManyStepThreads;
}
/// Stages, sums, constants of the rows, tables.
template <typename Lanes>
int step_many_shared(StepTile tile, int planes, int32_t table_entries) {
  const auto [groups, row_tiles] = tile;
  return kStepSets * step_stages(groups, row_tiles, planes) * step_stage_bytes(groups, row_tiles, planes) +
         step_sum_words(groups, row_tiles, planes) * 4 + step_row_bytes<Lanes>(groups) +
         (table_entries <= kManyStepEntries ? table_entries * 4 : 0);
}

/// A block. kPlanes: bytes of a code, the larger of x's and h's.
template <typename Lanes, int kPlanes, int kGroups, int kRowTiles>
struct StepManyBlock {
  using Row = typename Lanes::Row;
  static constexpr int kStages = step_stages(kGroups, kRowTiles, kPlanes);
  static constexpr int kStageBytes = step_stage_bytes(kGroups, kRowTiles, kPlanes);
  static constexpr int kPieceBytes = kStageBytes / 2;
  static constexpr int kWeights = 2 * kGroups * 96;  // of 16 bytes, in a piece
  static constexpr int kSequences = 32 * kRowTiles;
  static constexpr int kRowBytes = 6 * kStepUnits * static_cast<int>(sizeof(Row));  // of a group
  static constexpr int kWeightLoads = (kWeights + kStepSetThreads - 1) / kStepSetThreads;
  static constexpr int kCodeLoads = kRowTiles * kPlanes;

  const StepArgs<Lanes>& a;
  uint8_t* const shared;
  int32_t* const handed = reinterpret_cast<int32_t*>(shared + kStepSets * kStages * kStageBytes);
  uint8_t* const row_constants = reinterpret_cast<uint8_t*>(handed + step_sum_words(kGroups, kRowTiles, kPlanes));
  uint8_t* const shared_tables = row_constants + step_row_bytes<Lanes>(kGroups);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const int g = lane / 4;
  const int q = lane % 4;
  const int set = warp / 4;
  const int in_set = thread % kStepSetThreads;
  const int groups = (a.hidden + kStepUnits - 1) / kStepUnits;
  const int first_group = static_cast<int>(blockIdx.x) * 2 * kGroups;
  const int first_sequence = static_cast<int>(blockIdx.y) * kSequences;
  const int x_rounds = (a.sides[0].pieces + kRoundPieces - 1) / kRoundPieces;
  const int rounds = x_rounds + (a.sides[1].pieces + kRoundPieces - 1) / kRoundPieces;
  uint8_t* const stages = shared + set * kStages * kStageBytes;
  const int warp_group = warp % 2 * kGroups;
  const int warp_row = warp / 2 % 2 * kRowTiles * 16;
  // What is fetched next: weights, then codes.
  const uint4* weights_from[kWeightLoads] = {};
  int weights_round = 0, weights_left = 0;  // pieces of the side from the next one of this set on
  const uint8_t* codes_from[kCodeLoads] = {};
  int codes_to[kCodeLoads] = {};  // in a piece, 16 bytes each; < 0: no such sequence
  int codes_round = 0, codes_left = 0;
  int codes_at = 0, piece_bytes = 0, last_at = 0;  // of a row
  int32_t acc[kPlanes][kRowTiles][kGroups][3][4] = {};
  int place = 0;  // of the next stage

  // Each set fetches its pieces itself, a thread the same places of each. What lies past the end of a row is not read:
  // its weights are zero, and all blocks read the same rows, so that few bytes are slow to come if each asks for them
  // several times. Sequences that do not exist are not read, nor are their sums.

  __device__ __forceinline__ void aim_weights(const StepSide& side) {
    weights_left = side.pieces - 2 * set;
#pragma unroll
    for (int j = 0; j < kWeightLoads; ++j) {
      const int i = in_set + j * kStepSetThreads;
      const int group = first_group + i / 96 < groups ? first_group + i / 96 : groups - 1;
      weights_from[j] = side.fragments + (int64_t{group} * side.pieces + 2 * set) * 96 + i % 96;
    }
  }
  __device__ __forceinline__ void fetch_weights(int to_place) {
    if (weights_round < rounds) {
      const unsigned zeros = weights_left > 0 ? 0 : 16;  // no such piece: zeros, not read
#pragma unroll
      for (int j = 0; j < kWeightLoads; ++j) {
        auto* const to = reinterpret_cast<uint4*>(stages + to_place * kStageBytes) + in_set + j * kStepSetThreads;
        if (kWeights % kStepSetThreads == 0 || in_set + j * kStepSetThreads < kWeights) {
          __pipeline_memcpy_async(to, weights_from[j], 16, zeros);
          if (weights_left > 1) __pipeline_memcpy_async(to + kPieceBytes / 16, weights_from[j] + 96, 16);
        }
        weights_from[j] += kRoundPieces * 96;
      }
      weights_left -= kRoundPieces;
    }
    if (++weights_round == x_rounds) aim_weights(a.sides[1]);
  }
  __device__ __forceinline__ void aim_codes(const StepSide& side) {
    codes_left = side.pieces - 2 * set;
    const bool wide = kPlanes == 2 && side.code_bytes == 2;
    const int chunk = in_set % (wide ? 8 : 4);
    piece_bytes = kStepDepth * side.code_bytes;
    codes_at = 2 * set * piece_bytes + 16 * chunk;
    last_at = side.row_bytes - 16;
#pragma unroll
    for (int j = 0; j < kCodeLoads; ++j) {
      const int row = (in_set + j * kStepSetThreads) / (wide ? 8 : 4);
      codes_from[j] = side.codes + (int64_t{first_sequence} + row) * side.sequence_bytes;
      codes_to[j] = row * (wide ? 8 : 4) + (wide ? chunk ^ (row & 1) : chunk);
      if (first_sequence + row >= a.batch || row >= kSequences) codes_to[j] = -1;
    }
  }
  __device__ __forceinline__ void fetch_codes(int to_place) {
    if (codes_left > 0) {
      auto* const to = reinterpret_cast<uint4*>(stages + to_place * kStageBytes) + kWeights;
      const bool exists = codes_at <= last_at, next_exists = codes_at + piece_bytes <= last_at;
#pragma unroll
      for (int j = 0; j < kCodeLoads; ++j)
        if (codes_to[j] >= 0) {
          if (exists) __pipeline_memcpy_async(to + codes_to[j], codes_from[j] + codes_at, 16);
          if (next_exists)
            __pipeline_memcpy_async(to + (kPieceBytes / 16 + codes_to[j]), codes_from[j] + codes_at + piece_bytes, 16);
        }
      codes_at += kRoundPieces * piece_bytes;
      codes_left -= kRoundPieces;
    }
    if (++codes_round == x_rounds) aim_codes(a.sides[1]);
  }
  __device__ __forceinline__ bool shares_tables() const { return a.table_entries <= kManyStepEntries; }

  /// First: constants before the grid before this one has ended, then the first stages.
  __device__ __forceinline__ void begin() {
    aim_weights(a.sides[0]);
    for (int i = 0; i < kStages - 1; ++i) fetch_weights(i);
    let_next_grid_start();
    for (int i = thread * 16; i < 2 * kGroups * kRowBytes; i += kManyStepThreads * 16)
      if (first_group + i / kRowBytes < groups)
        __pipeline_memcpy_async(row_constants + i, a.rows + int64_t{first_group} * kRowBytes + i, 16);
    if (shares_tables())
      for (int i = thread * 4; i < a.table_entries; i += kManyStepThreads * 4)
        __pipeline_memcpy_async(shared_tables + i * 4, a.tables + i, 16);
    wait_for_grid_before();
    aim_codes(a.sides[0]);
    for (int i = 0; i < kStages - 1; ++i) {
      fetch_codes(i);
      __pipeline_commit();
    }
  }

  /// Unsigned codes of a row of a piece, of 64 columns 16 a lane, by planes.
  __device__ __forceinline__ void load_row(const StepSide& side, const uint4* codes, int row,
                                           uint4 (&planes)[kPlanes]) {
    const auto flipped = [&](const uint4& v) {
      return uint4{v.x ^ side.flip, v.y ^ side.flip, v.z ^ side.flip, v.w ^ side.flip};
    };
    if (kPlanes == 2 && side.code_bytes == 2) {
      const uint4 v = codes[row * 8 + ((2 * q) ^ (row & 1))];
      const uint4 w = codes[row * 8 + ((2 * q + 1) ^ (row & 1))];
      planes[0] = {__byte_perm(v.x, v.y, 0x6420), __byte_perm(v.z, v.w, 0x6420), __byte_perm(w.x, w.y, 0x6420),
                   __byte_perm(w.z, w.w, 0x6420)};
      planes[kPlanes - 1] = flipped({__byte_perm(v.x, v.y, 0x7531), __byte_perm(v.z, v.w, 0x7531),
                                     __byte_perm(w.x, w.y, 0x7531), __byte_perm(w.z, w.w, 0x7531)});
    } else {
      planes[0] = flipped(codes[row * 4 + q]);
    }
  }
  __device__ __forceinline__ void multiply(const StepSide& side, int round) {
    __pipeline_wait_prior(kStages - 2);
    // All of the set have this stage, and have multiplied the one before, whose place is free now.
    asm volatile("bar.sync %0, %1;" ::"r"(kSetBarrier + set), "n"(kStepSetThreads) : "memory");
    const int free = place == 0 ? kStages - 1 : place - 1;
    fetch_weights(free);
    fetch_codes(free);
    __pipeline_commit();
    const uint8_t* const stage = stages + place * kStageBytes;
    place = place == kStages - 1 ? 0 : place + 1;
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      if (piece == 1 && kRoundPieces * round + 2 * set + 1 >= side.pieces) break;
      const auto* const weights = reinterpret_cast<const uint4*>(stage + piece * kPieceBytes);
      uint4 rows[kRowTiles][2][kPlanes];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          load_row(side, weights + kWeights, warp_row + 16 * tile + 8 * half + g, rows[tile][half]);
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const uint4 w = weights[((warp_group + group) * 3 + gate) * 32 + lane];
#pragma unroll
          for (int plane = 0; plane < kPlanes; ++plane) {
            if (plane == 1 && side.code_bytes != 2) break;
#pragma unroll
            for (int tile = 0; tile < kRowTiles; ++tile) {
              const uint4& upper = rows[tile][0][plane];
              const uint4& lower = rows[tile][1][plane];
              mma_u8s8(acc[plane][tile][group][gate], {upper.x, lower.x, upper.y, lower.y}, w.x, w.y);
              mma_u8s8(acc[plane][tile][group][gate], {upper.z, lower.z, upper.w, lower.w}, w.z, w.w);
            }
          }
        }
    }
  }

  /// body(sums of a plane, 16 sequences, 8 units, gate; place of two words of them in `handed`)
  template <typename Body>
  __device__ __forceinline__ void for_all_sums(Body body) {
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            body(acc[plane][tile][group][gate],
                 2 * (((plane * kRowTiles + tile) * kGroups + group) * 3 + gate) * kManyStepThreads);
  }
  /// Of each two rows of an mma a set keeps one: its sums become the first two of four.
  __device__ __forceinline__ void add_other_set() {
    __syncthreads();  // the sums before have been read
    for_all_sums([&](int32_t(&sums)[4], int at) {
      int32_t* const to = handed + at + thread;
      to[0] = set == 0 ? sums[2] : sums[0];
      to[kManyStepThreads] = set == 0 ? sums[3] : sums[1];
      sums[0] = set == 0 ? sums[0] : sums[2];
      sums[1] = set == 0 ? sums[1] : sums[3];
    });
    __syncthreads();
    for_all_sums([&](int32_t(&sums)[4], int at) {
      const int32_t* const from = handed + at + (thread ^ kStepSetThreads);
      sums[0] += from[0];
      sums[1] += from[kManyStepThreads];
    });
  }
  __device__ __forceinline__ void sums_of(int32_t (&sums)[kPlanes], int tile, int group, int gate, int unit) const {
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) sums[plane] = acc[plane][tile][group][gate][unit];
  }
  /// Of unit 2q.
  __device__ __forceinline__ const Row* constants(int group) const {
    return reinterpret_cast<const Row*>(row_constants + (warp_group + group) * kRowBytes) + 2 * q;
  }

  using FromX = float[kRowTiles][kGroups][3][2];  // exact: `StepLayer::float_ih`
  __device__ __forceinline__ void take_from_x(FromX& from_x) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            int32_t sums[kPlanes];
            sums_of(sums, tile, group, gate, i);
            from_x[tile][group][gate][i] =
                static_cast<float>(Lanes::from_x(a.gates, gate, constants(group)[gate * kStepUnits + i], sums));
          }
    for_all_sums([](int32_t(&sums)[4], int) { sums[0] = sums[1] = sums[2] = sums[3] = 0; });
  }
  /// Two units of sequence n.
  __device__ __forceinline__ void gates(const FromX& from_x, int tile, int group, int n, int unit) const {
    const StepSide& h = a.sides[1];
    const uint8_t* const tables = shares_tables() ? shared_tables : reinterpret_cast<const uint8_t*>(a.tables);
    typename Lanes::Lane of_x[3][2], of_h[3][2];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int32_t sums[kPlanes];
        sums_of(sums, tile, group, gate, i);
        of_x[gate][i] = from_x[tile][group][gate][i];
        of_h[gate][i] = Lanes::hh(a.gates, constants(group)[(3 + gate) * kStepUnits + i], sums);
      }
    // Rows are padded to 16 bytes, so unit + 1 can be read.
    const uint8_t* const at = h.codes + n * h.sequence_bytes + unit * h.code_bytes;
    uint32_t old[2], fresh[2];
    if (kPlanes == 2 && h.code_bytes == 2) {
      const uint32_t two = __ldcg(reinterpret_cast<const uint32_t*>(at));
      old[0] = (two & 0xffff) ^ a.flip;
      old[1] = (two >> 16) ^ a.flip;
    } else {
      const uint32_t two = __ldcg(reinterpret_cast<const uint16_t*>(at));
      old[0] = (two & 0xff) ^ a.flip;
      old[1] = (two >> 8) ^ a.flip;
    }
    Lanes::cells(a.gates, tables, of_x, of_h, old, fresh);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (unit + i < a.hidden) put_state(a, n, unit + i, fresh[i], old[i]);
  }
  __device__ __forceinline__ void run() {
    for (int round = 0; round < x_rounds; ++round) multiply(a.sides[0], round);
    add_other_set();
    FromX from_x;
    take_from_x(from_x);
    for (int round = 0; round < rounds - x_rounds; ++round) multiply(a.sides[1], round);
    add_other_set();
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const int n = first_sequence + warp_row + 16 * tile + 8 * set + g;
      if (n >= a.batch) continue;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int unit = (first_group + warp_group + group) * kStepUnits + 2 * q;
        if (unit < a.hidden) gates(from_x, tile, group, n, unit);
      }
    }
  }
};

template <typename Lanes, int kPlanes, int kGroups, int kRowTiles>
__global__ void __launch_bounds__(kManyStepThreads) gru_step_many(const __grid_constant__ StepArgs<Lanes> a) {
  extern __shared__ __align__(128) uint8_t shared[];
  StepManyBlock<Lanes, kPlanes, kGroups, kRowTiles> block{a, shared};
  block.begin();
  block.run();
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_STEP_MANY_CUH_
