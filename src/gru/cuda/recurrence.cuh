// SPDX-License-Identifier: Apache-2.0
// What the persistent kernels have in common: what a launch is told, and the parts of a step that are alike.
#ifndef ISOBIT_GRU_CUDA_RECURRENCE_CUH_
#define ISOBIT_GRU_CUDA_RECURRENCE_CUH_

#include <cstdint>
#include <tuple>

#include "core/cuda/ptx.cuh"
#include "core/cuda/quantize.cuh"
#include "gru/cuda/gates.cuh"
#include "gru/cuda/persistent.h"
#include "product/cuda/mma.cuh"

namespace isobit::cuda {

/// Ratio: core/ratio.h.
template <typename Ratio>
struct RecurrenceArgs : Recurrence {
  GateLanes<LaneOf<Ratio>> gates;
  const SumOf<Ratio>* start;  // of hh's accumulators, tile order (gru/cpu/kernels.h)
  const Ratio* ratio;         // accumulator -> hh, tile order
};

template <typename Ratio>
RecurrenceArgs<Ratio> recurrence_args(const PersistentLayer& layer, const Recurrence& run) {
  const auto& rows = std::get<PersistentRows<Ratio>>(layer.rows);
  return {run, std::get<GateLanes<LaneOf<Ratio>>>(layer.gates), rows.start, rows.ratio};
}

// ---- Codes of h in the caller's memory. Planes: bytes of a code

/// The unsigned code.
template <int Planes>
__device__ __forceinline__ uint32_t read_code(const Recurrence& a, const uint8_t* from) {
  if constexpr (Planes == 2) return *reinterpret_cast<const uint16_t*>(from) ^ (a.flip & 0x8000);
  return *from ^ (a.flip & 0x80);
}
/// Of an unsigned code, with anything above it.
template <int Planes>
__device__ __forceinline__ void write_code(const Recurrence& a, uint8_t* to, uint32_t code) {
  if constexpr (Planes == 2) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(code ^ (a.flip & 0x8000));
  } else {
    *to = static_cast<uint8_t>(code ^ a.flip);
  }
}
/// The float of y of such a code.
template <int Planes, typename Ratio>
__device__ __forceinline__ float y_of(const RecurrenceArgs<Ratio>& a, uint32_t code) {
  return dequantize_difference(static_cast<int32_t>((code & (Planes == 2 ? 0xffff : 0xff)) - a.gates.h_to_unsigned),
                               a.y_scale);
}
/// A cell of y; floats: whether y has floats.
template <int Planes, typename Ratio>
__device__ __forceinline__ void write_y(const RecurrenceArgs<Ratio>& a, bool floats, uint8_t* to, uint32_t code) {
  if (floats) {
    *reinterpret_cast<float*>(to) = y_of<Planes>(a, code);
  } else {
    write_code<Planes>(a, to, code);
  }
}

/// Whether a cell keeps its state in this step; t: of the steps of the launch.
__device__ __forceinline__ bool is_masked(const Recurrence& a, int t, int64_t n, int unit) {
  return a.mask != nullptr && unit < a.hidden &&
         a.mask[((int64_t{t} + a.first_step) * a.batch + n) * a.mask_width + unit] == 0;
}
/// Steps of sequence n that are left when this launch begins.
__device__ __forceinline__ int length_of(const Recurrence& a, int64_t n) {
  return a.lengths == nullptr ? INT32_MAX : static_cast<int>(clamp_s64(a.lengths[n], 0, INT32_MAX)) - a.first_step;
}
/// Step s of the launch in the order of time.
__device__ __forceinline__ int time_of(const Recurrence& a, int s) { return a.reverse ? a.steps - 1 - s : s; }

/// The activation tables to shared memory.
__device__ __forceinline__ void copy_tables(const Recurrence& a, uint8_t* to, int threads) {
  for (int i = static_cast<int>(threadIdx.x); i < a.table_entries; i += threads)
    reinterpret_cast<float*>(to)[i] = a.tables[i];
}

// ---- Products by mma of R, whose fragments are in registers, the last of them in shared memory

/// KT k tiles from `from` on, of one lane.
template <int KT, int KRegisters>
__device__ __forceinline__ void load_fragments(const uint4* from, uint4 (&weights)[3][KRegisters],
                                               uint4* shared_weights) {
  constexpr int kShared = KT - KRegisters;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
    for (int kt = 0; kt < KRegisters; ++kt) weights[gate][kt] = load_weights(from + (kt * 3 + gate) * 32);
    for (int kt = 0; kt < kShared; ++kt)
      shared_weights[(gate * kShared + kt) * 32] = from[((KRegisters + kt) * 3 + gate) * 32];
  }
}

/// Sums of KT k tiles of codes, two tiles every `stride` bytes. start: what the two rows of a lane begin with; in all
/// columns, or in the odd ones where the planes of a sequence are columns beside each other (OnePass).
template <int KT, bool OnePass, int KRegisters>
__device__ __forceinline__ void multiply_tiles(const uint4 (&weights)[3][KRegisters], const uint4* shared_weights,
                                               const uint8_t* codes, int stride, const int32_t (&start)[3][2],
                                               int32_t (&acc)[3][4]) {
  constexpr int kShared = KT - KRegisters;
  static_assert(KRegisters % 2 == 0 && kShared % 2 == 0);
  constexpr bool kTwoChains = KT <= 8;  // a gate: of one the tensor cores would wait
  int32_t more[3][4];
#pragma unroll
  for (int kt = 0; kt < KT; kt += 2) {
    const uint4 b = *reinterpret_cast<const uint4*>(codes + kt / 2 * stride);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)  // gate by gate: the sums of one are written while the next are multiplied
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 w = kt < KRegisters ? weights[gate][kt < KRegisters ? kt + i : 0]
                                        : shared_weights[(gate * kShared + kt - KRegisters + i) * 32];
        if (kt == 0 && i == 0 && OnePass) {
#pragma unroll
          for (int d = 0; d < 4; ++d) acc[gate][d] = d % 2 == 0 ? 0 : start[gate][d / 2];
          mma_s8u8(acc[gate], w, b.x, b.y);
        } else if (kt == 0 && i == 0) {
          mma_s8u8(acc[gate], w, b.x, b.y, start[gate][0], start[gate][1]);
        } else if (kTwoChains && i == 1 && kt == 0) {
          mma_s8u8(more[gate], w, b.z, b.w, 0, 0);
        } else if (kTwoChains && i == 1) {
          mma_s8u8(more[gate], w, b.z, b.w);
        } else {
          mma_s8u8(acc[gate], w, i == 0 ? b.x : b.z, i == 0 ? b.y : b.w);
        }
      }
  }
  if constexpr (kTwoChains)
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[gate][i] = wrapping_add(acc[gate][i], more[gate][i]);
}

/// A test's hook: up to 2^13 cycles, where there is a seed.
__device__ __forceinline__ void delay(uint32_t seed, int turn, int part) {
  if (seed == 0) return;
  const uint32_t warp = threadIdx.x / 32;
  uint32_t x = seed ^ (static_cast<uint32_t>(turn) * 0x9e3779b9u + blockIdx.x * 0x85ebca6bu + warp * 0xc2b2ae35u +
                       static_cast<uint32_t>(part) * 0x27d4eb2fu);
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  x ^= x >> 16;
  if (x % 4 != 0) return;
  const long long until = clock64() + (x >> 2) % 8192;
  while (clock64() < until) {
  }
}
enum DelayedPart { kDelayRead, kDelaySums, kDelayGates, kDelayWrite };

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_RECURRENCE_CUH_
