// SPDX-License-Identifier: Apache-2.0
// AVX2 without VNNI: even and odd bytes are widened to 16 bits, as vpmaddubsw saturates.
#include "conv/depthwise_avx2.h"
#include "conv/depthwise_body.h"

namespace isobit {
namespace {

struct Vector : Bytes32 {
  [[gnu::always_inline]] static Bytes dot(Bytes sums, Bytes u, Bytes w) {
    const Bytes even_u = _mm256_and_si256(u, _mm256_set1_epi16(0xff)), odd_u = _mm256_srli_epi16(u, 8);
    const Bytes even_w = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), odd_w = _mm256_srai_epi16(w, 8);
    const Bytes even = _mm256_madd_epi16(even_u, even_w), odd = _mm256_madd_epi16(odd_u, odd_w);
    return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
  }
};

}  // namespace

void depthwise_avx2(const DepthwiseArgs& args) { run_depthwise<Vector, Vector>(args); }

}  // namespace isobit
