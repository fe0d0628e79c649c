// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence to H = 1024: R stays in the registers of a thread block, or of a cluster of them, for all
// steps; per step only the new state crosses.
//
// Partition. A team (a cluster, or one block) has all of R. Its block b owns `unit_blocks` groups of 16 hidden units,
// for each the rows of gate u, r and n: three 16-row tiles of mma.m16n8k32. One warp multiplies a group, or two, each
// with half of the columns of R (kSplits = 2): KT tiles of 32 columns a warp, in registers but for the last KShared,
// which are in shared memory. What a team has less of sequences, it has less to do: a tile has 2, 4 or 8 of them, and
// the 8 columns of an mma are that many sequences, repeated, so that the three accumulators of a unit and a sequence
// lie in the lane that computes their gates, and every lane has as many cells as the others. Further teams take further
// sequences, and teams never talk to each other.
//
//   sequences of a tile   cells of a lane (kSplits 1 / 2)   mma column -> sequence (1 / 2)
//   2                     1 / -                             g / 4    / -
//   4                     2 / 1                             g / 2    / g / 4 * 2 + g % 2
//   8                     4 / 2                             g        / g
//
// Where two warps share a group, warp w of them has the sequences of its parity: each hands the other the sums that are
// not its own, in shared memory.
// Codes of 16 bits are two bytes, in two planes of the state, with a sum each: 256 * high + low is an integer of 64
// bits, or exact in double lanes. Of at most 4 sequences both planes are columns of one mma, beside each other; then
// both warps of a group leave all of their sums in shared memory. Of more, the planes are multiplied one after the
// other.
//
// A team may have several tiles. They are recurrences of their own, and warps take them in turn, tile after tile, step
// after step: while the state of one crosses, the next is multiplied. Turn v is tile v % sequence_tiles of step
// v / sequence_tiles. In a turn, a warp
//   1. waits for ih of the turn and until the whole state h_s of the tile is in shared memory, and multiplies;
//   2. adds the other warp's sums to its own (kSplits = 2); computes its gates;
//   3. writes its new codes to its own block's buffer of h_(s + 1), and to y. When the block has all of its codes
//   there,
//      each warp sends them to one or two other blocks of the cluster, to the same place (bulk copies, which count
//      bytes at the receiver's barrier). One copy for all of a block's codes is what matters: st.async, with 16 bytes
//      each, takes some four cycles a message in a cluster of 16, four times as long for 8 sequences as these copies.
// One more warp arms the barrier of h_(s + 1) and fetches ih of a later turn (bulk copies): a warp takes about three
// cycles an instruction, so what need not be on the way from h_s to h_(s + 1) is kept off it.
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
#include "product/cuda/mma.cuh"

