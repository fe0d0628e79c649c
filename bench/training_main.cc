// SPDX-License-Identifier: Apache-2.0
// Times the float32 forward and backward of a GRU of one layer, on one thread. One JSON object a line: for each line of
// standard input one measurement, so that rivals can be timed in turn.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/ceilings.h"
#include "bench/median.h"
#include "bench/random.h"
#include "isobit/gru_training.h"

namespace {

using Floats = std::vector<float>;

void required(const isobit::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}
template <typename T>
T required(isobit::Result<T> result) {
  required(result.status());
  return std::move(*result);
}

Floats random_floats(isobit::bench::Random& random, int64_t count, float scale) {
  Floats values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(random.between(-1 << 20, 1 << 20)) * 0x1p-20f * scale;
  return values;
}

/// Median seconds of a run, of as many as take min_time.
template <typename Run>
double measure(double min_time, const Run& run) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::vector<double> seconds;
  for (const Clock::time_point start = Clock::now(); seconds.empty() || since(start) < min_time;) {
    const Clock::time_point before = Clock::now();
    run();
    seconds.push_back(since(before));
  }
  return isobit::bench::median(std::move(seconds));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Times the forward and backward of a GRU in floats on one thread; a measurement for each line of input."};
  isobit::GruTrainingSizes sizes;
  double min_time = 0.2;
  app.add_option("--steps", sizes.steps, "T")->required();
  app.add_option("--batch", sizes.batch, "N")->required();
  app.add_option("--inputs", sizes.input_size, "C")->required();
  app.add_option("--hidden", sizes.hidden_size, "H")->required();
  app.add_option("--min-time", min_time, "seconds of a measurement");
  CLI11_PARSE(app, argc, argv);

  const auto gru = required(isobit::GruTraining::create(sizes, "gru"));
  const int64_t rows = sizes.steps * sizes.batch, C = sizes.input_size, H = sizes.hidden_size;
  isobit::bench::Random random(1);
  const Floats W = random_floats(random, 3 * H * C, 0.1f), R = random_floats(random, 3 * H * H, 0.1f);
  const Floats bias = random_floats(random, 3 * H, 0.1f), x = random_floats(random, rows * C, 1.0f);
  const Floats dy = random_floats(random, rows * H, 1.0f);
  Floats y(dy.size()), dx(x.size()), saved(static_cast<size_t>(gru.saved_size()));
  Floats dW(W.size()), dR(R.size()), dbw(bias.size()), dbr(bias.size());
  const isobit::GruTrainingWeights weights[] = {{W, R, bias, bias}};
  const isobit::GruTrainingGradients gradients[] = {{dW, dR, dbw, dbr}};
  isobit::Workspace workspace = gru.workspace();
  const auto run = [&] {
    required(gru.forward(weights, x, y, saved, workspace));
    required(gru.backward(weights, x, y, saved, dy, dx, gradients, workspace));
  };
  const isobit::CpuPath path = required(isobit::default_cpu_path());
  // A product forward, and two backward: gradients of what it reads, and of weights.
  const double operations = 3.0 * 2 * static_cast<double>(rows) * static_cast<double>(3 * H * (C + H));
  const isobit::ceilings::Product* const peak = isobit::ceilings::product_of(path, false);
  run();
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json result{
        {"us", 1e6 * measure(min_time, run)}, {"path", isobit::to_string(path)}, {"operations", operations}};
    if (peak != nullptr) {
      result["peak"] = peak->name;
      result["peak_operations_per_second"] =
          static_cast<double>(peak->operations) / measure(min_time / 4, [&] { peak->run(); });
    }
    std::cout << result.dump() << std::endl;
  }
  return 0;
}
