// SPDX-License-Identifier: Apache-2.0
// What there is to say of kernels that were timed.
#ifndef ISOBIT_BENCH_REPORT_H_
#define ISOBIT_BENCH_REPORT_H_

#include <string>

#include "isobit/report.h"
#include "isobit/text.h"

namespace isobit::bench {

struct TimesReport : Description {
  std::string failure{};  // a line for each choice that is none to make

  void add_failure(const std::string& line) { failure += (failure.empty() || line.empty() ? "" : "\n") + line; }
};

constexpr double kSlowestChoice = 1.25;  // of the fastest kernel's time

/// That a kernel which is chosen takes `ratio` times as long as the fastest; empty where it may.
inline std::string slow_choice(const std::string& name, double ratio, const std::string& fastest) {
  if (ratio <= kSlowestChoice) return {};
  return format("%s is chosen and takes %.3f times as long as %s", name.c_str(), ratio, fastest.c_str());
}

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_REPORT_H_
