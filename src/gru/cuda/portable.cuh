// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence with nothing that a device of compute capability 8.0 does not have: no clusters, no bulk
// copies, no trade of registers. Faster kernels take its place where there are those (cluster.cuh, grid_few.cuh).
//
// Partition. A team of blocks has all of R, in registers for all steps. A block has 1, 2, 4 or 8 groups of 16 hidden
// units, their rows of gates u, r and n, and 8 warps, which share the groups: 8, 4, 2 or 1 of them one group, each some
// of the columns of R (k). Up to 8 sequences are the columns of mma.m16n8k32. Further teams take further sequences, and
// teams never talk to each other. To H = 128 a team is one block.
//
// A step of a block:
//   1. All threads poll the codes of other blocks in global memory, words of 64 bits: four codes and the number of the
//      state, which are read as they were written, so no fence is needed. Codes go to shared memory.
//   2. __syncthreads. Warps multiply, and leave sums in shared memory.
//   3. __syncthreads. Threads have gates, up to four cells each, whose states stay in registers. New codes go to this
//      block's shared memory, to y, and in words to the other blocks: four copies, as whoever polls the same word has
//      to wait for the others.
//
// Why no buffer is written too early. What is in shared memory: 1 and 3 write codes, 2 reads them; 2 writes sums, 3
// reads them; between any two of these is a __syncthreads. Words of state s are those of state s - 2 overwritten:
// whoever writes them has all words of state s - 1, from all blocks, each of which wrote them after its step s - 2, and
// so after its reads of state s - 2.
//
// Why nobody waits for ever. A team of several blocks is part of a cooperative launch, so all of it is on the device.
// Words of state 0 are written before anything is polled, those of state s + 1 need those of state s only.
#ifndef ISOBIT_GRU_CUDA_PORTABLE_CUH_
#define ISOBIT_GRU_CUDA_PORTABLE_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "gru/cuda/recurrence.cuh"

namespace isobit::cuda {

inline constexpr int kPortableWarps = 8;
inline constexpr int kPortableThreads = 32 * kPortableWarps;
inline constexpr int kPortableSequences = 8;     // of a team: the columns of an mma
inline constexpr int kPortableCopies = 4;        // of every word
inline constexpr int kPortablePolls = 8;         // pairs of words that a thread waits for at once
inline constexpr int kPortableGroupBytes = 160;  // of 16 units in shared memory: 8 sequences, and a gap for the banks
inline constexpr int kPortableSumPitch = 20;     // words between sequences: lanes that write meet no bank twice
inline constexpr int kPortableGatePitch = kPortableSequences * kPortableSumPitch;

template <typename Ratio>
struct PortableArgs : RecurrenceArgs<Ratio> {
  const uint4* fragments;             // R (pack_fragments)
  int32_t k_tiles;                    // of R
  int32_t blocks;                     // of a team
  int32_t groups_log2;                // of 16 units of a block: 1, 2, 4 or 8
  int32_t first_sequence, sequences;  // of this launch
  int32_t team_sequences;
  int32_t room_log2;  // of sequences in words: the next power of two
  /// [team][s % 2][copy][group][plane][sequence][4] words of four codes and s + 1, zero at the start.
  uint2* words;
};

/// Words of one copy of a team's state.
inline __host__ __device__ int32_t portable_words(int32_t groups, int planes, int32_t room_log2) {
  return groups * planes * (4 << room_log2);
}

/// Offsets in dynamic shared memory: codes [plane][group], sums [warp][plane][gate], tables.
struct PortableShared {
  int32_t plane_bytes, sums, tables, total;
};
/// warp_tiles: k tiles of a warp.
inline __host__ __device__ PortableShared portable_shared(int32_t warp_tiles, int32_t unit_blocks, int planes,
                                                          int32_t table_entries) {
  PortableShared at{};
  at.plane_bytes = kPortableWarps / unit_blocks * warp_tiles * 2 * kPortableGroupBytes;
  at.sums = planes * at.plane_bytes;
  at.tables = at.sums + kPortableWarps * planes * 3 * kPortableGatePitch * 4;
  at.total = at.tables + table_entries * 4;
  return at;
}

/// KT: k tiles of a warp. Planes: bytes of a code of h.
template <int KT, int Planes, typename Ratio>
struct PortableBlock {
  using Real = LaneOf<Ratio>;
  static_assert(KT % 2 == 0);
  static constexpr int kPairs = KT / 2;           // of k tiles: 64 columns
  static constexpr int kCells = KT == 4 ? 4 : 1;  // of a thread, at most: more k tiles are one group a block

