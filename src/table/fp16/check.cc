// SPDX-License-Identifier: Apache-2.0
// Tables by name or file, what they promise, and whether they keep it.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <string>
#include <system_error>

#include "core/half.h"
#include "core/number_text.h"
#include "io/container.h"
#include "isobit/fp16_table.h"
#include "isobit/nearest.h"
#include "isobit/sequences.h"
#include "table/fp16/reference.h"

namespace isobit {
namespace {

constexpr int64_t kCodes = 65536;
constexpr int32_t kMaxSteps = 4096;
constexpr size_t kMaxIntervals = 256;

/// Functions whose built-in tables of model f32 with float32 values are within 1 ULP.
constexpr std::string_view kWithinOneUlp[] = {"silu",       "gelu",  "sigmoid",   "tanh", "exp", "mish",
                                              "softplus",   "elu",   "hardswish", "sin",  "cos", "log",
                                              "reciprocal", "rsqrt", "sqrt",      "erf"};

}  // namespace

Result<std::vector<double>> load_fp16_values(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayFile file, load_arrays(path));
  if (file.arrays.size() != 1)
    return Status(StatusCode::kInvalidArgument, path + ": holds " + std::to_string(file.arrays.size()) +
                                                    " arrays; expected one, 65536 float64 values");
  const auto& [name, array] = *file.arrays.begin();
  if (array.dtype != Dtype::kF64 || array.size() != kCodes)
    return Status(StatusCode::kInvalidArgument, array_label(path, name) + " is " + std::string(to_string(array.dtype)) +
                                                    " " + list_text(array.shape) +
                                                    "; expected f64 [65536], one value for each float16 code");
  return std::vector<double>(array.data<double>(), array.data<double>() + kCodes);
}

Status check_fp16_certificate(const Fp16Table& table, const std::vector<uint16_t>& exact, double limit) {
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Certificate certificate, certify(table, exact));
  const auto refuse = [](const std::string& what) { return Status(StatusCode::kFailedPrecondition, what); };
  const Fp16Certificate& said = table.certificate;
  if (!(certificate == said))
    return refuse("the certificate says " + number_text(said.max_ulp) + " ULP, " + number_text(said.mean_ulp) +
                  " on the average; they are " + number_text(certificate.max_ulp) + " and " +
                  number_text(certificate.mean_ulp));
  if (certificate.max_ulp > limit)
    return refuse(number_text(certificate.max_ulp) + " ULP, must be at most " + number_text(limit));
  return {};
}

double promised_ulp(std::string_view function, Fp16Model model, bool half_values) {
  const bool promised =
      model == Fp16Model::kF32 && !half_values &&
      std::find(std::begin(kWithinOneUlp), std::end(kWithinOneUlp), function) != std::end(kWithinOneUlp);
  return promised ? 1.0 : std::numeric_limits<double>::infinity();
}

Result<Fp16Difference> compare_fp16_tables(const Fp16Table& first, const Fp16Table& second) {
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(first, first.function));
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(second, second.function));
  Fp16Difference out;
  for (uint32_t x = 0; x < kCodes; ++x) {
    if ((x & 0x7fffu) >= kFp16Infinity) continue;
    const auto code = static_cast<uint16_t>(x);
    const uint16_t a = first(code), b = second(code);
    ++out.inputs;
    if (a == b) continue;
    ++out.different;
    if (out.first_code) continue;
    out.first_code = code;
    out.first_input = static_cast<double>(f16_to_f32(code));
    out.first_result = a;
    out.second_result = b;
  }
  return out;
}

Result<std::vector<int32_t>> parse_fp16_steps(std::string_view text) {
  const auto refuse = [&] {
    return Status(StatusCode::kInvalidArgument,
                  "steps " + std::string(text) + ": expected numbers of steps of the intervals, 1.." +
                      std::to_string(kMaxSteps) + ", at most " + std::to_string(kMaxIntervals) +
                      " of them, NxM for N times M: 1,8x32,1");
  };
  std::vector<int32_t> steps;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int32_t count = 1, length = 0;
    auto parsed = std::from_chars(at, end, length);
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == 'x') {
      count = length;
      parsed = std::from_chars(parsed.ptr + 1, end, length);
    }
    if (parsed.ec != std::errc() || length < 1 || length > kMaxSteps || count < 1 ||
        steps.size() + static_cast<size_t>(count) > kMaxIntervals)
      return refuse();
    steps.insert(steps.end(), static_cast<size_t>(count), length);
    if (parsed.ptr == end) return steps;
    if (*parsed.ptr != ',') return refuse();
    at = parsed.ptr + 1;
  }
}

Result<std::vector<uint16_t>> fp16_exact(const Fp16Table& table, const std::string& values_file) {
  if (table.function != "custom") {
    if (values_file.empty()) return fp16_exact(table.function, table.beta);
    return Status(StatusCode::kInvalidArgument,
                  "--exact " + values_file + ": the function is " + table.function + ", whose values are known");
  }
  if (values_file.empty())
    return Status(StatusCode::kInvalidArgument,
                  "the function of the table is the user's own; --exact FILE.npy gives its 65536 values");
  ISOBIT_ASSIGN_OR_RETURN(const auto values, load_fp16_values(values_file));
  return fp16_exact(values);
}

Result<Fp16Table> find_fp16_table(const std::string& table, Fp16Model model, bool half_values) {
  if (is_fp16_function(table)) return builtin_fp16_table(table, model, half_values);
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, open_table_file(table));
  return load_fp16_table(file);
}

Status check_table_name(const std::string& name, bool or_softmax) {
  std::error_code error;
  if (is_fp16_function(name) || (or_softmax && name == "softmax") || std::filesystem::exists(name, error)) return {};
  std::vector<std::string_view> names = fp16_functions();
  if (or_softmax) names.emplace_back("softmax");
  return {StatusCode::kIo, name + ": no such file, and no function that is built in; " + expected_one_of(name, names)};
}

Result<ArrayReader> open_table_file(const std::string& path) {
  ISOBIT_RETURN_IF_ERROR(check_table_name(path));
  return ArrayReader::open(path);
}

}  // namespace isobit
