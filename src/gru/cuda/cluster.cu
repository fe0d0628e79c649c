// SPDX-License-Identifier: Apache-2.0
#include "gru/cuda/cluster.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/cuda/launch.h"
#include "core/cuda/status.h"
#include "core/cuda/wgmma.cuh"
#include "gru/cuda/choice.h"
#include "gru/cuda/cluster.cuh"
#include "gru/cuda/cluster_few.cuh"
#include "gru/cuda/cluster_many.cuh"
#include "gru/cuda/persistent_hooks.h"

namespace isobit::cuda {
namespace {

template <typename Ratio>
using Kernel = void (*)(ClusterArgs<Ratio>);

/// The k tiles of a warp that registers do not hold.
template <typename Ratio>
constexpr int32_t k_shared_of(int32_t k_tiles) {
  constexpr bool kDouble = sizeof(LaneOf<Ratio>) == 8;
  return k_tiles == 16 ? (kDouble ? 8 : 4) : k_tiles == 12 && kDouble ? 2 : 0;
}
template <int KT, int Splits, int Planes, bool Floats, typename Ratio>
constexpr Kernel<Ratio> kKernel = gru_cluster<KT, k_shared_of<Ratio>(KT), Splits, Planes, Floats, Ratio>;
template <int Planes, bool Floats, typename Ratio>
Kernel<Ratio> kernel_of_planes(const PersistentCut& cut) {
  if (cut.k_tiles == 4) return kKernel<4, 1, Planes, Floats, Ratio>;
  if (cut.k_tiles == 8)
    return cut.k_splits == 1 ? kKernel<8, 1, Planes, Floats, Ratio> : kKernel<8, 2, Planes, Floats, Ratio>;
  if (cut.k_tiles == 12) return kKernel<12, 2, Planes, Floats, Ratio>;
  if constexpr (!std::is_same_v<Ratio, double>)
    if (cut.k_splits == 1) return kKernel<16, 1, Planes, Floats, Ratio>;
  return kKernel<16, 2, Planes, Floats, Ratio>;
}
/// floats: of y.
template <typename Ratio>
Kernel<Ratio> kernel_of(const PersistentLayer& layer, const PersistentCut& cut, bool floats) {
  return with_planes<Ratio>(layer.h_planes, [&](auto planes) {
    return floats ? kernel_of_planes<planes(), true, Ratio>(cut) : kernel_of_planes<planes(), false, Ratio>(cut);
  });
}

/// Sequences of a tile, and tiles of a team.
struct Tiles {
  int32_t sequences, count;
};

template <typename Ratio>
int32_t shared_of(const PersistentLayer& layer, const PersistentCut& cut, Tiles tiles) {
  return cluster_shared({cut.k_tiles, cut.k_shared, cut.k_splits, layer.h_planes, static_cast<int32_t>(sizeof(Ratio)),
                         cut.cluster, cut.unit_blocks, tiles.count, tiles.sequences, layer.table_entries,
                         sum_bytes(cut.unit_blocks, cut.k_splits, layer.h_planes)})
      .total;
}

/// The same of gru_cluster_few.
template <typename Ratio>
constexpr int32_t few_k_shared(int32_t k_tiles) {
  constexpr bool kDouble = sizeof(LaneOf<Ratio>) == 8;
  return k_tiles == 16 ? (kDouble ? 8 : 2) : k_tiles == 12 && kDouble ? 2 : 0;
}
template <int KT, int Splits, int Planes, bool Floats, typename Ratio>
constexpr Kernel<Ratio> kFewKernel = gru_cluster_few<KT, few_k_shared<Ratio>(KT), Splits, Planes, Floats, Ratio>;
/// Where few_of is not 0.
template <int Planes, bool Floats, typename Ratio>
Kernel<Ratio> few_kernel_of_planes(const PersistentCut& cut) {
  if (cut.k_tiles == 4) return kFewKernel<4, 1, Planes, Floats, Ratio>;
  if (cut.k_tiles == 8)
    return cut.k_splits == 1 ? kFewKernel<8, 1, Planes, Floats, Ratio> : kFewKernel<8, 2, Planes, Floats, Ratio>;
  if constexpr (Planes == 1)
    if (cut.k_tiles == 16) return kFewKernel<16, 2, Planes, Floats, Ratio>;
  return kFewKernel<12, 2, Planes, Floats, Ratio>;
}
template <typename Ratio>
Kernel<Ratio> few_kernel(const PersistentLayer& layer, const PersistentCut& cut, bool floats) {
  return with_planes<Ratio>(layer.h_planes, [&](auto planes) {
    return floats ? few_kernel_of_planes<planes(), true, Ratio>(cut)
                  : few_kernel_of_planes<planes(), false, Ratio>(cut);
  });
}
template <typename Ratio>
int32_t few_shared(const PersistentLayer& layer, const PersistentCut& cut) {
  return cluster_shared({cut.k_tiles, few_k_shared<Ratio>(cut.k_tiles), cut.k_splits, layer.h_planes,
                         static_cast<int32_t>(sizeof(Ratio)), cut.cluster, cut.unit_blocks, 1, kFewSequences,
                         layer.table_entries, few_sum_bytes(cut.unit_blocks, cut.k_splits, layer.h_planes)})
      .total;
}

/// The k tiles of a warp that registers do not hold in gru_cluster_many.
template <typename Ratio>
constexpr int32_t many_k_shared(int32_t k_tiles) {
  return k_tiles < 16 ? 0 : sizeof(Ratio) == 4 ? 2 : 4;
}
/// Sets of gate warps there.
template <typename Ratio>
constexpr int32_t many_sets(int32_t k_tiles) {
  return k_tiles == 8 && sizeof(Ratio) == 4 ? 2 : 1;
}

template <int KT, int Planes, bool Floats, bool Guests, typename Ratio>
constexpr Kernel<Ratio> kManyKernel =
    gru_cluster_many<KT, many_k_shared<Ratio>(KT), many_sets<Ratio>(KT), Planes, Floats, Guests, Ratio>;
/// Where can_have_guests.
template <int Planes, bool Floats, typename Ratio>
Kernel<Ratio> guest_kernel_of_planes(const PersistentLayer& layer) {
  if constexpr (std::is_same_v<Ratio, double>) {
    return nullptr;
  } else {
    return layer.k_tiles == 16 ? kManyKernel<8, Planes, Floats, true, Ratio>
                               : kManyKernel<12, Planes, Floats, true, Ratio>;
  }
}
template <int Planes, bool Floats, typename Ratio>
Kernel<Ratio> many_kernel_of_planes(const PersistentLayer& layer) {
  return layer.k_tiles == 16   ? kManyKernel<8, Planes, Floats, false, Ratio>
         : layer.k_tiles == 24 ? kManyKernel<12, Planes, Floats, false, Ratio>
                               : kManyKernel<16, Planes, Floats, false, Ratio>;
}
template <typename Ratio>
Kernel<Ratio> many_kernel(const PersistentLayer& layer, bool floats, bool guests) {
  return with_planes<Ratio>(layer.h_planes, [&](auto planes) {
    if (guests)
      return floats ? guest_kernel_of_planes<planes(), true, Ratio>(layer)
                    : guest_kernel_of_planes<planes(), false, Ratio>(layer);
    return floats ? many_kernel_of_planes<planes(), true, Ratio>(layer)
                  : many_kernel_of_planes<planes(), false, Ratio>(layer);
  });
}
template <typename Ratio>
int32_t many_shared(const PersistentLayer& layer, int32_t tiles) {
  return cluster_many_shared({layer.k_tiles / 2, many_k_shared<Ratio>(layer.k_tiles / 2), layer.h_planes,
                              static_cast<int32_t>(sizeof(Ratio)), tiles, layer.table_entries})
      .total;
}

/// The attributes of a launch: `values` outlives the configuration.
struct LaunchAttributes {
  cudaLaunchAttribute values[3]{};
};
cudaLaunchConfig_t launch_config(const PersistentCut& cut, int32_t threads, int32_t shared, int64_t teams,
                                 LaunchAttributes& attributes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(teams * cut.cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  // More than half of a processor's, so that each block has a processor to itself.
  config.dynamicSmemBytes = static_cast<size_t>(std::max(shared, cut.least_shared));
  attributes.values[0].id = cudaLaunchAttributeClusterDimension;
  attributes.values[0].val.clusterDim = {static_cast<unsigned>(cut.cluster), 1, 1};
  config.attrs = attributes.values;
  config.numAttrs = 1;
  return config;
}

int32_t threads_of(const PersistentCut& cut) { return 32 * block_warps(cut.k_tiles, cut.unit_blocks * cut.k_splits); }

/// How a batch is spread over teams.
struct Spread {
  const PersistentCut* cut = nullptr;
  Tiles tiles{};
  int64_t each = 0;        // sequences of a team
  int64_t waves = 1;       // of teams that are on the device at once
  bool is_fastest = true;  // gru_cluster_many is no faster, but of few steps (takes_cluster_many)
};
int64_t pieces_of(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }
int64_t tiles_of_waves(const Spread& spread) { return spread.waves * spread.tiles.count; }
/// gru_cluster with 4 k tiles has all of R in one block.
bool runs_few_only(const PersistentCut& cut) { return cut.k_tiles == 4 && cut.cluster > 1; }
Spread spread_over(const PersistentCut& cut, int64_t batch) {
  const int64_t most = runs_few_only(cut) ? cut.few : int64_t{cut.sequence_tiles} * kMaxTileSequences;
  // The waves are alike: a last one of few teams would take as long as the others.
  const int64_t waves = pieces_of(batch, cut.room * most);
  const int64_t each = pieces_of(batch, cut.room * waves);
  const auto count = static_cast<int32_t>(pieces_of(each, kMaxTileSequences));
  const auto in_tile = static_cast<int32_t>(pieces_of(each, count));
  if (cut.k_splits == 0) return {&cut, {in_tile, count}, int64_t{count} * in_tile, waves};
  const int32_t least = cut.k_splits == 1 ? 2 : 4;
  const Tiles tiles{in_tile <= least ? least : in_tile <= 4 ? 4 : 8, count};
  return {&cut, tiles, count == 1 ? each : int64_t{count} * tiles.sequences, waves};
}
/// The first cut that is the fastest for so few sequences a team; else that with the fewest tiles in all waves, and
/// then sequences in a tile.
Spread spread_of(const PersistentLayer& layer, int64_t batch) {
  Spread best;
  for (int32_t i = 0; i < layer.cuts; ++i) {
    const Spread one = spread_over(layer.cut[i], batch);
    const bool takes_all = !runs_few_only(layer.cut[i]) || one.each * layer.cut[i].room >= batch;
    if (one.each <= layer.cut[i].most && takes_all) return one;
    if (best.cut == nullptr || tiles_of_waves(one) < tiles_of_waves(best) ||
        (tiles_of_waves(one) == tiles_of_waves(best) && one.tiles.sequences < best.tiles.sequences))
      best = one;
  }
  best.is_fastest = false;
  return best;
}

/// More messages than this, into each block and step, take longer than copies.
constexpr int32_t kMostMessages = 192;

Exchange exchange_of(const PersistentLayer& layer, const Spread& spread, int64_t batch) {
  const PersistentCut& cut = *spread.cut;
  if (cut.cluster == 1) return kAlone;
  if (cut.k_splits == 0) return kCopies;
  const int64_t sequences = std::min(batch, spread.each);
  const int64_t own = (sequences + cut.k_splits - 1) / cut.k_splits;
  const int64_t lanes = cut.cluster * (own <= 2 ? own : own <= 4 ? 4 : 8);
  const int64_t messages = sequences * cut.cluster * cut.unit_blocks * layer.h_planes;
  return spread.tiles.count == 1 && lanes <= 32 && messages <= kMostMessages ? kSends : kCopies;
}

/// Of a team, the most that gru_cluster_few is the faster for, found by timing on an H200. Two sequences have gates in
/// both of the warps that share a group in gru_cluster. With 16 k tiles of a warp the tensor cores are the limit, and
/// with two planes the longer way of the sums outweighs what the gates' warps save.
int32_t few_of(int32_t planes, const PersistentCut& cut) {
  if (cut.unit_blocks > kMaxGateWarps || (cut.k_tiles == 16 && (planes == 2 || cut.k_splits == 1))) return 0;
  return cut.k_splits == 1 ? kFewSequences : 1;
}

/// The ways to cut a layer into teams, few, and which is the fastest for how many sequences of a team, found by timing
/// on an H200. More blocks have less to multiply and more to exchange; smaller clusters leave room for more. Of a
/// team's sequences the last cut has no limit, or of more gru_cluster_many is faster, as it may be of few steps.
template <typename Ratio>
void cut(PersistentLayer& layer) {
  const int32_t hidden = layer.hidden_size;
  const int32_t groups = (hidden + 15) / 16;
  const auto add = [&](int32_t cluster, int32_t splits, int32_t most) {
    PersistentCut& one = layer.cut[layer.cuts++];
    one.cluster = cluster;
    one.unit_blocks = (groups + cluster - 1) / cluster;
    one.k_tiles = layer.k_tiles / splits;
    one.k_splits = splits;
    one.k_shared = k_shared_of<Ratio>(one.k_tiles);
    one.most = most;
    one.few = few_of(layer.h_planes, one);
    layer.groups = std::max(layer.groups, cluster * one.unit_blocks);
  };
  // Of one plane, two planes, double lanes.
  const auto by_lanes = [&](int32_t one, int32_t two, int32_t in_doubles) {
    return std::is_same_v<Ratio, double> ? in_doubles : layer.h_planes == 2 ? two : one;
  };
  if (hidden <= 128) {
    if (hidden > 64) {
      add((groups + 1) / 2, 1, kFewSequences);
      add(2, 1, kFewSequences);
    }
    add(1, 1, INT32_MAX);
  } else if (hidden <= 256) {
    if (groups > 12) add(8, 1, 1);  // of fewer groups W x would have more to pad
    add(4, 1, 4);
    add(2, 1, INT32_MAX);
  } else if (hidden <= 512) {
    add(16, 2, by_lanes(3, 2, 1));
    add(8, 2, by_lanes(8, kMostMessages / (2 * groups), 0));
    if (!std::is_same_v<Ratio, double>) {
      // Bytes that have to cross in copies gru_cluster_many is faster with: of 192 to 240 sequences of H = 448 and 512
      // 16 steps take 0.92 to 0.97, 128 steps 0.95 to 1.01 of the time (H100).
      const int32_t blocks = (groups + 7) / 8;
      const int32_t sent = kMostMessages / (blocks * ((groups + blocks - 1) / blocks));
      add(blocks, 1, std::min(8, by_lanes(sent, 8, 0)));
    }
  } else if (hidden <= 768) {
    add(16, 2, by_lanes(4, 2, 1));
  } else {
    add(16, 2, by_lanes(2, 1, 0));
  }
}

template <typename Kernel>
Status allow(Kernel kernel, int shared) {
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                                     "persistent: shared memory"));
  return cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                     "persistent: cluster");
}

