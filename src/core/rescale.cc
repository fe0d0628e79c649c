// SPDX-License-Identifier: Apache-2.0
#include "core/rescale.h"

#include <algorithm>
#include <cmath>

namespace isobit {
namespace {

Int128 absolute(Int128 x) { return x < 0 ? -x : x; }

}  // namespace

Int128 bound_add(Int128 a, Int128 b) { return std::min(a + b, kBoundLimit); }

Int128 bound_multiply(Int128 a, Int128 b) {
  if (a == 0 || b == 0) return 0;
  return a > kBoundLimit / b ? kBoundLimit : a * b;
}

Int128 bound_rescale(Int128 bound, const RescaleParameters& ratio) {
  const Int128 product = bound_multiply(bound, ratio.multiplier);
  if (product == 0) return 0;
  if (ratio.shift <= 0) return bound_multiply(product, static_cast<Int128>(1) << std::min(-ratio.shift, 100));
  return ratio.shift > 120 ? 1 : (product >> ratio.shift) + 1;
}

std::string to_decimal(Int128 value) {
  if (value >= kBoundLimit) return "over 10^36";
  std::string digits;
  do {
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(value % 10)));
    value /= 10;
  } while (value != 0);
  return digits;
}

Int128 largest_difference(const Grid& grid) {
  return std::max(absolute(static_cast<Int128>(grid.min()) - grid.zero_point),
                  absolute(static_cast<Int128>(grid.max()) - grid.zero_point));
}

Int128 largest_code(const Grid& grid) { return std::max(absolute(grid.min()), absolute(grid.max())); }

Result<RescaleParameters> encode_shift(int64_t shift, Int128 operand_bound) {
  if (shift > kMaxShift) shift = kMaxShift;  // the result is the same: less than one half, or its floor
  if (shift < kMinShift) {
    if (operand_bound != 0)
      return Status(StatusCode::kOverflow, "the shift is " + std::to_string(shift) + ", must be at least -62");
    shift = 0;
  }
  return RescaleParameters{1, static_cast<int32_t>(shift)};
}

Result<RescaleParameters> encode_ratio(double ratio, Int128 operand_bound) {
  if (!(ratio > 0) || !std::isfinite(ratio))
    return Status(StatusCode::kOverflow,
                  "the ratio of scales is " + std::to_string(ratio) + ", must be positive and finite");
  int bits = 31;  // B: the largest <= 31 with X * 2^B < 2^63
  while (bits > 0 && bound_multiply(operand_bound, static_cast<Int128>(1) << bits) >= (static_cast<Int128>(1) << 63))
    --bits;
  if (bits == 0)
    return Status(StatusCode::kOverflow, "its operand can reach " + to_decimal(operand_bound) + ", must be below 2^62");
  int exponent = 0;
  const double fraction = std::frexp(ratio, &exponent);  // ratio = fraction * 2^exponent, fraction in [1/2, 1)
  auto multiplier = static_cast<int64_t>(std::rint(std::ldexp(fraction, bits)));
  int64_t shift = static_cast<int64_t>(bits) - exponent;
  if (multiplier == int64_t{1} << bits) {
    multiplier >>= 1;
    --shift;
  }
  Result<RescaleParameters> encoded = encode_shift(shift, operand_bound);
  if (!encoded.ok()) return encoded;
  return RescaleParameters{static_cast<int32_t>(multiplier), encoded->shift};
}

}  // namespace isobit
