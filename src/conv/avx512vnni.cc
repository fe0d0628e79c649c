// SPDX-License-Identifier: Apache-2.0
// AVX-512 F, BW, DQ, VL and VNNI: 64 channels, and 32 where no more are left.
#include "conv/depthwise_avx2.h"
#include "conv/depthwise_body.h"
#include "product/codes_avx512.h"

namespace isobit {
namespace {

struct Narrow : Bytes32 {
  [[gnu::always_inline]] static Bytes dot(Bytes sums, Bytes u, Bytes w) { return _mm256_dpbusd_epi32(sums, u, w); }
  [[gnu::always_inline]] static void store_some(Bytes bytes, int64_t count, uint8_t* y) {
    _mm256_mask_storeu_epi8(y, ~uint32_t{0} >> (32 - count), bytes);
  }
};

struct Wide {
  using Bytes = __m512i;
  static constexpr int kBytes = 64;
  [[gnu::always_inline]] static Bytes load(const void* from) { return _mm512_loadu_si512(from); }
  [[gnu::always_inline]] static Bytes zero() { return _mm512_setzero_si512(); }
  [[gnu::always_inline]] static Bytes low8(Bytes a, Bytes b) { return _mm512_unpacklo_epi8(a, b); }
  [[gnu::always_inline]] static Bytes high8(Bytes a, Bytes b) { return _mm512_unpackhi_epi8(a, b); }
  [[gnu::always_inline]] static Bytes low16(Bytes a, Bytes b) { return _mm512_unpacklo_epi16(a, b); }
  [[gnu::always_inline]] static Bytes high16(Bytes a, Bytes b) { return _mm512_unpackhi_epi16(a, b); }
  [[gnu::always_inline]] static Bytes dot(Bytes sums, Bytes u, Bytes w) { return _mm512_dpbusd_epi32(sums, u, w); }
  [[gnu::always_inline]] static void store(const Bytes (&sums)[4], int32_t* out) {
    const auto put = [&](int i, Bytes sixteen) { _mm512_storeu_si512(out + 16 * i, sixteen); };
    constexpr int kFirst = 0x44, kLast = 0xee, kEven = 0x88, kOdd = 0xdd;  // lanes of both operands
    const Bytes first01 = _mm512_shuffle_i32x4(sums[0], sums[1], kFirst);
    const Bytes first23 = _mm512_shuffle_i32x4(sums[2], sums[3], kFirst);
    const Bytes last01 = _mm512_shuffle_i32x4(sums[0], sums[1], kLast);
    const Bytes last23 = _mm512_shuffle_i32x4(sums[2], sums[3], kLast);
    put(0, _mm512_shuffle_i32x4(first01, first23, kEven));
    put(1, _mm512_shuffle_i32x4(first01, first23, kOdd));
    put(2, _mm512_shuffle_i32x4(last01, last23, kEven));
    put(3, _mm512_shuffle_i32x4(last01, last23, kOdd));
  }
  using Codes = CodeLanes16;
  [[gnu::always_inline]] static Bytes codes(const Codes& codes, const Bytes (&sums)[4], const float* ratio,
                                            bool& undecided) {
    __m512 ratios[4];
    unroll<4>(ISOBIT_UNROLLED(i) { ratios[i] = _mm512_loadu_ps(ratio + 16 * i); });
    __mmask16 any = 0;
    const Bytes bytes = codes.bytes<4>(sums, ratios, any);
    undecided = any != 0;
    return bytes;
  }
  [[gnu::always_inline]] static void store_all(Bytes bytes, uint8_t* y) { _mm512_storeu_si512(y, bytes); }
  [[gnu::always_inline]] static void store_some(Bytes bytes, int64_t count, uint8_t* y) {
    _mm512_mask_storeu_epi8(y, ~uint64_t{0} >> (64 - count), bytes);
  }
};

}  // namespace

void depthwise_avx512vnni(const DepthwiseArgs& args) { run_depthwise<Wide, Narrow>(args); }

}  // namespace isobit
