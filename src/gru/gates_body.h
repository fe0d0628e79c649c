// SPDX-License-Identifier: Apache-2.0
// The vector body of the gate kernels; V wraps one register type (see x86_*.cc). The mode is a template parameter:
// it costs two to four instructions a rescale and there are 14 rescales a lane.
#ifndef ISOBIT_GRU_GATES_BODY_H_
#define ISOBIT_GRU_GATES_BODY_H_

#include <cstdint>

#include "core/hd.h"
#include "gru/gates.h"

namespace isobit {
namespace {  // each including file has its own copy, compiled for its instruction set

/// round_shift for n >= 0: half = 2^(n-1), or 0 for n = 0, is added before the shift; the proof left room for it.
template <typename V, Rounding kMode>
ISOBIT_HD typename V::Lanes round_right(typename V::Lanes x, typename V::Lanes n) {
  using Lanes = typename V::Lanes;
  if constexpr (kMode == Rounding::kFloor) {
    return V::shift_right(x, n);
  } else {
    const Lanes one = V::set(1);
    const Lanes half = V::shift_right(V::shift_left(one, n), one);
    if constexpr (kMode == Rounding::kNearestUp) {
      return V::shift_right(V::add(x, half), n);
    } else if constexpr (kMode == Rounding::kNearestEven) {
      // half - 1, plus 1 when the quotient is odd; nothing for n = 0.
      const Lanes any = V::min(half, one);
      const Lanes odd = V::bit_and(V::shift_right(x, n), any);
      return V::shift_right(V::add(x, V::add(V::sub(half, any), odd)), n);
    } else {  // away: half, minus 1 for negative x
      const Lanes negative = V::bit_and(V::sign(x), V::min(half, one));
      return V::shift_right(V::add(x, V::sub(half, negative)), n);
    }
  }
}

/// A rescale with one ratio for all rows, its lanes set once before the loop.
template <typename V, Rounding kMode>
struct UniformRescale {
  typename V::Lanes multiplier, left, right;
  ISOBIT_HD explicit UniformRescale(const GateRescale& r)
      : multiplier(V::set(r.multiplier)), left(V::set(r.left)), right(V::set(r.right)) {}
  ISOBIT_HD typename V::Lanes operator()(typename V::Lanes x) const {
    if constexpr (V::kWide) x = V::mul(x, multiplier);
    return round_right<V, kMode>(V::shift_left(x, left), right);
  }
};

/// acc -> ih or hh, minus its zero point.
template <typename V, Rounding kMode>
ISOBIT_HD typename V::Lanes linear_result(const typename V::Acc* acc, const int32_t* shift, const int32_t* multiplier,
                                          int64_t row, typename V::Lanes low, typename V::Lanes high) {
  typename V::Lanes x = V::load(acc + row);
  const typename V::Lanes n = V::load_parameter(shift + row);
  if constexpr (V::kWide) {
    const typename V::Lanes zero = V::set(0);
    x = V::mul(x, V::load_parameter(multiplier + row));
    x = round_right<V, kMode>(V::shift_left(x, V::max(V::sub(zero, n), zero)), V::max(n, zero));
  } else {
    x = round_right<V, kMode>(x, n);
  }
  return V::min(V::max(x, low), high);
}

template <typename V, Rounding kMode>
ISOBIT_HD void gates_loop(const GateConstants& c, const typename V::Acc* acc_x, const typename V::Acc* acc_h,
                          int32_t* h_diff, uint8_t* low, uint8_t* high) {
  using Lanes = typename V::Lanes;
  const int64_t padded = c.padded_hidden;
  const Lanes zero = V::set(0);
  const Lanes ih_low = V::set(c.ih_low);
  const Lanes ih_high = V::set(c.ih_high);
  const Lanes hh_low = V::set(c.hh_low);
  const Lanes hh_high = V::set(c.hh_high);
  const UniformRescale<V, kMode> ih_to_u(c.ih_to_gate[0]);
  const UniformRescale<V, kMode> ih_to_r(c.ih_to_gate[1]);
  const UniformRescale<V, kMode> ih_to_n(c.ih_to_gate[2]);
  const UniformRescale<V, kMode> hh_to_u(c.hh_to_gate[0]);
  const UniformRescale<V, kMode> hh_to_r(c.hh_to_gate[1]);
  const UniformRescale<V, kMode> rhh_to_n(c.hh_to_gate[2]);
  const UniformRescale<V, kMode> n_to_h(c.n_to_h);
  const UniformRescale<V, kMode> u_to_one(c.u_to_one);
  const auto activate = [&](int gate, Lanes sum) {
    const Lanes index = V::min(V::max(V::add(sum, V::set(c.gate_offset[gate])), zero), V::set(c.gate_last[gate]));
    return V::add(V::gather(c.table[gate], index), V::set(c.table_offset[gate]));
  };
  for (int64_t i = 0; i < padded; i += V::kLanes) {
    const auto ih = [&](int gate) {
      return linear_result<V, kMode>(acc_x, c.shift_ih, c.multiplier_ih, gate * padded + i, ih_low, ih_high);
    };
    const auto hh = [&](int gate) {
      return linear_result<V, kMode>(acc_h, c.shift_hh, c.multiplier_hh, gate * padded + i, hh_low, hh_high);
    };
    const Lanes r = activate(1, V::add(ih_to_r(ih(1)), hh_to_r(hh(1))));
    const Lanes u = activate(0, V::add(ih_to_u(ih(0)), hh_to_u(hh(0))));
    const Lanes n = activate(2, V::add(ih_to_n(ih(2)), rhh_to_n(V::mul(r, hh(2)))));
    const Lanes kept = V::mul(u, V::load_parameter(h_diff + i));
    const Lanes fresh = V::mul(V::sub(V::set(c.one), u), n_to_h(n));
    const Lanes h = V::min(V::max(u_to_one(V::add(kept, fresh)), V::set(c.h_low)), V::set(c.h_high));
    V::store_s32(h_diff + i, h);
    const Lanes code = V::add(h, V::set(c.h_to_unsigned));
    V::store_u8(low + i, code);
    if (c.planes == 2) V::store_u8(high + i, V::shift_right(code, V::set(8)));
  }
}

template <typename V>
ISOBIT_HD void gates(const GateConstants& c, const typename V::Acc* acc_x, const typename V::Acc* acc_h,
                     int32_t* h_diff, uint8_t* low, uint8_t* high) {
  switch (c.rounding) {
    case Rounding::kNearestEven: gates_loop<V, Rounding::kNearestEven>(c, acc_x, acc_h, h_diff, low, high); break;
    case Rounding::kNearestUp: gates_loop<V, Rounding::kNearestUp>(c, acc_x, acc_h, h_diff, low, high); break;
    case Rounding::kNearestAway: gates_loop<V, Rounding::kNearestAway>(c, acc_x, acc_h, h_diff, low, high); break;
    case Rounding::kFloor: gates_loop<V, Rounding::kFloor>(c, acc_x, acc_h, h_diff, low, high); break;
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_GRU_GATES_BODY_H_
