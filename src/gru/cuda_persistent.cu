// SPDX-License-Identifier: Apache-2.0
// The persistent kernel's host side: which layers it runs, how it is cut, packing, launch. W x of many steps is one
// product before the recurrence, in chunks of steps, so that memory does not grow with their number without limit.
#include "gru/cuda_persistent.cuh"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "core/cuda_status.h"
#include "gru/cuda_grid.h"
#include "gru/cuda_gru.h"
#include "gru/kernels.h"
#include "gru/proof.h"
#include "gru/reference.h"
#include "linear/cuda_product.h"
#include "linear/linear.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{128} << 20;  // of x and ih
constexpr int64_t kAlignment = 256;
constexpr int32_t kMaxTableBits = 12;  // of a gate input: tables are in shared memory
// Rows and turns are counted in 32 bits.
constexpr int64_t kMaxBatch = INT32_MAX / 512;
constexpr int64_t kMaxSteps = INT32_MAX / kMaxSequenceTiles;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
Status unsupported(const std::string& what) { return {StatusCode::kUnsupported, what}; }

template <typename Real, typename Sum>
using Kernel = void (*)(PersistentArgs<Real, Sum>);

template <int Planes, typename Real, typename Sum>
Kernel<Real, Sum> kernel_of_planes(const PersistentLayer& layer) {
  if (layer.k_tiles == 4) return gru_persistent<4, 0, Planes, Real, Sum, false>;
  if (layer.k_tiles == 8) return gru_persistent<8, 0, Planes, Real, Sum, false>;
  if (layer.k_tiles == 12) return gru_persistent<12, 0, Planes, Real, Sum, false>;
  return gru_persistent<16, 4, Planes, Real, Sum, false>;
}
/// Two planes take double lanes.
template <typename Real, typename Sum>
Kernel<Real, Sum> kernel_of(const PersistentLayer& layer) {
  if constexpr (std::is_same_v<Real, double>)
    if (layer.h_planes == 2) return kernel_of_planes<2, Real, Sum>(layer);
  return kernel_of_planes<1, Real, Sum>(layer);
}

/// Calls body(Real(), Sum()) with the layer's lanes.
template <typename Body>
Status with_lanes(const PersistentLayer& layer, Body body) {
  if (layer.wide_gates) return body(double(), double());
  if (layer.wide_sums) return body(float(), double());
  return body(float(), float());
}
PersistentShape shape_of(const PersistentLayer& layer, const PersistentCut& cut, int32_t sequence_tiles,
                         int32_t state_buffers) {
  return {layer.k_tiles,   layer.k_shared, layer.h_planes, layer.wide_sums ? 8 : 4, cut.blocks,
          cut.unit_blocks, layer.k_splits, sequence_tiles, state_buffers,           layer.table_entries};
}

/// Whole warpgroups.
int32_t block_warps(const PersistentLayer& layer, const PersistentCut& cut) {
  const int32_t multiplying = cut.unit_blocks * layer.k_splits;
  const int32_t others = cut.unit_blocks + (has_service_warp(multiplying, cut.unit_blocks) ? 1 : 0);
  return first_gate_warp(multiplying) + (others + 3) / 4 * 4;
}

