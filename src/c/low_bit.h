// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_C_LOW_BIT_H_
#define ISOBIT_C_LOW_BIT_H_

#include "isobit/low_bit.h"

struct isobit_low_bit {
  isobit::LowBitMatrix matrix;
};

#endif  // ISOBIT_C_LOW_BIT_H_
