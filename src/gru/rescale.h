// SPDX-License-Identifier: Apache-2.0
// The rescales of a GRU: numerics.md, sections 2 and 7.
#ifndef ISOBIT_GRU_RESCALE_H_
#define ISOBIT_GRU_RESCALE_H_

#include <string>

#include "core/rescale.h"
#include "isobit/gru.h"

namespace isobit {

/// From the h grid of a model to that of another; kOverflow where a code that was handed over would not fit int64.
Result<RescaleParameters> encode_hand_over(const Grid& from, const Grid& to);

/// Fills every rescale of a layer, and the code of 1, from its grids, row grids and codes (numerics.md, section 7).
Status derive_rescales(GruLayerParameters& p, const std::string& name);

}  // namespace isobit

#endif  // ISOBIT_GRU_RESCALE_H_
