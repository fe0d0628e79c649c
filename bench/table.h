// SPDX-License-Identifier: Apache-2.0
// FP16 tables, timed beside memcpy of the same elements, in turn.
#ifndef ISOBIT_BENCH_TABLE_H_
#define ISOBIT_BENCH_TABLE_H_

#include <cstdint>
#include <string>

#include "isobit/dtype.h"
#include "isobit/fp16_function.h"
#include "isobit/status.h"

namespace isobit::bench {

struct TableTimes {
  double table_ns = 0, memcpy_ns = 0;  // an element, medians
};
/// For `min_time` seconds at least. kFailedPrecondition where the kernel gives other bytes than the reference.
Result<TableTimes> time_table(const Fp16Function& function, Dtype x_dtype, Dtype y_dtype, const std::string& kernel,
                              int64_t element_count, double min_time);

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_TABLE_H_
