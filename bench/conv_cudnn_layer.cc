// SPDX-License-Identifier: Apache-2.0
#include "bench/conv_cudnn_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/random.h"

namespace isobit::bench {
namespace {

using testing::check_cuda;
using testing::device_memory;
using testing::required;

using CudnnFilter = CudnnObject<cudnnFilterStruct, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;

constexpr int64_t kChecked = 2048;  // outputs
constexpr double kDeviation = 16;   // of y, about

int64_t up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Depthwise layers get more groups; of others with groups nothing is filled up.
ConvShape filled(const ConvShape& shape, const ConvLayout& layout) {
  ConvShape result = shape;
  const bool depthwise = shape.groups == shape.channels && shape.groups == shape.outputs;
  if (shape.groups != 1 && !depthwise) return result;
  result.channels = up(shape.channels, layout.multiple);
  result.outputs = up(shape.outputs, layout.multiple);
  if (depthwise) result.groups = result.channels;
  return result;
}

ImageSize output_size(const ConvProblem& problem) {
  return required(conv_output_size(problem.shape, problem.image, "conv"));
}

/// Random codes; 0 from these channels and this n on.
std::vector<std::byte> codes(const ConvSizes& sizes, int64_t channels, int64_t n, uint64_t seed) {
  std::vector<std::byte> result = testing::random_bytes(static_cast<size_t>(sizes.count()), seed);
  for (int64_t in = 0; in < sizes.n; ++in)
    for (int64_t ic = in < n ? channels : 0; ic < sizes.c; ++ic)
      for (int64_t ih = 0; ih < sizes.h; ++ih)
        for (int64_t iw = 0; iw < sizes.w; ++iw) result[static_cast<size_t>(sizes.offset(in, ic, ih, iw))] = {};
  return result;
}

/// The power of two that brings sums of random products to kDeviation.
float scale_of(int64_t depth) {
  constexpr double kOfProducts = 5461;  // the deviation of a product of two codes
  return static_cast<float>(std::exp2(std::round(std::log2(kDeviation / (kOfProducts * std::sqrt(depth))))));
}

int code(const std::vector<std::byte>& codes, int64_t offset) {
  return static_cast<int8_t>(codes[static_cast<size_t>(offset)]);
}

}  // namespace

ConvSizes::ConvSizes(int64_t count, int64_t channels, int64_t rows, int64_t columns, const ConvLayout& layout)
    : n(count), c(channels), h(rows), w(columns) {
  // A vector that channels cannot fill: cuDNN refuses the layer.
  vector = layout.vector == 0 || channels % layout.vector != 0 ? channels : layout.vector;
}

bool ConvCudnnLayer::fills(const ConvProblem& problem, const ConvLayout& layout) {
  return filled(problem.shape, layout) != problem.shape;
}

ConvCudnnLayer::ConvCudnnLayer(const CudnnHandle& handle, const ConvProblem& problem, const ConvLayout& layout)
    : layout_(layout),
      shape_(filled(problem.shape, layout)),
      x_sizes_(problem.images, shape_.channels, problem.image.rows, problem.image.columns, layout),
      w_sizes_(shape_.outputs, shape_.group_channels(), shape_.rows.kernel, shape_.columns.kernel, layout),
      y_sizes_(problem.images, shape_.outputs, output_size(problem).rows, output_size(problem).columns, layout),
      scale_(scale_of(problem.shape.depth())) {
  const std::vector<std::byte> x = codes(x_sizes_, problem.shape.channels, problem.images, 1);
  const std::vector<std::byte> w = codes(w_sizes_, problem.shape.group_channels(), problem.shape.outputs, 2);
  expect(x, w, problem.shape);
  const auto y_bytes = static_cast<size_t>(y_sizes_.count());
  const int64_t copies = testing::copies_beyond_cache(static_cast<int64_t>(x.size() + y_bytes));
  for (int64_t i = 0; i < copies; ++i) {
    x_.push_back(testing::repeated(x, x.size()));
    y_.push_back(device_memory(y_bytes));
  }
  w_ = testing::repeated(w, w.size());
  const auto outputs = static_cast<size_t>(shape_.outputs);
  const std::vector<float> scales(outputs, scale_), zeros(outputs, 0.0f);
  scales_ = testing::repeated(std::as_bytes(std::span(scales)), outputs * sizeof(float));
  zeros_ = testing::repeated(std::as_bytes(std::span(zeros)), outputs * sizeof(float));
  reordered_ = {StatusCode::kUnsupported, "weights of this layout are not reordered"};
  if (layout.vector != 0) {
    reordered_w_ = testing::repeated(w, w.size());
    const CudnnFilter filter;
    reordered_ = cudnn_status(cudnnSetFilter4dDescriptor(filter.get(), CUDNN_DATA_INT8x32, CUDNN_TENSOR_NCHW_VECT_C,
                                                         static_cast<int>(w_sizes_.n), static_cast<int>(w_sizes_.c),
                                                         static_cast<int>(w_sizes_.h), static_cast<int>(w_sizes_.w)),
                              "cudnnSetFilter4dDescriptor");
    if (reordered_.ok())
      reordered_ = cudnn_status(cudnnReorderFilterAndBias(handle.get(), filter.get(), CUDNN_DEFAULT_REORDER, w_.get(),
                                                          reordered_w_.get(), 0, nullptr, nullptr),
                                "cudnnReorderFilterAndBias");
  }
  check_cuda(cudaDeviceSynchronize(), "a layer");
}

Result<std::byte*> ConvCudnnLayer::w(bool reordered) const {
  if (!reordered) return w_.get();
  ISOBIT_RETURN_IF_ERROR(reordered_);
  return reordered_w_.get();
}

void ConvCudnnLayer::expect(const std::vector<std::byte>& x, const std::vector<std::byte>& w, const ConvShape& real) {
  Random random(3);
  for (int64_t i = 0; i < kChecked; ++i) {
    // The first and the last of all, and others.
    const auto index = [&](int64_t size) { return i == 0 ? 0 : i == 1 ? size - 1 : random.between(0, size - 1); };
    const int64_t n = index(y_sizes_.n), o = index(real.outputs), p = index(y_sizes_.h), q = index(y_sizes_.w);
    int64_t sum = 0;
    for (int64_t r = 0; r < w_sizes_.h; ++r)
      for (int64_t s = 0; s < w_sizes_.w; ++s) {
        const int64_t row = p * real.rows.stride - real.rows.pad_before + r;
        const int64_t column = q * real.columns.stride - real.columns.pad_before + s;
        if (row < 0 || row >= x_sizes_.h || column < 0 || column >= x_sizes_.w) continue;
        for (int64_t c = 0; c < real.group_channels(); ++c)
          sum += code(x, x_sizes_.offset(n, real.first_channel(o) + c, row, column)) *
                 code(w, w_sizes_.offset(o, c, r, s));
      }
    const double value = std::clamp(static_cast<double>(sum) * static_cast<double>(scale_), -128.0, 127.0);
    expected_.push_back({static_cast<size_t>(y_sizes_.offset(n, o, p, q)), value});
  }
}

void ConvCudnnLayer::forget_results() const {
  check_cuda(cudaMemset(y_[0].get(), 0x80, static_cast<size_t>(y_sizes_.count())), "y");
  check_cuda(cudaDeviceSynchronize(), "y");
}

Status ConvCudnnLayer::check(double& difference) const {
  std::vector<std::byte> y(static_cast<size_t>(y_sizes_.count()));
  check_cuda(cudaMemcpy(y.data(), y_[0].get(), y.size(), cudaMemcpyDeviceToHost), "y");
  difference = 0;
  for (const Output& output : expected_)
    difference = std::max(difference, std::abs(static_cast<int8_t>(y[output.offset]) - output.value));
  if (difference < 1) return {};
  return {StatusCode::kFailedPrecondition,
          "its result differs from the host's by " + std::to_string(difference) + " codes, must by less than one"};
}

}  // namespace isobit::bench
