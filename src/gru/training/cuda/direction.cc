// SPDX-License-Identifier: Apache-2.0
#include "gru/training/cuda/direction.h"

namespace isobit::cuda {

Status run_direction_backward(const DirectionBackward& backward, const TeamPlan* plan, const TrainingScratch& memory,
                              cudaStream_t stream) {
  TrainingBackwardSteps run = backward.steps;
  run.gx = memory.gx;
  run.gh = memory.gh;
  const int64_t rows = static_cast<int64_t>(run.steps) * run.batch, C = backward.C, H = run.hidden, gates = 3 * H;
  const GruTrainingGradients& to = backward.gradients;
  ISOBIT_RETURN_IF_ERROR(plan != nullptr ? run_team_backward(*plan, run, stream)
                                         : run_step_backward(run, memory.recurrence, stream));
  if (backward.dx != nullptr)
    ISOBIT_RETURN_IF_ERROR(
        product_by_columns({run.gx, gates}, {backward.W, C}, backward.dx, C, run.reverse, rows, C, gates, stream));
  const StepRows inputs{.rows = backward.x, .lengths = run.lengths, .steps = run.steps, .batch = run.batch};
  const StepRows before{.rows = {run.y, run.y_row},
                        .shift = run.reverse ? 1 : -1,
                        .first = run.first,
                        .lengths = run.lengths,
                        .steps = run.steps,
                        .batch = run.batch};
  StoppedGradients stopped;
  if (backward.dx != nullptr && backward.dx_passes != nullptr) stopped = {backward.dx, backward.dx_passes, rows, C};
  return weight_gradients({{{run.gx, gates}, inputs, to.W.data(), to.bw.data(), C},
                           {{run.gh, gates}, before, to.R.data(), to.br.data(), H}},
                          rows, gates, memory.gradients, stopped, stream);
}

}  // namespace isobit::cuda
