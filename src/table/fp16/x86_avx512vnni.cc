// SPDX-License-Identifier: Apache-2.0
// AVX-512 F, BW, DQ, VL. Intervals are found, and their cut point, scale and base fetched, by permutes, where there are
// at most 14. The values of a step are gathered as pairs (left, difference) of 64 bits: 0.21 ns an element, where 18
// permutes of 32 entries each, and the moves that choose among them, take 0.61 for a table of 259.
#include <cstdint>
#include <cstring>

#include "core/x86_intrinsics.h"
#include "table/fp16/kernels.h"

#define ISOBIT_INLINE [[gnu::always_inline]] static

namespace isobit {
namespace {

struct Vector {
  using Floats = __m512;
  using Ints = __m512i;
  using Codes = __m512i;
  using CodeMask = __mmask32;
  static constexpr int kLanes = 16;
  static constexpr bool kTableOf16 = true;  // one permute reads 16 floats

  ISOBIT_INLINE Floats all(float a) { return _mm512_set1_ps(a); }
  ISOBIT_INLINE Floats load(const float* a) { return _mm512_loadu_ps(a); }
  ISOBIT_INLINE void store(float* a, Floats b) { _mm512_storeu_ps(a, b); }
  ISOBIT_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  ISOBIT_INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  ISOBIT_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  ISOBIT_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  ISOBIT_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
  /// To [-limit, limit]; NaN to limit.
  ISOBIT_INLINE Floats bound(Floats a, float limit) {
    return _mm512_range_ps(a, _mm512_set1_ps(limit), 2);  // the smaller magnitude, with the sign of a
  }
  ISOBIT_INLINE Floats through_f16(Floats a) { return _mm512_cvtph_ps(halves(a)); }
  /// a >= 0 to its whole part and a - floor(a). Towards zero, for the difference is rounded that way, too, and must be
  /// +0 where a is whole.
  ISOBIT_INLINE Ints whole(Floats a, Floats* fraction) {
    *fraction = _mm512_reduce_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    return _mm512_cvttps_epi32(a);
  }

