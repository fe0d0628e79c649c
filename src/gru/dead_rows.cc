// SPDX-License-Identifier: Apache-2.0
#include "gru/dead_rows.h"

#include "gru/proof.h"
#include "gru/row.h"

namespace isobit {
namespace {

void rescale_rows(const std::vector<float>& values, const Grid& activation, const Grid& result,
                  const std::vector<Grid>& bias_grids, const std::vector<Int128>& bias_operands,
                  const std::vector<Int128>& dots, std::vector<Grid>& grids, CodeMatrix& codes) {
  for (size_t c = 0; c < grids.size(); ++c) {
    Scale scale = scale_of(grids[c]);
    const LinearRow row{scale_of(activation), scale_of(bias_grids[c]), scale_of(result), bias_operands[c], dots[c]};
    if (!is_dead(row, scale) || !make_coarser(row, scale)) continue;
    grids[c].shift = scale.shift;
    grids[c].real_scale = scale.real;
    const auto first = static_cast<int64_t>(c) * codes.columns();
    for (int64_t k = 0; k < codes.columns(); ++k)
      codes.set(static_cast<int64_t>(c), k, quantize_value(grids[c], values[static_cast<size_t>(first + k)]));
  }
}

}  // namespace

void rescale_dead_rows(const GruLayerWeights& weights, GruLayerParameters& p) {
  const GruOperandBounds bounds = operand_bounds(p);
  rescale_rows(weights.W, p.grids[kX], p.grids[kIh], p.bw_grid, bounds.bias_w, bounds.dot_x, p.W_grid, p.W);
  rescale_rows(weights.R, p.grids[kH], p.grids[kHh], p.br_grid, bounds.bias_r, bounds.dot_h, p.R_grid, p.R);
}

}  // namespace isobit
