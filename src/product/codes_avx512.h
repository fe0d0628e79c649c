// SPDX-License-Identifier: Apache-2.0
// codes.h in sixteen lanes of float32: AVX-512 F and BW.
#ifndef ISOBIT_PRODUCT_CODES_AVX512_H_
#define ISOBIT_PRODUCT_CODES_AVX512_H_

#include <cstdint>

#include "core/unroll.h"
#include "core/x86_intrinsics.h"
#include "product/codes.h"

namespace isobit {
namespace {

/// What all rows share.
struct CodeLanes16 {
  __m512 addend;
  __m512i fraction, middle, lo, hi, flip;

  [[gnu::always_inline]] explicit CodeLanes16(const SumCodes& codes)
      : addend(_mm512_set1_ps(codes.addend)),
        fraction(_mm512_set1_epi32((1 << kCodeFractionBits) - 1)),
        middle(_mm512_set1_epi16(kCodeBits + kCodeMiddle)),
        lo(_mm512_set1_epi8(static_cast<char>(codes.lo))),
        hi(_mm512_set1_epi8(static_cast<char>(codes.hi))),
        flip(_mm512_set1_epi8(static_cast<char>(codes.offset))) {}

  /// Bytes of kUnits vectors of sums as packing leaves them: four of each vector in turn. undecided: of any sum.
  template <int kUnits>
  [[gnu::always_inline]] __m512i bytes(const __m512i* sums, const __m512* ratio, __mmask16& undecided) const {
    __m512i p[4];
    undecided = 0;
    unroll<4>(ISOBIT_UNROLLED(u) {
      if constexpr (u < kUnits) {
        const __m512i bits = _mm512_castps_si512(_mm512_fmadd_round_ps(_mm512_cvtepi32_ps(sums[u]), ratio[u], addend,
                                                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        undecided |= _mm512_testn_epi32_mask(bits, fraction);
        p[u] = _mm512_srai_epi32(bits, kCodeFractionBits);
      } else {
        p[u] = p[u - 1];
      }
    });
    // Every step saturates, so that clamping at the end is enough.
    const __m512i front = _mm512_subs_epi16(_mm512_packs_epi32(p[0], p[1]), middle);
    const __m512i back = kUnits > 2 ? _mm512_subs_epi16(_mm512_packs_epi32(p[2], p[3]), middle) : front;
    return _mm512_xor_si512(_mm512_min_epu8(_mm512_max_epu8(_mm512_packus_epi16(front, back), lo), hi), flip);
  }
};

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_PRODUCT_CODES_AVX512_H_
