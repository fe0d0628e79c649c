// SPDX-License-Identifier: Apache-2.0
// The persistent kernels' host side: which layers they run, packing, launch. W x of many steps is one product before
// the recurrence, in chunks of steps, so that memory does not grow with their number without limit.
#include "gru/cuda/persistent.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/cuda/arguments.h"
#include "core/cuda/grid_launch.h"
#include "core/cuda/ptx.cuh"
#include "core/cuda/status.h"
#include "gru/cpu/kernels.h"
#include "gru/cuda/gru.h"
#include "gru/proof.h"
#include "gru/reference.h"
#include "product/cuda/product.h"
#include "product/product.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{512} << 20;  // of x and ih: each chunk has launches and reads R anew
std::atomic<int64_t> chunk_bytes{kChunkBytes};
std::atomic<uint32_t> exchange_delays{0};
constexpr int32_t kMaxTableBits = 12;  // of a gate input: tables are in shared memory
// Rows and turns are counted in 32 bits.
constexpr int64_t kMaxBatch = INT32_MAX / 512;
constexpr int64_t kMaxSteps = INT32_MAX / 64;

Status unsupported(const std::string& what) { return {StatusCode::kUnsupported, what}; }

/// Calls body with a value of the type of ratios.
template <typename Body>
auto with_ratios(RatioType type, Body body) {
  return type == RatioType::kDouble ? body(double()) : type == RatioType::kFloat ? body(float()) : body(Fixed());
}
/// Which forms find room on the current device, and how they cut the layer; attributes of the kernels there.
Status prepare(PersistentPack& pack) {
  PersistentLayer& layer = pack.layer;
  ISOBIT_ASSIGN_OR_RETURN(const DeviceLimits limits, current_device_limits());
  layer.block_shared = limits.block_shared;
  layer.groups = (layer.hidden_size + 15) / 16;
  for (const int32_t tiles : {64, 48, 32, 24, 16, 8, 4})  // what kernels are made for
    if (layer.hidden_size <= tiles * 32) layer.k_tiles = tiles;
  constexpr auto kChosen = static_cast<size_t>(PersistentForm::kChosen);
  struct Form {
    PersistentForm form;
    Status (*prepare)(PersistentLayer&, const DeviceLimits&);
  };
  // They may raise the number of groups.
  for (const Form& one : {Form{PersistentForm::kPortable, prepare_portable},
                          {PersistentForm::kCluster, prepare_cluster},
                          {PersistentForm::kClusterMany, prepare_cluster_many},
                          {PersistentForm::kGrid, prepare_grid},
                          {PersistentForm::kProducts, prepare_products}}) {
    const auto index = static_cast<size_t>(one.form);
    const Status status = one.prepare(layer, limits);
    if (!status.ok() && status.code() != StatusCode::kUnsupported) return status;
    layer.fits[index] = status.ok();
    if (!status.ok()) pack.refusals[index] = status.message();
    if (one.form != PersistentForm::kProducts) layer.fits[kChosen] = layer.fits[kChosen] || status.ok();
  }
  if (!layer.fits[kChosen]) pack.refusals[kChosen] = pack.refusals[static_cast<size_t>(PersistentForm::kPortable)];
  return {};
}

