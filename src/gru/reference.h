// SPDX-License-Identifier: Apache-2.0
// The normative integer GRU cell: numerics.md, section 7, in 64-bit integers, line by line. It runs every
// configuration; each kernel equals it byte for byte.
#ifndef ISOBIT_GRU_REFERENCE_H_
#define ISOBIT_GRU_REFERENCE_H_

#include <cstdint>

#include "core/fixed.h"
#include "isobit/gru.h"

namespace isobit {

inline int64_t rescale(const RescaleParameters& ratio, int64_t x, Rounding mode) {
  return Rescale{ratio.multiplier, ratio.shift}.apply(x, mode);
}

inline int64_t clamp_to(const Grid& grid, int64_t x) { return clamp_s64(x, grid.min(), grid.max()); }

/// ih or hh of one row: clamp(rs(sum - z * weight_sum + rs(bias)) + z_out).
inline int64_t reference_linear(int64_t sum, int64_t zero_point, int64_t weight_sum, int64_t bias,
                                const RescaleParameters& bias_to_acc, const RescaleParameters& acc_to_out,
                                const Grid& out, Rounding mode) {
  const int64_t acc = sum - zero_point * weight_sum + rescale(bias_to_acc, bias, mode);
  return clamp_to(out, rescale(acc_to_out, acc, mode) + out.zero_point);
}

/// All codes of one hidden unit in one step.
struct ReferenceCell {
  int64_t u_in, r_in, n_in, u, r, n, h;
};

/// ih and hh: the unit's three linear results (u, r, n); h: its code before the step.
inline ReferenceCell reference_cell(const GruLayerParameters& p, const int64_t ih[3], const int64_t hh[3], int64_t h) {
  const Rounding mode = p.rounding;
  const int64_t z_ih = p.grids[kIh].zero_point;
  const int64_t z_hh = p.grids[kHh].zero_point;
  const int64_t z_u = p.grids[kU].zero_point;
  const int64_t z_h = p.grids[kH].zero_point;
  ReferenceCell c{};
  c.u_in = clamp_to(p.grids[kUIn], rescale(p.ih_to_gate[0], ih[0] - z_ih, mode) +
                                       rescale(p.hh_to_gate[0], hh[0] - z_hh, mode) + p.grids[kUIn].zero_point);
  c.r_in = clamp_to(p.grids[kRIn], rescale(p.ih_to_gate[1], ih[1] - z_ih, mode) +
                                       rescale(p.hh_to_gate[1], hh[1] - z_hh, mode) + p.grids[kRIn].zero_point);
  c.u = p.tables[0](c.u_in);
  c.r = p.tables[1](c.r_in);
  const int64_t r_hh = (c.r - p.grids[kRGate].zero_point) * (hh[2] - z_hh);
  c.n_in = clamp_to(p.grids[kNIn], rescale(p.ih_to_gate[2], ih[2] - z_ih, mode) + rescale(p.rhh_to_n, r_hh, mode) +
                                       p.grids[kNIn].zero_point);
  c.n = p.tables[2](c.n_in);
  const int64_t n_on_h = rescale(p.n_to_h, c.n - p.grids[kN].zero_point, mode);
  const int64_t mixed = (c.u - z_u) * (h - z_h) + (p.one - c.u) * n_on_h;
  c.h = clamp_to(p.grids[kH], rescale(p.u_to_one, mixed, mode) + z_h);
  return c;
}

}  // namespace isobit

#endif  // ISOBIT_GRU_REFERENCE_H_
