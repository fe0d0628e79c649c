// SPDX-License-Identifier: Apache-2.0
// The forward recurrence of teams (team.cuh), of floats and of integers. A block has the rows of R of its own units,
// and the whole state. A step: products of the rows with the state; gates; the new states cross to every block's other
// buffer. Teams take sequences, and never meet.
//
// A Cell is the arithmetic of a step of one unit. A state is one float, or kParts of them, each with sums of its own.
#ifndef ISOBIT_GRU_TRAINING_CUDA_FORWARD_CUH_
#define ISOBIT_GRU_TRAINING_CUDA_FORWARD_CUH_

#include "core/cuda/grid_launch.h"
#include "gru/training/cuda/team.cuh"

namespace isobit::cuda {

template <typename Cell>
struct ForwardArgs {
  TrainingSteps run;
  Cell cell;
  int32_t blocks, units, sequences;  // of a team; of a block; of a team
};

/// Floats of a block's shared memory.
struct ForwardShared {
  int32_t state_stride, sum_stride;  // of a sequence
  int32_t states, sums, total;       // of a buffer of states, of all sums
};
/// parts: vectors of a sequence's state.
__host__ __device__ inline ForwardShared forward_shared(int32_t lanes, int32_t units, int32_t sequences,
                                                        int32_t parts) {
  ForwardShared s{};
  s.state_stride = lanes * kTerms;
  s.sum_stride = padded_outputs(3 * units, lanes);
  s.states = s.state_stride * sequences * parts;
  s.sums = s.sum_stride * sequences * parts;
  s.total = 2 * s.states + s.sums;
  return s;
}

/// One unit of one sequence in the hands of a gate thread.
struct ForwardUnit {
  int32_t sequence = 0, unit = 0;  // of the team, of the block
  int32_t length = 0;              // 0 where there is no such unit
  bool exists = false;
};
/// What a step reads of it.
template <typename Cell>
struct ForwardInputs {
  typename Cell::Inputs of_x{};
  bool runs = false, taken = true;  // within the length; as the mask says
};

template <typename Cell, bool kAlone>
struct ForwardGates {
  static constexpr int kParts = Cell::kParts;
  using Inputs = ForwardInputs<Cell>;
  using Row = typename Cell::Row;
  using Result = typename Cell::Result;

  const ForwardArgs<Cell>& a;
  const ForwardShared& at;
  float *states, *sums;
  uint32_t barriers;
  int32_t thread, first_sequence, sequences, first_unit, active;

