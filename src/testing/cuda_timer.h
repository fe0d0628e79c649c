// SPDX-License-Identifier: Apache-2.0
// What benchmarks on a device share: programs that end where something fails.
#ifndef ISOBIT_TESTING_CUDA_TIMER_H_
#define ISOBIT_TESTING_CUDA_TIMER_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "isobit/cuda/timer.h"
#include "isobit/status.h"

namespace isobit::testing {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

inline void required(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
template <typename T>
T required(Result<T> result) {
  required(result.status());
  return *std::move(result);
}

using DeviceMemory = std::shared_ptr<std::byte>;
inline DeviceMemory device_memory(size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, std::max<size_t>(bytes, 1)), "device memory");
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
}

/// How many blocks of so many bytes are twice the second-level cache: read in turn, none is found in it.
inline int64_t blocks_beyond_cache(int64_t bytes) {
  int device = 0;
  int cache_bytes = 0;
  check_cuda(cudaGetDevice(&device), "device");
  check_cuda(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device), "size of the cache");
  return 2 * int64_t{cache_bytes} / bytes + 1;
}

/// cuda::median_microseconds of work(stream). What the work touches should be far larger than the second-level cache,
/// or differ from launch to launch.
template <typename Work>
double median_microseconds(const Work& work, int repeats = 21) {
  return required(cuda::median_microseconds(
      [&](cudaStream_t stream) {
        work(stream);
        return Status();
      },
      {.min_replays = repeats}));
}

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_CUDA_TIMER_H_
