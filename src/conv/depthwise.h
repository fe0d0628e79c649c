// SPDX-License-Identifier: Apache-2.0
// Sums of depthwise convolutions: each channel of an image with a kernel of its own. Included by the files of each
// instruction set, so it holds plain structs only.
//
// Weights are in blocks of 64 or 32 channels (depthwise_width), each [4 kernel elements][4][lane][4 channels][element]:
// vector k of four elements has of lane l channels 16 l + 4 k to 16 l + 4 k + 3, as interleaving bytes of four vectors
// of 16-byte lanes gives them. What fills up kernel elements and channels is 0. `start` and ratios of codes are in that
// order, too: [4][lane][4 channels] of each block. Sums and codes are in the order of channels.
//
// Kernels of 3 x 3 whose outputs lie in one row, one or two columns apart, take the three elements of a column as four
// kernel elements, and each column of an image once for all of its outputs.
//
// Outputs of few channels that lie behind each other, and whose elements do, too, may be given as one of more channels.
#ifndef ISOBIT_CONV_DEPTHWISE_H_
#define ISOBIT_CONV_DEPTHWISE_H_

#include <cstdint>

#include "product/codes.h"

namespace isobit {

inline constexpr int64_t kDepthwiseTaps = 4;       // of an instruction
inline constexpr int64_t kDepthwiseLeast = 32;     // channels of a block
inline constexpr int64_t kDepthwiseChannels = 64;  // what is read and written up to a multiple of
inline constexpr int64_t kDepthwiseSide = 3;       // of kernels that are taken column by column

struct DepthwiseArgs {
  const uint8_t* u;       // one plane of codes, [pixel][channel]
  const int64_t* row_at;  // [m * row_at_step]: where an output's first kernel element is, channel 0
  int64_t row_at_step;
  const int64_t* tap_at;  // [taps]: from there to each kernel element, repeated up to a multiple of 4
  const int8_t* weights;
  const int32_t* start;  // [channels, up to a multiple of kDepthwiseChannels]
  int32_t* acc;          // [m][acc_stride]: start + sum, modulo 2^32
  int64_t acc_stride;    // channels, up to a multiple of kDepthwiseChannels, at least
  int64_t m, taps, channels;
  int64_t step;           // 1 or 2: outputs are so many columns apart, and weights are those of columns; 0: any outputs
  const SumCodes* codes;  // not null: in place of acc, of kernels for vectors. ratio: [channels, as start]
};

using DepthwiseKernel = void (*)(const DepthwiseArgs& args);

#define ISOBIT_DEPTHWISE_KERNEL(name, path, width) void name(const DepthwiseArgs& args);
#include "conv/kernels.inc"
#undef ISOBIT_DEPTHWISE_KERNEL

/// Channels of the block that begins `left` channels before the end, of kernels with vectors of so many bytes.
constexpr int64_t depthwise_width(int64_t most, int64_t left) {
  return left > kDepthwiseLeast ? most : kDepthwiseLeast;
}

}  // namespace isobit

#endif  // ISOBIT_CONV_DEPTHWISE_H_
