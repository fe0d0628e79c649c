// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence of layers whose R needs most of the device, H = 1025 to 2048: all blocks of a launch are
// one team. Block b has hidden units 16 b to 16 b + 15, their rows of gate u, r and n, in registers for all steps. The
// state crosses through the second-level cache. There are two kernels, for what limits few sequences is the time until
// a code written by one block is read by all others, and what limits many is the number of bytes.
//
// gru_grid_few: up to 8 sequences, the columns of mma.m16n8k32. The columns of R (k) are split over 8 warps.
//   1. Each polls the part of the state that it multiplies by, in words of 64 bits, four codes and the number of the
//      state, which is read as it was written: whoever finds the number has the codes, and no fence is needed. Lanes
//      poll what they hold of the mma's operand, so codes do not pass through shared memory.
//   2. They leave sums in shared memory, and count at a barrier.
//   3. A gate warp for two sequences, one cell a lane, adds them up, computes the gates and writes the new words, four
//      copies of each, as whoever polls the same word has to wait for the others.
// Words of state s are those of state s - 2 overwritten. Whoever writes them has seen all words of state s - 1, as its
// sums need them, and every block had read all words of s - 2 before it wrote any of s - 1. Sums of step s are where
// those of s - 2 were: a warp that writes them has words of state s from another block, or its own, which needed state
// s - 1 of this block from each of its gate warps, after they had read the sums of s - 2.
//
// gru_grid_many: turns of 16 or 32 sequences, the columns of wgmma, whose weights come from registers and whose
// activations from shared memory. Turn v is the sequences of v % turns in step v / turns.
//   1. The fetching warp waits until the state of the turn is complete, which a counter in global memory says, and
//      copies the block's share of it to all blocks of its cluster (bulk copies with multicast).
//   2. Two warpgroups wait for these bytes and multiply by half of k each; give each other the sums of half of the
//      sequences; and compute gates, where there are several turns while the next one is multiplied. A warp has the 16
//      rows of four units, those of u and n beside each other, r and 4 rows of nothing below: so what a cell needs is
//      in two lanes of a warp.
//   3. A publishing warp takes the new codes from shared memory, stores them in global memory, counts at the turn's
//      counter (release), and writes y. Two of them take turns, so that no one waits for their stores.
//
// Why what is read is what was written (many). Codes are stored by the lanes of a publishing warp; __syncwarp and the
// release of its lane 0 make them visible to whoever acquires a count that includes it. The thread that starts the
// copies has itself acquired the complete count, and fence.proxy.async orders its copies behind that. The copies' bytes
// are counted at the receivers' barrier `full`, which the multiplying warps wait for. Codes between warpgroups and
// publishers, `staged`, are handed over by barriers (release, acquire).
//
// Why nothing is written too early (many). The state of a turn in global memory alternates between two places. State
// s + 1 is written by a block that had state s from all others, which they wrote after they had received all of state
// s - 1. A slot of shared memory is filled again when all warps that multiply, in all blocks of the cluster, have
// arrived at `empty` of each of them. Sums lie in two places; a warpgroup that writes those of turn v + 2 has passed
// the named barrier of v + 1, where the other one had read those of v. Counters only grow: the state s is complete at s
// + 1 times the number of blocks.
//
// Why nobody waits for ever. All blocks are on the device together: the launch is cooperative. Whatever a turn waits
// for belongs to turns before: its state to the turn before of the same sequences, a slot to the turn that had it
// before, and all warps take turns in order. State 0 is published by the units' own block, too, so nobody reads the
// caller's state but those who write it.
#ifndef ISOBIT_GRU_CUDA_GRID_CUH_
#define ISOBIT_GRU_CUDA_GRID_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda_ptx.cuh"
#include "core/cuda_wgmma.cuh"
#include "gru/cuda_gates.cuh"
#include "gru/cuda_grid.h"
#include "linear/cuda_mma.cuh"

