// SPDX-License-Identifier: Apache-2.0
// 512-bit lanes of the kernels of 8-bit activations, all but the dot product. For AVX-512 VNNI.
#ifndef ISOBIT_LINEAR_INT8_AVX512_LANES_H_
#define ISOBIT_LINEAR_INT8_AVX512_LANES_H_

#include <immintrin.h>

#include <cstdint>

#include "core/hd.h"
#include "core/unroll.h"
#include "linear/int8/kernels.h"

namespace isobit {
namespace {

struct Avx512Lanes {
  using Ints [[gnu::vector_size(64)]] = int32_t;
  using Floats = __m512;
  using Bytes = __m512i;
  static constexpr int kLanes = 16;

  ISOBIT_HD static __m512i bits(Ints a) { return reinterpret_cast<__m512i>(a); }
  ISOBIT_HD static Ints ints(__m512i a) { return reinterpret_cast<Ints>(a); }
  ISOBIT_HD static Bytes load_bytes(const void* from) { return _mm512_loadu_si512(from); }
  ISOBIT_HD static void store_bytes(void* to, Bytes a) { _mm512_storeu_si512(to, a); }
  template <int kShift, int kMask>
  ISOBIT_HD static Bytes field(Bytes a) {
    if constexpr (kMask == 0xFF) return a;
    if constexpr (kShift > 0) a = _mm512_srli_epi32(a, kShift);
    if constexpr (kShift < 0) a = _mm512_slli_epi32(a, -kShift);
    return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(kMask)));
  }

