// SPDX-License-Identifier: Apache-2.0
// Products of low-bit weights with few rows of x: each block of threads has a strip of 64 rows of W and 8 or 16 rows of
// x, so that W is read once for these.
#ifndef ISOBIT_LINEAR_CUDA_FEW_H_
#define ISOBIT_LINEAR_CUDA_FEW_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "isobit/status.h"
#include "linear/cuda/image.h"
#include "linear/cuda/product.h"
#include "linear/cuda/rows.h"

namespace isobit::cuda {

inline constexpr int kFewMaxRows = 16;    // of x, for a block of threads
inline constexpr int kFewMaxCluster = 8;  // blocks of threads that share a strip
inline constexpr int kFewWorkers = 128;   // threads that multiply
inline constexpr int kFewOldStages = 3;   // before sm_90
inline constexpr int kFewExchange = 256;  // where sums of other blocks come to, behind the barriers
constexpr int few_turn_blocks(int bits) { return bits == 8 ? 2 : 4; }
/// Whether there are kernels for one tile of rows of x, beside those for kFewMaxRows.
constexpr bool few_has_tile(RowsKind kind) { return kind != RowsKind::kF32 && kind != RowsKind::kBF16; }
inline constexpr int64_t kMostRows = int64_t{kFewMaxRows} * 65535;

/// How the columns of a layer are divided.
struct FewPlan {
  int32_t cluster = 0;
  int32_t stages = 0;
  int64_t shared = 0;  // bytes
};

struct FewArgs : ProductArgs {
  int32_t group_steps;  // of a group, filled up
  // Of a stage, in bytes.
  int32_t parameters_at, x_at, x_parameters_at, stage_bytes, stages_at;
};

/// Whether the code for the current device is that with bulk copies and clusters, for sm_90 and later; kUnsupported
/// where the build has none. Which code the driver has loaded is known on the device only.
Result<bool> few_has_bulk_copies();
/// kind, bits and groups of `image` choose the kernel. early: the launch before lets this one start.
Status run_few(const ImageLayout& image, RowsKind kind, bool general, const FewPlan& plan, const FewArgs& args,
               bool early, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_FEW_H_
