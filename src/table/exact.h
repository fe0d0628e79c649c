// SPDX-License-Identifier: Apache-2.0
// The real function behind a table, on its grids, from 50-digit arithmetic.
#ifndef ISOBIT_TABLE_EXACT_H_
#define ISOBIT_TABLE_EXACT_H_

#include <cstdint>
#include <vector>

#include "isobit/grid.h"
#include "isobit/table.h"

namespace isobit {

/// Real codes are kept as integers times 2^kFineBits ("fine" units).
inline constexpr int kFineBits = 24;
/// |f(x) / S_out| is cut here: beyond every code of at most 16 bits, whatever its zero point.
inline constexpr int kMaxMagnitudeBits = 18;

struct ExactFunction {
  /// f((q - z_in) * S_in) / S_out + z_out in fine units, truncated towards z_out, for q = min()..max() + 1 of the
  /// input grid. The fits start from these.
  std::vector<int64_t> values;
  /// The correctly rounded codes for q = min()..max(), clamped to [low, high].
  std::vector<int32_t> codes;
  /// Codes of the bounds of f, within the output grid.
  int64_t low = 0;
  int64_t high = 0;
  /// center = f(0) / S_out + z_out, when that is an integer: the codes of x and -x then mirror about it.
  bool has_center = false;
  int64_t center = 0;
};

/// Both grids are valid and at most 16 bits wide.
ExactFunction exact_function(Activation function, const Grid& input, const Grid& output);

/// [low, high] only.
void code_bounds(Activation function, const Grid& output, int64_t* low, int64_t* high);

}  // namespace isobit

#endif  // ISOBIT_TABLE_EXACT_H_
