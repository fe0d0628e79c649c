// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "conv/depthwise_weights.h"

namespace isobit {
namespace {

constexpr int64_t kLane = 16;  // channels

/// Where weight (channel, tap) of a block is.
int64_t place(int64_t width, int64_t channel, int64_t tap) {
  const int64_t in_lane = channel % kLane;
  const int64_t vector = tap / kDepthwiseTaps * 4 + in_lane / 4;
  return vector * width + (channel / kLane * 4 + in_lane % 4) * kDepthwiseTaps + tap % kDepthwiseTaps;
}
/// Where a number of a channel of a block is.
int64_t place(int64_t width, int64_t channel) { return place(width, channel, 0) / kDepthwiseTaps; }

/// A number for each channel, in the order of blocks.
template <typename T>
std::vector<T> in_blocks(const std::vector<T>& values, int64_t channels, int64_t most) {
  std::vector<T> result;
  if (values.empty()) return result;
  for (int64_t first = 0; first < channels;) {
    const int64_t width = depthwise_width(most, channels - first);
    result.resize(static_cast<size_t>(first + width));
    for (int64_t c = 0; c < std::min(width, channels - first); ++c)
      result[static_cast<size_t>(first + place(width, c))] = values[static_cast<size_t>(first + c)];
    first += width;
  }
  return result;
}

}  // namespace

DepthwiseWeights pack_depthwise(const int8_t* weights, int64_t channels, int64_t rows, int64_t columns, int64_t stride,
                                int64_t dilation, CpuPath path, const std::vector<int32_t>& start,
                                const std::vector<float>& ratio) {
  DepthwiseWeights result;
  int64_t most = 0;
#define ISOBIT_DEPTHWISE_KERNEL(name, row_path, width) \
  if (CpuPath::row_path <= path) result.kernel = name, most = width;
#include "conv/kernels.inc"
#undef ISOBIT_DEPTHWISE_KERNEL
  const bool vectors = result.kernel != depthwise_scalar;
  // Outputs `apart` from each other read columns of the same remainder, which the dilation divides.
  const int64_t common = std::gcd(stride, dilation), step = stride / common;
  const bool by_columns =
      vectors && rows == kDepthwiseSide && columns == kDepthwiseSide && dilation > 0 && (step == 1 || step == 2);
  if (by_columns) result.step = step, result.apart = dilation / common;
  const int64_t taps = by_columns ? columns * kDepthwiseTaps : rows * columns;
  const int64_t padded_taps = (taps + kDepthwiseTaps - 1) / kDepthwiseTaps * kDepthwiseTaps;
  for (int64_t first = 0; first < channels;) {
    const int64_t width = depthwise_width(most, channels - first);
    const auto begin = static_cast<int64_t>(result.packed.size());
    result.packed.resize(static_cast<size_t>(begin + width * padded_taps));
    for (int64_t c = 0; c < std::min(width, channels - first); ++c)
      for (int64_t i = 0; i < rows * columns; ++i) {
        const int64_t tap = by_columns ? i % columns * kDepthwiseTaps + i / columns : i;
        result.packed[static_cast<size_t>(begin + place(width, c, tap))] = weights[(first + c) * rows * columns + i];
      }
    first += width;
  }
  result.start = in_blocks(start, channels, most);
  if (vectors) result.ratio = in_blocks(ratio, channels, most);
  return result;
}

void DepthwiseWeights::run(DepthwiseArgs args) const {
  const DepthwiseArgs all = args;
  SumCodes codes{};
  if (all.codes != nullptr) {
    codes = *all.codes;
    codes.ratio = ratio.data();
    codes.y_stride *= apart;
    args.codes = &codes;
  }
  args.weights = packed.data();
  args.step = step;
  args.acc_stride *= apart;
  for (int64_t first = 0; first < std::min(apart, all.m); ++first) {
    args.row_at = all.row_at + first * all.row_at_step;
    args.m = (all.m - first + apart - 1) / apart;
    args.acc = all.acc + first * all.acc_stride;
    if (all.codes != nullptr) codes.y = all.codes->y + first * all.codes->y_stride;
    kernel(args);
  }
}

int64_t depthwise_outputs_together(int64_t channels, CpuPath path) {
  int64_t most = 1;
#define ISOBIT_DEPTHWISE_KERNEL(name, row_path, width) \
  if (CpuPath::row_path <= path && name != depthwise_scalar) most = width / channels;
#include "conv/kernels.inc"
#undef ISOBIT_DEPTHWISE_KERNEL
  return std::max<int64_t>(most, 1);
}

void depthwise_scalar(const DepthwiseArgs& args) {
  const int64_t padded_taps = (args.taps + kDepthwiseTaps - 1) / kDepthwiseTaps * kDepthwiseTaps;
  for (int64_t m = 0; m < args.m; ++m) {
    const uint8_t* const u = args.u + args.row_at[m * args.row_at_step];
    int32_t* const acc = args.acc + m * args.acc_stride;
    for (int64_t c = 0; c < args.channels; ++c) {
      const int64_t block = c / kDepthwiseLeast * kDepthwiseLeast, in_block = c % kDepthwiseLeast;
      const int8_t* const w = args.weights + block * padded_taps;
      auto sum = static_cast<uint32_t>(args.start[block + place(kDepthwiseLeast, in_block)]);
      for (int64_t tap = 0; tap < args.taps; ++tap)
        sum += static_cast<uint32_t>(u[args.tap_at[tap] + c] * w[place(kDepthwiseLeast, in_block, tap)]);
      acc[c] = static_cast<int32_t>(sum);
    }
  }
}

}  // namespace isobit
