// SPDX-License-Identifier: Apache-2.0
// 256-bit lanes of the kernels of 8-bit activations, all but the dot product. For AVX2, FMA and F16C.
#ifndef ISOBIT_LINEAR_INT8_AVX_LANES_H_
#define ISOBIT_LINEAR_INT8_AVX_LANES_H_

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "core/hd.h"
#include "linear/int8/kernels.h"

namespace isobit {
namespace {

struct AvxLanes {
  using Ints [[gnu::vector_size(32)]] = int32_t;
  using Floats = __m256;
  using Bytes = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kUnits = 2;
  static constexpr int kPanelUnits = 2;
  static constexpr int kGroupsTogether = 1;
  /// Named where it is not used.
  template <Int8Float, bool>
  static Ints quantize_groups(const uint8_t* x, int64_t length, int32_t factor, int8_t* codes, Int8Group* groups);

  ISOBIT_HD static __m256i bits(Ints a) { return reinterpret_cast<__m256i>(a); }
  ISOBIT_HD static Ints ints(__m256i a) { return reinterpret_cast<Ints>(a); }
  ISOBIT_HD static Bytes load_bytes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  ISOBIT_HD static void store_bytes(void* to, Bytes a) { _mm256_storeu_si256(static_cast<__m256i*>(to), a); }
  template <int kShift, int kMask>
  ISOBIT_HD static Bytes field(Bytes a) {
    if constexpr (kMask == 0xFF) return a;
    if constexpr (kShift > 0) a = _mm256_srli_epi32(a, kShift);
    if constexpr (kShift < 0) a = _mm256_slli_epi32(a, -kShift);
    return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(kMask)));
  }
  ISOBIT_HD static __m256i four(const int8_t* a) {
    int32_t quad;
    std::memcpy(&quad, a, sizeof quad);
    return _mm256_set1_epi32(quad);
  }

  ISOBIT_HD static Ints load_ints(const int32_t* from) { return ints(load_bytes(from)); }
  ISOBIT_HD static void store_ints(int32_t* to, Ints a) { store_bytes(to, bits(a)); }
  ISOBIT_HD static Ints set(int32_t x) { return ints(_mm256_set1_epi32(x)); }
  ISOBIT_HD static Floats set_float(float x) { return _mm256_set1_ps(x); }
  ISOBIT_HD static Ints add(Ints a, Ints b) { return ints(_mm256_add_epi32(bits(a), bits(b))); }
  template <int kBits>
  ISOBIT_HD static Ints shift_right(Ints a) {
    return ints(_mm256_srai_epi32(bits(a), kBits));
  }
  ISOBIT_HD static Ints multiply(Ints a, Ints b) { return ints(_mm256_mullo_epi32(bits(a), bits(b))); }
  ISOBIT_HD static Floats to_float(Ints a) { return _mm256_cvtepi32_ps(bits(a)); }
  ISOBIT_HD static Floats add_float(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  ISOBIT_HD static Floats subtract_float(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  ISOBIT_HD static Floats multiply_float(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  ISOBIT_HD static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  ISOBIT_HD static Floats load_float(const float* from) { return _mm256_loadu_ps(from); }
  ISOBIT_HD static void store_float(float* to, Floats a) { _mm256_storeu_ps(to, a); }
  /// Numbers i to i + 7.
  ISOBIT_HD static Floats floats(Int8Float type, const uint8_t* from, int64_t i) {
    if (type == Int8Float::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(from) + i);
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    if (type == Int8Float::kF16) return _mm256_cvtph_ps(half);
    if (type == Int8Float::kS16) return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(half));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  ISOBIT_HD static Ints zero_points(int32_t bytes, const uint8_t* from, int64_t i) {
    if (bytes == 1) return ints(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i))));
    return ints(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
  }

  ISOBIT_HD static Ints absolute_bits(Floats a) {
    return ints(_mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7FFFFFFF)));
  }
  ISOBIT_HD static Ints max_bits(Ints a, Ints b) { return ints(_mm256_max_epi32(bits(a), bits(b))); }
  ISOBIT_HD static uint32_t largest_bits(Ints a) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(bits(a)), _mm256_extracti128_si256(bits(a), 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
  }
  ISOBIT_HD static Floats min_float(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  ISOBIT_HD static Floats max_float(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  ISOBIT_HD static Floats one_nan(Floats a) {
    return _mm256_blendv_ps(a, set_float(__builtin_nanf("")), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  ISOBIT_HD static float smallest(Floats a) { return -largest(_mm256_xor_ps(a, _mm256_set1_ps(-0.0f))); }
  ISOBIT_HD static float largest(Floats a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    half = _mm_max_ps(half, _mm_movehdup_ps(half));
    return _mm_cvtss_f32(half);
  }
  /// Eight codes: rint, saturated to int8, plus 128 as unsigned ones. The rounding is the default one, to nearest even.
  template <bool kUnsigned>
  ISOBIT_HD static void to_codes(int8_t* to, Floats a) {
    const __m256i wide = _mm256_cvtps_epi32(a);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    __m128i codes = _mm_packs_epi16(words, words);
    if constexpr (kUnsigned) codes = _mm_xor_si128(codes, _mm_set1_epi8(-128));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), codes);
  }
  template <bool kUnsigned>
  ISOBIT_HD static void to_codes(int8_t* to, const Floats (&a)[4]) {
    const __m256i front = _mm256_packs_epi32(_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1]));
    const __m256i back = _mm256_packs_epi32(_mm256_cvtps_epi32(a[2]), _mm256_cvtps_epi32(a[3]));
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(front, back), in_order);
    if constexpr (kUnsigned) codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    store_bytes(to, codes);
  }
  /// `count` is a multiple of 32.
  ISOBIT_HD static int32_t sum_codes(const int8_t* codes, int64_t count) {
    __m256i sum = _mm256_setzero_si256();
    for (int64_t i = 0; i < count; i += 32) {
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_bytes(codes + i));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    return _mm_cvtsi128_si32(half);
  }
};

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_LINEAR_INT8_AVX_LANES_H_
