// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "core/cuda/arguments.h"
#include "core/cuda/grid_launch.h"
#include "core/cuda/ptx.cuh"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;  // positions of a thread at a time

int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

/// What both kernels know of the row.
struct RowsArgs {
  const void* x;
  int64_t stride, m, padded_m;
  int64_t columns, group, padded_group, groups, blocks;
  int32_t block_parts;
  int64_t parts;
  uint8_t* rows;
  uint8_t* parameters;  // null: not needed
};

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(double x) { return __double2float_rn(x); }
__device__ __forceinline__ float widened(__half x) { return __half2float(x); }
__device__ __forceinline__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

/// The elements at kUnit positions from `position` on, all of one group; 0 where there is none.
template <typename X>
__device__ __forceinline__ void load_unit(const RowsArgs& a, int64_t m, int64_t position, float (&values)[kUnit]) {
  const int64_t group = position / a.padded_group;
  const int64_t in_group = position - group * a.padded_group;
  const int64_t column = group * a.group + in_group;
  const int64_t count = m < a.m ? min(a.group - in_group, a.columns - column) : 0;
  const X* const x = static_cast<const X*>(a.x) + m * a.stride + column;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) values[i] = i < count ? widened(x[i]) : 0.0f;
}

/// Largest of some lanes of a warp, `lanes` a power of two.
template <typename Combine>
__device__ __forceinline__ float over_lanes(float value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

/// Over a team of kTeam threads, every one of which gets the result.
template <int kTeam>
struct Team {
  float* shared;  // kThreads / 32, where a team is a block

  template <typename Combine>
  __device__ __forceinline__ float all(float value, Combine combine) const {
    value = over_lanes(value, 32, combine);
    if constexpr (kTeam > 32) {
      __syncthreads();
      if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
      __syncthreads();
      value = shared[0];
      for (int i = 1; i < kTeam / 32; ++i) value = combine(value, shared[i]);
    }
    return value;
  }
};

/// One group of one row for each team. Section 11, operation by operation.
template <typename X, int kTeam>
__global__ void __launch_bounds__(kThreads) quantize_rows(const RowsArgs a, bool asymmetric) {
  __shared__ float shared[kThreads / 32];
  let_next_grid_start();
  wait_for_grid_before();
  const Team<kTeam> team{shared};
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / kTeam) + threadIdx.x / kTeam;
  const int64_t m = item / a.groups;
  const int64_t g = item % a.groups;
  if (m >= a.padded_m) return;
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  const int64_t elements = min(a.group, a.columns - g * a.group);
  const int64_t begin = g * a.padded_group;
  // The last group ends with the last block, which may be before or behind its padded size.
  const int64_t end = g + 1 < a.groups ? begin + a.padded_group : a.blocks * kBlockDepth;

  const auto larger = [](float p, float q) { return fmaxf(p, q); };
  constexpr float kInfinity = __builtin_huge_valf();
  float max = -kInfinity, negated_min = -kInfinity, wrong = 0;
  float values[kUnit];
  for (int64_t i = member * kUnit; i < elements; i += kTeam * kUnit) {
    load_unit<X>(a, m, begin + i, values);
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      if (i + j >= elements) continue;
      if (!(fabsf(values[j]) < kInfinity)) wrong = 1;
      max = fmaxf(max, values[j]);
      negated_min = fmaxf(negated_min, -values[j]);
    }
  }
  max = team.all(max, larger);
  negated_min = team.all(negated_min, larger);
  wrong = team.all(wrong, larger);
  const float range = asymmetric ? __fadd_rn(max, negated_min) : fmaxf(max, negated_min);
  if (!(range < kInfinity)) wrong = 1;
  RowGroup group{0.0f, 0, asymmetric ? max : 0.0f, static_cast<float>(elements)};
  const float steps = asymmetric ? 255.0f : 127.0f;
  const bool any = wrong == 0 && range >= 0x1p-118f;
  float inverse = 0;
  if (any) {
    group.scale = __fdiv_rn(range, steps);
    if (asymmetric) group.offset = __fmaf_rn(-127.0f, group.scale, max);
    inverse = __fdiv_rn(steps, range);
  }
  uint8_t* const tile = a.rows + m / kXTileRows * a.blocks * row_block_bytes(RowsKind::kCodes);
  int32_t whole = 0;
  for (int64_t i = member * kUnit; begin + i < end; i += kTeam * kUnit) {
    uint32_t codes[2]{};
    if (any && i < elements) {
      load_unit<X>(a, m, begin + i, values);
#pragma unroll
      for (int j = 0; j < kUnit; ++j) {
        if (i + j >= elements) continue;
        const float difference = asymmetric ? __fsub_rn(values[j], group.offset) : values[j];
        const float code = rintf(__fmul_rn(difference, inverse));
        const int32_t clamped = static_cast<int32_t>(fminf(fmaxf(code, asymmetric ? -128.0f : -127.0f), 127.0f));
        codes[j / 4] |= (static_cast<uint32_t>(clamped) & 0xff) << (8 * (j % 4));
        whole += clamped;
      }
    }
    const int64_t position = begin + i;
    const int in_block = static_cast<int>(position % kBlockDepth);
    const int step = in_block / kStepDepth;
    uint32_t* const to = reinterpret_cast<uint32_t*>(tile + position / kBlockDepth * row_block_bytes(RowsKind::kCodes) +
                                                     step * 256 + m % kXTileRows * 16) +
                         in_block % kStepDepth / kUnit;
    to[0] = codes[0];
    to[32] = codes[1];
  }
  // Integers, in any order.
  for (int distance = 16; distance > 0; distance /= 2) whole += __shfl_xor_sync(0xffffffffu, whole, distance);
  if constexpr (kTeam > 32) {
    __shared__ int32_t wholes[kThreads / 32];
    if (threadIdx.x % 32 == 0) wholes[threadIdx.x / 32] = whole;
    __syncthreads();
    whole = 0;
    for (int i = 0; i < kTeam / 32; ++i) whole += wholes[i];
  }
  group.sum = whole;
  if (m >= a.m) {
    group.scale = 0;
    group.offset = 0;
  } else if (wrong != 0) {
    group.scale = __int_as_float(0x7fc00000);
  }
  if (member == 0)
    reinterpret_cast<RowGroup*>(a.parameters)[(m / kXTileRows * a.parts + g) * kXTileRows + m % kXTileRows] = group;
}

