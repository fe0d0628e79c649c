// SPDX-License-Identifier: Apache-2.0
// Caller's device buffers, checked; and device memory that a library object owns.
#ifndef ISOBIT_CORE_CUDA_BUFFER_H_
#define ISOBIT_CORE_CUDA_BUFFER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/cuda/status.h"
#include "isobit/dtype.h"
#include "isobit/status.h"

namespace isobit::cuda {

inline Status check_fp16_type(const char* name, Dtype dtype) {
  if (dtype == Dtype::kF16 || dtype == Dtype::kBF16 || dtype == Dtype::kF32) return {};
  return {StatusCode::kUnsupported,
          std::string(name) + " has elements of type " + std::string(to_string(dtype)) + ", must be f16, bf16 or f32"};
}

/// Whole elements, aligned to them, and not null where there are any.
inline Status check_device_buffer(const char* name, std::span<const std::byte> buffer, Dtype dtype) {
  const size_t size = size_in_bytes(dtype);
  const auto elements = [&] { return " elements of " + std::to_string(size) + " bytes"; };
  if (buffer.size() % size != 0)
    return {StatusCode::kInvalidArgument,
            std::string(name) + " has " + std::to_string(buffer.size()) + " bytes, must be whole" + elements()};
  if (buffer.data() == nullptr && !buffer.empty())
    return {StatusCode::kInvalidArgument,
            std::string(name) + " is null, must hold " + std::to_string(buffer.size() / size) + elements()};
  if (reinterpret_cast<uintptr_t>(buffer.data()) % size != 0)
    return {StatusCode::kInvalidArgument, std::string(name) + " is not aligned to its" + elements()};
  return {};
}

/// The same number of elements in both.
inline Status check_same_count(std::span<const std::byte> x, Dtype x_dtype, std::span<const std::byte> y,
                               Dtype y_dtype) {
  const size_t x_count = x.size() / size_in_bytes(x_dtype);
  const size_t y_count = y.size() / size_in_bytes(y_dtype);
  if (x_count == y_count) return {};
  return {StatusCode::kInvalidArgument,
          "y has " + std::to_string(y_count) + " elements, must have " + std::to_string(x_count) + ", as x"};
}

/// `same_allowed`: they may be the same memory.
inline Status check_overlap(std::span<const std::byte> x, std::span<const std::byte> y, bool same_allowed) {
  if (x.empty() || y.empty() || (same_allowed && x.data() == y.data() && x.size() == y.size())) return {};
  const auto x_begin = reinterpret_cast<uintptr_t>(x.data());
  const auto y_begin = reinterpret_cast<uintptr_t>(y.data());
  if (x_begin + x.size() <= y_begin || y_begin + y.size() <= x_begin) return {};
  return {StatusCode::kInvalidArgument,
          std::string("y overlaps x, must not") +
              (same_allowed ? " unless it is the same memory, with types of one size" : "")};
}

/// An object's memory is on one device; runs must be made on that. `object`: "the table".
inline Status check_current_device(int owner, const char* object = "the table") {
  int device = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  if (device == owner) return {};
  return {StatusCode::kFailedPrecondition, "the current device is " + std::to_string(device) + ", must be that of " +
                                               object + ", " + std::to_string(owner)};
}

/// A copy of `bytes` on the current device; returns when it has arrived.
inline Result<std::shared_ptr<const std::byte>> copy_to_device(std::span<const std::byte> bytes) {
  void* memory = nullptr;
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMalloc(&memory, bytes.size()), std::to_string(bytes.size()) + " bytes of device memory"));
  std::shared_ptr<const std::byte> owner(static_cast<const std::byte*>(memory),
                                         [](const std::byte* p) { cudaFree(const_cast<std::byte*>(p)); });
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "copying to the device"));
  // A copy from pageable memory may return before it has arrived, and streams that do not block do not wait for it.
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(nullptr), "copying to the device"));
  return owner;
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_BUFFER_H_
