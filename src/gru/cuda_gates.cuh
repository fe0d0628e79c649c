// SPDX-License-Identifier: Apache-2.0
// The gates of one hidden unit on a device, in float or double lanes that hold integers: numerics.md, section 7, for
// nearest_even. Every tensor is code minus zero point; GruProof::gates_f32 or gates_f64 says that every intermediate is
// exact. x * ratio + magic rounds to an integer, which is then in the low bits.
#ifndef ISOBIT_GRU_CUDA_GATES_CUH_
#define ISOBIT_GRU_CUDA_GATES_CUH_

#include <cstdint>

#include "core/cuda_lanes.cuh"

namespace isobit::cuda {

/// Constants of the gates; Real is float or double.
template <typename Real>
struct GateLanes {
  Real hh_low, hh_high;
  int32_t hh_low_code, hh_high_code;  // the same
  Real hh_to_gate[3];                 // [2] is r * hh -> n_in
  Real gate_low[3], gate_high[3];     // plus magic
  uint32_t gate_to_byte[3];  // added to four times the low bits of magic + sum: byte offset in the three tables
  Real n_to_h, u_to_one, one;
  Real h_low, h_high;
  Real h_to_code;  // magic + what makes h an unsigned code
  int32_t h_to_unsigned;
};

/// The look-up of a sum of gate inputs that magic was added to.
template <typename Real>
__device__ __forceinline__ Real activate(const GateLanes<Real>& c, const uint8_t* tables, int gate, Real magic_sum) {
  const uint32_t bits = low_bits(clamp_lane(magic_sum, c.gate_low[gate], c.gate_high[gate]));
  return static_cast<Real>(*reinterpret_cast<const float*>(tables + (bits * 4 + c.gate_to_byte[gate])));
}

/// hh of a complete accumulator. Sums of more than 24 bits take double lanes; into float ones only with ratios of at
/// most 1, so that the result has 32 bits.
template <typename Real, typename Sum>
__device__ __forceinline__ Real rescale_hh(const GateLanes<Real>& c, Sum acc, Sum ratio) {
  if constexpr (sizeof(Real) == sizeof(Sum)) {
    return clamp_lane(rescale_even(acc, ratio), c.hh_low, c.hh_high);
  } else {
    const auto code = static_cast<int32_t>(low_bits(to_magic(acc, ratio)));
    const int32_t clamped = min(max(code, c.hh_low_code), c.hh_high_code);
    return __fsub_rn(__int_as_float(0x4b400000 + clamped), kMagic<float>);
  }
}

/// The new state minus its zero point. from_*: ih rescaled to the gate inputs; h: the state, minus its zero point, too.
template <typename Real>
__device__ __forceinline__ Real gru_gates(const GateLanes<Real>& c, const uint8_t* tables, Real from_u, Real from_r,
                                          Real from_n, Real hh_u, Real hh_r, Real hh_n, Real h) {
  const Real r = activate(c, tables, 1, add(to_magic(hh_r, c.hh_to_gate[1]), from_r));
  const Real u = activate(c, tables, 0, add(to_magic(hh_u, c.hh_to_gate[0]), from_u));
  const Real n = activate(c, tables, 2, add(to_magic(multiply(r, hh_n), c.hh_to_gate[2]), from_n));
  const Real fresh = multiply(add(c.one, -u), rescale_even(n, c.n_to_h));
  return clamp_lane(rescale_even(fused(u, h, fresh), c.u_to_one), c.h_low, c.h_high);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GATES_CUH_
