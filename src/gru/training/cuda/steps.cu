// SPDX-License-Identifier: Apache-2.0
// The recurrences where R does not fit a team's registers: a product and a kernel of gates for each step.
#include "core/cuda/launch.h"
#include "core/cuda/status.h"
#include "gru/training/cuda/gates.cuh"
#include "gru/training/cuda/integer_cell.cuh"
#include "gru/training/cuda/products.h"
#include "gru/training/cuda/recurrence.h"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;

/// Steps past a length keep the state.
__device__ __forceinline__ bool step_runs(const int64_t* lengths, int64_t sequence, int32_t t) {
  return lengths == nullptr || t < lengths[sequence];
}

/// h: the state before, then after the step.
__global__ void __launch_bounds__(kThreads)
    training_step_forward(TrainingForwardSteps run, int32_t t, const float* hh, float* h) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, H = run.hidden;
  if (i >= run.batch * H) return;
  const int64_t sequence = i / H, unit = i % H, row = static_cast<int64_t>(t) * run.batch + sequence;
  float* const y = run.y + row * run.y_row + unit;
  if (!step_runs(run.lengths, sequence, t)) {
    *y = 0.0f;
    return;
  }
  float of_x[3], of_h[3];
  for (int gate = 0; gate < 3; ++gate) {
    of_x[gate] = run.ih[row * 3 * H + gate * H + unit];
    of_h[gate] = hh[sequence * 3 * H + gate * H + unit];
  }
  const TrainingCell cell = training_cell(of_x, of_h, h[i]);
  const bool taken = run.mask == nullptr || run.mask[row * run.y_row + unit] != 0;
  if (taken) h[i] = cell.h;
  *y = h[i];
  float* const saved = run.saved + row * 4 * H + unit;
  saved[0] = cell.u;
  saved[H] = cell.r;
  saved[2 * H] = cell.n;
  saved[3 * H] = cell.q;
}

/// The same in integers; h: codes minus the zero point.
__global__ void __launch_bounds__(kThreads)
    training_step_integers(const __grid_constant__ IntegerForwardSteps run, int32_t t, const double* sums, float* h) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, H = run.hidden;
  if (i >= run.batch * H) return;
  const int64_t sequence = i / H, unit = i % H, row = static_cast<int64_t>(t) * run.batch + sequence;
  if (!step_runs(run.lengths, sequence, t)) {
    write_past_length(run, row, unit);
    return;
  }
  int32_t ih[3];
  QatRow rows[3];
  int64_t acc[3];
  for (int gate = 0; gate < 3; ++gate) {
    ih[gate] = run.ih[row * 3 * H + gate * H + unit];
    rows[gate] = run.rows.integers[gate * H + unit];
    acc[gate] = static_cast<int64_t>(sums[sequence * 3 * H + gate * H + unit]);
  }
  const IntegerStep step = integer_step(run.cell, ih, rows, acc, static_cast<int64_t>(h[i]));
  if (run.mask == nullptr || run.mask[row * run.y_row + unit] != 0) h[i] = step.h;
  write_integer_step(run, row, unit, step, h[i]);
}
__global__ void __launch_bounds__(kThreads)
    training_numbers(const float* codes, float scale, float* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = __fmul_rn(codes[i], scale);
}

/// g: the gradient of the state after the step, then what of that before does not come through R.
__global__ void __launch_bounds__(kThreads) training_step_backward(TrainingBackwardSteps run, int32_t t, float* g) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, H = run.hidden;
  if (i >= run.batch * H) return;
  const int64_t sequence = i / H, unit = i % H, row = static_cast<int64_t>(t) * run.batch + sequence;
  TrainingCellGradients c{};
  c.base = g[i];
  if (step_runs(run.lengths, sequence, t)) {
    const int64_t length = run.lengths == nullptr ? run.steps : min(run.lengths[sequence], int64_t{run.steps});
    const int32_t before = run.reverse ? t + 1 : t - 1;
    float h = 0.0f;
    if (before >= 0 && before < length) {
      h = run.y[(static_cast<int64_t>(before) * run.batch + sequence) * run.y_row + unit];
    } else if (run.first != nullptr) {
      h = run.first[i];
    }
    const float* const saved = run.saved + row * 4 * H + unit;
    c = training_cell_backward(saved[0], saved[H], saved[2 * H], saved[3 * H], h, run.dy[row * run.y_row + unit] + g[i],
                               run.mask == nullptr || run.mask[row * run.y_row + unit] != 0,
                               run.passes == nullptr ? 0xffffffff : run.passes[row * H + unit]);
  }
  g[i] = c.base;
  for (int gate = 0; gate < 3; ++gate) {
    run.gx[row * 3 * H + gate * H + unit] = c.gx[gate];
    run.gh[row * 3 * H + gate * H + unit] = c.gh[gate];
  }
}

