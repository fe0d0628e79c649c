// SPDX-License-Identifier: Apache-2.0
// AVX-VNNI (client processors without AVX-512): one vpdpbusd is 8 outputs x 4 k. Six registers accumulate integers, six
// floats.
#include <immintrin.h>

#include <cstdint>

#include "linear/int8/avx_lanes.h"

namespace isobit {
namespace {

struct Vector : AvxLanes {
  static constexpr int kRows = 3;
  static constexpr int kPanelRows = 6;
  static constexpr int operand_bits(int) { return 8; }
  template <int>
  struct Operand {
    __m256i v;
  };
  template <int kBits>
  ISOBIT_HD static Operand<kBits> weights(__m256i w) {
    return {w};
  }
  template <int kBits>
  ISOBIT_HD static Operand<kBits> activations(const int8_t* a) {
    return {four(a)};
  }
  template <int kBits>
  ISOBIT_HD static Ints dot(Ints acc, Operand<kBits> w, Operand<kBits> a) {
    return ints(_mm256_dpbusd_avx_epi32(bits(acc), w.v, a.v));
  }
};

}  // namespace
}  // namespace isobit

#include "linear/int8/x86_body.h"

namespace isobit {

Int8Kernels int8_kernels_avxvnni() { return {run_product, run_quantize, run_finish}; }

}  // namespace isobit
