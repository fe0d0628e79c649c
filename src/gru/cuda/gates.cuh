// SPDX-License-Identifier: Apache-2.0
// The gates of one hidden unit on a device, in float or double lanes that hold integers: numerics.md, section 7, for
// nearest_even. Every tensor is code minus zero point; GruProof::cell_f32, gates_f32 or gates_f64 says that every
// intermediate is exact. x * ratio + magic rounds to an integer, which is then in the low bits.
#ifndef ISOBIT_GRU_CUDA_GATES_CUH_
#define ISOBIT_GRU_CUDA_GATES_CUH_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/cuda/lanes.cuh"
#include "core/cuda/ptx.cuh"
#include "gru/reference.h"
#include "isobit/gru.h"
#include "product/product.h"

namespace isobit::cuda {

/// Constants of the gates; Real is float or double.
template <typename Real>
struct GateLanes {
  Real hh_low, hh_high;
  int32_t hh_low_code, hh_high_code;  // the same
  bool hh_by_shifts;                  // rows of Fixed
  Real hh_to_gate[3];                 // [2] is r * hh -> n_in
  Real gate_low[3], gate_high[3];     // plus magic
  uint32_t gate_to_byte[3];  // added to four times the low bits of magic + sum: byte offset in the three tables
  Real u_to_one, one;
  Real h_low, h_high;      // plus magic
  uint32_t h_to_unsigned;  // added to h, and to the low bits of magic + h: an unsigned code
  Real h_from_code;        // what from_code takes to undo it
};

// ---- host

template <typename Real>
Real ratio_of(const RescaleParameters& r) {
  return static_cast<Real>(std::ldexp(static_cast<double>(r.multiplier), -r.shift));
}

/// Start value of the accumulator of a row of R (of_h) or W: its bias, with the zero point and the storage offset of
/// the unsigned activations folded in. Modulo 2^64: partial sums wrap, the complete accumulator fits.
inline int64_t start_of(const GruLayerParameters& p, bool of_h, int64_t row) {
  const CodeMatrix& weights = of_h ? p.R : p.W;
  const Grid& activation = p.grids[of_h ? kH : kX];
  const auto index = static_cast<size_t>(row);
  const int64_t bias =
      rescale(of_h ? p.br_to_acc[index] : p.bw_to_acc[index], (of_h ? p.br : p.bw).at(row, 0), p.rounding);
  int64_t sum = 0;
  for (int64_t k = 0; k < weights.columns(); ++k) sum += weights.at(row, k);
  return static_cast<int64_t>(static_cast<uint64_t>(bias) -
                              static_cast<uint64_t>(activation.zero_point + storage_offset(activation.dtype())) *
                                  static_cast<uint64_t>(sum));
}

/// Of a code of n: rs(n - z_n; n -> h).
inline int64_t n_on_h(const GruLayerParameters& p, int64_t code) {
  return rescale(p.n_to_h, code - p.tables[2].output.zero_point, p.rounding);
}
/// Whether the table of n can hold it.
inline bool float_holds_n(const GruLayerParameters& p) {
  const ActivationTable& table = p.tables[2];
  for (const int64_t code : {table.low, table.high})
    if (std::abs(n_on_h(p, code)) > 1 << 24) return false;
  return true;
}

/// The constants; and appends the tables: for each code of the gate input u and r as code minus zero point, of at most
/// 16 bits (fit_table), so float holds them, and n on the scale of h (float_holds_n).
template <typename Real>
void pack_gates(const GruLayerParameters& p, GateLanes<Real>& c, std::vector<float>& tables) {
  const auto difference = [](int64_t code, const Grid& grid) { return static_cast<Real>(code - grid.zero_point); };
  const Grid& hh = p.grids[kHh];
  const Grid& h = p.grids[kH];
  c.hh_low = difference(hh.min(), hh);
  c.hh_high = difference(hh.max(), hh);
  c.hh_low_code = static_cast<int32_t>(hh.min() - hh.zero_point);
  c.hh_high_code = static_cast<int32_t>(hh.max() - hh.zero_point);
  // Low 32 bits of magic: what activate finds beside the sum.
  const auto magic_bits = static_cast<uint32_t>(std::is_same_v<Real, float> ? 0x4b400000 : 0);
  for (size_t gate = 0; gate < 3; ++gate) {
    const Grid& in = p.tables[gate].input;
    const Grid& out = p.tables[gate].output;
    c.hh_to_gate[gate] = ratio_of<Real>(gate == 2 ? p.rhh_to_n : p.hh_to_gate[gate]);
    c.gate_low[gate] = kMagic<Real> + difference(in.min(), in);
    c.gate_high[gate] = kMagic<Real> + difference(in.max(), in);
    const auto first = static_cast<int64_t>(tables.size()) - (in.min() - in.zero_point);
    c.gate_to_byte[gate] = 4 * static_cast<uint32_t>(first) - 4 * magic_bits;
    for (int64_t q = in.min(); q <= in.max(); ++q) {
      const int64_t code = p.tables[gate](q);
      tables.push_back(static_cast<float>(gate == 2 ? n_on_h(p, code) : code - out.zero_point));
    }
  }
  c.u_to_one = ratio_of<Real>(p.u_to_one);
  c.one = difference(p.one, p.grids[kU]);
  c.h_low = kMagic<Real> + difference(h.min(), h);
  c.h_high = kMagic<Real> + difference(h.max(), h);
  c.h_to_unsigned = static_cast<uint32_t>(h.zero_point + storage_offset(h.dtype()));
  c.h_from_code = kFromCode<Real> + static_cast<Real>(c.h_to_unsigned);
}

// ---- device

/// The three tables: the value at `bits`, the low bits of magic + sum. In shared memory, addresses are known before
/// sums are.
struct SharedGateTables {
  uint32_t at[3];
  __device__ __forceinline__ float operator()(int gate, uint32_t bits) const {
    float value;
    asm("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(bits * 4 + at[gate]));
    return value;
  }
};
template <typename Real>
__device__ __forceinline__ SharedGateTables shared_tables(const GateLanes<Real>& c, const uint8_t* tables) {
  const uint32_t first = shared_address(tables);
  return {{first + c.gate_to_byte[0], first + c.gate_to_byte[1], first + c.gate_to_byte[2]}};
}

/// The look-ups of sums of gate inputs that magic was added to.
template <typename Real, typename Tables, int N>
__device__ __forceinline__ void activate(const GateLanes<Real>& c, const Tables& tables, int gate, Real (&sum)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    sum[i] = static_cast<Real>(tables(gate, low_bits(clamp_lane(sum[i], c.gate_low[gate], c.gate_high[gate]))));
}

/// hh of complete accumulators.
template <typename Real, typename Ratio, int N>
__device__ __forceinline__ void rescale_hh(const GateLanes<Real>& c, const SumOf<Ratio> (&acc)[N],
                                           const Ratio (&ratio)[N], Real (&hh)[N]) {
  if constexpr (kIsInteger<Ratio>) {
    rescale_clamped(acc, ratio, c.hh_by_shifts, c.hh_low_code, c.hh_high_code, hh);
  } else {
    rescale_clamped(acc, ratio, false, c.hh_low, c.hh_high, hh);
  }
}

/// The new states of N cells: codes in the low 16 bits, or 8. from_x: ih rescaled to the gate inputs, hh: of gates u,
/// r, n; h: the states, minus their zero point. Cells go side by side: one's instructions wait for each other.
template <typename Real, typename Tables, int N>
__device__ __forceinline__ void gru_gates(const GateLanes<Real>& c, const Tables& tables, const Real (&from_x)[3][N],
                                          const Real (&hh)[3][N], const Real (&h)[N], uint32_t (&codes)[N]) {
  Real u[N], r[N], n[N], kept[N], left[N];
#pragma unroll
  for (int i = 0; i < N; ++i) r[i] = add(to_magic(hh[1][i], c.hh_to_gate[1]), from_x[1][i]);
  activate(c, tables, 1, r);
#pragma unroll
  for (int i = 0; i < N; ++i) u[i] = add(to_magic(hh[0][i], c.hh_to_gate[0]), from_x[0][i]);
  activate(c, tables, 0, u);
#pragma unroll
  for (int i = 0; i < N; ++i) n[i] = add(to_magic(multiply(r[i], hh[2][i]), c.hh_to_gate[2]), from_x[2][i]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    kept[i] = multiply(u[i], h[i]);
    left[i] = add(c.one, -u[i]);
  }
  activate(c, tables, 2, n);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Real mixed = to_magic(fused(left[i], n[i], kept[i]), c.u_to_one);
    codes[i] = low_bits(clamp_lane(mixed, c.h_low, c.h_high)) + c.h_to_unsigned;
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GATES_CUH_
