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
// Turn v is tile v % tiles of step v / tiles, for all warps. Tiles, buffers of the state and their barriers are those
// of cluster.cuh, with these differences:
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
inline constexpr uint32_t kStateLoaded = kBarrierBytes - 8;          // barrier of all warps
static_assert(8 * 2 * kMaxClusterTiles <= kStateLoaded);

template <typename Ratio>
struct ClusterManyArgs : RecurrenceArgs<Ratio> {
  const uint4* fragments;  // R, in the order of ClusterArgs::fragments
  int32_t cluster, sequence_tiles, tile_sequences;
  int32_t team_sequences;  // fewer than its tiles have room for, where that is all there are
};

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

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// KT: k tiles of a warp, KShared of them in shared memory. Sets: of gate warps. Planes: bytes of a code of h.
template <int KT, int KShared, int Sets, int Planes, typename Ratio_>
struct ManyBlock {
  using Ratio = Ratio_;
  using Real = LaneOf<Ratio>;
  static constexpr int kRegisters = KT - KShared, kSets = Sets, kPlanes = Planes;
  static constexpr int kThreads = many_threads(Sets);
  static constexpr int kSetThreads = kManyWarps * 32;
  static constexpr int kSumThreads = 2 * kSetThreads;  // of the barriers of sums
  static constexpr int kPlaneBytes = many_plane_bytes(KT);
  static constexpr int kStateBytes = Planes * kPlaneBytes;
  static constexpr int kSumGate = kMaxTileSequences * kManySumRow;

  const ClusterManyArgs<Ratio>& a;
  uint8_t* const shared;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  // Of this team: the first sequence of the batch, sequences, tiles of tile_rows of them.
  const int tile_rows = a.tile_sequences;
  const int first = static_cast<int>(blockIdx.x) / cluster * a.team_sequences;
  const int sequences = min(a.batch - first, a.team_sequences);
  const int tiles = (sequences + tile_rows - 1) / tile_rows;
  const ClusterManyShared at = cluster_many_shared(
      {KT, KShared, Planes, static_cast<int32_t>(sizeof(Ratio)), a.sequence_tiles, a.table_entries});
  uint8_t* const states = shared + at.states;
  const uint32_t barriers = shared_address(shared);
  Ratio* const ratios = reinterpret_cast<Ratio*>(shared + at.rows);  // [group][gate][16 units]
  SumOf<Ratio>* const starts = reinterpret_cast<SumOf<Ratio>*>(ratios + 3 * kManyUnits);

