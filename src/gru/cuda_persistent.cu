// SPDX-License-Identifier: Apache-2.0
// The persistent kernels' host side: which layers they run, which of them runs one, packing, launch. W x of many steps
// is one product before the recurrence, in chunks of steps, so that memory does not grow with their number without
// limit.
#include "gru/cuda_persistent.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/cuda_launch.h"
#include "core/cuda_ptx.cuh"
#include "core/cuda_status.h"
#include "gru/cuda_cluster.h"
#include "gru/cuda_grid.h"
#include "gru/cuda_gru.h"
#include "gru/cuda_persistent_hooks.h"
#include "gru/cuda_portable.h"
#include "gru/cuda_products.h"
#include "gru/kernels.h"
#include "gru/proof.h"
#include "gru/reference.h"
#include "linear/cuda_product.h"
#include "linear/product.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{512} << 20;  // of x and ih: a chunk more takes some 20 us
std::atomic<int64_t> chunk_bytes{kChunkBytes};
std::atomic<uint32_t> exchange_delays{0};
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

/// Which forms find room on the current device, and how they cut the layer; attributes of the kernels there.
template <typename Ratio>
Status prepare(PersistentPack& pack) {
  PersistentLayer& layer = pack.layer;
  ISOBIT_ASSIGN_OR_RETURN(const DeviceLimits limits, current_device_limits());
  layer.grid = layer.hidden_size > kMaxClusterHidden;
  layer.groups = (layer.hidden_size + 15) / 16;
  for (const int32_t tiles : {64, 48, 32, 24, 16, 8, 4})  // what kernels are made for
    if (layer.hidden_size <= tiles * 32) layer.k_tiles = tiles;
  const auto note = [&](PersistentForm form, const Status& status) -> Status {
    const auto index = static_cast<size_t>(form);
    if (!status.ok() && status.code() != StatusCode::kUnsupported) return status;
    layer.fits[index] = status.ok();
    if (!status.ok()) pack.refusals[index] = status.message();
    return {};
  };
  const auto only_9 = [&](Status (*prepare_form)(PersistentLayer&, int)) {
    if (limits.major != 9)
      return unsupported("the device has compute capability " + std::to_string(limits.major) + ", it is made for 9");
    return prepare_form(layer, limits.block_shared);
  };
  // They may raise the number of groups, which the grid kernels of smaller layers take as it is then.
  ISOBIT_RETURN_IF_ERROR(note(PersistentForm::kPortable, prepare_portable<Ratio>(layer, limits)));
  ISOBIT_RETURN_IF_ERROR(note(PersistentForm::kCluster, only_9(prepare_cluster<Ratio>)));
  ISOBIT_RETURN_IF_ERROR(note(PersistentForm::kClusterMany, only_9(prepare_cluster_many<Ratio>)));
  ISOBIT_RETURN_IF_ERROR(note(PersistentForm::kGrid, only_9(prepare_grid<Ratio>)));
  bool& any = layer.fits[static_cast<size_t>(PersistentForm::kChosen)];
  any = std::find(std::begin(layer.fits), std::end(layer.fits), true) != std::end(layer.fits);
  ISOBIT_RETURN_IF_ERROR(note(PersistentForm::kProducts, prepare_products(layer, limits)));
  if (!any)
    pack.refusals[static_cast<size_t>(PersistentForm::kChosen)] =
        pack.refusals[static_cast<size_t>(PersistentForm::kPortable)];
  return {};
}

bool fits(const PersistentLayer& layer, PersistentForm form) { return layer.fits[static_cast<size_t>(form)]; }
bool is_runnable(const PersistentLayer& layer) {
  return fits(layer, PersistentForm::kChosen) || fits(layer, PersistentForm::kProducts);
}
/// Where gru_portable is faster than the grid kernels, H = 1040: with several teams, bytes of 9 to 16 sequences (on an
/// H200 0.88 of the time), or the state of two bytes of 5 to 8 (0.95 to 0.96; on an H100 of 2 to 6 steps 1.01 to 1.05).
bool takes_portable(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  if (!layer.grid || layer.ratios.h == RatioType::kDouble || layer.portable.teams < 2) return false;
  return layer.h_planes == 2 ? batch > 4 && batch <= 8 && steps > 6 : batch > 8 && batch <= 16;
}
/// The fastest form of a run that any form can take.
PersistentForm fastest_form(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  if (fits(layer, PersistentForm::kPortable) && takes_portable(layer, batch, steps))
    return PersistentForm::kPortable;
  if (fits(layer, PersistentForm::kGrid) && takes_grid(layer, batch, steps)) return PersistentForm::kGrid;
  const bool many = fits(layer, PersistentForm::kClusterMany);
  if (fits(layer, PersistentForm::kCluster) && !(many && takes_cluster_many(layer, batch, steps)))
    return PersistentForm::kCluster;
  return many ? PersistentForm::kClusterMany : PersistentForm::kPortable;
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

/// x and ih of one step of one sequence.
int64_t row_bytes(const PersistentLayer& layer) {
  return product_x_row_bytes(product_shape(layer)) + int64_t{layer.groups} * 96;
}
/// Steps whose x and ih are in memory at once.
int64_t chunk_steps(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  return std::clamp<int64_t>(chunk_bytes.load(std::memory_order_relaxed) / (batch * row_bytes(layer)), 1, steps);
}

}  // namespace

