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

#include "linear/float.h"
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

#if defined(__x86_64__)
/// Fused multiply-adds on twelve registers, of zeros, since denormal numbers are slow.
#define ISOBIT_FMA(r) "vfmadd231ps %%" r ", %%" r ", %%" r "\n\t"
#define ISOBIT_MULTIPLY_ADD(name, isa, r, lanes)                                                                  \
  [[gnu::target(isa)]] void name(benchmark::State& state) {                                                       \
    for (auto _ : state)                                                                                          \
      asm volatile("vzeroall\n\tmov $1000, %%eax\n\t1:\n\t" ISOBIT_FMA(r "0") ISOBIT_FMA(r "1") ISOBIT_FMA(r "2") \
                       ISOBIT_FMA(r "3") ISOBIT_FMA(r "4") ISOBIT_FMA(r "5") ISOBIT_FMA(r "6") ISOBIT_FMA(r "7")  \
                           ISOBIT_FMA(r "8") ISOBIT_FMA(r "9") ISOBIT_FMA(r "10")                                 \
                               ISOBIT_FMA(r "11") "dec %%eax\n\tjnz 1b" ::                                        \
                                   : "eax", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \
                                     "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");       \
    state.counters["op/s"] = Counter(2.0 * 12 * 1000 * lanes, Counter::kIsIterationInvariantRate);                \
  }
ISOBIT_MULTIPLY_ADD(multiply_add_avx2, "avx2,fma", "ymm", 8)
ISOBIT_MULTIPLY_ADD(multiply_add_avx512, "avx512f", "zmm", 16)
#undef ISOBIT_FMA
#undef ISOBIT_MULTIPLY_ADD
#endif

/// Reads `bytes` over and over; what a product of one row is up against.
void read(benchmark::State& state) {
  const int64_t bytes = state.range(0);
  const Bytes memory(bytes);
  auto* const words = reinterpret_cast<uint64_t*>(memory.data);
  const int64_t count = bytes / 8;
  for (int64_t i = 0; i < count; ++i) words[i] = static_cast<uint64_t>(i);
  for (auto _ : state) {
    uint64_t sum[32] = {};
    for (int64_t i = 0; i < count; i += 32)
      for (int j = 0; j < 32; ++j) sum[j] ^= words[i + j];
    benchmark::DoNotOptimize(sum);
  }
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
#if defined(__x86_64__)
  if (isobit::cpu_can_run(CpuPath::kAvx2)) benchmark::RegisterBenchmark("multiply_add/avx2", isobit::multiply_add_avx2);
  if (isobit::cpu_can_run(CpuPath::kAvx512Vnni))
    benchmark::RegisterBenchmark("multiply_add/avx512", isobit::multiply_add_avx512);
#endif
  for (const int64_t kilobytes : {16, 512, 8192, 262144})
    benchmark::RegisterBenchmark("read", isobit::read)->Arg(kilobytes * 1024);
#define ISOBIT_FLOAT_KERNEL(name, path) isobit::register_kernel(#name, CpuPath::path);
#include "linear/float_kernels.inc"
#undef ISOBIT_FLOAT_KERNEL
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
