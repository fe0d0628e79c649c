// SPDX-License-Identifier: Apache-2.0
// The recurrences of training on a device, forward and backward: one direction of one layer.
#ifndef ISOBIT_GRU_TRAINING_CUDA_RECURRENCE_H_
#define ISOBIT_GRU_TRAINING_CUDA_RECURRENCE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gru/reference.h"
#include "gru/training/cuda/integers.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// What both directions of time read. A row is that of a step and a sequence, t * batch + n.
struct TrainingSteps {
  const float* R;          // [3H][H]
  const float* first;      // [batch][H]; null: zeros
  const int64_t* lengths;  // null: all are `steps`
  const uint8_t* mask;     // null: all 1
  int64_t y_row;           // from row to row, of y, dy and the mask
  int32_t steps, batch, hidden;
  bool reverse;
};
struct TrainingForwardSteps : TrainingSteps {
  const float *ih, *br;  // [rows][3H], with bw
  float* y;
  float* saved;  // [rows][4H]
  float* last;   // [batch][H]; null: not wanted
};
/// Steps of numbers by codes.
struct IntegerScales {
  float h, u, r, n, hh;
};
/// The arithmetic of a cell.
enum class CellLanes : uint8_t { kIntegers, kDoubles, kFloats };
/// A cell in lanes that hold integers, all minus their zero points. ih and hh: of nearest even, and exact as these.
struct CellConstants {
  double hh_low, hh_high;
  double hh_to_gate[3];  // [2] is r * hh -> n_in
  double gate_low[3], gate_high[3];
  double u_to_one, one;
  double h_low, h_high;
  // Of each gate input, from minus its zero point on: codes of u, r and n, and n on the scale of h.
  const float *u, *r, *n, *n_on_h;
};
/// R and first: codes minus their zero points.
struct IntegerForwardSteps : TrainingSteps {
  const int32_t* ih;  // of QatGateInputs
  QatRows rows;       // of R
  CellView cell;      // tables in device memory
  CellConstants constants;
  IntegerScales scales;
  float *y, *also_y;  // numbers, twice; also_y: null, once
  float* codes;       // as y, codes of h minus the zero point; null: not wanted
  float* saved;       // [rows][4H], numbers
  uint16_t* passes;   // [rows][H]
  float* last;        // [batch][H], numbers; null: not wanted
};
struct TrainingBackwardSteps : TrainingSteps {
  const float* y;
  const float* saved;
  const uint16_t* passes;  // [rows][H]; null: all 1
  const float* dy;
  const float* last_gradient;  // [batch][H]; null: zeros
  float* first_gradient;       // [batch][H]; null: not wanted
  float *gx, *gh;              // [rows][3H]
};

/// R stays in the registers of a team: a block, or the blocks of a cluster.
inline constexpr int64_t kMostTeamHidden = 512;
/// How a layer is cut for teams: block b has the units from b * units on.
struct TeamPlan {
  int32_t hidden = 0;
  int32_t blocks = 0;                             // of a team; 0: R does not fit
  int32_t units = 0;                              // of a block; of several blocks a multiple of 4
  int32_t forward_teams = 0, backward_teams = 0;  // that are on the device at once
};
/// For the current device, whose kernels it prepares.
Status plan_teams(int64_t hidden, TeamPlan& plan);
Status run_team_forward(const TeamPlan& plan, const TrainingForwardSteps& run, cudaStream_t stream);
/// How a team computes with integers.
struct TeamArithmetic {
  CellLanes lanes;
  int32_t parts;  // 1: R and h are narrow enough for exact sums of floats; 2: the sums of either half of h are
};
/// Of a plan for floats makes that for integers.
Status plan_integer_teams(TeamPlan& plan, TeamArithmetic arithmetic);
Status run_team_forward(const TeamPlan& plan, TeamArithmetic arithmetic, const IntegerForwardSteps& run,
                        cudaStream_t stream);
Status run_team_backward(const TeamPlan& plan, const TrainingBackwardSteps& run, cudaStream_t stream);

/// A product and a kernel of gates for each step. workspace: floats of step_workspace_floats(), aligned to 8 bytes.
int64_t step_workspace_floats(int64_t batch, int64_t hidden);
Status run_step_forward(const TrainingForwardSteps& run, float* workspace, cudaStream_t stream);
/// wide: sums of doubles; else those of floats are exact.
Status run_step_forward(const IntegerForwardSteps& run, bool wide, float* workspace, cudaStream_t stream);
Status run_step_backward(const TrainingBackwardSteps& run, float* workspace, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_RECURRENCE_H_
