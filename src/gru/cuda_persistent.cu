// SPDX-License-Identifier: Apache-2.0
// The persistent kernel's host side: which layers it runs, how it is cut, packing, launch. W x of many steps is one
// product before the recurrence, in chunks of steps, so that memory does not grow with their number without limit.
#include "gru/cuda_persistent.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/cuda_status.h"
#include "gru/cuda_cluster.h"
#include "gru/cuda_grid.h"
#include "gru/cuda_gru.h"
#include "gru/cuda_persistent_hooks.h"
#include "gru/kernels.h"
#include "gru/proof.h"
#include "gru/reference.h"
#include "linear/cuda_product.h"
#include "linear/product.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{512} << 20;  // of x and ih: a chunk more takes some 20 us
std::atomic<int64_t> chunk_bytes{kChunkBytes};
constexpr int64_t kAlignment = 256;
constexpr int32_t kMaxTableBits = 12;  // of a gate input: tables are in shared memory
// Rows and turns are counted in 32 bits.
constexpr int64_t kMaxBatch = INT32_MAX / 512;
constexpr int64_t kMaxSteps = INT32_MAX / 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
Status unsupported(const std::string& what) { return {StatusCode::kUnsupported, what}; }

/// Calls body with a value of the type of ratios.
template <typename Body>
auto with_ratios(RatioType type, Body body) {
  return type == RatioType::kDouble ? body(double()) : type == RatioType::kFloat ? body(float()) : body(Fixed());
}
/// The same of R h, where h has so many planes.
template <typename Body>
auto with_state_ratios(RatioType type, int32_t planes, Body body) {
  if (planes == 1) return with_ratios(type, body);
  return type == RatioType::kDouble ? body(double()) : body(WideFixed());
}

/// Which cuts find room on the current device; attributes of the kernels there.
template <typename Ratio>
Status prepare(PersistentLayer& layer) {
  int device = 0, major = 0, shared = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability"));
  if (major != 9)
    return unsupported("the device has compute capability " + std::to_string(major) + ", it is made for 9");
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                                     "shared memory of a block"));
  if (layer.grid) return prepare_grid<Ratio>(layer, shared);
  ISOBIT_RETURN_IF_ERROR(prepare_cluster<Ratio>(layer, shared));
  return prepare_grid_many<Ratio>(layer, shared);
}

/// Of a row of R (of_h) or W, for the device; by_shifts: of Fixed.
template <typename Ratio>
void pack_row(const GruLayerParameters& p, bool of_h, int64_t row, bool by_shifts, SumOf<Ratio>& start, Ratio& ratio) {
  const RescaleParameters& rescale = (of_h ? p.acc_to_hh : p.acc_to_ih)[static_cast<size_t>(row)];
  int64_t first = start_of(p, of_h, row);
  if constexpr (kIsInteger<Ratio>) {
    ratio = (by_shifts ? to_shift<Ratio>(rescale) : to_fixed<Ratio>(rescale)).value();
    if (by_shifts) first += (int64_t{1} << (ratio.shift - 1)) - 1;
  } else {
    ratio = ratio_of<Ratio>(rescale);
  }
  start = static_cast<SumOf<Ratio>>(first);
}

template <typename Ratio>
void pack_rows(const GruLayerParameters& p, PersistentPack& pack) {
  auto& arrays = std::get<PersistentRowsPack<Ratio>>(pack.rows);
  const auto rows = static_cast<size_t>(pack.layer.groups) * 48;
  arrays.start.assign(rows, 0);
  arrays.ratio.assign(rows, Ratio{});
  auto& gates = std::get<GateLanes<LaneOf<Ratio>>>(pack.layer.gates);
  gates.hh_by_shifts = pack.layer.ratios.h == RatioType::kShift;
  for (int64_t gate = 0; gate < 3; ++gate)
    for (int64_t unit = 0; unit < p.hidden_size; ++unit) {
      const auto to = static_cast<size_t>(tile_row(gate, unit));
      pack_row(p, true, gate * p.hidden_size + unit, gates.hh_by_shifts, arrays.start[to], arrays.ratio[to]);
    }
}