namespace isobit::cuda {

inline constexpr int kGridUnits = 16;     // of a block
inline constexpr int kGridThreads = 384;  // three warpgroups: two multiply
inline constexpr int kFewSequences = 8;   // the columns of an mma
inline constexpr int kFewCopies = 4;      // of every word: of 128 blocks that poll one, 32 poll the same copy
inline constexpr int kFewWarps = 8;       // that multiply
inline constexpr int kFewSumPitch = 20;   // words from one sequence to the next: lanes that write meet no bank twice
inline constexpr int kGatePitch = kFewSequences * kFewSumPitch;
inline constexpr int kStagedSlots = 4;         // turns whose new codes are in shared memory
inline constexpr int kMaxSlots = 8;            // turns whose state is there
inline constexpr int kMaxManySequences = 512;  // of a launch
inline constexpr int kCounterWords = 32;       // from one counter to the next: a line each

/// Real: lanes of the gates; Sum: of accumulators and their rescale.
template <typename Real, typename Sum>
struct GridArgs {
  GateLanes<Real> gates;
  /// R: [block][k tile of 32][4 units by 4][lane][16 bytes], the order of wgmma: bytes 4 r to 4 r + 3 of lane 4 g + q
  /// are columns 16 (r / 2) + 4 q to + 3 of row g + 8 (r % 2); rows 0-3 are u, 4-7 n, 8-11 r of the units, 12-15 zero.
  const uint4* fragments;
  const StartOf<Sum>* start;  // of hh's accumulators, tile order (kernels.h)
  const Sum* ratio;           // accumulator -> hh, tile order
  const float* tables;        // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries;      // of all three
  /// ih rescaled to the gate inputs, plus 32768: [steps][batch][blocks][gate][unit].
  const uint16_t* ih;
  int32_t first_step;  // of these steps in the sequence: what lengths and the mask are counted from
  int32_t steps, batch, hidden;
  int32_t first_sequence, sequences;  // of this launch
  uint8_t* state;                     // [batch][hidden] codes, in and out
  uint8_t* y;                         // codes; already offset to this direction's columns
  int64_t y_step, y_sequence;         // bytes
  uint32_t flip;                      // the sign bit of signed codes, of the high bytes, in all four bytes
  const int32_t* lengths;             // [batch], or null
  const uint8_t* mask;                // [all steps][batch][mask_width], or null
  int64_t mask_width;
  bool reverse;
  uint32_t delays;  // 0, or a seed: set_grid_delays
  /// few: [s % 2][copy][block][plane][sequence][4] words of four codes and s + 1, zero at the start.
  uint2* words;
  /// many: [s % 2][turn][plane][8 sequences][block][8][16] codes.
  uint8_t* codes;
  uint32_t* counters;  // many: [turn][block of a cluster][kCounterWords], zero at the start: blocks of that share
  int32_t turns, cluster, slots;
};

/// A test's hook: up to 2^13 cycles, where there is a seed.
__device__ __forceinline__ void delay(uint32_t seed, int turn, int part) {
  if (seed == 0) return;
  const uint32_t warp = threadIdx.x / 32;
  uint32_t x = seed ^ (static_cast<uint32_t>(turn) * 0x9e3779b9u + blockIdx.x * 0x85ebca6bu + warp * 0xc2b2ae35u +
                       static_cast<uint32_t>(part) * 0x27d4eb2fu);
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  x ^= x >> 16;
  if (x % 4 != 0) return;
  const long long until = clock64() + (x >> 2) % 8192;
  while (clock64() < until) {
  }
}
enum DelayedPart { kDelayRead, kDelaySums, kDelayGates, kDelayWrite };

/// Of the 16 rows of wgmma for four units.
inline __host__ __device__ int grid_row(int gate, int unit) { return unit % 4 + (gate == 0 ? 0 : gate == 1 ? 8 : 4); }
/// The word of GridArgs::fragments with columns k to k + 3, k a multiple of 4.
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

/// What a cell needs of its rows.
template <typename Sum>
struct CellRows {
  Sum ratio[3];
  StartOf<Sum> start[3];
  template <typename Args>
  __device__ CellRows(const Args& a, int block, int unit) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      ratio[gate] = a.ratio[block * 48 + gate * 16 + unit];
      start[gate] = a.start[block * 48 + gate * 16 + unit];
    }
  }
};

/// The new state of a cell from its sums without start values, and ih; minus zero point.
template <int Planes, typename Real, typename Sum>
__device__ __forceinline__ Real next_state(const GateLanes<Real>& c, const uint8_t* tables, const CellRows<Sum>& rows,
                                           const int32_t (&sum)[Planes][3], const uint32_t (&ih)[3], Real h) {
  const auto hh = [&](int gate) {
    Sum value;
    if constexpr (sizeof(Sum) == 4) {
      value = to_lane<Sum>(wrapping_add(sum[0][gate], rows.start[gate]));
    } else {
      value = to_lane<Sum>(sum[0][gate]);
      if (Planes == 2) value = fused(value, 256.0, to_lane<Sum>(sum[Planes - 1][gate]));
      value = add(value, rows.start[gate]);
    }
    return rescale_hh<Real, Sum>(c, value, rows.ratio[gate]);
  };
  return gru_gates(c, tables, from_biased<Real>(ih[0]), from_biased<Real>(ih[1]), from_biased<Real>(ih[2]), hh(0),
                   hh(1), hh(2), h);
}

