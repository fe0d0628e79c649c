// SPDX-License-Identifier: Apache-2.0
#include "gru/cpu/record_body.h"
#include "gru/cpu/vector_body.h"
#include "gru/cpu/x86_avx512_lanes.h"

namespace isobit {
namespace {

struct Avx512S32 {
  using Lanes = __m512i;
  static constexpr int kLanes = 16;
  ISOBIT_HD static Lanes set(int64_t x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
  ISOBIT_HD static Lanes load(const int32_t* p) { return _mm512_loadu_si512(p); }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm512_add_epi32(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm512_sub_epi32(a, b); }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return _mm512_mullo_epi32(a, b); }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return _mm512_min_epi32(a, b); }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return _mm512_max_epi32(a, b); }
  ISOBIT_HD static Lanes clear_low_bit_where_zero(Lanes a, Lanes b, Lanes mask) {
    return _mm512_mask_andnot_epi32(a, _mm512_testn_epi32_mask(b, mask), set(1), a);
  }
  ISOBIT_HD static Lanes decrement_where_zero_and_negative(Lanes a, Lanes b, Lanes mask, Lanes x) {
    return _mm512_mask_sub_epi32(a, _mm512_mask_testn_epi32_mask(_mm512_movepi32_mask(x), b, mask), a, set(1));
  }
  ISOBIT_HD static Lanes shift_left(Lanes a, Lanes n) { return _mm512_sllv_epi32(a, n); }
  ISOBIT_HD static Lanes shift_right(Lanes a, Lanes n) { return _mm512_srav_epi32(a, n); }
  struct Table {
    const uint16_t* entries;
    ISOBIT_HD Table(const GateConstants& c, int gate) : entries(c.table[gate]) {}
    ISOBIT_HD Lanes operator[](Lanes index) const {  // the entry and its successor, which is cut off
      return _mm512_and_si512(_mm512_i32gather_epi32(index, entries, 2), _mm512_set1_epi32(0xFFFF));
    }
  };
  ISOBIT_HD static bool any_nan(const float* p) {
    return _mm512_cmp_ps_mask(load_float(p), load_float(p), _CMP_UNORD_Q) != 0;
  }
  ISOBIT_HD static bool any_nan4(const float* p) {
    return (_mm512_cmp_ps_mask(load_float(p), load_float(p + 16), _CMP_UNORD_Q) |
            _mm512_cmp_ps_mask(load_float(p + 32), load_float(p + 48), _CMP_UNORD_Q)) != 0;
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
  using Acc = int32_t;
  using Floats = __m512;
  ISOBIT_HD static Lanes load_s32(const int32_t* p) { return load(p); }
  ISOBIT_HD static Floats set_floats(float x) { return _mm512_set1_ps(x); }
  ISOBIT_HD static Floats to_floats(Lanes a) { return _mm512_cvtepi32_ps(a); }
  ISOBIT_HD static Floats mul_floats(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  ISOBIT_HD static Floats add_floats(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  ISOBIT_HD static Floats two_to_minus(Lanes n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(set(127), n), 23));
  }
  ISOBIT_HD static Floats floats_where_equal(Floats f, Lanes a, Lanes b) {
    return _mm512_maskz_mov_ps(_mm512_cmpeq_epi32_mask(a, b), f);
  }
  ISOBIT_HD static Lanes add_bit_where_equal(Lanes bits, Lanes a, Lanes b, int bit) {
    return _mm512_mask_or_epi32(bits, _mm512_cmpeq_epi32_mask(a, b), bits, set(1 << bit));
  }
  ISOBIT_HD static Lanes add_bit_where_greater(Lanes bits, Lanes a, Lanes b, int bit) {
    return _mm512_mask_or_epi32(bits, _mm512_cmpgt_epi32_mask(a, b), bits, set(1 << bit));
  }
  ISOBIT_HD static void store_floats(float* p, Floats a) { _mm512_storeu_ps(p, a); }
  ISOBIT_HD static void store_u16(uint16_t* p, Lanes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
  }
};

/// Of record_body.h only.
struct Avx512S64 {
  using Lanes = __m512i;
  using Acc = int64_t;
  using Floats = __m256;
  static constexpr int kLanes = 8;
  ISOBIT_HD static Lanes set(int64_t x) { return _mm512_set1_epi64(x); }
  ISOBIT_HD static Lanes load(const int64_t* p) { return _mm512_loadu_si512(p); }
  ISOBIT_HD static Lanes load_s32(const int32_t* p) {
    return _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm512_add_epi64(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm512_sub_epi64(a, b); }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return _mm512_mullo_epi64(a, b); }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return _mm512_min_epi64(a, b); }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return _mm512_max_epi64(a, b); }
  ISOBIT_HD static Lanes clear_low_bit_where_zero(Lanes a, Lanes b, Lanes mask) {
    return _mm512_mask_andnot_epi64(a, _mm512_testn_epi64_mask(b, mask), set(1), a);
  }
  ISOBIT_HD static Lanes decrement_where_zero_and_negative(Lanes a, Lanes b, Lanes mask, Lanes x) {
    return _mm512_mask_sub_epi64(a, _mm512_mask_testn_epi64_mask(_mm512_movepi64_mask(x), b, mask), a, set(1));
  }
  ISOBIT_HD static Lanes shift_left(Lanes a, Lanes n) { return _mm512_sllv_epi64(a, n); }
  ISOBIT_HD static Lanes shift_right(Lanes a, Lanes n) { return _mm512_srav_epi64(a, n); }
  struct Table {
    const int* entries;
    ISOBIT_HD Table(const GateConstants& c, int gate) : entries(reinterpret_cast<const int*>(c.table[gate])) {}
    ISOBIT_HD Lanes operator[](Lanes index) const {  // the entry and its successor, which is cut off
      const __m256i pairs = _mm256_i32gather_epi32(entries, _mm512_cvtepi64_epi32(index), 2);
      return _mm512_cvtepi32_epi64(_mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF)));
    }
  };
  ISOBIT_HD static Floats set_floats(float x) { return _mm256_set1_ps(x); }
  ISOBIT_HD static Floats to_floats(Lanes a) { return _mm512_cvtepi64_ps(a); }
  ISOBIT_HD static Floats mul_floats(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  ISOBIT_HD static Floats add_floats(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  ISOBIT_HD static Floats two_to_minus(Lanes n) {
    return _mm256_castsi256_ps(_mm512_cvtepi64_epi32(_mm512_slli_epi64(sub(set(127), n), 23)));
  }
  ISOBIT_HD static Floats floats_where_equal(Floats f, Lanes a, Lanes b) {
    return _mm256_maskz_mov_ps(_mm512_cmpeq_epi64_mask(a, b), f);
  }
  ISOBIT_HD static Lanes add_bit_where_equal(Lanes bits, Lanes a, Lanes b, int bit) {
    return _mm512_mask_or_epi64(bits, _mm512_cmpeq_epi64_mask(a, b), bits, set(1 << bit));
  }
  ISOBIT_HD static Lanes add_bit_where_greater(Lanes bits, Lanes a, Lanes b, int bit) {
    return _mm512_mask_or_epi64(bits, _mm512_cmpgt_epi64_mask(a, b), bits, set(1 << bit));
  }
  ISOBIT_HD static void store_floats(float* p, Floats a) { _mm256_storeu_ps(p, a); }
  ISOBIT_HD static void store_s32(int32_t* p, Lanes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi64_epi32(a));
  }
  ISOBIT_HD static void store_u16(uint16_t* p, Lanes a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi64_epi16(a));
  }
  ISOBIT_HD static void store_u8(uint8_t* p, Lanes a) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm512_cvtepi64_epi8(a));
  }
};

