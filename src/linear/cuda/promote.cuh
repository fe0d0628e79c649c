// SPDX-License-Identifier: Apache-2.0
// From sums of products to results, in the order of numerics.md, sections 10 and 11.
#ifndef ISOBIT_LINEAR_CUDA_PROMOTE_CUH_
#define ISOBIT_LINEAR_CUDA_PROMOTE_CUH_

#include <type_traits>

#include "core/cuda/tensor_core.cuh"
#include "linear/cuda/codec.cuh"
#include "linear/cuda/product.h"
#include "linear/cuda/rows.h"
#include "linear/cuda/static_epilogue.cuh"

namespace isobit::cuda {

/// An instruction takes 32 bytes of a row of x. Float32 has three halves for each element.
template <RowsKind Kind>
struct ProductKind {
  using Type =
      std::conditional_t<is_integer(Kind), UInt8Int8, std::conditional_t<Kind == RowsKind::kF16, Float16, BFloat16>>;
  static constexpr int kPlanes = Kind == RowsKind::kF32 ? 3 : 1;
  static constexpr int kInstructions = static_cast<int>(row_block_bytes(Kind)) / kXTileRows / 32;
};

__device__ __forceinline__ float one_nan(float y) { return isnan(y) ? __uint_as_float(0x7fc00000u) : y; }

/// What is stored for the sum over k.
__device__ __forceinline__ float result(const ProductArgs& a, float sum, float bias) {
  const float y = __fadd_rn(sum, bias);
  return y < a.lo ? a.lo : y > a.hi ? a.hi : y;
}
__device__ __forceinline__ uint16_t float16_of(float y) {
  return isnan(y) ? uint16_t{0x7e00} : __half_as_ushort(__float2half_rn(y));
}
__device__ __forceinline__ uint16_t bfloat16_of(float y) {
  return isnan(y) ? uint16_t{0x7fc0} : __bfloat16_as_ushort(__float2bfloat16_rn(y));
}
/// y[m, n].
__device__ __forceinline__ void store_result(const ProductArgs& a, int64_t m, int64_t n, float sum, float bias) {
  const float y = result(a, sum, bias);
  const int64_t at = m * a.y_stride + n;
  if (a.y_type == 0) {
    static_cast<float*>(a.y)[at] = one_nan(y);
  } else {
    static_cast<uint16_t*>(a.y)[at] = a.y_type == 1 ? float16_of(y) : bfloat16_of(y);
  }
}
/// y[m, n] to y[m, n + 3], where they are there.
__device__ __forceinline__ void store_results(const ProductArgs& a, int64_t m, int64_t n, const float4& sums,
                                              const float4& bias) {
  if (!a.y_in_fours || n + 3 >= a.n) {
    const float all[] = {sums.x, sums.y, sums.z, sums.w}, of_rows[] = {bias.x, bias.y, bias.z, bias.w};
    for (int i = 0; i < 4; ++i)
      if (n + i < a.n) store_result(a, m, n + i, all[i], of_rows[i]);
    return;
  }
  const float4 y = {result(a, sums.x, bias.x), result(a, sums.y, bias.y), result(a, sums.z, bias.z),
                    result(a, sums.w, bias.w)};
  const int64_t at = m * a.y_stride + n;
  if (a.y_type == 0) {
    *reinterpret_cast<float4*>(static_cast<float*>(a.y) + at) = {one_nan(y.x), one_nan(y.y), one_nan(y.z),
                                                                 one_nan(y.w)};
  } else {
    *reinterpret_cast<ushort4*>(static_cast<uint16_t*>(a.y) + at) =
        a.y_type == 1 ? make_ushort4(float16_of(y.x), float16_of(y.y), float16_of(y.z), float16_of(y.w))
                      : make_ushort4(bfloat16_of(y.x), bfloat16_of(y.y), bfloat16_of(y.z), bfloat16_of(y.w));
  }
}

/// The same of static codes.
__device__ __forceinline__ void store_static_results(const ProductArgs& a, int64_t m, int64_t n, const int4& y) {
  const int64_t at = m * a.y_stride + n;
  const int bytes = a.static_codes.y_bytes;
  if (!a.y_in_fours || n + 3 >= a.n) {
    const int32_t all[] = {y.x, y.y, y.z, y.w};
    for (int i = 0; i < 4; ++i)
      if (n + i < a.n) store_code(a.y, bytes, at + i, all[i]);
  } else if (bytes == 1) {
    *reinterpret_cast<char4*>(static_cast<int8_t*>(a.y) + at) = make_char4(
        static_cast<int8_t>(y.x), static_cast<int8_t>(y.y), static_cast<int8_t>(y.z), static_cast<int8_t>(y.w));
  } else if (bytes == 2) {
    *reinterpret_cast<short4*>(static_cast<int16_t*>(a.y) + at) = make_short4(
        static_cast<int16_t>(y.x), static_cast<int16_t>(y.y), static_cast<int16_t>(y.z), static_cast<int16_t>(y.w));
  } else {
    *reinterpret_cast<int4*>(static_cast<int32_t*>(a.y) + at) = y;
  }
}

/// What a group of a row of W has for its results.
struct WeightScale {
  float scale, offset, sums;
  int32_t negated_zero_point;
};

/// The sums of two rows of W, r and r + 8, with columns `column` and `column` + 1 of each tile of x: what a thread has
/// of matrix instructions' results.
template <int Bits, RowsKind Kind, bool General>
struct Promotion {
  using Sum = typename ProductKind<Kind>::Type::Result;
  static constexpr bool kCodes = Kind == RowsKind::kCodes;