namespace isobit::cuda {

inline constexpr int kMaxTileSequences = 8;      // the columns of an mma
inline constexpr int kMaxClusterTiles = 7;       // of sequences, a team
inline constexpr int kMaxIhSlots = 8;            // turns whose ih is in shared memory, at most
inline constexpr int kIhTileBytes = 3 * 16 * 2;  // of one turn, sequence and group of units
inline constexpr int kMaxMultiplying = 8;        // warps of a block that multiply
inline constexpr int kAllCodes = 5;              // the named barrier of the warps that multiply; 1 to 4: of a group
inline constexpr int kMaxSplitCells = 2;         // of a lane where two warps share a group

/// The last sequences of a batch, with which teams of gru_cluster_many take turns so that not each of them has a tile
/// more. Team k < visits has them for `steps` steps, the last one for those that are left, two or more. Before these it
/// has k * pause steps of its own sequences, or all.
struct ClusterGuests {
  int32_t sequences;  // 0: there are none
  int32_t visits, steps, pause;
  /// [visits - 1]: how often a sequence's part of the state with which visit k + 1 begins has been written, once by
  /// each block of team k; zeros at the start.
  uint32_t* arrivals;
};

template <typename Ratio>
struct ClusterArgs : RecurrenceArgs<Ratio> {
  const uint4* fragments;  // R, in the order in which warps load it
  int32_t cluster, unit_blocks, sequence_tiles, tile_sequences;
  int32_t team_sequences;  // fewer than its tiles have room for, where that is all there are
  int32_t exchange;        // Exchange
  ClusterGuests guests;
};

/// How new codes cross to the other blocks of a cluster.
enum Exchange : int32_t {
  kAlone = 0,   // there are none
  kSends = 1,   // st.async of 16 bytes, a message a lane: the fastest for few of them, of one tile
  kCopies = 2,  // a bulk copy a block
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

/// KT: k tiles of a warp, KShared of them in shared memory. Planes: bytes of a code of h. Floats: of y; asked in every
/// turn that took up to 8 % of a step.
template <int KT, int KShared, int kSplits, int Planes, bool Floats, typename Ratio>
__global__ void __launch_bounds__(32 * (kMaxMultiplying + (trades_registers(KT) ? 4 : 1)), 1)
    gru_cluster(const __grid_constant__ ClusterArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kRegisters = KT - KShared;
  static_assert(kRegisters % 2 == 0 && KShared % 2 == 0);
  extern __shared__ __align__(128) uint8_t shared[];
  using Real = LaneOf<Ratio>;
  constexpr int kIhSlots = ih_slots(KT, Planes);
  constexpr int kYUnit = Floats ? 4 : Planes;  // bytes
  const GateLanes<Real>& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int threads = static_cast<int>(blockDim.x);
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const int tile_rows = a.tile_sequences;
  // Sequences of this team: rows of the tiles.
  const int first = static_cast<int>(blockIdx.x) / cluster * a.team_sequences;  // of the batch
  const int sequences = a.batch - first < a.team_sequences ? a.batch - first : a.team_sequences;
  const int sequence_tiles = (sequences + tile_rows - 1) / tile_rows;
  const ClusterShared at =
      cluster_shared({KT, KShared, kSplits, Planes, static_cast<int32_t>(sizeof(Ratio)), cluster, a.unit_blocks,
                      a.sequence_tiles, tile_rows, a.table_entries, sum_bytes(a.unit_blocks, kSplits, Planes)});
  const int group_stride = group_bytes(tile_rows);
  const int plane_bytes = at.plane_bytes;
  const int state_bytes = Planes * plane_bytes;
  uint8_t* const h_memory = shared + at.states;
  const uint32_t barriers = shared_address(shared);

  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += threads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  for (int i = static_cast<int>(threadIdx.x); i < a.unit_blocks * 48; i += threads) {
    auto* const ratios = reinterpret_cast<Ratio*>(shared + at.rows) + i / 48 * 96;
    ratios[i % 48] = a.ratio[rank * a.unit_blocks * 48 + i];
    reinterpret_cast<SumOf<Ratio>*>(ratios + 48)[i % 48] = a.start[rank * a.unit_blocks * 48 + i];
  }
  // Both buffers of the state: padding stays zero.
  for (int i = static_cast<int>(threadIdx.x) * 16; i < sequence_tiles * 2 * state_bytes; i += threads * 16)
    *reinterpret_cast<uint4*>(h_memory + i) = uint4{0, 0, 0, 0};
  const int multiplying = a.unit_blocks * kSplits;  // warps
  const auto state_barrier = [&](int j, int s) { return barriers + 8 * static_cast<uint32_t>(2 * j + s % 2); };
  const auto ih_barrier = [&](int slot) { return barriers + kIhBarriers + 8 * static_cast<uint32_t>(slot); };
  if (threadIdx.x == 0) {
    for (int j = 0; j < sequence_tiles; ++j)
      for (int i = 0; i < 2; ++i) barrier_init(state_barrier(j, i), static_cast<uint32_t>(multiplying + 1));
    for (int slot = 0; slot < kIhSlots; ++slot) barrier_init(ih_barrier(slot), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();

  if (const int service = service_warp(KT, multiplying); warp >= service) {
    // ---- The service warp.
    if constexpr (trades_registers(KT)) trade_registers<kServiceRegisters>();
    if (warp > service || !is_elected()) return;
    wait_for_grid_before();
    const auto bytes = static_cast<uint32_t>(a.unit_blocks * kIhTileBytes);
    const int ih_row = ih_row_bytes(a.unit_blocks);
    const auto sequences_of = [&](int j) {
      return sequences - j * tile_rows < tile_rows ? sequences - j * tile_rows : tile_rows;
    };
    const auto state_from_others = [&](int j) {
      return static_cast<uint32_t>((cluster - 1) * a.unit_blocks * Planes *
                                   (a.exchange == kCopies ? group_stride : sequences_of(j) * 16));
    };
    int fetch_s = 0, fetch_j = 0, slot = 0;  // of the next turn to fetch
    const auto fetch_next = [&] {
      if (fetch_s >= a.steps) return;
      const int there = sequences_of(fetch_j);
      const int64_t row =
          (a.reverse ? a.steps - 1 - fetch_s : fetch_s) * int64_t{a.batch} + first + fetch_j * tile_rows;
      const uint16_t* from = a.ih + (row * a.groups + rank * a.unit_blocks) * 48;
      uint32_t to = shared_address(shared + at.ih) + static_cast<uint32_t>(slot * tile_rows * ih_row);
      barrier_expect(ih_barrier(slot), bytes * static_cast<uint32_t>(there));
      for (int i = 0; i < there; ++i) {
        fetch(to, from, bytes, ih_barrier(slot));
        from += a.groups * 48;
        to += static_cast<uint32_t>(ih_row);
      }
      slot = slot == kIhSlots - 1 ? 0 : slot + 1;
      if (++fetch_j == sequence_tiles) {
        fetch_j = 0;
        ++fetch_s;
      }
    };
    for (int turn = 0; turn < kIhSlots - sequence_tiles; ++turn) fetch_next();
    for (int s = 0; s < a.steps; ++s)
      for (int j = 0; j < sequence_tiles; ++j) {
        if (s > 0) barrier_wait(state_barrier(j, s), (s - 1) / 2 % 2);
        if (s + 1 < a.steps) barrier_expect(state_barrier(j, s + 1), state_from_others(j));
        fetch_next();
      }
    return;
  }

  // ---- The warps that multiply.
  if constexpr (trades_registers(KT)) trade_registers<kMultiplyingRegisters>();
  if (warp >= multiplying) return;
  const int group = warp / kSplits;  // of this block
  const int part = warp % kSplits;
  const int unit_group = rank * a.unit_blocks + group;
  uint4 weights[3][kRegisters];
  auto* const shared_weights = reinterpret_cast<uint4*>(shared + at.weights) + warp * 3 * KShared * 32 + lane;
  {
    const uint4* from = a.fragments + (int64_t{unit_group} * kSplits + part) * KT * 96 + lane;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
      for (int kt = 0; kt < kRegisters; ++kt) weights[gate][kt] = load_weights(from + (kt * 3 + gate) * 32);
      for (int kt = 0; kt < KShared; ++kt)
        shared_weights[(gate * KShared + kt) * 32] = from[((kRegisters + kt) * 3 + gate) * 32];
    }
  }
  // This lane's accumulators: units g and g + 8 of the group, columns 2q and 2q + 1.
  const int g = lane / 4;
  const int q = lane % 4;
  const bool one_pass = Planes == 2 && tile_rows < 8;
  const int mma_row = tile_rows == 8              ? g
                      : kSplits == 2 && !one_pass ? g / 4 * 2 + g % 2
                      : tile_rows == 4            ? g / 2
                                                  : g / 4;
  const int b_offset = mma_row * 16 + (part * KT * 2 + q) * group_stride + (one_pass ? g % 2 * plane_bytes : 0);
  const auto* const group_rows = reinterpret_cast<const Ratio*>(shared + at.rows) + group * 96;
  const Ratio* const row_ratio = group_rows + g;
  const auto* const row_start = reinterpret_cast<const SumOf<Ratio>*>(group_rows + 48) + g;
  // [slot][plane][gate, cell][lane]: what the other warp of the group has for this one, and the other way.
  constexpr int kSumSlotWords = Planes * 3 * kMaxSplitCells * 32;
  const auto* const sums_in = reinterpret_cast<const int32_t*>(shared + at.sums) + warp * 2 * kSumSlotWords + lane;
  auto* const sums_out = reinterpret_cast<int32_t*>(shared + at.sums) + (warp ^ 1) * 2 * kSumSlotWords + lane;
  const uint8_t* const tables = shared + at.tables;
  const uint32_t h_address = shared_address(h_memory) + static_cast<uint32_t>(rank * a.unit_blocks * group_stride);
  const auto codes_bytes = static_cast<uint32_t>(a.unit_blocks * group_stride);
  const bool extras = a.lengths != nullptr || a.mask != nullptr;
  const uint32_t zero_code = c.h_to_unsigned;
  // The sign bit of a code in memory, above its low byte if it has two.
  const uint32_t flip = (a.flip & 0xff) << 8 * (Planes - 1);
  const auto store_code = [](uint8_t* to, uint32_t code) {
    if constexpr (Planes == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(code);
    } else {
      *to = static_cast<uint8_t>(code);
    }
  };

  // What grids before this one wrote: lengths and the state.
  wait_for_grid_before();
  auto* const lengths = reinterpret_cast<int32_t*>(shared + at.lengths);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < sequence_tiles * tile_rows; i += 32 * multiplying)
    lengths[i] = a.lengths != nullptr && i < sequences ? max(a.lengths[first + i], 0) - a.first_step : INT32_MAX;
  // Of the state some loads under way together; a pair of rows is of one tile.
  constexpr int kUnitsAtOnce = 4;
  for (int unit = thread; unit < a.hidden; unit += kUnitsAtOnce * 32 * multiplying)
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
            if (row + i < sequences && unit + j * 32 * multiplying < a.hidden)
              body(codes[i][j], from + (i * a.hidden + j * 32 * multiplying) * Planes,
                   to + i * 16 + j * 2 * multiplying * group_stride);
      };
      each([](uint32_t& code, const uint8_t* at_code, const uint8_t*) {
        code = Planes == 2 ? uint32_t{*reinterpret_cast<const uint16_t*>(at_code)} : uint32_t{*at_code};
      });
      each([&](uint32_t code, const uint8_t*, uint8_t* byte) {
        byte[0] = static_cast<uint8_t>((code ^ flip) >> 8 * (Planes - 1));
        if (Planes == 2) byte[plane_bytes] = static_cast<uint8_t>(code);
      });
    }
  named_barrier_sync(kAllCodes, 32 * multiplying);
  // With one step nothing crosses that would keep a block from writing a state which others have not read.
  if (a.steps == 1) cluster_sync();

