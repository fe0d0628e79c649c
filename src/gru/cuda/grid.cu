// SPDX-License-Identifier: Apache-2.0
// The host side of gru_grid_few and gru_grid_many: layers of H = 1025 to 2048.
#include <algorithm>
#include <string>
#include <type_traits>

#include "core/cuda/grid_launch.h"
#include "core/cuda/status.h"
#include "gru/cuda/grid_few.cuh"
#include "gru/cuda/grid_many.cuh"

namespace isobit::cuda {
namespace {

/// k tiles of a layer: of 8 warps or of 2 warpgroups.
constexpr int32_t kSmallTiles = 48, kLargeTiles = 64;

template <typename Ratio>
using FewKernel = void (*)(GridFewArgs<Ratio>);
template <typename Ratio>
using ManyKernel = void (*)(GridManyArgs<Ratio>);

/// Sets of gate warps. Turns of 16 sequences leave a lane of one set one cell; a lane of two sets has two, and twice
/// the time. One or two turns are not so many that a step waits for gates.
bool has_two_sets(const PersistentLayer& layer, int32_t turns) {
  return layer.h_planes == 2 && many_places(turns) == turns && turns % 2 == 0;
}
template <int Tiles, int Planes, typename Ratio>
ManyKernel<Ratio> many_kernel(int32_t columns, bool two_sets) {
  if constexpr (Planes == 2) {
    return two_sets ? gru_grid_many<Tiles / 2, 16, 2, 2, Ratio> : gru_grid_many<Tiles / 2, 16, 2, 1, Ratio>;
  } else {
    return columns == 32 ? gru_grid_many<Tiles / 2, 32, 1, 1, Ratio> : gru_grid_many<Tiles / 2, 16, 1, 1, Ratio>;
  }
}
template <int Planes, typename Ratio>
ManyKernel<Ratio> many_kernel(const PersistentLayer& layer, int32_t columns, int32_t turns) {
  const bool two_sets = has_two_sets(layer, turns);
  return layer.grid_cut.k_tiles == kSmallTiles ? many_kernel<kSmallTiles, Planes, Ratio>(columns, two_sets)
                                               : many_kernel<kLargeTiles, Planes, Ratio>(columns, two_sets);
}
template <int Planes, typename Ratio>
FewKernel<Ratio> few_kernel(const PersistentLayer& layer) {
  return layer.grid_cut.k_tiles == kSmallTiles ? gru_grid_few<kSmallTiles / 8, Planes, Ratio>
                                               : gru_grid_few<kLargeTiles / 8, Planes, Ratio>;
}

/// How a batch is spread over launches of `each` sequences. columns: of a turn; 0: gru_grid_few.
struct Spread {
  int32_t columns, each, turns, slots;
};
int32_t pieces_of(int64_t count, int64_t piece) { return static_cast<int32_t>((count + piece - 1) / piece); }
Spread spread_of(const PersistentLayer& layer, int64_t batch) {
  const GridCut& cut = layer.grid_cut;
  const bool few = cut.cluster == 0 || batch <= kGridFewSequences;
  const int32_t each = pieces_of(batch, pieces_of(batch, few ? kGridFewSequences : kMaxManySequences));
  if (few) return {0, each, 1, 0};
  const int32_t columns = each > 16 && cut.slots32 > 0 ? 32 : 16;
  return {columns, each, pieces_of(each, columns), columns == 32 ? cut.slots32 : cut.slots16};
}

int64_t counter_bytes(int32_t turns, int32_t cluster) { return int64_t{turns} * cluster * kCounterWords * 4; }
/// Words of gru_grid_few.
int64_t word_bytes(const PersistentLayer& layer, int32_t sequences) {
  return int64_t{2} * kFewCopies * layer.h_planes * layer.groups * few_columns(sequences) * 32;
}
int64_t zeroed_bytes(const PersistentLayer& layer, const Spread& spread) {
  return spread.columns == 0 ? word_bytes(layer, spread.each) : counter_bytes(spread.turns, layer.grid_cut.cluster);
}

/// Blocks wait for each other, so the launch is cooperative.
template <typename Ratio>
GridLaunch launch_of(const PersistentLayer& layer, const Spread& spread) {
  const auto groups = static_cast<unsigned>(layer.groups);
  if (spread.columns == 0)
    return {groups, kGridFewThreads, grid_few_shared(layer.h_planes, layer.table_entries).total, 0, true};
  const GridManyShared shared = grid_many_shared(spread.columns, layer.h_planes, layer.groups, spread.slots,
                                                 spread.turns, kRowBytes<Ratio>, layer.table_entries);
  return {groups, kGridManyThreads, shared.total, layer.grid_cut.cluster, true};
}

/// Whether all blocks of gru_grid_many are on the device at once, in clusters and with slots of layer.grid_cut.
template <int Planes, typename Ratio>
Status fits_device(const PersistentLayer& layer, bool& fits) {
  const GridCut& cut = layer.grid_cut;
  fits = true;
  for (const int32_t columns : {16, 32}) {
    const int32_t slots = columns == 32 ? cut.slots32 : cut.slots16;
    for (const int32_t turns : {1, kMaxManySequences / columns}) {
      if (slots == 0) continue;
      const ManyKernel<Ratio> kernel = many_kernel<Planes, Ratio>(layer, columns, turns);
      ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, layer.block_shared, "grid: shared memory"));
      const int32_t clusters =
          launch_of<Ratio>(layer, {columns, turns * columns, turns, slots}).clusters_on_device(kernel);
      fits = fits && clusters * cut.cluster >= layer.groups;
    }
  }
  return {};
}

