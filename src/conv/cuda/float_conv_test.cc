// SPDX-License-Identifier: Apache-2.0
// DeviceConv against ConvLayer on the CPU, byte for byte; of float activations against the definition, within the
// bounds of numerics.md, section 10.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conv/random_float_layer.h"
#include "core/codes.h"
#include "core/random.h"
#include "isobit/cuda/conv.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using testing::GuardedDeviceBuffer;
using testing::Stream;

class CudaFloatConv : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }
};

using Bytes = std::vector<uint8_t>;

/// Rows of `bytes` so many bytes apart; what is between them is the canary.
Bytes spread(const uint8_t* from, int64_t rows, int64_t bytes, int64_t apart) {
  Bytes to(static_cast<size_t>(rows * apart), GuardedDeviceBuffer::kCanary);
  for (int64_t i = 0; i < rows; ++i) std::memcpy(to.data() + i * apart, from + i * bytes, static_cast<size_t>(bytes));
  return to;
}

/// A layer, and the pixels of y apart.
struct OnDevice {
  OnDevice(const RandomConv& conv, int64_t x_more, int64_t y_more)
      : c(conv), x_stride(c.shape.channels + x_more), y_stride(c.shape.outputs + y_more) {}

  /// y, what is between its pixels included; empty where something failed. `told`: of check_input.
  Bytes run(bool graph, std::string* told = nullptr) const {
    const Result<DeviceConv> layer = DeviceConv::create(c.shape, c.weights, c.options({}), "conv");
    EXPECT_TRUE(layer.ok()) << layer.status().message();
    if (!layer.ok()) return {};
    kernel = layer->kernel_name(c.x.dtype);
    const auto x_bytes = static_cast<int64_t>(size_in_bytes(c.x.dtype)), y_bytes = bytes_of_y();
    const Bytes x = spread(reinterpret_cast<const uint8_t*>(c.x.bytes.data()), c.pixels(), c.shape.channels * x_bytes,
                           x_stride * x_bytes);
    const Stream stream;
    GuardedDeviceBuffer x_d(static_cast<int64_t>(x.size())), y_d(c.outputs() * y_stride * y_bytes),
        workspace_d(*layer->workspace_bytes(c.images, c.image));
    x_d.write(x);
    const auto forward = [&] {
      return layer->forward(x_d.bytes(), c.x.dtype, y_d.bytes(), c.y_dtype, c.images, c.image, workspace_d.bytes(),
                            {.stream = stream.stream, .x_stride = x_stride, .y_stride = y_stride});
    };
    const Status status = graph ? testing::through_graph(stream.stream, forward) : forward();
    EXPECT_TRUE(status.ok()) << status.message();
    const Status checked = layer->check_input(workspace_d.bytes(), c.images, c.image, stream.stream);
    if (told != nullptr) *told = checked.message();
    EXPECT_TRUE(told != nullptr || checked.ok()) << checked.message();
    Bytes y = y_d.read<uint8_t>();
    static_cast<void>(workspace_d.read<uint8_t>());
    return y;
  }
  /// The same of the CPU; unchecked where `told` is null.
  Bytes run_host(std::string* told = nullptr) const {
    const ConvLayer layer = *ConvLayer::create(c.shape, c.weights, c.options({}), "conv");
    Bytes y(static_cast<size_t>(c.outputs() * c.shape.outputs * bytes_of_y()));
    Workspace workspace = *layer.workspace(c.images, c.image);
    const Status status = layer.forward(c.x.bytes, c.x.dtype, std::as_writable_bytes(std::span(y)), c.y_dtype, c.images,
                                        c.image, workspace, {.unchecked = told == nullptr});
    if (told != nullptr) *told = status.message();
    EXPECT_TRUE(told != nullptr || status.ok()) << status.message();
    return spread(y.data(), c.outputs(), c.shape.outputs * bytes_of_y(), y_stride * bytes_of_y());
  }
  [[nodiscard]] int64_t bytes_of_y() const { return static_cast<int64_t>(size_in_bytes(c.y_dtype)); }

