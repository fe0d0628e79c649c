// SPDX-License-Identifier: Apache-2.0
// isobit bench table: nanoseconds an element beside memcpy of the same elements.
#include <string>
#include <utility>
#include <vector>

#include "bench/table.h"
#include "isobit/cpu.h"
#include "isobit/fp16_function.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 28;

Result<Dtype> parse_dtype(const std::string& option, const std::string& text) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kF32})
    if (text == to_string(dtype)) return dtype;
  return bad_option("--dtype " + option + ": expected f16, bf16 or f32, or a pair of them such as f32:f16");
}

/// Those that were asked for, or every one that can run here, or the default.
Result<std::vector<std::string>> kernels_of(const BenchOptions& options, const Fp16Function& function) {
  std::vector<std::string> kernels = options.kernel;
  if (options.all_kernels) {
    for (const Fp16Kernel& kernel : fp16_kernels())
      if (cpu_can_run(kernel.path)) kernels.emplace_back(kernel.name);
  } else if (kernels.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(const std::string_view best, function.default_kernel());
    kernels.emplace_back(best);
  }
  return kernels;
}

}  // namespace

Result<Outcome> bench_table(const BenchOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_range("--elements", options.elements, 1, kMaxElements));
  Outcome out;
  out.text = format("%-52s %12s %12s %8s\n", "case", "ns/element", "memcpy", "ratio");
  Value cases = Value::array();
  Progress progress("measuring", options.quiet);
  double done = 0;
  for (const std::string& name : options.function) {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, find_fp16_table(name, options.source));
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Function function, Fp16Function::create(table));
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::string> kernels, kernels_of(options, function));
    for (const std::string& pair : options.dtype) {
      const size_t colon = pair.find(':');
      ISOBIT_ASSIGN_OR_RETURN(const Dtype x, parse_dtype(pair, pair.substr(0, colon)));
      ISOBIT_ASSIGN_OR_RETURN(const Dtype y,
                              parse_dtype(pair, colon == std::string::npos ? pair : pair.substr(colon + 1)));
      for (const std::string& kernel : kernels) {
        ISOBIT_ASSIGN_OR_RETURN(const bench::TableTimes times,
                                bench::time_table(function, x, y, kernel, options.elements, options.min_time));
        const std::string label = "table/" + table.function + "/" + std::string(to_string(table.model)) + "/" +
                                  std::string(to_string(x)) + ":" + std::string(to_string(y)) + "/" + kernel;
        Value entry = Value::object();
        entry.set("name", label).set("function", table.function).set("model", to_string(table.model));
        entry.set("x", to_string(x)).set("y", to_string(y)).set("kernel", kernel).set("elements", options.elements);
        entry.set("ns_per_element", times.table_ns).set("memcpy_ns_per_element", times.memcpy_ns);
        cases.add(std::move(entry));
        out.text += format("%-52s %12.3f %12.3f %8.1f\n", label.c_str(), times.table_ns, times.memcpy_ns,
                           times.table_ns / times.memcpy_ns);
        progress.update(++done / static_cast<double>(options.function.size() * options.dtype.size() * kernels.size()));
      }
    }
  }
  out.json.set("cases", std::move(cases));
  return out;
}

}  // namespace isobit::tool
