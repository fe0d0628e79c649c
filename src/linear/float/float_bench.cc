// SPDX-License-Identifier: Apache-2.0
// Linear layers with float activations, N outputs of K inputs, groups of 64, on one thread: every kernel that this
// machine can run beside the two limits of the processor, its rate of fused multiply-adds from registers and its
// bandwidth of reading. Each case compares its last output with float64. Counters: multiply-adds times two, weight
// bytes.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bench/ceilings.h"
#include "linear/float/float.h"
#include "testing/aligned.h"

namespace isobit {
namespace {

using benchmark::Counter;

using Bytes = isobit::testing::Aligned<std::byte>;

Result<LowBitMatrix> random_matrix(int64_t n, int64_t k, int bits, LowBitKind kind) {
  std::mt19937_64 random(1);
  LowBitParameters p;
  p.rows = n;
  p.columns = k;
  p.bits = bits;
  p.group = 64;
  p.kind = kind;
  const int64_t groups = k / p.group;
  p.codes = Array::zeros(Dtype::kU8, {n, k * bits / 8});
  for (size_t i = 0; i + 8 <= p.codes.bytes.size(); i += 8) {
    const uint64_t eight = random();
    std::memcpy(p.codes.bytes.data() + i, &eight, sizeof eight);
  }
  p.scales = Array::zeros(Dtype::kF16, {n, groups});
  for (int64_t i = 0; i < n * groups; ++i)
    p.scales.data<uint16_t>()[i] = static_cast<uint16_t>(0x2000 + random() % 512);
  if (kind == LowBitKind::kOffset) p.offsets = p.scales;
  if (kind == LowBitKind::kZeroPoint) {
    p.zero_points = Array::zeros(bits == 8 ? Dtype::kU16 : Dtype::kU8, {n, groups});
    for (std::byte& z : p.zero_points.bytes) z = static_cast<std::byte>(bits == 8 ? 0 : random() % (1u << bits));
  }
  return LowBitMatrix::create(std::move(p), "W");
}

void layer(benchmark::State& state, CpuPath path, int bits, LowBitKind kind, int64_t n, int64_t k, int64_t m) {
  const Result<LowBitMatrix> matrix = random_matrix(n, k, bits, kind);
  if (!matrix.ok()) return state.SkipWithError(std::string(matrix.status().message()).c_str());
  const PackedFloatWeights weights = *pack_float_weights(*matrix);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(m * k));
  for (float& value : x) value = normal(random);
  std::vector<float> y(static_cast<size_t>(m * n));
  const Bytes workspace(float_linear_workspace_bytes(weights, m));
  const FloatRows rows{x.data(), y.data(), Dtype::kF32, k, n, m};
  const float infinity = std::numeric_limits<float>::infinity();
  const FloatLinearKernel kernel = float_linear_kernel(path);
  for (auto _ : state) {
    float_linear(kernel, weights, weights.all_blocks(), rows, {nullptr, -infinity, infinity}, workspace.data);
    benchmark::ClobberMemory();
  }
  double expected = 0;
  double squares = 0;
  for (int64_t i = 0; i < k; ++i) {
    const double w = static_cast<double>(matrix->scale(n - 1, i / 64)) * matrix->value(n - 1, i) +
                     static_cast<double>(matrix->offset(n - 1, i / 64));
    const double product = w * static_cast<double>(x[static_cast<size_t>((m - 1) * k + i)]);
    expected += product;
    squares += product * product;
  }
  if (!(std::abs(static_cast<double>(y.back()) - expected) <= 1e-4 * std::sqrt(squares)))
    return state.SkipWithError("the result is wrong");
  state.counters["op/s"] = Counter(2.0 * static_cast<double>(m * n * k), Counter::kIsIterationInvariantRate);
  state.counters["weight_bytes/s"] =
      Counter(static_cast<double>(weights.size_bytes()), Counter::kIsIterationInvariantRate);
}

void multiply_add(benchmark::State& state, const ceilings::Product& product) {
  for (auto _ : state) product.run();
  state.counters["op/s"] = Counter(static_cast<double>(product.operations), Counter::kIsIterationInvariantRate);
}

/// Reads `bytes` over and over; what a product of one row is up against.
void read(benchmark::State& state) {
  const int64_t bytes = state.range(0);
  ceilings::Memory memory(bytes);
  for (auto _ : state) benchmark::DoNotOptimize(memory.read(bytes));
  state.counters["bytes/s"] = Counter(static_cast<double>(bytes), Counter::kIsIterationInvariantRate);
}

void register_kernel(const char* name, CpuPath path) {
  if (!cpu_can_run(path)) return;
  constexpr int64_t kShapes[][2] = {{256, 1024}, {4096, 4096}, {14336, 4096}};
  for (const auto& [n, k] : kShapes) {
    if (path == CpuPath::kScalar && n > 256) continue;
    for (const int bits : {1, 2, 4, 8}) {
      for (const LowBitKind kind : {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset}) {
        if (kind != LowBitKind::kSymmetric && (n != 4096 || bits == 1)) continue;
        for (const int64_t m : {1, 2, 4, 8, 16, 64, 256}) {
          const std::string full = std::string(name) + "/" + std::to_string(bits) + "bit/" +
                                   std::string(to_string(kind)) + "/N" + std::to_string(n) + "/K" + std::to_string(k) +
                                   "/M" + std::to_string(m);
          benchmark::RegisterBenchmark(full.c_str(), layer, path, bits, kind, n, k, m);
        }
      }
    }
  }
}

}  // namespace
}  // namespace isobit

int main(int argc, char** argv) {
  using isobit::CpuPath;
  for (const isobit::ceilings::Product& product : isobit::ceilings::products())
    if (!product.integers && isobit::cpu_can_run(product.path))
      benchmark::RegisterBenchmark(("multiply_add/" + std::string(product.name)).c_str(), isobit::multiply_add,
                                   product);
  for (const int64_t kilobytes : {16, 512, 8192, 262144})
    benchmark::RegisterBenchmark("read", isobit::read)->Arg(kilobytes * 1024);
#define ISOBIT_FLOAT_KERNEL(name, path) isobit::register_kernel(#name, CpuPath::path);
#include "linear/float/kernels.inc"
#undef ISOBIT_FLOAT_KERNEL
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
