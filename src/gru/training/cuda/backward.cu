// SPDX-License-Identifier: Apache-2.0
// The backward recurrence of teams (team.cuh), cut as the forward's. A step: the gates' gradients of a block's own
// units; their products with the own rows of R, which are parts of the gradient of every unit of the state before; each
// part crosses to the block that owns the unit, which adds the parts of a unit in the order of the blocks. Within a
// part, the three gates are added in their order.
#include "core/cuda/grid_launch.h"
#include "gru/training/cuda/gates.cuh"
#include "gru/training/cuda/team.cuh"

namespace isobit::cuda {
namespace {

struct BackwardArgs {
  TrainingBackwardSteps run;
  int32_t blocks, units, sequences;  // of a team; of a block; of a team
};

/// Floats of a block's shared memory.
struct BackwardShared {
  int32_t gate_stride;                // of a gate of a sequence: own units
  int32_t output_stride;              // sums of a gate of a sequence: all units
  int32_t sum_stride;                 // sums of a sequence
  int32_t base;                       // [sequence][unit]
  int32_t gates, parts, sums, total;  // Gh; a buffer of parts [block][sequence][unit]; sums
};
__host__ __device__ inline BackwardShared backward_shared(int32_t lanes, int32_t blocks, int32_t units, int32_t hidden,
                                                          int32_t sequences) {
  BackwardShared s{};
  s.gate_stride = lanes * kTerms;
  s.output_stride = pieces_of_team(hidden, kOutputs) * kOutputs;
  s.sum_stride = padded_outputs(3 * s.output_stride, lanes);
  s.base = pieces_of_team(sequences * units, 4) * 4;
  s.gates = 3 * s.gate_stride * sequences;
  s.parts = blocks > 1 ? blocks * s.base : 0;
  s.sums = s.sum_stride * sequences;
  s.total = s.gates + s.sums + s.base + 2 * s.parts;
  return s;
}

/// One unit of one sequence in the hands of a gate thread.
struct BackwardUnit {
  int32_t sequence = 0, unit = 0;  // of the team, of the block
  int32_t length = 0;              // 0 where there is no such unit
  bool exists = false;
};
/// What a step reads of it.
struct BackwardInputs {
  float u = 0, r = 0, n = 0, q = 0, h = 0, dy = 0;
  uint32_t passes = ~0U;
  bool runs = false, taken = true;  // within the length; as the mask says
};

template <bool kAlone>
struct BackwardGates {
  const BackwardArgs& a;
  const BackwardShared& at;
  float *gates, *sums, *base, *parts;
  uint32_t barriers;
  int32_t thread, block, first_sequence, sequences, first_unit, active;

