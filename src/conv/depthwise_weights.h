// SPDX-License-Identifier: Apache-2.0
// Packs weights for depthwise.h and chooses its kernel.
#ifndef ISOBIT_CONV_DEPTHWISE_WEIGHTS_H_
#define ISOBIT_CONV_DEPTHWISE_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "conv/depthwise.h"
#include "isobit/cpu.h"

namespace isobit {

struct DepthwiseWeights {
  DepthwiseKernel kernel = nullptr;
  int64_t step = 0;   // args.step: not 0 where outputs are taken column by column, which lie in one row
  int64_t apart = 1;  // of those that are taken together: every so many of the row
  std::vector<int8_t> packed;
  std::vector<int32_t> start;
  std::vector<float> ratio;  // empty: no codes

  /// args.weights, args.step and the ratio of args.codes are those of this.
  void run(DepthwiseArgs args) const;
};
/// weights: [channels][rows][columns]. path: one that can run here. stride: pixels from an output of a row to the next;
/// dilation: from a kernel element to the next, not positive where by columns is not possible. start: empty, or of all
/// channels; ratio: empty, or of the codes.
DepthwiseWeights pack_depthwise(const int8_t* weights, int64_t channels, int64_t rows, int64_t columns, int64_t stride,
                                int64_t dilation, CpuPath path, const std::vector<int32_t>& start,
                                const std::vector<float>& ratio);
/// Outputs of so few channels that fill a vector.
int64_t depthwise_outputs_together(int64_t channels, CpuPath path);

}  // namespace isobit

#endif  // ISOBIT_CONV_DEPTHWISE_WEIGHTS_H_
