// SPDX-License-Identifier: Apache-2.0
// The baseline gate kernels: the same constants, one lane at a time in 64-bit integers.
#include "core/fixed.h"
#include "gru/gates.h"

namespace isobit {
namespace {

int64_t apply(const GateRescale& ratio, int64_t x, Rounding mode) {
  return round_shift(x * ratio.multiplier, ratio.right - ratio.left, mode);
}

template <typename Acc>
void gates(const GateConstants& c, const Acc* acc_x, const Acc* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high) {
  const int64_t padded = c.padded_hidden;
  const Rounding mode = c.rounding;
  const auto activate = [&](int gate, int64_t sum) {
    return c.table[gate][clamp_s64(sum + c.gate_offset[gate], 0, c.gate_last[gate])] + c.table_offset[gate];
  };
  for (int64_t i = 0; i < padded; ++i) {
    int64_t ih[3];
    int64_t hh[3];
    for (int gate = 0; gate < 3; ++gate) {
      const int64_t row = gate * padded + i;
      ih[gate] = clamp_s64(round_shift(int64_t{acc_x[row]} * c.multiplier_ih[row], c.shift_ih[row], mode), c.ih_low, c.ih_high);
      hh[gate] = clamp_s64(round_shift(int64_t{acc_h[row]} * c.multiplier_hh[row], c.shift_hh[row], mode), c.hh_low, c.hh_high);
    }
    const int64_t u = activate(0, apply(c.ih_to_gate[0], ih[0], mode) + apply(c.hh_to_gate[0], hh[0], mode));
    const int64_t r = activate(1, apply(c.ih_to_gate[1], ih[1], mode) + apply(c.hh_to_gate[1], hh[1], mode));
    const int64_t n = activate(2, apply(c.ih_to_gate[2], ih[2], mode) + apply(c.hh_to_gate[2], r * hh[2], mode));
    const int64_t mixed = u * h_diff[i] + (c.one - u) * apply(c.n_to_h, n, mode);
    const int64_t h = clamp_s64(apply(c.u_to_one, mixed, mode), c.h_low, c.h_high);
    h_diff[i] = static_cast<int32_t>(h);
    const auto code = static_cast<uint64_t>(h + c.h_to_unsigned);
    low[i] = static_cast<uint8_t>(code);
    if (c.planes == 2) high[i] = static_cast<uint8_t>(code >> 8);
  }
}

}  // namespace

void gru_gates_s32_scalar(const GateConstants& c, const int32_t* acc_x, const int32_t* acc_h, int32_t* h_diff,
                          uint8_t* low, uint8_t* high) {
  gates(c, acc_x, acc_h, h_diff, low, high);
}

void gru_gates_s64_scalar(const GateConstants& c, const int64_t* acc_x, const int64_t* acc_h, int32_t* h_diff,
                          uint8_t* low, uint8_t* high) {
  gates(c, acc_x, acc_h, h_diff, low, high);
}

}  // namespace isobit
