// SPDX-License-Identifier: Apache-2.0
// Memory that kernels read and write: it begins at a cache line.
#ifndef ISOBIT_CORE_ALIGNED_MEMORY_H_
#define ISOBIT_CORE_ALIGNED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace isobit {

inline constexpr std::align_val_t kMemoryAlignment{64};

constexpr int64_t round_up_64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// `bytes` bytes, not initialised; null where there is no memory.
template <typename T>
std::shared_ptr<T> aligned_memory(int64_t bytes) {
  auto* memory = static_cast<T*>(::operator new[](static_cast<size_t>(bytes), kMemoryAlignment, std::nothrow));
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<T>(memory, [](T* p) { ::operator delete[](p, kMemoryAlignment); });
}

}  // namespace isobit

#endif  // ISOBIT_CORE_ALIGNED_MEMORY_H_
