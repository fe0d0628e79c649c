// SPDX-License-Identifier: Apache-2.0
// The limits of low-bit linear layers on the current CUDA device, which must be an sm_90a: the time of reading weights
// of so many bytes, what the second-level cache gives, and what its tensor cores can do at the highest clock. One JSON
// object a line.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/linear_limits.h"

int main(int argc, char** argv) {
  namespace limits = isobit::limits;
  CLI::App app("Times the reading of weights on the current CUDA device, which must be an sm_90a.");
  std::vector<int64_t> sizes;
  app.add_option("--bytes", sizes, "of the weights of a layer, multiples of 16")->delimiter(',')->required();
  CLI11_PARSE(app, argc, argv);
  const cudaDeviceProp& device = limits::device();
  limits::require(device.major == 9, "the device is not an sm_90a");
  int khz = 0;
  limits::check_cuda(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0), "clock rate");
  // Dense products: operations of a processor in a clock, an addition and a multiplication being two.
  constexpr double kFloat16 = 4096;
  constexpr double kInt8 = 8192;
  const double clocks = 1e3 * khz * device.multiProcessorCount;
  const double cache = limits::cache_bytes_per_us();
  for (const int64_t bytes : sizes) {
    limits::require(bytes > 0 && bytes % 16 == 0, "--bytes must be positive multiples of 16");
    const limits::Line line = {
        {"device", device.name},
        {"bytes", bytes},
        {"us", limits::time_reading(bytes, true)},
        {"cache_bytes_per_us", cache},
        {"peak_operations_per_second", {{"float16", kFloat16 * clocks}, {"int8", kInt8 * clocks}}}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}
