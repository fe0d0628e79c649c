// SPDX-License-Identifier: Apache-2.0
// The recurrence of one or two sequences of a team with H to 1024. As in cluster.cuh R stays in registers, and
// only the new state crosses; but a warp that multiplies does nothing else, and further warps compute the gates.
//
// Why. Where a team has one tile of sequences, nothing but the next state is there to be multiplied. What a warp of
// gru_cluster does between sending its codes and waiting for the next state (y, ih, row constants, addresses) was on
// the way from one state to the next: 250 to 300 of 1560 cycles with H = 1024. Here the gates' warps do it while their
// codes cross and the other warps multiply. From three sequences a team on gru_cluster is faster, as each of its warps
// has gates to compute.
//
// Partition: that of gru_cluster. Each group of 16 units has kSplits warps that multiply, with half of the columns of R
// each, or all, and one warp of gates, whose lane l has unit l % 16 of sequence l / 16. The columns of an mma are the
// sequences, repeated; of codes of two bytes both planes of each, beside each other.
//
// A step:
//   1. A warp that multiplies waits for the whole state h_s, multiplies, and leaves its sums in shared memory.
//   2. The gates' warp of the group waits for those warps (a named barrier), adds their sums, computes the gates,
//   writes
//      the new codes to its own block's buffer of h_(s + 1), and sends them to each other block, 16 a message
//      (st.async, which counts bytes at the receiver's barrier).
//   3. Then it stores y, and loads what its next gates need.
// The service warp arms the barrier of h_(s + 1), and fetches ih, as in gru_cluster.
//
// Why no buffer is written too early. State s lies in buffer s % 2, and is written again by state s + 2. The warp of
// gates that writes that, in this block or another one, has sums of state s + 1, whose products began when all of state
// s + 1 was there: so each warp of gates of this block had sent its part of it, and before that each warp that
// multiplies here had finished with state s. Sums of step s + 1 are written when state s + 1 is complete, so the reader
// of those of step s has sent its part of it. Ih of step s lies in slot s % kIhSlots, and is fetched again when state
// s + 1 is complete, or a later one: then each warp of gates of this block has used it.
//
// Barriers: state s > 0 completes phase (s - 1) / 2 of barrier s % 2. It counts the block's warps of gates, which have
// written their codes, and the service warp, which arms it for the bytes of the other blocks (as in gru_cluster, bytes
// that arrive before count, too). The beginning and the end are those of gru_cluster.
#ifndef ISOBIT_GRU_CUDA_CLUSTER_FEW_CUH_
#define ISOBIT_GRU_CUDA_CLUSTER_FEW_CUH_

#include <cstdint>

#include "gru/cuda/cluster.cuh"

