// SPDX-License-Identifier: Apache-2.0
#include "gru/training/qat.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/codes.h"
#include "core/rescale.h"
#include "gru/reference.h"

namespace isobit {
namespace {

__extension__ typedef unsigned __int128 Uint128;

/// What the clamps of a unit were given.
struct UnitClamps {
  unsigned passes = 0, above = 0;
  float rests[kClamps] = {};

  void see(int bit, const CodeRange& range, int64_t code, float rest) {
    if (code < range.min) return;
    if (code > range.max) {
      above |= 1u << bit;
      return;
    }
    passes |= 1u << bit;
    rests[bit] = rest;
  }
};

/// One linear transform: rows of weights, and what stands before its sums.
struct LinearRows {
  std::vector<int64_t> weights;  // [3H, K]
  std::vector<int64_t> start;    // -z * sum of weights + the bias on the accumulator's scale
  const RescaleParameters* to_out;
  CodeRange out;
  Rounding rounding;
  int64_t columns;

  LinearRows(const CodeMatrix& matrix, const Grid& input, const CodeMatrix& bias,
             const std::vector<RescaleParameters>& bias_to_acc, const std::vector<RescaleParameters>& acc_to_out,
             const Grid& output, Rounding mode)
      : to_out(acc_to_out.data()), out(range_of(output)), rounding(mode), columns(matrix.columns()) {
    for (int64_t c = 0; c < matrix.rows(); ++c) {
      int64_t sum = 0;
      for (int64_t k = 0; k < columns; ++k) {
        weights.push_back(matrix.at(c, k));
        sum += weights.back();
      }
      start.push_back(rescale(bias_to_acc[static_cast<size_t>(c)], bias.at(c, 0), mode) - input.zero_point * sum);
    }
  }
  /// The code of row c, and what its clamp was given.
  int64_t code(int64_t c, const int64_t* codes, int bit, UnitClamps& clamps) const {
    const int64_t* const w = weights.data() + c * columns;
    int64_t acc = start[static_cast<size_t>(c)];
    for (int64_t k = 0; k < columns; ++k) acc += w[k] * codes[k];
    const int64_t result = rescale(to_out[c], acc, rounding), before = result + out.zero_point;
    clamps.see(bit, out, before, rest_of(to_out[c], acc, result));
    return clamp_to(out, before);
  }
};

/// What the clamps of reference_cell() were given: u_in, r_in, n_in, h'.
void see_cell(const CellView& p, const int64_t ih[3], const int64_t hh[3], int64_t h, const ReferenceCell& c,
              UnitClamps& clamps) {
  const auto rs = [&](const RescaleParameters& ratio, int64_t x) { return rescale(ratio, x, p.rounding); };
  for (int gate = 0; gate < 3; ++gate) {
    const RescaleParameters &of_ih = p.ih_to_gate[gate], &of_hh = gate < 2 ? p.hh_to_gate[gate] : p.rhh_to_n;
    const int64_t hh_gate = hh[gate] - p.hh.zero_point, ih_gate = ih[gate] - p.ih.zero_point;
    const int64_t from = gate < 2 ? hh_gate : (c.r - p.z_r) * hh_gate;
    const int64_t from_ih = rs(of_ih, ih_gate), from_hh = rs(of_hh, from);
    clamps.see(kPassGate + gate, p.gate_in[gate], from_ih + from_hh + p.gate_in[gate].zero_point,
               rest_of(of_ih, ih_gate, from_ih) + rest_of(of_hh, from, from_hh));
  }
  const int64_t mixed = (c.u - p.z_u) * (h - p.h.zero_point) + (p.one - c.u) * rs(p.n_to_h, c.n - p.z_n);
  const int64_t result = rs(p.u_to_one, mixed);
  clamps.see(kPassState, p.h, result + p.h.zero_point, rest_of(p.u_to_one, mixed, result));
}

}  // namespace

float rest_of(const RescaleParameters& ratio, int64_t x, int64_t result) {
  if (ratio.shift <= 0) return 0.0f;
  // The result is less than 1 away from the quotient, so that less than 2^shift is left.
  if (ratio.shift <= 62) {
    const auto left = static_cast<int64_t>((static_cast<uint64_t>(result) << ratio.shift) -
                                           static_cast<uint64_t>(x * ratio.multiplier));
    return static_cast<float>(left) * std::bit_cast<float>((127 - ratio.shift) << 23);
  }
  const Int128 left = static_cast<Int128>(static_cast<Uint128>(static_cast<Int128>(result)) << ratio.shift) -
                      static_cast<Int128>(x) * ratio.multiplier;
  return std::ldexp(static_cast<float>(left), -ratio.shift);
}

void dequantize_codes(const Grid& grid, std::span<const int64_t> codes, std::span<float> numbers) {
  for (size_t i = 0; i < codes.size(); ++i) numbers[i] = dequantize_value(grid, codes[i]);
}

std::vector<float> dequantized_rows(const CodeMatrix& codes, std::span<const Grid> rows) {
  std::vector<float> numbers(static_cast<size_t>(codes.rows() * codes.columns()));
  with_code_type(codes.dtype(), [&](auto zero) {
    const auto* code = reinterpret_cast<const decltype(zero)*>(codes.data());
    float* number = numbers.data();
    for (const Grid& grid : rows) {  // whose zero points are 0
      const float scale = grid.scale();
      for (int64_t k = 0; k < codes.columns(); ++k) *number++ = static_cast<float>(*code++) * scale;
    }
  });
  return numbers;
}

void qat_forward(const QatDirection& d, const QatForward& f, ThreadPool* pool) {
  const GruLayerParameters& p = *d.layer;
  const int64_t N = d.batch, C = p.input_size, H = p.hidden_size;
  const CellView cell = view_of(p);
  const LinearRows input(p.W, p.grids[kX], p.bw, p.bw_to_acc, p.acc_to_ih, p.grids[kIh], p.rounding);
  const LinearRows state(p.R, p.grids[kH], p.br, p.br_to_acc, p.acc_to_hh, p.grids[kHh], p.rounding);
  const int64_t z_h = p.grids[kH].zero_point;
  const auto sequence = [&](int64_t n) {
    std::vector<int64_t> h(static_cast<size_t>(H), z_h);
    if (d.first != nullptr) std::copy_n(d.first + n * H, H, h.begin());
    for (int64_t i = 0; i < d.steps; ++i) {
      const int64_t t = d.reverse ? d.steps - 1 - i : i, row = t * N + n;
      int64_t* const y = f.y + row * d.y_row;
      if (t >= (d.lengths.empty() ? d.steps : d.lengths[static_cast<size_t>(n)])) {
        std::fill_n(y, H, z_h);
        continue;
      }
      for (int64_t j = 0; j < H; ++j) {
        UnitClamps clamps;
        int64_t ih[3], hh[3];
        for (int gate = 0; gate < 3; ++gate) {
          ih[gate] = input.code(gate * H + j, d.x + row * C, kPassIh + gate, clamps);
          hh[gate] = state.code(gate * H + j, h.data(), kPassHh + gate, clamps);
        }
        const int64_t before = h[static_cast<size_t>(j)];
        const ReferenceCell codes = reference_cell(cell, ih, hh, before);
        see_cell(cell, ih, hh, before, codes, clamps);
        f.passes[row * H + j] = static_cast<uint16_t>(clamps.passes);
        if (f.above != nullptr) {
          f.above[row * H + j] = static_cast<uint16_t>(clamps.above);
          for (int bit = 0; bit < kClamps; ++bit) f.rests[(row * kClamps + bit) * H + j] = clamps.rests[bit];
        }
        float* const saved = f.saved + row * 4 * H + j;
        saved[0] = dequantize_value(p.grids[kU], codes.u);
        saved[H] = dequantize_value(p.grids[kRGate], codes.r);
        saved[2 * H] = dequantize_value(p.grids[kN], codes.n);
        saved[3 * H] = dequantize_value(p.grids[kHh], hh[2]);
        const bool held = d.mask != nullptr && d.mask[row * d.y_row + j] == 0;
        y[j] = held ? before : codes.h;
      }
      std::copy_n(y, H, h.begin());
    }
    if (f.last != nullptr) std::copy(h.begin(), h.end(), f.last + n * H);
  };
  const auto sequences = [&](int, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) sequence(n);
  };
  if (pool != nullptr) {
    pool->for_ranges(N, sequences);
  } else {
    sequences(0, 0, N);
  }
}

}  // namespace isobit
