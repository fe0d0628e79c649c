// SPDX-License-Identifier: Apache-2.0
// Bounds of integers, and the encoding of rescales by them: numerics.md, sections 2 and 8.
#ifndef ISOBIT_CORE_RESCALE_H_
#define ISOBIT_CORE_RESCALE_H_

#include <cstdint>
#include <string>

#include "core/fixed.h"
#include "isobit/grid.h"
#include "isobit/rounding.h"
#include "isobit/status.h"

namespace isobit {

__extension__ typedef __int128 Int128;

/// Magnitudes saturate here, far above int64 and far below the end of Int128.
inline constexpr Int128 kBoundLimit = static_cast<Int128>(1) << 120;

Int128 bound_add(Int128 a, Int128 b);
Int128 bound_multiply(Int128 a, Int128 b);
/// Largest |round_shift(x * m, n)| for |x| <= bound, in any rounding mode.
Int128 bound_rescale(Int128 bound, const RescaleParameters& ratio);
std::string to_decimal(Int128 value);

/// max |code - zero_point| and max |code| over a grid.
Int128 largest_difference(const Grid& grid);
Int128 largest_code(const Grid& grid);

/// ratio = 2^-shift. Above 127 stored as 127; below -62 refused unless the operand is always zero.
Result<RescaleParameters> encode_shift(int64_t shift, Int128 operand_bound);

/// ratio ~ multiplier * 2^-shift with multiplier in [2^(B-1), 2^B), B the largest <= 31 with operand * 2^B < 2^63.
Result<RescaleParameters> encode_ratio(double ratio, Int128 operand_bound);

}  // namespace isobit

#endif  // ISOBIT_CORE_RESCALE_H_
