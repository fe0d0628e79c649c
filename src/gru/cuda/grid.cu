// SPDX-License-Identifier: Apache-2.0
// The grid kernels' host side: what finds room on the device, packing of R, launches.
#include "gru/cuda/grid.cuh"

#include <algorithm>
#include <string>
#include <type_traits>

#include "core/cuda/status.h"
#include "core/cuda/wgmma.cuh"

namespace isobit::cuda {
namespace {

/// k tiles of a layer: of 8 warps or of 2 warpgroups.
constexpr int32_t kTeamTiles = 32, kSmallTiles = 48, kLargeTiles = 64;

template <typename Ratio>
using Kernel = void (*)(GridArgs<Ratio>);

/// Of a turn.
int32_t most_columns(const PersistentLayer& layer) { return layer.h_planes == 1 ? 32 : 16; }
/// Of gate warps. Turns of 16 sequences leave a lane of one set one cell; a lane of two sets has two, and twice the
/// time. One or two turns are not so many that a step waits for gates.
int32_t sets_of(const PersistentLayer& layer, int32_t turns) {
  return layer.h_planes == 2 && many_places(turns) == turns && turns % 2 == 0 ? 2 : 1;
}

template <int Tiles, int Planes, typename Ratio>
Kernel<Ratio> many_of_planes(int32_t columns, int32_t sets) {
  if constexpr (Planes == 2) {
    return sets == 2 ? gru_grid_many<Tiles / 2, 16, 2, 2, Ratio> : gru_grid_many<Tiles / 2, 16, 2, 1, Ratio>;
  } else {
    return columns == 32 ? gru_grid_many<Tiles / 2, 32, 1, 1, Ratio> : gru_grid_many<Tiles / 2, 16, 1, 1, Ratio>;
  }
}
/// Calls body with the number of k tiles as a constant.
template <typename Body>
auto with_tiles(int32_t k_tiles, Body body) {
  if (k_tiles == kTeamTiles) return body(std::integral_constant<int, kTeamTiles>());
  if (k_tiles == kSmallTiles) return body(std::integral_constant<int, kSmallTiles>());
  return body(std::integral_constant<int, kLargeTiles>());
}
template <typename Ratio>
Kernel<Ratio> many_kernel(const PersistentLayer& layer, int32_t columns, int32_t turns) {
  return with_tiles(layer.grid_cut.k_tiles, [&](auto tiles) {
    return with_planes<Ratio>(layer.h_planes, [&](auto planes) {
      return many_of_planes<tiles(), planes(), Ratio>(columns, sets_of(layer, turns));
    });
  });
}
/// Of layers above H = 1024.
template <typename Ratio>
Kernel<Ratio> few_kernel(const PersistentLayer& layer) {
  return with_planes<Ratio>(layer.h_planes, [&](auto planes) -> Kernel<Ratio> {
    return layer.grid_cut.k_tiles == kSmallTiles ? gru_grid_few<kSmallTiles / 8, planes(), Ratio>
                                                 : gru_grid_few<kLargeTiles / 8, planes(), Ratio>;
  });
}

/// How a batch is spread over launches of `each` sequences, and those over teams. columns: kFewSequences for
/// gru_grid_few, else those of a turn of gru_grid_many.
struct Spread {
  int32_t columns, each, teams, team_sequences, turns, slots;
};
int32_t pieces_of(int64_t count, int64_t piece) { return static_cast<int32_t>((count + piece - 1) / piece); }
Spread spread_of(const PersistentLayer& layer, int64_t batch) {
  const GridCut& cut = layer.grid_cut;
  if (cut.cluster == 0 || (layer.grid && batch <= kFewSequences)) {
    const int32_t each = pieces_of(batch, pieces_of(batch, kFewSequences));
    return {kFewSequences, each, 1, each, 1, 0};
  }
  const int32_t each = pieces_of(batch, pieces_of(batch, int64_t{kMaxManySequences} * cut.teams));
  const int32_t team_sequences = pieces_of(each, cut.teams);
  const int32_t columns = team_sequences > 16 && cut.slots32 > 0 ? 32 : 16;
  return {columns,
          each,
          pieces_of(each, team_sequences),
          team_sequences,
          pieces_of(team_sequences, columns),
          columns == 32 ? cut.slots32 : cut.slots16};
}

int64_t counter_bytes(int32_t turns, int32_t cluster) { return int64_t{turns} * cluster * kCounterWords * 4; }
/// Words of gru_grid_few.
int64_t word_bytes(const PersistentLayer& layer, int32_t sequences) {
  return int64_t{2} * kFewCopies * layer.h_planes * layer.groups * few_columns(sequences) * 32;
}
int64_t zeroed_bytes(const PersistentLayer& layer, const Spread& spread) {
  if (spread.columns == kFewSequences) return word_bytes(layer, spread.each);
  return counter_bytes(spread.teams * spread.turns, layer.grid_cut.cluster);
}
int64_t exchange_bytes(const PersistentLayer& layer, const Spread& spread) {
  if (spread.columns == kFewSequences) return word_bytes(layer, kFewSequences);
  const int32_t turns = spread.teams * spread.turns;
  return counter_bytes(turns, layer.grid_cut.cluster) +
         int64_t{2} * turns * many_slot_bytes(spread.columns, layer.h_planes, layer.groups);
}

/// The attributes of a launch: `values` outlives the configuration.
struct LaunchAttributes {
  cudaLaunchAttribute values[2]{};
};
template <typename Ratio>
cudaLaunchConfig_t launch_config(const PersistentLayer& layer, const Spread& spread, LaunchAttributes& attributes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(layer.groups * spread.teams));
  config.blockDim = dim3(spread.columns == kFewSequences ? kFewThreads : kManyThreads);
  // Blocks wait for each other: all of them are on the device at once, or the launch fails.
  attributes.values[0].id = cudaLaunchAttributeCooperative;
  attributes.values[0].val.cooperative = 1;
  config.attrs = attributes.values;
  config.numAttrs = 1;
  if (spread.columns == kFewSequences) {
    config.dynamicSmemBytes = static_cast<size_t>(few_shared(layer.h_planes, layer.table_entries).total);
    return config;
  }
  config.dynamicSmemBytes = static_cast<size_t>(many_shared(spread.columns, layer.h_planes, layer.groups, spread.slots,
                                                            spread.turns, kRowBytes<Ratio>, layer.table_entries)
                                                    .total);
  attributes.values[1].id = cudaLaunchAttributeClusterDimension;
  attributes.values[1].val.clusterDim = {static_cast<unsigned>(layer.grid_cut.cluster), 1, 1};
  config.numAttrs = 2;
  return config;
}

template <typename Ratio>
Status allow_shared(Kernel<Ratio> kernel, int shared) {
  return cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                     "grid: shared memory");
}

