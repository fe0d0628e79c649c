// SPDX-License-Identifier: Apache-2.0
// What the persistent kernels rescale a layer's sums by (core/ratio.h).
#ifndef ISOBIT_GRU_CUDA_RATIOS_H_
#define ISOBIT_GRU_CUDA_RATIOS_H_

#include "gru/proof.h"
#include "isobit/gru.h"

namespace isobit::cuda {

/// kShift, kFixed: Fixed, or WideFixed for R h of two planes; kShift: without multipliers, where all ratios of a matrix
/// are powers of two.
enum class RatioType { kFloat, kShift, kFixed, kDouble };

/// Of W x and R h. kDouble of R h: gates in double lanes, too.
struct LayerRatios {
  RatioType x = RatioType::kFloat, h = RatioType::kFloat;
};
LayerRatios choose_ratios(const GruLayerParameters& p, const GruProof& proof);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_RATIOS_H_
