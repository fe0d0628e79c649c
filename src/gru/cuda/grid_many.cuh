// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence of H = 1025 to 2048 for more than 8 sequences: one team of blocks as in grid_few.cuh, whose
// head has the partition.
//
// gru_grid_many: turns of 16 or 32 sequences, the columns of wgmma, whose weights come from registers and whose
// activations from shared memory; both planes of 16 sequences are columns beside each other. Turn v is the sequences of
// v % turns in step v / turns.
//   1. A fetching warp, which is one thread, waits until the state of the turn is complete, which a counter in global
//      memory says, and copies the block's share of it to all blocks of its cluster (bulk copies with multicast). There
//      are two, each with every other slot: reading a counter and starting copies takes longer than a turn may.
//   2. Two warpgroups wait for these bytes, multiply by half of k each, and leave their sums in shared memory. A warp
//      has the 16 rows of four units: u, n, r and 4 rows of nothing. What is not wgmma was given to others: the tensor
//      cores are idle while these warps do something else.
//   3. Gate warps, two warpgroups, add up the sums, compute the gates and leave new codes in shared memory, where the
//      old ones are, too. A lane has 1 or 2 units of a sequence, whose codes and inputs lie beside each other. The
//      warpgroups share a turn, or are two sets, each with every other turn.
//   4. A publishing warp takes the new codes, stores them in global memory, counts at the turn's counter (release), and
//      writes y. Two of them take turns, so that no one waits for their stores.
// While the gates of a turn are computed, the next one is multiplied, if its state is there. To H = 1536 there are
// registers for more: multiplying warps look whether it is before they hand over the sums of the turn before, and if
// so, its first products come first.
//
// Why what is read is what was written. Codes are stored by the lanes of a publishing warp; __syncwarp and the
// release of its lane 0 make them visible to whoever acquires a count that includes it. The thread that starts the
// copies has itself acquired the complete count, and fence.proxy.async orders its copies behind that. The copies' bytes
// are counted at the receivers' barrier `full`, which the multiplying warps wait for. Sums and new codes are handed
// over by barriers (release, acquire): `sums_there` of the 8 multiplying warps, `codes_there` of the gate warps of a
// set.
//
// Why nothing is written too early. The state of a turn in global memory alternates between two places. State
// s + 1 is written by a block that had state s from all others, which they wrote after they had received all of state
// s - 1. A slot of shared memory is filled again when the 8 warps that read it, in all blocks of the cluster, have
// arrived at `empty` of each of them, with their products done. Sums lie in two places; those of turn v + 2 are written
// after `sums_taken` of v, where each gate warp arrives with the sums in registers. New codes of turn v lie in place
// v % places, where those of turn v + places are written after `codes_taken` of v, and by the threads that have read
// them as old ones, in turn v + turns at the latest. Two sets of gate warps need as many places as turns, an even
// number: then all turns of a place belong to one set and one publishing warp. A publishing warp never waits for a
// phase while the one before is not over: it has published the second turn before its own, the gate warps of that take
// their turns in order, and there is one place more than publishing warps at least, so that gates do not wait for
// these. Nor does a fetching warp, which has filled its slots itself. Nobody waits for a phase that could be over
// twice: the next one of `full` needs `empty` from all who wait for this one, and so `sums_there` needs `sums_taken`,
// and `codes_there` needs `codes_taken`, and the other way round. Phases count from 0: turn v waits for phase v / 2 of
// `sums_there`, v / places of `codes_there`, v / slots of `full`; from turn 2, `places` or `slots` on also for the
// phase before of `sums_taken`, `codes_taken`, `empty`. Counters only grow: the state s is complete at s + 1 times the
// number of blocks of a share. A launch with fewer sequences than others has turns without any: nothing is copied, but
// all of it is counted.
//
// Why nobody waits for ever. All blocks are on the device together: the launch is cooperative. All warps take turns in
// order, and whatever a part of a turn waits for is an earlier part of the same turn or belongs to turns before: its
// state to the turn before of the same sequences, a slot, a place for sums or codes to the turn that had it before. The
// one thing done out of order is that the first products of a turn come before the sums of the one before: only where
// its state is there already, so that nothing is waited for between them. What is not there may need just those sums,
// in a launch of one turn: then they are handed over first. The last sums follow when all turns are multiplied. State 0
// is published by the units' own block, too, so nobody reads the caller's state but those who write it.
#ifndef ISOBIT_GRU_CUDA_GRID_MANY_CUH_
#define ISOBIT_GRU_CUDA_GRID_MANY_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "core/cuda/wgmma.cuh"
#include "gru/cuda/grid_few.cuh"

