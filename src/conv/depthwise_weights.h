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
  bool by_columns = false;  // args.step must not be 0
  std::vector<int8_t> packed;
  std::vector<int32_t> start;
  std::vector<float> ratio;  // empty: no codes
};
/// weights: [channels][rows][columns]. path: one that can run here. step: of outputs, 0 where columns of the kernel do
/// not lie side by side. start: empty, or of all channels; ratio: empty, or of the codes.
DepthwiseWeights pack_depthwise(const int8_t* weights, int64_t channels, int64_t rows, int64_t columns, int64_t step,
                                CpuPath path, const std::vector<int32_t>& start, const std::vector<float>& ratio);
/// Outputs of so few channels that fill a vector.
int64_t depthwise_outputs_together(int64_t channels, CpuPath path);

}  // namespace isobit

#endif  // ISOBIT_CONV_DEPTHWISE_WEIGHTS_H_
