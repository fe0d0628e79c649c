// SPDX-License-Identifier: Apache-2.0
// The loops that the x86 kernels of depthwise.h share. Each instruction-set file defines vectors V in an unnamed
// namespace, which have
//   Bytes, kBytes                     a vector of bytes, or of 32-bit sums; its size
//   load, zero                        of kBytes bytes
//   low8, high8, low16, high16        interleaves of bytes and of pairs in each lane of 16
//   dot(sums, u, w)                   sums + four products u * w
//   store(sums[4], start, out)        start + sums, of 4 vectors as depthwise.h orders them, in the order of channels
// Of internal linkage, so that no copy compiled for a wide instruction set can be linked into baseline code.
#ifndef ISOBIT_CONV_DEPTHWISE_BODY_H_
#define ISOBIT_CONV_DEPTHWISE_BODY_H_

#include <cstdint>

#include "conv/depthwise.h"

namespace isobit {
namespace {

/// V::kBytes channels of all outputs. Returns the weights of the next block.
template <typename V>
[[gnu::always_inline]] inline const int8_t* depthwise_block(const DepthwiseArgs& args, const int8_t* weights,
                                                            int64_t channel) {
  const int64_t quads = (args.taps + kDepthwiseTaps - 1) / kDepthwiseTaps;
  for (int64_t m = 0; m < args.m; ++m) {
    const uint8_t* const u = args.u + args.row_at[m] + channel;
    typename V::Bytes sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    const int8_t* w = weights;
    for (int64_t quad = 0; quad < quads; ++quad, w += 4 * V::kBytes) {
      const int64_t* const at = args.tap_at + quad * kDepthwiseTaps;
      const typename V::Bytes t0 = V::load(u + at[0]), t1 = V::load(u + at[1]);
      const typename V::Bytes t2 = V::load(u + at[2]), t3 = V::load(u + at[3]);
      const typename V::Bytes low01 = V::low8(t0, t1), high01 = V::high8(t0, t1);
      const typename V::Bytes low23 = V::low8(t2, t3), high23 = V::high8(t2, t3);
      sums[0] = V::dot(sums[0], V::low16(low01, low23), V::load(w));
      sums[1] = V::dot(sums[1], V::high16(low01, low23), V::load(w + V::kBytes));
      sums[2] = V::dot(sums[2], V::low16(high01, high23), V::load(w + 2 * V::kBytes));
      sums[3] = V::dot(sums[3], V::high16(high01, high23), V::load(w + 3 * V::kBytes));
    }
    V::store(sums, args.start + channel, args.acc + m * args.acc_stride + channel);
  }
  return weights + quads * 4 * V::kBytes;
}

template <typename Wide, typename Narrow>
[[gnu::always_inline]] inline void run_depthwise(const DepthwiseArgs& args) {
  const int8_t* weights = args.weights;
  for (int64_t channel = 0; channel < args.channels;) {
    const int64_t width = depthwise_width(Wide::kBytes, args.channels - channel);
    weights = width == Wide::kBytes ? depthwise_block<Wide>(args, weights, channel)
                                    : depthwise_block<Narrow>(args, weights, channel);
    channel += width;
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_CONV_DEPTHWISE_BODY_H_
