// SPDX-License-Identifier: Apache-2.0
// AVX-VNNI (client processors without AVX-512): one vpdpbusd is 8 rows x 4 k. 12 of the 16 registers accumulate:
// 12 x 1 for one row, 3 x 4 for many.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "product/codes_avx2.h"

namespace isobit {
namespace {

struct Vector {
  using Acc [[gnu::vector_size(32)]] = int32_t;
  using Activation = __m256i;
  using Weights = __m256i;
  static constexpr int kUnitRows = 8;
  static constexpr int kAccumulators = 12;
  static constexpr int kMaxRows = 4;
  static constexpr int kChains = 10;
  static constexpr int kRowsOfFour = kMaxRows;

  [[gnu::always_inline]] static Acc zero() { return Acc{}; }
  [[gnu::always_inline]] static Acc add(Acc a, Acc b) {
    return reinterpret_cast<Acc>(_mm256_add_epi32(bits(a), bits(b)));
  }
  [[gnu::always_inline]] static __m256i bits(Acc a) { return reinterpret_cast<__m256i>(a); }
  [[gnu::always_inline]] static Weights load(const int8_t* weights) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
  }
  [[gnu::always_inline]] static Activation broadcast(const uint8_t* u) {
    int32_t quad;
    std::memcpy(&quad, u, sizeof quad);
    return _mm256_set1_epi32(quad);
  }
  [[gnu::always_inline]] static Acc dot(Acc acc, Activation u, Weights w) {
    return reinterpret_cast<Acc>(_mm256_dpbusd_avx_epi32(bits(acc), u, w));
  }

  using Codes = CodeLanes8;

  [[gnu::always_inline]] static Acc load_start(const int32_t* start) {
    return reinterpret_cast<Acc>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(start)));
  }
  template <int kUnits>
  [[gnu::always_inline]] static void store_codes(const SumCodes& to, const Codes& codes, const Acc (&sums)[kUnits],
                                                 int64_t column, int64_t columns, uint8_t* y) {
    __m256i eights[kUnits];
    unroll<kUnits>(ISOBIT_UNROLLED(u) { eights[u] = bits(sums[u]); });
    store_eights<kUnits * kUnitRows>(to, codes, eights, column, columns, y);
  }

  template <int kPlanes>
  [[gnu::always_inline]] static void store(const int32_t* start, int32_t* out, const Acc* sums, int shift) {
    __m256i sum = bits(sums[0]);
    if constexpr (kPlanes == 2) sum = _mm256_add_epi32(sum, _mm256_slli_epi32(bits(sums[1]), 8));
    sum = _mm256_sll_epi32(sum, _mm_cvtsi32_si128(shift));
    const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(start));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_add_epi32(from, sum));
  }

  template <int kPlanes>
  [[gnu::always_inline]] static void store(const int64_t* start, int64_t* out, const Acc* sums, int shift) {
    store_half<kPlanes>(start, out, _mm256_castsi256_si128(bits(sums[0])),
                        _mm256_castsi256_si128(bits(sums[kPlanes - 1])), shift);
    store_half<kPlanes>(start + 4, out + 4, _mm256_extracti128_si256(bits(sums[0]), 1),
                        _mm256_extracti128_si256(bits(sums[kPlanes - 1]), 1), shift);
  }

  template <int kPlanes>
  [[gnu::always_inline]] static void store_half(const int64_t* start, int64_t* out, __m128i low, __m128i high,
                                                int shift) {
    __m256i sum = _mm256_cvtepi32_epi64(low);
    if constexpr (kPlanes == 2) sum = _mm256_add_epi64(sum, _mm256_slli_epi64(_mm256_cvtepi32_epi64(high), 8));
    sum = _mm256_sll_epi64(sum, _mm_cvtsi32_si128(shift));
    const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(start));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_add_epi64(from, sum));
  }
};

}  // namespace
}  // namespace isobit

#include "product/x86_body.h"

namespace isobit {

void linear_u8_s8_avxvnni(const LinearArgs& args) { run_linear(args); }

}  // namespace isobit
