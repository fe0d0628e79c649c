// SPDX-License-Identifier: Apache-2.0
// The integer primitives on the device: compiled, so that a header that host code alone accepts is caught.
#include "core/bits.h"
#include "core/fixed.h"
#include "core/half.h"

namespace isobit {

__global__ void primitives(const int64_t* x, const uint8_t* packed, int64_t* y, int n, Rounding mode) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  y[i] = clamp_s64(Rescale{3, n}.apply(x[i], mode), -128, 127) + unpack_code(packed, i, 4);
}

}  // namespace isobit
