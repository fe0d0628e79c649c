// SPDX-License-Identifier: Apache-2.0
// The normative table look-up, numerics.md, section 6, in integers on raw pointers, for host and device.
#ifndef ISOBIT_TABLE_REFERENCE_H_
#define ISOBIT_TABLE_REFERENCE_H_

#include <cstdint>

#include "core/fixed.h"
#include "core/hd.h"
#include "isobit/rounding.h"
#include "isobit/table.h"

namespace isobit {

/// An ActivationTable without its vectors; the pointers may be device memory. The fields mean what they mean there.
struct TableView {
  TableKind kind;
  Rounding rounding;
  int64_t input_min, input_max, input_zero_point;
  int64_t low, high;

  const int32_t* entries;

  int64_t origin;
  int32_t interval_bits, fraction_bits, guard_bits;
  const int64_t* anchors;

  int32_t num_thresholds, shift;
  const int32_t* thresholds;
  const int32_t* slopes;
  const int64_t* intercepts;
};

/// The output code for any int64 q. check_table() has proved that no intermediate overflows.
ISOBIT_HD int64_t look_up(const TableView& table, int64_t q) {
  q = clamp_s64(q, table.input_min, table.input_max);
  int64_t y = 0;
  switch (table.kind) {
    case TableKind::kDirect: y = table.entries[q - table.input_min]; break;
    case TableKind::kInterpolated: {
      const int64_t last = (int64_t{1} << (table.interval_bits + table.fraction_bits)) - 1;
      const int64_t t = clamp_s64(q - table.origin, 0, last);
      const int64_t* anchor = table.anchors + (t >> table.fraction_bits);
      const int64_t fraction = t & ((int64_t{1} << table.fraction_bits) - 1);
      const int64_t sum = shift_left(anchor[0], table.fraction_bits) + (anchor[1] - anchor[0]) * fraction;
      y = round_shift(sum, table.fraction_bits + table.guard_bits, table.rounding);
      break;
    }
    case TableKind::kSegments: {
      int32_t i = 0;
      for (int32_t j = 0; j < table.num_thresholds; ++j) i += table.thresholds[j] <= q ? 1 : 0;
      y = round_shift(table.slopes[i] * (q - table.input_zero_point) + table.intercepts[i], table.shift,
                      table.rounding);
      break;
    }
  }
  return clamp_s64(y, table.low, table.high);
}

/// `table` must outlive the view.
inline TableView view_of(const ActivationTable& table) {
  TableView view{};
  view.kind = table.kind;
  view.rounding = table.rounding;
  view.input_min = table.input.min();
  view.input_max = table.input.max();
  view.input_zero_point = table.input.zero_point;
  view.low = table.low;
  view.high = table.high;
  view.entries = table.entries.data();
  view.origin = table.origin;
  view.interval_bits = table.interval_bits;
  view.fraction_bits = table.fraction_bits;
  view.guard_bits = table.guard_bits;
  view.anchors = table.anchors.data();
  view.num_thresholds = static_cast<int32_t>(table.thresholds.size());
  view.shift = table.shift;
  view.thresholds = table.thresholds.data();
  view.slopes = table.slopes.data();
  view.intercepts = table.intercepts.data();
  return view;
}

}  // namespace isobit

#endif  // ISOBIT_TABLE_REFERENCE_H_
