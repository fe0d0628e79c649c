// SPDX-License-Identifier: Apache-2.0
// Which kernel of the GRU on a device is the fastest for a run: rules made by timing. choice.cu has fastest_form
// of `persistent` (persistent.h), too.
#ifndef ISOBIT_GRU_CUDA_CHOICE_H_
#define ISOBIT_GRU_CUDA_CHOICE_H_

#include <cstdint>

namespace isobit::cuda {

struct LayerSize {
  int64_t inputs, hidden;
  bool wide;  // h of two bytes
};

/// For so many sequences `persistent`, in another form than portable, is the fastest from so many steps on, INT64_MAX:
/// of none. has_products: `products` runs the layer.
int64_t persistent_fewest_steps(const LayerSize& layer, int64_t batch, bool has_products);

/// The same where its teams are not all on the device at once. tiles: of all waves (ClusterWaves in cluster.h).
/// rounds: of `products` (products_rounds).
int64_t persistent_fewest_steps_in_waves(int64_t hidden, int64_t tiles, int64_t rounds);

/// Whether `products` is faster than `step`. copies: as is_taken (gru.h) says. room: blocks that are on the device
/// at once, one a processor.
bool products_are_faster(const LayerSize& layer, int64_t batch, int64_t steps, bool copies, int64_t room);

/// How many teams of gru_cluster_many are on the device at once, and what each has room for.
struct TeamRoom {
  int32_t teams, tiles, tile_sequences;
};
inline constexpr int32_t kMostVisits = 64;
/// The last sequences of a batch, with which these teams take turns (ClusterGuests in cluster.cuh): `visits` of
/// them have the guests, for `steps` steps, the last one for those that are left. Each has two steps or more.
struct Guests {
  int32_t sequences = 0;  // 0: there are none
  int32_t visits = 0, steps = 0;
};
/// Where a run is faster with guests. wide: h of two bytes. fewest_steps: 0, or what is asked of steps instead of that.
Guests guests_of(int64_t hidden, bool wide, const TeamRoom& room, int64_t batch, int64_t steps, int64_t fewest_steps);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CHOICE_H_