template <typename Ratio>
Status pack_input_product(const GruLayerParameters& p, PersistentPack& pack) {
  const PersistentLayer& layer = pack.layer;
  const auto rows = static_cast<size_t>(layer.groups) * 48;
  ProductWeights<Ratio> W;
  W.n = int64_t{layer.groups} * 48;
  W.k = p.input_size;
  W.planes = layer.x_planes;
  W.w.assign(rows * static_cast<size_t>(W.k), 0);
  W.start.assign(rows, 0);
  W.ratio.assign(rows, Ratio{});
  W.again.assign(rows, 0);
  W.low = static_cast<LimitOf<Ratio>>(p.grids[kIh].min() - p.grids[kIh].zero_point);
  W.high = static_cast<LimitOf<Ratio>>(p.grids[kIh].max() - p.grids[kIh].zero_point);
  W.by_shifts = layer.ratios.x == RatioType::kShift;
  for (int64_t gate = 0; gate < 3; ++gate)
    for (int64_t unit = 0; unit < p.hidden_size; ++unit) {
      const int64_t row = gate * p.hidden_size + unit;
      const auto to = static_cast<size_t>(tile_row(gate, unit));
      pack_row(p, false, row, W.by_shifts, W.start[to], W.ratio[to]);
      W.again[to] = ratio_of<LaneOf<Ratio>>(p.ih_to_gate[static_cast<size_t>(gate)]);
      for (int64_t k = 0; k < p.input_size; ++k)
        W.w[to * static_cast<size_t>(W.k) + static_cast<size_t>(k)] = static_cast<int8_t>(p.W.at(row, k));
    }
  auto& product = std::get<ProductPack<Ratio>>(pack.W);
  ISOBIT_ASSIGN_OR_RETURN(product, pack_product(W));
  std::get<DeviceProduct<Ratio>>(pack.layer.W) = product.product;
  return {};
}

/// Start values are held as double in double lanes.
bool starts_are_exact(const GruLayerParameters& p, const PersistentLayer& layer) {
  constexpr int64_t kLimit = int64_t{1} << 52;
  for (const bool of_h : {false, true}) {
    if ((of_h ? layer.ratios.h : layer.ratios.x) != RatioType::kDouble) continue;
    for (int64_t row = 0; row < 3 * p.hidden_size; ++row)
      if (const int64_t start = start_of(p, of_h, row); start < -kLimit || start > kLimit) return false;
  }
  return true;
}

