// SPDX-License-Identifier: Apache-2.0
// Vectors of 32 bytes for depthwise_body.h, but for dot.
#ifndef ISOBIT_CONV_DEPTHWISE_AVX2_H_
#define ISOBIT_CONV_DEPTHWISE_AVX2_H_

#include <cstdint>

#include "core/x86_intrinsics.h"
#include "product/codes_avx2.h"

namespace isobit {
namespace {

struct Bytes32 {
  using Bytes = __m256i;
  static constexpr int kBytes = 32;
  [[gnu::always_inline]] static Bytes load(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  [[gnu::always_inline]] static Bytes zero() { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static Bytes low8(Bytes a, Bytes b) { return _mm256_unpacklo_epi8(a, b); }
  [[gnu::always_inline]] static Bytes high8(Bytes a, Bytes b) { return _mm256_unpackhi_epi8(a, b); }
  [[gnu::always_inline]] static Bytes low16(Bytes a, Bytes b) { return _mm256_unpacklo_epi16(a, b); }
  [[gnu::always_inline]] static Bytes high16(Bytes a, Bytes b) { return _mm256_unpackhi_epi16(a, b); }
  [[gnu::always_inline]] static void store(const Bytes (&sums)[4], int32_t* out) {
    const auto put = [&](int i, Bytes eight) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * i), eight); };
    put(0, _mm256_permute2x128_si256(sums[0], sums[1], 0x20));
    put(1, _mm256_permute2x128_si256(sums[2], sums[3], 0x20));
    put(2, _mm256_permute2x128_si256(sums[0], sums[1], 0x31));
    put(3, _mm256_permute2x128_si256(sums[2], sums[3], 0x31));
  }
  using Codes = CodeLanes8;
  [[gnu::always_inline]] static Bytes codes(const Codes& codes, const Bytes (&sums)[4], const float* ratio,
                                            bool& undecided) {
    __m256 ratios[4];
    unroll<4>(ISOBIT_UNROLLED(i) { ratios[i] = _mm256_loadu_ps(ratio + 8 * i); });
    return codes.bytes<4>(sums, ratios, undecided);
  }
  [[gnu::always_inline]] static void store_all(Bytes bytes, uint8_t* y) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), bytes);
  }
  [[gnu::always_inline]] static void store_some(Bytes bytes, int64_t count, uint8_t* y) {
    store_first(bytes, count, y);
  }
};

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_CONV_DEPTHWISE_AVX2_H_
