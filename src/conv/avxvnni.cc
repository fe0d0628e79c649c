// SPDX-License-Identifier: Apache-2.0
// AVX-VNNI: four products in one instruction.
#include "conv/depthwise_avx2.h"
#include "conv/depthwise_body.h"

namespace isobit {
namespace {

struct Vector : Bytes32 {
  [[gnu::always_inline]] static Bytes dot(Bytes sums, Bytes u, Bytes w) { return _mm256_dpbusd_avx_epi32(sums, u, w); }
};

}  // namespace

void depthwise_avxvnni(const DepthwiseArgs& args) { run_depthwise<Vector, Vector>(args); }

}  // namespace isobit
