// SPDX-License-Identifier: Apache-2.0
// The grid kernels' host side: what finds room on the device, packing of R, launches.
#include "gru/cuda_grid.cuh"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "core/cuda_status.h"
#include "core/cuda_wgmma.cuh"
#include "gru/cuda_grid_delays.h"

namespace isobit::cuda {
namespace {

std::atomic<uint32_t> delays{0};

/// k tiles of a layer: of 8 warps or of 2 warpgroups.
constexpr int32_t kSmallTiles = 48, kLargeTiles = 64;

template <typename Ratio>
using Kernel = void (*)(GridArgs<Ratio>);

template <int Tiles, int Planes, typename Ratio>
Kernel<Ratio> kernel_of_planes(int32_t columns) {
  constexpr int kMost = Planes == 1 ? 32 : 16;
  if (columns <= kFewSequences) return gru_grid_few<Tiles / 8, Planes, Ratio>;
  if (columns == kMost) return gru_grid_many<Tiles / 2, kMost, Planes, Ratio>;
  return gru_grid_many<Tiles / 2, 16, Planes, Ratio>;
}
template <int Tiles, typename Ratio>
Kernel<Ratio> kernel_of_tiles(const PersistentLayer& layer, int32_t columns) {
  return with_planes<Ratio>(layer.h_planes,
                            [&](auto planes) { return kernel_of_planes<Tiles, planes(), Ratio>(columns); });
}
/// Of a turn.
int32_t most_columns(const PersistentLayer& layer) { return layer.h_planes == 1 ? 32 : 16; }
/// columns: kFewSequences for gru_grid_few, else those of a turn of gru_grid_many.
template <typename Ratio>
Kernel<Ratio> kernel_of(const PersistentLayer& layer, int32_t columns) {
  return layer.k_tiles == kSmallTiles ? kernel_of_tiles<kSmallTiles, Ratio>(layer, columns)
                                      : kernel_of_tiles<kLargeTiles, Ratio>(layer, columns);
}

/// How a batch is spread over launches of `each` sequences.
struct Spread {
  int32_t columns, each, turns, slots;
};
Spread spread_of(const PersistentLayer& layer, int64_t batch) {
  const GridCut& cut = layer.grid_cut;
  const bool many = cut.cluster > 0 && batch > kFewSequences;
  const int32_t columns = !many ? kFewSequences : batch > 16 && cut.slots32 > 0 ? 32 : 16;
  const int64_t most = many ? kMaxManySequences : kFewSequences;
  const int64_t launches = (batch + most - 1) / most;
  const auto turns = static_cast<int32_t>(((batch + launches - 1) / launches + columns - 1) / columns);
  return {columns, turns * columns, turns, columns == 32 ? cut.slots32 : cut.slots16};
}

int64_t counter_bytes(int32_t turns, int32_t cluster) { return int64_t{turns} * cluster * kCounterWords * 4; }
int64_t exchange_bytes(const PersistentLayer& layer, const Spread& spread) {
  if (spread.columns == kFewSequences)
    return int64_t{2} * kFewCopies * layer.groups * layer.h_planes * kFewSequences * 32;
  return counter_bytes(spread.turns, layer.grid_cut.cluster) +
         int64_t{2} * spread.turns * many_slot_bytes(spread.columns, layer.h_planes, layer.groups);
}

/// The attributes of a launch: `values` outlives the configuration.
struct LaunchAttributes {
  cudaLaunchAttribute values[2]{};
};
template <typename Ratio>
cudaLaunchConfig_t launch_config(const PersistentLayer& layer, const Spread& spread, LaunchAttributes& attributes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(layer.groups));
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

}  // namespace

template <typename Ratio>
Status prepare_grid(PersistentLayer& layer, int shared) {
  const int32_t groups = (layer.hidden_size + kGridUnits - 1) / kGridUnits;
  layer.k_tiles = groups * kGridUnits <= kSmallTiles * 32 ? kSmallTiles : kLargeTiles;
  GridCut& cut = layer.grid_cut;
  int32_t compiled = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMemcpyFromSymbol(&compiled, wgmma_compiled, sizeof compiled), "grid: wgmma"));
  for (const int32_t cluster : {8, 4, 2}) {
    if (compiled == 0) break;
    layer.groups = (groups + cluster - 1) / cluster * cluster;
    const auto fit = [&](int32_t columns) {
      int32_t slots = 0;
      while (slots < kMaxSlots && many_shared(columns, layer.h_planes, layer.groups, slots + 1,
                                              kMaxManySequences / columns, kRowBytes<Ratio>, layer.table_entries)
                                          .total <= shared)
        ++slots;
      return slots;
    };
    cut = {cluster, fit(16), most_columns(layer) == 32 ? fit(32) : 0};
    bool fits = cut.slots16 > 0;
    for (const int32_t columns : {16, 32}) {
      const int32_t slots = columns == 32 ? cut.slots32 : cut.slots16;
      if (slots == 0) continue;
      const Kernel<Ratio> kernel = kernel_of<Ratio>(layer, columns);
      ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, shared));
      LaunchAttributes attributes;
      const cudaLaunchConfig_t config =
          launch_config<Ratio>(layer, {columns, kMaxManySequences, kMaxManySequences / columns, slots}, attributes);
      int clusters = 0;
      if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess)
        cudaGetLastError();  // clusters of this size are not to be had there
      fits = fits && clusters * cluster >= layer.groups;
    }
    if (fits) break;
    cut = {};
  }
  if (cut.cluster == 0) layer.groups = groups;
  const Kernel<Ratio> few = kernel_of<Ratio>(layer, kFewSequences);
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
template Status prepare_grid<float>(PersistentLayer&, int);
template Status prepare_grid<Fixed>(PersistentLayer&, int);
template Status prepare_grid<WideFixed>(PersistentLayer&, int);
template Status prepare_grid<double>(PersistentLayer&, int);

