// SPDX-License-Identifier: Apache-2.0
#include "bench/table.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "bench/median.h"
#include "bench/random.h"
#include "isobit/cpu.h"
#include "isobit/text.h"

namespace isobit::bench {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

constexpr int64_t kElementsARound = 1 << 17;  // a fraction of a millisecond: most rounds are not interrupted
constexpr size_t kMinRounds = 11;

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

Result<Dtype> parse_dtype(const std::string& option, const std::string& text) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kF32})
    if (text == to_string(dtype)) return dtype;
  return Status(StatusCode::kInvalidArgument,
                "--dtype " + option + ": expected f16, bf16 or f32, or a pair of them such as f32:f16");
}

/// Those that were asked for, or every one that can run here, or the default.
Result<std::vector<std::string>> kernels_of(const TableBenchOptions& options, const Fp16Function& function) {
  std::vector<std::string> kernels = options.kernels;
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

Result<TableTimes> time_table(const Fp16Function& function, Dtype x_dtype, Dtype y_dtype, const std::string& kernel,
                              int64_t element_count, double min_time) {
  const Bytes x = input_of(x_dtype, element_count);
  Bytes y(static_cast<size_t>(element_count) * size_in_bytes(y_dtype)), expected(y.size());
  // A time for wrong bytes is worth nothing.
  ISOBIT_RETURN_IF_ERROR(function.forward(x, x_dtype, expected, y_dtype, {.kernel = "reference"}));
  ISOBIT_RETURN_IF_ERROR(function.forward(x, x_dtype, y, y_dtype, {.kernel = kernel}));
  if (y != expected)
    return Status(StatusCode::kFailedPrecondition,
                  "kernel " + kernel + " gives other bytes than the reference; isobit verify says where");
  const int64_t calls = std::max<int64_t>(1, kElementsARound / element_count);
  const auto elements = static_cast<double>(calls * element_count);
  Bytes copy(std::max(x.size(), y.size()));
  std::vector<double> table_times, copy_times;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    for (int64_t i = 0; i < calls; ++i)
      ISOBIT_RETURN_IF_ERROR(function.forward(x, x_dtype, y, y_dtype, {.kernel = kernel}));
    const auto middle = Clock::now();
    for (int64_t i = 0; i < calls; ++i) {
      const Bytes& source = x.size() > y.size() ? x : y;
      std::memcpy(copy.data(), source.data(), source.size());
      asm volatile("" : : "r"(copy.data()) : "memory");  // the copy is wanted
    }
    const auto end = Clock::now();
    table_times.push_back(std::chrono::duration<double, std::nano>(middle - start).count() / elements);
    copy_times.push_back(std::chrono::duration<double, std::nano>(end - middle).count() / elements);
  } while (table_times.size() < kMinRounds || std::chrono::duration<double>(Clock::now() - begin).count() < min_time);
  return TableTimes{median(table_times), median(copy_times)};
}

Result<Description> bench_table(const TableBenchOptions& options) {
  Description out{.text = format("%-52s %12s %12s %8s\n", "case", "ns/element", "memcpy", "ratio"), .json = {}};
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  double done = 0;
  for (const Fp16Table& table : options.tables) {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Function function, Fp16Function::create(table));
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::string> kernels, kernels_of(options, function));
    for (const std::string& pair : options.dtypes) {
      const size_t colon = pair.find(':');
      ISOBIT_ASSIGN_OR_RETURN(const Dtype x, parse_dtype(pair, pair.substr(0, colon)));
      ISOBIT_ASSIGN_OR_RETURN(const Dtype y,
                              parse_dtype(pair, colon == std::string::npos ? pair : pair.substr(colon + 1)));
      for (const std::string& kernel : kernels) {
        ISOBIT_ASSIGN_OR_RETURN(const TableTimes times,
                                time_table(function, x, y, kernel, options.elements, options.min_time));
        const std::string model(to_string(table.model)), x_text(to_string(x)), y_text(to_string(y));
        const std::string label = format("table/%s/%s/%s:%s/%s", table.function.c_str(), model.c_str(), x_text.c_str(),
                                         y_text.c_str(), kernel.c_str());
        cases.push_back({{"name", label},
                         {"function", table.function},
                         {"model", model},
                         {"x", x_text},
                         {"y", y_text},
                         {"kernel", kernel},
                         {"elements", options.elements},
                         {"ns_per_element", times.table_ns},
                         {"memcpy_ns_per_element", times.memcpy_ns}});
        out.text += format("%-52s %12.3f %12.3f %8.1f\n", label.c_str(), times.table_ns, times.memcpy_ns,
                           times.table_ns / times.memcpy_ns);
        if (options.progress)
          options.progress(++done /
                           static_cast<double>(options.tables.size() * options.dtypes.size() * kernels.size()));
      }
    }
  }
  out.json = nlohmann::ordered_json{{"cases", std::move(cases)}}.dump();
  return out;
}

}  // namespace isobit::bench
