// SPDX-License-Identifier: Apache-2.0
#include "bench/linear_runs.h"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "isobit/text.h"

namespace isobit::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMebibyte = int64_t{1} << 20;

/// One line for each kernel; of choices that are judged, whether they are good ones.
void add_cases(const LinearRunsOptions& options, const LinearProblem& problem, int64_t m, const std::string& chosen,
               const std::vector<LinearTime>& times, TimesReport& out, Json& cases) {
  const LinearTime& fastest = *std::min_element(
      times.begin(), times.end(), [](const LinearTime& a, const LinearTime& b) { return a.seconds < b.seconds; });
  for (const LinearTime& time : times) {
    const bool is_chosen = time.kernel == chosen;
    const double ratio = time.seconds / fastest.seconds;
    const std::string name = problem.name() + "/M" + std::to_string(m) + "/" + time.kernel;
    const double weight_rate = static_cast<double>(time.weight_bytes) / time.seconds;
    const double rate = 2.0 * static_cast<double>(m * problem.rows * problem.columns) / time.seconds;
    const auto read = time.read_bytes_per_second;
    Json entry = {{"name", name},
                  {"K", problem.columns},
                  {"N", problem.rows},
                  {"bits", problem.bits},
                  {"group", problem.group},
                  {"activations", problem.activations},
                  {"M", m},
                  {"kernel", time.kernel},
                  {"y_dtype", std::string(to_string(time.y_dtype))},
                  {"us", time.seconds * 1e6},
                  {"weight_bytes", time.weight_bytes},
                  {"copies", time.copies},
                  {"weight_bytes_per_second", weight_rate},
                  {"read_bytes_per_second", read ? Json(*read) : Json()},
                  {"operations_per_second", rate},
                  {"peak_operations_per_second", time.peak ? Json(time.peak->operations_per_second) : Json()}};
    if (time.peak) entry["peak"] = time.peak->instruction;
    if (time.vector_peak) {
      entry["vector_peak_operations_per_second"] = time.vector_peak->operations_per_second;
      entry["vector_peak"] = time.vector_peak->instruction;
    }
    entry["chosen"] = is_chosen;
    entry["of_fastest"] = ratio;
    cases.push_back(std::move(entry));
    const std::string peak = time.peak ? format("%.0f", time.peak->operations_per_second / 1e9) : "-";
    out.text += format("%-68s %12.2f %8.2f %8s %8.1f %8s  %.3f%s\n", name.c_str(), time.seconds * 1e6,
                       weight_rate / 1e9, read ? format("%.2f", *read / 1e9).c_str() : "-", rate / 1e9, peak.c_str(),
                       ratio, is_chosen ? ", chosen" : "");
    if (options.judge && is_chosen) out.add_failure(slow_choice(name, ratio, fastest.kernel));
  }
}

}  // namespace

Result<TimesReport> LinearRuns::run(const std::function<void(double)>& progress) {
  TimesReport out;
  out.text = format("weights take turns over %lld MiB\n%-68s %12s %8s %8s %8s %8s  %s\n",
                    static_cast<long long>(options_.footprint / kMebibyte), "case", "us", "GB/s", "read", "GOP/s",
                    "peak", "of the fastest");
  Json cases = Json::array();
  double done = 0;
  for (size_t i = 0; i < options_.problems.size(); ++i) {
    const LinearProblem& problem = options_.problems[i];
    if (!benches_[i]) {
      ISOBIT_ASSIGN_OR_RETURN(benches_[i], options_.make(problem));
    }
    for (const int64_t m : options_.m) {
      ISOBIT_ASSIGN_OR_RETURN(const auto times, benches_[i]->time(m, options_.min_time));
      add_cases(options_, problem, m, benches_[i]->chosen_kernel(m), times, out, cases);
      progress(++done / static_cast<double>(options_.problems.size() * options_.m.size()));
    }
    if (!options_.keep) benches_[i].reset();
  }
  out.json = Json{{"footprint_bytes", options_.footprint}, {"cases", std::move(cases)}}.dump();
  return out;
}

}  // namespace isobit::bench
