// SPDX-License-Identifier: Apache-2.0
// Facts of models that reports share.
#ifndef ISOBIT_REPORT_MODEL_H_
#define ISOBIT_REPORT_MODEL_H_

#include "isobit/gru.h"

namespace isobit {

/// Bits of the limit that a bound leaves unused.
double spare_bits(const OverflowBound& row);

}  // namespace isobit

#endif  // ISOBIT_REPORT_MODEL_H_
