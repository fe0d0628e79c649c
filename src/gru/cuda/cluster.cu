// SPDX-License-Identifier: Apache-2.0
// The host side of gru_cluster, gru_cluster_few and gru_cluster_many: layers to H = 1024.
#include "gru/cuda/cluster.cuh"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/cuda/grid_launch.h"
#include "core/cuda/status.h"
#include "core/cuda/wgmma.cuh"
#include "gru/cuda/cluster_few.cuh"
#include "gru/cuda/cluster_many.cuh"

namespace isobit::cuda {
namespace {

template <typename Ratio>
using Kernel = void (*)(ClusterArgs<Ratio>);
template <typename Ratio>
using ManyKernel = void (*)(ClusterManyArgs<Ratio>);

/// The k tiles of a warp that registers do not hold, in gru_cluster and in gru_cluster_few.
template <typename Ratio>
constexpr int32_t k_shared_of(int32_t k_tiles, bool few) {
  constexpr bool kDouble = sizeof(LaneOf<Ratio>) == 8;
  return k_tiles == 16 ? (kDouble ? 8 : few ? 2 : 4) : k_tiles == 12 && kDouble ? 2 : 0;
}
template <int KT, int Splits, int Planes, bool Floats, typename Ratio>
constexpr Kernel<Ratio> kKernel = gru_cluster<KT, k_shared_of<Ratio>(KT, false), Splits, Planes, Floats, Ratio>;
template <int Planes, bool Floats, typename Ratio>
Kernel<Ratio> kernel_of(const ClusterCut& cut) {
  if (cut.k_tiles == 4) return kKernel<4, 1, Planes, Floats, Ratio>;
  if (cut.k_tiles == 8)
    return cut.k_splits == 1 ? kKernel<8, 1, Planes, Floats, Ratio> : kKernel<8, 2, Planes, Floats, Ratio>;
  if (cut.k_tiles == 12) return kKernel<12, 2, Planes, Floats, Ratio>;
  if constexpr (!std::is_same_v<Ratio, double>)
    if (cut.k_splits == 1) return kKernel<16, 1, Planes, Floats, Ratio>;
  return kKernel<16, 2, Planes, Floats, Ratio>;
}
template <int KT, int Splits, int Planes, bool Floats, typename Ratio>
constexpr Kernel<Ratio> kFewKernel = gru_cluster_few<KT, k_shared_of<Ratio>(KT, true), Splits, Planes, Floats, Ratio>;
/// Where few_of is not 0.
template <int Planes, bool Floats, typename Ratio>
Kernel<Ratio> few_kernel_of(const ClusterCut& cut) {
  if (cut.k_tiles == 4) return kFewKernel<4, 1, Planes, Floats, Ratio>;
  if (cut.k_tiles == 8)
    return cut.k_splits == 1 ? kFewKernel<8, 1, Planes, Floats, Ratio> : kFewKernel<8, 2, Planes, Floats, Ratio>;
  if constexpr (Planes == 1)
    if (cut.k_tiles == 16) return kFewKernel<16, 2, Planes, Floats, Ratio>;
  return kFewKernel<12, 2, Planes, Floats, Ratio>;
}
template <int Planes, typename Ratio>
Kernel<Ratio> kernel_of(const ClusterCut& cut, bool few, bool floats) {
  if (few) return floats ? few_kernel_of<Planes, true, Ratio>(cut) : few_kernel_of<Planes, false, Ratio>(cut);
  return floats ? kernel_of<Planes, true, Ratio>(cut) : kernel_of<Planes, false, Ratio>(cut);
}

/// The k tiles of a warp that registers do not hold in gru_cluster_many, and sets of gate warps there.
template <typename Ratio>
constexpr int32_t many_k_shared(int32_t k_tiles) {
  return k_tiles < 16 ? 0 : sizeof(Ratio) == 4 ? 2 : 4;
}
template <typename Ratio>
constexpr int32_t many_sets(int32_t k_tiles) {
  return k_tiles == 8 && sizeof(Ratio) == 4 ? 2 : 1;
}
template <int KT, int Planes, bool Floats, typename Ratio>
constexpr ManyKernel<Ratio> kManyKernel =
    gru_cluster_many<KT, many_k_shared<Ratio>(KT), many_sets<Ratio>(KT), Planes, Floats, Ratio>;
template <int Planes, bool Floats, typename Ratio>
ManyKernel<Ratio> many_kernel_of(const PersistentLayer& layer) {
  return layer.k_tiles == 16   ? kManyKernel<8, Planes, Floats, Ratio>
         : layer.k_tiles == 24 ? kManyKernel<12, Planes, Floats, Ratio>
                               : kManyKernel<16, Planes, Floats, Ratio>;
}
template <int Planes, typename Ratio>
ManyKernel<Ratio> many_kernel_of(const PersistentLayer& layer, bool floats) {
  return floats ? many_kernel_of<Planes, true, Ratio>(layer) : many_kernel_of<Planes, false, Ratio>(layer);
}

/// Sequences of a tile, and tiles of a team.
struct Tiles {
  int32_t sequences, count;
};
constexpr Tiles kFewTiles{kFewSequences, 1};

/// Threads of a block, and bytes of its shared memory.
struct BlockSize {
  int32_t threads, shared;
};
template <typename Ratio>
BlockSize block_size(const PersistentLayer& layer, const ClusterCut& cut, bool few, Tiles tiles) {
  const int32_t sums = few ? few_sum_bytes(cut.unit_blocks, cut.k_splits, layer.h_planes)
                           : sum_bytes(cut.unit_blocks, cut.k_splits, layer.h_planes);
  return {few ? few_threads(cut.k_tiles) : 32 * block_warps(cut.k_tiles, cut.unit_blocks * cut.k_splits),
          cluster_shared({cut.k_tiles, k_shared_of<Ratio>(cut.k_tiles, few), cut.k_splits, layer.h_planes,
                          static_cast<int32_t>(sizeof(Ratio)), cut.cluster, cut.unit_blocks, tiles.count,
                          tiles.sequences, layer.table_entries, sums})
              .total};
}
template <typename Ratio>
BlockSize many_block_size(const PersistentLayer& layer, int32_t tiles) {
  const int32_t k_tiles = layer.k_tiles / 2;
  return {many_threads(many_sets<Ratio>(k_tiles)),
          cluster_many_shared({k_tiles, many_k_shared<Ratio>(k_tiles), layer.h_planes,
                               static_cast<int32_t>(sizeof(Ratio)), tiles, layer.table_entries})
              .total};
}

/// More shared memory than half of a processor's, so that each block has a processor to itself.
GridLaunch launch_of(const PersistentLayer& layer, int32_t cluster, BlockSize block, int64_t teams) {
  return {static_cast<unsigned>(teams * cluster),
          block.threads,
          std::max(block.shared, layer.block_shared / 2 + 1),
          cluster,
          false,
          true};
}
template <typename Kernel>
Status allow(Kernel kernel, int shared) {
  ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, shared, "persistent: shared memory"));
  return cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                     "persistent: cluster");
}

