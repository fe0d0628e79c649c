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
  std::vector<int8_t> packed;
};
/// weights: [channels][taps]. path: one that can run here.
DepthwiseWeights pack_depthwise(const int8_t* weights, int64_t channels, int64_t taps, CpuPath path);

}  // namespace isobit

#endif  // ISOBIT_CONV_DEPTHWISE_WEIGHTS_H_