bool is_runnable(const PersistentLayer& layer) {
  return fits(layer, PersistentForm::kChosen) || fits(layer, PersistentForm::kProducts);
}
PersistentForm form_of(const PersistentLayer& layer, PersistentForm asked, int64_t batch, int64_t steps) {
  return asked == PersistentForm::kChosen ? fastest_form(layer, batch, steps) : asked;
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

/// W, whose results are rescaled to the gate inputs, or R (of_h), whose are hh as it is.
template <typename Ratio>
ProductWeights<Ratio> product_weights(const GruLayerParameters& p, bool of_h, const PersistentLayer& layer) {
  // The order of ih may have more groups, which other forms ask for.
  const int64_t groups = of_h ? (p.hidden_size + 15) / 16 : layer.groups;
  const auto rows = static_cast<size_t>(groups) * 48;
  const CodeMatrix& matrix = of_h ? p.R : p.W;
  const Grid& result = p.grids[of_h ? kHh : kIh];
  ProductWeights<Ratio> W;
  W.n = groups * 48;
  W.k = matrix.columns();
  W.planes = of_h ? layer.h_planes : layer.x_planes;
  W.w.assign(rows * static_cast<size_t>(W.k), 0);
  W.start.assign(rows, 0);
  W.ratio.assign(rows, Ratio{});
  W.again.assign(rows, 0);
  W.low = static_cast<LimitOf<Ratio>>(result.min() - result.zero_point);
  W.high = static_cast<LimitOf<Ratio>>(result.max() - result.zero_point);
  W.by_shifts = (of_h ? layer.ratios.h : layer.ratios.x) == RatioType::kShift;
  for (int64_t gate = 0; gate < 3; ++gate)
    for (int64_t unit = 0; unit < p.hidden_size; ++unit) {
      const int64_t row = gate * p.hidden_size + unit;
      const auto to = static_cast<size_t>(tile_row(gate, unit));
      pack_row(p, of_h, row, W.by_shifts, W.start[to], W.ratio[to]);
      W.again[to] = of_h ? 1 : ratio_of<LaneOf<Ratio>>(p.ih_to_gate[static_cast<size_t>(gate)]);
      for (int64_t k = 0; k < W.k; ++k)
        W.w[to * static_cast<size_t>(W.k) + static_cast<size_t>(k)] = static_cast<int8_t>(matrix.at(row, k));
    }
  return W;
}

/// layer.fragments: lane 4 g + q has of a pair of k tiles columns 16 q to 16 q + 15, of rows g and g + 8.
void pack_fragments(const GruLayerParameters& p, PersistentPack& pack) {
  const PersistentLayer& layer = pack.layer;
  const int64_t hidden = p.hidden_size;
  pack.fragments.assign(static_cast<size_t>(layer.groups) * static_cast<size_t>(layer.k_tiles) * 3 * 512, 0);
  size_t at = 0;
  for (int64_t group = 0; group < layer.groups; ++group)
    for (int64_t kt = 0; kt < layer.k_tiles; ++kt)
      for (int64_t gate = 0; gate < 3; ++gate)
        for (int64_t lane = 0; lane < 32; ++lane)
          for (int64_t i = 0; i < 16; ++i, ++at) {
            const int64_t r = i / 4;  // the register: row half, k half
            const int64_t unit = group * 16 + lane / 4 + r % 2 * 8;
            const int64_t k = kt / 2 * 64 + lane % 4 * 16 + kt % 2 * 8 + r / 2 * 4 + i % 4;
            if (unit < hidden && k < hidden) pack.fragments[at] = static_cast<uint8_t>(p.R.at(gate * hidden + unit, k));
          }
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
/// Whether all ratios of a product are 2^-shift, no sum with 2^(shift - 1) more has too many bits, and results fit; or
/// the same with multipliers.
template <typename Ratio>
bool fits_integers(const GruLayerParameters& p, bool of_h, bool by_shifts) {
  const std::vector<RescaleParameters>& ratios = of_h ? p.acc_to_hh : p.acc_to_ih;
  for (size_t row = 0; row < ratios.size(); ++row) {
    const std::optional<Ratio> ratio = by_shifts ? to_shift<Ratio>(ratios[row]) : to_fixed<Ratio>(ratios[row]);
    if (!ratio) return false;
    if (!by_shifts && std::is_same_v<Ratio, Fixed>) continue;  // below a quarter of 32 bits, and proved to fit these
    int64_t sum = largest_sum(p, of_h, static_cast<int64_t>(row));
    if (by_shifts) sum += int64_t{1} << (ratio->shift - 1);
    const bool result_fits = by_shifts ? sum >> ratio->shift <= 1 << 30
                                       : static_cast<double>(sum) * ratio_of<double>(ratios[row]) <= 1 << 29;
    if (sum >= int64_t{1} << Ratio::kSumBits || !result_fits) return false;
  }
  return true;
}
template <typename Ratio>
RatioType integer_type(const GruLayerParameters& p, bool of_h) {
  if (fits_integers<Ratio>(p, of_h, true)) return RatioType::kShift;
  return fits_integers<Ratio>(p, of_h, false) ? RatioType::kFixed : RatioType::kDouble;
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
  return integer_type<Fixed>(p, of_h);
}
/// Of R, for h of two bytes.
RatioType wide_ratio_type(const GruLayerParameters& p) {
  // Sums of low bytes begin with the start value, in 32 bits.
  for (int64_t row = 0; row < 3 * p.hidden_size; ++row)
    if (std::abs(start_of(p, true, row)) > 1 << 30) return RatioType::kDouble;
  return integer_type<WideFixed>(p, true);
}

/// x and ih of one step of one sequence.
int64_t row_bytes(const PersistentLayer& layer) {
  return product_x_row_bytes(product_shape(layer)) + int64_t{layer.groups} * 96;
}
/// Steps whose x and ih are in memory at once.
int64_t chunk_steps(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  return std::clamp<int64_t>(chunk_bytes.load(std::memory_order_relaxed) / (batch * row_bytes(layer)), 1, steps);
}

/// What all forms ask of a layer; `layer` is what they need to know of it.
Status describe(const GruLayerParameters& p, PersistentLayer& layer) {
  ISOBIT_RETURN_IF_ERROR(check_widths(p));
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
  layer.hidden_size = static_cast<int32_t>(p.hidden_size);
  layer.h_planes = static_cast<int32_t>(size_in_bytes(p.grids[kH].dtype()));
  layer.x_planes = static_cast<int32_t>(size_in_bytes(p.grids[kX].dtype()));
  layer.x_flip = p.grids[kX].is_signed ? 0x80 : 0;
  layer.h_flip = p.grids[kH].is_signed ? 0x80808080 : 0;
  layer.ratios = choose_ratios(p, proof);
  if (!starts_are_exact(p, layer)) return unsupported("a bias on the accumulator exceeds 52 bits");
  return {};
}

/// Of whichever form.
int64_t exchange_bytes(const PersistentLayer& layer, int64_t batch) {
  return std::max(fits(layer, PersistentForm::kGrid) ? grid_exchange_bytes(layer, batch) : 0,
                  fits(layer, PersistentForm::kPortable) ? portable_exchange_bytes(layer, batch) : 0);
}

}  // namespace

const ProductShape& product_shape(const PersistentLayer& layer) {
  if (layer.ratios.x == RatioType::kFloat) return std::get<DeviceProduct<float>>(layer.W).shape;
  if (layer.ratios.x == RatioType::kDouble) return std::get<DeviceProduct<double>>(layer.W).shape;
  return std::get<DeviceProduct<Fixed>>(layer.W).shape;
}

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

Status check_widths(const GruLayerParameters& p) {
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
  return {};
}

Result<PersistentPack> pack_persistent(const GruLayerParameters& p) {
  PersistentPack pack;
  PersistentLayer& layer = pack.layer;
  if (const Status status = describe(p, layer); !status.ok()) {
    if (status.code() != StatusCode::kUnsupported) return status;
    pack.refusals.fill(status.message());
    return pack;
  }
  ISOBIT_RETURN_IF_ERROR(with_lanes(layer, [&](auto ratio, auto) -> Status {
    using Ratio = decltype(ratio);
    pack_gates(p, std::get<GateLanes<LaneOf<Ratio>>>(layer.gates), pack.tables);
    layer.table_entries = static_cast<int32_t>(pack.tables.size());
    pack.tables.resize((pack.tables.size() + 3) / 4 * 4);  // bulk copies are multiples of 16 bytes
    ISOBIT_RETURN_IF_ERROR(prepare(pack));
    if (is_runnable(layer)) pack_rows<Ratio>(p, pack);
    if (!fits(layer, PersistentForm::kProducts)) return {};
    auto& R = std::get<ProductPack<Ratio>>(pack.R);
    R = pack_wgmma_weights(product_weights<Ratio>(p, true, layer));
    std::get<DeviceProduct<Ratio>>(layer.R) = R.product;
    return {};
  }));
  if (!is_runnable(layer)) return pack;
  ISOBIT_RETURN_IF_ERROR(with_ratios(layer.ratios.x, [&](auto ratio) -> Status {
    using Ratio = decltype(ratio);
    auto& W = std::get<ProductPack<Ratio>>(pack.W);
    ISOBIT_ASSIGN_OR_RETURN(W, pack_product(product_weights<Ratio>(p, false, layer)));
    std::get<DeviceProduct<Ratio>>(layer.W) = W.product;
    return {};
  }));
  if (fits(layer, PersistentForm::kChosen)) pack_fragments(p, pack);
  if (fits(layer, PersistentForm::kGrid) && layer.grid_cut.cluster > 0) pack_grid(p, pack);
  return pack;
}

void set_exchange_delays(uint32_t seed) { exchange_delays.store(seed, std::memory_order_relaxed); }
void set_chunk_bytes(int64_t bytes) { chunk_bytes.store(bytes == 0 ? kChunkBytes : bytes, std::memory_order_relaxed); }

Result<int64_t> chunks_of(const GruLayerParameters& p, int64_t batch, int64_t steps) {
  ISOBIT_ASSIGN_OR_RETURN(const PersistentPack pack, pack_persistent(p));
  if (!fits(pack.layer, PersistentForm::kChosen)) return unsupported(pack.refusals[0]);
  const int64_t chunk = chunk_steps(pack.layer, batch, steps);
  return (steps + chunk - 1) / chunk;
}

BatchSpread batch_spread(int32_t hidden, int32_t teams, int32_t team_tiles, int32_t blocks, int64_t batch) {
  PersistentLayer layer;
  layer.hidden_size = hidden;
  layer.many.room = teams;
  layer.many.sequence_tiles = team_tiles;
  layer.products_room = blocks;
  const ClusterWaves waves = cluster_many_waves(layer, batch);
  return {waves.count, waves.tiles, products_rounds(layer, batch)};
}

Status no_room() { return unsupported("the device has no room for a team of thread blocks that holds R"); }

Status persistent_supports(std::span<const DeviceLayer> layers, PersistentForm form, int64_t batch, int64_t steps) {
  for (const DeviceLayer& layer : layers)
    if (!fits(layer.persistent, form)) return unsupported(layer.persistent_refusals[static_cast<size_t>(form)]);
  if (batch > kMaxBatch)
    return unsupported("batch is " + std::to_string(batch) + ", must be at most " + std::to_string(kMaxBatch));
  if (steps > kMaxSteps)
    return unsupported("steps is " + std::to_string(steps) + ", must be at most " + std::to_string(kMaxSteps));
  return {};
}

int64_t persistent_scratch_bytes(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps,
                                 const DeviceLimits&) {
  // Smaller runs are supported, too.
  batch = std::min(batch, kMaxBatch);
  steps = std::min(steps, kMaxSteps);
  if (!persistent_supports(layers, PersistentForm::kChosen, batch, steps).ok()) return 0;
  int64_t bytes = 0;
  for (const DeviceLayer& layer : layers) {
    const PersistentLayer& p = layer.persistent;
    // A smaller batch may run more steps in a chunk: the limit itself, where it can be reached.
    const int64_t one = batch * row_bytes(p);
    const int64_t padding = product_x_bytes(product_shape(p), 1) + 2 * kDeviceAlignment;
    const int64_t most = chunk_bytes.load(std::memory_order_relaxed);
    const int64_t chunk = steps <= most / one ? steps * one : std::max(most, one);
    bytes = std::max(bytes, chunk + padding + aligned_size(exchange_bytes(p, batch)));
  }
  return bytes;
}

int64_t products_scratch_bytes(std::span<const DeviceLayer> layers, int64_t batch, int64_t, const DeviceLimits&) {
  batch = std::min(batch, kMaxBatch);
  if (!persistent_supports(layers, PersistentForm::kProducts, batch, 1).ok()) return 0;
  int64_t bytes = 0;
  for (const DeviceLayer& layer : layers) bytes = std::max(bytes, products_padded_bytes(layer.persistent, batch));
  return bytes;
}

namespace {

/// The rows of x of steps [first, first + steps) of a run, which begins with them or goes on.
ProductRows rows_of(const PersistentLayer& p, const DeviceRun& run, int64_t first, int64_t steps, bool begins) {
  const int64_t width = run.x_element_bytes(p.x_planes);
  ProductRows rows;
  rows.codes = static_cast<const uint8_t*>(run.x) + first * run.x_strides.step * width;
  rows.rows = steps * run.batch;
  rows.batch = run.batch;
  rows.step = run.x_strides.step * width;
  rows.sequence = run.x_strides.sequence * width;
  rows.flip = p.x_flip;
  rows.floats = run.floats;
  if (!begins) rows.floats.begins = false;
  return rows;
}
/// The same steps, from `state` on.
Recurrence recurrence_of(const PersistentLayer& p, const DeviceRun& run, const void* state, int64_t first,
                         int64_t steps, const uint16_t* ih) {
  Recurrence r{};
  r.ih = ih;
  r.groups = p.groups;
  r.first_step = static_cast<int32_t>(first);
  r.steps = static_cast<int32_t>(steps);
  r.batch = static_cast<int32_t>(run.batch);
  r.hidden = p.hidden_size;
  r.tables = p.tables;
  r.table_entries = p.table_entries;
  r.state = static_cast<const uint8_t*>(state);
  r.next_state = static_cast<uint8_t*>(run.next_state);
  r.y_unit = static_cast<int32_t>(run.y_element_bytes(p.h_planes));
  r.y_scale = run.y_scale;
  r.y_step = run.y_strides.step * r.y_unit;
  r.y_sequence = run.y_strides.sequence * r.y_unit;
  r.y = static_cast<uint8_t*>(run.y) + first * r.y_step;
  r.flip = p.h_flip;
  r.lengths = run.lengths;
  r.mask = run.mask;
  r.mask_width = run.mask_width;
  r.reverse = run.reverse;
  r.delays = exchange_delays.load(std::memory_order_relaxed);
  return r;
}

constexpr int kZeroThreads = 128;
__global__ void __launch_bounds__(kZeroThreads) zero_exchange(uint4* pieces, uint32_t count) {
  let_next_grid_start();
  wait_for_grid_before();
  const uint32_t i = blockIdx.x * kZeroThreads + threadIdx.x;
  if (i < count) pieces[i] = uint4{};
}
/// What numbers of states and counts begin with. Before the product, which begins meanwhile: between it and the
/// recurrence nothing would overlap. A launch of our own, as the product waits for no other work early.
Status launch_zero_exchange(const PersistentLayer& p, PersistentForm form, int64_t batch, std::byte* exchange,
                            cudaStream_t stream) {
  const int64_t bytes = form == PersistentForm::kGrid       ? grid_zeroed_bytes(p, batch)
                        : form == PersistentForm::kPortable ? portable_zeroed_bytes(p, batch)
                                                            : 0;
  if (bytes == 0) return {};
  const auto pieces = static_cast<uint32_t>(bytes / 16);
  const GridLaunch launch{
      (pieces + kZeroThreads - 1) / kZeroThreads, kZeroThreads, 0, 0, false, product_shape(p).starts_early};
  return launch.run("kernel zero_exchange", zero_exchange, stream, reinterpret_cast<uint4*>(exchange), pieces);
}

/// Steps [first, first + steps) of a run, which begins with them or goes on; x and ih: room for them. Up to four grids:
/// zeros where gru_grid or gru_portable count, the padding of x, where the product cannot read it as it is, the
/// product, and gru_cluster or gru_cluster_many begin early: before they have waited for the grid in front of them they
/// touch nothing but constants and shared memory. The launches of gru_grid and gru_portable are ordinary ones.
Status launch_chunk(const PersistentLayer& p, PersistentForm form, const DeviceRun& run, bool begins, int64_t first,
                    int64_t steps, uint8_t* x, uint16_t* ih, std::byte* exchange, cudaStream_t stream) {
  const ProductShape& shape = product_shape(p);
  const ProductRows rows = rows_of(p, run, first, steps, begins);
  const ProductKernel kernel = choose_product_kernel(shape, rows.rows);
  const bool pads = !reads_in_place(shape, kernel, rows);
  ISOBIT_RETURN_IF_ERROR(launch_zero_exchange(p, form, run.batch, exchange, stream));
  if (pads) ISOBIT_RETURN_IF_ERROR(pad_product_x(shape, kernel, rows, x, stream));
  ISOBIT_RETURN_IF_ERROR(with_ratios(p.ratios.x, [&](auto ratio) {
    return launch_product(std::get<DeviceProduct<decltype(ratio)>>(p.W), kernel, rows, pads ? x : nullptr, ih, stream);
  }));
  const Recurrence recurrence = recurrence_of(p, run, begins ? run.state : run.next_state, first, steps, ih);
  switch (form) {
    case PersistentForm::kGrid: return launch_grid(p, recurrence, exchange, stream);
    case PersistentForm::kPortable: return launch_portable(p, recurrence, exchange, stream);
    case PersistentForm::kClusterMany: return launch_cluster_many(p, recurrence, stream);
    default: return launch_cluster(p, recurrence, stream);
  }
}

}  // namespace

Status persistent_launch(const DeviceLayer& layer, PersistentForm asked, const DeviceRun& run, cudaStream_t stream) {
  const PersistentLayer& p = layer.persistent;
  const PersistentForm form = form_of(p, asked, run.batch, run.steps);
  if (form == PersistentForm::kProducts)
    return launch_products(p, recurrence_of(p, run, run.state, 0, run.steps, nullptr),
                           rows_of(p, run, 0, run.steps, true), run.scratch, stream);
  const int64_t chunk = chunk_steps(p, run.batch, run.steps);
  std::byte* scratch = run.scratch;
  const auto take = [&scratch](int64_t bytes) {
    std::byte* const piece = scratch;
    scratch += aligned_size(bytes);
    return piece;
  };
  std::byte* const exchange = take(exchange_bytes(p, run.batch));
  auto* const x = reinterpret_cast<uint8_t*>(take(product_x_bytes(product_shape(p), chunk * run.batch)));
  auto* const ih = reinterpret_cast<uint16_t*>(scratch);
  for (int64_t done = 0; done < run.steps; done += chunk) {
    const int64_t steps = std::min(chunk, run.steps - done);
    const int64_t first = run.reverse ? run.steps - done - steps : done;
    ISOBIT_RETURN_IF_ERROR(launch_chunk(p, form, run, done == 0, first, steps, x, ih, exchange, stream));
  }
  return {};
}

/// Two cooperative launches would only wait for each other's blocks.
bool persistent_beside(const DeviceLayer& layer, PersistentForm asked, int64_t batch, int64_t steps) {
  const PersistentLayer& p = layer.persistent;
  const PersistentForm form = form_of(p, asked, batch, steps);
  return form != PersistentForm::kGrid && (form != PersistentForm::kPortable || p.portable.blocks == 1);
}

}  // namespace isobit::cuda