struct Avx512F64 {
  using Scalar = double;
  using Acc = int64_t;
  using Lanes = __m512d;
  using Codes = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  static constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  ISOBIT_HD static Lanes set(double x) { return _mm512_set1_pd(x); }
  ISOBIT_HD static Lanes load(const double* p) { return _mm512_loadu_pd(p); }
  ISOBIT_HD static Lanes load_s32(const int32_t* p) {
    return _mm512_cvtepi32_pd(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  ISOBIT_HD static Lanes load_acc(const int64_t* p) { return _mm512_cvtepi64_pd(_mm512_loadu_si512(p)); }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm512_add_pd(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm512_sub_pd(a, b); }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return _mm512_mul_pd(a, b); }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return _mm512_min_pd(a, b); }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return _mm512_max_pd(a, b); }
  ISOBIT_HD static Lanes abs(Lanes a) { return _mm512_abs_pd(a); }
  ISOBIT_HD static Lanes with_sign(Lanes a, Lanes sign) {
    return _mm512_or_pd(a, _mm512_and_pd(sign, _mm512_set1_pd(-0.0)));
  }
  ISOBIT_HD static Lanes fma_even(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_round_pd(a, b, c, kEven); }
  ISOBIT_HD static Lanes fma_down(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_round_pd(a, b, c, kDown); }
  ISOBIT_HD static Lanes add_down(Lanes a, Lanes b) { return _mm512_add_round_pd(a, b, kDown); }
  struct Table {
    const int* entries;
    ISOBIT_HD Table(const FloatGateConstants<double>& c, int gate)
        : entries(reinterpret_cast<const int*>(c.table[gate])) {}
    ISOBIT_HD Lanes look_up(Lanes index, int64_t offset) const {
      const __m256i low = _mm256_set1_epi32(0xFFFF);  // of the index; and of the entry, which comes with its successor
      const __m256i wanted = _mm256_and_si256(_mm512_cvtepi64_epi32(_mm512_castpd_si512(index)), low);
      const __m256i entry = _mm256_and_si256(_mm256_i32gather_epi32(entries, wanted, 2), low);
      return _mm512_cvtepi32_pd(_mm256_add_epi32(entry, _mm256_set1_epi32(static_cast<int32_t>(offset))));
    }
  };
  ISOBIT_HD static Codes to_codes(Lanes a) { return _mm512_cvtpd_epi32(a); }
  ISOBIT_HD static void store_s32(int32_t* p, Codes a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
  ISOBIT_HD static void store_bytes(uint8_t* low, uint8_t* high, Codes h, int64_t to_unsigned, int64_t planes) {
    const __m256i code = _mm256_add_epi32(h, _mm256_set1_epi32(static_cast<int32_t>(to_unsigned)));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(low), _mm256_cvtepi32_epi8(code));
    if (planes == 2)
      _mm_storel_epi64(reinterpret_cast<__m128i*>(high), _mm256_cvtepi32_epi8(_mm256_srli_epi32(code, 8)));
  }
};

}  // namespace

GruKernels gru_kernels_avx512vnni() {
  GruKernels kernels = row_kernels<Avx512S32>();
  kernels.gates_s32 = gates<Avx512S32>;
  kernels.record_s32 = record_gates<Avx512S32>;
  kernels.record_s64 = record_gates<Avx512S64>;
  kernels.gates_f32 = float_gates<Avx512F32>;
  kernels.gates_f32_bytes = gru_gates_f32_bytes_avx512vbmi();
  kernels.gates_f64 = float_gates<Avx512F64>;
  return kernels;
}

}  // namespace isobit