/// The largest magnitude of a sum of a row of R (of_h) or W, start value included, or what is left of it on its way.
int64_t largest_sum(const GruLayerParameters& p, bool of_h, int64_t row) {
  const CodeMatrix& weights = of_h ? p.R : p.W;
  const int64_t most_code = size_in_bytes(p.grids[of_h ? kH : kX].dtype()) == 1 ? 255 : 65535;
  int64_t sum = 0;
  for (int64_t k = 0; k < weights.columns(); ++k) sum += std::abs(weights.at(row, k));
  return sum * most_code + std::abs(start_of(p, of_h, row));
}
/// Whether all ratios of a product are 2^-shift, no sum with 2^(shift - 1) more has too many bits, and results fit.
template <typename Ratio>
bool fits_shifts(const GruLayerParameters& p, bool of_h) {
  const std::vector<RescaleParameters>& ratios = of_h ? p.acc_to_hh : p.acc_to_ih;
  for (size_t row = 0; row < ratios.size(); ++row) {
    const std::optional<Ratio> ratio = to_shift<Ratio>(ratios[row]);
    if (!ratio) return false;
    const int64_t sum = largest_sum(p, of_h, static_cast<int64_t>(row)) + (int64_t{1} << (ratio->shift - 1));
    if (sum >= int64_t{1} << Ratio::kSumBits || sum >> ratio->shift > 1 << 30) return false;
  }
  return true;
}
/// The same with multipliers.
template <typename Ratio>
bool fits_fixed(const GruLayerParameters& p, bool of_h) {
  const std::vector<RescaleParameters>& ratios = of_h ? p.acc_to_hh : p.acc_to_ih;
  for (size_t row = 0; row < ratios.size(); ++row) {
    if (!to_fixed<Ratio>(ratios[row])) return false;
    if constexpr (std::is_same_v<Ratio, WideFixed>) {  // others are below a quarter of 32 bits, and proved to fit these
      const int64_t sum = largest_sum(p, of_h, static_cast<int64_t>(row));
      if (sum >= int64_t{1} << Ratio::kSumBits || static_cast<double>(sum) * ratio_of<double>(ratios[row]) > 1 << 29)
        return false;
    }
  }
  return true;
}
/// Whether ih * ih_to_gate is exact in float lanes, but for its rounding to an integer of 16 bits.
bool ih_fits_float(const GruLayerParameters& p) {
  return largest_difference(p.grids[kIh]) < Int128{1} << 22 &&
         std::all_of(p.ih_to_gate.begin(), p.ih_to_gate.end(),
                     [](const RescaleParameters& r) { return ratio_of<float>(r) == ratio_of<double>(r); });
}
/// Of R (of_h) or W. fit_float: sums and what is made of them; fit_word: sums; result_fits: what they are rescaled to,
/// in float lanes.
RatioType ratio_type(const GruLayerParameters& p, bool of_h, bool fit_float, bool fit_word, bool result_fits) {
  if (fit_float) return RatioType::kFloat;
  if (!fit_word || !result_fits) return RatioType::kDouble;
  if (fits_shifts<Fixed>(p, of_h)) return RatioType::kShift;
  return fits_fixed<Fixed>(p, of_h) ? RatioType::kFixed : RatioType::kDouble;
}
/// Of R, for h of two bytes.
RatioType wide_ratio_type(const GruLayerParameters& p) {
  // Sums of low bytes begin with the start value, in 32 bits.
  for (int64_t row = 0; row < 3 * p.hidden_size; ++row)
    if (std::abs(start_of(p, true, row)) > 1 << 30) return RatioType::kDouble;
  if (fits_shifts<WideFixed>(p, true)) return RatioType::kShift;
  return fits_fixed<WideFixed>(p, true) ? RatioType::kFixed : RatioType::kDouble;
}

const ProductShape& product_shape(const PersistentLayer& layer) {
  switch (layer.ratios.x) {
    case RatioType::kFloat: return std::get<DeviceProduct<float>>(layer.W).shape;
    case RatioType::kShift:
    case RatioType::kFixed: return std::get<DeviceProduct<Fixed>>(layer.W).shape;
    case RatioType::kDouble: break;
  }
  return std::get<DeviceProduct<double>>(layer.W).shape;
}
/// x and ih of one step of one sequence.
int64_t row_bytes(const PersistentLayer& layer) {
  return product_x_row_bytes(product_shape(layer)) + int64_t{layer.groups} * 96;
}
/// Steps whose x and ih are in memory at once.
int64_t chunk_steps(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  return std::clamp<int64_t>(chunk_bytes.load(std::memory_order_relaxed) / (batch * row_bytes(layer)), 1, steps);
}

}  // namespace

