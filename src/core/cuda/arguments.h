// SPDX-License-Identifier: Apache-2.0
// What a run on a device checks of the caller's memory and stream before it enqueues anything.
#ifndef ISOBIT_CORE_CUDA_ARGUMENTS_H_
#define ISOBIT_CORE_CUDA_ARGUMENTS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "core/cuda/buffer.h"
#include "core/cuda/status.h"
#include "isobit/dtype.h"
#include "isobit/status.h"

namespace isobit::cuda {

inline Status refuse_argument(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

inline constexpr int64_t kDeviceAlignment = 256;  // of states, workspaces, and what lies in them

// ---- Sizes: what does not fit int64 becomes INT64_MAX, which no buffer has

inline int64_t sum_of_sizes(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? INT64_MAX : result;
}

inline int64_t product_of_sizes(std::initializer_list<int64_t> factors) {
  for (const int64_t factor : factors)
    if (factor <= 0) return 0;
  int64_t result = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return INT64_MAX;
  return result;
}

inline int64_t aligned_size(int64_t bytes) {
  return sum_of_sizes(bytes, kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

// ---- Checks

struct NamedBuffer {
  const char* name;
  std::span<const std::byte> bytes;
};

/// Of the first and the last of its bytes: memory that is smaller than it was said to be ends the context with an
/// illegal address, and all work of the process with it. Asking enqueues nothing, so it is allowed in a capture.
inline Status check_on_device(const NamedBuffer& buffer, int device) {
  if (buffer.bytes.empty()) return {};
  for (const bool is_last : {false, true}) {
    const auto name = [&] { return std::string(is_last ? "the last byte of " : "") + buffer.name; };
    const auto wanted = [&] { return ", must be memory of device " + std::to_string(device); };
    cudaPointerAttributes attributes{};
    if (const cudaError_t error =
            cudaPointerGetAttributes(&attributes, is_last ? &buffer.bytes.back() : &buffer.bytes.front());
        error != cudaSuccess)
      return cuda_status(error, name() + ": which memory it is");
    if (attributes.type == cudaMemoryTypeManaged) continue;
    if (attributes.type != cudaMemoryTypeDevice) return refuse_argument(name() + " is host memory" + wanted());
    if (attributes.device != device)
      return refuse_argument(name() + " is memory of device " + std::to_string(attributes.device) + wanted());
  }
  return {};
}

inline Status check_apart(std::initializer_list<NamedBuffer> buffers) {
  for (const NamedBuffer* a = buffers.begin(); a != buffers.end(); ++a)
    for (const NamedBuffer* b = buffers.begin(); b != a; ++b) {
      if (a->bytes.empty() || b->bytes.empty()) continue;
      const auto a_begin = reinterpret_cast<uintptr_t>(a->bytes.data());
      const auto b_begin = reinterpret_cast<uintptr_t>(b->bytes.data());
      if (a_begin + a->bytes.size() <= b_begin || b_begin + b->bytes.size() <= a_begin) continue;
      return refuse_argument(std::string(a->name) + " overlaps " + b->name + ", must not");
    }
  return {};
}

/// A stream of another device would be refused by the first launch, after what came before it. The default streams are
/// of the current device; in a capture the question is not allowed.
inline Status check_stream(cudaStream_t stream, int device) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return {};
  cudaStreamCaptureStatus capture{};
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamIsCapturing(stream, &capture), "stream"));
  if (capture != cudaStreamCaptureStatusNone) return {};
  int of_stream = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamGetDevice(stream, &of_stream), "stream"));
  if (of_stream == device) return {};
  return refuse_argument("stream belongs to device " + std::to_string(of_stream) +
                         ", must belong to that of the model, " + std::to_string(device));
}

inline Status check_alignment(const char* name, const void* pointer) {
  if (reinterpret_cast<uintptr_t>(pointer) % kDeviceAlignment == 0) return {};
  return refuse_argument(std::string(name) + " is not aligned to 256 bytes");
}

/// `shape` after its size: "2 * 3 * 5 elements of 4 bytes".
inline Status check_size(const NamedBuffer& buffer, std::initializer_list<int64_t> shape, Dtype dtype) {
  ISOBIT_RETURN_IF_ERROR(check_device_buffer(buffer.name, buffer.bytes, dtype));
  const int64_t expected = product_of_sizes(shape);
  const auto actual = static_cast<int64_t>(buffer.bytes.size() / size_in_bytes(dtype));
  if (actual == expected) return {};
  std::string factors;
  for (const int64_t factor : shape) factors += (factors.empty() ? "" : " * ") + std::to_string(factor);
  return refuse_argument(std::string(buffer.name) + " has " + std::to_string(actual) + " elements of " +
                         std::to_string(size_in_bytes(dtype)) + " bytes, must have " + factors);
}

inline Status check_room(const NamedBuffer& buffer, int64_t needed, int64_t batch) {
  ISOBIT_RETURN_IF_ERROR(check_device_buffer(buffer.name, buffer.bytes, Dtype::kU8));
  ISOBIT_RETURN_IF_ERROR(check_alignment(buffer.name, buffer.bytes.data()));
  if (static_cast<int64_t>(buffer.bytes.size()) >= needed) return {};
  return refuse_argument(std::string(buffer.name) + " has " + std::to_string(buffer.bytes.size()) +
                         " bytes, must have " + std::to_string(needed) + " for " + std::to_string(batch) +
                         " sequences");
}

inline Status check_batch(int64_t batch) {
  if (batch < 0) return refuse_argument("batch is " + std::to_string(batch) + ", must not be negative");
  return {};
}
inline Status check_run(int64_t batch, int64_t steps) {
  if (steps < 0) return refuse_argument("steps is " + std::to_string(steps) + ", must not be negative");
  return check_batch(batch);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_ARGUMENTS_H_
