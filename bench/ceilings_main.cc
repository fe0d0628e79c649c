// SPDX-License-Identifier: Apache-2.0
// The limits beside the table of bench/gru_rivals.py: bytes read a second from footprints of 16 KiB to 64 MiB, and int8
// operations a second. Prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "bench/ceilings.h"

namespace {

using Clock = std::chrono::steady_clock;

/// The shortest of many runs of `work`, in seconds: other work on the machine only makes a run longer.
template <typename Work>
double shortest(const Work& work) {
  double best = 1e9;
  const auto begin = Clock::now();
  while (Clock::now() - begin < std::chrono::milliseconds(300)) {
    const auto start = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

double read_bytes_per_second(int64_t bytes) {
  isobit::ceilings::Memory memory(bytes);
  const int64_t at_a_time = std::max<int64_t>(bytes, int64_t{1} << 20);
  uint64_t sum = 0;
  const double seconds = shortest([&] { sum ^= memory.read(at_a_time); });
  asm volatile("" : : "r"(sum));
  return static_cast<double>(at_a_time) / seconds;
}

double operations_per_second(const isobit::ceilings::Product& product) {
  constexpr int kRuns = 20;
  const double seconds = shortest([&] {
    for (int i = 0; i < kRuns; ++i) product.run();
  });
  return static_cast<double>(product.operations * kRuns) / seconds;
}

}  // namespace

int main() {
  double best = 0;
  std::string name = "none known for this processor";
  for (const isobit::ceilings::Product& product : isobit::ceilings::products()) {
    // Steps of fewer than 16 sequences do not use tiles.
    if (!product.integers || !isobit::cpu_can_run(product.path) || product.path == isobit::CpuPath::kAmx) continue;
    const double rate = operations_per_second(product);
    if (rate < best) continue;
    best = rate;
    name = product.name;
  }
  std::printf("{\"read_bytes_per_second\": {");
  for (int64_t kib : {16, 32, 192, 384, 768, 1536, 3072, 6144, 16384, 65536})
    std::printf("%s\"%lld KiB\": %.4g", kib == 16 ? "" : ", ", static_cast<long long>(kib),
                read_bytes_per_second(kib << 10));
  std::printf("}, \"int8_operations_per_second\": %.4g, \"product\": \"%s\"}\n", best, name.c_str());
  return 0;
}
