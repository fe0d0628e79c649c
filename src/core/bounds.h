// SPDX-License-Identifier: Apache-2.0
// Bounds of integers, and the encoding of rescales by them: numerics.md, sections 2 and 8, for host and device.
#ifndef ISOBIT_CORE_BOUNDS_H_
#define ISOBIT_CORE_BOUNDS_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/fixed.h"
#include "core/hd.h"
#include "isobit/grid.h"
#include "isobit/rounding.h"

namespace isobit {

__extension__ typedef __int128 Int128;

/// Magnitudes saturate here, far above int64 and far below the end of Int128.
inline constexpr Int128 kBoundLimit = static_cast<Int128>(1) << 120;

ISOBIT_HD int leading_zeros(uint64_t x) {
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<int64_t>(x));  // a device has no std::countl_zero
#else
  return std::countl_zero(x);
#endif
}
/// Of x >= 0; 0 of 0.
ISOBIT_HD int bit_length(Int128 x) {
  const auto high = static_cast<uint64_t>(x >> 64), low = static_cast<uint64_t>(x);
  return high != 0 ? 128 - leading_zeros(high) : 64 - leading_zeros(low);
}

ISOBIT_HD Int128 bound_add(Int128 a, Int128 b) { return a + b < kBoundLimit ? a + b : kBoundLimit; }

ISOBIT_HD Int128 bound_multiply(Int128 a, Int128 b) {
  if (a == 0 || b == 0) return 0;
  if (bit_length(a) + bit_length(b) > 126) return kBoundLimit;
  const Int128 product = a * b;
  return product < kBoundLimit ? product : kBoundLimit;
}

/// Largest |round_shift(x * m, n)| for |x| <= bound, in any rounding mode.
ISOBIT_HD Int128 bound_rescale(Int128 bound, const RescaleParameters& ratio) {
  const Int128 product = bound_multiply(bound, ratio.multiplier);
  if (product == 0) return 0;
  if (ratio.shift <= 0)
    return bound_multiply(product, static_cast<Int128>(1) << (ratio.shift < -100 ? 100 : -ratio.shift));
  return ratio.shift > 120 ? 1 : (product >> ratio.shift) + 1;
}

/// Why a ratio has no rescale.
enum class RescaleRefusal : uint8_t {
  kNone,
  kShift,    // below -62
  kRatio,    // not positive and finite
  kOperand,  // of 2^62 or more
};
struct EncodedRescale {
  RescaleParameters ratio;
  RescaleRefusal refusal = RescaleRefusal::kNone;
  int64_t shift = 0;      // that of kShift
  double real_ratio = 0;  // that of kRatio
};

/// ratio = 2^-shift. Above 127 stored as 127; below -62 refused unless the operand is always zero.
ISOBIT_HD EncodedRescale encoded_shift(int64_t shift, Int128 operand_bound) {
  if (shift > kMaxShift) shift = kMaxShift;  // the result is the same: less than one half, or its floor
  if (shift < kMinShift) {
    if (operand_bound != 0) return {{}, RescaleRefusal::kShift, shift};
    shift = 0;
  }
  return {{1, static_cast<int32_t>(shift)}};
}

/// ratio ~ multiplier * 2^-shift with multiplier in [2^(B-1), 2^B), B the largest <= 31 with operand * 2^B < 2^63.
ISOBIT_HD EncodedRescale encoded_ratio(double ratio, Int128 operand_bound) {
  if (!(ratio > 0) || std::isinf(ratio)) return {{}, RescaleRefusal::kRatio, 0, ratio};
  const int room = 63 - bit_length(operand_bound), bits = room < 31 ? room : 31;
  if (bits <= 0) return {{}, RescaleRefusal::kOperand};
  int exponent = 0;
  const double fraction = std::frexp(ratio, &exponent);  // ratio = fraction * 2^exponent, fraction in [1/2, 1)
  auto multiplier = static_cast<int64_t>(std::rint(std::ldexp(fraction, bits)));
  int64_t shift = static_cast<int64_t>(bits) - exponent;
  if (multiplier == int64_t{1} << bits) {
    multiplier >>= 1;
    --shift;
  }
  EncodedRescale encoded = encoded_shift(shift, operand_bound);
  encoded.ratio.multiplier = static_cast<int32_t>(multiplier);
  return encoded;
}

/// The scale of a grid: 2^-shift, or `real`.
struct Scale {
  ScaleKind kind = ScaleKind::kPow2;
  int32_t shift = 0;
  float real = 1.0f;
};
inline Scale scale_of(const Grid& grid) { return {grid.kind, grid.shift, grid.real_scale}; }
/// The absent factor of a ratio.
ISOBIT_HD Scale unit_scale(ScaleKind kind) { return {kind, 0, 1.0f}; }

/// The rescale n0 * n1 / (d0 * d1).
ISOBIT_HD EncodedRescale encoded_scales(Int128 operand, const Scale& n0, const Scale& n1, const Scale& d0,
                                        const Scale& d1) {
  if (n0.kind == ScaleKind::kPow2)
    return encoded_shift(static_cast<int64_t>(n0.shift) + n1.shift - d0.shift - d1.shift, operand);
  return encoded_ratio(static_cast<double>(n0.real) * static_cast<double>(n1.real) /
                           (static_cast<double>(d0.real) * static_cast<double>(d1.real)),
                       operand);
}

}  // namespace isobit

#endif  // ISOBIT_CORE_BOUNDS_H_