  const RandomConv& c;
  int64_t x_stride, y_stride;
  mutable std::string_view kernel;
};

/// The kernels of linear layers use stages of shared memory again, which racecheck cannot follow (cuda_buffer.h).
bool racecheck_cannot_follow(const RandomConv& c) {
  return testing::racecheck() &&
         DeviceConv::create(c.shape, c.weights, c.options({}), "conv")->kernel_name(c.x.dtype) == "product";
}

TEST_F(CudaFloatConv, RandomLayersGiveTheBytesOfTheHost) {
  Random random(31);
  std::map<std::string_view, int64_t> outputs;
  for (const ConvActivations activations :
       {ConvActivations::kInt8, ConvActivations::kInt8Asymmetric, ConvActivations::kInt8PerImage}) {
    for (int i = 0; i < (testing::sanitized() ? 20 : 500) && !HasFailure(); ++i) {
      const RandomConv c = *RandomConv::random(random, activations, i % 3 == 0);
      SCOPED_TRACE(c.text() + ", case " + std::to_string(i));
      if (racecheck_cannot_follow(c)) continue;
      const OnDevice device(c, random.between(0, 2), random.between(0, 2));
      std::string told;
      EXPECT_EQ(device.run(i % 7 == 0, &told), device.run_host());
      outputs[device.kernel] += c.outputs() * c.shape.outputs;
    }
  }
  for (const std::string_view kernel : {"tile", "direct", "sums", "product"}) {
    if (kernel == "product" && testing::racecheck()) continue;
    EXPECT_GT(outputs[kernel], testing::sanitized() ? 0 : 10000) << kernel;
  }
}

/// For the depthwise kernel.
RandomConv random_depthwise(Random& random, ConvActivations activations, int64_t kernel) {
  const int64_t channels = 4 * random.between(1, 20);
  RandomConv c{
      .shape = {.channels = channels,
                .outputs = channels,
                .groups = channels,
                .rows = random_depthwise_axis(random, kernel),
                .columns = random_depthwise_axis(random, kernel)},
      .image = {random.between(17, 40), random.between(17, 40)},
      .images = random.between(1, 3),
      .activations = activations,
      .weights = *random_matrix(random, {.rows = channels * kernel * kernel,
                                         .ordinary = true,
                                         .kind = random.one_in(2) ? LowBitKind::kSymmetric : LowBitKind::kZeroPoint})};
  c.size = *conv_output_size(c.shape, c.image, "conv");
  c.bias = random_bias(random, channels);
  c.x = Array::zeros(random_of(random, kRandomStores), {c.pixels(), channels});
  random_row(random, c.x.bytes.data(), c.x.size(), c.x.dtype, 0, false);
  c.y_dtype = activations == ConvActivations::kFloat ? c.x.dtype : random_of(random, kRandomStores);
  return c;
}

TEST_F(CudaFloatConv, DepthwiseLayersGiveTheBytesOfTheHost) {
  Random random(36);
  for (int i = 0; i < (testing::sanitized() ? 8 : 120) && !HasFailure(); ++i) {
    const RandomConv c = random_depthwise(random, ConvActivations::kInt8, i % 2 == 0 ? 3 : 5);
    SCOPED_TRACE(c.text() + ", case " + std::to_string(i));
    const OnDevice device(c, random.between(0, 4), random.between(0, 2));
    std::string told;
    EXPECT_EQ(device.run(false, &told), device.run_host());
    EXPECT_EQ(device.kernel, "depthwise");
  }
}

