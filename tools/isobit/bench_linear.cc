// SPDX-License-Identifier: Apache-2.0
// isobit bench linear: linear layers on random weights, and what bounds them.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/ceilings.h"
#include "bench/linear.h"
#include "device.h"
#include "isobit/cpu.h"
#include "isobit/linear.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

using bench::LinearBench;
using bench::LinearPaths;
using bench::LinearProblem;
using bench::LinearTime;

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kMaxFootprint = kMebibyte;  // MiB: a terabyte

/// Those that were asked for; with --all-kernels every one but the reference, which is a definition, no candidate.
Result<LinearPaths> paths_of(const BenchOptions& options, const LinearProblem& problem) {
  LinearPaths out{.paths = {}, .skip_unsupported = options.all_kernels};
  for (const LinearLayerKernel& kernel : linear_layer_kernels())
    if (options.all_kernels && kernel.operation == problem.operation() && cpu_can_run(kernel.path) &&
        kernel.path != CpuPath::kReference)
      out.paths.emplace_back(kernel.path);
  for (const std::string& name : options.kernel) {
    ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_linear_kernel(name, problem.operation()));
    out.paths.push_back(path);
  }
  if (out.paths.empty()) out.paths.emplace_back(std::nullopt);
  return out;
}

/// One line for each kernel; with --all-kernels, whether the choice is a good one.
void add_cases(const BenchOptions& options, const LinearProblem& problem, int64_t m, const std::string& chosen,
               const std::vector<LinearTime>& times, Outcome& out, Value& cases) {
  const LinearTime& fastest = *std::min_element(
      times.begin(), times.end(), [](const LinearTime& a, const LinearTime& b) { return a.seconds < b.seconds; });
  for (const LinearTime& time : times) {
    const bool is_chosen = time.kernel == chosen;
    const double ratio = time.seconds / fastest.seconds;
    const std::string name = problem.name() + "/M" + std::to_string(m) + "/" + time.kernel;
    const double weight_rate = static_cast<double>(time.weight_bytes) / time.seconds;
    const double rate = 2.0 * static_cast<double>(m * problem.rows * problem.columns) / time.seconds;
    Value entry = Value::object();
    entry.set("name", name).set("K", problem.columns).set("N", problem.rows).set("bits", problem.bits);
    entry.set("group", problem.group).set("activations", problem.activations).set("M", m).set("kernel", time.kernel);
    entry.set("y_dtype", to_string(time.y_dtype));
    entry.set("us", time.seconds * 1e6).set("weight_bytes", time.weight_bytes).set("copies", time.copies);
    const auto read = time.read_bytes_per_second;
    entry.set("weight_bytes_per_second", weight_rate).set("read_bytes_per_second", read ? Value(*read) : Value());
    entry.set("operations_per_second", rate);
    entry.set("peak_operations_per_second", time.peak ? Value(time.peak->operations_per_second) : Value());
    if (time.peak) entry.set("peak", time.peak->instruction);
    if (time.vector_peak) {
      entry.set("vector_peak_operations_per_second", time.vector_peak->operations_per_second);
      entry.set("vector_peak", time.vector_peak->instruction);
    }
    entry.set("chosen", is_chosen).set("of_fastest", ratio);
    cases.add(std::move(entry));
    const std::string peak = time.peak ? format("%.0f", time.peak->operations_per_second / 1e9) : "-";
    out.text += format("%-68s %12.2f %8.2f %8s %8.1f %8s  %.3f%s\n", name.c_str(), time.seconds * 1e6,
                       weight_rate / 1e9, read ? format("%.2f", *read / 1e9).c_str() : "-", rate / 1e9, peak.c_str(),
                       ratio, is_chosen ? ", chosen" : "");
    if (options.all_kernels && is_chosen) add_slow_choice(name, ratio, fastest.kernel, out);
  }
}

