// SPDX-License-Identifier: Apache-2.0
// The baseline kernels: the same constants, one lane at a time in 64-bit integers.
#include <algorithm>
#include <bit>
#include <cmath>

#include "core/fixed.h"
#include "gru/clamps.h"
#include "gru/cpu/kernels.h"

namespace isobit {
namespace {

int64_t apply(const UniformRatio& ratio, int64_t x, Rounding mode) {
  return round_shift(x * ratio.multiplier, ratio.right - ratio.left, mode);
}

template <typename Acc>
int64_t linear_result(const Acc* acc, const RowRatios& ratios, int64_t row, int64_t low, int64_t high, Rounding mode) {
  return clamp_s64(round_shift(int64_t{*acc} * ratios.multiplier[row], ratios.shift[row], mode), low, high);
}

template <typename Acc>
void gates(const GateConstants& c, int64_t unit, int64_t units, const Acc* acc_x, const Acc* acc_h, int32_t* h_diff,
           uint8_t* low, uint8_t* high) {
  const Rounding mode = c.rounding;
  const auto activate = [&](int gate, int64_t sum) {
    return c.table[gate][clamp_s64(sum + c.gate_offset[gate], 0, c.gate_last[gate])] + c.table_offset[gate];
  };
  const int64_t first_row = tile_row(0, unit);
  for (int64_t i = 0; i < units; ++i) {
    int64_t ih[3];
    int64_t hh[3];
    for (int gate = 0; gate < 3; ++gate) {
      const int64_t row = tile_row(gate, i);
      ih[gate] = linear_result(acc_x + row, c.ih, first_row + row, c.ih_low, c.ih_high, mode);
      hh[gate] = linear_result(acc_h + row, c.hh, first_row + row, c.hh_low, c.hh_high, mode);
    }
    int32_t& diff = h_diff[unit + i];
    const int64_t u = activate(0, apply(c.ih_to_gate[0], ih[0], mode) + apply(c.hh_to_gate[0], hh[0], mode));
    const int64_t r = activate(1, apply(c.ih_to_gate[1], ih[1], mode) + apply(c.hh_to_gate[1], hh[1], mode));
    const int64_t n = activate(2, apply(c.ih_to_gate[2], ih[2], mode) + apply(c.hh_to_gate[2], r * hh[2], mode));
    const int64_t mixed = u * diff + (c.one - u) * apply(c.n_to_h, n, mode);
    const int64_t h = clamp_s64(apply(c.u_to_one, mixed, mode), c.h_low, c.h_high);
    diff = static_cast<int32_t>(h);
    const auto code = static_cast<uint64_t>(h + c.h_to_unsigned);
    low[unit + i] = static_cast<uint8_t>(code);
    if (c.planes == 2) high[unit + i] = static_cast<uint8_t>(code >> 8);
  }
}

/// What rounding added to x * multiplier * 2^-shift. Less than 2^shift is left, so that it fits whatever is above.
float rest_of(int64_t product, int32_t shift, int64_t result) {
  const auto left = static_cast<int64_t>((static_cast<uint64_t>(result) << shift) - static_cast<uint64_t>(product));
  return static_cast<float>(left) * std::bit_cast<float>((127 - shift) << 23);
}

template <typename Acc, Rounding kMode>
void record_of_mode(const GateConstants& c, int64_t unit, int64_t units, const Acc* acc_x, const Acc* acc_h,
                    int32_t* h_diff, uint8_t* low, uint8_t* high, const GateRecord& record) {
  const bool learns = record.rests != nullptr;
  struct Rounded {
    int64_t code;
    float rest;
  };
  const auto rounded = [=](int64_t product, int32_t shift) {
    const int64_t code = round_shift(product, shift, kMode);
    return Rounded{code, learns && shift > 0 ? rest_of(product, shift, code) : 0.0f};
  };
  const auto uniform = [=](const UniformRatio& ratio, int64_t x) {
    return rounded(x * ratio.multiplier, ratio.right - ratio.left);
  };
  const int64_t first_row = tile_row(0, unit);
  for (int64_t i = 0; i < units; ++i) {
    unsigned passes = 0, above = 0;
    const auto clamp = [&](int bit, const Rounded& x, int64_t from, int64_t to) {
      const int64_t code = clamp_s64(x.code, from, to);
      passes |= unsigned{code == x.code} << bit;
      above |= unsigned{x.code > to} << bit;
      if (learns) record.rests[bit * record.stride + i] = code == x.code ? x.rest : 0.0f;
      return code;
    };
    const auto linear = [&](int bit, int gate, const Acc* acc, const RowRatios& ratios, int64_t from, int64_t to) {
      const int64_t row = tile_row(gate, i), at = first_row + row;
      return clamp(bit + gate, rounded(int64_t{acc[row]} * ratios.multiplier[at], ratios.shift[at]), from, to);
    };
    const auto save = [&](int which, int64_t code) {
      record.saved[which * record.stride + i] = static_cast<float>(code) * c.saved_scales[which];
    };
    int64_t ih[3], hh[3];
    for (int gate = 0; gate < 3; ++gate) {
      ih[gate] = linear(kPassIh, gate, acc_x, c.ih, c.ih_low, c.ih_high);
      hh[gate] = linear(kPassHh, gate, acc_h, c.hh, c.hh_low, c.hh_high);
    }
    save(3, hh[2]);
    const auto activate = [&](int gate, int64_t of_hh) {
      const Rounded a = uniform(c.ih_to_gate[gate], ih[gate]), b = uniform(c.hh_to_gate[gate], of_hh);
      const Rounded sum{a.code + b.code + c.gate_offset[gate], a.rest + b.rest};
      const int64_t code = c.table[gate][clamp(kPassGate + gate, sum, 0, c.gate_last[gate])] + c.table_offset[gate];
      save(gate, code);
      return code;
    };
    const int64_t u = activate(0, hh[0]), r = activate(1, hh[1]), n = activate(2, r * hh[2]);
    int32_t& diff = h_diff[unit + i];
    const int64_t mixed = u * diff + (c.one - u) * uniform(c.n_to_h, n).code;
    const int64_t h = clamp(kPassState, uniform(c.u_to_one, mixed), c.h_low, c.h_high);
    diff = static_cast<int32_t>(h);
    const auto code = static_cast<uint64_t>(h + c.h_to_unsigned);
    low[unit + i] = static_cast<uint8_t>(code);
    if (c.planes == 2) high[unit + i] = static_cast<uint8_t>(code >> 8);
    record.passes[i] = static_cast<uint16_t>(passes);
    if (learns) record.above[i] = static_cast<uint16_t>(above);
  }
}

template <typename Acc>
void record_gates(const GateConstants& c, int64_t unit, int64_t units, const Acc* acc_x, const Acc* acc_h,
                  int32_t* h_diff, uint8_t* low, uint8_t* high, const GateRecord& record) {
  const auto run = [&](auto kernel) { kernel(c, unit, units, acc_x, acc_h, h_diff, low, high, record); };
  switch (c.rounding) {
    case Rounding::kNearestEven: return run(record_of_mode<Acc, Rounding::kNearestEven>);
    case Rounding::kNearestUp: return run(record_of_mode<Acc, Rounding::kNearestUp>);
    case Rounding::kNearestAway: return run(record_of_mode<Acc, Rounding::kNearestAway>);
    case Rounding::kFloor: return run(record_of_mode<Acc, Rounding::kFloor>);
  }
}

int64_t find_nan(const float* x, int64_t count) {
  int64_t i = 0;
  while (i < count && !std::isnan(x[i])) ++i;
  return i;
}

void quantize_row(const RowQuantizer& q, const float* x, int64_t count, uint8_t* low, uint8_t* high) {
  for (int64_t i = 0; i < count; ++i) {
    const float rounded = std::rint(std::clamp(x[i] * q.inverse_scale, q.low, q.high));
    const auto code = static_cast<uint32_t>(static_cast<int32_t>(rounded) + q.to_unsigned);
    low[i] = static_cast<uint8_t>(code);
    if (q.planes == 2) high[i] = static_cast<uint8_t>(code >> 8);
  }
}

template <typename T>
void load_codes(const T* codes, int64_t count, int32_t flip, int32_t to_unsigned, uint8_t* low, uint8_t* high,
                int32_t* diff) {
  for (int64_t i = 0; i < count; ++i) low[i] = static_cast<uint8_t>(codes[i] ^ flip);
  if (sizeof(T) == 2)
    for (int64_t i = 0; i < count; ++i) high[i] = static_cast<uint8_t>((codes[i] ^ flip) >> 8);
  if (diff == nullptr) return;
  for (int64_t i = 0; i < count; ++i) diff[i] = (codes[i] ^ flip) - to_unsigned;
}

void load_row(const void* codes, int64_t count, int32_t planes, int32_t flip, int32_t to_unsigned, uint8_t* low,
              uint8_t* high, int32_t* diff) {
  if (planes == 1) {
    load_codes(static_cast<const uint8_t*>(codes), count, flip, to_unsigned, low, high, diff);
  } else {
    load_codes(static_cast<const uint16_t*>(codes), count, flip, to_unsigned, low, high, diff);
  }
}

void dequantize_row(const int32_t* diff, int64_t count, float scale, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(diff[i]) * scale;
}

template <typename T>
void store_codes(const int32_t* diff, int64_t count, int32_t zero_point, void* y) {
  auto* codes = static_cast<T*>(y);
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<T>(diff[i] + zero_point);
}

void store_row(const int32_t* diff, int64_t count, int32_t zero_point, int32_t planes, void* y) {
  (planes == 1 ? store_codes<uint8_t> : store_codes<uint16_t>)(diff, count, zero_point, y);
}

}  // namespace

GruKernels gru_kernels_scalar() {
  GruKernels kernels{};
  kernels.gates_s32 = gates;
  kernels.gates_s64 = gates;
  kernels.record_s32 = record_gates;
  kernels.record_s64 = record_gates;
  kernels.find_nan = find_nan;
  kernels.quantize_row = quantize_row;
  kernels.load_row = load_row;
  kernels.dequantize_row = dequantize_row;
  kernels.store_row = store_row;
  return kernels;
}

}  // namespace isobit
