// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstdint>

#include "gru/cpu/record_body.h"
#include "gru/cpu/vector_body.h"

namespace isobit {
namespace {

// No 64-bit twin: AVX2 has neither a 64-bit arithmetic shift nor a 64-bit product, so the scalar row serves there.
struct Avx2S32 {
  using Lanes = __m256i;
  static constexpr int kLanes = 8;
  ISOBIT_HD static Lanes set(int64_t x) { return _mm256_set1_epi32(static_cast<int32_t>(x)); }
  ISOBIT_HD static Lanes load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm256_add_epi32(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm256_sub_epi32(a, b); }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return _mm256_mullo_epi32(a, b); }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return _mm256_min_epi32(a, b); }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return _mm256_max_epi32(a, b); }
  ISOBIT_HD static Lanes clear_low_bit_where_zero(Lanes a, Lanes b, Lanes mask) {
    const Lanes zero = _mm256_cmpeq_epi32(_mm256_and_si256(b, mask), _mm256_setzero_si256());
    return _mm256_andnot_si256(_mm256_srli_epi32(zero, 31), a);
  }
  ISOBIT_HD static Lanes decrement_where_zero_and_negative(Lanes a, Lanes b, Lanes mask, Lanes x) {
    const Lanes zero = _mm256_cmpeq_epi32(_mm256_and_si256(b, mask), _mm256_setzero_si256());
    return _mm256_add_epi32(a, _mm256_srai_epi32(_mm256_and_si256(zero, x), 31));
  }
  ISOBIT_HD static Lanes shift_left(Lanes a, Lanes n) { return _mm256_sllv_epi32(a, n); }
  ISOBIT_HD static Lanes shift_right(Lanes a, Lanes n) { return _mm256_srav_epi32(a, n); }
  struct Table {
    const int* entries;
    ISOBIT_HD Table(const GateConstants& c, int gate) : entries(reinterpret_cast<const int*>(c.table[gate])) {}
    ISOBIT_HD Lanes operator[](Lanes index) const {  // the entry and its successor, which is cut off
      return _mm256_and_si256(_mm256_i32gather_epi32(entries, index, 2), _mm256_set1_epi32(0xFFFF));
    }
  };
  ISOBIT_HD static bool any_nan(const float* p) {
    return _mm256_movemask_ps(_mm256_cmp_ps(load_float(p), load_float(p), _CMP_UNORD_Q)) != 0;
  }
  ISOBIT_HD static bool any_nan4(const float* p) {
    const __m256 first = _mm256_cmp_ps(load_float(p), load_float(p + 8), _CMP_UNORD_Q);
    const __m256 second = _mm256_cmp_ps(load_float(p + 16), load_float(p + 24), _CMP_UNORD_Q);
    return _mm256_movemask_ps(_mm256_or_ps(first, second)) != 0;
  }
  ISOBIT_HD static __m256 load_float(const float* p) { return _mm256_loadu_ps(p); }
  ISOBIT_HD static Lanes rint_clamped(__m256 x, float factor, float low, float high) {
    const __m256 scaled = _mm256_mul_ps(x, _mm256_set1_ps(factor));
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(scaled, _mm256_set1_ps(low)), _mm256_set1_ps(high)));
  }
  ISOBIT_HD static void store_s32(int32_t* p, Lanes a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
  ISOBIT_HD static void store_u8(uint8_t* p, Lanes a) {
    // Byte 0 of each dword to the low four bytes of its half, then both halves together.
    const __m256i bytes =
        _mm256_shuffle_epi8(a, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8,
                                                12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m128i packed = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), packed);
  }
  using Acc = int32_t;
  using Floats = __m256;
  ISOBIT_HD static Lanes load_s32(const int32_t* p) { return load(p); }
  ISOBIT_HD static Floats set_floats(float x) { return _mm256_set1_ps(x); }
  ISOBIT_HD static Floats to_floats(Lanes a) { return _mm256_cvtepi32_ps(a); }
  ISOBIT_HD static Floats mul_floats(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  ISOBIT_HD static Floats add_floats(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  ISOBIT_HD static Floats two_to_minus(Lanes n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(set(127), n), 23));
  }
  ISOBIT_HD static Floats floats_where_equal(Floats f, Lanes a, Lanes b) {
    return _mm256_and_ps(f, _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)));
  }
  ISOBIT_HD static Lanes add_bit_where_equal(Lanes bits, Lanes a, Lanes b, int bit) {
    return _mm256_or_si256(bits, _mm256_and_si256(_mm256_cmpeq_epi32(a, b), set(1 << bit)));
  }
  ISOBIT_HD static Lanes add_bit_where_greater(Lanes bits, Lanes a, Lanes b, int bit) {
    return _mm256_or_si256(bits, _mm256_and_si256(_mm256_cmpgt_epi32(a, b), set(1 << bit)));
  }
  ISOBIT_HD static void store_floats(float* p, Floats a) { _mm256_storeu_ps(p, a); }
  ISOBIT_HD static void store_u16(uint16_t* p, Lanes a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, a), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(words));
  }
};

}  // namespace

GruKernels gru_kernels_avx2() {
  GruKernels kernels = row_kernels<Avx2S32>();
  kernels.gates_s32 = gates<Avx2S32>;
  kernels.record_s32 = record_gates<Avx2S32>;
  return kernels;
}

}  // namespace isobit