/// Teams that are on the device at once.
template <typename Kernel>
int32_t room_of(Kernel kernel, const cudaLaunchConfig_t& config) {
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // clusters of this size are not to be had there
    return 0;
  }
  return clusters;
}

/// Of a layer to H = 1024, on a device whose code there is.
Status check_device(const PersistentLayer& layer) {
  if (layer.hidden_size > kMaxClusterHidden)
    return {StatusCode::kUnsupported, "H is " + std::to_string(layer.hidden_size) + ", must be at most 1024"};
  ISOBIT_ASSIGN_OR_RETURN(const bool compiled, has_90a_code());
  if (!compiled) return {StatusCode::kUnsupported, "the build has no code for compute capability 9.0a"};
  return {};
}
Status no_room() {
  return {StatusCode::kUnsupported, "the device has no room for a team of thread blocks that holds R"};
}

/// Whether gru_cluster_few takes as many teams of the same cut, and its attributes.
template <typename Ratio>
Status prepare_few(const PersistentLayer& layer, PersistentCut& cut, int shared) {
  if (cut.few == 0) return {};
  if (few_shared<Ratio>(layer, cut) > shared) {
    cut.few = 0;
    return {};
  }
  for (const bool floats : {false, true}) ISOBIT_RETURN_IF_ERROR(allow(few_kernel<Ratio>(layer, cut, floats), shared));
  LaunchAttributes attributes;
  const cudaLaunchConfig_t config =
      launch_config(cut, few_threads(cut.k_tiles), few_shared<Ratio>(layer, cut), 1, attributes);
  if (room_of(few_kernel<Ratio>(layer, cut, false), config) < cut.room) cut.few = 0;
  return {};
}

