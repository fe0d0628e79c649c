// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_C_LOW_BIT_H_
#define ISOBIT_C_LOW_BIT_H_

#include <cstdint>
#include <vector>

#include "isobit/low_bit.h"

struct isobit_low_bit {
  isobit::LowBitMatrix matrix;
  std::vector<int32_t> permutation = {};  // column j belongs to x[permutation[j]]; empty: to x[j]
};

#endif  // ISOBIT_C_LOW_BIT_H_
