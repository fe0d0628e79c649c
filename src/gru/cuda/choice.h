// SPDX-License-Identifier: Apache-2.0
// Which kernel of the GRU on a device is the fastest for a run, by estimates of their times. choice.cu has fastest_form
// of `persistent` (persistent.h), too.
#ifndef ISOBIT_GRU_CUDA_CHOICE_H_
#define ISOBIT_GRU_CUDA_CHOICE_H_

#include <cstdint>

namespace isobit::cuda {

/// A run of a layer.
struct RunSize {
  int64_t inputs, hidden, batch, steps;
  int32_t x_planes = 1, h_planes = 1;  // bytes of a code
  bool copies = false;                 // as is_taken (gru.h) says
};

/// What a device has room for at once. What belongs to a kernel that does not run the layer is not looked at.
struct DeviceRoom {
  int64_t processors = 0;
  int64_t products_blocks = 0;
  int64_t cluster_teams = 0;  // of the smallest clusters, of which there are the most
  int64_t cluster_many_teams = 0;
  int64_t cluster_many_tiles = 0;  // of a team, of 8 sequences
  int64_t portable_teams = 0;
};

/// But for kStep in the order of PersistentForm.
enum class EstimatedKernel { kStep, kCluster, kClusterMany, kGrid, kPortable, kProducts };

/// Made for an H100: of other devices only the ratio of two estimates says something.
double estimated_microseconds(EstimatedKernel kernel, const RunSize& run, const DeviceRoom& room);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CHOICE_H_
