// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence of layers whose R needs most of the device, H = 1025 to 2048: all blocks of a launch are
// one team. With many sequences also that of H = 769 to 1024, where there are two teams, which share the sequences and
// nothing else. Block b of a team has hidden units 16 b to 16 b + 15, their rows of gate u, r and n, in registers for
// all steps. The state crosses through the second-level cache. There are two kernels, for what limits few sequences is
// the time until a code written by one block is read by all others, and what limits many is the number of bytes.
//
// gru_grid_few: up to 8 sequences, the columns of mma.m16n8k32. The columns of R (k) are split over 8 warps.
//   1. Each polls the part of the state that it multiplies by, in words of 64 bits, four codes and the number of the
//      state, which is read as it was written: whoever finds the number has the codes, and no fence is needed. Lanes
//      poll two words each, all of a warp beside each other; the codes reach the lanes whose operands they are through
//      shared memory of the warp, as one load of 512 bytes comes sooner than four of 128.
//   2. They leave sums in shared memory, those of all warps for a unit beside each other, and arrive at a barrier.
//   3. A gate warp for two sequences, one cell a lane, adds them up, computes the gates and writes the new words, four
//      copies of each, as whoever polls the same word has to wait for the others.
// Words of state s are those of state s - 2 overwritten. Whoever writes them has seen all words of state s - 1, as its
// sums need them, and every block had read all words of s - 2 before it wrote any of s - 1. Sums of step s are where
// those of s - 2 were: a warp that writes them has words of state s from another block, or its own, which needed state
// s - 1 of this block from each of its gate warps, after they had read the sums of s - 2. So nobody arrives at the
// barrier of step s, which is that of s - 2, before all have left that.
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
// Why what is read is what was written (many). Codes are stored by the lanes of a publishing warp; __syncwarp and the
// release of its lane 0 make them visible to whoever acquires a count that includes it. The thread that starts the
// copies has itself acquired the complete count, and fence.proxy.async orders its copies behind that. The copies' bytes
// are counted at the receivers' barrier `full`, which the multiplying warps wait for. Sums and new codes are handed
// over by barriers (release, acquire): `sums_there` of the 8 multiplying warps, `codes_there` of the gate warps of a
// set.
//
// Why nothing is written too early (many). The state of a turn in global memory alternates between two places. State
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
// number of blocks of a share. A team with fewer sequences than others has turns without any: nothing is copied, but
// all of it is counted.
//
// Why nobody waits for ever. All blocks are on the device together: the launch is cooperative. All warps take turns in
// order, and whatever a part of a turn waits for is an earlier part of the same turn or belongs to turns before: its
// state to the turn before of the same sequences, a slot, a place for sums or codes to the turn that had it before. The
// one thing done out of order is that the first products of a turn come before the sums of the one before: only where
// its state is there already, so that nothing is waited for between them. What is not there may need just those sums,
// in a launch of one turn: then they are handed over first. The last sums follow when all turns are multiplied. State 0
// is published by the units' own block, too, so nobody reads the caller's state but those who write it.
#ifndef ISOBIT_GRU_CUDA_GRID_CUH_
#define ISOBIT_GRU_CUDA_GRID_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "core/cuda/wgmma.cuh"
#include "gru/cuda/grid.h"
#include "gru/cuda/recurrence.cuh"
#include "product/cuda/mma.cuh"

