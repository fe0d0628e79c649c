// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <type_traits>

#include "gru/training/cuda/forward.cuh"
#include "gru/training/cuda/integer_cell.cuh"

namespace isobit::cuda {
namespace {

/// Two parts of a state: its low 8 bits, and what is above them.
constexpr float kPartSteps = 256.0f;

/// What cells share.
template <int kPartCount>
struct IntegerCellBase {
  static constexpr int kParts = kPartCount;
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

/// Of every model.
template <int kPartCount>
struct IntegerCell : IntegerCellBase<kPartCount> {
  using Row = QatRow;
  struct Inputs {
    int32_t ih[3]{};
  };

  [[nodiscard]] __device__ __forceinline__ Inputs load(int64_t row, int64_t unit, int64_t H) const {
    const int32_t* const ih = this->run.ih + row * 3 * H + unit;
    return {{ih[0], ih[H], ih[2 * H]}};
  }
  [[nodiscard]] __device__ __forceinline__ Row row(int64_t row) const { return this->run.rows.integers[row]; }
  [[nodiscard]] __device__ __forceinline__ IntegerStep step(const Inputs& in, const Row (&rows)[3],
                                                            const float (&sums)[kPartCount][3], float h) const {
    int64_t acc[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      acc[gate] = __float2int_rn(sums[0][gate]);
      if constexpr (kPartCount == 2) acc[gate] += int64_t{256} * __float2int_rn(sums[1][gate]);
    }
    return integer_step(this->run.cell, in.ih, rows, acc, __float2int_rn(h));
  }
};

/// Where rounding is to nearest even, and all that follows hh is exact in Real.
template <int kPartCount, typename Real>
struct LaneCell : IntegerCellBase<kPartCount> {
  struct Row {
    QatRowLanes lanes;
    int64_t row;
  };
  using Inputs = typename CellOfLanes<Real>::Inputs;

  CellOfLanes<Real> cell;

  explicit LaneCell(const IntegerForwardSteps& of) : IntegerCellBase<kPartCount>{of}, cell(of.constants) {}
  [[nodiscard]] __device__ __forceinline__ Inputs load(int64_t row, int64_t unit, int64_t H) const {
    const int32_t* const ih = this->run.ih + row * 3 * H + unit;
    return {{ih[0], ih[H], ih[2 * H]}};
  }
  [[nodiscard]] __device__ __forceinline__ Row row(int64_t row) const { return {this->run.rows.lanes[row], row}; }
  [[nodiscard]] __device__ __forceinline__ IntegerStep step(const Inputs& in, const Row (&rows)[3],
                                                            const float (&sums)[kPartCount][3], float h) const {
    double hh[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      double sum = sums[0][gate];
      if constexpr (kPartCount == 2) sum = __fma_rn(double{sums[1][gate]}, double{kPartSteps}, sum);
      hh[gate] = rescale_even(sum + rows[gate].lanes.bias, rows[gate].lanes.ratio);
      if (isnan(hh[gate]))
        hh[gate] = hh_in_integers(this->run.rows.integers + rows[gate].row, static_cast<int64_t>(sum));
    }
    return cell.step(in, hh, static_cast<Real>(h));
  }
};

/// body(cell) with the cell of an arithmetic; `run` may be empty.
template <typename Body>
Status with_cell(TeamArithmetic arithmetic, const IntegerForwardSteps& run, const Body& body) {
  if (arithmetic.lanes == CellLanes::kFloats && arithmetic.parts == 1) return body(LaneCell<1, float>(run));
  if (arithmetic.lanes != CellLanes::kIntegers)
    return arithmetic.parts == 1 ? body(LaneCell<1, double>(run)) : body(LaneCell<2, double>(run));
  return arithmetic.parts == 1 ? body(IntegerCell<1>{{run}}) : body(IntegerCell<2>{{run}});
}

}  // namespace

Status plan_integer_teams(TeamPlan& plan, TeamArithmetic arithmetic) {
  if (plan.blocks == 0) return {};
  ISOBIT_RETURN_IF_ERROR(with_cell(arithmetic, {}, [&](const auto& cell) {
    return plan_team_forward_of<std::decay_t<decltype(cell)>>(plan, plan.forward_teams);
  }));
  if (plan.forward_teams < 1) plan = {};
  return {};
}

Status run_team_forward(const TeamPlan& plan, TeamArithmetic arithmetic, const IntegerForwardSteps& run,
                        cudaStream_t stream) {
  return with_cell(arithmetic, run,
                   [&](const auto& cell) { return run_team_forward_of(plan, plan.forward_teams, run, cell, stream); });
}

}  // namespace isobit::cuda
