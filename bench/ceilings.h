// SPDX-License-Identifier: Apache-2.0
// What one core of this machine can do at best, for the limits beside the figures of benchmarks: reading, and the
// instructions that kernels multiply with. Nothing is timed here: callers time these in turn with what they measure.
#ifndef ISOBIT_BENCH_CEILINGS_H_
#define ISOBIT_BENCH_CEILINGS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "isobit/cpu.h"

namespace isobit::ceilings {

/// Memory to read: at least so many bytes, a multiple of 256, all of them written once.
class Memory {
 public:
  explicit Memory(int64_t bytes);
  [[nodiscard]] int64_t size_bytes() const { return bytes_; }
  /// Reads `bytes` (at least 256; rounded down to a multiple) with the widest loads that run here, from where the last
  /// call ended, and goes on at the start after the last byte. Returns a value that depends on every byte.
  uint64_t read(int64_t bytes);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  int64_t bytes_;
  int64_t at_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

/// Multiply-adds in independent chains on registers, no memory.
struct Product {
  std::string_view name;   // the instruction
  CpuPath path;            // whose kernels have nothing better
  bool integers;           // 8-bit operands; else float32
  int64_t operations = 0;  // of one run, multiply-adds times two: some microseconds
  void (*run)() = nullptr;
};
/// Of this processor family, also those that cannot run here (cpu_can_run says); the best ones last.
std::span<const Product> products();
/// What bounds the kernels of a path; null: not known.
const Product* product_of(CpuPath path, bool integers);

}  // namespace isobit::ceilings

#endif  // ISOBIT_BENCH_CEILINGS_H_
