// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_BENCH_MEDIAN_H_
#define ISOBIT_BENCH_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace isobit::bench {

/// The greater one of the two in the middle of an even number. There is a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_MEDIAN_H_
