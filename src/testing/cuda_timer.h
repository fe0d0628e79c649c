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
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/half.h"
#include "core/random.h"
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

/// How many blocks of so many bytes are more than so many times the second-level cache: read in turn, none is found in
/// it.
inline int64_t blocks_beyond_cache(int64_t bytes, int64_t caches = 2) {
  int device = 0;
  int cache_bytes = 0;
  check_cuda(cudaGetDevice(&device), "device");
  check_cuda(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device), "size of the cache");
  return caches * cache_bytes / bytes + 1;
}

inline std::vector<std::byte> random_bytes(size_t count, uint64_t seed = 1) {
  Random random(seed);
  std::vector<std::byte> bytes(count);
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    const uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, count - at));
  }
  return bytes;
}
/// float16 in [-1, 1].
inline std::vector<uint16_t> random_halves(size_t count, uint64_t seed = 1) {
  Random random(seed);
  std::vector<uint16_t> halves(count);
  for (uint16_t& half : halves) half = f32_to_f16(static_cast<float>(random.between(-1 << 20, 1 << 20)) * 0x1p-20f);
  return halves;
}
/// So many of them may be repeated: a prime, so that rows of a matrix differ.
inline constexpr int64_t kRandomBlock = 8388593;
/// Device memory that repeats some bytes of the host.
inline DeviceMemory repeated(std::span<const std::byte> values, size_t bytes) {
  DeviceMemory memory = device_memory(bytes);
  size_t filled = std::min(values.size(), bytes);
  check_cuda(cudaMemcpy(memory.get(), values.data(), filled, cudaMemcpyHostToDevice), "values");
  while (filled < bytes) {
    const size_t more = std::min(filled, bytes - filled);
    check_cuda(cudaMemcpy(memory.get() + filled, memory.get(), more, cudaMemcpyDeviceToDevice), "values");
    filled += more;
  }
  return memory;
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

/// Layers whose weights come from memory: copies of them take turns.
inline int64_t copies_beyond_cache(int64_t weight_bytes) {
  return std::max<int64_t>(2, blocks_beyond_cache(weight_bytes, 3));
}
/// Median microseconds of one of so many launches in a graph, launch(copy, stream), copies in turn.
template <typename Launch>
double microseconds_of_one(int64_t launches, int64_t copies, const Launch& launch, int repeats) {
  const double all = median_microseconds(
      [&](cudaStream_t stream) {
        for (int64_t i = 0; i < launches; ++i) launch(i % copies, stream);
      },
      repeats);
  return all / static_cast<double>(launches);
}
/// About the time of one, measured quickly.
template <typename Launch>
double estimate_in_turn(int64_t copies, const Launch& launch) {
  const int64_t few = std::min<int64_t>(copies, 8);
  return microseconds_of_one(few, few, launch, 1);
}
/// The time of one. A graph has so many launches that its own start does not count, and all copies, unless that would
/// take long: reading all of them takes some 50 µs, so in a graph of kLongMicroseconds it does not matter where the
/// weights come from. Long graphs are replayed less often.
template <typename Launch>
double microseconds_in_turn(int64_t copies, const Launch& launch) {
  constexpr double kShortMicroseconds = 4e3;
  constexpr double kLongMicroseconds = 2e4;
  constexpr double kAllMicroseconds = 1e5;
  constexpr int64_t kMany = 100;
  const double each = estimate_in_turn(copies, launch);
  const int64_t different = std::clamp(static_cast<int64_t>(kLongMicroseconds / each), int64_t{2}, copies);
  const int64_t wanted = std::clamp(static_cast<int64_t>(kShortMicroseconds / each), int64_t{1}, kMany);
  const int64_t launches = (wanted + different - 1) / different * different;
  const double graph_us = each * static_cast<double>(launches);
  const int repeats = static_cast<int>(std::clamp(kAllMicroseconds / graph_us, 5.0, 21.0));
  return microseconds_of_one(launches, different, launch, repeats);
}

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_CUDA_TIMER_H_