int64_t pieces_of(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

/// How a batch is spread over teams.
struct Spread {
  const ClusterCut* cut = nullptr;
  Tiles tiles{};
  int64_t each = 0;   // sequences of a team
  int64_t waves = 1;  // of teams that are on the device at once
};
/// Of teams that take at most so many sequences. The waves are alike: a last one of few teams would take as long as
/// the others.
Spread spread_over(int64_t room, int64_t most, int64_t batch) {
  Spread spread;
  spread.waves = pieces_of(batch, room * most);
  spread.each = pieces_of(batch, room * spread.waves);
  spread.tiles.count = static_cast<int32_t>(pieces_of(spread.each, kMaxTileSequences));
  spread.tiles.sequences = static_cast<int32_t>(pieces_of(spread.each, spread.tiles.count));
  return spread;
}
/// gru_cluster with 4 k tiles has all of R in one block.
bool runs_few_only(const ClusterCut& cut) { return cut.k_tiles == 4 && cut.cluster > 1; }
Spread spread_over(const ClusterCut& cut, int64_t batch) {
  Spread spread =
      spread_over(cut.room, runs_few_only(cut) ? cut.few : int64_t{cut.sequence_tiles} * kMaxTileSequences, batch);
  spread.cut = &cut;
  int32_t& in_tile = spread.tiles.sequences;
  const int32_t least = cut.k_splits == 1 ? 2 : 4;
  in_tile = in_tile <= least ? least : in_tile <= 4 ? 4 : 8;
  if (spread.tiles.count > 1) spread.each = int64_t{spread.tiles.count} * in_tile;
  return spread;
}
Spread spread_over(const ClusterManyCut& cut, int64_t batch) {
  Spread spread = spread_over(cut.room, int64_t{cut.sequence_tiles} * kMaxTileSequences, batch);
  spread.each = int64_t{spread.tiles.count} * spread.tiles.sequences;
  return spread;
}
int64_t tiles_of_waves(const Spread& spread) { return spread.waves * spread.tiles.count; }
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
  return best;
}

/// More messages than this, into each block and step, take longer than copies.
constexpr int32_t kMostMessages = 192;

