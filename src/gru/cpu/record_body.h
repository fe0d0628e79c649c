// SPDX-License-Identifier: Apache-2.0
// The gates in lanes of V::Acc, int32 or int64, with what training keeps of them; V as in vector_body.h, and
//   Acc, load_s32                            of accumulators; numbers that have 32 bits in memory
//   Floats, to_floats, mul_floats, add_floats, set_floats, store_floats
//   two_to_minus(n)                          2^-n as floats
//   add_bit_where_equal(bits, a, b, bit), add_bit_where_greater
//   floats_where_equal(f, a, b)              f, or 0 where a is not b
//   store_u16
#ifndef ISOBIT_GRU_CPU_RECORD_BODY_H_
#define ISOBIT_GRU_CPU_RECORD_BODY_H_

#include <cstdint>

#include "core/hd.h"
#include "gru/clamps.h"
#include "gru/cpu/kernels.h"
#include "gru/cpu/vector_body.h"

namespace isobit {
namespace {

/// The result of a rescale, and what rounding added.
template <typename V>
struct Rounded {
  typename V::Lanes code;
  typename V::Floats rest;
};

template <typename V, Rounding kMode, bool kLearns>
ISOBIT_HD Rounded<V> round_recorded(typename V::Lanes x, typename V::Lanes n, typename V::Lanes half,
                                    typename V::Lanes tie_mask) {
  Rounded<V> result{round_right<V, kMode>(x, n, half, tie_mask), V::set_floats(0.0f)};
  // Less than 2^n is left, so that it fits whatever the bits above are.
  if constexpr (kLearns)
    result.rest = V::mul_floats(V::to_floats(V::sub(V::shift_left(result.code, n), x)), V::two_to_minus(n));
  return result;
}

/// Whether multipliers other than 1, and shifts of rows to the left, are to be expected.
template <typename V>
constexpr bool kAnyRatio = sizeof(typename V::Acc) == sizeof(int64_t);

template <typename V, Rounding kMode, bool kLearns>
struct RecordedRescale {
  typename V::Lanes multiplier, left, right, half, tie_mask;
  ISOBIT_HD explicit RecordedRescale(const UniformRatio& r)
      : multiplier(V::set(r.multiplier)),
        left(V::set(r.left)),
        right(V::set(r.right)),
        half(V::set(r.half)),
        tie_mask(V::set(r.tie_mask)) {}
  ISOBIT_HD Rounded<V> operator()(typename V::Lanes x) const {
    if constexpr (kAnyRatio<V>) x = V::mul(x, multiplier);
    return round_recorded<V, kMode, kLearns>(V::shift_left(x, left), right, half, tie_mask);
  }
};

/// acc -> ih or hh of rows from `row` on.
template <typename V, Rounding kMode, bool kLearns>
ISOBIT_HD Rounded<V> rescale_rows_recorded(const typename V::Acc* acc, const RowRatios& ratios, int64_t row) {
  using Lanes = typename V::Lanes;
  const Lanes shift = V::load_s32(ratios.shift + row);
  if constexpr (kAnyRatio<V>) {
    const Lanes zero = V::set(0), right = V::max(shift, zero), left = V::max(V::sub(zero, shift), zero);
    const Lanes half = V::shift_right(V::shift_left(V::set(1), right), V::set(1));
    const Lanes x = V::shift_left(V::mul(V::load(acc), V::load_s32(ratios.multiplier + row)), left);
    return round_recorded<V, kMode, kLearns>(x, right, half, V::sub(V::add(half, half), V::set(1)));
  } else {
    return round_recorded<V, kMode, kLearns>(V::load(acc), shift, V::load_s32(ratios.half + row),
                                             V::load_s32(ratios.tie_mask + row));
  }
}

template <typename V, Rounding kMode, bool kLearns>
ISOBIT_HD void record_loop(const GateConstants& c, int64_t unit, int64_t units, const typename V::Acc* acc_x,
                           const typename V::Acc* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high,
                           const GateRecord& record) {
  using Lanes = typename V::Lanes;
  using Acc = typename V::Acc;
  using Rescale = RecordedRescale<V, kMode, kLearns>;
  const Rescale ih_to_gate[3] = {Rescale(c.ih_to_gate[0]), Rescale(c.ih_to_gate[1]), Rescale(c.ih_to_gate[2])};
  const Rescale hh_to_gate[3] = {Rescale(c.hh_to_gate[0]), Rescale(c.hh_to_gate[1]), Rescale(c.hh_to_gate[2])};
  const Rescale n_to_h(c.n_to_h), u_to_one(c.u_to_one);
  const typename V::Table tables[3] = {typename V::Table(c, 0), typename V::Table(c, 1), typename V::Table(c, 2)};
  const int64_t first_row = tile_row(0, unit);
  for (int64_t i = 0; i < units; i += V::kLanes) {
    Lanes passes = V::set(0), above = V::set(0);
    const auto clamp = [&](int bit, const Rounded<V>& x, int64_t from, int64_t to) __attribute__((always_inline)) {
      const Lanes end = V::set(to), code = V::min(V::max(x.code, V::set(from)), end);
      passes = V::add_bit_where_equal(passes, x.code, code, bit);
      if constexpr (kLearns) {
        above = V::add_bit_where_greater(above, x.code, end, bit);
        V::store_floats(record.rests + bit * record.stride + i, V::floats_where_equal(x.rest, x.code, code));
      }
      return code;
    };
    const auto linear = [&](int bit, int gate, const Acc* acc, const RowRatios& ratios, int64_t from, int64_t to)
        __attribute__((always_inline)) {
      const int64_t row = tile_row(gate, i);
      return clamp(bit + gate, rescale_rows_recorded<V, kMode, kLearns>(acc + row, ratios, first_row + row), from, to);
    };
    const auto ih = [&](int gate) __attribute__((always_inline)) {
      return linear(kPassIh, gate, acc_x, c.ih, c.ih_low, c.ih_high);
    };
    const auto hh = [&](int gate) __attribute__((always_inline)) {
      return linear(kPassHh, gate, acc_h, c.hh, c.hh_low, c.hh_high);
    };
    const auto activate = [&](int gate, Lanes of_ih, Lanes of_hh) __attribute__((always_inline)) {
      Rounded<V> sum = ih_to_gate[gate](of_ih);
      const Rounded<V> other = hh_to_gate[gate](of_hh);
      sum.code = V::add(V::add(sum.code, other.code), V::set(c.gate_offset[gate]));
      if constexpr (kLearns) sum.rest = V::add_floats(sum.rest, other.rest);
      const Lanes code =
          V::add(tables[gate][clamp(kPassGate + gate, sum, 0, c.gate_last[gate])], V::set(c.table_offset[gate]));
      V::store_floats(record.saved + gate * record.stride + i,
                      V::mul_floats(V::to_floats(code), V::set_floats(c.saved_scales[gate])));
      return code;
    };
    const Lanes r = activate(1, ih(1), hh(1));
    const Lanes u = activate(0, ih(0), hh(0));
    const Lanes q = hh(2);
    V::store_floats(record.saved + 3 * record.stride + i,
                    V::mul_floats(V::to_floats(q), V::set_floats(c.saved_scales[3])));
    const Lanes n = activate(2, ih(2), V::mul(r, q));
    const Lanes kept = V::mul(u, V::load_s32(h_diff + unit + i));
    const Lanes fresh = V::mul(V::sub(V::set(c.one), u), n_to_h(n).code);
    const Lanes h = clamp(kPassState, u_to_one(V::add(kept, fresh)), c.h_low, c.h_high);
    V::store_s32(h_diff + unit + i, h);
    const Lanes code = V::add(h, V::set(c.h_to_unsigned));
    V::store_u8(low + unit + i, code);
    if (c.planes == 2) V::store_u8(high + unit + i, V::shift_right(code, V::set(8)));
    V::store_u16(record.passes + i, passes);
    if constexpr (kLearns) V::store_u16(record.above + i, above);
  }
}

template <typename V, Rounding kMode>
ISOBIT_HD void record_of_mode(const GateConstants& c, int64_t unit, int64_t units, const typename V::Acc* acc_x,
                              const typename V::Acc* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high,
                              const GateRecord& record) {
  if (record.rests != nullptr) {
    record_loop<V, kMode, true>(c, unit, units, acc_x, acc_h, h_diff, low, high, record);
  } else {
    record_loop<V, kMode, false>(c, unit, units, acc_x, acc_h, h_diff, low, high, record);
  }
}

template <typename V>
ISOBIT_HD void record_gates(const GateConstants& c, int64_t unit, int64_t units, const typename V::Acc* acc_x,
                            const typename V::Acc* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high,
                            const GateRecord& record) {
  switch (c.rounding) {
    case Rounding::kNearestEven:
      return record_of_mode<V, Rounding::kNearestEven>(c, unit, units, acc_x, acc_h, h_diff, low, high, record);
    case Rounding::kNearestUp:
      return record_of_mode<V, Rounding::kNearestUp>(c, unit, units, acc_x, acc_h, h_diff, low, high, record);
    case Rounding::kNearestAway:
      return record_of_mode<V, Rounding::kNearestAway>(c, unit, units, acc_x, acc_h, h_diff, low, high, record);
    case Rounding::kFloor:
      return record_of_mode<V, Rounding::kFloor>(c, unit, units, acc_x, acc_h, h_diff, low, high, record);
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_GRU_CPU_RECORD_BODY_H_