  /// 16 units of a sequence lie beside each other in a warp.
  struct Cell {
    int group, column;  // of the block, of the team
    bool exists;
    int unit;  // of all
    uint32_t code;
    int length;
    const uint16_t* ih;  // of the step after the next
    uint8_t* y;
    Ratio ratio[3];
    SumOf<Ratio> start[3];
    uint32_t next_ih[3];
  };

  const PortableArgs<Ratio>& a;
  uint8_t* const shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const int unit = thread % 16;  // of a group
  const int block = static_cast<int>(blockIdx.x) % a.blocks;
  const int team = static_cast<int>(blockIdx.x) / a.blocks;
  const int first = a.first_sequence + team * a.team_sequences;
  const int columns = min(a.first_sequence + a.sequences - first, a.team_sequences);
  const int unit_blocks = 1 << a.groups_log2;
  const int groups = a.blocks << a.groups_log2;
  const int splits = kPortableWarps >> a.groups_log2;  // warps of a group
  const PortableShared at = portable_shared(KT, unit_blocks, Planes, a.table_entries);
  int32_t* const sums = reinterpret_cast<int32_t*>(shared + at.sums);
  uint8_t* const tables = shared + at.tables;
  const int state_words = portable_words(groups, Planes, a.room_log2);
  uint2* const team_words = a.words + int64_t{team} * 2 * kPortableCopies * state_words;
  Cell cell[kCells];

  __device__ __forceinline__ PortableBlock(const PortableArgs<Ratio>& args, uint8_t* memory) : a(args), shared(memory) {
    copy_tables(a, tables, kPortableThreads);
    // What is padding stays zero.
    for (int i = thread * 16; i < at.sums; i += kPortableThreads * 16)
      *reinterpret_cast<uint4*>(shared + i) = uint4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kCells; ++i) begin_cell((i * kPortableThreads + thread) / 16, cell[i]);
  }

