// SPDX-License-Identifier: Apache-2.0
// What turns sums of products into y of a layer of static codes: numerics.md, section 12. static_epilogue.cuh computes.
//
// The right operand holds codes of x minus a number, `offset`, so that one signed byte, or two, hold them:
//   code - offset = byte                    code of 8 bits
//   code - offset = 256 * high + low        code of 16 bits
// The left operand holds w, with v = code_factor * w - middle. So
//   acc[m, n] = code_factor * (256 * sum of high * w + sum of low * w) - middle * sum of (code - offset) + start[n]
//   start[n]  = bias[n] + (offset - zero point of x) * sum of v[n]
#ifndef ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_H_
#define ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_H_

#include <cstdint>

#include "isobit/rounding.h"

namespace isobit::cuda {

inline constexpr int32_t kAccumulatorBytes = 4;  // of y, where it is acc

/// Of a row of W.
struct alignas(16) StaticChannel {
  int64_t start;
  int64_t addend;  // quick: y before its clamp is (acc * multiplier + addend) >> shift, and fits int32
  int32_t multiplier, shift;
  int32_t quick;
};

/// Of a row of x.
struct alignas(16) StaticRow {
  int64_t sum;     // of code - offset
  int32_t column;  // the first with a code outside the grid of x, which counts as the nearer end; -1: none
  int32_t code;    // that one
};

struct StaticEpilogue {
  const StaticChannel* channels;  // [strips * 64]
  const StaticRow* rows;          // [M]
  int32_t code_factor, middle;
  int32_t planes;   // bytes of a code of x
  int32_t y_bytes;  // of a code of y, or kAccumulatorBytes
  int32_t zero_point, lo, hi;
  Rounding rounding;
  bool wide;  // acc needs 64 bits
};

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_STATIC_EPILOGUE_H_
