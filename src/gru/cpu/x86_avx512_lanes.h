// SPDX-License-Identifier: Apache-2.0
// 16 lanes of float in AVX-512 F, BW, DQ, VL; included by the files of each instruction set that has them.
#ifndef ISOBIT_GRU_CPU_X86_AVX512_LANES_H_
#define ISOBIT_GRU_CPU_X86_AVX512_LANES_H_

#include <immintrin.h>

#include <cstdint>

#include "gru/cpu/float_body.h"

namespace isobit {
namespace {

struct Avx512F32 {
  using Scalar = float;
  using Acc = int32_t;
  using Lanes = __m512;
  using Codes = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  static constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  ISOBIT_HD static Lanes set(float x) { return _mm512_set1_ps(x); }
  ISOBIT_HD static Lanes load(const float* p) { return _mm512_loadu_ps(p); }
  ISOBIT_HD static Lanes load_s32(const int32_t* p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
  ISOBIT_HD static Lanes load_acc(const int32_t* p) { return load_s32(p); }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return _mm512_min_ps(a, b); }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
  ISOBIT_HD static Lanes abs(Lanes a) { return _mm512_abs_ps(a); }
  ISOBIT_HD static Lanes with_sign(Lanes a, Lanes sign) {
    return _mm512_or_ps(a, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
  }
  ISOBIT_HD static Lanes fma_even(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_round_ps(a, b, c, kEven); }
  ISOBIT_HD static Lanes fma_down(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_round_ps(a, b, c, kDown); }
  ISOBIT_HD static Lanes add_down(Lanes a, Lanes b) { return _mm512_add_round_ps(a, b, kDown); }
  struct Table {
    const uint16_t* entries;
    ISOBIT_HD Table(const FloatGateConstants<float>& c, int gate) : entries(c.table[gate]) {}
    ISOBIT_HD Lanes look_up(Lanes index, int64_t offset) const {
      const __m512i low = _mm512_set1_epi32(0xFFFF);  // of the index; and of the entry, which comes with its successor
      const __m512i pair = _mm512_i32gather_epi32(_mm512_and_si512(_mm512_castps_si512(index), low), entries, 2);
      return _mm512_cvtepi32_ps(
          _mm512_add_epi32(_mm512_and_si512(pair, low), _mm512_set1_epi32(static_cast<int32_t>(offset))));
    }
  };
  ISOBIT_HD static Codes to_codes(Lanes a) { return _mm512_cvtps_epi32(a); }
  ISOBIT_HD static void store_s32(int32_t* p, Codes a) { _mm512_storeu_si512(p, a); }
  ISOBIT_HD static void store_bytes(uint8_t* low, uint8_t* high, Codes h, int64_t to_unsigned, int64_t planes) {
    const __m512i code = _mm512_add_epi32(h, _mm512_set1_epi32(static_cast<int32_t>(to_unsigned)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(code));
    if (planes == 2)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 8)));
  }
};

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_GRU_CPU_X86_AVX512_LANES_H_
