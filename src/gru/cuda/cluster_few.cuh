// SPDX-License-Identifier: Apache-2.0
// The recurrence of one or two sequences of a team with H to 1024. As in cluster.cuh R stays in registers, and
// only the new state crosses; but a warp that multiplies does nothing else, and further warps compute the gates.
//
// What a warp of gru_cluster does between sending its codes and waiting for the next state (y, ih, addresses) is on the
// way from one state to the next. Here the gates' warps do it while their codes cross and the other warps multiply.
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

// Warps: kMaxMultiplying that may multiply, kMaxGateWarps that may have gates, one of service. Each kind begins with a
// warpgroup, since those trade registers.
inline constexpr int kMaxGateWarps = 4;
inline constexpr int kFewServiceWarp = kMaxMultiplying + kMaxGateWarps;
inline constexpr int kSumsOfGroup = kAllCodes + 1;  // named barriers: the first group's
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

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// In each thread that works, thread `thread` of them: what grids before this one wrote, the state.
template <typename Block>
__device__ __forceinline__ void load_few_state(const Block& b, int thread) {
  const auto& a = b.a;
  const int working = 32 * (b.multiplying + a.unit_blocks);
  wait_for_grid_before();
  for (int row = 0; row < b.sequences; ++row) {
    const uint8_t* const from = a.state + (int64_t{b.first} + row) * a.hidden * Block::kPlanes;
#pragma unroll 4
    for (int unit = thread; unit < a.hidden; unit += working)
      b.put_state_code(b.h_memory + row * 16 + unit / 16 * b.group_stride + unit % 16,
                       read_code<Block::kPlanes>(a, from + unit * Block::kPlanes));
  }
  named_barrier_sync_apart(kAllCodes, working);
  // With one step nothing crosses that would keep a block from writing a state which others have not read.
  if (a.steps == 1) cluster_sync();
}

/// A warp that multiplies.
template <typename Block>
__device__ __forceinline__ void multiply_few(const Block& b) {
  constexpr int kSplits = Block::kSplits, kPlanes = Block::kPlanes, kColumns = kFewSequences * kPlanes;
  const int group = b.warp / kSplits;  // of this block
  const int part = b.warp % kSplits;
  uint4 weights[3][Block::kRegisters];
  uint4* const shared_weights = b.shared_weights_of_warp();
  b.load_weights_of_warp(weights, shared_weights);
  const int g = b.lane / 4;
  const int q = b.lane % 4;
  const int b_offset = (kPlanes == 2 ? g / 2 % kFewSequences * 16 + g % 2 * b.plane_bytes : g % kFewSequences * 16) +
                       (part * Block::kTiles * 2 + q) * b.group_stride;
  const bool has_sums = 2 * q < kColumns;
  int32_t* const sums =
      reinterpret_cast<int32_t*>(b.shared + b.at.sums) + ((group * 48 + g) * kSplits + part) * kColumns + 2 * q;
  constexpr int kHalf = 8 * kSplits * kColumns;  // eight rows on
  load_few_state(b, static_cast<int>(threadIdx.x));
  for (int s = 0; s < b.a.steps; ++s) {
    const uint8_t* const codes = b.h_memory + s % 2 * b.state_bytes + b_offset;
    if (s > 0) barrier_wait(b.state_barrier(0, s), static_cast<uint32_t>(s - 1) / 2 % 2);
    int32_t acc[3][4];
    const int32_t none[3][2]{};
    multiply_tiles<Block::kTiles, false>(weights, shared_weights, codes, 4 * b.group_stride, none, acc);
    // A branch around additions and stores takes longer than additions that nobody needs.
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) keep_in_registers(acc[gate]);
    if (has_sums)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        *reinterpret_cast<int2*>(sums + gate * 2 * kHalf) = int2{acc[gate][0], acc[gate][1]};
        *reinterpret_cast<int2*>(sums + (gate * 2 + 1) * kHalf) = int2{acc[gate][2], acc[gate][3]};
      }
    named_barrier_arrive(kSumsOfGroup + group, 32 * (kSplits + 1));
  }
}

/// A warp of gates.
template <typename Block, bool Floats>
struct FewGates {
  using Ratio = typename Block::Ratio;
  using Real = LaneOf<Ratio>;
  static constexpr int kSplits = Block::kSplits, kPlanes = Block::kPlanes, kColumns = kFewSequences * kPlanes;

  const Block& b;
  const ClusterArgs<Ratio>& a = b.a;
  const int group = b.warp - kMaxMultiplying;
  const int row = b.lane % 16;
  const int unit = (b.rank * a.unit_blocks + group) * 16 + row;
  const int sequence = b.lane / 16;
  const bool there = unit < a.hidden && sequence < b.sequences;
  const int place = unit / 16 * b.group_stride + sequence * 16;  // of this sequence's codes in a state
  // The message of this lane: the 16 codes of its sequence to block `row`.
  const bool sends = sequence < b.sequences && row < b.cluster && row != b.rank;
  const uint32_t message_to = sends ? address_in(shared_address(b.h_memory + place), static_cast<uint32_t>(row)) : 0;
  const uint32_t message_barrier = sends ? address_in(b.barriers, static_cast<uint32_t>(row)) : 0;
  const SharedGateTables tables = shared_tables(a.gates, b.shared + b.at.tables);
  Ratio ratio[3];
  SumOf<Ratio> start[3];
  int slot = 0;
  uint32_t slot_parity = 0;
  Real ih[3][1];
  uint32_t code = 0;

