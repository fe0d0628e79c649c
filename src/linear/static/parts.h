// SPDX-License-Identifier: Apache-2.0
// What checking, deriving and calibrating layers of static codes share: numerics.md, section 12.
#ifndef ISOBIT_LINEAR_STATIC_PARTS_H_
#define ISOBIT_LINEAR_STATIC_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/rescale.h"
#include "isobit/grid.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/status.h"

namespace isobit {

inline constexpr int32_t kLeastStaticBits = 2;  // of x and y
inline constexpr int32_t kMostStaticBits = 16;

/// X: what acc of a row can reach. v: the weights of the row.
Int128 largest_accumulator(const int8_t* v, int64_t columns, int32_t bias, const Grid& x);

/// A grid of 2 to 16 bits.
Status check_code_grid(const Grid& grid, const std::string& what);
/// x[row, column] is a code outside the grid of x. name: the layer. tensor: or another one, "residual".
Status refuse_code(const Grid& grid, int64_t row, int64_t column, int64_t code, const std::string& name,
                   const std::string& tensor = "x");
/// That every code lies in the grid, for which alone the proof holds; types of 8 and 16 bits have no other codes.
/// stride: codes from row to row.
Status check_codes(const std::byte* codes, const Grid& grid, int64_t rows, int64_t columns, int64_t stride,
                   const std::string& name, const std::string& tensor = "x");
/// 1, 2, 4 or 8.
Status check_weight_bits(int32_t bits, const std::string& what);
/// All but the output: lo, hi and rescales may be anything.
Status check_static_integers(const StaticLinearParameters& p, const std::string& name);
/// Symmetric, a group a row.
Status check_static_weights(const LowBitParameters& weights, const std::string& name);

/// S_w of every row: that of a row of zeros is the smallest of the others. 1 bit, which has no zero, has no such row.
Result<std::vector<float>> channel_scales(const LowBitMatrix& matrix, const std::string& name);

/// rint(bias / (S_x * S_w)), before its clamp to int32.
double unclamped_bias(float bias, const Grid& x, float scale);

}  // namespace isobit

#endif  // ISOBIT_LINEAR_STATIC_PARTS_H_
