// SPDX-License-Identifier: Apache-2.0
// How rows of floats become what the kernels read (rows.h), wherever they come from.
#ifndef ISOBIT_LINEAR_CUDA_ROWS_CUH_
#define ISOBIT_LINEAR_CUDA_ROWS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>

#include "core/cuda/arguments.h"
#include "core/cuda/grid_launch.h"
#include "core/cuda/ptx.cuh"
#include "linear/cuda/rows.h"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;  // positions of a thread at a time
constexpr int kBlockUnits = kBlockDepth / kUnit;

inline int64_t row_pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

/// What both kernels know of rows.
struct RowsArgs {
  int64_t m;
  int64_t columns, group, padded_group, groups, blocks;
  int32_t block_parts;
  int64_t parts, part_bytes;
  uint8_t* rows;
  uint8_t* parameters;  // null: not needed
  int32_t slab_tiles, tile_blocks;

  /// Of the tile of row m: where block or part `i` of `count` is, if each has so many bytes for a tile.
  __device__ __forceinline__ int64_t place(int64_t m, int64_t i, int64_t count, int64_t bytes) const {
    const auto tile = static_cast<uint32_t>(m / kXTileRows);
    const auto slab = tile / static_cast<uint32_t>(slab_tiles), in_slab = tile % static_cast<uint32_t>(slab_tiles);
    return ((static_cast<int64_t>(slab) * count + i) * slab_tiles + in_slab) * bytes;
  }
};

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(double x) { return __double2float_rn(x); }
__device__ __forceinline__ float widened(__half x) { return __half2float(x); }
__device__ __forceinline__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

