// SPDX-License-Identifier: Apache-2.0
// What bounds low-bit linear layers on a device (linear_limits.h). Prints one JSON document.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "bench/linear_limits.h"

namespace {

constexpr unsigned kMostSeconds = 120;

/// With the process ends whatever still runs on the device.
extern "C" void give_up(int) {
  constexpr char kMessage[] = "a measurement did not end within two minutes\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  namespace limits = isobit::limits;
  CLI::App app("Measures what bounds low-bit linear layers on the current CUDA device, which must be an sm_90a.");
  std::string commit;
  app.add_option("--commit", commit, "of this program; the document names it")->required();
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGALRM, give_up);
  limits::require(limits::device().major == 9, "the device is not an sm_90a");
  int cuda = 0;
  limits::check_cuda(cudaRuntimeGetVersion(&cuda), "version");
  const limits::Line head = {
      {"device", limits::device().name},
      {"commit", commit},
      {"versions", {{"cuda", std::to_string(cuda / 1000) + "." + std::to_string(cuda / 10 % 100)}}}};
  const std::string open = head.dump();
  std::printf("%s,\"cases\":[", open.substr(0, open.size() - 1).c_str());
  for (void (*measure)() : {limits::equal, limits::promote, limits::issue, limits::decode, limits::twin}) {
    alarm(kMostSeconds);
    measure();
  }
  std::printf("\n]}\n");
  if (limits::wrong == 0) return 0;
  std::fprintf(stderr, "%d measurements have wrong results\n", limits::wrong);
  return 1;
}