/// Whether a cell keeps its state in this step; t: of the steps of the launch.
template <typename Args>
__device__ __forceinline__ bool is_masked(const Args& a, int t, int64_t n, int unit) {
  return a.mask != nullptr && unit < a.hidden &&
         a.mask[((int64_t{t} + a.first_step) * a.batch + n) * a.mask_width + unit] == 0;
}

// ---- Few sequences

/// Offsets in dynamic shared memory.
struct FewShared {
  int32_t sums, tables, total;
};
inline __host__ __device__ FewShared few_shared(int planes, int table_entries) {
  FewShared at{};
  at.sums = 128;  // barriers
  at.tables = at.sums + 2 * kFewWarps * planes * 3 * kGatePitch * 4;
  at.total = at.tables + table_entries * 4;
  return at;
}

/// KT: k tiles of a warp. Planes: bytes of a code of h.
template <int KT, int Planes, typename Real, typename Sum>
__global__ void __launch_bounds__(kGridThreads, 1) gru_grid_few(const __grid_constant__ GridArgs<Real, Sum> a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  static_assert(KT % 2 == 0);
  constexpr int kPairs = KT / 2;  // of k tiles: 64 columns, four blocks' units
  extern __shared__ __align__(128) uint8_t shared[];
  const FewShared at = few_shared(Planes, a.table_entries);
  const GateLanes<Real>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int columns = a.sequences;
  // Warps that have units to multiply by: one without would not wait for anybody.
  const int multiplying = (blocks + 2 * KT - 1) / (2 * KT);
  const uint32_t sums_there = shared_address(shared);  // of a step's parity
  const auto sums_of_step = [&](int s) {
    return reinterpret_cast<int32_t*>(shared + at.sums) + s % 2 * kFewWarps * Planes * 3 * kGatePitch;
  };
  const auto words_of = [&](int s, int copy, int of_block, int plane, int column) {
    return a.words +
           ((((int64_t{s % 2} * kFewCopies + copy) * blocks + of_block) * Planes + plane) * columns + column) * 4;
  };
  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += kGridThreads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  if (threadIdx.x == 0)
    for (uint32_t i = 0; i < 2; ++i) barrier_init(sums_there + 8 * i, static_cast<uint32_t>(multiplying));
  __syncthreads();

  if (warp < kFewWarps) {
    // ---- The warps that multiply.
    trade_registers<200>();
    if (warp >= multiplying) return;
    // Of each mma's operands, lane 4 g + q has columns 16 q to 16 q + 15 of a pair of k tiles: for that the order of k
    // differs from that in `fragments`.
    const int g = lane / 4;
    const int q = lane % 4;
    uint4 weights[3][KT];
    {
      const auto* const from = reinterpret_cast<const uint32_t*>(a.fragments);
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int kt = 0; kt < KT; ++kt) {
          const auto word = [&](int half, int k) {
            return from[grid_word(KT * kFewWarps, block, gate, g + 8 * half,
                                  (warp * KT + kt / 2 * 2) * 32 + q * 16 + kt % 2 * 8 + k)];
          };
          weights[gate][kt] = uint4{word(0, 0), word(1, 0), word(0, 4), word(1, 4)};
        }
    }
    uint32_t all = 0;  // pairs of which this lane polls words
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair)
      if ((columns <= 4 ? g % 4 : g) < columns && (warp * kPairs + pair) * 4 + q < blocks) all |= 1u << pair;
    const int pair_words = 4 * Planes * columns * 4;
    for (int s = 0; s < a.steps; ++s) {
      delay(a.delays, s, kDelayRead);
      int32_t acc[Planes][3][4];
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane) {
        uint4 b[kPairs]{};
        // A lane polls both halves of a sequence's words, or, as up to four sequences need half of the lanes only, one.
        const auto poll_all = [&](auto halves) {
          constexpr int kHalves = decltype(halves)::value;
          const uint2* const from =
              words_of(s, block % kFewCopies, warp * kPairs * 4 + q, plane, kHalves == 1 ? g % 4 : g) +
              (kHalves == 1 ? g / 4 * 2 : 0);
          // Of more than two sequences one pair until it is there, so that polling does not fill the second-level
          // cache's queues; then all.
          uint32_t missing = all;
          for (uint32_t wanted = columns > 2 ? 1 : ~0u; __any_sync(0xffffffffu, missing != 0);
               wanted = (missing & 1) != 0 && columns > 2 ? 1 : ~0u) {
            ulonglong2 word[kPairs][kHalves];
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
              for (int i = 0; i < kHalves; ++i)
                if ((missing & wanted) >> pair & 1) poll(from + pair * pair_words + 2 * i, word[pair][i]);
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) {
              bool there = ((missing & wanted) >> pair & 1) != 0;
              uint32_t codes[4]{};
#pragma unroll
              for (int i = 0; i < kHalves; ++i) {
                const ulonglong2& two = word[pair][i];
                const auto is_there = [s](unsigned long long x) { return static_cast<int32_t>(x >> 32) == s + 1; };
                there = there && is_there(two.x) && is_there(two.y);
                codes[2 * i] = static_cast<uint32_t>(two.x);
                codes[2 * i + 1] = static_cast<uint32_t>(two.y);
              }
              if (!there) continue;
              missing &= ~(1u << pair);
              b[pair] = uint4{codes[0], codes[1], codes[2], codes[3]};
            }
          }
          if (kHalves == 1)
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) {
              b[pair].z = __shfl_down_sync(0xffffffffu, b[pair].x, 16);
              b[pair].w = __shfl_down_sync(0xffffffffu, b[pair].y, 16);
            }
        };
        if (columns <= 4) {
          poll_all(std::integral_constant<int, 1>());
        } else {
          poll_all(std::integral_constant<int, 2>());
        }
        int32_t more[3][4];
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            // Two chains, so that one warp keeps the tensor cores busy.
            if (pair == 0) {
              mma_s8u8(acc[plane][gate], weights[gate][0], b[0].x, b[0].y, 0, 0);
              mma_s8u8(more[gate], weights[gate][1], b[0].z, b[0].w, 0, 0);
            } else {
              mma_s8u8(acc[plane][gate], weights[gate][2 * pair], b[pair].x, b[pair].y);
              mma_s8u8(more[gate], weights[gate][2 * pair + 1], b[pair].z, b[pair].w);
            }
          }
        int32_t* const to = sums_of_step(s) + (warp * Planes + plane) * 3 * kGatePitch;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (2 * q + i % 2 < columns)
              to[gate * kGatePitch + (2 * q + i % 2) * kFewSumPitch + g + i / 2 * 8] =
                  wrapping_add(acc[plane][gate][i], more[gate][i]);
      }
      delay(a.delays, s, kDelaySums);
      __syncwarp();
      if (lane == 0) barrier_arrive(sums_there + 8 * static_cast<uint32_t>(s % 2));
    }
    return;
  }
  // ---- The gate warps.
  trade_registers<104>();
  if ((warp - kFewWarps) * 2 >= columns) return;
  const int column = (warp - kFewWarps) * 2 + lane / 16;
  const int unit = lane % 16;
  const int unit_of_all = block * kGridUnits + unit;
  const bool exists = column < columns && unit_of_all < a.hidden;
  const int64_t n = int64_t{a.first_sequence} + column;
  const int length = a.lengths != nullptr && column < columns ? a.lengths[n] - a.first_step : INT32_MAX;
  const CellRows<Sum> rows(a, block, unit);
  uint8_t* const state = a.state + (n * a.hidden + unit_of_all) * Planes;
  // Planes from the high byte down; memory is little endian.
  uint32_t code = exists ? state[Planes - 1] ^ (a.flip & 0xff) : 0;
  if (Planes == 2 && exists) code = code << 8 | state[0];
  Real h = lane_of_code<Planes>(c, Planes == 2 ? code >> 8 : code, code & 0xff);
  const auto write_words = [&](int s) {
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane) {
      uint32_t four = (Planes == 2 && plane == 0 ? code >> 8 : code & 0xff) << unit % 4 * 8;
      four |= __shfl_xor_sync(0xffffffffu, four, 1);
      four |= __shfl_xor_sync(0xffffffffu, four, 2);
      if (column < columns)
        publish(words_of(s, unit % 4, block, plane, column) + unit / 4, four, static_cast<uint32_t>(s + 1));
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
    barrier_wait(sums_there + 8 * static_cast<uint32_t>(s % 2), static_cast<uint32_t>(s / 2 % 2));
    delay(a.delays, s, kDelayGates);
    int32_t sum[Planes][3];
    const int32_t* const from = sums_of_step(s) + column * kFewSumPitch + unit;
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        int32_t part[kFewWarps];
#pragma unroll
        for (int i = 0; i < kFewWarps; ++i)
          part[i] = i < multiplying ? from[((i * Planes + plane) * 3 + gate) * kGatePitch] : 0;
#pragma unroll
        for (int width = kFewWarps / 2; width > 0; width /= 2)
#pragma unroll
          for (int i = 0; i < width; ++i) part[i] = wrapping_add(part[i], part[i + width]);
        sum[plane][gate] = part[0];
      }
    if (exists) {
      const Real fresh = next_state<Planes>(c, shared + at.tables, rows, sum, ih, h);
      if (!keeps) h = fresh;
      code = low_bits(add(h, c.h_to_code)) & (Planes == 2 ? 0xffff : 0xff);
    }
    delay(a.delays, s, kDelayWrite);
    if (s + 1 < a.steps) write_words(s + 1);
    if (!exists) continue;
    uint8_t* const y = a.y + t * a.y_step + n * a.y_sequence + unit_of_all * Planes;
    const uint32_t shown = t >= length ? static_cast<uint32_t>(c.h_to_unsigned) : code;
    y[Planes - 1] = static_cast<uint8_t>(shown >> 8 * (Planes - 1) ^ a.flip);
    if (Planes == 2) y[0] = static_cast<uint8_t>(shown);
  }
  if (exists) {
    state[Planes - 1] = static_cast<uint8_t>(code >> 8 * (Planes - 1) ^ a.flip);
    if (Planes == 2) state[0] = static_cast<uint8_t>(code);
  }
