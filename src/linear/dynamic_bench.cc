// SPDX-License-Identifier: Apache-2.0
// Products with 8-bit activations, beside what bounds them on this processor: reading (a plain loop over as many bytes
// as the weights that rotate) and the dot product instruction (registers only). One thread.
//   weight_bytes/s of a product with M = 1 compares with bytes/s of read of the same footprint,
//   op/s (multiply-adds times two) of M = 256 with op/s of peak.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "linear/dynamic.h"
#include "linear/low_bit_parts.h"
#include "linear/static_product.h"

namespace isobit {
namespace {

template <typename T>
struct Aligned {
  explicit Aligned(int64_t count)
      : data(static_cast<T*>(::operator new[](static_cast<size_t>(count) * sizeof(T), std::align_val_t{64}))) {
    std::memset(static_cast<void*>(data), 0, static_cast<size_t>(count) * sizeof(T));
  }
  ~Aligned() { ::operator delete[](data, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  T* data;
};

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
  const DynamicKernels& kernels = *dynamic_kernels(path);
  const LowBitMatrix matrix = random_matrix(n, k, bits, group, Dtype::kF16);
  const PackedLowBit w = pack_low_bit(matrix, false, "W").value();
  const int64_t copies = std::max<int64_t>(1, (bytes + w.size_bytes() - 1) / w.size_bytes());
  const Aligned<uint8_t> weights(copies * w.size_bytes());
  for (int64_t i = 0; i < copies; ++i)
    std::memcpy(weights.data + i * w.size_bytes(), w.data(), static_cast<size_t>(w.size_bytes()));
  Random random(2);
  std::vector<float> x(static_cast<size_t>(k));
  const Aligned<int8_t> codes(m * w.code_bytes());
  const Aligned<DynamicGroup> groups(m * w.groups());
  for (int64_t row = 0; row < m; ++row) {
    for (float& value : x) value = static_cast<float>(random.between(-1000, 1000));
    quantize_row(kernels, w, x.data(), Dtype::kF32, codes.data + row * w.code_bytes(), groups.data + row * w.groups());
  }
  const Aligned<float> y(m * w.padded_rows());
  const Aligned<uint8_t> scratch(w.scratch_bytes());
  DynamicProductArgs args{.layout = w.layout(),
                          .weights = weights.data,
                          .tiles = w.tiles(),
                          .codes = codes.data,
                          .code_stride = w.code_bytes(),
                          .x_groups = groups.data,
                          .group_stride = w.groups(),
                          .m = m,
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
  const StaticOutput output(std::vector<int32_t>(count, 1500000001), std::vector<int32_t>(count, 43),
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
  const DynamicKernels& kernels = *dynamic_kernels(path);
  const PackedLowBit w = pack_low_bit(random_matrix(1, k, 4, group, Dtype::kF16), false, "W").value();
  Random random(3);
  std::vector<float> x(static_cast<size_t>(k));
  for (float& value : x) value = static_cast<float>(random.between(-1000, 1000));
  const Aligned<int8_t> codes(w.code_bytes());
  const Aligned<DynamicGroup> groups(w.groups());
  for (auto _ : state) {
    benchmark::DoNotOptimize(quantize_row(kernels, w, x.data(), Dtype::kF32, codes.data, groups.data));
    benchmark::ClobberMemory();
  }
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(k), benchmark::Counter::kIsIterationInvariantRate);
}

using Wide [[gnu::vector_size(32)]] = uint64_t;

/// Plain loads of four streams, two cache lines of each at a time, prefetched: of one, two and four streams with
/// distances of 0 to 8 KiB this loop reads memory fastest.
#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
uint64_t
sum_of(const Wide* from, int64_t count) {
  constexpr int64_t kStep = 4;
  constexpr int64_t kPrefetch = 2048 / static_cast<int64_t>(sizeof(Wide));
  const int64_t stream = count / 4;
  Wide sums[kStep] = {};
  for (int64_t i = 0; i + kStep <= stream; i += kStep)
    for (int64_t j = 0; j < 4; ++j) {
      const Wide* at = from + j * stream + i;
      __builtin_prefetch(at + kPrefetch);
      __builtin_prefetch(at + kPrefetch + kStep / 2);
      for (int64_t lane = 0; lane < kStep; ++lane) sums[lane] ^= at[lane];
    }
  const Wide all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return all[0] ^ all[1] ^ all[2] ^ all[3];
}

void read(benchmark::State& state, int64_t bytes, int64_t at_a_time) {
  const Aligned<uint8_t> memory(bytes);
  std::memset(memory.data, 1, static_cast<size_t>(bytes));
  int64_t offset = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        sum_of(reinterpret_cast<const Wide*>(memory.data + offset), at_a_time / static_cast<int64_t>(sizeof(Wide))));
    offset += at_a_time;
    if (offset + at_a_time > bytes) offset = 0;
  }
  state.counters["bytes/s"] =
      benchmark::Counter(static_cast<double>(at_a_time), benchmark::Counter::kIsIterationInvariantRate);
}

/// The dot product instruction alone, on registers.
#if defined(__x86_64__)
using Ints [[gnu::vector_size(64)]] = int32_t;
__attribute__((target("avx512f,avx512vnni"))) void vnni_peak(benchmark::State& state) {
  Ints acc[16] = {};
  Ints w = Ints{} + 0x01020304;
  Ints a = Ints{} + 0x04030201;
  constexpr int64_t kRounds = 4096;
  for (auto _ : state) {
    for (int64_t i = 0; i < kRounds; ++i) {
      // Sixteen chains: latency does not show.
#define ISOBIT_DOT(j) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(acc[j]) : "v"(w), "v"(a))
      ISOBIT_DOT(0);
      ISOBIT_DOT(1);
      ISOBIT_DOT(2);
      ISOBIT_DOT(3);
      ISOBIT_DOT(4);
      ISOBIT_DOT(5);
      ISOBIT_DOT(6);
      ISOBIT_DOT(7);
      ISOBIT_DOT(8);
      ISOBIT_DOT(9);
      ISOBIT_DOT(10);
      ISOBIT_DOT(11);
      ISOBIT_DOT(12);
      ISOBIT_DOT(13);
      ISOBIT_DOT(14);
      ISOBIT_DOT(15);
#undef ISOBIT_DOT
    }
  }
  state.counters["op/s"] = benchmark::Counter(2.0 * 64.0 * 16.0 * static_cast<double>(kRounds),
                                              benchmark::Counter::kIsIterationInvariantRate);
}
#endif

void register_path(CpuPath path) {
  if (dynamic_kernels(path) == nullptr) return;
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
    benchmark::RegisterBenchmark(("read/" + std::to_string(bytes)).c_str(), isobit::read, bytes,
                                 std::min(bytes, int64_t{1} << 25));
#if defined(__x86_64__)
  if (isobit::cpu_can_run(isobit::CpuPath::kAvx512Vnni))
    benchmark::RegisterBenchmark("peak/avx512vnni", isobit::vnni_peak);
#endif
#define ISOBIT_DYNAMIC_KERNELS(path, name) isobit::register_path(isobit::CpuPath::path);
#include "linear/dynamic_kernels.inc"
#undef ISOBIT_DYNAMIC_KERNELS
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
