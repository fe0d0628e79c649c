// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence above H = 1024: R stays in the registers of all thread blocks of the launch, the team, for
// all steps; per step only the new state crosses, between clusters of them through global memory.
//
// Partition. Block b of the team owns `unit_blocks` groups of 16 hidden units, for each the rows of gate u, r and n.
// The columns of R (k) are split over `k_splits` warps for each group, kGridTiles tiles of 32 columns a warp: its
// weights are 3 * kGridTiles fragments of mma.m16n8k32, in registers. The 8 columns of an mma are 8 sequences, a tile
// of sequences; a launch takes up to `sequence_tiles` of them, further launches the rest.
//
// The tiles of sequences are recurrences of their own. Warps take them in turn, tile after tile, step after step: while
// the state of one crosses, the next is multiplied. Turn v is tile v % sequence_tiles of step v / sequence_tiles.
//
// One turn (s, j):
//   1. the multiplying warps wait until the whole state h_s of tile j is in shared memory, multiply, and leave sums
//      there;
//   2. one gate warp a group of units waits for them, and for ih; computes the gates, 1, 2 or 4 cells a lane;
//   3. and writes the new codes to global memory, each word of data beside the number of its step; forwarding warps of
//      every cluster, which poll those words, send them to its blocks (st.async, which counts bytes at the receiver's
//      barrier);
//   4. the service warp, or, where there is no room for it, one of the multiplying warps, another one in each turn,
//      fetches ih of a later turn (bulk copies), writes y, and arms the barrier of h_(s+1).
//
// Why no buffer is written too early. With three buffers, state s of a tile lies in buffer s % 3, which is written
// again by sends of state s + 3. Whoever sends that has state s + 2 from every group, so every gate warp of this block
// has sent it, after all warps that it gets sums from had waited for state s + 1. That wait ends only after the barrier
// of s + 1 is armed, which service does after reading state s for y; and the gate warps have sent state s + 1 after the
// last reads of state s. With two buffers, where shared memory is short, state s is written again by state s + 2, whose
// sender has state s + 1 from every group: service says beside the multiplying warps that it has read state s, and the
// gate warps wait for that, too, before they send s + 1. A forwarding warp sends what a group wrote after
// the same waits. Words in global memory are written again for state s + 2, by a group that has state s + 1: then every
// block has sent s + 1, so it had all of state s, and every forwarding warp has read it. Ih of turn v lies in slot v %
// 8, and is fetched when the state of turn v - 8 + sequence_tiles is there: then every gate warp of this block has sent
// that state, so it has taken ih of turn v - 8. Sums of turn v lie in slot v % 3; with more tiles than that a barrier
// counts who has taken them.
//
// Barriers: state s > 0 of tile j completes phase (s - 1) / 2 of barrier [j][s % 2]. Bytes that arrive before the
// barrier is armed are counted: the phase cannot end before the arrival that arms it, and the phase before has ended,
// as its state was needed by the sender.
//
// Codes of 16 bits are two bytes, in two planes of the state, with a sum each: 256 * high + low is exact in double
// lanes.
#ifndef ISOBIT_GRU_CUDA_GRID_CUH_
#define ISOBIT_GRU_CUDA_GRID_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda_ptx.cuh"
#include "gru/cuda_gates.cuh"
#include "gru/cuda_persistent.h"
#include "linear/cuda_mma.cuh"

