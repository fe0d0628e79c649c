// SPDX-License-Identifier: Apache-2.0
// The rescales of a GRU: numerics.md, sections 2 and 7.
#ifndef ISOBIT_GRU_RESCALE_H_
#define ISOBIT_GRU_RESCALE_H_

#include <string>

#include "core/rescale.h"
#include "isobit/gru.h"

namespace isobit {

/// Fills every rescale of a layer, and the code of 1, from its grids, row grids and codes (numerics.md, section 7).
Status derive_rescales(GruLayerParameters& p, const std::string& name);

}  // namespace isobit

#endif  // ISOBIT_GRU_RESCALE_H_
