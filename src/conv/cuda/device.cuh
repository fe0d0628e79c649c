// SPDX-License-Identifier: Apache-2.0
// What kernels of convolutions share.
#ifndef ISOBIT_CONV_CUDA_DEVICE_CUH_
#define ISOBIT_CONV_CUDA_DEVICE_CUH_

#include <algorithm>

#include "conv/cuda/kernels.h"
#include "linear/cuda/static_epilogue.cuh"

namespace isobit::cuda {

/// The pixel of x along an axis that a kernel element reads for an output; -1: outside.
__device__ __forceinline__ int32_t pixel_of(const DeviceAxis& a, bool transposed, int32_t output, int32_t tap) {
  int32_t at = 0;
  if (!transposed) {
    at = output * a.stride + tap * a.dilation - a.before;
  } else {
    const int32_t from_first = output + a.before - tap * a.dilation;
    if (from_first < 0 || from_first % a.stride != 0) return -1;
    at = from_first / a.stride;
  }
  return at >= 0 && at < a.pixels ? at : -1;
}

/// a / b, neither negative. A division of 32 bits takes a fraction of the time of one of 64.
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

/// An output's image, and its place there.
struct Place {
  int64_t image;
  int32_t p, q;
};
__device__ __forceinline__ Place place_of(const ConvSource& s, int64_t output) {
  const int64_t of_image = int64_t{s.rows.outputs} * s.columns.outputs;
  const int64_t image = quotient(output, of_image);
  const auto rest = static_cast<uint32_t>(output - image * of_image);
  const uint32_t p = rest / static_cast<uint32_t>(s.columns.outputs);
  return {image, static_cast<int32_t>(p), static_cast<int32_t>(rest - p * static_cast<uint32_t>(s.columns.outputs))};
}

/// A code inside the grid; the one that is not is noted.
__device__ __forceinline__ int32_t inside_grid(const ConvSource& s, int32_t code, int64_t pixel, int32_t channel) {
  if (s.outside == nullptr) return code;
  const int32_t inside = min(max(code, s.least), s.most);
  if (inside != code) atomicMin(s.outside, outside_key(pixel * s.channels + channel, code));
  return inside;
}

__device__ __forceinline__ int32_t load_code(const void* codes, Dtype dtype, int64_t at) {
  switch (dtype) {
    case Dtype::kS8: return static_cast<const int8_t*>(codes)[at];
    case Dtype::kU8: return static_cast<const uint8_t*>(codes)[at];
    case Dtype::kS16: return static_cast<const int16_t*>(codes)[at];
    default: return static_cast<const uint16_t*>(codes)[at];
  }
}

/// y of acc and the residual's code at `at`.
template <typename Acc>
__device__ __forceinline__ int32_t finished(const StaticEpilogue& e, const StaticChannel& c, const ConvResidual& r,
                                            Acc acc, int64_t at) {
  if (r.codes == nullptr) return static_code(e, c, acc);
  const int32_t code = min(max(load_code(r.codes, r.dtype, at), r.least), r.most);
  const int64_t sum = Rescale{c.multiplier, c.shift}.apply(acc, e.rounding) +
                      r.rescale.apply(int64_t{code} - r.zero, e.rounding) + e.zero_point;
  return static_cast<int32_t>(clamp_s64(sum, e.lo, e.hi));
}
/// The same of a sum that the channel's start is not in yet. Not inlined: kernels that have it once for each of many
/// outputs would not fit the cache of instructions.
static __device__ __noinline__ int32_t finished_sum(const StaticEpilogue& e, const StaticChannel& c,
                                                    const ConvResidual& r, int32_t sum, int64_t at) {
  if (e.wide) return finished(e, c, r, sum + c.start, at);
  // Wraps as the sum may where the whole does not.
  return finished(e, c, r, static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(c.start)), at);
}
/// Whether quick_sum() gives it.
__device__ __forceinline__ bool is_quick(const StaticEpilogue& e, const StaticChannel& c, const ConvResidual& r) {
  return c.quick != 0 && !e.wide && r.codes == nullptr && e.y_bytes == 1;
}
__device__ __forceinline__ int32_t quick_sum(const StaticEpilogue& e, const StaticChannel& c, int32_t sum) {
  return quick_code(e, c, static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(c.start)));
}

inline constexpr int64_t kMostBlocks = 1 << 20;  // of threads; each does the work of others, too, where there is more
inline unsigned blocks_for(int64_t threads, int64_t of_block) {
  return static_cast<unsigned>(std::clamp<int64_t>((threads + of_block - 1) / of_block, 1, kMostBlocks));
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CONV_CUDA_DEVICE_CUH_
