// SPDX-License-Identifier: Apache-2.0
// What the kernels of FP16 tables take, and their declarations. Included by the files of each instruction set, so it
// holds plain structs only.
#ifndef ISOBIT_TABLE_FP16_KERNELS_H_
#define ISOBIT_TABLE_FP16_KERNELS_H_

#include <cstdint>

#include "table/fp16/reference.h"

namespace isobit {

/// An Fp16Table laid out for vector kernels, so that an interval is found by comparing alone and nothing is clamped
/// after it.
///
/// There are two intervals more than in the table: 0 holds arguments <= the first cut point, the last one those >= the
/// last cut point. They have start and scale 0 and one entry (T, -0), which gives T whatever its sign.
/// The search: index = piece; `levels` times: index = 2 index + (threshold[index] <= argument).
struct Fp16Lanes {
  const float* thresholds;  // level l: pieces << l of them, from level_starts[l]; each level fills whole vectors
  int32_t level_starts[10];
  int32_t levels;        // at least 4
  int32_t pieces;        // 1, or 2 for kSin and kCos
  const float* starts;   // of each of pieces << levels intervals: its cut point,
  const float* scales;   // its scale,
  const int32_t* bases;  // and its first entry
  const float* entries;  // pairs (L, R - L); from step `len` on (L, +0). As many as arguments can reach.
  bool overflows;        // a difference is infinite, so that results may be NaN
  Fp16Model model;
  Fp16Reduction reduction;
  /// Codes that no evaluation is needed for: class 1 is magnitude 0, 2 magnitude below `limit`, 3 magnitude = limit, 4
  /// above it, and 4 more for negative ones.
  uint16_t limit;
  uint8_t special[16];  // high byte of the result of such a class (low bytes are 0), or 0xff; entry 0 is 0
  uint32_t fixup;       // the same, without the class above 1, as a table of the instruction VFIXUPIMMPS
};
/// Vector loads of thresholds, starts, scales and bases may read this many from any multiple of it.
inline constexpr int kFp16LaneGroup = 32;

enum class Fp16Element : int32_t { kF16, kBf16, kF32 };

struct Fp16FunctionArgs {
  const Fp16TableView* table;
  const Fp16Lanes* lanes;
  const uint16_t* results;  // of all 65536 codes, and one more entry: 32-bit loads read it
  const void* x;
  void* y;
  int64_t count;
  Fp16Element x_element, y_element;
};
using Fp16FunctionKernel = void (*)(const Fp16FunctionArgs& args);

struct Fp16SoftmaxArgs {
  const Fp16TableView* exp;
  const Fp16Lanes* lanes;  // of exp
  const Fp16TableView* reciprocal;
  const void* x;
  void* y;
  int64_t rows, columns;
  Fp16Element x_element, y_element;
};
using Fp16SoftmaxKernel = void (*)(const Fp16SoftmaxArgs& args);

#define ISOBIT_FP16_KERNEL(name, function, path, direct) void function(const Fp16FunctionArgs& args);
#define ISOBIT_FP16_SOFTMAX_KERNEL(name, function, path, direct) void function(const Fp16SoftmaxArgs& args);
#include "table/fp16/kernels.inc"
#undef ISOBIT_FP16_KERNEL
#undef ISOBIT_FP16_SOFTMAX_KERNEL

/// fp16_softmax_quotient of the reciprocal table, compiled for any processor.
float fp16_softmax_quotient_of(const Fp16SoftmaxArgs& args, int64_t sum);

}  // namespace isobit

#endif  // ISOBIT_TABLE_FP16_KERNELS_H_
