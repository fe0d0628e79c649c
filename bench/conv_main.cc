// SPDX-License-Identifier: Apache-2.0
// Times a convolution of static codes of 8 bits on one thread. One JSON object a line: for each line of standard input
// one measurement, so that rivals can be timed in turn.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/conv.h"

namespace {

template <typename T>
T required(isobit::Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "%s\n", std::string(result.status().message()).c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times a convolution of static codes of 8 bits on one thread; a measurement for each line of input."};
  isobit::bench::ConvProblem problem;
  isobit::ImageSize& image = problem.image;
  isobit::ConvShape& shape = problem.shape;
  int64_t stride = 1, dilation = 1, pad = 0;
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
  app.add_option("--dilation", dilation, "of both dimensions");
  app.add_option("--pad", pad, "on every side");
  app.add_option("--images", problem.images, "B");
  app.add_option("--min-time", min_time, "seconds of a measurement");
  CLI11_PARSE(app, argc, argv);
  shape.rows.stride = stride;
  shape.rows.dilation = dilation;
  shape.rows.pad_before = shape.rows.pad_after = pad;
  shape.columns = shape.rows;

  isobit::bench::ConvBench bench = required(isobit::bench::ConvBench::create(problem));
  for (std::string line; std::getline(std::cin, line);) {
    const isobit::bench::ConvTime time = required(bench.time(min_time));
    nlohmann::ordered_json result{
        {"us", 1e6 * time.seconds}, {"path", isobit::to_string(bench.layer().path())}, {"operations", time.operations}};
    if (time.peak != nullptr) {
      result["peak"] = time.peak->name;
      result["peak_operations_per_second"] = time.peak_operations_per_second;
    }
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}