/// How the hidden units are cut: few ways, found by timing on an H200. More blocks have less to multiply and more to
/// exchange; smaller clusters leave room for more of them.
Status cut(int64_t hidden, PersistentLayer& layer) {
  const auto groups = static_cast<int32_t>((hidden + 15) / 16);
  const auto add = [&](int32_t cluster, int32_t blocks) {
    PersistentCut& c = layer.cut[layer.cuts++];
    c.cluster = cluster;
    c.blocks = (blocks + cluster - 1) / cluster * cluster;
    c.unit_blocks = (groups + c.blocks - 1) / c.blocks;
    layer.groups = std::max(layer.groups, c.blocks * c.unit_blocks);
  };
  layer.grid = hidden > 1024;
  if (layer.grid) {
    if (hidden > kMaxGridHidden)
      return unsupported("H is " + std::to_string(hidden) + ": R does not fit the registers of the device");
    return {};
  }
  layer.k_tiles = hidden <= 256 ? 4 : hidden <= 512 ? 8 : hidden <= 768 ? 12 : 16;
  layer.k_shared = layer.k_tiles == 16 ? 4 : 0;
  if (hidden <= 128) {
    add(2, 2);
  } else if (hidden <= 256) {
    add(8, 8);
    add(4, 4);
  } else if (hidden <= 384) {
    add(8, 8);
  } else if (hidden <= 512) {
    add(16, 16);
    add(8, 8);
  } else {
    add(16, 16);
  }
  layer.k_splits = static_cast<int32_t>(((hidden + 31) / 32 + layer.k_tiles - 1) / layer.k_tiles);
  for (int32_t i = 0; i < layer.cuts; ++i)
    if (layer.cut[i].unit_blocks > kMaxUnitBlocks || layer.cut[i].unit_blocks * layer.k_splits > kMaxMultiplying)
      return unsupported("H is " + std::to_string(hidden) + ": R does not fit the registers of the device");
  return {};
}

int32_t state_buffers(const PersistentCut& cut, int32_t sequence_tiles) {
  return sequence_tiles <= cut.of_three_buffers ? 3 : 2;
}

/// The attributes of a launch: `values` outlives the configuration.
struct LaunchAttributes {
  cudaLaunchAttribute values[1]{};
};
cudaLaunchConfig_t launch_config(const PersistentLayer& layer, const PersistentCut& cut, int32_t sequence_tiles,
                                 int64_t teams, LaunchAttributes& attributes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(teams * cut.blocks));
  config.blockDim = dim3(static_cast<unsigned>(32 * block_warps(layer, cut)));
  config.dynamicSmemBytes = static_cast<size_t>(
      persistent_shared(shape_of(layer, cut, sequence_tiles, state_buffers(cut, sequence_tiles))).total);
  attributes.values[0].id = cudaLaunchAttributeClusterDimension;
  attributes.values[0].val.clusterDim = {static_cast<unsigned>(cut.cluster), 1, 1};
  config.attrs = attributes.values;
  config.numAttrs = 1;
  return config;
}

/// Attributes of the kernels on the current device; which cuts find room there, and for how much.
template <typename Real, typename Sum>
Status prepare(PersistentLayer& layer) {
  int device = 0, major = 0, shared = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability"));
  if (major != 9)
    return unsupported("the device has compute capability " + std::to_string(major) + ", it is made for 9");
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                                     "shared memory of a block"));
  if (layer.grid) return prepare_grid<Real, Sum>(layer, shared);
  const Kernel<Real, Sum> kernel = kernel_of<Real, Sum>(layer);
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                                     "persistent: shared memory"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                                     "persistent: cluster"));
  int32_t fitting = 0;
  for (int32_t i = 0; i < layer.cuts; ++i) {
    PersistentCut cut = layer.cut[i];
    const auto fit = [&](int32_t buffers) {
      int32_t tiles = 0;
      while (tiles < kMaxSequenceTiles && persistent_shared(shape_of(layer, cut, tiles + 1, buffers)).total <= shared)
        ++tiles;
      return tiles;
    };
    cut.sequence_tiles = fit(2);
    cut.of_three_buffers = fit(3);
    if (cut.sequence_tiles == 0) continue;
    LaunchAttributes attributes;
    const cudaLaunchConfig_t config = launch_config(layer, cut, cut.sequence_tiles, 1, attributes);
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
      cudaGetLastError();  // clusters of this size are not to be had there
      continue;
    }
    cut.room = clusters / (cut.blocks / cut.cluster);
    if (cut.room > 0) layer.cut[fitting++] = cut;
  }
  layer.cuts = fitting;
  if (fitting == 0) return unsupported("the device has no room for a team of thread blocks that holds R");
  return {};
}