  __device__ __forceinline__ explicit FewGates(const Block& block) : b(block) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const int i = unit / 16 * 48 + gate * 16 + row;
      ratio[gate] = a.ratio[i];
      start[gate] = a.start[i];
    }
  }

  __device__ __forceinline__ void load_ih() {
    const int ih_row = ih_row_bytes(a.unit_blocks);
    const uint8_t* const from = b.shared + b.at.ih + sequence * ih_row + group * kIhTileBytes + row * 2;
    barrier_wait(b.ih_barrier(slot), slot_parity);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
      ih[gate][0] =
          from_biased<Real>(*reinterpret_cast<const uint16_t*>(from + slot * kFewSequences * ih_row + gate * 32));
    if (++slot == Block::kIhSlots) {
      slot = 0;
      slot_parity ^= 1;
    }
  }
  /// Of this lane's cell, by the sums of its group's warps.
  __device__ __forceinline__ uint32_t new_code() const {
    const int32_t* const sums = reinterpret_cast<const int32_t*>(b.shared + b.at.sums) +
                                (group * 48 + row) * kSplits * kColumns + sequence * kPlanes;
    const Real h[1] = {from_code<Real>(code & (kPlanes == 2 ? 0xffff : 0xff), a.gates.h_from_code)};
    named_barrier_sync(kSumsOfGroup + group, 32 * (kSplits + 1));
    SumOf<Ratio> complete[3];
    Real of_gates[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      int32_t sum[kPlanes] = {};
#pragma unroll
      for (int part = 0; part < kSplits; ++part) {
        const int32_t* const from = sums + (gate * 16 * kSplits + part) * kColumns;
        if constexpr (kPlanes == 2) {
          const int2 both = *reinterpret_cast<const int2*>(from);
          sum[0] = wrapping_add(sum[0], both.x);
          sum[1] = wrapping_add(sum[1], both.y);
        } else {
          sum[0] = wrapping_add(sum[0], *from);
        }
      }
      complete[gate] = complete_sum<Ratio>(sum, start[gate]);
    }
    rescale_hh(a.gates, complete, ratio, of_gates);
    const Real hh[3][1] = {{of_gates[0]}, {of_gates[1]}, {of_gates[2]}};
    uint32_t fresh[1];
    gru_gates(a.gates, tables, ih, hh, h, fresh);
    return fresh[0];
  }
  __device__ __forceinline__ void send_codes(int s, int next) const {
    __syncwarp();
    if (sends)
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        const int offset = next + plane * b.plane_bytes;
        send(message_to + static_cast<uint32_t>(offset), *reinterpret_cast<const uint4*>(b.h_memory + place + offset),
             message_barrier + static_cast<uint32_t>(next == 0 ? 0 : 8));
      }
    if (b.lane == 0) barrier_arrive(b.state_barrier(0, s + 1));
  }

  __device__ __forceinline__ void run() {
    load_few_state(b, 32 * b.multiplying + static_cast<int>(threadIdx.x) - 32 * kMaxMultiplying);
    code = b.state_code(b.h_memory + place + row);
    const int length = there ? length_of(a, b.first + sequence) : INT32_MAX;
    const int64_t y_jump = a.reverse ? -a.y_step : a.y_step;
    uint8_t* y_at = a.y + time_of(a, 0) * a.y_step + (int64_t{b.first} + sequence) * a.y_sequence +
                    int64_t{unit} * (Floats ? 4 : kPlanes);
    const bool extras = a.lengths != nullptr || a.mask != nullptr;
    load_ih();
    for (int s = 0; s < a.steps; ++s) {
      const bool last = s + 1 == a.steps;
      const int t = time_of(a, s);
      bool ended = false, keeps = false;
      if (extras) {
        ended = t >= length;
        keeps = ended || (there && is_masked(a, t, b.first + sequence, unit));
      }
      const uint32_t fresh = new_code();
      if (!keeps) code = fresh;
      const int next = (s + 1) % 2 * b.state_bytes;
      b.put_state_code(b.h_memory + next + place + row, code);
      if (!last) send_codes(s, next);
      if (there) write_y<kPlanes>(a, Floats, y_at, ended ? a.gates.h_to_unsigned : code);
      y_at += y_jump;
      if (!last) load_ih();
    }
    if (there) write_code<kPlanes>(a, a.next_state + ((int64_t{b.first} + sequence) * a.hidden + unit) * kPlanes, code);
  }
};
#endif

/// KT: k tiles of a warp that multiplies, KShared of them in shared memory. Planes: bytes of a code of h. Floats: of y.
template <int KT, int KShared, int Splits, int Planes, bool Floats, typename Ratio>
__global__ void __launch_bounds__(few_threads(KT), 1) gru_cluster_few(const __grid_constant__ ClusterArgs<Ratio> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  using Block = ClusterBlock<KT, KShared, Splits, Planes, true, Ratio>;
  using Registers = FewRegisters<Ratio>;
  const Block block{a, shared};
  block.begin();
  if (block.warp >= kFewServiceWarp) {
    if constexpr (trades_registers(KT)) trade_registers<Registers::kService, Registers::kStart>();
    if (block.warp == kFewServiceWarp && is_elected()) block.serve();
  } else if (block.warp < kMaxMultiplying) {
    if constexpr (trades_registers(KT)) trade_registers<Registers::kMultiplying, Registers::kStart>();
    if (block.warp < block.multiplying) multiply_few(block);
  } else {
    if constexpr (trades_registers(KT)) trade_registers<Registers::kGates, Registers::kStart>();
    if (block.warp - kMaxMultiplying < a.unit_blocks) FewGates<Block, Floats>(block).run();
  }
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CLUSTER_FEW_CUH_
