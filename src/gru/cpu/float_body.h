// SPDX-License-Identifier: Apache-2.0
// The gates on integers held exactly in floating-point lanes; F wraps the lanes of one type (x86_avx512vnni.cc). A
// rescale is one fused multiply-add (core/rescale_lanes.h) instead of four to six integer instructions. Everything else
// is exact (GruProof::gates_f32, gates_f64).
#ifndef ISOBIT_GRU_CPU_FLOAT_BODY_H_
#define ISOBIT_GRU_CPU_FLOAT_BODY_H_

#include <cstdint>

#include "core/hd.h"
#include "core/rescale_lanes.h"
#include "gru/cpu/kernels.h"

namespace isobit {
namespace {  // each including file has its own copy, compiled for its instruction set

/// kCount registers of F as one, for as many more units: the chain of dependent instructions of one unit is 150 cycles
/// long, longer than the processor looks ahead, so two or more must stand side by side in the code.
template <typename F, int... kIndex>
struct Several {
  static constexpr int kCount = sizeof...(kIndex);
  static constexpr int kLanes = kCount * F::kLanes;
  using Scalar = typename F::Scalar;
  using Acc = typename F::Acc;
  struct Lanes {
    typename F::Lanes v[kCount];
  };
  struct Codes {
    typename F::Codes v[kCount];
  };
  /// From the rows of the first register's units to those of register i.
  ISOBIT_HD static constexpr int64_t row(int i) { return tile_row(0, i * F::kLanes); }

