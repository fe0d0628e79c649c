// SPDX-License-Identifier: Apache-2.0
// The kernels of kernels.h on lanes V, which each instruction-set file defines:
//   Lanes, Mask, kLanes                      kLanes floats; a bit for each
//   load, store, set, load_mask              load_mask: of bytes, set where not 0
//   load_bit(p, bit), store_mask(p, mask)    a bit of numbers of 16 bits; numbers that are 0 or 1
//   add, sub, mul, div, fma, rint            one operation of float32 each
//   abs, with_sign(a, b)                     magnitude of a, sign of b
//   less, select(mask, a, b)                 select: a where the bit is set
//   scale(a, n)                              a * 2^n of an integer n, exact
// What is left of a row takes ScalarLanes. Of internal linkage, so that no copy compiled for a wide instruction set can
// be linked into baseline code.
#ifndef ISOBIT_GRU_TRAINING_BODY_H_
#define ISOBIT_GRU_TRAINING_BODY_H_

#include <cstdint>
#include <cstring>

#include "core/unroll.h"
#include "gru/training/kernels.h"

namespace isobit {
namespace {

struct ScalarLanes {
  using Lanes = float;
  using Mask = bool;
  static constexpr int kLanes = 1;
  static float load(const float* p) { return *p; }
  static void store(float* p, float a) { *p = a; }
  static float set(float a) { return a; }
  static bool load_mask(const uint8_t* p) { return *p != 0; }
  static bool load_bit(const uint16_t* p, int bit) { return (*p >> bit & 1) != 0; }
  static void store_mask(uint16_t* p, bool mask) { *p = mask ? 1 : 0; }
  static float add(float a, float b) { return a + b; }
  static float sub(float a, float b) { return a - b; }
  static float mul(float a, float b) { return a * b; }
  static float div(float a, float b) { return a / b; }
  static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static float rint(float a) { return __builtin_nearbyintf(a); }
  static float abs(float a) { return __builtin_fabsf(a); }
  static float with_sign(float a, float b) { return __builtin_copysignf(a, b); }
  static bool less(float a, float b) { return a < b; }
  static float select(bool mask, float a, float b) { return mask ? a : b; }
  static float scale(float a, float n) {
    uint32_t bits = 0;
    std::memcpy(&bits, &a, sizeof bits);
    if (n == n) bits += static_cast<uint32_t>(static_cast<int32_t>(n)) << 23;  // NaN is no integer
    std::memcpy(&a, &bits, sizeof bits);
    return a;
  }
};

template <typename V>
struct Functions {
  using L = typename V::Lanes;

