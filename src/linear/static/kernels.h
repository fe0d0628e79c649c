// SPDX-License-Identifier: Apache-2.0
// The rescale of accumulators to codes of 8 or 16 bits: numerics.md, section 12. Included by the files of each
// instruction set, so it holds plain structs only. linear/static/static.h packs and calls.
#ifndef ISOBIT_LINEAR_STATIC_KERNELS_H_
#define ISOBIT_LINEAR_STATIC_KERNELS_H_

#include <cstdint>

#include "isobit/rounding.h"

namespace isobit {

/// y[m, n] = clamp(round_shift(acc[m, n] * multiplier[n], shift[n], rounding) + zero_point, lo, hi), m = 0 .. rows - 1,
/// n = 0 .. count - 1.
struct StaticRescaleArgs {
  const void* acc;     // int32_t, or int64_t when wide
  int64_t acc_stride;  // in elements
  int64_t rows;
  int64_t count;
  const int32_t* multiplier;
  const int32_t* shift;
  // multiplier * 2^-shift; null where float64 lanes are not exact or results not int32. Else it and every row of acc
  // can be read up to a multiple of 16.
  const double* ratio;
  Rounding rounding;
  bool wide;
  int32_t zero_point;
  int32_t lo;
  int32_t hi;
  void* y;           // the low byte, or two bytes, of the code, signed or not
  int64_t y_stride;  // in codes
  int32_t y_bytes;   // of a code: 1 or 2
};

using StaticRescale = void (*)(const StaticRescaleArgs& args);

#define ISOBIT_STATIC_RESCALE(name, path) void name(const StaticRescaleArgs& args);
#include "linear/static/kernels.inc"
#undef ISOBIT_STATIC_RESCALE

}  // namespace isobit

#endif  // ISOBIT_LINEAR_STATIC_KERNELS_H_
