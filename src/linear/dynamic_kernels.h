// SPDX-License-Identifier: Apache-2.0
// The kernels of numerics.md, section 11: rows of x to 8-bit codes, and their product with low-bit weights. Included by
// the files of each instruction set, so it holds plain structs only. linear/dynamic.h packs and calls.
#ifndef ISOBIT_LINEAR_DYNAMIC_KERNELS_H_
#define ISOBIT_LINEAR_DYNAMIC_KERNELS_H_

#include <cstdint>

namespace isobit {

/// Outputs n side by side in packed weights: the 32-bit lanes of one AVX-512 register.
inline constexpr int kDynamicTileRows = 16;
/// One load of codes: 4 bytes a row. Byte j, bits p * bits and up, is the code of k = block start + 4 p + j: all fields
/// p together meet one broadcast of four activations, so a kernel shifts and masks, and permutes nothing.
inline constexpr int kDynamicBlockBytes = 4 * kDynamicTileRows;
constexpr int64_t dynamic_block_columns(int bits) { return 32 / bits; }
/// Groups whose terms are added before they are added to the sum.
inline constexpr int kDynamicChunkGroups = 16;
/// Activations of a group are padded with zeros to a multiple of this: the longest block.
inline constexpr int64_t kDynamicPadding = 32;
/// Kernels decode or run this many rows of x together.
inline constexpr int64_t kDynamicMaxM = 256;

constexpr int64_t dynamic_padded(int64_t columns) {
  return (columns + kDynamicPadding - 1) / kDynamicPadding * kDynamicPadding;
}

/// How numbers of a group are stored; all widen to float32 exactly. kS16 is for sums V.
enum class DynamicFloat : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kS16 = 3 };
constexpr int64_t dynamic_float_bytes(DynamicFloat type) { return type == DynamicFloat::kF32 ? 4 : 2; }

/// A group of a row of x: t = sum a, and
///   scale = Sa, offset = Oa,
///   start = -factor * t: what the sum of w * a starts from to become d = sum a * v,
///   affine = X = Sa * float(t), asymmetric: fma(Oa, float(L), X): what the offset kind multiplies O by.
struct DynamicGroup {
  float scale;
  float offset;
  int32_t start;
  float affine;
};

/// Where the parts of packed weights are. A tile is kDynamicTileRows rows of W. It is a row of chunks, one after the
/// other; a chunk has, for each of its groups, kDynamicTileRows each of S, z, O and V (float(sum v)), then the codes of
/// its groups; every part begins at a multiple of 64 bytes. Groups are padded to whole blocks.
struct DynamicLayout {
  int32_t bits;
  bool twice;  // 1 bit, symmetric: a code w counts as 2 w, so that v = 2 w - 1 needs nothing but `start`
  int64_t columns;
  int64_t group;
  int64_t groups;
  int64_t group_blocks;       // of every group but the last
  int64_t last_group_blocks;  // of the last one
  int64_t tile_bytes;
  int64_t chunk_bytes;
  DynamicFloat scale_type;  // of S and O
  DynamicFloat sum_type;
  int32_t zero_point_bytes;  // 1 or 2
  int64_t zero_points;       // offsets in a chunk; S is at 0; 0: there are none
  int64_t offsets;
  int64_t sums;
  int64_t codes;
};

/// Largest group of tiled rows of x.
inline constexpr int64_t kDynamicTiledGroup = 1024;

/// y[m, n] = act(T[m, n] + bias[n]) of section 11 for the outputs n < count of `tiles` tiles.
struct DynamicProductArgs {
  DynamicLayout layout;
  const uint8_t* weights;  // first tile, 64-byte aligned
  int64_t tiles;
  int32_t factor = 0;  // of `tiled`: v = w - factor where there are no zero points
  // m rows, each group padded with zeros to dynamic_padded; of `tiled`: [m / 16][k / 64][16 rows][64 k], missing
  // columns are zeros.
  const int8_t* codes;
  int64_t code_stride;           // of a row, in both
  const DynamicGroup* x_groups;  // of `tiled`: [m / 16][groups][16 rows]
  int64_t group_stride;          // of a row, in elements, in both
  int64_t m;
  int64_t count;      // in the last tile or at its end
  const float* bias;  // [16 * tiles]
  float lo;
  float hi;
  float* y;
  int64_t y_stride;  // in elements
  uint8_t* scratch;  // kDynamicScratchBytes, 64-byte aligned
};

/// A kernel for many rows first decodes so many bytes of codes, of at most kDynamicPanelTiles tiles; it keeps integers,
/// sums and T of all rows for these tiles.
inline constexpr int64_t kDynamicPanelBytes = 24576;
inline constexpr int64_t kDynamicPanelTiles = 4;
inline constexpr int64_t kDynamicScratchBytes =
    kDynamicPanelBytes + kDynamicMaxM * kDynamicPanelTiles * kDynamicTileRows * 12;

/// One row of x.
struct DynamicQuantizeArgs {
  const void* x;
  DynamicFloat type;  // kF32, kF16 or kBF16
  int64_t columns;
  int64_t group;
  int32_t factor;
  bool asymmetric;
  bool is_unsigned;  // codes are bytes u = a + 128 (padding: any); start and affine say nothing
  int8_t* codes;
  DynamicGroup* groups;
};

/// y[m, n] = act(T + bias[n]) from d[m, n], where a group is a whole row of the symmetric kind. One group a row.
struct DynamicFinishArgs {
  const int32_t* d;
  int64_t d_stride;  // in elements
  int64_t rows;
  int64_t count;
  const DynamicGroup* groups;  // a scale that is NaN makes the row NaN
  const float* scales;         // these, and rows of d, can be read up to a multiple of 16
  const float* sums;           // float(V); null: of symmetric activations
  const float* bias;
  float lo;
  float hi;
  float* y;
  int64_t y_stride;  // in elements
};

struct DynamicKernels {
  void (*product)(const DynamicProductArgs& args);
  /// False where section 11 refuses the row: x has a NaN or an infinity, or a group has D = inf. Everything is written
  /// then, too, but says nothing.
  bool (*quantize)(const DynamicQuantizeArgs& args);
  void (*finish)(const DynamicFinishArgs& args);
  /// The product of tiled rows; null where there is none. The memory of x has a multiple of 16 rows. For groups of a
  /// multiple of 64, at most kDynamicTiledGroup, and v that fit int8.
  void (*tiled)(const DynamicProductArgs& args) = nullptr;
};

#define ISOBIT_DYNAMIC_KERNELS(path, name) DynamicKernels name();
#include "linear/dynamic_kernels.inc"
#undef ISOBIT_DYNAMIC_KERNELS

}  // namespace isobit

#endif  // ISOBIT_LINEAR_DYNAMIC_KERNELS_H_