namespace isobit::cuda {

inline constexpr int kFewSequences = 2;  // of a team, at most: a lane of gates has one cell

// Warps: kMaxMultiplying that may multiply, kMaxGateWarps that may have gates, one of service. Each kind begins with a
// warpgroup, since those trade registers.
inline constexpr int kMaxGateWarps = 4;
inline constexpr int kFewServiceWarp = kMaxMultiplying + kMaxGateWarps;
inline __host__ __device__ constexpr int few_threads(int k_tiles) {
  return 32 * (kFewServiceWarp + (trades_registers(k_tiles) ? 4 : 1));
}
/// Registers of a thread. In double lanes gates need more, and half of R is in shared memory.
template <typename Ratio>
struct FewRegisters {
  static constexpr bool kDouble = sizeof(LaneOf<Ratio>) == 8;
  static constexpr int kStart = 128;  // 65,536 of a processor over 512 threads
  static constexpr int kMultiplying = kDouble ? 176 : 216;
  static constexpr int kGates = kDouble ? 136 : 56;
  static constexpr int kService = 24;
  static_assert(2 * kMultiplying + kGates + kService == 4 * kStart);
};

/// The sums of a block's groups: [group][gate][row][warp of the group][sequence][plane].
inline __host__ __device__ int32_t few_sum_bytes(int32_t unit_blocks, int32_t splits, int32_t planes) {
  return unit_blocks * 48 * splits * kFewSequences * planes * 4;
}

/// KT: k tiles of a warp that multiplies, KShared of them in shared memory. Planes: bytes of a code of h. Floats: of y.
template <int KT, int KShared, int kSplits, int Planes, bool Floats, typename Ratio>
__global__ void __launch_bounds__(few_threads(KT), 1) gru_cluster_few(const __grid_constant__ ClusterArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kRegisters = KT - KShared;
  static_assert(kRegisters % 2 == 0 && KShared % 2 == 0);
  extern __shared__ __align__(128) uint8_t shared[];
  using Real = LaneOf<Ratio>;
  using Registers = FewRegisters<Ratio>;
  constexpr int kIhSlots = ih_slots(KT, Planes);
  constexpr int kYUnit = Floats ? 4 : Planes;  // bytes
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int threads = static_cast<int>(blockDim.x);
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  constexpr int kRows = kFewSequences;                                          // of the tile in memory
  const int first = static_cast<int>(blockIdx.x) / cluster * a.team_sequences;  // of the batch
  const int sequences = a.batch - first < a.team_sequences ? a.batch - first : a.team_sequences;
  const ClusterShared at =
      cluster_shared({KT, KShared, kSplits, Planes, static_cast<int32_t>(sizeof(Ratio)), cluster, a.unit_blocks, 1,
                      kRows, a.table_entries, few_sum_bytes(a.unit_blocks, kSplits, Planes)});
  const int group_stride = group_bytes(kRows);
  const int plane_bytes = at.plane_bytes;
  const int state_bytes = Planes * plane_bytes;
  uint8_t* const h_memory = shared + at.states;
  const uint32_t barriers = shared_address(shared);

  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += threads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  // Both buffers of the state: padding stays zero.
  for (int i = static_cast<int>(threadIdx.x) * 16; i < 2 * state_bytes; i += threads * 16)
    *reinterpret_cast<uint4*>(h_memory + i) = uint4{0, 0, 0, 0};
  const int multiplying = a.unit_blocks * kSplits;  // warps
  const int working = 32 * (multiplying + a.unit_blocks);
  const auto state_barrier = [&](int s) { return barriers + 8 * static_cast<uint32_t>(s % 2); };
  const auto ih_barrier = [&](int slot) { return barriers + kIhBarriers + 8 * static_cast<uint32_t>(slot); };
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) barrier_init(state_barrier(i), static_cast<uint32_t>(a.unit_blocks + 1));
    for (int slot = 0; slot < kIhSlots; ++slot) barrier_init(ih_barrier(slot), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();

  if (warp >= kFewServiceWarp) {
    // ---- The service warp.
    if constexpr (trades_registers(KT)) trade_registers<Registers::kService, Registers::kStart>();
    if (warp > kFewServiceWarp || !is_elected()) return;
    wait_for_grid_before();
    const auto bytes = static_cast<uint32_t>(a.unit_blocks * kIhTileBytes);
    const int ih_row = ih_row_bytes(a.unit_blocks);
    const auto from_others = static_cast<uint32_t>((cluster - 1) * a.unit_blocks * Planes * sequences * 16);
    int fetch_s = 0, slot = 0;  // of the next step to fetch
    const auto fetch_next = [&] {
      if (fetch_s >= a.steps) return;
      const int64_t row = (a.reverse ? a.steps - 1 - fetch_s : fetch_s) * int64_t{a.batch} + first;
      const uint16_t* from = a.ih + (row * a.groups + rank * a.unit_blocks) * 48;
      uint32_t to = shared_address(shared + at.ih) + static_cast<uint32_t>(slot * kRows * ih_row);
      barrier_expect(ih_barrier(slot), bytes * static_cast<uint32_t>(sequences));
      for (int i = 0; i < sequences; ++i) {
        fetch(to, from, bytes, ih_barrier(slot));
        from += a.groups * 48;
        to += static_cast<uint32_t>(ih_row);
      }
      slot = slot == kIhSlots - 1 ? 0 : slot + 1;
      ++fetch_s;
    };
    for (int step = 0; step < kIhSlots - 1; ++step) fetch_next();
    for (int s = 0; s < a.steps; ++s) {
      if (s > 0) barrier_wait(state_barrier(s), (s - 1) / 2 % 2);
      if (s + 1 < a.steps) barrier_expect(state_barrier(s + 1), from_others);
      fetch_next();
    }
    return;
  }

  // A code in a state, its planes apart, and in the caller's memory. The sign bit of signed codes is above the low byte
  // of two.
  const uint32_t flip = (a.flip & 0xff) << 8 * (Planes - 1);
  const auto read_code = [&](const uint8_t* from) {
    return Planes == 2 ? uint32_t{from[0]} << 8 | from[plane_bytes] : uint32_t{from[0]};
  };
  const auto write_code = [&](uint8_t* to, uint32_t code) {
    to[0] = static_cast<uint8_t>(code >> 8 * (Planes - 1));
    if (Planes == 2) to[plane_bytes] = static_cast<uint8_t>(code);
  };
  const auto store_code = [&](uint8_t* to, uint32_t code) {
    if constexpr (Planes == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(code ^ flip);
    } else {
      *to = static_cast<uint8_t>(code ^ flip);
    }
  };
  // What grids before this one wrote: the state, of which each thread that works has some. Four loads under way.
  const auto load_state = [&](int thread) {
    wait_for_grid_before();
    for (int row = 0; row < sequences; ++row) {
      const uint8_t* const from = a.state + (int64_t{first} + row) * a.hidden * Planes;
#pragma unroll 4
      for (int unit = thread; unit < a.hidden; unit += working) {
        uint32_t code = 0;
        if constexpr (Planes == 2) {
          code = reinterpret_cast<const uint16_t*>(from)[unit];
        } else {
          code = from[unit];
        }
        write_code(h_memory + row * 16 + unit / 16 * group_stride + unit % 16, code ^ flip);
      }
    }
    named_barrier_sync_apart(kAllCodes, working);
    // With one step nothing crosses that would keep a block from writing a state which others have not read.
    if (a.steps == 1) cluster_sync();
  };
  constexpr int kSumsOfGroup = kAllCodes + 1;  // named barriers: the first group's
  constexpr int kColumns = kRows * Planes;

  if (warp < kMaxMultiplying) {
    // ---- The warps that multiply.
    if constexpr (trades_registers(KT)) trade_registers<Registers::kMultiplying, Registers::kStart>();
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
    const int g = lane / 4;
    const int q = lane % 4;
    const int b_offset =
        (Planes == 2 ? g / 2 % kRows * 16 + g % 2 * plane_bytes : g % kRows * 16) + (part * KT * 2 + q) * group_stride;
    const bool has_sums = 2 * q < kColumns;
    int32_t* const sums =
        reinterpret_cast<int32_t*>(shared + at.sums) + ((group * 48 + g) * kSplits + part) * kColumns + 2 * q;
    constexpr int kHalf = 8 * kSplits * kColumns;  // eight rows on
    load_state(static_cast<int>(threadIdx.x));
    for (int s = 0; s < a.steps; ++s) {
      const uint8_t* const b_from = h_memory + s % 2 * state_bytes + b_offset;
      if (s > 0) barrier_wait(state_barrier(s), static_cast<uint32_t>(s - 1) / 2 % 2);
      int32_t acc[3][4];
      int32_t more[3][4];
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
          if (kt == 0) {
            mma_s8u8(acc[gate], w[0], b.x, b.y, 0, 0);
          } else {
            mma_s8u8(acc[gate], w[0], b.x, b.y);
          }
          if (KT > 8) {
            mma_s8u8(acc[gate], w[1], b.z, b.w);
          } else if (kt == 0) {
            mma_s8u8(more[gate], w[1], b.z, b.w, 0, 0);
          } else {
            mma_s8u8(more[gate], w[1], b.z, b.w);
          }
        }
      }
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        if (KT <= 8)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[gate][i] = wrapping_add(acc[gate][i], more[gate][i]);
        if (has_sums) {
          *reinterpret_cast<int2*>(sums + gate * 2 * kHalf) = int2{acc[gate][0], acc[gate][1]};
          *reinterpret_cast<int2*>(sums + (gate * 2 + 1) * kHalf) = int2{acc[gate][2], acc[gate][3]};
        }
      }
      named_barrier_arrive(kSumsOfGroup + group, 32 * (kSplits + 1));
    }
    return;
  }

  // ---- The warps of gates.
  if constexpr (trades_registers(KT)) trade_registers<Registers::kGates, Registers::kStart>();
  const int group = warp - kMaxMultiplying;
  if (group >= a.unit_blocks) return;
  const int unit_group = rank * a.unit_blocks + group;
  const GateLanes<Real>& c = a.gates;
  const int row = lane % 16;
  const int unit = unit_group * 16 + row;
  const uint8_t* const tables = shared + at.tables;
  Ratio ratio[3];
  SumOf<Ratio> start[3];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    const int i = (unit_group * 3 + gate) * 16 + row;
    ratio[gate] = a.ratio[i];
    start[gate] = a.start[i];
  }
  load_state(32 * multiplying + static_cast<int>(threadIdx.x) - 32 * kMaxMultiplying);
  const int sequence = lane / 16;
  const bool there = unit < a.hidden && sequence < sequences;
  const int place = unit_group * group_stride + sequence * 16;  // of this sequence's codes in a state
  uint32_t code = read_code(h_memory + place + row);
  const int length = a.lengths != nullptr && there ? max(a.lengths[first + sequence], 0) - a.first_step : INT32_MAX;
  const int64_t y_jump = a.reverse ? -a.y_step : a.y_step;
  uint8_t* y_at = a.y + (a.reverse ? a.steps - 1 : 0) * a.y_step + (int64_t{first} + sequence) * a.y_sequence +
                  int64_t{unit} * kYUnit;
  const int ih_row = ih_row_bytes(a.unit_blocks);
  const uint8_t* const ih_from = shared + at.ih + sequence * ih_row + group * kIhTileBytes + row * 2;
  const int32_t* const sums =
      reinterpret_cast<const int32_t*>(shared + at.sums) + (group * 48 + row) * kSplits * kColumns + sequence * Planes;
  // The message of this lane: the 16 codes of its sequence to one block.
  const int block = lane % 16;
  const bool sends = sequence < sequences && block < cluster && block != rank;
  uint32_t message_to = 0, message_barrier = 0;
  if (sends) {
    message_to = address_in(shared_address(h_memory) + static_cast<uint32_t>(place), static_cast<uint32_t>(block));
    message_barrier = address_in(barriers, static_cast<uint32_t>(block));
  }
  const bool extras = a.lengths != nullptr || a.mask != nullptr;
  int slot = 0;
  uint32_t slot_parity = 0;
  Real ih[3][1];
  const auto load_ih = [&] {
    barrier_wait(ih_barrier(slot), slot_parity);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
      ih[gate][0] = from_biased<Real>(*reinterpret_cast<const uint16_t*>(ih_from + slot * kRows * ih_row + gate * 32));
    if (++slot == kIhSlots) {
      slot = 0;
      slot_parity ^= 1;
    }
  };
  load_ih();
  for (int s = 0; s < a.steps; ++s) {
    const bool last = s + 1 == a.steps;
    const int t = a.reverse ? a.steps - 1 - s : s;
    bool frozen = false, keeps = false;
    if (extras) {
      frozen = t >= length;
      keeps = frozen || (there && is_masked(a, t, first + sequence, unit));
    }
    const Real h[1] = {from_code<Real>(code & (Planes == 2 ? 0xffff : 0xff), c.h_from_code)};
    named_barrier_sync(kSumsOfGroup + group, 32 * (kSplits + 1));
    SumOf<Ratio> complete[3];
    Real of_gates[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      int32_t sum[Planes] = {};
#pragma unroll
      for (int part = 0; part < kSplits; ++part) {
        const int32_t* const from = sums + (gate * 16 * kSplits + part) * kColumns;
        if constexpr (Planes == 2) {
          const int2 both = *reinterpret_cast<const int2*>(from);
          sum[0] = wrapping_add(sum[0], both.x);
          sum[1] = wrapping_add(sum[1], both.y);
        } else {
          sum[0] = wrapping_add(sum[0], *from);
        }
      }
      complete[gate] = complete_sum<Ratio>(sum, start[gate]);
    }
    rescale_hh(c, complete, ratio, of_gates);
    const Real hh[3][1] = {{of_gates[0]}, {of_gates[1]}, {of_gates[2]}};
    uint32_t fresh[1];
    gru_gates(c, tables, ih, hh, h, fresh);
    if (!keeps) code = fresh[0];
    const int next = (s + 1) % 2 * state_bytes;
    write_code(h_memory + next + place + row, code);
    if (!last) {
      __syncwarp();
      if (sends)
#pragma unroll
        for (int plane = 0; plane < Planes; ++plane) {
          const int offset = next + plane * plane_bytes;
          send(message_to + static_cast<uint32_t>(offset), *reinterpret_cast<const uint4*>(h_memory + place + offset),
               message_barrier + static_cast<uint32_t>(next == 0 ? 0 : 8));
        }
      if (lane == 0) barrier_arrive(state_barrier(s + 1));
    }
    if (there) {
      const uint32_t y = frozen ? c.h_to_unsigned : code;
      if constexpr (Floats) {
        *reinterpret_cast<float*>(y_at) = y_of<Planes>(a, y);
      } else {
        store_code(y_at, y);
      }
    }
    y_at += y_jump;
    if (!last) load_ih();
  }
  if (there) store_code(a.next_state + ((int64_t{first} + sequence) * a.hidden + unit) * Planes, code);
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_FEW_CUH_
