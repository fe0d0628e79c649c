// SPDX-License-Identifier: Apache-2.0
// The gates of one hidden unit of one sequence on a device: from accumulators to the new state (numerics.md, section
// 7). As on AVX-512 (float_body.h) integers are held in lanes of T = float or double where the proof shows that they
// are exact there (GruProof::gates_f32, gates_f64) and the rounding is nearest_even: a rescale is one fused
// multiply-add.
#ifndef ISOBIT_GRU_CUDA_GATES_CUH_
#define ISOBIT_GRU_CUDA_GATES_CUH_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "gru/kernels.h"
#include "gru/reference.h"
#include "isobit/gru.h"
#include "linear/linear.h"

namespace isobit::cuda {

/// Constants of the gates in lanes of T. Codes minus zero point.
template <typename T>
struct GateLanes {
  T ih_low, ih_high;
  T ih_to_gate[3];
  T hh_low, hh_high;
  T hh_to_gate[3];              // [2] is r * hh -> n_in
  T gate_low[3], gate_high[3];  // plus magic
  uint32_t gate_to_byte[3];     // added to four times the bits of magic + sum: byte offset in the three tables
  T n_to_h, u_to_one, one;
  T h_low, h_high;
  T h_to_code;            // magic + h_to_unsigned
  int32_t h_to_unsigned;  // added to h, it leaves the unsigned code
};

// ---- host

template <typename T>
T ratio_of(const RescaleParameters& r) {
  return static_cast<T>(std::ldexp(static_cast<double>(r.multiplier), -r.shift));
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

/// Constants, and the tables of u, r and n behind each other: code minus zero point for each code of the gate input.
template <typename T>
void pack_gates(const GruLayerParameters& p, GateLanes<T>& c, std::vector<float>& tables) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const auto difference = [](int64_t code, const Grid& grid) { return static_cast<T>(code - grid.zero_point); };
  const Grid& ih = p.grids[kIh];
  const Grid& hh = p.grids[kHh];
  const Grid& h = p.grids[kH];
  c.ih_low = difference(ih.min(), ih);
  c.ih_high = difference(ih.max(), ih);
  c.hh_low = difference(hh.min(), hh);
  c.hh_high = difference(hh.max(), hh);
  for (size_t gate = 0; gate < 3; ++gate) {
    const Grid& in = p.tables[gate].input;
    const Grid& out = p.tables[gate].output;
    c.ih_to_gate[gate] = ratio_of<T>(p.ih_to_gate[gate]);
    c.hh_to_gate[gate] = ratio_of<T>(gate == 2 ? p.rhh_to_n : p.hh_to_gate[gate]);
    c.gate_low[gate] = kMagic<T> + difference(in.min(), in);
    c.gate_high[gate] = kMagic<T> + difference(in.max(), in);
    const auto first = static_cast<int64_t>(tables.size()) - (in.min() - in.zero_point);
    c.gate_to_byte[gate] =
        4 * static_cast<uint32_t>(first) - 4 * static_cast<uint32_t>(__builtin_bit_cast(Bits, kMagic<T>));
    // At most 16 bits (fit_table), so float holds them.
    for (int64_t q = in.min(); q <= in.max(); ++q)
      tables.push_back(static_cast<float>(p.tables[gate](q) - out.zero_point));
  }
  c.n_to_h = ratio_of<T>(p.n_to_h);
  c.u_to_one = ratio_of<T>(p.u_to_one);
  c.one = difference(p.one, p.grids[kU]);
  c.h_low = difference(h.min(), h);
  c.h_high = difference(h.max(), h);
  c.h_to_unsigned = static_cast<int32_t>(h.zero_point + storage_offset(h.dtype()));
  c.h_to_code = kMagic<T> + static_cast<T>(c.h_to_unsigned);
}

// ---- device. Sums, differences and products are exact, so only the fused operations round.

__device__ __forceinline__ float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
__device__ __forceinline__ double fused(double x, double y, double z) { return __fma_rn(x, y, z); }
__device__ __forceinline__ uint32_t low_bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ uint32_t low_bits(double x) { return static_cast<uint32_t>(__double2loint(x)); }
__device__ __forceinline__ float clamp_lane(float x, float low, float high) { return fminf(fmaxf(x, low), high); }
__device__ __forceinline__ double clamp_lane(double x, double low, double high) { return fmin(fmax(x, low), high); }

template <typename T>
__device__ __forceinline__ T to_magic(T x, T ratio) {
  return fused(x, ratio, kMagic<T>);
}
template <typename T>
__device__ __forceinline__ T rescale_even(T x, T ratio) {
  return to_magic(x, ratio) - kMagic<T>;
}

/// ih rescaled to a gate input, from the accumulator of W x.
template <typename T, typename Acc>
__device__ __forceinline__ T gate_from_ih(const GateLanes<T>& c, int gate, Acc acc, T ratio) {
  const T ih = clamp_lane(rescale_even(static_cast<T>(acc), ratio), c.ih_low, c.ih_high);
  return rescale_even(ih, c.ih_to_gate[gate]);
}

/// The look-up of a sum of gate inputs that magic was added to.
template <typename T>
__device__ __forceinline__ T activate(const GateLanes<T>& c, const uint8_t* tables, int gate, T magic_sum) {
  const uint32_t bits = low_bits(clamp_lane(magic_sum, c.gate_low[gate], c.gate_high[gate]));
  return static_cast<T>(*reinterpret_cast<const float*>(tables + (bits * 4 + c.gate_to_byte[gate])));
}

/// The new state minus its zero point. from_*: ih rescaled to the gate inputs; acc_*: accumulators of hh.
template <typename T, typename Acc>
__device__ __forceinline__ T gru_gates(const GateLanes<T>& c, const uint8_t* tables, T from_u, T from_r, T from_n,
                                       Acc acc_u, Acc acc_r, Acc acc_n, T ratio_u, T ratio_r, T ratio_n, T h) {
  const auto hh = [&](Acc acc, T ratio) {
    return clamp_lane(rescale_even(static_cast<T>(acc), ratio), c.hh_low, c.hh_high);
  };
  const T r = activate(c, tables, 1, to_magic(hh(acc_r, ratio_r), c.hh_to_gate[1]) + from_r);
  const T hh_n = hh(acc_n, ratio_n);
  const T u = activate(c, tables, 0, to_magic(hh(acc_u, ratio_u), c.hh_to_gate[0]) + from_u);
  const T n = activate(c, tables, 2, to_magic(r * hh_n, c.hh_to_gate[2]) + from_n);
  const T fresh = (c.one - u) * rescale_even(n, c.n_to_h);
  return clamp_lane(rescale_even(fused(u, h, fresh), c.u_to_one), c.h_low, c.h_high);
}

// ---- Kernels that run every kind of lane take one of these, with
//   Row: of a row of W and of R, the start value of its accumulator and what rescales it; row() makes it on the host;
//   next(): the new unsigned code of h from that before. rows[(3 * side + gate) * stride] and sums[side][gate]: side 0
//   is
//     W x, 1 is R h; a sum is of the low bytes of the activations, and of the high ones where kPlanes is 2.

template <typename Acc, int kPlanes>
__device__ __forceinline__ Acc accumulator(Acc start, const int32_t (&sums)[kPlanes]) {
  using Bits = std::make_unsigned_t<Acc>;
  Bits acc = static_cast<Bits>(start) + static_cast<Bits>(static_cast<Acc>(sums[0]));
  if constexpr (kPlanes == 2) acc += static_cast<Bits>(static_cast<Acc>(sums[1])) << 8;
  return static_cast<Acc>(acc);
}

template <typename T, typename Acc>
struct RealLanes {
  using Constants = GateLanes<T>;
  struct Row {
    Acc start;
    T ratio;
  };
  static Row row(int64_t start, const RescaleParameters& ratio) {
    return {static_cast<Acc>(start), ratio_of<T>(ratio)};
  }