namespace isobit::cuda {

inline constexpr int kGridUnits = 16;     // of a block
inline constexpr int kFewThreads = 384;   // three warpgroups: two multiply
inline constexpr int kManyThreads = 640;  // five: two multiply, two have the gates
inline constexpr int kFewSequences = 8;   // the columns of an mma
inline constexpr int kFewCopies = 4;      // of every word: of 128 blocks that poll one, 32 poll the same copy
inline constexpr int kFewWarps = 8;       // that multiply
inline constexpr int kFewSumPitch = 12;   // words from one unit's sums, of 8 warps, to the next: no bank is met twice
inline constexpr int kFewSums = kFewSequences * kGridUnits * kFewSumPitch;  // words of a gate and plane
inline constexpr int kFewSumsThere = 1;        // and the next: the named barriers of a step's parity
inline constexpr int kManyPitch = 52;          // words of sums from one sequence to the next: sum_word
inline constexpr int kFetchers = 2;            // warps
inline constexpr int kPublishers = 2;          // warps
inline constexpr int kMaxSlots = 8;            // turns whose state is there
inline constexpr int kMaxManySequences = 256;  // of a team in a launch
inline constexpr int kMaxTurns = kMaxManySequences / 16;
inline constexpr int kCounterWords = 32;  // from one counter to the next: a line each

template <typename Ratio>
struct GridArgs : RecurrenceArgs<Ratio> {
  /// R. few: PersistentLayer::fragments, 8 KT k tiles. many: [block][k tile of 32][4 units by 4][lane][16 bytes], the
  /// order of wgmma: bytes 4 r to 4 r + 3 of lane 4 g + q are columns 16 (r / 2) + 4 q to + 3 of row g + 8 (r % 2);
  /// rows 0-3 are u, 4-7 n, 8-11 r of the units, 12-15 zero.
  const uint4* fragments;
  int32_t first_sequence, sequences;  // of this launch
  /// few: [s % 2][copy][plane][block][few_columns][4] words of four codes and s + 1, zero at the start.
  uint2* words;
  /// many: [team][s % 2][turn][plane][8 sequences][block][8][16] codes.
  uint8_t* codes;
  uint32_t* counters;  // many: [team][turn][block of a cluster][kCounterWords], zero at the start: blocks of that share
  int32_t blocks, team_sequences, turns, cluster, slots;  // many: of a team
};

/// Of the 16 rows of wgmma for four units.
inline __host__ __device__ int grid_row(int gate, int unit) { return unit % 4 + (gate == 0 ? 0 : gate == 1 ? 8 : 4); }
/// The word of many's GridArgs::fragments with columns k to k + 3, k a multiple of 4.
inline __host__ __device__ int64_t grid_word(int k_tiles, int block, int gate, int unit, int k) {
  const int row = grid_row(gate, unit);
  const int lane = row % 8 * 4 + k % 16 / 4;
  return (((int64_t{block} * k_tiles + k / 32) * 4 + unit / 4) * 32 + lane) * 4 + k % 32 / 16 * 2 + row / 8;
}

/// The state of a cell, minus zero point.
template <int Planes, typename Real>
__device__ __forceinline__ Real lane_of_code(const GateLanes<Real>& c, uint32_t high, uint32_t low) {
  return from_code<Real>(Planes == 2 ? high << 8 | low : high, c.h_from_code);
}

// ---- Few sequences

/// Columns for so many sequences, in words and in shared memory: a power of 2, so that a lane's polls are all of the
/// same sequence.
inline __host__ __device__ int few_columns(int sequences) {
  return sequences <= 2 ? sequences : sequences <= 4 ? 4 : 8;
}

/// Offsets in dynamic shared memory.
struct FewShared {
  int32_t sums, received, tables, total;
};
/// Of a block's units in received codes: words from one block to the next. 8 lanes of mma's operand, which read codes
/// of 4 blocks and 2 sequences, meet no bank twice.
inline __host__ __device__ constexpr int received_pitch(int columns) { return columns * 4 | 8; }
inline constexpr int kReceivedBytes = 2 * 16 * received_pitch(4) * 4;  // of a warp: two planes of 4 sequences
static_assert(16 * received_pitch(kFewSequences) * 4 <= kReceivedBytes);
inline __host__ __device__ FewShared few_shared(int planes, int table_entries) {
  FewShared at{};
  at.received = at.sums + 2 * planes * 3 * kFewSums * 4;
  at.tables = at.received + kFewWarps * kReceivedBytes;
  at.total = at.tables + table_entries * 4;
  return at;
}

/// KT: k tiles of a warp. Planes: bytes of a code of h.
template <int KT, int Planes, typename Ratio>
__global__ void __launch_bounds__(kFewThreads, 1) gru_grid_few(const __grid_constant__ GridArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(KT % 2 == 0);
  constexpr int kPairs = KT / 2;  // of k tiles: 64 columns, four blocks' units
  extern __shared__ __align__(128) uint8_t shared[];
  const FewShared at = few_shared(Planes, a.table_entries);
  using Real = LaneOf<Ratio>;
  const GateLanes<Real>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int columns = a.sequences;
  // Warps that have units to multiply by: one without would not wait for anybody.
  const int multiplying = (blocks + 2 * KT - 1) / (2 * KT);
  const int waiting = 32 * (multiplying + (columns + 1) / 2);  // threads at the barrier of a step's sums
  const auto sums_of_step = [&](int s) {
    return reinterpret_cast<int32_t*>(shared + at.sums) + s % 2 * Planes * 3 * kFewSums;
  };
  const int plane_words = blocks * few_columns(columns) * 4;
  const int copy_words = Planes * plane_words;
  const int state_words = kFewCopies * copy_words;
  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += kFewThreads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  // Sums of warps that do not multiply stay zero.
  for (int i = static_cast<int>(threadIdx.x); i < 2 * Planes * 3 * kFewSums; i += kFewThreads) sums_of_step(0)[i] = 0;
  __syncthreads();

  if (warp < kFewWarps) {
    // ---- The warps that multiply.
    trade_registers<216>();
    if (warp >= multiplying) return;
    const int g = lane / 4;
    const int q = lane % 4;
    auto* const received = reinterpret_cast<uint32_t*>(shared + at.received + warp * kReceivedBytes);
    // columns_of: few_columns(columns), as a constant.
    const auto multiply = [&](auto columns_of) {
      constexpr int kColumns = decltype(columns_of)::value;
      constexpr bool kOnePass = Planes == 1 || kColumns <= 4;  // both planes are columns of one product
      constexpr int kPassPlanes = kOnePass ? Planes : 1;
      constexpr int kPieces = 4 * KT * kColumns;  // of 16 bytes, two words, of a plane
      constexpr int kPlanePolls = (kPieces + 31) / 32;
      constexpr int kPolls = kPassPlanes * kPlanePolls;
      constexpr int kPitch = received_pitch(kColumns);
      uint4 weights[3][KT];
      {
        const uint4* const from = a.fragments + (int64_t{block} * kFewWarps + warp) * KT * 96 + lane;
#pragma unroll
        for (int kt = 0; kt < KT; ++kt)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) weights[gate][kt] = load_weights(from + (kt * 3 + gate) * 32);
      }
      uint32_t all = 0;  // polls of this lane
#pragma unroll
      for (int i = 0; i < kPolls; ++i) {
        const int piece = lane + i % kPlanePolls * 32;
        if (piece < kPieces && warp * 2 * KT + piece / (2 * kColumns) < blocks && piece / 2 % kColumns < columns)
          all |= 1u << i;
      }
      const uint2* const words = a.words + block % kFewCopies * copy_words + warp * 2 * KT * kColumns * 4 + 2 * lane;
      for (int s = 0; s < a.steps; ++s) {
        delay(a.delays, s, kDelayRead);
        for (int pass = 0; pass < Planes / kPassPlanes; ++pass) {
          const uint2* const from = words + s % 2 * state_words + pass * plane_words;
          uint32_t missing = all;  // all at once: one after the other takes as many round trips
          while (__any_sync(0xffffffffu, missing != 0)) {
            ulonglong2 two[kPolls];
#pragma unroll
            for (int i = 0; i < kPolls; ++i)
              if (missing >> i & 1) poll(from + i / kPlanePolls * plane_words + i % kPlanePolls * 64, two[i]);
#pragma unroll
            for (int i = 0; i < kPolls; ++i) {
              const auto is_there = [s](unsigned long long x) { return static_cast<int32_t>(x >> 32) == s + 1; };
              if ((missing >> i & 1) == 0 || !is_there(two[i].x) || !is_there(two[i].y)) continue;
              missing &= ~(1u << i);
              const int piece = lane + i % kPlanePolls * 32;
              *reinterpret_cast<uint2*>(received + (i / kPlanePolls * 2 * KT + piece / (2 * kColumns)) * kPitch +
                                        piece % (2 * kColumns) * 2) =
                  uint2{static_cast<uint32_t>(two[i].x), static_cast<uint32_t>(two[i].y)};
            }
          }
          __syncwarp();
          uint4 b[kPairs];
          {
            const uint32_t* const codes =
                received + (kPassPlanes == 2 ? g / 4 * 2 * KT * kPitch : 0) + q * kPitch + g % kColumns * 4;
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair)
              b[pair] = *reinterpret_cast<const uint4*>(codes + pair * 4 * kPitch);
          }
          int32_t acc[3][4], more[3][4];
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
              // Two chains, so that one warp keeps the tensor cores busy.
              if (pair == 0) {
                mma_s8u8(acc[gate], weights[gate][0], b[0].x, b[0].y, 0, 0);
                mma_s8u8(more[gate], weights[gate][1], b[0].z, b[0].w, 0, 0);
              } else {
                mma_s8u8(acc[gate], weights[gate][2 * pair], b[pair].x, b[pair].y);
                mma_s8u8(more[gate], weights[gate][2 * pair + 1], b[pair].z, b[pair].w);
              }
            }
          int32_t* const sums = sums_of_step(s);
          const int plane = kPassPlanes == 2 ? q / 2 : pass;
          const int first = kPassPlanes == 2 ? q % 2 * 2 : 2 * q;  // column of this lane's sums
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              if (first + i % 2 < columns)
                // A warp's place, of any order, differs from lane to lane, so that they meet no bank twice.
                sums[(plane * 3 + gate) * kFewSums + ((first + i % 2) * kGridUnits + g + i / 2 * 8) * kFewSumPitch +
                     (warp ^ q)] = wrapping_add(acc[gate][i], more[gate][i]);
          __syncwarp();  // all have read what they received
        }
        delay(a.delays, s, kDelaySums);
        named_barrier_arrive(kFewSumsThere + s % 2, waiting);
      }
    };
    if (columns == 1) {
      multiply(std::integral_constant<int, 1>());
    } else if (columns == 2) {
      multiply(std::integral_constant<int, 2>());
    } else if (columns <= 4) {
      multiply(std::integral_constant<int, 4>());
    } else {
      multiply(std::integral_constant<int, kFewSequences>());
    }
    return;
  }
  // ---- The gate warps.
  trade_registers<72>();
  if ((warp - kFewWarps) * 2 >= columns) return;
  const int column = (warp - kFewWarps) * 2 + lane / 16;
  const int unit = lane % 16;
  const int unit_of_all = block * kGridUnits + unit;
  const bool exists = column < columns && unit_of_all < a.hidden;
  const int64_t n = int64_t{a.first_sequence} + column;
  const int length = a.lengths != nullptr && column < columns ? max(a.lengths[n], 0) - a.first_step : INT32_MAX;
  Ratio ratio[3];
  SumOf<Ratio> start[3];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    ratio[gate] = a.ratio[block * 48 + gate * 16 + unit];
    start[gate] = a.start[block * 48 + gate * 16 + unit];
  }
  const uint8_t* const state = a.state + (n * a.hidden + unit_of_all) * Planes;
  // Planes from the high byte down; memory is little endian.
  uint32_t code = exists ? state[Planes - 1] ^ (a.flip & 0xff) : 0;
  if (Planes == 2 && exists) code = code << 8 | state[0];
  uint2* const words = a.words + unit % 4 * copy_words + (block * few_columns(columns) + column) * 4 + unit / 4;
  const auto write_words = [&](int s) {
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane) {
      const uint32_t one = (Planes == 2 && plane == 0 ? code >> 8 : code & 0xff) << unit % 4 * 8;
      const uint32_t four = (one | __shfl_xor_sync(0xffffffffu, one, 1)) |
                            (__shfl_xor_sync(0xffffffffu, one, 2) | __shfl_xor_sync(0xffffffffu, one, 3));
      if (column < columns)
        publish(words + s % 2 * state_words + plane * plane_words, four, static_cast<uint32_t>(s + 1));
    }
  };
  const auto load_ih = [&](int s, uint32_t(&ih)[3]) {
    if (s >= a.steps || column >= columns) return;
    const int t = a.reverse ? a.steps - 1 - s : s;
    const uint16_t* const from = a.ih + ((int64_t{t} * a.batch + n) * blocks + block) * 48 + unit;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) ih[gate] = from[gate * 16];
  };
  write_words(0);
  uint32_t ih[3]{}, next_ih[3]{};
  load_ih(0, next_ih);
  for (int s = 0; s < a.steps; ++s) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) ih[gate] = next_ih[gate];
    load_ih(s + 1, next_ih);
    const int t = a.reverse ? a.steps - 1 - s : s;
    const bool keeps = t >= length || (exists && is_masked(a, t, n, unit_of_all));
    __syncwarp();
    named_barrier_sync(kFewSumsThere + s % 2, waiting);
    delay(a.delays, s, kDelayGates);
    int32_t sum[3][Planes];
    const int32_t* const from = sums_of_step(s) + (column * kGridUnits + unit) * kFewSumPitch;
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        const auto part = [&](int i) {
          return *reinterpret_cast<const uint4*>(from + (plane * 3 + gate) * kFewSums + 4 * i);
        };
        const uint4 first = part(0), second = part(1);
        sum[gate][plane] = static_cast<int32_t>((first.x + first.y + first.z) + (first.w + second.x + second.y) +
                                                (second.z + second.w));
      }
    if (exists) {
      Real from_x[3][1], hh[3][1];
      uint32_t fresh[1];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        from_x[gate][0] = from_biased<Real>(ih[gate]);
        rescale_hh(c, {complete_sum<Ratio>(sum[gate], start[gate])}, {ratio[gate]}, hh[gate]);
      }
      gru_gates(c, shared + at.tables, from_x, hh, {from_code<Real>(code, c.h_from_code)}, fresh);
      if (!keeps) code = fresh[0] & (Planes == 2 ? 0xffff : 0xff);
    }
    delay(a.delays, s, kDelayWrite);
    if (s + 1 < a.steps) write_words(s + 1);
    if (!exists) continue;
    uint8_t* const y = a.y + t * a.y_step + n * a.y_sequence + int64_t{unit_of_all} * a.y_unit;
    const uint32_t shown = t >= length ? c.h_to_unsigned : code;
    if (a.y_scale != 0) {
      *reinterpret_cast<float*>(y) = y_of<Planes>(a, shown);
      continue;
    }
    y[Planes - 1] = static_cast<uint8_t>(shown >> 8 * (Planes - 1) ^ a.flip);
    if (Planes == 2) y[0] = static_cast<uint8_t>(shown);
  }
  if (exists) {
    uint8_t* const next_state = a.next_state + (n * a.hidden + unit_of_all) * Planes;
    next_state[Planes - 1] = static_cast<uint8_t>(code >> 8 * (Planes - 1) ^ a.flip);
    if (Planes == 2) next_state[0] = static_cast<uint8_t>(code);
  }
