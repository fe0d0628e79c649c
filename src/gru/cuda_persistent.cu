// SPDX-License-Identifier: Apache-2.0
// The persistent kernel's host side: which layers it runs, how it is cut, packing, launch. W x of many steps is one
// product before the recurrence, in chunks of steps, so that memory does not grow with their number without limit.
#include "gru/cuda_persistent.cuh"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/cuda_status.h"
#include "gru/cuda_gru.h"
#include "gru/proof.h"
#include "gru/reference.h"
#include "linear/cuda_product.h"
#include "linear/linear.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{128} << 20;  // of x and ih
constexpr int64_t kAlignment = 256;
constexpr int32_t kMaxTableBits = 12;  // of a gate input: tables are in shared memory

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
float ratio_of(const RescaleParameters& r) {
  return static_cast<float>(std::ldexp(static_cast<double>(r.multiplier), -r.shift));
}
Status unsupported(const std::string& what) { return {StatusCode::kUnsupported, what}; }

using Kernel = void (*)(PersistentArgs);
Kernel kernel_of(const PersistentLayer& layer) { return layer.k_tiles == 4 ? gru_persistent<4> : gru_persistent<8>; }

/// How the hidden units are cut: the best of 1 to 16 blocks and of one to four warps a group, timed on an H200 at H =
/// 128, 256 and 512 with 1, 64 and 256 sequences. More blocks have less to multiply and more to exchange.
Status cut(int64_t hidden, PersistentLayer& layer) {
  layer.tiles = static_cast<int32_t>((hidden + 15) / 16);
  layer.cluster = hidden <= 128 ? 2 : hidden <= 384 ? 8 : 16;
  layer.k_tiles = hidden <= 256 ? 4 : 8;
  layer.unit_blocks = (layer.tiles + layer.cluster - 1) / layer.cluster;
  layer.tiles = layer.unit_blocks * layer.cluster;
  const int32_t k_tiles = (layer.tiles * 16 + 31) / 32;
  layer.k_splits = (k_tiles + layer.k_tiles - 1) / layer.k_tiles;
  if (layer.unit_blocks * layer.k_splits + 1 > persistent_max_warps(layer.k_tiles))
    return unsupported("H is " + std::to_string(hidden) + ": R does not fit the registers of 16 blocks");
  return {};
}

cudaLaunchConfig_t launch_config(const PersistentLayer& layer, int64_t batch, cudaLaunchAttribute& attribute) {
  cudaLaunchConfig_t config{};
  const int64_t clusters = (batch + kColumns - 1) / kColumns;
  config.gridDim = dim3(static_cast<unsigned>(clusters * layer.cluster));
  config.blockDim = dim3(static_cast<unsigned>(32 * (layer.unit_blocks * layer.k_splits + 1)));
  config.dynamicSmemBytes = static_cast<size_t>(
      persistent_shared(layer.k_tiles, layer.cluster, layer.unit_blocks, layer.k_splits, layer.table_entries).total);
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(layer.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  return config;
}

/// Attributes of the kernels on the current device; and that a cluster finds room there, or a launch would fail.
Status prepare(const PersistentLayer& layer) {
  int device = 0, major = 0, shared = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability"));
  if (major < 9) return unsupported("the device has no thread block clusters");
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                                     "shared memory of a block"));
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = launch_config(layer, 1, attribute);
  if (config.dynamicSmemBytes > static_cast<size_t>(shared))
    return unsupported("it needs " + std::to_string(config.dynamicSmemBytes) + " bytes of shared memory, a block has " +
                       std::to_string(shared));
  const Kernel kernel = kernel_of(layer);
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                                     "persistent: shared memory"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                                     "persistent: cluster"));
  int clusters = 0;
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "clusters on the device"));
  if (clusters < 1) return unsupported("the device has no room for a cluster of " + std::to_string(layer.cluster));
  return {};
}