void pack_grid(const GruLayerParameters& p, PersistentPack& pack) {
  const PersistentLayer& layer = pack.layer;
  pack.fragments.assign(static_cast<size_t>(layer.groups) * static_cast<size_t>(layer.k_tiles) * 2048, 0);
  for (int64_t gate = 0; gate < 3; ++gate)
    for (int64_t unit = 0; unit < p.hidden_size; ++unit)
      for (int64_t k = 0; k < p.hidden_size; ++k) {
        const int64_t word = grid_word(layer.k_tiles, static_cast<int>(unit / kGridUnits), static_cast<int>(gate),
                                       static_cast<int>(unit % kGridUnits), static_cast<int>(k / 4 * 4));
        pack.fragments[static_cast<size_t>(word * 4 + k % 4)] =
            static_cast<uint8_t>(p.R.at(gate * p.hidden_size + unit, k));
      }
}

int64_t grid_exchange_bytes(const PersistentLayer& layer, int64_t batch) {
  // A smaller batch may take the other kernel, or more turns a launch.
  const bool many = layer.grid_cut.cluster > 0 && batch > kFewSequences;
  int64_t bytes = exchange_bytes(layer, {kFewSequences, 0, 0, 0});
  if (many) {
    const auto sequences = static_cast<int32_t>((std::min<int64_t>(batch, kMaxManySequences) + 31) / 32 * 32);
    bytes = std::max(bytes, exchange_bytes(layer, {16, sequences, sequences / 16, 0}));
  }
  return bytes;
}

template <typename Ratio>
Status launch_grid(const PersistentLayer& layer, const PersistentChunk& chunk, std::byte* exchange,
                   cudaStream_t stream) {
  const Spread spread = spread_of(layer, chunk.batch);
  const bool few = spread.columns == kFewSequences;
  GridArgs<Ratio> a{};
  a.gates = std::get<GateLanes<LaneOf<Ratio>>>(layer.gates);
  a.fragments = layer.fragments;
  a.start = std::get<PersistentRows<Ratio>>(layer.rows).start;
  a.ratio = std::get<PersistentRows<Ratio>>(layer.rows).ratio;
  a.tables = layer.tables;
  a.table_entries = layer.table_entries;
  a.ih = chunk.ih;
  a.first_step = static_cast<int32_t>(chunk.first_step);
  a.steps = static_cast<int32_t>(chunk.steps);
  a.batch = static_cast<int32_t>(chunk.batch);
  a.hidden = layer.hidden_size;
  a.state = chunk.state;
  a.next_state = chunk.next_state;
  a.y = chunk.y;
  a.y_step = chunk.y_step;
  a.y_sequence = chunk.y_sequence;
  a.flip = layer.h_flip;
  a.lengths = chunk.lengths;
  a.mask = chunk.mask;
  a.mask_width = chunk.mask_width;
  a.reverse = chunk.reverse;
  a.delays = delays.load(std::memory_order_relaxed);
  a.cluster = layer.grid_cut.cluster;
  a.slots = spread.slots;
  // Numbers of states and counts start from zero.
  const int64_t counters = few ? exchange_bytes(layer, spread) : counter_bytes(spread.turns, a.cluster);
  a.words = reinterpret_cast<uint2*>(exchange);
  a.counters = reinterpret_cast<uint32_t*>(exchange);
  a.codes = reinterpret_cast<uint8_t*>(exchange + counters);
  for (int64_t n = 0; n < chunk.batch; n += spread.each) {
    a.first_sequence = static_cast<int32_t>(n);
    a.sequences = static_cast<int32_t>(std::min<int64_t>(spread.each, chunk.batch - n));
    a.turns = (a.sequences + spread.columns - 1) / spread.columns;
    a.ih_turn = int64_t{spread.columns} * layer.groups * 48;
    a.ih_step = (a.reverse ? -1 : 1) * int64_t{a.batch} * layer.groups * 48 - a.turns * a.ih_turn;
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaMemsetAsync(exchange, 0, static_cast<size_t>(counters), stream), "grid: counters"));
    LaunchAttributes attributes;
    cudaLaunchConfig_t config = launch_config<Ratio>(layer, spread, attributes);
    config.stream = stream;
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaLaunchKernelEx(&config, kernel_of<Ratio>(layer, spread.columns), a), "kernel gru_grid"));
  }
  return {};
}
template Status launch_grid<float>(const PersistentLayer&, const PersistentChunk&, std::byte*, cudaStream_t);
template Status launch_grid<Fixed>(const PersistentLayer&, const PersistentChunk&, std::byte*, cudaStream_t);
template Status launch_grid<WideFixed>(const PersistentLayer&, const PersistentChunk&, std::byte*, cudaStream_t);
template Status launch_grid<double>(const PersistentLayer&, const PersistentChunk&, std::byte*, cudaStream_t);

void set_grid_delays(uint32_t seed) { delays.store(seed, std::memory_order_relaxed); }

}  // namespace isobit::cuda
