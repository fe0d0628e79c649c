// SPDX-License-Identifier: Apache-2.0
// The kernels of convolutions of static codes on a device, and what a run of each takes, estimated.
#ifndef ISOBIT_CONV_CUDA_CHOICE_H_
#define ISOBIT_CONV_CUDA_CHOICE_H_

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "isobit/conv.h"

namespace isobit::cuda {

enum class ConvKernel { kTile128x128, kTile128x64, kTile64x64, kTile64x32, kDepthwise, kProduct, kDirect };
inline constexpr int kConvTiles = 4;
inline constexpr std::string_view kConvKernelNames[] = {"tile_128x128", "tile_128x64", "tile_64x64", "tile_64x32",
                                                        "depthwise",    "product",     "direct"};
inline constexpr int kConvKernels = std::size(kConvKernelNames);
constexpr bool is_tile(ConvKernel kernel) { return kernel < ConvKernel::kDepthwise; }
constexpr std::string_view to_string(ConvKernel kernel) { return kConvKernelNames[static_cast<size_t>(kernel)]; }

/// Outputs by channels of a tile; `depth` bytes of x at a time, `stages` of them under way.
struct ConvTileSize {
  int rows, columns, depth, stages;
};
inline constexpr ConvTileSize kConvTileSizes[kConvTiles] = {
    {128, 128, 128, 3}, {128, 64, 64, 4}, {64, 64, 128, 4}, {64, 32, 128, 4}};

/// What a run computes, and on how many processors.
struct ConvWork {
  int64_t rows;             // outputs of all images
  int64_t groups, outputs;  // outputs: channels of y of a group
  int64_t depth;            // bytes of x that an output of a channel reads
  bool copied;              // tiles are of rows that are copied before
  int64_t processors;

  /// x has code_bytes bytes a code.
  static ConvWork of(const ConvShape& shape, int64_t rows, int64_t code_bytes, int64_t processors);
};

inline constexpr int kConvTerms = 6;
/// What the time is a sum of, each times a constant of cost.inc. step: bytes of x that a tile takes at a time.
std::array<double, kConvTerms> conv_terms(ConvKernel kernel, const ConvWork& work, std::optional<int> step = {});
/// On an H100.
double estimated_microseconds(ConvKernel kernel, const ConvWork& work, std::optional<int> step = {});

}  // namespace isobit::cuda

#endif  // ISOBIT_CONV_CUDA_CHOICE_H_