  ISOBIT_INLINE Ints all_ints(int32_t a) { return _mm512_set1_epi32(a); }
  ISOBIT_INLINE Ints bits(Floats a) { return _mm512_castps_si512(a); }
  ISOBIT_INLINE Floats floats(Ints a) { return _mm512_castsi512_ps(a); }
  ISOBIT_INLINE Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
  ISOBIT_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  ISOBIT_INLINE Ints sub(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
  ISOBIT_INLINE Ints bit_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
  ISOBIT_INLINE Ints bit_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
  ISOBIT_INLINE Ints bit_xor(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
  template <int kBits>
  ISOBIT_INLINE Ints left(Ints a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  ISOBIT_INLINE Ints right(Ints a) {
    return _mm512_srli_epi32(a, kBits);
  }
  template <int kBits>
  ISOBIT_INLINE Ints right_signed(Ints a) {
    return _mm512_srai_epi32(a, kBits);
  }
  ISOBIT_INLINE Floats xor_sign(Floats a, Ints b) {
    return floats(_mm512_ternarylogic_epi32(bits(a), b, all_ints(INT32_MIN), 0x78));  // a ^ (b & c)
  }
  /// a * 2^k for a whole k, -64..64.
  ISOBIT_INLINE Floats times_power(Floats a, Floats k) { return _mm512_scalef_ps(a, k); }
  /// 2 index + (threshold <= a).
  ISOBIT_INLINE Ints descend(Ints index, Floats threshold, Floats a) {
    const Ints twice = _mm512_add_epi32(index, index);
    return _mm512_mask_add_epi32(twice, _mm512_cmp_ps_mask(threshold, a, _CMP_LE_OQ), twice, _mm512_set1_epi32(1));
  }
  ISOBIT_INLINE Ints set_bits_where_reached(Ints index, int32_t bits, Floats threshold, Floats a) {
    return _mm512_mask_or_epi32(index, _mm512_cmp_ps_mask(threshold, a, _CMP_LE_OQ), index, _mm512_set1_epi32(bits));
  }

  /// kSize floats that are looked up by index: in registers as far as they reach.
  template <int kSize>
  struct Table {
    ISOBIT_INLINE Table load(const float* from) {
      Table table;
      table.low = kSize == 1 ? _mm512_set1_ps(*from) : _mm512_loadu_ps(from);
      table.high = kSize > 16 ? _mm512_loadu_ps(from + 16) : table.low;
      return table;
    }
    [[gnu::always_inline]] Floats at(Ints index) const {
      static_assert(kSize <= 32);
      if constexpr (kSize == 1) return low;
      if constexpr (kSize <= 16) return _mm512_permutexvar_ps(index, low);
      return _mm512_permutex2var_ps(low, index, high);
    }
    /// From order (piece, bits of the levels above) to those bits from bit 3 down, and the piece in bit 0.
    template <int kLevel, bool kTwoPieces>
    [[gnu::always_inline]] void spread() {
      __m512i from = _mm512_srli_epi32(places(), 4 - kLevel);
      if (kTwoPieces) from = _mm512_or_si512(from, _mm512_slli_epi32(odd(), kLevel));
      low = _mm512_permutexvar_ps(from, low);
    }
    /// For two pieces: from (piece, four bits) to (bit of the last level, bits of the others, piece).
    [[gnu::always_inline]] void last_level_first() {
      const __m512i from =
          _mm512_or_si512(_mm512_and_si512(places(), _mm512_set1_epi32(14)), _mm512_slli_epi32(odd(), 4));
      const Floats reached = _mm512_permutex2var_ps(low, _mm512_or_si512(from, _mm512_set1_epi32(1)), high);
      low = _mm512_permutex2var_ps(low, from, high);
      high = reached;
    }
    ISOBIT_INLINE __m512i places() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
    ISOBIT_INLINE __m512i odd() { return _mm512_and_si512(places(), _mm512_set1_epi32(1)); }
    Floats low, high;
  };
  ISOBIT_INLINE Floats gather(const float* from, Ints index) { return _mm512_i32gather_ps(index, from, 4); }
  ISOBIT_INLINE void gather_pairs(const float* from, Ints index, Floats* first, Floats* second) {
    const __m512 a = _mm512_castpd_ps(_mm512_i32gather_pd(_mm512_castsi512_si256(index), from, 8));
    const __m512 b = _mm512_castpd_ps(_mm512_i32gather_pd(_mm512_extracti64x4_epi64(index, 1), from, 8));
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *first = _mm512_permutex2var_ps(a, even, b);
    *second = _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
  }

  ISOBIT_INLINE __m256i halves(Floats a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  ISOBIT_INLINE Codes load_codes(const uint16_t* a) { return _mm512_loadu_si512(a); }
  ISOBIT_INLINE void store_codes(uint16_t* a, Codes b) { _mm512_storeu_si512(a, b); }
  ISOBIT_INLINE Floats widen(const uint16_t* a) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)));
  }
  ISOBIT_INLINE Codes narrow(Floats low, Floats high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(halves(low)), halves(high), 1);
  }
  ISOBIT_INLINE Codes all_codes(uint16_t a) { return _mm512_set1_epi16(static_cast<int16_t>(a)); }
  ISOBIT_INLINE CodeMask greater(Codes a, Codes b) { return _mm512_cmpgt_epi16_mask(a, b); }  // signed
  ISOBIT_INLINE Codes select(CodeMask mask, Codes if_clear, Codes if_set) {
    return _mm512_mask_mov_epi16(if_clear, mask, if_set);
  }
  ISOBIT_INLINE Codes magnitude(Codes a) { return _mm512_and_si512(a, all_codes(0x7fff)); }
  ISOBIT_INLINE Codes key(Codes a) { return _mm512_xor_si512(a, _mm512_srli_epi16(_mm512_srai_epi16(a, 15), 1)); }
  ISOBIT_INLINE Codes max(Codes a, Codes b) { return _mm512_max_epi16(a, b); }
  ISOBIT_INLINE Codes min(Codes a, Codes b) { return _mm512_min_epi16(a, b); }