namespace isobit::cuda {

inline constexpr int kGridManyThreads = 640;   // five warpgroups: two multiply, two have the gates
inline constexpr int kManyPitch = 52;          // words of sums from one sequence to the next: sum_word
inline constexpr int kFetchers = 2;            // warps
inline constexpr int kPublishers = 2;          // warps
inline constexpr int kMaxSlots = 8;            // turns whose state is there
inline constexpr int kMaxManySequences = 256;  // of a launch
inline constexpr int kMaxTurns = kMaxManySequences / 16;
inline constexpr int kCounterWords = 32;  // from one counter to the next: a line each

template <typename Ratio>
struct GridManyArgs : RecurrenceArgs<Ratio> {
  /// R: [block][k tile of 32][4 units by 4][lane][16 bytes], the order of wgmma: bytes 4 r to 4 r + 3 of lane 4 g + q
  /// are columns 16 (r / 2) + 4 q to + 3 of row g + 8 (r % 2); rows 0-3 are u, 4-7 n, 8-11 r of the units, 12-15 zero.
  const uint4* fragments;
  int32_t first_sequence, sequences;  // of this launch
  int32_t turns, cluster, slots;
  uint32_t* counters;  // [turn][block of a cluster][kCounterWords], zero at the start: blocks of that share
  uint8_t* codes;      // [s % 2][turn][plane][8 sequences][block][8][16]
};

/// Of the 16 rows of wgmma for four units.
inline __host__ __device__ int grid_row(int gate, int unit) { return unit % 4 + (gate == 0 ? 0 : gate == 1 ? 8 : 4); }
/// The word of GridManyArgs::fragments with columns k to k + 3, k a multiple of 4.
inline __host__ __device__ int64_t grid_word(int k_tiles, int block, int gate, int unit, int k) {
  const int row = grid_row(gate, unit);
  const int lane = row % 8 * 4 + k % 16 / 4;
  return (((int64_t{block} * k_tiles + k / 32) * 4 + unit / 4) * 32 + lane) * 4 + k % 32 / 16 * 2 + row / 8;
}

/// Offsets in dynamic shared memory. Behind the slots, which wgmma reads as far as k is padded, are 4 KB at least.
struct GridManyShared {
  int32_t sums, codes, rows, tables, barriers, total;
};
/// Barriers: a slot's state is there, is read [slot]; new codes are there, are taken [place]; sums are there, are taken
/// [turn % 2].
inline constexpr uint32_t kEmptyBarriers = 8 * kMaxSlots;
inline constexpr uint32_t kCodesBarriers = 2 * kEmptyBarriers;
inline constexpr uint32_t kTakenBarriers = kCodesBarriers + 8 * kMaxTurns;
inline constexpr uint32_t kSumsBarriers = kTakenBarriers + 8 * kMaxTurns;
inline constexpr uint32_t kSumsTakenBarriers = kSumsBarriers + 8 * 2;
/// Words from a sequence's sums to those of a gate, u, r or n, of a unit. As n comes 4 words further than it had to, no
/// bank is met twice: neither by lanes that write u and n of 4 units and 4 pairs of sequences, nor by lanes that read
/// all units of sequences i and i + 4.
inline __host__ __device__ int sum_word(int gate, int unit) { return gate * 16 + (gate == 2 ? 4 : 0) + unit; }
/// Turns whose new codes are in shared memory: those of a step, as the next one needs them, and one more than publish.
inline __host__ __device__ int32_t many_places(int turns) { return turns > kPublishers ? turns : kPublishers + 1; }
/// Of a row's ratio, and of its start value where gates add it.
template <typename Ratio>
inline constexpr int kRowBytes = sizeof(Ratio) + (kStartsInProduct<Ratio> ? 0 : sizeof(SumOf<Ratio>));
inline __host__ __device__ int32_t many_slot_bytes(int columns, int planes, int blocks) {
  return planes * columns * blocks * kGridUnits;
}
inline __host__ __device__ GridManyShared grid_many_shared(int columns, int planes, int blocks, int slots, int turns,
                                                           int row_bytes, int table_entries) {
  GridManyShared at{};
  at.sums = slots * many_slot_bytes(columns, planes, blocks);
  at.codes = at.sums + 2 * 2 * planes * columns * kManyPitch * 4;
  at.rows = at.codes + many_places(turns) * planes * columns * kGridUnits;
  at.tables = at.rows + 3 * kGridUnits * row_bytes;
  at.barriers = (at.tables + table_entries * 4 + 7) / 8 * 8;
  at.total = at.barriers + static_cast<int32_t>(kSumsTakenBarriers) + 8 * 2;
  return at;
}

/// Of N: 1 or 2 codes, gate inputs or sums of consecutive units, which lie beside each other.
template <int N>
using CodesOfUnits = std::conditional_t<N == 2, uint16_t, uint8_t>;
template <int N>
using InputsOfUnits = std::conditional_t<N == 2, uint32_t, uint16_t>;
template <int N>
using SumsOfUnits = std::conditional_t<N == 2, int2, int1>;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// KT: k tiles of a warpgroup. Columns: sequences of a turn, 16 or 32. Sets: of gate warps, which take turns in turn.
template <int KT, int Columns, int Planes, int Sets, typename Ratio_>
struct GridManyBlock {
  using Ratio = Ratio_;
  using Real = LaneOf<Ratio>;
  static constexpr int kColumns = Columns, kPlanes = Planes, kSets = Sets;
  static constexpr int kTiles = Columns / 8;  // of 8 sequences
  static constexpr int kSetWarps = 8 / Sets;
  static_assert(kPublishers % Sets == 0);             // a publishing warp has turns of one set
  static constexpr int kSums = Planes * Columns / 2;  // of a multiplying thread
  static constexpr int kCodesOfPlane = Columns * kGridUnits;

