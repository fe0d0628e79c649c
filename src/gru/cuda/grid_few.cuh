// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence of layers whose R needs most of the device, H = 1025 to 2048: all blocks of a launch are
// one team. Block b has hidden units 16 b to 16 b + 15, their rows of gate u, r and n, in registers for all steps. The
// state crosses through the second-level cache. There are two kernels, for what limits few sequences is the time until
// a code written by one block is read by all others, and what limits many is the number of bytes: grid_many.cuh.
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
// Why nobody waits for ever. All blocks are on the device together: the launch is cooperative. Words of state s need
// those of state s - 1 only. State 0 is published by the units' own block, too, so nobody reads the caller's state but
// those who write it.
#ifndef ISOBIT_GRU_CUDA_GRID_FEW_CUH_
#define ISOBIT_GRU_CUDA_GRID_FEW_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "gru/cuda/recurrence.cuh"

namespace isobit::cuda {

inline constexpr int kGridUnits = 16;        // of a block
inline constexpr int kGridFewThreads = 384;  // three warpgroups: two multiply
inline constexpr int kGridFewSequences = 8;  // the columns of an mma
inline constexpr int kFewCopies = 4;         // of every word: of 128 blocks that poll one, 32 poll the same copy
inline constexpr int kFewWarps = 8;          // that multiply
inline constexpr int kFewSumPitch = 12;  // words from one unit's sums, of 8 warps, to the next: no bank is met twice
inline constexpr int kFewSums = kGridFewSequences * kGridUnits * kFewSumPitch;  // words of a gate and plane
inline constexpr int kFewSumsThere = 1;  // and the next: the named barriers of a step's parity

template <typename Ratio>
struct GridFewArgs : RecurrenceArgs<Ratio> {
  const uint4* fragments;             // R: PersistentLayer::fragments, 8 KT k tiles
  int32_t first_sequence, sequences;  // of this launch
  /// [s % 2][copy][plane][block][few_columns][4] words of four codes and s + 1, zero at the start.
  uint2* words;
};

/// Columns for so many sequences, in words and in shared memory: a power of 2, so that a lane's polls are all of the
/// same sequence.
inline __host__ __device__ int few_columns(int sequences) {
  return sequences <= 2 ? sequences : sequences <= 4 ? 4 : 8;
}

/// Offsets in dynamic shared memory.
struct GridFewShared {
  int32_t sums, received, tables, total;
};
/// Of a block's units in received codes: words from one block to the next. 8 lanes of mma's operand, which read codes
/// of 4 blocks and 2 sequences, meet no bank twice.
inline __host__ __device__ constexpr int received_pitch(int columns) { return columns * 4 | 8; }
inline constexpr int kReceivedBytes = 2 * 16 * received_pitch(4) * 4;  // of a warp: two planes of 4 sequences
static_assert(16 * received_pitch(kGridFewSequences) * 4 <= kReceivedBytes);
inline __host__ __device__ GridFewShared grid_few_shared(int planes, int table_entries) {
  GridFewShared at{};
  at.received = at.sums + 2 * planes * 3 * kFewSums * 4;
  at.tables = at.received + kFewWarps * kReceivedBytes;
  at.total = at.tables + table_entries * 4;
  return at;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// KT: k tiles of a warp. Planes: bytes of a code of h.
template <int KT, int Planes, typename Ratio>
struct GridFewBlock {
  using Real = LaneOf<Ratio>;
  static constexpr int kPairs = KT / 2;  // of k tiles: 64 columns, four blocks' units
  static_assert(KT % 2 == 0);

  const GridFewArgs<Ratio>& a;
  uint8_t* const shared;
  const GridFewShared at = grid_few_shared(Planes, a.table_entries);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int columns = a.sequences;
  // Warps that have units to multiply by: one without would not wait for anybody.
  const int multiplying = (blocks + 2 * KT - 1) / (2 * KT);
  const int waiting = 32 * (multiplying + (columns + 1) / 2);  // threads at the barrier of a step's sums
  const int plane_words = blocks * few_columns(columns) * 4;
  const int copy_words = Planes * plane_words;
  const int state_words = kFewCopies * copy_words;

  __device__ __forceinline__ void begin() const {
    copy_tables(a, shared + at.tables, kGridFewThreads);
    // Sums of warps that do not multiply stay zero.
    for (int i = static_cast<int>(threadIdx.x); i < 2 * Planes * 3 * kFewSums; i += kGridFewThreads)
      sums_of_step(0)[i] = 0;
    __syncthreads();
  }

  __device__ __forceinline__ int32_t* sums_of_step(int s) const {
    return reinterpret_cast<int32_t*>(shared + at.sums) + s % 2 * Planes * 3 * kFewSums;
  }

  /// A warp that multiplies. Columns: few_columns of the sequences.
  template <int Columns>
  struct Products {
    static constexpr bool kOnePass = Planes == 1 || Columns <= 4;  // both planes are columns of one product
    static constexpr int kPassPlanes = kOnePass ? Planes : 1;
    static constexpr int kPieces = 4 * KT * Columns;  // of 16 bytes, two words, of a plane
    static constexpr int kPlanePolls = (kPieces + 31) / 32;
    static constexpr int kPolls = kPassPlanes * kPlanePolls;
    static constexpr int kPitch = received_pitch(Columns);

    const GridFewBlock& b;
    uint32_t* const received = reinterpret_cast<uint32_t*>(b.shared + b.at.received + b.warp * kReceivedBytes);
    uint32_t all = 0;  // polls of this lane

    __device__ __forceinline__ explicit Products(const GridFewBlock& of) : b(of) {
#pragma unroll
      for (int i = 0; i < kPolls; ++i) {
        const int piece = b.lane + i % kPlanePolls * 32;
        if (piece < kPieces && b.warp * 2 * KT + piece / (2 * Columns) < b.blocks && piece / 2 % Columns < b.columns)
          all |= 1u << i;
      }
    }
    /// Codes of state s, whose words begin at `from`.
    __device__ __forceinline__ void receive(const uint2* from, int s) const {
      uint32_t missing = all;  // all at once: one after the other takes as many round trips
      while (__any_sync(0xffffffffu, missing != 0)) {
        ulonglong2 two[kPolls];
#pragma unroll
        for (int i = 0; i < kPolls; ++i)
          if (missing >> i & 1) poll(from + i / kPlanePolls * b.plane_words + i % kPlanePolls * 64, two[i]);
#pragma unroll
        for (int i = 0; i < kPolls; ++i) {
          const auto is_there = [s](unsigned long long x) { return static_cast<int32_t>(x >> 32) == s + 1; };
          if ((missing >> i & 1) == 0 || !is_there(two[i].x) || !is_there(two[i].y)) continue;
          missing &= ~(1u << i);
          const int piece = b.lane + i % kPlanePolls * 32;
          *reinterpret_cast<uint2*>(received + (i / kPlanePolls * 2 * KT + piece / (2 * Columns)) * kPitch +
                                    piece % (2 * Columns) * 2) =
              uint2{static_cast<uint32_t>(two[i].x), static_cast<uint32_t>(two[i].y)};
        }
      }
      __syncwarp();
    }
    __device__ __forceinline__ void multiply(const uint4 (&weights)[3][KT], int s, int pass) const {
      const int g = b.lane / 4;
      const int q = b.lane % 4;
      uint4 codes[kPairs];
      const uint32_t* const from =
          received + (kPassPlanes == 2 ? g / 4 * 2 * KT * kPitch : 0) + q * kPitch + g % Columns * 4;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) codes[pair] = *reinterpret_cast<const uint4*>(from + pair * 4 * kPitch);
      int32_t acc[3][4], more[3][4];
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          // Two chains, so that one warp keeps the tensor cores busy.
          if (pair == 0) {
            mma_s8u8(acc[gate], weights[gate][0], codes[0].x, codes[0].y, 0, 0);
            mma_s8u8(more[gate], weights[gate][1], codes[0].z, codes[0].w, 0, 0);
          } else {
            mma_s8u8(acc[gate], weights[gate][2 * pair], codes[pair].x, codes[pair].y);
            mma_s8u8(more[gate], weights[gate][2 * pair + 1], codes[pair].z, codes[pair].w);
          }
        }
      int32_t* const sums = b.sums_of_step(s);
      const int plane = kPassPlanes == 2 ? q / 2 : pass;
      const int first = kPassPlanes == 2 ? q % 2 * 2 : 2 * q;  // column of this lane's sums
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first + i % 2 < b.columns)
            // A warp's place, of any order, differs from lane to lane, so that they meet no bank twice.
            sums[(plane * 3 + gate) * kFewSums + ((first + i % 2) * kGridUnits + g + i / 2 * 8) * kFewSumPitch +
                 (b.warp ^ q)] = wrapping_add(acc[gate][i], more[gate][i]);
      __syncwarp();  // all have read what they received
    }
    __device__ __forceinline__ void run() const {
      uint4 weights[3][KT];
      load_fragments<KT>(b.a.fragments + (int64_t{b.block} * kFewWarps + b.warp) * KT * 96 + b.lane, weights, nullptr);
      const uint2* const words =
          b.a.words + b.block % kFewCopies * b.copy_words + b.warp * 2 * KT * Columns * 4 + 2 * b.lane;
      for (int s = 0; s < b.a.steps; ++s) {
        delay(b.a.delays, s, kDelayRead);
        for (int pass = 0; pass < Planes / kPassPlanes; ++pass) {
          receive(words + s % 2 * b.state_words + pass * b.plane_words, s);
          multiply(weights, s, pass);
        }
        delay(b.a.delays, s, kDelaySums);
        named_barrier_arrive(kFewSumsThere + s % 2, b.waiting);
      }
    }
  };

  /// A gate warp: a lane has a cell.
  struct Gates {
    const GridFewBlock& b;
    const GridFewArgs<Ratio>& a = b.a;
    const int column = (b.warp - kFewWarps) * 2 + b.lane / 16;
    const int unit = b.lane % 16;
    const int unit_of_all = b.block * kGridUnits + unit;
    const bool exists = column < b.columns && unit_of_all < a.hidden;
    const int64_t n = int64_t{a.first_sequence} + column;
    Ratio ratio[3];
    SumOf<Ratio> start[3];
    uint32_t code = exists ? read_code<Planes>(a, a.state + (n * a.hidden + unit_of_all) * Planes) : 0;

    __device__ __forceinline__ explicit Gates(const GridFewBlock& of) : b(of) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        ratio[gate] = a.ratio[b.block * 48 + gate * 16 + unit];
        start[gate] = a.start[b.block * 48 + gate * 16 + unit];
      }
    }
    __device__ __forceinline__ void write_words(int s) const {
      uint2* const words =
          a.words + unit % 4 * b.copy_words + (b.block * few_columns(b.columns) + column) * 4 + unit / 4;
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane) {
        const uint32_t one = (Planes == 2 && plane == 0 ? code >> 8 : code & 0xff) << unit % 4 * 8;
        const uint32_t four = (one | __shfl_xor_sync(0xffffffffu, one, 1)) |
                              (__shfl_xor_sync(0xffffffffu, one, 2) | __shfl_xor_sync(0xffffffffu, one, 3));
        if (column < b.columns)
          publish(words + s % 2 * b.state_words + plane * b.plane_words, four, static_cast<uint32_t>(s + 1));
      }
    }
    __device__ __forceinline__ void load_ih(int s, uint32_t (&ih)[3]) const {
      if (s >= a.steps || column >= b.columns) return;
      const uint16_t* const from = a.ih + ((int64_t{time_of(a, s)} * a.batch + n) * b.blocks + b.block) * 48 + unit;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) ih[gate] = from[gate * 16];
    }
    /// Of the sums of step s, in all lanes; of use where the cell exists.
    __device__ __forceinline__ uint32_t new_code(int s, const uint32_t (&ih)[3]) const {
      int32_t sum[3][Planes];
      const int32_t* const from = b.sums_of_step(s) + (column * kGridUnits + unit) * kFewSumPitch;
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
      if (!exists) return 0;
      Real from_x[3][1], hh[3][1];
      uint32_t fresh[1];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        from_x[gate][0] = from_biased<Real>(ih[gate]);
        rescale_hh(a.gates, {complete_sum<Ratio>(sum[gate], start[gate])}, {ratio[gate]}, hh[gate]);
      }
      gru_gates(a.gates, shared_tables(a.gates, b.shared + b.at.tables), from_x, hh,
                {from_code<Real>(code, a.gates.h_from_code)}, fresh);
      return fresh[0] & (Planes == 2 ? 0xffff : 0xff);
    }
    __device__ __forceinline__ void run() {
      const int length = column < b.columns ? length_of(a, n) : INT32_MAX;
      write_words(0);
      uint32_t ih[3]{}, next_ih[3]{};
      load_ih(0, next_ih);
      for (int s = 0; s < a.steps; ++s) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) ih[gate] = next_ih[gate];
        load_ih(s + 1, next_ih);
        const int t = time_of(a, s);
        const bool keeps = t >= length || (exists && is_masked(a, t, n, unit_of_all));
        __syncwarp();
        named_barrier_sync(kFewSumsThere + s % 2, b.waiting);
        delay(a.delays, s, kDelayGates);
        const uint32_t fresh = new_code(s, ih);
        if (exists && !keeps) code = fresh;
        delay(a.delays, s, kDelayWrite);
        if (s + 1 < a.steps) write_words(s + 1);
        if (exists)
          write_y<Planes>(a, a.y_scale != 0, a.y + t * a.y_step + n * a.y_sequence + int64_t{unit_of_all} * a.y_unit,
                          t >= length ? a.gates.h_to_unsigned : code);
      }
      if (exists) write_code<Planes>(a, a.next_state + (n * a.hidden + unit_of_all) * Planes, code);
    }
  };
};
#endif

/// KT: k tiles of a warp. Planes: bytes of a code of h.
template <int KT, int Planes, typename Ratio>
__global__ void __launch_bounds__(kGridFewThreads, 1) gru_grid_few(const __grid_constant__ GridFewArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  using Block = GridFewBlock<KT, Planes, Ratio>;
  const Block block{a, shared};
  block.begin();
  if (block.warp >= kFewWarps) {
    trade_registers<72>();
    if ((block.warp - kFewWarps) * 2 < block.columns) typename Block::Gates(block).run();
    return;
  }
  trade_registers<216>();
  if (block.warp >= block.multiplying) return;
  if (block.columns == 1) {
    typename Block::template Products<1>(block).run();
  } else if (block.columns == 2) {
    typename Block::template Products<2>(block).run();
  } else if (block.columns <= 4) {
    typename Block::template Products<4>(block).run();
  } else {
    typename Block::template Products<kGridFewSequences>(block).run();
  }
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRID_FEW_CUH_
