// SPDX-License-Identifier: Apache-2.0
// Weights of a convolution as those of a linear layer whose rows are pixels behind each other.
#ifndef ISOBIT_CONV_PIXEL_WEIGHTS_H_
#define ISOBIT_CONV_PIXEL_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "isobit/conv.h"
#include "isobit/low_bit.h"

namespace isobit {

/// Channels of a pixel, C / groups of them, as a row of the linear layer has them.
struct PixelBlocks {
  int64_t channels = 0;  // C / groups
  int64_t padded = 0;    // with those that fill up the last block, whose weights are zero
  int64_t block = 0;     // channels of a block, whose codes have a scale of their own; the last may have fewer

  [[nodiscard]] constexpr int64_t count() const { return (padded + block - 1) / block; }
  [[nodiscard]] bool filled() const { return padded != channels; }
  [[nodiscard]] int64_t last() const { return padded - block; }  // the first channel of the last block, where filled
};

struct PixelWeights {
  PixelBlocks blocks{};
  std::vector<LowBitMatrix> groups{};  // of channels: [O / groups, R * S * blocks.padded]
};

/// Weights as ConvLayer::create takes them. one_group: groups that all (r, s) share stay one, as x has no codes of its
/// own for each pixel. Errors: those of ConvLayer::create for weights.
Result<PixelWeights> pixel_weights(const ConvShape& shape, const LowBitMatrix& weights, bool one_group, bool asymmetric,
                                   const std::string& name);

}  // namespace isobit

#endif  // ISOBIT_CONV_PIXEL_WEIGHTS_H_
