// SPDX-License-Identifier: Apache-2.0
#include "gru/layer.h"

#include <algorithm>
#include <cstring>

#include "core/codes.h"
#include "gru/reference.h"

namespace isobit {
namespace {

constexpr int64_t kTargetRows = 32;  // rows of W x computed at once: weights are then read once for many steps

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

GateRescale lanes_of(const RescaleParameters& r) {
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
  padded_ = round_up(hidden, 16);
  const int64_t rows = 3 * padded_;
  wide_ = !(proof_.acc_x_s32 && proof_.acc_h_s32 && proof_.gates_s32);
  for (int side = 0; side < 2; ++side) {
    const auto& to_out = side == 0 ? p_.acc_to_ih : p_.acc_to_hh;
    const auto& bias_to_acc = side == 0 ? p_.bw_to_acc : p_.br_to_acc;
    const CodeMatrix& bias = side == 0 ? p_.bw : p_.br;
    const auto& sums = side == 0 ? W_sum_ : R_sum_;
    const Grid& activation = p_.grids[side == 0 ? kX : kH];
    start32_[side].resize(static_cast<size_t>(rows));
    start64_[side].resize(static_cast<size_t>(rows));
    shift_[side].resize(static_cast<size_t>(rows));
    multiplier_[side].assign(static_cast<size_t>(rows), 1);
    for (int64_t gate = 0; gate < 3; ++gate)
      for (int64_t i = 0; i < hidden; ++i) {
        const auto from = static_cast<size_t>(gate * hidden + i);
        const auto to = static_cast<size_t>(gate * padded_ + i);
        const int64_t start = rescale(bias_to_acc[from], bias.at(static_cast<int64_t>(from), 0), p_.rounding) -
                              (activation.zero_point + storage_offset(activation.dtype())) * sums[from];
        start64_[side][to] = start;
        start32_[side][to] = static_cast<int32_t>(static_cast<uint64_t>(start));  // sums wrap, the final value fits
        shift_[side][to] = to_out[from].shift;
        multiplier_[side][to] = to_out[from].multiplier;
        // The 32-bit lanes shift rows to the right only.
        if (to_out[from].shift < 0) wide_ = true;
      }
  }
  for (int gate = 0; gate < 3; ++gate) {
    const ActivationTable& table = p_.tables[gate];
    const int64_t base = table.output.is_signed ? 0 : 32768;
    const int64_t count = int64_t{1} << table.input.bits;
    tables_[gate].resize(static_cast<size_t>(count + 1));  // a look-up reads two entries
    for (int64_t i = 0; i < count; ++i)
      tables_[gate][static_cast<size_t>(i)] = static_cast<int16_t>(table(table.input.min() + i) - base);
  }
  const auto padded_rows = [&](const CodeMatrix& m) {
    std::vector<int32_t> out(static_cast<size_t>(rows * m.columns()));
    for (int64_t gate = 0; gate < 3; ++gate)
      for (int64_t i = 0; i < hidden; ++i)
        for (int64_t k = 0; k < m.columns(); ++k)
          out[static_cast<size_t>((gate * padded_ + i) * m.columns() + k)] = static_cast<int32_t>(m.at(gate * hidden + i, k));
    return out;
  };
  const std::vector<int32_t> W = padded_rows(p_.W);
  const std::vector<int32_t> R = padded_rows(p_.R);
  GatesS32 gates_s32 = nullptr;
  GatesS64 gates_s64 = nullptr;
  for (const CpuPath path : kAllCpuPaths) {
    if (path == CpuPath::kReference || !cpu_can_run(path)) continue;
    const auto choose = [&](CpuPath row, auto kernel) {
      if (row != path) return;
      if constexpr (std::is_same_v<decltype(kernel), GatesS32>) {
        gates_s32 = kernel;
      } else {
        gates_s64 = kernel;
      }
    };
#define ISOBIT_GATES_ROW(row, name, acc) choose(CpuPath::row, &name);
#include "gru/kernels.inc"
#undef ISOBIT_GATES_ROW
    Kernels& kernels = kernels_[static_cast<size_t>(path)];
    kernels.gates_s32 = gates_s32;  // of this path, or of the nearest one before it
    kernels.gates_s64 = gates_s64;
    ISOBIT_ASSIGN_OR_RETURN(kernels.W, pack_weights(path, W.data(), rows, p_.input_size));
    ISOBIT_ASSIGN_OR_RETURN(kernels.R, pack_weights(path, R.data(), rows, hidden));
  }
  return {};
}

GateConstants GruLayer::gates() const {
  GateConstants c{};
  const auto& grids = p_.grids;
  c.padded_hidden = padded_;
  c.shift_ih = shift_[0].data();
  c.shift_hh = shift_[1].data();
  c.multiplier_ih = multiplier_[0].data();
  c.multiplier_hh = multiplier_[1].data();
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
    c.table_offset[gate] = (out.is_signed ? 0 : 32768) - out.zero_point;
  }
  c.n_to_h = lanes_of(p_.n_to_h);
  c.u_to_one = lanes_of(p_.u_to_one);
  c.one = p_.one - grids[kU].zero_point;
  c.h_low = grids[kH].min() - grids[kH].zero_point;
  c.h_high = grids[kH].max() - grids[kH].zero_point;
  c.h_to_unsigned = grids[kH].zero_point + storage_offset(grids[kH].dtype());
  c.planes = activation_planes(grids[kH].dtype());
  c.rounding = p_.rounding;
  return c;
}

int64_t GruLayer::scratch_bytes(int64_t sequences, int64_t steps) const {
  Scratch reference(nullptr);
  reference.take<int64_t>(p_.input_size + 14 * p_.hidden_size);
  if (!packed_reason_.ok()) return reference.used();
  Scratch packed(nullptr);
  const int64_t block = steps_per_block(sequences, steps);
  packed.take<uint8_t>(block * sequences * packed_row_bytes(p_.grids[kX].dtype(), p_.input_size));
  packed.take<uint8_t>(sequences * packed_row_bytes(p_.grids[kH].dtype(), padded_));
  packed.take<int64_t>(block * sequences * 3 * padded_);
  packed.take<int64_t>(sequences * 3 * padded_);
  packed.take<int32_t>(sequences * padded_);
  packed.take<int32_t>(padded_);
  return std::max(reference.used(), packed.used());
}

void GruLayer::run(CpuPath path, const LayerRun& run) const {
  if (path == CpuPath::kReference) {
    run_reference(run);
  } else if (wide_) {
    run_packed<int64_t>(kernels_[static_cast<size_t>(path)], run);
  } else {
    run_packed<int32_t>(kernels_[static_cast<size_t>(path)], run);
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

template <typename Acc>
void GruLayer::run_packed(const Kernels& kernels, const LayerRun& run) const {
  const GateConstants constants = gates();
  const int64_t H = p_.hidden_size;
  const int64_t C = p_.input_size;
  const Dtype x_type = p_.grids[kX].dtype();
  const Dtype h_type = p_.grids[kH].dtype();
  const int64_t h_size = static_cast<int64_t>(size_in_bytes(h_type));
  const int64_t z_h = p_.grids[kH].zero_point;
  const int64_t sequences = run.end - run.begin;
  const int64_t block = steps_per_block(sequences, run.steps);
  const int64_t x_row = packed_row_bytes(x_type, C);
  const int64_t h_row = packed_row_bytes(h_type, H);
  const int64_t h_plane = packed_plane_bytes(H);
  const int x_planes = activation_planes(x_type);
  const int h_planes = activation_planes(h_type);
  const int64_t rows = 3 * padded_;

  Scratch scratch(run.scratch);
  uint8_t* x = scratch.take<uint8_t>(block * sequences * x_row);
  uint8_t* h = scratch.take<uint8_t>(sequences * packed_row_bytes(h_type, padded_));
  Acc* acc_x = scratch.take<Acc>(block * sequences * rows);
  Acc* acc_h = scratch.take<Acc>(sequences * rows);
  int32_t* h_diff = scratch.take<int32_t>(sequences * padded_);
  int32_t* h_before = scratch.take<int32_t>(padded_);

  const auto product = [](const PackedWeights& w, const uint8_t* a, int64_t stride, int planes, int64_t m,
                          const std::vector<int32_t>& start32, const std::vector<int64_t>& start64, Acc* acc) {
    if constexpr (std::is_same_v<Acc, int32_t>) {
      linear_s32(w, a, stride, planes, m, start32.data(), acc, w.padded_n());
    } else {
      linear_s64(w, a, stride, planes, m, start64.data(), acc, w.padded_n());
    }
  };
  const auto length_of = [&](int64_t b) { return run.lengths.empty() ? run.steps : run.lengths[static_cast<size_t>(b)]; };
  const auto store_y = [&](int64_t t, int64_t b, const int32_t* diff) {
    std::byte* y = run.y + (t * run.y_strides.step + b * run.y_strides.sequence) * h_size;
    with_code_type(h_type, [&](auto zero) {
      using T = decltype(zero);
      T* out = reinterpret_cast<T*>(y);
      if (diff == nullptr) {
        for (int64_t i = 0; i < H; ++i) out[i] = static_cast<T>(z_h);
      } else {
        for (int64_t i = 0; i < H; ++i) out[i] = static_cast<T>(diff[i] + static_cast<int32_t>(z_h));
      }
    });
  };

  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t b = run.begin + s;
    pack_activations_row(run.h + b * H * h_size, h_type, H, h + s * h_row);
    int32_t* diff = h_diff + s * padded_;
    std::fill_n(diff + H, padded_ - H, 0);
    with_code_type(h_type, [&](auto zero) {
      const auto* codes = reinterpret_cast<const decltype(zero)*>(run.h) + b * H;
      for (int64_t i = 0; i < H; ++i) diff[i] = static_cast<int32_t>(static_cast<int64_t>(codes[i]) - z_h);
    });
  }
  for (int64_t done = 0; done < run.steps; done += block) {
    const int64_t count = std::min(block, run.steps - done);
    const int64_t first = run.reverse ? run.steps - done - count : done;
    for (int64_t j = 0; j < count; ++j)
      for (int64_t s = 0; s < sequences; ++s)
        pack_activations_row(run.x + ((first + j) * run.x_strides.step + (run.begin + s) * run.x_strides.sequence) *
                                         static_cast<int64_t>(size_in_bytes(x_type)),
                             x_type, C, x + (j * sequences + s) * x_row);
    product(*kernels.W, x, x_row, x_planes, count * sequences, start32_[0], start64_[0], acc_x);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t j = run.reverse ? count - 1 - k : k;
      const int64_t t = first + j;
      product(*kernels.R, h, h_row, h_planes, sequences, start32_[1], start64_[1], acc_h);
      for (int64_t s = 0; s < sequences; ++s) {
        const int64_t b = run.begin + s;
        if (t >= length_of(b)) {
          store_y(t, b, nullptr);
          continue;
        }
        int32_t* diff = h_diff + s * padded_;
        uint8_t* low = h + s * h_row;
        uint8_t* high = low + h_plane;
        const Acc* from_x = acc_x + (j * sequences + s) * rows;
        const Acc* from_h = acc_h + s * rows;
        if (run.mask != nullptr) std::copy_n(diff, H, h_before);
        if constexpr (std::is_same_v<Acc, int32_t>) {
          kernels.gates_s32(constants, from_x, from_h, diff, low, high);
        } else {
          kernels.gates_s64(constants, from_x, from_h, diff, low, high);
        }
        if (run.mask != nullptr) {
          const uint8_t* mask = run.mask + (t * run.batch + b) * run.mask_width;
          for (int64_t i = 0; i < H; ++i) {
            if (mask[i] != 0) continue;
            diff[i] = h_before[i];
            const auto code = static_cast<uint64_t>(diff[i] + constants.h_to_unsigned);
            low[i] = static_cast<uint8_t>(code);
            if (h_planes == 2) high[i] = static_cast<uint8_t>(code >> 8);
          }
        }
        store_y(t, b, diff);
      }
    }
  }
  for (int64_t s = 0; s < sequences; ++s)
    with_code_type(h_type, [&](auto zero) {
      using T = decltype(zero);
      T* codes = reinterpret_cast<T*>(run.h) + (run.begin + s) * H;
      for (int64_t i = 0; i < H; ++i) codes[i] = static_cast<T>(h_diff[s * padded_ + i] + static_cast<int32_t>(z_h));
    });
}

}  // namespace isobit
