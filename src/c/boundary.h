// SPDX-License-Identifier: Apache-2.0
// What every function of the C interface does at its door: checks pointers, sizes and structures, and lets nothing
// through that C does not know.
#ifndef ISOBIT_C_BOUNDARY_H_
#define ISOBIT_C_BOUNDARY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/grid.h"
#include "isobit/isobit.h"
#include "isobit/parallel.h"
#include "isobit/status.h"

struct isobit_pool {
  explicit isobit_pool(int threads) : pool(threads) {}
  isobit::ThreadPool pool;
};

namespace isobit::c {

/// Of batch, steps and rows of a call.
inline constexpr int64_t kMaxExtent = (int64_t{1} << 31) - 1;
inline constexpr int32_t kMaxThreads = 1024;
/// No array has as many elements; the largest element has 8 bytes.
inline constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max() / 16;

inline Status refuse(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

/// Keeps the message for isobit_last_error and returns the code.
int32_t report(const Status& status) noexcept;
int32_t report_exception(std::exception_ptr exception) noexcept;

/// Runs the body of a function, which returns a Status.
template <typename Body>
int32_t guarded(Body&& body) noexcept {
  try {
    return report(std::forward<Body>(body)());
  } catch (...) {
    return report_exception(std::current_exception());
  }
}

/// The same for a function that makes a handle: body() returns a Result<Handle>, where Handle can be moved.
template <typename Handle, typename Body>
int32_t make_handle(Handle** out, const char* name, Body&& body) noexcept {
  if (out != nullptr) *out = nullptr;
  return guarded([&]() -> Status {
    if (out == nullptr) return refuse(std::string(name) + " is NULL, must point to where the handle goes");
    Result<Handle> handle = std::forward<Body>(body)();
    if (!handle.ok()) return handle.status();
    *out = new Handle(*std::move(handle));  // NOLINT(bugprone-unhandled-exception-at-new): guarded() catches it
    return {};
  });
}

Status check_pointer(const void* pointer, const char* name);
Status check_between(int64_t value, int64_t low, int64_t high, const char* name);
/// 0 or 1.
Status check_flag(int32_t value, const char* name);
Status check_zero(int32_t reserved, const char* name);
/// Refuses a NULL with elements, counts that no array has, and addresses that are no multiple of element_bytes.
Status check_array(const void* data, int64_t count, size_t element_bytes, const char* name);
/// Refuses ranges of bytes with one in common.
Status check_apart(std::span<const std::byte> written, const char* written_name, std::span<const std::byte> read,
                   const char* read_name);

/// `bytes` of a structure that the caller made, its struct_size checked: `out` receives the first `known`.
Status read_struct_bytes(const void* in, size_t known, void* out, const char* name);
Status write_struct_bytes(void* out, size_t known, const void* value, const char* name);

/// A structure of options; NULL, where that is allowed, is all zeros.
template <typename T>
Status read_struct(const T* in, T& out, const char* name) {
  static_assert(std::is_trivially_copyable_v<T>);
  return read_struct_bytes(in, sizeof(T), &out, name);
}
template <typename T>
Status read_optional_struct(const T* in, T& out, const char* name) {
  out = {};
  return in == nullptr ? Status() : read_struct(in, out, name);
}
/// A structure of results: all fields of `value` but struct_size, which stays the caller's.
template <typename T>
Status write_struct(T* out, const T& value, const char* name) {
  static_assert(std::is_trivially_copyable_v<T>);
  return write_struct_bytes(out, sizeof(T), &value, name);
}

/// Checked arrays as spans.
template <typename T>
Result<std::span<T>> span_of(T* data, int64_t count, const char* name) {
  ISOBIT_RETURN_IF_ERROR(check_array(data, count, sizeof(T), name));
  return std::span<T>(data, static_cast<size_t>(count));
}
Result<std::span<const std::byte>> bytes_of(const void* data, int64_t count, Dtype dtype, const char* name);
Result<std::span<std::byte>> writable_bytes_of(void* data, int64_t count, Dtype dtype, const char* name);

Result<Dtype> dtype_of(int32_t dtype, const char* name);

/// x and y of a call that says what they are.
struct TypedArrays {
  std::span<const std::byte> x;
  Dtype x_dtype = Dtype::kF32;
  std::span<std::byte> y;
  Dtype y_dtype = Dtype::kF32;
};
Result<TypedArrays> typed_arrays(const void* x, int32_t x_dtype, int64_t x_count, void* y, int32_t y_dtype,
                                 int64_t y_count);

/// ISOBIT_CPU_...; none for ISOBIT_CPU_DEFAULT.
Result<std::optional<CpuPath>> cpu_path_of(int32_t cpu_path, const char* name);
constexpr int32_t number_of(CpuPath path) { return static_cast<int32_t>(path) + 1; }
isobit_grid grid_to_c(const Grid& grid);
Result<Grid> grid_from_c(const isobit_grid& grid, const char* name);
inline ThreadPool* pool_of(isobit_pool* pool) { return pool == nullptr ? nullptr : &pool->pool; }

}  // namespace isobit::c

#endif  // ISOBIT_C_BOUNDARY_H_