/// Section 10, of layers without act: the largest share of the bound that a row of y takes.
double share_of_bound(const RandomConv& c, const Bytes& y) {
  const int64_t taps = c.shape.rows.kernel * c.shape.columns.kernel, channels = c.shape.group_channels();
  const bool shared = c.weights.rows() == c.shape.outputs;
  const int64_t group = c.weights.parameters().group;
  const int bits = c.weights.parameters().bits;
  const double middle = bits == 1 ? 0.5 : 1 << (bits - 1);
  const auto* const x = c.x.bytes.data();
  const auto k = static_cast<double>(c.shape.depth());
  const double e = c.y_dtype == Dtype::kF32 ? 1e-6 * std::sqrt(k) : c.y_dtype == Dtype::kF16 ? 2e-3 : 1e-2;
  double worst = 0;
  for (int64_t m = 0; m < c.outputs(); ++m) {
    const int64_t of_image = c.size.rows * c.size.columns, b = m / of_image;
    const int64_t p = m % of_image / c.size.columns, q = m % c.size.columns;
    double error = 0, size = 0, terms = 0;
    for (int64_t o = 0; o < c.shape.outputs; ++o) {
      double sum = c.bias.empty() ? 0.0 : static_cast<double>(c.bias[static_cast<size_t>(o)]);
      double magnitudes = std::abs(sum);
      for (int64_t tap = 0; tap < taps; ++tap) {
        const auto i = conv_pixel(c.shape.rows, c.shape.transposed, c.image.rows, p, tap / c.shape.columns.kernel);
        const auto j =
            conv_pixel(c.shape.columns, c.shape.transposed, c.image.columns, q, tap % c.shape.columns.kernel);
        if (!i || !j) continue;
        const int64_t pixel = (b * c.image.rows + *i) * c.image.columns + *j;
        for (int64_t channel = 0; channel < channels; ++channel) {
          const int64_t row = shared ? o : o * taps + tap, column = shared ? tap * channels + channel : channel;
          const double value = load_float(x, c.x.dtype, pixel * c.shape.channels + c.shape.first_channel(o) + channel);
          const double weight =
              static_cast<double>(c.weights.scale(row, column / group)) * c.weights.value(row, column);
          const double offset = c.weights.offset(row, column / group);
          sum += value * (weight + offset);
          magnitudes += std::abs(value * weight) + std::abs(value * offset);
          if (c.weights.parameters().kind != LowBitKind::kSymmetric)
            magnitudes += std::abs(value * c.weights.scale(row, column / group) *
                                   (middle - c.weights.zero_point(row, column / group)));
        }
      }
      const double found = load_float(reinterpret_cast<const std::byte*>(y.data()), c.y_dtype, m * c.shape.outputs + o);
      error += std::pow(found - sum, 2);
      size += sum * sum;
      terms += magnitudes * magnitudes;
    }
    const double bound = e * std::max(std::sqrt(size), std::sqrt(terms) / (8 * std::sqrt(k)));
    if (error == 0) continue;
    worst = std::max(worst, bound == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error) / bound);
  }
  return worst;
}

TEST_F(CudaFloatConv, FloatsAreWithinTheBounds) {
  Random random(32);
  std::map<std::string_view, int> layers;
  double worst = 0;
  for (int i = 0; i < (testing::sanitized() ? 20 : 300) && !HasFailure(); ++i) {
    RandomConv c = i % 4 == 3 ? random_depthwise(random, ConvActivations::kFloat, i % 8 == 3 ? 3 : 5)
                              : *RandomConv::random(random, ConvActivations::kFloat, false);
    c.clamp = LinearClamp::none();
    SCOPED_TRACE(c.text() + ", case " + std::to_string(i));
    if (racecheck_cannot_follow(c)) continue;
    const OnDevice device(c, random.between(0, 2), 0);
    const Bytes y = device.run(i % 7 == 0);
    const double share = share_of_bound(c, y);
    EXPECT_LT(share, 1.0);
    worst = std::max(worst, share);
    ++layers[device.kernel];

    RandomConv last = c;
    last.images = 1;
    last.x.bytes.assign(c.x.bytes.end() - static_cast<std::ptrdiff_t>(c.x.bytes.size() / static_cast<size_t>(c.images)),
                        c.x.bytes.end());
    const Bytes alone = OnDevice(last, 0, 0).run(false);
    EXPECT_TRUE(std::equal(alone.rbegin(), alone.rend(), y.rbegin())) << "an image alone";
  }
  RecordProperty("worst_share_of_the_bound", std::to_string(worst));
  for (const std::string_view kernel : {"tile", "depthwise", "direct", "product"}) {
    if (kernel == "product" && testing::racecheck()) continue;
    EXPECT_GT(layers[kernel], testing::sanitized() ? 0 : 20) << kernel;
  }
}

