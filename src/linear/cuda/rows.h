// SPDX-License-Identifier: Apache-2.0
// Rows of x as the kernels read them. Tiles of 8 rows follow each other, each with all blocks of 128 positions
// (image.h). A block of a tile is what matrix instructions take, one after the other, as their right operand: two
// pieces of 8 rows of 16 bytes for each.
//   codes                an instruction for each step of 32 positions: bytes 4q to 4q + 3 of a row are positions 8q to
//                        8q + 3 in the first piece, 8q + 4 to 8q + 7 in the second
//   float16, bfloat16    two for each step: halves 2q and 2q + 1 of a row are positions 8q and 8q + 2 in the first
//                        piece, 8q + 1 and 8q + 3 in the second; of the second instruction, each 4 more
//   float32              three for each of these two, of the three bfloat16 whose sum it is, the largest first
//   static codes         as codes; of 16 bits, a tile of high bytes and one of low bytes in turn (static_epilogue.h)
// Beside them, for each tile: of codes, RowGroup of each group, 8 rows behind each other; of floats, where the kind of
// the weights needs them, the sum of x in each part, 8 rows behind each other; of static codes, StaticRow. A part is
// what a block, or of groups of 32 and 64 positions a step, has of one group.
#ifndef ISOBIT_LINEAR_CUDA_ROWS_H_
#define ISOBIT_LINEAR_CUDA_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "isobit/dtype.h"
#include "isobit/linear.h"
#include "isobit/status.h"
#include "linear/cuda/image.h"
#include "linear/cuda/static_epilogue.h"

namespace isobit::cuda {

enum class RowsKind { kCodes, kF16, kBF16, kF32, kStatic };

constexpr bool is_integer(RowsKind kind) { return kind == RowsKind::kCodes || kind == RowsKind::kStatic; }

/// Of a tile of rows.
constexpr int64_t row_block_bytes(RowsKind kind) {
  return kXTileRows * kBlockDepth * (is_integer(kind) ? 1 : kind == RowsKind::kF32 ? 6 : 2);
}

/// Section 11, a group of a row. Sa is NaN where the group cannot be quantised.
struct alignas(16) RowGroup {
  float scale;     // Sa
  int32_t sum;     // t
  float offset;    // Oa
  float elements;  // L
};

/// What a workspace holds.
struct RowsLayout {
  RowsKind kind = RowsKind::kCodes;
  int64_t tiles = 0;
  int64_t blocks = 0;
  int64_t parts = 0;          // of a row: groups; of floats, parts of blocks
  int64_t part_bytes = 0;     // of a tile; 0: not needed
  int64_t parameters_at = 0;  // bytes

  static RowsLayout of(const ImageLayout& image, RowsKind kind, bool sums, int64_t m);
  /// planes: bytes of a code.
  static RowsLayout of_static(const ImageLayout& image, int32_t planes, int64_t m);
  [[nodiscard]] int64_t bytes() const { return parameters_at + tiles * parts * part_bytes; }
};

struct RowsSource {
  const std::byte* x;
  Dtype dtype;
  int64_t stride;  // elements
  int64_t m;
};

/// Fills `to` (RowsLayout::bytes()). asymmetric: of codes; early: may begin before the launch before has ended.
Status prepare_rows(const ImageLayout& image, const RowsLayout& layout, const RowsSource& source, bool asymmetric,
                    std::byte* to, bool early, cudaStream_t stream);

/// Of static codes: what is subtracted from codes of this type (static_epilogue.h).
int32_t static_offset(Dtype dtype);
/// Fills `to`. least, most: the codes of the grid of x; others count as the nearer end.
Status prepare_static_rows(const RowsLayout& layout, const RowsSource& source, int64_t columns, int32_t least,
                           int32_t most, std::byte* to, bool early, cudaStream_t stream);

/// first: device memory, which becomes the first row with a group that could not be quantised, or m.
Status find_refused_row(const RowsLayout& layout, const std::byte* rows, int64_t m, unsigned long long* first,
                        cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_ROWS_H_
