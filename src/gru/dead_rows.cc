// SPDX-License-Identifier: Apache-2.0
#include "gru/dead_rows.h"

#include <bit>
#include <limits>
#include <optional>

#include "calibrate/derive_grid.h"
#include "gru/proof.h"
#include "gru/rescale.h"

namespace isobit {
namespace {

constexpr Int128 kBiasLimit = static_cast<Int128>(1) << 30;

/// One row of W x + bw or of R h + br: what its rescales depend on, but for the grid of its weights.
struct Row {
  const Grid& activation;
  const Grid& bias;
  const Grid& result;
  Int128 bias_operand;
  Int128 dot;

  /// Sections 2 and 8 for a bias of codes up to `operand`.
  [[nodiscard]] bool is_refused(const Grid& weights, Int128 operand) const {
    const auto to_acc = encode_bias_to_acc(bias, weights, activation, operand);
    if (!to_acc.ok()) return true;
    const auto to_result =
        encode_acc_to_result(weights, activation, result, bound_add(dot, bound_rescale(operand, *to_acc)));
    if (!to_result.ok()) return true;
    return linear_row_bounds(operand, *to_acc, dot, *to_result).largest() > std::numeric_limits<int64_t>::max();
  }

  /// The bias alone is at fault.
  [[nodiscard]] bool is_dead(const Grid& weights) const {
    return is_refused(weights, bias_operand) && !is_refused(weights, 0);
  }

  /// The rescaled bias is within 2^30.
  [[nodiscard]] bool has_room(const Grid& weights) const {
    const auto to_acc = encode_bias_to_acc(bias, weights, activation, bias_operand);
    return to_acc.ok() && bound_rescale(bias_operand, *to_acc) <= kBiasLimit;
  }
};

/// The grid of the least scale, not below that of `weights`, on which the row's bias has room.
std::optional<Grid> coarser_grid(const Row& row, Grid weights) {
  if (weights.kind == ScaleKind::kPow2) {
    for (; weights.shift >= kMinDerivedShift; --weights.shift) {
      if (row.has_room(weights)) return weights;
    }
    return std::nullopt;
  }
  // The bits of positive floats have the order of the floats, and a larger scale never leaves less room.
  const auto scale_of_bits = [&](uint32_t bits) {
    Grid grid = weights;
    grid.real_scale = std::bit_cast<float>(bits);
    return grid;
  };
  auto low = std::bit_cast<uint32_t>(weights.real_scale);
  auto high = std::bit_cast<uint32_t>(std::numeric_limits<float>::max());
  if (!row.has_room(scale_of_bits(high))) return std::nullopt;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (row.has_room(scale_of_bits(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return scale_of_bits(high);
}

void rescale_rows(const std::vector<float>& values, const Grid& activation, const Grid& result,
                  const std::vector<Grid>& bias_grids, const std::vector<Int128>& bias_operands,
                  const std::vector<Int128>& dots, std::vector<Grid>& grids, CodeMatrix& codes) {
  for (size_t c = 0; c < grids.size(); ++c) {
    const Row row{activation, bias_grids[c], result, bias_operands[c], dots[c]};
    if (!row.is_dead(grids[c])) continue;
    const std::optional<Grid> coarser = coarser_grid(row, grids[c]);
    if (!coarser) continue;
    grids[c] = *coarser;
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