/// Shapes of networks: many rows, several parts, and vectors of elements.
TEST_F(CudaFloatConv, LayersOfNetworks) {
  Random random(33);
  const ConvAxis three{.kernel = 3, .pad_before = 1, .pad_after = 1}, one{};
  const ConvAxis seven{.kernel = 7, .stride = 2, .pad_before = 3, .pad_after = 3};
  const struct {
    ConvShape shape;
    ImageSize image;
    int64_t group;
  } cases[] = {{{.channels = 64, .outputs = 64, .rows = three, .columns = three}, {28, 28}, 64},
               {{.channels = 256, .outputs = 64, .rows = one, .columns = one}, {28, 28}, 128},
               {{.channels = 3, .outputs = 64, .rows = seven, .columns = seven}, {56, 56}, 3},
               {{.channels = 96, .outputs = 96, .groups = 96, .rows = three, .columns = three}, {28, 28}, 1},
               {{.channels = 64, .outputs = 128, .groups = 4, .rows = three, .columns = three}, {14, 14}, 16},
               {{.channels = 160, .outputs = 64, .rows = three, .columns = three}, {112, 112}, 32}};
  for (const auto& one_case : cases) {
    if (testing::sanitized() && one_case.image.rows > 30) continue;
    for (const ConvActivations activations : {ConvActivations::kInt8, ConvActivations::kInt8PerImage}) {
      const bool per_image = activations == ConvActivations::kInt8PerImage;
      const ConvShape& shape = one_case.shape;
      const int64_t taps = shape.rows.kernel * shape.columns.kernel;
      RandomMatrix form{.rows = per_image ? shape.outputs : shape.outputs * taps,
                        .columns = per_image ? shape.depth() : shape.group_channels(),
                        .ordinary = true};
      form.group = per_image ? form.columns : one_case.group;
      form.kind = LowBitKind::kSymmetric;
      RandomConv c{.shape = shape,
                   .image = one_case.image,
                   .size = *conv_output_size(shape, one_case.image, "conv"),
                   .images = 3,
                   .activations = activations,
                   .weights = *random_matrix(random, form)};
      c.clamp = LinearClamp::relu();
      c.x = Array::zeros(Dtype::kF16, {c.pixels(), shape.channels});
      random_row(random, c.x.bytes.data(), c.x.size(), Dtype::kF16, 0, false);
      c.y_dtype = Dtype::kF16;
      SCOPED_TRACE(c.text());
      if (racecheck_cannot_follow(c)) continue;
      const OnDevice device(c, 0, 0);
      const bool same = device.run(false) == device.run_host();
      EXPECT_TRUE(same);
    }
  }
}

