// SPDX-License-Identifier: Apache-2.0
// The recurrence of H = 257 to 1024 for more sequences than gru_cluster (cluster.cuh) takes at once: some warps do
// nothing but multiply, others nothing but gates, so that the products of one tile overlap with the gates and the
// exchange of others.
//
// Partition. A team is a cluster; its block b has hidden units 64 b to 64 b + 63, four groups of 16. Two warps multiply
// a group, each with half of the columns of R: KT tiles of 32 of them, in registers but for the last KShared, which are
// in shared memory. A tile is at most 8 sequences, the columns of mma.m16n8k32. The sums of all warps go to gate warps
// through shared memory. Gate warp w of a set has sequence w of a tile; a lane has two neighbouring units of it,
// computes their gates, and writes codes to its block's buffer of the next state and to y. When the block's codes of a
// tile are there, each gate warp copies them to one or two other blocks of the cluster. Where registers allow, there
// are two sets of gate warps, which take tiles in turn.
//
// Turn v is tile v % tiles of step v / tiles, for all warps (with guests, below, in each part of the run). Tiles,
// buffers of the state and their barriers are those of cluster.cuh, with these differences:
//   - A barrier of a state counts one arrival, of a gate warp's thread after all of the block's codes are written. It
//     also arms the barrier for the bytes of the other blocks.
//   - Sums of turn v lie in place v % 2. Multiplying warps write them when gate warps have read those of two turns ago,
//     and these read them when all are written: named barriers, of all multiplying warps and those of the set.
//
// Why no state is written too early. State s + 1 of a tile overwrites state s - 1. Its writer, in this block or
// another, has the sums of state s, so whole state s, so every block had sent its part of it: that followed its gates
// of state s - 1, for which all of its multiplying warps had handed over their sums, and its gate warps had read their
// old codes. The copies of state s - 1 that read this block's buffer are done, too: whoever sent state s had received
// them. The old codes that a gate warp reads were written by itself or by the other set, before the sums could be
// computed.
//
// Guests. Where batch is little more than whole tiles of 8 for each team, one tile more for all of them would cost each
// step of all. So teams take turns with the sequences that are left (ClusterGuests): a team stops its own ones for some
// steps, has the guests' state from the team before, and does a part of their steps. All teams are on the device
// together, in a cooperative launch, and each waits for the one before it only, which does not wait for it: nobody
// waits for ever. A state crosses through next_state in global memory. Gate warps write it, and each counts (release);
// the warps that multiply wait for the complete count (acquire) and load it. Guests have tiles and barriers of their
// own, as if they were a run of two steps or more, so the rules above hold for them; what is written to next_state
// comes after all blocks of the team have loaded what was there, as they sent the next state after it.
//
// The state of a tile: many_place; the 16-byte loads of eight lanes meet no bank twice. The order of k is that of
// ClusterArgs::fragments, of which gru_cluster reads the same copy: lane 4 g + q of k tiles 2 i and 2 i + 1 has columns
// 64 i + 16 q to + 15.
#ifndef ISOBIT_GRU_CUDA_CLUSTER_MANY_CUH_
#define ISOBIT_GRU_CUDA_CLUSTER_MANY_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "gru/cuda/cluster.cuh"

