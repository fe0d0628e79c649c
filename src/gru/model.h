// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_GRU_MODEL_H_
#define ISOBIT_GRU_MODEL_H_

#include <array>
#include <iterator>
#include <vector>

#include "gru/cpu/layer.h"
#include "isobit/gru.h"

namespace isobit {

struct GruModel::Impl {
  GruModelParameters parameters;  // its layers' matrices live in `layers`
  std::vector<GruLayer> layers;
  Result<CpuPath> default_path = CpuPath::kScalar;
  std::array<bool, std::size(kAllCpuPaths)> runs{};  // supports(path).ok(), asked in every call
};

}  // namespace isobit

#endif  // ISOBIT_GRU_MODEL_H_