LayerRatios choose_ratios(const GruLayerParameters& p, const GruProof& proof) {
  const auto is_byte = [&](GruTensor tensor) { return size_in_bytes(p.grids[tensor].dtype()) == 1; };
  LayerRatios ratios{RatioType::kDouble, RatioType::kDouble};
  ratios.x = ratio_type(p, false, proof.gates_f32 && is_byte(kX), proof.acc_x_s32, ih_fits_float(p));
  const bool hh_fits = largest_difference(p.grids[kHh]) < Int128{1} << 22;
  if (!proof.cell_f32) return ratios;
  if (is_byte(kH)) {
    ratios.h = ratio_type(p, true, proof.gates_f32, proof.acc_h_s32, hh_fits);
  } else if (hh_fits) {
    ratios.h = wide_ratio_type(p);
  }
  return ratios;
}

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
  if (!float_holds_n(p)) return unsupported("n on the scale of h exceeds 24 bits");
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
  layer.x_flip = p.grids[kX].is_signed ? 0x80 : 0;
  layer.h_flip = p.grids[kH].is_signed ? 0x80808080 : 0;
  layer.ratios = choose_ratios(p, proof);
  if (!starts_are_exact(p, layer)) return unsupported("a bias on the accumulator exceeds 52 bits");
  layer.grid = p.hidden_size > kMaxClusterHidden;
  if (p.hidden_size > kMaxGridHidden)
    return unsupported("H is " + std::to_string(p.hidden_size) + ": R does not fit the registers of the device");
  ISOBIT_RETURN_IF_ERROR(with_state_ratios(layer.ratios.h, layer.h_planes, [&](auto ratio) -> Status {
    using Ratio = decltype(ratio);
    pack_gates(p, std::get<GateLanes<LaneOf<Ratio>>>(layer.gates), pack.tables);
    layer.table_entries = static_cast<int32_t>(pack.tables.size());
    ISOBIT_RETURN_IF_ERROR((prepare<Ratio>(layer)));
    pack_rows<Ratio>(p, pack);
    return {};
  }));
  ISOBIT_RETURN_IF_ERROR(
      with_ratios(layer.ratios.x, [&](auto ratio) { return pack_input_product<decltype(ratio)>(p, pack); }));
  if (!layer.grid) pack_cluster(p, pack);
  if (layer.grid || layer.grid_cut.cluster > 0) pack_grid(p, pack);
  return pack;
}

void set_chunk_bytes(int64_t bytes) { chunk_bytes.store(bytes == 0 ? kChunkBytes : bytes, std::memory_order_relaxed); }

Result<int64_t> chunks_of(const GruLayerParameters& p, int64_t batch, int64_t steps) {
  ISOBIT_ASSIGN_OR_RETURN(const PersistentPack pack, pack_persistent(p));
  const int64_t chunk = chunk_steps(pack.layer, batch, steps);
  return (steps + chunk - 1) / chunk;
}

Result<int32_t> grid_teams(const GruLayerParameters& p, int64_t batch) {
  ISOBIT_ASSIGN_OR_RETURN(const PersistentPack pack, pack_persistent(p));
  return takes_grid(pack.layer, batch) ? pack.layer.grid_cut.teams : 0;
}

namespace {

/// Fewer steps are `step`'s: a run of `persistent` begins with a product and with reading R. To so many hidden units
/// and sequences; the first row that fits. Beside each the time of `persistent` by that of `step` for some numbers of
/// steps on an H200 (isobit bench gru --device cuda --mode sequence --kernel persistent,step --steps T).
struct FewestSteps {
  int64_t hidden, batch, steps;
};
constexpr FewestSteps kFewestSteps[] = {
    {512, INT64_MAX, 4},        // 4: 0.74 to 1.04
    {768, 15, 7},               // 6: 1.11, 8: 0.94
    {768, INT64_MAX, 5},        // 4: 1.04 to 1.20, 6: 0.84 to 0.95
    {1024, 15, 9},              // 8: 1.08, 12: 0.86
    {1024, 63, 6},              // 4: 1.27, 6: 0.98
    {1024, 64, 5},              // of 64: 4: 1.08, 6: 0.81
    {1024, INT64_MAX, 4},       // of 256: 4: 0.80
    {1536, 15, 7},              // 6: 1.14, 8: 0.96
    {1536, 63, 6},              // 5: 1.13, 6: 0.89
    {INT64_MAX, 63, 5},         // 4: 1.03 to 1.24, 6: 0.77 to 0.89
    {INT64_MAX, INT64_MAX, 4},  // 4: 0.57 to 0.82
};

}  // namespace

