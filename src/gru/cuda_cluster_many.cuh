// SPDX-License-Identifier: Apache-2.0
// The recurrence of H = 257 to 1024 for more sequences than the columns of one mma (cuda_cluster.cuh): products by
// wgmma, so that R is read once for up to 24 of them.
//
// Partition. A team is a cluster; its block b has hidden units 64 b to 64 b + 63, their rows of a gate are one matrix
// of 64 rows, so that a lane has the sums of u, r and n of the same cells. Two warpgroups multiply, each by half of the
// columns of R: KT tiles of 32 of them, in registers but for the last KShared, which are in shared memory. A tile is 16
// or 24 sequences, the columns of wgmma: up to 32 of them take the same time, which is that of reading R. Each
// warpgroup computes the gates of half of the cells, 4 or 6 a lane, and hands the other one the sums of the rest: of
// sequences 0 to 7 and 8 to 15 one each, of 16 to 23 units 0 to 7 and 8 to 15 of each warp.
//
// Tiles, turns, buffers of the state and their barriers are those of cuda_cluster.cuh, so is why nothing is written too
// early, with these differences:
//   - A product reads the state until wgmma_wait, which is before the gates of the same tile, and so before the state
//     that overwrites it is sent.
//   - Ih of a turn is taken after the gates of the turn before. Its slot is filled again with that of the turn
//     tiles + 1 later, when the state of the turn 1 later is there: whoever sent that has taken it.
//   - One more warp writes y, and the last state, from the block's codes in shared memory. It counts at the barrier of
//     state s + 1 after reading state s; state s + 2, which overwrites that, is computed after that barrier.
//   - Codes reach wgmma through fence.proxy.async of the threads that wrote them, and the barrier of all of them.
//   - Sums between warpgroups lie in one place: the barrier of a turn's codes is behind their last read.
//   - Nobody leaves the cluster before all have the last state that crosses, as copies read the sender's memory.
//
// The state of a tile: many_place. The order of k in it is that of ClusterArgs::fragments, of which both kernels read
// the same copy: there lane 4 g + q of k tiles 2 i and 2 i + 1 has columns 64 i + 16 q to + 15.
#ifndef ISOBIT_GRU_CUDA_CLUSTER_MANY_CUH_
#define ISOBIT_GRU_CUDA_CLUSTER_MANY_CUH_

#include <cstdint>

#include "core/cuda_ptx.cuh"
#include "core/cuda_wgmma.cuh"
#include "gru/cuda_cluster.cuh"