namespace isobit::cuda {

inline constexpr int kManyUnits = 64;                                // of a block
inline constexpr int kManyWarps = 8;                                 // that multiply; of a set of gate warps
inline constexpr int kManySumRow = kManyUnits + 4;                   // words of a sequence's sums: no bank is met twice
inline constexpr int kManyFull = 1, kManyEmpty = 3, kManyCodes = 5;  // named barriers, two of each
inline constexpr int kManyGuests = 7;                                // of the warps that multiply
inline constexpr uint32_t kStateLoaded = kBarrierBytes - 8;          // barrier of all warps
static_assert(8 * 2 * kMaxClusterTiles <= kStateLoaded);

constexpr int many_threads(int sets) { return (1 + sets) * kManyWarps * 32; }

/// Where the code of a sequence and of a unit of the team lies in a plane of a state, and the bytes of a plane.
__host__ __device__ constexpr int many_place(int sequence, int unit) {
  return (unit / kManyUnits * kMaxTileSequences + sequence) * kManyUnits + unit % kManyUnits;
}

constexpr int many_plane_bytes(int k_tiles) { return 2 * k_tiles * 32 * kMaxTileSequences; }

/// Offsets in dynamic shared memory.
struct ClusterManyShared {
  int32_t states, weights, rows, sums, sum_bytes, tables, lengths, total;
};
/// k_tiles: of a warp. tiles: of sequences.
struct ClusterManyShape {
  int32_t k_tiles, k_shared, planes, ratio_bytes, tiles, table_entries;
};
inline __host__ __device__ ClusterManyShared cluster_many_shared(const ClusterManyShape& shape) {
  ClusterManyShared at{};
  at.states = kBarrierBytes;
  at.weights = at.states + shape.tiles * 2 * shape.planes * many_plane_bytes(shape.k_tiles);
  at.rows = at.weights + kManyWarps * 3 * shape.k_shared * 512;
  at.sums = at.rows + 2 * 3 * kManyUnits * shape.ratio_bytes;  // ratios, starts
  at.sum_bytes = 2 * shape.planes * 3 * kMaxTileSequences * kManySumRow * 4;
  at.tables = at.sums + 2 * at.sum_bytes;
  at.lengths = at.tables + (shape.table_entries * 4 + 127) / 128 * 128;
  at.total = at.lengths + shape.tiles * kMaxTileSequences * 4;
  return at;
}

/// A part of a run: steps [step, end) of the tiles from `tile` on; guests' steps count from the visit's first one.
struct ManyPart {
  int step, end, tile, tiles;
};

/// Registers of a thread: to start with, one that multiplies, one of a gate warp.
struct ManyRegisters {
  int start, multiplying, gates;
};
constexpr ManyRegisters many_registers(int k_registers, int sets, bool double_lanes) {
  if (sets == 2) return {80, 144, 48};
  return k_registers <= 8    ? (double_lanes ? ManyRegisters{128, 144, 112} : ManyRegisters{128, 168, 88})
         : k_registers <= 12 ? ManyRegisters{128, 184, 72}
                             : ManyRegisters{128, 208, 48};
}

/// KT: k tiles of a warp, KShared of them in shared memory. Sets: of gate warps. Planes: bytes of a code of h. Guests:
/// whether there are any, whose loop over parts takes registers that gate warps do not have to spare.
template <int KT, int KShared, int Sets, int Planes, bool Floats, bool Guests, typename Ratio>
__global__ void __launch_bounds__(many_threads(Sets), 1)
    gru_cluster_many(const __grid_constant__ ClusterArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kRegisters = KT - KShared;
  static_assert(kRegisters % 2 == 0 && KShared % 2 == 0);
  constexpr int kThreads = many_threads(Sets);
  constexpr int kSetThreads = kManyWarps * 32;
  constexpr int kSumThreads = 2 * kSetThreads;  // of the barriers of sums
  constexpr int kPlaneBytes = many_plane_bytes(KT);
  constexpr int kStateBytes = Planes * kPlaneBytes;
  constexpr int kSumGate = kMaxTileSequences * kManySumRow;
  constexpr ManyRegisters kRegistersOf = many_registers(kRegisters, Sets, sizeof(LaneOf<Ratio>) == 8);
  extern __shared__ __align__(128) uint8_t shared[];
  using Real = LaneOf<Ratio>;
  const GateLanes<Real>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const int tile_rows = a.tile_sequences;
  const int team = static_cast<int>(blockIdx.x) / cluster;
  const int first = team * a.team_sequences;  // of the batch
  const int sequences = a.batch - first < a.team_sequences ? a.batch - first : a.team_sequences;
  const int tiles = (sequences + tile_rows - 1) / tile_rows;
  const int last_rows = sequences - (tiles - 1) * tile_rows;  // of the last tile
  const bool is_host = Guests && team < a.guests.visits;
  const int first_guest = a.batch - a.guests.sequences;
  const int guest_tiles = is_host ? (a.guests.sequences + tile_rows - 1) / tile_rows : 0;
  const int visit_step = team * a.guests.steps;  // the first one of the guests'
  const int visit_steps = is_host ? min(a.guests.steps, a.steps - visit_step) : 0;
  // A host's run has three parts: steps of its own sequences, the visit, steps of its own.
  const int parts = is_host ? 3 : 1;
  const int steps_before = is_host ? min(a.steps, team * a.guests.pause) : a.steps;
  const auto part_of_run = [&](int i) {
    return i == 1 ? ManyPart{0, visit_steps, tiles, guest_tiles}
                  : ManyPart{i == 0 ? 0 : steps_before, i == 0 ? steps_before : a.steps, 0, tiles};
  };
  const ClusterManyShared at = cluster_many_shared(
      {KT, KShared, Planes, static_cast<int32_t>(sizeof(Ratio)), a.sequence_tiles, a.table_entries});
  uint8_t* const states = shared + at.states;
  const uint32_t barriers = shared_address(shared);

  // What needs nothing of the grids before.
  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += kThreads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  auto* const ratios = reinterpret_cast<Ratio*>(shared + at.rows);  // [group][gate][16 units]
  auto* const starts = reinterpret_cast<SumOf<Ratio>*>(ratios + 3 * kManyUnits);
  for (int i = static_cast<int>(threadIdx.x); i < 3 * kManyUnits; i += kThreads) {
    ratios[i] = a.ratio[rank * 3 * kManyUnits + i];
    starts[i] = a.start[rank * 3 * kManyUnits + i];
  }
  // Both buffers of the state: padding stays zero.
  for (int i = static_cast<int>(threadIdx.x) * 16; i < (tiles + guest_tiles) * 2 * kStateBytes; i += kThreads * 16)
    *reinterpret_cast<uint4*>(states + i) = uint4{0, 0, 0, 0};
  // Of states 0 and 1 of each tile.
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * (tiles + guest_tiles); ++i) barrier_init(barriers + 8 * static_cast<uint32_t>(i), 1);
    barrier_init(barriers + kStateLoaded, kThreads);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  fence_before_copies();
  cluster_sync();

