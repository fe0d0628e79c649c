// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_CORE_SCRATCH_H_
#define ISOBIT_CORE_SCRATCH_H_

#include <cstddef>
#include <cstdint>

namespace isobit {

/// Hands out 64-byte aligned pieces of one allocation; with a null base it only adds up.
class Scratch {
 public:
  explicit Scratch(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  [[nodiscard]] int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace isobit

#endif  // ISOBIT_CORE_SCRATCH_H_