/// Row of ih for a gate of a unit: PersistentArgs::ih.
int64_t ih_row(int64_t gate, int64_t unit) { return unit / 16 * 48 + unit % 8 * 6 + gate * 2 + unit % 16 / 8; }

/// Start values, with the zero point and the storage offset of the unsigned activations folded in.
int32_t start_of(const CodeMatrix& weights, const CodeMatrix& biases, const RescaleParameters& bias_to_acc,
                 const Grid& activation, int64_t row, Rounding mode) {
  int64_t sum = 0;
  for (int64_t k = 0; k < weights.columns(); ++k) sum += weights.at(row, k);
  // Partial sums wrap; the complete accumulator fits.
  return static_cast<int32_t>(
      static_cast<uint32_t>(rescale(bias_to_acc, biases.at(row, 0), mode) -
                            (activation.zero_point + storage_offset(activation.dtype())) * sum));
}

/// R in the order in which lanes load it: [tile][split][gate][k tile][lane][16 bytes]. The k of a fragment are permuted
/// so that 16 bytes of a sequence's state are the b of two fragments.
void pack_fragments(const CodeMatrix& R, int64_t hidden, PersistentPack& pack) {
  const PersistentLayer& layer = pack.layer;
  pack.fragments.assign(
      static_cast<size_t>(layer.tiles) * static_cast<size_t>(layer.k_splits * 3 * layer.k_tiles) * 512, 0);
  size_t at = 0;
  for (int64_t tile = 0; tile < layer.tiles; ++tile)
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

/// The gates' constants and tables.
void pack_gates(const GruLayerParameters& p, PersistentPack& pack) {
  PersistentGates& c = pack.layer.gates;
  const auto difference = [](int64_t code, const Grid& grid) { return static_cast<float>(code - grid.zero_point); };
  const Grid& hh = p.grids[kHh];
  const Grid& h = p.grids[kH];
  c.hh_low = difference(hh.min(), hh);
  c.hh_high = difference(hh.max(), hh);
  for (size_t gate = 0; gate < 3; ++gate) {
    const Grid& in = p.tables[gate].input;
    const Grid& out = p.tables[gate].output;
    c.hh_to_gate[gate] = ratio_of(gate == 2 ? p.rhh_to_n : p.hh_to_gate[gate]);
    c.gate_low[gate] = kMagic<float> + difference(in.min(), in);
    c.gate_high[gate] = kMagic<float> + difference(in.max(), in);
    const auto first = static_cast<int64_t>(pack.tables.size()) - (in.min() - in.zero_point);
    c.gate_to_byte[gate] = 4 * static_cast<uint32_t>(first) - 4 * __builtin_bit_cast(uint32_t, kMagic<float>);
    for (int64_t q = in.min(); q <= in.max(); ++q) pack.tables.push_back(difference(p.tables[gate](q), out));
  }
  c.n_to_h = ratio_of(p.n_to_h);
  c.u_to_one = ratio_of(p.u_to_one);
  c.one = difference(p.one, p.grids[kU]);
  c.h_low = difference(h.min(), h);
  c.h_high = difference(h.max(), h);
  c.h_to_unsigned = static_cast<int32_t>(h.zero_point + storage_offset(h.dtype()));
  c.h_to_code = kMagic<float> + static_cast<float>(c.h_to_unsigned);
  pack.layer.table_entries = static_cast<int32_t>(pack.tables.size());
}

Status pack_rows(const GruLayerParameters& p, PersistentPack& pack) {
  PersistentLayer& layer = pack.layer;
  layer.x_flip = p.grids[kX].is_signed ? 0x80 : 0;
  layer.h_flip = p.grids[kH].is_signed ? 0x80808080 : 0;
  const auto rows = static_cast<size_t>(layer.tiles) * 48;
  pack.start.assign(rows, 0);
  pack.ratio.assign(rows, 1);
  ProductWeights W;
  W.n = int64_t{layer.tiles} * 48;
  W.k = p.input_size;
  W.w.assign(rows * static_cast<size_t>(W.k), 0);
  W.start.assign(rows, 0);
  W.ratio.assign(rows, 1);
  W.again.assign(rows, 1);
  W.low = static_cast<float>(p.grids[kIh].min() - p.grids[kIh].zero_point);
  W.high = static_cast<float>(p.grids[kIh].max() - p.grids[kIh].zero_point);
  for (int64_t gate = 0; gate < 3; ++gate)
    for (int64_t unit = 0; unit < p.hidden_size; ++unit) {
      const int64_t row = gate * p.hidden_size + unit;
      const auto from = static_cast<size_t>(row);
      const auto to_h = static_cast<size_t>(tile_row(gate, unit));
      const auto to_x = static_cast<size_t>(ih_row(gate, unit));
      pack.start[to_h] = start_of(p.R, p.br, p.br_to_acc[from], p.grids[kH], row, p.rounding);
      pack.ratio[to_h] = ratio_of(p.acc_to_hh[from]);
      W.start[to_x] = start_of(p.W, p.bw, p.bw_to_acc[from], p.grids[kX], row, p.rounding);
      W.ratio[to_x] = ratio_of(p.acc_to_ih[from]);
      W.again[to_x] = ratio_of(p.ih_to_gate[static_cast<size_t>(gate)]);
      for (int64_t k = 0; k < p.input_size; ++k)
        W.w[to_x * static_cast<size_t>(W.k) + static_cast<size_t>(k)] = static_cast<int8_t>(p.W.at(row, k));
    }
  ISOBIT_ASSIGN_OR_RETURN(pack.W, pack_product(W));
  layer.W = pack.W.product;
  return {};
}

/// Of x and ih of one step.
int64_t step_bytes(const PersistentLayer& layer, int64_t batch) {
  return batch * (product_x_row_bytes(layer.W) + int64_t{layer.tiles} * 96);
}
/// Steps whose x and ih are in memory at once.
int64_t chunk_steps(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  return std::clamp<int64_t>(kChunkBytes / step_bytes(layer, batch), 1, steps);
}

}  // namespace

