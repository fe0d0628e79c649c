// SPDX-License-Identifier: Apache-2.0
// Convolutions by matrix instructions: tiles of outputs, whose rows of x are copied from images as they are needed; and
// depthwise ones of 8-bit codes.
#ifndef ISOBIT_CONV_CUDA_TILE_H_
#define ISOBIT_CONV_CUDA_TILE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "conv/cuda/choice.h"
#include "conv/cuda/kernels.h"
#include "isobit/dtype.h"
#include "isobit/status.h"
#include "linear/cuda/product.h"

namespace isobit::cuda {

/// What is multiplied: codes of x by codes of weights, or floats by floats of the same type, which are v. kScaled: the
/// sums of each block of channels of a pixel are scaled (numerics.md, sections 10 and 11).
enum class TileType { kS8, kU8, kF16, kBF16, kScaledS8, kScaledF16, kScaledBF16 };
inline constexpr int kTileTypes = 7;
constexpr bool is_scaled(TileType type) { return type >= TileType::kScaledS8; }
constexpr bool gives_floats(TileType type) { return type != TileType::kS8 && type != TileType::kU8; }

// Codes of 8 bits; of other types, bytes.
inline constexpr int kPieceCodes = 16;    // of a copy: C / groups, and what lies between pixels, are multiples
inline constexpr int kTileDepth = 128;    // padded_depth is a multiple
inline constexpr int kTileOutputs = 128;  // padded_outputs is a multiple
inline constexpr int kScaledDepth = 64;

/// Blocks of channels behind each other, each of so many bytes: a multiple of kScaledDepth.
struct TileScales {
  int32_t block_bytes, blocks;  // blocks: of a pixel, of all groups
  const float* x;               // of codes: Sa, [pixels, blocks]
  const float* weights;         // S, [groups, R * S * blocks / groups, padded_outputs]
};

/// Of codes, sums are of those of x themselves: channels start from bias - zero point * sum of v. Of floats, what
/// counts codes of x and weights counts bytes, and pixels outside x are 0.
struct ConvTile {
  ConvSource source;
  const int8_t* weights;           // [groups, padded_outputs, padded_depth]
  int32_t groups, outputs, depth;  // outputs and depth: of a group
  int32_t padded_outputs, padded_depth;
  StaticEpilogue epilogue;  // channels of all groups
  ConvResidual residual;
  void* y;
  int64_t y_stride;
  const float2* float_channels;  // where y are floats, in place of epilogue, residual and y: factor of the sum, bias
  ProductArgs result;            // y, y_stride, y_type, lo, hi
  TileScales scales;             // where sums of blocks are scaled
};
/// size: a tile of kS8 or kU8; else the one that takes the least time.
Status run_tile(const ConvTile& conv, TileType type, int processors, cudaStream_t stream,
                std::optional<ConvKernel> size = {});

/// What outputs read, behind each other, filled up to depth, which is a multiple of kPieceCodes.
struct CodeRows {
  ConvSource source;
  int32_t depth;
  uint8_t* rows;  // [m, depth]
};
Status copy_rows(const CodeRows& rows, cudaStream_t stream);

/// Whether run_depthwise() has a kernel for it: kernels of 3 x 3 and 5 x 5, depthwise_step() of 1 and 2, one output a
/// channel.
bool has_depthwise(const ConvSource& source);
/// weights: [R * S, O]; the rest of `conv` as of run_tile. O, x_stride and x are multiples of 4.
Status run_depthwise(const ConvTile& conv, Dtype x_dtype, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_CONV_CUDA_TILE_H_