TEST_F(CudaFloatConv, WhatIsNotFiniteIsTold) {
  Random random(34);
  int told_of = 0;
  for (int i = 0; i < (testing::sanitized() ? 10 : 60) && !HasFailure(); ++i) {
    const ConvActivations kinds[] = {ConvActivations::kInt8, ConvActivations::kInt8Asymmetric,
                                     ConvActivations::kInt8PerImage};
    RandomConv c = *RandomConv::random(random, kinds[i % 3], false);
    // Every pixel is read.
    for (ConvAxis* const axis : {&c.shape.rows, &c.shape.columns}) *axis = ConvAxis{.kernel = axis->kernel};
    c.shape.transposed = false;
    c.image = {c.shape.rows.kernel + 2, c.shape.columns.kernel + 1};
    c.size = {3, 2};
    c.x = Array::zeros(Dtype::kF32, {c.pixels(), c.shape.channels});
    random_row(random, c.x.bytes.data(), c.x.size(), Dtype::kF32, 0, false);
    for (int count = 0; count < i % 4; ++count)
      c.x.data<float>()[random.between(0, c.x.size() - 1)] = std::numeric_limits<float>::infinity();
    SCOPED_TRACE(c.text() + ", case " + std::to_string(i));
    if (racecheck_cannot_follow(c)) continue;
    const OnDevice device(c, 0, 0);
    std::string told, expected;
    EXPECT_EQ(device.run(false, &told), device.run_host());
    static_cast<void>(device.run_host(&expected));
    EXPECT_EQ(told, expected);
    told_of += !told.empty();
  }
  EXPECT_GT(told_of, testing::sanitized() ? 2 : 30);
}

TEST_F(CudaFloatConv, RefusalsByName) {
  Random random(35);
  RandomMatrix form{.rows = 16, .columns = 16, .group = 16, .ordinary = true};
  const LowBitMatrix weights = *random_matrix(random, form);
  const ConvShape shape{.channels = 16, .outputs = 16};
  const auto begins = [](const std::string& text, const std::string& with) {
    EXPECT_EQ(text.substr(0, with.size()), with);
  };
  begins(DeviceConv::create(shape, weights, {.path = CpuPath::kReference}, "conv").status().message(),
         "conv: path is reference, must be empty for a layer on a device");
  begins(DeviceConv::create({.channels = 0}, weights, {}, "conv").status().message(), "conv: channels is 0");
  begins(DeviceConv::create({.channels = 8, .outputs = 16}, weights, {}, "conv").status().message(),
         "conv: weights are [16, 16], must be [16, 8]");
  EXPECT_FALSE(DeviceConv::create(shape, weights, {}, "conv", 1 << 20).ok());
  const DeviceConv layer = *DeviceConv::create(shape, weights, {.activations = ConvActivations::kInt8}, "conv");
  GuardedDeviceBuffer x(12 * 16 * 4), y(12 * 16 * 4), workspace(*layer.workspace_bytes(1, {3, 4}));
  const auto told = [&](std::span<std::byte> from, std::span<std::byte> to, int64_t images, std::span<std::byte> memory,
                        const RunOptions& options) {
    return layer.forward(from, Dtype::kF32, to, Dtype::kF32, images, {3, 4}, memory, options).message();
  };
  begins(told(x.bytes(), y.bytes(), -1, workspace.bytes(), {}), "conv: images is -1, must be at least 0");
  begins(told(x.bytes().first(764), y.bytes(), 1, workspace.bytes(), {}), "x has 764 bytes, must have at least 768");
  std::vector<std::byte> host(12 * 16 * 4);
  begins(told(host, y.bytes(), 1, workspace.bytes(), {}), "x is host memory");
  begins(told(x.bytes(), y.bytes(), 1, workspace.bytes().first(128), {}), "workspace has 128 bytes, must have ");
  begins(told(x.bytes(), x.bytes(), 1, workspace.bytes(), {}), "y overlaps x");
  begins(told(x.bytes(), y.bytes(), 1, workspace.bytes(), {.kernel = "direct"}), "options.kernel is set");
  EXPECT_EQ(layer.forward(x.bytes(), Dtype::kF32, y.bytes(), Dtype::kS8, 1, {3, 4}, workspace.bytes()).code(),
            StatusCode::kUnsupported);
}

}  // namespace
}  // namespace isobit::cuda
