// SPDX-License-Identifier: Apache-2.0
// softmax from FP16 tables: docs/numerics.md, section 13. The sum is one of integers, so the order in which threads add
// does not matter.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/cuda/launch.h"
#include "core/half.h"
#include "core/run_options.h"
#include "isobit/cuda/fp16_table.h"
#include "table/fp16/reference.h"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarpColumns = 512;        // shorter rows are a warp's, longer ones a block's
constexpr uint32_t kMaxSharedBytes = 32768;  // tables that are larger stay in global memory

/// Both tables in one piece of device memory; offsets in bytes.
struct TableOffsets {
  uint32_t steps, cut_points, scales, values;
  int32_t intervals;
};
struct SoftmaxTables {
  const std::byte* memory;
  uint32_t bytes;
  TableOffsets exp, reciprocal;
  Fp16Model model;
};

__device__ Fp16TableView view_at(const std::byte* memory, const TableOffsets& at, Fp16Model model,
                                 Fp16Reduction reduction) {
  const Fp16PiecesView pieces{at.intervals, reinterpret_cast<const int32_t*>(memory + at.steps),
                              reinterpret_cast<const float*>(memory + at.cut_points),
                              reinterpret_cast<const float*>(memory + at.scales),
                              reinterpret_cast<const float*>(memory + at.values)};
  return {model, reduction, {pieces, pieces}};
}

template <Dtype kDtype>
__device__ uint16_t load_code(const void* x, int64_t i) {
  if constexpr (kDtype == Dtype::kF16) return static_cast<const uint16_t*>(x)[i];
  if constexpr (kDtype == Dtype::kBF16) return f32_to_f16(bf16_to_f32(static_cast<const uint16_t*>(x)[i]));
  return f32_to_f16(static_cast<const float*>(x)[i]);
}
template <Dtype kDtype>
__device__ void store_code(void* y, int64_t i, uint16_t code) {
  if constexpr (kDtype == Dtype::kF16) {
    static_cast<uint16_t*>(y)[i] = code;
  } else if constexpr (kDtype == Dtype::kBF16) {
    static_cast<uint16_t*>(y)[i] = f32_to_bf16(f16_to_f32(code));
  } else {
    static_cast<float*>(y)[i] = f16_to_f32(code);
  }
}

__device__ int32_t larger(int32_t a, int32_t b) { return max(a, b); }
__device__ int64_t total(int64_t a, int64_t b) { return a + b; }

/// The same value in all threads of a row: a warp, or a block.
template <bool kBlock, typename T>
__device__ T reduce(T value, T (*combine)(T, T), T* shared) {
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if constexpr (kBlock) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
    for (int warp = 1; warp < kThreads / 32; ++warp) value = combine(value, shared[warp]);
    __syncthreads();
  }
  return value;
}

/// Numbers in the order of the float16 values; above all of them NaN.
__device__ int32_t order_of(uint16_t code) {
  const int32_t magnitude = code & 0x7fff;
  if (magnitude > kFp16Infinity) return 0x8000;
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

template <Dtype kX, Dtype kY, bool kBlock>
__global__ void __launch_bounds__(kThreads)
    softmax(SoftmaxTables tables, const void* x, void* y, int64_t rows, int64_t columns) {
  extern __shared__ __align__(16) std::byte table_memory[];
  __shared__ int64_t partial_sum[kThreads / 32];
  __shared__ int32_t partial_max[kThreads / 32];
  const std::byte* memory = tables.memory;
  if (tables.bytes <= kMaxSharedBytes) {
    for (uint32_t i = threadIdx.x * 4; i < tables.bytes; i += kThreads * 4)
      *reinterpret_cast<uint32_t*>(table_memory + i) = *reinterpret_cast<const uint32_t*>(memory + i);
    __syncthreads();
    memory = table_memory;
  }
  const Fp16TableView exp = view_at(memory, tables.exp, tables.model, Fp16Reduction::kExp);
  const Fp16TableView reciprocal = view_at(memory, tables.reciprocal, tables.model, Fp16Reduction::kReciprocal);
  constexpr int kRowThreads = kBlock ? kThreads : 32;
  const int thread = static_cast<int>(threadIdx.x) % kRowThreads;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * (kThreads / kRowThreads);
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
       row < rows; row += row_step) {
    const int64_t first = row * columns;
    int32_t order = -0x8000;
    for (int64_t i = thread; i < columns; i += kRowThreads) order = max(order, order_of(load_code<kX>(x, first + i)));
    order = reduce<kBlock, int32_t>(order, larger, partial_max);
    if (order >= kFp16Infinity || order <= -static_cast<int32_t>(kFp16Infinity)) {  // NaN, inf, or nothing but -inf
      for (int64_t i = thread; i < columns; i += kRowThreads) store_code<kY>(y, first + i, kFp16Nan);
      continue;
    }
    const float largest = f16_to_f32(static_cast<uint16_t>(order < 0 ? 0x8000 - order : order));
    const auto e_of = [&](int64_t i) {
      return fp16_softmax_exp(exp, f32_sub(f16_to_f32(load_code<kX>(x, first + i)), largest));
    };
    int64_t sum = 0;
    for (int64_t i = thread; i < columns; i += kRowThreads)
      sum += static_cast<int64_t>(f32_rint(f32_mul(e_of(i), 0x1p30f)));
    sum = reduce<kBlock, int64_t>(sum, total, partial_sum);
    const float quotient = fp16_softmax_quotient(reciprocal, sum);
    for (int64_t i = thread; i < columns; i += kRowThreads)
      store_code<kY>(y, first + i, f32_to_f16(f32_mul(e_of(i), quotient)));
  }
}