/// layer.grid_cut, whose cluster is 0 where gru_grid_many does not run. The larger clusters read less.
template <int Planes, typename Ratio>
Status prepare_many(PersistentLayer& layer) {
  const int32_t groups = pieces_of(layer.hidden_size, kGridUnits);
  GridCut& cut = layer.grid_cut;
  cut.k_tiles = groups <= kSmallTiles * 2 ? kSmallTiles : kLargeTiles;
  for (const int32_t cluster : {8, 4, 2}) {
    layer.groups = pieces_of(groups, cluster) * cluster;
    const auto slots_of = [&](int32_t columns) {
      int32_t slots = 0;
      while (slots < kMaxSlots && grid_many_shared(columns, Planes, layer.groups, slots + 1,
                                                   kMaxManySequences / columns, kRowBytes<Ratio>, layer.table_entries)
                                          .total <= layer.block_shared)
        ++slots;
      return slots;
    };
    cut = {cluster, slots_of(16), Planes == 1 ? slots_of(32) : 0, cut.k_tiles};
    bool fits = false;
    if (cut.slots16 > 0) ISOBIT_RETURN_IF_ERROR((fits_device<Planes, Ratio>(layer, fits)));
    if (fits) return {};
  }
  cut.cluster = 0;
  layer.groups = groups;
  return {};
}

}  // namespace

Status prepare_grid(PersistentLayer& layer, const DeviceLimits& limits) {
  if (layer.hidden_size <= kMaxClusterHidden || layer.hidden_size > kMaxGridHidden)
    return {StatusCode::kUnsupported, "H is " + std::to_string(layer.hidden_size) + ", must be 1025 to 2048"};
  ISOBIT_RETURN_IF_ERROR(check_90a(limits));
  return with_lanes(layer, [&](auto ratio, auto planes) -> Status {
    using Ratio = decltype(ratio);
    ISOBIT_RETURN_IF_ERROR((prepare_many<planes(), Ratio>(layer)));
    const FewKernel<Ratio> few = few_kernel<planes(), Ratio>(layer);
    ISOBIT_RETURN_IF_ERROR(allow_shared(few, layer.block_shared, "grid: shared memory"));
    const int32_t needed = grid_few_shared(layer.h_planes, layer.table_entries).total;
    int blocks = 0;
    if (needed <= layer.block_shared)
      ISOBIT_RETURN_IF_ERROR(cuda_status(
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, few, kGridFewThreads, static_cast<size_t>(needed)),
          "blocks on the device"));
    return blocks * limits.processors < layer.groups ? no_room() : Status();
  });
}

