// SPDX-License-Identifier: Apache-2.0
// One row of W x + bw or of R h + br: its rescales, their bounds, and rows whose scale is too small for their bias
// (numerics.md, sections 2, 4 and 8), for host and device.
#ifndef ISOBIT_GRU_ROW_H_
#define ISOBIT_GRU_ROW_H_

#include <bit>
#include <cfloat>
#include <cstdint>

#include "calibrate/derive_scale.h"
#include "core/bounds.h"
#include "core/hd.h"

namespace isobit {

/// Section 8's bounds of a row, its bias included.
struct LinearRowBounds {
  Int128 bias_product = 0;  // bias * multiplier
  Int128 bias = 0;          // on the accumulator
  Int128 accumulator = 0;
  Int128 product = 0;  // accumulator * multiplier
  [[nodiscard]] ISOBIT_HD Int128 largest() const {
    const Int128 of_bias = bias_product < bias ? bias : bias_product;
    const Int128 of_sum = accumulator < product ? product : accumulator;
    return of_bias < of_sum ? of_sum : of_bias;
  }
};
ISOBIT_HD LinearRowBounds linear_row_bounds(Int128 bias, const RescaleParameters& bias_to_acc, Int128 dot,
                                            const RescaleParameters& acc_to_result) {
  LinearRowBounds bounds;
  bounds.bias_product = bound_multiply(bias, bias_to_acc.multiplier);
  bounds.bias = bound_rescale(bias, bias_to_acc);
  bounds.accumulator = bound_add(dot, bounds.bias);
  bounds.product = bound_multiply(bounds.accumulator, acc_to_result.multiplier);
  return bounds;
}

/// What the rescales of a row depend on, but for the scale of its weights.
struct LinearRow {
  Scale activation, bias, result;
  Int128 bias_operand, dot;

  /// bias -> accumulator, for codes of the bias up to `operand`.
  [[nodiscard]] ISOBIT_HD EncodedRescale bias_to_acc(const Scale& weights, Int128 operand) const {
    return encoded_scales(operand, bias, unit_scale(bias.kind), weights, activation);
  }
  /// accumulator -> result, for values up to `operand`.
  [[nodiscard]] ISOBIT_HD EncodedRescale acc_to_result(const Scale& weights, Int128 operand) const {
    return encoded_scales(operand, weights, activation, result, unit_scale(result.kind));
  }
};

struct RowRescales {
  EncodedRescale bias_to_acc, acc_to_result;
  bool fits = false;  // both are there, and every intermediate fits int64
};
ISOBIT_HD RowRescales rescales_of(const LinearRow& row, const Scale& weights, Int128 bias_operand) {
  RowRescales rescales;
  rescales.bias_to_acc = row.bias_to_acc(weights, bias_operand);
  if (rescales.bias_to_acc.refusal != RescaleRefusal::kNone) return rescales;
  const Int128 accumulator = bound_add(row.dot, bound_rescale(bias_operand, rescales.bias_to_acc.ratio));
  rescales.acc_to_result = row.acc_to_result(weights, accumulator);
  if (rescales.acc_to_result.refusal != RescaleRefusal::kNone) return rescales;
  const LinearRowBounds bounds =
      linear_row_bounds(bias_operand, rescales.bias_to_acc.ratio, row.dot, rescales.acc_to_result.ratio);
  rescales.fits = bounds.largest() <= static_cast<Int128>(INT64_MAX);
  return rescales;
}

// ---- Section 4, "Nearly dead rows"

/// The bias alone is at fault.
ISOBIT_HD bool is_dead(const LinearRow& row, const Scale& weights) {
  return !rescales_of(row, weights, row.bias_operand).fits && rescales_of(row, weights, 0).fits;
}

/// The rescaled bias is within 2^30.
ISOBIT_HD bool has_room(const LinearRow& row, const Scale& weights) {
  const EncodedRescale to_acc = row.bias_to_acc(weights, row.bias_operand);
  return to_acc.refusal == RescaleRefusal::kNone &&
         bound_rescale(row.bias_operand, to_acc.ratio) <= static_cast<Int128>(1) << 30;
}

/// Makes `weights` the least scale, not below what it is, on which the row's bias has room. False: there is none.
ISOBIT_HD bool make_coarser(const LinearRow& row, Scale& weights) {
  if (weights.kind == ScaleKind::kPow2) {
    Scale coarser = weights;
    while (coarser.shift >= kMinDerivedShift && !has_room(row, coarser)) --coarser.shift;
    if (coarser.shift < kMinDerivedShift) return false;
    weights = coarser;
    return true;
  }
  // The bits of positive floats have the order of the floats, and a larger scale never leaves less room.
  const auto of_bits = [](uint32_t bits) { return Scale{ScaleKind::kReal, 0, std::bit_cast<float>(bits)}; };
  auto low = std::bit_cast<uint32_t>(weights.real), high = std::bit_cast<uint32_t>(FLT_MAX);
  if (!has_room(row, of_bits(high))) return false;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (has_room(row, of_bits(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  weights = of_bits(high);
  return true;
}

}  // namespace isobit

#endif  // ISOBIT_GRU_ROW_H_
