// SPDX-License-Identifier: Apache-2.0
#include "gru/training/cuda/forward.cuh"

#include "gru/training/cuda/gates.cuh"

namespace isobit::cuda {
namespace {

struct FloatCell {
  static constexpr int kParts = 1;
  struct Inputs {
    float ih[3]{};
  };
  using Row = float;  // of br
  using Result = TrainingCell;

  const float *ih, *br;
  float *y, *saved, *last;

  __device__ __forceinline__ static float joined(const float (&h)[1]) { return h[0]; }
  __device__ __forceinline__ static void split(float h, float (&parts)[1]) { parts[0] = h; }
  [[nodiscard]] __device__ __forceinline__ Inputs load(int64_t row, int64_t unit, int64_t H) const {
    const float* const of_unit = ih + row * 3 * H + unit;
    return {{of_unit[0], of_unit[H], of_unit[2 * H]}};
  }
  [[nodiscard]] __device__ __forceinline__ float row(int64_t row) const { return br[row]; }
  [[nodiscard]] __device__ __forceinline__ TrainingCell step(const Inputs& in, const float (&bias)[3],
                                                             const float (&sums)[1][3], float h) const {
    const float hh[3] = {sums[0][0] + bias[0], sums[0][1] + bias[1], sums[0][2] + bias[2]};
    return training_cell(in.ih, hh, h);
  }
  __device__ __forceinline__ void write(int64_t row, int64_t unit, const TrainingSteps& run,
                                        const TrainingCell& cell) const {
    const int64_t H = run.hidden;
    y[row * run.y_row + unit] = cell.h;
    float* const to = saved + row * 4 * H + unit;
    to[0] = cell.u;
    to[H] = cell.r;
    to[2 * H] = cell.n;
    to[3 * H] = cell.q;
  }
  __device__ __forceinline__ void write_past(int64_t row, int64_t unit, const TrainingSteps& run) const {
    y[row * run.y_row + unit] = 0.0f;
  }
  __device__ __forceinline__ void write_last(int64_t at, float h) const {
    if (last != nullptr) last[at] = h;
  }
};

}  // namespace

Status plan_team_forward(TeamPlan& plan) { return plan_team_forward_of<FloatCell>(plan, plan.forward_teams); }

Status run_team_forward(const TeamPlan& plan, const TrainingForwardSteps& run, cudaStream_t stream) {
  return run_team_forward_of(plan, plan.forward_teams, run, FloatCell{run.ih, run.br, run.y, run.saved, run.last},
                             stream);
}

}  // namespace isobit::cuda