/// Of eight positions, to the four pieces of two instructions, which are `step` bytes apart.
template <typename Half>
__device__ __forceinline__ void store_halves(const Half (&values)[kUnit], uint8_t* to, int step) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int first = i / 2 * 4 + i % 2;
    uint16_t low, high;
    memcpy(&low, &values[first], 2);
    memcpy(&high, &values[first + 2], 2);
    *reinterpret_cast<uint32_t*>(to + i / 2 * step + i % 2 * 128) = static_cast<uint32_t>(high) << 16 | low;
  }
}

/// A warp for each block of a row, of which half a warp has positions.
template <typename X, RowsKind kKind>
__global__ void __launch_bounds__(kThreads) arrange_rows(const RowsArgs a) {
  let_next_grid_start();
  wait_for_grid_before();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int64_t m = item / a.blocks;
  const int64_t block = item % a.blocks;
  if (m >= a.padded_m) return;
  const int unit = static_cast<int>(threadIdx.x) % 32;
  constexpr int kUnits = kBlockDepth / kUnit;
  float values[kUnit]{};
  if (unit < kUnits) load_unit<X>(a, m, block * kBlockDepth + unit * kUnit, values);
  if (a.parameters != nullptr) {
    float sum = values[0];
#pragma unroll
    for (int i = 1; i < kUnit; ++i) sum = __fadd_rn(sum, values[i]);
    const int lanes = kUnits / a.block_parts;  // of a part
    sum = over_lanes(sum, lanes, [](float p, float q) { return __fadd_rn(p, q); });
    const int64_t part = block * a.block_parts + unit / lanes;
    if (unit < kUnits && unit % lanes == 0 && part < a.parts)
      reinterpret_cast<float*>(a.parameters)[(m / kXTileRows * a.parts + part) * kXTileRows + m % kXTileRows] = sum;
  }
  if (unit >= kUnits) return;
  constexpr int kPlanes = kKind == RowsKind::kF32 ? 3 : 1;
  uint8_t* const to = a.rows + (m / kXTileRows * a.blocks + block) * row_block_bytes(kKind) +
                      unit * kUnit / kStepDepth * kPlanes * 512 + m % kXTileRows * 16 + unit % (kStepDepth / kUnit) * 4;
  if constexpr (kKind == RowsKind::kF16) {
    __half halves[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) halves[i] = __float2half_rn(values[i]);
    store_halves(halves, to, 256);
  } else {
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      __nv_bfloat16 halves[kUnit];
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        halves[i] = __float2bfloat16_rn(values[i]);
        values[i] = __fsub_rn(values[i], __bfloat162float(halves[i]));
      }
      store_halves(halves, to + plane * 256, kPlanes * 256);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    find_refused(const RowGroup* groups, int64_t parts, int64_t m, unsigned long long* first) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < m * parts;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i / parts;
    const RowGroup& group = groups[(row / kXTileRows * parts + i % parts) * kXTileRows + row % kXTileRows];
    if (isnan(group.scale)) atomicMin(first, static_cast<unsigned long long>(row));
  }
}

