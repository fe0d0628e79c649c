// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C: as AVX-512, with half the lanes, masks in vectors and fewer permutes.
#include <cstdint>
#include <cstring>

#include "core/x86_intrinsics.h"
#include "table/fp16/kernels.h"

#define ISOBIT_INLINE [[gnu::always_inline]] static

namespace isobit {
namespace {

struct Vector {
  using Floats = __m256;
  using Ints = __m256i;
  using Codes = __m256i;
  using CodeMask = __m256i;
  static constexpr int kLanes = 8;
  static constexpr bool kTableOf16 = false;

  ISOBIT_INLINE Floats all(float a) { return _mm256_set1_ps(a); }
  ISOBIT_INLINE Floats load(const float* a) { return _mm256_loadu_ps(a); }
  ISOBIT_INLINE void store(float* a, Floats b) { _mm256_storeu_ps(a, b); }
  ISOBIT_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  ISOBIT_INLINE Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  ISOBIT_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  ISOBIT_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  ISOBIT_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
  /// To [-limit, limit]; NaN to a number there.
  ISOBIT_INLINE Floats bound(Floats a, float limit) {
    return _mm256_min_ps(_mm256_max_ps(a, _mm256_set1_ps(-limit)), _mm256_set1_ps(limit));  // NaN: the second operand
  }
  ISOBIT_INLINE Floats through_f16(Floats a) { return _mm256_cvtph_ps(halves(a)); }
  /// a >= 0 to its whole part and a - floor(a).
  ISOBIT_INLINE Ints whole(Floats a, Floats* fraction) {
    *fraction = _mm256_sub_ps(a, _mm256_floor_ps(a));
    return _mm256_cvttps_epi32(a);
  }

  ISOBIT_INLINE Ints all_ints(int32_t a) { return _mm256_set1_epi32(a); }
  ISOBIT_INLINE Ints bits(Floats a) { return _mm256_castps_si256(a); }
  ISOBIT_INLINE Floats floats(Ints a) { return _mm256_castsi256_ps(a); }
  ISOBIT_INLINE Ints to_ints(Floats a) { return _mm256_cvtps_epi32(a); }
  ISOBIT_INLINE Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
  ISOBIT_INLINE Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  ISOBIT_INLINE Ints sub(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
  ISOBIT_INLINE Ints bit_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
  ISOBIT_INLINE Ints bit_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
  ISOBIT_INLINE Ints bit_xor(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
  template <int kBits>
  ISOBIT_INLINE Ints left(Ints a) {
    return _mm256_slli_epi32(a, kBits);
  }
  template <int kBits>
  ISOBIT_INLINE Ints right(Ints a) {
    return _mm256_srli_epi32(a, kBits);
  }
  template <int kBits>
  ISOBIT_INLINE Ints right_signed(Ints a) {
    return _mm256_srai_epi32(a, kBits);
  }
  ISOBIT_INLINE Floats xor_sign(Floats a, Ints b) { return floats(bit_xor(bits(a), bit_and(b, all_ints(INT32_MIN)))); }
  /// a * 2^k for a whole k, -64..64.
  ISOBIT_INLINE Floats times_power(Floats a, Floats k) {
    return mul(a, floats(left<23>(add(to_ints(k), all_ints(127)))));
  }
  /// 2 index + (threshold <= a).
  ISOBIT_INLINE Ints descend(Ints index, Floats threshold, Floats a) {
    return _mm256_sub_epi32(_mm256_add_epi32(index, index), bits(_mm256_cmp_ps(threshold, a, _CMP_LE_OQ)));
  }

  /// kSize floats that are looked up by index: in registers as far as they reach.
  template <int kSize>
  struct Table {
    ISOBIT_INLINE Table load(const float* from) {
      Table table;
      table.memory = from;
      table.low = kSize == 1 ? _mm256_set1_ps(*from) : _mm256_loadu_ps(from);
      table.high = kSize > 8 ? _mm256_loadu_ps(from + 8) : table.low;
      return table;
    }
    [[gnu::always_inline]] Floats at(Ints index) const {
      if constexpr (kSize == 1) return low;
      if constexpr (kSize <= 8) return _mm256_permutevar8x32_ps(low, index);
      if constexpr (kSize > 16) return gather(memory, index);
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index),
                              floats(left<28>(index)));
    }
    const float* memory;
    Floats low, high;
  };
  ISOBIT_INLINE Floats gather(const float* from, Ints index) { return _mm256_i32gather_ps(from, index, 4); }
  ISOBIT_INLINE void gather_pairs(const float* from, Ints index, Floats* first, Floats* second) {
    // Lanes 0 1 4 5 and 2 3 6 7, which the shuffles put in order.
    const __m256i order = _mm256_permute4x64_epi64(index, 0xd8);
    const double* pairs = reinterpret_cast<const double*>(from);
    const __m256 a = _mm256_castpd_ps(_mm256_i32gather_pd(pairs, _mm256_castsi256_si128(order), 8));
    const __m256 b = _mm256_castpd_ps(_mm256_i32gather_pd(pairs, _mm256_extracti128_si256(order, 1), 8));
    *first = _mm256_shuffle_ps(a, b, 0x88);
    *second = _mm256_shuffle_ps(a, b, 0xdd);
  }

