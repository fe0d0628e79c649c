// SPDX-License-Identifier: Apache-2.0
// What the measurements of linear_limits.h share whose data stays in shared memory.
#ifndef ISOBIT_BENCH_LINEAR_LIMITS_RATES_H_
#define ISOBIT_BENCH_LINEAR_LIMITS_RATES_H_

#include <algorithm>
#include <cstdint>

#include "bench/linear_limits.h"

namespace isobit::limits {

constexpr int kRatesDepth = 128;  // elements of k of a group, or of a stage

/// When a block's loop began and ended: clocks of its processor, and nanoseconds.
struct Span {
  int64_t begin, end, begin_ns, end_ns;
};
struct RateArgs {
  int32_t turns;  // of the loop
  float* out;     // results of block 0
  Span* spans;    // of each block
};
struct Rate {
  double clocks, us;  // of the slowest block; of all
  double ghz;
};
/// How many blocks of a kernel with so many threads fit on a processor beside each other.
inline int blocks_at_once(void (*kernel)(RateArgs), int threads, int shared) {
  int blocks = 0;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "shared memory");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, static_cast<size_t>(shared)),
             "blocks at once");
  return blocks;
}
inline cudaFuncAttributes attributes_of(void (*kernel)(RateArgs)) {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), "registers");
  return attributes;
}
/// The last of some launches behind each other, on all processors at once, so many blocks on each.
inline Rate rate_of(void (*kernel)(RateArgs), int blocks, int threads, int shared, int turns, int launches,
                    const Shared<float>& out) {
  const int all = blocks * device().multiProcessorCount;
  const Shared<Span> on_device(static_cast<size_t>(all));
  for (int i = 0; i < launches; ++i)
    kernel<<<static_cast<unsigned>(all), static_cast<unsigned>(threads), static_cast<size_t>(shared)>>>(
        RateArgs{turns, out.get(), on_device.get()});
  check_cuda(cudaGetLastError(), "launch");
  const auto spans = on_device.read();
  Rate rate{};
  int64_t begin_ns = spans[0].begin_ns, end_ns = spans[0].end_ns;
  for (const Span& span : spans) {
    rate.clocks = std::max(rate.clocks, static_cast<double>(span.end - span.begin));
    begin_ns = std::min(begin_ns, span.begin_ns);
    end_ns = std::max(end_ns, span.end_ns);
  }
  rate.us = static_cast<double>(end_ns - begin_ns) / 1000;
  rate.ghz =
      static_cast<double>(spans[0].end - spans[0].begin) / static_cast<double>(spans[0].end_ns - spans[0].begin_ns);
  return rate;
}

#ifdef __CUDACC__
__device__ __forceinline__ int64_t nanoseconds() {
  int64_t ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
/// Once all threads of the block are there.
__device__ __forceinline__ Span begin_span() {
  __syncthreads();
  return {clock64(), 0, nanoseconds(), 0};
}
__device__ __forceinline__ void end_span(const RateArgs& args, Span span) {
  __syncthreads();
  span.end = clock64();
  span.end_ns = nanoseconds();
  if (threadIdx.x == 0) args.spans[blockIdx.x] = span;
}
/// As good as any scale: in [2^-8, 2^-7).
__device__ __forceinline__ float scale_of(uint32_t random) { return __uint_as_float((random & 0x7fffff) | 119u << 23); }
#endif

}  // namespace isobit::limits

#endif  // ISOBIT_BENCH_LINEAR_LIMITS_RATES_H_