namespace isobit::cuda {

inline constexpr int kManyUnits = 64;                                   // of a block
inline constexpr int kManyThreads = 384;                                // two warpgroups that multiply, four more warps
inline constexpr int kManyIhRow = kManyUnits / 16 * kIhTileBytes + 16;  // no bank is met twice
inline constexpr int kManyWeightTile = 64 * 32;                         // bytes of a gate's rows by a k tile
inline constexpr int kManyExchange = 1, kManyCodes = 2;                 // named barriers

/// Offsets in dynamic shared memory.
struct ClusterManyShared {
  int32_t states, weights, ih, rows, sums, tables, lengths, total;
};
/// columns: sequences of a tile.
inline __host__ __device__ ClusterManyShared cluster_many_shared(int k_tiles, int k_shared, int columns, int tiles,
                                                                 int table_entries) {
  ClusterManyShared at{};
  at.states = kBarrierBytes;
  at.weights = at.states + tiles * 2 * k_tiles * columns * kManyUnits;
  at.ih = at.weights + 2 * k_shared * 3 * kManyWeightTile;
  at.rows = at.ih + (tiles + 1) * columns * kManyIhRow;
  at.sums = at.rows + 2 * 3 * kManyUnits * 4;  // ratios, starts
  at.tables = at.sums + 2 * 3 * 128 * columns;
  at.lengths = at.tables + (table_entries * 4 + 127) / 128 * 128;
  at.total = at.lengths + tiles * columns * 4;
  return at;
}

/// Where the code of a sequence and of a unit of the team lies in the state of a tile.
template <int Columns>
__host__ __device__ constexpr int many_place(int sequence, int unit) {
  return unit / kManyUnits * (Columns * kManyUnits) + sequence / 8 * 512 + unit / 8 % 2 * 256 + unit / 4 % 2 * 128 +
         sequence % 8 * 16 + unit / 16 % 4 * 4 + unit % 4;
}

/// KT: k tiles of a warpgroup, KShared of them in shared memory. Columns: sequences of a tile, 16 or 24.
template <int KT, int KShared, int Columns>
__global__ void __launch_bounds__(kManyThreads, 1)
    gru_cluster_many(const __grid_constant__ ClusterArgs<float, float> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kRegisters = KT - KShared;
  constexpr int kChunkBytes = Columns * kManyUnits;  // a block's codes of a tile
  constexpr int kStateBytes = KT * kChunkBytes;      // 2 KT tiles of 32 columns
  constexpr int kCells = Columns / 4;                // of a lane
  constexpr auto place_of = many_place<Columns>;
  extern __shared__ __align__(128) uint8_t shared[];
  const GateLanes<float>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const int most_sequences = a.sequence_tiles * Columns;
  const int first = static_cast<int>(blockIdx.x) / cluster * most_sequences;  // of the batch
  const int sequences = a.batch - first < most_sequences ? a.batch - first : most_sequences;
  const int tiles = (sequences + Columns - 1) / Columns;
  const int ih_slots = tiles + 1;
  const ClusterManyShared at = cluster_many_shared(KT, KShared, Columns, a.sequence_tiles, a.table_entries);
  uint8_t* const states = shared + at.states;
  const uint32_t barriers = shared_address(shared);
  const auto state_barrier = [&](int j, int s) { return barriers + 8 * static_cast<uint32_t>(2 * j + s % 2); };
  const auto ih_barrier = [&](int slot) { return barriers + kIhBarriers + 8 * static_cast<uint32_t>(slot); };
  /// Of state s > 0, whose codes are there.
  const auto wait_for_state = [&](int j, int s) {
    barrier_wait(state_barrier(j, s), static_cast<uint32_t>(s - 1) / 2 % 2);
  };
  const auto offset_of = [&](int j, int s) { return (2 * j + s % 2) * kStateBytes; };

  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += kManyThreads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  auto* const ratios = reinterpret_cast<float*>(shared + at.rows);  // [4][gate][16 units]
  auto* const starts = reinterpret_cast<int32_t*>(ratios + 3 * kManyUnits);
  for (int i = static_cast<int>(threadIdx.x); i < 3 * kManyUnits; i += kManyThreads) {
    ratios[i] = a.ratio[rank * 3 * kManyUnits + i];
    starts[i] = a.start[rank * 3 * kManyUnits + i];
  }
  auto* const lengths = reinterpret_cast<int32_t*>(shared + at.lengths);
  for (int i = static_cast<int>(threadIdx.x); i < tiles * Columns; i += kManyThreads)
    lengths[i] = a.lengths != nullptr && i < sequences ? a.lengths[first + i] - a.first_step : INT32_MAX;
  // Both buffers of the state: padding stays zero.
  for (int i = static_cast<int>(threadIdx.x) * 16; i < tiles * 2 * kStateBytes; i += kManyThreads * 16)
    *reinterpret_cast<uint4*>(states + i) = uint4{0, 0, 0, 0};
  __syncthreads();
  for (int i = 0; i < sequences; ++i) {
    const uint8_t* const from = a.state + (int64_t{first} + i) * a.hidden;
    for (int unit = static_cast<int>(threadIdx.x); unit < a.hidden; unit += kManyThreads)
      states[offset_of(i / Columns, 0) + place_of(i % Columns, unit)] =
          static_cast<uint8_t>(from[unit] ^ static_cast<uint8_t>(a.flip));
  }
  const int half = warp / 4;  // of k, and of the sequences whose gates this warpgroup computes
  const int quarter = warp % 4;
  const int g = lane / 4;
  const int q = lane % 4;
  uint8_t* const shared_weights = shared + at.weights + half * KShared * 3 * kManyWeightTile;
  const uint4* const weights_from = a.fragments + (int64_t{rank * 4 + quarter} * 2 + half) * 3 * KT * 32 + lane;
  if (warp < 8)
    for (int gate = 0; gate < 3; ++gate)
      for (int kt = 0; kt < KShared; ++kt) {
        const uint4 w = weights_from[(gate * KT + kRegisters + kt) * 32];
        // Matrices of 8 rows by 16 columns; the upper 16 columns behind all rows.
        uint8_t* const to = shared_weights + (kt * 3 + gate) * kManyWeightTile + quarter * 256 + g * 16 + q * 4;
        *reinterpret_cast<uint32_t*>(to) = w.x;
        *reinterpret_cast<uint32_t*>(to + 128) = w.y;
        *reinterpret_cast<uint32_t*>(to + 1024) = w.z;
        *reinterpret_cast<uint32_t*>(to + 1024 + 128) = w.w;
      }
  if (threadIdx.x == 0) {
    for (int j = 0; j < tiles; ++j)
      for (int i = 0; i < 2; ++i) barrier_init(state_barrier(j, i), 3);  // codes are there; armed; y is read
    for (int slot = 0; slot < ih_slots; ++slot) barrier_init(ih_barrier(slot), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  fence_before_copies();
  cluster_sync();

  if (warp >= 8) {
    trade_registers<40>();
    if (warp == 8) {
      // ---- Arms the barriers and fetches ih.
      if (!is_elected()) return;
      constexpr auto kBytes = static_cast<uint32_t>(kManyUnits / 16 * kIhTileBytes);
      int fetch_s = 0, fetch_j = 0, slot = 0;  // of the next turn to fetch
      const auto fetch_next = [&] {
        if (fetch_s >= a.steps) return;
        const int left = sequences - fetch_j * Columns;
        const int there = left < Columns ? left : Columns;
        const int64_t row =
            (a.reverse ? a.steps - 1 - fetch_s : fetch_s) * int64_t{a.batch} + first + fetch_j * Columns;
        const uint16_t* from = a.ih + (row * a.groups + rank * (kManyUnits / 16)) * 48;
        uint32_t to = shared_address(shared + at.ih) + static_cast<uint32_t>(slot * Columns * kManyIhRow);
        barrier_expect(ih_barrier(slot), kBytes * static_cast<uint32_t>(there));
        for (int i = 0; i < there; ++i) {
          fetch(to, from, kBytes, ih_barrier(slot));
          from += a.groups * 48;
          to += static_cast<uint32_t>(kManyIhRow);
        }
        slot = slot == ih_slots - 1 ? 0 : slot + 1;
        if (++fetch_j == tiles) {
          fetch_j = 0;
          ++fetch_s;
        }
      };
      fetch_next();
      for (int s = 0; s < a.steps; ++s)
        for (int j = 0; j < tiles; ++j) {
          if (s > 0) wait_for_state(j, s);
          if (s + 1 < a.steps) {
            barrier_expect(state_barrier(j, s + 1), static_cast<uint32_t>((cluster - 1) * kChunkBytes));
          } else {
            barrier_arrive(state_barrier(j, s + 1));
          }
          fetch_next();
        }
    } else if (warp == 9) {
      // ---- Writes y. A lane has four units of every second sequence.
      const auto zero = static_cast<uint32_t>(c.h_to_unsigned) * 0x01010101u;
      const bool words = a.hidden % 4 == 0 && a.y_step % 4 == 0 && a.y_sequence % 4 == 0 &&
                         reinterpret_cast<uintptr_t>(a.y) % 4 == 0 && reinterpret_cast<uintptr_t>(a.state) % 4 == 0;
      const int unit = lane % 16 * 4;
      const int left = a.hidden - rank * kManyUnits - unit;  // units that exist
      const auto write = [&](uint8_t* to, uint32_t codes) {
        if (words) {
          if (left > 0) *reinterpret_cast<uint32_t*>(to) = codes;
          return;
        }
        for (int i = 0; i < 4; ++i)
          if (i < left) to[i] = static_cast<uint8_t>(codes >> 8 * i);
      };
      if (lane == 0)
        for (int j = 0; j < tiles; ++j) barrier_arrive(state_barrier(j, 1));
      for (int s = 0; s < a.steps; ++s) {
        const int t = a.reverse ? a.steps - 1 - s : s;
        for (int j = 0; j < tiles; ++j) {
          wait_for_state(j, s + 1);
          const uint8_t* const from = states + offset_of(j, s + 1) + place_of(lane / 16, rank * kManyUnits + unit);
          uint32_t codes[Columns / 2];
#pragma unroll
          for (int i = 0; i < Columns / 2; ++i)
            codes[i] = *reinterpret_cast<const uint32_t*>(from + place_of(2 * i, 0));
          __syncwarp();
          if (lane == 0 && s + 2 <= a.steps) barrier_arrive(state_barrier(j, s + 2));
#pragma unroll
          for (int i = 0; i < Columns / 2; ++i) {
            const int row = j * Columns + 2 * i + lane / 16;
            if (row >= sequences) continue;
            const int64_t n = int64_t{first} + row;
            const uint32_t shown = t >= lengths[row] ? zero : codes[i];
            write(a.y + t * a.y_step + n * a.y_sequence + rank * kManyUnits + unit, shown ^ a.flip);
            if (s + 1 == a.steps) write(a.state + n * a.hidden + rank * kManyUnits + unit, codes[i] ^ a.flip);
          }
        }
      }
    }
    return;
  }

  // ---- The warps that multiply.
  trade_registers<232>();
  uint4 weights[3][kRegisters];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int kt = 0; kt < kRegisters; ++kt) weights[gate][kt] = weights_from[(gate * KT + kt) * 32];
  const int thread = static_cast<int>(threadIdx.x) % 128;
  // Cells k of this lane: 0 to 3 are units g and g + 8 (k / 2) of the warp's 16, sequences 8 half + 2 q + k % 2 of the
  // tile; 4 and 5 unit g + 8 half, sequences 16 + 2 q + k % 2.
  const int unit = rank * kManyUnits + quarter * 16 + g;
  const auto high_of = [&](int k) { return k < 4 ? k / 2 : half; };  // whether the unit is one of the upper 8
  const auto column_of = [&](int k) { return (k < 4 ? half * 8 : 16) + 2 * q + k % 2; };
  const int place = place_of(half * 8 + 2 * q, unit);
  const int further_place = place_of(16 + 2 * q, unit + half * 8);
  const auto place_of_cell = [&](int k) {
    return k < 4 ? place + k / 2 * 256 + k % 2 * 16 : further_place + k % 2 * 16;
  };
  const int ih_place = (half * 8 + 2 * q) * kManyIhRow + quarter * kIhTileBytes + g * 2;
  const int further_ih = (16 + 2 * q) * kManyIhRow + quarter * kIhTileBytes + g * 2 + half * 16;
  constexpr bool kKeepsRows = KT <= 8;  // ratios and starts in registers
  float ratio[3][2];
  int32_t start_of[3][2];
  const auto load_rows = [&] {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ratio[gate][i] = ratios[quarter * 48 + gate * 16 + g + 8 * i];
        start_of[gate][i] = starts[quarter * 48 + gate * 16 + g + 8 * i];
      }
  };
  if constexpr (kKeepsRows) load_rows();
  const uint8_t* const tables = shared + at.tables;
  const bool extras = a.lengths != nullptr || a.mask != nullptr;
  auto* const sums = reinterpret_cast<uint4*>(shared + at.sums) + thread;  // [half][gate]: of cells 0 to 3
  auto* const further_sums = reinterpret_cast<uint2*>(shared + at.sums + 2 * 3 * 128 * 16) + thread;  // of 4 and 5
  const uint64_t b_matrix =
      core_matrices(shared_address(states) + static_cast<uint32_t>(half * (kStateBytes / 2)), 512);
  const uint64_t a_matrix = core_matrices(shared_address(shared_weights), 128, 1024);
  // The shared memory of the blocks that this warp copies to; 0: none, as the first KB of a block is the system's.
  uint32_t receiver[2]{};
  for (int i = 0; i < 2; ++i)
    if (const int other = warp + 8 * i; other < cluster - 1)
      receiver[i] = address_in(barriers, static_cast<uint32_t>((rank + 1 + other) % cluster));
  int32_t acc[3][Columns / 2];
  float ih[kCells][3], h[kCells];
  int slot = 0;
  uint32_t slot_parity = 0;
  // Ih of the next turn, and the product of tile j's state s, once that is there. Behind the last turn what is
  // multiplied is of no use to anybody: wgmma may not depend on a condition.
  const auto start = [&](int j, int s) {
    if (s < a.steps) {
      barrier_wait(ih_barrier(slot), slot_parity);
      const uint8_t* const from = shared + at.ih + slot * Columns * kManyIhRow;
#pragma unroll
      for (int k = 0; k < kCells; ++k)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          ih[k][gate] = from_biased<float>(*reinterpret_cast<const uint16_t*>(
              from + (k < 4 ? ih_place + k / 2 * 16 : further_ih) + k % 2 * kManyIhRow + gate * 32));
      if (++slot == ih_slots) {
        slot = 0;
        slot_parity ^= 1;
      }
      if (s > 0) wait_for_state(j, s);
    }
    __syncwarp();
    keep_in_registers(acc);
    wgmma_fence();
    const uint64_t b = b_matrix + static_cast<uint32_t>(offset_of(j, s) >> 4);
#pragma unroll
    for (int kt = 0; kt < KT; ++kt)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        const uint64_t at_k = b + static_cast<uint32_t>((kt / 2 * kChunkBytes + kt % 2 * 256) >> 4);
        if (kt < kRegisters) {
          wgmma_s8u8(acc[gate], weights[gate][kt < kRegisters ? kt : 0], at_k, kt > 0);
        } else {
          wgmma_s8u8(acc[gate], a_matrix + static_cast<uint32_t>(((kt - kRegisters) * 3 + gate) * kManyWeightTile >> 4),
                     at_k, kt > 0);
        }
      }
    wgmma_commit();
    const uint8_t* const from = states + offset_of(j, s);
#pragma unroll
    for (int k = 0; k < kCells; ++k) h[k] = from_code<float>(from[place_of_cell(k)], c.h_from_code);
  };
  start(0, 0);
  for (int s = 0; s < a.steps; ++s) {
    const bool last = s + 1 == a.steps;
    const int t = a.reverse ? a.steps - 1 - s : s;
    for (int j = 0; j < tiles; ++j) {
      wgmma_wait<0>();
      keep_in_registers(acc);
      // acc[gate][4 (column / 8) + 2 (unit / 8) + column % 2].
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        const int32_t(&d)[Columns / 2] = acc[gate];
        const auto to_other = [&](int k) { return static_cast<uint32_t>(half == 0 ? d[4 + k] : d[k]); };
        sums[((1 - half) * 3 + gate) * 128] = uint4{to_other(0), to_other(1), to_other(2), to_other(3)};
        if constexpr (Columns == 24)
          further_sums[((1 - half) * 3 + gate) * 128] =
              uint2{static_cast<uint32_t>(half == 0 ? d[10] : d[8]), static_cast<uint32_t>(half == 0 ? d[11] : d[9])};
      }
      named_barrier_sync(kManyExchange, 256);
      if constexpr (!kKeepsRows) load_rows();
      float fresh[kCells];
      {
        float hh[3][kCells];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const int32_t(&d)[Columns / 2] = acc[gate];
          const uint4 more = sums[(half * 3 + gate) * 128];
          int32_t part[kCells] = {static_cast<int32_t>(more.x), static_cast<int32_t>(more.y),
                                  static_cast<int32_t>(more.z), static_cast<int32_t>(more.w)};
          if constexpr (Columns == 24) {
            const uint2 further = further_sums[(half * 3 + gate) * 128];
            part[4] = static_cast<int32_t>(further.x);
            part[5] = static_cast<int32_t>(further.y);
          }
#pragma unroll
          for (int k = 0; k < kCells; ++k) {
            const int32_t own = k < 4 ? (half == 0 ? d[k % 4] : d[4 + k % 4])
                                      : (half == 0 ? d[8 % (Columns / 2) + k % 2] : d[10 % (Columns / 2) + k % 2]);
            const int32_t start_value = k < 4       ? start_of[gate][k / 2 % 2]
                                        : half == 0 ? start_of[gate][0]
                                                    : start_of[gate][1];
            const float ratio_value = k < 4 ? ratio[gate][k / 2 % 2] : half == 0 ? ratio[gate][0] : ratio[gate][1];
            const int32_t sum = wrapping_add(wrapping_add(own, part[k]), start_value);
            hh[gate][k] = rescale_hh<float, float>(c, to_lane<float>(sum), ratio_value);
          }
        }
#pragma unroll
        for (int k = 0; k < kCells; ++k)
          fresh[k] = gru_gates(c, tables, ih[k][0], ih[k][1], ih[k][2], hh[0][k], hh[1][k], hh[2][k], h[k]);
      }
      if (extras) {
        for (int k = 0; k < kCells; ++k) {
          const int row = j * Columns + column_of(k);
          if (row >= sequences) continue;
          const int of_all = unit + high_of(k) * 8;
          const bool masked =
              a.mask != nullptr && of_all < a.hidden &&
              a.mask[((int64_t{t} + a.first_step) * a.batch + first + row) * a.mask_width + of_all] == 0;
          if (t >= lengths[row] || masked) fresh[k] = h[k];
        }
      }
      const int next_state = offset_of(j, s + 1);
#pragma unroll
      for (int k = 0; k < kCells; ++k)
        states[next_state + place_of_cell(k)] = static_cast<uint8_t>(low_bits(add(fresh[k], c.h_to_code)));
      fence_before_copies();
      named_barrier_sync(kManyCodes, 256);
      if (is_elected()) {
        if (!last) {
          const auto from = static_cast<uint32_t>(next_state + rank * kChunkBytes);
          const uint32_t barrier = state_barrier(j, s + 1) - barriers;
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (receiver[i] != 0)
              copy_to_block(receiver[i] + static_cast<uint32_t>(at.states) + from, shared_address(states) + from,
                            kChunkBytes, receiver[i] + barrier);
        }
        if (warp == 0) barrier_arrive(state_barrier(j, s + 1));
      }
      start(j + 1 < tiles ? j + 1 : 0, j + 1 < tiles ? s : s + 1);
    }
  }
  wgmma_wait<0>();
  // All blocks have had the last state that crosses.
  cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_MANY_CUH_
