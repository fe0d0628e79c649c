// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence: R stays in the registers of a team of thread blocks for all steps; per step only the new
// state crosses.
//
// Partition. A team has all of R: block b of it owns `unit_blocks` groups of 16 hidden units, for each the rows of gate
// u, r and n. The columns of R (k) are split over `k_splits` warps for each group, KT tiles of 32 columns a warp: its
// weights are 3 * KT fragments of mma.m16n8k32, in registers but for the last KShared, which are in shared memory. The
// 8 columns of an mma are 8 sequences, a tile of sequences; a team takes up to `sequence_tiles` of them, further teams
// the rest, and teams never talk to each other. A team is one cluster, or (kGrid) all blocks of the launch: clusters
// that exchange their states through global memory.
//
// The tiles of sequences are recurrences of their own. A warp takes them in turn, tile after tile, step after step:
// while the state of one crosses, it multiplies the next. Turn v is tile v % sequence_tiles of step v / sequence_tiles.
//
// One turn of a computing warp:
//   1. waits until the whole state h_s of the tile is in shared memory;
//   2. multiplies. With k_splits > 1 one of the group's warps, each in its turn, adds what the others have;
//   3. that one computes the gates of the 16 units: accumulators of u, r and n of one unit lie in one thread, so
//   nothing
//      is exchanged for it;
//   4. and sends the 16 * 8 new codes to every block of its cluster (st.async, which counts bytes at the receiver's
//      barrier); or writes them to global memory, each word of data beside the number of its step, and a forwarding
//      warp of every cluster, which polls those words, sends them on.
// Everything that is not on the way from h_s to h_(s+1) - fetching ih some turns ahead (bulk copies), writing y, arming
// the barriers - is service: a warp of its own does it, or (kServes), where registers allow only 8 warps a block, one
// that has handed its partial sums to the one that computes the gates.
//
// Why no buffer is written too early. State s of a tile lies in buffer s % 3 of the tile, which is written again by
// sends of state s + 3. Whoever sends that has state s + 2 from every group, so every group of this block has sent it,
// after waiting for state s + 1. That wait ends only after the barrier of s + 1 is armed, which service does after
// reading state s for y; and the groups themselves have sent state s + 1 after their last read of state s. In a grid
// the forwarding warp sends what a group wrote after the same waits. Words in global memory are written again for state
// s + 2, by a group that has state s + 1: then every block has sent s + 1, so it had all of state s, and every
// forwarding warp has read it. Partial sums of a turn are written again in the next turn of the same tile, after its
// state has come, part of which their reader has sent. Ih of turn v lies in slot v % 8, which service fills again after
// every group has said that it has taken it: turn v + 8 - sequence_tiles is fetched when the state of turn v is there,
// so all have taken ih of turn v - sequence_tiles.
//
// Barriers: state s of tile j completes phase s / 2 of barrier [j][s % 2]. Bytes that arrive before the barrier is
// armed are counted: the phase cannot end before the arrival that arms it, and the phase before has ended, as its state
// was needed by the sender.
//
// Codes of 16 bits are two bytes, in two planes of the state, with a sum each: 256 * high + low is exact in double
// lanes.
#ifndef ISOBIT_GRU_CUDA_PERSISTENT_CUH_
#define ISOBIT_GRU_CUDA_PERSISTENT_CUH_

#include <cstdint>

#include "core/cuda_ptx.cuh"
#include "gru/cuda_gates.cuh"
#include "gru/cuda_persistent.h"

