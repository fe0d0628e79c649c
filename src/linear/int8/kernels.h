// SPDX-License-Identifier: Apache-2.0
// The kernels of numerics.md, section 11: rows of x to 8-bit codes, and their product with low-bit weights. Included by
// the files of each instruction set, so it holds plain structs only. linear/int8/int8.h packs and calls.
#ifndef ISOBIT_LINEAR_INT8_KERNELS_H_
#define ISOBIT_LINEAR_INT8_KERNELS_H_

#include <cstdint>

namespace isobit {

/// Outputs n side by side in packed weights: the 32-bit lanes of one AVX-512 register.
inline constexpr int kInt8TileRows = 16;
/// One load of codes: 4 bytes a row. Byte j, bits p * bits and up, is the code of k = block start + 4 p + j: all fields
/// p together meet one broadcast of four activations, so a kernel shifts and masks, and permutes nothing.
inline constexpr int kInt8BlockBytes = 4 * kInt8TileRows;
constexpr int64_t int8_block_columns(int bits) { return 32 / bits; }
/// Groups whose terms are added before they are added to the sum.
inline constexpr int kInt8ChunkGroups = 16;
/// Activations of a group are padded with zeros to a multiple of this: the longest block.
inline constexpr int64_t kInt8Padding = 32;
/// Kernels decode or run this many rows of x together.
inline constexpr int64_t kInt8MaxM = 256;

constexpr int64_t int8_padded(int64_t columns) { return (columns + kInt8Padding - 1) / kInt8Padding * kInt8Padding; }

/// How numbers of a group are stored; all widen to float32 exactly. kS16 is for sums V.
enum class Int8Float : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kS16 = 3 };
constexpr int64_t int8_float_bytes(Int8Float type) { return type == Int8Float::kF32 ? 4 : 2; }

/// A group of a row of x: t = sum a, and
///   scale = Sa, offset = Oa,
///   start = -factor * t: what the sum of w * a starts from to become d = sum a * v,
///   affine = X = Sa * float(t), asymmetric: fma(Oa, float(L), X): what the offset kind multiplies O by.
struct Int8Group {
  float scale;
  float offset;
  int32_t start;
  float affine;
};

/// Where the parts of packed weights are. A tile is kInt8TileRows rows of W. It is a row of chunks, one after the
/// other; a chunk has, for each of its groups, kInt8TileRows each of S, z, O and V (float(sum v)), then the codes of
/// its groups; every part begins at a multiple of 64 bytes. Groups are padded to whole blocks.
struct Int8Layout {
  int32_t bits;
  bool twice;  // 1 bit, symmetric: a code w counts as 2 w, so that v = 2 w - 1 needs nothing but `start`
  int64_t columns;
  int64_t group;
  int64_t groups;
  int64_t group_blocks;       // of every group but the last
  int64_t last_group_blocks;  // of the last one
  int64_t tile_bytes;
  int64_t chunk_bytes;
  Int8Float scale_type;  // of S and O
  Int8Float sum_type;
  int32_t zero_point_bytes;  // 1 or 2
  int64_t zero_points;       // offsets in a chunk; S is at 0; 0: there are none
  int64_t offsets;
  int64_t sums;
  int64_t codes;
};

/// Largest group of tiled rows of x.
inline constexpr int64_t kInt8TiledGroup = 1024;

/// y[m, n] = act(T[m, n] + bias[n]) of section 11 for the outputs n < count of `tiles` tiles.
struct Int8ProductArgs {
  Int8Layout layout;
  const uint8_t* weights;  // first tile, 64-byte aligned
  int64_t tiles;
  int32_t factor = 0;  // of `tiled`: v = w - factor where there are no zero points
  // m rows, each group padded with zeros to int8_padded; of `tiled`: [m / 16][k / 64][16 rows][64 k], missing
  // columns are zeros.
  const int8_t* codes;
  int64_t code_stride;        // of a row, in both
  const Int8Group* x_groups;  // of `tiled`: [m / 16][groups][16 rows]
  int64_t group_stride;       // of a row, in elements, in both
  int64_t m;
  int64_t count;      // in the last tile or at its end
  const float* bias;  // [16 * tiles]
  float lo;
  float hi;
  float* y;
  int64_t y_stride;  // in elements
  uint8_t* scratch;  // kInt8ScratchBytes, 64-byte aligned
};

/// A kernel for many rows first decodes so many bytes of codes, of at most kInt8PanelTiles tiles; it keeps integers,
/// sums and T of all rows for these tiles.
inline constexpr int64_t kInt8PanelBytes = 24576;
inline constexpr int64_t kInt8PanelTiles = 4;
inline constexpr int64_t kInt8ScratchBytes = kInt8PanelBytes + kInt8MaxM * kInt8PanelTiles * kInt8TileRows * 12;

/// One row of x.
struct Int8QuantizeArgs {
  const void* x;
  Int8Float type;  // kF32, kF16 or kBF16
  int64_t columns;
  int64_t group;
  int32_t factor;
  bool asymmetric;
  bool is_unsigned;  // codes are bytes u = a + 128 (padding: any); start and affine say nothing
  int8_t* codes;
  Int8Group* groups;
};

/// y[m, n] = act(T + bias[n]) from d[m, n], where a group is a whole row of the symmetric kind. One group a row.
struct Int8FinishArgs {
  const int32_t* d;
  int64_t d_stride;  // in elements
  int64_t rows;
  int64_t count;
  const Int8Group* groups;  // a scale that is NaN makes the row NaN
  const float* scales;      // these, and rows of d, can be read up to a multiple of 16
  const float* sums;        // float(V); null: of symmetric activations
  const float* bias;
  float lo;
  float hi;
  float* y;
  int64_t y_stride;  // in elements
};

struct Int8Kernels {
  void (*product)(const Int8ProductArgs& args);
  /// False where section 11 refuses the row: x has a NaN or an infinity, or a group has D = inf. Everything is written
  /// then, too, but says nothing.
  bool (*quantize)(const Int8QuantizeArgs& args);
  void (*finish)(const Int8FinishArgs& args);
  /// The product of tiled rows; null where there is none. The memory of x has a multiple of 16 rows. For groups of a
  /// multiple of 64, at most kInt8TiledGroup, and v that fit int8.
  void (*tiled)(const Int8ProductArgs& args) = nullptr;
};

#define ISOBIT_INT8_KERNELS(path, name) Int8Kernels name();
#include "linear/int8/kernels.inc"
#undef ISOBIT_INT8_KERNELS

}  // namespace isobit

#endif  // ISOBIT_LINEAR_INT8_KERNELS_H_