#endif
}

// ---- Many sequences

/// Offsets in dynamic shared memory. Behind the slots, which wgmma reads as far as k is padded, are 4 KB at least.
struct ManyShared {
  int32_t sums, staged, tables, lengths, barriers, total;
};
/// Barriers: a slot's state is there, is read [slot]; new codes are there, are taken [staged slot].
inline constexpr uint32_t kEmptyBarriers = 8 * kMaxSlots;
inline constexpr uint32_t kStagedBarriers = 2 * kEmptyBarriers;
inline constexpr uint32_t kTakenBarriers = kStagedBarriers + 8 * kStagedSlots;
inline __host__ __device__ int32_t many_slot_bytes(int columns, int planes, int blocks) {
  return planes * columns * blocks * kGridUnits;
}
inline __host__ __device__ ManyShared many_shared(int columns, int planes, int blocks, int slots, int turns,
                                                  int table_entries) {
  ManyShared at{};
  at.sums = slots * many_slot_bytes(columns, planes, blocks);
  at.staged = at.sums + 2 * 2 * planes * (columns / 16) * 128 * 16;
  at.tables = at.staged + kStagedSlots * planes * columns * kGridUnits;
  at.lengths = at.tables + table_entries * 4;
  at.barriers = (at.lengths + turns * columns * 4 + 127) / 128 * 128;
  at.total = at.barriers + static_cast<int32_t>(kTakenBarriers) + 8 * kStagedSlots;
  return at;
}