#endif
}

// ---- Many sequences

/// Offsets in dynamic shared memory. Behind the slots, which wgmma reads as far as k is padded, are 4 KB at least.
struct ManyShared {
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
inline __host__ __device__ ManyShared many_shared(int columns, int planes, int blocks, int slots, int turns,
                                                  int row_bytes, int table_entries) {
  ManyShared at{};
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

/// KT: k tiles of a warpgroup. Columns: sequences of a turn, 16 or 32. Sets: of gate warps, which take turns in turn.
template <int KT, int Columns, int Planes, int Sets, typename Ratio>
__global__ void __launch_bounds__(kManyThreads, 1) gru_grid_many(const __grid_constant__ GridArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kTiles = Columns / 8;          // of 8 sequences
  constexpr int kCells = Sets * Columns / 16;  // of a gate thread: units beside each other of a sequence
  constexpr int kSetWarps = 8 / Sets;
  static_assert(kPublishers % Sets == 0);      // a publishing warp has turns of one set
  constexpr int kSums = Planes * Columns / 2;  // of a multiplying thread
  // Whether the first products of a turn come before the sums of the one before, where there are registers for both.
  constexpr bool kOverlaps = KT <= 24;
  // Registers of a thread: 4 KT weights, 16 or 32 sums, and the rest. Those of the five warpgroups are 480.
  constexpr int kStart = 96;
  constexpr int kMultiplying = 4 * KT + (kOverlaps ? 56 : 48);
  constexpr int kPublishing = 32;
  constexpr int kGates = (480 - 2 * kMultiplying - kPublishing) / 16 * 8;
  extern __shared__ __align__(128) uint8_t shared[];
  using Real = LaneOf<Ratio>;
  const GateLanes<Real>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int blocks = a.blocks;
  const int block = static_cast<int>(blockIdx.x) % blocks;
  const int team = static_cast<int>(blockIdx.x) / blocks;
  const int first_sequence = a.first_sequence + team * a.team_sequences;
  const int after = a.first_sequence + a.sequences - first_sequence;
  const int sequences = after < a.team_sequences ? after : a.team_sequences;
  const int turns = a.turns;
  const int64_t ih_turn = int64_t{Columns} * blocks * 48;  // words from a turn to the next
  const int64_t ih_step = (a.reverse ? -1 : 1) * int64_t{a.batch} * blocks * 48 - turns * ih_turn;
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const int tile_bytes = blocks * 128;  // 8 sequences of a plane
  const int slot_bytes = many_slot_bytes(Columns, Planes, blocks);
  const ManyShared at = many_shared(Columns, Planes, blocks, a.slots, a.turns, kRowBytes<Ratio>, a.table_entries);
  const uint32_t full = shared_address(shared + at.barriers);
  const uint32_t empty = full + kEmptyBarriers;
  const uint32_t codes_there = full + kCodesBarriers;  // new codes of this block
  const uint32_t codes_taken = full + kTakenBarriers;
  const uint32_t sums_there = full + kSumsBarriers;
  const uint32_t sums_taken = full + kSumsTakenBarriers;
  // [turn % 2][half of k][plane][sequence][kManyPitch]
  const auto sums_of = [&](int turn, int half, int plane) {
    return reinterpret_cast<int32_t*>(shared + at.sums) +
           ((turn % 2 * 2 + half) * Planes + plane) * (Columns * kManyPitch);
  };
  // Tiles that have sequences.
  const auto tiles_of = [&](int j) {
    const int left = sequences - j * Columns;
    return left >= Columns ? kTiles : left > 0 ? (left + 7) / 8 : 0;
  };
  // Of turn j's state s, in global memory.
  uint8_t* const all_codes = a.codes + int64_t{team} * 2 * a.turns * slot_bytes;
  const auto codes_of = [&](int s, int j) { return all_codes + (int64_t{s % 2} * turns + j) * slot_bytes; };
  // This block's codes, of turn v in place v % places: [plane][sequence][16].
  const int places = many_places(turns);
  const auto codes_in = [&](int place) { return shared + at.codes + place * (Planes * Columns * kGridUnits); };
  // Each block of a cluster fetches a share: the codes of so many blocks beside each other.
  const int share = blocks / cluster;
  const auto counter_of = [&](int j, int of_share) {
    return a.counters + ((team * a.turns + j) * cluster + of_share) * kCounterWords;
  };
  const auto count = [&](int j) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_of(j, block / share)) : "memory");
  };

  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += kManyThreads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  auto* const ratios = reinterpret_cast<Ratio*>(shared + at.rows);  // [gate][unit]
  auto* const gate_starts = reinterpret_cast<SumOf<Ratio>*>(ratios + 3 * kGridUnits);
  const SumOf<Ratio>* const starts = a.start + block * 3 * kGridUnits;
  for (int i = static_cast<int>(threadIdx.x); i < 3 * kGridUnits; i += kManyThreads) {
    ratios[i] = a.ratio[block * 3 * kGridUnits + i];
    if (!kStartsInProduct<Ratio>) gate_starts[i] = starts[i];
  }
  // Whether sequence n had ended before step t of this launch.
  const auto has_ended = [&](int n, int t) {
    return a.lengths != nullptr && n < sequences && t >= max(a.lengths[first_sequence + n], 0) - a.first_step;
  };
  // State 0 of this block's units.
  for (int i = static_cast<int>(threadIdx.x); i < (sequences + 7) / 8 * 8 * kGridUnits; i += kManyThreads) {
    const int row = i / kGridUnits;
    const int unit = block * kGridUnits + i % kGridUnits;
    const bool exists = row < sequences && unit < a.hidden;
    const uint8_t* const from = a.state + ((int64_t{first_sequence} + row) * a.hidden + unit) * Planes;
    uint8_t* const to =
        codes_of(0, row / Columns) + row % Columns / 8 * tile_bytes + block * 128 + row % 8 * 16 + i % kGridUnits;
    uint8_t* const own =
        codes_in((places - turns + row / Columns) % places) + row % Columns * kGridUnits + i % kGridUnits;
    // Planes from the high byte down; memory is little endian.
    own[0] = to[0] = exists ? static_cast<uint8_t>(from[Planes - 1] ^ a.flip) : uint8_t{0};
    if (Planes == 2) own[Columns * kGridUnits] = to[kTiles * tile_bytes] = exists ? from[0] : uint8_t{0};
  }
  if (threadIdx.x == 0) {
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
  for (int j = static_cast<int>(threadIdx.x); j < turns; j += kManyThreads) count(j);
  cluster_sync();

  const uint32_t empty_there = address_in(empty, static_cast<uint32_t>(lane < cluster ? lane : 0));
  // This warp has read a slot.
  const auto leave = [&](int slot) {
    __syncwarp();
    if (lane < cluster) barrier_arrive_in(empty_there + 8 * static_cast<uint32_t>(slot));
  };

  if (warp < 8) {
    // ---- The warps that multiply.
    trade_registers<kMultiplying, kStart>();
    const int half = warp / 4;  // of k
    uint4 weights[KT];
#pragma unroll
    for (int kt = 0; kt < KT; ++kt)
      weights[kt] = a.fragments[((int64_t{block} * 2 * KT + half * KT + kt) * 4 + warp % 4) * 32 + lane];
    const uint64_t matrix = core_matrices(shared_address(shared) + static_cast<uint32_t>(half * KT * 256), tile_bytes);
    // Where the lane's sums of row lane / 4 go, u or n; those of row 8 + lane / 4 are r, or nothing.
    int32_t* const to =
        sums_of(0, half, 0) + lane % 4 * 2 * kManyPitch + sum_word(lane < 16 ? 0 : 2, warp % 4 * 4 + lane / 4 % 4);
    // Start values of those rows; of one half, and none in double lanes.
    int32_t start[2]{};
    if (kStartsInProduct<Ratio> && half == 0) {
      const int first_unit = warp % 4 * 4 + lane / 4 % 4;
      start[0] = static_cast<int32_t>(starts[(lane < 16 ? 0 : 2) * kGridUnits + first_unit]);
      start[1] = static_cast<int32_t>(starts[kGridUnits + first_unit]);
    }
    const int total = a.steps * turns;
    int slot = 0, last_slot = 0;
    uint32_t phase = 0;
    // Where the sums of a turn go may be written.
    const auto wait_for_gates = [&](int turn) {
      if (turn >= 2)
        barrier_wait(sums_taken + 8 * static_cast<uint32_t>(turn % 2), static_cast<uint32_t>(turn / 2 - 1) % 2);
    };
    // The sums of a turn, which are complete, to the gate warps.
    const auto hand_over = [&](int turn, const int32_t(&sums)[kSums]) {
      delay(a.delays, turn, kDelaySums);
      // Of a plane, sums[4 tile + 2 r + column % 2] is row lane / 4 + 8 r of column 8 tile + 2 (lane % 4) + column % 2.
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
        for (int i = 0; i < Columns / 2; ++i) {
          const int32_t* const sum = sums + plane * (Columns / 2) + i;
          const int word = (turn % 2 * 2 * Planes + plane) * (Columns * kManyPitch) + (i / 4 * 8 + i % 2) * kManyPitch;
          if (i % 4 < 2) {
            to[word] = plane == Planes - 1 ? wrapping_add(*sum, start[0]) : *sum;
          } else if (lane < 16) {
            to[word + sum_word(1, 0)] = plane == Planes - 1 ? wrapping_add(*sum, start[1]) : *sum;
          }
        }
      __syncwarp();
      if (lane == 0) barrier_arrive(sums_there + 8 * static_cast<uint32_t>(turn % 2));
    };
    int32_t acc[kSums]{};
    for (int turn = 0; turn < total; ++turn) {
      const uint32_t barrier = full + 8 * static_cast<uint32_t>(slot);
      [[maybe_unused]] bool is_there = false;
      [[maybe_unused]] int32_t last[kSums];
      if constexpr (kOverlaps) {
        wgmma_wait<0>();
        keep_in_registers(acc);
        if (turn > 0) leave(last_slot);
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
      delay(a.delays, turn, kDelayRead);
      __syncwarp();
      keep_in_registers(acc);
      wgmma_fence();
      const uint64_t b = matrix + static_cast<uint32_t>(slot * slot_bytes >> 4);
      // Both planes are columns of one product: of 16 columns it takes as long as of 32.
      const auto product = [&](int kt) { wgmma_s8u8(acc, weights[kt], b + static_cast<uint32_t>(kt * 16), kt > 0); };
      constexpr int kFirst = kOverlaps ? 8 : 0;  // products of 17 cycles, and as many of the other warpgroup
      if constexpr (kOverlaps) {
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
      if (++slot == a.slots) {
        slot = 0;
        phase ^= 1;
      }
      if constexpr (!kOverlaps) {
        wgmma_wait<0>();
        keep_in_registers(acc);
        leave(last_slot);
        wait_for_gates(turn);
        hand_over(turn, acc);
      }
    }
    if constexpr (kOverlaps) {
      wgmma_wait<0>();
      keep_in_registers(acc);
      leave(last_slot);
      wait_for_gates(total - 1);
      hand_over(total - 1, acc);
    }
  } else if (warp < 16) {
    // ---- The gate warps.
    trade_registers<kGates, kStart>();
    constexpr int kLanes = kGridUnits / kCells;  // of a sequence
    const int set = (warp - 8) / kSetWarps;
    // Sequences i and i + 4 beside each other: sum_word.
    const int pair = (warp - 8) % kSetWarps * kCells + lane / (2 * kLanes);
    const int column = pair / 4 * 8 + pair % 4 + lane / kLanes % 2 * 4;
    const int unit = lane % kLanes * kCells;
    const int own_code = column * kGridUnits + unit;
    const bool extras = a.lengths != nullptr || a.mask != nullptr;
    // ih of the next turn.
    const uint16_t* ih_at =
        a.ih + ((int64_t{a.reverse ? a.steps - 1 : 0} * a.batch + first_sequence + column) * blocks + block) * 48 +
        unit;
    int ih_sequence = column;
    const auto one_turn_on = [&] {
      ih_at += ih_turn;
      if ((ih_sequence += Columns) >= turns * Columns) {
        ih_sequence = column;
        ih_at += ih_step;
      }
    };
    for (int i = 0; i < set; ++i) one_turn_on();
    uint32_t next_ih[3]{};
    const auto load_ih = [&] {
      if (ih_sequence < sequences)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          next_ih[gate] = *reinterpret_cast<const InputsOfUnits<kCells>*>(ih_at + gate * 16);
#pragma unroll
      for (int i = 0; i < Sets; ++i) one_turn_on();
    };
    const auto total = static_cast<uint32_t>(a.steps * turns);
    if (static_cast<uint32_t>(set) < total) load_ih();
    int s = set / turns, j = set % turns, place = set, old_place = (places - turns + set) % places;
    uint32_t place_phase = 1;
    for (uint32_t turn = static_cast<uint32_t>(set); turn < total; turn += Sets) {
      const uint32_t ih[3] = {next_ih[0], next_ih[1], next_ih[2]};
      if (turn + Sets < total) load_ih();
      uint32_t keeps = 0;  // cells that keep their state
      if (extras) {
        const int t = a.reverse ? a.steps - 1 - s : s;
        const int n = j * Columns + column;
#pragma unroll
        for (int i = 0; i < kCells; ++i)
          if (has_ended(n, t) ||
              (n < sequences && is_masked(a, t, int64_t{first_sequence} + n, block * kGridUnits + unit + i)))
            keeps |= 1u << i;
      }
      uint32_t old[Planes];
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane)
        old[plane] = *reinterpret_cast<const CodesOfUnits<kCells>*>(codes_in(old_place) + own_code +
                                                                    plane * Columns * kGridUnits);
      if (turn >= static_cast<uint32_t>(places))
        barrier_wait(codes_taken + 8 * static_cast<uint32_t>(place), place_phase);
      barrier_wait(sums_there + 8 * (turn % 2), turn / 2 % 2);
      delay(a.delays, static_cast<int>(turn), kDelaySums);
      Real from_x[3][kCells], hh[3][kCells];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        int32_t sum[kCells][Planes];
        SumOf<Ratio> complete[kCells];
        Ratio by[kCells];
#pragma unroll
        for (int plane = 0; plane < Planes; ++plane) {
          const auto part = [&](int half) {
            return *reinterpret_cast<const SumsOfUnits<kCells>*>(sums_of(static_cast<int>(turn % 2), half, plane) +
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
          complete[i] = complete_sum<Ratio>(sum[i], kStartsInProduct<Ratio> ? 0 : gate_starts[row]);
          by[i] = ratios[row];
        }
        rescale_hh(c, complete, by, hh[gate]);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(sums_taken + 8 * (turn % 2));
      Real h[kCells];
      uint32_t fresh[kCells];
#pragma unroll
      for (int i = 0; i < kCells; ++i)
        h[i] = lane_of_code<Planes>(c, old[0] >> 8 * i & 0xff, old[Planes - 1] >> 8 * i & 0xff);
      gru_gates(c, shared + at.tables, from_x, hh, h, fresh);
      uint32_t codes[Planes]{};
#pragma unroll
      for (int i = 0; i < kCells; ++i) {
        uint32_t code = fresh[i];
        if ((keeps >> i & 1) != 0)
          code = Planes == 2 ? (old[0] >> 8 * i) << 8 | (old[Planes - 1] >> 8 * i & 0xff) : old[0] >> 8 * i;
#pragma unroll
        for (int plane = 0; plane < Planes; ++plane) codes[plane] |= (code >> 8 * (Planes - 1 - plane) & 0xff) << 8 * i;
      }
      delay(a.delays, static_cast<int>(turn), kDelayGates);
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane)
        *reinterpret_cast<CodesOfUnits<kCells>*>(codes_in(place) + own_code + plane * Columns * kGridUnits) =
            static_cast<CodesOfUnits<kCells>>(codes[plane]);
      __syncwarp();
      if (lane == 0) barrier_arrive(codes_there + 8 * static_cast<uint32_t>(place));
      if ((old_place += Sets) >= places) old_place -= places;
      if ((place += Sets) >= places) {
        place -= places;
        place_phase ^= 1;
      }
      for (j += Sets; j >= turns; j -= turns) ++s;
    }
  } else {
    trade_registers<kPublishing, kStart>();
    if (warp < 16 + kFetchers) {
      // ---- The fetching warps. Every turn of every block passes through one thread.
      if (is_elected()) {
        const auto everyone = static_cast<uint16_t>((1u << cluster) - 1);
        const auto piece_bytes = static_cast<uint32_t>(share * 128);
        const uint32_t first_to = shared_address(shared) + static_cast<uint32_t>(rank) * piece_bytes;
        const uint8_t* const first_from = all_codes + static_cast<uint32_t>(rank) * piece_bytes;
        const uint32_t* const first_counter = counter_of(0, rank);
        int slot = 0;
        uint32_t phase = 1;
        bool filled = false;  // every slot has been, so that it has to be read first
        int turn = 0;
        const auto fetch = [&](int s, int j) {
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
            if (slot % kFetchers == warp - 16) fetch(s, j);
            if (++slot == a.slots) {
              slot = 0;
              phase ^= 1;
              filled = true;
            }
          }
      }
      __syncwarp();
    } else {
      // ---- The publishing warps. A lane has the units of a sequence.
      const uint32_t zero = c.h_to_unsigned;
      const int left = a.hidden - block * kGridUnits;  // units that exist
      const int units = left < kGridUnits ? left : kGridUnits;
      // floats: of y, as a constant.
      const auto publish = [&](auto floats) {
        int place = warp - 16 - kFetchers, place_phase = 0;
        for (int s = 0, j = place;; j += kPublishers, place += kPublishers) {
          for (; j >= turns; j -= turns) ++s;
          if (s >= a.steps) break;
          if (place >= places) {
            place -= places;
            place_phase ^= 1;
          }
          barrier_wait(codes_there + 8 * static_cast<uint32_t>(place), static_cast<uint32_t>(place_phase));
          delay(a.delays, s * turns + j, kDelayWrite);
          const int row = lane % Columns;
          const uint8_t* const from = codes_in(place) + row * kGridUnits;
          uint4 codes[Planes];
#pragma unroll
          for (int plane = 0; plane < Planes; ++plane)
            codes[plane] = *reinterpret_cast<const uint4*>(from + plane * Columns * kGridUnits);
          const int n = j * Columns + row;
          if (s + 1 < a.steps) {
            if (lane < Columns && row / 8 < tiles_of(j)) {
              uint8_t* const to = codes_of(s + 1, j) + row / 8 * tile_bytes + block * 128 + row % 8 * 16;
#pragma unroll
              for (int plane = 0; plane < Planes; ++plane)
                *reinterpret_cast<uint4*>(to + plane * kTiles * tile_bytes) = codes[plane];
            }
            __syncwarp();
            if (lane == 0) count(j);
          }
          if (lane < Columns && n < sequences) {
            const int t = a.reverse ? a.steps - 1 - s : s;
            // Row i of `to`: the units of this sequence.
            const auto write = [&](uint8_t* to, bool frozen) {
              if (!frozen && units == kGridUnits && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
                const uint4 high{codes[0].x ^ a.flip, codes[0].y ^ a.flip, codes[0].z ^ a.flip, codes[0].w ^ a.flip};
                if constexpr (Planes == 1) {
                  *reinterpret_cast<uint4*>(to) = high;
                } else {
                  const uint4 low = codes[Planes - 1];
                  auto* const pairs = reinterpret_cast<uint4*>(to);
                  pairs[0] = uint4{__byte_perm(low.x, high.x, 0x5140), __byte_perm(low.x, high.x, 0x7362),
                                   __byte_perm(low.y, high.y, 0x5140), __byte_perm(low.y, high.y, 0x7362)};
                  pairs[1] = uint4{__byte_perm(low.z, high.z, 0x5140), __byte_perm(low.z, high.z, 0x7362),
                                   __byte_perm(low.w, high.w, 0x5140), __byte_perm(low.w, high.w, 0x7362)};
                }
                return;
              }
              for (int i = 0; i < units; ++i)
                for (int plane = 0; plane < Planes; ++plane) {
                  const int byte = Planes - 1 - plane;
                  const uint32_t code =
                      frozen ? zero >> 8 * byte : static_cast<uint32_t>(from[plane * Columns * kGridUnits + i]);
                  to[i * Planes + byte] = static_cast<uint8_t>(code ^ (plane == 0 ? a.flip : 0));
                }
            };
            const auto write_floats = [&](uint8_t* to, bool frozen) {
              const bool whole = units == kGridUnits && reinterpret_cast<uintptr_t>(to) % 16 == 0;
#pragma unroll 1
              for (int i = 0; i < units; i += 4) {
                uint32_t four[Planes];
#pragma unroll
                for (int plane = 0; plane < Planes; ++plane)
                  four[plane] = *reinterpret_cast<const uint32_t*>(from + plane * Columns * kGridUnits + i);
                float values[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                  uint32_t code = four[0] >> 8 * k & 0xff;
                  if (Planes == 2) code = code << 8 | (four[Planes - 1] >> 8 * k & 0xff);
                  values[k] = y_of<Planes>(a, frozen ? zero : code);
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
            };
            const int64_t sequence = int64_t{first_sequence} + n;
            uint8_t* const y = a.y + t * a.y_step + sequence * a.y_sequence + int64_t{block} * kGridUnits * a.y_unit;
            floats() ? write_floats(y, has_ended(n, t)) : write(y, has_ended(n, t));
            if (s + 1 == a.steps)
              write(a.next_state + (sequence * a.hidden + int64_t{block} * kGridUnits) * Planes, false);
          }
          __syncwarp();
          if (lane == 0) barrier_arrive(codes_taken + 8 * static_cast<uint32_t>(place));
        }
      };
      if (a.y_scale == 0) {
        publish(std::false_type());
      } else {
        publish(std::true_type());
      }
    }
  }
  // Nobody leaves while blocks of its cluster may still send to it.
  __syncwarp();
  cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRID_CUH_
