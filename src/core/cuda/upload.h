// SPDX-License-Identifier: Apache-2.0
// Arrays of a library object in one piece of device memory.
#ifndef ISOBIT_CORE_CUDA_UPLOAD_H_
#define ISOBIT_CORE_CUDA_UPLOAD_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/cuda/buffer.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// Collects arrays on the host; then one copy, after which every pointer is set.
class Upload {
 public:
  template <typename T, typename Pointee>
  void add(std::span<const T> values, const Pointee*& pointer) {
    const size_t at = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    const std::span<const std::byte> source = std::as_bytes(values);
    bytes_.resize(at + source.size());
    std::copy(source.begin(), source.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(at));
    set_.emplace_back([&pointer, at](const std::byte* base) { pointer = reinterpret_cast<const Pointee*>(base + at); });
  }
  /// The references given to add() must still hold.
  Result<std::shared_ptr<const std::byte>> finish() {
    ISOBIT_ASSIGN_OR_RETURN(auto memory, copy_to_device(bytes_));
    for (const auto& set : set_) set(memory.get());
    return memory;
  }

 private:
  static constexpr size_t kAlignment = 256;
  std::vector<std::byte> bytes_;
  std::vector<std::function<void(const std::byte*)>> set_;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_UPLOAD_H_