template <Dtype kX, Dtype kY>
Status launch(const SoftmaxTables& tables, int processors, const void* x, void* y, int64_t rows, int64_t columns,
              cudaStream_t stream) {
  const uint32_t shared = tables.bytes <= kMaxSharedBytes ? tables.bytes : 0;
  const int64_t most = int64_t{8} * processors;
  const bool by_warps = columns <= kWarpColumns;
  const int64_t blocks = std::min(by_warps ? (rows + kThreads / 32 - 1) / (kThreads / 32) : rows, most);
  return launch_kernel("softmax", by_warps ? softmax<kX, kY, false> : softmax<kX, kY, true>,
                       static_cast<unsigned>(blocks), kThreads, shared, stream, tables, x, y, rows, columns);
}

template <Dtype kX>
Status launch_for(Dtype y_dtype, const SoftmaxTables& tables, int processors, const void* x, void* y, int64_t rows,
                  int64_t columns, cudaStream_t stream) {
  if (y_dtype == Dtype::kF16) return launch<kX, Dtype::kF16>(tables, processors, x, y, rows, columns, stream);
  if (y_dtype == Dtype::kBF16) return launch<kX, Dtype::kBF16>(tables, processors, x, y, rows, columns, stream);
  return launch<kX, Dtype::kF32>(tables, processors, x, y, rows, columns, stream);
}

}  // namespace

struct DeviceFp16Softmax::Data {
  std::shared_ptr<const std::byte> memory;
  SoftmaxTables tables{};
  int device = 0;
  int processors = 0;
};

Result<DeviceFp16Softmax> DeviceFp16Softmax::create(const Fp16Softmax& softmax) {
  auto data = std::make_shared<Data>();
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&data->device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaDeviceGetAttribute(&data->processors, cudaDevAttrMultiProcessorCount, data->device), "processors"));
  std::vector<std::byte> bytes;
  const auto append = [&bytes](const auto& values) {
    const size_t at = bytes.size();
    bytes.resize(at + values.size() * sizeof values[0]);
    std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof values[0]);
    return static_cast<uint32_t>(at);
  };
  const auto append_pieces = [&append](const Fp16Pieces& pieces) {
    TableOffsets at{};
    at.steps = append(pieces.steps);
    at.cut_points = append(pieces.cut_points);
    at.scales = append(pieces.scales);
    at.values = append(pieces.values);
    at.intervals = static_cast<int32_t>(pieces.steps.size());
    return at;
  };
  data->tables.exp = append_pieces(softmax.exp_table().pieces.front());
  data->tables.reciprocal = append_pieces(softmax.reciprocal_table().pieces.front());
  data->tables.model = softmax.exp_table().model;
  data->tables.bytes = static_cast<uint32_t>(bytes.size());
  ISOBIT_ASSIGN_OR_RETURN(data->memory, copy_to_device(bytes));
  data->tables.memory = data->memory.get();
  DeviceFp16Softmax result;
  result.data_ = std::move(data);
  return result;
}

Status DeviceFp16Softmax::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                                  int64_t columns, const RunOptions& options) const {
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kStreamOption, "a table on a device"));
  ISOBIT_RETURN_IF_ERROR(check_fp16_type("x", x_dtype));
  ISOBIT_RETURN_IF_ERROR(check_fp16_type("y", y_dtype));
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("x", x, x_dtype));
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("y", y, y_dtype));
  ISOBIT_RETURN_IF_ERROR(check_same_count(x, x_dtype, y, y_dtype));
  ISOBIT_RETURN_IF_ERROR(check_overlap(x, y, true));
  const auto count = static_cast<int64_t>(x.size() / size_in_bytes(x_dtype));
  if (columns < 1 || columns > INT32_MAX || count % columns != 0)
    return {StatusCode::kInvalidArgument, "columns is " + std::to_string(columns) +
                                              ", must be 1..2147483647 and divide the number of elements, " +
                                              std::to_string(count)};
  ISOBIT_RETURN_IF_ERROR(check_current_device(data_->device));
  if (count == 0) return {};
  const auto go = [&](auto run_for) {
    return run_for(y_dtype, data_->tables, data_->processors, x.data(), y.data(), count / columns, columns,
                   options.stream);
  };
  if (x_dtype == Dtype::kF16) return go(launch_for<Dtype::kF16>);
  if (x_dtype == Dtype::kBF16) return go(launch_for<Dtype::kBF16>);
  return go(launch_for<Dtype::kF32>);
}

}  // namespace isobit::cuda
