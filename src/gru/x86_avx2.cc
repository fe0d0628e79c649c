// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "gru/gates_body.h"

namespace isobit {
namespace {

// No 64-bit twin: AVX2 has neither a 64-bit arithmetic shift nor a 64-bit product, so the scalar row serves there.
struct Avx2S32 {
  using Lanes = __m256i;
  using Acc = int32_t;
  static constexpr int kLanes = 8;
  static constexpr bool kWide = false;
  ISOBIT_HD static Lanes set(int64_t x) { return _mm256_set1_epi32(static_cast<int32_t>(x)); }
  ISOBIT_HD static Lanes load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  ISOBIT_HD static Lanes load_parameter(const int32_t* p) { return load(p); }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm256_add_epi32(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm256_sub_epi32(a, b); }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return _mm256_mullo_epi32(a, b); }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return _mm256_min_epi32(a, b); }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return _mm256_max_epi32(a, b); }
  ISOBIT_HD static Lanes bit_and(Lanes a, Lanes b) { return _mm256_and_si256(a, b); }
  ISOBIT_HD static Lanes sign(Lanes a) { return _mm256_srai_epi32(a, 31); }
  ISOBIT_HD static Lanes shift_left(Lanes a, Lanes n) { return _mm256_sllv_epi32(a, n); }
  ISOBIT_HD static Lanes shift_right(Lanes a, Lanes n) { return _mm256_srav_epi32(a, n); }
  ISOBIT_HD static Lanes gather(const int16_t* table, Lanes index) {
    const Lanes pair = _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), index, 2);
    return _mm256_srai_epi32(_mm256_slli_epi32(pair, 16), 16);
  }
  ISOBIT_HD static void store_s32(int32_t* p, Lanes a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
  ISOBIT_HD static void store_u8(uint8_t* p, Lanes a) {
    // Byte 0 of each dword to the low four bytes of its half, then both halves together.
    const __m256i bytes = _mm256_shuffle_epi8(
        a, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1,
                            -1, -1, -1, -1, -1, -1, -1, -1));
    const __m128i packed = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), packed);
  }
};

}  // namespace

void gru_gates_s32_avx2(const GateConstants& c, const int32_t* acc_x, const int32_t* acc_h, int32_t* h_diff,
                        uint8_t* low, uint8_t* high) {
  gates<Avx2S32>(c, acc_x, acc_h, h_diff, low, high);
}

}  // namespace isobit
