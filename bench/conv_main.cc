// SPDX-License-Identifier: Apache-2.0
// Times a convolution of static codes of 8 bits on one thread. One JSON object a line: for each line of standard input
// one measurement, so that rivals can be timed in turn.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/ceilings.h"
#include "bench/median.h"
#include "bench/random.h"
#include "isobit/conv.h"

namespace {

using isobit::StaticConvLayer;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Median seconds of a run, of as many as take min_time.
template <typename Run>
double measure(double min_time, const Run& run) {
  std::vector<double> seconds;
  for (const Clock::time_point start = Clock::now(); seconds.empty() || seconds_since(start) < min_time;) {
    const Clock::time_point before = Clock::now();
    run();
    seconds.push_back(seconds_since(before));
  }
  return isobit::bench::median(std::move(seconds));
}

/// Codes of every value; y takes most of its codes.
isobit::StaticConvParameters random_parameters(const isobit::ConvShape& shape) {
  isobit::bench::Random random(1);
  isobit::StaticConvParameters p;
  p.shape = shape;
  isobit::StaticLinearParameters& layer = p.linear;
  layer.rows = shape.outputs;
  layer.columns = shape.depth();
  layer.weights = isobit::Array::zeros(isobit::Dtype::kS8, {layer.rows, layer.columns});
  for (int64_t i = 0; i < layer.weights.size(); ++i)
    layer.weights.data<int8_t>()[i] = static_cast<int8_t>(random.between(-127, 127));
  layer.scales = isobit::Array::zeros(isobit::Dtype::kF32, {layer.rows});
  std::fill_n(layer.scales.data<float>(), layer.rows, 1.0f);
  layer.bias = isobit::Array::zeros(isobit::Dtype::kS32, {layer.rows});
  layer.input = {.bits = 8, .is_signed = false, .zero_point = 128};
  layer.output = isobit::Grid{.bits = 8, .is_signed = false, .zero_point = 128};
  layer.lo = 0;
  layer.hi = 255;
  int32_t shift = 36;
  for (int64_t depth = 1; depth < layer.columns; depth *= 4) ++shift;  // sums grow with the root of their terms
  for (int64_t o = 0; o < layer.rows; ++o)
    layer.rescales.push_back({static_cast<int32_t>(random.between(1 << 29, 1 << 30)), shift});
  return p;
}

template <typename T>
T required(isobit::Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "%s\n", std::string(result.status().message()).c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times a convolution of static codes of 8 bits on one thread; a measurement for each line of input."};
  isobit::ImageSize image;
  isobit::ConvShape shape;
  int64_t images = 1, stride = 1, pad = 0;
  double min_time = 0.05;
  app.add_option("--image",
                 [&](const CLI::results_t& words) {
                   return words.size() == 2 && CLI::detail::lexical_cast(words[0], image.rows) &&
                          CLI::detail::lexical_cast(words[1], image.columns);
                 })
      ->expected(2)
      ->required()
      ->description("H W");
  app.add_option("--channels", shape.channels, "C")->required();
  app.add_option("--outputs", shape.outputs, "O")->required();
  app.add_option("--groups", shape.groups, "divides both; depthwise: C");
  app.add_option("--kernel", shape.rows.kernel, "R, and S")->required();
  app.add_option("--stride", stride, "of both dimensions");
  app.add_option("--pad", pad, "on every side");
  app.add_option("--images", images, "B");
  app.add_option("--min-time", min_time, "seconds of a measurement");
  CLI11_PARSE(app, argc, argv);
  shape.rows.stride = stride;
  shape.rows.pad_before = shape.rows.pad_after = pad;
  shape.columns = shape.rows;

  const StaticConvLayer layer = required(StaticConvLayer::create(random_parameters(shape), "conv"));
  const isobit::ImageSize size = required(isobit::conv_output_size(shape, image, "conv"));
  isobit::Workspace workspace = required(layer.workspace(images, image));
  std::vector<std::byte> x(static_cast<size_t>(images * image.rows * image.columns * shape.channels));
  std::vector<std::byte> y(static_cast<size_t>(images * size.rows * size.columns * shape.outputs));
  isobit::bench::Random random(2);
  for (std::byte& code : x) code = static_cast<std::byte>(random.between(0, 255));
  const auto* const peak = isobit::ceilings::product_of(std::min(layer.path(), isobit::CpuPath::kAvx512Vnni), true);
  const double operations = 2.0 * static_cast<double>(y.size()) * static_cast<double>(shape.depth());
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json result;
    isobit::Status status;
    result["us"] = 1e6 * measure(min_time, [&] {
                     if (isobit::Status run = layer.forward(x, y, images, image, workspace); !run.ok()) status = run;
                   });
    if (!status.ok()) required(isobit::Result<int>(status));
    result["path"] = isobit::to_string(layer.path());
    result["operations"] = operations;
    if (peak != nullptr) {
      result["peak"] = peak->name;
      result["peak_operations_per_second"] =
          static_cast<double>(peak->operations) / measure(min_time / 4, [&] { peak->run(); });
    }
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}
