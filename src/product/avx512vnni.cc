// SPDX-License-Identifier: Apache-2.0
// AVX-512 VNNI: one vpdpbusd is 16 rows x 4 k. 24 of the 32 registers accumulate: 12 x 1 for one row, 3 x 8 for
// many; the rest hold the broadcast activations and, where they are used more than once, the weights.
#include <cstdint>
#include <cstring>

#include "core/x86_intrinsics.h"
#include "product/codes_avx512.h"

namespace isobit {
namespace {

struct Vector {
  using Acc [[gnu::vector_size(64)]] = int32_t;
  using Activation = __m512i;
  using Weights = __m512i;
  static constexpr int kUnitRows = 16;
  static constexpr int kAccumulators = 24;
  static constexpr int kMaxRows = 8;
  static constexpr int kChains = 10;
  static constexpr int kRowsOfFour = 6;

  [[gnu::always_inline]] static Acc zero() { return Acc{}; }
  [[gnu::always_inline]] static Acc add(Acc a, Acc b) {
    return reinterpret_cast<Acc>(_mm512_add_epi32(bits(a), bits(b)));
  }
  [[gnu::always_inline]] static __m512i bits(Acc a) { return reinterpret_cast<__m512i>(a); }
  [[gnu::always_inline]] static Weights load(const int8_t* weights) { return _mm512_loadu_si512(weights); }
  [[gnu::always_inline]] static Activation broadcast(const uint8_t* u) {
    int32_t quad;
    std::memcpy(&quad, u, sizeof quad);
    return _mm512_set1_epi32(quad);
  }
  [[gnu::always_inline]] static Acc dot(Acc acc, Activation u, Weights w) {
    return reinterpret_cast<Acc>(_mm512_dpbusd_epi32(bits(acc), u, w));
  }

  template <int kPlanes>
  [[gnu::always_inline]] static void store(const int32_t* start, int32_t* out, const Acc* sums, int shift) {
    __m512i sum = bits(sums[0]);
    if constexpr (kPlanes == 2) sum = _mm512_add_epi32(sum, _mm512_slli_epi32(bits(sums[1]), 8));
    sum = _mm512_sll_epi32(sum, _mm_cvtsi32_si128(shift));
    _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_loadu_si512(start), sum));
  }

  template <int kPlanes>
  [[gnu::always_inline]] static void store(const int64_t* start, int64_t* out, const Acc* sums, int shift) {
    store_half<kPlanes>(start, out, _mm512_castsi512_si256(bits(sums[0])),
                        _mm512_castsi512_si256(bits(sums[kPlanes - 1])), shift);
    store_half<kPlanes>(start + 8, out + 8, _mm512_extracti64x4_epi64(bits(sums[0]), 1),
                        _mm512_extracti64x4_epi64(bits(sums[kPlanes - 1]), 1), shift);
  }

  using Codes = CodeLanes16;

  [[gnu::always_inline]] static Acc load_start(const int32_t* start) {
    return reinterpret_cast<Acc>(_mm512_loadu_si512(start));
  }
  template <int kUnits>
  [[gnu::always_inline]] static void store_codes(const SumCodes& to, const Codes& codes, const Acc (&sums)[kUnits],
                                                 int64_t column, int64_t columns, uint8_t* y) {
    // Four bytes of every unit in turn to 16 of each.
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i lanes[kUnits];
    __m512 ratio[kUnits];
    unroll<kUnits>(ISOBIT_UNROLLED(u) {
      lanes[u] = bits(sums[u]);
      ratio[u] = _mm512_loadu_ps(to.ratio + column + kUnitRows * u);
    });
    __mmask16 undecided = 0;
    const __m512i bytes = _mm512_permutexvar_epi32(in_order, codes.bytes<kUnits>(lanes, ratio, undecided));
    if (undecided != 0) [[unlikely]] {
      alignas(64) int32_t whole[kUnits * kUnitRows];
      unroll<kUnits>(ISOBIT_UNROLLED(u) { _mm512_store_si512(whole + kUnitRows * u, lanes[u]); });
      return to.exact(to.context, whole, column, columns, y);
    }
    if (columns < kUnits * kUnitRows) return _mm512_mask_storeu_epi8(y, ~uint64_t{0} >> (64 - columns), bytes);
    if constexpr (kUnits == 4) return _mm512_storeu_si512(y, bytes);
    if constexpr (kUnits >= 2) _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(bytes));
    if constexpr (kUnits % 2 == 1)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + 16 * (kUnits - 1)), _mm512_extracti32x4_epi32(bytes, kUnits - 1));
  }

  template <int kPlanes>
  [[gnu::always_inline]] static void store_half(const int64_t* start, int64_t* out, __m256i low, __m256i high,
                                                int shift) {
    __m512i sum = _mm512_cvtepi32_epi64(low);
    if constexpr (kPlanes == 2) sum = _mm512_add_epi64(sum, _mm512_slli_epi64(_mm512_cvtepi32_epi64(high), 8));
    sum = _mm512_sll_epi64(sum, _mm_cvtsi32_si128(shift));
    _mm512_storeu_si512(out, _mm512_add_epi64(_mm512_loadu_si512(start), sum));
  }
};

}  // namespace
}  // namespace isobit

#include "product/x86_body.h"

namespace isobit {

void linear_u8_s8_avx512vnni(const LinearArgs& args) { run_linear(args); }

}  // namespace isobit
