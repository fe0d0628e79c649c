// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence with nothing that a device of compute capability 8.0 does not have: no clusters, no bulk
// copies, no trade of registers. Faster kernels take its place where there are those (cluster.cuh, grid.cuh).
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
#include "product/cuda/mma.cuh"

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
__global__ void __launch_bounds__(kPortableThreads, 1) gru_portable(const __grid_constant__ PortableArgs<Ratio> a) {
  static_assert(KT % 2 == 0);
  constexpr int kPairs = KT / 2;           // of k tiles: 64 columns
  constexpr int kCells = KT == 4 ? 4 : 1;  // of a thread, at most: more k tiles are one group a block
  using Real = LaneOf<Ratio>;
  extern __shared__ __align__(128) uint8_t shared[];
  const GateLanes<Real>& c = a.gates;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const int g = lane / 4;
  const int q = lane % 4;
  const int block = static_cast<int>(blockIdx.x) % a.blocks;
  const int team = static_cast<int>(blockIdx.x) / a.blocks;
  const int first = a.first_sequence + team * a.team_sequences;
  const int left = a.first_sequence + a.sequences - first;
  const int columns = left < a.team_sequences ? left : a.team_sequences;
  const int unit_blocks = 1 << a.groups_log2;
  const int groups = a.blocks << a.groups_log2;
  const int splits = kPortableWarps >> a.groups_log2;  // warps of a group
  const PortableShared at = portable_shared(KT, unit_blocks, Planes, a.table_entries);
  auto* const sums = reinterpret_cast<int32_t*>(shared + at.sums);
  uint8_t* const tables = shared + at.tables;
  const int state_words = portable_words(groups, Planes, a.room_log2);
  uint2* const team_words = a.words + int64_t{team} * 2 * kPortableCopies * state_words;

  for (int i = thread; i < a.table_entries; i += kPortableThreads) reinterpret_cast<float*>(tables)[i] = a.tables[i];
  // What is padding stays zero.
  for (int i = thread * 16; i < at.sums; i += kPortableThreads * 16)
    *reinterpret_cast<uint4*>(shared + i) = uint4{0, 0, 0, 0};
  uint4 weights[3][KT];
  {
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

  // Cells of this thread: 16 units of a sequence lie beside each other in a warp.
  const int cells = (unit_blocks * 16) << a.room_log2;
  const int unit = thread % 16;
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
  Cell cell[kCells];
  const int64_t ih_step = (a.reverse ? -1 : 1) * int64_t{a.batch} * a.groups * 48;
  const int64_t y_step = a.reverse ? -a.y_step : a.y_step;
  const auto has_cells = [&](int i) { return i * kPortableThreads + warp * 32 < cells; };  // the same in a warp
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    Cell& one = cell[i];
    const int index = (i * kPortableThreads + thread) / 16;
    one.column = index & ((1 << a.room_log2) - 1);
    one.group = index >> a.room_log2;
    one.unit = (block * unit_blocks + one.group) * 16 + unit;
    one.exists = one.group < unit_blocks && one.column < columns && one.unit < a.hidden;
    const int64_t n = int64_t{first} + one.column;
    const int64_t first_t = a.reverse ? a.steps - 1 : 0;
    one.length = a.lengths != nullptr && one.exists ? max(a.lengths[n], 0) - a.first_step : INT32_MAX;
    one.ih = a.ih + ((first_t * a.batch + n) * a.groups + one.unit / 16) * 48 + unit;
    one.y = a.y + first_t * a.y_step + n * a.y_sequence + int64_t{one.unit} * a.y_unit;
    one.code = 0;
    if (!one.exists) continue;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      one.ratio[gate] = a.ratio[one.unit / 16 * 48 + gate * 16 + unit];
      one.start[gate] = a.start[one.unit / 16 * 48 + gate * 16 + unit];
    }
    // Planes from the high byte down; memory is little endian.
    const uint8_t* const state = a.state + (n * a.hidden + one.unit) * Planes;
    one.code = state[Planes - 1] ^ (a.flip & 0xff);
    if (Planes == 2) one.code = one.code << 8 | state[0];
  }
  // Of state s, for the others and for this block.
  const auto write_codes = [&](int s) {
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      if (!has_cells(i)) break;
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
  };
  // The state of the other blocks.
  const auto read_codes = [&](int s) {
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
  };
  const auto multiply = [&] {
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane) {
      const uint8_t* const from =
          shared + plane * at.plane_bytes + (warp % splits * kPairs * 4 + q) * kPortableGroupBytes + g * 16;
      int32_t acc[3][4]{};
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const uint4 b = *reinterpret_cast<const uint4*>(from + pair * 4 * kPortableGroupBytes);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          mma_s8u8(acc[gate], weights[gate][2 * pair], b.x, b.y);
          mma_s8u8(acc[gate], weights[gate][2 * pair + 1], b.z, b.w);
        }
      }
      int32_t* const to = sums + (warp * Planes + plane) * 3 * kPortableGatePitch;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          to[gate * kPortableGatePitch + (2 * q + i % 2) * kPortableSumPitch + g + i / 2 * 8] = acc[gate][i];
    }
  };
  // Asked for a step before it is needed.
  const auto load_ih = [&](int s) {
    if (s >= a.steps) return;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      if (!cell[i].exists) continue;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) cell[i].next_ih[gate] = cell[i].ih[gate * 16];
      cell[i].ih += ih_step;
    }
  };
  uint32_t ih[kCells][3]{};
  // Splits: of a group, as a constant: what it is not takes instructions, too.
  const auto update = [&](int s, auto of_group) {
    constexpr int kSplits = decltype(of_group)::value;
    const int t = a.reverse ? a.steps - 1 - s : s;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      if (2 * i * kSplits >= kPortableWarps) break;  // there are no more
      Cell& one = cell[i];
      if (!one.exists) continue;
      const bool keeps = t >= one.length || is_masked(a, t, int64_t{first} + one.column, one.unit);
      Real from_x[3][1], hh[3][1];
      uint32_t fresh[1];
      const int32_t* const from =
          sums + one.group * kSplits * Planes * 3 * kPortableGatePitch + one.column * kPortableSumPitch + unit;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        int32_t sum[Planes];
#pragma unroll
        for (int plane = 0; plane < Planes; ++plane) {
          int32_t part[kSplits];
#pragma unroll
          for (int split = 0; split < kSplits; ++split)
            part[split] = from[((split * Planes + plane) * 3 + gate) * kPortableGatePitch];
#pragma unroll
          for (int width = kSplits / 2; width > 0; width /= 2)
#pragma unroll
            for (int split = 0; split < width; ++split) part[split] = wrapping_add(part[split], part[split + width]);
          sum[plane] = part[0];
        }
        from_x[gate][0] = from_biased<Real>(ih[i][gate]);
        rescale_hh(c, {complete_sum<Ratio>(sum, one.start[gate])}, {one.ratio[gate]}, hh[gate]);
      }
      gru_gates(c, tables, from_x, hh, {from_code<Real>(one.code, c.h_from_code)}, fresh);
      if (!keeps) one.code = fresh[0] & (Planes == 2 ? 0xffff : 0xff);
      const uint32_t shown = t >= one.length ? c.h_to_unsigned : one.code;
      if (a.y_scale != 0) {
        *reinterpret_cast<float*>(one.y) = y_of<Planes>(a, shown);
      } else {
        one.y[Planes - 1] = static_cast<uint8_t>(shown >> 8 * (Planes - 1) ^ a.flip);
        if (Planes == 2) one.y[0] = static_cast<uint8_t>(shown);
      }
      one.y += y_step;
    }
  };

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
    multiply();
    __syncthreads();
    delay(a.delays, s, kDelayGates);
    if (KT > 4 || splits == 8) {
      update(s, std::integral_constant<int, 8>());
    } else if (splits == 4) {
      update(s, std::integral_constant<int, 4>());
    } else if (splits == 2) {
      update(s, std::integral_constant<int, 2>());
    } else {
      update(s, std::integral_constant<int, 1>());
    }
    delay(a.delays, s, kDelayWrite);
    if (s + 1 < a.steps) write_codes(s + 1);
  }
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    const Cell& one = cell[i];
    if (!one.exists) continue;
    uint8_t* const next_state = a.next_state + ((int64_t{first} + one.column) * a.hidden + one.unit) * Planes;
    next_state[Planes - 1] = static_cast<uint8_t>(one.code >> 8 * (Planes - 1) ^ a.flip);
    if (Planes == 2) next_state[0] = static_cast<uint8_t>(one.code);
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PORTABLE_CUH_
