// SPDX-License-Identifier: Apache-2.0
#include "c/boundary.h"

#include <algorithm>
#include <new>
#include <string_view>

namespace isobit::c {
namespace {

constexpr size_t kMaxStructSize = 1024;

/// The text of this thread's last error; `shown` is a literal where there was no memory for it.
struct LastError {
  std::string text;
  const char* shown = "";
};
LastError& last_error() {
  thread_local LastError error;
  return error;
}

int32_t keep(int32_t code, const char* message) noexcept {
  LastError& last = last_error();
  try {
    last.text = message;
    last.shown = last.text.c_str();
  } catch (...) {
    last.shown = "no memory, not even for a message";
  }
  return code;
}

/// The struct_size of a structure, which is all that may be read of it before this was checked.
Result<size_t> checked_size(const void* pointer, size_t known, const char* name) {
  ISOBIT_RETURN_IF_ERROR(check_pointer(pointer, name));
  uint32_t size = 0;
  std::memcpy(&size, pointer, sizeof size);
  if (size < known || size > kMaxStructSize)
    return refuse(std::string(name) + "->struct_size is " + std::to_string(size) + ", must be " +
                  std::to_string(known) + " (sizeof of the structure), or for later versions at most " +
                  std::to_string(kMaxStructSize));
  return size_t{size};
}

}  // namespace

int32_t report(const Status& status) noexcept {
  return status.ok() ? ISOBIT_OK : keep(static_cast<int32_t>(status.code()), status.message().c_str());
}

int32_t report_exception(std::exception_ptr exception) noexcept {
  try {
    std::rethrow_exception(std::move(exception));
  } catch (const std::bad_alloc&) {
    return keep(ISOBIT_NO_RESOURCES, "the system has no memory for this call");
  } catch (const std::exception& e) {  // std::length_error of a container, std::system_error of a thread
    return keep(ISOBIT_NO_RESOURCES, e.what());
  } catch (...) {
    return keep(ISOBIT_NO_RESOURCES, "an unknown exception");
  }
}

Status check_pointer(const void* pointer, const char* name) {
  return pointer != nullptr ? Status() : refuse(std::string(name) + " is NULL");
}

Status check_between(int64_t value, int64_t low, int64_t high, const char* name) {
  if (value >= low && value <= high) return {};
  return refuse(std::string(name) + " is " + std::to_string(value) + ", must be " + std::to_string(low) + ".." +
                std::to_string(high));
}

Status check_flag(int32_t value, const char* name) { return check_between(value, 0, 1, name); }
Status check_zero(int32_t reserved, const char* name) { return check_between(reserved, 0, 0, name); }

Status check_array(const void* data, int64_t count, size_t element_bytes, const char* name) {
  if (count < 0 || count > kMaxCount)
    return refuse(std::string(name) + " has " + std::to_string(count) + " elements, must have 0.." +
                  std::to_string(kMaxCount));
  if (count > 0 && data == nullptr)
    return refuse(std::string(name) + " is NULL, but has " + std::to_string(count) + " elements");
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % element_bytes != 0)
    return refuse(std::string(name) + " is at address " + std::to_string(address) + ", must be a multiple of " +
                  std::to_string(element_bytes));
  return {};
}

Status check_apart(std::span<const std::byte> written, const char* written_name, std::span<const std::byte> read,
                   const char* read_name) {
  const std::less<const std::byte*> before;
  if (written.empty() || read.empty() || !before(written.data(), read.data() + read.size()) ||
      !before(read.data(), written.data() + written.size()))
    return {};
  return refuse(std::string(written_name) + " overlaps " + read_name + ", must not");
}

Status read_struct_bytes(const void* in, size_t known, void* out, const char* name) {
  ISOBIT_ASSIGN_OR_RETURN(const size_t size, checked_size(in, known, name));
  const auto* bytes = static_cast<const std::byte*>(in);
  for (size_t i = known; i < size; ++i)
    if (bytes[i] != std::byte{0})
      return Status(StatusCode::kUnsupported, std::string(name) + " has a field at byte " + std::to_string(i) +
                                                  " that is not zero, and that isobit " + isobit_version() +
                                                  " does not know");
  std::memcpy(out, in, known);
  return {};
}

Status write_struct_bytes(void* out, size_t known, const void* value, const char* name) {
  ISOBIT_ASSIGN_OR_RETURN(const size_t size, checked_size(out, known, name));
  auto* bytes = static_cast<std::byte*>(out);
  std::memset(bytes + known, 0, size - known);
  std::memcpy(bytes + sizeof(uint32_t), static_cast<const std::byte*>(value) + sizeof(uint32_t),
              known - sizeof(uint32_t));
  return {};
}

Result<std::span<const std::byte>> bytes_of(const void* data, int64_t count, Dtype dtype, const char* name) {
  ISOBIT_RETURN_IF_ERROR(check_array(data, count, size_in_bytes(dtype), name));
  return std::span(static_cast<const std::byte*>(data), static_cast<size_t>(count) * size_in_bytes(dtype));
}

Result<std::span<std::byte>> writable_bytes_of(void* data, int64_t count, Dtype dtype, const char* name) {
  ISOBIT_RETURN_IF_ERROR(check_array(data, count, size_in_bytes(dtype), name));
  return std::span(static_cast<std::byte*>(data), static_cast<size_t>(count) * size_in_bytes(dtype));
}