  // All turns. Cells of a lane: unit g + 8 * half of sequence `row` each. kOneTile: of one tile of sequences.
  const auto turns = [&](auto cells, auto one_tile, auto how) {
    constexpr int kCells = decltype(cells)::value;
    constexpr bool kOneTile = decltype(one_tile)::value;
    constexpr Exchange kExchange = decltype(how)::value;
    constexpr int kHalves = kCells == 1 ? 1 : 2;  // of a lane
    constexpr int kRows = kCells / kHalves;
    // Codes of two bytes of at most 4 sequences: the planes are columns beside each other.
    constexpr bool kOnePass = Planes == 2 && kCells < 4 / kSplits;
    constexpr int kPasses = kOnePass ? 1 : Planes;
    constexpr bool kKeepsRows = KT <= 8 && sizeof(Ratio) == 4;  // ratios and starts in registers
    const int tiles = kOneTile ? 1 : sequence_tiles;
    const auto half_of = [&](int i) { return kCells == 1 ? q % 2 : kRows == 1 ? i : i / 2; };
    const auto row_of = [&](int i) {
      if (kSplits == 1) return kCells == 1 ? q / 2 : kCells == 2 ? q : 2 * q + i % 2;
      return kCells == 1 ? q / 2 * 2 + part : 2 * q + part;
    };
    // Which of the four accumulators is cell i's own, or that of the other warp (where two share the group).
    const auto pick = [&](const int32_t(&d)[4], int i, bool other) {
      if (kSplits == 1) return kCells == 1 ? (q % 2 != 0 ? d[2] : d[0]) : kCells == 2 ? d[2 * i] : d[i];
      const bool odd = (part != 0) != other;
      const int32_t low = odd ? d[1] : d[0];
      const int32_t high = odd ? d[3] : d[2];
      return kCells == 1 ? (q % 2 != 0 ? high : low) : i == 0 ? low : high;
    };
    const int ih_row = ih_row_bytes(a.unit_blocks);
    const uint8_t* const ih_from = shared + at.ih + row_of(0) * ih_row + group * kIhTileBytes + half_of(0) * 16 + g * 2;
    // Of this lane's codes in a state.
    const int place = unit_group * group_stride + row_of(0) * 16 + half_of(0) * 8 + g;
    // Units of this lane, and whether they are there.
    const int unit = unit_group * 16 + half_of(0) * 8 + g;
    const bool unit_there[2] = {unit < a.hidden, unit + 8 < a.hidden};
    const int64_t y_jump = a.reverse ? -a.y_step : a.y_step;
    uint8_t* y_at = a.y + (a.reverse ? a.steps - 1 : 0) * a.y_step + (int64_t{first} + row_of(0)) * a.y_sequence +
                    int64_t{unit} * kYUnit;
    Ratio ratio[3][kHalves];
    int32_t start[3][2] = {};
    const auto load_rows = [&] {
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
    };
    if constexpr (kKeepsRows) load_rows();
    // kSends: the message of this lane, 16 codes of one of this warp's sequences to one block.
    bool sends = false;
    int message = 0;
    uint32_t message_to = 0, message_barrier = 0;
    if constexpr (kExchange == kSends) {
      const int own = kSplits == 1 ? sequences : (sequences + 1 - part) / 2;
      const int own_bits = own <= 1 ? 0 : own == 2 ? 1 : own <= 4 ? 2 : 3;
      const int i = lane & ((1 << own_bits) - 1);
      const int block = lane >> own_bits;
      sends = i < own && block < cluster && block != rank;
      message = unit_group * group_stride + (i * kSplits + part) * 16;
      message_to = address_in(shared_address(h_memory) + static_cast<uint32_t>(message), static_cast<uint32_t>(block));
      message_barrier = address_in(barriers, static_cast<uint32_t>(block));
    }
    int now = 0, next = state_bytes;  // of the two buffers of a state
    int slot = 0, sums_slot = 0;
    uint32_t slot_parity = 0;
    for (int s = 0; s < a.steps; ++s) {
      const bool last = s + 1 == a.steps;
      const uint32_t parity = static_cast<uint32_t>(s - 1) / 2 % 2;
      for (int j = 0; j < tiles; ++j) {
        const uint8_t* const state = h_memory + j * 2 * state_bytes + now;
        // What does not wait for the state.
        Real ih[3][kCells];
        barrier_wait(ih_barrier(slot), slot_parity);
#pragma unroll
        for (int i = 0; i < kCells; ++i)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            ih[gate][i] = from_biased<Real>(*reinterpret_cast<const uint16_t*>(
                ih_from + slot * tile_rows * ih_row + (row_of(i) - row_of(0)) * ih_row +
                (half_of(i) - half_of(0)) * 16 + gate * 32));
        if constexpr (!kKeepsRows) load_rows();
        if (s > 0) barrier_wait(state_barrier(j, s), parity);
        int32_t acc[kPasses][3][4];
#pragma unroll
        for (int plane = 0; plane < kPasses; ++plane) {
          const uint8_t* const b_from = state + plane * plane_bytes + b_offset;
          const bool starts = plane == kPasses - 1;
          int32_t more[3][4] = {};
#pragma unroll
          for (int kt = 0; kt < KT; kt += 2) {
            const uint4 b = *reinterpret_cast<const uint4*>(b_from + kt * 2 * group_stride);
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
              uint4 w[2];
#pragma unroll
              for (int i = 0; i < 2; ++i)
                w[i] = kt < kRegisters ? weights[gate][kt < kRegisters ? kt + i : 0]
                                       : shared_weights[(gate * KShared + kt - kRegisters + i) * 32];
              // Two chains, so that one warp keeps the tensor cores busy; one where two warps of a scheduler do.
              if (kt == 0 && kOnePass) {
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[0][gate][i] = i % 2 == 0 ? 0 : start[gate][i / 2];
                mma_s8u8(acc[0][gate], w[0], b.x, b.y);
              } else if (kt == 0) {
                mma_s8u8(acc[plane][gate], w[0], b.x, b.y, starts ? start[gate][0] : 0, starts ? start[gate][1] : 0);
              } else {
                mma_s8u8(acc[plane][gate], w[0], b.x, b.y);
              }
              if (KT > 8) {
                mma_s8u8(acc[plane][gate], w[1], b.z, b.w);
              } else if (kt == 0) {
                mma_s8u8(more[gate], w[1], b.z, b.w, 0, 0);
              } else {
                mma_s8u8(more[gate], w[1], b.z, b.w);
              }
            }
          }
          if (KT <= 8)
#pragma unroll
            for (int gate = 0; gate < 3; ++gate)
#pragma unroll
              for (int i = 0; i < 4; ++i) acc[plane][gate][i] = wrapping_add(acc[plane][gate][i], more[gate][i]);
        }
        Real h[kCells];
#pragma unroll
        for (int i = 0; i < kCells; ++i) {
          const uint8_t* const from = state + place + (row_of(i) - row_of(0)) * 16 + (half_of(i) - half_of(0)) * 8;
          h[i] = from_code<Real>(Planes == 2 ? uint32_t{from[0]} << 8 | from[plane_bytes] : from[0], c.h_from_code);
        }
        int32_t sum[kCells][3][Planes];
        if constexpr (kOnePass && kSplits == 2) {
          // Both warps' sums lie as they were computed; each lane takes the two planes of its cell.
          auto* const all = reinterpret_cast<int32_t*>(shared + at.sums) + sums_slot * kSumSlotWords;
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            const int32_t(&d)[4] = acc[0][gate];
            *reinterpret_cast<int4*>(all + warp * 2 * kSumSlotWords + (gate * 32 + lane) * 4) =
                int4{d[0], d[1], d[2], d[3]};
          }
          named_barrier_sync(1 + group, 64);
          const int32_t* const cell = all + (g * 4 + row_of(0)) * 4 + half_of(0) * 2;
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            const int2 x = *reinterpret_cast<const int2*>(cell + group * 4 * kSumSlotWords + gate * 128);
            const int2 y = *reinterpret_cast<const int2*>(cell + (group * 4 + 2) * kSumSlotWords + gate * 128);
            sum[0][gate][0] = wrapping_add(x.x, y.x);
            sum[0][gate][Planes - 1] = wrapping_add(x.y, y.y);
          }
          sums_slot ^= 1;
        } else if constexpr (kOnePass) {
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
#pragma unroll
            for (int i = 0; i < kCells; ++i) {
              const bool upper = half_of(i) != 0;
#pragma unroll
              for (int plane = 0; plane < Planes; ++plane)
                sum[i][gate][plane] = upper ? acc[0][gate][2 + plane] : acc[0][gate][plane];
            }
        } else {
#pragma unroll
          for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
            for (int gate = 0; gate < 3; ++gate)
#pragma unroll
              for (int i = 0; i < kCells; ++i) {
                sum[i][gate][plane] = pick(acc[plane][gate], i, false);
                if (kSplits == 2)
                  sums_out[sums_slot * kSumSlotWords + ((plane * 3 + gate) * kMaxSplitCells + i) * 32] =
                      pick(acc[plane][gate], i, true);
              }
          if (kSplits == 2) {
            named_barrier_sync(1 + group, 64);
#pragma unroll
            for (int plane = 0; plane < Planes; ++plane)
#pragma unroll
              for (int gate = 0; gate < 3; ++gate)
#pragma unroll
                for (int i = 0; i < kCells; ++i)
                  sum[i][gate][plane] =
                      wrapping_add(sum[i][gate][plane],
                                   sums_in[sums_slot * kSumSlotWords + ((plane * 3 + gate) * kMaxSplitCells + i) * 32]);
            sums_slot ^= 1;
          }
        }
        Real hh[3][kCells];
        uint32_t codes[kCells];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          SumOf<Ratio> complete[kCells];
          Ratio by[kCells];
#pragma unroll
          for (int i = 0; i < kCells; ++i) {
            const SumOf<Ratio> rest = kStartsInProduct<Ratio> ? 0 : row_start[gate * 16 + half_of(i) * 8];
            complete[i] = complete_sum<Ratio>(sum[i][gate], rest);
            by[i] = ratio[gate][kHalves == 1 ? 0 : half_of(i)];
          }
          rescale_hh(c, complete, by, hh[gate]);
        }
        gru_gates(c, tables, ih, hh, h, codes);
        const int t = a.reverse ? a.steps - 1 - s : s;
        uint32_t frozen = 0;  // a bit for each row of this lane
        if (extras) {
          for (int i = 0; i < kCells; ++i) {
            const int row = j * tile_rows + row_of(i);
            if (row >= sequences) continue;
            bool keeps = t >= lengths[row];
            if (keeps) frozen |= 1u << (kRows == 1 ? 0 : i % 2);
            if (a.mask != nullptr && unit_there[half_of(i) - half_of(0)])
              keeps = keeps || a.mask[((int64_t{t} + a.first_step) * a.batch + first + row) * a.mask_width + unit +
                                      (half_of(i) - half_of(0)) * 8] == 0;
            if (keeps) {
              const uint8_t* const from = state + place + (row_of(i) - row_of(0)) * 16 + (half_of(i) - half_of(0)) * 8;
              codes[i] = Planes == 2 ? uint32_t{from[0]} << 8 | from[plane_bytes] : from[0];
            }
          }
        }
        // This warp's codes are where this block needs them; all of the block's go to the other blocks.
        const int next_state = j * 2 * state_bytes + next;
