// SPDX-License-Identifier: Apache-2.0
// The rescales of a GRU: numerics.md, sections 2 and 7.
#ifndef ISOBIT_GRU_RESCALE_H_
#define ISOBIT_GRU_RESCALE_H_

#include <string>

#include "core/rescale.h"
#include "isobit/gru.h"

namespace isobit {

/// bw -> acc_x[c] and br -> acc_h[c]: the rescale of one row's bias to its accumulator, for codes up to `operand`.
Result<RescaleParameters> encode_bias_to_acc(const Grid& bias, const Grid& weights, const Grid& activation,
                                             Int128 operand);
/// acc_x[c] -> ih and acc_h[c] -> hh: the rescale of one row's accumulator, for values up to `operand`.
Result<RescaleParameters> encode_acc_to_result(const Grid& weights, const Grid& activation, const Grid& result,
                                               Int128 operand);

/// From the h grid of a model to that of another; kOverflow where a code that was handed over would not fit int64.
Result<RescaleParameters> encode_hand_over(const Grid& from, const Grid& to);

/// Fills every rescale of a layer, and the code of 1, from its grids, row grids and codes (numerics.md, section 7).
Status derive_rescales(GruLayerParameters& p, const std::string& name);

}  // namespace isobit

#endif  // ISOBIT_GRU_RESCALE_H_