/// How a batch is spread: teams of `sequence_tiles` tiles each.
struct Spread {
  const PersistentCut* cut;
  int32_t sequence_tiles;
};
/// The cut with the fewest tiles a team, as those follow each other in a step; of those the first.
Spread spread_of(const PersistentLayer& layer, int64_t batch) {
  const int64_t tiles = (batch + kColumns - 1) / kColumns;
  Spread best{};
  for (int32_t i = 0; i < layer.cuts; ++i) {
    const PersistentCut& c = layer.cut[i];
    const int64_t each = std::min<int64_t>((tiles + c.room - 1) / c.room, c.sequence_tiles);
    if (best.cut == nullptr || each < best.sequence_tiles) best = {&c, static_cast<int32_t>(each)};
  }
  return best;
}

/// R in the order in which lanes load it: [tile][split][gate][k tile][lane][16 bytes]. The k of a fragment are permuted
/// so that 16 bytes of a sequence's state are the b of two fragments.
void pack_fragments(const CodeMatrix& R, int64_t hidden, PersistentPack& pack) {
  const PersistentLayer& layer = pack.layer;
  pack.fragments.assign(
      static_cast<size_t>(layer.groups) * static_cast<size_t>(layer.k_splits * 3 * layer.k_tiles) * 512, 0);
  size_t at = 0;
  for (int64_t tile = 0; tile < layer.groups; ++tile)
    for (int64_t split = 0; split < layer.k_splits; ++split)
      for (int64_t gate = 0; gate < 3; ++gate)
        for (int64_t kt = 0; kt < layer.k_tiles; ++kt)
          for (int64_t lane = 0; lane < 32; ++lane)
            for (int64_t i = 0; i < 16; ++i, ++at) {
              const int64_t r = i / 4;  // the register: row half, k half
              const int64_t unit = tile * 16 + lane / 4 + r % 2 * 8;
              const int64_t k =
                  (split * layer.k_tiles + kt / 2 * 2) * 32 + lane % 4 * 16 + kt % 2 * 8 + r / 2 * 4 + i % 4;
              if (unit < hidden && k < hidden) pack.fragments[at] = static_cast<uint8_t>(R.at(gate * hidden + unit, k));
            }
}

template <typename Sum>
Status pack_rows(const GruLayerParameters& p, PersistentLayer& layer, PersistentSumsPack<Sum>& arrays) {
  layer.x_flip = p.grids[kX].is_signed ? 0x80 : 0;
  layer.h_flip = p.grids[kH].is_signed ? 0x80808080 : 0;
  const auto rows = static_cast<size_t>(layer.groups) * 48;
  arrays.start.assign(rows, 0);
  arrays.ratio.assign(rows, 1);
  ProductWeights<Sum> W;
  W.n = int64_t{layer.groups} * 48;
  W.k = p.input_size;
  W.planes = layer.x_planes;
  W.w.assign(rows * static_cast<size_t>(W.k), 0);
  W.start.assign(rows, 0);
  W.ratio.assign(rows, 1);
  W.again.assign(rows, 1);
  W.low = static_cast<Sum>(p.grids[kIh].min() - p.grids[kIh].zero_point);
  W.high = static_cast<Sum>(p.grids[kIh].max() - p.grids[kIh].zero_point);
  for (int64_t gate = 0; gate < 3; ++gate)
    for (int64_t unit = 0; unit < p.hidden_size; ++unit) {
      const int64_t row = gate * p.hidden_size + unit;
      const auto from = static_cast<size_t>(row);
      const auto to = static_cast<size_t>(tile_row(gate, unit));
      arrays.start[to] = static_cast<StartOf<Sum>>(start_of(p, true, row));
      arrays.ratio[to] = ratio_of<Sum>(p.acc_to_hh[from]);
      W.start[to] = static_cast<StartOf<Sum>>(start_of(p, false, row));
      W.ratio[to] = ratio_of<Sum>(p.acc_to_ih[from]);
      W.again[to] = ratio_of<Sum>(p.ih_to_gate[static_cast<size_t>(gate)]);
      for (int64_t k = 0; k < p.input_size; ++k)
        W.w[to * static_cast<size_t>(W.k) + static_cast<size_t>(k)] = static_cast<int8_t>(p.W.at(row, k));
    }
  ISOBIT_ASSIGN_OR_RETURN(arrays.W, pack_product(W));
  sums_of<Sum>(layer).W = arrays.W.product;
  return {};
}