  const GridManyArgs<Ratio>& a;
  uint8_t* const shared;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int sequences = a.sequences;
  const int turns = a.turns;
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const int tile_bytes = blocks * 128;  // 8 sequences of a plane
  const int slot_bytes = many_slot_bytes(Columns, Planes, blocks);
  const int places = many_places(turns);
  const int share = blocks / cluster;  // each block of a cluster fetches one: the codes of so many beside each other
  const GridManyShared at =
      grid_many_shared(Columns, Planes, blocks, a.slots, turns, kRowBytes<Ratio>, a.table_entries);
  const uint32_t full = shared_address(shared + at.barriers);
  const uint32_t empty = full + kEmptyBarriers;
  uint32_t empty_there = 0;
  const uint32_t codes_there = full + kCodesBarriers;  // new codes of this block
  const uint32_t codes_taken = full + kTakenBarriers;
  const uint32_t sums_there = full + kSumsBarriers;
  const uint32_t sums_taken = full + kSumsTakenBarriers;
  Ratio* const ratios = reinterpret_cast<Ratio*>(shared + at.rows);  // [gate][unit]
  SumOf<Ratio>* const gate_starts = reinterpret_cast<SumOf<Ratio>*>(ratios + 3 * kGridUnits);

  /// Sums of a turn: [turn % 2][half of k][plane][sequence][kManyPitch].
  __device__ __forceinline__ int32_t* sums_of(int turn, int half, int plane) const {
    return reinterpret_cast<int32_t*>(shared + at.sums) +
           ((turn % 2 * 2 + half) * Planes + plane) * (Columns * kManyPitch);
  }
  /// Tiles of turn j that have sequences.
  __device__ __forceinline__ int tiles_of(int j) const {
    const int left = sequences - j * Columns;
    return left >= Columns ? kTiles : left > 0 ? (left + 7) / 8 : 0;
  }
  /// Of turn j's state s, in global memory.
  __device__ __forceinline__ uint8_t* codes_of(int s, int j) const {
    return a.codes + (int64_t{s % 2} * turns + j) * slot_bytes;
  }
  /// This block's codes, of turn v in place v % places: [plane][sequence][16].
  __device__ __forceinline__ uint8_t* codes_in(int place) const {
    return shared + at.codes + place * (Planes * kCodesOfPlane);
  }
  __device__ __forceinline__ uint32_t* counter_of(int j, int of_share) const {
    return a.counters + (j * cluster + of_share) * kCounterWords;
  }
  __device__ __forceinline__ void count(int j) const {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_of(j, block / share)) : "memory");
  }
  /// Whether sequence n had ended before step t of this launch.
  __device__ __forceinline__ bool has_ended(int n, int t) const {
    return n < sequences && t >= length_of(a, a.first_sequence + n);
  }
  /// This warp has read a slot.
  __device__ __forceinline__ void leave(int slot) const {
    __syncwarp();
    if (lane < cluster) barrier_arrive_in(empty_there + 8 * static_cast<uint32_t>(slot));
  }

  __device__ __forceinline__ void begin() {
    const int thread = static_cast<int>(threadIdx.x);
    copy_tables(a, shared + at.tables, kGridManyThreads);
    for (int i = thread; i < 3 * kGridUnits; i += kGridManyThreads) {
      ratios[i] = a.ratio[block * 3 * kGridUnits + i];
      if (!kStartsInProduct<Ratio>) gate_starts[i] = a.start[block * 3 * kGridUnits + i];
    }
    // State 0 of this block's units.
    for (int i = thread; i < (sequences + 7) / 8 * 8 * kGridUnits; i += kGridManyThreads) {
      const int row = i / kGridUnits;
      const int unit = block * kGridUnits + i % kGridUnits;
      const bool exists = row < sequences && unit < a.hidden;
      const uint32_t code =
          exists ? read_code<Planes>(a, a.state + ((int64_t{a.first_sequence} + row) * a.hidden + unit) * Planes) : 0;
      uint8_t* const to =
          codes_of(0, row / Columns) + row % Columns / 8 * tile_bytes + block * 128 + row % 8 * 16 + i % kGridUnits;
      uint8_t* const own =
          codes_in((places - turns + row / Columns) % places) + row % Columns * kGridUnits + i % kGridUnits;
      own[0] = to[0] = static_cast<uint8_t>(code >> 8 * (Planes - 1));
      if (Planes == 2) own[kCodesOfPlane] = to[kTiles * tile_bytes] = static_cast<uint8_t>(code);
    }
    if (thread == 0) {
      for (uint32_t i = 0; i < static_cast<uint32_t>(a.slots); ++i) {
        barrier_init(full + 8 * i, 1);
        barrier_init(empty + 8 * i, 8 * static_cast<uint32_t>(cluster));
      }
      for (uint32_t i = 0; i < static_cast<uint32_t>(places); ++i) {
        barrier_init(codes_there + 8 * i, kSetWarps);
        barrier_init(codes_taken + 8 * i, 1);
      }
      for (uint32_t i = 0; i < 2; ++i) {
        barrier_init(sums_there + 8 * i, 8);
        barrier_init(sums_taken + 8 * i, kSetWarps);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    for (int j = thread; j < turns; j += kGridManyThreads) count(j);
    cluster_sync();
    empty_there = address_in(empty, static_cast<uint32_t>(lane < cluster ? lane : 0));
  }

  /// A fetching warp's thread. Every turn of every block passes through one of them.
  __device__ __forceinline__ void fetch_turns() const {
    const auto everyone = static_cast<uint16_t>((1u << cluster) - 1);
    const auto piece_bytes = static_cast<uint32_t>(share * 128);
    const uint32_t first_to = shared_address(shared) + static_cast<uint32_t>(rank) * piece_bytes;
    const uint8_t* const first_from = a.codes + static_cast<uint32_t>(rank) * piece_bytes;
    const uint32_t* const first_counter = counter_of(0, rank);
    int slot = 0;
    uint32_t phase = 1;
    bool filled = false;  // every slot has been, so that it has to be read first
    int turn = 0;
    const auto fetch_turn = [&](int s, int j) {
      const uint32_t barrier = full + 8 * static_cast<uint32_t>(slot);
      if (filled) barrier_wait(barrier + kEmptyBarriers, phase);
      delay(a.delays, turn, kDelayRead);
      const int tiles = tiles_of(j);
      barrier_expect(barrier, static_cast<uint32_t>(Planes * tiles * tile_bytes));
      const auto complete = static_cast<uint32_t>(share) * static_cast<uint32_t>(s + 1);
      const uint32_t* const counter = first_counter + j * cluster * kCounterWords;
      uint32_t counted = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(counted) : "l"(counter) : "memory");
      } while (counted < complete);
      asm volatile("fence.proxy.async.global;" ::: "memory");
      const uint32_t to = first_to + static_cast<uint32_t>(slot * slot_bytes);
      const uint8_t* const from = first_from + int64_t{s % 2 * turns + j} * slot_bytes;
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const int offset = (plane * kTiles + tile) * tile_bytes;
          if (tile < tiles)
            fetch_for_cluster(to + static_cast<uint32_t>(offset), from + offset, piece_bytes, barrier, everyone);
        }
    };
    for (int s = 0; s < a.steps; ++s)
      for (int j = 0; j < turns; ++j, ++turn) {
        if (slot % kFetchers == warp - 16) fetch_turn(s, j);
        if (++slot == a.slots) {
          slot = 0;
          phase ^= 1;
          filled = true;
        }
      }
  }
};

