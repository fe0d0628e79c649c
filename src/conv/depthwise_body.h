// SPDX-License-Identifier: Apache-2.0
// The loops that the x86 kernels of depthwise.h share. Each instruction-set file defines vectors V in an unnamed
// namespace, which have
//   Bytes, kBytes                     a vector of bytes, or of 32-bit sums; its size
//   load, zero                        of kBytes bytes
//   low8, high8, low16, high16        interleaves of bytes and of pairs in each lane of 16
//   dot(sums, u, w)                   sums + four products u * w
//   store(sums[4], out)               sums of 4 vectors as depthwise.h orders them, in the order of channels
//   Codes, codes(codes, sums[4], ratio, undecided)
//                                     codes of them, in the order of channels; undecided: of any sum
//   store_all(codes, y), store_some(codes, count, y)
// Of internal linkage, so that no copy compiled for a wide instruction set can be linked into baseline code.
#ifndef ISOBIT_CONV_DEPTHWISE_BODY_H_
#define ISOBIT_CONV_DEPTHWISE_BODY_H_

#include <cstdint>

#include "conv/depthwise.h"
#include "core/unroll.h"

namespace isobit {
namespace {

/// Where sums, or codes, of a block of channels go. Numbers are copied, as stores of bytes may change what is pointed
/// to.
template <typename V, bool kCodes>
class Out {
 public:
  [[gnu::always_inline]] Out(const DepthwiseArgs& args, int64_t channel)
      : acc_(args.acc + channel), stride_(args.acc_stride) {}
  [[gnu::always_inline]] void put(const typename V::Bytes (&sums)[4]) {
    V::store(sums, acc_);
    acc_ += stride_;
  }

 private:
  int32_t* acc_;
  int64_t stride_;
};
template <typename V>
class Out<V, true> {
 public:
  [[gnu::always_inline]] Out(const DepthwiseArgs& args, int64_t channel)
      : codes_(*args.codes),
        lanes_(codes_),
        channel_(channel),
        count_(codes_.columns - channel < V::kBytes ? codes_.columns - channel : V::kBytes),
        y_(codes_.y + channel) {}
  [[gnu::always_inline]] void put(const typename V::Bytes (&sums)[4]) {
    bool undecided = false;
    const typename V::Bytes bytes = V::codes(lanes_, sums, codes_.ratio + channel_, undecided);
    if (undecided) [[unlikely]] {
      alignas(V::kBytes) int32_t whole[V::kBytes];
      V::store(sums, whole);
      codes_.exact(codes_.context, whole, channel_, count_, y_);
    } else if (count_ == V::kBytes) {
      V::store_all(bytes, y_);
    } else {
      V::store_some(bytes, count_, y_);
    }
    y_ += codes_.y_stride;
  }

