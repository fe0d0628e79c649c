// SPDX-License-Identifier: Apache-2.0
// The persistent recurrence: R stays in the registers of one thread block, or of a cluster of them, for all steps; per
// step only the new state crosses, through distributed shared memory.
//
// A cluster of G blocks has all of R. Block b owns `unit_blocks` groups of 16 hidden units: for each the rows of gate
// u, r and n. The columns of R (k) are split over `k_splits` warps for each group, KT tiles of 32 columns a warp: its
// weights are 3 * KT fragments of mma.m16n8k32 in registers. The 8 columns of an mma are 8 sequences; more sequences
// are further clusters, which never talk to each other.
//
// One step of a computing warp:
//   1. waits for ih of this step, and until the whole state h_s of its 8 sequences is in shared memory;
//   2. multiplies; the first warp of a group adds what the others have (k_splits > 1);
//   3. computes the gates of its 16 units: accumulators of u, r and n of one unit lie in one thread, so nothing is
//      exchanged for it;
//   4. sends its 16 * 8 new codes to every block of the cluster (st.async, which counts bytes at the receiver's
//   barrier).
// One more warp fetches ih three steps ahead (bulk copies), writes y, and arms the barriers: it is what keeps
// everything that is not on the way from h_s to h_(s+1) out of the other warps.
//
// Why no buffer is written too early. State s lies in buffer s % 3, which is written again by sends of state s + 3.
// Whoever sends that has state s + 2 from every group, so every group of this block has sent it, after waiting for
// state s + 1. That wait ends only after the service warp has armed the barrier of s + 1, which it does after reading
// state s for y; and the groups themselves have sent state s + 1 after their last read of state s. Ih of step s lies in
// slot s % 4, which the service warp fills again after every group has said that it has taken it. Barriers: state s
// completes phase s / 2 of barrier s % 2. Bytes that arrive before the barrier is armed are counted: the phase cannot
// end before the arrival that arms it, and the phase before has ended, as its state was needed by the sender.
#ifndef ISOBIT_GRU_CUDA_PERSISTENT_CUH_
#define ISOBIT_GRU_CUDA_PERSISTENT_CUH_

#include <cstdint>

#include "core/cuda_ptx.cuh"
#include "gru/cuda_persistent.h"
#include "gru/kernels.h"

