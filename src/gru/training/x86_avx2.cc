// SPDX-License-Identifier: Apache-2.0
#include "core/x86_intrinsics.h"
#include "gru/training/body.h"

namespace isobit {
namespace {

struct Lanes8 {
  using Lanes = __m256;
  using Mask = __m256;
  static constexpr int kLanes = 8;
  static __m256 load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, __m256 a) { _mm256_storeu_ps(p, a); }
  static __m256 set(float a) { return _mm256_set1_ps(a); }
  static __m256 load_mask(const uint8_t* p) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(bytes, _mm256_setzero_si256()));
  }
  static __m256 load_bit(const uint16_t* p, int bit) {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i one = _mm256_set1_epi32(1 << bit);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(words, one), one));
  }
  static void store_mask(uint16_t* p, __m256 mask) {
    const __m256i ones = _mm256_srli_epi32(_mm256_castps_si256(mask), 31);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(ones, ones), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(words));
  }
  static __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static __m256 sub(__m256 a, __m256 b) { return _mm256_sub_ps(a, b); }
  static __m256 mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 div(__m256 a, __m256 b) { return _mm256_div_ps(a, b); }
  static __m256 fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
  static __m256 rint(__m256 a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static __m256 abs(__m256 a) { return _mm256_andnot_ps(set(-0.0f), a); }
  static __m256 with_sign(__m256 a, __m256 b) { return _mm256_or_ps(abs(a), _mm256_and_ps(set(-0.0f), b)); }
  static __m256 less(__m256 a, __m256 b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static __m256 select(__m256 mask, __m256 a, __m256 b) { return _mm256_blendv_ps(b, a, mask); }
  static __m256 scale(__m256 a, __m256 n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
  }
};

}  // namespace

GruTrainingKernels gru_training_avx2() { return training_kernels<Lanes8, 6>(); }

}  // namespace isobit