Result<PersistentPack> pack_persistent(const GruLayerParameters& p) {
  for (const GruTensor tensor : {kX, kH, kW, kR})
    if (size_in_bytes(p.grids[tensor].dtype()) != 1)
      return unsupported(std::string(kGruTensorNames[tensor]) + " has " + std::to_string(p.grids[tensor].bits) +
                         " bits, must have at most 8");
  for (const GruTensor tensor : {kW, kR})
    if (!p.grids[tensor].is_signed && p.grids[tensor].bits == 8)
      return unsupported(std::string(kGruTensorNames[tensor]) + " has unsigned codes above 127");
  if (p.rounding != Rounding::kNearestEven) return unsupported("rounding must be nearest_even");
  for (const ActivationTable& table : p.tables)
    if (table.input.bits > kMaxTableBits)
      return unsupported("a gate input has " + std::to_string(table.input.bits) + " bits, must have at most 12");
  ISOBIT_ASSIGN_OR_RETURN(const GruProof proof, prove_no_overflow(p, "layer"));
  if (!proof.gates_f32 || !proof.acc_x_s32 || !proof.acc_h_s32)
    return unsupported("an intermediate is not exact in float32");
  const Grid& ih = p.grids[kIh];
  for (const RescaleParameters& r : p.ih_to_gate)
    for (const int64_t code : {ih.min(), ih.max()}) {
      const int64_t value = rescale(r, code - ih.zero_point, p.rounding);
      if (value < INT16_MIN || value > INT16_MAX) return unsupported("ih on the scale of a gate input exceeds 16 bits");
    }
  PersistentPack pack;
  pack.layer.hidden_size = static_cast<int32_t>(p.hidden_size);
  ISOBIT_RETURN_IF_ERROR(cut(p.hidden_size, pack.layer));
  pack_gates(p, pack);
  ISOBIT_RETURN_IF_ERROR(prepare(pack.layer));
  ISOBIT_RETURN_IF_ERROR(pack_rows(p, pack));
  pack_fragments(p.R, p.hidden_size, pack);
  return pack;
}

