// SPDX-License-Identifier: Apache-2.0
#include "isobit/cuda/linear.h"

namespace isobit::cuda {

std::span<const DeviceLinearKernel> linear_kernels() {
  static constexpr DeviceLinearKernel kKernels[] = {
      {"linear_int8", "few", "every layer; W is read once for up to 16 rows of x, codes are multiplied as they are"},
      {"linear_float", "few", "every layer; W is read once for up to 16 rows of x, codes become floats in registers"},
      {"linear_static", "few",
       "every layer; W is read once for up to 16 rows of x, the sums become codes in the kernel"}};
  return kKernels;
}

}  // namespace isobit::cuda
