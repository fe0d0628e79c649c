// SPDX-License-Identifier: Apache-2.0
// isobit bench table: nanoseconds an element beside memcpy of the same elements, in turn.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isobit/dtype.h"
#include "isobit/fp16_function.h"
#include "progress.h"
#include "random.h"
#include "tables.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxElements = int64_t{1} << 28;
constexpr int64_t kElementsARound = 1 << 17;  // a fraction of a millisecond: most rounds are not interrupted
constexpr size_t kMinRounds = 11;

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Result<Dtype> parse_dtype(const std::string& option, const std::string& text) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kF32})
    if (text == to_string(dtype)) return dtype;
  return invalid("--dtype " + option + ": expected f16, bf16 or f32, or a pair of them such as f32:f16");
}

/// Numbers in [-4, 4): where the functions bend.
Bytes input_of(Dtype dtype, int64_t count) {
  Random random(11);
  const std::vector<float> values = random.vector(count, 4.0f);
  Bytes bytes(static_cast<size_t>(count) * size_in_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof bits);
    if (dtype == Dtype::kBF16) bits >>= 16;
    // A float16 number near the value: exponent and mantissa cut off.
    if (dtype == Dtype::kF16) {
      const uint32_t magnitude = bits & 0x7fffffff;
      bits = (bits >> 16 & 0x8000) | (magnitude < 0x38800000 ? 0 : (magnitude - 0x38000000) >> 13);
    }
    std::memcpy(bytes.data() + i * size_in_bytes(dtype), &bits, size_in_bytes(dtype));
  }
  return bytes;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Times {
  double table_ns = 0, memcpy_ns = 0;  // an element, medians
};

Result<Times> measure(const Fp16Function& function, Dtype x_dtype, Dtype y_dtype, const std::string& kernel,
                      const BenchOptions& options) {
  const Bytes x = input_of(x_dtype, options.elements);
  Bytes y(static_cast<size_t>(options.elements) * size_in_bytes(y_dtype)), expected(y.size());
  // A time for wrong bytes is worth nothing.
  ISOBIT_RETURN_IF_ERROR(function.run(x, x_dtype, expected, y_dtype, {.kernel = "reference"}));
  ISOBIT_RETURN_IF_ERROR(function.run(x, x_dtype, y, y_dtype, {.kernel = kernel}));
  if (y != expected)
    return Status(StatusCode::kFailedPrecondition,
                  "kernel " + kernel + " gives other bytes than the reference; isobit verify says where");
  const int64_t calls = std::max<int64_t>(1, kElementsARound / options.elements);
  const auto elements = static_cast<double>(calls * options.elements);
  Bytes copy(std::max(x.size(), y.size()));
  std::vector<double> table_times, copy_times;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    for (int64_t i = 0; i < calls; ++i)
      ISOBIT_RETURN_IF_ERROR(function.run(x, x_dtype, y, y_dtype, {.kernel = kernel}));
    const auto middle = Clock::now();
    for (int64_t i = 0; i < calls; ++i) {
      const Bytes& source = x.size() > y.size() ? x : y;
      std::memcpy(copy.data(), source.data(), source.size());
      asm volatile("" : : "r"(copy.data()) : "memory");  // the copy is wanted
    }
    const auto end = Clock::now();
    table_times.push_back(std::chrono::duration<double, std::nano>(middle - start).count() / elements);
    copy_times.push_back(std::chrono::duration<double, std::nano>(end - middle).count() / elements);
  } while (table_times.size() < kMinRounds ||
           std::chrono::duration<double>(Clock::now() - begin).count() < options.min_time);
  return Times{median(table_times), median(copy_times)};
}

}  // namespace

Result<Outcome> bench_table(const BenchOptions& options) {
  if (options.elements < 1 || options.elements > kMaxElements)
    return invalid("--elements " + std::to_string(options.elements) + ": expected 1 to " +
                   std::to_string(kMaxElements));
  if (!(options.min_time >= 0 && options.min_time <= 3600))
    return invalid(format("--min-time %g: expected 0 to 3600 seconds", options.min_time));
  Outcome out;
  out.text = format("%-52s %12s %12s %8s\n", "case", "ns/element", "memcpy", "ratio");
  Value cases = Value::array();
  Progress progress("measuring", options.quiet);
  double done = 0;
  for (const std::string& name : options.function) {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, find_fp16_table(name, options.source));
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Function function, Fp16Function::create(table));
    std::vector<std::string> kernels = options.kernel;
    if (options.all_kernels) {
      for (const Fp16Kernel& kernel : fp16_kernels())
        if (cpu_can_run(kernel.path)) kernels.emplace_back(kernel.name);
    } else if (kernels.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(const std::string_view best, function.default_kernel());
      kernels.emplace_back(best);
    }
    for (const std::string& pair : options.dtype) {
      const size_t colon = pair.find(':');
      ISOBIT_ASSIGN_OR_RETURN(const Dtype x, parse_dtype(pair, pair.substr(0, colon)));
      ISOBIT_ASSIGN_OR_RETURN(const Dtype y,
                              parse_dtype(pair, colon == std::string::npos ? pair : pair.substr(colon + 1)));
      for (const std::string& kernel : kernels) {
        ISOBIT_ASSIGN_OR_RETURN(const Times times, measure(function, x, y, kernel, options));
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
