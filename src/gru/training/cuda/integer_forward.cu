// SPDX-License-Identifier: Apache-2.0
#include "gru/training/cuda/forward.cuh"
#include "gru/training/cuda/integer_cell.cuh"

namespace isobit::cuda {
namespace {

/// Two parts of a state: its low 8 bits, and what is above them.
constexpr float kPartSteps = 256.0f;

template <int kPartCount>
struct IntegerCell {
  static constexpr int kParts = kPartCount;
  struct Inputs {
    int32_t ih[3]{};
  };
  using Row = QatRow;
  using Result = IntegerStep;

  IntegerForwardSteps run;

  __device__ __forceinline__ static float joined(const float (&parts)[kParts]) {
    if constexpr (kParts == 1) return parts[0];
    return __fmaf_rn(parts[kParts - 1], kPartSteps, parts[0]);
  }
  __device__ __forceinline__ static void split(float h, float (&parts)[kParts]) {
    parts[0] = h;
    if constexpr (kParts == 2) {
      parts[1] = floorf(h * (1.0f / kPartSteps));
      parts[0] = __fmaf_rn(parts[1], -kPartSteps, h);
    }
  }
  [[nodiscard]] __device__ __forceinline__ Inputs load(int64_t row, int64_t unit, int64_t H) const {
    const int32_t* const ih = run.ih + row * 3 * H + unit;
    return {{ih[0], ih[H], ih[2 * H]}};
  }
  [[nodiscard]] __device__ __forceinline__ QatRow row(int64_t row) const { return run.rows[row]; }
  [[nodiscard]] __device__ __forceinline__ IntegerStep step(const Inputs& in, const QatRow (&rows)[3],
                                                            const float (&sums)[kParts][3], float h) const {
    int64_t acc[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      acc[gate] = __float2int_rn(sums[0][gate]);
      if constexpr (kParts == 2) acc[gate] += int64_t{256} * __float2int_rn(sums[1][gate]);
    }
    return integer_step(run.cell, in.ih, rows, acc, __float2int_rn(h));
  }
  __device__ __forceinline__ void write(int64_t row, int64_t unit, const TrainingSteps&,
                                        const IntegerStep& step) const {
    write_integer_step(run, row, unit, step, step.h);
  }
  __device__ __forceinline__ void write_past(int64_t row, int64_t unit, const TrainingSteps&) const {
    write_past_length(run, row, unit);
  }
  __device__ __forceinline__ void write_last(int64_t at, float h) const {
    if (run.last != nullptr) run.last[at] = __fmul_rn(h, run.scales.h);
  }
};

}  // namespace

Status plan_integer_teams(TeamPlan& plan, int32_t parts) {
  if (plan.blocks == 0) return {};
  ISOBIT_RETURN_IF_ERROR(parts == 1 ? plan_team_forward_of<IntegerCell<1>>(plan, plan.forward_teams)
                                    : plan_team_forward_of<IntegerCell<2>>(plan, plan.forward_teams));
  if (plan.forward_teams < 1) plan = {};
  return {};
}

Status run_team_forward(const TeamPlan& plan, int32_t parts, const IntegerForwardSteps& run, cudaStream_t stream) {
  return parts == 1 ? run_team_forward_of(plan, plan.forward_teams, run, IntegerCell<1>{run}, stream)
                    : run_team_forward_of(plan, plan.forward_teams, run, IntegerCell<2>{run}, stream);
}

}  // namespace isobit::cuda
