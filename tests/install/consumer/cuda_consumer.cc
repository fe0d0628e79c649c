// SPDX-License-Identifier: Apache-2.0
// Links isobit::cuda as a stranger would, with a host compiler. Runs with and without a device: what is asked for is
// refused before any device is. Exit status 1 if the refusal is not the expected one.
#include <array>
#include <cstdint>
#include <cstdio>

#include "isobit/cuda/fp16_table.h"
#include "isobit/cuda/table.h"

int main() {
  const std::array<uint16_t, 3> results{};
  const auto function = isobit::cuda::DeviceFp16Function::create(results);
  const auto table = isobit::cuda::DeviceTable::create({});
  if (function.ok() || table.ok()) return 1;
  std::printf("%s\n", function.status().message().c_str());
  return function.status().message() == "results has 3 codes, must have 65536" ? 0 : 1;
}
