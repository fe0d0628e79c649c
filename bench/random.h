// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_BENCH_RANDOM_H_
#define ISOBIT_BENCH_RANDOM_H_

#include <cstdint>
#include <random>
#include <vector>

namespace isobit::bench {

/// The same numbers with every standard library, which std::uniform_real_distribution does not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// [-limit, limit), 24 random bits.
  float uniform(float limit) { return limit * (static_cast<float>(engine_() >> 40) * 0x1p-23f - 1.0f); }
  /// low..high, both included. The span is far below 2^64, so the bias of the remainder does not matter here.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % (static_cast<uint64_t>(high - low) + 1));
  }
  std::vector<float> vector(int64_t size, float limit) {
    std::vector<float> out(static_cast<size_t>(size));
    for (float& value : out) value = uniform(limit);
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_RANDOM_H_
