// SPDX-License-Identifier: Apache-2.0
// From sums of products to y: static_epilogue.h.
#ifndef ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_CUH_
#define ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_CUH_

#include <type_traits>

#include "core/fixed.h"
#include "core/ratio.h"
#include "linear/cuda/static_epilogue.h"

namespace isobit::cuda {

/// y of one sum of each plane; Acc is int64_t where acc needs it. high: 0 where x has one plane.
template <typename Acc>
ISOBIT_HD int32_t static_result(const StaticEpilogue& e, const StaticChannel& c, int64_t row_sum, int32_t high,
                                int32_t low) {
  using U = std::make_unsigned_t<Acc>;  // intermediates may wrap
  const U products = static_cast<U>(high) * 256 + static_cast<U>(low);
  const auto acc = static_cast<Acc>(static_cast<U>(e.code_factor) * products -
                                    static_cast<U>(e.middle) * static_cast<U>(row_sum) + static_cast<U>(c.start));
  if (e.y_bytes == kAccumulatorBytes) return static_cast<int32_t>(acc);
  if (c.quick == 0) {
    const int64_t code = Rescale{c.multiplier, c.shift}.apply(acc, e.rounding) + e.zero_point;
    return static_cast<int32_t>(clamp_s64(code, e.lo, e.hi));
  }
  int64_t product = 0;
  if constexpr (sizeof(Acc) == sizeof(int32_t)) {
    product = wide_product(acc, c.multiplier);
  } else {
    product = acc * c.multiplier;
  }
  const auto code = static_cast<int32_t>((product + c.addend) >> c.shift);
  return code < e.lo ? e.lo : code > e.hi ? e.hi : code;
}

/// Element `at` of y: in row n of W, which is c's, and a row of x with this sum.
__device__ __forceinline__ void store_static(const StaticEpilogue& e, const StaticChannel& c, int64_t row_sum,
                                             int32_t high, int32_t low, void* y, int64_t at) {
  const int32_t result =
      e.wide ? static_result<int64_t>(e, c, row_sum, high, low) : static_result<int32_t>(e, c, row_sum, high, low);
  switch (e.y_bytes) {
    case 1: static_cast<int8_t*>(y)[at] = static_cast<int8_t>(result); break;
    case 2: static_cast<int16_t*>(y)[at] = static_cast<int16_t>(result); break;
    default: static_cast<int32_t*>(y)[at] = result;
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_CUH_