  ISOBIT_INLINE __m128i halves(Floats a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  ISOBIT_INLINE Codes load_codes(const uint16_t* a) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)); }
  ISOBIT_INLINE void store_codes(uint16_t* a, Codes b) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(a), b); }
  ISOBIT_INLINE Floats widen(const uint16_t* a) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
  }
  ISOBIT_INLINE Codes narrow(Floats low, Floats high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(halves(low)), halves(high), 1);
  }
  ISOBIT_INLINE Codes all_codes(uint16_t a) { return _mm256_set1_epi16(static_cast<int16_t>(a)); }
  ISOBIT_INLINE CodeMask greater(Codes a, Codes b) { return _mm256_cmpgt_epi16(a, b); }  // signed
  ISOBIT_INLINE Codes select(CodeMask mask, Codes if_clear, Codes if_set) {
    return _mm256_blendv_epi8(if_clear, if_set, mask);
  }
  ISOBIT_INLINE Codes magnitude(Codes a) { return _mm256_and_si256(a, all_codes(0x7fff)); }
  ISOBIT_INLINE Codes key(Codes a) { return _mm256_xor_si256(a, _mm256_srli_epi16(_mm256_srai_epi16(a, 15), 1)); }
  ISOBIT_INLINE Codes max(Codes a, Codes b) { return _mm256_max_epi16(a, b); }
  ISOBIT_INLINE Codes min(Codes a, Codes b) { return _mm256_min_epi16(a, b); }

  /// Results of codes that are not evaluated, by their class. Low bytes of all of them are 0, as entry 0 is.
  struct Special {
    explicit Special(const Fp16Lanes& l)
        : limit(all_codes(l.limit)),
          below(all_codes(static_cast<uint16_t>(l.limit - 1))),
          high(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(l.special)))) {}
    template <bool>
    [[gnu::always_inline]] Floats in_floats(Floats, Floats y) const {
      return y;
    }
    [[gnu::always_inline]] Codes in_codes(Codes x, Codes y) const {
      const Codes m = magnitude(x);
      Codes index = bit_or(bit_and(_mm256_srli_epi16(x, 13), all_codes(4)), all_codes(1));
      index = _mm256_sub_epi16(index, greater(m, all_codes(0)));
      index = _mm256_sub_epi16(index, greater(m, below));
      index = _mm256_sub_epi16(index, greater(m, limit));
      const Codes result = _mm256_shuffle_epi8(high, _mm256_slli_epi16(index, 8));
      return select(_mm256_cmpeq_epi16(result, all_codes(0xff00)), result, y);
    }
    Codes limit, below, high;
  };

  // One vector of another type to codes and back.
  ISOBIT_INLINE __m128i load_half(const uint16_t* a) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(a)); }
  ISOBIT_INLINE void store_half(uint16_t* a, __m128i b) { _mm_storeu_si128(reinterpret_cast<__m128i*>(a), b); }
  ISOBIT_INLINE void codes_of_f32(const float* x, uint16_t* codes) { store_half(codes, halves(_mm256_loadu_ps(x))); }
  ISOBIT_INLINE void codes_of_bf16(const uint16_t* x, uint16_t* codes) {
    store_half(codes, halves(floats(left<16>(_mm256_cvtepu16_epi32(load_half(x))))));
  }
  ISOBIT_INLINE void f32_of_codes(const uint16_t* codes, float* y) {
    _mm256_storeu_ps(y, _mm256_cvtph_ps(load_half(codes)));
  }
  ISOBIT_INLINE void bf16_of_codes(const uint16_t* codes, uint16_t* y) {
    const Ints wide = bits(_mm256_cvtph_ps(load_half(codes)));
    const Ints odd = bit_and(right<16>(wide), all_ints(1));
    const Ints rounded = right<16>(add(add(wide, all_ints(0x7fff)), odd));
    store_half(y, _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }

  /// Adds the integers nearest to a, 0..2^31, to 64-bit sums. The conversion gives 2^31 for 2^31 although it is signed:
  /// that is the number for everything it cannot hold.
  using Sums = __m256i;
  ISOBIT_INLINE Sums no_sums() { return _mm256_setzero_si256(); }
  ISOBIT_INLINE Sums accumulate(Sums sums, Floats a) {
    const __m256i e = _mm256_cvtps_epi32(a);
    const __m256i even = _mm256_and_si256(e, _mm256_set1_epi64x(0xffffffff));
    return _mm256_add_epi64(_mm256_add_epi64(sums, even), _mm256_srli_epi64(e, 32));
  }
};

void look_up_results(const uint16_t* results, const uint16_t* in, uint16_t* out, int64_t count);

}  // namespace
}  // namespace isobit

#include "table/fp16/x86_body.h"

namespace isobit {
namespace {

void look_up_results(const uint16_t* results, const uint16_t* in, uint16_t* out, int64_t count) {
  const int* const pairs = reinterpret_cast<const int*>(results);
  for (int64_t i = 0; i < count; i += 16) {
    const __m256i codes = Vector::load_codes(in + i);
    const __m256i low = _mm256_i32gather_epi32(pairs, _mm256_and_si256(codes, _mm256_set1_epi32(0xffff)), 2);
    const __m256i high = _mm256_i32gather_epi32(pairs, _mm256_srli_epi32(codes, 16), 2);
    Vector::store_codes(out + i, _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa));
  }
}

}  // namespace

void fp16_function_avx2(const Fp16FunctionArgs& args) { run_interpolation(args); }
void fp16_function_direct_avx2(const Fp16FunctionArgs& args) { run_direct(args); }
void fp16_softmax_avx2(const Fp16SoftmaxArgs& args) { run_softmax(args); }

}  // namespace isobit
