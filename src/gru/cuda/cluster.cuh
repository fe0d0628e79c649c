// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence to H = 1024: R stays in the registers of a thread block, or of a cluster of them, for all
// steps; per step only the new state crosses.
//
// Partition. A team (a cluster, or one block) has all of R. Its block b owns `unit_blocks` groups of 16 hidden units,
// for each the rows of gate u, r and n: three 16-row tiles of mma.m16n8k32. One warp multiplies a group, or two, each
// with half of the columns of R (kSplits = 2): KT tiles of 32 columns a warp, in registers but for the last KShared,
// which are in shared memory. A tile has 2, 4 or 8 sequences, and the 8 columns of an mma are that many, repeated, so
// that the three accumulators of a unit and a sequence lie in the lane that computes their gates. Further teams take
// further sequences, and teams never talk to each other.
//
//   sequences of a tile   cells of a lane (kSplits 1 / 2)   mma column -> sequence (1 / 2)
//   2                     1 / -                             g / 4    / -
//   4                     2 / 1                             g / 2    / g / 4 * 2 + g % 2
//   8                     4 / 2                             g        / g
//
// Where two warps share a group, warp w of them has the sequences of its parity: each hands the other the sums that are
// not its own, in shared memory. Codes of 16 bits are two bytes, in two planes of the state, with a sum each. Of at
// most 4 sequences both planes are columns of one mma, beside each other; then both warps of a group leave all of their
// sums in shared memory. Of more, the planes are multiplied one after the other.
//
// A team may have several tiles. They are recurrences of their own, and warps take them in turn: while the state of one
// crosses, the next is multiplied. Turn v is tile v % sequence_tiles of step v / sequence_tiles. In a turn, a warp
//   1. waits for ih of the turn and until the whole state h_s of the tile is in shared memory, and multiplies;
//   2. adds the other warp's sums to its own (kSplits = 2); computes its gates;
//   3. writes its new codes to its own block's buffer of h_(s + 1), and to y. When the block has all of its codes
//   there,
//      each warp sends them to one or two other blocks of the cluster, to the same place: bulk copies, which count
//      bytes at the receiver's barrier.
// One more warp arms the barrier of h_(s + 1) and fetches ih of a later turn (bulk copies): what need not be on the way
// from h_s to h_(s + 1) is kept off it.
//
// Why no buffer is written too early. State s of a tile lies in buffer s % 2, and is written again by state s + 2,
// whose senders have state s + 1 of every warp. A warp has sent that after its last read of state s: its own products
// and old codes went into what it sent, and a warp that it shares a group with has finished its products before it
// handed over its sums. Whoever sent state s + 1 had all of state s, so copies of that from this block were done. Sums
// of turn v lie in slot v % 2; they are written again in turn v + 2, after the barrier of turn v + 1, to which the
// reader comes after reading. Ih of turn v lies in slot v % kIhSlots, and is fetched when the state of turn v -
// kIhSlots + sequence_tiles is there: then every warp of this block has sent that state, so it has taken ih of turn v -
// kIhSlots.
//
// Barriers: state s > 0 of tile j completes phase (s - 1) / 2 of barrier [j][s % 2]. It counts the block's own warps,
// which have written their codes, and the service warp, which arms it for the bytes of the other blocks. Bytes that
// arrive before it is armed count, too, as the phase cannot end before that arrival, and the phase before has ended,
// since its state was needed by the sender.
//
// The beginning. R, tables, row constants and barriers need nothing of the grids before, the product of W x among them:
// this grid is launched early (early_start), and waits for them before it reads lengths, the state and ih. All that it
// writes to global memory comes after that, too. A block has its state when the warps that multiply have met; the other
// blocks need not wait for that, where there are several steps: of theirs, only state 1 can cross before this block's
// own state 1, and into the other buffer, and the caller's state is written after the last step.
//
// The state of a tile is stored by groups of 16 units: 16 codes of each sequence, one sequence after the other, and a
// gap, so that the 16-byte loads of eight lanes meet no bank twice.
#ifndef ISOBIT_GRU_CUDA_CLUSTER_CUH_
#define ISOBIT_GRU_CUDA_CLUSTER_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "gru/cuda/recurrence.cuh"

