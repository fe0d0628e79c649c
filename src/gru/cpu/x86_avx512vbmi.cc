// SPDX-License-Identifier: Apache-2.0
// AVX-512 with VBMI: tables of 256 bytes stay in registers; a gather of 16 entries takes three times as long.
#include "gru/cpu/x86_avx512_lanes.h"

namespace isobit {
namespace {

struct Avx512F32Bytes : Avx512F32 {
  struct Table {
    __m512i quarter[4];
    ISOBIT_HD Table(const FloatGateConstants<float>& c, int gate)
        : quarter{_mm512_loadu_si512(c.byte_table[gate]), _mm512_loadu_si512(c.byte_table[gate] + 64),
                  _mm512_loadu_si512(c.byte_table[gate] + 128), _mm512_loadu_si512(c.byte_table[gate] + 192)} {}
    ISOBIT_HD Lanes look_up(Lanes index_lanes, int64_t offset) const {
      constexpr __mmask64 kLowBytes = 0x1111111111111111;  // the index and the entry are the low byte of each lane
      const __m512i index = _mm512_castps_si512(index_lanes);
      const __mmask16 upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(128));
      const __m512i low = _mm512_maskz_permutex2var_epi8(kLowBytes, quarter[0], index, quarter[1]);
      const __m512i high = _mm512_maskz_permutex2var_epi8(kLowBytes, quarter[2], index, quarter[3]);
      const __m512i entry = _mm512_mask_mov_epi32(low, upper, high);
      return _mm512_cvtepi32_ps(_mm512_add_epi32(entry, _mm512_set1_epi32(static_cast<int32_t>(offset))));
    }
  };
};

}  // namespace

GatesF32 gru_gates_f32_bytes_avx512vbmi() {
  return __builtin_cpu_supports("avx512vbmi") != 0 ? float_gates<Avx512F32Bytes> : nullptr;
}

}  // namespace isobit