#pragma unroll
        for (int i = 0; i < kCells; ++i) {
          uint8_t* const to =
              h_memory + next_state + place + (row_of(i) - row_of(0)) * 16 + (half_of(i) - half_of(0)) * 8;
          to[0] = static_cast<uint8_t>(codes[i] >> 8 * (Planes - 1));
          if (Planes == 2) to[plane_bytes] = static_cast<uint8_t>(codes[i]);
        }
        if (!last) {
          if constexpr (kExchange == kCopies) {
            fence_before_copies();
            named_barrier_sync(kAllCodes, 32 * multiplying);
            if (is_elected()) {
              barrier_arrive(state_barrier(j, s + 1));
              for (int other = warp; other < cluster - 1; other += multiplying) {
                const auto block =
                    static_cast<uint32_t>(rank + 1 + other < cluster ? rank + 1 + other : rank + 1 + other - cluster);
                const uint32_t barrier = address_in(state_barrier(j, s + 1), block);
#pragma unroll
                for (int plane = 0; plane < Planes; ++plane) {
                  const uint32_t from = h_address + static_cast<uint32_t>(next_state + plane * plane_bytes);
                  copy_to_block(address_in(from, block), from, codes_bytes, barrier);
                }
              }
            }
          } else {
            __syncwarp();
            if (kExchange == kSends && sends)
#pragma unroll
              for (int plane = 0; plane < Planes; ++plane)
                send(message_to + static_cast<uint32_t>(next + plane * plane_bytes),
                     *reinterpret_cast<const uint4*>(h_memory + message + next + plane * plane_bytes),
                     message_barrier + static_cast<uint32_t>(next == 0 ? 0 : 8));
            if (lane == 0) barrier_arrive(state_barrier(j, s + 1));
          }
        }
