// SPDX-License-Identifier: Apache-2.0
// Fits of interpolated and segment tables. Integers only: the same table on every machine.
#ifndef ISOBIT_TABLE_FIT_H_
#define ISOBIT_TABLE_FIT_H_

#include <cstdint>

#include "isobit/table.h"
#include "table/exact.h"

namespace isobit {

/// Fills origin, interval_bits, fraction_bits and anchors of `table`, whose grids, rounding, guard_bits, low and high
/// are set. Returns false when no monotone anchors bring every code within 1 LSB of the exact one.
bool fit_anchors(const ExactFunction& exact, int interval_bits, ActivationTable* table);

/// Fills thresholds, slopes, intercepts and shift of `table` with `segments` segments of least error.
void fit_segments(const ExactFunction& exact, int segments, ActivationTable* table);

}  // namespace isobit

#endif  // ISOBIT_TABLE_FIT_H_