  /// Results of codes that are not evaluated: one instruction in float32 lanes, of which NaN comes as 0xfe00.
  struct Special {
    explicit Special(const Fp16Lanes& l) : table(_mm512_set1_epi32(static_cast<int32_t>(l.fixup))) {}
    template <bool kUpTo1>
    [[gnu::always_inline]] Floats in_floats(Floats x, Floats y) const {
      if constexpr (kUpTo1) {
        constexpr int32_t kNegativeGivesNan = 0x03000000;
        y = _mm512_fixupimm_ps(y, _mm512_sub_ps(_mm512_set1_ps(1.0f), x), _mm512_set1_epi32(kNegativeGivesNan), 0);
      }
      return _mm512_fixupimm_ps(y, x, table, 0);
    }
    [[gnu::always_inline]] Codes in_codes(Codes, Codes y) const {
      return _mm512_mask_mov_epi16(y, _mm512_cmpeq_epi16_mask(y, all_codes(kFp16Nan | 0x8000)), all_codes(kFp16Nan));
    }
    Ints table;
  };

  // One vector of another type to codes and back.
  ISOBIT_INLINE void codes_of_f32(const float* x, uint16_t* codes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), halves(_mm512_loadu_ps(x)));
  }
  ISOBIT_INLINE void codes_of_bf16(const uint16_t* x, uint16_t* codes) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), halves(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))));
  }
  ISOBIT_INLINE void f32_of_codes(const uint16_t* codes, float* y) {
    _mm512_storeu_ps(y, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))));
  }
  ISOBIT_INLINE void bf16_of_codes(const uint16_t* codes, uint16_t* y) {
    const __m512i wide =
        _mm512_castps_si512(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(wide, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(wide, _mm512_set1_epi32(0x7fff)), odd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }

  /// Adds the 32-bit unsigned integers nearest to a to 64-bit sums.
  using Sums = __m512i;
  ISOBIT_INLINE Sums no_sums() { return _mm512_setzero_si512(); }
  ISOBIT_INLINE Sums accumulate(Sums sums, Floats a) {
    const __m512i e = _mm512_cvtps_epu32(a);
    const __m512i even = _mm512_and_si512(e, _mm512_set1_epi64(0xffffffff));
    return _mm512_add_epi64(_mm512_add_epi64(sums, even), _mm512_srli_epi64(e, 32));
  }
};

void look_up_results(const uint16_t* results, const uint16_t* in, uint16_t* out, int64_t count);

}  // namespace
}  // namespace isobit

#include "table/fp16/x86_body.h"

namespace isobit {
namespace {

void look_up_results(const uint16_t* results, const uint16_t* in, uint16_t* out, int64_t count) {
  for (int64_t i = 0; i < count; i += 32) {
    const __m512i codes = _mm512_loadu_si512(in + i);
    const __m512i low = _mm512_i32gather_epi32(_mm512_and_si512(codes, _mm512_set1_epi32(0xffff)), results, 2);
    const __m512i high = _mm512_i32gather_epi32(_mm512_srli_epi32(codes, 16), results, 2);
    _mm512_storeu_si512(out + i, _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16)));
  }
}

}  // namespace

void fp16_function_avx512vnni(const Fp16FunctionArgs& args) { run_interpolation(args); }
void fp16_function_direct_avx512vnni(const Fp16FunctionArgs& args) { run_direct(args); }
void fp16_softmax_avx512vnni(const Fp16SoftmaxArgs& args) { run_softmax(args); }

}  // namespace isobit