/// A warp that multiplies. Overlaps: whether the first products of a turn come before the sums of the one before, where
/// there are registers for both.
template <int KT, bool Overlaps, typename Block>
struct GridManyProducts {
  using Ratio = typename Block::Ratio;
  static constexpr int kSums = Block::kSums, kPlanes = Block::kPlanes, kColumns = Block::kColumns;

  const Block& b;
  const int half = b.warp / 4;  // of k
  // Where the lane's sums of row lane / 4 go, u or n; those of row 8 + lane / 4 are r, or nothing.
  int32_t* const to = b.sums_of(0, half, 0) + b.lane % 4 * 2 * kManyPitch +
                      sum_word(b.lane < 16 ? 0 : 2, b.warp % 4 * 4 + b.lane / 4 % 4);
  int32_t start[2]{};  // of those rows; of one half, and none in double lanes
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ explicit GridManyProducts(const Block& block) : b(block) {
    if (kStartsInProduct<Ratio> && half == 0) {
      const SumOf<Ratio>* const starts = b.a.start + b.block * 3 * kGridUnits + b.warp % 4 * 4 + b.lane / 4 % 4;
      start[0] = static_cast<int32_t>(starts[(b.lane < 16 ? 0 : 2) * kGridUnits]);
      start[1] = static_cast<int32_t>(starts[kGridUnits]);
    }
  }
  /// Until where the sums of a turn go may be written.
  __device__ __forceinline__ void wait_for_gates(int turn) const {
    if (turn >= 2)
      barrier_wait(b.sums_taken + 8 * static_cast<uint32_t>(turn % 2), static_cast<uint32_t>(turn / 2 - 1) % 2);
  }
  /// The sums of a turn, which are complete, to the gate warps.
  __device__ __forceinline__ void hand_over(int turn, const int32_t (&sums)[kSums]) const {
    delay(b.a.delays, turn, kDelaySums);
    // Of a plane, sums[4 tile + 2 r + column % 2] is row lane / 4 + 8 r of column 8 tile + 2 (lane % 4) + column % 2.
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        const int32_t* const sum = sums + plane * (kColumns / 2) + i;
        const int word = (turn % 2 * 2 * kPlanes + plane) * (kColumns * kManyPitch) + (i / 4 * 8 + i % 2) * kManyPitch;
        if (i % 4 < 2) {
          to[word] = plane == kPlanes - 1 ? wrapping_add(*sum, start[0]) : *sum;
        } else if (b.lane < 16) {
          to[word + sum_word(1, 0)] = plane == kPlanes - 1 ? wrapping_add(*sum, start[1]) : *sum;
        }
      }
    __syncwarp();
    if (b.lane == 0) barrier_arrive(b.sums_there + 8 * static_cast<uint32_t>(turn % 2));
  }
  __device__ __forceinline__ void run() {
    uint4 weights[KT];
#pragma unroll
    for (int kt = 0; kt < KT; ++kt)
      weights[kt] = b.a.fragments[((int64_t{b.block} * 2 * KT + half * KT + kt) * 4 + b.warp % 4) * 32 + b.lane];
    const uint64_t matrix =
        core_matrices(shared_address(b.shared) + static_cast<uint32_t>(half * KT * 256), b.tile_bytes);
    const int total = b.a.steps * b.turns;
    int last_slot = 0;
    int32_t acc[kSums]{};
    const auto finish = [&](int turn) {
      wgmma_wait<0>();
      keep_in_registers(acc);
      b.leave(last_slot);
      wait_for_gates(turn);
      hand_over(turn, acc);
    };
    for (int turn = 0; turn < total; ++turn) {
      const uint32_t barrier = b.full + 8 * static_cast<uint32_t>(slot);
      [[maybe_unused]] bool is_there = false;
      [[maybe_unused]] int32_t last[kSums];
      if constexpr (Overlaps) {
        wgmma_wait<0>();
        keep_in_registers(acc);
        if (turn > 0) b.leave(last_slot);
        wait_for_gates(turn - 1);  // the next state may come meanwhile
        is_there = __all_sync(0xffffffffu, barrier_is_complete(barrier, phase)) != 0;
#pragma unroll
        for (int i = 0; i < kSums; ++i) last[i] = acc[i];
        keep_in_registers(last);
        // The sums of the turn before go first if the state is not there, as it may need just those; else behind the
        // first products, so that the tensor cores have something to do meanwhile. wgmma depends on no condition.
        if (!is_there && turn > 0) hand_over(turn - 1, last);
      }
      barrier_wait(barrier, phase);
      delay(b.a.delays, turn, kDelayRead);
      __syncwarp();
      keep_in_registers(acc);
      wgmma_fence();
      const uint64_t codes = matrix + static_cast<uint32_t>(slot * b.slot_bytes >> 4);
      // Both planes are columns of one product: of 16 columns it takes as long as of 32.
      const auto product = [&](int kt) {
        wgmma_s8u8(acc, weights[kt], codes + static_cast<uint32_t>(kt * 16), kt > 0);
      };
      constexpr int kFirst = Overlaps ? 8 : 0;  // products of 17 cycles, and as many of the other warpgroup
      if constexpr (Overlaps) {
#pragma unroll
        for (int kt = 0; kt < kFirst; ++kt) product(kt);
        wgmma_commit();
        if (is_there && turn > 0) hand_over(turn - 1, last);
        __syncwarp();
        wgmma_fence();
      }
#pragma unroll
      for (int kt = kFirst; kt < KT; ++kt) product(kt);
      wgmma_commit();
      last_slot = slot;
      if (++slot == b.a.slots) {
        slot = 0;
        phase ^= 1;
      }
      if constexpr (!Overlaps) finish(turn);
    }
    if constexpr (Overlaps) finish(total - 1);
  }
};

