// SPDX-License-Identifier: Apache-2.0
// What bounds low-bit linear layers on an sm_90a device, measured without a layer: each function prints cases of a JSON
// document, and ends the program where something fails. Results that are not what they must be are counted.
#ifndef ISOBIT_BENCH_LINEAR_LIMITS_H_
#define ISOBIT_BENCH_LINEAR_LIMITS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <nlohmann/json.hpp>

#include "testing/cuda_timer.h"

namespace isobit::limits {

using Line = nlohmann::ordered_json;
using testing::check_cuda;

/// Of the current device.
inline const cudaDeviceProp& device() {
  static const cudaDeviceProp properties = [] {
    cudaDeviceProp p{};
    check_cuda(cudaGetDeviceProperties(&p, 0), "device");
    return p;
  }();
  return properties;
}
/// One of the document's cases.
inline void print(const Line& line) {
  static bool first = true;
  std::printf("%s\n%s", first ? "" : ",", line.dump().c_str());
  std::fflush(stdout);
  first = false;
}
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}
/// Measurements whose results are not right; their lines say so.
inline int wrong = 0;
inline bool counted(bool is_right) {
  if (!is_right) ++wrong;
  return is_right;
}

/// Memory of the device, zero at the start, and its copy on the host.
template <typename T>
class Shared {
 public:
  explicit Shared(size_t count) : count_(count), memory_(testing::device_memory(count * sizeof(T))) { clear(); }
  void clear() {
    check_cuda(cudaMemset(memory_.get(), 0, count_ * sizeof(T)), "device memory");
    check_cuda(cudaDeviceSynchronize(), "device memory");
  }
  [[nodiscard]] T* get() const { return reinterpret_cast<T*>(memory_.get()); }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> host(count_);
    check_cuda(cudaDeviceSynchronize(), "a kernel");
    check_cuda(cudaMemcpy(host.data(), memory_.get(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "results");
    return host;
  }

 private:
  size_t count_;
  testing::DeviceMemory memory_;
};

#ifdef __CUDACC__
/// Any number, spread evenly: input to all measurements.
__device__ __forceinline__ uint32_t mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}
__device__ __forceinline__ uint32_t mix(uint32_t x, uint32_t y) { return mix(mix(x) + y * 0x9e3779b1u); }
#endif

/// Whether wgmma of all widths and mma.sync give the same floats.
void equal();
/// The main loop for many rows without memory: operations a second.
void promote();
/// How often matrix instructions can be issued.
void issue();
/// The main loop for few rows without memory: bytes of packed weights a clock.
void decode();
/// Nothing but reading as many bytes as a layer has.
void twin();

/// Microseconds of reading so many bytes, a multiple of 16, that are in no cache, by the fastest of several ways;
/// early: with programmatic launch. Ends the program where one of them does not read every word once.
double time_reading(int64_t bytes, bool early);
/// Bytes a microsecond that the second-level cache gives, by the fastest of the same ways.
double cache_bytes_per_us();

}  // namespace isobit::limits

#endif  // ISOBIT_BENCH_LINEAR_LIMITS_H_
