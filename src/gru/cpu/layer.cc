// SPDX-License-Identifier: Apache-2.0
#include "gru/cpu/layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/codes.h"
#include "core/scratch.h"
#include "gru/clamps.h"
#include "gru/reference.h"

namespace isobit {
namespace {

constexpr int64_t kTargetRows = 32;  // rows of W x computed at once: weights are then read once for many steps
/// Tiles of weights whose product is followed by the gates of their units: few enough for the processor to begin the
/// next product, which waits for memory, while the gates, which do not, are still at work.
constexpr int32_t kBlockTiles = 12;

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/// Steps whose W x is computed together.
int64_t steps_per_block(int64_t sequences, int64_t steps) {
  if (steps == 1) return 1;  // without the division, which a call of one small step would feel
  return std::clamp<int64_t>(kTargetRows / std::max<int64_t>(sequences, 1), 1, std::max<int64_t>(steps, 1));
}

/// multiplier * 2^-shift, exact.
double ratio_of(const RescaleParameters& r) { return std::ldexp(static_cast<double>(r.multiplier), -r.shift); }

UniformRatio lanes_of(const RescaleParameters& r) {
  const int32_t right = std::clamp(r.shift, 0, 62);
  const int64_t half = (int64_t{1} << right) >> 1;
  return {r.multiplier, std::max(-r.shift, 0), right, half, 2 * half - 1};
}

}  // namespace

Result<GruLayer> GruLayer::create(GruLayerParameters parameters, const std::string& name) {
  GruLayer layer;
  layer.p_ = std::move(parameters);
  const GruLayerParameters& p = layer.p_;
  ISOBIT_ASSIGN_OR_RETURN(layer.proof_, prove_no_overflow(p, name));
  const auto sums = [](const CodeMatrix& m) {
    std::vector<int64_t> out;
    for (const RowSums& row : row_sums(m)) out.push_back(row.sum);
    return out;
  };
  layer.W_sum_ = sums(p.W);
  layer.R_sum_ = sums(p.R);
  const auto wider = [&](GruTensor tensor) { return p.grids[tensor].bits > 16; };
  for (const GruTensor tensor : {kX, kH, kW, kR})
    if (wider(tensor) && layer.packed_reason_.ok())
      layer.packed_reason_ = {StatusCode::kUnsupported,
                              name + ": " + std::string(kGruTensorNames[tensor]) + " has " +
                                  std::to_string(p.grids[tensor].bits) +
                                  " bits; the packed kernels take at most 16, the reference runs it"};
  if (layer.packed_reason_.ok() && !layer.proof_.gates_s64)
    layer.packed_reason_ = {StatusCode::kUnsupported,
                            name + ": an intermediate needs all of int64; the reference runs it"};
  if (layer.packed_reason_.ok()) layer.packed_reason_ = layer.pack();
  return layer;
}

Status GruLayer::pack() {
  const int64_t hidden = p_.hidden_size;
  padded_ = round_up(hidden, kUnitsPerTile);
  const auto rows = static_cast<size_t>(3 * padded_);
  wide_ = !(proof_.acc_x_s32 && proof_.acc_h_s32 && proof_.gates_s32);
  for (int side = 0; side < 2; ++side) {
    const auto& to_out = side == 0 ? p_.acc_to_ih : p_.acc_to_hh;
    const auto& bias_to_acc = side == 0 ? p_.bw_to_acc : p_.br_to_acc;
    const CodeMatrix& bias = side == 0 ? p_.bw : p_.br;
    const auto& sums = side == 0 ? W_sum_ : R_sum_;
    const Grid& activation = p_.grids[side == 0 ? kX : kH];
    start32_[side].resize(rows);
    start64_[side].resize(rows);
    shift_[side].resize(rows);
    multiplier_[side].assign(rows, 1);
    half_[side].resize(rows);
    tie_mask_[side].assign(rows, -1);
    ratio32_[side].assign(rows, 1);
    ratio64_[side].assign(rows, 1);
    for (int64_t gate = 0; gate < 3; ++gate)
      for (int64_t i = 0; i < hidden; ++i) {
        const auto from = static_cast<size_t>(gate * hidden + i);
        const auto to = static_cast<size_t>(tile_row(gate, i));
        const int64_t start = rescale(bias_to_acc[from], bias.at(static_cast<int64_t>(from), 0), p_.rounding) -
                              (activation.zero_point + storage_offset(activation.dtype())) * sums[from];
        start64_[side][to] = start;
        start32_[side][to] = static_cast<int32_t>(static_cast<uint64_t>(start));  // sums wrap, the final value fits
        const int32_t shift = to_out[from].shift;
        shift_[side][to] = shift;
        multiplier_[side][to] = to_out[from].multiplier;
        ratio64_[side][to] = ratio_of(to_out[from]);
        ratio32_[side][to] = static_cast<float>(ratio64_[side][to]);  // read where the proof says that it is exact
        if (shift < 0) wide_ = true;                                  // the 32-bit lanes shift rows to the right only
        if (shift > 0 && shift <= 30) {
          half_[side][to] = int32_t{1} << (shift - 1);
          tie_mask_[side][to] = (int32_t{1} << shift) - 1;
        }
      }
  }
  for (int gate = 0; gate < 3; ++gate) {
    const ActivationTable& table = p_.tables[gate];
    const int64_t count = int64_t{1} << table.input.bits;
    tables_[gate].resize(static_cast<size_t>(count + 1));  // a look-up reads two entries
    for (int64_t i = 0; i < count; ++i)
      tables_[gate][static_cast<size_t>(i)] = static_cast<uint16_t>(table(table.input.min() + i) - table.output.min());
  }
  const bool bytes = std::all_of(p_.tables.begin(), p_.tables.end(),
                                 [](const ActivationTable& t) { return t.input.bits <= 8 && t.output.bits <= 8; });
  if (bytes)
    for (int gate = 0; gate < 3; ++gate) {
      byte_tables_[gate].assign(256, 0);
      std::transform(tables_[gate].begin(), tables_[gate].end() - 1, byte_tables_[gate].begin(),
                     [](uint16_t entry) { return static_cast<uint8_t>(entry); });
    }
  const auto packed = [&](const CodeMatrix& m) {
    std::vector<int32_t> in_tile_order(rows * static_cast<size_t>(m.columns()));
    with_code_type(m.dtype(), [&](auto zero) {
      const auto* codes = reinterpret_cast<const decltype(zero)*>(m.data());
      for (int64_t gate = 0; gate < 3; ++gate)
        for (int64_t i = 0; i < hidden; ++i, codes += m.columns())
          std::copy_n(codes, m.columns(), in_tile_order.begin() + tile_row(gate, i) * m.columns());
    });
    return pack_weights(in_tile_order.data(), 3 * padded_, m.columns(), 3, kBlockTiles);
  };
  ISOBIT_ASSIGN_OR_RETURN(W_, packed(p_.W));
  ISOBIT_ASSIGN_OR_RETURN(R_, packed(p_.R));
  GruKernels kernels{};  // of this path, or of the nearest one before it
  for (const CpuPath path : kAllCpuPaths) {
    if (path == CpuPath::kReference || !cpu_can_run(path)) continue;
    // The function is compiled for the row's instruction set: it may only be called where that is.
    const auto choose = [&](CpuPath row, GruKernels (*kernels_of_row)()) {
      if (row != path) return;
      const GruKernels before = kernels;
      kernels = kernels_of_row();
      if (kernels.gates_s32 == nullptr) kernels.gates_s32 = before.gates_s32;
      if (kernels.gates_s64 == nullptr) kernels.gates_s64 = before.gates_s64;
      if (kernels.record_s32 == nullptr) kernels.record_s32 = before.record_s32;
      if (kernels.record_s64 == nullptr) kernels.record_s64 = before.record_s64;
      if (bytes && kernels.gates_f32_bytes != nullptr) kernels.gates_f32 = kernels.gates_f32_bytes;
      if (!proof_.gates_f32) kernels.gates_f32 = nullptr;
      if (!proof_.gates_f64) kernels.gates_f64 = nullptr;
    };
#define ISOBIT_GRU_KERNELS(row, name) choose(CpuPath::row, name);
#include "gru/cpu/kernels.inc"
#undef ISOBIT_GRU_KERNELS
    paths_[static_cast<size_t>(path)] = {linear_kernel(path), kernels};
  }
  set_gate_constants();
  return {};
}

void GruLayer::set_gate_constants() {
  GateConstants& c = gates_;
  const auto& grids = p_.grids;
  c.ih = {shift_[0].data(), multiplier_[0].data(), half_[0].data(), tie_mask_[0].data()};
  c.hh = {shift_[1].data(), multiplier_[1].data(), half_[1].data(), tie_mask_[1].data()};
  c.ih_low = grids[kIh].min() - grids[kIh].zero_point;
  c.ih_high = grids[kIh].max() - grids[kIh].zero_point;
  c.hh_low = grids[kHh].min() - grids[kHh].zero_point;
  c.hh_high = grids[kHh].max() - grids[kHh].zero_point;
  for (int gate = 0; gate < 3; ++gate) {
    const Grid& in = grids[kUIn + gate];
    const Grid& out = grids[kU + gate];
    c.ih_to_gate[gate] = lanes_of(p_.ih_to_gate[gate]);
    c.hh_to_gate[gate] = lanes_of(gate == 2 ? p_.rhh_to_n : p_.hh_to_gate[gate]);
    c.gate_offset[gate] = in.zero_point - in.min();
    c.gate_last[gate] = in.max() - in.min();
    c.table[gate] = tables_[gate].data();
    c.table_offset[gate] = out.min() - out.zero_point;
  }
  c.n_to_h = lanes_of(p_.n_to_h);
  c.u_to_one = lanes_of(p_.u_to_one);
  c.one = p_.one - grids[kU].zero_point;
  c.h_low = grids[kH].min() - grids[kH].zero_point;
  c.h_high = grids[kH].max() - grids[kH].zero_point;
  c.h_to_unsigned = grids[kH].zero_point + storage_offset(grids[kH].dtype());
  c.planes = activation_planes(grids[kH].dtype());
  c.rounding = p_.rounding;
  constexpr GruTensor kSaved[] = {kU, kRGate, kN, kHh};
  for (size_t i = 0; i < std::size(kSaved); ++i) c.saved_scales[i] = grids[kSaved[i]].scale();
  c.any_left = c.n_to_h.left != 0 || c.u_to_one.left != 0;
  for (int gate = 0; gate < 3; ++gate)
    c.any_left = c.any_left || c.ih_to_gate[gate].left != 0 || c.hh_to_gate[gate].left != 0;
  set_float_gate_constants(gates_f32_, ratio32_);
  set_float_gate_constants(gates_f64_, ratio64_);
  h_scale_ = grids[kH].scale();
  x_planes_ = plane_layout(grids[kX], p_.input_size);
  h_planes_ = plane_layout(grids[kH], p_.hidden_size);
  const Grid& x = grids[kX];
  x_quantizer_ = {x.inverse_scale(), static_cast<float>(x.min() - x.zero_point),
                  static_cast<float>(x.max() - x.zero_point), x_planes_.to_unsigned, x_planes_.planes};
}

GruLayer::PlaneLayout GruLayer::plane_layout(const Grid& grid, int64_t count) {
  PlaneLayout layout;
  layout.planes = activation_planes(grid.dtype());
  layout.flip = static_cast<int32_t>(storage_offset(grid.dtype()));
  layout.to_unsigned = static_cast<int32_t>(grid.zero_point + storage_offset(grid.dtype()));
  layout.plane_bytes = packed_plane_bytes(count);
  layout.row_bytes = packed_row_bytes(grid.dtype(), count);
  return layout;
}

template <typename T>
void GruLayer::set_float_gate_constants(FloatGateConstants<T>& c, const std::vector<T> (&ratios)[2]) const {
  c.ih = ratios[0].data();
  c.hh = ratios[1].data();
  c.ih_low = static_cast<T>(gates_.ih_low);
  c.ih_high = static_cast<T>(gates_.ih_high);
  c.hh_low = static_cast<T>(gates_.hh_low);
  c.hh_high = static_cast<T>(gates_.hh_high);
  for (int gate = 0; gate < 3; ++gate) {
    const Grid& in = p_.grids[kUIn + gate];
    c.ih_to_gate[gate] = static_cast<T>(ratio_of(p_.ih_to_gate[gate]));
    c.hh_to_gate[gate] = static_cast<T>(ratio_of(gate == 2 ? p_.rhh_to_n : p_.hh_to_gate[gate]));
    c.gate_low[gate] = static_cast<T>(in.min() - in.zero_point);
    c.gate_high[gate] = static_cast<T>(in.max() - in.zero_point);
    c.gate_to_index[gate] = kMagic<T> + static_cast<T>(in.zero_point - in.min());
    c.table[gate] = gates_.table[gate];
    c.byte_table[gate] = byte_tables_[gate].empty() ? nullptr : byte_tables_[gate].data();
    c.table_offset[gate] = gates_.table_offset[gate];
  }
  c.n_to_h = static_cast<T>(ratio_of(p_.n_to_h));
  c.u_to_one = static_cast<T>(ratio_of(p_.u_to_one));
  c.one = static_cast<T>(gates_.one);
  c.h_low = static_cast<T>(gates_.h_low);
  c.h_high = static_cast<T>(gates_.h_high);
  c.h_to_unsigned = gates_.h_to_unsigned;
  c.planes = gates_.planes;
  c.rounding = gates_.rounding;
}

void GruLayer::run_gates(const Path& path, int64_t unit, int64_t units, const int32_t* acc_x, const int32_t* acc_h,
                         int32_t* h_diff, uint8_t* low, uint8_t* high) const {
  if (path.gru.gates_f32 != nullptr) {
    path.gru.gates_f32(gates_f32_, unit, units, acc_x, acc_h, h_diff, low, high);
  } else {
    path.gru.gates_s32(gates_, unit, units, acc_x, acc_h, h_diff, low, high);
  }
}

void GruLayer::run_gates(const Path& path, int64_t unit, int64_t units, const int64_t* acc_x, const int64_t* acc_h,
                         int32_t* h_diff, uint8_t* low, uint8_t* high) const {
  if (path.gru.gates_f64 != nullptr) {
    path.gru.gates_f64(gates_f64_, unit, units, acc_x, acc_h, h_diff, low, high);
  } else {
    path.gru.gates_s64(gates_, unit, units, acc_x, acc_h, h_diff, low, high);
  }
}

template <typename Acc>
void GruLayer::record_gates(const Path& path, const LayerRecord& record, int64_t row, int64_t unit, int64_t units,
                            const Acc* acc_x, const Acc* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high) const {
  const int64_t H = p_.hidden_size;
  constexpr int64_t kMostUnits = kBlockTiles / 3 * kUnitsPerTile;
  const auto run = [&](const GateRecord& to) {
    if constexpr (sizeof(Acc) == sizeof(int64_t)) {
      path.gru.record_s64(gates_, unit, units, acc_x, acc_h, h_diff, low, high, to);
    } else {
      path.gru.record_s32(gates_, unit, units, acc_x, acc_h, h_diff, low, high, to);
    }
  };
  const GateRecord of_row{record.saved + row * 4 * H + unit, record.passes + row * H + unit,
                          record.above == nullptr ? nullptr : record.above + row * H + unit,
                          record.rests == nullptr ? nullptr : record.rests + row * kClamps * H + unit, H};
  if (unit + units <= H) return run(of_row);
  // Units past H would lie in what follows.
  float saved[4 * kMostUnits], rests[kClamps * kMostUnits];
  uint16_t passes[kMostUnits], above[kMostUnits];
  const bool learns = of_row.rests != nullptr;
  run({saved, passes, learns ? above : nullptr, learns ? rests : nullptr, kMostUnits});
  const int64_t count = H - unit;
  for (int64_t i = 0; i < 4; ++i) std::copy_n(saved + i * kMostUnits, count, of_row.saved + i * H);
  std::copy_n(passes, count, of_row.passes);
  if (!learns) return;
  std::copy_n(above, count, of_row.above);
  for (int64_t i = 0; i < kClamps; ++i) std::copy_n(rests + i * kMostUnits, count, of_row.rests + i * H);
}

int64_t GruLayer::scratch_bytes(int64_t sequences, int64_t steps) const {
  Scratch reference(nullptr);
  reference.take<int64_t>(p_.input_size + 14 * p_.hidden_size);
  if (!packed_reason_.ok()) return reference.used();
  Scratch packed(nullptr);
  // Of as many sequences or fewer, which take more steps together: a thread's part of the batch.
  const int64_t rows = std::min(std::max(kTargetRows, sequences), steps * sequences);
  packed.take<uint8_t>(rows * x_planes_.row_bytes);
  for (int turn = 0; turn < 2; ++turn) packed.take<uint8_t>(sequences * h_planes_.row_bytes);
  for (const int64_t values : {rows * 3 * padded_, sequences * kBlockTiles * kTileRows})
    packed.take<int64_t>(std::max<int64_t>(values, kBlockTiles * kTileRows));
  for (int turn = 0; turn < 2; ++turn) packed.take<int32_t>(sequences * padded_);
  return std::max(reference.used(), packed.used());
}

void GruLayer::run(CpuPath path, const LayerRun& run) const {
  if (path == CpuPath::kReference) {
    run_reference(run);
  } else if (run.steps == 1 && run.end - run.begin == 1 && run.lengths.empty() && run.mask == nullptr &&
             run.record == nullptr) {
    if (wide_) {
      run_one_step<int64_t>(paths_[static_cast<size_t>(path)], run);
    } else {
      run_one_step<int32_t>(paths_[static_cast<size_t>(path)], run);
    }
  } else if (wide_) {
    run_packed<int64_t>(paths_[static_cast<size_t>(path)], run);
  } else {
    run_packed<int32_t>(paths_[static_cast<size_t>(path)], run);
  }
}

void GruLayer::run_reference(const LayerRun& run) const {
  const int64_t C = p_.input_size;
  const int64_t H = p_.hidden_size;
  const Dtype x_type = p_.grids[kX].dtype();
  const Dtype h_type = p_.grids[kH].dtype();
  const CellView cell_view = view_of(p_);
  const int64_t z_h = cell_view.h.zero_point;
  Scratch scratch(run.scratch);
  int64_t* x = scratch.take<int64_t>(C + 14 * H);
  int64_t* h = x + C;
  int64_t* ih = h + H;          // [3H]
  int64_t* hh = ih + 3 * H;     // [3H]
  int64_t* cells = hh + 3 * H;  // u_in r_in n_in u r n h', [7][H]
  const auto linear = [](const CodeMatrix& m, int64_t row, const int64_t* v) {
    int64_t sum = 0;
    with_code_type(m.dtype(), [&](auto zero) {
      const auto* w = reinterpret_cast<const decltype(zero)*>(m.data()) + row * m.columns();
      for (int64_t k = 0; k < m.columns(); ++k) sum += static_cast<int64_t>(w[k]) * v[k];
    });
    return sum;
  };
  for (int64_t b = run.begin; b < run.end; ++b) {
    for (int64_t i = 0; i < H; ++i) h[i] = load_code(run.h, h_type, b * H + i);
    const int64_t length = run.lengths.empty() ? run.steps : run.lengths[static_cast<size_t>(b)];
    for (int64_t s = 0; s < run.steps; ++s) {
      const int64_t t = run.reverse ? run.steps - 1 - s : s;
      const int64_t y = t * run.y_strides.step + b * run.y_strides.sequence;
      if (t >= length) {
        for (int64_t i = 0; i < H; ++i) store_code(run.y, h_type, y + i, z_h);
        continue;
      }
      for (int64_t k = 0; k < C; ++k)
        x[k] = load_code(run.x, x_type, t * run.x_strides.step + b * run.x_strides.sequence + k);
      for (int64_t c = 0; c < 3 * H; ++c) {
        const auto row = static_cast<size_t>(c);
        ih[c] = reference_linear(linear(p_.W, c, x), p_.grids[kX].zero_point, W_sum_[row], p_.bw.at(c, 0),
                                 p_.bw_to_acc[row], p_.acc_to_ih[row], cell_view.ih, p_.rounding);
        hh[c] = reference_linear(linear(p_.R, c, h), z_h, R_sum_[row], p_.br.at(c, 0), p_.br_to_acc[row],
                                 p_.acc_to_hh[row], cell_view.hh, p_.rounding);
      }
      const uint8_t* mask = run.mask == nullptr ? nullptr : run.mask + (t * run.batch + b) * run.mask_width;
      for (int64_t i = 0; i < H; ++i) {
        const int64_t ih_unit[3] = {ih[i], ih[H + i], ih[2 * H + i]};
        const int64_t hh_unit[3] = {hh[i], hh[H + i], hh[2 * H + i]};
        const ReferenceCell cell = reference_cell(cell_view, ih_unit, hh_unit, h[i]);
        const int64_t codes[7] = {
            cell.u_in, cell.r_in, cell.n_in, cell.u, cell.r, cell.n, mask != nullptr && mask[i] == 0 ? h[i] : cell.h};
        for (int64_t j = 0; j < 7; ++j) cells[j * H + i] = codes[j];
      }
      std::copy_n(cells + 6 * H, H, h);
      for (int64_t i = 0; i < H; ++i) store_code(run.y, h_type, y + i, h[i]);
      if (run.observer != nullptr) {
        const auto show = [&](int32_t tensor, const int64_t* codes, int64_t count) {
          run.observer->observe(tensor, run.layer, b, t, {codes, static_cast<size_t>(count)});
        };
        show(kX, x, C);
        show(kIh, ih, 3 * H);
        show(kHh, hh, 3 * H);
        for (int32_t j = 0; j < 6; ++j) show(kUIn + j, cells + j * H, H);
        show(kH, h, H);
      }
    }
    for (int64_t i = 0; i < H; ++i) store_code(run.h, h_type, b * H + i, h[i]);
  }
}

template <typename Acc>
const Acc* GruLayer::start(int side) const {
  if constexpr (sizeof(Acc) == sizeof(int64_t)) {
    return start64_[side].data();
  } else {
    return start32_[side].data();
  }
}

void GruLayer::load_x(const Path& path, const LayerRun& run, int64_t t, int64_t b, uint8_t* planes) const {
  const int64_t at = t * run.x_strides.step + b * run.x_strides.sequence;
  uint8_t* high = planes + x_planes_.plane_bytes;
  if (run.x_float != nullptr) {
    path.gru.quantize_row(x_quantizer_, run.x_float + at, p_.input_size, planes, high);
  } else {
    path.gru.load_row(run.x + at * x_planes_.planes, p_.input_size, x_planes_.planes, x_planes_.flip,
                      x_planes_.to_unsigned, planes, high, nullptr);
  }
}

void GruLayer::store_y(const Path& path, const LayerRun& run, int64_t t, int64_t b, const int32_t* diff) const {
  const int64_t at = t * run.y_strides.step + b * run.y_strides.sequence;
  if (run.y_float != nullptr) path.gru.dequantize_row(diff, p_.hidden_size, h_scale_, run.y_float + at);
  if (run.y != nullptr) {
    path.gru.store_row(diff, p_.hidden_size, static_cast<int32_t>(p_.grids[kH].zero_point), h_planes_.planes,
                       run.y + at * h_planes_.planes);
  }
}

// A streaming call: one step of one sequence. There is no second row to read W for, so W x and R h go block by block.
template <typename Acc>
void GruLayer::run_one_step(const Path& path, const LayerRun& run) const {
  const int64_t H = p_.hidden_size;
  Scratch scratch(run.scratch);
  uint8_t* x = scratch.take<uint8_t>(x_planes_.row_bytes);
  uint8_t* h = scratch.take<uint8_t>(h_planes_.row_bytes);
  uint8_t* h_next = scratch.take<uint8_t>(h_planes_.row_bytes);  // what the next call would read; only h_diff is kept
  Acc* acc_x = scratch.take<Acc>(kBlockTiles * kTileRows);
  Acc* acc_h = scratch.take<Acc>(kBlockTiles * kTileRows);
  int32_t* h_diff = scratch.take<int32_t>(padded_);
  std::byte* codes = run.h + run.begin * H * h_planes_.planes;
  load_x(path, run, 0, run.begin, x);
  path.gru.load_row(codes, H, h_planes_.planes, h_planes_.flip, h_planes_.to_unsigned, h, h + h_planes_.plane_bytes,
                    h_diff);
  std::fill_n(h_diff + H, padded_ - H, 0);
  const int32_t end = R_->all_blocks().end;
  for (int32_t i = 0; i < end; ++i) {
    const int32_t block = run.last_block_first ? end - 1 - i : i;
    const int64_t row = R_->first_row(block);
    const int64_t rows = R_->first_row(block + 1) - row;
    linear<Acc>(path.linear, *W_, {block, block + 1}, {x, 0, x_planes_.planes, 1}, start<Acc>(0) + row, acc_x, rows);
    linear<Acc>(path.linear, *R_, {block, block + 1}, {h, 0, h_planes_.planes, 1}, start<Acc>(1) + row, acc_h, rows);
    run_gates(path, row / 3, rows / 3, acc_x, acc_h, h_diff, h_next, h_next + h_planes_.plane_bytes);
  }
  store_y(path, run, 0, run.begin, h_diff);
  path.gru.store_row(h_diff, H, static_cast<int32_t>(p_.grids[kH].zero_point), h_planes_.planes, codes);
}

// W x is computed for a block of steps at once; then, step by step and block by block of weights, R h and the gates of
// the block's units, whose weights are still in the cache where several sequences share them. Every other step goes
// through the blocks backwards, so that of weights that do not fit a cache the part that was used last is found in it;
// last_block_first carries this on over calls.
template <typename Acc>
void GruLayer::run_packed(const Path& path, const LayerRun& run) const {
  const int64_t H = p_.hidden_size;
  const auto z_h = static_cast<int32_t>(p_.grids[kH].zero_point);
  const int64_t sequences = run.end - run.begin;
  const int64_t steps_together = steps_per_block(sequences, run.steps);
  const int64_t x_row = x_planes_.row_bytes;
  const int64_t h_row = h_planes_.row_bytes;
  const int64_t h_plane = h_planes_.plane_bytes;
  const int64_t rows = 3 * padded_;
  const int32_t blocks = R_->all_blocks().end;

  Scratch scratch(run.scratch);
  uint8_t* x = scratch.take<uint8_t>(steps_together * sequences * x_row);
  uint8_t* h = scratch.take<uint8_t>(sequences * h_row);
  uint8_t* h_next = scratch.take<uint8_t>(sequences * h_row);
  Acc* acc_x = scratch.take<Acc>(steps_together * sequences * rows);
  Acc* acc_h = scratch.take<Acc>(sequences * kBlockTiles * kTileRows);
  int32_t* h_diff = scratch.take<int32_t>(sequences * padded_);
  int32_t* h_before = scratch.take<int32_t>(sequences * padded_);

  const auto codes_of = [&](int64_t s) { return run.h + (run.begin + s) * H * h_planes_.planes; };
  const auto length_of = [&](int64_t b) {
    return run.lengths.empty() ? run.steps : run.lengths[static_cast<size_t>(b)];
  };
  for (int64_t s = 0; s < sequences; ++s) {
    uint8_t* low = h + s * h_row;
    int32_t* diff = h_diff + s * padded_;
    path.gru.load_row(codes_of(s), H, h_planes_.planes, h_planes_.flip, h_planes_.to_unsigned, low, low + h_plane,
                      diff);
    std::fill_n(diff + H, padded_ - H, 0);
  }
  bool backwards = run.last_block_first;
  for (int64_t done = 0; done < run.steps; done += steps_together) {
    const int64_t count = std::min(steps_together, run.steps - done);
    const int64_t first = run.reverse ? run.steps - done - count : done;
    for (int64_t j = 0; j < count; ++j)
      for (int64_t s = 0; s < sequences; ++s)
        load_x(path, run, first + j, run.begin + s, x + (j * sequences + s) * x_row);
    linear<Acc>(path.linear, *W_, W_->all_blocks(), {x, x_row, x_planes_.planes, count * sequences}, start<Acc>(0),
                acc_x, rows);
    for (int64_t k = 0; k < count; ++k, backwards = !backwards) {
      const int64_t j = run.reverse ? count - 1 - k : k;
      const int64_t t = first + j;
      if (run.mask != nullptr) std::copy_n(h_diff, sequences * padded_, h_before);
      for (int32_t i = 0; i < blocks; ++i) {
        const int32_t block = backwards ? blocks - 1 - i : i;
        const int64_t row = R_->first_row(block);
        const int64_t block_rows = R_->first_row(block + 1) - row;
        linear<Acc>(path.linear, *R_, {block, block + 1}, {h, h_row, h_planes_.planes, sequences}, start<Acc>(1) + row,
                    acc_h, block_rows);
        for (int64_t s = 0; s < sequences; ++s) {
          if (t >= length_of(run.begin + s)) continue;
          uint8_t* low = h_next + s * h_row;
          const Acc *const of_x = acc_x + (j * sequences + s) * rows + row, *const of_h = acc_h + s * block_rows;
          int32_t* const diff = h_diff + s * padded_;
          if (run.record == nullptr) {
            run_gates(path, row / 3, block_rows / 3, of_x, of_h, diff, low, low + h_plane);
          } else {
            record_gates(path, *run.record, t * run.batch + run.begin + s, row / 3, block_rows / 3, of_x, of_h, diff,
                         low, low + h_plane);
          }
        }
      }
      std::swap(h, h_next);
      for (int64_t s = 0; s < sequences; ++s) {
        const int64_t b = run.begin + s;
        int32_t* diff = h_diff + s * padded_;
        int32_t* before = h_before + s * padded_;
        if (t >= length_of(b)) {  // the state stays; y is 0
          std::memcpy(h + s * h_row, h_next + s * h_row, static_cast<size_t>(h_row));
          std::fill_n(before, H, 0);
          store_y(path, run, t, b, before);
          continue;
        }
        if (run.mask != nullptr) {
          const uint8_t* mask = run.mask + (t * run.batch + b) * run.mask_width;
          uint8_t* low = h + s * h_row;
          for (int64_t i = 0; i < H; ++i) {
            if (mask[i] != 0) continue;
            diff[i] = before[i];
            const auto code = static_cast<uint32_t>(before[i] + h_planes_.to_unsigned);
            low[i] = static_cast<uint8_t>(code);
            if (h_planes_.planes == 2) low[h_plane + i] = static_cast<uint8_t>(code >> 8);
          }
        }
        store_y(path, run, t, b, diff);
      }
    }
  }
  for (int64_t s = 0; s < sequences; ++s)
    path.gru.store_row(h_diff + s * padded_, H, z_h, h_planes_.planes, codes_of(s));
}

}  // namespace isobit