/// A gate warp.
template <typename Block>
struct GridManyGates {
  using Ratio = typename Block::Ratio;
  using Real = LaneOf<Ratio>;
  static constexpr int kPlanes = Block::kPlanes, kSets = Block::kSets, kColumns = Block::kColumns;
  static constexpr int kCells = kSets * kColumns / 16;  // units beside each other of a sequence
  static constexpr int kLanes = kGridUnits / kCells;    // of a sequence
  using Codes = CodesOfUnits<kCells>;

  const Block& b;
  const GridManyArgs<Ratio>& a = b.a;
  const int set = (b.warp - 8) / Block::kSetWarps;
  // Sequences i and i + 4 beside each other: sum_word.
  const int pair = (b.warp - 8) % Block::kSetWarps * kCells + b.lane / (2 * kLanes);
  const int column = pair / 4 * 8 + pair % 4 + b.lane / kLanes % 2 * 4;
  const int unit = b.lane % kLanes * kCells;
  const int own_code = column * kGridUnits + unit;
  const bool extras = a.lengths != nullptr || a.mask != nullptr;
  // ih of the next turn.
  const int64_t ih_turn = int64_t{kColumns} * b.blocks * 48;
  const int64_t ih_step = (a.reverse ? -1 : 1) * int64_t{a.batch} * b.blocks * 48 - b.turns * ih_turn;
  const uint16_t* ih_at =
      a.ih + ((int64_t{time_of(a, 0)} * a.batch + a.first_sequence + column) * b.blocks + b.block) * 48 + unit;
  int ih_sequence = column;
  uint32_t next_ih[3]{};

