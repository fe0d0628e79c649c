// SPDX-License-Identifier: Apache-2.0
// A convolution of int8 codes in a layout of cuDNN's: its sizes, its bytes on the device, and what they must give.
#ifndef ISOBIT_BENCH_CONV_CUDNN_LAYER_H_
#define ISOBIT_BENCH_CONV_CUDNN_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/conv.h"
#include "bench/cudnn_objects.h"
#include "isobit/conv.h"
#include "isobit/status.h"
#include "testing/cuda_timer.h"

namespace isobit::bench {

/// Channels and outputs are filled up with zeros to a multiple. A vector is what lies together of a pixel's channels: 0
/// for all of them.
struct ConvLayout {
  const char* name;
  int64_t multiple;
  int64_t vector;
};
/// cuDNN's tensor cores want channels in multiples of 4 or 16.
inline constexpr ConvLayout kConvLayouts[] = {{"nhwc", 1, 0}, {"nhwc_16", 16, 0}, {"c32", 32, 32}};

/// The sizes of an array [N, C, H, W], N outputs for weights.
struct ConvSizes {
  int64_t n = 1, c = 1, h = 1, w = 1;
  int64_t vector = 1;  // of them lie together

  ConvSizes(int64_t count, int64_t channels, int64_t rows, int64_t columns, const ConvLayout& layout);
  [[nodiscard]] int64_t count() const { return n * c * h * w; }
  [[nodiscard]] int64_t offset(int64_t in, int64_t ic, int64_t ih, int64_t iw) const {
    return (((in * (c / vector) + ic / vector) * h + ih) * w + iw) * vector + ic % vector;
  }
};

/// y = scale * (x conv weights), of random codes of 8 bits, scale a power of two. No y comes near the ends of int8.
class ConvCudnnLayer {
 public:
  /// Copies of x and y, more than three times the second-level cache together.
  ConvCudnnLayer(const CudnnHandle& handle, const ConvProblem& problem, const ConvLayout& layout);

  [[nodiscard]] static bool fills(const ConvProblem& problem, const ConvLayout& layout);
  [[nodiscard]] const ConvLayout& layout() const { return layout_; }
  /// With the channels filled up.
  [[nodiscard]] const ConvShape& shape() const { return shape_; }
  [[nodiscard]] const ConvSizes& x_sizes() const { return x_sizes_; }
  [[nodiscard]] const ConvSizes& w_sizes() const { return w_sizes_; }
  [[nodiscard]] const ConvSizes& y_sizes() const { return y_sizes_; }
  [[nodiscard]] float scale() const { return scale_; }
  [[nodiscard]] int64_t copies() const { return static_cast<int64_t>(x_.size()); }

  [[nodiscard]] std::byte* x(int64_t copy) const { return x_[static_cast<size_t>(copy)].get(); }
  [[nodiscard]] std::byte* y(int64_t copy) const { return y_[static_cast<size_t>(copy)].get(); }
  /// reordered: as cudnnReorderFilterAndBias does, vectors only; an error is cuDNN's.
  [[nodiscard]] Result<std::byte*> w(bool reordered) const;
  /// Of every output, float.
  [[nodiscard]] std::byte* scales() const { return scales_.get(); }
  [[nodiscard]] std::byte* zeros() const { return zeros_.get(); }

  /// y of copy 0 is then what no convolution gives.
  void forget_results() const;
  /// Outputs from all over y of copy 0 beside the host's. difference: the largest, 0.5 at most where cuDNN rounds to
  /// the nearest code. Errors: below a code is allowed, as its rounding is not documented.
  Status check(double& difference) const;

 private:
  struct Output {
    size_t offset;
    double value;
  };
  void expect(const std::vector<std::byte>& x, const std::vector<std::byte>& w, const ConvShape& real);

  ConvLayout layout_;
  ConvShape shape_;
  ConvSizes x_sizes_, w_sizes_, y_sizes_;
  float scale_;
  std::vector<testing::DeviceMemory> x_, y_;
  testing::DeviceMemory w_, reordered_w_, scales_, zeros_;
  Status reordered_;
  std::vector<Output> expected_;
};

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_CONV_CUDNN_LAYER_H_
