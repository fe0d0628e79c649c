// SPDX-License-Identifier: Apache-2.0
// The persistent kernel's host side: which layers it runs, how it is cut, packing, launch. W x of many steps is one
// product before the recurrence, in chunks of steps, so that memory does not grow with their number without limit.
#include "gru/cuda_persistent.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "core/cuda_status.h"
#include "gru/cuda_cluster.h"
#include "gru/cuda_grid.h"
#include "gru/cuda_gru.h"
#include "gru/kernels.h"
#include "gru/proof.h"
#include "gru/reference.h"
#include "linear/cuda_product.h"
#include "linear/product.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{128} << 20;  // of x and ih
constexpr int64_t kAlignment = 256;
constexpr int32_t kMaxTableBits = 12;  // of a gate input: tables are in shared memory
// Rows and turns are counted in 32 bits.
constexpr int64_t kMaxBatch = INT32_MAX / 512;
constexpr int64_t kMaxSteps = INT32_MAX / 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
Status unsupported(const std::string& what) { return {StatusCode::kUnsupported, what}; }

/// Calls body(Real(), Sum()) with the layer's lanes.
template <typename Body>
Status with_lanes(const PersistentLayer& layer, Body body) {
  if (layer.wide_gates) return body(double(), double());
  if (layer.wide_sums) return body(float(), double());
  return body(float(), float());
}

/// Which cuts find room on the current device; attributes of the kernels there.
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
  return layer.grid ? prepare_grid<Real, Sum>(layer, shared) : prepare_cluster<Real, Sum>(layer, shared);
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
  layer.grid = p.hidden_size > kMaxClusterHidden;
  if (p.hidden_size > kMaxGridHidden)
    return unsupported("H is " + std::to_string(p.hidden_size) + ": R does not fit the registers of the device");
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
    pack_cluster(p, pack);
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

/// Steps [first, first + steps) of a run; x and ih: room for them. Three grids: the padding is an ordinary launch, so
/// all that is before it in the stream has ended when it begins, the chunk before included. The product begins early,
/// and so do gru_cluster and gru_cluster_many: before they have waited for the grid in front of them they touch nothing
/// but constants and shared memory. The cooperative launch of gru_grid is an ordinary one.
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
  return p.grid ? launch_grid<Real, Sum>(p, chunk, exchange, stream) : launch_cluster<Real, Sum>(p, chunk, stream);
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

/// A launch that takes the whole device must not meet another one.
bool persistent_beside(const DeviceLayer& layer) { return !layer.persistent.grid; }

}  // namespace isobit::cuda
