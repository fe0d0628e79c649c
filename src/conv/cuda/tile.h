// SPDX-License-Identifier: Apache-2.0
// Convolutions of 8-bit codes by matrix instructions: tiles of outputs, whose rows of x are copied from images as they
// are needed; and depthwise ones.
#ifndef ISOBIT_CONV_CUDA_TILE_H_
#define ISOBIT_CONV_CUDA_TILE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conv/cuda/kernels.h"
#include "isobit/dtype.h"
#include "isobit/status.h"

namespace isobit::cuda {

inline constexpr int kPieceCodes = 16;    // of a copy: C / groups, and what lies between pixels, are multiples
inline constexpr int kTileDepth = 128;    // padded_depth is a multiple
inline constexpr int kTileOutputs = 128;  // padded_outputs is a multiple

/// Sums are of the codes of x themselves: channels start from bias - zero point * sum of v.
struct ConvTile {
  ConvSource source;
  const int8_t* weights;           // [groups, padded_outputs, padded_depth]
  int32_t groups, outputs, depth;  // outputs and depth: of a group
  int32_t padded_outputs, padded_depth;
  StaticEpilogue epilogue;  // channels of all groups
  ConvResidual residual;
  void* y;
  int64_t y_stride;
};
Status run_tile(const ConvTile& conv, Dtype x_dtype, int processors, cudaStream_t stream);

/// What outputs read, behind each other, filled up to depth, which is a multiple of kPieceCodes.
struct ConvRows {
  ConvSource source;
  int32_t depth;
  uint8_t* rows;  // [m, depth]
};
Status copy_rows(const ConvRows& rows, cudaStream_t stream);

/// Whether run_depthwise() has a kernel for it: kernels of 3 x 3 and 5 x 5, strides of 1 and 2, one output a channel.
bool has_depthwise(const ConvSource& source);
/// weights: [R * S, O]; the rest of `conv` as of run_tile. O, x_stride and x are multiples of 4.
Status run_depthwise(const ConvTile& conv, Dtype x_dtype, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_CONV_CUDA_TILE_H_