Exchange exchange_of(const PersistentLayer& layer, const Spread& spread, int64_t batch) {
  const ClusterCut& cut = *spread.cut;
  if (cut.cluster == 1) return kAlone;
  const int64_t sequences = std::min(batch, spread.each);
  const int64_t own = (sequences + cut.k_splits - 1) / cut.k_splits;
  const int64_t lanes = cut.cluster * (own <= 2 ? own : own <= 4 ? 4 : 8);
  const int64_t messages = sequences * cut.cluster * cut.unit_blocks * layer.h_planes;
  return spread.tiles.count == 1 && lanes <= 32 && messages <= kMostMessages ? kSends : kCopies;
}

/// Sequences of a team for which gru_cluster_few is the faster one, at most. Two have gates in both of the warps that
/// share a group in gru_cluster. With 16 k tiles of a warp the tensor cores are the limit, and with two planes the
/// longer way of the sums outweighs what the gates' warps save.
int32_t few_of(int32_t planes, const ClusterCut& cut) {
  if (cut.unit_blocks > kMaxGateWarps || (cut.k_tiles == 16 && (planes == 2 || cut.k_splits == 1))) return 0;
  return cut.k_splits == 1 ? kFewSequences : 1;
}

/// The ways to cut a layer into teams, few, and which is the fastest for how many sequences of a team. More blocks have
/// less to multiply and more to exchange; smaller clusters leave room for more. Of a team's sequences the last cut has
/// no limit, or of more gru_cluster_many is faster, as it may be of few steps.
void cut(PersistentLayer& layer) {
  const int32_t hidden = layer.hidden_size;
  const int32_t groups = (hidden + 15) / 16;
  const bool in_doubles = layer.ratios.h == RatioType::kDouble;
  const auto add = [&](int32_t cluster, int32_t splits, int32_t most) {
    ClusterCut& one = layer.cut[layer.cuts++];
    one.cluster = cluster;
    one.unit_blocks = (groups + cluster - 1) / cluster;
    one.k_tiles = layer.k_tiles / splits;
    one.k_splits = splits;
    one.most = most;
    one.few = few_of(layer.h_planes, one);
    layer.groups = std::max(layer.groups, cluster * one.unit_blocks);
  };
  const auto by_lanes = [&](int32_t one_plane, int32_t two_planes, int32_t doubles) {
    return in_doubles ? doubles : layer.h_planes == 2 ? two_planes : one_plane;
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
    if (!in_doubles) {
      // gru_cluster_many is faster with bytes that have to cross in copies.
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

Status check_layer(const PersistentLayer& layer, int32_t least, const DeviceLimits& limits) {
  if (layer.hidden_size < least || layer.hidden_size > kMaxClusterHidden)
    return {StatusCode::kUnsupported, "H is " + std::to_string(layer.hidden_size) + ", must be " +
                                          std::to_string(least) + " to " + std::to_string(kMaxClusterHidden)};
  return check_90a(limits);
}

/// Allows the kernels of a cut what they need, and sets the sequences that find room, and teams: none, or too few.
template <int Planes, typename Ratio>
Status prepare_cut(const PersistentLayer& layer, ClusterCut& cut) {
  const int shared = layer.block_shared;
  const auto size = [&](int32_t tiles) { return block_size<Ratio>(layer, cut, false, {kMaxTileSequences, tiles}); };
  for (const bool floats : {false, true})
    ISOBIT_RETURN_IF_ERROR(allow(kernel_of<Planes, Ratio>(cut, false, floats), shared));
  const int most = std::min(kMaxClusterTiles, ih_slots(cut.k_tiles, Planes) - 1);
  while (cut.sequence_tiles < most && size(cut.sequence_tiles + 1).shared <= shared) ++cut.sequence_tiles;
  if (cut.sequence_tiles == 0) return {};
  cut.room = launch_of(layer, cut.cluster, size(cut.sequence_tiles), 1)
                 .clusters_on_device(kernel_of<Planes, Ratio>(cut, false, false));
  if (cut.room == 0 || cut.few == 0) return {};
  const BlockSize few = block_size<Ratio>(layer, cut, true, kFewTiles);
  if (few.shared > shared) {
    cut.few = 0;
    return {};
  }
  for (const bool floats : {false, true})
    ISOBIT_RETURN_IF_ERROR(allow(kernel_of<Planes, Ratio>(cut, true, floats), shared));
  if (launch_of(layer, cut.cluster, few, 1).clusters_on_device(kernel_of<Planes, Ratio>(cut, true, false)) < cut.room)
    cut.few = 0;
  return {};
}

}  // namespace

/// Here, as this file is compiled for 9.0a like those that ask.
Status check_90a(const DeviceLimits& limits) {
  if (limits.major != 9)
    return {StatusCode::kUnsupported,
            "the device has compute capability " + std::to_string(limits.major) + ", it is made for 9"};
  ISOBIT_ASSIGN_OR_RETURN(const bool compiled, has_90a_code());
  if (compiled) return {};
  return {StatusCode::kUnsupported, "the build has no code for compute capability 9.0a"};
}

Status prepare_cluster(PersistentLayer& layer, const DeviceLimits& limits) {
  ISOBIT_RETURN_IF_ERROR(check_layer(layer, 1, limits));
  cut(layer);
  int32_t fitting = 0;
  for (int32_t i = 0; i < layer.cuts; ++i) {
    ClusterCut one = layer.cut[i];
    ISOBIT_RETURN_IF_ERROR(
        with_lanes(layer, [&](auto ratio, auto planes) { return prepare_cut<planes(), decltype(ratio)>(layer, one); }));
    if (one.room > 0 && (one.few > 0 || !runs_few_only(one))) layer.cut[fitting++] = one;
  }
  layer.cuts = fitting;
  return fitting == 0 ? no_room() : Status();
}

Status launch_cluster(const PersistentLayer& layer, const Recurrence& run, cudaStream_t stream) {
  const Spread spread = spread_of(layer, run.batch);
  const ClusterCut& cut = *spread.cut;
  const bool few = std::min<int64_t>(run.batch, spread.each) <= cut.few;
  const Tiles tiles = few ? kFewTiles : spread.tiles;
  return with_lanes(layer, [&](auto ratio, auto planes) {
    using Ratio = decltype(ratio);
    const ClusterArgs<Ratio> args{recurrence_args<Ratio>(layer, run),
                                  layer.fragments,
                                  cut.cluster,
                                  cut.unit_blocks,
                                  tiles.count,
                                  tiles.sequences,
                                  static_cast<int32_t>(spread.each),
                                  exchange_of(layer, spread, run.batch)};
    return launch_of(layer, cut.cluster, block_size<Ratio>(layer, cut, few, tiles), pieces_of(run.batch, spread.each))
        .run(few ? "kernel gru_cluster_few" : "kernel gru_cluster",
             kernel_of<planes(), Ratio>(cut, few, run.y_scale != 0), stream, args);
  });
}

Status prepare_cluster_many(PersistentLayer& layer, const DeviceLimits& limits) {
  ISOBIT_RETURN_IF_ERROR(check_layer(layer, 257, limits));
  ClusterManyCut& cut = layer.many;
  cut.cluster = static_cast<int32_t>(pieces_of(layer.hidden_size, kManyUnits));
  ISOBIT_RETURN_IF_ERROR(with_lanes(layer, [&](auto ratio, auto planes) -> Status {
    using Ratio = decltype(ratio);
    while (cut.sequence_tiles < kMaxClusterTiles &&
           many_block_size<Ratio>(layer, cut.sequence_tiles + 1).shared <= layer.block_shared)
      ++cut.sequence_tiles;
    if (cut.sequence_tiles == 0) return no_room();
    for (const bool floats : {false, true})
      ISOBIT_RETURN_IF_ERROR(allow(many_kernel_of<planes(), Ratio>(layer, floats), layer.block_shared));
    cut.room = launch_of(layer, cut.cluster, many_block_size<Ratio>(layer, cut.sequence_tiles), 1)
                   .clusters_on_device(many_kernel_of<planes(), Ratio>(layer, false));
    return cut.room == 0 ? no_room() : Status();
  }));
  layer.groups = std::max(layer.groups, cut.cluster * (kManyUnits / 16));
  return {};
}

ClusterWaves cluster_many_waves(const PersistentLayer& layer, int64_t batch) {
  const Spread spread = spread_over(layer.many, batch);
  return {spread.waves, spread.tiles.count};
}

Status launch_cluster_many(const PersistentLayer& layer, const Recurrence& run, cudaStream_t stream) {
  const Spread spread = spread_over(layer.many, run.batch);
  return with_lanes(layer, [&](auto ratio, auto planes) {
    using Ratio = decltype(ratio);
    const ClusterManyArgs<Ratio> args{recurrence_args<Ratio>(layer, run),
                                      layer.fragments,
                                      layer.many.cluster,
                                      spread.tiles.count,
                                      spread.tiles.sequences,
                                      static_cast<int32_t>(spread.each)};
    return launch_of(layer, layer.many.cluster, many_block_size<Ratio>(layer, spread.tiles.count),
                     pieces_of(run.batch, spread.each))
        .run("kernel gru_cluster_many", many_kernel_of<planes(), Ratio>(layer, run.y_scale != 0), stream, args);
  });
}

}  // namespace isobit::cuda