  __device__ __forceinline__ void one_turn_on() {
    ih_at += ih_turn;
    if ((ih_sequence += kColumns) >= b.turns * kColumns) {
      ih_sequence = column;
      ih_at += ih_step;
    }
  }
  __device__ __forceinline__ void load_ih() {
    if (ih_sequence < b.sequences)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
        next_ih[gate] = *reinterpret_cast<const InputsOfUnits<kCells>*>(ih_at + gate * 16);
#pragma unroll
    for (int i = 0; i < kSets; ++i) one_turn_on();
  }
  /// A bit for each cell that keeps its state.
  __device__ __forceinline__ uint32_t kept_cells(int s, int j) const {
    uint32_t keeps = 0;
    const int t = time_of(a, s);
    const int n = j * kColumns + column;
#pragma unroll
    for (int i = 0; i < kCells; ++i)
      if (b.has_ended(n, t) ||
          (n < b.sequences && is_masked(a, t, int64_t{a.first_sequence} + n, b.block * kGridUnits + unit + i)))
        keeps |= 1u << i;
    return keeps;
  }
  __device__ __forceinline__ void load_sums(uint32_t turn, const uint32_t (&ih)[3], Real (&from_x)[3][kCells],
                                            Real (&hh)[3][kCells]) const {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      int32_t sum[kCells][kPlanes];
      SumOf<Ratio> complete[kCells];
      Ratio by[kCells];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        const auto part = [&](int half) {
          return *reinterpret_cast<const SumsOfUnits<kCells>*>(b.sums_of(static_cast<int>(turn % 2), half, plane) +
                                                               column * kManyPitch + sum_word(gate, unit));
        };
        const auto first = part(0), second = part(1);
        sum[0][plane] = wrapping_add(first.x, second.x);
        if constexpr (kCells == 2) sum[1][plane] = wrapping_add(first.y, second.y);
      }
#pragma unroll
      for (int i = 0; i < kCells; ++i) {
        from_x[gate][i] = from_biased<Real>(ih[gate] >> i * 16 & 0xffff);
        const int row = gate * kGridUnits + unit + i;
        complete[i] = complete_sum<Ratio>(sum[i], kStartsInProduct<Ratio> ? 0 : b.gate_starts[row]);
        by[i] = b.ratios[row];
      }
      rescale_hh(a.gates, complete, by, hh[gate]);
    }
    __syncwarp();
    if (b.lane == 0) barrier_arrive(b.sums_taken + 8 * (turn % 2));
  }
  /// The new codes of a turn, to a place whose codes have been published; old: codes before.
  __device__ __forceinline__ void one_turn(uint32_t turn, const uint32_t (&ih)[3], uint32_t keeps,
                                           const uint32_t (&old)[kPlanes], uint8_t* to) const {
    Real from_x[3][kCells], hh[3][kCells], h[kCells];
    load_sums(turn, ih, from_x, hh);
    const auto old_code = [&](int i) {
      return kPlanes == 2 ? (old[0] >> 8 * i & 0xff) << 8 | (old[kPlanes - 1] >> 8 * i & 0xff) : old[0] >> 8 * i & 0xff;
    };
    uint32_t fresh[kCells];
#pragma unroll
    for (int i = 0; i < kCells; ++i) h[i] = from_code<Real>(old_code(i), a.gates.h_from_code);
    gru_gates(a.gates, shared_tables(a.gates, b.shared + b.at.tables), from_x, hh, h, fresh);
    uint32_t codes[kPlanes]{};
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      const uint32_t code = (keeps >> i & 1) != 0 ? old_code(i) : fresh[i];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) codes[plane] |= (code >> 8 * (kPlanes - 1 - plane) & 0xff) << 8 * i;
    }
    delay(a.delays, static_cast<int>(turn), kDelayGates);
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
      *reinterpret_cast<Codes*>(to + own_code + plane * Block::kCodesOfPlane) = static_cast<Codes>(codes[plane]);
  }
  __device__ __forceinline__ void run() {
    for (int i = 0; i < set; ++i) one_turn_on();
    const auto total = static_cast<uint32_t>(a.steps * b.turns);
    if (static_cast<uint32_t>(set) < total) load_ih();
    int s = set / b.turns, j = set % b.turns, place = set, old_place = (b.places - b.turns + set) % b.places;
    uint32_t place_phase = 1;
    for (uint32_t turn = static_cast<uint32_t>(set); turn < total; turn += kSets) {
      const uint32_t ih[3] = {next_ih[0], next_ih[1], next_ih[2]};
      if (turn + kSets < total) load_ih();
      const uint32_t keeps = extras ? kept_cells(s, j) : 0;
      uint32_t old[kPlanes];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        old[plane] = *reinterpret_cast<const Codes*>(b.codes_in(old_place) + own_code + plane * Block::kCodesOfPlane);
      if (turn >= static_cast<uint32_t>(b.places))
        barrier_wait(b.codes_taken + 8 * static_cast<uint32_t>(place), place_phase);
      barrier_wait(b.sums_there + 8 * (turn % 2), turn / 2 % 2);
      delay(a.delays, static_cast<int>(turn), kDelaySums);
      one_turn(turn, ih, keeps, old, b.codes_in(place));
      __syncwarp();
      if (b.lane == 0) barrier_arrive(b.codes_there + 8 * static_cast<uint32_t>(place));
      if ((old_place += kSets) >= b.places) old_place -= b.places;
      if ((place += kSets) >= b.places) {
        place -= b.places;
        place_phase ^= 1;
      }
      for (j += kSets; j >= b.turns; j -= b.turns) ++s;
    }
  }
};