/// The first `count` of up to kUnit elements behind each other; 0 for the others.
template <typename X>
__device__ __forceinline__ void load_elements(const X* x, int64_t count, float (&values)[kUnit]) {
  if (count >= kUnit && reinterpret_cast<uintptr_t>(x) % sizeof(uint4) == 0) {
    constexpr int kLoads = kUnit * static_cast<int>(sizeof(X)) / static_cast<int>(sizeof(uint4));
    uint4 whole[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) whole[i] = reinterpret_cast<const uint4*>(x)[i];
    X elements[kUnit];
    memcpy(elements, whole, sizeof elements);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) values[i] = widened(elements[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) values[i] = i < count ? widened(x[i]) : 0.0f;
}

/// What a team of some threads of a block does: a part of a row. A block has parts of one tile, of which rows are
/// neighbours, as their results are.
struct RowItem {
  int64_t m;
  int part;

  static __device__ __forceinline__ RowItem of(int tile_blocks, int team, int teams) {
    const auto tile = blockIdx.x / static_cast<uint32_t>(tile_blocks);
    const auto item = static_cast<int>(blockIdx.x % static_cast<uint32_t>(tile_blocks)) * teams + team;
    return {static_cast<int64_t>(tile) * kXTileRows + item % kXTileRows, item / kXTileRows};
  }
};

/// Largest of some lanes of a warp, `lanes` a power of two.
template <typename Combine>
__device__ __forceinline__ float over_lanes(float value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

/// Over a team, every thread of which gets the result: some lanes of a warp, a power of two, or, kTeam, a block.
template <int kTeam>
struct Team {
  int lanes;
  float* shared;  // kThreads / 32, where a team is a block

  template <typename Combine>
  __device__ __forceinline__ float all(float value, Combine combine) const {
    value = over_lanes(value, lanes, combine);
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
template <typename X, int kTeam, typename Source>
__global__ void __launch_bounds__(kThreads)
    quantize_rows(const RowsArgs a, const Source source, bool asymmetric, int lanes) {
  __shared__ float shared[kThreads / 32];
  let_next_grid_start();
  wait_for_grid_before();
  const Team<kTeam> team{lanes, shared};
  const int members = kTeam > 32 ? kTeam : lanes;
  const auto [m, g] = RowItem::of(a.tile_blocks, static_cast<int>(threadIdx.x) / members, kThreads / members);
  const bool there = g < a.groups;
  const int member = static_cast<int>(threadIdx.x) % members;
  const int elements = there ? source.elements(a, g) : 0;
  const int64_t begin = g * a.padded_group;
  // The last group ends with the last block, which may be before or behind its padded size.
  const auto size = static_cast<int>(g + 1 < a.groups ? a.padded_group : a.blocks * kBlockDepth - begin);

  const auto larger = [](float p, float q) { return fmaxf(p, q); };
  constexpr float kInfinity = __builtin_huge_valf();
  float max = -kInfinity, negated_min = -kInfinity, wrong = 0;
  float values[kUnit];
  int loaded = -1;  // the place that values are of
  for (int i = member * kUnit; there && i < elements; i += members * kUnit) {
    source.template load<X>(a, m, g, i, values);
    loaded = i;
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
  RowScale scale{0.0f, 0};
  RowOffset offset{asymmetric ? max : 0.0f, static_cast<float>(elements)};
  const float steps = asymmetric ? 255.0f : 127.0f;
  const bool any = wrong == 0 && range >= 0x1p-118f;
  float inverse = 0;
  if (any) {
    scale.scale = __fdiv_rn(range, steps);
    if (asymmetric) offset.offset = __fmaf_rn(-127.0f, scale.scale, max);
    inverse = __fdiv_rn(steps, range);
  }
  const int64_t block_bytes = a.slab_tiles * row_block_bytes(RowsKind::kCodes);
  uint8_t* const tile = a.rows + a.place(m, 0, a.blocks, row_block_bytes(RowsKind::kCodes));
  int32_t whole = 0;
  for (int i = member * kUnit; there && i < size; i += members * kUnit) {
    uint32_t codes[2]{};
    if (any && i < elements) {
      if (i != loaded) source.template load<X>(a, m, g, i, values);
      loaded = i;
#pragma unroll
      for (int j = 0; j < kUnit; ++j) {
        if (i + j >= elements) continue;
        const float difference = asymmetric ? __fsub_rn(values[j], offset.offset) : values[j];
        const float code = rintf(__fmul_rn(difference, inverse));
        const int32_t clamped = static_cast<int32_t>(fminf(fmaxf(code, asymmetric ? -128.0f : -127.0f), 127.0f));
        codes[j / 4] |= (static_cast<uint32_t>(clamped) & 0xff) << (8 * (j % 4));
        whole += clamped;
      }
    }
    const int64_t position = begin + i;
    const int in_block = static_cast<int>(position % kBlockDepth);
    const int step = in_block / kStepDepth;
    uint32_t* const to =
        reinterpret_cast<uint32_t*>(tile + position / kBlockDepth * block_bytes + step * 256 + m % kXTileRows * 16) +
        in_block % kStepDepth / kUnit;
    to[0] = codes[0];
    to[32] = codes[1];
  }
  // Integers, in any order.
  for (int distance = lanes / 2; distance > 0; distance /= 2) whole += __shfl_xor_sync(0xffffffffu, whole, distance);
  if constexpr (kTeam > 32) {
    __shared__ int32_t wholes[kThreads / 32];
    if (threadIdx.x % 32 == 0) wholes[threadIdx.x / 32] = whole;
    __syncthreads();
    whole = 0;
    for (int i = 0; i < kTeam / 32; ++i) whole += wholes[i];
  }
  scale.sum = whole;
  if (m >= a.m) {
    scale.scale = 0;
    offset.offset = 0;
  } else if (wrong != 0) {
    scale.scale = __int_as_float(0x7fc00000);
    if (there && member == 0) source.refuse(a, m, g);
  }
  if (there && member == 0) {
    uint8_t* const part = a.parameters + a.place(m, g, a.parts, a.part_bytes);
    reinterpret_cast<RowScale*>(part)[m % kXTileRows] = scale;
    if (asymmetric) reinterpret_cast<RowOffset*>(part + kRowScalesBytes)[m % kXTileRows] = offset;
  }
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

/// Half a warp for each block of a row.
template <typename X, RowsKind kKind, typename Source>
__global__ void __launch_bounds__(kThreads) arrange_rows(const RowsArgs a, const Source source) {
  let_next_grid_start();
  wait_for_grid_before();
  const auto [m, block] =
      RowItem::of(a.tile_blocks, static_cast<int>(threadIdx.x) / kBlockUnits, kThreads / kBlockUnits);
  if (block >= a.blocks) return;  // whole warps
  const int unit = static_cast<int>(threadIdx.x) % kBlockUnits;
  float values[kUnit];
  const int position = block * kBlockDepth + unit * kUnit, padded = static_cast<int>(a.padded_group);
  source.template load<X>(a, m, position / padded, position % padded, values);
  if (a.parameters != nullptr) {
    float sum = values[0];
#pragma unroll
    for (int i = 1; i < kUnit; ++i) sum = __fadd_rn(sum, values[i]);
    const int lanes = kBlockUnits / a.block_parts;  // of a part
    sum = over_lanes(sum, lanes, [](float p, float q) { return __fadd_rn(p, q); });
    const int part = block * a.block_parts + unit / lanes;
    if (unit % lanes == 0 && part < a.parts)
      reinterpret_cast<float*>(a.parameters + a.place(m, part, a.parts, a.part_bytes))[m % kXTileRows] = sum;
  }
  constexpr int kPlanes = kKind == RowsKind::kF32 ? 3 : 1;
  uint8_t* const to = a.rows + a.place(m, block, a.blocks, row_block_bytes(kKind)) +
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

inline RowsArgs rows_args(const ImageLayout& image, const RowsLayout& layout, int64_t m, std::byte* rows) {
  return {.m = m,
          .columns = image.columns,
          .group = image.group,
          .padded_group = image.padded_group,
          .groups = image.groups,
          .blocks = image.blocks,
          .block_parts = image.block_parts,
          .parts = layout.parts,
          .part_bytes = layout.part_bytes,
          .rows = reinterpret_cast<uint8_t*>(rows),
          .parameters = layout.part_bytes == 0 ? nullptr : reinterpret_cast<uint8_t*>(rows) + layout.parameters_at,
          .slab_tiles = static_cast<int32_t>(layout.slab_tiles),
          .tile_blocks = 0};
}

/// Fills `to` (RowsLayout::bytes()) with m rows of elements of a type, which are a Source's:
///   load<X>(args, m, group, i, values)   up to kUnit elements of row m from the i-th of a group on; 0 for the others
///   elements(args, group)                how many a group has
///   refuse(args, m, group)                  this group cannot be quantised
template <typename Source>
Status prepare_rows_of(const ImageLayout& image, const RowsLayout& layout, const Source& source, int64_t m, Dtype dtype,
                       bool asymmetric, std::byte* to, bool early, cudaStream_t stream) {
  RowsArgs a = rows_args(image, layout, m, to);
  /// items: of a row; teams: of a block of threads, with an item each.
  const auto launch = [&](const char* name, auto kernel, int64_t items, int64_t teams, auto... arguments) {
    a.tile_blocks = static_cast<int32_t>(row_pieces(kXTileRows * items, teams));
    GridLaunch grid;
    grid.blocks = dim3(static_cast<unsigned>(layout.tiles * a.tile_blocks));
    grid.threads = kThreads;
    grid.early = early;
    return grid.run(name, kernel, stream, a, source, arguments...);
  };
  if (layout.kind == RowsKind::kCodes)
    return with_float_type(dtype, [&](auto type) {
      using X = decltype(type);
      constexpr int kWarp = 32;
      if (image.padded_group > 512)
        return launch("quantize_rows", quantize_rows<X, kThreads, Source>, image.groups, 1, asymmetric, kWarp);
      const int lanes = static_cast<int>(std::min<int64_t>(
          kWarp, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(image.padded_group / kUnit)))));
      return launch("quantize_rows", quantize_rows<X, kWarp, Source>, image.groups, kThreads / lanes, asymmetric,
                    lanes);
    });
  constexpr int kTeams = kThreads / kBlockUnits;
  switch (layout.kind) {
    case RowsKind::kF16:
      return launch("arrange_rows", arrange_rows<__half, RowsKind::kF16, Source>, image.blocks, kTeams);
    case RowsKind::kBF16:
      return launch("arrange_rows", arrange_rows<__nv_bfloat16, RowsKind::kBF16, Source>, image.blocks, kTeams);
    default: return launch("arrange_rows", arrange_rows<float, RowsKind::kF32, Source>, image.blocks, kTeams);
  }
}

}  // namespace
}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_ROWS_CUH_