  /// Codes of `count` sequences from `from` on to the states with which `tile` and those after it begin.
  const auto load_codes_of = [&](const uint8_t* from, int count, int tile, int threads) {
    const uint32_t flip = (a.flip & 0xff) << 8 * (Planes - 1);
    uint8_t* to = states + tile * 2 * kStateBytes;
    for (; count > 0; count -= tile_rows, from += tile_rows * a.hidden * Planes, to += 2 * kStateBytes)
      for (int unit = static_cast<int>(threadIdx.x); unit < a.hidden; unit += threads) {
        // Loads of a tile under way together.
        const int rows = count < tile_rows ? count : tile_rows;
        uint32_t codes[kMaxTileSequences];
#pragma unroll
        for (int row = 0; row < kMaxTileSequences; ++row)
          if (row < rows) {
            const uint8_t* const code = from + (row * a.hidden + unit) * Planes;
            codes[row] = Planes == 2 ? uint32_t{*reinterpret_cast<const uint16_t*>(code)} : uint32_t{*code};
          }
#pragma unroll
        for (int row = 0; row < kMaxTileSequences; ++row)
          if (row < rows) {
            uint8_t* const place = to + many_place(row, unit);
            place[0] = static_cast<uint8_t>((codes[row] ^ flip) >> 8 * (Planes - 1));
            if (Planes == 2) place[kPlaneBytes] = static_cast<uint8_t>(codes[row]);
          }
      }
  };
  // What grids before this one wrote: lengths and the state.
  auto* const lengths = reinterpret_cast<int32_t*>(shared + at.lengths);
  const auto load_state = [&] {
    wait_for_grid_before();
    const auto load_lengths = [&](int count, int of, int tile) {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
        lengths[tile * tile_rows + i] = a.lengths != nullptr ? max(a.lengths[of + i], 0) - a.first_step : INT32_MAX;
    };
    load_lengths(sequences, first, 0);
    if (is_host) load_lengths(a.guests.sequences, first_guest, tiles);
    load_codes_of(a.state + int64_t{first} * a.hidden * Planes, sequences, 0, kThreads);
    // No __syncthreads: both kinds of warps come here, at different places.
    barrier_arrive(barriers + kStateLoaded);
    barrier_wait(barriers + kStateLoaded, 0);
    // With one step nothing crosses that would keep a block from writing a state which others have not read.
    if (a.steps == 1) cluster_sync();
  };

