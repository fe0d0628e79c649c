// SPDX-License-Identifier: Apache-2.0
// FP16 functions and softmax: every kernel that this machine can run, in the cache, beside memcpy of the same bytes.
// Counter ns/element. Each case is compared with the reference once.
//
// Limits of one core with two ports for 512-bit and three for 256-bit arithmetic, one of them for permutes, and three
// loads a cycle (two of 512 bits), as the processors with AVX-512 VNNI have had since 2021:
// - Looking up: a gather loads each result and takes some 0.5 cycles an element with either width.
// - Interpolating, 16 elements with AVX-512: about 30 instructions on two ports and two gathers of 5 cycles, 25 cycles;
//   with AVX2 about 55 for 8 elements on three ports and two gathers of 3 cycles, 24 cycles.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/half.h"
#include "isobit/fp16_function.h"

namespace isobit {
namespace {

constexpr size_t kElements = 16384;

/// Elements that are float16 numbers, normally distributed with deviation 2, and room for as many results.
struct Buffers {
  Buffers(Dtype x_dtype, Dtype y_dtype, size_t count)
      : x(count * size_in_bytes(x_dtype)), y(count * size_in_bytes(y_dtype)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (size_t i = 0; i < count; ++i) {
      const uint16_t code = f32_to_f16(normal(random));
      const float value = f16_to_f32(code);
      if (x_dtype == Dtype::kF16) std::memcpy(x.data() + 2 * i, &code, 2);
      if (x_dtype == Dtype::kF32) std::memcpy(x.data() + 4 * i, &value, 4);
    }
  }
  std::vector<std::byte> x, y;
};

/// Uniform cut points over [low, high] in the published geometry.
Fp16Pieces pieces_of(double (*f)(double), double low, double high, Fp16Model model) {
  Fp16Pieces pieces;
  pieces.steps = fp16_steps_259();
  for (size_t i = 0; i <= pieces.steps.size(); ++i) {
    const double cut = low + (high - low) * static_cast<double>(i) / static_cast<double>(pieces.steps.size());
    pieces.cut_points.push_back(f16_to_f32(f32_to_f16(static_cast<float>(cut))));
  }
  for (size_t i = 0; i < pieces.steps.size(); ++i) {
    const double c = pieces.cut_points[i], width = pieces.cut_points[i + 1] - c;
    for (int j = 0; j < pieces.steps[i]; ++j)
      pieces.values.push_back(static_cast<float>(f(c + width * j / pieces.steps[i])));
  }
  pieces.values.push_back(static_cast<float>(f(pieces.cut_points.back())));
  set_scales(pieces, model);
  return pieces;
}

Fp16Table table_of(const char* function, Fp16Reduction reduction, Fp16Model model = Fp16Model::kF32) {
  Fp16Table table;
  table.function = function;
  table.model = model;
  table.reduction = reduction;
  const auto add = [&](double (*f)(double), double low, double high) {
    table.pieces.push_back(pieces_of(f, low, high, model));
  };
  switch (reduction) {
    case Fp16Reduction::kSin:
      add([](double x) { return std::sin(x); }, -0.79, 0.79);
      add([](double x) { return std::cos(x); }, -0.79, 0.79);
      break;
    case Fp16Reduction::kExp: add([](double x) { return std::exp(x); }, -0.35, 0.35); break;
    case Fp16Reduction::kReciprocal: add([](double x) { return 1 / x; }, 1, 2); break;
    default: add([](double x) { return x / (1 + std::exp(-x)); }, -10, 10); break;
  }
  return table;
}

void report(benchmark::State& state, size_t elements) {
  using benchmark::Counter;
  state.counters["ns/element"] =
      Counter(static_cast<double>(elements) * 1e-9, Counter::kIsIterationInvariantRate | Counter::kInvert);
}

void function_case(benchmark::State& state, std::string_view kernel, const char* name, Fp16Reduction reduction,
                   Fp16Model model, Dtype dtype) {
  const Fp16Function function = *Fp16Function::create(table_of(name, reduction, model));
  Buffers buffers(dtype, dtype, kElements);
  const RunOptions options{.kernel = kernel};
  std::vector<std::byte> expected(buffers.y.size());
  bool ok = function.forward(buffers.x, dtype, expected, dtype, {.kernel = "reference"}).ok();
  ok = ok && function.forward(buffers.x, dtype, buffers.y, dtype, options).ok();
  if (!ok || expected != buffers.y) {
    state.SkipWithError("the result differs from the reference");
    return;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(function.forward(buffers.x, dtype, buffers.y, dtype, options).ok());
    benchmark::ClobberMemory();
  }
  report(state, kElements);
}

void softmax_case(benchmark::State& state, std::string_view kernel, Dtype dtype, int64_t columns) {
  const Fp16Softmax softmax =
      *Fp16Softmax::create(table_of("exp", Fp16Reduction::kExp), table_of("reciprocal", Fp16Reduction::kReciprocal));
  const size_t elements = std::max(kElements, static_cast<size_t>(columns));
  Buffers buffers(dtype, dtype, elements);
  const RunOptions options{.kernel = kernel};
  std::vector<std::byte> expected(buffers.y.size());
  bool ok = softmax.forward(buffers.x, dtype, expected, dtype, columns, {.kernel = "reference"}).ok();
  ok = ok && softmax.forward(buffers.x, dtype, buffers.y, dtype, columns, options).ok();
  if (!ok || expected != buffers.y) {
    state.SkipWithError("the result differs from the reference");
    return;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(softmax.forward(buffers.x, dtype, buffers.y, dtype, columns, options).ok());
    benchmark::ClobberMemory();
  }
  report(state, elements);
}

void copy_case(benchmark::State& state, Dtype dtype) {
  Buffers buffers(dtype, dtype, kElements);
  for (auto _ : state) {
    std::memcpy(buffers.y.data(), buffers.x.data(), buffers.x.size());
    benchmark::ClobberMemory();
  }
  report(state, kElements);
}

void register_all() {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kF32}) {
    const std::string type(to_string(dtype));
    benchmark::RegisterBenchmark(("memcpy/" + type).c_str(), copy_case, dtype);
    for (const Fp16Kernel& kernel : fp16_kernels()) {
      if (!cpu_can_run(kernel.path)) continue;
      const std::string base = std::string(kernel.name) + "/";
      const auto add = [&](const char* name, Fp16Reduction reduction, Fp16Model model) {
        std::string full = base + name + "/";
        full += std::string(to_string(model)) + "/";
        full += type;
        benchmark::RegisterBenchmark(full.c_str(), function_case, kernel.name, name, reduction, model, dtype);
      };
      add("silu", Fp16Reduction::kNone, Fp16Model::kF32);
      if (kernel.direct) continue;  // its time depends on neither function nor model
      add("silu", Fp16Reduction::kNone, Fp16Model::kNliCpu);
      add("exp", Fp16Reduction::kExp, Fp16Model::kF32);
      add("sin", Fp16Reduction::kSin, Fp16Model::kF32);
    }
    for (const Fp16Kernel& kernel : fp16_softmax_kernels()) {
      if (!cpu_can_run(kernel.path)) continue;
      for (const int64_t columns : {64, 1024, 8192}) {
        std::string full = "softmax/" + std::string(kernel.name) + "/";
        full += type + "/" + std::to_string(columns);
        benchmark::RegisterBenchmark(full.c_str(), softmax_case, kernel.name, dtype, columns);
      }
    }
  }
}

}  // namespace
}  // namespace isobit

int main(int argc, char** argv) {
  isobit::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
