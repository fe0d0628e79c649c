// SPDX-License-Identifier: Apache-2.0
#include "core/rescale.h"

#include <algorithm>

namespace isobit {
namespace {

Int128 absolute(Int128 x) { return x < 0 ? -x : x; }

}  // namespace

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

Result<RescaleParameters> with_message(const EncodedRescale& encoded, Int128 operand_bound) {
  const auto refuse = [](const std::string& message) { return Status(StatusCode::kOverflow, message); };
  switch (encoded.refusal) {
    case RescaleRefusal::kNone: break;
    case RescaleRefusal::kShift:
      return refuse("the shift is " + std::to_string(encoded.shift) + ", must be at least -62");
    case RescaleRefusal::kRatio:
      return refuse("the ratio of scales is " + std::to_string(encoded.real_ratio) + ", must be positive and finite");
    case RescaleRefusal::kOperand:
      return refuse("its operand can reach " + to_decimal(operand_bound) + ", must be below 2^62");
  }
  return encoded.ratio;
}

Result<RescaleParameters> encode_shift(int64_t shift, Int128 operand_bound) {
  return with_message(encoded_shift(shift, operand_bound), operand_bound);
}

Result<RescaleParameters> encode_ratio(double ratio, Int128 operand_bound) {
  return with_message(encoded_ratio(ratio, operand_bound), operand_bound);
}

Result<RescaleParameters> encode_scales(Int128 operand, const Scale& n0, const Scale& n1, const Scale& d0,
                                        const Scale& d1) {
  return with_message(encoded_scales(operand, n0, n1, d0, d1), operand);
}

}  // namespace isobit