/// KT: k tiles of a warpgroup. Columns: sequences of a turn, 16 or 32. kAhead: the next turn is multiplied during the
/// gates of this one. That needs two turns at least, and pays from three on.
template <int KT, int Columns, int Planes, typename Real, typename Sum, bool kAhead>
__global__ void __launch_bounds__(kGridThreads, 1) gru_grid_many(const __grid_constant__ GridArgs<Real, Sum> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kTiles = Columns / 8;   // of 8 sequences
  constexpr int kCells = Columns / 16;  // of a thread
  extern __shared__ __align__(128) uint8_t shared[];
  const GateLanes<Real>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const int turns = a.turns;
  const int tile_bytes = blocks * 128;  // 8 sequences of a plane
  const int slot_bytes = many_slot_bytes(Columns, Planes, blocks);
  const ManyShared at = many_shared(Columns, Planes, blocks, a.slots, turns, a.table_entries);
  const uint32_t full = shared_address(shared + at.barriers);
  const uint32_t empty = full + kEmptyBarriers;
  const uint32_t staged_there = full + kStagedBarriers;
  const uint32_t staged_taken = full + kTakenBarriers;
  // Tiles that have sequences.
  const auto tiles_of = [&](int j) {
    const int left = a.sequences - j * Columns;
    return left >= Columns ? kTiles : (left + 7) / 8;
  };
  // Of turn j's state s, in global memory.
  const auto codes_of = [&](int s, int j) { return a.codes + (int64_t{s % 2} * turns + j) * slot_bytes; };
  // Each block of a cluster fetches a share: the codes of so many blocks beside each other.
  const int share = blocks / cluster;
  const auto counter_of = [&](int j, int of_share) { return a.counters + (j * cluster + of_share) * kCounterWords; };
  const auto count = [&](int j) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_of(j, block / share)) : "memory");
  };

  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += kGridThreads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  auto* const lengths = reinterpret_cast<int32_t*>(shared + at.lengths);
  for (int i = static_cast<int>(threadIdx.x); i < turns * Columns; i += kGridThreads)
    lengths[i] = a.lengths != nullptr && i < a.sequences ? a.lengths[a.first_sequence + i] - a.first_step : INT32_MAX;
  // State 0 of this block's units.
  for (int i = static_cast<int>(threadIdx.x); i < (a.sequences + 7) / 8 * 8 * kGridUnits; i += kGridThreads) {
    const int row = i / kGridUnits;
    const int unit = block * kGridUnits + i % kGridUnits;
    const bool exists = row < a.sequences && unit < a.hidden;
    const uint8_t* const from = a.state + ((int64_t{a.first_sequence} + row) * a.hidden + unit) * Planes;
    uint8_t* const to =
        codes_of(0, row / Columns) + row % Columns / 8 * tile_bytes + block * 128 + row % 8 * 16 + i % kGridUnits;
    // Planes from the high byte down; memory is little endian.
    to[0] = exists ? static_cast<uint8_t>(from[Planes - 1] ^ a.flip) : uint8_t{0};
    if (Planes == 2) to[kTiles * tile_bytes] = exists ? from[0] : uint8_t{0};
  }
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(a.slots); ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 8 * static_cast<uint32_t>(cluster));
    }
    for (uint32_t i = 0; i < kStagedSlots; ++i) {
      barrier_init(staged_there + 8 * i, 8);
      barrier_init(staged_taken + 8 * i, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < turns; j += kGridThreads) count(j);
  cluster_sync();

  if (warp < 8) {
    // ---- The warps that multiply.
    trade_registers<216>();
    const int half = warp / 4;  // of k, and of the sequences whose gates this warpgroup computes
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int q = lane % 4;
    const bool late = lane >= 16;  // has the sums of n; else those of u and r
    const int unit = warp % 4 * 4 + lane / 4 % 4;
    const int unit_of_all = block * kGridUnits + unit;
    uint4 weights[KT];
#pragma unroll
    for (int kt = 0; kt < KT; ++kt)
      weights[kt] = a.fragments[((int64_t{block} * 2 * KT + half * KT + kt) * 4 + warp % 4) * 32 + lane];
    const CellRows<Sum> rows(a, block, unit);
    // Cell i of this thread, of the sequences of a turn.
    const auto column_of = [&](int i) { return (half * kCells + i) * 8 + 2 * q + (late ? 1 : 0); };
    const auto load_ih = [&](int s, int j, uint32_t(&ih)[kCells][3]) {
      const int t = a.reverse ? a.steps - 1 - s : s;
#pragma unroll
      for (int i = 0; i < kCells; ++i) {
        const int n = j * Columns + column_of(i);
        if (n >= a.sequences) continue;
        const uint16_t* const from =
            a.ih + ((int64_t{t} * a.batch + a.first_sequence + n) * blocks + block) * 48 + unit;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) ih[i][gate] = from[gate * 16];
      }
    };
    const uint32_t empty_there = address_in(empty, static_cast<uint32_t>(lane < cluster ? lane : 0));
    const bool extras = a.lengths != nullptr || a.mask != nullptr;
    auto* const sums = reinterpret_cast<uint4*>(shared + at.sums) + thread;  // [turn % 2][half][plane][cell]
    const uint64_t matrix = core_matrices(shared_address(shared) + static_cast<uint32_t>(half * KT * 256), tile_bytes);
    int32_t acc[Planes][Columns / 2];
    uint32_t next_ih[kCells][3]{};
    Real next_h[kCells];
    int turn = 0, slot = 0;
    uint32_t phase = 0;
    // Multiplies the state in `slot`, and reads what it has for the gates. Behind the last turn what is multiplied is
    // of no use to anybody: wgmma may not depend on a condition.
    const auto start = [&](int of_turn, bool exists) {
      if (exists) barrier_wait(full + 8 * static_cast<uint32_t>(slot), phase);
      delay(a.delays, of_turn, kDelayRead);
      __syncwarp();
      keep_in_registers(acc);
      wgmma_fence();
      const uint64_t b = matrix + static_cast<uint32_t>(slot * slot_bytes >> 4);
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
        for (int kt = 0; kt < KT; ++kt)
          wgmma_s8u8(acc[plane], weights[kt], b + static_cast<uint32_t>((plane * kTiles * tile_bytes >> 4) + kt * 16),
                     kt > 0);
      wgmma_commit();
#pragma unroll
      for (int i = 0; i < kCells; ++i) {
        const uint8_t* const from =
            shared + slot * slot_bytes + column_of(i) / 8 * tile_bytes + block * 128 + column_of(i) % 8 * 16 + unit;
        next_h[i] = lane_of_code<Planes>(c, from[0], Planes == 2 ? from[kTiles * tile_bytes] : 0);
      }
    };
    load_ih(0, 0, next_ih);
    start(0, true);
    for (int s = 0; s < a.steps; ++s) {
      const int t = a.reverse ? a.steps - 1 - s : s;
      for (int j = 0; j < turns; ++j, ++turn) {
        const bool is_last = s + 1 == a.steps && j + 1 == turns;
        uint32_t ih[kCells][3];
        Real h[kCells];
#pragma unroll
        for (int i = 0; i < kCells; ++i) {
          h[i] = next_h[i];
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) ih[i][gate] = next_ih[i][gate];
        }
        if (!is_last) load_ih(j + 1 < turns ? s : s + 1, j + 1 < turns ? j + 1 : 0, next_ih);
        wgmma_wait<0>();
        keep_in_registers(acc);
        __syncwarp();
        if (lane < cluster) barrier_arrive_in(empty_there + 8 * static_cast<uint32_t>(slot));
        if (++slot == a.slots) {
          slot = 0;
          phase ^= 1;
        }
        delay(a.delays, turn, kDelaySums);
        // acc[4 tile + 2 r + column % 2] is row lane / 4 + 8 r of column 8 tile + 2 q + column % 2.
        uint4* const exchanged = sums + turn % 2 * (2 * Planes * kCells * 128);
        int32_t own[Planes][kCells * 4];
#pragma unroll
        for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
          for (int i = 0; i < kCells; ++i) {
            uint32_t given[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              const int32_t first = acc[plane][4 * i + k];
              const int32_t second = acc[plane][4 * (kCells + i) + k];
              own[plane][4 * i + k] = half == 0 ? first : second;
              given[k] = static_cast<uint32_t>(half == 0 ? second : first);
            }
            exchanged[(((1 - half) * Planes + plane) * kCells + i) * 128] =
                uint4{given[0], given[1], given[2], given[3]};
          }
        keep_in_registers(own);
        if constexpr (kAhead) start(turn + 1, !is_last);
        named_barrier_sync(1, 256);
        int32_t sum[kCells][Planes][3];
#pragma unroll
        for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
          for (int i = 0; i < kCells; ++i) {
            const uint4 more = exchanged[((half * Planes + plane) * kCells + i) * 128];
            const auto v = [&](int k, uint32_t of_other) {
              return static_cast<uint32_t>(own[plane][4 * i + k]) + of_other;
            };
            const uint32_t v0 = v(0, more.x), v1 = v(1, more.y), v2 = v(2, more.z), v3 = v(3, more.w);
            const uint32_t first = __shfl_xor_sync(0xffffffffu, late ? v0 : v1, 16);
            const uint32_t second = __shfl_xor_sync(0xffffffffu, v3, 16);
            sum[i][plane][0] = static_cast<int32_t>(late ? first : v0);
            sum[i][plane][1] = static_cast<int32_t>(late ? second : v2);
            sum[i][plane][2] = static_cast<int32_t>(late ? v1 : first);
          }
        const auto staged = static_cast<uint32_t>(turn % kStagedSlots);
        if (turn >= kStagedSlots)
          barrier_wait(staged_taken + 8 * staged, static_cast<uint32_t>(turn / kStagedSlots - 1) % 2);
        delay(a.delays, turn, kDelayGates);
        uint8_t* const to = shared + at.staged + static_cast<int>(staged) * Planes * Columns * kGridUnits + unit;
#pragma unroll
        for (int i = 0; i < kCells; ++i) {
          Real fresh = next_state<Planes>(c, shared + at.tables, rows, sum[i], ih[i], h[i]);
          if (extras) {
            const int n = j * Columns + column_of(i);
            if (t >= lengths[n] || (n < a.sequences && is_masked(a, t, int64_t{a.first_sequence} + n, unit_of_all)))
              fresh = h[i];
          }
          const uint32_t code = low_bits(add(fresh, c.h_to_code));
          to[column_of(i) * kGridUnits] = static_cast<uint8_t>(code >> 8 * (Planes - 1));
          if (Planes == 2) to[(Columns + column_of(i)) * kGridUnits] = static_cast<uint8_t>(code);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(staged_there + 8 * staged);
        if constexpr (!kAhead) start(turn + 1, !is_last);
      }
    }
    wgmma_wait<0>();
  } else {
    trade_registers<72>();
    if (warp == 8) {
      // ---- The fetching warp.
      const auto everyone = static_cast<uint16_t>((1u << cluster) - 1);
      const auto piece_bytes = static_cast<uint32_t>(share * 128);
      int turn = 0, slot = 0;
      uint32_t phase = 1;
      for (int s = 0; s < a.steps; ++s)
        for (int j = 0; j < turns; ++j, ++turn) {
          const uint32_t barrier = full + 8 * static_cast<uint32_t>(slot);
          const int tiles = tiles_of(j);
          const int pieces = Planes * tiles;  // at most 4
          if (turn >= a.slots) barrier_wait(empty + 8 * static_cast<uint32_t>(slot), phase);
          delay(a.delays, turn, kDelayRead);
          if (is_elected()) {
            barrier_expect(barrier, static_cast<uint32_t>(pieces * tile_bytes));
            const auto complete = static_cast<uint32_t>(share) * static_cast<uint32_t>(s + 1);
            uint32_t counted = 0;
            do {
              asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(counted) : "l"(counter_of(j, rank)) : "memory");
            } while (counted < complete);
            asm volatile("fence.proxy.async.global;" ::: "memory");
            for (int piece = 0; piece < pieces; ++piece) {
              const int tile = piece / tiles * kTiles + piece % tiles;
              const int offset = tile * tile_bytes + rank * share * 128;
              const uint32_t to = shared_address(shared) + static_cast<uint32_t>(slot * slot_bytes + offset);
              fetch_for_cluster(to, codes_of(s, j) + offset, piece_bytes, barrier, everyone);
            }
          }
          __syncwarp();
          if (++slot == a.slots) {
            slot = 0;
            phase ^= 1;
          }
        }
    } else if (warp < 11) {
      // ---- The publishing warps. A lane has the units of a sequence.
      const auto zero = static_cast<uint32_t>(c.h_to_unsigned);
      const int left = a.hidden - block * kGridUnits;  // units that exist
      const int units = left < kGridUnits ? left : kGridUnits;
      for (int turn = warp - 9, s = 0, j = warp - 9;; turn += 2, j += 2) {
        for (; j >= turns; j -= turns) ++s;
        if (s >= a.steps) break;
        const auto staged = static_cast<uint32_t>(turn % kStagedSlots);
        barrier_wait(staged_there + 8 * staged, static_cast<uint32_t>(turn / kStagedSlots) % 2);
        delay(a.delays, turn, kDelayWrite);
        const int row = lane % Columns;
        const uint8_t* const from =
            shared + at.staged + (static_cast<int>(staged) * Planes * Columns + row) * kGridUnits;
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
        if (lane < Columns && n < a.sequences) {
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
          const int64_t sequence = int64_t{a.first_sequence} + n;
          write(a.y + t * a.y_step + sequence * a.y_sequence + int64_t{block} * kGridUnits * Planes, t >= lengths[n]);
          if (s + 1 == a.steps) write(a.state + (sequence * a.hidden + int64_t{block} * kGridUnits) * Planes, false);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(staged_taken + 8 * staged);
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