  [[nodiscard]] __device__ __forceinline__ BackwardUnit unit_of(int32_t item) const {
    BackwardUnit u{item / a.units, item % a.units};
    u.exists = u.sequence < sequences && first_unit + u.unit < a.run.hidden;
    if (u.exists)
      u.length = a.run.lengths == nullptr
                     ? a.run.steps
                     : static_cast<int32_t>(min(a.run.lengths[first_sequence + u.sequence], int64_t{a.run.steps}));
    return u;
  }
  [[nodiscard]] __device__ __forceinline__ int64_t row_of(const BackwardUnit& u, int32_t t) const {
    return static_cast<int64_t>(t) * a.run.batch + first_sequence + u.sequence;
  }
  [[nodiscard]] __device__ __forceinline__ int64_t state_of(const BackwardUnit& u) const {
    return static_cast<int64_t>(first_sequence + u.sequence) * a.run.hidden + first_unit + u.unit;
  }
  [[nodiscard]] __device__ __forceinline__ int32_t place_of(const BackwardUnit& u) const {
    return u.sequence * a.units + u.unit;
  }
  [[nodiscard]] __device__ __forceinline__ BackwardInputs load(const BackwardUnit& u, int32_t t) const {
    BackwardInputs in;
    in.runs = t >= 0 && t < u.length;
    if (!in.runs) return in;
    const int64_t row = row_of(u, t), unit = first_unit + u.unit, H = a.run.hidden;
    const float* const saved = a.run.saved + row * 4 * H + unit;
    in.u = saved[0];
    in.r = saved[H];
    in.n = saved[2 * H];
    in.q = saved[3 * H];
    in.dy = a.run.dy[row * a.run.y_row + unit];
    if (a.run.mask != nullptr) in.taken = a.run.mask[row * a.run.y_row + unit] != 0;
    if (a.run.passes != nullptr) in.passes = a.run.passes[row * H + unit];
    const int32_t before = a.run.reverse ? t + 1 : t - 1;
    if (before >= 0 && before < u.length) {
      in.h = a.run.y[row_of(u, before) * a.run.y_row + unit];
    } else if (a.run.first != nullptr) {
      in.h = a.run.first[state_of(u)];
    }
    return in;
  }
  /// The gradient of the state before step i.
  [[nodiscard]] __device__ __forceinline__ float gradient_of(const BackwardUnit& u, int32_t i) const {
    float g = base[place_of(u)];
    if (i == 0) return g;
    if constexpr (kAlone) {
      const float* const of = sums + u.sequence * at.sum_stride + u.unit;
      return g + (of[0] + of[at.output_stride] + of[2 * at.output_stride]);
    } else {
      const float* const of = parts + i % 2 * at.parts + place_of(u);
      for (int32_t b = 0; b < a.blocks; ++b) g += of[b * at.base];
      return g;
    }
  }
  __device__ __forceinline__ TrainingCellGradients enter(const BackwardUnit& u, const BackwardInputs& in,
                                                         int32_t i) const {
    TrainingCellGradients c{};
    if (!u.exists) return c;
    c.base = gradient_of(u, i);
    if (in.runs) c = training_cell_backward(in.u, in.r, in.n, in.q, in.h, in.dy + c.base, in.taken, in.passes);
    base[place_of(u)] = c.base;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) gates[(u.sequence * 3 + gate) * at.gate_stride + u.unit] = c.gh[gate];
    return c;
  }
  __device__ __forceinline__ void write(const BackwardUnit& u, int32_t t, const TrainingCellGradients& c) const {
    if (!u.exists) return;
    const int64_t H = a.run.hidden, to = row_of(u, t) * 3 * H + first_unit + u.unit;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      a.run.gx[to + gate * H] = c.gx[gate];
      a.run.gh[to + gate * H] = c.gh[gate];
    }
  }
  /// Four neighbours of a sequence at a time, to the block that owns them.
  __device__ __forceinline__ void send_parts(int32_t i) const {
    const int32_t fours = a.blocks * a.units / 4;
    float* const to = parts + (i + 1) % 2 * at.parts + block * at.base;
    const uint32_t barrier = barriers + (i + 1) % 2 * 8;
    for (int32_t item = thread; item < sequences * fours; item += kGateThreads) {
      const int32_t sequence = item / fours, k = item % fours * 4, owner = k / a.units;
      uint4 sum{};
      if (k < at.output_stride) {
        const float* const of = sums + sequence * at.sum_stride + k;
        const auto first = *reinterpret_cast<const float4*>(of);
        const auto second = *reinterpret_cast<const float4*>(of + at.output_stride);
        const auto third = *reinterpret_cast<const float4*>(of + 2 * at.output_stride);
        sum = {__float_as_uint(first.x + second.x + third.x), __float_as_uint(first.y + second.y + third.y),
               __float_as_uint(first.z + second.z + third.z), __float_as_uint(first.w + second.w + third.w)};
      }
      send(address_in(shared_address(to + sequence * a.units + k % a.units), static_cast<uint32_t>(owner)), sum,
           address_in(barrier, static_cast<uint32_t>(owner)));
    }
  }

  __device__ __forceinline__ void run() const {
    const auto step_of = [&](int32_t i) { return a.run.reverse ? i : a.run.steps - 1 - i; };
    /// Until the gradients of the states before step i are there.
    const auto wait = [&](int32_t i) {
      if (i == 0) return;
      if constexpr (kAlone) {
        wait_at(kSumsReady, active);
      } else {
        barrier_wait(barriers + i % 2 * 8, (i - 1) / 2 % 2);
      }
    };
    const int32_t rounds = pieces_of_team(sequences * a.units, kGateThreads);
    const BackwardUnit own = unit_of(thread);
    BackwardInputs inputs = load(own, step_of(0));
    for (int32_t i = 0; i < a.run.steps; ++i) {
      const int32_t t = step_of(i);
      if (!kAlone && thread == 0)
        barrier_expect(barriers + (i + 1) % 2 * 8, static_cast<uint32_t>(a.blocks * sequences * a.units) * 4);
      wait(i);
      const TrainingCellGradients c = enter(own, inputs, i);
      for (int32_t round = 1; round < rounds; ++round) {
        const BackwardUnit other = unit_of(thread + round * kGateThreads);
        write(other, t, enter(other, load(other, t), i));
      }
      arrive_at(kVectorsReady, active);
      inputs = load(own, step_of(i + 1));
      write(own, t, c);
      if constexpr (!kAlone) {
        wait_at(kSumsReady, active);
        send_parts(i);
      }
    }
    wait(a.run.steps);
    if (a.run.first_gradient == nullptr) return;
    for (int32_t round = 0; round < rounds; ++round) {
      const BackwardUnit u = unit_of(thread + round * kGateThreads);
      if (u.exists) a.run.first_gradient[state_of(u)] = gradient_of(u, a.run.steps);
    }
  }
};

