// SPDX-License-Identifier: Apache-2.0
// AVX2 without VNNI. vpmaddubsw adds two products to 16 bits and saturates. Codes of at most 4 bits cannot get there:
// 2 * 15 * 128 = 3840; they take it. Codes of 8 bits could (2 * 255 * 128): their even and odd bytes are widened and
// multiplied by vpmaddwd.
#include <immintrin.h>

#include <cstdint>

#include "linear/int8/avx_lanes.h"

namespace isobit {
namespace {

struct Vector : AvxLanes {
  static constexpr int kRows = 2;
  static constexpr int kPanelRows = 4;
  static constexpr int operand_bits(int bits) { return bits < 8 ? 4 : 8; }
  /// Even and odd bytes of a register where they need 16 bits each, else the register.
  template <int kBits>
  struct Operand {
    __m256i v[kBits == 8 ? 2 : 1];
  };

  template <int kBits>
  ISOBIT_HD static Operand<kBits> weights(__m256i w) {
    if constexpr (kBits < 8) {
      return {{w}};
    } else {
      return {{_mm256_and_si256(w, _mm256_set1_epi16(0xFF)), _mm256_srli_epi16(w, 8)}};
    }
  }
  template <int kBits>
  ISOBIT_HD static Operand<kBits> activations(const int8_t* a) {
    const __m256i quad = four(a);
    if constexpr (kBits < 8) {
      return {{quad}};
    } else {
      return {{_mm256_srai_epi16(_mm256_slli_epi16(quad, 8), 8), _mm256_srai_epi16(quad, 8)}};
    }
  }
  template <int kBits>
  ISOBIT_HD static Ints dot(Ints acc, const Operand<kBits>& w, const Operand<kBits>& a) {
    if constexpr (kBits < 8) {
      const __m256i pairs = _mm256_maddubs_epi16(w.v[0], a.v[0]);
      return add(acc, ints(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
    } else {
      const __m256i sums = _mm256_add_epi32(_mm256_madd_epi16(w.v[0], a.v[0]), _mm256_madd_epi16(w.v[1], a.v[1]));
      return add(acc, ints(sums));
    }
  }
};

}  // namespace
}  // namespace isobit

#include "linear/int8/x86_body.h"

namespace isobit {

Int8Kernels int8_kernels_avx2() { return {run_product, run_quantize, run_finish}; }

}  // namespace isobit
