// SPDX-License-Identifier: Apache-2.0
// What every kernel of linear layers on a device gets.
#ifndef ISOBIT_LINEAR_CUDA_PRODUCT_H_
#define ISOBIT_LINEAR_CUDA_PRODUCT_H_

#include <cstdint>

#include "isobit/dtype.h"
#include "linear/cuda/static_epilogue.h"

namespace isobit::cuda {

/// ProductArgs::y_type.
constexpr int32_t y_type_of(Dtype y) { return y == Dtype::kF32 ? 0 : y == Dtype::kF16 ? 1 : 2; }

struct ProductArgs {
  const uint8_t* w;
  const uint8_t* parameters;  // of W
  const float* bias;          // [strips * 64]
  const uint8_t* x;           // rows.h
  const uint8_t* x_parameters;
  void* y;
  int64_t y_stride, m, n;
  int64_t x_columns;                                   // of the right operand: m, or those of planes of codes
  int32_t y_type;                                      // 0: float32, 1: float16, 2: bfloat16
  bool y_in_fours;                                     // four neighbours are aligned
  int32_t strips;                                      // of W
  int32_t blocks, groups, group_blocks, block_groups;  // of a row; of a group, and of a block, 1 at least
  int32_t used_blocks;                                 // the others belong to no group
  int32_t x_parts, x_part_bytes, x_block_parts;        // rows.h: of codes, groups; 0 bytes: not there
  int32_t chunk_blocks, chunks, rank_chunks;           // rank_chunks: of a block of threads, at most
  bool whole;  // one group of integers: blocks of threads have parts of it, and the first one uses their sum
  int32_t record_bytes, zero_points_at, offsets_at, sums_at;
  int32_t zero_point;   // where there are no zero points
  int32_t code_factor;  // v = code_factor * w - zero point
  bool asymmetric;
  float lo, hi;
  int32_t cluster, stages;  // blocks of threads that share a strip; of each
  StaticEpilogue static_codes;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_PRODUCT_H_
