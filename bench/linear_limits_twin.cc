// SPDX-License-Identifier: Apache-2.0
#include "bench/linear_limits.h"

namespace isobit::limits {
namespace {

struct Layer {
  int k, n, bits;
  /// With a float32 scale for 128 weights.
  [[nodiscard]] int64_t bytes() const { return int64_t{n} * k / 8 * bits + int64_t{n} * (k / 128) * 4; }
};

void twin_of(const Layer& layer) {
  const double us = time_reading(layer.bytes(), false);
  const double programmatic_us = time_reading(layer.bytes(), true);
  int khz = 0;
  check_cuda(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0), "clock rate");
  const double clocks = programmatic_us * khz / 1000 * device().multiProcessorCount;
  print({{"what", "twin"},
         {"K", layer.k},
         {"N", layer.n},
         {"bits", layer.bits},
         {"bytes", layer.bytes()},
         {"us", us},
         {"programmatic_us", programmatic_us},
         {"bytes_per_clock", static_cast<double>(layer.bytes()) / clocks}});
}

}  // namespace

void twin() {
  // A launch that reads next to nothing.
  twin_of({128, 128, 1});
  constexpr int kShapes[][2] = {{4096, 4096}, {4096, 14336}, {8192, 28672}};
  for (const auto& [k, n] : kShapes)
    for (const int bits : {8, 4, 2, 1}) twin_of({k, n, bits});
}

}  // namespace isobit::limits
