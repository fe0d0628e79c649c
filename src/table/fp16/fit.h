// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_TABLE_FP16_FIT_H_
#define ISOBIT_TABLE_FP16_FIT_H_

#include "isobit/fp16_table.h"
#include "table/fp16/exact.h"

namespace isobit {

/// What Fp16Goal::kMeanRelative minimises.
double fp16_mean_relative(const Fp16Table& table, const Fp16Exact& exact);

}  // namespace isobit

#endif  // ISOBIT_TABLE_FP16_FIT_H_