  const int turns = a.steps * tiles + visit_steps * guest_tiles;
  if (warp < kManyWarps) {
    // ---- The warps that multiply.
    trade_registers<kRegistersOf.multiplying, kRegistersOf.start>();
    const int group = warp / 2;
    const int part = warp % 2;  // of k
    uint4 weights[3][kRegisters];
    auto* const shared_weights = reinterpret_cast<uint4*>(shared + at.weights) + warp * 3 * KShared * 32 + lane;
    {
      const uint4* from = a.fragments + (int64_t{rank * 4 + group} * 2 + part) * KT * 96 + lane;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int kt = 0; kt < kRegisters; ++kt) weights[gate][kt] = load_weights(from + (kt * 3 + gate) * 32);
        for (int kt = 0; kt < KShared; ++kt)
          shared_weights[(gate * KShared + kt) * 32] = from[((kRegisters + kt) * 3 + gate) * 32];
      }
    }
    load_state();
    const int g = lane / 4;
    const int q = lane % 4;
    // The warps of all blocks that visit k ends in count what they have written (release); whoever reads it has
    // acquired the complete count, for its warp. Other warps of this block have the codes by way of the sums.
    const auto receive_guests = [&] {
      delay(a.delays, team, kDelayRead);
      if (team > 0) {
        const uint32_t* const arrivals = a.guests.arrivals + team - 1;
        const auto all = static_cast<uint32_t>(cluster * a.guests.sequences);
        uint32_t there = 0;
        while (lane == 0 && there < all)
          asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(arrivals) : "memory");
        __syncwarp();
      }
      const uint8_t* const from = (team > 0 ? a.next_state : a.state) + int64_t{first_guest} * a.hidden * Planes;
      // Bytes in pieces of 16, all of a thread's under way together. The same of two planes gained nothing.
      if (Planes == 1 && a.hidden % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        const int pieces = a.hidden / 16;  // of a sequence
#pragma unroll 4
        for (int i = static_cast<int>(threadIdx.x); i < a.guests.sequences * pieces; i += kSetThreads) {
          const uint4 codes = reinterpret_cast<const uint4*>(from)[i];
          const int row = i / pieces;
          *reinterpret_cast<uint4*>(states + (tiles + row / tile_rows) * 2 * kStateBytes +
                                    many_place(row % tile_rows, (i - row * pieces) * 16)) =
              uint4{codes.x ^ a.flip, codes.y ^ a.flip, codes.z ^ a.flip, codes.w ^ a.flip};
        }
      } else {
        load_codes_of(from, a.guests.sequences, tiles, kSetThreads);
      }
      named_barrier_sync(kManyGuests, kSetThreads);
    };
    // Of at most 4 sequences both planes are columns of one mma, beside each other.
    const auto multiply_turns = [&](auto planes_in_columns) {
      constexpr bool kOnePass = decltype(planes_in_columns)::value;
      constexpr int kPasses = kOnePass ? 1 : Planes;
      constexpr int kColumn = kOnePass ? 3 * kSumGate : kManySumRow;  // from the sum of a column to the next one's
      const uint8_t* const codes =
          states + many_place(kOnePass ? g / 2 : g, part * KT * 32 + q * 16) + (kOnePass ? g % 2 * kPlaneBytes : 0);
      // [place][part][plane][gate][sequence][unit]
      auto* const sums = reinterpret_cast<int32_t*>(shared + at.sums) + part * Planes * 3 * kSumGate +
                         (kOnePass ? q : 2 * q) * kManySumRow + group * 16 + g;
      int turn = 0;
#pragma unroll 1
      for (int i = 0; i < parts; ++i) {
        if (Guests && i == 1) receive_guests();
        const ManyPart now = part_of_run(i);
        for (int s = now.step; s < now.end; ++s) {
          int buffer = 2 * now.tile + s % 2;  // of all states
          for (int j = 0; j < now.tiles; ++j, ++turn, buffer += 2) {
            int32_t start[3][2] = {};  // in double lanes the gates add it
            if (kStartsInProduct<Ratio> && part == 0)
#pragma unroll
              for (int gate = 0; gate < 3; ++gate)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                  start[gate][i] = static_cast<int32_t>(starts[group * 48 + g + gate * 16 + i * 8]);
            if (s > 0) barrier_wait(barriers + 8 * static_cast<uint32_t>(buffer), static_cast<uint32_t>(s - 1) / 2 % 2);
            int32_t acc[kPasses][3][4];
#pragma unroll
            for (int plane = 0; plane < kPasses; ++plane) {
              constexpr bool kTwoChains = KT <= 8;  // a gate: of one the tensor cores would wait
              int32_t more[3][4] = {};
#pragma unroll
              for (int kt = 0; kt < KT; kt += 2) {
                const uint4 b = *reinterpret_cast<const uint4*>(codes + buffer * kStateBytes + plane * kPlaneBytes +
                                                                many_place(0, kt * 32));
#pragma unroll
                for (int i = 0; i < 2; ++i)
#pragma unroll
                  for (int gate = 0; gate < 3; ++gate) {
                    const uint4 w = kt < kRegisters ? weights[gate][kt < kRegisters ? kt + i : 0]
                                                    : shared_weights[(gate * KShared + kt - kRegisters + i) * 32];
                    if (kt == 0 && i == 0 && kOnePass) {
#pragma unroll
                      for (int d = 0; d < 4; ++d) acc[0][gate][d] = d % 2 == 0 ? 0 : start[gate][d / 2];
                      mma_s8u8(acc[0][gate], w, b.x, b.y);
                    } else if (kt == 0 && i == 0) {
                      const bool begins = plane == kPasses - 1;
                      mma_s8u8(acc[plane][gate], w, b.x, b.y, begins ? start[gate][0] : 0, begins ? start[gate][1] : 0);
                    } else if (kTwoChains && i == 1) {
                      mma_s8u8(more[gate], w, b.z, b.w);
                    } else {
                      mma_s8u8(acc[plane][gate], w, i == 0 ? b.x : b.z, i == 0 ? b.y : b.w);
                    }
                  }
              }
              if (kTwoChains)
#pragma unroll
                for (int gate = 0; gate < 3; ++gate)
#pragma unroll
                  for (int i = 0; i < 4; ++i) acc[plane][gate][i] = wrapping_add(acc[plane][gate][i], more[gate][i]);
            }
            if (turn >= 2) named_barrier_sync(kManyEmpty + turn % 2, kSumThreads);
            int32_t* const to = sums + turn % 2 * (at.sum_bytes / 4);
#pragma unroll
            for (int plane = 0; plane < kPasses; ++plane)
#pragma unroll
              for (int gate = 0; gate < 3; ++gate)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                  to[(plane * 3 + gate) * kSumGate + i % 2 * kColumn + i / 2 * 8] = acc[plane][gate][i];
            named_barrier_arrive(kManyFull + turn % 2, kSumThreads);
          }
        }
      }
    };
    if (Planes == 2 && tile_rows <= 4) {
      multiply_turns(std::bool_constant<Planes == 2>());
    } else {
      multiply_turns(std::false_type());
    }
    // The gate warps' last arrivals.
    for (int i = turns < 2 ? turns : 2; i > 0; --i) named_barrier_sync(kManyEmpty + (turns - i) % 2, kSumThreads);
  } else {
    // ---- The gate warps.
    trade_registers<kRegistersOf.gates, kRegistersOf.start>();
    const int set = Sets == 1 ? 0 : warp / kManyWarps - 1;
    const int own = warp % kManyWarps;  // sequence of a tile
    const int local = lane * 2;         // the first unit, in the block
    const int unit = rank * kManyUnits + local;
    Ratio ratio[3][2];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int i = 0; i < 2; ++i) ratio[gate][i] = ratios[local / 16 * 48 + gate * 16 + local % 16 + i];
    const SumOf<Ratio>* const row_start = starts + local / 16 * 48 + local % 16;
    load_state();
    const uint8_t* const tables = shared + at.tables;
    const bool extras = a.lengths != nullptr || a.mask != nullptr;
    const auto* const sums = reinterpret_cast<const int32_t*>(shared + at.sums) + own * kManySumRow + local;
    // The shared memory of the blocks that this warp copies to; 0: none, as the first KB of a block is the system's.
    uint32_t receiver[2]{};
    for (int i = 0; i < 2; ++i)
      if (const int other = own + kManyWarps * i; other < cluster - 1)
        receiver[i] = address_in(barriers, static_cast<uint32_t>((rank + 1 + other) % cluster));
    constexpr int kYUnit = Floats ? 4 : Planes;  // bytes
    const int64_t ih_tile = int64_t{tile_rows} * a.groups * 48;
    const int64_t y_tile = tile_rows * a.y_sequence;
    uint32_t ih[3] = {};  // two codes a gate
    using One = std::conditional_t<Planes == 2, uint16_t, uint8_t>;
    using Two = std::conditional_t<Planes == 2, uint32_t, uint16_t>;
    const bool pairs = a.hidden % 2 == 0 && a.y_step % (2 * kYUnit) == 0 && a.y_sequence % (2 * kYUnit) == 0 &&
                       reinterpret_cast<uintptr_t>(a.y) % (2 * kYUnit) == 0 &&
                       reinterpret_cast<uintptr_t>(a.next_state) % (2 * Planes) == 0;
    const int writes = unit >= a.hidden ? 0 : pairs ? 3 : unit + 1 < a.hidden ? 2 : 1;
    // Two codes, one above the other.
    const auto write = [&](uint8_t* to, uint32_t codes) {
      if (writes == 3) {
        *reinterpret_cast<Two*>(to) = static_cast<Two>(codes);
      } else if (writes > 0) {
        auto* const one = reinterpret_cast<One*>(to);
        one[0] = static_cast<One>(codes);
        if (writes == 2) one[1] = static_cast<One>(codes >> 8 * Planes);
      }
    };
    const auto write_floats = [&](uint8_t* to, uint32_t codes) {
      const float2 two{y_of<Planes>(a, codes), y_of<Planes>(a, codes >> 8 * Planes)};
      auto* const one = reinterpret_cast<float*>(to);
      if (writes == 3) {
        *reinterpret_cast<float2*>(to) = two;
      } else if (writes > 0) {
        one[0] = two.x;
        if (writes == 2) one[1] = two.y;
      }
    };
    const uint32_t flip_both = a.flip & (Planes == 2 ? 0x80008000u : 0x8080u);
    const uint32_t zero_both = c.h_to_unsigned * (Planes == 2 ? 0x10001u : 0x101u);
    const auto load_codes = [&](const uint8_t* from) {
      const uint32_t high = *reinterpret_cast<const uint16_t*>(from);
      if (Planes == 1) return high;
      return __byte_perm(high, *reinterpret_cast<const uint16_t*>(from + kPlaneBytes), 0x1504);
    };
    const auto store_codes = [&](uint8_t* to, uint32_t codes) {
      if constexpr (Planes == 2) {
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(__byte_perm(codes, 0, 0x31));
        *reinterpret_cast<uint16_t*>(to + kPlaneBytes) = static_cast<uint16_t>(__byte_perm(codes, 0, 0x20));
      } else {
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(codes);
      }
    };
    int turns_before = 0;  // this part of the run
