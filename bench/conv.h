// SPDX-License-Identifier: Apache-2.0
// Convolutions of static codes of 8 bits on random weights, one thread, and what bounds them.
#ifndef ISOBIT_BENCH_CONV_H_
#define ISOBIT_BENCH_CONV_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/ceilings.h"
#include "isobit/conv.h"
#include "isobit/cpu.h"
#include "isobit/report.h"
#include "isobit/status.h"

namespace isobit::bench {

struct ConvProblem {
  /// "HxWxC:O:R[:STRIDE[:GROUPS[:DILATION]]]": a kernel of R x R, DILATION * floor(R / 2) pads on every side. Errors
  /// name
  /// `--conv` and what is wrong.
  static Result<ConvProblem> parse(const std::string& text, int64_t images);

  ConvShape shape;
  ImageSize image;
  int64_t images = 1;

  [[nodiscard]] std::string name() const;
};

/// Codes of 8 bits and of every value, on weights of 8 bits; y takes most of its codes.
StaticConvParameters random_conv(const ConvShape& shape);

/// Medians.
struct ConvTime {
  double seconds = 0;                       // a run
  double operations = 0;                    // of it, multiply-adds times two
  const ceilings::Product* peak = nullptr;  // the instruction that its kernel multiplies with; null: not known
  double peak_operations_per_second = 0;    // of that
};

/// A problem and its weights, packed for one path.
class ConvBench {
 public:
  /// path: nothing is the layer's choice. Errors: those of StaticConvLayer; kFailedPrecondition where the kernel gives
  /// other bytes than the scalar one.
  static Result<ConvBench> create(const ConvProblem& problem, std::optional<CpuPath> path = {});

  [[nodiscard]] const StaticConvLayer& layer() const { return layer_; }
  /// For `min_time` seconds at least.
  Result<ConvTime> time(double min_time);

 private:
  ConvBench(const ConvProblem& problem, StaticConvLayer layer) : problem_(problem), layer_(std::move(layer)) {}
  Status run();

  ConvProblem problem_;
  StaticConvLayer layer_;
  Workspace workspace_;
  std::vector<std::byte> x_, y_;
};

struct ConvBenchOptions {
  std::vector<std::string> shapes;            // ConvProblem::parse
  std::vector<int64_t> images = {1};          // of each
  std::vector<std::optional<CpuPath>> paths;  // nothing: the layer's choice
  bool all_kernels = false;                   // besides them every one that can run here but the reference
  double min_time = 0.5;                      // seconds a case, at least
  std::function<void(double)> progress{};     // 0..1
};
/// A line for each shape and path, and the same in JSON.
Result<Description> bench_conv(const ConvBenchOptions& options);

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_CONV_H_