/// Start values are held as double in double lanes.
bool starts_are_exact(const GruLayerParameters& p) {
  constexpr int64_t kLimit = int64_t{1} << 52;
  for (int64_t row = 0; row < 3 * p.hidden_size; ++row)
    for (const bool of_h : {false, true})
      if (const int64_t start = start_of(p, of_h, row); start < -kLimit || start > kLimit) return false;
  return true;
}

bool ratios_at_most_one(const std::vector<RescaleParameters>& ratios) {
  return std::all_of(ratios.begin(), ratios.end(),
                     [](const RescaleParameters& r) { return std::abs(ratio_of<double>(r)) <= 1; });
}

const ProductShape& product_shape(const PersistentLayer& layer) {
  return layer.wide_sums ? layer.wide.W.shape : layer.narrow.W.shape;
}
/// x and ih of one step of one sequence.
int64_t row_bytes(const PersistentLayer& layer) {
  return product_x_row_bytes(product_shape(layer)) + int64_t{layer.groups} * 96;
}
/// Steps whose x and ih are in memory at once.
int64_t chunk_steps(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  return std::clamp<int64_t>(kChunkBytes / (batch * row_bytes(layer)), 1, steps);
}

}  // namespace

Result<PersistentPack> pack_persistent(const GruLayerParameters& p) {
  for (const GruTensor tensor : {kX, kH})
    if (size_in_bytes(p.grids[tensor].dtype()) > 2)
      return unsupported(std::string(kGruTensorNames[tensor]) + " has " + std::to_string(p.grids[tensor].bits) +
                         " bits, must have at most 16");
  for (const GruTensor tensor : {kW, kR}) {
    if (size_in_bytes(p.grids[tensor].dtype()) != 1)
      return unsupported(std::string(kGruTensorNames[tensor]) + " has " + std::to_string(p.grids[tensor].bits) +
                         " bits, must have at most 8");
    if (!p.grids[tensor].is_signed && p.grids[tensor].bits == 8)
      return unsupported(std::string(kGruTensorNames[tensor]) + " has unsigned codes above 127");
  }
  if (p.rounding != Rounding::kNearestEven) return unsupported("rounding must be nearest_even");
  for (const ActivationTable& table : p.tables)
    if (table.input.bits > kMaxTableBits)
      return unsupported("a gate input has " + std::to_string(table.input.bits) + " bits, must have at most 12");
  ISOBIT_ASSIGN_OR_RETURN(const GruProof proof, prove_no_overflow(p, "layer"));
  if (!proof.gates_f32 && !proof.gates_f64) return unsupported("an intermediate is not exact in float64");
  if (p.input_size > kMaxLinearK)  // a plane's sum would not fit 32 bits
    return unsupported("C is " + std::to_string(p.input_size) + ", must be at most " + std::to_string(kMaxLinearK));
  const Grid& ih = p.grids[kIh];
  for (const RescaleParameters& r : p.ih_to_gate)
    for (const int64_t code : {ih.min(), ih.max()}) {
      const int64_t value = rescale(r, code - ih.zero_point, p.rounding);
      if (value < INT16_MIN || value > INT16_MAX) return unsupported("ih on the scale of a gate input exceeds 16 bits");
    }
  PersistentPack pack;
  PersistentLayer& layer = pack.layer;
  layer.hidden_size = static_cast<int32_t>(p.hidden_size);
  layer.h_planes = static_cast<int32_t>(size_in_bytes(p.grids[kH].dtype()));
  layer.x_planes = static_cast<int32_t>(size_in_bytes(p.grids[kX].dtype()));
  const bool bytes = layer.h_planes == 1 && layer.x_planes == 1;
  layer.wide_sums = !bytes || !proof.gates_f32;
  if (layer.wide_sums && !starts_are_exact(p)) return unsupported("a bias on the accumulator exceeds 52 bits");
  // From double sums to float gates hh goes as an integer (rescale_hh).
  const bool hh_is_small =
      proof.acc_h_s32 && ratios_at_most_one(p.acc_to_hh) && largest_difference(p.grids[kHh]) < Int128{1} << 22;
  layer.wide_gates = layer.h_planes == 2 || !proof.cell_f32 || (layer.wide_sums && !hh_is_small);
  ISOBIT_RETURN_IF_ERROR(cut(p.hidden_size, layer));
  ISOBIT_RETURN_IF_ERROR(with_lanes(layer, [&](auto real, auto sum) -> Status {
    using Real = decltype(real);
    using Sum = decltype(sum);
    pack_gates(p, cell_of<Real>(layer), pack.tables);
    layer.table_entries = static_cast<int32_t>(pack.tables.size());
    ISOBIT_RETURN_IF_ERROR((prepare<Real, Sum>(layer)));
    return pack_rows(p, layer, sums_of<Sum>(pack));
  }));
  if (layer.grid) {
    pack_grid(p, pack);
  } else {
    pack_fragments(p.R, p.hidden_size, pack);
  }
  return pack;
}

