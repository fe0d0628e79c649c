// SPDX-License-Identifier: Apache-2.0
// Products of low-bit weights with few rows of x: each block of threads has a strip of 64 rows of W and 8 or 16 rows of
// x, so that W is read once for these.
#ifndef ISOBIT_LINEAR_CUDA_FEW_H_
#define ISOBIT_LINEAR_CUDA_FEW_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "isobit/dtype.h"
#include "isobit/status.h"
#include "linear/cuda/image.h"
#include "linear/cuda/rows.h"
#include "linear/cuda/static_epilogue.h"

namespace isobit::cuda {

inline constexpr int kFewMaxRows = 16;    // of x, for a block of threads
inline constexpr int kFewMaxChunks = 16;  // of a block of threads
inline constexpr int kFewMaxCluster = 8;  // blocks of threads that share a strip
inline constexpr int kFewWorkers = 128;   // threads that multiply
inline constexpr int kFewOldStages = 3;   // before sm_90
inline constexpr int kFewExchange = 256;  // where sums of other blocks come to, behind the barriers
constexpr int few_turn_blocks(int bits) { return bits == 8 ? 2 : 4; }
inline constexpr int64_t kMostRows = int64_t{kFewMaxRows} * 65535;

/// What a plan depends on.
struct FewDevice {
  int number = 0;
  int processors = 0;
  int shared = 0;  // bytes of a block
  bool bulk_copies = false;

  static Result<FewDevice> current();
};

/// How the columns of a layer are divided.
struct FewPlan {
  int32_t cluster = 0;
  int32_t stages = 0;
  int64_t shared = 0;  // bytes
};

struct FewArgs {
  const uint8_t* w;
  const uint8_t* parameters;  // of W
  const float* bias;          // [strips * 64]
  const uint8_t* x;           // rows.h
  const uint8_t* x_parameters;
  void* y;
  int64_t y_stride, m, n;
  int64_t x_columns;  // of the right operand: m, or as many as the planes of codes have
  int32_t y_type;     // 0: float32, 1: float16, 2: bfloat16
  int32_t blocks, groups, group_blocks, block_groups;  // of a row; of a group, and of a block, 1 at least
  int32_t x_parts, x_part_bytes, x_block_parts;        // rows.h: of codes, groups; 0 bytes: not there
  int32_t chunk_blocks, chunks, rank_chunks;           // rank_chunks: of a block of threads, at most
  bool whole;  // one group of integers: blocks of threads have parts of it, and the first one uses their sum
  int32_t record_bytes, zero_points_at, offsets_at, sums_at;
  int32_t zero_point;   // where there are no zero points
  int32_t code_factor;  // v = code_factor * w - zero point
  bool asymmetric;
  float lo, hi;
  int32_t cluster, stages;
  // Of a stage, in bytes.
  int32_t parameters_at, x_at, x_parameters_at, x_parameters_bytes, stage_bytes, stages_at;
  StaticEpilogue static_codes;  // of rows of static codes
};

/// Whether the code for the current device is that with bulk copies and clusters, for sm_90 and later; kUnsupported
/// where the build has none. Which code the driver has loaded is known on the device only.
Result<bool> few_has_bulk_copies();
/// Blocks of threads that share a strip: as many as give each processor the least to do one after the other; of equal
/// ones, those of which about four are on a processor. Sets in `args` what depends on it.
FewPlan plan_few(const FewDevice& device, const ImageLayout& image, RowsKind kind, FewArgs& args);
/// kind, bits and groups of `image` choose the kernel. early: the launch before lets this one start.
Status run_few(const ImageLayout& image, RowsKind kind, bool general, const FewPlan& plan, const FewArgs& args,
               bool early, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_FEW_H_