Status persistent_supports(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, const DeviceLimits&) {
  for (const DeviceLayer& layer : layers)
    if (!layer.persistent.supported)
      return unsupported(
          "it takes 8-bit x, h and weights, rounding nearest_even, H to 768, and a device with clusters");
  if (batch > INT32_MAX / 512 || steps > INT32_MAX) return unsupported("it takes fewer sequences or steps");
  return {};
}

int64_t persistent_scratch_bytes(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps,
                                 const DeviceLimits& limits) {
  if (!persistent_supports(layers, batch, steps, limits).ok()) return 0;
  int64_t bytes = 0;
  for (const DeviceLayer& layer : layers) {
    const PersistentLayer& p = layer.persistent;
    // A smaller batch may run more steps in a chunk: the limit itself, where it can be reached.
    const int64_t one = step_bytes(p, batch);
    const int64_t padding = product_x_bytes(p.W, 1) + 2 * kAlignment;
    bytes = std::max(bytes, std::min(steps * one, std::max(kChunkBytes, one)) + padding);
  }
  return bytes;
}

Status persistent_launch(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits&, cudaStream_t stream) {
  const PersistentLayer& p = layer.persistent;
  const int64_t chunk = chunk_steps(p, run.batch, run.steps);
  auto* const x = reinterpret_cast<uint8_t*>(run.scratch);
  auto* const ih = reinterpret_cast<uint16_t*>(run.scratch + aligned(product_x_bytes(p.W, chunk * run.batch)));
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = [&] {
    cudaLaunchConfig_t c = launch_config(p, run.batch, attribute);
    c.stream = stream;
    return c;
  }();
  for (int64_t done = 0; done < run.steps; done += chunk) {
    const int64_t steps = std::min(chunk, run.steps - done);
    const int64_t first = run.reverse ? run.steps - done - steps : done;
    ProductRows rows;
    rows.codes = static_cast<const uint8_t*>(run.x) + first * run.x_strides.step;
    rows.rows = steps * run.batch;
    rows.batch = run.batch;
    rows.step = run.x_strides.step;
    rows.sequence = run.x_strides.sequence;
    rows.flip = p.x_flip;
    const ProductKernel kernel = choose_product_kernel(p.W, rows.rows);
    ISOBIT_RETURN_IF_ERROR(pad_product_x(p.W, kernel, rows, x, stream));
    ISOBIT_RETURN_IF_ERROR(launch_product(p.W, kernel, x, rows.rows, ih, stream));

    PersistentArgs a{};
    a.gates = p.gates;
    a.fragments = p.fragments;
    a.start = p.start;
    a.ratio = p.ratio;
    a.tables = p.tables;
    a.table_entries = p.table_entries;
    a.ih = ih;
    a.tiles = p.tiles;
    a.first_step = static_cast<int32_t>(first);
    a.steps = static_cast<int32_t>(steps);
    a.batch = static_cast<int32_t>(run.batch);
    a.hidden = p.hidden_size;
    a.state = static_cast<uint8_t*>(run.state);
    a.y = static_cast<uint8_t*>(run.y) + first * run.y_strides.step;
    a.y_step = run.y_strides.step;
    a.y_sequence = run.y_strides.sequence;
    a.flip = p.h_flip;
    a.lengths = run.lengths;
    a.mask = run.mask;
    a.mask_width = run.mask_width;
    a.reverse = run.reverse;
    a.cluster = p.cluster;
    a.unit_blocks = p.unit_blocks;
    a.k_splits = p.k_splits;
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaLaunchKernelEx(&config, kernel_of(p), a), "kernel gru_persistent"));
  }
  return {};
}

}  // namespace isobit::cuda
