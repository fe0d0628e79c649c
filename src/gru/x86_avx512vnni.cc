// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstdint>

#include "gru/vector_body.h"

namespace isobit {
namespace {

struct Avx512S32 {
  using Lanes = __m512i;
  using Acc = int32_t;
  static constexpr int kLanes = 16;
  static constexpr bool kWide = false;
  ISOBIT_HD static Lanes set(int64_t x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
  ISOBIT_HD static Lanes load(const int32_t* p) { return _mm512_loadu_si512(p); }
  ISOBIT_HD static Lanes load_parameter(const int32_t* p) { return _mm512_loadu_si512(p); }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm512_add_epi32(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm512_sub_epi32(a, b); }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return _mm512_mullo_epi32(a, b); }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return _mm512_min_epi32(a, b); }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return _mm512_max_epi32(a, b); }
  ISOBIT_HD static Lanes bit_and(Lanes a, Lanes b) { return _mm512_and_si512(a, b); }
  ISOBIT_HD static Lanes clear_low_bit_where_zero(Lanes a, Lanes b) {
    return _mm512_mask_andnot_epi32(a, _mm512_testn_epi32_mask(b, b), set(1), a);
  }
  ISOBIT_HD static Lanes decrement_where_zero_and_negative(Lanes a, Lanes b, Lanes x) {
    return _mm512_mask_sub_epi32(a, _mm512_mask_testn_epi32_mask(_mm512_movepi32_mask(x), b, b), a, set(1));
  }
  ISOBIT_HD static Lanes shift_left(Lanes a, Lanes n) { return _mm512_sllv_epi32(a, n); }
  ISOBIT_HD static Lanes shift_right(Lanes a, Lanes n) { return _mm512_srav_epi32(a, n); }
  ISOBIT_HD static Lanes gather(const uint16_t* table, Lanes index) {
    const Lanes pair = _mm512_i32gather_epi32(index, table, 2);  // the entry and its successor
    return _mm512_and_si512(pair, _mm512_set1_epi32(0xFFFF));
  }
  ISOBIT_HD static __m512 load_float(const float* p) { return _mm512_loadu_ps(p); }
  ISOBIT_HD static Lanes rint_clamped(__m512 x, float factor, float low, float high) {
    const __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(factor));
    return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(scaled, _mm512_set1_ps(low)), _mm512_set1_ps(high)));
  }
  ISOBIT_HD static void store_s32(int32_t* p, Lanes a) { _mm512_storeu_si512(p, a); }
  ISOBIT_HD static void store_u8(uint8_t* p, Lanes a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }
};

struct Avx512S64 {
  using Lanes = __m512i;
  using Acc = int64_t;
  static constexpr int kLanes = 8;
  static constexpr bool kWide = true;
  ISOBIT_HD static Lanes set(int64_t x) { return _mm512_set1_epi64(x); }
  ISOBIT_HD static Lanes load(const int64_t* p) { return _mm512_loadu_si512(p); }
  ISOBIT_HD static Lanes load_parameter(const int32_t* p) {
    return _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm512_add_epi64(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm512_sub_epi64(a, b); }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return _mm512_mullo_epi64(a, b); }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return _mm512_min_epi64(a, b); }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return _mm512_max_epi64(a, b); }
  ISOBIT_HD static Lanes bit_and(Lanes a, Lanes b) { return _mm512_and_si512(a, b); }
  ISOBIT_HD static Lanes clear_low_bit_where_zero(Lanes a, Lanes b) {
    return _mm512_mask_andnot_epi64(a, _mm512_testn_epi64_mask(b, b), set(1), a);
  }
  ISOBIT_HD static Lanes decrement_where_zero_and_negative(Lanes a, Lanes b, Lanes x) {
    return _mm512_mask_sub_epi64(a, _mm512_mask_testn_epi64_mask(_mm512_movepi64_mask(x), b, b), a, set(1));
  }
  ISOBIT_HD static Lanes shift_left(Lanes a, Lanes n) { return _mm512_sllv_epi64(a, n); }
  ISOBIT_HD static Lanes shift_right(Lanes a, Lanes n) { return _mm512_srav_epi64(a, n); }
  ISOBIT_HD static Lanes gather(const uint16_t* table, Lanes index) {
    const __m256i pair = _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), _mm512_cvtepi64_epi32(index), 2);
    return _mm512_cvtepu32_epi64(_mm256_and_si256(pair, _mm256_set1_epi32(0xFFFF)));
  }
  ISOBIT_HD static void store_s32(int32_t* p, Lanes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi64_epi32(a));
  }
  ISOBIT_HD static void store_u8(uint8_t* p, Lanes a) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm512_cvtepi64_epi8(a));
  }
};

}  // namespace

GruKernels gru_kernels_avx512vnni() {
  GruKernels kernels = row_kernels<Avx512S32>();
  kernels.gates_s32 = gates<Avx512S32>;
  kernels.gates_s64 = gates<Avx512S64>;
  return kernels;
}

}  // namespace isobit