  /// In every thread, first: what needs nothing of the grids before.
  __device__ __forceinline__ void begin() const {
    const int thread = static_cast<int>(threadIdx.x);
    copy_tables(a, shared + at.tables, kThreads);
    for (int i = thread; i < 3 * kManyUnits; i += kThreads) {
      ratios[i] = a.ratio[rank * 3 * kManyUnits + i];
      starts[i] = a.start[rank * 3 * kManyUnits + i];
    }
    // Both buffers of the state: padding stays zero.
    for (int i = thread * 16; i < tiles * 2 * kStateBytes; i += kThreads * 16)
      *reinterpret_cast<uint4*>(states + i) = uint4{0, 0, 0, 0};
    // Of states 0 and 1 of each tile.
    if (thread == 0) {
      for (int i = 0; i < 2 * tiles; ++i) barrier_init(barriers + 8 * static_cast<uint32_t>(i), 1);
      barrier_init(barriers + kStateLoaded, kThreads);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    fence_before_copies();
    cluster_sync();
  }

  /// In every thread: what grids before this one wrote, lengths and the state.
  __device__ __forceinline__ void load_state() const {
    wait_for_grid_before();
    auto* const lengths = reinterpret_cast<int32_t*>(shared + at.lengths);
    for (int i = static_cast<int>(threadIdx.x); i < sequences; i += kThreads) lengths[i] = length_of(a, first + i);
    const uint8_t* from = a.state + int64_t{first} * a.hidden * Planes;
    uint8_t* to = states;
    for (int left = sequences; left > 0;
         left -= tile_rows, from += tile_rows * a.hidden * Planes, to += 2 * kStateBytes)
      for (int unit = static_cast<int>(threadIdx.x); unit < a.hidden; unit += kThreads) {
        // Loads of a tile under way together.
        uint32_t codes[kMaxTileSequences];
#pragma unroll
        for (int row = 0; row < kMaxTileSequences; ++row)
          if (row < min(left, tile_rows)) codes[row] = read_code<Planes>(a, from + (row * a.hidden + unit) * Planes);
#pragma unroll
        for (int row = 0; row < kMaxTileSequences; ++row)
          if (row < min(left, tile_rows)) {
            uint8_t* const place = to + many_place(row, unit);
            place[0] = static_cast<uint8_t>(codes[row] >> 8 * (Planes - 1));
            if (Planes == 2) place[kPlaneBytes] = static_cast<uint8_t>(codes[row]);
          }
      }
    // No __syncthreads: both kinds of warps come here, at different places.
    barrier_arrive(barriers + kStateLoaded);
    barrier_wait(barriers + kStateLoaded, 0);
    // With one step nothing crosses that would keep a block from writing a state which others have not read.
    if (a.steps == 1) cluster_sync();
  }

  /// Sequences of a tile.
  __device__ __forceinline__ int rows_of(int tile) const { return min(sequences - tile * tile_rows, tile_rows); }

  /// A warp that multiplies: all turns. OnePass: both planes of at most 4 sequences are columns of one mma, beside each
  /// other.
  template <bool OnePass>
  __device__ __forceinline__ void multiply_turns(const uint4 (&weights)[3][kRegisters],
                                                 const uint4* shared_weights) const {
    constexpr int kPasses = OnePass ? 1 : Planes;
    constexpr int kColumn = OnePass ? 3 * kSumGate : kManySumRow;  // from the sum of a column to the next one's
    const int group = warp / 2;
    const int part = warp % 2;  // of k
    const int g = lane / 4;
    const int q = lane % 4;
    const uint8_t* const codes =
        states + many_place(OnePass ? g / 2 : g, part * KT * 32 + q * 16) + (OnePass ? g % 2 * kPlaneBytes : 0);
    // [place][part][plane][gate][sequence][unit]
    auto* const sums = reinterpret_cast<int32_t*>(shared + at.sums) + part * Planes * 3 * kSumGate +
                       (OnePass ? q : 2 * q) * kManySumRow + group * 16 + g;
    int turn = 0;
    for (int s = 0; s < a.steps; ++s) {
      int buffer = s % 2;  // of all states
      for (int j = 0; j < tiles; ++j, ++turn, buffer += 2) {
        int32_t start[3][2] = {};  // in double lanes the gates add it
        int32_t none[3][2] = {};
        if (kStartsInProduct<Ratio> && part == 0)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              start[gate][i] = static_cast<int32_t>(starts[group * 48 + g + gate * 16 + i * 8]);
        if (s > 0) barrier_wait(barriers + 8 * static_cast<uint32_t>(buffer), static_cast<uint32_t>(s - 1) / 2 % 2);
        int32_t acc[kPasses][3][4];
#pragma unroll
        for (int plane = 0; plane < kPasses; ++plane)
          multiply_tiles<KT, OnePass>(weights, shared_weights, codes + buffer * kStateBytes + plane * kPlaneBytes,
                                      many_place(0, 64), plane == kPasses - 1 ? start : none, acc[plane]);
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
  __device__ __forceinline__ void multiply() const {
    uint4 weights[3][kRegisters];
    auto* const shared_weights = reinterpret_cast<uint4*>(shared + at.weights) + warp * 3 * KShared * 32 + lane;
    load_fragments<KT>(a.fragments + (int64_t{rank * 4 + warp / 2} * 2 + warp % 2) * KT * 96 + lane, weights,
                       shared_weights);
    load_state();
    if (Planes == 2 && tile_rows <= 4) {
      multiply_turns<Planes == 2>(weights, shared_weights);
    } else {
      multiply_turns<false>(weights, shared_weights);
    }
    // The gate warps' last arrivals.
    const int turns = a.steps * tiles;
    for (int i = min(turns, 2); i > 0; --i) named_barrier_sync(kManyEmpty + (turns - i) % 2, kSumThreads);
  }
};

/// A gate warp: of sequence `own` of each tile that its set has, a lane two units beside each other.
template <typename Block, bool Floats>
struct ManyGates {
  using Ratio = typename Block::Ratio;
  using Real = LaneOf<Ratio>;
  static constexpr int kSets = Block::kSets, kPlanes = Block::kPlanes;
  static constexpr int kPlaneBytes = Block::kPlaneBytes, kStateBytes = Block::kStateBytes;
  static constexpr int kYUnit = Floats ? 4 : kPlanes;  // bytes
  using One = std::conditional_t<kPlanes == 2, uint16_t, uint8_t>;
  using Two = std::conditional_t<kPlanes == 2, uint32_t, uint16_t>;

  const Block& b;
  const ClusterManyArgs<Ratio>& a = b.a;
  const int set = kSets == 1 ? 0 : b.warp / kManyWarps - 1;
  const int own = b.warp % kManyWarps;
  const int local = b.lane * 2;  // the first unit, in the block
  const int unit = b.rank * kManyUnits + local;
  const SumOf<Ratio>* const row_start = b.starts + local / 16 * 48 + local % 16;
  const int64_t ih_tile = int64_t{b.tile_rows} * a.groups * 48;
  const int64_t y_tile = b.tile_rows * a.y_sequence;
  const int64_t ih_jump = (a.reverse ? -1 : 1) * int64_t{a.batch} * a.groups * 48 - (b.tiles - 1) * ih_tile;
  const int64_t y_jump = (a.reverse ? -a.y_step : a.y_step) - (b.tiles - 1) * y_tile;
  Ratio ratio[3][2];
  uint32_t receiver[2]{};  // the shared memory of the blocks that this warp copies to; 0: none
  int writes;              // units of this lane that are there; 3: two, in one word
  // Of the next turn.
  int s = 0, j = 0;
  const uint16_t* ih_at =
      a.ih + ((int64_t{time_of(a, 0)} * a.batch + b.first + own) * a.groups + b.rank * 4 + local / 16) * 48 +
      local % 16;
  uint8_t* y_at = a.y + time_of(a, 0) * a.y_step + (int64_t{b.first} + own) * a.y_sequence + int64_t{unit} * kYUnit;
  uint32_t ih[3] = {};  // two codes a gate

  __device__ __forceinline__ explicit ManyGates(const Block& block) : b(block) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int i = 0; i < 2; ++i) ratio[gate][i] = b.ratios[local / 16 * 48 + gate * 16 + local % 16 + i];
    // The first KB of a block's shared memory is the system's, so that no address is 0.
    for (int i = 0; i < 2; ++i)
      if (const int other = own + kManyWarps * i; other < b.cluster - 1)
        receiver[i] = address_in(b.barriers, static_cast<uint32_t>((b.rank + 1 + other) % b.cluster));
    const bool pairs = a.hidden % 2 == 0 && a.y_step % (2 * kYUnit) == 0 && a.y_sequence % (2 * kYUnit) == 0 &&
                       reinterpret_cast<uintptr_t>(a.y) % (2 * kYUnit) == 0 &&
                       reinterpret_cast<uintptr_t>(a.next_state) % (2 * kPlanes) == 0;
    writes = unit >= a.hidden ? 0 : pairs ? 3 : unit + 1 < a.hidden ? 2 : 1;
  }

  /// Two codes, one above the other.
  __device__ __forceinline__ void write(uint8_t* to, uint32_t codes) const {
    codes ^= a.flip & (kPlanes == 2 ? 0x80008000u : 0x8080u);
    if (writes == 3) {
      *reinterpret_cast<Two*>(to) = static_cast<Two>(codes);
    } else if (writes > 0) {
      auto* const one = reinterpret_cast<One*>(to);
      one[0] = static_cast<One>(codes);
      if (writes == 2) one[1] = static_cast<One>(codes >> 8 * kPlanes);
    }
  }
  __device__ __forceinline__ void write_floats(uint8_t* to, uint32_t codes) const {
    const float2 two{y_of<kPlanes>(a, codes), y_of<kPlanes>(a, codes >> 8 * kPlanes)};
    auto* const one = reinterpret_cast<float*>(to);
    if (writes == 3) {
      *reinterpret_cast<float2*>(to) = two;
    } else if (writes > 0) {
      one[0] = two.x;
      if (writes == 2) one[1] = two.y;
    }
  }
  __device__ __forceinline__ static uint32_t load_codes(const uint8_t* from) {
    const uint32_t high = *reinterpret_cast<const uint16_t*>(from);
    if (kPlanes == 1) return high;
    return __byte_perm(high, *reinterpret_cast<const uint16_t*>(from + kPlaneBytes), 0x1504);
  }
  __device__ __forceinline__ static void store_codes(uint8_t* to, uint32_t codes) {
    if constexpr (kPlanes == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(__byte_perm(codes, 0, 0x31));
      *reinterpret_cast<uint16_t*>(to + kPlaneBytes) = static_cast<uint16_t>(__byte_perm(codes, 0, 0x20));
    } else {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(codes);
    }
  }

  __device__ __forceinline__ void one_turn_on() {
    const bool last_tile = j + 1 == b.tiles;
    ih_at += last_tile ? ih_jump : ih_tile;
    y_at += last_tile ? y_jump : y_tile;
    j = last_tile ? 0 : j + 1;
    s += last_tile ? 1 : 0;
  }
  __device__ __forceinline__ void load_ih() {
    if (s >= a.steps || own >= b.rows_of(j)) return;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) ih[gate] = *reinterpret_cast<const uint32_t*>(ih_at + gate * 16);
  }
  /// hh by the sums of both warps of the group, in place `half`.
  __device__ __forceinline__ void load_hh(int half, Real (&hh)[3][2]) const {
    const auto* const from = reinterpret_cast<const int32_t*>(b.shared + b.at.sums) + own * kManySumRow + local +
                             half * (b.at.sum_bytes / 4);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      int32_t sum[2][kPlanes];
      SumOf<Ratio> complete[2];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        const int32_t* const part = from + (plane * 3 + gate) * Block::kSumGate;
        const int2 x = *reinterpret_cast<const int2*>(part);
        const int2 y = *reinterpret_cast<const int2*>(part + kPlanes * 3 * Block::kSumGate);
        sum[0][plane] = wrapping_add(x.x, y.x);
        sum[1][plane] = wrapping_add(x.y, y.y);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
        complete[i] = complete_sum<Ratio>(sum[i], kStartsInProduct<Ratio> ? 0 : row_start[gate * 16 + i]);
      rescale_hh(a.gates, complete, ratio[gate], hh[gate]);
    }
  }
  /// Old codes where cells keep their state; whether the sequence has ended.
  __device__ __forceinline__ bool keep_codes(int step, int tile, const uint8_t* old_codes, uint32_t (&fresh)[2]) const {
    const int t = time_of(a, step);
    const int row = tile * b.tile_rows + own;
    const bool ended = t >= reinterpret_cast<const int32_t*>(b.shared + b.at.lengths)[row];
    for (int i = 0; i < 2; ++i)
      if (ended || is_masked(a, t, b.first + row, unit + i)) fresh[i] = load_codes(old_codes) >> 8 * kPlanes * i;
    return ended;
  }
  /// The block's codes of a tile, in a buffer of all states, to one or two other blocks.
  __device__ __forceinline__ void copy_codes(int buffer, int rows) const {
    fence_before_copies();
    named_barrier_sync(kManyCodes + set, Block::kSetThreads);
    if (is_elected()) {
      const auto bytes = static_cast<uint32_t>(rows * kManyUnits);
      const auto barrier = 8 * static_cast<uint32_t>(buffer);
      if (own == 0) barrier_expect(b.barriers + barrier, static_cast<uint32_t>(b.cluster - 1) * kPlanes * bytes);
      const auto copied =
          static_cast<uint32_t>(b.at.states + buffer * kStateBytes + many_place(0, b.rank * kManyUnits));
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (receiver[i] != 0)
#pragma unroll
          for (int plane = 0; plane < kPlanes; ++plane)
            copy_to_block(receiver[i] + copied + static_cast<uint32_t>(plane * kPlaneBytes),
                          b.barriers + copied + static_cast<uint32_t>(plane * kPlaneBytes), bytes,
                          receiver[i] + barrier);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void one_turn(int half) {
    const int step = s, tile = j, rows = b.rows_of(j);
    const int buffer = 2 * tile + (step + 1) % 2;  // of the next state
    uint8_t* const next_codes = b.states + buffer * kStateBytes + many_place(own, unit);
    const uint8_t* const old_codes = next_codes + (step % 2 == 0 ? -kStateBytes : kStateBytes);
    uint8_t* const y_now = y_at;
    Real from_x[3][2];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      from_x[gate][0] = from_biased<Real>(ih[gate] & 0xffff);
      from_x[gate][1] = from_biased<Real>(ih[gate] >> 16);
    }
    for (int k = 0; k < kSets; ++k) one_turn_on();
    load_ih();
    named_barrier_sync(kManyFull + half, Block::kSumThreads);
    uint32_t shown = 0;  // two codes
    if (own < rows) {
      Real hh[3][2], h[2];
      load_hh(half, hh);
      named_barrier_arrive(kManyEmpty + half, Block::kSumThreads);
      const uint32_t old = load_codes(old_codes);
      uint32_t fresh[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        h[i] = from_code<Real>(old >> 8 * kPlanes * i & (kPlanes == 2 ? 0xffff : 0xff), a.gates.h_from_code);
      gru_gates(a.gates, shared_tables(a.gates, b.shared + b.at.tables), from_x, hh, h, fresh);
      const bool extras = a.lengths != nullptr || a.mask != nullptr;
      const bool ended = extras && keep_codes(step, tile, old_codes, fresh);
      const uint32_t codes = __byte_perm(fresh[0], fresh[1], kPlanes == 2 ? 0x5410 : 0x40);
      store_codes(next_codes, codes);
      shown = ended ? a.gates.h_to_unsigned * (kPlanes == 2 ? 0x10001u : 0x101u) : codes;
    } else {
      named_barrier_arrive(kManyEmpty + half, Block::kSumThreads);
    }
    const bool last = step + 1 == a.steps;
    if (!last) copy_codes(buffer, rows);
    if (own >= rows) return;
    Floats ? write_floats(y_now, shown) : write(y_now, shown);
    const int64_t n = b.first + tile * b.tile_rows + own;
    if (last) write(a.next_state + (n * a.hidden + unit) * kPlanes, load_codes(next_codes));
  }
  __device__ __forceinline__ void run() {
    b.load_state();
    for (int k = 0; k < set; ++k) one_turn_on();
    load_ih();
    const int turns = a.steps * b.tiles;
#pragma unroll 1
    for (int turn = set; turn < turns; turn += kSets) one_turn(kSets == 1 ? turn % 2 : set);
  }
};
#endif

/// KT, KShared, Sets, Planes: of ManyBlock. Floats: of y.
template <int KT, int KShared, int Sets, int Planes, bool Floats, typename Ratio>
__global__ void __launch_bounds__(many_threads(Sets), 1)
    gru_cluster_many(const __grid_constant__ ClusterManyArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  using Block = ManyBlock<KT, KShared, Sets, Planes, Ratio>;
  constexpr ManyRegisters kRegisters = many_registers(KT - KShared, Sets, sizeof(LaneOf<Ratio>) == 8);
  const Block block{a, shared};
  block.begin();
  if (block.warp < kManyWarps) {
    trade_registers<kRegisters.multiplying, kRegisters.start>();
    block.multiply();
  } else {
    trade_registers<kRegisters.gates, kRegisters.start>();
    ManyGates<Block, Floats>(block).run();
  }
  // Copies read the sender's memory: all blocks have had the last state that crosses.
  cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_MANY_CUH_
