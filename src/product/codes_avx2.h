// SPDX-License-Identifier: Apache-2.0
// codes.h in eight lanes of float32: AVX2 and FMA.
#ifndef ISOBIT_PRODUCT_CODES_AVX2_H_
#define ISOBIT_PRODUCT_CODES_AVX2_H_

#include <cstdint>
#include <cstring>

#include "core/unroll.h"
#include "core/x86_intrinsics.h"
#include "product/codes.h"

namespace isobit {
namespace {

/// What all rows share.
struct CodeLanes8 {
  __m256 addend;
  __m256i fraction, middle, lo, hi, flip;

  [[gnu::always_inline]] explicit CodeLanes8(const SumCodes& codes)
      : addend(_mm256_set1_ps(codes.addend)),
        fraction(_mm256_set1_epi32((1 << kCodeFractionBits) - 1)),
        middle(_mm256_set1_epi16(kCodeBits + kCodeMiddle)),
        lo(_mm256_set1_epi8(static_cast<char>(codes.lo))),
        hi(_mm256_set1_epi8(static_cast<char>(codes.hi))),
        flip(_mm256_set1_epi8(static_cast<char>(codes.offset))) {}

  /// Bytes of kEights vectors of sums as packing leaves them: four of each vector in turn. undecided: of any sum.
  template <int kEights>
  [[gnu::always_inline]] __m256i bytes(const __m256i* sums, const __m256* ratio, bool& undecided) const {
    __m256i p[4];
    __m256i none = _mm256_setzero_si256();
    unroll<4>(ISOBIT_UNROLLED(u) {
      if constexpr (u < kEights) {
        const __m256i bits = _mm256_castps_si256(_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[u]), ratio[u], addend));
        none = _mm256_or_si256(none, _mm256_cmpeq_epi32(_mm256_and_si256(bits, fraction), _mm256_setzero_si256()));
        p[u] = _mm256_srai_epi32(bits, kCodeFractionBits);
      } else {
        p[u] = p[u - 1];
      }
    });
    undecided = _mm256_testz_si256(none, none) == 0;
    // Every step saturates, so that clamping at the end is enough.
    const __m256i front = _mm256_subs_epi16(_mm256_packs_epi32(p[0], p[1]), middle);
    const __m256i back = kEights > 2 ? _mm256_subs_epi16(_mm256_packs_epi32(p[2], p[3]), middle) : front;
    return _mm256_xor_si256(_mm256_min_epu8(_mm256_max_epu8(_mm256_packus_epi16(front, back), lo), hi), flip);
  }
};

[[gnu::always_inline]] inline void store_first(__m256i bytes, int64_t count, uint8_t* y) {
  alignas(32) uint8_t codes[32];
  _mm256_store_si256(reinterpret_cast<__m256i*>(codes), bytes);
  std::memcpy(y, codes, static_cast<size_t>(count));
}

/// The codes of kColumns sums, a multiple of 4, of which `columns` exist, from `column` on. Of an odd number of fours
/// the last vector has one twice.
template <int kColumns>
[[gnu::always_inline]] inline void store_eights(const SumCodes& to, const CodeLanes8& lanes, const __m256i* sums,
                                                int64_t column, int64_t columns, uint8_t* y) {
  constexpr int kEights = (kColumns + 7) / 8;
  __m256 ratio[kEights];
  unroll<kEights>(ISOBIT_UNROLLED(u) {
    const float* const from = to.ratio + column + 8 * u;
    if constexpr (8 * u + 8 <= kColumns) {
      ratio[u] = _mm256_loadu_ps(from);
    } else {
      ratio[u] = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(from));
    }
  });
  bool undecided = false;
  const __m256i bytes = _mm256_permutevar8x32_epi32(lanes.bytes<kEights>(sums, ratio, undecided),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  if (undecided) [[unlikely]] {
    alignas(32) int32_t whole[32];
    unroll<kEights>(ISOBIT_UNROLLED(u) { _mm256_store_si256(reinterpret_cast<__m256i*>(whole + 8 * u), sums[u]); });
    return to.exact(to.context, whole, column, columns, y);
  }
  if (columns < 8 * kEights || kEights == 3) return store_first(bytes, columns, y);
  const __m128i first = _mm256_castsi256_si128(bytes);
  if constexpr (kEights == 1) _mm_storel_epi64(reinterpret_cast<__m128i*>(y), first);
  if constexpr (kEights == 2) _mm_storeu_si128(reinterpret_cast<__m128i*>(y), first);
  if constexpr (kEights == 4) _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), bytes);
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_PRODUCT_CODES_AVX2_H_
