// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/cuda/launch.h"
#include "core/half.h"
#include "core/run_options.h"
#include "isobit/cuda/fp16_table.h"
#include "table/cuda/fp16.cuh"

namespace isobit::cuda {
namespace {

/// From here on filling shared memory pays.
constexpr int64_t kSharedFrom = int64_t{1} << 20;
constexpr int kThreads = 256;

template <typename In, typename Out>
Status launch(bool shared, int processors, const uint16_t* entries, const void* x, void* y, int64_t count,
              cudaStream_t stream) {
  const auto* in = static_cast<const typename In::Type*>(x);
  auto* out = static_cast<typename Out::Type*>(y);
  if (shared) {
    ISOBIT_RETURN_IF_ERROR(cuda_status(
        cudaFuncSetAttribute(fp16_shared<In, Out>, cudaFuncAttributeMaxDynamicSharedMemorySize, kFp16ResultBytes),
        "fp16_shared: 128 KiB of shared memory"));
    return launch_kernel("fp16_shared", fp16_shared<In, Out>, static_cast<unsigned>(processors), kFp16Threads,
                         kFp16ResultBytes, stream, entries, in, out, count);
  }
  const int64_t blocks = std::min<int64_t>((count + kThreads - 1) / kThreads, int64_t{64} * processors);
  return launch_kernel("fp16_global", fp16_global<In, Out>, static_cast<unsigned>(blocks), kThreads, 0, stream, entries,
                       in, out, count);
}

/// The four tables behind each other: entry of x for x f16 or bf16 (index 2) and y f16 or bf16 (index 1). float32 goes
/// through float16.
constexpr int table_of(Dtype x, Dtype y) { return (x == Dtype::kBF16 ? 2 : 0) + (y == Dtype::kBF16 ? 1 : 0); }
constexpr int kTables = 4;

std::vector<uint16_t> make_tables(std::span<const uint16_t> results) {
  std::vector<uint16_t> tables(kTables * kFp16Results);
  for (const Dtype x : {Dtype::kF16, Dtype::kBF16})
    for (const Dtype y : {Dtype::kF16, Dtype::kBF16}) {
      uint16_t* const table = tables.data() + table_of(x, y) * kFp16Results;
      for (uint32_t bits = 0; bits < kFp16Results; ++bits) {
        const auto in = static_cast<uint16_t>(bits);
        const uint16_t result = results[x == Dtype::kF16 ? in : f32_to_f16(bf16_to_f32(in))];
        table[bits] = y == Dtype::kF16 ? result : f32_to_bf16(f16_to_f32(result));
      }
    }
  return tables;
}

}  // namespace

Result<DeviceFp16Function> DeviceFp16Function::create(std::span<const uint16_t> results) {
  if (results.size() != kFp16Results)
    return Status(StatusCode::kInvalidArgument,
                  "results has " + std::to_string(results.size()) + " codes, must have 65536");
  DeviceFp16Function function;
  int shared_bytes = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&function.device_), "the current device"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaDeviceGetAttribute(&function.processors_, cudaDevAttrMultiProcessorCount, function.device_), "processors"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, function.device_),
                  "shared memory of a block"));
  function.fits_shared_ = shared_bytes >= kFp16ResultBytes;
  const std::vector<uint16_t> tables = make_tables(results);
  ISOBIT_ASSIGN_OR_RETURN(function.tables_, copy_to_device(std::as_bytes(std::span(tables))));
  return function;
}

Status DeviceFp16Function::forward(std::span<const std::byte> x_bytes, Dtype x_dtype, std::span<std::byte> y_bytes,
                                   Dtype y_dtype, const RunOptions& options) const {
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kStreamOption, "a table on a device"));
  ISOBIT_RETURN_IF_ERROR(check_fp16_type("x", x_dtype));
  ISOBIT_RETURN_IF_ERROR(check_fp16_type("y", y_dtype));
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("x", x_bytes, x_dtype));
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("y", y_bytes, y_dtype));
  ISOBIT_RETURN_IF_ERROR(check_same_count(x_bytes, x_dtype, y_bytes, y_dtype));
  ISOBIT_RETURN_IF_ERROR(check_overlap(x_bytes, y_bytes, true));
  ISOBIT_RETURN_IF_ERROR(check_current_device(device_));
  const auto count = static_cast<int64_t>(x_bytes.size() / size_in_bytes(x_dtype));
  if (count == 0) return {};
  const void* x = x_bytes.data();
  void* y = y_bytes.data();
  const cudaStream_t stream = options.stream;
  const bool aligned = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y)) % 16 == 0;
  const bool shared = fits_shared_ && aligned && count >= kSharedFrom;
  const uint16_t* entries =
      reinterpret_cast<const uint16_t*>(tables_.get()) + table_of(x_dtype, y_dtype) * kFp16Results;
  const bool wide_x = x_dtype == Dtype::kF32;
  const bool wide_y = y_dtype == Dtype::kF32;
  if (wide_x && wide_y) return launch<FloatElement, FloatElement>(shared, processors_, entries, x, y, count, stream);
  if (wide_x) return launch<FloatElement, HalfElement>(shared, processors_, entries, x, y, count, stream);
  if (wide_y) return launch<HalfElement, FloatElement>(shared, processors_, entries, x, y, count, stream);
  return launch<HalfElement, HalfElement>(shared, processors_, entries, x, y, count, stream);
}

}  // namespace isobit::cuda