  template <typename... C>
  [[gnu::always_inline]] static L horner(L x, float first, C... rest) {
    L p = V::set(first);
    ((p = V::fma(p, x, V::set(rest))), ...);
    return p;
  }
  /// Near e^x, x <= 0.
  [[gnu::always_inline]] static L e(L x) {
    const L least = V::set(-87.0f);
    x = V::select(V::less(x, least), least, x);
    const L n = V::rint(V::mul(x, V::set(0x1.715476p+0f)));
    L r = V::fma(n, V::set(-0x1.62e4p-1f), x);
    r = V::fma(n, V::set(-0x1.7f7d1cp-20f), r);
    const L p = horner(r, 0x1.6a2434p-10f, 0x1.1239e2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f);
    return V::scale(V::add(V::set(1.0f), V::fma(V::mul(r, r), p, r)), n);
  }
  [[gnu::always_inline]] static L sigmoid(L x) {
    const L one = V::set(1.0f);
    const L z = e(V::with_sign(x, V::set(-1.0f)));
    return V::div(V::select(V::less(x, V::set(0.0f)), z, one), V::add(one, z));
  }
  [[gnu::always_inline]] static L tanh(L x) {
    const L one = V::set(1.0f), magnitude = V::abs(x), s = V::mul(x, x);
    const L p = horner(s, -0x1.76ac3p-8f, 0x1.5256dcp-6f, -0x1.b8444ap-5f, 0x1.110768p-3f, -0x1.555534p-2f);
    const L near = V::fma(V::mul(x, s), p, x);
    const L t = e(V::mul(V::set(-2.0f), magnitude));
    const L far = V::with_sign(V::div(V::sub(one, t), V::add(one, t)), x);
    return V::select(V::less(magnitude, V::set(0.625f)), near, far);
  }
};

template <typename V>
[[gnu::always_inline]] inline int64_t forward_units(const GruGatesForward& a, int64_t i) {
  using L = typename V::Lanes;
  using F = Functions<V>;
  const int64_t H = a.units;
  for (; i + V::kLanes <= H; i += V::kLanes) {
    const auto gate = [&](int64_t g) { return V::add(V::load(a.ih + g * H + i), V::load(a.hh + g * H + i)); };
    const L h = V::load(a.h + i), q = V::load(a.hh + 2 * H + i);
    const L u = F::sigmoid(gate(0)), r = F::sigmoid(gate(1));
    const L n = F::tanh(V::fma(r, q, V::load(a.ih + 2 * H + i)));
    L y = V::fma(u, V::sub(h, n), n);
    if (a.mask != nullptr) y = V::select(V::load_mask(a.mask + i), y, h);
    V::store(a.saved + i, u);
    V::store(a.saved + H + i, r);
    V::store(a.saved + 2 * H + i, n);
    V::store(a.saved + 3 * H + i, q);
    V::store(a.y + i, y);
  }
  return i;
}

template <typename V>
[[gnu::always_inline]] inline int64_t backward_units(const GruGatesBackward& a, int64_t i) {
  using L = typename V::Lanes;
  const int64_t H = a.units;
  const L one = V::set(1.0f);
  for (; i + V::kLanes <= H; i += V::kLanes) {
    const L u = V::load(a.saved + i), r = V::load(a.saved + H + i), n = V::load(a.saved + 2 * H + i);
    const L q = V::load(a.saved + 3 * H + i), h = V::load(a.h + i);
    // What a clamp did not pass has the gradient 0.
    const auto passed = [&](int bit, L value) {
      return a.passes == nullptr ? value : V::select(V::load_bit(a.passes + i, bit), value, V::set(0.0f));
    };
    const L d = V::add(V::load(a.dy + i), V::load(a.g + i));
    const L taken = a.mask == nullptr ? d : V::select(V::load_mask(a.mask + i), d, V::set(0.0f));
    const L e = passed(kPassState, taken);
    L b = V::mul(u, e);
    if (a.mask != nullptr) b = V::select(V::load_mask(a.mask + i), b, d);
    const L minus_n = V::sub(V::set(-0.0f), n);
    const L all_da = V::mul(V::fma(minus_n, n, one), V::mul(V::sub(one, u), e));
    const L da = passed(kPassGate + 2, all_da);
    const L dq = V::mul(r, da);
    const L all_dr = V::mul(V::mul(r, V::sub(one, r)), V::mul(q, da));
    const L dr = passed(kPassGate + 1, all_dr);
    const L all_du = V::mul(V::mul(u, V::sub(one, u)), V::mul(V::sub(h, n), e));
    const L du = passed(kPassGate, all_du);
    if (a.clamped != nullptr) {
      V::store(a.clamped + i, all_du);
      V::store(a.clamped + H + i, all_dr);
      V::store(a.clamped + 2 * H + i, all_da);
      V::store(a.clamped + 3 * H + i, taken);
    }
    V::store(a.gx + i, passed(kPassIh, du));
    V::store(a.gx + H + i, passed(kPassIh + 1, dr));
    V::store(a.gx + 2 * H + i, passed(kPassIh + 2, da));
    V::store(a.gh + i, passed(kPassHh, du));
    V::store(a.gh + H + i, passed(kPassHh + 1, dr));
    V::store(a.gh + 2 * H + i, passed(kPassHh + 2, dq));
    V::store(a.b + i, b);
  }
  return i;
}

template <typename V>
[[gnu::always_inline]] inline void forward_row(const GruGatesForward& a) {
  forward_units<ScalarLanes>(a, forward_units<V>(a, 0));
}
template <typename V>
[[gnu::always_inline]] inline void backward_row(const GruGatesBackward& a) {
  backward_units<ScalarLanes>(a, backward_units<V>(a, 0));
}

/// Adds g times what a clamp kept to its three sums, `stride` apart.
template <typename V>
[[gnu::always_inline]] inline void add_grid_terms(typename V::Lanes g, const float* rests, const uint16_t* passes,
                                                  const uint16_t* above, int bit, float* sums, int64_t stride) {
  using L = typename V::Lanes;
  const L zero = V::set(0.0f), one = V::set(1.0f);
  const L is_above = V::select(V::load_bit(above, bit), one, zero);
  const L is_below = V::select(V::load_bit(passes, bit), zero, V::sub(one, is_above));
  const auto add = [&](float* sum, L factor) { V::store(sum, V::fma(g, factor, V::load(sum))); };
  add(sums, V::load(rests));
  add(sums + stride, is_below);
  add(sums + 2 * stride, is_above);
}

template <typename V>
[[gnu::always_inline]] inline int64_t grid_units(const GruGridUnits& a, int64_t i) {
  using L = typename V::Lanes;
  const int64_t H = a.units;
  for (; i + V::kLanes <= a.end; i += V::kLanes) {
    const auto add = [&](int bit, L g) {
      add_grid_terms<V>(g, a.rests + bit * H + i, a.passes + i, a.above + i, bit, a.sums + bit * H + i, kClamps * H);
    };
    const auto gate = [&](int index) {
      const L all = V::load(a.clamped + index * H + i);
      add(kPassGate + index, all);
      return V::select(V::load_bit(a.passes + i, kPassGate + index), all, V::set(0.0f));
    };
    add(kPassState, V::load(a.clamped + 3 * H + i));
    const L du = gate(0), dr = gate(1), da = gate(2);
    add(kPassIh, du);
    add(kPassIh + 1, dr);
    add(kPassIh + 2, da);
    add(kPassHh, du);
    add(kPassHh + 1, dr);
    add(kPassHh + 2, V::mul(V::load(a.r + i), da));
  }
  return i;
}
template <typename V>
[[gnu::always_inline]] inline int64_t grid_inputs(const GruGridInputs& a, int64_t i) {
  for (; i + V::kLanes <= a.end; i += V::kLanes)
    add_grid_terms<V>(V::load(a.g + i), a.rests + i, a.passes + i, a.above + i, 0, a.sums + i, a.inputs);
  return i;
}

template <typename V>
[[gnu::always_inline]] inline int64_t quantize_numbers(const QuantizedNumbers& a, int64_t i) {
  using L = typename V::Lanes;
  const L low = V::set(a.low), high = V::set(a.high), zero = V::set(0.0f);
  for (; i + V::kLanes <= a.end; i += V::kLanes) {
    const L product = V::mul(V::load(a.x + i), V::set(a.inverse_scale)), rounded = V::rint(product);
    const auto is_above = V::less(high, rounded);
    const L code = V::select(is_above, high, V::select(V::less(rounded, low), low, rounded));
    const auto passed = V::less(V::abs(V::sub(code, rounded)), V::set(0.5f));
    V::store(a.numbers + i, V::mul(V::add(code, zero), V::set(a.scale)));  // of -0 the code is 0
    V::store_mask(a.passes + i, passed);
    if (a.rests == nullptr) continue;
    V::store_mask(a.above + i, is_above);
    V::store(a.rests + i, V::select(passed, V::sub(rounded, product), zero));
  }
  return i;
}

/// kVectors vectors of columns at a time, from column c on as far as these go.
template <typename V, int kVectors>
[[gnu::always_inline]] inline int64_t sum_columns(const float* rows, int64_t count, int64_t columns, float* sums,
                                                  int64_t c) {
  using L = typename V::Lanes;
  constexpr int64_t kColumns = kVectors * V::kLanes;
  for (; c + kColumns <= columns; c += kColumns) {
    L sum[kVectors];
    unroll<kVectors>(ISOBIT_UNROLLED(v) { sum[v] = V::set(0.0f); });
    for (int64_t first = 0; first < count; first += kChainTerms) {
      const int64_t end = count < first + kChainTerms ? count : first + kChainTerms;
      L chunk[kVectors];
      unroll<kVectors>(ISOBIT_UNROLLED(v) { chunk[v] = V::set(0.0f); });
      for (int64_t m = first; m < end; ++m)
        unroll<kVectors>(
            ISOBIT_UNROLLED(v) { chunk[v] = V::add(chunk[v], V::load(rows + m * columns + c + v * V::kLanes)); });
      unroll<kVectors>(ISOBIT_UNROLLED(v) { sum[v] = V::add(sum[v], chunk[v]); });
    }
    unroll<kVectors>(ISOBIT_UNROLLED(v) { V::store(sums + c + v * V::kLanes, sum[v]); });
  }
  return c;
}
template <typename V>
[[gnu::always_inline]] inline void sum_all(const float* rows, int64_t count, int64_t columns, float* sums) {
  int64_t c = sum_columns<V, 8>(rows, count, columns, sums, 0);
  c = sum_columns<V, 1>(rows, count, columns, sums, c);
  sum_columns<ScalarLanes, 1>(rows, count, columns, sums, c);
}

template <typename V>
[[gnu::always_inline]] inline int64_t functions_of(const float* x, int64_t count, float* e, float* sigmoid, float* tanh,
                                                   int64_t i) {
  using F = Functions<V>;
  for (; i + V::kLanes <= count; i += V::kLanes) {
    const typename V::Lanes a = V::load(x + i);
    V::store(e + i, F::e(V::with_sign(a, V::set(-1.0f))));
    V::store(sigmoid + i, F::sigmoid(a));
    V::store(tanh + i, F::tanh(a));
  }
  return i;
}
template <typename V>
[[gnu::always_inline]] inline void all_functions(const float* x, int64_t count, float* e, float* sigmoid, float* tanh) {
  functions_of<ScalarLanes>(x, count, e, sigmoid, tanh, functions_of<V>(x, count, e, sigmoid, tanh, 0));
}

/// Adds sums [rows][width] of a chunk, of which some columns do not exist.
template <typename V>
[[gnu::noinline]] void add_sums(const ChainProduct& p, const float* sums, int rows, int width, int64_t row,
                                int64_t column, bool first, bool last) {
  const int64_t left = p.columns - column;
  for (int r = 0; r < rows; ++r, sums += width) {
    float* const out = p.out + (row + r) * p.out_row + column;
    const float* const add = last && p.add != nullptr ? p.add + (row + r) * p.add_row + column : nullptr;
    int64_t j = 0;
    for (; j + V::kLanes <= left; j += V::kLanes) {
      typename V::Lanes sum = V::add(first ? V::set(0.0f) : V::load(out + j), V::load(sums + j));
      if (add != nullptr) sum = V::add(sum, V::load(add + j));
      V::store(out + j, sum);
    }
    for (; j < left; ++j) {
      out[j] = (first ? 0.0f : out[j]) + sums[j];
      if (add != nullptr) out[j] += add[j];
    }
  }
}

/// A chunk of the terms of kRows rows, and of kVectors vectors of columns: panels, or a part of the last. terms:
/// [count][kMostRows], rows of a beside each other.
template <typename V, int kRows, int kVectors, int kMostRows>
[[gnu::noinline]] void chain_tile(const ChainProduct& p, const float* terms, const float* b, int64_t count, int64_t row,
                                  int64_t column, bool first, bool last) {
  using L = typename V::Lanes;
  constexpr int kPanel = 2 * V::kLanes;
  const int64_t panel_floats = p.terms * kPanel;
  L sums[kRows][kVectors];
  unroll<kRows * kVectors>(ISOBIT_UNROLLED(i) { sums[i / kVectors][i % kVectors] = V::set(0.0f); });
  for (int64_t k = 0; k < count; ++k) {
    L columns[kVectors];
    unroll<kVectors>(
        ISOBIT_UNROLLED(v) { columns[v] = V::load(b + v / 2 * panel_floats + k * kPanel + v % 2 * V::kLanes); });
    unroll<kRows>(ISOBIT_UNROLLED(r) {
      const L term = V::set(terms[k * kMostRows + r]);
      unroll<kVectors>(ISOBIT_UNROLLED(v) { sums[r][v] = V::fma(term, columns[v], sums[r][v]); });
    });
  }
  constexpr int kColumns = kVectors * V::kLanes;
  if (column + kColumns > p.columns) {
    float whole[kRows * kColumns];
    unroll<kRows * kVectors>(ISOBIT_UNROLLED(i) { V::store(whole + i * V::kLanes, sums[i / kVectors][i % kVectors]); });
    add_sums<V>(p, whole, kRows, kColumns, row, column, first, last);
    return;
  }
  unroll<kRows>(ISOBIT_UNROLLED(r) {
    float* const out = p.out + (row + r) * p.out_row + column;
    const float* const add = last && p.add != nullptr ? p.add + (row + r) * p.add_row + column : nullptr;
    unroll<kVectors>(ISOBIT_UNROLLED(v) {
      L sum = V::add(first ? V::set(0.0f) : V::load(out + v * V::kLanes), sums[r][v]);
      if (add != nullptr) sum = V::add(sum, V::load(add + v * V::kLanes));
      V::store(out + v * V::kLanes, sum);
    });
  });
}

template <typename V, int kRows, int kMostRows>
[[gnu::always_inline]] inline void chain_rows(const ChainProduct& p, const float* terms, int64_t k, int64_t count,
                                              int64_t row, bool first, bool last) {
  constexpr int kPanel = 2 * V::kLanes;
  // Few rows have few sums at a time, and each waits for the one before it.
  constexpr int kPanels = kRows * 4 <= kMostRows ? 4 : kRows * 2 <= kMostRows ? 2 : 1;
  const auto tile = [&](auto vectors, int64_t column) {
    chain_tile<V, kRows, vectors, kMostRows>(p, terms, p.b + column * p.terms + k * kPanel, count, row, column, first,
                                             last);
  };
  int64_t column = 0;
  for (; column + kPanels * kPanel <= p.columns; column += kPanels * kPanel) tile(Index<2 * kPanels>{}, column);
  for (; column + V::kLanes < p.columns; column += kPanel) tile(Index<2>{}, column);
  if (column < p.columns) tile(Index<1>{}, column);
}

/// The terms [k, k + count) of up to kMostRows rows.
template <typename V, int kMostRows>
[[gnu::always_inline]] inline void chain_chunk(const ChainProduct& p, int64_t row, int64_t k) {
  float terms[kChainTerms * kMostRows];
  const int64_t count = p.terms - k < kChainTerms ? p.terms - k : kChainTerms;
  const int64_t rows = p.rows - row < kMostRows ? p.rows - row : kMostRows;
  const bool first = k == 0, last = k + count == p.terms;
  const float* const a = p.a + row * p.a_row + k * p.a_term;
  if (p.a_row == 1) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < rows; ++r) terms[i * kMostRows + r] = a[i * p.a_term + r];
  } else {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < count; ++i) terms[i * kMostRows + r] = a[r * p.a_row + i * p.a_term];
  }
  unroll<kMostRows>(ISOBIT_UNROLLED(r) {
    if (rows == r + 1) chain_rows<V, r + 1, kMostRows>(p, terms, k, count, row, first, last);
  });
}

