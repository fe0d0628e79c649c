// SPDX-License-Identifier: Apache-2.0
// Elements of y: from sums to their types, and from what a thread has of matrix instructions' results to neighbours.
#ifndef ISOBIT_LINEAR_CUDA_STORE_CUH_
#define ISOBIT_LINEAR_CUDA_STORE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "linear/cuda/product.h"
#include "linear/cuda/rows.h"

namespace isobit::cuda {

__device__ __forceinline__ float clamped(const ProductArgs& a, float y) {
  y = y < a.lo ? a.lo : y;
  return y > a.hi ? a.hi : y;
}

inline constexpr uint32_t kFloat32NaN = 0x7fc00000, kFloat16NaN = 0x7e00, kBFloat16NaN = 0x7fc0;
__device__ __forceinline__ uint32_t float32_bits(float y) { return isnan(y) ? kFloat32NaN : __float_as_uint(y); }
// Where the float is a NaN, the halves of a pair are 0x7fff: with_nan.
__device__ __forceinline__ uint32_t float16_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ uint32_t bfloat16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ uint32_t with_nan(uint32_t pair, uint32_t nan) {
  constexpr uint32_t kConverted = 0x7fff;
  const uint32_t low = pair & 0xffff, high = pair >> 16;
  return (low == kConverted ? nan : low) | (high == kConverted ? nan : high) << 16;
}
/// y[m, n] of floats.
__device__ __forceinline__ void store_result(const ProductArgs& a, int64_t m, int64_t n, float sum, float bias) {
  const float y = clamped(a, __fadd_rn(sum, bias));
  const int64_t at = m * a.y_stride + n;
  if (a.y_type == 0) {
    static_cast<uint32_t*>(a.y)[at] = float32_bits(y);
  } else {
    const uint32_t pair =
        a.y_type == 1 ? with_nan(float16_pair(y, 0), kFloat16NaN) : with_nan(bfloat16_pair(y, 0), kBFloat16NaN);
    static_cast<uint16_t*>(a.y)[at] = static_cast<uint16_t>(pair);
  }
}

/// Of an 8 x 8 matrix of halves, lane 4g + q has columns 2q and 2q + 1 of row g: the same of the transposed one.
__device__ __forceinline__ uint32_t transposed(uint32_t two) {
  uint32_t result = 0;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(two));
  return result;
}

/// From results as matrix instructions leave them to four neighbours of a row of y. Lane 4g + q has of a tile of 16
/// rows of W by 8 rows of x: of rows g and g + 8 of W, in this order, rows 2q and 2q + 1 of x; then of row `m` of x
/// rows `n` to `n` + 3 of W. By whole warps.
struct TurnedTile {
  int m, n;
  bool is_odd;

  explicit __device__ __forceinline__ TurnedTile(int lane)
      : m(lane / 4), n(lane % 2 * 8 + lane / 2 % 2 * 4), is_odd(lane % 2 != 0) {}

  /// Words of two halves, one of each row of W.
  [[nodiscard]] __device__ __forceinline__ uint2 halves(uint32_t upper, uint32_t lower) const {
    upper = transposed(upper);
    lower = transposed(lower);
    const uint32_t other = __shfl_xor_sync(0xffffffffu, is_odd ? upper : lower, 1);
    return is_odd ? make_uint2(other, lower) : make_uint2(upper, other);
  }
  [[nodiscard]] __device__ __forceinline__ uint4 words(uint32_t a, uint32_t b, uint32_t c, uint32_t d) const {
    const uint2 low = halves(__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410));
    const uint2 high = halves(__byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x7632));
    return make_uint4(__byte_perm(low.x, high.x, 0x5410), __byte_perm(low.x, high.x, 0x7632),
                      __byte_perm(low.y, high.y, 0x5410), __byte_perm(low.y, high.y, 0x7632));
  }
};

/// Where a thread stores: four neighbours of a row of y at a time, from row m and column n on.
template <typename Element>
struct FourStore {
  Element* y;                     // of row `m` and column `n` of W
  int64_t stride, rows, columns;  // left from there; stride: of y

  __device__ __forceinline__ FourStore(const ProductArgs& a, int64_t m, int64_t n)
      : y(static_cast<Element*>(a.y) + m * a.y_stride + n), stride(a.y_stride), rows(a.m - m), columns(a.n - n) {}

  /// Row `row` on. In one store, whose alignment the caller knows of.
  template <typename Four>
  __device__ __forceinline__ void whole(int row, const Four& four) const {
    static_assert(sizeof(Four) == 4 * sizeof(Element));
    if (row < rows) *reinterpret_cast<Four*>(y + row * stride) = four;
  }
  template <typename Four>
  __device__ __forceinline__ void apart(int row, const Four& four) const {
    static_assert(sizeof(Four) == 4 * sizeof(Element));
    Element elements[4];
    memcpy(elements, &four, sizeof four);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (row < rows && i < columns) y[row * stride + i] = elements[i];
  }
};
/// Calls four(i) for the tiles of x in turn, i = 0, Step, 2 * Step and on, and stores what it returns, kXTileRows rows
/// behind that of the tile before. By whole warps.
template <typename Element, int Count, int Step, typename Four>
__device__ __forceinline__ void store_tiles(const ProductArgs& a, int64_t m, int64_t n, const Four& four) {
  const FourStore<Element> store(a, m, n);
  if (__all_sync(0xffffffffu, a.y_in_fours && store.columns > 3) != 0) {
#pragma unroll
    for (int i = 0; i < Count; i += Step) store.whole(i / Step * kXTileRows, four(i));
  } else {
#pragma unroll
    for (int i = 0; i < Count; i += Step) store.apart(i / Step * kXTileRows, four(i));
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_STORE_CUH_
