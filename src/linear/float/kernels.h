// SPDX-License-Identifier: Apache-2.0
// What a kernel of linear layers with float activations takes, and the declarations of all of them. Included by the
// files of each instruction set, so it holds plain structs only. Callers include float.h.
#ifndef ISOBIT_LINEAR_FLOAT_KERNELS_H_
#define ISOBIT_LINEAR_FLOAT_KERNELS_H_

#include <cstdint>

#include "isobit/dtype.h"

namespace isobit {

/// Outputs in a tile; a lane of a vector is one output.
inline constexpr int kFloatTile = 16;
/// Tiles of a wide block, which share what is broadcast of x. The up to three tiles left at the end are narrow blocks.
inline constexpr int kFloatWideTiles = 4;
/// Groups are cut into chunks of so many elements, so that the decoded weights of a wide block and a chunk (32 KB) stay
/// in the first-level cache.
inline constexpr int kFloatChunk = 128;
/// Rows of x that are taken together: decoding is paid once for all of them, and what they need beside the weights
/// stays in half a second-level cache.
inline constexpr int kFloatRows = 140;
/// Wide blocks whose sums over a part of k are collected before the next part of x is read.
inline constexpr int kFloatBlocks = 4;
/// Elements of k in such a part: kFloatRows rows of it stay in the second-level cache.
inline constexpr int kFloatPart = 512;

struct FloatLinearArgs {
  // Of the first block. A block is [word of k][output]: 32 bits of consecutive codes of one output, low bits first; the
  // codes of a group begin a word, and the last word of a group is filled with zeros.
  const uint32_t* codes;
  const void* scales;           // S: [block][group][output of the block], of scale_dtype
  const void* offsets;          // O likewise, or null
  const uint16_t* zero_points;  // z as float16 likewise, or null
  float values[4][16];          // [i]: v of the code of 1, 2 or 4 bits that is at bit i * bits of an index
  float zero;                   // v = code - zero: the same for 8 bits, where 1-bit symmetric does not occur
  Dtype scale_dtype;
  int32_t bits;
  int64_t k;
  int64_t group;
  int64_t groups;
  int64_t group_words;  // of a group that is not the last
  int64_t words;        // of a row
  int64_t chunks;       // of a row
  int32_t wide_blocks;
  int32_t narrow_blocks;
  int64_t n;  // outputs of these blocks that exist: 1..16 * tiles

  const void* x;     // [m, k]
  void* y;           // [m, n], both of dtype
  Dtype dtype;       // f32, f16 or bf16
  int64_t x_stride;  // in elements
  int64_t y_stride;
  int64_t m;
  const float* bias;  // [n], or null
  float low;          // clamp; -inf and inf: none
  float high;
  float* workspace;  // float_linear_workspace_bytes, 64-byte aligned: rows of x, their sums, totals, a panel
};

using FloatLinearKernel = void (*)(const FloatLinearArgs& args);

#define ISOBIT_FLOAT_KERNEL(name, path) void name(const FloatLinearArgs& args);
#include "linear/float/kernels.inc"
#undef ISOBIT_FLOAT_KERNEL

}  // namespace isobit

#endif  // ISOBIT_LINEAR_FLOAT_KERNELS_H_