namespace isobit::cuda {

inline constexpr int kMaxTileSequences = 8;      // the columns of an mma
inline constexpr int kMaxClusterTiles = 7;       // of sequences, a team
inline constexpr int kMaxIhSlots = 8;            // turns whose ih is in shared memory, at most
inline constexpr int kIhTileBytes = 3 * 16 * 2;  // of one turn, sequence and group of units
inline constexpr int kMaxMultiplying = 8;        // warps of a block that multiply
inline constexpr int kAllCodes = 5;              // the named barrier of the warps that multiply; 1 to 4: of a group
inline constexpr int kMaxSplitCells = 2;         // of a lane where two warps share a group
inline constexpr int kFewSequences = 2;          // of a team of gru_cluster_few, at most: a lane of gates has one cell

/// How new codes cross to the other blocks of a cluster.
enum Exchange : int32_t {
  kAlone = 0,   // there are none
  kSends = 1,   // st.async of 16 bytes, a message a lane: the fastest for few of them, of one tile
  kCopies = 2,  // a bulk copy a block
};

/// Of gru_cluster and gru_cluster_few.
template <typename Ratio>
struct ClusterArgs : RecurrenceArgs<Ratio> {
  const uint4* fragments;  // R, in the order in which warps load it
  int32_t cluster, unit_blocks, sequence_tiles, tile_sequences;
  int32_t team_sequences;  // fewer than its tiles have room for, where that is all there are
  int32_t exchange;        // Exchange
};

/// Of a group of 16 units in the state of a tile, with its gap.
inline __host__ __device__ int32_t group_bytes(int32_t tile_sequences) {
  return tile_sequences == 2 ? 32 : tile_sequences * 16 + 32;
}

/// Turns whose ih is there, more than tiles: fewer where R and two planes leave no room for large tables otherwise.
inline __host__ __device__ constexpr int ih_slots(int k_tiles, int planes) {
  return k_tiles == 16 && planes == 2 ? 4 : kMaxIhSlots;
}

/// What decides on a block's shared memory, and the offsets in it.
struct ClusterShape {
  int32_t k_tiles, k_shared, splits, planes, ratio_bytes;
  int32_t cluster, unit_blocks, sequence_tiles, tile_sequences;
  int32_t table_entries;
  int32_t sum_bytes;
};
struct ClusterShared {
  int32_t plane_bytes, states, weights, ih, rows, sums, tables, lengths, total;
};
/// Barriers: state [tile][2]; ih is there [slot].
inline constexpr uint32_t kIhBarriers = 8 * 2 * kMaxClusterTiles;
inline constexpr int32_t kBarrierBytes = 256;
static_assert(kIhBarriers + 8 * kMaxIhSlots <= kBarrierBytes);

// 12 warps have 168 registers a thread, too little for 8 k tiles and more: there the warpgroups of four warps trade.
constexpr bool trades_registers(int k_tiles) { return k_tiles > 4; }
inline constexpr int kMultiplyingRegisters = 232;
inline constexpr int kServiceRegisters = 40;
/// The first warp that does not multiply: a warpgroup's first, where they trade.
inline __host__ __device__ int32_t service_warp(int32_t k_tiles, int32_t multiplying) {
  return trades_registers(k_tiles) ? (multiplying + 3) / 4 * 4 : multiplying;
}
inline __host__ __device__ int32_t block_warps(int32_t k_tiles, int32_t multiplying) {
  return service_warp(k_tiles, multiplying) + (trades_registers(k_tiles) ? 4 : 1);
}
/// Of one turn and sequence in shared memory: so that no bank is met twice.
inline __host__ __device__ int32_t ih_row_bytes(int32_t unit_blocks) { return unit_blocks * kIhTileBytes + 16; }

/// What the warps of a group hand each other, in two slots.
inline __host__ __device__ int32_t sum_bytes(int32_t unit_blocks, int32_t splits, int32_t planes) {
  return splits == 1 ? 0 : unit_blocks * splits * 2 * planes * 3 * kMaxSplitCells * 128;
}
/// The sums of a block of gru_cluster_few: [group][gate][row][warp of the group][sequence][plane].
inline __host__ __device__ int32_t few_sum_bytes(int32_t unit_blocks, int32_t splits, int32_t planes) {
  return unit_blocks * 48 * splits * kFewSequences * planes * 4;
}
inline __host__ __device__ ClusterShared cluster_shared(const ClusterShape& shape) {
  ClusterShared at{};
  const int32_t groups = shape.cluster * shape.unit_blocks;
  const int32_t k_groups = shape.splits * shape.k_tiles * 2;
  const int32_t warps = shape.unit_blocks * shape.splits;
  at.plane_bytes = (groups > k_groups ? groups : k_groups) * group_bytes(shape.tile_sequences);
  at.states = kBarrierBytes;
  at.weights = at.states + shape.sequence_tiles * 2 * shape.planes * at.plane_bytes;
  at.ih = at.weights + warps * 3 * shape.k_shared * 512;
  at.rows = at.ih + ih_slots(shape.k_tiles, shape.planes) * shape.tile_sequences * ih_row_bytes(shape.unit_blocks);
  at.sums = at.rows + shape.unit_blocks * 48 * 2 * shape.ratio_bytes;  // of each group: ratios, starts of 48 rows
  at.tables = at.sums + shape.sum_bytes;
  at.lengths = at.tables + (shape.table_entries * 4 + 127) / 128 * 128;
  at.total = at.lengths + shape.sequence_tiles * shape.tile_sequences * 4;
  return at;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// A block of gru_cluster, or of gru_cluster_few (Few). KT: k tiles of a warp, KShared of them in shared memory.
/// Planes: bytes of a code of h.
template <int KT, int KShared, int Splits, int Planes, bool Few, typename Ratio_>
struct ClusterBlock {
  using Ratio = Ratio_;
  static constexpr int kTiles = KT, kRegisters = KT - KShared, kSplits = Splits, kPlanes = Planes;
  static constexpr int kIhSlots = ih_slots(KT, Planes);

  const ClusterArgs<Ratio>& a;
  uint8_t* const shared;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  // Of this team: the first sequence of the batch, sequences, tiles of tile_rows of them.
  const int tile_rows = Few ? kFewSequences : a.tile_sequences;
  const int first = static_cast<int>(blockIdx.x) / cluster * a.team_sequences;
  const int sequences = min(a.batch - first, a.team_sequences);
  const int tiles = Few ? 1 : (sequences + tile_rows - 1) / tile_rows;
  const int multiplying = a.unit_blocks * Splits;  // warps
  const ClusterShared at =
      cluster_shared({KT, KShared, Splits, Planes, static_cast<int32_t>(sizeof(Ratio)), cluster, a.unit_blocks,
                      Few ? 1 : a.sequence_tiles, tile_rows, a.table_entries,
                      Few ? few_sum_bytes(a.unit_blocks, Splits, Planes) : sum_bytes(a.unit_blocks, Splits, Planes)});
  const int group_stride = group_bytes(tile_rows);
  const int plane_bytes = at.plane_bytes;
  const int state_bytes = Planes * plane_bytes;
  uint8_t* const h_memory = shared + at.states;
  const uint32_t barriers = shared_address(shared);

  __device__ __forceinline__ uint32_t state_barrier(int j, int s) const {
    return barriers + 8 * static_cast<uint32_t>(2 * j + s % 2);
  }
  __device__ __forceinline__ uint32_t ih_barrier(int slot) const {
    return barriers + kIhBarriers + 8 * static_cast<uint32_t>(slot);
  }
  /// A code in a state, its planes apart.
  __device__ __forceinline__ uint32_t state_code(const uint8_t* from) const {
    return Planes == 2 ? uint32_t{from[0]} << 8 | from[plane_bytes] : uint32_t{from[0]};
  }
  __device__ __forceinline__ void put_state_code(uint8_t* to, uint32_t code) const {
    to[0] = static_cast<uint8_t>(code >> 8 * (Planes - 1));
    if (Planes == 2) to[plane_bytes] = static_cast<uint8_t>(code);
  }

  /// In every thread, first: what needs nothing of the grids before.
  __device__ __forceinline__ void begin() const {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    copy_tables(a, shared + at.tables, threads);
    if constexpr (!Few)
      for (int i = thread; i < a.unit_blocks * 48; i += threads) {
        auto* const ratios = reinterpret_cast<Ratio*>(shared + at.rows) + i / 48 * 96;
        ratios[i % 48] = a.ratio[rank * a.unit_blocks * 48 + i];
        reinterpret_cast<SumOf<Ratio>*>(ratios + 48)[i % 48] = a.start[rank * a.unit_blocks * 48 + i];
      }
    // Both buffers of the state: padding stays zero.
    for (int i = thread * 16; i < tiles * 2 * state_bytes; i += threads * 16)
      *reinterpret_cast<uint4*>(h_memory + i) = uint4{0, 0, 0, 0};
    if (thread == 0) {
      const int writers = Few ? a.unit_blocks : multiplying;
      for (int i = 0; i < 2 * tiles; ++i) barrier_init(state_barrier(0, 0) + 8 * i, static_cast<uint32_t>(writers + 1));
      for (int slot = 0; slot < kIhSlots; ++slot) barrier_init(ih_barrier(slot), 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
  }

  __device__ __forceinline__ int sequences_of(int tile) const { return min(sequences - tile * tile_rows, tile_rows); }

  /// One thread of the service warp: fetches ih, and arms the barriers of states.
  __device__ __forceinline__ void serve() const {
    wait_for_grid_before();
    const auto bytes = static_cast<uint32_t>(a.unit_blocks * kIhTileBytes);
    const int ih_row = ih_row_bytes(a.unit_blocks);
    int fetch_s = 0, fetch_j = 0, slot = 0;  // of the next turn to fetch
    const auto fetch_next = [&] {
      if (fetch_s >= a.steps) return;
      const int there = sequences_of(fetch_j);
      const int64_t row = time_of(a, fetch_s) * int64_t{a.batch} + first + fetch_j * tile_rows;
      const uint16_t* from = a.ih + (row * a.groups + rank * a.unit_blocks) * 48;
      uint32_t to = shared_address(shared + at.ih) + static_cast<uint32_t>(slot * tile_rows * ih_row);
      barrier_expect(ih_barrier(slot), bytes * static_cast<uint32_t>(there));
      for (int i = 0; i < there; ++i) {
        fetch(to, from, bytes, ih_barrier(slot));
        from += a.groups * 48;
        to += static_cast<uint32_t>(ih_row);
      }
      slot = slot == kIhSlots - 1 ? 0 : slot + 1;
      if (++fetch_j == tiles) {
        fetch_j = 0;
        ++fetch_s;
      }
    };
    for (int turn = 0; turn < kIhSlots - tiles; ++turn) fetch_next();
    for (int s = 0; s < a.steps; ++s)
      for (int j = 0; j < tiles; ++j) {
        const int from_others = !Few && a.exchange == kCopies ? group_stride : sequences_of(j) * 16;
        if (s > 0) barrier_wait(state_barrier(j, s), (s - 1) / 2 % 2);
        if (s + 1 < a.steps)
          barrier_expect(state_barrier(j, s + 1),
                         static_cast<uint32_t>((cluster - 1) * a.unit_blocks * Planes * from_others));
        fetch_next();
      }
  }

  /// In a warp that multiplies.
  __device__ __forceinline__ void load_weights_of_warp(uint4 (&weights)[3][kRegisters], uint4* shared_weights) const {
    const int unit_group = rank * a.unit_blocks + warp / Splits;
    load_fragments<KT>(a.fragments + (int64_t{unit_group} * Splits + warp % Splits) * KT * 96 + lane, weights,
                       shared_weights);
  }
  __device__ __forceinline__ uint4* shared_weights_of_warp() const {
    return reinterpret_cast<uint4*>(shared + at.weights) + warp * 3 * KShared * 32 + lane;
  }

  /// In the warps of gru_cluster that multiply: what grids before this one wrote, lengths and the state.
  __device__ __forceinline__ void load_state() const {
    wait_for_grid_before();
    auto* const lengths = reinterpret_cast<int32_t*>(shared + at.lengths);
    const int thread = static_cast<int>(threadIdx.x), threads = 32 * multiplying;
    for (int i = thread; i < tiles * tile_rows; i += threads)
      lengths[i] = i < sequences ? length_of(a, first + i) : INT32_MAX;
    // Some loads under way together; a pair of rows is of one tile.
    constexpr int kUnitsAtOnce = 4;
    for (int unit = thread; unit < a.hidden; unit += kUnitsAtOnce * threads)
      for (int row = 0; row < sequences; row += 2) {
        const uint8_t* const from = a.state + ((int64_t{first} + row) * a.hidden + unit) * Planes;
        uint8_t* const to =
            h_memory + row / tile_rows * 2 * state_bytes + row % tile_rows * 16 + unit / 16 * group_stride + unit % 16;
        uint32_t codes[2][kUnitsAtOnce];
        const auto each = [&](auto body) {
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < kUnitsAtOnce; ++j)
              if (row + i < sequences && unit + j * threads < a.hidden)
                body(codes[i][j], from + (i * a.hidden + j * threads) * Planes,
                     to + i * 16 + j * 2 * multiplying * group_stride);
        };
        each([&](uint32_t& code, const uint8_t* at_code, const uint8_t*) { code = read_code<Planes>(a, at_code); });
        each([&](uint32_t code, const uint8_t*, uint8_t* byte) { put_state_code(byte, code); });
      }
    named_barrier_sync(kAllCodes, threads);
    // With one step nothing crosses that would keep a block from writing a state which others have not read.
    if (a.steps == 1) cluster_sync();
  }
};

/// All turns of a warp of gru_cluster that multiplies. Cells of a lane: unit g + 8 * half of sequence `row` each.
/// Floats: of y. OneTile: of one tile of sequences.
template <typename Block, bool Floats, int Cells, bool OneTile, Exchange How>
struct ClusterTurns {
  using Ratio = typename Block::Ratio;
  using Real = LaneOf<Ratio>;
  static constexpr int kTiles = Block::kTiles, kSplits = Block::kSplits, kPlanes = Block::kPlanes;
  static constexpr int kHalves = Cells == 1 ? 1 : 2;  // of a lane
  static constexpr int kRows = Cells / kHalves;
  static constexpr int kTileRows = 2 * Cells * kSplits;
  // Codes of two bytes of at most 4 sequences: the planes are columns beside each other.
  static constexpr bool kOnePass = kPlanes == 2 && kTileRows < 8;
  static constexpr int kPasses = kOnePass ? 1 : kPlanes;
  static constexpr bool kKeepsRows = kTiles <= 8 && sizeof(Ratio) == 4;  // ratios and starts in registers
  // [slot][plane][gate, cell][lane]: what the other warp of the group has for this one, and the other way.
  static constexpr int kSumSlotWords = kPlanes * 3 * kMaxSplitCells * 32;
  static constexpr int kYUnit = Floats ? 4 : kPlanes;  // bytes

  const Block& b;
  const uint4 (&weights)[3][Block::kRegisters];
  const uint4* const shared_weights;
  const ClusterArgs<Ratio>& a = b.a;
  const int group = b.warp / kSplits;
  const int part = b.warp % kSplits;
  const int unit_group = b.rank * a.unit_blocks + group;
  const int g = b.lane / 4;
  const int q = b.lane % 4;
  const int ih_row = ih_row_bytes(a.unit_blocks);
  const int b_offset =
      mma_row() * 16 + (part * kTiles * 2 + q) * b.group_stride + (kOnePass ? g % 2 * b.plane_bytes : 0);
  const int place = unit_group * b.group_stride + row_of(0) * 16 + half_of(0) * 8 + g;  // of its codes in a state
  const int unit = unit_group * 16 + half_of(0) * 8 + g;                                // the first one
  const bool unit_there[2] = {unit < a.hidden, unit + 8 < a.hidden};
  const bool extras = a.lengths != nullptr || a.mask != nullptr;
  const uint8_t* const ih_from =
      b.shared + b.at.ih + row_of(0) * ih_row + group * kIhTileBytes + half_of(0) * 16 + g * 2;
  const Ratio* const row_ratio = reinterpret_cast<const Ratio*>(b.shared + b.at.rows) + group * 96 + g;
  const SumOf<Ratio>* const row_start = reinterpret_cast<const SumOf<Ratio>*>(row_ratio - g + 48) + g;
  const int64_t y_jump = a.reverse ? -a.y_step : a.y_step;
  uint8_t* y_at =
      a.y + time_of(a, 0) * a.y_step + (int64_t{b.first} + row_of(0)) * a.y_sequence + int64_t{unit} * kYUnit;
  Ratio ratio[3][kHalves];
  int32_t start[3][2] = {};
  // kSends: the message of this lane, 16 codes of one of this warp's sequences to one block.
  bool sends = false;
  int message = 0;
  uint32_t message_to = 0, message_barrier = 0;
  int now = 0, next = b.state_bytes;  // of the two buffers of a state
  int slot = 0, sums_slot = 0;
  uint32_t slot_parity = 0;

  __device__ __forceinline__ ClusterTurns(const Block& block, const uint4 (&of_warp)[3][Block::kRegisters],
                                          const uint4* more_weights)
      : b(block), weights(of_warp), shared_weights(more_weights) {
    if constexpr (kKeepsRows) load_rows();
    if constexpr (How == kSends) {
      const int own = kSplits == 1 ? b.sequences : (b.sequences + 1 - part) / 2;
      const int own_bits = own <= 1 ? 0 : own == 2 ? 1 : own <= 4 ? 2 : 3;
      const int i = b.lane & ((1 << own_bits) - 1);
      const int block_there = b.lane >> own_bits;
      sends = i < own && block_there < b.cluster && block_there != b.rank;
      message = unit_group * b.group_stride + (i * kSplits + part) * 16;
      message_to =
          address_in(shared_address(b.h_memory) + static_cast<uint32_t>(message), static_cast<uint32_t>(block_there));
      message_barrier = address_in(b.barriers, static_cast<uint32_t>(block_there));
    }
  }

  /// The sequence of column g of an mma.
  __device__ __forceinline__ int mma_row() const {
    if (kTileRows == 8) return g;
    if (kSplits == 2 && !kOnePass) return g / 4 * 2 + g % 2;
    return kTileRows == 4 ? g / 2 : g / 4;
  }
  __device__ __forceinline__ int half_of(int i) const { return Cells == 1 ? q % 2 : kRows == 1 ? i : i / 2; }
  __device__ __forceinline__ int row_of(int i) const {
    if (kSplits == 1) return Cells == 1 ? q / 2 : Cells == 2 ? q : 2 * q + i % 2;
    return Cells == 1 ? q / 2 * 2 + part : 2 * q + part;
  }
  /// Of cell i, what it is further than cell 0.
  __device__ __forceinline__ int rows_on(int i) const { return row_of(i) - row_of(0); }
  __device__ __forceinline__ int halves_on(int i) const { return half_of(i) - half_of(0); }
  __device__ __forceinline__ int codes_on(int i) const { return rows_on(i) * 16 + halves_on(i) * 8; }
  __device__ __forceinline__ bool exists(int j, int i) const {
    return j * b.tile_rows + row_of(i) < b.sequences && unit_there[halves_on(i)];
  }
  /// Which of the four accumulators is cell i's own, or that of the other warp (where two share the group).
  __device__ __forceinline__ int32_t pick(const int32_t (&d)[4], int i, bool other) const {
    if (kSplits == 1) return Cells == 1 ? (q % 2 != 0 ? d[2] : d[0]) : Cells == 2 ? d[2 * i] : d[i];
    const bool odd = (part != 0) != other;
    const int32_t low = odd ? d[1] : d[0];
    const int32_t high = odd ? d[3] : d[2];
    return Cells == 1 ? (q % 2 != 0 ? high : low) : i == 0 ? low : high;
  }
  __device__ __forceinline__ void load_rows() {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
      for (int i = 0; i < kHalves; ++i) ratio[gate][i] = row_ratio[gate * 16 + (kHalves == 1 ? half_of(0) : i) * 8];
      // The tensor instruction adds it; in double lanes the gates do.
      if constexpr (kStartsInProduct<Ratio>)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          start[gate][half] = part == 0 ? static_cast<int32_t>(row_start[gate * 16 + half * 8]) : 0;
    }
  }
  __device__ __forceinline__ void load_ih(Real (&ih)[3][Cells]) const {
    barrier_wait(b.ih_barrier(slot), slot_parity);
#pragma unroll
    for (int i = 0; i < Cells; ++i)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
        ih[gate][i] = from_biased<Real>(*reinterpret_cast<const uint16_t*>(
            ih_from + slot * b.tile_rows * ih_row + rows_on(i) * ih_row + halves_on(i) * 16 + gate * 32));
  }
  __device__ __forceinline__ void multiply(const uint8_t* state, int32_t (&acc)[kPasses][3][4]) const {
    const int32_t none[3][2]{};
#pragma unroll
    for (int plane = 0; plane < kPasses; ++plane)
      multiply_tiles<kTiles, kOnePass>(weights, shared_weights, state + plane * b.plane_bytes + b_offset,
                                       4 * b.group_stride, plane == kPasses - 1 ? start : none, acc[plane]);
  }
  /// The sums of this lane's cells, with those of the other warp of the group.
  __device__ __forceinline__ void collect(const int32_t (&acc)[kPasses][3][4], int32_t (&sum)[Cells][3][kPlanes]) {
    auto* const all = reinterpret_cast<int32_t*>(b.shared + b.at.sums) + sums_slot * kSumSlotWords;
    if constexpr (kOnePass && kSplits == 2) {
      // Both warps' sums lie as they were computed; each lane takes the two planes of its cell.
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        const int32_t(&d)[4] = acc[0][gate];
        *reinterpret_cast<int4*>(all + b.warp * 2 * kSumSlotWords + (gate * 32 + b.lane) * 4) =
            int4{d[0], d[1], d[2], d[3]};
      }
      named_barrier_sync(1 + group, 64);
      const int32_t* const cell = all + (g * 4 + row_of(0)) * 4 + half_of(0) * 2;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        const int2 x = *reinterpret_cast<const int2*>(cell + group * 4 * kSumSlotWords + gate * 128);
        const int2 y = *reinterpret_cast<const int2*>(cell + (group * 4 + 2) * kSumSlotWords + gate * 128);
        sum[0][gate][0] = wrapping_add(x.x, y.x);
        sum[0][gate][kPlanes - 1] = wrapping_add(x.y, y.y);
      }
      sums_slot ^= 1;
      return;
    }
    const int32_t* const sums_in = all + b.warp * 2 * kSumSlotWords + b.lane;
    int32_t* const sums_out = all + (b.warp ^ 1) * 2 * kSumSlotWords + b.lane;
    const auto each = [&](auto body) {
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int i = 0; i < Cells; ++i)
            body(sum[i][gate][plane], plane, gate, i, ((plane * 3 + gate) * kMaxSplitCells + i) * 32);
    };
    each([&](int32_t& one, int plane, int gate, int i, int word) {
      if constexpr (kOnePass) {
        one = half_of(i) != 0 ? acc[0][gate][2 + plane] : acc[0][gate][plane];
      } else {
        one = pick(acc[plane][gate], i, false);
        if (kSplits == 2) sums_out[word] = pick(acc[plane][gate], i, true);
      }
    });
    if (kSplits == 1) return;
    named_barrier_sync(1 + group, 64);
    each([&](int32_t& one, int, int, int, int word) { one = wrapping_add(one, sums_in[word]); });
    sums_slot ^= 1;
  }
  __device__ __forceinline__ void gates(const Real (&ih)[3][Cells], const Real (&h)[Cells],
                                        const int32_t (&sum)[Cells][3][kPlanes], uint32_t (&codes)[Cells]) const {
    Real hh[3][Cells];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      SumOf<Ratio> complete[Cells];
      Ratio by[Cells];
#pragma unroll
      for (int i = 0; i < Cells; ++i) {
        const SumOf<Ratio> rest = kStartsInProduct<Ratio> ? 0 : row_start[gate * 16 + half_of(i) * 8];
        complete[i] = complete_sum<Ratio>(sum[i][gate], rest);
        by[i] = ratio[gate][kHalves == 1 ? 0 : half_of(i)];
      }
      rescale_hh(a.gates, complete, by, hh[gate]);
    }
    gru_gates(a.gates, shared_tables(a.gates, b.shared + b.at.tables), ih, hh, h, codes);
  }
  /// Old codes where cells keep their state. Returns a bit for each row of this lane: its sequence has ended.
  __device__ __forceinline__ uint32_t keep_codes(int s, int j, const uint8_t* old, uint32_t (&codes)[Cells]) const {
    const auto* const lengths = reinterpret_cast<const int32_t*>(b.shared + b.at.lengths);
    const int t = time_of(a, s);
    uint32_t ended = 0;
    for (int i = 0; i < Cells; ++i) {
      const int row = j * b.tile_rows + row_of(i);
      if (row >= b.sequences) continue;
      bool keeps = t >= lengths[row];
      if (keeps) ended |= 1u << (kRows == 1 ? 0 : i % 2);
      keeps = keeps || is_masked(a, t, b.first + row, unit + halves_on(i) * 8);
      if (keeps) codes[i] = b.state_code(old + codes_on(i));
    }
    return ended;
  }
  /// This warp's codes of state s + 1 are where this block needs them; all of the block's go to the other blocks.
  __device__ __forceinline__ void send_codes(int s, int j, int next_state) const {
    const uint32_t barrier = b.state_barrier(j, s + 1);
    if constexpr (How == kCopies) {
      fence_before_copies();
      named_barrier_sync(kAllCodes, 32 * b.multiplying);
      if (!is_elected()) return;
      barrier_arrive(barrier);
      const uint32_t from =
          shared_address(b.h_memory) + static_cast<uint32_t>(b.rank * a.unit_blocks * b.group_stride + next_state);
      for (int other = b.warp; other < b.cluster - 1; other += b.multiplying) {
        const int further = b.rank + 1 + other;
        const auto block = static_cast<uint32_t>(further < b.cluster ? further : further - b.cluster);
        const uint32_t barrier_there = address_in(barrier, block);
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          const uint32_t of_plane = from + static_cast<uint32_t>(plane * b.plane_bytes);
          copy_to_block(address_in(of_plane, block), of_plane, static_cast<uint32_t>(a.unit_blocks * b.group_stride),
                        barrier_there);
        }
      }
    } else {
      __syncwarp();
      if (How == kSends && sends)
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane)
          send(message_to + static_cast<uint32_t>(next + plane * b.plane_bytes),
               *reinterpret_cast<const uint4*>(b.h_memory + message + next + plane * b.plane_bytes),
               message_barrier + static_cast<uint32_t>(next == 0 ? 0 : 8));
      if (b.lane == 0) barrier_arrive(barrier);
    }
  }
  __device__ __forceinline__ void turn(int s, int j) {
    const bool last = s + 1 == a.steps;
    const uint8_t* const state = b.h_memory + j * 2 * b.state_bytes + now;
    // What does not wait for the state.
    Real ih[3][Cells];
    load_ih(ih);
    if constexpr (!kKeepsRows) load_rows();
    if (s > 0) barrier_wait(b.state_barrier(j, s), static_cast<uint32_t>(s - 1) / 2 % 2);
    int32_t acc[kPasses][3][4];
    multiply(state, acc);
    Real h[Cells];
#pragma unroll
    for (int i = 0; i < Cells; ++i)
      h[i] = from_code<Real>(b.state_code(state + place + codes_on(i)), a.gates.h_from_code);
    int32_t sum[Cells][3][kPlanes];
    collect(acc, sum);
    uint32_t codes[Cells];
    gates(ih, h, sum, codes);
    const uint32_t ended = extras ? keep_codes(s, j, state + place, codes) : 0;
    const int next_state = j * 2 * b.state_bytes + next;
#pragma unroll
    for (int i = 0; i < Cells; ++i) b.put_state_code(b.h_memory + next_state + place + codes_on(i), codes[i]);
    if (!last) send_codes(s, j, next_state);
#pragma unroll
    for (int i = 0; i < Cells; ++i)
      if (exists(j, i))
        write_y<kPlanes>(a, Floats,
                         y_at + (int64_t{j} * b.tile_rows + rows_on(i)) * a.y_sequence + halves_on(i) * 8 * kYUnit,
                         ended >> rows_on(i) & 1 ? a.gates.h_to_unsigned : codes[i]);
    if (last)  // which nobody multiplies by
#pragma unroll
      for (int i = 0; i < Cells; ++i)
        if (exists(j, i))
          write_code<kPlanes>(
              a,
              a.next_state +
                  ((int64_t{b.first} + j * b.tile_rows + row_of(i)) * a.hidden + unit + halves_on(i) * 8) * kPlanes,
              codes[i]);
    __syncwarp();
    if (++slot == Block::kIhSlots) {
      slot = 0;
      slot_parity ^= 1;
    }
  }
  __device__ __forceinline__ void run() {
    const int tiles = OneTile ? 1 : b.tiles;
    for (int s = 0; s < a.steps; ++s) {
      for (int j = 0; j < tiles; ++j) turn(s, j);
      y_at += y_jump;
      now = next;
      next = b.state_bytes - next;
    }
  }
};

