// SPDX-License-Identifier: Apache-2.0
// Arrays for benchmarks, at a cache line.
#ifndef ISOBIT_TESTING_ALIGNED_H_
#define ISOBIT_TESTING_ALIGNED_H_

#include <cstdint>
#include <cstring>

#include "core/aligned_memory.h"

namespace isobit::testing {

/// `count` zeros.
template <typename T>
struct Aligned {
  explicit Aligned(int64_t count)
      : memory(aligned_memory<T>(count * static_cast<int64_t>(sizeof(T)))), data(memory.get()) {
    std::memset(static_cast<void*>(data), 0, static_cast<size_t>(count) * sizeof(T));
  }
  std::shared_ptr<T> memory;
  T* data;
};

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_ALIGNED_H_