namespace isobit::cuda {

inline constexpr int kGridTiles = 8;                 // k tiles of a warp
inline constexpr int kColumns = 8;                   // sequences of a tile: the columns of an mma
inline constexpr int kGridIhSlots = 8;               // turns whose ih is in shared memory
inline constexpr int kGridIhTileBytes = 3 * 16 * 2;  // of one turn, sequence and group of units
inline constexpr int kSumSlots = 3;                  // turns whose sums are in shared memory
inline constexpr int kSumBytes = 3 * 16 * 8 * 4;     // of one warp, a plane
inline constexpr int kForwarders = 2;                // warps of a block in a grid
inline constexpr int kMaxGridSequenceTiles = 7;      // less than kGridIhSlots
inline constexpr int kMaxUnitBlocks = 4;

/// Real: lanes of the gates; Sum: of accumulators and their rescale.
template <typename Real, typename Sum>
struct GridArgs {
  GateLanes<Real> gates;
  const uint4* fragments;     // R, in the order in which warps load it
  const StartOf<Sum>* start;  // of hh's accumulators, tile order (kernels.h)
  const Sum* ratio;           // accumulator -> hh, tile order
  const float* tables;        // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries;      // of all three
  /// ih rescaled to the gate inputs, plus 32768: [steps][batch][groups of 16 units][gate][unit].
  const uint16_t* ih;
  int32_t groups;      // of 16 units in ih, padded ones included
  int32_t first_step;  // of these steps in the sequence: what lengths and the mask are counted from
  int32_t steps, batch, hidden;
  int32_t first_sequence, sequences;  // of this launch
  const uint8_t* state_before;        // [batch][hidden] codes
  uint8_t* state;                     // the same, of the last step; may be state_before
  uint8_t* y;                         // codes; already offset to this direction's columns
  int64_t y_step, y_sequence;         // bytes
  uint32_t flip;                      // the sign bit of signed codes, of the high bytes, in all four bytes
  const int32_t* lengths;             // [batch], or null
  const uint8_t* mask;                // [steps][batch][mask_width], or null
  int64_t mask_width;
  bool reverse;
  int32_t cluster, unit_blocks, k_splits, sequence_tiles, state_buffers;
  uint2* exchange;  // [tile][s % 2][group][plane][sequence][4] words: four codes, s. Zero at the start
};

// ---- The cut of a block: warps, registers, shared memory

/// Warps of a block: warpgroups of four that multiply; then a gate warp a group of units, the service warp, where there
/// is room for it, and the forwarding warps. 12 warps have 168 registers a thread.
inline constexpr int kMaxGridMultiplying = 8;
inline constexpr int kMaxGridWarps = 12;
inline __host__ __device__ int32_t first_gate_warp(int32_t multiplying) { return (multiplying + 3) / 4 * 4; }
inline __host__ __device__ bool has_service_warp(int32_t multiplying, int32_t unit_blocks) {
  return first_gate_warp(multiplying) + unit_blocks < kMaxGridWarps;
}

inline __host__ __device__ int32_t grid_h_stride(int32_t k) { return (k + 127) / 128 * 128 + 64; }

/// Offsets in dynamic shared memory.
struct GridShared {
  int32_t h_stride, states, staging, ih, rows, sums, tables, lengths, total;
};
/// Barriers: state [tile][2]; ih is there [slot]; sums are there, sums are taken [slot][group].
inline constexpr uint32_t kGridIhBarriers = 8 * 2 * (kMaxGridSequenceTiles + 1);
inline constexpr uint32_t kSumBarriers = kGridIhBarriers + 8 * kGridIhSlots;
inline constexpr uint32_t kSumFree = kSumBarriers + 8 * kSumSlots * kMaxUnitBlocks;
inline constexpr int32_t kGridBarrierBytes = 512;
static_assert(kSumFree + 8 * kSumSlots * kMaxUnitBlocks <= kGridBarrierBytes);

struct GridShape {
  int32_t planes, sum_bytes;
  int32_t team, unit_blocks, k_splits, sequence_tiles, state_buffers;  // team: blocks
  int32_t table_entries;
};
inline __host__ __device__ GridShared grid_shared(const GridShape& shape) {
  GridShared at{};
  const int32_t units = shape.team * shape.unit_blocks * 16;
  const int32_t k_padded = shape.k_splits * kGridTiles * 32;
  const int32_t warps = shape.unit_blocks * shape.k_splits;
  at.h_stride = grid_h_stride(units > k_padded ? units : k_padded);
  at.states = kGridBarrierBytes;
  at.staging = at.states + shape.sequence_tiles * shape.state_buffers * shape.planes * kColumns * at.h_stride;
  at.ih = at.staging + shape.unit_blocks * shape.planes * 128;
  at.rows = at.ih + kGridIhSlots * kColumns * shape.unit_blocks * kGridIhTileBytes;
  at.sums = at.rows + shape.unit_blocks * 48 * 2 * shape.sum_bytes;  // of each group: ratios, starts of 48 rows
  at.tables = at.sums + kSumSlots * warps * kSumBytes * shape.planes;
  at.lengths = at.tables + (shape.table_entries * 4 + 127) / 128 * 128;
  at.total = at.lengths + shape.sequence_tiles * kColumns * 4;
  return at;
}

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Together {
  T v[kCount];
};

/// Where the sum of a sequence and a unit is, of the 128 of a gate: as the multiplying warps write them and as gate
/// warps read them, no bank is met twice.
__device__ __forceinline__ int sum_place(int sequence, int unit) {
  return (sequence ^ (sequence >> 2 & 1)) * 16 + (unit ^ (sequence & 2) << 2);
}

/// Planes: bytes of a code of h.
template <int Planes, typename Real, typename Sum>
__global__ void __launch_bounds__(32 * kMaxGridWarps, 1) gru_grid(const __grid_constant__ GridArgs<Real, Sum> a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t shared[];
  const GateLanes<Real>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int threads = static_cast<int>(blockDim.x);
  const int splits = a.k_splits;
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const auto team = static_cast<int>(gridDim.x);
  const auto member = static_cast<int>(blockIdx.x);
  const int multiplying = a.unit_blocks * splits;  // warps
  const int gate_warp = warp - first_gate_warp(multiplying);
  const bool own_service = has_service_warp(multiplying, a.unit_blocks);
  const int most_sequences = a.sequence_tiles * kColumns;
  const int sequences = a.sequences < most_sequences ? a.sequences : most_sequences;  // columns of the tiles
  const int sequence_tiles = (sequences + kColumns - 1) / kColumns;
  const int first = a.first_sequence;  // of the batch
  const auto columns_of = [&](int j) {
    return sequences - j * kColumns < kColumns ? sequences - j * kColumns : kColumns;
  };
  const GridShared at = grid_shared({Planes, static_cast<int32_t>(sizeof(Sum)), team, a.unit_blocks, splits,
                                     a.sequence_tiles, a.state_buffers, a.table_entries});
  const int h_stride = at.h_stride;
  const int plane_bytes = kColumns * h_stride;
  const int state_bytes = Planes * plane_bytes;
  uint8_t* const h_memory = shared + at.states;
  // `buffer`: the step modulo the number of buffers.
  const auto state_in = [&](int j, int buffer) { return h_memory + (j * a.state_buffers + buffer) * state_bytes; };
  const auto after = [&](int buffer) { return buffer == a.state_buffers - 1 ? 0 : buffer + 1; };
  const uint32_t barriers = shared_address(shared);
  const auto state_barrier = [&](int j, int s) { return barriers + 8 * static_cast<uint32_t>(2 * j + s % 2); };
  const bool guarded = a.state_buffers == 2;
  const bool counted = sequence_tiles > kSumSlots;  // who has taken sums
  const auto sum_barrier = [&](uint32_t kind, int slot, int group) {
    return barriers + kind + 8 * static_cast<uint32_t>(slot * kMaxUnitBlocks + group);
  };

  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += threads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  for (int i = static_cast<int>(threadIdx.x); i < a.unit_blocks * 48; i += threads) {
    uint8_t* const rows = shared + at.rows + i / 48 * 48 * 2 * static_cast<int>(sizeof(Sum));
    reinterpret_cast<Sum*>(rows)[i % 48] = a.ratio[member * a.unit_blocks * 48 + i];
    reinterpret_cast<StartOf<Sum>*>(rows)[48 + i % 48] = a.start[member * a.unit_blocks * 48 + i];
  }
  auto* const lengths = reinterpret_cast<int32_t*>(shared + at.lengths);
  for (int i = static_cast<int>(threadIdx.x); i < sequence_tiles * kColumns; i += threads)
    lengths[i] = a.lengths != nullptr && i < sequences ? a.lengths[first + i] - a.first_step : INT32_MAX;
  // All buffers of the state: padding stays zero.
  for (int i = static_cast<int>(threadIdx.x) * 16; i < sequence_tiles * a.state_buffers * state_bytes;
       i += threads * 16)
    *reinterpret_cast<uint4*>(h_memory + i) = uint4{0, 0, 0, 0};
  __syncthreads();
  for (int i = 0; i < sequences; ++i) {
    uint8_t* const row = state_in(i / kColumns, 0) + i % kColumns * h_stride;
    const uint8_t* const from = a.state_before + (int64_t{first} + i) * a.hidden * Planes;
    for (int unit = static_cast<int>(threadIdx.x); unit < a.hidden; unit += threads) {
      // Planes from the high byte down; memory is little endian.
      row[unit] = static_cast<uint8_t>(from[unit * Planes + Planes - 1] ^ static_cast<uint8_t>(a.flip));
      if (Planes == 2) row[plane_bytes + unit] = from[unit * Planes];
    }
  }
  if (threadIdx.x == 0) {
    for (int j = 0; j < sequence_tiles; ++j)
      for (int i = 0; i < 2; ++i) barrier_init(state_barrier(j, i), 1);
    for (int slot = 0; slot < kSumSlots; ++slot)
      for (int group = 0; group < a.unit_blocks; ++group) {
        barrier_init(sum_barrier(kSumBarriers, slot, group), static_cast<uint32_t>(splits + (guarded ? 1 : 0)));
        barrier_init(sum_barrier(kSumFree, slot, group), 1);
      }
    for (uint32_t i = 0; i < kGridIhSlots; ++i) barrier_init(barriers + kGridIhBarriers + 8 * i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();

  // ---- Service; whole warps.
  const auto fetch_ih = [&](int turn) {
    const int s = turn / sequence_tiles;
    if (s >= a.steps) return;
    const int j = turn - s * sequence_tiles;
    const int columns = columns_of(j);
    const auto slot = static_cast<uint32_t>(turn % kGridIhSlots);
    const auto bytes = static_cast<uint32_t>(a.unit_blocks * kGridIhTileBytes);
    if (lane < columns) {
      const int64_t row = (a.reverse ? a.steps - 1 - s : s) * int64_t{a.batch} + first + j * kColumns + lane;
      fetch(shared_address(shared + at.ih) + (slot * kColumns + static_cast<uint32_t>(lane)) * bytes,
            a.ih + (row * a.groups + member * a.unit_blocks) * 48, bytes, barriers + kGridIhBarriers + 8 * slot);
    }
    __syncwarp();
    if (lane == 0) barrier_expect(barriers + kGridIhBarriers + 8 * slot, bytes * static_cast<uint32_t>(columns));
  };
  // y of state s of tile j. Lane: sequence by 8, pieces of 16 units by 4.
  const auto write_y = [&](int s, int j, const uint8_t* state) {
    const int column = lane % 8;
    const int columns = columns_of(j);
    if (column >= columns) return;
    const int t = a.reverse ? a.steps - s : s - 1;
    const int left = a.hidden - member * a.unit_blocks * 16;  // units of this block that exist
    const bool frozen = t >= lengths[j * kColumns + column];
    uint8_t* const to = a.y + t * a.y_step + (first + j * kColumns + column) * a.y_sequence +
                        int64_t{member} * a.unit_blocks * 16 * Planes;
    const bool aligned = reinterpret_cast<uintptr_t>(to) % 16 == 0;
    const uint8_t* const row = state + column * h_stride;
    for (int group = lane / 8; group * 16 < left && group < a.unit_blocks; group += 4) {
      const uint8_t* const from = row + (member * a.unit_blocks + group) * 16;
      if (aligned && !frozen && group * 16 + 16 <= left) {
        uint4 high = *reinterpret_cast<const uint4*>(from);
        high = uint4{high.x ^ a.flip, high.y ^ a.flip, high.z ^ a.flip, high.w ^ a.flip};
        if constexpr (Planes == 1) {
          *reinterpret_cast<uint4*>(to + group * 16) = high;
        } else {
          const uint4 low = *reinterpret_cast<const uint4*>(from + plane_bytes);
          auto* const codes = reinterpret_cast<uint4*>(to + group * 32);
          codes[0] = uint4{__byte_perm(low.x, high.x, 0x5140), __byte_perm(low.x, high.x, 0x7362),
                           __byte_perm(low.y, high.y, 0x5140), __byte_perm(low.y, high.y, 0x7362)};
          codes[1] = uint4{__byte_perm(low.z, high.z, 0x5140), __byte_perm(low.z, high.z, 0x7362),
                           __byte_perm(low.w, high.w, 0x5140), __byte_perm(low.w, high.w, 0x7362)};
        }
      } else {
        const auto zero = static_cast<uint32_t>(c.h_to_unsigned);
        for (int i = 0; i < 16 && group * 16 + i < left; ++i) {
          uint8_t* const code = to + (group * 16 + i) * Planes;
          const uint32_t high = frozen ? zero >> 8 * (Planes - 1) : from[i];
          code[Planes - 1] = static_cast<uint8_t>(high ^ a.flip);
          if (Planes == 2) code[0] = frozen ? static_cast<uint8_t>(zero) : from[plane_bytes + i];
        }
      }
    }
  };
  // State s of tile j is there.
  const auto serve = [&](int s, int j, int turn, const uint8_t* state, int slot, uint32_t free_parity) {
    fetch_ih(turn + kGridIhSlots - sequence_tiles);
    if (s > 0) write_y(s, j, state);
    __syncwarp();
    if (guarded && lane < a.unit_blocks) {
      if (counted && turn >= kSumSlots) barrier_wait(sum_barrier(kSumFree, slot, lane), free_parity);
      barrier_arrive(sum_barrier(kSumBarriers, slot, lane));
    }
    if (lane == 0 && s + 1 < a.steps)
      barrier_expect(state_barrier(j, s + 1),
                     static_cast<uint32_t>(columns_of(j) * team * a.unit_blocks * 16 * Planes));
  };
  const auto first_fetches = [&] {
    for (int turn = 0; turn < kGridIhSlots - sequence_tiles; ++turn) fetch_ih(turn);
  };
  // Slots of sums: the turn modulo their number, and the phase of those who took the ones before.
  struct SumSlot {
    int index = 0;
    uint32_t free_parity = 1;
    __device__ void next() {
      if (++index == kSumSlots) {
        index = 0;
        free_parity ^= 1;
      }
    }
  };

  if (gate_warp < 0) {
    // ---- The warps that multiply.
    if (warp >= multiplying) return;
    if (warp == 0 && !own_service) first_fetches();
    const int group = warp / splits;  // of this block
    const int split = warp % splits;
    const int unit_group = member * a.unit_blocks + group;
    uint4 weights[3][kGridTiles];
    {
      const uint4* from = a.fragments + (int64_t{unit_group} * splits + split) * 3 * kGridTiles * 32 + lane;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int kt = 0; kt < kGridTiles; ++kt) weights[gate][kt] = from[(gate * kGridTiles + kt) * 32];
    }
    // This thread's accumulators: rows row and row + 8 of a tile, columns pair and pair + 1.
    const int row = lane / 4;
    const int pair = lane % 4 * 2;
    const auto* const row_start =
        reinterpret_cast<const StartOf<Sum>*>(shared + at.rows + group * 48 * 2 * sizeof(Sum)) + 48 + row;
    const int b_offset = row * h_stride + split * kGridTiles * 32 + lane % 4 * 16;
    uint8_t* const sums = shared + at.sums + warp * kSumBytes * Planes;
    const uint32_t sums_there = sum_barrier(kSumBarriers, 0, group);
    const uint32_t sums_free = sum_barrier(kSumFree, 0, group);
    const int slot_bytes = multiplying * kSumBytes * Planes;
    int serving = 0;  // the turn modulo the number of warps
    SumSlot slot;
    int turn = 0;
    int now = 0;  // buffer of state s
    for (int s = 0; s < a.steps; ++s) {
      const uint32_t parity = (s - 1) / 2 % 2;
      for (int j = 0; j < sequence_tiles; ++j, ++turn) {
        const int columns = columns_of(j);
        const bool any = row < columns;  // this lane's part of b
        const uint8_t* const state = state_in(j, now);
        // In float lanes the tensor instruction adds it, in double lanes the gate warp.
        int32_t start[3][2] = {};
        if constexpr (sizeof(Sum) == 4)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
#pragma unroll
            for (int half = 0; half < 2; ++half) start[gate][half] = split == 0 ? row_start[gate * 16 + half * 8] : 0;
        if (s > 0) barrier_wait(state_barrier(j, s), parity);
        int32_t acc[3][4], more[3][4] = {};
#pragma unroll
        for (int plane = 0; plane < Planes; ++plane) {
          const uint8_t* const b_from = state + plane * plane_bytes + b_offset;
#pragma unroll
          for (int kt = 0; kt < kGridTiles; kt += 2) {
            uint4 b{0, 0, 0, 0};
            if (any) b = *reinterpret_cast<const uint4*>(b_from + kt * 32);
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
              // Two chains, so that one warp keeps the tensor cores busy.
              if (kt == 0) {
                mma_s8u8(acc[gate], weights[gate][kt], b.x, b.y, start[gate][0], start[gate][1]);
                mma_s8u8(more[gate], weights[gate][kt + 1], b.z, b.w, 0, 0);
              } else {
                mma_s8u8(acc[gate], weights[gate][kt], b.x, b.y);
                mma_s8u8(more[gate], weights[gate][kt + 1], b.z, b.w);
              }
            }
          }
          if (plane == 0 && counted && turn >= kSumSlots)
            barrier_wait(sums_free + 8 * kMaxUnitBlocks * static_cast<uint32_t>(slot.index), slot.free_parity);
          auto* const to = reinterpret_cast<int32_t*>(sums + slot.index * slot_bytes + plane * kSumBytes);
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              if (pair + i % 2 < columns)
                to[gate * 128 + sum_place(pair + i % 2, row + i / 2 * 8)] = wrapping_add(acc[gate][i], more[gate][i]);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(sums_there + 8 * kMaxUnitBlocks * static_cast<uint32_t>(slot.index));
        if (!own_service) {
          if (warp == serving) serve(s, j, turn, state, slot.index, slot.free_parity);
          serving = serving == multiplying - 1 ? 0 : serving + 1;
        }
        slot.next();
      }
      now = after(now);
    }
    return;
  }
  if (gate_warp < a.unit_blocks) {
    // ---- The gate warps.
    const int group = gate_warp;
    const int unit_group = member * a.unit_blocks + group;
    uint8_t* const mine = shared + at.staging + group * Planes * 128;  // [plane][8][16] codes on their way
    const uint8_t* const tables = shared + at.tables;
    const bool extras = a.lengths != nullptr || a.mask != nullptr;
    const int slot_bytes = multiplying * kSumBytes * Planes;
    SumSlot slot;
    int turn = 0;
    int now = 0;
    for (int s = 0; s < a.steps; ++s) {
      const int next = after(now);
      for (int j = 0; j < sequence_tiles; ++j, ++turn) {
        const int columns = columns_of(j);
        const auto ih_slot = static_cast<uint32_t>(turn % kGridIhSlots);
        barrier_wait(barriers + kGridIhBarriers + 8 * ih_slot, turn / kGridIhSlots % 2);
        // Cells of one sequence a lane: units next to each other.
        const auto gates = [&](auto cells) {
          constexpr int kCells = decltype(cells)::value;
          const int sequence = lane / (16 / kCells);
          const int unit = lane % (16 / kCells) * kCells;  // of the group
          const bool exists = sequence < columns;
          Together<uint16_t, kCells> ih[3];
          Together<uint8_t, kCells> old[Planes];
          Together<Sum, kCells> ratio[3];
          const uint8_t* const rows = shared + at.rows + (group * 96 + unit) * static_cast<int>(sizeof(Sum));
          const uint8_t* const ih_from =
              shared + at.ih +
              ((static_cast<int>(ih_slot) * kColumns + sequence) * a.unit_blocks + group) * kGridIhTileBytes + unit * 2;
          const uint8_t* const old_from = state_in(j, now) + sequence * h_stride + unit_group * 16 + unit;
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            ratio[gate] =
                *reinterpret_cast<const Together<Sum, kCells>*>(rows + gate * 16 * static_cast<int>(sizeof(Sum)));
            if (exists) ih[gate] = *reinterpret_cast<const Together<uint16_t, kCells>*>(ih_from + gate * 32);
          }
          barrier_wait(sum_barrier(kSumBarriers, slot.index, group), slot.free_parity ^ 1);
          if (!exists) return;
            // Whoever arrived there had seen the state.
#pragma unroll
          for (int plane = 0; plane < Planes; ++plane)
            old[plane] = *reinterpret_cast<const Together<uint8_t, kCells>*>(old_from + plane * plane_bytes);
          Together<int32_t, kCells> sum[Planes][3];
          {
            const uint8_t* const from = shared + at.sums + slot.index * slot_bytes +
                                        group * splits * Planes * kSumBytes + sum_place(sequence, unit) * 4;
            const auto part = [&](int split, int plane, int gate) {
              return *reinterpret_cast<const Together<int32_t, kCells>*>(from + (split * Planes + plane) * kSumBytes +
                                                                         gate * 512);
            };
#pragma unroll
            for (int split = 0; split < kMaxGridMultiplying; ++split) {
              if (split >= splits) break;
#pragma unroll
              for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
                for (int gate = 0; gate < 3; ++gate) {
                  const auto more = part(split, plane, gate);
#pragma unroll
                  for (int i = 0; i < kCells; ++i)
                    sum[plane][gate].v[i] = split == 0 ? more.v[i] : wrapping_add(sum[plane][gate].v[i], more.v[i]);
                }
            }
          }
          Real h[kCells], fresh[kCells];
#pragma unroll
          for (int i = 0; i < kCells; ++i) {
            const auto hh = [&](int gate) {
              Sum value = to_lane<Sum>(sum[0][gate].v[i]);
              if constexpr (sizeof(Sum) == 8) {
                if (Planes == 2) value = fused(value, 256.0, to_lane<Sum>(sum[Planes - 1][gate].v[i]));
                value = add(value, reinterpret_cast<const StartOf<Sum>*>(rows)[48 + gate * 16 + i]);
              }
              return rescale_hh<Real, Sum>(c, value, ratio[gate].v[i]);
            };
            int32_t code = old[0].v[i];
            if (Planes == 2) code = code << 8 | old[Planes - 1].v[i];
            h[i] = to_lane<Real>(code - c.h_to_unsigned);
            fresh[i] = gru_gates(c, tables, from_biased<Real>(ih[0].v[i]), from_biased<Real>(ih[1].v[i]),
                                 from_biased<Real>(ih[2].v[i]), hh(0), hh(1), hh(2), h[i]);
          }
          if (extras) {
            const int t = a.reverse ? a.steps - 1 - s : s;
            const int64_t n = int64_t{first} + j * kColumns + sequence;
            const bool frozen = t >= lengths[j * kColumns + sequence];
            for (int i = 0; i < kCells; ++i) {
              bool keeps = frozen;
              if (a.mask != nullptr && unit_group * 16 + unit + i < a.hidden)
                keeps =
                    keeps ||
                    a.mask[((int64_t{t} + a.first_step) * a.batch + n) * a.mask_width + unit_group * 16 + unit + i] ==
                        0;
              if (keeps) fresh[i] = h[i];
            }
          }
          Together<uint8_t, kCells> codes[Planes];
#pragma unroll
          for (int i = 0; i < kCells; ++i) {
            const uint32_t bits = low_bits(add(fresh[i], c.h_to_code));
            codes[0].v[i] = static_cast<uint8_t>(bits >> 8 * (Planes - 1));
            if (Planes == 2) codes[Planes - 1].v[i] = static_cast<uint8_t>(bits);
          }
#pragma unroll
          for (int plane = 0; plane < Planes; ++plane)
            *reinterpret_cast<Together<uint8_t, kCells>*>(mine + plane * 128 + sequence * 16 + unit) = codes[plane];
        };
        if (columns <= 2) {
          gates(std::integral_constant<int, 1>());
        } else if (columns <= 4) {
          gates(std::integral_constant<int, 2>());
        } else {
          gates(std::integral_constant<int, 4>());
        }
        __syncwarp();
        if (s + 1 < a.steps) {
          uint2* const to =
              a.exchange + (int64_t{j * 2 + (s + 1) % 2} * team * a.unit_blocks + unit_group) * Planes * 32 + lane;
          if (lane / 4 < columns)
#pragma unroll
            for (int plane = 0; plane < Planes; ++plane)
              publish(to + plane * 32, *reinterpret_cast<const uint32_t*>(mine + plane * 128 + lane * 4),
                      static_cast<uint32_t>(s + 1));
        } else {
          // The last state, which nobody multiplies by.
          const int t = a.reverse ? 0 : a.steps - 1;
          for (int i = lane; i < columns * 16; i += 32) {
            const int column = j * kColumns + i / 16;
            const int64_t n = int64_t{first} + column;
            const int unit = unit_group * 16 + i % 16;
            if (unit >= a.hidden) continue;
            const bool frozen = t >= lengths[column];
            const auto zero = static_cast<uint32_t>(c.h_to_unsigned);
#pragma unroll
            for (int plane = 0; plane < Planes; ++plane) {
              const uint32_t flip = plane == 0 ? a.flip : 0;
              const int64_t byte = Planes - 1 - plane;
              const uint32_t code = mine[plane * 128 + i];
              a.state[(n * a.hidden + unit) * Planes + byte] = static_cast<uint8_t>(code ^ flip);
              a.y[t * a.y_step + n * a.y_sequence + unit * Planes + byte] =
                  static_cast<uint8_t>((frozen ? zero >> 8 * byte : code) ^ flip);
            }
          }
        }
        __syncwarp();
        if (lane == 0 && counted) barrier_arrive(sum_barrier(kSumFree, slot.index, group));
        slot.next();
      }
      now = next;
    }
  } else if (gate_warp == a.unit_blocks && own_service) {
    // ---- The service warp.
    first_fetches();
    SumSlot slot;
    int now = 0;
    for (int s = 0, turn = 0; s < a.steps; ++s) {
      for (int j = 0; j < sequence_tiles; ++j, ++turn) {
        if (s > 0) barrier_wait(state_barrier(j, s), (s - 1) / 2 % 2);
        serve(s, j, turn, state_in(j, now), slot.index, slot.free_parity);
        slot.next();
      }
      now = after(now);
    }
  } else if (gate_warp <= a.unit_blocks + kForwarders) {
    // ---- The forwarding warps: what every group wrote, to all blocks of this cluster. Block r has the groups r, r +
    // cluster, ...; with several tiles a warp has every second tile, with one every second item, which is the 16 codes
    // of a group and a sequence.
    const int forwarder = gate_warp - a.unit_blocks - 1;
    const bool shares = sequence_tiles == 1;
    const int groups = team * a.unit_blocks;
    const int pieces = (groups - rank + cluster - 1) / cluster;
    constexpr int kItems = 4;  // of a lane at once
    int now = 0;
    for (int s = 1; s < a.steps; ++s) {
      now = after(now);
      for (int j = shares ? 0 : forwarder; j < sequence_tiles; j += shares ? 1 : kForwarders) {
        const int columns = columns_of(j);
        const int column_bits = columns == 1 ? 0 : columns == 2 ? 1 : columns <= 4 ? 2 : 3;
        const int column = lane & ((1 << column_bits) - 1);
        const int first_piece = (shares ? 32 * forwarder + lane : lane) >> column_bits;
        const int piece_step = (shares ? 32 * kForwarders : 32) >> column_bits;
        const uint32_t to = shared_address(state_in(j, now)) + static_cast<uint32_t>(column * h_stride);
        const uint32_t barrier = state_barrier(j, s);
        const uint2* const words = a.exchange + int64_t{j * 2 + s % 2} * groups * Planes * 32 + column * 4;
        for (int plane = 0; plane < Planes; ++plane)
          for (int begin = first_piece; __any_sync(0xffffffffu, begin < pieces); begin += kItems * piece_step) {
            ulonglong2 word[kItems][2];
            uint32_t missing = 0;
#pragma unroll
            for (int i = 0; i < kItems; ++i)
              if (column < columns && begin + i * piece_step < pieces) missing |= 1u << i;
            // One item until it is there, so that polling does not fill the second-level cache's queues; then all.
            for (uint32_t wanted = 1; __any_sync(0xffffffffu, missing != 0); wanted = (missing & 1) != 0 ? 1 : ~0u) {
#pragma unroll
              for (int i = 0; i < kItems; ++i)
                if ((missing & wanted) >> i & 1)
                  poll(words + ((rank + (begin + i * piece_step) * cluster) * Planes + plane) * 32, word[i][0],
                       word[i][1]);
#pragma unroll
              for (int i = 0; i < kItems; ++i) {
                const auto step = [](unsigned long long x) { return static_cast<int32_t>(x >> 32); };
                if (((missing & wanted) >> i & 1) == 0 || step(word[i][0].x) != s || step(word[i][0].y) != s ||
                    step(word[i][1].x) != s || step(word[i][1].y) != s)
                  continue;
                missing &= ~(1u << i);
                const uint4 codes{static_cast<uint32_t>(word[i][0].x), static_cast<uint32_t>(word[i][0].y),
                                  static_cast<uint32_t>(word[i][1].x), static_cast<uint32_t>(word[i][1].y)};
                const uint32_t place =
                    to + static_cast<uint32_t>(plane * plane_bytes + (rank + (begin + i * piece_step) * cluster) * 16);
                for (int block = 0; block < cluster; ++block)
                  send(address_in(place, static_cast<uint32_t>(block)), codes,
                       address_in(barrier, static_cast<uint32_t>(block)));
              }
            }
          }
      }
    }
  }
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRID_CUH_
