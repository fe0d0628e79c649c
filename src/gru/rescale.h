// SPDX-License-Identifier: Apache-2.0
// Encoding of rescales: numerics.md, section 2.
#ifndef ISOBIT_GRU_RESCALE_H_
#define ISOBIT_GRU_RESCALE_H_

#include "core/fixed.h"
#include "gru/proof.h"
#include "isobit/gru.h"

namespace isobit {

/// ratio = 2^-shift. Above 127 stored as 127; below -62 refused unless the operand is always zero.
Result<RescaleParameters> encode_shift(int64_t shift, Int128 operand_bound);

/// ratio ~ multiplier * 2^-shift with multiplier in [2^(B-1), 2^B), B the largest <= 31 with operand * 2^B < 2^63.
Result<RescaleParameters> encode_ratio(double ratio, Int128 operand_bound);

/// Fills every rescale of a layer, and the code of 1, from its grids, row grids and codes (numerics.md, section 7).
Status derive_rescales(GruLayerParameters& p, const std::string& name);

}  // namespace isobit

#endif  // ISOBIT_GRU_RESCALE_H_
