// SPDX-License-Identifier: Apache-2.0
// Memory for tests that a kernel may not leave.
#ifndef ISOBIT_TESTING_GUARDED_BYTES_H_
#define ISOBIT_TESTING_GUARDED_BYTES_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace isobit::testing {

/// Its last byte is followed by a page that cannot be touched, and its first is preceded by one.
class GuardedBytes {
 public:
  explicit GuardedBytes(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t body = (bytes + page - 1) / page * page;
    mapped_bytes_ = static_cast<size_t>(body + 2 * page);
    base_ =
        static_cast<uint8_t*>(mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(static_cast<void*>(base_), MAP_FAILED);
    EXPECT_EQ(mprotect(base_, static_cast<size_t>(page), PROT_NONE), 0);
    EXPECT_EQ(mprotect(base_ + page + body, static_cast<size_t>(page), PROT_NONE), 0);
    data_ = base_ + page + body - bytes;
  }
  ~GuardedBytes() { munmap(base_, mapped_bytes_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  [[nodiscard]] uint8_t* data() const { return data_; }

 private:
  uint8_t* base_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_GUARDED_BYTES_H_