  [[nodiscard]] __device__ __forceinline__ ForwardUnit unit_of(int32_t item) const {
    ForwardUnit u{item / a.units, item % a.units};
    u.exists = u.sequence < sequences && first_unit + u.unit < a.run.hidden;
    if (u.exists)
      u.length = a.run.lengths == nullptr
                     ? a.run.steps
                     : static_cast<int32_t>(min(a.run.lengths[first_sequence + u.sequence], int64_t{a.run.steps}));
    return u;
  }
  [[nodiscard]] __device__ __forceinline__ int64_t row_of(const ForwardUnit& u, int32_t t) const {
    return static_cast<int64_t>(t) * a.run.batch + first_sequence + u.sequence;
  }
  [[nodiscard]] __device__ __forceinline__ Inputs load(const ForwardUnit& u, int32_t t) const {
    Inputs in;
    in.runs = t >= 0 && t < u.length;
    if (!in.runs) return in;
    const int64_t row = row_of(u, t), unit = first_unit + u.unit;
    in.of_x = a.cell.load(row, unit, a.run.hidden);
    if (a.run.mask != nullptr) in.taken = a.run.mask[row * a.run.y_row + unit] != 0;
    return in;
  }
  __device__ __forceinline__ void load_rows(const ForwardUnit& u, Row (&rows)[3]) const {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
      if (u.exists) rows[gate] = a.cell.row(gate * static_cast<int64_t>(a.run.hidden) + first_unit + u.unit);
  }
  /// The unit's step. `before`: state of this step; `next`: of the one after, null after the last step.
  __device__ __forceinline__ Result advance(const ForwardUnit& u, const Inputs& in, const Row (&rows)[3],
                                            const float* before, float* next, uint32_t barrier) const {
    const int32_t place = u.sequence * kParts * at.state_stride + first_unit + u.unit;
    Result result{};
    float h[kParts]{};
    if (u.exists) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) h[part] = before[place + part * at.state_stride];
    }
    const float state = Cell::joined(h);
    result.h = state;
    if (in.runs) {
      float hh[kParts][3];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          hh[part][gate] = sums[(u.sequence * kParts + part) * at.sum_stride + gate * a.units + u.unit];
      result = a.cell.step(in.of_x, rows, hh, state);
      if (!in.taken) result.h = state;
    }
    Cell::split(result.h, h);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float* const to = next + place + part * at.state_stride;
      if constexpr (kAlone) {
        if (u.exists) *to = h[part];
      } else if (barrier != 0) {
        send_to_all(h[part], to, barrier, u.sequence < sequences ? a.blocks : 0);
      }
    }
    return result;
  }
  __device__ __forceinline__ void write(const ForwardUnit& u, int32_t t, const Inputs& in, const Result& result) const {
    if (!u.exists) return;
    const int64_t row = row_of(u, t), unit = first_unit + u.unit;
    if (in.runs) {
      a.cell.write(row, unit, a.run, result);
    } else {
      a.cell.write_past(row, unit, a.run);
    }
  }

  __device__ __forceinline__ void run() const {
    const auto step_of = [&](int32_t step) { return a.run.reverse ? a.run.steps - 1 - step : step; };
    const int32_t rounds = pieces_of_team(sequences * a.units, kGateThreads);
    // A thread's first unit does not change; of further ones it is found anew.
    const ForwardUnit own = unit_of(thread);
    Row own_rows[3]{};
    load_rows(own, own_rows);
    Inputs inputs = load(own, step_of(0));
    if constexpr (kAlone) arrive_at(kVectorsReady, active);
    for (int32_t step = 0; step < a.run.steps; ++step) {
      const int32_t t = step_of(step);
      const bool is_last = step + 1 == a.run.steps;
      const Inputs next_inputs = load(own, step_of(step + 1));
      const uint32_t barrier = kAlone || is_last ? 0 : barriers + (step + 1) % 2 * 8;
      if (!kAlone && thread == 0 && !is_last)
        barrier_expect(barrier, static_cast<uint32_t>(sequences * kParts * a.blocks * a.units) * 4);
      const float* const before = states + step % 2 * at.states;
      float* const next = states + (step + 1) % 2 * at.states;
      if (!kAlone && step > 0) barrier_wait(barriers + step % 2 * 8, (step - 1) / 2 % 2);
      wait_at(kSumsReady, active);
      const Result result = advance(own, inputs, own_rows, before, next, barrier);
      for (int32_t round = 1; round < rounds; ++round) {
        const ForwardUnit other = unit_of(thread + round * kGateThreads);
        const Inputs in = load(other, t);
        Row rows[3]{};
        load_rows(other, rows);
        const Result others = advance(other, in, rows, before, next, barrier);
        write(other, t, in, others);
        if (is_last) write_last(other, others.h);
      }
      if constexpr (kAlone) {
        if (!is_last) arrive_at(kVectorsReady, active);
      }
      write(own, t, inputs, result);
      if (is_last) write_last(own, result.h);
      inputs = next_inputs;
    }
    if (a.run.steps == 0)
      for (int32_t round = 0; round < rounds; ++round) {
        const ForwardUnit u = unit_of(thread + round * kGateThreads);
        if (!u.exists) continue;
        float h[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          h[part] = states[(u.sequence * kParts + part) * at.state_stride + first_unit + u.unit];
        write_last(u, Cell::joined(h));
      }
  }
  __device__ __forceinline__ void write_last(const ForwardUnit& u, float h) const {
    if (u.exists)
      a.cell.write_last(static_cast<int64_t>(first_sequence + u.sequence) * a.run.hidden + first_unit + u.unit, h);
  }
};

