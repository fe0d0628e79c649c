// SPDX-License-Identifier: Apache-2.0
// A layer of static codes as the kernels take it, for whoever prepares rows: linear layers and convolutions.
#ifndef ISOBIT_LINEAR_CUDA_STATIC_PRODUCT_H_
#define ISOBIT_LINEAR_CUDA_STATIC_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/cuda/upload.h"
#include "isobit/linear.h"
#include "linear/cuda/image.h"
#include "linear/cuda/plan.h"
#include "linear/cuda/static_epilogue.h"

namespace isobit::cuda {

/// Of row n; offset: what is subtracted from codes of x.
StaticChannel static_channel(const StaticLinearParameters& p, int64_t offset, int64_t n);
/// All but the pointers. bound: of the accumulators.
StaticEpilogue static_epilogue(const StaticLinearParameters& p, int64_t bound);

struct StaticProduct {
  ImageLayout image{};
  const uint8_t* codes = nullptr;
  StaticEpilogue epilogue{};  // all but the pointer to rows

  /// Adds the weights to the upload, whose finish() sets pointers in this object: it must stay where it is until then.
  Status add(const StaticLinearParameters& p, int64_t bound, const std::string& name, Upload& upload);
  /// Rows of x in a run.
  [[nodiscard]] int64_t most_rows() const { return kMostRows / epilogue.planes; }
  [[nodiscard]] LinearPlan plan(const LinearDevice& device, int64_t m) const {
    return plan_static(device, image, epilogue.planes, m);
  }
  /// rows: plan.rows, filled; y: codes, or accumulators.
  Status run(const LinearDevice& device, const LinearPlan& plan, const std::byte* rows, std::byte* y, int64_t y_stride,
             CUstream_st* stream) const;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_STATIC_PRODUCT_H_
