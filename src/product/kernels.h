// SPDX-License-Identifier: Apache-2.0
// What a kernel takes, and the declarations of all kernels. Included by the files of each instruction set, so it
// holds plain structs only.
#ifndef ISOBIT_PRODUCT_KERNELS_H_
#define ISOBIT_PRODUCT_KERNELS_H_

#include <cstdint>

#include "product/codes.h"

namespace isobit {

/// Twelve accumulator chains keep two dot-product units with a latency of five cycles busy in a matrix-vector
/// product without unrolling k, and 3 * hidden_size is often a multiple of 12 * 16.
inline constexpr int kMaxBlockTiles = 12;
inline constexpr int kTileRows = 16;
/// Of a tile of activations.
inline constexpr int64_t kTileColumns = 64;
inline constexpr int64_t kTileBytes = kTileRows * kTileColumns;

/// Sums of rows m .. m + rows - 1 and columns n .. n + columns - 1.
struct LinearSums {
  const void* acc;  // int32_t, or int64_t when wide; `columns` rounded up to 16 can be read
  int64_t stride;   // in elements
  int64_t m;
  int64_t rows;
  int64_t n;
  int64_t columns;
};

/// Takes sums while they are in the cache.
struct LinearThen {
  void (*call)(const void* context, const LinearSums& sums) = nullptr;
  const void* context = nullptr;
};

/// One product of all activation planes with one weight plane: acc = start + 2^shift * product.
struct LinearArgs {
  const int8_t* weights;  // wide_blocks blocks of wide_tiles tiles, then narrow_blocks of narrow_tiles
  int64_t quads;          // k / 4, rounded up
  int32_t wide_blocks;
  int32_t narrow_blocks;
  int32_t wide_tiles;
  int32_t narrow_tiles;
  int32_t activation_planes;  // 1 or 2
  const uint8_t* activations;
  int64_t row_stride_bytes;
  // Rows in pieces: row m has quads i * piece_quads and up at activations + row_at[m] + piece_at[i]. Without them a row
  // is one piece, and rows are row_stride_bytes apart.
  const int64_t* row_at;
  const int64_t* piece_at;
  int64_t pieces;
  int64_t piece_quads;
  int64_t plane_stride_bytes;
  int64_t m;
  const void* start;     // int32_t, or int64_t when wide
  int64_t start_stride;  // in elements; 0: one row for all m. start may be acc itself.
  void* acc;             // as start
  int64_t acc_stride;    // in elements
  int32_t shift;
  bool wide;
  bool cold;   // the weights may come from memory: they are fetched ahead of their use
  bool tiled;  // activations are tiles, see ActivationRows; of kernels for which takes_tiles() is true
  // Of tiled activations: takes the sums, and acc is not written.
  LinearThen then;
  // Not null: codes in place of acc, of kernels for which gives_codes() is true, one plane of activations and of
  // weights, and sums of int32. Column 0 is the first of all blocks.
  const SumCodes* codes;
};

using LinearKernel = void (*)(const LinearArgs& args);

#define ISOBIT_LINEAR_KERNEL(name, path) void name(const LinearArgs& args);
#include "product/kernels.inc"
#undef ISOBIT_LINEAR_KERNEL

}  // namespace isobit

#endif  // ISOBIT_PRODUCT_KERNELS_H_