int64_t persistent_fewest_steps(std::span<const DeviceLayer> layers, int64_t batch) {
  for (const FewestSteps& row : kFewestSteps)
    if (layers.front().hidden_size <= row.hidden && batch <= row.batch) return row.steps;
  return 1;
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
    const int64_t most = chunk_bytes.load(std::memory_order_relaxed);
    const int64_t chunk = steps <= most / one ? steps * one : std::max(most, one);
    bytes = std::max(bytes, chunk + padding + aligned(grid_exchange_bytes(p, batch)));
  }
  return bytes;
}

namespace {

/// Steps [first, first + steps) of a run, from `state` on; x and ih: room for them. Three grids: the padding is an
/// ordinary launch, so all that is before it in the stream has ended when it begins, the chunk before included. The
/// product begins early, and so do gru_cluster and gru_cluster_many: before they have waited for the grid in front of
/// them they touch nothing but constants and shared memory. The cooperative launch of gru_grid is an ordinary one.
Status launch_chunk(const PersistentLayer& p, const DeviceRun& run, const void* state, int64_t first, int64_t steps,
                    uint8_t* x, uint16_t* ih, std::byte* exchange, cudaStream_t stream) {
  const ProductShape& shape = product_shape(p);
  ProductRows rows;
  rows.codes = static_cast<const uint8_t*>(run.x) + first * run.x_strides.step * p.x_planes;
  rows.rows = steps * run.batch;
  rows.batch = run.batch;
  rows.step = run.x_strides.step * p.x_planes;
  rows.sequence = run.x_strides.sequence * p.x_planes;
  rows.flip = p.x_flip;
  const ProductKernel kernel = choose_product_kernel(shape, rows.rows);
  ISOBIT_RETURN_IF_ERROR(pad_product_x(shape, kernel, rows, x, stream));
  ISOBIT_RETURN_IF_ERROR(with_ratios(p.ratios.x, [&](auto ratio) {
    return launch_product(std::get<DeviceProduct<decltype(ratio)>>(p.W), kernel, x, rows.rows, ih, stream);
  }));

  PersistentChunk chunk{};
  chunk.ih = ih;
  chunk.first_step = first;
  chunk.steps = steps;
  chunk.batch = run.batch;
  chunk.state = static_cast<const uint8_t*>(state);
  chunk.next_state = static_cast<uint8_t*>(run.next_state);
  chunk.y_step = run.y_strides.step * p.h_planes;
  chunk.y_sequence = run.y_strides.sequence * p.h_planes;
  chunk.y = static_cast<uint8_t*>(run.y) + first * chunk.y_step;
  chunk.lengths = run.lengths;
  chunk.mask = run.mask;
  chunk.mask_width = run.mask_width;
  chunk.reverse = run.reverse;
  return with_state_ratios(p.ratios.h, p.h_planes, [&](auto ratio) {
    using Ratio = decltype(ratio);
    return takes_grid(p, chunk.batch) ? launch_grid<Ratio>(p, chunk, exchange, stream)
                                      : launch_cluster<Ratio>(p, chunk, stream);
  });
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
  std::byte* const exchange = take(grid_exchange_bytes(p, run.batch));
  auto* const x = reinterpret_cast<uint8_t*>(take(product_x_bytes(product_shape(p), chunk * run.batch)));
  auto* const ih = reinterpret_cast<uint16_t*>(scratch);
  for (int64_t done = 0; done < run.steps; done += chunk) {
    const int64_t steps = std::min(chunk, run.steps - done);
    const int64_t first = run.reverse ? run.steps - done - steps : done;
    const void* const state = done == 0 ? run.state : run.next_state;
    ISOBIT_RETURN_IF_ERROR(launch_chunk(p, run, state, first, steps, x, ih, exchange, stream));
  }
  return {};
}

/// A launch that takes the whole device must not meet another one.
bool persistent_beside(const DeviceLayer& layer, int64_t batch) { return !takes_grid(layer.persistent, batch); }

}  // namespace isobit::cuda
