// SPDX-License-Identifier: Apache-2.0
// All problems of `isobit bench linear`, and what there is to say of them.
#ifndef ISOBIT_BENCH_LINEAR_RUNS_H_
#define ISOBIT_BENCH_LINEAR_RUNS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bench/linear.h"
#include "bench/report.h"
#include "isobit/status.h"

namespace isobit::bench {

struct LinearRunsOptions {
  std::vector<LinearProblem> problems;
  std::vector<int64_t> m;  // rows of x
  int64_t footprint = 0;   // bytes over which weights take turns
  double min_time = 0.5;   // seconds a case, at least
  bool judge = false;      // choices
  bool keep = false;       // weights, for another run
  std::function<Result<std::unique_ptr<LinearBench>>(const LinearProblem&)> make{};
};

/// Weights are packed once, and kept for the next run where there may be one.
class LinearRuns {
 public:
  explicit LinearRuns(LinearRunsOptions options) : options_(std::move(options)), benches_(options_.problems.size()) {}

  /// A line for each problem, number of rows and kernel. progress: 0..1.
  Result<TimesReport> run(const std::function<void(double)>& progress);

 private:
  LinearRunsOptions options_;
  std::vector<std::unique_ptr<LinearBench>> benches_;  // of the problems
};

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_LINEAR_RUNS_H_
