// SPDX-License-Identifier: Apache-2.0
// FP16 tables, timed beside memcpy of the same elements, in turn.
#ifndef ISOBIT_BENCH_TABLE_H_
#define ISOBIT_BENCH_TABLE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "isobit/dtype.h"
#include "isobit/fp16_function.h"
#include "isobit/fp16_table.h"
#include "isobit/report.h"
#include "isobit/status.h"

namespace isobit::bench {

struct TableTimes {
  double table_ns = 0, memcpy_ns = 0;  // an element, medians
};
/// For `min_time` seconds at least. kFailedPrecondition where the kernel gives other bytes than the reference.
Result<TableTimes> time_table(const Fp16Function& function, Dtype x_dtype, Dtype y_dtype, const std::string& kernel,
                              int64_t element_count, double min_time);

struct TableBenchOptions {
  std::vector<Fp16Table> tables;
  std::vector<std::string> dtypes;         // of x and y, "f16", or a pair, "f32:f16"
  std::vector<std::string> kernels;        // nothing: the default
  bool all_kernels = false;                // besides them every one that can run here
  int64_t elements = 16384;                // a call
  double min_time = 0.5;                   // seconds a case, at least
  std::function<void(double)> progress{};  // 0..1
};
/// A line for each table, types and kernel, and the same in JSON. Errors name the options of `isobit bench table`.
Result<Description> bench_table(const TableBenchOptions& options);

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_TABLE_H_