int64_t state_bytes(const TrainingSteps& run) {
  return static_cast<int64_t>(run.batch) * run.hidden * static_cast<int64_t>(sizeof(float));
}
dim3 unit_blocks(const TrainingSteps& run) {
  return dim3(static_cast<unsigned>((static_cast<int64_t>(run.batch) * run.hidden + kThreads - 1) / kThreads));
}
Status copy_state(float* to, const float* from, const TrainingSteps& run, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(state_bytes(run));
  return cuda_status(from == nullptr ? cudaMemsetAsync(to, 0, bytes, stream)
                                     : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream),
                     "a state of training");
}

}  // namespace

int64_t step_workspace_floats(int64_t batch, int64_t hidden) { return batch * hidden * 7; }

Status run_step_forward(const TrainingForwardSteps& run, float* workspace, cudaStream_t stream) {
  if (run.batch == 0) return {};
  const int64_t H = run.hidden;
  float* const h = workspace;
  float* const hh = workspace + run.batch * H;
  ISOBIT_RETURN_IF_ERROR(copy_state(h, run.first, run, stream));
  for (int32_t step = 0; step < run.steps; ++step) {
    const int32_t t = run.reverse ? run.steps - 1 - step : step;
    ISOBIT_RETURN_IF_ERROR(product_by_rows({h, H}, {run.R, H}, run.br, hh, 3 * H, run.batch, 3 * H, H, stream));
    ISOBIT_RETURN_IF_ERROR(launch_kernel("training_step_forward", training_step_forward, unit_blocks(run), kThreads, 0,
                                         stream, run, t, hh, h));
  }
  return run.last == nullptr ? Status() : copy_state(run.last, h, run, stream);
}

Status run_step_forward(const IntegerForwardSteps& run, bool wide, float* workspace, cudaStream_t stream) {
  if (run.batch == 0) return {};
  const int64_t H = run.hidden, states = run.batch * H;
  auto* const sums = reinterpret_cast<double*>(workspace);
  float* const h = workspace + 6 * states;
  ISOBIT_RETURN_IF_ERROR(copy_state(h, run.first, run, stream));
  for (int32_t step = 0; step < run.steps; ++step) {
    const int32_t t = run.reverse ? run.steps - 1 - step : step;
    ISOBIT_RETURN_IF_ERROR(product_of_codes({h, H}, {run.R, H}, sums, run.batch, 3 * H, H, wide, stream));
    ISOBIT_RETURN_IF_ERROR(launch_kernel("training_step_integers", training_step_integers, unit_blocks(run), kThreads,
                                         0, stream, run, t, sums, h));
  }
  if (run.last == nullptr) return {};
  return launch_kernel("training_numbers", training_numbers, unit_blocks(run), kThreads, 0, stream, h, run.scales.h,
                       run.last, states);
}

Status run_step_backward(const TrainingBackwardSteps& run, float* workspace, cudaStream_t stream) {
  if (run.batch == 0) return {};
  const int64_t H = run.hidden;
  float* const g = workspace;
  ISOBIT_RETURN_IF_ERROR(copy_state(g, run.last_gradient, run, stream));
  for (int32_t step = 0; step < run.steps; ++step) {
    const int32_t t = run.reverse ? step : run.steps - 1 - step;
    ISOBIT_RETURN_IF_ERROR(launch_kernel("training_step_backward", training_step_backward, unit_blocks(run), kThreads,
                                         0, stream, run, t, g));
    const FloatRows gh{run.gh + static_cast<int64_t>(t) * run.batch * 3 * H, 3 * H};
    ISOBIT_RETURN_IF_ERROR(product_by_columns(gh, {run.R, H}, g, H, true, run.batch, H, 3 * H, stream));
  }
  return run.first_gradient == nullptr ? Status() : copy_state(run.first_gradient, g, run, stream);
}

}  // namespace isobit::cuda
