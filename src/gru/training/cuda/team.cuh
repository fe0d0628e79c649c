// SPDX-License-Identifier: Apache-2.0
// What the two recurrences share. A team, a block or a cluster of them, has all of R in registers for all steps. 12
// warps of a block multiply vectors, which gates wrote, by its part of R; 4 warps compute gates from the sums. What a
// step reads and writes in global memory is the gate warps', so that it is off the way from one step to the next.
//
// A thread that multiplies has 8 outputs and a share of their terms. The kLanes threads that share an output are
// neighbours; lane l of them has the terms 4 * (j * kLanes + l) to + 3 for j = 0, 1, 2, 3, so that their loads meet no
// bank twice.
//
// Who waits for whom. Multiplying warps wait for vectors, and gate warps for sums: a named barrier each. What crosses
// between blocks are stores that count their bytes at a barrier of the receiver (core/cuda/ptx.cuh), which one gate
// thread has armed for them. Buffers of what crosses take turns: what a block sends of step s + 2 goes where that of
// step s was, and a block that sends it has received step s + 1 of all blocks, who by then have read step s.
#ifndef ISOBIT_GRU_TRAINING_CUDA_TEAM_CUH_
#define ISOBIT_GRU_TRAINING_CUDA_TEAM_CUH_

#include <cstdint>

#include "core/cuda/ptx.cuh"
#include "gru/training/cuda/team.h"

namespace isobit::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasClusters = true;
#else
inline constexpr bool kHasClusters = false;
#endif

/// All threads of a team: what they have written to shared memory so far is there.
template <bool kAlone>
__device__ __forceinline__ void begin_team() {
  if constexpr (kAlone) {
    __syncthreads();
  } else {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    cluster_sync();
  }
}

inline constexpr int kVectorsReady = 1, kSumsReady = 2;  // named barriers
/// `active`: of the threads that multiply. A warp arrives as one.
__device__ __forceinline__ void arrive_at(int barrier, int32_t active) {
  __syncwarp();
  named_barrier_arrive(barrier, active + kGateThreads);
}
__device__ __forceinline__ void wait_at(int barrier, int32_t active) {
  __syncwarp();
  named_barrier_sync(barrier, active + kGateThreads);
}
// 512 threads begin with 128 registers each.
inline constexpr int kMultiplyingRegisters = 144, kGateRegisters = 80;

/// Volatile, so that a compiler that is short of registers does not load weights again in every step.
__device__ __forceinline__ float load_weight(const float* from) {
  float weight = 0.0f;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(weight) : "l"(from));
  return weight;
}

struct TeamMatrix {
  float weights[kOutputs][kTerms];

  /// The term that weights[.][i] is for.
  template <int kLanes>
  __device__ __forceinline__ static int term(int lane, int i) {
    return 4 * (i / 4 * kLanes + lane) + i % 4;
  }

  /// sums[0..7], a sum for each output. All lanes of the warp call it.
  template <int kLanes>
  __device__ __forceinline__ void multiply(const float* vector, int lane, float* to) const {
    float sums[kOutputs]{};
#pragma unroll
    for (int j = 0; j < kTerms / 4; ++j) {
      const float4 x = *reinterpret_cast<const float4*>(vector + term<kLanes>(lane, 4 * j));
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        sums[o] = __fmaf_rn(weights[o][4 * j], x.x, sums[o]);
        sums[o] = __fmaf_rn(weights[o][4 * j + 1], x.y, sums[o]);
        sums[o] = __fmaf_rn(weights[o][4 * j + 2], x.z, sums[o]);
        sums[o] = __fmaf_rn(weights[o][4 * j + 3], x.w, sums[o]);
      }
    }
    // Lanes halve their outputs: a lane keeps those whose bit is its own, and hands over the others.
    int first = 0;  // the output of sums[0]
#pragma unroll
    for (int step = 0, kept = kOutputs; (1 << step) < kLanes; ++step) {
      const int distance = 1 << step;
      if (kept > 1) {
        kept /= 2;
        const bool upper = (lane & distance) != 0;
#pragma unroll
        for (int o = 0; o < kept; ++o) {
          const float mine = upper ? sums[o + kept] : sums[o];
          const float other = upper ? sums[o] : sums[o + kept];
          sums[o] = mine + __shfl_xor_sync(0xffffffff, other, distance);
        }
        first += upper ? kept : 0;
      } else {
        sums[0] += __shfl_xor_sync(0xffffffff, sums[0], distance);
      }
    }
    if (lane >= kOutputs) return;
#pragma unroll
    for (int o = 0; o < (kLanes >= kOutputs ? 1 : kOutputs / kLanes); ++o) to[first + o] = sums[o];
  }
};

/// What the warps that multiply go through: for each step and sequence vectors + sequence * stride.
struct TeamProducts {
  const float* vectors;
  int32_t buffer;  // floats from the vectors of even steps to those of odd ones
  float* sums;
  int32_t vector_stride, sum_stride;  // floats of a sequence
  int32_t steps, sequences;
  uint32_t barriers;  // of vectors that cross, [2]; 0: they do not
};

/// Of a thread that multiplies: `vectors` and `sums` are those of its group. active: of the threads that multiply.
template <int kLanes>
__device__ __forceinline__ void run_products(const TeamMatrix& matrix, const TeamProducts& p, int32_t active) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kLanes;
  for (int32_t step = 0; step < p.steps; ++step) {
    if (p.barriers == 0) {
      wait_at(kVectorsReady, active);
    } else if (step > 0) {
      barrier_wait(p.barriers + step % 2 * 8, (step - 1) / 2 % 2);
    }
    const float* const vectors = p.vectors + step % 2 * p.buffer;
    for (int32_t v = 0; v < p.sequences; ++v)
      matrix.multiply<kLanes>(vectors + v * p.vector_stride, lane, p.sums + v * p.sum_stride);
    arrive_at(kSumsReady, active);
  }
}

/// The part of a lane of four neighbours: their values, to blocks lane, lane + 4, ...
__device__ __forceinline__ void send_to_all(float value, const float* to, uint32_t barrier, int32_t blocks) {
  const int lane = static_cast<int>(threadIdx.x) % 4, first = static_cast<int>(threadIdx.x) % 32 - lane;
  uint4 all;
  all.x = __float_as_uint(__shfl_sync(0xffffffff, value, first));
  all.y = __float_as_uint(__shfl_sync(0xffffffff, value, first + 1));
  all.z = __float_as_uint(__shfl_sync(0xffffffff, value, first + 2));
  all.w = __float_as_uint(__shfl_sync(0xffffffff, value, first + 3));
  const uint32_t address = shared_address(to) - static_cast<uint32_t>(lane) * 4;
  for (int32_t b = lane; b < blocks; b += 4)
    send(address_in(address, static_cast<uint32_t>(b)), all, address_in(barrier, static_cast<uint32_t>(b)));
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_TEAM_CUH_
