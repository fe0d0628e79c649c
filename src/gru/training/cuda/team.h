// SPDX-License-Identifier: Apache-2.0
// The host side of what teams run: team.cuh.
#ifndef ISOBIT_GRU_TRAINING_CUDA_TEAM_H_
#define ISOBIT_GRU_TRAINING_CUDA_TEAM_H_

#include <algorithm>
#include <cstdint>

#include "core/cuda/grid_launch.h"
#include "core/cuda/status.h"
#include "gru/training/cuda/early.h"
#include "gru/training/cuda/recurrence.h"
#include "isobit/status.h"

namespace isobit::cuda {

inline constexpr int kOutputs = 8, kTerms = 16;  // of a thread that multiplies: team.cuh
inline constexpr int kMultiplyingThreads = 384, kGateThreads = 128;
inline constexpr int kTeamThreads = kMultiplyingThreads + kGateThreads;
/// Bytes of dynamic shared memory of a block, and sequences of a team, at most.
inline constexpr int64_t kTeamSharedBytes = 96 * 1024;
inline constexpr int32_t kMostTeamSequences = 24;

__host__ __device__ inline int32_t pieces_of_team(int32_t count, int32_t piece) { return (count + piece - 1) / piece; }
/// Threads that share outputs of so many terms.
__host__ __device__ inline int32_t team_lanes(int32_t terms) {
  int32_t lanes = 1;
  while (lanes * kTerms < terms) lanes *= 2;
  return lanes;
}

/// Sums of a block: outputs, filled up to whole warps; and the threads that make them.
__host__ __device__ inline int32_t padded_outputs(int32_t outputs, int32_t lanes) {
  return pieces_of_team(pieces_of_team(outputs, kOutputs) * lanes, 32) * 32 / lanes * kOutputs;
}
__host__ __device__ inline int32_t active_threads(int32_t padded, int32_t lanes) { return padded / kOutputs * lanes; }

Status plan_team_forward(TeamPlan& plan);
Status plan_team_backward(TeamPlan& plan);

/// As many sequences as shared memory has room for; shared_floats(sequences): of a block.
template <typename SharedFloats>
int32_t most_sequences(const SharedFloats& shared_floats) {
  int32_t sequences = kMostTeamSequences;
  while (sequences > 1 && shared_floats(sequences) * static_cast<int64_t>(sizeof(float)) > kTeamSharedBytes)
    --sequences;
  return sequences;
}

inline GridLaunch team_launch(const TeamPlan& plan, int64_t teams, int64_t shared_floats) {
  return {.blocks = dim3(static_cast<unsigned>(teams * plan.blocks)),
          .threads = kTeamThreads,
          .shared = shared_floats * static_cast<int64_t>(sizeof(float)),
          .cluster = plan.blocks > 1 ? plan.blocks : 0,
          .early = starts_early()};
}

/// Sets the attributes of a kernel, and how many teams of it are on the current device at once; 0: the device has no
/// room for one. `most`: with the most sequences of a team.
template <typename Kernel>
Status prepare_team(Kernel kernel, const GridLaunch& most, const char* name, int32_t& teams) {
  ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, most.shared, name));
  if (most.cluster > 8)
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name));
  if (most.cluster > 0) {
    teams = most.clusters_on_device(kernel);
    return {};
  }
  int device = 0, processors = 0, blocks = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), name));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), name));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(most.threads),
                                                                static_cast<size_t>(most.shared)),
                  name));
  teams = blocks * processors;
  return {};
}

struct TeamSpread {
  int32_t sequences, teams;  // sequences of a team
};
/// As few sequences of a team as there are teams on the device at once; of more, teams wait for their turn.
inline TeamSpread spread_of(int32_t batch, int32_t room, int32_t most) {
  const int32_t sequences = std::min(pieces_of_team(batch, room), most);
  return {sequences, pieces_of_team(batch, sequences)};
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_TEAM_H_