std::atomic<int64_t> fewest_guest_steps{0};

/// Whether there is a kernel for teams that take turns with guests.
bool can_have_guests(const PersistentLayer& layer) {
  return layer.k_tiles <= 24 && layer.ratios.h != RatioType::kDouble;
}
Guests guests_of_layer(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  const PersistentCut& cut = layer.many;
  if (!can_have_guests(layer) || cut.room == 0) return {};
  const int64_t fewest_steps = fewest_guest_steps.load(std::memory_order_relaxed);
  return guests_of(layer.hidden_size, layer.h_planes == 2, {cut.room, cut.sequence_tiles, kMaxTileSequences}, batch,
                   steps, fewest_steps);
}
/// Of a team that has them.
int32_t guest_tiles(const Guests& guests) {
  return static_cast<int32_t>(pieces_of(guests.sequences, kMaxTileSequences));
}
Spread many_spread(const PersistentLayer& layer, int64_t batch, const Guests& guests) {
  return spread_over(layer.many, batch - guests.sequences);
}
/// What a visit takes beside its steps, in steps of a team's own sequences, so that guests come about when it stops for
/// them: by timing.
constexpr int32_t kHandOverSteps = 2;

}  // namespace

template <typename Ratio>
Status prepare_cluster_many(PersistentLayer& layer, int shared) {
  ISOBIT_RETURN_IF_ERROR(check_device(layer));
  if (layer.hidden_size <= 256)
    return {StatusCode::kUnsupported, "H is " + std::to_string(layer.hidden_size) + ", must be at least 257"};
  PersistentCut cut;
  cut.unit_blocks = kManyUnits / 16;
  cut.cluster = (layer.hidden_size + kManyUnits - 1) / kManyUnits;
  while (cut.sequence_tiles < kMaxClusterTiles && many_shared<Ratio>(layer, cut.sequence_tiles + 1) <= shared)
    ++cut.sequence_tiles;
  if (cut.sequence_tiles == 0) return no_room();
  cut.least_shared = shared / 2 + 1;
  for (const bool floats : {false, true})
    for (const bool guests : {false, true})
      if (!guests || can_have_guests(layer))
        ISOBIT_RETURN_IF_ERROR(allow(many_kernel<Ratio>(layer, floats, guests), shared));
  LaunchAttributes attributes;
  cut.room = room_of(many_kernel<Ratio>(layer, false, false),
                     launch_config(cut, many_threads(many_sets<Ratio>(layer.k_tiles / 2)),
                                   many_shared<Ratio>(layer, cut.sequence_tiles), 1, attributes));
  if (cut.room == 0) return no_room();
  layer.groups = std::max(layer.groups, cut.cluster * cut.unit_blocks);
  layer.many = cut;
  return {};
}