void pack_grid(const GruLayerParameters& p, PersistentPack& pack) {
  const PersistentLayer& layer = pack.layer;
  const int32_t k_tiles = layer.grid_cut.k_tiles;
  pack.grid_fragments.assign(static_cast<size_t>(layer.groups) * static_cast<size_t>(k_tiles) * 2048, 0);
  for (int64_t gate = 0; gate < 3; ++gate)
    for (int64_t unit = 0; unit < p.hidden_size; ++unit)
      for (int64_t k = 0; k < p.hidden_size; ++k) {
        const int64_t word = grid_word(k_tiles, static_cast<int>(unit / kGridUnits), static_cast<int>(gate),
                                       static_cast<int>(unit % kGridUnits), static_cast<int>(k / 4 * 4));
        pack.grid_fragments[static_cast<size_t>(word * 4 + k % 4)] =
            static_cast<uint8_t>(p.R.at(gate * p.hidden_size + unit, k));
      }
}

int64_t grid_exchange_bytes(const PersistentLayer& layer, int64_t batch) {
  const int32_t cluster = layer.grid_cut.cluster;
  const int64_t few = word_bytes(layer, kGridFewSequences);  // a smaller batch may take the other kernel
  if (cluster == 0) return few;
  // Turns of 16; those of 32 may have half of one more.
  const int32_t turns = pieces_of(std::min<int64_t>(batch, kMaxManySequences), 16) + 1;
  return std::max(
      few, counter_bytes(turns, cluster) + int64_t{2} * turns * many_slot_bytes(16, layer.h_planes, layer.groups));
}

int64_t grid_zeroed_bytes(const PersistentLayer& layer, int64_t batch) {
  return zeroed_bytes(layer, spread_of(layer, batch));
}

Status launch_grid(const PersistentLayer& layer, const Recurrence& run, std::byte* exchange, cudaStream_t stream) {
  const Spread spread = spread_of(layer, run.batch);
  const int64_t zeroed = zeroed_bytes(layer, spread);
  return with_lanes(layer, [&](auto ratio, auto planes) -> Status {
    using Ratio = decltype(ratio);
    const RecurrenceArgs<Ratio> args = recurrence_args<Ratio>(layer, run);
    const GridLaunch launch = launch_of<Ratio>(layer, spread);
    for (int32_t n = 0; n < run.batch; n += spread.each) {
      const int32_t sequences = std::min(spread.each, run.batch - n);
      if (n > 0)
        ISOBIT_RETURN_IF_ERROR(
            cuda_status(cudaMemsetAsync(exchange, 0, static_cast<size_t>(zeroed), stream), "grid: counters"));
      if (spread.columns == 0) {
        const GridFewArgs<Ratio> few{args, layer.fragments, n, sequences, reinterpret_cast<uint2*>(exchange)};
        ISOBIT_RETURN_IF_ERROR(launch.run("kernel gru_grid_few", few_kernel<planes(), Ratio>(layer), stream, few));
        continue;
      }
      const GridManyArgs<Ratio> many{args,
                                     layer.grid_fragments,
                                     n,
                                     sequences,
                                     spread.turns,
                                     layer.grid_cut.cluster,
                                     spread.slots,
                                     reinterpret_cast<uint32_t*>(exchange),
                                     reinterpret_cast<uint8_t*>(exchange + zeroed)};
      const auto kernel = many_kernel<planes(), Ratio>(layer, spread.columns, spread.turns);
      ISOBIT_RETURN_IF_ERROR(launch.run("kernel gru_grid_many", kernel, stream, many));
    }
    return {};
  });
}

}  // namespace isobit::cuda
