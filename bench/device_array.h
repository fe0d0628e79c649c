// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device for the command and for benchmarks.
#ifndef ISOBIT_BENCH_DEVICE_ARRAY_H_
#define ISOBIT_BENCH_DEVICE_ARRAY_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "isobit/status.h"

namespace isobit::bench {

inline Status cuda_status(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  return {StatusCode::kFailedPrecondition,
          what + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")"};
}

/// Device memory with the content of `bytes`.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(memory_); }

  Status allocate(size_t bytes) {
    bytes_ = bytes;
    return cuda_status(cudaMalloc(&memory_, std::max<size_t>(bytes, 1)),
                       std::to_string(bytes) + " bytes of device memory");
  }
  Status write(std::span<const std::byte> from) {
    ISOBIT_RETURN_IF_ERROR(allocate(from.size()));
    return cuda_status(cudaMemcpy(memory_, from.data(), bytes_, cudaMemcpyHostToDevice), "copying to the device");
  }
  Status read(std::span<std::byte> to) const {
    return cuda_status(cudaMemcpy(to.data(), memory_, bytes_, cudaMemcpyDeviceToHost), "copying to the host");
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_DEVICE_ARRAY_H_