#pragma unroll 1
    for (int i = 0; i < parts; ++i) {
      const ManyPart now = part_of_run(i);
      const bool guests = Guests && i == 1;
      const int last_step = guests || now.end == a.steps ? now.end - 1 : -1;
      const int now_first = guests ? first_guest : first;                                            // of the batch
      const int now_rows = guests ? a.guests.sequences - (guest_tiles - 1) * tile_rows : last_rows;  // of the last tile
      const int from_step = guests ? visit_step : 0;  // in the run, of the part's step 0
      int s = now.step, j = 0;
      const int first_t = a.reverse ? a.steps - 1 - from_step - s : from_step + s;
      const int64_t ih_jump = (a.reverse ? -1 : 1) * int64_t{a.batch} * a.groups * 48 - (now.tiles - 1) * ih_tile;
      const uint16_t* ih_at =
          a.ih + ((int64_t{first_t} * a.batch + now_first + own) * a.groups + rank * 4 + local / 16) * 48 + local % 16;
      const int64_t y_jump = (a.reverse ? -a.y_step : a.y_step) - (now.tiles - 1) * y_tile;
      uint8_t* y_at = a.y + first_t * a.y_step + (int64_t{now_first} + own) * a.y_sequence + int64_t{unit} * kYUnit;
      const auto one_turn_on = [&] {
        const bool last_tile = j + 1 == now.tiles;
        ih_at += last_tile ? ih_jump : ih_tile;
        y_at += last_tile ? y_jump : y_tile;
        j = last_tile ? 0 : j + 1;
        s += last_tile ? 1 : 0;
      };
      const auto load_ih = [&] {
        if (s >= now.end || own >= (j + 1 == now.tiles ? now_rows : tile_rows)) return;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) ih[gate] = *reinterpret_cast<const uint32_t*>(ih_at + gate * 16);
      };
      const int end_turn = turns_before + (now.end - s) * now.tiles;
      const int skipped = (set + turns_before) % Sets;
      for (int k = 0; k < skipped; ++k) one_turn_on();
      load_ih();