/// A publishing warp. A lane has the units of a sequence. Floats: of y.
template <typename Block, bool Floats>
struct GridManyPublisher {
  static constexpr int kPlanes = Block::kPlanes, kColumns = Block::kColumns, kCodesOfPlane = Block::kCodesOfPlane;

  const Block& b;
  const GridManyArgs<typename Block::Ratio>& a = b.a;
  const int row = b.lane % kColumns;
  const int units = min(a.hidden - b.block * kGridUnits, kGridUnits);  // of the block that exist
  const uint8_t* from = nullptr;
  uint4 codes[kPlanes] = {};

  __device__ __forceinline__ void write(uint8_t* to, bool ended) const {
    if (!ended && units == kGridUnits && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      const uint4 high{codes[0].x ^ a.flip, codes[0].y ^ a.flip, codes[0].z ^ a.flip, codes[0].w ^ a.flip};
      if constexpr (kPlanes == 1) {
        *reinterpret_cast<uint4*>(to) = high;
      } else {
        const uint4 low = codes[kPlanes - 1];
        auto* const pairs = reinterpret_cast<uint4*>(to);
        pairs[0] = uint4{__byte_perm(low.x, high.x, 0x5140), __byte_perm(low.x, high.x, 0x7362),
                         __byte_perm(low.y, high.y, 0x5140), __byte_perm(low.y, high.y, 0x7362)};
        pairs[1] = uint4{__byte_perm(low.z, high.z, 0x5140), __byte_perm(low.z, high.z, 0x7362),
                         __byte_perm(low.w, high.w, 0x5140), __byte_perm(low.w, high.w, 0x7362)};
      }
      return;
    }
    for (int i = 0; i < units; ++i) {
      const uint32_t code = kPlanes == 2 ? uint32_t{from[i]} << 8 | from[kCodesOfPlane + i] : uint32_t{from[i]};
      write_code<kPlanes>(a, to + i * kPlanes, ended ? a.gates.h_to_unsigned : code);
    }
  }
  __device__ __forceinline__ void write_floats(uint8_t* to, bool ended) const {
    const bool whole = units == kGridUnits && reinterpret_cast<uintptr_t>(to) % 16 == 0;
#pragma unroll 1
    for (int i = 0; i < units; i += 4) {
      uint32_t four[kPlanes];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        four[plane] = *reinterpret_cast<const uint32_t*>(from + plane * kCodesOfPlane + i);
      float values[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t code = four[0] >> 8 * k & 0xff;
        if (kPlanes == 2) code = code << 8 | (four[kPlanes - 1] >> 8 * k & 0xff);
        values[k] = y_of<kPlanes>(a, ended ? a.gates.h_to_unsigned : code);
      }
      auto* const floats = reinterpret_cast<float*>(to) + i;
      if (whole) {
        *reinterpret_cast<float4*>(floats) = float4{values[0], values[1], values[2], values[3]};
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (i + k < units) floats[k] = values[k];
      }
    }
  }
  /// To the other blocks.
  __device__ __forceinline__ void publish_codes(int s, int j) const {
    if (b.lane < kColumns && row / 8 < b.tiles_of(j)) {
      uint8_t* const to = b.codes_of(s + 1, j) + row / 8 * b.tile_bytes + b.block * 128 + row % 8 * 16;
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        *reinterpret_cast<uint4*>(to + plane * Block::kTiles * b.tile_bytes) = codes[plane];
    }
    __syncwarp();
    if (b.lane == 0) b.count(j);
  }
  __device__ __forceinline__ void run() {
    int place = b.warp - 16 - kFetchers, place_phase = 0;
    for (int s = 0, j = place;; j += kPublishers, place += kPublishers) {
      for (; j >= b.turns; j -= b.turns) ++s;
      if (s >= a.steps) break;
      if (place >= b.places) {
        place -= b.places;
        place_phase ^= 1;
      }
      barrier_wait(b.codes_there + 8 * static_cast<uint32_t>(place), static_cast<uint32_t>(place_phase));
      delay(a.delays, s * b.turns + j, kDelayWrite);
      from = b.codes_in(place) + row * kGridUnits;
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        codes[plane] = *reinterpret_cast<const uint4*>(from + plane * kCodesOfPlane);
      if (s + 1 < a.steps) publish_codes(s, j);
      if (const int n = j * kColumns + row; b.lane < kColumns && n < b.sequences) {
        const int t = time_of(a, s);
        const int64_t sequence = int64_t{a.first_sequence} + n;
        uint8_t* const y = a.y + t * a.y_step + sequence * a.y_sequence + int64_t{b.block} * kGridUnits * a.y_unit;
        Floats ? write_floats(y, b.has_ended(n, t)) : write(y, b.has_ended(n, t));
        if (s + 1 == a.steps)
          write(a.next_state + (sequence * a.hidden + int64_t{b.block} * kGridUnits) * kPlanes, false);
      }
      __syncwarp();
      if (b.lane == 0) barrier_arrive(b.codes_taken + 8 * static_cast<uint32_t>(place));
    }
  }
};
#endif

