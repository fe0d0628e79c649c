// SPDX-License-Identifier: Apache-2.0
// The normative integer GRU cell: numerics.md, section 7, in 64-bit integers, line by line, for host and device. It
// runs every configuration; each kernel equals it byte for byte.
#ifndef ISOBIT_GRU_REFERENCE_H_
#define ISOBIT_GRU_REFERENCE_H_

#include <cstdint>

#include "core/fixed.h"
#include "core/hd.h"
#include "isobit/gru.h"
#include "table/reference.h"

namespace isobit {

ISOBIT_HD int64_t rescale(const RescaleParameters& ratio, int64_t x, Rounding mode) {
  return Rescale{ratio.multiplier, ratio.shift}.apply(x, mode);
}

/// The limits of a grid, and its zero point.
struct CodeRange {
  int64_t min, max, zero_point;
};
inline CodeRange range_of(const Grid& grid) { return {grid.min(), grid.max(), grid.zero_point}; }
ISOBIT_HD int64_t clamp_to(const CodeRange& range, int64_t x) { return clamp_s64(x, range.min, range.max); }

/// What a cell reads of its layer, without vectors; the pointers in the tables may be device memory.
struct CellView {
  Rounding rounding;
  CodeRange ih, hh, gate_in[3], h;
  int64_t z_u, z_r, z_n;
  RescaleParameters ih_to_gate[3], hh_to_gate[2], rhh_to_n, n_to_h, u_to_one;
  int64_t one;
  TableView tables[3];
};
/// `p` must outlive the view.
inline CellView view_of(const GruLayerParameters& p) {
  CellView view{};
  view.rounding = p.rounding;
  view.ih = range_of(p.grids[kIh]);
  view.hh = range_of(p.grids[kHh]);
  view.h = range_of(p.grids[kH]);
  view.z_u = p.grids[kU].zero_point;
  view.z_r = p.grids[kRGate].zero_point;
  view.z_n = p.grids[kN].zero_point;
  for (int gate = 0; gate < 3; ++gate) {
    view.gate_in[gate] = range_of(p.grids[static_cast<size_t>(kUIn + gate)]);
    view.ih_to_gate[gate] = p.ih_to_gate[static_cast<size_t>(gate)];
    if (gate < 2) view.hh_to_gate[gate] = p.hh_to_gate[static_cast<size_t>(gate)];
    view.tables[gate] = view_of(p.tables[static_cast<size_t>(gate)]);
  }
  view.rhh_to_n = p.rhh_to_n;
  view.n_to_h = p.n_to_h;
  view.u_to_one = p.u_to_one;
  view.one = p.one;
  return view;
}

/// ih or hh of one row: clamp(rs(sum - z * weight_sum + rs(bias)) + z_out).
ISOBIT_HD int64_t reference_linear(int64_t sum, int64_t zero_point, int64_t weight_sum, int64_t bias,
                                   const RescaleParameters& bias_to_acc, const RescaleParameters& acc_to_out,
                                   const CodeRange& out, Rounding mode) {
  const int64_t acc = sum - zero_point * weight_sum + rescale(bias_to_acc, bias, mode);
  return clamp_to(out, rescale(acc_to_out, acc, mode) + out.zero_point);
}

/// All codes of one hidden unit in one step.
struct ReferenceCell {
  int64_t u_in, r_in, n_in, u, r, n, h;
};

/// ih and hh: the unit's three linear results (u, r, n); h: its code before the step.
ISOBIT_HD ReferenceCell reference_cell(const CellView& p, const int64_t ih[3], const int64_t hh[3], int64_t h) {
  const Rounding mode = p.rounding;
  const int64_t z_ih = p.ih.zero_point;
  const int64_t z_hh = p.hh.zero_point;
  ReferenceCell c{};
  c.u_in = clamp_to(p.gate_in[0], rescale(p.ih_to_gate[0], ih[0] - z_ih, mode) +
                                      rescale(p.hh_to_gate[0], hh[0] - z_hh, mode) + p.gate_in[0].zero_point);
  c.r_in = clamp_to(p.gate_in[1], rescale(p.ih_to_gate[1], ih[1] - z_ih, mode) +
                                      rescale(p.hh_to_gate[1], hh[1] - z_hh, mode) + p.gate_in[1].zero_point);
  c.u = look_up(p.tables[0], c.u_in);
  c.r = look_up(p.tables[1], c.r_in);
  const int64_t r_hh = (c.r - p.z_r) * (hh[2] - z_hh);
  c.n_in = clamp_to(p.gate_in[2], rescale(p.ih_to_gate[2], ih[2] - z_ih, mode) + rescale(p.rhh_to_n, r_hh, mode) +
                                      p.gate_in[2].zero_point);
  c.n = look_up(p.tables[2], c.n_in);
  const int64_t n_on_h = rescale(p.n_to_h, c.n - p.z_n, mode);
  const int64_t mixed = (c.u - p.z_u) * (h - p.h.zero_point) + (p.one - c.u) * n_on_h;
  c.h = clamp_to(p.h, rescale(p.u_to_one, mixed, mode) + p.h.zero_point);
  return c;
}

}  // namespace isobit

#endif  // ISOBIT_GRU_REFERENCE_H_