/// All turns of a warp that multiplies, with as many cells a lane as its tiles ask for.
template <int Cells, bool Floats, typename Block>
__device__ __forceinline__ void run_turns(const Block& block, const uint4 (&weights)[3][Block::kRegisters],
                                          const uint4* shared_weights) {
  const auto run = [&](auto one_tile, auto how) {
    ClusterTurns<Block, Floats, Cells, one_tile(), how()>(block, weights, shared_weights).run();
  };
  const auto exchanging = [&](auto how) {
    block.tiles == 1 ? run(std::true_type(), how) : run(std::false_type(), how);
  };
  if constexpr (Block::kTiles == 4) {
    exchanging(std::integral_constant<Exchange, kAlone>());
  } else if (block.a.exchange == kSends) {
    run(std::true_type(), std::integral_constant<Exchange, kSends>());
  } else {
    exchanging(std::integral_constant<Exchange, kCopies>());
  }
}
#endif

/// Floats: of y, as a constant, which saves instructions in each turn.
template <int KT, int KShared, int Splits, int Planes, bool Floats, typename Ratio>
__global__ void __launch_bounds__(32 * (kMaxMultiplying + (trades_registers(KT) ? 4 : 1)), 1)
    gru_cluster(const __grid_constant__ ClusterArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  using Block = ClusterBlock<KT, KShared, Splits, Planes, false, Ratio>;
  const Block block{a, shared};
  block.begin();
  if (const int service = service_warp(KT, block.multiplying); block.warp >= service) {
    if constexpr (trades_registers(KT)) trade_registers<kServiceRegisters>();
    if (block.warp == service && is_elected()) block.serve();
    return;
  }
  if constexpr (trades_registers(KT)) trade_registers<kMultiplyingRegisters>();
  if (block.warp >= block.multiplying) return;
  uint4 weights[3][Block::kRegisters];
  uint4* const shared_weights = block.shared_weights_of_warp();
  block.load_weights_of_warp(weights, shared_weights);
  block.load_state();
  if constexpr (Splits == 1) {
    if (block.tile_rows == 2) {
      run_turns<1, Floats>(block, weights, shared_weights);
    } else if (block.tile_rows == 4) {
      run_turns<2, Floats>(block, weights, shared_weights);
    } else {
      run_turns<4, Floats>(block, weights, shared_weights);
    }
  } else if (block.tile_rows == 4) {
    run_turns<1, Floats>(block, weights, shared_weights);
  } else {
    run_turns<2, Floats>(block, weights, shared_weights);
  }
  // Copies read the sender's memory: all blocks have had the last state that crosses.
  if (a.exchange == kCopies) cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_CUH_