template <typename Cell, int kLanes, bool kAlone>
__global__ void __launch_bounds__(kTeamThreads, 1) training_forward(const __grid_constant__ ForwardArgs<Cell> a) {
  if constexpr (kAlone || kHasClusters) {
    extern __shared__ __align__(16) float shared[];
    __shared__ alignas(8) uint64_t state_barriers[2];
    constexpr int kParts = Cell::kParts;
    const TrainingSteps& run = a.run;
    const ForwardShared at = forward_shared(kLanes, a.units, a.sequences, kParts);
    float* const states = shared;
    float* const sums = shared + 2 * at.states;
    const int32_t thread = static_cast<int32_t>(threadIdx.x), group = thread / kLanes, H = run.hidden;
    const int32_t block = static_cast<int32_t>(blockIdx.x) % a.blocks;
    const int32_t first_sequence = static_cast<int32_t>(blockIdx.x) / a.blocks * a.sequences;
    const int32_t sequences = min(a.sequences, run.batch - first_sequence), first_unit = block * a.units;
    const int32_t active = active_threads(at.sum_stride, kLanes);
    const uint32_t barriers = kAlone ? 0 : shared_address(state_barriers);
    for (int32_t i = thread; i < at.total; i += kTeamThreads) shared[i] = 0.0f;
    if (!kAlone && thread < 2) barrier_init(barriers + thread * 8, 1);
    __syncthreads();
    wait_for_grid_before();
    if (run.first != nullptr)
      for (int32_t i = thread; i < sequences * H; i += kTeamThreads) {
        float h[kParts];
        Cell::split(run.first[static_cast<int64_t>(first_sequence) * H + i], h);
#pragma unroll
        for (int part = 0; part < kParts; ++part) states[(i / H * kParts + part) * at.state_stride + i % H] = h[part];
      }
    begin_team<kAlone>();

    if (thread >= kMultiplyingThreads) {
      trade_registers<kGateRegisters, 128>();
      const ForwardGates<Cell, kAlone> gates{
          a, at, states, sums, barriers, thread - kMultiplyingThreads, first_sequence, sequences, first_unit, active};
      gates.run();
    } else {
      trade_registers<kMultiplyingRegisters, 128>();
      if (thread >= active) return;
      TeamMatrix matrix;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        const int32_t row = group * kOutputs + o, gate = row / a.units, unit = first_unit + row % a.units;
        const float* const from = run.R + (static_cast<int64_t>(gate) * H + unit) * H;
#pragma unroll
        for (int i = 0; i < kTerms; ++i) {
          const int k = TeamMatrix::term<kLanes>(thread % kLanes, i);
          matrix.weights[o][i] = gate < 3 && unit < H && k < H ? load_weight(from + k) : 0.0f;
        }
      }
      run_products<kLanes>(matrix,
                           {states, at.states, sums + group * kOutputs, at.state_stride, at.sum_stride, run.steps,
                            sequences * kParts, barriers},
                           active);
    }
  }
}

template <typename Cell>
using ForwardKernel = void (*)(ForwardArgs<Cell>);

template <typename Cell>
ForwardKernel<Cell> forward_kernel_of(const TeamPlan& plan) {
  if (plan.blocks > 1)
    return plan.hidden <= 16 * kTerms ? training_forward<Cell, 16, false> : training_forward<Cell, 32, false>;
  return plan.hidden <= 4 * kTerms ? training_forward<Cell, 4, true> : training_forward<Cell, 8, true>;
}
inline int32_t forward_lanes(const TeamPlan& plan) { return std::max(4, team_lanes(plan.hidden)); }
template <typename Cell>
int32_t forward_floats(const TeamPlan& plan, int32_t sequences) {
  return forward_shared(forward_lanes(plan), plan.units, sequences, Cell::kParts).total;
}
template <typename Cell>
int32_t forward_sequences(const TeamPlan& plan) {
  return most_sequences([&](int32_t sequences) { return forward_floats<Cell>(plan, sequences); });
}

template <typename Cell>
Status plan_team_forward_of(const TeamPlan& plan, int32_t& teams) {
  return prepare_team(forward_kernel_of<Cell>(plan),
                      team_launch(plan, 1, forward_floats<Cell>(plan, forward_sequences<Cell>(plan))),
                      "training_forward", teams);
}

template <typename Cell>
Status run_team_forward_of(const TeamPlan& plan, int32_t teams, const TrainingSteps& run, const Cell& cell,
                           cudaStream_t stream) {
  if (run.batch == 0) return {};
  const TeamSpread spread = spread_of(run.batch, teams, forward_sequences<Cell>(plan));
  const ForwardArgs<Cell> args{run, cell, plan.blocks, plan.units, spread.sequences};
  return team_launch(plan, spread.teams, forward_floats<Cell>(plan, spread.sequences))
      .run("kernel training_forward", forward_kernel_of<Cell>(plan), stream, args);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_FORWARD_CUH_
