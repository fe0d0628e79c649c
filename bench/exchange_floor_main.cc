// SPDX-License-Identifier: Apache-2.0
// Times of nothing but the exchange in the persistent GRU kernels (exchange_floor.h), for bench/gru_cuda.py. One JSON
// object a line.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/exchange_floor.h"
#include "testing/cuda_timer.h"

namespace {

/// Of a size and a batch, which take well under a second; the first one starts the device as well.
constexpr unsigned kMostSeconds = 60;

/// With the process ends whatever still waits on the device.
extern "C" void give_up(int) {
  constexpr char kMessage[] = "the exchange did not end within a minute\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times what blocks of the persistent GRU kernels exchange in a step, on the current CUDA device.");
  std::vector<int32_t> hidden, batch;
  int32_t steps = 256;
  int repeats = 11;
  app.add_option("--hidden", hidden, "hidden units")->delimiter(',')->check(CLI::PositiveNumber)->required();
  app.add_option("--batch", batch, "sequences")->delimiter(',')->check(CLI::Range(1, 65536))->required();
  app.add_option("--steps", steps, "of a launch")->check(CLI::Range(1, 65536));
  app.add_option("--repeats", repeats, "replays; the figure is their median")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGALRM, give_up);
  cudaDeviceProp properties{};
  isobit::testing::check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  for (const int32_t size : hidden)
    for (const int32_t sequences : batch) {
      alarm(kMostSeconds);
      for (const isobit::exchange::Time& time : isobit::exchange::times(size, sequences, steps, repeats)) {
        const nlohmann::ordered_json line = {{"device", properties.name},
                                             {"H", size},
                                             {"N", sequences},
                                             {"T", steps},
                                             {"way", time.way},
                                             {"blocks", time.blocks},
                                             {"cluster", time.cluster},
                                             {"teams", time.teams},
                                             {"turns", time.turns},
                                             {"us_per_step", time.us_per_step}};
        std::printf("%s\n", line.dump().c_str());
      }
      std::fflush(stdout);
    }
  return 0;
}
