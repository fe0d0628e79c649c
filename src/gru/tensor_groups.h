// SPDX-License-Identifier: Apache-2.0
// Internal: sets of the tensors of a GRU, bit t for GruTensor t, and those with a name in the texts of bit widths.
#ifndef ISOBIT_GRU_TENSOR_GROUPS_H_
#define ISOBIT_GRU_TENSOR_GROUPS_H_

#include <cstdint>
#include <string_view>

#include "isobit/gru.h"

namespace isobit {

constexpr uint32_t set_of(int32_t tensor) { return uint32_t{1} << tensor; }
inline constexpr uint32_t kWeightSet = set_of(kW) | set_of(kR);
inline constexpr uint32_t kBiasSet = set_of(kBw) | set_of(kBr);
inline constexpr uint32_t kLinearSet = set_of(kIh) | set_of(kHh);
inline constexpr uint32_t kGateInSet = set_of(kUIn) | set_of(kRIn) | set_of(kNIn);
inline constexpr uint32_t kGateOutSet = set_of(kU) | set_of(kRGate) | set_of(kN);
inline constexpr uint32_t kAllSet = set_of(kGruTensorCount) - 1;

struct TensorGroup {
  std::string_view name;
  uint32_t tensors;
};
inline constexpr TensorGroup kTensorGroups[] = {{"all", kAllSet},        {"weights", kWeightSet},
                                                {"biases", kBiasSet},    {"linear", kLinearSet},
                                                {"gate_in", kGateInSet}, {"gate_out", kGateOutSet}};

}  // namespace isobit

#endif  // ISOBIT_GRU_TENSOR_GROUPS_H_