/// All problems. Weights are packed once and kept for the next time where there may be one.
class Runs {
 public:
  Runs(const BenchOptions& options, std::vector<LinearProblem> problems, int64_t footprint,
       std::shared_ptr<const Device> device)
      : options_(options), footprint_(footprint), problems_(std::move(problems)), device_(std::move(device)) {
    if (!device_) memory_.emplace(footprint);
    benches_.resize(problems_.size());
  }

  Result<Outcome> run() {
    Outcome out;
    if (device_) out.json.set("device", device_->json());
    out.text = device_ ? device_->text() + "\n" : "";
    out.text += format("weights take turns over %lld MiB\n%-68s %12s %8s %8s %8s %8s  %s\n",
                       static_cast<long long>(footprint_ / kMebibyte), "case", "us", "GB/s", "read", "GOP/s", "peak",
                       "of the fastest");
    Value cases = Value::array();
    Progress progress("measuring", options_.quiet);
    double done = 0;
    for (size_t i = 0; i < problems_.size(); ++i) {
      const LinearProblem& problem = problems_[i];
      if (!benches_[i] && device_) {
        ISOBIT_ASSIGN_OR_RETURN(benches_[i], device_->linear_bench(problem, footprint_));
      } else if (!benches_[i]) {
        ISOBIT_ASSIGN_OR_RETURN(const LinearPaths paths, paths_of(options_, problem));
        ISOBIT_ASSIGN_OR_RETURN(benches_[i], bench::linear_bench(problem, paths, footprint_, *memory_));
      }
      for (const int64_t m : options_.m) {
        ISOBIT_ASSIGN_OR_RETURN(const auto times, benches_[i]->time(m, options_.min_time));
        add_cases(options_, problem, m, benches_[i]->chosen_kernel(m), times, out, cases);
        progress.update(++done / static_cast<double>(problems_.size() * options_.m.size()));
      }
      if (!options_.repeat) benches_[i].reset();
    }
    out.json.set("footprint_bytes", footprint_).set("cases", std::move(cases));
    return out;
  }

 private:
  BenchOptions options_;
  int64_t footprint_;
  std::vector<LinearProblem> problems_;
  std::shared_ptr<const Device> device_;               // null: the CPU
  std::optional<ceilings::Memory> memory_;             // of the CPU
  std::vector<std::unique_ptr<LinearBench>> benches_;  // of problems_
};

Result<Outcome> run_again(const std::shared_ptr<Runs>& runs) {
  Result<Outcome> out = runs->run();
  if (out.ok()) out->again = [runs] { return run_again(runs); };
  return out;
}

}  // namespace

Result<Outcome> bench_linear(const BenchOptions& options, std::shared_ptr<const Device> device) {
  if (device && !options.kernel.empty())
    return refuse_on_device(options.device, "--kernel " + options.kernel.front(), "it chooses by the number of rows");
  ISOBIT_RETURN_IF_ERROR(check_range("--group", options.group, 0, bench::kMaxLinearSize));
  for (const int64_t m : options.m) ISOBIT_RETURN_IF_ERROR(check_range("--m", m, 1, bench::kMaxLinearSize));
  ISOBIT_RETURN_IF_ERROR(check_range("--footprint", options.footprint, 0, kMaxFootprint));
  int64_t footprint = options.footprint * kMebibyte;
  if (footprint == 0 && device) {
    footprint = device->footprint();
  } else if (footprint == 0) {
    ISOBIT_ASSIGN_OR_RETURN(footprint, bench::default_footprint());
  }
  std::vector<std::string> widths = split_list(options.bits);
  if (widths.empty()) widths.emplace_back();  // which is none
  std::vector<LinearProblem> problems;
  for (const std::string& shape : options.shape)
    for (const std::string& bits : widths)
      for (const std::string& activations : options.activations) {
        ISOBIT_ASSIGN_OR_RETURN(LinearProblem problem, LinearProblem::parse(shape, bits, activations, options.group));
        problems.push_back(std::move(problem));
      }
  const auto runs = std::make_shared<Runs>(options, std::move(problems), footprint, std::move(device));
  return options.repeat ? run_again(runs) : runs->run();
}

}  // namespace isobit::tool
