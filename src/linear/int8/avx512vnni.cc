// SPDX-License-Identifier: Apache-2.0
// AVX-512 VNNI: one vpdpbusd is 16 outputs x 4 k. Of 32 registers 12 accumulate integers, 12 floats.
#include <cstdint>
#include <cstring>

#include "core/hd.h"
#include "core/x86_intrinsics.h"
#include "linear/int8/avx512_lanes.h"
#include "linear/int8/kernels.h"

namespace isobit {
namespace {

struct Vector : Avx512Lanes {
  static constexpr int kUnits = 2;
  static constexpr int kRows = 8;
  static constexpr int kPanelUnits = 4;
  static constexpr int kPanelRows = 4;
  static constexpr int operand_bits(int) { return 8; }

  template <int>
  struct Operand {
    __m512i v;
  };
  template <int kBits>
  ISOBIT_HD static Operand<kBits> weights(__m512i w) {
    return {w};
  }
  template <int kBits>
  ISOBIT_HD static Operand<kBits> activations(const int8_t* a) {
    int32_t quad;
    std::memcpy(&quad, a, sizeof quad);
    return {_mm512_set1_epi32(quad)};
  }
  template <int kBits>
  ISOBIT_HD static Ints dot(Ints acc, Operand<kBits> w, Operand<kBits> a) {
    return ints(_mm512_dpbusd_epi32(bits(acc), w.v, a.v));
  }
};

}  // namespace
}  // namespace isobit

#include "linear/int8/x86_body.h"

namespace isobit {

Int8Kernels int8_kernels_avx512vnni() { return {run_product, run_quantize, run_finish}; }

}  // namespace isobit
