// SPDX-License-Identifier: Apache-2.0
// Kernels that look float16 codes up in a table of all 65536 results, held in shared memory: look-ups in global memory
// through L1 are far slower.
#ifndef ISOBIT_TABLE_CUDA_FP16_CUH_
#define ISOBIT_TABLE_CUDA_FP16_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "isobit/dtype.h"

namespace isobit::cuda {

inline constexpr int kFp16Results = 65536;
inline constexpr int kFp16ResultBytes = 2 * kFp16Results;

/// Element types of the kernels. 16-bit inputs, float16 or bfloat16, are their own index: the table that a launch gets
/// is made for the pair of types. float32 is rounded to float16 first. A float32 output is made of a float16 entry.
struct HalfElement {
  using Type = uint16_t;
  __device__ static uint32_t index(Type x) { return x; }
  __device__ static Type value(uint16_t entry) { return entry; }
};
struct FloatElement {
  using Type = float;
  __device__ static uint32_t index(Type x) { return __half_as_ushort(__float2half_rn(x)); }
  __device__ static Type value(uint16_t entry) {
    const float x = __half2float(__ushort_as_half(entry));
    return x == x ? x : __uint_as_float(0x7FC00000);  // the conversion gives 0x7FFFFFFF
  }
};

/// Elements that are read or written by one instruction: 16 bytes of the wider type.
template <typename In, typename Out>
inline constexpr int kFp16Vector = 16 / static_cast<int>(sizeof(typename In::Type) > sizeof(typename Out::Type)
                                                             ? sizeof(typename In::Type)
                                                             : sizeof(typename Out::Type));

/// Threads of a block, and vectors of a thread on their way at once: 24 to 36 KB a processor. With
/// less the loads' latency shows; with more, reads and writes disturb each other.
inline constexpr int kFp16Threads = 768;
template <typename In, typename Out>
inline constexpr int kFp16Round = sizeof(typename In::Type) == 4 && sizeof(typename Out::Type) == 4 ? 2 : 3;

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Fp16Vector {
  T v[kCount];
};

template <typename Vector>
__device__ Vector load_streaming(const Vector* p) {
  Vector result;
  if constexpr (sizeof(Vector) == 16) {
    const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(p));
    memcpy(&result, &bits, sizeof result);
  } else {
    static_assert(sizeof(Vector) == 8);
    const uint2 bits = __ldcs(reinterpret_cast<const uint2*>(p));
    memcpy(&result, &bits, sizeof result);
  }
  return result;
}

template <typename Vector>
__device__ void store_streaming(Vector* p, const Vector& value) {
  if constexpr (sizeof(Vector) == 16) {
    uint4 bits;
    memcpy(&bits, &value, sizeof bits);
    __stcs(reinterpret_cast<uint4*>(p), bits);
  } else {
    static_assert(sizeof(Vector) == 8);
    uint2 bits;
    memcpy(&bits, &value, sizeof bits);
    __stcs(reinterpret_cast<uint2*>(p), bits);
  }
}

/// One block on each processor, the results in its shared memory. x, y: 16-byte aligned. While a thread looks up one
/// round of kRound vectors, its loads of the next are under way. A block's round is one piece of memory.
template <typename In, typename Out>
__global__ void __launch_bounds__(kFp16Threads, 1)
    fp16_shared(const uint16_t* entries, const typename In::Type* x, typename Out::Type* y, int64_t count) {
  constexpr int kElements = kFp16Vector<In, Out>;
  constexpr int kRound = kFp16Round<In, Out>;
  using InVector = Fp16Vector<typename In::Type, kElements>;
  using OutVector = Fp16Vector<typename Out::Type, kElements>;
  extern __shared__ __align__(16) uint16_t table[];
  const auto* in = reinterpret_cast<const InVector*>(x);
  auto* out = reinterpret_cast<OutVector*>(y);
  const int64_t vectors = count / kElements;
  const int64_t stride = int64_t{gridDim.x} * kRound * kFp16Threads;
  const int64_t first = int64_t{blockIdx.x} * kRound * kFp16Threads + threadIdx.x;
  InVector next[kRound];
#pragma unroll
  for (int r = 0; r < kRound; ++r)
    if (first + r * kFp16Threads < vectors) next[r] = load_streaming(in + first + r * kFp16Threads);
  for (int i = threadIdx.x; i < kFp16ResultBytes / 16; i += kFp16Threads)
    reinterpret_cast<uint4*>(table)[i] = reinterpret_cast<const uint4*>(entries)[i];
  __syncthreads();
  for (int64_t i = first; i < vectors; i += stride) {
    InVector now[kRound];
#pragma unroll
    for (int r = 0; r < kRound; ++r) {
      now[r] = next[r];
      const int64_t ahead = i + stride + r * kFp16Threads;
      if (ahead < vectors) next[r] = load_streaming(in + ahead);
    }
#pragma unroll
    for (int r = 0; r < kRound; ++r) {
      if (i + r * kFp16Threads >= vectors) break;
      OutVector result;
#pragma unroll
      for (int e = 0; e < kElements; ++e) result.v[e] = Out::value(table[In::index(now[r].v[e])]);
      store_streaming(out + i + r * kFp16Threads, result);
    }
  }
  const int64_t rest = vectors * kElements + threadIdx.x;  // fewer than a vector is left
  if (blockIdx.x == 0 && rest < count) y[rest] = Out::value(table[In::index(x[rest])]);
}

/// One element a thread and round; the results through L1. For short or misaligned tensors, and for devices with less
/// shared memory.
template <typename In, typename Out>
__global__ void fp16_global(const uint16_t* entries, const typename In::Type* x, typename Out::Type* y, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    y[i] = Out::value(__ldg(entries + In::index(x[i])));
}

}  // namespace isobit::cuda

#endif  // ISOBIT_TABLE_CUDA_FP16_CUH_
