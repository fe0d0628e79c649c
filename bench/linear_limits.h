// SPDX-License-Identifier: Apache-2.0
// What bounds low-bit linear layers on an sm_90a device, measured without a layer: each function prints a JSON object a
// line, and ends the program where something fails. A result that is not what it must be is counted.
#ifndef ISOBIT_BENCH_LINEAR_LIMITS_H_
#define ISOBIT_BENCH_LINEAR_LIMITS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
inline void print(const Line& line) {
  Line with_device = {{"device", device().name}};
  with_device.update(line);
  std::printf("%s\n", with_device.dump().c_str());
  std::fflush(stdout);
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

/// Whether wgmma of several widths and mma.sync give the same bits. tiles: of 64 x 256 results for each kind of input,
/// depth and start.
void equal(int tiles);
/// The main loop for many rows without memory: operations a second.
void promote();
/// The main loop for few rows without memory: bytes of packed weights a clock, and the rates of its instructions.
void decode();
/// Nothing but reading as many bytes as a layer has.
void twin();

}  // namespace isobit::limits

#endif  // ISOBIT_BENCH_LINEAR_LIMITS_H_