template <typename Ratio>
Status prepare_cluster(PersistentLayer& layer, int shared) {
  ISOBIT_RETURN_IF_ERROR(check_device(layer));
  cut<Ratio>(layer);
  int32_t fitting = 0;
  for (int32_t i = 0; i < layer.cuts; ++i) {
    PersistentCut cut = layer.cut[i];
    for (const bool floats : {false, true}) ISOBIT_RETURN_IF_ERROR(allow(kernel_of<Ratio>(layer, cut, floats), shared));
    const int most = std::min(kMaxClusterTiles, ih_slots(cut.k_tiles, layer.h_planes) - 1);
    while (cut.sequence_tiles < most &&
           shared_of<Ratio>(layer, cut, {kMaxTileSequences, cut.sequence_tiles + 1}) <= shared)
      ++cut.sequence_tiles;
    if (cut.sequence_tiles == 0) continue;
    cut.least_shared = shared / 2 + 1;
    LaunchAttributes attributes;
    const cudaLaunchConfig_t config = launch_config(
        cut, threads_of(cut), shared_of<Ratio>(layer, cut, {kMaxTileSequences, cut.sequence_tiles}), 1, attributes);
    cut.room = room_of(kernel_of<Ratio>(layer, cut, false), config);
    if (cut.room == 0) continue;
    ISOBIT_RETURN_IF_ERROR(prepare_few<Ratio>(layer, cut, shared));
    if (runs_few_only(cut) && cut.few == 0) continue;
    layer.cut[fitting++] = cut;
  }
  layer.cuts = fitting;
  return fitting == 0 ? no_room() : Status();
}

