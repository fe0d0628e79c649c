// SPDX-License-Identifier: Apache-2.0
// AVX2 without VNNI: vpmaddubsw saturates (255 * 127 * 2 does not fit int16), so both operands are widened to
// int16 and multiplied by vpmaddwd. One weight vector is 4 rows x 4 k; its accumulator holds two halves of each
// row's sum, which are added at the end: this keeps the layout of the weights of the VNNI paths.
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
  static constexpr int kUnitRows = 4;
  static constexpr int kAccumulators = 9;  // a product and the widened operands take the rest
  static constexpr int kMaxRows = 4;
  static constexpr int kChains = 2;  // the chain is vpaddd, one cycle
  static constexpr int kRowsOfFour = kMaxRows;

  [[gnu::always_inline]] static Acc zero() { return Acc{}; }
  [[gnu::always_inline]] static Acc add(Acc a, Acc b) {
    return reinterpret_cast<Acc>(_mm256_add_epi32(bits(a), bits(b)));
  }
  [[gnu::always_inline]] static __m256i bits(Acc a) { return reinterpret_cast<__m256i>(a); }
  [[gnu::always_inline]] static Weights load(const int8_t* weights) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
  }
  [[gnu::always_inline]] static Activation broadcast(const uint8_t* u) {
    int32_t quad;
    std::memcpy(&quad, u, sizeof quad);
    return _mm256_cvtepu8_epi16(_mm_set1_epi32(quad));
  }
  [[gnu::always_inline]] static Acc dot(Acc acc, Activation u, Weights w) {
    return add(acc, reinterpret_cast<Acc>(_mm256_madd_epi16(u, w)));
  }

  /// The two halves of each row: [a0 a1 b0 b1 | c0 c1 d0 d1] -> [a b c d].
  [[gnu::always_inline]] static __m128i rows(Acc acc) {
    return _mm_hadd_epi32(_mm256_castsi256_si128(bits(acc)), _mm256_extracti128_si256(bits(acc), 1));
  }

  using Codes = CodeLanes8;

  [[gnu::always_inline]] static Acc load_start(const int32_t* start) {  // one half of each row's sum
    return reinterpret_cast<Acc>(_mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(start))));
  }
  template <int kUnits>
  [[gnu::always_inline]] static void store_codes(const SumCodes& to, const Codes& codes, const Acc (&sums)[kUnits],
                                                 int64_t column, int64_t columns, uint8_t* y) {
    __m256i eights[(kUnits + 1) / 2];
    unroll<(kUnits + 1) / 2>(ISOBIT_UNROLLED(u) {
      const __m128i first = rows(sums[2 * u]);
      eights[u] = _mm256_set_m128i(2 * u + 1 < kUnits ? rows(sums[(2 * u + 1) % kUnits]) : first, first);
    });
    store_eights<kUnits * kUnitRows>(to, codes, eights, column, columns, y);
  }

  template <int kPlanes>
  [[gnu::always_inline]] static void store(const int32_t* start, int32_t* out, const Acc* sums, int shift) {
    __m128i sum = rows(sums[0]);
    if constexpr (kPlanes == 2) sum = _mm_add_epi32(sum, _mm_slli_epi32(rows(sums[1]), 8));
    sum = _mm_sll_epi32(sum, _mm_cvtsi32_si128(shift));
    const __m128i from = _mm_loadu_si128(reinterpret_cast<const __m128i*>(start));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_add_epi32(from, sum));
  }

  template <int kPlanes>
  [[gnu::always_inline]] static void store(const int64_t* start, int64_t* out, const Acc* sums, int shift) {
    __m256i sum = _mm256_cvtepi32_epi64(rows(sums[0]));
    if constexpr (kPlanes == 2) sum = _mm256_add_epi64(sum, _mm256_slli_epi64(_mm256_cvtepi32_epi64(rows(sums[1])), 8));
    sum = _mm256_sll_epi64(sum, _mm_cvtsi32_si128(shift));
    const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(start));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_add_epi64(from, sum));
  }
};

}  // namespace
}  // namespace isobit

#include "product/x86_body.h"

namespace isobit {

void linear_u8_s8_avx2(const LinearArgs& args) { run_linear(args); }

}  // namespace isobit