const ProductShape& product_shape(const PersistentLayer& layer) {
  switch (layer.ratios.x) {
    case RatioType::kFloat: return std::get<DeviceProduct<float>>(layer.W).shape;
    case RatioType::kShift:
    case RatioType::kFixed: return std::get<DeviceProduct<Fixed>>(layer.W).shape;
    case RatioType::kDouble: break;
  }
  return std::get<DeviceProduct<double>>(layer.W).shape;
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

namespace {

/// What all forms ask of a layer; `layer` is what they need to know of it.
Status describe(const GruLayerParameters& p, PersistentLayer& layer) {
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
  layer.hidden_size = static_cast<int32_t>(p.hidden_size);
  layer.h_planes = static_cast<int32_t>(size_in_bytes(p.grids[kH].dtype()));
  layer.x_planes = static_cast<int32_t>(size_in_bytes(p.grids[kX].dtype()));
  layer.x_flip = p.grids[kX].is_signed ? 0x80 : 0;
  layer.h_flip = p.grids[kH].is_signed ? 0x80808080 : 0;
  layer.ratios = choose_ratios(p, proof);
  if (!starts_are_exact(p, layer)) return unsupported("a bias on the accumulator exceeds 52 bits");
  return {};
}

}  // namespace

Result<PersistentPack> pack_persistent(const GruLayerParameters& p) {
  PersistentPack pack;
  PersistentLayer& layer = pack.layer;
  if (const Status status = describe(p, layer); !status.ok()) {
    if (status.code() != StatusCode::kUnsupported) return status;
    pack.refusals.fill(status.message());
    return pack;
  }
  ISOBIT_RETURN_IF_ERROR(with_state_ratios(layer.ratios.h, layer.h_planes, [&](auto ratio) -> Status {
    using Ratio = decltype(ratio);
    pack_gates(p, std::get<GateLanes<LaneOf<Ratio>>>(layer.gates), pack.tables);
    layer.table_entries = static_cast<int32_t>(pack.tables.size());
    pack.tables.resize((pack.tables.size() + 3) / 4 * 4);  // bulk copies are multiples of 16 bytes
    ISOBIT_RETURN_IF_ERROR(prepare<Ratio>(pack));
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
  const bool has_few = layer.grid && fits(layer, PersistentForm::kGrid);
  const bool by_fragments = fits(layer, PersistentForm::kCluster) || fits(layer, PersistentForm::kClusterMany) ||
                            fits(layer, PersistentForm::kPortable) || has_few;
  if (by_fragments) pack_fragments(p, pack);
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

Result<int32_t> grid_teams(const GruLayerParameters& p, int64_t batch, int64_t steps) {
  ISOBIT_ASSIGN_OR_RETURN(const PersistentPack pack, pack_persistent(p));
  if (!fits(pack.layer, PersistentForm::kChosen)) return unsupported(pack.refusals[0]);
  return fastest_form(pack.layer, batch, steps) == PersistentForm::kGrid ? pack.layer.grid_cut.teams : 0;
}

namespace {

/// Fewer steps are those of `products` or `step`: a run of `persistent` begins with a product and with reading R. To so
/// many hidden units and sequences; the first row that fits. wide: of h of two bytes. Beside each the time of
/// `persistent` by that of the faster of the others, for some numbers of steps; after a semicolon of h of two bytes
/// (isobit bench gru --device cuda --mode sequence --kernel persistent,products,step --steps T). Two figures for one
/// number of sequences are those of the smaller H timed, 640, 896 or 1536, and the larger. Timed on H100s are rows to
/// 224 sequences, of H to 512 to 256, above 1024 to 127; others on an H200.
struct FewestSteps {
  int64_t hidden, batch, steps, wide;
};
constexpr FewestSteps kFewestSteps[] = {
    {256, 64, 3, 3},                         // 2: 0.99 to 1.17, 3: 0.79 to 1.01; 2: 0.98 to 1.31, 3: 0.76 to 1.04
    {128, 192, 3, 3},                        // of 96 to 192: 3: 0.72 to 1.01; 0.81 to 1.02
    {256, 895, 4, 4},                        // of 256: 3: 1.06 to 1.13, 4: 0.88 to 0.97; 3: 1.02 to 1.07
                                             // H = 256, of 96 to 192: 3: 1.04 to 1.12; 0.97 to 1.06
    {512, 23, 4, 4},                         // of 1 to 16: 3: 1.08 to 1.21, 4: 0.92 to 1.03; 3: 1.04 to 1.27
    {352, 63, 3, 4},                         // H = 320, of 24 to 48: 3: 0.99, 1.00; 1.03 to 1.07
    {400, 31, 3, 4},                         // H = 384, of 24: 3: 0.95; 1.12
    {400, 64, 3, 3},                         // of 32 to 64: 3: 0.94 to 1.01; 0.84 to 1.01; of 64: 2: 1.20; 1.10
    {352, 895, 4, 4},                        // of 96 to 192: 3: 1.05 to 1.14; 0.96 to 1.30
    {512, 63, 3, 3},                         // of 24 to 48: 3: 0.93 to 1.02; 0.88 to 1.01; 2: 1.20; 1.07 to 1.25
    {512, 64, 3, 2},                         // 2: 1.25; 0.90 and 0.93, of 60 and 72 1.11 to 1.19
    {512, 128, 4, 4},                        // of 96 and 128: 3: 0.98 to 1.10; 0.94 to 1.08
    {512, 192, 3, 3},                        // 3: 0.93 to 0.95; 0.94 to 1.00
    {512, 895, 4, 4},                        // of 256: 3: 0.96, 1.18, 4: 0.89, 1.02; 3: 1.03, 1.14, 4: 0.90, 0.99
    {512, INT64_MAX, INT64_MAX, INT64_MAX},  // of 1024: 256: 1.10; 1.19
    {640, 7, 5, 4},                          // of 1 and 4: 4: 1.12, 1.07, 5: 1.02, 0.93; 3: 1.14, 1.10, 4: 0.98, 0.90
    {640, 28, 4, 3},                         // of 8 to 24: 3: 1.08 to 1.27, 4: 0.90 to 1.02; 3: 0.76 to 1.00
    {640, 56, 3, 3},                         // of 32: 3: 0.94, 4: 0.81; 3: 0.81; of 40 to 56: 4: 0.88; 0.80 to 0.84
    {768, 7, 5, 4},                          // of 1 and 4: 4: 1.09, 1.05, 5: 0.82, 0.94; 3: 1.07, 1.03, 4: 0.92, 0.88
    {768, 16, 4, 3},                         // of 8 to 16: 3: 1.07 to 1.16, 4: 0.92 to 1.02; 3: 0.94 to 1.03
    {768, 31, 3, 2},                         // of 24: 3: 0.90; 0.84; on an H200 2: 0.94
    {768, 56, 4, 3},                         // of 32: 3: 0.98, 4: 0.85; 3: 0.88; of 40 to 56: 4: 0.83; 0.78
    {768, 112, 5, 4},                        // of 64 to 112, H = 640: 4: 1.03 to 1.06, 6: 0.87; 4: 0.92 to 1.00
                                             // H = 768: 4: 0.97 to 1.02, 6: 0.79 to 0.85; 4: 0.89 to 0.98
    {768, 144, 7, 6},                        // of 128: 4: 1.19, 1.15, 6: 1.05, 1.03; 4: 1.18, 6: 1.02, 0.98
    {768, 191, 6, 6},                        // of 160: 4: 1.14, 1.05, 6: 0.95, 0.88; 4: 1.11, 1.09, 6: 0.92, 0.87
    {768, 224, 9, 8},                        // of 192 and 224: 6: 1.08 to 1.15; 1.05 to 1.13
    {768, 383, 14, 14},                      // of 256: 9: 1.15, 14: 1.01; 9: 1.14, 14: 1.03
    {768, 400, 24, 20},                      // of 384: 14: 1.15, 100: 0.83; 14: 1.06, 100: 0.86
    {768, 640, INT64_MAX, INT64_MAX},        // of 448: 100: 1.42; 1.36; of 512: 256: 1.43; 1.43
    {768, 800, 32, 32},                      // of 768, where `products` has two rounds: 100: 0.86; 0.86
    {768, INT64_MAX, INT64_MAX, INT64_MAX},  // of 1024: 256: 1.19; 1.24
    {1024, 1, 6, 5},                         // 5: 1.10, 1.00, 6: 0.98, 0.93; 4: 1.04, 1.02, 5: 0.92, 0.88
    {1024, 8, 5, 4},                         // of 2 to 8: 4: 1.04 to 1.15, 5: 0.95 to 1.02; 3: 1.05, 4: 0.91 to 1.04
    {1024, 16, 4, 3},                        // of 12 and 16: 3: 1.06 to 1.20, 4: 0.96 to 1.00; 3: 0.94 to 0.99
    {1024, 56, 4, 3},                        // of 24 and 32: 3: 1.05 to 1.09, 4: 0.90 to 0.93; 3: 0.88, 0.93
    {1024, 112, 5, 4},                       // of 64 to 112: 4: 0.96 to 1.05, 6: 0.75 to 0.88; 4: 0.78 to 0.96
    {1024, 144, 5, 4},                       // of 128: 4: 1.02, 0.99, 6: 0.94, 0.87; 4: 0.93, 0.86
    {1024, 200, 4, 3},                       // of 160 and 192: 4: 0.95 to 1.02; 4: 0.77 to 0.92
    {896, 224, 6, 5},                        // of 224: 4: 1.09, 6: 1.01; 4: 1.05, 6: 0.96
    {1024, 224, 6, 4},                       // of 224: 4: 1.04, 6: 0.93; 4: 0.89
    {1024, 383, 6, 5},                       // of 256: 5: 1.06, 1.02, 6: 1.00, 0.96; 4: 1.10, 0.94, 5: 1.08
    {1024, INT64_MAX, 8, 12},                // of 512: 6: 1.04, 9: 0.99; 9: 1.04, 14: 1.00
    {1279, 31, 4, 3},                        // H = 1040: 3: 1.04 to 1.14, 4: 0.91 to 1.03; 2: 1.17, 3: 0.92 to 1.04
    {1279, 127, 4, 4},                       // of 32 and 64: 3: 1.18, 4: 1.02, 1.01; 3: 0.99, 1.05, 4: 0.87, 0.92
    {1407, 8, 3, 3},                         // H = 1280: 2: 0.98 to 1.20, 3: 0.90 to 1.00; 2: 1.06, 1.12, 3: 0.84
    {1407, 31, 4, 3},                        // of 12 and 16: 3: 1.07, 1.08, 4: 0.98; 3: 0.87
    {1536, 4, 3, 3},                         // H = 1536: 2: 1.16, 1.08, 3: 0.96, 0.92; 2: 1.06, 1.02, 3: 0.86
    {1536, 8, 2, 2},                         // of 8: 2: 1.02; 0.93
    {1919, 8, 3, 2},                         // H = 1792: 2: 1.03 to 1.12, 3: 0.74 to 0.89; 2: 0.84 to 0.97
    {INT64_MAX, 8, 2, 2},                    // H = 2048: 2: 0.91 to 0.99; 0.78 to 0.86
    {INT64_MAX, 31, 3, 2},                   // of 12 and 16: 2: 1.21, 1.15, 3: 1.00, 0.92; 2: 1.00, 0.94
    {INT64_MAX, 63, 3, 3},                   // of 32, H = 1536 and 2048: 2: 1.21, 1.16, 3: 0.99, 0.91; 2: 1.08, 1.03
    {INT64_MAX, 127, 4, 3},                  // of 64: 3: 1.05, 0.98, 4: 0.93, 0.89; 2: 1.16, 1.08, 3: 0.99, 0.94
    {INT64_MAX, 255, 8, 6},                  // of 128: 6: 1.06, 9: 0.99; 4: 1.05, 6: 0.99
    {INT64_MAX, 511, 9, 16},                 // of 256: 6: 1.07, 9: 1.00; 9: 1.09, 14: 1.03
    {INT64_MAX, INT64_MAX, 8, INT64_MAX},    // of 512: 6: 1.03, 9: 0.95; 14: 1.04, 256: 1.03
};

/// Of layers that `products` does not run, at most: what rows by `step` have for as many sequences.
constexpr int64_t kFewestBesideStep = 6;

/// From so many sequences on, of layers to so many hidden units, `products` is as fast as `step` or faster, on an H200
/// (cuda_gru_bench --calls-only --same-weights, with 1 and with INT64_MAX in every row here). copied: calls of one step
/// for which `step` takes a second launch, which copies what it reads; also with --one-state, and with --floats.
struct FewestSequences {
  struct Widths {
    int64_t bytes, wide;  // of h
  };
  int64_t hidden;
  Widths otherwise, copied;
  Widths several = otherwise;  // of runs of two steps and more that are too few for `persistent`
};
/// In brackets the time of `products` by that of `step` for some numbers of sequences; copied: the larger of both;
/// several: of two steps, on an H100. Timed with C = H.
constexpr FewestSequences kFewestProductSequences[] = {
    // Otherwise: 128 (0.99), 192 (1.06), 256 (0.81); wide: 192 (1.24).
    // Copied: 32 (1.02), 48 (1.02), 64 (1.01); wide: 48 (1.09), 64 (1.00).
    {320, {193, 193}, {48, 64}},
    // Otherwise: 24 (0.96), 32 (0.99), 48 (0.93); wide: 128 (1.21), 192 (0.81).
    // Copied: 32 (1.04), 48 (0.93); wide: 24 (1.14), 48 (0.93).
    // Several: 24 (1.14), 64 (1.11), 128 (1.08), 256 (0.95); wide: 128 (1.11).
    {384, {24, 161}, {33, 48}, {161, 161}},
    // Otherwise: 24 (1.01), 64 (1.02), 96 (0.99), 128 (0.96); wide: 128 (1.22), 192 (0.88).
    // Copied: 24 (1.07), 32 (0.94); wide: 24 (1.13), 32 (1.02), 48 (0.99).
    // Several: 64 (1.13), 96 (1.11), 128 (1.08); wide: 128 (1.15).
    {512, {65, 161}, {32, 32}, {161, 161}},
    // Otherwise: 24 (1.07), 32 (0.83); wide: 64 (1.09), 96 (1.03).
    // Copied: 16 (1.06), 24 (0.97); wide: 16 (1.11), 24 (0.97).
    // Several: 24 (1.13), 32 (1.00), 64 (1.02), 96 (1.06), 128 (0.88); wide: 96 (1.05), 128 (0.76).
    {640, {25, 97}, {17, 24}, {97, 97}},
    // Otherwise: 16 (1.20), 24 (0.87); wide: 64 (1.09), 96 (0.71).
    // Copied: 16 (1.09), 24 (0.87); wide: 9 (1.14), 16 (1.01), 24 (0.89).
    // Several: 17 (1.07), 24 (1.04), 64 (1.04), 96 (0.91); wide: 64 (1.05), 96 (0.79).
    {768, {17, 65}, {17, 16}, {65, 65}},
    // Otherwise: 16 (1.13), 24 (0.80); wide: 16 (1.18), 24 (1.04), 64 (1.02), 96 (0.74).
    // Copied: 16 (1.10), 24 (0.82); wide: 4 (1.22), 8 (0.93).
    // Several: 17 (0.99, 1.02), 64 (0.96, 0.97); wide: 17 (1.00, 1.01), 24 (0.98, 1.00), 64 (0.96, 0.97).
    {1024, {17, 24}, {17, 8}},
    // H = 1040. Several: 24 (0.99), 48 (1.04), 64 (1.03 to 1.09), 96 (1.00), 128 (0.96); wide: 24 (0.97), 64 (0.98).
    // Beyond, gru_step has over 132 blocks.
    {1056, {17, 24}, {17, 8}, {96, 24}},
    // From here on an H100. H = 1280. Otherwise: 6 (1.10), 8 (0.95); wide: 6 (1.06), 8 (0.94).
    // Copied: 6 (1.04), 8 (0.92); wide: 6 (1.05), 8 (0.96). Several: 8 (1.05), 12 (0.87); wide: 8 (1.22), 12 (0.93).
    {1407, {8, 8}, {8, 8}, {9, 9}},
    // Otherwise: 8 (1.03), 10 (0.80); wide: 6 (1.07), 8 (0.96).
    // Copied: 8 (1.03), 10 (0.83); wide: 6 (1.05), 8 (0.94).
    {1536, {9, 8}, {9, 8}},
    // H = 1792 and 2048. Otherwise: 8 (1.11, 1.07), 10 (0.94, 0.93); wide: 6 (0.98, 1.04), 8 (0.91, 0.94).
    // Copied: 8 (1.08, 1.09), 10 (0.91, 0.93); wide: 1 (1.19, 1.27), 4 (1.03, 0.98), 6 (0.96, 0.93).
    {INT64_MAX, {9, 8}, {9, 4}},
};
/// The same, in the order otherwise, wide, copied, wide copied, with C to 64, of which a stage of `products` is half
/// empty (isobit bench gru --device cuda --kernel step,products --input 64 --mode two-states,streaming).
constexpr int64_t kVeryFewInputs = 64;
constexpr FewestSequences kFewestSequencesOfVeryFewInputs[] = {
    {320, {193, 193}, {129, 64}},  // 128 (1.18); 128 (1.33); 64 (1.10), 128 (1.04); 48 (1.10), 64 (1.05)
    {384, {161, 161}, {97, 48}},   // 128 (1.14); 128 (1.27); 64 (1.06), 80 (1.07), 96 (1.02), 128 (1.00); 48 (1.00)
    {512, {161, 161}, {65, 129}},  // 128 (1.13); 128 (1.34); 64 (1.11), 96 (1.03); 64 (1.08), 128 (1.04)
    {640, {97, 97}, {17, 25}},     // 96 (1.12), 128 (0.83); 128 (0.83); 24 (1.01); 24 (1.10), 32 (0.96)
    {768, {65, 65}, {65, 17}},     // 64 (1.16), 72 (0.95); 96 (0.80); 24 (1.05), 72 (0.83); 16 (1.16), 24 (1.03)
    {1056, {65, 65}, {12, 17}},    // 896 and 1024: 24 (1.09), 64 (1.09, 1.04), 72 (0.94, 1.03), 128 (0.87, 0.91);
                                   // 64 (1.24), 96 (0.87); 8 (1.14), 12 (0.98, 0.99); 8 (1.27), 24 (1.01)
    {INT64_MAX, {9, 9}, {9, 9}},   // 1536, 8 (1.22), 12 (1.00); 8 (1.23), 12 (0.90); 8 (1.11); 8 (1.06)
};
/// The same with C to 3 H / 4, on an H100 (--input 256, or as said).
constexpr FewestSequences kFewestSequencesOfFewInputs[] = {
    {320, {193, 193}, {129, 64}},  // as with C to 64
    {384, {161, 161}, {24, 48}},   // 128 (1.12), 160 (1.19); as 64; 24 (1.00, 1.02), 64 (1.03); as 64
    {512, {161, 161}, {65, 129}},  // 96 (1.05), 128 (1.03), 160 (0.97); as 64; 64 (1.03), 96 (0.98); as 64
    {640, {97, 97}, {17, 25}},     // 64 (0.97), 80 (1.09), 96 (1.06); 96 (1.12); 17 (0.99); 24 (1.03), 32 (0.91)
    {768, {65, 65}, {17, 17}},     // 48 (1.05); 64 (1.17), 96 (0.81); 17 (1.04), 24 (1.01), 48 (0.95); 17 (0.98)
    {1056, {17, 65}, {12, 17}},    // C = 128 to 640: 17 (0.94 to 1.06), 24 (0.90 to 1.00); C = 256: 64 (1.05, 1.07),
                                   // 96 (0.76, 0.88); C = 768: 12 (0.87), 128: 17 (0.95); 17 (0.91, 0.95)
    {INT64_MAX, {9, 9}, {9, 9}},   // as with C to 64
};
/// The same with C above 5 H / 4, of h of two bytes above 5 H / 2 (--input 1024, 2048).
constexpr FewestSequences kFewestSequencesOfManyInputs[] = {
    {320, {49, 33}, {49, 33}},    // 48 (1.25), 64 (0.83); as 384; 48 (1.17), 64 (0.81); as 384
    {384, {41, 33}, {41, 33}},    // 40 (1.22), 41 (0.90); 32 (1.03), 48 (0.85); 40 (1.10), 41 (0.84); 32 (0.96)
    {512, {33, 33}, {32, 24}},    // C = 1024: 32 (1.12), 48 (0.88); 2048: 32 (1.06), 48 (0.79); 48 (0.92); 32 (0.99);
                                  // 24 (0.93)
    {640, {25, 17}, {17, 17}},    // 24 (0.99), 32 (0.72); 24 (0.97); 24 (0.95); 16 (0.96), 24 (0.85)
    {1056, {17, 17}, {17, 8}},    // 768: 16 (1.06), 24 (0.75); 16 (0.96), 24 (0.83); 16 (1.04), 24 (0.73); 8 (1.05)
    {INT64_MAX, {9, 8}, {9, 8}},  // not timed, as 1536 with fewer inputs
};

/// Of gru_portable, by the same measure; more launches than `launches` take longer than `step` for any number of steps.
/// No device of compute capability 8 was at hand.
struct FewestPortableSteps {
  int64_t hidden, batch, steps, launches = 2;
};
constexpr FewestPortableSteps kFewestPortableSteps[] = {
    {128, INT64_MAX, 9, INT64_MAX},  // 8: 0.87 to 1.03, 12: 0.77 to 0.90
    {256, 7, INT64_MAX},             // 256: 1.03
    {512, 7, 48},                    // 20: 1.22, 256: 0.92
    {256, 15, 48},                   // 20: 1.15, 256: 0.83
    {256, 63, 24},                   // 20: 1.02, 256: 0.79
    {512, 15, 20},                   // 20: 0.97
    {512, 63, 12},                   // 8: 1.07, 12: 0.92
    {512, INT64_MAX, 8},             // 6: 0.94 to 1.07, 8: 0.88 to 0.95
    {1024, 7, 32},                   // 20: 1.07, 256: 0.76
    {1024, 15, 16},                  // 12: 1.05, 20: 0.87
    {1024, INT64_MAX, 8},            // 8: 0.96, of four launches 256: 1.22
    {INT64_MAX, 8, 5},               // H = 1040, of 1 to 8: 4: 1.05 to 1.21, 6: 0.95 to 1.04; 2048: 3: 0.63 to 0.74
    {INT64_MAX, 16, 4},              // H = 1040, of 12 and 16: 3: 1.14, 1.07, 4: 1.03, 0.92
    {INT64_MAX, INT64_MAX, 7, 3},    // 6: 1.05, 8: 0.77
};

Status supports(std::span<const DeviceLayer> layers, PersistentForm form, int64_t batch, int64_t steps) {
  for (const DeviceLayer& layer : layers)
    if (!fits(layer.persistent, form)) return unsupported(layer.persistent_refusals[static_cast<size_t>(form)]);
  if (batch > kMaxBatch)
    return unsupported("batch is " + std::to_string(batch) + ", must be at most " + std::to_string(kMaxBatch));
  if (steps > kMaxSteps)
    return unsupported("steps is " + std::to_string(steps) + ", must be at most " + std::to_string(kMaxSteps));
  return {};
}

/// Of whichever form.
int64_t exchange_bytes(const PersistentLayer& layer, int64_t batch) {
  return std::max({fits(layer, PersistentForm::kGrid) ? grid_exchange_bytes(layer, batch) : 0,
                   fits(layer, PersistentForm::kPortable) ? portable_exchange_bytes(layer, batch) : 0});
}

/// Of `persistent`, that make it the fastest.
int64_t fewest_steps(const PersistentLayer& layer, int64_t batch) {
  if (fits(layer, PersistentForm::kPortable) && fastest_form(layer, batch, 1) == PersistentForm::kPortable) {
    for (const FewestPortableSteps& row : kFewestPortableSteps)
      if (layer.hidden_size <= row.hidden && batch <= row.batch)
        return portable_launches(layer, batch) <= row.launches ? row.steps : INT64_MAX;
  }
  for (const FewestSteps& row : kFewestSteps)
    if (layer.hidden_size <= row.hidden && batch <= row.batch) {
      const int64_t steps = layer.h_planes == 1 ? row.steps : row.wide;
      return fits(layer, PersistentForm::kProducts) ? steps : std::min(steps, kFewestBesideStep);
    }
  return 1;
}

std::span<const FewestSequences> product_rules(int64_t inputs, const PersistentLayer& layer) {
  if (4 * inputs > 5 * layer.h_planes * layer.hidden_size) return kFewestSequencesOfManyInputs;
  if (4 * inputs > 3 * layer.hidden_size) return kFewestProductSequences;
  if (inputs > kVeryFewInputs) return kFewestSequencesOfFewInputs;
  return kFewestSequencesOfVeryFewInputs;
}

}  // namespace

bool persistent_is_taken(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool) {
  return steps >= fewest_steps(layers.front().persistent, batch);
}

bool products_is_taken(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool copies) {
  if (steps == 0) return false;
  const PersistentLayer& layer = layers.front().persistent;
  // Later layers have H inputs, or 2 H.
  for (const FewestSequences& row : product_rules(layers.front().input_size, layer))
    if (layer.hidden_size <= row.hidden) {
      const FewestSequences::Widths& fewest = steps > 1 ? row.several : copies ? row.copied : row.otherwise;
      return batch >= (layer.h_planes == 1 ? fewest.bytes : fewest.wide);
    }
  return false;
}

bool only_if_asked(std::span<const DeviceLayer>, int64_t, int64_t, bool) { return false; }

int64_t persistent_scratch_bytes(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps,
                                 const DeviceLimits&) {
  // Smaller runs are supported, too.
  batch = std::min(batch, kMaxBatch);
  steps = std::min(steps, kMaxSteps);
  if (!supports(layers, PersistentForm::kChosen, batch, steps).ok()) return 0;
  int64_t bytes = 0;
  for (const DeviceLayer& layer : layers) {
    const PersistentLayer& p = layer.persistent;
    // A smaller batch may run more steps in a chunk: the limit itself, where it can be reached.
    const int64_t one = batch * row_bytes(p);
    const int64_t padding = product_x_bytes(product_shape(p), 1) + 2 * kAlignment;
    const int64_t most = chunk_bytes.load(std::memory_order_relaxed);
    const int64_t chunk = steps <= most / one ? steps * one : std::max(most, one);
    bytes = std::max(bytes, chunk + padding + aligned(exchange_bytes(p, batch)));
  }
  return bytes;
}

int64_t products_scratch_bytes(std::span<const DeviceLayer> layers, int64_t batch, int64_t, const DeviceLimits&) {
  batch = std::min(batch, kMaxBatch);
  if (!supports(layers, PersistentForm::kProducts, batch, 1).ok()) return 0;
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
PersistentChunk chunk_of(const PersistentLayer& p, const DeviceRun& run, const void* state, int64_t first,
                         int64_t steps) {
  PersistentChunk chunk{};
  chunk.first_step = first;
  chunk.steps = steps;
  chunk.batch = run.batch;
  chunk.state = static_cast<const uint8_t*>(state);
  chunk.next_state = static_cast<uint8_t*>(run.next_state);
  chunk.y_unit = static_cast<int32_t>(run.y_element_bytes(p.h_planes));
  chunk.y_scale = run.y_scale;
  chunk.y_step = run.y_strides.step * chunk.y_unit;
  chunk.y_sequence = run.y_strides.sequence * chunk.y_unit;
  chunk.y = static_cast<uint8_t*>(run.y) + first * chunk.y_step;
  chunk.lengths = run.lengths;
  chunk.mask = run.mask;
  chunk.mask_width = run.mask_width;
  chunk.reverse = run.reverse;
  chunk.delays = exchange_delays.load(std::memory_order_relaxed);
  return chunk;
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
  cudaLaunchAttribute early = early_start();
  cudaLaunchConfig_t config{};
  config.gridDim = dim3((pieces + kZeroThreads - 1) / kZeroThreads);
  config.blockDim = dim3(kZeroThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = product_shape(p).starts_early ? 1 : 0;
  return cuda_status(cudaLaunchKernelEx(&config, zero_exchange, reinterpret_cast<uint4*>(exchange), pieces),
                     "kernel zero_exchange");
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
  PersistentChunk chunk = chunk_of(p, run, begins ? run.state : run.next_state, first, steps);
  chunk.ih = ih;
  return with_state_ratios(p.ratios.h, p.h_planes, [&](auto ratio) {
    using Ratio = decltype(ratio);
    switch (form) {
      case PersistentForm::kGrid: return launch_grid<Ratio>(p, chunk, exchange, stream);
      case PersistentForm::kPortable: return launch_portable<Ratio>(p, chunk, exchange, stream);
      default: return launch_cluster<Ratio>(p, chunk, form == PersistentForm::kClusterMany, stream);
    }
  });
}

Status launch(const DeviceLayer& layer, PersistentForm asked, const DeviceRun& run, cudaStream_t stream) {
  const PersistentLayer& p = layer.persistent;
  const PersistentForm form = form_of(p, asked, run.batch, run.steps);
  if (form == PersistentForm::kProducts)
    return launch_products(p, chunk_of(p, run, run.state, 0, run.steps), rows_of(p, run, 0, run.steps, true),
                           run.scratch, stream);
  const int64_t chunk = chunk_steps(p, run.batch, run.steps);
  std::byte* scratch = run.scratch;
  const auto take = [&scratch](int64_t bytes) {
    std::byte* const piece = scratch;
    scratch += aligned(bytes);
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
bool runs_beside(const DeviceLayer& layer, PersistentForm asked, int64_t batch, int64_t steps) {
  const PersistentForm form = form_of(layer.persistent, asked, batch, steps);
  return form != PersistentForm::kGrid && (form != PersistentForm::kPortable || layer.persistent.portable.blocks == 1);
}

}  // namespace

#define ISOBIT_PERSISTENT_FORM(name, form)                                                                         \
  Status name##_supports(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, const DeviceLimits&) { \
    return supports(layers, PersistentForm::form, batch, steps);                                                   \
  }                                                                                                                \
  Status name##_launch(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits&, cudaStream_t stream) { \
    return launch(layer, PersistentForm::form, run, stream);                                                       \
  }                                                                                                                \
  bool name##_beside(const DeviceLayer& layer, int64_t batch, int64_t steps) {                                     \
    return runs_beside(layer, PersistentForm::form, batch, steps);                                                 \
  }
ISOBIT_PERSISTENT_FORM(persistent, kChosen)
ISOBIT_PERSISTENT_FORM(cluster, kCluster)
ISOBIT_PERSISTENT_FORM(cluster_many, kClusterMany)
ISOBIT_PERSISTENT_FORM(grid, kGrid)
ISOBIT_PERSISTENT_FORM(portable, kPortable)
ISOBIT_PERSISTENT_FORM(products, kProducts)
#undef ISOBIT_PERSISTENT_FORM

}  // namespace isobit::cuda
