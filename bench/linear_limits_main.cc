// SPDX-License-Identifier: Apache-2.0
// What bounds low-bit linear layers on a device (linear_limits.h). One JSON object a line.
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "bench/linear_limits.h"

namespace {

constexpr unsigned kMostSeconds = 120;

/// With the process ends whatever still runs on the device.
extern "C" void give_up(int) {
  constexpr char kMessage[] = "the measurement did not end within two minutes\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  namespace limits = isobit::limits;
  CLI::App app("Measures what bounds low-bit linear layers on the current CUDA device, which must be an sm_90a.");
  app.require_subcommand(1);
  int tiles = 528;
  CLI::App* const equal = app.add_subcommand("equal", "are results of matrix instructions the same bits?");
  equal->add_option("--tiles", tiles, "of 16384 results, for each input, depth and start")->check(CLI::Range(1, 65536));
  CLI::App* const promote = app.add_subcommand("promote", "the main loop for many rows, without memory");
  CLI::App* const decode = app.add_subcommand("decode", "the main loop for few rows, without memory");
  CLI::App* const twin = app.add_subcommand("twin", "reading the bytes of a layer");
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGALRM, give_up);
  alarm(kMostSeconds);
  limits::require(limits::device().major == 9, "the device is not an sm_90a");
  if (equal->parsed()) limits::equal(tiles);
  if (promote->parsed()) limits::promote();
  if (decode->parsed()) limits::decode();
  if (twin->parsed()) limits::twin();
  if (limits::wrong == 0) return 0;
  std::fprintf(stderr, "%d measurements have wrong results\n", limits::wrong);
  return 1;
}
