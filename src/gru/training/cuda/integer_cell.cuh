// SPDX-License-Identifier: Apache-2.0
// A step of one unit in integers, with what its clamps passed: numerics.md, sections 7 and 14. Codes are minus their
// zero points.
#ifndef ISOBIT_GRU_TRAINING_CUDA_INTEGER_CELL_CUH_
#define ISOBIT_GRU_TRAINING_CUDA_INTEGER_CELL_CUH_

#include <cstdint>

#include "gru/clamps.h"
#include "gru/reference.h"
#include "gru/training/cuda/recurrence.h"

namespace isobit::cuda {

struct IntegerStep {
  float h, u, r, n, q;  // codes
  uint32_t passes;      // bits from kPassIh on
};

/// ih: as QatGateInputs has them; sums: complete accumulators of R h, but for the bias.
__device__ __forceinline__ IntegerStep integer_step(const CellView& p, const int32_t (&ih)[3], const QatRow (&rows)[3],
                                                    const int64_t (&sums)[3], int64_t h) {
  const Rounding mode = p.rounding;
  IntegerStep step{};
  /// A code after its clamp, minus its zero point.
  const auto clamped = [&](int bit, const CodeRange& range, int64_t difference) {
    const int64_t before = difference + range.zero_point, code = clamp_to(range, before);
    step.passes |= (code == before ? 1U : 0U) << bit;
    return code - range.zero_point;
  };
  int64_t hh[3];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    step.passes |= static_cast<uint32_t>(ih[gate] & 1) << (kPassIh + gate);
    hh[gate] = clamped(kPassHh + gate, p.hh, rescale(rows[gate].to_result, sums[gate] + rows[gate].bias, mode));
  }
  const auto gate_in = [&](int gate, int64_t from_hh) {
    return clamped(kPassGate + gate, p.gate_in[gate], (ih[gate] >> 1) + from_hh) + p.gate_in[gate].zero_point;
  };
  const int64_t r = look_up(p.tables[1], gate_in(1, rescale(p.hh_to_gate[1], hh[1], mode))) - p.z_r;
  const int64_t u_code = look_up(p.tables[0], gate_in(0, rescale(p.hh_to_gate[0], hh[0], mode)));
  const int64_t n = look_up(p.tables[2], gate_in(2, rescale(p.rhh_to_n, r * hh[2], mode))) - p.z_n;
  const int64_t mixed = (u_code - p.z_u) * h + (p.one - u_code) * rescale(p.n_to_h, n, mode);
  step.h = __ll2float_rn(clamped(kPassState, p.h, rescale(p.u_to_one, mixed, mode)));
  step.u = __ll2float_rn(u_code - p.z_u);
  step.r = __ll2float_rn(r);
  step.n = __ll2float_rn(n);
  step.q = __ll2float_rn(hh[2]);
  return step;
}

/// What a step leaves. state: the code of h after the step, as the mask says.
__device__ __forceinline__ void write_integer_step(const IntegerForwardSteps& run, int64_t row, int64_t unit,
                                                   const IntegerStep& step, float state) {
  const int64_t H = run.hidden, at = row * run.y_row + unit;
  run.y[at] = __fmul_rn(state, run.scales.h);
  if (run.codes != nullptr) run.codes[at] = state;
  float* const saved = run.saved + row * 4 * H + unit;
  saved[0] = __fmul_rn(step.u, run.scales.u);
  saved[H] = __fmul_rn(step.r, run.scales.r);
  saved[2 * H] = __fmul_rn(step.n, run.scales.n);
  saved[3 * H] = __fmul_rn(step.q, run.scales.hh);
  run.passes[row * H + unit] = static_cast<uint16_t>(step.passes);
}
__device__ __forceinline__ void write_past_length(const IntegerForwardSteps& run, int64_t row, int64_t unit) {
  const int64_t at = row * run.y_row + unit;
  run.y[at] = 0.0f;
  if (run.codes != nullptr) run.codes[at] = 0.0f;
  run.passes[row * run.hidden + unit] = kNoUnit;
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_INTEGER_CELL_CUH_
