// SPDX-License-Identifier: Apache-2.0
// From sums of products to sums of floats, in the order of numerics.md, sections 10 and 11.
#ifndef ISOBIT_LINEAR_CUDA_PROMOTE_CUH_
#define ISOBIT_LINEAR_CUDA_PROMOTE_CUH_

#include <type_traits>

#include "core/cuda/tensor_core.cuh"
#include "linear/cuda/codec.cuh"
#include "linear/cuda/product.h"
#include "linear/cuda/rows.h"

namespace isobit::cuda {

/// An instruction takes 32 bytes of a row of x. Float32 has three halves for each element.
template <RowsKind Kind>
struct ProductKind {
  using Type =
      std::conditional_t<is_integer(Kind), UInt8Int8, std::conditional_t<Kind == RowsKind::kF16, Float16, BFloat16>>;
  static constexpr int kPlanes = Kind == RowsKind::kF32 ? 3 : 1;
  static constexpr int kInstructions = static_cast<int>(row_block_bytes(Kind)) / kXTileRows / 32;
};

/// What a group of a row of W has for its results.
struct WeightScale {
  float scale, offset, sums;
  int32_t negated_zero_point;
};

/// The sums of two rows of W, r and r + 8, with columns `column` and `column` + 1 of each tile of x: what a thread has
/// of matrix instructions' results. General: more is needed than scales; of codes of x, than scales and zero points of
/// weights.
template <int Bits, RowsKind Kind, bool General>
struct Promotion {
  using Sum = typename ProductKind<Kind>::Type::Result;
  static constexpr bool kCodes = Kind == RowsKind::kCodes;

  const ProductArgs& a;
  int row, column;

  __device__ __forceinline__ WeightScale weight_scale(const uint8_t* record, int r) const {
    WeightScale of_row{reinterpret_cast<const float*>(record)[r], 0, 0, -a.zero_point};
    if (a.zero_points_at > 0)
      of_row.negated_zero_point = -int32_t{reinterpret_cast<const uint16_t*>(record + a.zero_points_at)[r]};
    if constexpr (General)
      if (a.offsets_at > 0) of_row.offset = reinterpret_cast<const float*>(record + a.offsets_at)[r];
    if constexpr (General)
      if (a.sums_at > 0) of_row.sums = reinterpret_cast<const float*>(record + a.sums_at)[r];
    return of_row;
  }

  /// Section 11, one group: d stands for sum a * w.
  template <bool Asymmetric, bool Offsets>
  __device__ __forceinline__ void add_codes(float& sum, int32_t d, const WeightScale& w, const RowScale& x,
                                            const RowOffset& x_offset) const {
    constexpr int32_t kFactor = 2;  // 1 bit, symmetric: v = 2 w - 1
    const int32_t product = Bits == 1 && a.code_factor == kFactor ? kFactor * d : d;
    const int32_t v = static_cast<int32_t>(static_cast<uint32_t>(product) +
                                           static_cast<uint32_t>(w.negated_zero_point) * static_cast<uint32_t>(x.sum));
    sum = __fmaf_rn(__int2float_rn(v), __fmul_rn(w.scale, x.scale), sum);
    if constexpr (Asymmetric) sum = __fmaf_rn(w.sums, __fmul_rn(w.scale, x_offset.offset), sum);
    if constexpr (Offsets) {
      float all = __fmul_rn(x.scale, __int2float_rn(x.sum));
      if constexpr (Asymmetric) all = __fmaf_rn(x_offset.offset, x_offset.elements, all);
      sum = __fmaf_rn(w.offset, all, sum);
    }
  }
  /// A part of floats: p stands for the sum of x * (w - 2^(bits - 1)), of 1 bit x * (2 w - 1); all: of x, where weights
  /// are not symmetric.
  template <bool All, bool Offsets>
  __device__ __forceinline__ void add_floats(float& sum, float p, const WeightScale& w, float all) const {
    if constexpr (All) {
      constexpr float kMiddle = Bits == 1 ? 0.5f : static_cast<float>(1 << (Bits - 1));
      if (Bits == 1) p *= 0.5f;
      p = __fmaf_rn(kMiddle + static_cast<float>(w.negated_zero_point), all, p);
    }
    if constexpr (Offsets) sum = __fmaf_rn(w.offset, all, sum);
    sum = __fmaf_rn(p, w.scale, sum);
  }

  /// Adds the sums d of one part to `sums`. record: of its group; x_of_part: tile after tile; `slab` bytes on are
  /// the next 8 tiles.
  template <int Count>
  __device__ __forceinline__ void add(float (&sums)[Count], const Sum (&d)[Count], const uint8_t* record,
                                      const uint8_t* x_of_part, int slab = 0) const {
    if constexpr (!General) {
      add_all<false, false>(sums, d, record, x_of_part, slab);
    } else {
      // What a layer does not have is asked once for all sums.
      const bool first = kCodes ? a.asymmetric : a.x_part_bytes > 0, offsets = a.offsets_at > 0;
      if (first && offsets) {
        add_all<true, true>(sums, d, record, x_of_part, slab);
      } else if (first) {
        add_all<true, false>(sums, d, record, x_of_part, slab);
      } else if (kCodes && offsets) {
        add_all<false, kCodes>(sums, d, record, x_of_part, slab);
      } else {
        add_all<false, false>(sums, d, record, x_of_part, slab);
      }
    }
  }

  /// First: activations are asymmetric; of floats, weights are not symmetric.
  template <bool First, bool Offsets, int Count>
  __device__ __forceinline__ void add_all(float (&sums)[Count], const Sum (&d)[Count], const uint8_t* record,
                                          const uint8_t* x_of_part, int slab) const {
    const WeightScale rows[2] = {weight_scale(record, row), weight_scale(record, row + 8)};
    const int part_bytes = kCodes && !General ? kRowScalesBytes : a.x_part_bytes;
#pragma unroll
    for (int tile = 0; tile < Count / 4; ++tile) {
      const uint8_t* const x = x_of_part + tile / 8 * slab + tile % 8 * part_bytes;
      if constexpr (kCodes) {
        const int4 two = reinterpret_cast<const int4*>(x)[column / 2];
        const RowScale scales[2] = {{__int_as_float(two.x), two.y}, {__int_as_float(two.z), two.w}};
        RowOffset offsets[2]{};
        if constexpr (First) {
          const float4 both = reinterpret_cast<const float4*>(x + kRowScalesBytes)[column / 2];
          offsets[0] = {both.x, both.y}, offsets[1] = {both.z, both.w};
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          add_codes<First, Offsets>(sums[4 * tile + i], d[4 * tile + i], rows[i / 2], scales[i % 2], offsets[i % 2]);
      } else {
        float2 both{};
        if constexpr (First) both = reinterpret_cast<const float2*>(x)[column / 2];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          add_floats<First, Offsets>(sums[4 * tile + i], d[4 * tile + i], rows[i / 2], i % 2 == 0 ? both.x : both.y);
      }
    }
  }
};

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_PROMOTE_CUH_
