// SPDX-License-Identifier: Apache-2.0
#include "isobit/cuda/linear.h"

namespace isobit::cuda {

std::span<const DeviceLinearKernel> linear_kernels() {
  static constexpr DeviceLinearKernel kKernels[] = {
      {"linear_int8", "few", "to 16 rows of x, for which W is read once; before sm_90a all; mma.sync"},
      {"linear_int8", "many", "from 17 rows of x; wgmma, sums of groups are scaled in registers"},
      {"linear_float", "few",
       "to 16 rows of x, for which W is read once; before sm_90a all; codes become floats in registers"},
      {"linear_float", "many", "from 17 rows of x; wgmma"},
      {"linear_static", "few",
       "to 16 rows of x, for which W is read once; before sm_90a all; sums become codes in the kernel"},
      {"linear_static", "many", "from 17 rows of x; wgmma"}};
  return kKernels;
}

}  // namespace isobit::cuda