  ISOBIT_HD static Ints load_ints(const int32_t* from) { return ints(_mm512_loadu_si512(from)); }
  ISOBIT_HD static void store_ints(int32_t* to, Ints a) { _mm512_storeu_si512(to, bits(a)); }
  ISOBIT_HD static Ints set(int32_t x) { return ints(_mm512_set1_epi32(x)); }
  ISOBIT_HD static Floats set_float(float x) { return _mm512_set1_ps(x); }
  ISOBIT_HD static Ints add(Ints a, Ints b) { return ints(_mm512_add_epi32(bits(a), bits(b))); }
  template <int kBits>
  ISOBIT_HD static Ints shift_right(Ints a) {
    return ints(_mm512_srai_epi32(bits(a), kBits));
  }
  ISOBIT_HD static Ints multiply(Ints a, Ints b) { return ints(_mm512_mullo_epi32(bits(a), bits(b))); }
  ISOBIT_HD static Floats to_float(Ints a) { return _mm512_cvtepi32_ps(bits(a)); }
  ISOBIT_HD static Floats add_float(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  ISOBIT_HD static Floats subtract_float(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  ISOBIT_HD static Floats multiply_float(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  ISOBIT_HD static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  ISOBIT_HD static Floats load_float(const float* from) { return _mm512_loadu_ps(from); }
  ISOBIT_HD static void store_float(float* to, Floats a) { _mm512_storeu_ps(to, a); }
  /// Numbers i to i + 15.
  ISOBIT_HD static Floats floats(Int8Float type, const uint8_t* from, int64_t i) {
    if (type == Int8Float::kF32) return _mm512_loadu_ps(reinterpret_cast<const float*>(from) + i);
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2 * i));
    if (type == Int8Float::kF16) return _mm512_cvtph_ps(half);
    if (type == Int8Float::kS16) return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(half));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  ISOBIT_HD static Ints zero_points(int32_t bytes, const uint8_t* from, int64_t i) {
    if (bytes == 1) return ints(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    return ints(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2 * i))));
  }

  ISOBIT_HD static Ints absolute_bits(Floats a) {
    return ints(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7FFFFFFF)));
  }
  ISOBIT_HD static Ints max_bits(Ints a, Ints b) { return ints(_mm512_max_epi32(bits(a), bits(b))); }
  ISOBIT_HD static uint32_t largest_bits(Ints a) { return static_cast<uint32_t>(_mm512_reduce_max_epi32(bits(a))); }
  ISOBIT_HD static Floats min_float(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  ISOBIT_HD static Floats max_float(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  ISOBIT_HD static Floats one_nan(Floats a) {
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), set_float(__builtin_nanf("")));
  }
  ISOBIT_HD static float smallest(Floats a) { return _mm512_reduce_min_ps(a); }
  ISOBIT_HD static float largest(Floats a) { return _mm512_reduce_max_ps(a); }
  /// 16 codes: rint, saturated to int8, plus 128 as unsigned ones. The rounding is the default one, to nearest even.
  template <bool kUnsigned>
  ISOBIT_HD static void to_codes(int8_t* to, Floats a) {
    __m128i codes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a));
    if constexpr (kUnsigned) codes = _mm_xor_si128(codes, _mm_set1_epi8(-128));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), codes);
  }
  ISOBIT_HD static __m512i codes_of(const Floats (&a)[4]) {
    const __m512i front = _mm512_packs_epi32(_mm512_cvtps_epi32(a[0]), _mm512_cvtps_epi32(a[1]));
    const __m512i back = _mm512_packs_epi32(_mm512_cvtps_epi32(a[2]), _mm512_cvtps_epi32(a[3]));
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(in_order, _mm512_packs_epi16(front, back));
  }
  template <bool kUnsigned>
  ISOBIT_HD static void store_codes(int8_t* to, __m512i codes) {
    if constexpr (kUnsigned) codes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
    _mm512_storeu_si512(to, codes);
  }
  template <bool kUnsigned>
  ISOBIT_HD static void to_codes(int8_t* to, const Floats (&a)[4]) {
    store_codes<kUnsigned>(to, codes_of(a));
  }
  /// `count` is a multiple of 32.
  ISOBIT_HD static int32_t sum_codes(const int8_t* codes, int64_t count) {
    const auto add = [codes](__m256i sum, int64_t i) __attribute__((always_inline)) {
      return _mm256_dpbusd_epi32(sum, _mm256_set1_epi8(1),
                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
    };
    __m256i sum = _mm256_setzero_si256();
    int64_t i = 0;
    if (count >= 256) {  // or each would wait for the one before
      __m256i others[3] = {sum, sum, sum};
      for (; i + 128 <= count; i += 128) {
        sum = add(sum, i);
        for (int j = 0; j < 3; ++j) others[j] = add(others[j], i + 32 * (j + 1));
      }
      sum = _mm256_add_epi32(_mm256_add_epi32(sum, others[0]), _mm256_add_epi32(others[1], others[2]));
    }
    for (; i < count; i += 32) sum = add(sum, i);
    return _mm512_reduce_add_epi32(_mm512_zextsi256_si512(sum));
  }

  static constexpr int kGroupsTogether = 4;
  /// In all of lanes 4 i to 4 i + 3: the 16 lanes of a[i], combined.
  template <typename Combine>
  ISOBIT_HD static __m512i combine_lanes(const __m512i (&a)[4], const Combine& combine) {
    const __m512i front = combine(_mm512_shuffle_i32x4(a[0], a[1], 0x44), _mm512_shuffle_i32x4(a[0], a[1], 0xEE));
    const __m512i back = combine(_mm512_shuffle_i32x4(a[2], a[3], 0x44), _mm512_shuffle_i32x4(a[2], a[3], 0xEE));
    const __m512i fours = combine(_mm512_shuffle_i32x4(front, back, 0x88), _mm512_shuffle_i32x4(front, back, 0xDD));
    const __m512i twos = combine(fours, _mm512_shuffle_epi32(fours, _MM_PERM_BADC));
    return combine(twos, _mm512_shuffle_epi32(twos, _MM_PERM_CDAB));
  }
  template <Int8Float kType, bool kUnsigned>
  ISOBIT_HD static Ints quantize_groups(const uint8_t* x, int64_t length, int32_t factor, int8_t* codes,
                                        Int8Group* groups) {
    static_assert(sizeof(Int8Group) == 16);
    const auto lanes = [x](int64_t i) __attribute__((always_inline)) { return floats(kType, x, i); };
    __m512i largest[4], sums[4];
    unroll<4>(ISOBIT_UNROLLED(g) {
      Ints most = set(0);
      for (int64_t k = g * length; k < (g + 1) * length; k += 64)
        unroll<4>(ISOBIT_UNROLLED(i) { most = max_bits(most, absolute_bits(lanes(k + i * kLanes))); });
      largest[g] = bits(most);
    });
    const __m512i range_bits = combine_lanes(
        largest, [](__m512i a, __m512i b) __attribute__((always_inline)) { return _mm512_max_epi32(a, b); });
    const Floats range = _mm512_castsi512_ps(range_bits);
    const Floats steps = set_float(127.0f);
    const __mmask16 usable = _mm512_cmp_ps_mask(range, set_float(0x1p-118f), _CMP_GE_OQ);
    const Floats scale = _mm512_maskz_div_ps(usable, range, steps);
    const Floats inverse = _mm512_maskz_div_ps(usable, steps, range);
    unroll<4>(ISOBIT_UNROLLED(g) {
      const Floats own = _mm512_shuffle_f32x4(inverse, inverse, g * 0x55);
      sums[g] = _mm512_setzero_si512();
      for (int64_t k = g * length; k < (g + 1) * length; k += 64) {
        Floats four[4];
        unroll<4>(ISOBIT_UNROLLED(i) { four[i] = multiply_float(lanes(k + i * kLanes), own); });
        const __m512i of_four = codes_of(four);
        store_codes<kUnsigned>(codes + k, of_four);
        if constexpr (!kUnsigned) sums[g] = _mm512_dpbusd_epi32(sums[g], _mm512_set1_epi8(1), of_four);
      }
    });
    const __m512i sum = combine_lanes(
        sums, [](__m512i a, __m512i b) __attribute__((always_inline)) { return _mm512_add_epi32(a, b); });
    const __m512i start = _mm512_mullo_epi32(_mm512_set1_epi32(-factor), sum);
    const Floats affine = multiply_float(scale, _mm512_cvtepi32_ps(sum));
    __m512i out = _mm512_maskz_mov_epi32(0x1111, _mm512_castps_si512(scale));
    out = _mm512_mask_mov_epi32(out, 0x4444, start);
    out = _mm512_mask_mov_epi32(out, 0x8888, _mm512_castps_si512(affine));
    _mm512_storeu_si512(groups, out);
    return ints(range_bits);
  }
};

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_LINEAR_INT8_AVX512_LANES_H_
