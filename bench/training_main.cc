// SPDX-License-Identifier: Apache-2.0
// Times the forward and backward of a GRU of one layer on one thread: in float32, or of integers that the weights
// become in each step. One JSON object a line: for each line of standard input one measurement, so that rivals can be
// timed in turn.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/ceilings.h"
#include "bench/median.h"
#include "bench/random.h"
#include "isobit/gru.h"
#include "isobit/gru_qat.h"
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

/// Arrays of a call.
struct Call {
  std::span<const isobit::GruTrainingWeights> weights;
  std::span<const isobit::GruTrainingGradients> gradients;
  std::span<const float> x, dy;
  std::span<float> y, dx;
};

std::function<void()> of_floats(const isobit::GruTrainingSizes& sizes, const Call& call) {
  const auto gru = required(isobit::GruTraining::create(sizes, "gru"));
  const auto workspace = std::make_shared<isobit::Workspace>(gru.workspace());
  return [gru, call, workspace, saved = Floats(static_cast<size_t>(gru.saved_size()))]() mutable {
    required(gru.forward(call.weights, call.x, call.y, saved, *workspace));
    required(gru.backward(call.weights, call.x, call.y, saved, call.dy, call.dx, call.gradients, *workspace));
  };
}

std::function<void()> of_integers(const isobit::GruTrainingSizes& sizes, const Call& call, const std::string& bits) {
  isobit::GruQuantization quantization;
  required(isobit::apply_bits(bits, quantization));
  const isobit::GruTrainingWeights& w = call.weights[0];
  const auto copy = [](std::span<const float> values) { return Floats(values.begin(), values.end()); };
  isobit::GruWeights weights;
  weights.layers.push_back({sizes.input_size, sizes.hidden_size, copy(w.W), copy(w.R), copy(w.bw), copy(w.br)});
  auto calibrator = required(isobit::GruCalibrator::create(weights));
  constexpr int64_t kSteps = 8, kBatch = 8;
  required(calibrator.observe(call.x.first(static_cast<size_t>(kSteps * kBatch * sizes.input_size)), kSteps, kBatch));
  return [=, integers = required(calibrator.derive(quantization))]() mutable {
    integers = required(isobit::with_weights(std::move(integers), weights, quantization));
    const auto model = required(isobit::GruModel::create(integers));
    const auto run = required(isobit::GruQatRun::forward(model, call.x, sizes.steps, sizes.batch, call.y));
    required(run.backward(call.dy, call.dx, call.gradients));
  };
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times the forward and backward of a GRU on one thread; a measurement for each line of input."};
  isobit::GruTrainingSizes sizes;
  double min_time = 0.2;
  std::string bits;
  app.add_option("--steps", sizes.steps, "T")->required();
  app.add_option("--batch", sizes.batch, "N")->required();
  app.add_option("--inputs", sizes.input_size, "C")->required();
  app.add_option("--hidden", sizes.hidden_size, "H")->required();
  app.add_option("--bits", bits, "quantisation-aware, with these widths; default: in floats");
  app.add_option("--min-time", min_time, "seconds of a measurement");
  CLI11_PARSE(app, argc, argv);

  required(isobit::GruTraining::create(sizes, "gru"));
  const int64_t rows = sizes.steps * sizes.batch, C = sizes.input_size, H = sizes.hidden_size;
  isobit::bench::Random random(1);
  const Floats W = random_floats(random, 3 * H * C, 0.1f), R = random_floats(random, 3 * H * H, 0.1f);
  const Floats bias = random_floats(random, 3 * H, 0.1f), x = random_floats(random, rows * C, 1.0f);
  const Floats dy = random_floats(random, rows * H, 1.0f);
  Floats y(dy.size()), dx(x.size());
  Floats dW(W.size()), dR(R.size()), dbw(bias.size()), dbr(bias.size());
  const isobit::GruTrainingWeights weights[] = {{W, R, bias, bias}};
  const isobit::GruTrainingGradients gradients[] = {{dW, dR, dbw, dbr}};
  const Call call{weights, gradients, x, dy, y, dx};
  const std::function<void()> run = bits.empty() ? of_floats(sizes, call) : of_integers(sizes, call, bits);
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