bool takes_cluster_many(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  const Spread spread = spread_of(layer, batch);
  const int64_t each = spread.each;
  const int32_t hidden = layer.hidden_size;
  const bool wide = layer.h_planes == 2;
  const bool in_floats = layer.ratios.h != RatioType::kDouble;
  // Beside each the time of gru_cluster_many by that of gru_cluster, on H100s (isobit bench gru --device cuda --mode
  // sequence --steps T --kernel cluster,cluster_many).
  if (!spread.is_fastest) {
    // Two planes, all of a team's 7 or 8 in one tile: H = 896 to 1024 to 16 steps 0.96 to 1.03, 896 and 1024 24 and 64
    // steps 0.97 to 1.04, 256 steps 1.04 to 1.07 (768: 0.99, 1.03). All others, H of 576 to 1024, to 16 steps: bytes
    // 0.48 to 1.03, two planes 0.50 to 1.04 (each but one); 32 to 56 sequences, 256 steps: 0.80 to 1.03.
    return !(in_floats && wide && hidden > 832 && spread.tiles.count == 1 && each > 6 && steps > 16);
  }
  if (!in_floats) return false;
  // Of few steps it may be the faster one for fewer sequences, too.
  int64_t most_steps = 0;
  if (hidden <= 512 && wide) {
    if (batch > 72)
      most_steps = hidden <= 448 ? 6 : 8;  // 0.83 to 1.07; H = 512: 0.89 to 1.06, 16: 0.97 to 1.03
    else if (hidden <= 384 && batch >= 8)
      most_steps = batch <= 14 ? 8 : 4;  // of 12: 0.77 to 0.95; of 16 to 64: 0.86 to 1.08, 6 and 8: 0.95 to 1.06
    else if (hidden <= 448 && batch >= 8 && batch <= 16)
      most_steps = 4;  // of 12 and 16: 0.88 to 1.02; of 12: 6 and 8: 1.07, 1.06
  } else if (hidden > 512 && hidden <= 704) {
    if (wide)
      most_steps = each == 1 ? 6 : 10;  // of 8 and 12: 3 to 6: 0.84 to 1.04; of fewer before 9ed5eb8: 0.95 to 0.99
    else if (each == 2 && batch > 8)
      most_steps = 6;  // of 12: 0.80 to 1.05; of 8: 0.95 to 1.09
    else if (each == 3)
      most_steps = 8;  // of 16 and 20: 0.88 to 1.06; 12 and 16: 1.07
    else if (each == 4)
      most_steps = 4;  // of 24 and 28: 0.89 to 0.95; 6 to 16: 1.02 to 1.06
  }
  return steps <= most_steps;
}

