// SPDX-License-Identifier: Apache-2.0
// A seeded generator whose numbers are the same everywhere (SplitMix64, Steele, Lea and Flood 2014): the standard
// library's distributions differ between implementations, and the fingerprint must not.
#ifndef ISOBIT_CORE_RANDOM_H_
#define ISOBIT_CORE_RANDOM_H_

#include <cstdint>

namespace isobit {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  /// A number in [low, high], nearly uniform.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % (static_cast<uint64_t>(high - low) + 1));
  }
  bool one_in(int64_t n) { return between(1, n) == 1; }

 private:
  uint64_t state_;
};

}  // namespace isobit

#endif  // ISOBIT_CORE_RANDOM_H_