namespace isobit::cuda {

inline constexpr int kColumns = 8;               // sequences of a tile: the columns of an mma
inline constexpr int kIhSlots = 8;               // turns whose ih is in shared memory
inline constexpr int kIhTileBytes = 3 * 16 * 2;  // of one turn, sequence and group of units
inline constexpr int kStates = 3;
inline constexpr int kForwarders = 2;        // warps of a block in a grid
inline constexpr int kMaxSequenceTiles = 7;  // less than kIhSlots
inline constexpr int kMaxUnitBlocks = 8;

/// Real: lanes of the gates; Sum: of accumulators and their rescale.
template <typename Real, typename Sum>
struct PersistentArgs {
  GateLanes<Real> gates;
  const uint4* fragments;     // R, in the order in which warps load it
  const StartOf<Sum>* start;  // of hh's accumulators, tile order (kernels.h)
  const Sum* ratio;           // accumulator -> hh, tile order
  const float* tables;        // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries;      // of all three
  /// ih rescaled to the gate inputs, plus 32768: [steps][batch][groups][8][3][2]: unit % 8, gate, unit / 8 of a group.
  const uint16_t* ih;
  int32_t groups;      // of 16 units in ih, padded ones included
  int32_t first_step;  // of these steps in the sequence: what lengths and the mask are counted from
  int32_t steps, batch, hidden;
  int32_t first_sequence, sequences;  // of this launch
  uint8_t* state;                     // [batch][hidden] codes, in and out
  uint8_t* y;                         // codes; already offset to this direction's columns
  int64_t y_step, y_sequence;         // bytes
  uint32_t flip;                      // the sign bit of signed codes, of the high bytes, in all four bytes
  const int32_t* lengths;             // [batch], or null
  const uint8_t* mask;                // [steps][batch][mask_width], or null
  int64_t mask_width;
  bool reverse;
  int32_t cluster, unit_blocks, k_splits, sequence_tiles;
  uint2* exchange;  // grid: [tile][s % 2][group][plane][sequence][4] words: four codes, s. Zero at the start
};

// ---- PTX

/// d = a (16 x 32 signed) * b (32 x 8 unsigned) + c, which is the same in both columns of a row.
__device__ __forceinline__ void mma_s8u8(int32_t (&d)[4], const uint4& a, uint32_t b0, uint32_t b1, int32_t c0,
                                         int32_t c1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%11,%11};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
}
/// d += a (16 x 32 signed) * b (32 x 8 unsigned).
__device__ __forceinline__ void mma_s8u8(int32_t (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// Warps of a block. Registers are given to warps in fours: 8 warps have 255 each, 9 to 12 have 168.
constexpr bool persistent_serves(int k_tiles, bool grid) { return k_tiles > 4 && !grid; }
constexpr int persistent_max_warps(int k_tiles, bool grid) { return persistent_serves(k_tiles, grid) ? 8 : 12; }

inline __host__ __device__ int32_t persistent_h_stride(int32_t k) { return (k + 127) / 128 * 128 + 64; }

/// Offsets in dynamic shared memory.
struct PersistentShared {
  int32_t h_stride, states, weights, staging, ih, rows, partial, tables, lengths, total;
};
/// Barriers: state [tile][2], ih is there [slot], ih is taken [slot], partial sums are there [tile][group].
inline constexpr uint32_t kIhBarriers = 8 * 2 * (kMaxSequenceTiles + 1);
inline constexpr uint32_t kIhFree = kIhBarriers + 8 * kIhSlots;
inline constexpr uint32_t kPartialBarriers = kIhFree + 8 * kIhSlots;
inline constexpr int32_t kBarrierBytes = 768;
static_assert(kPartialBarriers + 8 * kMaxSequenceTiles * kMaxUnitBlocks <= kBarrierBytes);

struct PersistentShape {
  int32_t k_tiles, k_shared, planes, sum_bytes;
  int32_t team, unit_blocks, k_splits, sequence_tiles;  // team: blocks
  int32_t table_entries;
};
inline __host__ __device__ PersistentShared persistent_shared(const PersistentShape& shape) {
  PersistentShared at{};
  const int32_t units = shape.team * shape.unit_blocks * 16;
  const int32_t k_padded = shape.k_splits * shape.k_tiles * 32;
  const int32_t warps = shape.unit_blocks * shape.k_splits;
  at.h_stride = persistent_h_stride(units > k_padded ? units : k_padded);
  at.states = kBarrierBytes;
  at.weights = at.states + shape.sequence_tiles * kStates * shape.planes * kColumns * at.h_stride;
  at.staging = at.weights + warps * 3 * shape.k_shared * 512;
  at.ih = at.staging + warps * shape.planes * 128;
  at.rows = at.ih + kIhSlots * kColumns * shape.unit_blocks * kIhTileBytes;
  at.partial = at.rows + shape.unit_blocks * 48 * 2 * shape.sum_bytes;  // of each group: ratios, starts of 48 rows
  at.tables = at.partial + shape.sequence_tiles * shape.unit_blocks * (shape.k_splits - 1) * 12 * 32 * 4 * shape.planes;
  at.lengths = at.tables + (shape.table_entries * 4 + 127) / 128 * 128;
  at.total = at.lengths + shape.sequence_tiles * kColumns * 4;
  return at;
}

/// KT: k tiles of a warp, KShared of them in shared memory. Planes: bytes of a code of h.
template <int KT, int KShared, int Planes, typename Real, typename Sum, bool kGrid>
__global__ void __launch_bounds__(32 * persistent_max_warps(KT, kGrid), 1)
    gru_persistent(const __grid_constant__ PersistentArgs<Real, Sum> a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kRegisters = KT - KShared;
  constexpr bool kServes = persistent_serves(KT, kGrid);
  static_assert(kRegisters % 2 == 0 && KShared % 2 == 0);
  extern __shared__ __align__(128) uint8_t shared[];
  const GateLanes<Real>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int threads = static_cast<int>(blockDim.x);
  const int splits = a.k_splits;
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const int team = kGrid ? static_cast<int>(gridDim.x) : cluster;
  const int member = kGrid ? static_cast<int>(blockIdx.x) : rank;
  const int computing = a.unit_blocks * splits;  // warps
  // Sequences of this team: columns of the tiles.
  const int tile_sequences = a.sequence_tiles * kColumns;
  const int team_first = kGrid ? 0 : static_cast<int>(blockIdx.x) / cluster * tile_sequences;
  const int team_sequences = a.sequences - team_first < tile_sequences ? a.sequences - team_first : tile_sequences;
  const int sequence_tiles = (team_sequences + kColumns - 1) / kColumns;
  const int first = a.first_sequence + team_first;  // of the batch
  const auto columns_of = [&](int j) {
    return team_sequences - j * kColumns < kColumns ? team_sequences - j * kColumns : kColumns;
  };
  // Up to four sequences take every second column: then each thread has one at most.
  const auto spread_of = [](int columns) { return columns <= 4 ? 2 : 1; };
  const PersistentShared at = persistent_shared({KT, KShared, Planes, static_cast<int32_t>(sizeof(Sum)), team,
                                                 a.unit_blocks, splits, a.sequence_tiles, a.table_entries});
  const int h_stride = at.h_stride;
  const int plane_bytes = kColumns * h_stride;
  constexpr int kTileStates = kStates * Planes;
  uint8_t* const h_memory = shared + at.states;
  const auto state_of = [&](int j, int s) { return h_memory + (j * kTileStates + s % kStates * Planes) * plane_bytes; };
  const uint32_t barriers = shared_address(shared);
  const auto state_barrier = [&](int j, int s) { return barriers + 8 * static_cast<uint32_t>(2 * j + s % 2); };
  const auto partial_barrier = [&](int j, int group) {
    return barriers + kPartialBarriers + 8 * static_cast<uint32_t>(j * kMaxUnitBlocks + group);
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
    lengths[i] = a.lengths != nullptr && i < team_sequences ? a.lengths[first + i] - a.first_step : INT32_MAX;
  // All buffers of the state: padding stays zero.
  for (int i = static_cast<int>(threadIdx.x) * 16; i < sequence_tiles * kTileStates * plane_bytes; i += threads * 16)
    *reinterpret_cast<uint4*>(h_memory + i) = uint4{0, 0, 0, 0};
  __syncthreads();
  for (int i = 0; i < team_sequences; ++i) {
    uint8_t* const row = state_of(i / kColumns, 0) + i % kColumns * spread_of(columns_of(i / kColumns)) * h_stride;
    const uint8_t* const from = a.state + (int64_t{first} + i) * a.hidden * Planes;
    for (int unit = static_cast<int>(threadIdx.x); unit < a.hidden; unit += threads) {
      // Planes from the high byte down; memory is little endian.
      row[unit] = static_cast<uint8_t>(from[unit * Planes + Planes - 1] ^ static_cast<uint8_t>(a.flip));
      if (Planes == 2) row[plane_bytes + unit] = from[unit * Planes];
    }
  }
  if (threadIdx.x == 0) {
    for (int j = 0; j < sequence_tiles; ++j) {
      for (int i = 0; i < 2; ++i) barrier_init(state_barrier(j, i), 1);
      if (splits > 1)
        for (int group = 0; group < a.unit_blocks; ++group)
          barrier_init(partial_barrier(j, group), static_cast<uint32_t>(splits - 1));
    }
    for (uint32_t i = 0; i < kIhSlots; ++i) {
      barrier_init(barriers + kIhBarriers + 8 * i, 1);
      barrier_init(barriers + kIhFree + 8 * i, static_cast<uint32_t>(a.unit_blocks));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();

  // ---- Service; whole warps.
  const auto fetch_ih = [&](int turn) {
    const int s = turn / sequence_tiles;
    if (s >= a.steps) return;
    const int j = turn - s * sequence_tiles;
    const int columns = columns_of(j);
    const auto slot = static_cast<uint32_t>(turn % kIhSlots);
    const auto bytes = static_cast<uint32_t>(a.unit_blocks * kIhTileBytes);
    if (turn >= kIhSlots) barrier_wait(barriers + kIhFree + 8 * slot, (turn / kIhSlots - 1) % 2);
    if (lane < columns) {
      const int64_t row = (a.reverse ? a.steps - 1 - s : s) * int64_t{a.batch} + first + j * kColumns + lane;
      fetch(shared_address(shared + at.ih) + (slot * kColumns + static_cast<uint32_t>(lane)) * bytes,
            a.ih + (row * a.groups + member * a.unit_blocks) * 48, bytes, barriers + kIhBarriers + 8 * slot);
    }
    __syncwarp();
    if (lane == 0) barrier_expect(barriers + kIhBarriers + 8 * slot, bytes * static_cast<uint32_t>(columns));
  };
  // y of state s of tile j. Lane: sequence by 8, pieces of 16 units by 4.
  const auto write_y = [&](int s, int j) {
    const int column = lane % 8;
    const int columns = columns_of(j);
    if (column >= columns) return;
    const int t = a.reverse ? a.steps - s : s - 1;
    const int left = a.hidden - member * a.unit_blocks * 16;  // units of this block that exist
    const bool frozen = t >= lengths[j * kColumns + column];
    uint8_t* const to = a.y + t * a.y_step + (first + j * kColumns + column) * a.y_sequence +
                        int64_t{member} * a.unit_blocks * 16 * Planes;
    const bool aligned = reinterpret_cast<uintptr_t>(to) % 16 == 0;
    const uint8_t* const row = state_of(j, s) + column * spread_of(columns) * h_stride;
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
  const auto serve = [&](int s, int j, int turn) {
    fetch_ih(turn + kIhSlots - sequence_tiles);
    if (s > 0) write_y(s, j);
    __syncwarp();
    if (lane == 0 && s + 1 < a.steps)
      barrier_expect(state_barrier(j, s + 1),
                     static_cast<uint32_t>(columns_of(j) * team * a.unit_blocks * 16 * Planes));
  };
  if (warp == (kServes ? 0 : computing))
    for (int turn = 0; turn < kIhSlots - sequence_tiles; ++turn) fetch_ih(turn);

  if (!kServes && warp == computing) {
    // ---- The service warp.
    for (int s = 0, turn = 0; s < a.steps; ++s)
      for (int j = 0; j < sequence_tiles; ++j, ++turn) {
        if (s > 0) barrier_wait(state_barrier(j, s), (s - 1) / 2 % 2);
        serve(s, j, turn);
      }
  } else if (kGrid && warp > computing) {
    // ---- The forwarding warps: what every group wrote, to all blocks of this cluster. Block r has the groups r, r +
    // cluster, ...; with several tiles a warp has every second tile, with one every second item.
    const int forwarder = warp - computing - 1;
    const bool shares = sequence_tiles == 1;
    const int groups = team * a.unit_blocks;
    const int pieces = (groups - rank + cluster - 1) / cluster;
    for (int s = 1; s < a.steps; ++s)
      for (int j = shares ? 0 : forwarder; j < sequence_tiles; j += shares ? 1 : kForwarders) {
        const int columns = columns_of(j);
        const int spread = spread_of(columns);
        const int items = pieces * Planes * columns;
        const uint32_t to = shared_address(state_of(j, s));
        const uint32_t barrier = state_barrier(j, s);
        const uint2* const words = a.exchange + int64_t{j * 2 + s % 2} * groups * Planes * 32;
        for (int begin = shares ? 32 * forwarder : 0; begin < items; begin += 128 * (shares ? kForwarders : 1)) {
          ulonglong2 word[4][2];
          int item[4];
          bool there[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            item[i] = begin + lane + 32 * i * (shares ? kForwarders : 1);
            there[i] = item[i] >= items;
          }
          const auto address = [&](int i) {
            const int group = rank + item[i] / (Planes * columns) * cluster;
            const int plane = item[i] / columns % Planes;
            return words + (group * Planes + plane) * 32 + item[i] % columns * 4;
          };
          bool all = false;
          while (!all) {
            all = true;
#pragma unroll
            for (int i = 0; i < 4; ++i)
              if (!there[i]) poll(address(i), word[i][0], word[i][1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (there[i]) continue;
              const auto step = [](unsigned long long x) { return static_cast<int32_t>(x >> 32); };
              if (step(word[i][0].x) != s || step(word[i][0].y) != s || step(word[i][1].x) != s ||
                  step(word[i][1].y) != s) {
                all = false;
                continue;
              }
              there[i] = true;
              const int group = rank + item[i] / (Planes * columns) * cluster;
              const int plane = item[i] / columns % Planes;
              const uint4 codes{static_cast<uint32_t>(word[i][0].x), static_cast<uint32_t>(word[i][0].y),
                                static_cast<uint32_t>(word[i][1].x), static_cast<uint32_t>(word[i][1].y)};
              const uint32_t place =
                  to + static_cast<uint32_t>(plane * plane_bytes + item[i] % columns * spread * h_stride + group * 16);
              for (int block = 0; block < cluster; ++block) {
                const auto target = static_cast<uint32_t>((rank + block) % cluster);
                send(address_in(place, target), codes, address_in(barrier, target));
              }
            }
          }
        }
      }
  } else {
    // ---- The computing warps.
    const int group = warp / splits;  // of this block
    const int split = warp % splits;
    const int unit_group = member * a.unit_blocks + group;
    uint4 weights[3][kRegisters];
    auto* const shared_weights = reinterpret_cast<uint4*>(shared + at.weights) + warp * 3 * KShared * 32 + lane;
    {
      const uint4* from = a.fragments + (int64_t{unit_group} * splits + split) * 3 * KT * 32 + lane;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int kt = 0; kt < kRegisters; ++kt) weights[gate][kt] = from[(gate * KT + kt) * 32];
        for (int kt = 0; kt < KShared; ++kt)
          shared_weights[(gate * KShared + kt) * 32] = from[(gate * KT + kRegisters + kt) * 32];
      }
    }
    // This thread's accumulators: rows row and row + 8 of a tile, columns pair and pair + 1.
    const int row = lane / 4;
    const int pair = lane % 4 * 2;
    const uint8_t* const rows = shared + at.rows + group * 48 * 2 * static_cast<int>(sizeof(Sum));
    const auto* const row_ratio = reinterpret_cast<const Sum*>(rows) + row;
    const auto* const row_start = reinterpret_cast<const StartOf<Sum>*>(rows) + 48 + row;
    uint8_t* const mine = shared + at.staging + warp * Planes * 128;  // [plane][8][16] codes on their way
    const uint8_t* const tables = shared + at.tables;
    // Where this lane sends the codes of its group: always to the same block of the cluster.
    const auto target = static_cast<uint32_t>(lane % cluster);
    const int send_column = lane / cluster;
    const int send_columns = 32 / cluster;
    const uint32_t remote_h = address_in(shared_address(h_memory) + static_cast<uint32_t>(unit_group * 16), target);
    const uint32_t remote_barriers = address_in(barriers, target);
    const bool extras = a.lengths != nullptr || a.mask != nullptr;
    const int b_offset = row * h_stride + split * KT * 32 + lane % 4 * 16;
    const int ih_slot_bytes = kColumns * a.unit_blocks * kIhTileBytes;
    const int ih_sequence_bytes = a.unit_blocks * kIhTileBytes;
    const uint8_t* const ih_base = shared + at.ih + group * kIhTileBytes + row * 12;
    int leader = 0;  // the turn modulo splits
    int turn = 0;
    int now = 0;  // s % kStates
    for (int s = 0; s < a.steps; ++s) {
      const int next = now == kStates - 1 ? 0 : now + 1;
      const uint32_t parity = (s - 1) / 2 % 2;
      for (int j = 0; j < sequence_tiles; ++j, ++turn) {
        const bool leads = split == leader;
        leader = leader == splits - 1 ? 0 : leader + 1;
        const int columns = columns_of(j);
        const bool spread = columns <= 4;
        const bool any = spread ? row % 2 == 0 && row / 2 < columns : row < columns;  // this lane's part of b
        const uint8_t* const state = h_memory + (j * kTileStates + now * Planes) * plane_bytes;
        // In float lanes the tensor instruction adds it, in double lanes whoever has the complete sum.
        int32_t start[3][2] = {};
        if constexpr (sizeof(Sum) == 4)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
#pragma unroll
            for (int half = 0; half < 2; ++half) start[gate][half] = split == 0 ? row_start[gate * 16 + half * 8] : 0;
        if (s > 0) barrier_wait(state_barrier(j, s), parity);
        int32_t acc[3][4], more[3][4], high[3][4];  // high: with two planes
#pragma unroll
        for (int plane = 0; plane < Planes; ++plane) {
          const uint8_t* const b_from = state + plane * plane_bytes + b_offset;
#pragma unroll
          for (int kt = 0; kt < KT; kt += 2) {
            uint4 b{0, 0, 0, 0};
            if (any) b = *reinterpret_cast<const uint4*>(b_from + kt * 32);
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
              uint4 w[2];
#pragma unroll
              for (int i = 0; i < 2; ++i)
                w[i] = kt < kRegisters ? weights[gate][kt < kRegisters ? kt + i : 0]
                                       : shared_weights[(gate * KShared + kt - kRegisters + i) * 32];
              if (kt > 0) {
                mma_s8u8(acc[gate], w[0], b.x, b.y);
                mma_s8u8(more[gate], w[1], b.z, b.w);
                continue;
              }
              if (plane == 1)  // the high bytes are done
#pragma unroll
                for (int i = 0; i < 4; ++i) high[gate][i] = wrapping_add(acc[gate][i], more[gate][i]);
              mma_s8u8(acc[gate], w[0], b.x, b.y, start[gate][0], start[gate][1]);
              mma_s8u8(more[gate], w[1], b.z, b.w, 0, 0);
            }
          }
        }
        if (!leads) {
          const int slot = split < (leader == 0 ? splits - 1 : leader - 1) ? split : split - 1;
          auto* to = reinterpret_cast<int32_t*>(shared + at.partial) +
                     ((j * a.unit_blocks + group) * (splits - 1) + slot) * Planes * 12 * 32 + lane;
#pragma unroll
          for (int i = 0; i < 12; ++i) {
            to[i * 32] = wrapping_add(acc[i / 4][i % 4], more[i / 4][i % 4]);
            if (Planes == 2) to[(12 + i) * 32] = high[i / 4][i % 4];
          }
          __syncwarp();
          if (lane == 0) barrier_arrive(partial_barrier(j, group));
          if (kServes && group == 0 && split == leader) serve(s, j, turn);  // leads the next turn
          continue;
        }
        // While the products are under way.
        const int sequence = spread ? lane % 4 : pair;  // of the tile; the next one, too, if not spread
        Real from_ih[2][2][3];                          // [row half][column][gate]
        Real h[2][2];
        Sum ratio[3][2];
        barrier_wait(barriers + kIhBarriers + 8 * static_cast<uint32_t>(turn % kIhSlots), turn / kIhSlots % 2);
        const auto prepare = [&](int i) {
          const uint8_t* const from = ih_base + turn % kIhSlots * ih_slot_bytes + (sequence + i) * ih_sequence_bytes;
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            const uint32_t both = *reinterpret_cast<const uint32_t*>(from + gate * 4);
            from_ih[0][i][gate] = from_biased<Real>(both & 0xffff);
            from_ih[1][i][gate] = from_biased<Real>(both >> 16);
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint8_t* const code = state + (pair + i) * h_stride + unit_group * 16 + row + 8 * half;
            int32_t value = code[0];
            if (Planes == 2) value = value << 8 | code[plane_bytes];
            h[half][i] = to_lane<Real>(value - c.h_to_unsigned);
          }
        };
        prepare(0);
        if (!spread) prepare(1);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int half = 0; half < 2; ++half) ratio[gate][half] = row_ratio[gate * 16 + half * 8];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[gate][i] = wrapping_add(acc[gate][i], more[gate][i]);
        if (splits > 1) {
          barrier_wait(partial_barrier(j, group), s % 2);
#pragma unroll 1
          for (int other = 0; other < splits - 1; ++other) {
            const auto* from = reinterpret_cast<const int32_t*>(shared + at.partial) +
                               ((j * a.unit_blocks + group) * (splits - 1) + other) * Planes * 12 * 32 + lane;
#pragma unroll
            for (int i = 0; i < 12; ++i) {
              acc[i / 4][i % 4] = wrapping_add(acc[i / 4][i % 4], from[i * 32]);
              if (Planes == 2) high[i / 4][i % 4] = wrapping_add(high[i / 4][i % 4], from[(12 + i) * 32]);
            }
          }
        }
        // Lanes without a sequence compute, too: straight code lets the chains of several units overlap.
        Real fresh[2][2] = {};
        const auto gates_of = [&](int half, int i) {
          const auto hh = [&](int gate) {
            Sum sum = to_lane<Sum>(acc[gate][half * 2 + i]);
            if constexpr (sizeof(Sum) == 8) {
              sum = add(sum, row_start[gate * 16 + half * 8]);
              if (Planes == 2) sum = fused(to_lane<Sum>(high[gate][half * 2 + i]), 256.0, sum);
            }
            return rescale_hh<Real, Sum>(c, sum, ratio[gate][half]);
          };
          return gru_gates(c, tables, from_ih[half][i][0], from_ih[half][i][1], from_ih[half][i][2], hh(0), hh(1),
                           hh(2), h[half][i]);
        };
        fresh[0][0] = gates_of(0, 0);
        fresh[1][0] = gates_of(1, 0);
        if (!spread) {
          fresh[0][1] = gates_of(0, 1);
          fresh[1][1] = gates_of(1, 1);
        }
        if (extras) {
          const int t = a.reverse ? a.steps - 1 - s : s;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (i == 1 && spread) continue;
            bool keeps = t >= lengths[j * kColumns + sequence + i];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int unit = unit_group * 16 + row + 8 * half;
              bool kept = keeps;
              if (a.mask != nullptr && sequence + i < columns && unit < a.hidden)
                kept = kept || a.mask[((int64_t{t} + a.first_step) * a.batch + first + j * kColumns + sequence + i) *
                                          a.mask_width +
                                      unit] == 0;
              if (kept) fresh[half][i] = h[half][i];
            }
          }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if ((i == 1 && spread) || sequence + i >= columns) continue;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t code = low_bits(add(fresh[half][i], c.h_to_code));
            uint8_t* const to = mine + (sequence + i) * 16 + row + 8 * half;
            to[0] = static_cast<uint8_t>(code >> 8 * (Planes - 1));
            if (Planes == 2) to[128] = static_cast<uint8_t>(code);
          }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers + kIhFree + 8 * static_cast<uint32_t>(turn % kIhSlots));
        if (s + 1 < a.steps) {
          if constexpr (kGrid) {
            uint2* const to =
                a.exchange + (int64_t{j * 2 + (s + 1) % 2} * team * a.unit_blocks + unit_group) * Planes * 32 + lane;
            if (lane / 4 < columns)
#pragma unroll
              for (int plane = 0; plane < Planes; ++plane)
                publish(to + plane * 32, *reinterpret_cast<const uint32_t*>(mine + plane * 128 + lane * 4),
                        static_cast<uint32_t>(s + 1));
          } else {
            const uint32_t to = remote_h + static_cast<uint32_t>((j * kTileStates + next * Planes) * plane_bytes);
            const uint32_t barrier = remote_barriers + 8 * static_cast<uint32_t>(2 * j + (s + 1) % 2);
            for (int i = send_column; i < columns; i += send_columns)
#pragma unroll
              for (int plane = 0; plane < Planes; ++plane)
                send(to + static_cast<uint32_t>(plane * plane_bytes + (spread ? 2 * i : i) * h_stride),
                     *reinterpret_cast<const uint4*>(mine + plane * 128 + i * 16), barrier);
          }
        } else {
          // The last state, which nobody multiplies by.
          const int t = a.reverse ? 0 : a.steps - 1;
          for (int i = lane; i < columns * 16; i += 32) {
            const int64_t n = int64_t{first} + j * kColumns + i / 16;
            const int unit = unit_group * 16 + i % 16;
            if (unit >= a.hidden) continue;
            const bool frozen = t >= lengths[j * kColumns + i / 16];
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
      }
      now = next;
    }
  }
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PERSISTENT_CUH_