ClusterWaves cluster_many_waves(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  const Guests guests = guests_of_layer(layer, batch, steps);
  const Spread spread = many_spread(layer, batch, guests);
  return {spread.waves, spread.tiles.count + guest_tiles(guests)};
}

int64_t cluster_exchange_bytes(const PersistentLayer& layer) {
  return can_have_guests(layer) ? kMostVisits * static_cast<int64_t>(sizeof(uint32_t)) : 0;
}
int64_t cluster_zeroed_bytes(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  return cluster_guests(layer, batch, steps) > 0 ? cluster_exchange_bytes(layer) : 0;
}
int32_t cluster_guests(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  return guests_of_layer(layer, batch, steps).sequences;
}
void set_fewest_guest_steps(int64_t steps) { fewest_guest_steps.store(steps, std::memory_order_relaxed); }

template <typename Ratio>
Status launch_cluster(const PersistentLayer& layer, const PersistentChunk& chunk, bool many, std::byte* exchange,
                      cudaStream_t stream) {
  const Guests guests = many ? guests_of_layer(layer, chunk.batch, chunk.steps) : Guests{};
  const bool has_guests = guests.sequences > 0;
  const Spread spread = many ? many_spread(layer, chunk.batch, guests) : spread_of(layer, chunk.batch);
  const PersistentCut& cut = *spread.cut;
  const bool few = !many && std::min(chunk.batch, spread.each) <= cut.few;
  Tiles tiles = few ? Tiles{kFewSequences, 1} : spread.tiles;
  tiles.count += guest_tiles(guests);
  ClusterArgs<Ratio> a{};
  set_recurrence(a, layer, chunk);
  a.fragments = layer.fragments;
  a.exchange = exchange_of(layer, spread, chunk.batch);
  a.cluster = cut.cluster;
  a.unit_blocks = cut.unit_blocks;
  a.sequence_tiles = tiles.count;
  a.tile_sequences = tiles.sequences;
  a.team_sequences = static_cast<int32_t>(spread.each);
  a.guests = {guests.sequences, guests.visits, guests.steps, guests.steps + kHandOverSteps,
              reinterpret_cast<uint32_t*>(exchange)};
  const int32_t threads = few    ? few_threads(cut.k_tiles)
                          : many ? many_threads(many_sets<Ratio>(layer.k_tiles / 2))
                                 : threads_of(cut);
  const int32_t shared = few    ? few_shared<Ratio>(layer, cut)
                         : many ? many_shared<Ratio>(layer, tiles.count)
                                : shared_of<Ratio>(layer, cut, tiles);
  LaunchAttributes attributes;
  cudaLaunchConfig_t config =
      launch_config(cut, threads, shared, pieces_of(chunk.batch - guests.sequences, spread.each), attributes);
  attributes.values[1] = early_start();
  config.numAttrs = 2;
  // A team waits for guests of the one before: all of them are on the device at once, or the launch fails.
  if (has_guests) {
    attributes.values[2].id = cudaLaunchAttributeCooperative;
    attributes.values[2].val.cooperative = 1;
    config.numAttrs = 3;
  }
  config.stream = stream;
  const bool floats = chunk.y_scale != 0;
  const Kernel<Ratio> kernel = few    ? few_kernel<Ratio>(layer, cut, floats)
                               : many ? many_kernel<Ratio>(layer, floats, has_guests)
                                      : kernel_of<Ratio>(layer, cut, floats);
  return cuda_status(cudaLaunchKernelEx(&config, kernel, a), few    ? "kernel gru_cluster_few"
                                                             : many ? "kernel gru_cluster_many"
                                                                    : "kernel gru_cluster");
}

#define ISOBIT_CLUSTER_LANES(Ratio)                                   \
  template Status prepare_cluster<Ratio>(PersistentLayer&, int);      \
  template Status prepare_cluster_many<Ratio>(PersistentLayer&, int); \
  template Status launch_cluster<Ratio>(const PersistentLayer&, const PersistentChunk&, bool, std::byte*, cudaStream_t);
ISOBIT_CLUSTER_LANES(float)
ISOBIT_CLUSTER_LANES(Fixed)
ISOBIT_CLUSTER_LANES(WideFixed)
ISOBIT_CLUSTER_LANES(double)
#undef ISOBIT_CLUSTER_LANES

}  // namespace isobit::cuda