Result<Dtype> dtype_of(int32_t dtype, const char* name) {
  static_assert(static_cast<int32_t>(Dtype::kS8) == ISOBIT_S8 && static_cast<int32_t>(Dtype::kS64) == ISOBIT_S64 &&
                static_cast<int32_t>(Dtype::kF16) == ISOBIT_F16 && static_cast<int32_t>(Dtype::kF64) == ISOBIT_F64);
  ISOBIT_RETURN_IF_ERROR(check_between(dtype, ISOBIT_S8, ISOBIT_F64, name));
  return static_cast<Dtype>(dtype);
}

Result<TypedArrays> typed_arrays(const void* x, int32_t x_dtype, int64_t x_count, void* y, int32_t y_dtype,
                                 int64_t y_count) {
  TypedArrays arrays;
  ISOBIT_ASSIGN_OR_RETURN(arrays.x_dtype, dtype_of(x_dtype, "x_dtype"));
  ISOBIT_ASSIGN_OR_RETURN(arrays.y_dtype, dtype_of(y_dtype, "y_dtype"));
  ISOBIT_ASSIGN_OR_RETURN(arrays.x, bytes_of(x, x_count, arrays.x_dtype, "x"));
  ISOBIT_ASSIGN_OR_RETURN(arrays.y, writable_bytes_of(y, y_count, arrays.y_dtype, "y"));
  return arrays;
}

Result<std::optional<CpuPath>> cpu_path_of(int32_t cpu_path, const char* name) {
  static_assert(number_of(CpuPath::kReference) == ISOBIT_CPU_REFERENCE && number_of(CpuPath::kAmx) == ISOBIT_CPU_AMX);
  ISOBIT_RETURN_IF_ERROR(check_between(cpu_path, ISOBIT_CPU_DEFAULT, ISOBIT_CPU_AMX, name));
  if (cpu_path == ISOBIT_CPU_DEFAULT) return std::optional<CpuPath>();
  return std::optional(static_cast<CpuPath>(cpu_path - 1));
}

isobit_grid grid_to_c(const Grid& grid) {
  static_assert(static_cast<int32_t>(ScaleKind::kReal) == ISOBIT_SCALE_REAL);
  isobit_grid out{};
  out.bits = grid.bits;
  out.is_signed = grid.is_signed ? 1 : 0;
  out.scale_kind = static_cast<int32_t>(grid.kind);
  out.shift = grid.shift;
  out.real_scale = grid.real_scale;
  out.zero_point = grid.zero_point;
  return out;
}

Result<Grid> grid_from_c(const isobit_grid& grid, const char* name) {
  const std::string prefix = std::string(name) + ".";
  ISOBIT_RETURN_IF_ERROR(check_flag(grid.is_signed, (prefix + "is_signed").c_str()));
  ISOBIT_RETURN_IF_ERROR(
      check_between(grid.scale_kind, ISOBIT_SCALE_POW2, ISOBIT_SCALE_REAL, (prefix + "scale_kind").c_str()));
  ISOBIT_RETURN_IF_ERROR(check_zero(grid.reserved, (prefix + "reserved").c_str()));
  Grid out;
  out.bits = grid.bits;
  out.is_signed = grid.is_signed == 1;
  out.kind = static_cast<ScaleKind>(grid.scale_kind);
  out.shift = grid.shift;
  // What the other kind of scale has no use for may be zero in C.
  if (out.kind == ScaleKind::kReal) out.real_scale = grid.real_scale;
  out.zero_point = grid.zero_point;
  ISOBIT_RETURN_IF_ERROR(check_grid(out, name));
  return out;
}

}  // namespace isobit::c

using isobit::Status;
using isobit::c::check_between;
using isobit::c::guarded;
using isobit::c::kMaxThreads;

const char* isobit_version() { return ISOBIT_VERSION; }

const char* isobit_last_error() { return isobit::c::last_error().shown; }

const char* isobit_status_name(int32_t status) {
  switch (status) {
    case ISOBIT_OK: return "ok";
    case ISOBIT_INVALID_ARGUMENT: return "invalid argument";
    case ISOBIT_INVALID_FILE: return "invalid file";
    case ISOBIT_IO: return "input or output";
    case ISOBIT_UNSUPPORTED: return "unsupported";
    case ISOBIT_OVERFLOW: return "overflow";
    case ISOBIT_FAILED_PRECONDITION: return "failed precondition";
    case ISOBIT_NO_RESOURCES: return "no resources";
    default: return "unknown status";
  }
}

int32_t isobit_cpu_check(int32_t cpu_path) {
  return guarded([&]() -> Status {
    ISOBIT_ASSIGN_OR_RETURN(const auto path, isobit::c::cpu_path_of(cpu_path, "cpu_path"));
    if (!path) return isobit::default_cpu_path().status();
    if (isobit::cpu_can_run(*path)) return {};
    return {isobit::StatusCode::kFailedPrecondition, std::string(isobit::to_string(*path)) + " cannot run here: " +
                                                         std::string(isobit::cpu_cannot_run_reason(*path))};
  });
}

int32_t isobit_pool_create(int32_t threads, isobit_pool** pool) {
  if (pool != nullptr) *pool = nullptr;
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(isobit::c::check_pointer(pool, "pool"));
    ISOBIT_RETURN_IF_ERROR(check_between(threads, 0, kMaxThreads, "threads"));
    *pool = new isobit_pool(threads);
    return {};
  });
}

void isobit_pool_destroy(isobit_pool* pool) { delete pool; }

int32_t isobit_pool_threads(const isobit_pool* pool) { return pool == nullptr ? 0 : pool->pool.threads(); }
