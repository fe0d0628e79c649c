// SPDX-License-Identifier: Apache-2.0
// Floats to codes and back on a device: numerics.md, section 3, one float operation at a time.
#ifndef ISOBIT_CORE_CUDA_QUANTIZE_CUH_
#define ISOBIT_CORE_CUDA_QUANTIZE_CUH_

#include "core/cuda/floats.h"

namespace isobit::cuda {

/// Where a block puts the index of the first NaN that it meets; null where nobody looks.
__device__ __forceinline__ unsigned long long* nan_place_of(const DeviceFloats& floats, uint32_t block) {
  return floats.nans == nullptr ? nullptr : floats.nans + block % kNanPlaces;
}

/// Sets all places where a search begins. In every thread of every block, each of one dimension, after
/// wait_for_grid_before and before look_for_nan. Such a launch has at most kNanPlaces blocks: a block sets its own.
__device__ __forceinline__ void begin_nan_search(const DeviceFloats& floats, uint32_t block, uint32_t blocks) {
  if (!floats.begins) return;
  for (uint32_t i = threadIdx.x * blocks + block; i < kNanPlaces; i += blockDim.x * blocks) floats.nans[i] = kNoNan;
  __syncthreads();
}

/// A float of *at. Apart from quantize_float, so that several loads may be under way before the first is looked at.
__device__ __forceinline__ void look_for_nan(const DeviceFloats& floats, unsigned long long* nan_place, const float* at,
                                             float value) {
  if (isnan(value) && nan_place != nullptr) atomicMin(nan_place, static_cast<unsigned long long>(at - floats.first));
}
/// Four from `at` on, with one branch where none is NaN.
__device__ __forceinline__ void look_for_nan(const DeviceFloats& floats, unsigned long long* nan_place, const float* at,
                                             const float (&values)[4]) {
  if (!(isnan(values[0]) | isnan(values[1]) | isnan(values[2]) | isnan(values[3]))) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) look_for_nan(floats, nan_place, at + j, values[j]);
}

/// quantize() of core/grid.cc; NaN becomes the code of zero. Integer: int32_t for codes of at most 16 bits, else
/// int64_t.
template <typename Integer>
__device__ __forceinline__ Integer quantize_float(const DeviceFloats& floats, float value) {
  // Beyond both no code is left: clamped before it becomes an integer.
  constexpr float kLimit = sizeof(Integer) == 8 ? 8589934592.0f : 16777216.0f;  // 2^33, 2^24
  const float rounded = fminf(fmaxf(rintf(__fmul_rn(value, floats.inverse_scale)), -kLimit), kLimit);
  const Integer code = static_cast<Integer>(isnan(value) ? 0.0f : rounded) + static_cast<Integer>(floats.zero_point);
  return min(max(code, static_cast<Integer>(floats.min)), static_cast<Integer>(floats.max));
}

/// dequantize() of core/grid.cc; a code minus its zero point.
__device__ __forceinline__ float dequantize_difference(int32_t difference, float scale) {
  return __fmul_rn(__int2float_rn(difference), scale);
}
__device__ __forceinline__ float dequantize_difference(int64_t difference, float scale) {
  return __fmul_rn(__ll2float_rn(difference), scale);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_QUANTIZE_CUH_