Status persistent_supports(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, const DeviceLimits&) {
  for (const DeviceLayer& layer : layers)
    if (!layer.persistent.supported) return unsupported(layer.persistent_refusal);
  if (batch > kMaxBatch)
    return unsupported("batch is " + std::to_string(batch) + ", must be at most " + std::to_string(kMaxBatch));
  if (steps > kMaxSteps)
    return unsupported("steps is " + std::to_string(steps) + ", must be at most " + std::to_string(kMaxSteps));
  return {};
}

int64_t persistent_scratch_bytes(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps,
                                 const DeviceLimits& limits) {
  // Smaller runs are supported, too.
  batch = std::min(batch, kMaxBatch);
  steps = std::min(steps, kMaxSteps);
  if (!persistent_supports(layers, batch, steps, limits).ok()) return 0;
  int64_t bytes = 0;
  for (const DeviceLayer& layer : layers) {
    const PersistentLayer& p = layer.persistent;
    // A smaller batch may run more steps in a chunk: the limit itself, where it can be reached.
    const int64_t one = batch * row_bytes(p);
    const int64_t padding = product_x_bytes(product_shape(p), 1) + 2 * kAlignment;
    const int64_t chunk = steps <= kChunkBytes / one ? steps * one : std::max(kChunkBytes, one);
    bytes = std::max(bytes, chunk + padding + (p.grid ? aligned(grid_exchange_bytes(p, batch)) : 0));
  }
  return bytes;
}

