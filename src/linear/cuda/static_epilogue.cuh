// SPDX-License-Identifier: Apache-2.0
// From sums of products to y: static_epilogue.h.
#ifndef ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_CUH_
#define ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_CUH_

#include <type_traits>

#include "core/fixed.h"
#include "core/ratio.h"
#include "linear/cuda/static_epilogue.h"

namespace isobit::cuda {

/// acc of one sum of each plane; Acc is int64_t where acc needs it. high: 0 where x has one plane.
template <typename Acc>
ISOBIT_HD Acc static_sum(const StaticEpilogue& e, int64_t start, int64_t row_sum, int32_t high, int32_t low) {
  using U = std::make_unsigned_t<Acc>;  // intermediates may wrap
  const U products = static_cast<U>(high) * 256 + static_cast<U>(low);
  return static_cast<Acc>(static_cast<U>(e.code_factor) * products -
                          static_cast<U>(e.middle) * static_cast<U>(row_sum) + static_cast<U>(start));
}
/// y of acc, where the channel is quick.
template <typename Acc>
ISOBIT_HD int32_t quick_code(const StaticEpilogue& e, const StaticChannel& c, Acc acc) {
  int64_t product = 0;
  if constexpr (sizeof(Acc) == sizeof(int32_t)) {
    product = wide_product(acc, c.multiplier);
  } else {
    product = acc * c.multiplier;
  }
  const auto code = static_cast<int32_t>((product + c.addend) >> c.shift);
  return code < e.lo ? e.lo : code > e.hi ? e.hi : code;
}
/// y of acc.
template <typename Acc>
ISOBIT_HD int32_t static_code(const StaticEpilogue& e, const StaticChannel& c, Acc acc) {
  if (e.y_bytes == kAccumulatorBytes) return static_cast<int32_t>(acc);
  if (c.quick != 0) return quick_code(e, c, acc);
  const int64_t code = Rescale{c.multiplier, c.shift}.apply(acc, e.rounding) + e.zero_point;
  return static_cast<int32_t>(clamp_s64(code, e.lo, e.hi));
}

/// Element `at` of y.
__device__ __forceinline__ void store_code(void* y, int bytes, int64_t at, int32_t result) {
  switch (bytes) {
    case 1: static_cast<int8_t*>(y)[at] = static_cast<int8_t>(result); break;
    case 2: static_cast<int16_t*>(y)[at] = static_cast<int16_t>(result); break;
    default: static_cast<int32_t*>(y)[at] = result;
  }
}
/// Element `at` of y: in row n of W, which is c's, and a row of x with this sum.
__device__ __forceinline__ void store_static(const StaticEpilogue& e, const StaticChannel& c, int64_t row_sum,
                                             int32_t high, int32_t low, void* y, int64_t at) {
  const int32_t code = e.wide ? static_code(e, c, static_sum<int64_t>(e, c.start, row_sum, high, low))
                              : static_code(e, c, static_sum<int32_t>(e, c.start, row_sum, high, low));
  store_code(y, e.y_bytes, at, code);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_CUH_
