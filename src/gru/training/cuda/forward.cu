// SPDX-License-Identifier: Apache-2.0
// The forward recurrence of teams (team.cuh). A block has the rows of R of its own units, and the whole state. A step:
// products of the rows with the state; gates; the new states cross to every block's other buffer. Teams take sequences,
// and never meet.
#include "core/cuda/grid_launch.h"
#include "gru/training/cuda/gates.cuh"
#include "gru/training/cuda/team.cuh"

namespace isobit::cuda {
namespace {

struct ForwardArgs {
  TrainingForwardSteps run;
  int32_t blocks, units, sequences;  // of a team; of a block; of a team
};

/// Floats of a block's shared memory.
struct ForwardShared {
  int32_t state_stride, sum_stride;  // of a sequence
  int32_t states, sums, total;       // of a buffer of states, of all sums
};
__host__ __device__ inline ForwardShared forward_shared(int32_t lanes, int32_t units, int32_t sequences) {
  ForwardShared s{};
  s.state_stride = lanes * kTerms;
  s.sum_stride = padded_outputs(3 * units, lanes);
  s.states = s.state_stride * sequences;
  s.sums = s.sum_stride * sequences;
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
struct ForwardInputs {
  float ih[3]{};
  bool runs = false, taken = true;  // within the length; as the mask says
};

template <bool kAlone>
struct ForwardGates {
  const ForwardArgs& a;
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
  [[nodiscard]] __device__ __forceinline__ ForwardInputs load(const ForwardUnit& u, int32_t t) const {
    ForwardInputs in;
    in.runs = t >= 0 && t < u.length;
    if (!in.runs) return in;
    const int64_t row = row_of(u, t), unit = first_unit + u.unit;
    const float* const ih = a.run.ih + row * 3 * a.run.hidden + unit;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) in.ih[gate] = ih[gate * a.run.hidden];
    if (a.run.mask != nullptr) in.taken = a.run.mask[row * a.run.y_row + unit] != 0;
    return in;
  }
  __device__ __forceinline__ void load_bias(const ForwardUnit& u, float (&bias)[3]) const {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
      bias[gate] = u.exists ? a.run.br[gate * a.run.hidden + first_unit + u.unit] : 0.0f;
  }
  /// The unit's step. `before`: state of this step; `next`: of the one after, null after the last step.
  __device__ __forceinline__ TrainingCell advance(const ForwardUnit& u, const ForwardInputs& in, const float (&bias)[3],
                                                  const float* before, float* next, uint32_t barrier) const {
    const int32_t place = u.sequence * at.state_stride + first_unit + u.unit;
    TrainingCell cell{};
    float h = 0.0f;
    if (u.exists) h = before[place];
    if (in.runs) {
      float hh[3];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
        hh[gate] = sums[u.sequence * at.sum_stride + gate * a.units + u.unit] + bias[gate];
      cell = training_cell(in.ih, hh, h);
      if (in.taken) h = cell.h;
    }
    cell.h = h;
    if constexpr (kAlone) {
      if (u.exists) next[place] = h;
    } else if (barrier != 0) {
      send_to_all(h, next + place, barrier, u.sequence < sequences ? a.blocks : 0);
    }
    return cell;
  }
  __device__ __forceinline__ void write(const ForwardUnit& u, int32_t t, const ForwardInputs& in,
                                        const TrainingCell& cell) const {
    if (!u.exists) return;
    const int64_t H = a.run.hidden, row = row_of(u, t), unit = first_unit + u.unit;
    a.run.y[row * a.run.y_row + unit] = in.runs ? cell.h : 0.0f;
    if (!in.runs) return;
    float* const saved = a.run.saved + row * 4 * H + unit;
    saved[0] = cell.u;
    saved[H] = cell.r;
    saved[2 * H] = cell.n;
    saved[3 * H] = cell.q;
  }

  __device__ __forceinline__ void run() const {
    const auto step_of = [&](int32_t step) { return a.run.reverse ? a.run.steps - 1 - step : step; };
    const int32_t rounds = pieces_of_team(sequences * a.units, kGateThreads);
    // A thread's first unit does not change; of further ones it is found anew.
    const ForwardUnit own = unit_of(thread);
    float own_bias[3];
    load_bias(own, own_bias);
    ForwardInputs inputs = load(own, step_of(0));
    if constexpr (kAlone) arrive_at(kVectorsReady, active);
    for (int32_t step = 0; step < a.run.steps; ++step) {
      const int32_t t = step_of(step);
      const bool is_last = step + 1 == a.run.steps;
      const ForwardInputs next_inputs = load(own, step_of(step + 1));
      const uint32_t barrier = kAlone || is_last ? 0 : barriers + (step + 1) % 2 * 8;
      if (!kAlone && thread == 0 && !is_last)
        barrier_expect(barrier, static_cast<uint32_t>(sequences * a.blocks * a.units) * 4);
      const float* const before = states + step % 2 * at.states;
      float* const next = states + (step + 1) % 2 * at.states;
      if (!kAlone && step > 0) barrier_wait(barriers + step % 2 * 8, (step - 1) / 2 % 2);
      wait_at(kSumsReady, active);
      const TrainingCell cell = advance(own, inputs, own_bias, before, next, barrier);
      float last = cell.h;
      for (int32_t round = 1; round < rounds; ++round) {
        const ForwardUnit other = unit_of(thread + round * kGateThreads);
        const ForwardInputs in = load(other, t);
        float bias[3];
        load_bias(other, bias);
        const TrainingCell others = advance(other, in, bias, before, next, barrier);
        write(other, t, in, others);
        if (is_last) write_last(other, others.h);
      }
      if constexpr (kAlone) {
        if (!is_last) arrive_at(kVectorsReady, active);
      }
      write(own, t, inputs, cell);
      if (is_last) write_last(own, last);
      inputs = next_inputs;
    }
    if (a.run.steps == 0)
      for (int32_t round = 0; round < rounds; ++round) {
        const ForwardUnit u = unit_of(thread + round * kGateThreads);
        if (u.exists) write_last(u, states[u.sequence * at.state_stride + first_unit + u.unit]);
      }
  }
  __device__ __forceinline__ void write_last(const ForwardUnit& u, float h) const {
    if (a.run.last != nullptr && u.exists)
      a.run.last[static_cast<int64_t>(first_sequence + u.sequence) * a.run.hidden + first_unit + u.unit] = h;
  }
};

template <int kLanes, bool kAlone>
__global__ void __launch_bounds__(kTeamThreads, 1) training_forward(ForwardArgs a) {
  if constexpr (kAlone || kHasClusters) {
    extern __shared__ __align__(16) float shared[];
    __shared__ alignas(8) uint64_t state_barriers[2];
    const TrainingForwardSteps& run = a.run;
    const ForwardShared at = forward_shared(kLanes, a.units, a.sequences);
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
    if (run.first != nullptr)
      for (int32_t i = thread; i < sequences * H; i += kTeamThreads)
        states[i / H * at.state_stride + i % H] = run.first[static_cast<int64_t>(first_sequence) * H + i];
    begin_team<kAlone>();

    if (thread >= kMultiplyingThreads) {
      trade_registers<kGateRegisters, 128>();
      const ForwardGates<kAlone> gates{
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
      run_products<kLanes>(
          matrix,
          {states, at.states, sums + group * kOutputs, at.state_stride, at.sum_stride, run.steps, sequences, barriers},
          active);
    }
  }
}

using ForwardKernel = void (*)(ForwardArgs);

ForwardKernel forward_kernel_of(const TeamPlan& plan) {
  if (plan.blocks > 1) return plan.hidden <= 16 * kTerms ? training_forward<16, false> : training_forward<32, false>;
  return plan.hidden <= 4 * kTerms ? training_forward<4, true> : training_forward<8, true>;
}
int32_t forward_lanes(const TeamPlan& plan) { return std::max(4, team_lanes(plan.hidden)); }
int32_t forward_floats(const TeamPlan& plan, int32_t sequences) {
  return forward_shared(forward_lanes(plan), plan.units, sequences).total;
}
int32_t forward_sequences(const TeamPlan& plan) {
  return most_sequences([&](int32_t sequences) { return forward_floats(plan, sequences); });
}

}  // namespace

Status plan_team_forward(TeamPlan& plan) {
  return prepare_team(forward_kernel_of(plan), team_launch(plan, 1, forward_floats(plan, forward_sequences(plan))),
                      "training_forward", plan.forward_teams);
}

Status run_team_forward(const TeamPlan& plan, const TrainingForwardSteps& run, cudaStream_t stream) {
  if (run.batch == 0) return {};
  const TeamSpread spread = spread_of(run.batch, plan.forward_teams, forward_sequences(plan));
  const ForwardArgs args{run, plan.blocks, plan.units, spread.sequences};
  return team_launch(plan, spread.teams, forward_floats(plan, spread.sequences))
      .run("kernel training_forward", forward_kernel_of(plan), stream, args);
}

}  // namespace isobit::cuda