template <typename V, int kMostRows>
[[gnu::always_inline]] inline void chain_product(const ChainProduct& p) {
  if (p.terms == 0) {  // sums of nothing
    for (int64_t i = 0; i < p.rows; ++i)
      for (int64_t j = 0; j < p.columns; ++j)
        p.out[i * p.out_row + j] = p.add == nullptr ? 0.0f : 0.0f + p.add[i * p.add_row + j];
    return;
  }
  // b is read once for every few rows, or out once for every chunk: whichever is smaller.
  const bool rows_first = p.terms <= p.rows;
  const int64_t outer = rows_first ? p.rows : p.terms, outer_step = rows_first ? kMostRows : kChainTerms;
  const int64_t inner = rows_first ? p.terms : p.rows, inner_step = rows_first ? kChainTerms : kMostRows;
  for (int64_t i = 0; i < outer; i += outer_step)
    for (int64_t j = 0; j < inner; j += inner_step)
      chain_chunk<V, kMostRows>(p, rows_first ? i : j, rows_first ? j : i);
}

/// The kernels on lanes V, kMostRows rows of a product at a time.
template <typename V, int kMostRows>
GruTrainingKernels training_kernels() {
  GruTrainingKernels kernels{};
  kernels.panel = 2 * V::kLanes;
  kernels.product = [](const ChainProduct& p) { chain_product<V, kMostRows>(p); };
  kernels.forward = [](const GruGatesForward& a) { forward_row<V>(a); };
  kernels.backward = [](const GruGatesBackward& a) { backward_row<V>(a); };
  kernels.sum_rows = [](const float* rows, int64_t count, int64_t columns, float* sums) {
    sum_all<V>(rows, count, columns, sums);
  };
  kernels.grid_units = [](const GruGridUnits& a) { grid_units<ScalarLanes>(a, grid_units<V>(a, a.first)); };
  kernels.grid_inputs = [](const GruGridInputs& a) { grid_inputs<ScalarLanes>(a, grid_inputs<V>(a, a.first)); };
  kernels.quantize = [](const QuantizedNumbers& a) {
    quantize_numbers<ScalarLanes>(a, quantize_numbers<V>(a, a.first));
  };
  kernels.functions = [](const float* x, int64_t count, float* e, float* sigmoid, float* tanh) {
    all_functions<V>(x, count, e, sigmoid, tanh);
  };
  return kernels;
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_BODY_H_