/// KT, Columns, Planes, Sets: of GridManyBlock.
template <int KT, int Columns, int Planes, int Sets, typename Ratio>
__global__ void __launch_bounds__(kGridManyThreads, 1) gru_grid_many(const __grid_constant__ GridManyArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kOverlaps = KT <= 24;
  // Registers of a thread: 4 KT weights, 16 or 32 sums, and the rest. Those of the five warpgroups are 480.
  constexpr int kStart = 96;
  constexpr int kMultiplying = 4 * KT + (kOverlaps ? 56 : 48);
  constexpr int kPublishing = 32;
  constexpr int kGates = (480 - 2 * kMultiplying - kPublishing) / 16 * 8;
  extern __shared__ __align__(128) uint8_t shared[];
  using Block = GridManyBlock<KT, Columns, Planes, Sets, Ratio>;
  Block block{a, shared};
  block.begin();
  if (block.warp < 8) {
    trade_registers<kMultiplying, kStart>();
    GridManyProducts<KT, kOverlaps, Block>(block).run();
  } else if (block.warp < 16) {
    trade_registers<kGates, kStart>();
    GridManyGates<Block>{block}.run();
  } else {
    trade_registers<kPublishing, kStart>();
    if (block.warp < 16 + kFetchers) {
      if (is_elected()) block.fetch_turns();
      __syncwarp();
    } else if (a.y_scale == 0) {
      GridManyPublisher<Block, false>{block}.run();
    } else {
      GridManyPublisher<Block, true>{block}.run();
    }
  }
  // Nobody leaves while blocks of its cluster may still send to it.
  __syncwarp();
  cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRID_MANY_CUH_
