// SPDX-License-Identifier: Apache-2.0
// What the measurements of linear_limits.h share whose data stays in shared memory.
#ifndef ISOBIT_BENCH_LINEAR_LIMITS_RATES_H_
#define ISOBIT_BENCH_LINEAR_LIMITS_RATES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "bench/linear_limits.h"

namespace isobit::limits {

constexpr int kRatesDepth = 128;            // elements of k of a group, or of a stage
constexpr int kMostResults = 3 * 64 * 128;  // of a block

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
};
using Kernel = void (*)(RateArgs);
/// How many blocks of a kernel with so many threads fit on a processor beside each other.
inline int blocks_at_once(Kernel kernel, int threads, size_t shared) {
  int blocks = 0;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
             "shared memory");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared), "blocks at once");
  return blocks;
}
/// Whether a block finds what `expected`, a thread for each result, does: nearly, by the norm, or where tolerance is 0
/// the same numbers.
inline bool is_right(Kernel kernel, int threads, size_t shared, Kernel expected, int rows, int columns, int turns,
                     double tolerance) {
  const Shared<float> out(static_cast<size_t>(rows * columns)), right(static_cast<size_t>(rows * columns));
  const Shared<Span> span(1);
  require(blocks_at_once(kernel, threads, shared) > 0, "a block does not fit on a processor");
  kernel<<<1, static_cast<unsigned>(threads), shared>>>(RateArgs{turns, out.get(), span.get()});
  expected<<<static_cast<unsigned>(rows), static_cast<unsigned>(columns)>>>(RateArgs{turns, right.get(), nullptr});
  check_cuda(cudaGetLastError(), "launch");
  const auto x = out.read(), y = right.read();
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    norm += std::pow(static_cast<double>(y[i]), 2);
  }
  return counted(norm > 0 && std::sqrt(error) <= tolerance * std::sqrt(norm));
}
/// The last of some launches behind each other, on all processors at once, with so many blocks on each.
inline Rate rate_of(Kernel kernel, int blocks, int threads, size_t needed, int turns, int launches) {
  // So much shared memory that no more blocks fit.
  const size_t shared =
      std::max(needed, std::min(device().sharedMemPerMultiprocessor / static_cast<size_t>(blocks) - 1024,
                                device().sharedMemPerBlockOptin) /
                           128 * 128);
  require(blocks_at_once(kernel, threads, shared) == blocks, "other blocks on a processor than expected");
  const int all = blocks * device().multiProcessorCount;
  const Shared<float> out(kMostResults);
  const Shared<Span> on_device(static_cast<size_t>(all));
  for (int i = 0; i < launches; ++i)
    kernel<<<static_cast<unsigned>(all), static_cast<unsigned>(threads), shared>>>(
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
