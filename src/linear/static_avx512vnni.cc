// SPDX-License-Identifier: Apache-2.0
// Rescales in eight lanes of float64: AVX-512 F.
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined operand of its own unmasked intrinsics for a mistake (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

#include "core/rescale_lanes.h"
#include "linear/static_kernels.h"

namespace isobit {
namespace {

struct Lanes8 {
  using Scalar = double;
  using Lanes = __m512d;
  static constexpr int kEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  static constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  ISOBIT_HD static Lanes set(double x) { return _mm512_set1_pd(x); }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return _mm512_add_pd(a, b); }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return _mm512_sub_pd(a, b); }
  ISOBIT_HD static Lanes abs(Lanes a) { return _mm512_abs_pd(a); }
  ISOBIT_HD static Lanes with_sign(Lanes a, Lanes sign) {
    return _mm512_or_pd(a, _mm512_and_pd(sign, _mm512_set1_pd(-0.0)));
  }
  ISOBIT_HD static Lanes fma_even(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_round_pd(a, b, c, kEven); }
  ISOBIT_HD static Lanes fma_down(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_round_pd(a, b, c, kDown); }
  ISOBIT_HD static Lanes add_down(Lanes a, Lanes b) { return _mm512_add_round_pd(a, b, kDown); }
};

template <Rounding kMode>
void rescale_row(const StaticRescaleArgs& args) {
  const auto* acc = static_cast<const int32_t*>(args.acc);
  const __m512d lo = _mm512_set1_pd(args.lo - args.zero_point);  // clamped before it becomes an int32
  const __m512d hi = _mm512_set1_pd(args.hi - args.zero_point);
  const __m256i zero_point = _mm256_set1_epi32(args.zero_point);
  for (int64_t n = 0; n < args.count; n += 8) {
    const int64_t left = args.count - n;
    const auto mask = static_cast<__mmask8>(left < 8 ? (1 << left) - 1 : 0xFF);
    const __m512d x = _mm512_cvtepi32_pd(_mm256_maskz_loadu_epi32(mask, acc + n));
    const __m512d rescaled = rescale<Lanes8, kMode>(x, _mm512_maskz_loadu_pd(mask, args.ratio + n));
    const __m256i code = _mm512_cvttpd_epi32(_mm512_min_pd(_mm512_max_pd(rescaled, lo), hi));
    _mm256_mask_cvtepi32_storeu_epi8(args.y + n, mask, _mm256_add_epi32(code, zero_point));
  }
}

}  // namespace

void static_rescale_avx512vnni(const StaticRescaleArgs& args) {
  if (args.ratio == nullptr) return static_rescale_scalar(args);
  switch (args.rounding) {
    case Rounding::kNearestEven: return rescale_row<Rounding::kNearestEven>(args);
    case Rounding::kNearestUp: return rescale_row<Rounding::kNearestUp>(args);
    case Rounding::kNearestAway: return rescale_row<Rounding::kNearestAway>(args);
    case Rounding::kFloor: return rescale_row<Rounding::kFloor>(args);
  }
}

}  // namespace isobit
