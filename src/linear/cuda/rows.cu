// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/rows.cuh"

namespace isobit::cuda {
namespace {

/// Rows in memory.
struct DenseRows {
  const void* x;
  int64_t stride;

  template <typename X>
  __device__ __forceinline__ void load(const RowsArgs& a, int64_t m, int group, int i, float (&values)[kUnit]) const {
    const int64_t column = static_cast<int64_t>(group) * a.group + i;
    load_elements(static_cast<const X*>(x) + m * stride + column, m < a.m ? min(a.group - i, a.columns - column) : 0,
                  values);
  }
  __device__ __forceinline__ int elements(const RowsArgs& a, int64_t group) const {
    return static_cast<int>(min(a.group, a.columns - group * a.group));
  }
  __device__ __forceinline__ void refuse(const RowsArgs&, int64_t, int) const {}  // find_refused tells
};

__global__ void __launch_bounds__(kThreads) find_refused(const RowsArgs a, unsigned long long* first) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.m * a.parts;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i / a.parts;
    const uint8_t* const part = a.parameters + a.place(row, i % a.parts, a.parts, a.part_bytes);
    if (isnan(reinterpret_cast<const RowScale*>(part)[row % kXTileRows].scale))
      atomicMin(first, static_cast<unsigned long long>(row));
  }
}

}  // namespace

RowsLayout RowsLayout::of(const ImageLayout& image, RowsKind kind, bool parameters, int64_t m, int64_t slab_tiles) {
  RowsLayout layout;
  layout.kind = kind;
  layout.slab_tiles = slab_tiles;
  layout.tiles = row_pieces(m, slab_tiles * kXTileRows) * slab_tiles;
  layout.blocks = image.blocks;
  layout.parts = kind == RowsKind::kCodes ? image.groups : image.parts();
  layout.part_bytes = kind == RowsKind::kCodes ? kRowScalesBytes + (parameters ? kRowOffsetsBytes : 0)
                      : parameters             ? kXTileRows * static_cast<int64_t>(sizeof(float))
                                               : 0;
  layout.parameters_at = layout.tiles * layout.blocks * row_block_bytes(kind);
  return layout;
}

Status prepare_rows(const ImageLayout& image, const RowsLayout& layout, const RowsSource& source, bool asymmetric,
                    std::byte* to, bool early, cudaStream_t stream) {
  return prepare_rows_of(image, layout, DenseRows{source.x, source.stride}, source.m, source.dtype, asymmetric, to,
                         early, stream);
}

Status find_refused_row(const ImageLayout& image, const RowsLayout& layout, std::byte* rows, int64_t m,
                        unsigned long long* first, cudaStream_t stream) {
  const int64_t items = m * layout.parts;
  return launch_kernel("find_refused", find_refused,
                       dim3(static_cast<unsigned>(std::clamp<int64_t>(row_pieces(items, kThreads), 1, 256))), kThreads,
                       0, stream, rows_args(image, layout, m, rows), first);
}

}  // namespace isobit::cuda
