// SPDX-License-Identifier: Apache-2.0
#include "gru/layer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/codes.h"
#include "gru/reference.h"

namespace isobit {
namespace {

constexpr int64_t kTargetRows = 32;  // rows of W x computed at once: weights are then read once for many steps
/// Tiles of weights whose product is followed by the gates of their units: few enough for the processor to begin the
/// next product, which waits for memory, while the gates, which do not, are still at work.
constexpr int32_t kBlockTiles = 6;

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/// Steps whose W x is computed together.
int64_t steps_per_block(int64_t sequences, int64_t steps) {
  return std::clamp<int64_t>(kTargetRows / std::max<int64_t>(sequences, 1), 1, std::max<int64_t>(steps, 1));
}

/// Hands out 64-byte aligned pieces of one allocation; with a null base it only adds up.
class Scratch {
 public:
  explicit Scratch(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }
  [[nodiscard]] int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

UniformRatio lanes_of(const RescaleParameters& r) {
  return {r.multiplier, std::max(-r.shift, 0), std::max(r.shift, 0)};
}

}  // namespace

Result<GruLayer> GruLayer::create(GruLayerParameters parameters, const std::string& name) {
  GruLayer layer;
  layer.p_ = std::move(parameters);
  const GruLayerParameters& p = layer.p_;
  ISOBIT_ASSIGN_OR_RETURN(layer.proof_, prove_no_overflow(p, name));
  const auto sums = [](const CodeMatrix& m) {
    std::vector<int64_t> out(static_cast<size_t>(m.rows()));
    for (int64_t c = 0; c < m.rows(); ++c)
      for (int64_t k = 0; k < m.columns(); ++k) out[static_cast<size_t>(c)] += m.at(c, k);
    return out;
  };
  layer.W_sum_ = sums(p.W);
  layer.R_sum_ = sums(p.R);
  const auto wider = [&](GruTensor tensor) { return p.grids[tensor].bits > 16; };
  for (const GruTensor tensor : {kX, kH, kW, kR})
    if (wider(tensor) && layer.packed_reason_.ok())
      layer.packed_reason_ = {StatusCode::kUnsupported, name + ": " + std::string(kGruTensorNames[tensor]) + " has " +
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
        if (shift < 0) wide_ = true;  // the 32-bit lanes shift rows to the right only
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
  const auto packed = [&](const CodeMatrix& m) {
    std::vector<int32_t> in_tile_order(rows * static_cast<size_t>(m.columns()));
    for (int64_t gate = 0; gate < 3; ++gate)
      for (int64_t i = 0; i < hidden; ++i)
        for (int64_t k = 0; k < m.columns(); ++k)
          in_tile_order[static_cast<size_t>(tile_row(gate, i) * m.columns() + k)] =
              static_cast<int32_t>(m.at(gate * hidden + i, k));
    return pack_weights(in_tile_order.data(), 3 * padded_, m.columns(), 3, kBlockTiles);
  };
  ISOBIT_ASSIGN_OR_RETURN(W_, packed(p_.W));
  ISOBIT_ASSIGN_OR_RETURN(R_, packed(p_.R));
  GruKernels kernels{};  // of this path, or of the nearest one before it
  for (const CpuPath path : kAllCpuPaths) {
    if (path == CpuPath::kReference || !cpu_can_run(path)) continue;
    const auto choose = [&](CpuPath row, const GruKernels& found) {
      if (row != path) return;
      const GruKernels before = kernels;
      kernels = found;
      if (kernels.gates_s32 == nullptr) kernels.gates_s32 = before.gates_s32;
      if (kernels.gates_s64 == nullptr) kernels.gates_s64 = before.gates_s64;
    };
#define ISOBIT_GRU_KERNELS(row, name) choose(CpuPath::row, name());
#include "gru/kernels.inc"
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
  const Grid& x = grids[kX];
  x_quantizer_ = {x.inverse_scale(), static_cast<float>(x.min() - x.zero_point), static_cast<float>(x.max() - x.zero_point),
                  static_cast<int32_t>(x.zero_point + storage_offset(x.dtype())), activation_planes(x.dtype())};
}

int64_t GruLayer::scratch_bytes(int64_t sequences, int64_t steps) const {
  Scratch reference(nullptr);
  reference.take<int64_t>(p_.input_size + 14 * p_.hidden_size);
  if (!packed_reason_.ok()) return reference.used();
  Scratch packed(nullptr);
  const int64_t block = steps_per_block(sequences, steps);
  packed.take<uint8_t>(block * sequences * packed_row_bytes(p_.grids[kX].dtype(), p_.input_size));
  for (int turn = 0; turn < 2; ++turn)
    packed.take<uint8_t>(sequences * packed_row_bytes(p_.grids[kH].dtype(), padded_));
  packed.take<int64_t>(block * sequences * 3 * padded_);
  packed.take<int64_t>(sequences * kBlockTiles * kTileRows);
  packed.take<int32_t>(sequences * padded_);
  packed.take<int32_t>(sequences * padded_);
  return std::max(reference.used(), packed.used());
}

void GruLayer::run(CpuPath path, const LayerRun& run) const {
  if (path == CpuPath::kReference) {
    run_reference(run);
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
  const int64_t z_h = p_.grids[kH].zero_point;
  Scratch scratch(run.scratch);
  int64_t* x = scratch.take<int64_t>(C + 14 * H);
  int64_t* h = x + C;
  int64_t* ih = h + H;       // [3H]
  int64_t* hh = ih + 3 * H;  // [3H]
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
                                 p_.bw_to_acc[row], p_.acc_to_ih[row], p_.grids[kIh], p_.rounding);
        hh[c] = reference_linear(linear(p_.R, c, h), z_h, R_sum_[row], p_.br.at(c, 0), p_.br_to_acc[row],
                                 p_.acc_to_hh[row], p_.grids[kHh], p_.rounding);
      }
      const uint8_t* mask = run.mask == nullptr ? nullptr : run.mask + (t * run.batch + b) * run.mask_width;
      for (int64_t i = 0; i < H; ++i) {
        const int64_t ih_unit[3] = {ih[i], ih[H + i], ih[2 * H + i]};
        const int64_t hh_unit[3] = {hh[i], hh[H + i], hh[2 * H + i]};
        const ReferenceCell cell = reference_cell(p_, ih_unit, hh_unit, h[i]);
        const int64_t codes[7] = {cell.u_in, cell.r_in, cell.n_in, cell.u, cell.r, cell.n,
                                  mask != nullptr && mask[i] == 0 ? h[i] : cell.h};
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

// W x is computed for a block of steps at once; then, step by step and block by block of weights, R h and the gates of
// the block's units. A call of one step of one sequence has no second row to read W for: there W x goes block by block,
// too. Every other step goes through the blocks backwards, so that of weights that do not fit a cache the part that was
// used last is found in it; last_block_first carries this on over calls.
template <typename Acc>
void GruLayer::run_packed(const Path& path, const LayerRun& run) const {
  constexpr bool kWide = sizeof(Acc) == sizeof(int64_t);
  const int64_t H = p_.hidden_size;
  const int64_t C = p_.input_size;
  const Dtype x_type = p_.grids[kX].dtype();
  const Dtype h_type = p_.grids[kH].dtype();
  const auto x_size = static_cast<int64_t>(size_in_bytes(x_type));
  const auto h_size = static_cast<int64_t>(size_in_bytes(h_type));
  const auto z_h = static_cast<int32_t>(p_.grids[kH].zero_point);
  const float h_scale = p_.grids[kH].scale();
  const int64_t sequences = run.end - run.begin;
  const int64_t steps_together = steps_per_block(sequences, run.steps);
  const int64_t x_row = packed_row_bytes(x_type, C);
  const int64_t h_row = packed_row_bytes(h_type, H);
  const int64_t h_plane = packed_plane_bytes(H);
  const int x_planes = activation_planes(x_type);
  const int h_planes = activation_planes(h_type);
  const int64_t rows = 3 * padded_;
  const BlockRange blocks = R_->all_blocks();

  Scratch scratch(run.scratch);
  uint8_t* x = scratch.take<uint8_t>(steps_together * sequences * x_row);
  uint8_t* h = scratch.take<uint8_t>(sequences * packed_row_bytes(h_type, padded_));
  uint8_t* h_next = scratch.take<uint8_t>(sequences * packed_row_bytes(h_type, padded_));
  Acc* acc_x = scratch.take<Acc>(steps_together * sequences * rows);
  Acc* acc_h = scratch.take<Acc>(sequences * kBlockTiles * kTileRows);
  int32_t* h_diff = scratch.take<int32_t>(sequences * padded_);
  int32_t* h_before = scratch.take<int32_t>(sequences * padded_);

  const Acc* start_x = nullptr;
  const Acc* start_h = nullptr;
  if constexpr (kWide) {
    start_x = start64_[0].data();
    start_h = start64_[1].data();
  } else {
    start_x = start32_[0].data();
    start_h = start32_[1].data();
  }
  const auto length_of = [&](int64_t b) { return run.lengths.empty() ? run.steps : run.lengths[static_cast<size_t>(b)]; };

  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t b = run.begin + s;
    pack_activations_row(run.h + b * H * h_size, h_type, H, h + s * h_row);
    int32_t* diff = h_diff + s * padded_;
    std::fill_n(diff + H, padded_ - H, 0);
    with_code_type(h_type, [&](auto zero) {
      const auto* codes = reinterpret_cast<const decltype(zero)*>(run.h) + b * H;
      for (int64_t i = 0; i < H; ++i) diff[i] = static_cast<int32_t>(codes[i]) - z_h;
    });
  }
  bool backwards = run.last_block_first;
  for (int64_t done = 0; done < run.steps; done += steps_together) {
    const int64_t count = std::min(steps_together, run.steps - done);
    const int64_t first = run.reverse ? run.steps - done - count : done;
    for (int64_t j = 0; j < count; ++j)
      for (int64_t s = 0; s < sequences; ++s) {
        const int64_t at = (first + j) * run.x_strides.step + (run.begin + s) * run.x_strides.sequence;
        uint8_t* row = x + (j * sequences + s) * x_row;
        if (run.x_float != nullptr) {
          path.gru.quantize_row(x_quantizer_, run.x_float + at, C, row, row + packed_plane_bytes(C));
        } else {
          pack_activations_row(run.x + at * x_size, x_type, C, row);
        }
      }
    const bool W_by_blocks = count == 1;
    if (!W_by_blocks)
      linear<Acc>(path.linear, *W_, W_->all_blocks(), {x, x_row, x_planes, count * sequences}, start_x, acc_x, rows);
    for (int64_t k = 0; k < count; ++k, backwards = !backwards) {
      const int64_t j = run.reverse ? count - 1 - k : k;
      const int64_t t = first + j;
      if (run.mask != nullptr) std::copy_n(h_diff, sequences * padded_, h_before);
      for (int32_t i = 0; i < blocks.end; ++i) {
        const int32_t block = backwards ? blocks.end - 1 - i : i;
        const int64_t row = R_->first_row(block);
        const int64_t block_rows = R_->first_row(block + 1) - row;
        if (W_by_blocks)
          linear<Acc>(path.linear, *W_, {block, block + 1}, {x, x_row, x_planes, sequences}, start_x + row, acc_x + row,
                      rows);
        linear<Acc>(path.linear, *R_, {block, block + 1}, {h, h_row, h_planes, sequences}, start_h + row, acc_h,
                    block_rows);
        for (int64_t s = 0; s < sequences; ++s) {
          if (t >= length_of(run.begin + s)) continue;
          uint8_t* low = h_next + s * h_row;
          const Acc* from_x = acc_x + (j * sequences + s) * rows + row;
          const Acc* from_h = acc_h + s * block_rows;
          int32_t* diff = h_diff + s * padded_;
          if constexpr (kWide) {
            path.gru.gates_s64(gates_, row / 3, block_rows / 3, from_x, from_h, diff, low, low + h_plane);
          } else {
            path.gru.gates_s32(gates_, row / 3, block_rows / 3, from_x, from_h, diff, low, low + h_plane);
          }
        }
      }
      std::swap(h, h_next);
      for (int64_t s = 0; s < sequences; ++s) {
        const int64_t b = run.begin + s;
        const int64_t y = t * run.y_strides.step + b * run.y_strides.sequence;
        const int32_t* diff = h_diff + s * padded_;
        if (t >= length_of(b)) {
          std::memcpy(h + s * h_row, h_next + s * h_row, static_cast<size_t>(h_row));
          std::fill_n(h_before + s * padded_, H, 0);  // y is 0 there
          diff = h_before + s * padded_;
        } else if (run.mask != nullptr) {
          const uint8_t* mask = run.mask + (t * run.batch + b) * run.mask_width;
          uint8_t* low = h + s * h_row;
          for (int64_t i = 0; i < H; ++i) {
            if (mask[i] != 0) continue;
            const int32_t kept = h_before[s * padded_ + i];
            h_diff[s * padded_ + i] = kept;
            const auto code = static_cast<uint64_t>(kept + gates_.h_to_unsigned);
            low[i] = static_cast<uint8_t>(code);
            if (h_planes == 2) low[h_plane + i] = static_cast<uint8_t>(code >> 8);
          }
        }
        if (run.y_float != nullptr) {
          path.gru.dequantize_row(diff, H, h_scale, run.y_float + y);
        } else {
          path.gru.store_row(diff, H, z_h, h_planes, run.y + y * h_size);
        }
      }
    }
  }
  for (int64_t s = 0; s < sequences; ++s)
    path.gru.store_row(h_diff + s * padded_, H, z_h, h_planes, run.h + (run.begin + s) * H * h_size);
}

}  // namespace isobit
