// SPDX-License-Identifier: Apache-2.0
// Bounds and encoded rescales with messages: numerics.md, sections 2 and 8.
#ifndef ISOBIT_CORE_RESCALE_H_
#define ISOBIT_CORE_RESCALE_H_

#include <cstdint>
#include <string>

#include "core/bounds.h"
#include "core/fixed.h"
#include "isobit/grid.h"
#include "isobit/rounding.h"
#include "isobit/status.h"

namespace isobit {

std::string to_decimal(Int128 value);

/// max |code - zero_point| and max |code| over a grid.
Int128 largest_difference(const Grid& grid);
Int128 largest_code(const Grid& grid);

/// What was encoded for operands up to a bound, or why there is no rescale.
Result<RescaleParameters> with_message(const EncodedRescale& encoded, Int128 operand_bound);
/// encoded_shift(), encoded_ratio() and encoded_scales(), with a message.
Result<RescaleParameters> encode_shift(int64_t shift, Int128 operand_bound);
Result<RescaleParameters> encode_ratio(double ratio, Int128 operand_bound);
Result<RescaleParameters> encode_scales(Int128 operand, const Scale& n0, const Scale& n1, const Scale& d0,
                                        const Scale& d1);

}  // namespace isobit

#endif  // ISOBIT_CORE_RESCALE_H_