  __device__ __forceinline__ void load_weights_of_warp(uint4 (&weights)[3][KT]) const {
    const int group = block * unit_blocks + warp / splits;
#pragma unroll
    for (int kt = 0; kt < KT; ++kt) {
      const int k = warp % splits * KT + kt;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
        weights[gate][kt] =
            k < a.k_tiles ? a.fragments[((int64_t{group} * a.k_tiles + k) * 3 + gate) * 32 + lane] : uint4{0, 0, 0, 0};
    }
  }
  __device__ __forceinline__ void begin_cell(int index, Cell& one) const {
    one.column = index & ((1 << a.room_log2) - 1);
    one.group = index >> a.room_log2;
    one.unit = (block * unit_blocks + one.group) * 16 + unit;
    one.exists = one.group < unit_blocks && one.column < columns && one.unit < a.hidden;
    const int64_t n = int64_t{first} + one.column;
    one.length = one.exists ? length_of(a, n) : INT32_MAX;
    one.ih = a.ih + ((int64_t{time_of(a, 0)} * a.batch + n) * a.groups + one.unit / 16) * 48 + unit;
    one.y = a.y + time_of(a, 0) * a.y_step + n * a.y_sequence + int64_t{one.unit} * a.y_unit;
    one.code = 0;
    if (!one.exists) return;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      one.ratio[gate] = a.ratio[one.unit / 16 * 48 + gate * 16 + unit];
      one.start[gate] = a.start[one.unit / 16 * 48 + gate * 16 + unit];
    }
    one.code = read_code<Planes>(a, a.state + (n * a.hidden + one.unit) * Planes);
  }

  /// Of state s, for the others and for this block.
  __device__ __forceinline__ void write_codes(int s) const {
    const int cells = (unit_blocks * 16) << a.room_log2;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      if (i * kPortableThreads + warp * 32 >= cells) break;  // the same in a warp
      const Cell& one = cell[i];
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane) {
        const uint32_t code = Planes == 2 && plane == 0 ? one.code >> 8 : one.code & 0xff;
        const int group = block * unit_blocks + one.group;
        if (one.exists)
          shared[plane * at.plane_bytes + group * kPortableGroupBytes + one.column * 16 + unit] =
              static_cast<uint8_t>(code);
        if (a.blocks == 1) continue;
        uint32_t four = code << unit % 4 * 8;
        four |= __shfl_xor_sync(0xffffffffu, four, 1);
        four |= __shfl_xor_sync(0xffffffffu, four, 2);
        if (one.group < unit_blocks && one.column < columns)
          publish(team_words + int64_t{s % 2 * kPortableCopies + unit % 4} * state_words +
                      (((group * Planes + plane) << a.room_log2) + one.column) * 4 + unit / 4,
                  four, static_cast<uint32_t>(s + 1));
      }
    }
  }
  /// The state of the other blocks.
  __device__ __forceinline__ void read_codes(int s) const {
    const uint2* const from = team_words + int64_t{s % 2 * kPortableCopies + block % kPortableCopies} * state_words;
    for (int base = thread; base < state_words / 2; base += kPortablePolls * kPortableThreads) {
      const auto pair_of = [&](int i) { return base + i * kPortableThreads; };
      const auto column_of = [&](int pair) { return pair >> 1 & ((1 << a.room_log2) - 1); };
      const auto group_of = [&](int pair) { return (pair >> (1 + a.room_log2)) / Planes; };
      uint32_t missing = 0;
#pragma unroll
      for (int i = 0; i < kPortablePolls; ++i) {
        const int pair = pair_of(i);
        if (pair < state_words / 2 && column_of(pair) < columns && group_of(pair) >> a.groups_log2 != block)
          missing |= 1u << i;
      }
      while (missing != 0) {
        ulonglong2 two[kPortablePolls];
#pragma unroll
        for (int i = 0; i < kPortablePolls; ++i)
          if (missing >> i & 1) poll(from + 2 * pair_of(i), two[i]);
#pragma unroll
        for (int i = 0; i < kPortablePolls; ++i) {
          const auto is_there = [s](unsigned long long x) { return static_cast<int32_t>(x >> 32) == s + 1; };
          if ((missing >> i & 1) == 0 || !is_there(two[i].x) || !is_there(two[i].y)) continue;
          missing &= ~(1u << i);
          const int pair = pair_of(i);
          const int plane = (pair >> (1 + a.room_log2)) % Planes;
          *reinterpret_cast<uint2*>(shared + plane * at.plane_bytes + group_of(pair) * kPortableGroupBytes +
                                    column_of(pair) * 16 + pair % 2 * 8) =
              uint2{static_cast<uint32_t>(two[i].x), static_cast<uint32_t>(two[i].y)};
        }
      }
    }
  }
  __device__ __forceinline__ void multiply(const uint4 (&weights)[3][KT]) const {
    const int g = lane / 4;
    const int q = lane % 4;
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane) {
      const uint8_t* const from =
          shared + plane * at.plane_bytes + (warp % splits * kPairs * 4 + q) * kPortableGroupBytes + g * 16;
      int32_t acc[3][4]{};
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const uint4 codes = *reinterpret_cast<const uint4*>(from + pair * 4 * kPortableGroupBytes);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          mma_s8u8(acc[gate], weights[gate][2 * pair], codes.x, codes.y);
          mma_s8u8(acc[gate], weights[gate][2 * pair + 1], codes.z, codes.w);
        }
      }
      int32_t* const to = sums + (warp * Planes + plane) * 3 * kPortableGatePitch;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          to[gate * kPortableGatePitch + (2 * q + i % 2) * kPortableSumPitch + g + i / 2 * 8] = acc[gate][i];
    }
  }
  /// Asked for a step before it is needed.
  __device__ __forceinline__ void load_ih(int s) {
    if (s >= a.steps) return;
    const int64_t ih_step = (a.reverse ? -1 : 1) * int64_t{a.batch} * a.groups * 48;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      if (!cell[i].exists) continue;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) cell[i].next_ih[gate] = cell[i].ih[gate * 16];
      cell[i].ih += ih_step;
    }
  }
  /// The new code of a cell by the sums of Splits warps.
  template <int Splits>
  __device__ __forceinline__ uint32_t new_code(const Cell& one, const uint32_t (&ih)[3]) const {
    Real from_x[3][1], hh[3][1];
    uint32_t fresh[1];
    const int32_t* const from =
        sums + one.group * Splits * Planes * 3 * kPortableGatePitch + one.column * kPortableSumPitch + unit;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      int32_t sum[Planes];
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane) {
        int32_t part[Splits];
#pragma unroll
        for (int split = 0; split < Splits; ++split)
          part[split] = from[((split * Planes + plane) * 3 + gate) * kPortableGatePitch];
#pragma unroll
        for (int width = Splits / 2; width > 0; width /= 2)
#pragma unroll
          for (int split = 0; split < width; ++split) part[split] = wrapping_add(part[split], part[split + width]);
        sum[plane] = part[0];
      }
      from_x[gate][0] = from_biased<Real>(ih[gate]);
      rescale_hh(a.gates, {complete_sum<Ratio>(sum, one.start[gate])}, {one.ratio[gate]}, hh[gate]);
    }
    gru_gates(a.gates, shared_tables(a.gates, tables), from_x, hh, {from_code<Real>(one.code, a.gates.h_from_code)},
              fresh);
    return fresh[0] & (Planes == 2 ? 0xffff : 0xff);
  }
  /// Splits: of a group, as a constant: what it is not takes instructions, too.
  template <int Splits>
  __device__ __forceinline__ void update(int s, const uint32_t (&ih)[kCells][3]) {
    const int64_t y_step = a.reverse ? -a.y_step : a.y_step;
    const int t = time_of(a, s);
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      if (2 * i * Splits >= kPortableWarps) break;  // there are no more
      Cell& one = cell[i];
      if (!one.exists) continue;
      const bool keeps = t >= one.length || is_masked(a, t, int64_t{first} + one.column, one.unit);
      const uint32_t fresh = new_code<Splits>(one, ih[i]);
      if (!keeps) one.code = fresh;
      write_y<Planes>(a, a.y_scale != 0, one.y, t >= one.length ? a.gates.h_to_unsigned : one.code);
      one.y += y_step;
    }
  }
  __device__ __forceinline__ void run(const uint4 (&weights)[3][KT]) {
    uint32_t ih[kCells][3]{};
    __syncthreads();  // zeros first
    write_codes(0);
    load_ih(0);
    for (int s = 0; s < a.steps; ++s) {
#pragma unroll
      for (int i = 0; i < kCells; ++i)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) ih[i][gate] = cell[i].next_ih[gate];
      load_ih(s + 1);
      delay(a.delays, s, kDelayRead);
      if (a.blocks > 1) read_codes(s);
      __syncthreads();
      delay(a.delays, s, kDelaySums);
      multiply(weights);
      __syncthreads();
      delay(a.delays, s, kDelayGates);
      if (KT > 4 || splits == 8) {
        update<8>(s, ih);
      } else if (splits == 4) {
        update<4>(s, ih);
      } else if (splits == 2) {
        update<2>(s, ih);
      } else {
        update<1>(s, ih);
      }
      delay(a.delays, s, kDelayWrite);
      if (s + 1 < a.steps) write_codes(s + 1);
    }
#pragma unroll
    for (int i = 0; i < kCells; ++i)
      if (cell[i].exists)
        write_code<Planes>(a, a.next_state + ((int64_t{first} + cell[i].column) * a.hidden + cell[i].unit) * Planes,
                           cell[i].code);
  }
};

/// KT, Planes: of PortableBlock.
template <int KT, int Planes, typename Ratio>
__global__ void __launch_bounds__(kPortableThreads, 1) gru_portable(const __grid_constant__ PortableArgs<Ratio> a) {
  extern __shared__ __align__(128) uint8_t shared[];
  PortableBlock<KT, Planes, Ratio> block(a, shared);
  uint4 weights[3][KT];
  block.load_weights_of_warp(weights);
  block.run(weights);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PORTABLE_CUH_