namespace isobit::cuda {

inline constexpr int kColumns = 8;               // sequences of a cluster: the columns of an mma
inline constexpr int kIhSteps = 4;               // steps of ih in shared memory
inline constexpr int kIhTileBytes = 3 * 16 * 2;  // of one step, sequence and group of units
inline constexpr int kStates = 3;

struct PersistentArgs {
  PersistentGates gates;
  const uint4* fragments;  // R, in the order in which warps load it
  const int32_t* start;    // of hh's accumulators, tile order (kernels.h)
  const float* ratio;      // accumulator -> hh, tile order
  const float* tables;     // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries;   // of all three
  /// ih rescaled to the gate inputs, plus 32768: [steps][batch][tiles][8][3][2]: unit % 8, gate, unit / 8 of a tile.
  const uint16_t* ih;
  int32_t tiles;       // of 16 units, padded ones included
  int32_t first_step;  // of these steps in the sequence: what lengths and the mask are counted from
  int32_t steps, batch, hidden;
  uint8_t* state;  // [batch][hidden] codes, in and out
  uint8_t* y;      // codes; already offset to this direction's columns
  int64_t y_step, y_sequence;
  uint32_t flip;           // the sign bit of signed codes, in all four bytes
  const int32_t* lengths;  // [batch], or null
  const uint8_t* mask;     // [steps][batch][mask_width], or null
  int64_t mask_width;
  bool reverse;
  int32_t cluster, unit_blocks, k_splits;
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

// ---- gates

__device__ __forceinline__ float to_magic(float x, float ratio) { return __fmaf_rn(x, ratio, kMagic<float>); }
__device__ __forceinline__ float rescale_even(float x, float ratio) {
  return __fsub_rn(to_magic(x, ratio), kMagic<float>);
}
__device__ __forceinline__ float clamp_f32(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

/// The look-up of a sum of gate inputs that magic was added to.
__device__ __forceinline__ float activate(const PersistentGates& c, const uint8_t* tables, int gate, float magic_sum) {
  const uint32_t bits = __float_as_uint(clamp_f32(magic_sum, c.gate_low[gate], c.gate_high[gate]));
  return *reinterpret_cast<const float*>(tables + (bits * 4 + c.gate_to_byte[gate]));
}

/// The new state minus its zero point. from_ih: ih rescaled to the gate inputs; acc: accumulators of hh.
__device__ __forceinline__ float gru_gates(const PersistentGates& c, const uint8_t* tables, float from_u, float from_r,
                                           float from_n, int32_t acc_u, int32_t acc_r, int32_t acc_n, float ratio_u,
                                           float ratio_r, float ratio_n, float h) {
  const auto hh = [&](int32_t acc, float ratio) {
    return clamp_f32(rescale_even(static_cast<float>(acc), ratio), c.hh_low, c.hh_high);
  };
  const float r = activate(c, tables, 1, __fadd_rn(to_magic(hh(acc_r, ratio_r), c.hh_to_gate[1]), from_r));
  const float hh_n = hh(acc_n, ratio_n);
  const float u = activate(c, tables, 0, __fadd_rn(to_magic(hh(acc_u, ratio_u), c.hh_to_gate[0]), from_u));
  const float n = activate(c, tables, 2, __fadd_rn(to_magic(__fmul_rn(r, hh_n), c.hh_to_gate[2]), from_n));
  const float fresh = __fmul_rn(__fsub_rn(c.one, u), rescale_even(n, c.n_to_h));
  return clamp_f32(rescale_even(__fmaf_rn(u, h, fresh), c.u_to_one), c.h_low, c.h_high);
}

inline __host__ __device__ int32_t persistent_h_stride(int32_t k) { return (k + 127) / 128 * 128 + 64; }

/// Warps of a block, the service warp among them: what the weights in registers leave room for.
constexpr int persistent_max_warps(int k_tiles) { return k_tiles <= 4 ? 16 : k_tiles <= 8 ? 12 : 8; }

/// Offsets in dynamic shared memory.
struct PersistentShared {
  int32_t h_stride, staging, ih, rows, partial, tables, total;
};
inline __host__ __device__ PersistentShared persistent_shared(int32_t k_tiles, int32_t cluster, int32_t unit_blocks,
                                                              int32_t k_splits, int32_t table_entries) {
  PersistentShared at{};
  const int32_t k = cluster * unit_blocks * 16;
  const int32_t k_padded = k_splits * k_tiles * 32;
  at.h_stride = persistent_h_stride(k > k_padded ? k : k_padded);
  at.staging = 128 + kStates * kColumns * at.h_stride;
  at.ih = at.staging + unit_blocks * 128;
  at.rows = at.ih + kIhSteps * kColumns * unit_blocks * kIhTileBytes;  // of each group: start and ratio of 48 rows
  at.partial = at.rows + unit_blocks * 48 * 8;
  at.tables = at.partial + unit_blocks * (k_splits - 1) * 12 * 32 * 4;
  at.total = at.tables + (table_entries * 4 + 127) / 128 * 128;
  return at;
}

template <int KT>
__global__ void __launch_bounds__(32 * persistent_max_warps(KT), 1)
    gru_persistent(const __grid_constant__ PersistentArgs a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t shared[];
  const PersistentGates& c = a.gates;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int threads = static_cast<int>(blockDim.x);
  const int splits = a.k_splits;
  const int cluster = a.cluster;
  const int rank = static_cast<int>(block_in_cluster());
  const int first = static_cast<int>(blockIdx.x) / cluster * kColumns;
  const int columns = a.batch - first < kColumns ? a.batch - first : kColumns;
  const PersistentShared at = persistent_shared(KT, cluster, a.unit_blocks, splits, a.table_entries);
  const int h_stride = at.h_stride;
  const int state_bytes = kColumns * h_stride;
  uint8_t* const h_memory = shared + 128;
  const uint32_t state_barriers = shared_address(shared);  // 2
  const uint32_t ih_barriers = state_barriers + 16;        // kIhSteps: ih is there
  const uint32_t ih_free = ih_barriers + 8 * kIhSteps;     // kIhSteps: every group has taken it

  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += threads)
    reinterpret_cast<float*>(shared + at.tables)[i] = a.tables[i];
  for (int i = static_cast<int>(threadIdx.x); i < a.unit_blocks * 48; i += threads) {
    auto* const rows = reinterpret_cast<uint32_t*>(shared + at.rows) + i / 48 * 96 + i % 48;
    rows[0] = static_cast<uint32_t>(a.start[rank * a.unit_blocks * 48 + i]);
    rows[48] = __float_as_uint(a.ratio[rank * a.unit_blocks * 48 + i]);
  }
  // All buffers of the state: padding stays zero.
  for (int i = static_cast<int>(threadIdx.x) * 16; i < kStates * state_bytes; i += threads * 16)
    *reinterpret_cast<uint4*>(h_memory + i) = uint4{0, 0, 0, 0};
  __syncthreads();
  for (int column = 0; column < columns; ++column)
    for (int i = static_cast<int>(threadIdx.x); i < a.hidden; i += threads)
      h_memory[column * h_stride + i] =
          static_cast<uint8_t>(a.state[int64_t{first + column} * a.hidden + i] ^ static_cast<uint8_t>(a.flip));
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < 2; ++i) barrier_init(state_barriers + 8 * i, 1);
    for (uint32_t i = 0; i < kIhSteps; ++i) {
      barrier_init(ih_barriers + 8 * i, 1);
      barrier_init(ih_free + 8 * i, 32 * static_cast<uint32_t>(a.unit_blocks));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();

  if (warp == a.unit_blocks * splits) {
    // ---- The service warp.
    const auto bytes_a_step = static_cast<uint32_t>(columns * cluster * a.unit_blocks * 16);
    const auto ih_bytes = static_cast<uint32_t>(a.unit_blocks * kIhTileBytes);
    const int64_t ih_jump = (a.reverse ? -1 : 1) * int64_t{a.batch} * a.tiles * 48;
    const uint16_t* ih_from = a.ih + ((a.reverse ? int64_t{a.steps} - 1 : 0) * a.batch + first + lane) * a.tiles * 48 +
                              int64_t{rank} * a.unit_blocks * 48;
    const uint32_t ih_to = shared_address(shared + at.ih) + static_cast<uint32_t>(lane) * ih_bytes;
    const auto fetch_ih = [&](int s) {
      if (s >= a.steps) return;
      const uint32_t slot = static_cast<uint32_t>(s % kIhSteps);
      if (s >= kIhSteps) barrier_wait(ih_free + 8 * slot, (s / kIhSteps - 1) % 2);
      if (lane < columns) fetch(ih_to + slot * kColumns * ih_bytes, ih_from, ih_bytes, ih_barriers + 8 * slot);
      __syncwarp();
      if (lane == 0) barrier_expect(ih_barriers + 8 * slot, ih_bytes * static_cast<uint32_t>(columns));
      ih_from += ih_jump;
    };
    for (int s = 0; s < kIhSteps - 1; ++s) fetch_ih(s);
    const int left = a.hidden - rank * a.unit_blocks * 16;  // units of this block that exist
    const int64_t y_jump = (a.reverse ? -1 : 1) * a.y_step;
    uint8_t* y = a.y + (a.reverse ? int64_t{a.steps} - 1 : 0) * a.y_step + rank * a.unit_blocks * 16;
    const bool whole =
        (reinterpret_cast<uintptr_t>(a.y) | static_cast<uint64_t>(a.y_step) | static_cast<uint64_t>(a.y_sequence)) %
            16 ==
        0;
    const auto zero = static_cast<uint8_t>(static_cast<uint32_t>(c.h_to_unsigned) ^ a.flip);
    // Lane: sequence by 8, pieces of 16 units by 4.
    const int column = lane % 8;
    const int32_t length =
        a.lengths != nullptr && column < columns ? a.lengths[first + column] - a.first_step : INT32_MAX;
    y += (first + column) * a.y_sequence;
    const auto write = [&](const uint8_t* state, uint8_t* to, bool frozen) {
      if (column >= columns) return;
      for (int group = lane / 8; group * 16 < left && group < a.unit_blocks; group += 4) {
        uint4 codes = *reinterpret_cast<const uint4*>(state + column * h_stride + (rank * a.unit_blocks + group) * 16);
        codes = uint4{codes.x ^ a.flip, codes.y ^ a.flip, codes.z ^ a.flip, codes.w ^ a.flip};
        if (whole && !frozen && group * 16 + 16 <= left) {
          *reinterpret_cast<uint4*>(to + group * 16) = codes;
        } else {
          const auto* bytes = state + column * h_stride + (rank * a.unit_blocks + group) * 16;
          for (int i = 0; i < 16 && group * 16 + i < left; ++i)
            to[group * 16 + i] = frozen ? zero : static_cast<uint8_t>(bytes[i] ^ static_cast<uint8_t>(a.flip));
        }
      }
    };
    const uint8_t* state = h_memory;
    for (int s = 1; s < a.steps; ++s) {
      // State s - 1 was seen: the barrier of state s is armed.
      const uint32_t barrier = state_barriers + 8 * static_cast<uint32_t>(s % 2);
      if (lane == 0) barrier_expect(barrier, bytes_a_step);
      barrier_wait(barrier, (s - 1) / 2 % 2);
      fetch_ih(s + kIhSteps - 2);
      state = s % kStates == 0 ? h_memory : state + state_bytes;
      const int t = a.reverse ? a.steps - s : s - 1;  // of y, which is state s
      write(state, y, t >= length);
      y += y_jump;
      __syncwarp();
    }
  } else {
    // ---- The computing warps.
    const int group = warp / splits;  // of this block
    const int split = warp % splits;
    const bool leads = split == 0;
    const int tile = rank * a.unit_blocks + group;  // of 16 units
    uint4 weights[3][KT];
    {
      const uint4* from = a.fragments + (int64_t{tile} * splits + split) * 3 * KT * 32 + lane;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int kt = 0; kt < KT; ++kt) weights[gate][kt] = from[(gate * KT + kt) * 32];
    }
    // This thread's accumulators: rows row and row + 8 of a tile, columns column and column + 1.
    const int row = lane / 4;
    const int column = lane % 4 * 2;
    const auto* const row_start = reinterpret_cast<const int32_t*>(shared + at.rows) + group * 96 + row;
    const auto* const row_ratio = reinterpret_cast<const float*>(row_start + 48);
    float h[2][2];  // code minus zero point; [row half][column]
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        h[half][j] = static_cast<float>(
            static_cast<int32_t>(h_memory[(column + j) * h_stride + tile * 16 + row + 8 * half]) - c.h_to_unsigned);
    uint8_t* const mine = shared + at.staging + group * 128;  // [8][16] codes on their way
    const uint8_t* const tables = shared + at.tables;
    // Where this lane sends the codes of its group: always to the same block of the cluster.
    const auto target = static_cast<uint32_t>(lane % cluster);
    const int send_column = lane / cluster;
    const int send_columns = 32 / cluster;
    const uint32_t remote_h = address_in(shared_address(h_memory) + static_cast<uint32_t>(tile * 16), target);
    const uint32_t remote_barrier = address_in(state_barriers, target);
    int32_t length[2] = {INT32_MAX, INT32_MAX};
    if (a.lengths != nullptr)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (column + j < columns) length[j] = a.lengths[first + column + j] - a.first_step;
    const bool single = columns == 1;
    const bool any = row < columns;  // this lane's part of b is a sequence
    const bool extras = a.lengths != nullptr || a.mask != nullptr;
    const uint8_t* b_from = h_memory + row * h_stride + split * KT * 32 + lane % 4 * 16;
    const uint8_t* const ih_base =
        shared + at.ih + column * a.unit_blocks * kIhTileBytes + group * kIhTileBytes + row * 12;
    const int ih_slot_bytes = kColumns * a.unit_blocks * kIhTileBytes;
    int state_index = 0;  // s % 3
    for (int s = 0; s < a.steps; ++s) {
      int32_t start[3][2];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int half = 0; half < 2; ++half) start[gate][half] = leads ? row_start[gate * 16 + half * 8] : 0;
      if (s > 0) barrier_wait(state_barriers + 8 * static_cast<uint32_t>(s % 2), (s - 1) / 2 % 2);
      int32_t acc[3][4], more[3][4];
#pragma unroll
      for (int kt = 0; kt < KT; kt += 2) {
        uint4 b{0, 0, 0, 0};
        if (any) b = *reinterpret_cast<const uint4*>(b_from + kt * 32);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          if (kt == 0) {
            mma_s8u8(acc[gate], weights[gate][0], b.x, b.y, start[gate][0], start[gate][1]);
            mma_s8u8(more[gate], weights[gate][1], b.z, b.w, 0, 0);
          } else {
            mma_s8u8(acc[gate], weights[gate][kt], b.x, b.y);
            mma_s8u8(more[gate], weights[gate][kt + 1], b.z, b.w);
          }
        }
      }
      const int step_bytes = state_index == kStates - 1 ? -(kStates - 1) * state_bytes : state_bytes;
      state_index = state_index == kStates - 1 ? 0 : state_index + 1;  // of the next state
      b_from += step_bytes;
      // While the products are under way.
      float from_ih[2][2][3];  // [row half][column][gate]
      float ratio[3][2];
      if (leads) {
        barrier_wait(ih_barriers + 8 * static_cast<uint32_t>(s % kIhSteps), s / kIhSteps % 2);
        const uint8_t* from = ih_base + s % kIhSteps * ih_slot_bytes;
        const auto widen = [&](int j) {
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            const uint32_t both =
                *reinterpret_cast<const uint32_t*>(from + j * a.unit_blocks * kIhTileBytes + gate * 4);
            // The 16 bits behind 2^23, less 2^23 and 32768.
            const uint32_t bits[2] = {__byte_perm(both, 0x4b000000u, 0x7610), __byte_perm(both, 0x4b000000u, 0x7632)};
#pragma unroll
            for (int half = 0; half < 2; ++half)
              from_ih[half][j][gate] = __fsub_rn(__uint_as_float(bits[half]), 8388608.0f + 32768.0f);
          }
        };
        widen(0);
        if (!single) widen(1);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int half = 0; half < 2; ++half) ratio[gate][half] = row_ratio[gate * 16 + half * 8];
        barrier_arrive(ih_free + 8 * static_cast<uint32_t>(s % kIhSteps));
      }
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[gate][i] += more[gate][i];
      if (splits > 1) {
        if (!leads) {
          // The sums of the step before are read: their reader has sent its part of the state since.
          auto* to =
              reinterpret_cast<int32_t*>(shared + at.partial) + (group * (splits - 1) + split - 1) * 12 * 32 + lane;
#pragma unroll
          for (int i = 0; i < 12; ++i) to[i * 32] = acc[i / 4][i % 4];
        }
        named_barrier_sync(1 + group, 32 * splits);
        if (!leads) continue;
#pragma unroll 1
        for (int other = 0; other < splits - 1; ++other) {
          const auto* from =
              reinterpret_cast<const int32_t*>(shared + at.partial) + (group * (splits - 1) + other) * 12 * 32 + lane;
#pragma unroll
          for (int i = 0; i < 12; ++i) acc[i / 4][i % 4] += from[i * 32];
        }
      }
      // Lanes without a sequence compute, too: straight code lets the chains of several units overlap.
      float fresh[2][2] = {};
      const auto gates_of = [&](int half, int j) {
        const int i = half * 2 + j;
        return gru_gates(c, tables, from_ih[half][j][0], from_ih[half][j][1], from_ih[half][j][2], acc[0][i], acc[1][i],
                         acc[2][i], ratio[0][half], ratio[1][half], ratio[2][half], h[half][j]);
      };
      fresh[0][0] = gates_of(0, 0);
      fresh[1][0] = gates_of(1, 0);
      if (!single) {
        fresh[0][1] = gates_of(0, 1);
        fresh[1][1] = gates_of(1, 1);
      }
      if (extras) {
        const int t = a.reverse ? a.steps - 1 - s : s;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            bool keeps = t >= length[j];
            const int unit = tile * 16 + row + 8 * half;
            if (a.mask != nullptr && column + j < columns && unit < a.hidden)
              keeps = keeps ||
                      a.mask[((int64_t{t} + a.first_step) * a.batch + first + column + j) * a.mask_width + unit] == 0;
            if (keeps) fresh[half][j] = h[half][j];
          }
      }
      const int next = state_index * state_bytes;
      const bool last = s + 1 == a.steps;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          h[half][j] = fresh[half][j];
          if (column + j < columns)
            mine[(column + j) * 16 + row + 8 * half] =
                static_cast<uint8_t>(__float_as_uint(__fadd_rn(fresh[half][j], c.h_to_code)));
        }
      __syncwarp();
      if (!last)
        for (int i = send_column; i < columns; i += send_columns)
          send(remote_h + static_cast<uint32_t>(next + i * h_stride), *reinterpret_cast<const uint4*>(mine + i * 16),
               remote_barrier + 8 * static_cast<uint32_t>((s + 1) % 2));
      __syncwarp();
    }
    // The last state, which nobody multiplies by, from where this warp has put it together.
    if (leads && a.steps > 0) {
      __syncwarp();
      const int t = a.reverse ? 0 : a.steps - 1;
      for (int i = lane; i < columns * 16; i += 32) {
        const int sequence = i / 16;
        const int unit = tile * 16 + i % 16;
        if (unit >= a.hidden) continue;
        const auto code = static_cast<uint8_t>(mine[sequence * 16 + i % 16] ^ static_cast<uint8_t>(a.flip));
        const bool frozen = a.lengths != nullptr && t >= a.lengths[first + sequence] - a.first_step;
        a.state[int64_t{first + sequence} * a.hidden + unit] = code;
        a.y[t * a.y_step + (first + sequence) * a.y_sequence + unit] =
            frozen ? static_cast<uint8_t>(static_cast<uint32_t>(c.h_to_unsigned) ^ a.flip) : code;
      }
    }
  }
#endif
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PERSISTENT_CUH_
