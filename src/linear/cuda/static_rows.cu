// SPDX-License-Identifier: Apache-2.0
// Rows of static codes: rows.h.
#include <algorithm>
#include <limits>

#include "core/cuda/grid_launch.h"
#include "core/cuda/ptx.cuh"
#include "linear/cuda/rows.h"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;  // positions of a thread at a time
constexpr int kBlockUnits = kBlockDepth / kUnit, kStepUnits = kStepDepth / kUnit;

struct StaticRowsArgs {
  const void* x;
  int64_t stride, m;
  int32_t columns, blocks;
  int32_t least, most, offset;
  uint8_t* rows;
  StaticRow* parameters;
};

/// A block of threads for each row. X: the type of the codes, whose bytes are planes.
template <typename X>
__global__ void __launch_bounds__(kThreads) arrange_codes(const StaticRowsArgs a) {
  constexpr int kPlanes = sizeof(X);
  constexpr int64_t kBlockBytes = row_block_bytes(RowsKind::kStatic);
  let_next_grid_start();
  wait_for_grid_before();
  const int64_t m = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int columns = m < a.m ? a.columns : 0;
  const X* const x = static_cast<const X*>(a.x) + m * a.stride;
  constexpr int32_t kNone = INT32_MAX;
  int64_t sum = 0;
  int32_t outside = kNone;
  for (int unit = thread; unit < a.blocks * kBlockUnits; unit += kThreads) {
    uint32_t planes[kPlanes][2]{};  // of four positions each
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const int column = unit * kUnit + j;
      if (column >= columns) continue;
      const int32_t code = x[column];
      const int32_t inside = min(max(code, a.least), a.most);
      if (inside != code) outside = min(outside, column);
      const int32_t value = inside - a.offset;
      sum += value;
      const auto put = [&](int plane, int32_t byte) {
        planes[plane][j / 4] |= (static_cast<uint32_t>(byte) & 0xff) << (8 * (j % 4));
      };
      put(kPlanes - 1, value);
      if constexpr (kPlanes == 2) put(0, (value + 128) >> 8);  // the low byte is signed
    }
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      const int64_t tile = m / kXTileRows * kPlanes + plane;
      uint8_t* const pieces = a.rows + (tile * a.blocks + unit / kBlockUnits) * kBlockBytes +
                              unit % kBlockUnits / kStepUnits * 256 + m % kXTileRows * 16 + unit % kStepUnits * 4;
      *reinterpret_cast<uint32_t*>(pieces) = planes[plane][0];
      *reinterpret_cast<uint32_t*>(pieces + 128) = planes[plane][1];
    }
  }

  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    outside = min(outside, __shfl_xor_sync(0xffffffffu, outside, distance));
  }
  __shared__ int64_t sums[kThreads / 32];
  __shared__ int32_t places[kThreads / 32];
  if (thread % 32 == 0) {
    sums[thread / 32] = sum;
    places[thread / 32] = outside;
  }
  __syncthreads();
  if (thread != 0) return;
  for (int i = 1; i < kThreads / 32; ++i) {
    sum += sums[i];
    outside = min(outside, places[i]);
  }
  a.parameters[m] = outside == kNone ? StaticRow{sum, -1, 0} : StaticRow{sum, outside, x[outside]};
}

}  // namespace

RowsLayout RowsLayout::of_static(const ImageLayout& image, int32_t planes, int64_t m) {
  RowsLayout layout;
  layout.kind = RowsKind::kStatic;
  const int64_t row_tiles = (m + kXTileRows - 1) / kXTileRows;
  // Kernels for more rows than a tile has take two tiles.
  layout.tiles = planes == 2 ? 2 * row_tiles : row_tiles <= 1 ? 1 : (row_tiles + 1) / 2 * 2;
  layout.blocks = image.blocks;
  layout.parts = 1;
  layout.part_bytes = kXTileRows * static_cast<int64_t>(sizeof(StaticRow)) / planes;
  layout.parameters_at = layout.tiles * layout.blocks * row_block_bytes(layout.kind);
  return layout;
}

int32_t static_offset(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8: return 128;
    case Dtype::kS16: return 128;  // so that the low byte is signed
    case Dtype::kU16: return 32768 + 128;
    default: return 0;
  }
}

Status prepare_static_rows(const RowsLayout& layout, const RowsSource& source, int64_t columns, int32_t least,
                           int32_t most, std::byte* to, bool early, cudaStream_t stream) {
  const StaticRowsArgs a{.x = source.x,
                         .stride = source.stride,
                         .m = source.m,
                         .columns = static_cast<int32_t>(columns),
                         .blocks = static_cast<int32_t>(layout.blocks),
                         .least = least,
                         .most = most,
                         .offset = static_offset(source.dtype),
                         .rows = reinterpret_cast<uint8_t*>(to),
                         .parameters = reinterpret_cast<StaticRow*>(to + layout.parameters_at)};
  const auto rows =
      static_cast<unsigned>(layout.tiles * kXTileRows / static_cast<int64_t>(size_in_bytes(source.dtype)));
  const auto launch = [&](auto kernel) {
    const GridLaunch grid{.blocks = dim3(rows), .threads = kThreads, .early = early};
    return grid.run("arrange_codes", kernel, stream, a);
  };
  switch (source.dtype) {
    case Dtype::kS8: return launch(arrange_codes<int8_t>);
    case Dtype::kU8: return launch(arrange_codes<uint8_t>);
    case Dtype::kS16: return launch(arrange_codes<int16_t>);
    default: return launch(arrange_codes<uint16_t>);
  }
}

}  // namespace isobit::cuda
