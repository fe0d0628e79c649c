// SPDX-License-Identifier: Apache-2.0
#include "bench/conv.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <regex>
#include <system_error>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "bench/median.h"
#include "bench/random.h"
#include "isobit/text.h"

namespace isobit::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostSize = 1 << 16;      // of a number of a shape
constexpr int64_t kMostElements = 1 << 30;  // of an image, of its y, of weights
constexpr double kShareOfPeak = 0.25;       // of the time of a measurement

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

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
  return median(std::move(seconds));
}

}  // namespace

StaticConvParameters random_conv(const ConvShape& shape) {
  Random random(1);
  StaticConvParameters p;
  p.shape = shape;
  StaticLinearParameters& layer = p.linear;
  layer.rows = shape.outputs;
  layer.columns = shape.depth();
  layer.weights = Array::zeros(Dtype::kS8, {layer.rows, layer.columns});
  for (int64_t i = 0; i < layer.weights.size(); ++i)
    layer.weights.data<int8_t>()[i] = static_cast<int8_t>(random.between(-127, 127));
  layer.scales = Array::zeros(Dtype::kF32, {layer.rows});
  std::fill_n(layer.scales.data<float>(), layer.rows, 1.0f);
  layer.bias = Array::zeros(Dtype::kS32, {layer.rows});
  layer.input = {.bits = 8, .is_signed = false, .zero_point = 128};
  layer.output = Grid{.bits = 8, .is_signed = false, .zero_point = 128};
  layer.lo = 0;
  layer.hi = 255;
  int32_t shift = 36;
  for (int64_t depth = 1; depth < layer.columns; depth *= 4) ++shift;  // sums grow with the root of their terms
  for (int64_t o = 0; o < layer.rows; ++o)
    layer.rescales.push_back({static_cast<int32_t>(random.between(1 << 29, 1 << 30)), shift});
  return p;
}

Result<ConvProblem> ConvProblem::parse(const std::string& text, int64_t images) {
  static const std::regex form("(\\d+)x(\\d+)x(\\d+):(\\d+):(\\d+)(?::(\\d+)(?::(\\d+)(?::(\\d+))?)?)?");
  const std::string what = "--conv " + text + ": ";
  std::smatch found;
  if (!std::regex_match(text, found, form))
    return invalid(what + "expected HxWxC:O:R[:STRIDE[:GROUPS[:DILATION]]], as in 56x56x64:64:3");
  int64_t numbers[] = {0, 0, 0, 0, 0, 1, 1, 1};
  for (size_t i = 0; i < std::size(numbers); ++i) {
    const std::string digits = found[i + 1].str();
    if (digits.empty()) continue;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), numbers[i]).ec != std::errc() || numbers[i] < 1 ||
        numbers[i] > kMostSize)
      return invalid(what + digits + ": expected 1 to " + std::to_string(kMostSize));
  }
  const auto [rows, columns, channels, outputs, kernel, stride, groups, dilation] = numbers;
  const int64_t pad = dilation * (kernel / 2);
  const ConvAxis axis{.kernel = kernel, .stride = stride, .dilation = dilation, .pad_before = pad, .pad_after = pad};
  ConvProblem problem{
      .shape = {.channels = channels, .outputs = outputs, .groups = groups, .rows = axis, .columns = axis},
      .image = {rows, columns},
      .images = images};
  ISOBIT_ASSIGN_OR_RETURN(const ImageSize size, conv_output_size(problem.shape, problem.image, what + "layer"));
  for (const auto& [name, a, b, c] :
       {std::tuple("x", rows, columns, images * channels), std::tuple("y", size.rows, size.columns, images * outputs),
        std::tuple("the weights", kernel, kernel, channels / groups * outputs)})
    if (a * b > kMostElements / c)
      return invalid(what + count_text(images, "image") + ": " + name + " has " + std::to_string(a * b) + " * " +
                     std::to_string(c) + " elements, must have at most " + std::to_string(kMostElements));
  return problem;
}

std::string ConvProblem::name() const {
  return format("conv/%lldx%lldx%lld/O%lld/R%lld/s%lld/g%lld", static_cast<long long>(image.rows),
                static_cast<long long>(image.columns), static_cast<long long>(shape.channels),
                static_cast<long long>(shape.outputs), static_cast<long long>(shape.rows.kernel),
                static_cast<long long>(shape.rows.stride), static_cast<long long>(shape.groups)) +
         (shape.rows.dilation > 1 ? "/d" + std::to_string(shape.rows.dilation) : "") +
         (images > 1 ? "/B" + std::to_string(images) : "");
}

