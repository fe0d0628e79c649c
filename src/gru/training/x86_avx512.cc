// SPDX-License-Identifier: Apache-2.0
#include "core/x86_intrinsics.h"
#include "gru/training/body.h"

namespace isobit {
namespace {

struct Lanes16 {
  using Lanes = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  static __m512 load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, __m512 a) { _mm512_storeu_ps(p, a); }
  static __m512 set(float a) { return _mm512_set1_ps(a); }
  static __mmask16 load_mask(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm_test_epi8_mask(bytes, bytes);
  }
  static __mmask16 load_bit(const uint16_t* p, int bit) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_test_epi16_mask(words, _mm256_set1_epi16(static_cast<int16_t>(1 << bit)));
  }
  static void store_mask(uint16_t* p, __mmask16 mask) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_maskz_set1_epi16(mask, 1));
  }
  static __m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static __m512 sub(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
  static __m512 mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  static __m512 div(__m512 a, __m512 b) { return _mm512_div_ps(a, b); }
  static __m512 fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
  static __m512 rint(__m512 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static __m512 abs(__m512 a) { return _mm512_andnot_ps(set(-0.0f), a); }
  static __m512 with_sign(__m512 a, __m512 b) { return _mm512_or_ps(abs(a), _mm512_and_ps(set(-0.0f), b)); }
  static __mmask16 less(__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static __m512 select(__mmask16 mask, __m512 a, __m512 b) { return _mm512_mask_blend_ps(mask, b, a); }
  static __m512 scale(__m512 a, __m512 n) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
  }
};

}  // namespace

GruTrainingKernels gru_training_avx512() { return training_kernels<Lanes16, 12>(); }

}  // namespace isobit
