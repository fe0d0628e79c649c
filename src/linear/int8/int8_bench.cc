// SPDX-License-Identifier: Apache-2.0
// Products with 8-bit activations, beside what bounds them on this processor (bench/ceilings.h): reading as many bytes
// as the weights that rotate, and the instruction that multiplies. One thread.
//   weight_bytes/s of a product with M = 1 compares with bytes/s of read of the same footprint,
//   op/s (multiply-adds times two) of M = 256 with op/s of peak.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "bench/ceilings.h"
#include "core/half.h"
#include "core/random.h"
#include "linear/int8/int8.h"
#include "linear/static/static.h"
#include "low_bit/parts.h"
#include "testing/aligned.h"

namespace isobit {
namespace {

using isobit::testing::Aligned;

LowBitMatrix random_matrix(int64_t rows, int64_t columns, int bits, int64_t group, Dtype scales) {
  Random random(1);
  LowBitParameters p;
  p.rows = rows;
  p.columns = columns;
  p.bits = bits;
  p.group = group;
  p.codes = Array::zeros(Dtype::kU8, {rows, low_bit_row_bytes(columns, bits)});
  for (int64_t i = 0; i < p.codes.size(); ++i) p.codes.data<uint8_t>()[i] = static_cast<uint8_t>(random.next());
  p.scales = Array::zeros(scales, {rows, low_bit_groups(columns, group)});
  for (int64_t i = 0; i < p.scales.size(); ++i) {
    const float scale = static_cast<float>(random.between(1, 1000)) * 0x1p-10f;
    if (scales == Dtype::kF32) {
      p.scales.data<float>()[i] = scale;
    } else {
      p.scales.data<uint16_t>()[i] = f32_to_f16(scale);
    }
  }
  return LowBitMatrix::create(std::move(p), "W").value();
}

/// `bytes`: at least this many bytes of weights take turns.
void product(benchmark::State& state, CpuPath path, int64_t n, int64_t k, int bits, int64_t group, int64_t m,
             int64_t bytes) {
  const Int8Kernels& kernels = *int8_kernels(path);
  const LowBitMatrix matrix = random_matrix(n, k, bits, group, Dtype::kF16);
  const PackedLowBit w = pack_low_bit(matrix, false, "W").value();
  const int64_t copies = std::max<int64_t>(1, (bytes + w.size_bytes() - 1) / w.size_bytes());
  const Aligned<uint8_t> weights(copies * w.size_bytes());
  for (int64_t i = 0; i < copies; ++i)
    std::memcpy(weights.data + i * w.size_bytes(), w.data(), static_cast<size_t>(w.size_bytes()));
  Random random(2);
  std::vector<float> x(static_cast<size_t>(k));
  const Aligned<int8_t> codes(m * w.code_bytes());
  const Aligned<Int8Group> groups(m * w.groups());
  for (int64_t row = 0; row < m; ++row) {
    for (float& value : x) value = static_cast<float>(random.between(-1000, 1000));
    quantize_row(kernels, w, x.data(), Dtype::kF32, codes.data + row * w.code_bytes(), groups.data + row * w.groups());
  }
  const Aligned<float> y(m * w.padded_rows());
  const std::vector<float> bias(static_cast<size_t>(w.padded_rows()));
  const Aligned<uint8_t> scratch(w.scratch_bytes());
  Int8ProductArgs args{.layout = w.layout(),
                       .weights = weights.data,
                       .tiles = w.tiles(),
                       .codes = codes.data,
                       .code_stride = w.code_bytes(),
                       .x_groups = groups.data,
                       .group_stride = w.groups(),
                       .m = m,
                       .count = n,
                       .bias = bias.data(),
                       .lo = -std::numeric_limits<float>::infinity(),
                       .hi = std::numeric_limits<float>::infinity(),
                       .y = y.data,
                       .y_stride = w.padded_rows(),
                       .scratch = scratch.data};
  for (auto _ : state) {
    kernels.product(args);
    args.weights += w.size_bytes();
    if (args.weights == weights.data + copies * w.size_bytes()) args.weights = weights.data;
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  state.counters["op/s"] = Counter(2.0 * static_cast<double>(m * n * k), Counter::kIsIterationInvariantRate);
  state.counters["weight_bytes/s"] = Counter(static_cast<double>(w.size_bytes()), Counter::kIsIterationInvariantRate);
}

/// Section 12: codes in, codes out.
void static_codes(benchmark::State& state, CpuPath path, int64_t n, int64_t k, int64_t m) {
  Random random(4);
  std::vector<int32_t> weights(static_cast<size_t>(n * k));
  for (int32_t& v : weights) v = static_cast<int32_t>(random.between(-128, 127));
  const PackedWeights w = pack_weights(weights.data(), n, k).value();
  const Aligned<uint8_t> x(m * packed_row_bytes(Dtype::kU8, k));
  for (int64_t i = 0; i < m * packed_row_bytes(Dtype::kU8, k); ++i) x.data[i] = static_cast<uint8_t>(random.next());
  const Aligned<int32_t> start(w.padded_n());
  const auto count = static_cast<size_t>(n);
  const StaticOutput output(std::vector<RescaleParameters>(count, {1500000001, 43}),
                            std::vector<int64_t>(count, k * 255 * 128), Rounding::kNearestEven, 3, -128, 127);
  const Aligned<uint8_t> y(m * n);
  const Aligned<int32_t> scratch(kStaticScratch);
  for (auto _ : state) {
    static_product<int32_t>(linear_kernel(path), static_rescale(path), w, w.all_blocks(),
                            {x.data, packed_row_bytes(Dtype::kU8, k), 1, m}, start.data, output, y.data, n,
                            scratch.data);
    benchmark::ClobberMemory();
  }
  state.counters["op/s"] =
      benchmark::Counter(2.0 * static_cast<double>(m * n * k), benchmark::Counter::kIsIterationInvariantRate);
}

void quantize(benchmark::State& state, CpuPath path, int64_t k, int64_t group) {
  const Int8Kernels& kernels = *int8_kernels(path);
  const PackedLowBit w = pack_low_bit(random_matrix(1, k, 4, group, Dtype::kF16), false, "W").value();
  Random random(3);
  std::vector<float> x(static_cast<size_t>(k));
  for (float& value : x) value = static_cast<float>(random.between(-1000, 1000));
  const Aligned<int8_t> codes(w.code_bytes());
  const Aligned<Int8Group> groups(w.groups());
  for (auto _ : state) {
    benchmark::DoNotOptimize(quantize_row(kernels, w, x.data(), Dtype::kF32, codes.data, groups.data));
    benchmark::ClobberMemory();
  }
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(k), benchmark::Counter::kIsIterationInvariantRate);
}

void read(benchmark::State& state, int64_t bytes) {
  ceilings::Memory memory(bytes);
  const int64_t at_a_time = std::min(bytes, int64_t{1} << 25);
  for (auto _ : state) benchmark::DoNotOptimize(memory.read(at_a_time));
  state.counters["bytes/s"] =
      benchmark::Counter(static_cast<double>(at_a_time), benchmark::Counter::kIsIterationInvariantRate);
}

void peak(benchmark::State& state, const ceilings::Product& product) {
  for (auto _ : state) product.run();
  state.counters["op/s"] =
      benchmark::Counter(static_cast<double>(product.operations), benchmark::Counter::kIsIterationInvariantRate);
}

void register_path(CpuPath path) {
  if (int8_kernels(path) == nullptr) return;
  const std::string prefix = std::string(to_string(path)) + "/";
  for (const int64_t group : {64, 4096})
    benchmark::RegisterBenchmark((prefix + "quantize/K4096/g" + std::to_string(group)).c_str(), quantize, path, 4096,
                                 group);
  for (const int64_t size : {256, 1024, 4096})
    for (const int64_t m : {1, 16, 256})
      benchmark::RegisterBenchmark(
          (prefix + "static/N" + std::to_string(size) + "/K" + std::to_string(size) + "/M" + std::to_string(m)).c_str(),
          static_codes, path, size, size, m)
          ->Unit(benchmark::kMicrosecond);
  if (int8_kernels(path)->tiled != nullptr) return;  // its rows are not tiled here: isobit bench linear times it
  // 1 GiB of weights takes turns at the largest size, more than caches hold.
  struct Size {
    int64_t n, k, footprint;
  };
  for (const Size size : {Size{256, 1024, 0}, Size{4096, 4096, 0}, Size{14336, 4096, int64_t{1} << 30}})
    for (const int bits : {8, 4, 2, 1})
      for (const int64_t group : {64, 128})
        for (const int64_t m : {1, 4, 16, 256}) {
          if (path == CpuPath::kScalar && size.k > 1024) continue;
          const std::string name = prefix + "W" + std::to_string(bits) + "/g" + std::to_string(group) + "/N" +
                                   std::to_string(size.n) + "/K" + std::to_string(size.k) + "/M" + std::to_string(m);
          benchmark::RegisterBenchmark(name.c_str(), product, path, size.n, size.k, bits, group, m,
                                       m == 1 ? size.footprint : int64_t{0})
              ->Unit(benchmark::kMicrosecond);
        }
}

}  // namespace
}  // namespace isobit

int main(int argc, char** argv) {
  for (const int64_t bytes : {int64_t{1} << 14, int64_t{1} << 20, int64_t{1} << 30})
    benchmark::RegisterBenchmark(("read/" + std::to_string(bytes)).c_str(), isobit::read, bytes);
  for (const isobit::ceilings::Product& product : isobit::ceilings::products())
    if (product.integers && isobit::cpu_can_run(product.path))
      benchmark::RegisterBenchmark(("peak/" + std::string(product.name)).c_str(), isobit::peak, product);
#define ISOBIT_INT8_KERNELS(path, name) isobit::register_path(isobit::CpuPath::path);
#include "linear/int8/kernels.inc"
#undef ISOBIT_INT8_KERNELS
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