template <int kLanes, bool kAlone>
__global__ void __launch_bounds__(kTeamThreads, 1) training_backward(BackwardArgs a) {
  if constexpr (kAlone || kHasClusters) {
    extern __shared__ __align__(16) float shared[];
    __shared__ alignas(8) uint64_t part_barriers[2];
    const TrainingBackwardSteps& run = a.run;
    const BackwardShared at = backward_shared(kLanes, a.blocks, a.units, run.hidden, a.sequences);
    float* const gates = shared;
    float* const sums = gates + at.gates;
    float* const base = sums + at.sums;
    float* const parts = base + at.base;
    const int32_t thread = static_cast<int32_t>(threadIdx.x), group = thread / kLanes, H = run.hidden;
    const int32_t block = static_cast<int32_t>(blockIdx.x) % a.blocks;
    const int32_t first_sequence = static_cast<int32_t>(blockIdx.x) / a.blocks * a.sequences;
    const int32_t sequences = min(a.sequences, run.batch - first_sequence), first_unit = block * a.units;
    const int32_t active = active_threads(at.sum_stride, kLanes);
    const uint32_t barriers = kAlone ? 0 : shared_address(part_barriers);
    for (int32_t i = thread; i < at.total; i += kTeamThreads) shared[i] = 0.0f;
    if (!kAlone && thread < 2) barrier_init(barriers + thread * 8, 1);
    __syncthreads();
    wait_for_grid_before();
    if (run.last_gradient != nullptr)
      for (int32_t i = thread; i < sequences * a.units; i += kTeamThreads)
        if (const int32_t unit = first_unit + i % a.units; unit < H)
          base[i] = run.last_gradient[static_cast<int64_t>(first_sequence + i / a.units) * H + unit];
    begin_team<kAlone>();

    if (thread >= kMultiplyingThreads) {
      trade_registers<kGateRegisters, 128>();
      const BackwardGates<kAlone> of{a,         at,
                                     gates,     sums,
                                     base,      parts,
                                     barriers,  thread - kMultiplyingThreads,
                                     block,     first_sequence,
                                     sequences, first_unit,
                                     active};
      of.run();
    } else {
      trade_registers<kMultiplyingRegisters, 128>();
      if (thread >= active) return;
      const int32_t gate = group * kOutputs / at.output_stride, first_k = group * kOutputs % at.output_stride;
      TeamMatrix matrix;
#pragma unroll
      for (int i = 0; i < kTerms; ++i) {
        const int32_t own = TeamMatrix::term<kLanes>(thread % kLanes, i), unit = first_unit + own;
        const float* const from = run.R + (static_cast<int64_t>(gate) * H + unit) * H;
#pragma unroll
        for (int o = 0; o < kOutputs; ++o)
          matrix.weights[o][i] =
              gate < 3 && own < a.units && unit < H && first_k + o < H ? load_weight(from + first_k + o) : 0.0f;
      }
      const float* const vectors = gates + min(gate, 2) * at.gate_stride;
      run_products<kLanes>(
          matrix, {vectors, 0, sums + group * kOutputs, 3 * at.gate_stride, at.sum_stride, run.steps, sequences, 0},
          active);
    }
  }
}

using BackwardKernel = void (*)(BackwardArgs);

int32_t backward_lanes(const TeamPlan& plan) { return std::max(plan.blocks > 1 ? 2 : 4, team_lanes(plan.units)); }
BackwardKernel backward_kernel_of(const TeamPlan& plan) {
  const int32_t lanes = backward_lanes(plan);
  if (plan.blocks > 1) return lanes == 2 ? training_backward<2, false> : training_backward<4, false>;
  return lanes == 4 ? training_backward<4, true> : training_backward<8, true>;
}
int32_t backward_floats(const TeamPlan& plan, int32_t sequences) {
  return backward_shared(backward_lanes(plan), plan.blocks, plan.units, plan.hidden, sequences).total;
}
int32_t backward_sequences(const TeamPlan& plan) {
  return most_sequences([&](int32_t sequences) { return backward_floats(plan, sequences); });
}

}  // namespace

Status plan_team_backward(TeamPlan& plan) {
  return prepare_team(backward_kernel_of(plan), team_launch(plan, 1, backward_floats(plan, backward_sequences(plan))),
                      "training_backward", plan.backward_teams);
}

Status run_team_backward(const TeamPlan& plan, const TrainingBackwardSteps& run, cudaStream_t stream) {
  if (run.batch == 0) return {};
  const TeamSpread spread = spread_of(run.batch, plan.backward_teams, backward_sequences(plan));
  const BackwardArgs args{run, plan.blocks, plan.units, spread.sequences};
  return team_launch(plan, spread.teams, backward_floats(plan, spread.sequences))
      .run("kernel training_backward", backward_kernel_of(plan), stream, args);
}

Status plan_teams(int64_t hidden, TeamPlan& plan) {
  plan = {};
  if (hidden > kMostTeamHidden) return {};
  int device = 0, major = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "the device"));
  plan.hidden = static_cast<int32_t>(hidden);
  // 3 * units * hidden weights are at most those that 384 threads hold.
  const int32_t most_units = hidden <= 128 ? 128 : hidden <= 256 ? 64 : 32;
  plan.blocks = pieces_of_team(plan.hidden, most_units);
  plan.units = pieces_of_team(plan.hidden, plan.blocks);
  if (plan.blocks > 1) plan.units = pieces_of_team(plan.units, 4) * 4;
  if (plan.blocks > 1 && major < 9) {
    plan = {};
    return {};
  }
  ISOBIT_RETURN_IF_ERROR(plan_team_forward(plan));
  ISOBIT_RETURN_IF_ERROR(plan_team_backward(plan));
  if (std::min(plan.forward_teams, plan.backward_teams) < 1) plan = {};
  return {};
}

}  // namespace isobit::cuda