#pragma unroll
        for (int i = 0; i < kCells; ++i) {
          const int row = row_of(i) - row_of(0);
          if (j * tile_rows + row_of(i) >= sequences || !unit_there[half_of(i) - half_of(0)]) continue;
          const uint32_t code = frozen >> row & 1 ? zero_code : codes[i];
          uint8_t* const to =
              y_at + (int64_t{j} * tile_rows + row) * a.y_sequence + (half_of(i) - half_of(0)) * 8 * kYUnit;
          if constexpr (Floats) {
            *reinterpret_cast<float*>(to) = y_of<Planes>(a, code);
          } else {
            store_code(to, code ^ flip);
          }
        }
        if (last)  // which nobody multiplies by
#pragma unroll
          for (int i = 0; i < kCells; ++i) {
            const int row = j * tile_rows + row_of(i);
            if (row >= sequences || !unit_there[half_of(i) - half_of(0)]) continue;
            store_code(
                a.next_state + ((int64_t{first} + row) * a.hidden + unit + (half_of(i) - half_of(0)) * 8) * Planes,
                codes[i] ^ flip);
          }
        __syncwarp();
        if (++slot == kIhSlots) {
          slot = 0;
          slot_parity ^= 1;
        }
      }
      y_at += y_jump;
      now = next;
      next = state_bytes - next;
    }
  };
  const auto all_turns = [&](auto cells) {
    const auto exchanging = [&](auto how) {
      if (sequence_tiles == 1) {
        turns(cells, std::true_type(), how);
      } else {
        turns(cells, std::false_type(), how);
      }
    };
    if constexpr (KT == 4) {
      exchanging(std::integral_constant<Exchange, kAlone>());
    } else if (a.exchange == kSends) {
      turns(cells, std::true_type(), std::integral_constant<Exchange, kSends>());
    } else {
      exchanging(std::integral_constant<Exchange, kCopies>());
    }
  };
  if constexpr (kSplits == 1) {
    if (tile_rows == 2) {
      all_turns(std::integral_constant<int, 1>());
    } else if (tile_rows == 4) {
      all_turns(std::integral_constant<int, 2>());
    } else {
      all_turns(std::integral_constant<int, 4>());
    }
  } else {
    if (tile_rows == 4) {
      all_turns(std::integral_constant<int, 1>());
    } else {
      all_turns(std::integral_constant<int, 2>());
    }
  }
  // Copies read the sender's memory: all blocks have had the last state that crosses.
  if (a.exchange == kCopies) cluster_sync();
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_CUH_
