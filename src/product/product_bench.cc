// SPDX-License-Identifier: Apache-2.0
// The products of a GRU step, N = 3 H and K = H, with every kernel that this machine can run: one row (a step of
// one sequence) and 32 rows. Each case checks its output once. Counters: multiply-adds times two, and weight bytes.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "product/reference.h"
#include "testing/aligned.h"

namespace isobit {
namespace {

using isobit::testing::Aligned;

template <typename T>
void product(benchmark::State& state, CpuPath path, int64_t h, int64_t m, Dtype dtype) {
  const int64_t n = 3 * h;
  std::mt19937 random(1);
  std::vector<int32_t> weights(static_cast<size_t>(n * h));
  for (int32_t& w : weights) w = static_cast<int32_t>(random() & 255) - 128;
  std::vector<uint8_t> codes(static_cast<size_t>(m * h) * size_in_bytes(dtype));
  for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random());
  const int64_t row_bytes = packed_row_bytes(dtype, h);
  const Aligned<uint8_t> packed(m * row_bytes);
  for (int64_t row = 0; row < m; ++row)
    pack_activations_row(codes.data() + static_cast<size_t>(row * h) * size_in_bytes(dtype), dtype, h,
                         packed.data + row * row_bytes);
  const LinearKernel kernel = linear_kernel(path);
  const PackedWeights w = *pack_weights(weights.data(), n, h);
  const ActivationRows rows{packed.data, row_bytes, activation_planes(dtype), m};
  const Aligned<T> start(w.padded_n());
  const Aligned<T> acc(m * w.padded_n());
  linear(kernel, w, w.all_blocks(), rows, start.data, acc.data, w.padded_n());
  std::vector<T> expected(static_cast<size_t>(m * n));
  reference_linear_product(weights.data(), codes.data(), dtype, m, n, h, start.data, expected.data());
  for (int64_t row = 0; row < m; ++row) {
    if (std::memcmp(expected.data() + row * n, acc.data + row * w.padded_n(), static_cast<size_t>(n) * sizeof(T)) !=
        0) {
      state.SkipWithError("the result differs from the reference");
      return;
    }
  }
  for (auto _ : state) {
    linear(kernel, w, w.all_blocks(), rows, start.data, acc.data, w.padded_n());
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  state.counters["op/s"] = Counter(2.0 * static_cast<double>(m * n * h), Counter::kIsIterationInvariantRate);
  state.counters["weight_bytes/s"] = Counter(static_cast<double>(w.size_bytes()), Counter::kIsIterationInvariantRate);
}

template <typename T>
void register_row(const char* name, CpuPath path, Dtype dtype) {
  if (!cpu_can_run(path)) return;
  for (const int64_t m : {1, 2, 8, 32}) {
    for (const int64_t h : {48, 96, 128, 256, 512, 1024}) {
      const std::string full = std::string(name) + "/" + std::string(to_string(dtype)) + "/" +
                               std::string(to_string(dtype_of<T>())) + "/M" + std::to_string(m) + "/H" +
                               std::to_string(h);
      benchmark::RegisterBenchmark(full.c_str(), product<T>, path, h, m, dtype);
    }
  }
}

}  // namespace
}  // namespace isobit

int main(int argc, char** argv) {
#define ISOBIT_LINEAR_KERNEL(name, path)                                           \
  isobit::register_row<int32_t>(#name, isobit::CpuPath::path, isobit::Dtype::kU8); \
  isobit::register_row<int64_t>(#name, isobit::CpuPath::path, isobit::Dtype::kU16);
#include "product/kernels.inc"
#undef ISOBIT_LINEAR_KERNEL
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