 private:
  const SumCodes codes_;
  const typename V::Codes lanes_;
  int64_t channel_, count_;
  uint8_t* y_;
};

/// Four kernel elements of 4 * V::kBytes / 4 channels, each from a vector of its own.
template <typename V>
[[gnu::always_inline]] inline void interleave(const typename V::Bytes (&t)[4], typename V::Bytes (&quads)[4]) {
  const typename V::Bytes low01 = V::low8(t[0], t[1]), high01 = V::high8(t[0], t[1]);
  const typename V::Bytes low23 = V::low8(t[2], t[3]), high23 = V::high8(t[2], t[3]);
  quads[0] = V::low16(low01, low23);
  quads[1] = V::high16(low01, low23);
  quads[2] = V::low16(high01, high23);
  quads[3] = V::high16(high01, high23);
}

/// V::kBytes channels of all outputs.
template <typename V, bool kCodes>
[[gnu::always_inline]] inline void depthwise_block(const DepthwiseArgs& args, const int8_t* weights, int64_t channel) {
  using Bytes = typename V::Bytes;
  Out<V, kCodes> out(args, channel);
  const int64_t quads = (args.taps + kDepthwiseTaps - 1) / kDepthwiseTaps;
  for (int64_t m = 0; m < args.m; ++m) {
    const uint8_t* const u = args.u + args.row_at[m * args.row_at_step] + channel;
    Bytes sums[4];
    unroll<4>(ISOBIT_UNROLLED(i) { sums[i] = V::load(args.start + channel + i * (V::kBytes / 4)); });
    const int8_t* w = weights;
    for (int64_t quad = 0; quad < quads; ++quad, w += 4 * V::kBytes) {
      const int64_t* const at = args.tap_at + quad * kDepthwiseTaps;
      const Bytes taps[4] = {V::load(u + at[0]), V::load(u + at[1]), V::load(u + at[2]), V::load(u + at[3])};
      Bytes four[4];
      interleave<V>(taps, four);
      unroll<4>(ISOBIT_UNROLLED(i) { sums[i] = V::dot(sums[i], four[i], V::load(w + i * V::kBytes)); });
    }
    out.put(sums);
  }
}

/// The same of kernels of 3 x 3, column by column.
template <typename V, bool kCodes, int kStep>
[[gnu::always_inline]] inline void depthwise_columns(const DepthwiseArgs& args, const int8_t* weights,
                                                     int64_t channel) {
  using Bytes = typename V::Bytes;
  constexpr int kSide = kDepthwiseSide, kShared = kSide - kStep;  // columns that the next output reads, too
  const int64_t pixel = args.tap_at[1] - args.tap_at[0], count = args.m;
  const int64_t at[kSide] = {args.tap_at[0], args.tap_at[kSide], args.tap_at[2 * kSide]};
  const int32_t* const start = args.start + channel;
  const uint8_t* u = args.u + args.row_at[0] + channel;
  Bytes w[kSide][4], columns[kSide][4];
  unroll<4 * kSide>(ISOBIT_UNROLLED(i) { w[i / 4][i % 4] = V::load(weights + i * V::kBytes); });
  const auto take = [&](Bytes(&column)[4], const uint8_t* from) __attribute__((always_inline)) {
    const Bytes rows[4] = {V::load(from + at[0]), V::load(from + at[1]), V::load(from + at[2]), V::zero()};
    interleave<V>(rows, column);
  };
  unroll<kShared>(ISOBIT_UNROLLED(s) { take(columns[s], u + s * pixel); });
  Out<V, kCodes> out(args, channel);
  for (int64_t m = 0; m < count; ++m, u += kStep * pixel) {
    unroll<kStep>(ISOBIT_UNROLLED(s) { take(columns[kShared + s], u + (kShared + s) * pixel); });
    Bytes sums[4];
    unroll<4>(ISOBIT_UNROLLED(i) { sums[i] = V::load(start + i * (V::kBytes / 4)); });
    unroll<4 * kSide>(
        ISOBIT_UNROLLED(i) { sums[i % 4] = V::dot(sums[i % 4], columns[i / 4][i % 4], w[i / 4][i % 4]); });
    unroll<4 * kShared>(ISOBIT_UNROLLED(i) { columns[i / 4][i % 4] = columns[i / 4 + kStep][i % 4]; });
    out.put(sums);
  }
}

template <typename V, bool kCodes>
[[gnu::always_inline]] inline const int8_t* run_block(const DepthwiseArgs& args, const int8_t* weights,
                                                      int64_t channel) {
  switch (args.step) {
    case 0: depthwise_block<V, kCodes>(args, weights, channel); break;
    case 1: depthwise_columns<V, kCodes, 1>(args, weights, channel); break;
    default: depthwise_columns<V, kCodes, 2>(args, weights, channel); break;
  }
  const int64_t taps = args.step == 0 ? args.taps : kDepthwiseSide * kDepthwiseTaps;
  return weights + (taps + kDepthwiseTaps - 1) / kDepthwiseTaps * kDepthwiseTaps * V::kBytes;
}

template <typename Wide, typename Narrow, bool kCodes>
[[gnu::always_inline]] inline void run_blocks(const DepthwiseArgs& args) {
  const int8_t* weights = args.weights;
  for (int64_t channel = 0; channel < args.channels;) {
    const int64_t width = depthwise_width(Wide::kBytes, args.channels - channel);
    weights = width == Wide::kBytes ? run_block<Wide, kCodes>(args, weights, channel)
                                    : run_block<Narrow, kCodes>(args, weights, channel);
    channel += width;
  }
}

template <typename Wide, typename Narrow>
[[gnu::always_inline]] inline void run_depthwise(const DepthwiseArgs& args) {
  if (args.codes != nullptr) {
    run_blocks<Wide, Narrow, true>(args);
  } else {
    run_blocks<Wide, Narrow, false>(args);
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_CONV_DEPTHWISE_BODY_H_