  template <int kStride, int kPlanes>
  static __device__ __forceinline__ uint32_t next(const Constants& c, const uint8_t* tables, const Row* rows,
                                                  const int32_t (&sums)[2][3][kPlanes], uint32_t code) {
    T from_ih[3], ratio[3];
    Acc acc[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const Row& x = rows[gate * kStride];
      const Row& h = rows[(3 + gate) * kStride];
      from_ih[gate] = gate_from_ih(c, gate, accumulator(x.start, sums[0][gate]), x.ratio);
      acc[gate] = accumulator(h.start, sums[1][gate]);
      ratio[gate] = h.ratio;
    }
    const auto h = static_cast<T>(static_cast<int32_t>(code) - c.h_to_unsigned);
    const T fresh = gru_gates(c, tables, from_ih[0], from_ih[1], from_ih[2], acc[0], acc[1], acc[2], ratio[0], ratio[1],
                              ratio[2], h);
    return low_bits(fresh + c.h_to_code) & 0xffff;
  }
};
using F32Lanes = RealLanes<float, int32_t>;
using F64Lanes = RealLanes<double, int64_t>;

/// The reference itself: any rounding, any multiplier.
struct S64Lanes {
  struct Constants {
    CellView cell;
    int64_t h_offset;  // code + h_offset is the unsigned code
  };
  struct Row {
    int64_t start;
    RescaleParameters ratio;
  };
  static Row row(int64_t start, const RescaleParameters& ratio) { return {start, ratio}; }

  template <int kStride, int kPlanes>
  static __device__ __forceinline__ uint32_t next(const Constants& c, const uint8_t*, const Row* rows,
                                                  const int32_t (&sums)[2][3][kPlanes], uint32_t code) {
    const CellView& cell = c.cell;
    const auto linear = [&](int side, int gate, const CodeRange& out) {
      const Row& row = rows[(3 * side + gate) * kStride];
      const int64_t acc = accumulator(row.start, sums[side][gate]);
      return clamp_to(out, rescale(row.ratio, acc, cell.rounding) + out.zero_point);
    };
    int64_t ih[3], hh[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      ih[gate] = linear(0, gate, cell.ih);
      hh[gate] = linear(1, gate, cell.hh);
    }
    return static_cast<uint32_t>(reference_cell(cell, ih, hh, static_cast<int64_t>(code) - c.h_offset).h + c.h_offset);
  }
};

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GATES_CUH_