Result<ConvBench> ConvBench::create(const ConvProblem& problem, std::optional<CpuPath> path) {
  const StaticConvParameters parameters = random_conv(problem.shape);
  ISOBIT_ASSIGN_OR_RETURN(StaticConvLayer layer, StaticConvLayer::create(parameters, "conv", path));
  ConvBench bench(problem, std::move(layer));
  ISOBIT_ASSIGN_OR_RETURN(const ImageSize size, conv_output_size(problem.shape, problem.image, "conv"));
  ISOBIT_ASSIGN_OR_RETURN(bench.workspace_, bench.layer_.workspace(problem.images, problem.image));
  const int64_t pixels = problem.images * problem.image.rows * problem.image.columns;
  const int64_t outputs = problem.images * size.rows * size.columns;
  bench.x_.resize(static_cast<size_t>(pixels * problem.shape.channels));
  bench.y_.resize(static_cast<size_t>(outputs * problem.shape.outputs));
  Random random(2);
  for (std::byte& code : bench.x_) code = static_cast<std::byte>(random.between(0, 255));
  // A time for wrong bytes is worth nothing. An image alone gives what it gives beside others.
  ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer scalar, StaticConvLayer::create(parameters, "conv", CpuPath::kScalar));
  ISOBIT_ASSIGN_OR_RETURN(Workspace workspace, scalar.workspace(1, problem.image));
  const auto images = static_cast<size_t>(problem.images);
  std::vector<std::byte> expected(bench.y_.size() / images);
  ISOBIT_RETURN_IF_ERROR(
      scalar.forward(std::span(bench.x_).last(bench.x_.size() / images), expected, 1, problem.image, workspace));
  ISOBIT_RETURN_IF_ERROR(bench.run());
  if (std::equal(expected.begin(), expected.end(), bench.y_.end() - std::ssize(expected))) return bench;
  return Status(StatusCode::kFailedPrecondition, problem.name() + ": kernel " +
                                                     std::string(bench.layer_.kernel_name()) +
                                                     " gives other bytes than conv_static_scalar; isobit verify says "
                                                     "where");
}

Status ConvBench::run() { return layer_.forward(x_, y_, problem_.images, problem_.image, workspace_); }

Result<ConvTime> ConvBench::time(double min_time) {
  ConvTime result;
  Status status;
  result.seconds = measure(min_time, [&] {
    if (Status done = run(); !done.ok()) status = std::move(done);
  });
  ISOBIT_RETURN_IF_ERROR(status);
  result.operations = 2.0 * static_cast<double>(y_.size()) * static_cast<double>(problem_.shape.depth());
  // No kernel takes tiles.
  result.peak = ceilings::product_of(std::min(layer_.path(), CpuPath::kAvx512Vnni), true);
  if (result.peak != nullptr)
    result.peak_operations_per_second =
        static_cast<double>(result.peak->operations) / measure(kShareOfPeak * min_time, [&] { result.peak->run(); });
  return result;
}

Result<Description> bench_conv(const ConvBenchOptions& options) {
  std::vector<ConvProblem> problems;
  for (const std::string& shape : options.shapes)
    for (const int64_t images : options.images) {
      ISOBIT_ASSIGN_OR_RETURN(const ConvProblem problem, ConvProblem::parse(shape, images));
      problems.push_back(problem);
    }
  std::vector<std::optional<CpuPath>> paths = options.paths;
  for (const LinearLayerKernel& kernel : static_conv_kernels())
    if (options.all_kernels && kernel.path != CpuPath::kReference && cpu_can_run(kernel.path))
      paths.emplace_back(kernel.path);
  if (paths.empty()) paths.emplace_back(std::nullopt);
  Description out{.text = format("%-60s %12s %8s %8s\n", "case", "us", "GOP/s", "peak"), .json = {}};
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  double done = 0;
  for (const ConvProblem& problem : problems)
    for (const std::optional<CpuPath>& path : paths) {
      ISOBIT_ASSIGN_OR_RETURN(ConvBench bench, ConvBench::create(problem, path));
      ISOBIT_ASSIGN_OR_RETURN(const ConvTime time, bench.time(options.min_time));
      const std::string kernel(bench.layer().kernel_name()), name = problem.name() + "/" + kernel;
      const ConvShape& shape = problem.shape;
      const double rate = time.operations / time.seconds;
      nlohmann::ordered_json entry{{"name", name},
                                   {"H", problem.image.rows},
                                   {"W", problem.image.columns},
                                   {"C", shape.channels},
                                   {"O", shape.outputs},
                                   {"R", shape.rows.kernel},
                                   {"stride", shape.rows.stride},
                                   {"dilation", shape.rows.dilation},
                                   {"groups", shape.groups},
                                   {"B", problem.images},
                                   {"kernel", kernel},
                                   {"us", time.seconds * 1e6},
                                   {"operations_per_second", rate},
                                   {"peak_operations_per_second", nullptr}};
      if (time.peak != nullptr) {
        entry["peak_operations_per_second"] = time.peak_operations_per_second;
        entry["peak"] = time.peak->name;
      }
      cases.push_back(std::move(entry));
      const std::string peak = time.peak == nullptr ? "-" : format("%.0f", time.peak_operations_per_second / 1e9);
      out.text += format("%-60s %12.2f %8.1f %8s\n", name.c_str(), time.seconds * 1e6, rate / 1e9, peak.c_str());
      if (options.progress) options.progress(++done / static_cast<double>(problems.size() * paths.size()));
    }
  out.json = nlohmann::ordered_json{{"cases", std::move(cases)}}.dump();
  return out;
}

}  // namespace isobit::bench
