// SPDX-License-Identifier: Apache-2.0
// Memory for tests that a kernel may not leave.
#ifndef ISOBIT_TESTING_GUARDED_BYTES_H_
#define ISOBIT_TESTING_GUARDED_BYTES_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace isobit::testing {

/// Memory between two pages that cannot be touched, at the end or at the start of what lies between. All of it is
/// filled with a canary.
class GuardedBytes {
 public:
  explicit GuardedBytes(int64_t bytes, bool at_end = true) : bytes_(bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    body_bytes_ = (bytes + page) / page * page;
    mapped_bytes_ = static_cast<size_t>(body_bytes_ + 2 * page);
    base_ =
        static_cast<uint8_t*>(mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(static_cast<void*>(base_), MAP_FAILED);
    EXPECT_EQ(mprotect(base_, static_cast<size_t>(page), PROT_NONE), 0);
    EXPECT_EQ(mprotect(base_ + page + body_bytes_, static_cast<size_t>(page), PROT_NONE), 0);
    body_ = base_ + page;
    std::fill_n(body_, body_bytes_, kCanary);
    data_ = at_end ? body_ + body_bytes_ - bytes : body_;
  }
  ~GuardedBytes() { munmap(base_, mapped_bytes_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  [[nodiscard]] uint8_t* data() const { return data_; }
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {reinterpret_cast<std::byte*>(data_), static_cast<size_t>(bytes_)};
  }
  [[nodiscard]] bool untouched_around() const {
    const auto is_canary = [](uint8_t byte) { return byte == kCanary; };
    return std::all_of(body_, data_, is_canary) && std::all_of(data_ + bytes_, body_ + body_bytes_, is_canary);
  }

 private:
  static constexpr uint8_t kCanary = 0xa5;
  int64_t bytes_ = 0;
  int64_t body_bytes_ = 0;
  size_t mapped_bytes_ = 0;
  uint8_t* base_ = nullptr;
  uint8_t* body_ = nullptr;
  uint8_t* data_ = nullptr;
};

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_GUARDED_BYTES_H_
