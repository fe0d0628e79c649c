// SPDX-License-Identifier: Apache-2.0
// Rescales in eight lanes of float64: AVX-512 F, BW, DQ and VL.
#include <cstdint>

#include "core/rescale_lanes.h"
#include "core/unroll.h"
#include "core/x86_intrinsics.h"
#include "linear/static/kernels.h"

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

constexpr int kLanes = 16;

[[gnu::always_inline]] inline __m512d load(const int32_t* acc) {
  return _mm512_cvtepi32_pd(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(acc)));
}
[[gnu::always_inline]] inline __m512d load(const int64_t* acc) { return _mm512_cvtepi64_pd(_mm512_loadu_si512(acc)); }

/// 16 rescaled accumulators as int32: the low halves of two times eight lanes, which hold integers.
template <Rounding kMode, typename T>
[[gnu::always_inline]] inline __m512i rescaled(const T* acc, const __m512d* ratio) {
  const __m512i low = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512d first = rescale_to_magic<Lanes8, kMode>(load(acc), ratio[0]);
  const __m512d second = rescale_to_magic<Lanes8, kMode>(load(acc + 8), ratio[1]);
  return _mm512_permutex2var_epi32(_mm512_castpd_si512(first), low, _mm512_castpd_si512(second));
}

/// kUnits times 16 outputs of all rows, of which `count` exist, as bytes.
template <typename T, Rounding kMode, int kUnits>
void rescale_columns(const StaticRescaleArgs& args, int64_t first, int64_t count) {
  // As unsigned bytes, and back at the end.
  const int offset = args.lo < 0 ? 128 : 0;
  const __m512i zero_point = _mm512_set1_epi16(static_cast<int16_t>(args.zero_point + offset));
  const __m512i lo = _mm512_set1_epi8(static_cast<char>(args.lo + offset));
  const __m512i hi = _mm512_set1_epi8(static_cast<char>(args.hi + offset));
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(offset));
  // Four bytes of every unit in turn to 16 of each.
  const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __mmask64 mask = ~uint64_t{0} >> (64 - count);
  __m512d ratio[kUnits][2];
  unroll<2 * kUnits>(ISOBIT_UNROLLED(i) { ratio[i / 2][i % 2] = _mm512_loadu_pd(args.ratio + first + 8 * i); });
  const auto* acc = static_cast<const T*>(args.acc) + first;
  uint8_t* y = static_cast<uint8_t*>(args.y) + first;
  for (int64_t m = 0; m < args.rows; ++m, acc += args.acc_stride, y += args.y_stride) {
    __m512i codes[4];
    unroll<4>(ISOBIT_UNROLLED(u) {
      if constexpr (u < kUnits) {
        codes[u] = rescaled<kMode>(acc + kLanes * u, ratio[u]);
      } else {
        codes[u] = codes[u - 1];
      }
    });
    // Every step saturates, so that clamping at the end is enough.
    const __m512i front = _mm512_adds_epi16(_mm512_packs_epi32(codes[0], codes[1]), zero_point);
    const __m512i back = kUnits > 2 ? _mm512_adds_epi16(_mm512_packs_epi32(codes[2], codes[3]), zero_point) : front;
    const __m512i bytes = _mm512_min_epu8(_mm512_max_epu8(_mm512_packus_epi16(front, back), lo), hi);
    _mm512_mask_storeu_epi8(y, mask, _mm512_permutexvar_epi32(in_order, _mm512_xor_si512(bytes, flip)));
  }
}

template <typename T, Rounding kMode>
void rescale_to_bytes(const StaticRescaleArgs& args) {
  int64_t n = 0;
  for (; n + 3 * kLanes < args.count; n += 4 * kLanes)
    rescale_columns<T, kMode, 4>(args, n, args.count - n < 4 * kLanes ? args.count - n : 4 * kLanes);
  const int64_t left = args.count - n;
  if (left > 2 * kLanes) return rescale_columns<T, kMode, 3>(args, n, left);
  if (left > kLanes) return rescale_columns<T, kMode, 2>(args, n, left);
  if (left > 0) return rescale_columns<T, kMode, 1>(args, n, left);
}

template <typename T, Rounding kMode>
void rescale_to_two_bytes(const StaticRescaleArgs& args) {
  const __m512i zero_point = _mm512_set1_epi32(args.zero_point);
  const __m512i lo = _mm512_set1_epi32(args.lo);
  const __m512i hi = _mm512_set1_epi32(args.hi);
  for (int64_t n = 0; n < args.count; n += kLanes) {
    const int64_t count = args.count - n < kLanes ? args.count - n : kLanes;
    const auto mask = static_cast<__mmask16>(0xffff >> (kLanes - count));
    const __m512d ratio[2] = {_mm512_loadu_pd(args.ratio + n), _mm512_loadu_pd(args.ratio + n + 8)};
    const auto* acc = static_cast<const T*>(args.acc) + n;
    uint16_t* y = static_cast<uint16_t*>(args.y) + n;
    for (int64_t m = 0; m < args.rows; ++m, acc += args.acc_stride, y += args.y_stride) {
      const __m512i code = _mm512_add_epi32(rescaled<kMode>(acc, ratio), zero_point);
      _mm256_mask_storeu_epi16(y, mask, _mm512_cvtepi32_epi16(_mm512_min_epi32(_mm512_max_epi32(code, lo), hi)));
    }
  }
}

template <Rounding kMode>
void rescale_rows(const StaticRescaleArgs& args) {
  if (args.y_bytes == 2)
    return args.wide ? rescale_to_two_bytes<int64_t, kMode>(args) : rescale_to_two_bytes<int32_t, kMode>(args);
  return args.wide ? rescale_to_bytes<int64_t, kMode>(args) : rescale_to_bytes<int32_t, kMode>(args);
}

}  // namespace

void static_rescale_avx512vnni(const StaticRescaleArgs& args) {
  if (args.ratio == nullptr) return static_rescale_scalar(args);
  switch (args.rounding) {
    case Rounding::kNearestEven: return rescale_rows<Rounding::kNearestEven>(args);
    case Rounding::kNearestUp: return rescale_rows<Rounding::kNearestUp>(args);
    case Rounding::kNearestAway: return rescale_rows<Rounding::kNearestAway>(args);
    case Rounding::kFloor: return rescale_rows<Rounding::kFloor>(args);
  }
}

}  // namespace isobit
