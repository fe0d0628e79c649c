// SPDX-License-Identifier: Apache-2.0
// What tests of training on a device share.
#ifndef ISOBIT_GRU_TRAINING_CUDA_DEVICE_TEST_H_
#define ISOBIT_GRU_TRAINING_CUDA_DEVICE_TEST_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "testing/cuda_buffer.h"

namespace isobit::cuda {

/// A copy of an array on the device; `offset`: bytes after a 256-byte boundary.
template <typename T>
struct DeviceCopy {
  testing::GuardedDeviceBuffer buffer;
  size_t count;

  explicit DeviceCopy(const std::vector<T>& values, int64_t offset = 0)
      : buffer(static_cast<int64_t>(values.size() * sizeof(T)), offset), count(values.size()) {
    buffer.write(values);
  }
  [[nodiscard]] std::span<T> span() { return {static_cast<T*>(buffer.data()), count}; }
  [[nodiscard]] std::vector<T> values() const { return buffer.read<T>(); }
};

/// The largest of the tensors' norms of differences, by the norms of what is expected.
inline double largest_difference(const std::vector<std::vector<float>>& actual,
                                 const std::vector<std::vector<float>>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    double difference = 0, norm = 0;
    for (size_t j = 0; j < expected[i].size(); ++j) {
      const double d = double{actual[i][j]} - double{expected[i][j]};
      difference += d * d;
      norm += double{expected[i][j]} * double{expected[i][j]};
    }
    if (difference == 0 && !std::isnan(difference)) continue;
    const double relative = std::sqrt(difference / norm);
    largest = std::isnan(relative) ? INFINITY : std::max(largest, relative);
  }
  return largest;
}

inline bool same_bytes(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].size() != b[i].size() ||
        (!a[i].empty() && std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0))
      return false;
  return true;
}

inline constexpr double kNear = 1e-5;

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_DEVICE_TEST_H_
