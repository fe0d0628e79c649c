// SPDX-License-Identifier: Apache-2.0
// Rows of W and R whose scale is too small for their bias: numerics.md, section 4, "Nearly dead rows".
#ifndef ISOBIT_GRU_DEAD_ROWS_H_
#define ISOBIT_GRU_DEAD_ROWS_H_

#include "isobit/gru.h"

namespace isobit {

/// Gives each dead row of W and R the least scale on which its bias fits the accumulator, and makes its codes anew. All
/// grids and codes of `p` are known, no rescale is. A row that no scale helps stays as it is.
void rescale_dead_rows(const GruLayerWeights& weights, GruLayerParameters& p);

}  // namespace isobit

#endif  // ISOBIT_GRU_DEAD_ROWS_H_