/// gru_grid_many: layer.grid_cut, whose cluster is 0 where it does not run.
template <typename Ratio>
Status prepare_grid_many(PersistentLayer& layer, int shared) {
  const int32_t groups = layer.grid ? pieces_of(layer.hidden_size, kGridUnits) : layer.groups;
  GridCut& cut = layer.grid_cut;
  const int32_t k_tiles = groups <= kTeamTiles * 2 ? kTeamTiles : groups <= kSmallTiles * 2 ? kSmallTiles : kLargeTiles;
  GridCut best;
  int32_t best_groups = groups;
  for (const int32_t cluster : {8, 4, 2}) {
    layer.groups = pieces_of(groups, cluster) * cluster;
    if (!layer.grid && layer.groups != groups) continue;
    const auto fit = [&](int32_t columns) {
      int32_t slots = 0;
      while (slots < kMaxSlots && many_shared(columns, layer.h_planes, layer.groups, slots + 1,
                                              kMaxManySequences / columns, kRowBytes<Ratio>, layer.table_entries)
                                          .total <= shared)
        ++slots;
      return slots;
    };
    cut = {cluster, fit(16), most_columns(layer) == 32 ? fit(32) : 0, INT32_MAX, k_tiles};
    if (cut.slots16 == 0) continue;
    for (const int32_t columns : {16, 32}) {
      const int32_t slots = columns == 32 ? cut.slots32 : cut.slots16;
      if (slots == 0) continue;
      for (const int32_t turns : {1, kMaxManySequences / columns}) {
        const Kernel<Ratio> kernel = many_kernel<Ratio>(layer, columns, turns);
        ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, shared));
        LaunchAttributes attributes;
        const cudaLaunchConfig_t config =
            launch_config<Ratio>(layer, {columns, turns * columns, 1, turns * columns, turns, slots}, attributes);
        int clusters = 0;
        if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess)
          cudaGetLastError();  // clusters of this size are not to be had there
        cut.teams = std::min(cut.teams, clusters / (layer.groups / cluster));
      }
    }
    if (layer.grid) cut.teams = std::min(cut.teams, 1);
    if (cut.teams <= best.teams) continue;  // of as many teams the larger clusters read less
    best = cut;
    best_groups = layer.groups;
  }
  if (!layer.grid && best.teams < 2) best = {};  // slower than clusters
  cut = best;
  cut.k_tiles = k_tiles;
  layer.groups = best_groups;
  return {};
}

}  // namespace