#pragma unroll 1
      for (int turn = turns_before + skipped; turn < end_turn; turn += Sets) {
        const int half = Sets == 1 ? turn % 2 : set;  // of the places for sums
        const bool last = s == last_step;
        const int rows = j + 1 == now.tiles ? now_rows : tile_rows;
        const int tile = now.tile + j;
        const int n = now_first + j * tile_rows + own;
        const int step = from_step + s;
        const int t = a.reverse ? a.steps - 1 - step : step;
        const int buffer = 2 * tile + (s + 1) % 2;  // of the next state
        uint8_t* const next_codes = states + buffer * kStateBytes + many_place(own, unit);
        const uint8_t* const old_codes = next_codes + (s % 2 == 0 ? -kStateBytes : kStateBytes);
        uint8_t* const y_now = y_at;
        Real from_x[3][2];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          from_x[gate][0] = from_biased<Real>(ih[gate] & 0xffff);
          from_x[gate][1] = from_biased<Real>(ih[gate] >> 16);
        }
        for (int k = 0; k < Sets; ++k) one_turn_on();
        load_ih();
        named_barrier_sync(kManyFull + half, kSumThreads);
        uint32_t shown = 0;  // two codes
        if (own < rows) {
          const int32_t* const from = sums + half * (at.sum_bytes / 4);
          Real hh[3][2];
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            int32_t sum[2][Planes];
            SumOf<Ratio> complete[2];
#pragma unroll
            for (int plane = 0; plane < Planes; ++plane) {
              const int32_t* const part = from + (plane * 3 + gate) * kSumGate;
              const int2 x = *reinterpret_cast<const int2*>(part);
              const int2 y = *reinterpret_cast<const int2*>(part + Planes * 3 * kSumGate);
              sum[0][plane] = wrapping_add(x.x, y.x);
              sum[1][plane] = wrapping_add(x.y, y.y);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
              complete[i] = complete_sum<Ratio>(sum[i], kStartsInProduct<Ratio> ? 0 : row_start[gate * 16 + i]);
            rescale_hh(c, complete, ratio[gate], hh[gate]);
          }
          named_barrier_arrive(kManyEmpty + half, kSumThreads);
          const uint32_t old = load_codes(old_codes);
          Real h[2];
          uint32_t fresh[2];
#pragma unroll
          for (int i = 0; i < 2; ++i)
            h[i] = from_code<Real>(old >> 8 * Planes * i & (Planes == 2 ? 0xffff : 0xff), c.h_from_code);
          gru_gates(c, tables, from_x, hh, h, fresh);
          bool ended = false;
          if (extras) {
            ended = t >= lengths[tile * tile_rows + own];
            for (int i = 0; i < 2; ++i) {
              const bool masked = a.mask != nullptr && unit + i < a.hidden &&
                                  a.mask[((int64_t{t} + a.first_step) * a.batch + n) * a.mask_width + unit + i] == 0;
              if (ended || masked) fresh[i] = load_codes(old_codes) >> 8 * Planes * i;
            }
          }
          const uint32_t codes = __byte_perm(fresh[0], fresh[1], Planes == 2 ? 0x5410 : 0x40);
          store_codes(next_codes, codes);
          shown = (ended ? zero_both : codes) ^ (Floats ? 0 : flip_both);
        } else {
          named_barrier_arrive(kManyEmpty + half, kSumThreads);
        }
        if (!last) {
          fence_before_copies();
          named_barrier_sync(kManyCodes + set, kSetThreads);
          if (is_elected()) {
            const auto bytes = static_cast<uint32_t>(rows * kManyUnits);
            const auto barrier = 8 * static_cast<uint32_t>(buffer);
            if (own == 0) barrier_expect(barriers + barrier, static_cast<uint32_t>(cluster - 1) * Planes * bytes);
            const auto copied =
                static_cast<uint32_t>(at.states + buffer * kStateBytes + many_place(0, rank * kManyUnits));
#pragma unroll
            for (int i = 0; i < 2; ++i)
              if (receiver[i] != 0)
#pragma unroll
                for (int plane = 0; plane < Planes; ++plane)
                  copy_to_block(receiver[i] + copied + static_cast<uint32_t>(plane * kPlaneBytes),
                                barriers + copied + static_cast<uint32_t>(plane * kPlaneBytes), bytes,
                                receiver[i] + barrier);
          }
          __syncwarp();
        }
        if (own < rows) {
          Floats ? write_floats(y_now, shown) : write(y_now, shown);
          if (last) write(a.next_state + (int64_t{n} * a.hidden + unit) * Planes, load_codes(next_codes) ^ flip_both);
          if (guests && last && team + 1 < a.guests.visits) {
            delay(a.delays, team, kDelayWrite);
            __syncwarp();
            if (lane == 0)
              asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.guests.arrivals + team) : "memory");
          }
        }
      }
      turns_before = end_turn;
    }
  }
  // Copies read the sender's memory: all blocks have had the last state that crosses.
  cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_MANY_CUH_
