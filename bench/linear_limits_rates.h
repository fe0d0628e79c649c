// SPDX-License-Identifier: Apache-2.0
// What the measurements of linear_limits.h share whose data stays in shared memory.
#ifndef ISOBIT_BENCH_LINEAR_LIMITS_RATES_H_
#define ISOBIT_BENCH_LINEAR_LIMITS_RATES_H_

#include <algorithm>
#include <cstdint>

#include "bench/linear_limits.h"

namespace isobit::limits {

constexpr int kRatesDepth = 128;  // elements of k of a group, or of a stage

struct RateArgs {
  int32_t turns;    // of the loop
  float* out;       // results of block 0
  int64_t* clocks;  // of each block
};
struct Rate {
  double us, clocks;
  [[nodiscard]] double ghz() const { return clocks / us / 1000; }
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
/// On all processors at once, so many blocks on each.
template <typename Out>
Rate rate_of(void (*kernel)(RateArgs), int blocks, int threads, int shared, int turns, const Out& out) {
  const int all = blocks * device().multiProcessorCount;
  const Shared<int64_t> clocks(static_cast<size_t>(all));
  Rate rate{};
  rate.us = testing::required(cuda::median_microseconds(
      [&](cudaStream_t stream) {
        kernel<<<static_cast<unsigned>(all), static_cast<unsigned>(threads), static_cast<size_t>(shared), stream>>>(
            RateArgs{turns, out.get(), clocks.get()});
        return Status();
      },
      {.min_replays = 5, .min_seconds = 0.1}));
  const auto all_clocks = clocks.read();
  rate.clocks = static_cast<double>(*std::max_element(all_clocks.begin(), all_clocks.end()));
  return rate;
}

#ifdef __CUDACC__
/// clock64 once all threads are there.
__device__ __forceinline__ int64_t clock_of_block() {
  __syncthreads();
  return clock64();
}
/// As good as any scale: in [2^-8, 2^-7).
__device__ __forceinline__ float scale_of(uint32_t random) { return __uint_as_float((random & 0x7fffff) | 119u << 23); }
#endif

}  // namespace isobit::limits

#endif  // ISOBIT_BENCH_LINEAR_LIMITS_RATES_H_