  const ProductArgs& a;
  int row, column;

  __device__ __forceinline__ WeightScale weight_scale(const uint8_t* record, int r) const {
    WeightScale of_row{reinterpret_cast<const float*>(record)[r], 0, 0, -a.zero_point};
    if constexpr (General) {
      if (a.zero_points_at > 0)
        of_row.negated_zero_point = -int32_t{reinterpret_cast<const uint16_t*>(record + a.zero_points_at)[r]};
      if (a.offsets_at > 0) of_row.offset = reinterpret_cast<const float*>(record + a.offsets_at)[r];
      if (a.sums_at > 0) of_row.sums = reinterpret_cast<const float*>(record + a.sums_at)[r];
    }
    return of_row;
  }

  /// Section 11, one group: d stands for sum a * w.
  __device__ __forceinline__ void add_codes(float& sum, int32_t d, const WeightScale& w, const RowScale& x,
                                            const RowOffset& x_offset) const {
    constexpr int32_t kFactor = 2;  // 1 bit, symmetric: v = 2 w - 1
    const int32_t product = Bits == 1 && a.code_factor == kFactor ? kFactor * d : d;
    const int32_t v = static_cast<int32_t>(static_cast<uint32_t>(product) +
                                           static_cast<uint32_t>(w.negated_zero_point) * static_cast<uint32_t>(x.sum));
    sum = __fmaf_rn(__int2float_rn(v), __fmul_rn(w.scale, x.scale), sum);
    if constexpr (General) {
      if (a.asymmetric) sum = __fmaf_rn(w.sums, __fmul_rn(w.scale, x_offset.offset), sum);
      if (a.offsets_at > 0) {
        float all = __fmul_rn(x.scale, __int2float_rn(x.sum));
        if (a.asymmetric) all = __fmaf_rn(x_offset.offset, x_offset.elements, all);
        sum = __fmaf_rn(w.offset, all, sum);
      }
    }
  }
  /// A part of floats: p stands for the sum of x * (w - 2^(bits - 1)), of 1 bit x * (2 w - 1); all: of x.
  __device__ __forceinline__ void add_floats(float& sum, float p, const WeightScale& w, float all) const {
    if constexpr (General) {
      constexpr float kMiddle = Bits == 1 ? 0.5f : static_cast<float>(1 << (Bits - 1));
      if (a.code_factor != 2) {
        if (Bits == 1) p *= 0.5f;
        p = __fmaf_rn(kMiddle + static_cast<float>(w.negated_zero_point), all, p);
      }
      if (a.offsets_at > 0) sum = __fmaf_rn(w.offset, all, sum);
    }
    sum = __fmaf_rn(p, w.scale, sum);
  }

  /// Adds the sums d of one part to `sums`. record: of its group; x_of_part: tile after tile; `slab` bytes on are
  /// the next 8 tiles.
  template <int Count>
  __device__ __forceinline__ void add(float (&sums)[Count], const Sum (&d)[Count], const uint8_t* record,
                                      const uint8_t* x_of_part, int slab = 0) const {
    const WeightScale rows[2] = {weight_scale(record, row), weight_scale(record, row + 8)};
    const int part_bytes = kCodes && !General ? kRowScalesBytes : a.x_part_bytes;
#pragma unroll
    for (int tile = 0; tile < Count / 4; ++tile) {
      const uint8_t* const x = x_of_part + tile / 8 * slab + tile % 8 * part_bytes;
      if constexpr (kCodes) {
        const int4 two = reinterpret_cast<const int4*>(x)[column / 2];
        const RowScale scales[2] = {{__int_as_float(two.x), two.y}, {__int_as_float(two.z), two.w}};
        RowOffset offsets[2]{};
        if constexpr (General) {
          if (a.asymmetric) {
            const float4 both = reinterpret_cast<const float4*>(x + kRowScalesBytes)[column / 2];
            offsets[0] = {both.x, both.y}, offsets[1] = {both.z, both.w};
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          add_codes(sums[4 * tile + i], d[4 * tile + i], rows[i / 2], scales[i % 2], offsets[i % 2]);
      } else {
        float2 both{};
        if constexpr (General) {
          if (a.x_part_bytes > 0) both = reinterpret_cast<const float2*>(x)[column / 2];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          add_floats(sums[4 * tile + i], d[4 * tile + i], rows[i / 2], i % 2 == 0 ? both.x : both.y);
      }
    }
  }
};

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_PROMOTE_CUH_
