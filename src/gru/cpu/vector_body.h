// SPDX-License-Identifier: Apache-2.0
// The vector bodies of the GRU kernels in int32 lanes; V wraps one register type (see x86_*.cc). The rounding mode is a
// template parameter: a rescale costs one to five instructions and there are 14 a lane.
#ifndef ISOBIT_GRU_CPU_VECTOR_BODY_H_
#define ISOBIT_GRU_CPU_VECTOR_BODY_H_

#include <cstdint>
#include <cstring>

#include "core/hd.h"
#include "gru/cpu/kernels.h"

namespace isobit {
namespace {  // each including file has its own copy, compiled for its instruction set

/// round_shift for n >= 0: half = 2^(n-1), or 0 for n = 0, is added before the shift; the proof left room for it.
/// That rounds ties up. A tie leaves zeros under tie_mask = 2^n - 1 (-1 for n = 0, where only 0 does, which both
/// corrections leave as it is).
template <typename V, Rounding kMode>
ISOBIT_HD typename V::Lanes round_right(typename V::Lanes x, typename V::Lanes n, typename V::Lanes half,
                                        typename V::Lanes tie_mask) {
  using Lanes = typename V::Lanes;
  if constexpr (kMode == Rounding::kFloor) return V::shift_right(x, n);
  const Lanes raised = V::add(x, half);
  const Lanes up = V::shift_right(raised, n);
  if constexpr (kMode == Rounding::kNearestUp) return up;
  if constexpr (kMode == Rounding::kNearestEven) return V::clear_low_bit_where_zero(up, raised, tie_mask);
  return V::decrement_where_zero_and_negative(up, raised, tie_mask, x);  // away from zero
}

/// A rescale with one ratio for all rows.
template <typename V, Rounding kMode, bool kLeft>
struct UniformRescale {
  typename V::Lanes left, right, half, tie_mask;
  ISOBIT_HD explicit UniformRescale(const UniformRatio& r)
      : left(V::set(r.left)), right(V::set(r.right)), half(V::set(r.half)), tie_mask(V::set(r.tie_mask)) {}
  ISOBIT_HD typename V::Lanes operator()(typename V::Lanes x) const {
    if constexpr (kLeft) x = V::shift_left(x, left);
    return round_right<V, kMode>(x, right, half, tie_mask);
  }
};

/// acc -> ih or hh, minus its zero point.
template <typename V, Rounding kMode>
ISOBIT_HD typename V::Lanes linear_result(const int32_t* acc, const RowRatios& ratios, int64_t row,
                                          typename V::Lanes low, typename V::Lanes high) {
  const typename V::Lanes x = round_right<V, kMode>(V::load(acc), V::load(ratios.shift + row),
                                                    V::load(ratios.half + row), V::load(ratios.tie_mask + row));
  return V::min(V::max(x, low), high);
}

template <typename V, Rounding kMode, bool kLeft>
ISOBIT_HD void gates_loop(const GateConstants& c, int64_t unit, int64_t units, const int32_t* acc_x,
                          const int32_t* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high) {
  using Lanes = typename V::Lanes;
  using Rescale = UniformRescale<V, kMode, kLeft>;
  const Lanes zero = V::set(0);
  const Lanes ih_low = V::set(c.ih_low);
  const Lanes ih_high = V::set(c.ih_high);
  const Lanes hh_low = V::set(c.hh_low);
  const Lanes hh_high = V::set(c.hh_high);
  const Rescale ih_to_u(c.ih_to_gate[0]);
  const Rescale ih_to_r(c.ih_to_gate[1]);
  const Rescale ih_to_n(c.ih_to_gate[2]);
  const Rescale hh_to_u(c.hh_to_gate[0]);
  const Rescale hh_to_r(c.hh_to_gate[1]);
  const Rescale rhh_to_n(c.hh_to_gate[2]);
  const Rescale n_to_h(c.n_to_h);
  const Rescale u_to_one(c.u_to_one);
  const typename V::Table tables[3] = {typename V::Table(c, 0), typename V::Table(c, 1), typename V::Table(c, 2)};
  const auto activate = [&](int gate, Lanes sum) {
    const Lanes index = V::min(V::max(V::add(sum, V::set(c.gate_offset[gate])), zero), V::set(c.gate_last[gate]));
    return V::add(tables[gate][index], V::set(c.table_offset[gate]));
  };
  const int64_t first_row = tile_row(0, unit);
  for (int64_t i = 0; i < units; i += V::kLanes) {
    const auto ih = [&](int gate) {
      const int64_t row = tile_row(gate, i);
      return linear_result<V, kMode>(acc_x + row, c.ih, first_row + row, ih_low, ih_high);
    };
    const auto hh = [&](int gate) {
      const int64_t row = tile_row(gate, i);
      return linear_result<V, kMode>(acc_h + row, c.hh, first_row + row, hh_low, hh_high);
    };
    const Lanes r = activate(1, V::add(ih_to_r(ih(1)), hh_to_r(hh(1))));
    const Lanes u = activate(0, V::add(ih_to_u(ih(0)), hh_to_u(hh(0))));
    const Lanes n = activate(2, V::add(ih_to_n(ih(2)), rhh_to_n(V::mul(r, hh(2)))));
    const Lanes kept = V::mul(u, V::load(h_diff + unit + i));
    const Lanes fresh = V::mul(V::sub(V::set(c.one), u), n_to_h(n));
    const Lanes h = V::min(V::max(u_to_one(V::add(kept, fresh)), V::set(c.h_low)), V::set(c.h_high));
    V::store_s32(h_diff + unit + i, h);
    const Lanes code = V::add(h, V::set(c.h_to_unsigned));
    V::store_u8(low + unit + i, code);
    if (c.planes == 2) V::store_u8(high + unit + i, V::shift_right(code, V::set(8)));
  }
}

template <typename V, Rounding kMode>
ISOBIT_HD void gates_of_mode(const GateConstants& c, int64_t unit, int64_t units, const int32_t* acc_x,
                             const int32_t* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high) {
  if (c.any_left) {
    gates_loop<V, kMode, true>(c, unit, units, acc_x, acc_h, h_diff, low, high);
  } else {
    gates_loop<V, kMode, false>(c, unit, units, acc_x, acc_h, h_diff, low, high);
  }
}

template <typename V>
ISOBIT_HD void gates(const GateConstants& c, int64_t unit, int64_t units, const int32_t* acc_x,
                     const int32_t* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high) {
  switch (c.rounding) {
    case Rounding::kNearestEven:
      return gates_of_mode<V, Rounding::kNearestEven>(c, unit, units, acc_x, acc_h, h_diff, low, high);
    case Rounding::kNearestUp:
      return gates_of_mode<V, Rounding::kNearestUp>(c, unit, units, acc_x, acc_h, h_diff, low, high);
    case Rounding::kNearestAway:
      return gates_of_mode<V, Rounding::kNearestAway>(c, unit, units, acc_x, acc_h, h_diff, low, high);
    case Rounding::kFloor: return gates_of_mode<V, Rounding::kFloor>(c, unit, units, acc_x, acc_h, h_diff, low, high);
  }
}

template <typename V>
int64_t find_nan(const float* x, int64_t count) {
  int64_t i = 0;
  while (i + 4 * V::kLanes <= count && !V::any_nan4(x + i)) i += 4 * V::kLanes;
  while (i + V::kLanes <= count && !V::any_nan(x + i)) i += V::kLanes;
  while (i < count && x[i] == x[i]) ++i;
  return i;
}

template <typename V>
void quantize_row(const RowQuantizer& q, const float* x, int64_t count, uint8_t* low, uint8_t* high) {
  const auto convert = [&](const float* from, int64_t at) {
    const typename V::Lanes code =
        V::add(V::rint_clamped(V::load_float(from), q.inverse_scale, q.low, q.high), V::set(q.to_unsigned));
    V::store_u8(low + at, code);
    if (q.planes == 2) V::store_u8(high + at, V::shift_right(code, V::set(8)));
  };
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) convert(x + i, i);
  if (i < count) {
    float rest[V::kLanes] = {};
    std::memcpy(rest, x + i, static_cast<size_t>(count - i) * sizeof(float));
    convert(rest, i);
  }
}

// The compiler vectorises these for the including file's instruction set.
template <typename V, typename T>
void load_codes(const T* codes, int64_t count, int32_t flip, int32_t to_unsigned, uint8_t* low, uint8_t* high,
                int32_t* diff) {
  for (int64_t i = 0; i < count; ++i) low[i] = static_cast<uint8_t>(codes[i] ^ flip);
  if (sizeof(T) == 2)
    for (int64_t i = 0; i < count; ++i) high[i] = static_cast<uint8_t>((codes[i] ^ flip) >> 8);
  if (diff == nullptr) return;
  for (int64_t i = 0; i < count; ++i) diff[i] = (codes[i] ^ flip) - to_unsigned;
}

template <typename V>
void load_row(const void* codes, int64_t count, int32_t planes, int32_t flip, int32_t to_unsigned, uint8_t* low,
              uint8_t* high, int32_t* diff) {
  if (planes == 1) {
    load_codes<V>(static_cast<const uint8_t*>(codes), count, flip, to_unsigned, low, high, diff);
  } else {
    load_codes<V>(static_cast<const uint16_t*>(codes), count, flip, to_unsigned, low, high, diff);
  }
}

template <typename V>
void dequantize_row(const int32_t* diff, int64_t count, float scale, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(diff[i]) * scale;
}

template <typename V>
void store_row(const int32_t* diff, int64_t count, int32_t zero_point, int32_t planes, void* y) {
  if (planes == 1) {
    auto* codes = static_cast<uint8_t*>(y);
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(diff[i] + zero_point);
  } else {
    auto* codes = static_cast<uint16_t*>(y);
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint16_t>(diff[i] + zero_point);
  }
}

template <typename V>
GruKernels row_kernels() {
  GruKernels kernels{};
  kernels.find_nan = find_nan<V>;
  kernels.quantize_row = quantize_row<V>;
  kernels.load_row = load_row<V>;
  kernels.dequantize_row = dequantize_row<V>;
  kernels.store_row = store_row<V>;
  return kernels;
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_GRU_CPU_VECTOR_BODY_H_
