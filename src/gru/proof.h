// SPDX-License-Identifier: Apache-2.0
// The overflow proof of one direction of one layer: numerics.md, section 8.
#ifndef ISOBIT_GRU_PROOF_H_
#define ISOBIT_GRU_PROOF_H_

#include <string>
#include <vector>

#include "core/rescale.h"
#include "gru/row.h"
#include "isobit/gru.h"

namespace isobit {

/// Of the codes of a row: their sum, and that of their magnitudes.
struct RowSums {
  int64_t sum = 0, magnitude = 0;
};
std::vector<RowSums> row_sums(const CodeMatrix& codes);

/// Operand bounds that do not depend on the layer's rescales to gates; sums over actual weights.
struct GruOperandBounds {
  std::vector<Int128> bias_w, bias_r;  // [3H] 0 where the row's code is 0, else the largest magnitude of the width
  std::vector<Int128> dot_x, dot_h;    // [3H] sum_k |W[c,k]| * max|x - z_x|
};
GruOperandBounds operand_bounds(const GruLayerParameters& p);

/// "row 37 (gate u, unit 37)": a row of W, R, bw or br.
std::string row_text(int64_t row, int64_t hidden_size);

/// What W x or R h of a layer can reach.
struct GruLinearWidths {
  Int128 products = 0;     // sums of weight * code
  Int128 accumulator = 0;  // with all that is added to them
  Int128 result = 0;       // rescaled, with the zero point
};

struct GruProof {
  std::vector<OverflowBound> rows;
  GruLinearWidths ih, hh;
  bool acc_x_s32 = false;  // every accumulator of W x, start value included, fits int32
  bool acc_h_s32 = false;
  bool gates_s32 = false;  // every intermediate after the accumulators fits int32, rounding included, no multiplier
  bool gates_s64 = false;  // the same for int64 with shifts of at most 62
  // Every intermediate after the accumulators, and they too, is exact as float or double: operands and sums of at most
  // 24 or 53 bits, results of rescales below an eighth of kMagic (core/magic.h), ratios that the type holds.
  bool gates_f32 = false;
  bool gates_f64 = false;
  bool cell_s32 = false;  // every intermediate after ih and hh fits int32, but for products with a multiplier
  bool cell_f32 = false;  // the same is exact as float, or as double
  bool cell_f64 = false;
};

/// Bounds every intermediate; kOverflow names the operator, the bound and the limit.
Result<GruProof> prove_no_overflow(const GruLayerParameters& p, const std::string& layer_name);

}  // namespace isobit

#endif  // ISOBIT_GRU_PROOF_H_