/// Calls body(X()) with the C++ type of the elements.
template <typename Body>
Status with_float_type(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::kF16: return body(__half());
    case Dtype::kBF16: return body(__nv_bfloat16());
    case Dtype::kF64: return body(double());
    default: return body(float());
  }
}

}  // namespace

RowsLayout RowsLayout::of(const ImageLayout& image, RowsKind kind, bool sums, int64_t m) {
  RowsLayout layout;
  layout.kind = kind;
  // Kernels for more rows than a tile has take two.
  layout.tiles = m <= kXTileRows && kind != RowsKind::kF32 ? 1 : pieces(m, 2 * kXTileRows) * 2;
  layout.blocks = image.blocks;
  layout.parts = kind == RowsKind::kCodes ? image.groups : image.parts();
  layout.part_bytes = kind == RowsKind::kCodes ? kXTileRows * static_cast<int64_t>(sizeof(RowGroup))
                      : sums                   ? kXTileRows * static_cast<int64_t>(sizeof(float))
                                               : 0;
  layout.parameters_at = layout.tiles * layout.blocks * row_block_bytes(kind);
  return layout;
}

Status prepare_rows(const ImageLayout& image, const RowsLayout& layout, const RowsSource& source, bool asymmetric,
                    std::byte* to, bool early, cudaStream_t stream) {
  RowsArgs a{.x = source.x,
             .stride = source.stride,
             .m = source.m,
             .padded_m = layout.tiles * kXTileRows,
             .columns = image.columns,
             .group = image.group,
             .padded_group = image.padded_group,
             .groups = image.groups,
             .blocks = image.blocks,
             .block_parts = image.block_parts,
             .parts = layout.parts,
             .rows = reinterpret_cast<uint8_t*>(to),
             .parameters = layout.part_bytes == 0 ? nullptr : reinterpret_cast<uint8_t*>(to) + layout.parameters_at};
  const auto launch = [&](const char* name, auto kernel, int64_t items, int64_t items_of_block, auto... arguments) {
    GridLaunch grid;
    grid.blocks = dim3(static_cast<unsigned>(pieces(items, items_of_block)));
    grid.threads = kThreads;
    grid.early = early;
    return grid.run(name, kernel, stream, a, arguments...);
  };
  const int64_t rows = layout.tiles * kXTileRows;
  if (layout.kind == RowsKind::kCodes)
    return with_float_type(source.dtype, [&](auto type) {
      using X = decltype(type);
      return image.padded_group <= 512
                 ? launch("quantize_rows", quantize_rows<X, 32>, rows * image.groups, kThreads / 32, asymmetric)
                 : launch("quantize_rows", quantize_rows<X, kThreads>, rows * image.groups, 1, asymmetric);
    });
  const int64_t items = rows * image.blocks;
  switch (layout.kind) {
    case RowsKind::kF16: return launch("arrange_rows", arrange_rows<__half, RowsKind::kF16>, items, kThreads / 32);
    case RowsKind::kBF16:
      return launch("arrange_rows", arrange_rows<__nv_bfloat16, RowsKind::kBF16>, items, kThreads / 32);
    default: return launch("arrange_rows", arrange_rows<float, RowsKind::kF32>, items, kThreads / 32);
  }
}

Status find_refused_row(const RowsLayout& layout, const std::byte* rows, int64_t m, unsigned long long* first,
                        cudaStream_t stream) {
  const int64_t items = m * layout.parts;
  return launch_kernel("find_refused", find_refused,
                       dim3(static_cast<unsigned>(std::clamp<int64_t>(pieces(items, kThreads), 1, 256))), kThreads, 0,
                       stream, reinterpret_cast<const RowGroup*>(rows + layout.parameters_at), layout.parts, m, first);
}

}  // namespace isobit::cuda
