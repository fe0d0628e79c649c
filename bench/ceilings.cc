// SPDX-License-Identifier: Apache-2.0
// What one core of this machine can do at best, for the limits beside benchmark tables: bytes read a second from
// footprints of 16 KiB to 64 MiB, and int8 operations a second. Built by scripts/bench.sh with -march=native; prints
// one JSON object.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace {

using Clock = std::chrono::steady_clock;

#if defined(__AVX512VNNI__)
using Vector = __m512i;
constexpr const char* kProduct = "avx512vnni";
Vector load(const uint8_t* p) { return _mm512_load_si512(p); }
Vector combine(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
Vector dot(Vector acc, Vector a, Vector b) { return _mm512_dpbusd_epi32(acc, a, b); }
#elif defined(__AVXVNNI__)
using Vector = __m256i;
constexpr const char* kProduct = "avxvnni";
Vector load(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const Vector*>(p)); }
Vector combine(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
Vector dot(Vector acc, Vector a, Vector b) { return _mm256_dpbusd_avx_epi32(acc, a, b); }
#elif defined(__AVX2__)
using Vector = __m256i;
constexpr const char* kProduct = "avx2 (vpmaddwd)";
Vector load(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const Vector*>(p)); }
Vector combine(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
Vector dot(Vector acc, Vector a, Vector b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
#else
#error "needs AVX2"
#endif

constexpr int kRegisters = 12;  // independent chains: more than latency times throughput

/// The shortest of many runs of `work`, in seconds: other work on the machine only makes a run longer.
template <typename Work>
double shortest(const Work& work) {
  double best = 1e9;
  const auto begin = Clock::now();
  while (Clock::now() - begin < std::chrono::milliseconds(300)) {
    const auto start = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

void keep(Vector v) { asm volatile("" : : "x"(v)); }

double read_bytes_per_second(const uint8_t* data, int64_t bytes) {
  const int64_t repeats = std::max<int64_t>(1, (int64_t{1} << 20) / bytes);
  const double seconds = shortest([&] {
    Vector sum[4] = {};
    for (int64_t r = 0; r < repeats; ++r)
      for (const uint8_t* p = data; p < data + bytes; p += 4 * sizeof(Vector))
        for (int i = 0; i < 4; ++i) sum[i] = combine(sum[i], load(p + static_cast<size_t>(i) * sizeof(Vector)));
    for (const Vector s : sum) keep(s);
  });
  return static_cast<double>(bytes * repeats) / seconds;
}

double operations_per_second() {
  constexpr int kRounds = 20000;
  const double seconds = shortest([] {
    Vector acc[kRegisters] = {};
    Vector a = {};
    Vector b = {};
    asm volatile("" : "+x"(a), "+x"(b));
    for (int r = 0; r < kRounds; ++r)
#pragma GCC unroll 12
      for (Vector& c : acc) c = dot(c, a, b);
    for (const Vector c : acc) keep(c);
  });
  return 2.0 * sizeof(Vector) * kRegisters * kRounds / seconds;
}

}  // namespace

int main() {
  constexpr int64_t kLargest = int64_t{64} << 20;
  const std::unique_ptr<uint8_t, decltype(&std::free)> data(
      static_cast<uint8_t*>(std::aligned_alloc(4096, static_cast<size_t>(kLargest))), &std::free);
  std::memset(data.get(), 1, static_cast<size_t>(kLargest));
  std::printf("{\"read_bytes_per_second\": {");
  for (int64_t kib : {16, 32, 192, 384, 768, 1536, 3072, 6144, 16384, 65536})
    std::printf("%s\"%lld KiB\": %.4g", kib == 16 ? "" : ", ", static_cast<long long>(kib),
                read_bytes_per_second(data.get(), kib << 10));
  std::printf("}, \"int8_operations_per_second\": %.4g, \"product\": \"%s\"}\n", operations_per_second(), kProduct);
  return 0;
}
