// SPDX-License-Identifier: Apache-2.0
// A step of one unit in integers, with what its clamps passed: numerics.md, sections 7 and 14. Codes are minus their
// zero points.
#ifndef ISOBIT_GRU_TRAINING_CUDA_INTEGER_CELL_CUH_
#define ISOBIT_GRU_TRAINING_CUDA_INTEGER_CELL_CUH_

#include <cstdint>

#include "core/cuda/lanes.cuh"
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

/// hh of a row, which is not exact in doubles.
__device__ __noinline__ inline double hh_in_integers(const QatRow* row, int64_t sum) {
  return static_cast<double>(rescale(row->to_result, sum + row->bias, Rounding::kNearestEven));
}

/// The same in lanes. sums: less than 2^52.
template <typename Real>
struct CellOfLanes {
  float hh_low, hh_high;
  Real hh_to_gate[3];
  Real gate_low[3], gate_high[3];  // plus magic
  Real u_to_one, one;
  Real h_low, h_high;
  const float *u, *r, *n, *n_on_h;

  __host__ explicit CellOfLanes(const CellConstants& c)
      : hh_low(static_cast<float>(c.hh_low)),
        hh_high(static_cast<float>(c.hh_high)),
        u_to_one(static_cast<Real>(c.u_to_one)),
        one(static_cast<Real>(c.one)),
        h_low(static_cast<Real>(c.h_low)),
        h_high(static_cast<Real>(c.h_high)),
        u(c.u),
        r(c.r),
        n(c.n),
        n_on_h(c.n_on_h) {
    for (int gate = 0; gate < 3; ++gate) {
      hh_to_gate[gate] = static_cast<Real>(c.hh_to_gate[gate]);
      gate_low[gate] = static_cast<Real>(c.gate_low[gate]) + kMagic<Real>;
      gate_high[gate] = static_cast<Real>(c.gate_high[gate]) + kMagic<Real>;
    }
  }
  __device__ __forceinline__ static int32_t integer_of(Real with_magic) {
    return static_cast<int32_t>(low_bits(with_magic) - low_bits(kMagic<Real>));
  }

  /// As QatGateInputs has them: converted where they are used, as a load that is looked at is waited for.
  struct Inputs {
    int32_t ih[3]{};
  };
  /// hh_before: but for the clamp, whose ends floats tell from what is beyond them.
  __device__ __forceinline__ IntegerStep step(const Inputs& in, const double (&hh_before)[3], Real h) const {
    IntegerStep step{};
    const auto pass = [&](int bit, bool passed) { step.passes |= passed ? 1U << bit : 0U; };
    Real hh[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      pass(kPassIh + gate, (in.ih[gate] & 1) != 0);
      const float before = static_cast<float>(hh_before[gate]), code = clamp_lane(before, hh_low, hh_high);
      pass(kPassHh + gate, code == before);
      hh[gate] = static_cast<Real>(code);
    }
    /// The gate input, as an index.
    const auto gate_in = [&](int gate, Real from_hh) {
      const Real before = add(from_hh, static_cast<Real>(in.ih[gate] >> 1)),
                 code = clamp_lane(before, gate_low[gate], gate_high[gate]);
      pass(kPassGate + gate, code == before);
      return integer_of(code);
    };
    const int32_t r_in = gate_in(1, to_magic(hh[1], hh_to_gate[1]));
    step.r = __ldg(r + r_in);
    const int32_t u_in = gate_in(0, to_magic(hh[0], hh_to_gate[0]));
    step.u = __ldg(u + u_in);
    const int32_t n_in = gate_in(2, to_magic(multiply(static_cast<Real>(step.r), hh[2]), hh_to_gate[2]));
    const Real on_h = static_cast<Real>(__ldg(n_on_h + n_in)), of_u = static_cast<Real>(step.u);
    step.n = __ldg(n + n_in);
    const Real mixed = fused(add(one, -of_u), on_h, multiply(of_u, h)), before = rescale_even(mixed, u_to_one);
    const Real code = clamp_lane(before, h_low, h_high);
    pass(kPassState, code == before);
    step.h = static_cast<float>(code);
    step.q = static_cast<float>(hh[2]);
    return step;
  }
};

/// What a step leaves. state: the code of h after the step, as the mask says.
__device__ __forceinline__ void write_integer_step(const IntegerForwardSteps& run, int64_t row, int64_t unit,
                                                   const IntegerStep& step, float state) {
  const int64_t H = run.hidden, at = row * run.y_row + unit;
  const float number = __fmul_rn(state, run.scales.h);
  run.y[at] = number;
  if (run.also_y != nullptr) run.also_y[at] = number;
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
  if (run.also_y != nullptr) run.also_y[at] = 0.0f;
  if (run.codes != nullptr) run.codes[at] = 0.0f;
  run.passes[row * run.hidden + unit] = kNoUnit;
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_INTEGER_CELL_CUH_