template <typename Ratio>
Status prepare_grid(PersistentLayer& layer, int shared) {
  if (layer.hidden_size < kLeastGridHidden || layer.hidden_size > kMaxGridHidden)
    return {StatusCode::kUnsupported, "H is " + std::to_string(layer.hidden_size) + ", must be 769 to 2048"};
  ISOBIT_ASSIGN_OR_RETURN(const bool compiled, has_90a_code());
  if (!compiled) return {StatusCode::kUnsupported, "the build has no code for compute capability 9.0a"};
  ISOBIT_RETURN_IF_ERROR(prepare_grid_many<Ratio>(layer, shared));
  if (!layer.grid)
    return layer.grid_cut.cluster > 0
               ? Status()
               : Status(StatusCode::kUnsupported, "the device has no room for two teams of thread blocks that hold R");
  const Kernel<Ratio> few = few_kernel<Ratio>(layer);
  ISOBIT_RETURN_IF_ERROR(allow_shared(few, shared));
  const int32_t needed = few_shared(layer.h_planes, layer.table_entries).total;
  int blocks = 0, device = 0, processors = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "processors"));
  if (needed <= shared)
    ISOBIT_RETURN_IF_ERROR(cuda_status(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, few, kFewThreads, static_cast<size_t>(needed)),
        "blocks on the device"));
  if (blocks * processors < layer.groups)
    return {StatusCode::kUnsupported, "the device has no room for a team of thread blocks that holds R"};
  return {};
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
  const GridCut& cut = layer.grid_cut;
  // A smaller batch may take the other kernel.
  int64_t bytes = layer.grid ? exchange_bytes(layer, {kFewSequences, 0, 1, 0, 0, 0}) : 0;
  if (cut.cluster > 0) {
    // Or turns of 16 instead of 32; each team may have a part of a turn.
    const auto sequences = static_cast<int32_t>(std::min(batch, int64_t{kMaxManySequences} * cut.teams));
    bytes = std::max(bytes, exchange_bytes(layer, {16, 0, 1, 0, pieces_of(sequences, 16) + 4 * cut.teams, 0}));
  }
  return bytes;
}

int64_t grid_zeroed_bytes(const PersistentLayer& layer, int64_t batch) {
  return zeroed_bytes(layer, spread_of(layer, batch));
}

template <typename Ratio>
Status launch_grid(const PersistentLayer& layer, const PersistentChunk& chunk, std::byte* exchange,
                   cudaStream_t stream) {
  const Spread spread = spread_of(layer, chunk.batch);
  const bool few = spread.columns == kFewSequences;
  GridArgs<Ratio> a{};
  set_recurrence(a, layer, chunk);
  a.fragments = few ? layer.fragments : layer.grid_fragments;
  a.blocks = layer.groups;
  a.team_sequences = spread.team_sequences;
  a.turns = spread.turns;
  a.cluster = layer.grid_cut.cluster;
  a.slots = spread.slots;
  const int64_t counters = zeroed_bytes(layer, spread);
  a.words = reinterpret_cast<uint2*>(exchange);
  a.counters = reinterpret_cast<uint32_t*>(exchange);
  a.codes = reinterpret_cast<uint8_t*>(exchange + counters);
  for (int64_t n = 0; n < chunk.batch; n += spread.each) {
    a.first_sequence = static_cast<int32_t>(n);
    a.sequences = static_cast<int32_t>(std::min<int64_t>(spread.each, chunk.batch - n));
    if (n > 0)
      ISOBIT_RETURN_IF_ERROR(
          cuda_status(cudaMemsetAsync(exchange, 0, static_cast<size_t>(counters), stream), "grid: counters"));
    LaunchAttributes attributes;
    cudaLaunchConfig_t config = launch_config<Ratio>(layer, spread, attributes);
    config.gridDim = dim3(static_cast<unsigned>(layer.groups * pieces_of(a.sequences, spread.team_sequences)));
    config.stream = stream;
    const Kernel<Ratio> kernel =
        few ? few_kernel<Ratio>(layer) : many_kernel<Ratio>(layer, spread.columns, spread.turns);
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaLaunchKernelEx(&config, kernel, a), "kernel gru_grid"));
  }
  return {};
}

#define ISOBIT_GRID_LANES(Ratio)                              \
  template Status prepare_grid<Ratio>(PersistentLayer&, int); \
  template Status launch_grid<Ratio>(const PersistentLayer&, const PersistentChunk&, std::byte*, cudaStream_t);
ISOBIT_GRID_LANES(float)
ISOBIT_GRID_LANES(Fixed)
ISOBIT_GRID_LANES(WideFixed)
ISOBIT_GRID_LANES(double)
#undef ISOBIT_GRID_LANES

bool takes_grid(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  if (layer.grid) return true;
  // By timing on an H200, where gru_cluster_many has room for 112 sequences of two planes at once.
  const int64_t most = layer.h_planes == 1 ? 224 : layer.ratios.h == RatioType::kDouble ? 64 : 112;
  if (batch > most) return true;
  if (layer.ratios.h == RatioType::kDouble) return false;
  // Few steps of two planes, the time by that of gru_cluster_many on H100s, H = 832 to 1024: 64 sequences 2: 0.87 and
  // 0.93, 3: 0.92 and 0.94, 4: 0.96 and 0.98, 6: 0.98 and 0.99; 80 and 96 2 to 4: 0.93 to 1.03, 6 and 8: 1.02 to 1.04;
  // 112 3 and 4: 1.01 to 1.03 (each but one or two that stand alone).
  return layer.h_planes == 2 && batch > 56 && batch <= 96 && steps <= 4;
}

}  // namespace isobit::cuda
