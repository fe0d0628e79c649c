// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA: a tile is two vectors. Codes of one or two bits are indices of a vpermps; wider ones become floats in
// the mantissa of a power of two.
#include <immintrin.h>

#include <cstdint>

#include "core/hd.h"
#include "isobit/dtype.h"

namespace isobit {
namespace {

struct Vector {
  using Floats = __m256;
  using Words = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kUnits = 4;
  static constexpr int kFewRows = 4;
  static constexpr int kFewSums = 8;
  static constexpr int kPanelRows = 6, kPanelSums = 6;
  static constexpr int kLookUpBits = 3;

  ISOBIT_HD static Floats zero() { return _mm256_setzero_ps(); }
  ISOBIT_HD static Floats set(float x) { return _mm256_set1_ps(x); }
  ISOBIT_HD static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  ISOBIT_HD static void store(float* p, Floats a) { _mm256_storeu_ps(p, a); }
  ISOBIT_HD static void store_fours(float* p, int64_t stride, Floats a) {
    _mm_storeu_ps(p, _mm256_castps256_ps128(a));
    _mm_storeu_ps(p + stride, _mm256_extractf128_ps(a, 1));
  }
  ISOBIT_HD static void store_rows(float* p, int64_t stride, const Floats (&a)[4]) {
    for (int pair = 0; pair < 4; pair += 2) {
      store(p + 4 * pair, _mm256_permute2f128_ps(a[pair], a[pair + 1], 0x20));
      store(p + stride + 4 * pair, _mm256_permute2f128_ps(a[pair], a[pair + 1], 0x31));
    }
  }
  ISOBIT_HD static Words load_words(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  template <int kCount>
  ISOBIT_HD static Words shift_right(Words a) {
    return kCount == 0 ? a : _mm256_srli_epi32(a, kCount);
  }
  ISOBIT_HD static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  ISOBIT_HD static Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  ISOBIT_HD static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  ISOBIT_HD static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  ISOBIT_HD static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  ISOBIT_HD static Floats one_nan(Floats a) {
    return _mm256_blendv_ps(a, set(__builtin_nanf("")), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  ISOBIT_HD static Floats load_table(const float* values) { return _mm256_loadu_ps(values); }
  ISOBIT_HD static Floats look_up(Floats table, Words index) { return _mm256_permutevar8x32_ps(table, index); }
  ISOBIT_HD static Floats select(Words word, uint32_t mask, float bits) {
    return _mm256_or_ps(_mm256_castsi256_ps(_mm256_and_si256(word, _mm256_set1_epi32(static_cast<int>(mask)))),
                        _mm256_set1_ps(bits));
  }

  template <Dtype kDtype>
  ISOBIT_HD static Floats load_as(const void* from, int64_t index) {
    if constexpr (kDtype == Dtype::kF32) return load(static_cast<const float*>(from) + index);
    const __m128i half =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const unsigned char*>(from) + 2 * index));
    if constexpr (kDtype == Dtype::kF16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }

  template <Dtype kDtype>
  ISOBIT_HD static void store_as(void* to, int64_t index, Floats a) {
    if constexpr (kDtype == Dtype::kF32) return store(static_cast<float*>(to) + index, a);
    __m128i* const half = reinterpret_cast<__m128i*>(static_cast<unsigned char*>(to) + 2 * index);
    if constexpr (kDtype == Dtype::kF16) return _mm_storeu_si128(half, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    const __m256i bits = _mm256_castps_si256(a);  // to nearest even, as core/half.h
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 chosen =
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
    _mm_storeu_si128(half, _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
  }
};

}  // namespace
}  // namespace isobit

#include "linear/float/body.h"

namespace isobit {

void float_linear_avx2(const FloatLinearArgs& args) { run_float_linear(args); }

}  // namespace isobit