namespace {

/// Steps [first, first + steps) of a run; x and ih: room for them.
template <typename Real, typename Sum>
Status launch_chunk(const PersistentLayer& p, const DeviceRun& run, int64_t first, int64_t steps, uint8_t* x,
                    uint16_t* ih, std::byte* exchange, cudaStream_t stream) {
  const PersistentSums<Sum>& sums = sums_of<Sum>(p);
  ProductRows rows;
  rows.codes = static_cast<const uint8_t*>(run.x) + first * run.x_strides.step * p.x_planes;
  rows.rows = steps * run.batch;
  rows.batch = run.batch;
  rows.step = run.x_strides.step * p.x_planes;
  rows.sequence = run.x_strides.sequence * p.x_planes;
  rows.flip = p.x_flip;
  const ProductKernel kernel = choose_product_kernel(sums.W.shape, rows.rows);
  ISOBIT_RETURN_IF_ERROR(pad_product_x(sums.W.shape, kernel, rows, x, stream));
  ISOBIT_RETURN_IF_ERROR(launch_product(sums.W, kernel, x, rows.rows, ih, stream));

  if (p.grid) {
    PersistentChunk chunk{};
    chunk.ih = ih;
    chunk.first_step = first;
    chunk.steps = steps;
    chunk.batch = run.batch;
    chunk.state = static_cast<uint8_t*>(run.state);
    chunk.y_step = run.y_strides.step * p.h_planes;
    chunk.y_sequence = run.y_strides.sequence * p.h_planes;
    chunk.y = static_cast<uint8_t*>(run.y) + first * chunk.y_step;
    chunk.lengths = run.lengths;
    chunk.mask = run.mask;
    chunk.mask_width = run.mask_width;
    chunk.reverse = run.reverse;
    return launch_grid<Real, Sum>(p, chunk, exchange, stream);
  }
  const Spread spread = spread_of(p, run.batch);
  PersistentArgs<Real, Sum> a{};
  a.gates = cell_of<Real>(p);
  a.fragments = p.fragments;
  a.start = sums.start;
  a.ratio = sums.ratio;
  a.tables = p.tables;
  a.table_entries = p.table_entries;
  a.ih = ih;
  a.groups = p.groups;
  a.first_step = static_cast<int32_t>(first);
  a.steps = static_cast<int32_t>(steps);
  a.batch = static_cast<int32_t>(run.batch);
  a.hidden = p.hidden_size;
  a.state = static_cast<uint8_t*>(run.state);
  a.state_before = a.state;
  a.y_step = run.y_strides.step * p.h_planes;
  a.y_sequence = run.y_strides.sequence * p.h_planes;
  a.y = static_cast<uint8_t*>(run.y) + first * a.y_step;
  a.flip = p.h_flip;
  a.lengths = run.lengths;
  a.mask = run.mask;
  a.mask_width = run.mask_width;
  a.reverse = run.reverse;
  a.cluster = spread.cut->cluster;
  a.unit_blocks = spread.cut->unit_blocks;
  a.k_splits = p.k_splits;
  a.sequence_tiles = spread.sequence_tiles;
  a.state_buffers = state_buffers(*spread.cut, spread.sequence_tiles);
  const int64_t tiles = (run.batch + kColumns - 1) / kColumns;
  const int64_t teams = (tiles + spread.sequence_tiles - 1) / spread.sequence_tiles;
  LaunchAttributes attributes;
  cudaLaunchConfig_t config = launch_config(p, *spread.cut, spread.sequence_tiles, teams, attributes);
  config.stream = stream;
  a.sequences = static_cast<int32_t>(run.batch);
  return cuda_status(cudaLaunchKernelEx(&config, kernel_of<Real, Sum>(p), a), "kernel gru_persistent");
}

}  // namespace

Status persistent_launch(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits&, cudaStream_t stream) {
  const PersistentLayer& p = layer.persistent;
  const int64_t chunk = chunk_steps(p, run.batch, run.steps);
  std::byte* scratch = run.scratch;
  const auto take = [&scratch](int64_t bytes) {
    std::byte* const piece = scratch;
    scratch += aligned(bytes);
    return piece;
  };
  std::byte* const exchange = take(p.grid ? grid_exchange_bytes(p, run.batch) : 0);
  auto* const x = reinterpret_cast<uint8_t*>(take(product_x_bytes(product_shape(p), chunk * run.batch)));
  auto* const ih = reinterpret_cast<uint16_t*>(scratch);
  return with_lanes(p, [&](auto real, auto sum) -> Status {
    for (int64_t done = 0; done < run.steps; done += chunk) {
      const int64_t steps = std::min(chunk, run.steps - done);
      const int64_t first = run.reverse ? run.steps - done - steps : done;
      ISOBIT_RETURN_IF_ERROR(
          (launch_chunk<decltype(real), decltype(sum)>(p, run, first, steps, x, ih, exchange, stream)));
    }
    return {};
  });
}

}  // namespace isobit::cuda