  ISOBIT_HD static Lanes set(Scalar x) { return {((void)kIndex, F::set(x))...}; }
  ISOBIT_HD static Lanes load(const Scalar* p) { return {F::load(p + row(kIndex))...}; }
  ISOBIT_HD static Lanes load_acc(const Acc* p) { return {F::load_acc(p + row(kIndex))...}; }
  ISOBIT_HD static Lanes load_s32(const int32_t* p) { return {F::load_s32(p + kIndex * F::kLanes)...}; }
  ISOBIT_HD static Lanes add(Lanes a, Lanes b) { return {F::add(a.v[kIndex], b.v[kIndex])...}; }
  ISOBIT_HD static Lanes sub(Lanes a, Lanes b) { return {F::sub(a.v[kIndex], b.v[kIndex])...}; }
  ISOBIT_HD static Lanes mul(Lanes a, Lanes b) { return {F::mul(a.v[kIndex], b.v[kIndex])...}; }
  ISOBIT_HD static Lanes min(Lanes a, Lanes b) { return {F::min(a.v[kIndex], b.v[kIndex])...}; }
  ISOBIT_HD static Lanes max(Lanes a, Lanes b) { return {F::max(a.v[kIndex], b.v[kIndex])...}; }
  ISOBIT_HD static Lanes abs(Lanes a) { return {F::abs(a.v[kIndex])...}; }
  ISOBIT_HD static Lanes with_sign(Lanes a, Lanes b) { return {F::with_sign(a.v[kIndex], b.v[kIndex])...}; }
  ISOBIT_HD static Lanes fma_even(Lanes a, Lanes b, Lanes c) {
    return {F::fma_even(a.v[kIndex], b.v[kIndex], c.v[kIndex])...};
  }
  ISOBIT_HD static Lanes fma_down(Lanes a, Lanes b, Lanes c) {
    return {F::fma_down(a.v[kIndex], b.v[kIndex], c.v[kIndex])...};
  }
  ISOBIT_HD static Lanes add_down(Lanes a, Lanes b) { return {F::add_down(a.v[kIndex], b.v[kIndex])...}; }
  struct Table {
    typename F::Table one;
    ISOBIT_HD Table(const FloatGateConstants<Scalar>& c, int gate) : one(c, gate) {}
    ISOBIT_HD Lanes look_up(Lanes index, int64_t offset) const { return {one.look_up(index.v[kIndex], offset)...}; }
  };
  ISOBIT_HD static Codes to_codes(Lanes a) { return {F::to_codes(a.v[kIndex])...}; }
  ISOBIT_HD static void store_s32(int32_t* p, Codes a) { (F::store_s32(p + kIndex * F::kLanes, a.v[kIndex]), ...); }
  ISOBIT_HD static void store_bytes(uint8_t* low, uint8_t* high, Codes h, int64_t to_unsigned, int64_t planes) {
    (F::store_bytes(low + kIndex * F::kLanes, high + kIndex * F::kLanes, h.v[kIndex], to_unsigned, planes), ...);
  }
};

/// From unit i on as far as whole steps of F::kLanes go; returns the first unit left.
template <typename F, Rounding kMode>
ISOBIT_HD int64_t float_gates_loop(const FloatGateConstants<typename F::Scalar>& c, int64_t unit, int64_t i,
                                   int64_t units, const typename F::Acc* acc_x, const typename F::Acc* acc_h,
                                   int32_t* h_diff, uint8_t* low, uint8_t* high) {
  using Lanes = typename F::Lanes;
  const auto clamp = [](Lanes x, typename F::Scalar from, typename F::Scalar to) {
    return F::min(F::max(x, F::set(from)), F::set(to));
  };
  const typename F::Table tables[3] = {typename F::Table(c, 0), typename F::Table(c, 1), typename F::Table(c, 2)};
  const auto activate = [&](int gate, Lanes sum) {
    const Lanes index = F::add(clamp(sum, c.gate_low[gate], c.gate_high[gate]), F::set(c.gate_to_index[gate]));
    return tables[gate].look_up(index, c.table_offset[gate]);
  };
  const int64_t first_row = tile_row(0, unit);
  for (; i + F::kLanes <= units; i += F::kLanes) {
    const auto ih = [&](int gate) {
      const int64_t row = tile_row(gate, i);
      return clamp(rescale<F, kMode>(F::load_acc(acc_x + row), F::load(c.ih + first_row + row)), c.ih_low, c.ih_high);
    };
    const auto hh = [&](int gate) {
      const int64_t row = tile_row(gate, i);
      return clamp(rescale<F, kMode>(F::load_acc(acc_h + row), F::load(c.hh + first_row + row)), c.hh_low, c.hh_high);
    };
    const auto uniform = [](Lanes x, typename F::Scalar ratio) { return rescale<F, kMode>(x, F::set(ratio)); };
    const Lanes r = activate(1, F::add(uniform(ih(1), c.ih_to_gate[1]), uniform(hh(1), c.hh_to_gate[1])));
    const Lanes u = activate(0, F::add(uniform(ih(0), c.ih_to_gate[0]), uniform(hh(0), c.hh_to_gate[0])));
    const Lanes n = activate(2, F::add(uniform(ih(2), c.ih_to_gate[2]), uniform(F::mul(r, hh(2)), c.hh_to_gate[2])));
    const Lanes fresh = F::mul(F::sub(F::set(c.one), u), uniform(n, c.n_to_h));
    const Lanes mixed = F::fma_even(u, F::load_s32(h_diff + unit + i), fresh);
    const typename F::Codes h = F::to_codes(clamp(uniform(mixed, c.u_to_one), c.h_low, c.h_high));
    F::store_s32(h_diff + unit + i, h);
    F::store_bytes(low + unit + i, high + unit + i, h, c.h_to_unsigned, c.planes);
  }
  return i;
}

template <typename F, Rounding kMode>
ISOBIT_HD void float_gates_of_mode(const FloatGateConstants<typename F::Scalar>& c, int64_t unit, int64_t units,
                                   const typename F::Acc* acc_x, const typename F::Acc* acc_h, int32_t* h_diff,
                                   uint8_t* low, uint8_t* high) {
  int64_t i = 0;
  i = float_gates_loop<Several<F, 0, 1, 2, 3>, kMode>(c, unit, i, units, acc_x, acc_h, h_diff, low, high);
  i = float_gates_loop<Several<F, 0, 1, 2>, kMode>(c, unit, i, units, acc_x, acc_h, h_diff, low, high);
  float_gates_loop<F, kMode>(c, unit, i, units, acc_x, acc_h, h_diff, low, high);
}

template <typename F>
void float_gates(const FloatGateConstants<typename F::Scalar>& c, int64_t unit, int64_t units,
                 const typename F::Acc* acc_x, const typename F::Acc* acc_h, int32_t* h_diff, uint8_t* low,
                 uint8_t* high) {
  switch (c.rounding) {
    case Rounding::kNearestEven:
      return float_gates_of_mode<F, Rounding::kNearestEven>(c, unit, units, acc_x, acc_h, h_diff, low, high);
    case Rounding::kNearestUp:
      return float_gates_of_mode<F, Rounding::kNearestUp>(c, unit, units, acc_x, acc_h, h_diff, low, high);
    case Rounding::kNearestAway:
      return float_gates_of_mode<F, Rounding::kNearestAway>(c, unit, units, acc_x, acc_h, h_diff, low, high);
    case Rounding::kFloor:
      return float_gates_of_mode<F, Rounding::kFloor>(c, unit, units, acc_x, acc_h, h_diff, low, high);
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_GRU_CPU_FLOAT_BODY_H_
