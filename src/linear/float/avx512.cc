// SPDX-License-Identifier: Apache-2.0
// AVX-512: a vector is a tile of 16 outputs. Codes of up to four bits are indices of a vpermps, which ignores the bits
// above: a shift, a look-up and a multiply-add for 16 weights.
#include <cstdint>

#include "core/hd.h"
#include "core/x86_intrinsics.h"
#include "isobit/dtype.h"

namespace isobit {
namespace {

struct Vector {
  using Floats = __m512;
  using Words = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kUnits = 4;
#if defined(ISOBIT_FLOAT_FEW_ROWS)
  static constexpr int kFewRows = ISOBIT_FLOAT_FEW_ROWS;  // fewer tiles to compile
#else
  static constexpr int kFewRows = 8;
#endif
  static constexpr int kFewSums = 24;
  static constexpr int kPanelRows = 14, kPanelSums = 28;
  static constexpr int kLookUpBits = 4;

  ISOBIT_HD static Floats zero() { return _mm512_setzero_ps(); }
  ISOBIT_HD static Floats set(float x) { return _mm512_set1_ps(x); }
  ISOBIT_HD static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  ISOBIT_HD static void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
  ISOBIT_HD static void store_fours(float* p, int64_t stride, Floats a) {
    _mm_storeu_ps(p, _mm512_castps512_ps128(a));
    _mm_storeu_ps(p + stride, _mm512_extractf32x4_ps(a, 1));
    _mm_storeu_ps(p + 2 * stride, _mm512_extractf32x4_ps(a, 2));
    _mm_storeu_ps(p + 3 * stride, _mm512_extractf32x4_ps(a, 3));
  }
  ISOBIT_HD static void store_rows(float* p, int64_t stride, const Floats (&a)[4]) {
    const Floats low01 = _mm512_shuffle_f32x4(a[0], a[1], 0x44), high01 = _mm512_shuffle_f32x4(a[0], a[1], 0xEE);
    const Floats low23 = _mm512_shuffle_f32x4(a[2], a[3], 0x44), high23 = _mm512_shuffle_f32x4(a[2], a[3], 0xEE);
    store(p, _mm512_shuffle_f32x4(low01, low23, 0x88));
    store(p + stride, _mm512_shuffle_f32x4(low01, low23, 0xDD));
    store(p + 2 * stride, _mm512_shuffle_f32x4(high01, high23, 0x88));
    store(p + 3 * stride, _mm512_shuffle_f32x4(high01, high23, 0xDD));
  }
  ISOBIT_HD static Words load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  template <int kCount>
  ISOBIT_HD static Words shift_right(Words a) {
    return kCount == 0 ? a : _mm512_srli_epi32(a, kCount);
  }
  ISOBIT_HD static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  ISOBIT_HD static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  ISOBIT_HD static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  ISOBIT_HD static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  ISOBIT_HD static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  ISOBIT_HD static Floats one_nan(Floats a) {
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), set(__builtin_nanf("")));
  }
  ISOBIT_HD static Floats load_table(const float* values) { return _mm512_loadu_ps(values); }
  ISOBIT_HD static Floats look_up(Floats table, Words index) { return _mm512_permutexvar_ps(index, table); }
  ISOBIT_HD static Floats select(Words word, uint32_t mask, float bits) {
    constexpr int kAndOr = 0xEA;  // (a & b) | c
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(word, _mm512_set1_epi32(static_cast<int>(mask)),
                                                         _mm512_castps_si512(_mm512_set1_ps(bits)), kAndOr));
  }

  template <Dtype kDtype>
  ISOBIT_HD static Floats load_as(const void* from, int64_t index) {
    if constexpr (kDtype == Dtype::kF32) return load(static_cast<const float*>(from) + index);
    const __m256i half =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const unsigned char*>(from) + 2 * index));
    if constexpr (kDtype == Dtype::kF16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }

  template <Dtype kDtype>
  ISOBIT_HD static void store_as(void* to, int64_t index, Floats a) {
    if constexpr (kDtype == Dtype::kF32) return store(static_cast<float*>(to) + index, a);
    __m256i* const half = reinterpret_cast<__m256i*>(static_cast<unsigned char*>(to) + 2 * index);
    if constexpr (kDtype == Dtype::kF16)
      return _mm256_storeu_si256(half, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    const __m512i bits = _mm512_castps_si512(a);  // to nearest even, as core/half.h
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_blend_epi32(nan, rounded, quiet);
    _mm256_storeu_si256(half, _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
  }
};

}  // namespace
}  // namespace isobit

#include "linear/float/body.h"

namespace isobit {

void float_linear_avx512(const FloatLinearArgs& args) { run_float_linear(args); }

}  // namespace isobit
