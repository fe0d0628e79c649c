// SPDX-License-Identifier: Apache-2.0
// The functions of libisobit.so for CUDA devices: the bytes of those for the host. Refusals without a device:
// c_api_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "core/random.h"
#include "isobit/isobit.h"
#include "testing/cuda_buffer.h"

namespace isobit {
namespace {

using testing::GuardedDeviceBuffer;
using testing::Stream;

#define ASSERT_DONE(call) ASSERT_EQ(call, ISOBIT_OK) << isobit_last_error()

constexpr int64_t kRows = 21, kN = 70, kK = 160, kXStride = 168, kYStride = 73;

class CDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    ISOBIT_NEEDS_CUDA_DEVICE();
    const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    ASSERT_EQ(setenv("ISOBIT_CUDA_LIBRARY", (folder / "libisobit_cuda.so").c_str(), 1), 0);
  }
  void TearDown() override {
    isobit_device_conv_destroy(device_conv_);
    isobit_conv_destroy(conv_);
    isobit_device_static_conv_destroy(device_static_conv_);
    isobit_static_conv_destroy(static_conv_);
    isobit_device_linear_destroy(device_layer_);
    isobit_linear_destroy(layer_);
    isobit_static_linear_destroy(static_layer_);
    isobit_linear_workspace_destroy(on_host_);
    isobit_low_bit_destroy(matrix_);
  }
  void quantize(int64_t group, int64_t n = kN, int64_t k = kK) {
    Random random(3);
    std::vector<float> weights(static_cast<size_t>(n * k));
    for (float& w : weights) w = static_cast<float>(random.between(-1000, 1000)) * 0x1p-10f;
    isobit_low_bit_options options{};
    options.struct_size = sizeof options;
    options.bits = 4;
    options.group = group;
    options.scale_dtype = ISOBIT_F32;
    ASSERT_DONE(isobit_low_bit_quantize(weights.data(), ISOBIT_F32, n * k, n, k, &options, nullptr, &matrix_));
  }
  /// A run of the layer on the device; `y` is what the memory holds then.
  template <typename X, typename Y>
  void run_on_device(const std::vector<X>& x, int32_t x_dtype, int32_t y_dtype, std::vector<Y>& y, int32_t checked) {
    int64_t bytes = 0;
    ASSERT_DONE(isobit_device_linear_workspace_bytes(device_layer_, kRows, &bytes));
    GuardedDeviceBuffer x_d(static_cast<int64_t>(x.size() * sizeof(X))),
        y_d(static_cast<int64_t>(y.size() * sizeof(Y))), workspace(bytes);
    x_d.write(x);
    const Stream stream;
    isobit_device_run_options options{};
    options.struct_size = sizeof options;
    options.x_stride = kXStride;
    options.y_stride = kYStride;
    options.stream = stream.stream;
    const auto run = [&](int64_t workspace_bytes) {
      return isobit_device_linear_forward(device_layer_, x_d.data(), x_dtype, static_cast<int64_t>(x.size()),
                                          y_d.data(), y_dtype, static_cast<int64_t>(y.size()), kRows, workspace.data(),
                                          workspace_bytes, &options);
    };
    ASSERT_DONE(run(bytes));
    ASSERT_EQ(isobit_device_linear_check_input(device_layer_, workspace.data(), bytes, kRows, stream.stream), checked)
        << isobit_last_error();
    y = y_d.read<Y>();
    told_ = isobit_last_error();
    ASSERT_EQ(run(256), ISOBIT_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(isobit_last_error()).find("workspace has 256 bytes"), 0u) << isobit_last_error();
  }

  isobit_low_bit* matrix_ = nullptr;
  isobit_linear* layer_ = nullptr;
  isobit_static_linear* static_layer_ = nullptr;
  isobit_linear_workspace* on_host_ = nullptr;
  isobit_device_linear* device_layer_ = nullptr;
  isobit_conv* conv_ = nullptr;
  isobit_device_conv* device_conv_ = nullptr;
  isobit_static_conv* static_conv_ = nullptr;
  isobit_device_static_conv* device_static_conv_ = nullptr;
  std::string told_;  // by the check of the last run's input
};

TEST_F(CDevice, LayersOnTheFlyGiveTheBytesOfTheHost) {
  quantize(32);
  Random random(5);
  std::vector<float> bias(kN), x(kRows * kXStride);
  for (float& b : bias) b = static_cast<float>(random.between(-100, 100)) * 0x1p-7f;
  for (float& value : x) value = static_cast<float>(random.between(-1000, 1000)) * 0x1p-9f;
  isobit_linear_options options{};
  options.struct_size = sizeof options;
  options.activations = ISOBIT_ACTIVATIONS_INT8;
  options.has_clamp = 1;
  options.clamp_lo = -1.0f;
  options.clamp_hi = 2.0f;
  options.bias = bias.data();
  options.bias_count = kN;
  ASSERT_DONE(isobit_linear_create(matrix_, &options, &layer_));
  ASSERT_DONE(isobit_linear_workspace_create(layer_, kRows, 1, &on_host_));
  constexpr uint16_t kBetween = GuardedDeviceBuffer::kCanary * 0x101;  // what the memory held before
  std::vector<uint16_t> expected(kRows * kYStride, kBetween), y(expected.size());
  isobit_linear_run_options run{};
  run.struct_size = sizeof run;
  run.x_stride = kXStride;
  run.y_stride = kYStride;
  ASSERT_DONE(isobit_linear_forward(layer_, x.data(), ISOBIT_F32, static_cast<int64_t>(x.size()), expected.data(),
                                    ISOBIT_F16, static_cast<int64_t>(expected.size()), kRows, on_host_, &run));
  ASSERT_DONE(isobit_device_linear_create(matrix_, &options, 0, &device_layer_));
  run_on_device(x, ISOBIT_F32, ISOBIT_F16, y, ISOBIT_OK);
  EXPECT_EQ(y, expected);

  x[9 * kXStride + 3] = std::numeric_limits<float>::infinity();
  run_on_device(x, ISOBIT_F32, ISOBIT_F16, y, ISOBIT_INVALID_ARGUMENT);
  EXPECT_EQ(told_.find("x[9] has a NaN"), 0u) << told_;
}

TEST_F(CDevice, LayersOfStaticCodesGiveTheBytesOfTheHost) {
  quantize(kK);
  isobit_static_linear_options options{};
  options.struct_size = sizeof options;
  options.input = {8, 1, ISOBIT_SCALE_POW2, 5, 0.0f, 0, 3};
  options.has_output = 1;
  options.output = {8, 0, ISOBIT_SCALE_POW2, 3, 0.0f, 0, 100};
  ASSERT_DONE(isobit_static_linear_create(matrix_, &options, &static_layer_));
  ASSERT_DONE(isobit_static_linear_workspace_create(static_layer_, kRows, 1, &on_host_));
  Random random(7);
  std::vector<int8_t> x(kRows * kXStride);
  for (int8_t& code : x) code = static_cast<int8_t>(random.between(-128, 127));
  std::vector<uint8_t> expected(kRows * kYStride, GuardedDeviceBuffer::kCanary), y(expected.size());
  isobit_linear_run_options run{};
  run.struct_size = sizeof run;
  run.x_stride = kXStride;
  run.y_stride = kYStride;
  ASSERT_DONE(isobit_static_linear_forward(static_layer_, x.data(), static_cast<int64_t>(x.size()), expected.data(),
                                           static_cast<int64_t>(expected.size()), kRows, on_host_, &run));
  ASSERT_DONE(isobit_device_linear_create_static(static_layer_, 0, &device_layer_));
  run_on_device(x, ISOBIT_S8, ISOBIT_U8, y, ISOBIT_OK);
  EXPECT_EQ(y, expected);
}

TEST_F(CDevice, ConvolutionsGiveTheBytesOfTheHost) {
  constexpr int64_t kImages = 2, kC = 6, kO = 9, kH = 7, kW = 8, kStrideOfX = 7, kStrideOfY = 11;
  quantize(3 * 3 * kC, kO, 3 * 3 * kC);
  isobit_conv_shape shape{};
  shape.struct_size = sizeof shape;
  shape.channels = kC;
  shape.outputs = kO;
  shape.rows = {3, 1, 1, 1, 1, 0};
  shape.columns = {3, 2, 1, 1, 0, 0};
  std::vector<float> bias(kO, 0.125f);
  isobit_linear_options options{};
  options.struct_size = sizeof options;
  options.activations = ISOBIT_ACTIVATIONS_INT8;
  options.has_clamp = 1;
  options.clamp_lo = -1.0f;
  options.clamp_hi = 2.0f;
  options.bias = bias.data();
  options.bias_count = kO;
  ASSERT_DONE(isobit_conv_create(matrix_, &shape, &options, &conv_));
  int64_t p = 0, q = 0, bytes = 0;
  ASSERT_DONE(isobit_conv_output_size(conv_, kH, kW, &p, &q));
  ASSERT_DONE(isobit_conv_workspace_create(conv_, kImages, kH, kW, 1, &on_host_));
  Random random(7);
  std::vector<float> x(kImages * kH * kW * kStrideOfX);
  for (float& value : x) value = static_cast<float>(random.between(-1000, 1000)) * 0x1p-9f;
  constexpr uint16_t kBetween = GuardedDeviceBuffer::kCanary * 0x101;  // what the memory held before
  std::vector<uint16_t> expected(static_cast<size_t>(kImages * p * q * kStrideOfY), kBetween);
  const auto x_count = static_cast<int64_t>(x.size()), y_count = static_cast<int64_t>(expected.size());
  isobit_linear_run_options run{};
  run.struct_size = sizeof run;
  run.x_stride = kStrideOfX;
  run.y_stride = kStrideOfY;
  const auto run_on_host = [&] {
    return isobit_conv_forward(conv_, x.data(), ISOBIT_F32, x_count, expected.data(), ISOBIT_F16, y_count, kImages, kH,
                               kW, on_host_, &run);
  };
  ASSERT_DONE(run_on_host());

  ASSERT_DONE(isobit_device_conv_create(matrix_, &shape, &options, 0, &device_conv_));
  ASSERT_DONE(isobit_device_conv_workspace_bytes(device_conv_, kImages, kH, kW, &bytes));
  GuardedDeviceBuffer x_d(4 * x_count), y_d(2 * y_count), workspace(bytes);
  x_d.write(x);
  const Stream stream;
  isobit_device_run_options there{};
  there.struct_size = sizeof there;
  there.x_stride = kStrideOfX;
  there.y_stride = kStrideOfY;
  there.stream = stream.stream;
  const auto run_there = [&](int64_t images, const void* from, int32_t y_dtype, int64_t workspace_bytes) {
    return isobit_device_conv_forward(device_conv_, from, ISOBIT_F32, x_count, y_d.data(), y_dtype, y_count, images, kH,
                                      kW, workspace.data(), workspace_bytes, &there);
  };
  const auto check = [&] {
    return isobit_device_conv_check_input(device_conv_, workspace.data(), bytes, kImages, kH, kW, stream.stream);
  };
  ASSERT_DONE(run_there(kImages, x_d.data(), ISOBIT_F16, bytes));
  ASSERT_DONE(check());
  EXPECT_EQ(y_d.read<uint16_t>(), expected);

  x[(kH * kW + 2 * kW + 5) * kStrideOfX + 4] = std::numeric_limits<float>::quiet_NaN();
  x_d.write(x);
  ASSERT_DONE(run_there(kImages, x_d.data(), ISOBIT_F16, bytes));
  ASSERT_EQ(check(), ISOBIT_INVALID_ARGUMENT);
  const std::string told = isobit_last_error();
  ASSERT_EQ(run_on_host(), ISOBIT_INVALID_ARGUMENT);
  EXPECT_EQ(told, isobit_last_error());
  EXPECT_EQ(told.find("x[1, 2, 5] has a NaN"), 0u) << told;

  const auto expect_refused = [&](int32_t status, const std::string& words, int32_t code = ISOBIT_INVALID_ARGUMENT) {
    EXPECT_EQ(status, code) << words;
    EXPECT_EQ(std::string(isobit_last_error()).find(words), 0u) << isobit_last_error();
  };
  expect_refused(run_there(kImages, x_d.data(), ISOBIT_F16, 0), "workspace has 0 bytes");
  expect_refused(run_there(-1, x_d.data(), ISOBIT_F16, bytes), "images is -1, must be 0..2147483647");
  expect_refused(run_there(kImages, x.data(), ISOBIT_F16, bytes), "x ");  // memory of the host
  expect_refused(run_there(kImages, x_d.data(), ISOBIT_S8, bytes), "y is of type s8", ISOBIT_UNSUPPORTED);
  expect_refused(isobit_device_conv_workspace_bytes(device_conv_, 1, 0, kW, &bytes), "layer: ");
  there.reserved = 1;
  expect_refused(run_there(kImages, x_d.data(), ISOBIT_F16, bytes), "options->reserved is 1, must be 0..0");
}

TEST_F(CDevice, ConvolutionsOfCodesGiveTheBytesOfTheHost) {
  constexpr int64_t kImages = 2, kC = 6, kO = 9, kH = 7, kW = 8, kStrideOfX = 7, kStrideOfY = 11;
  quantize(3 * 3 * kC, kO, 3 * 3 * kC);
  isobit_conv_shape shape{};
  shape.struct_size = sizeof shape;
  shape.channels = kC;
  shape.outputs = kO;
  shape.rows = {3, 1, 1, 1, 1, 0};
  shape.columns = {3, 2, 1, 1, 0, 0};
  isobit_static_linear_options options{};
  options.struct_size = sizeof options;
  options.input = {12, 1, ISOBIT_SCALE_POW2, 9, 0.0f, 0, 3};
  options.has_output = 1;
  options.output = {8, 0, ISOBIT_SCALE_POW2, 3, 0.0f, 0, 100};
  const isobit_grid residual = {8, 1, ISOBIT_SCALE_POW2, 4, 0.0f, 0, -7};
  ASSERT_DONE(isobit_static_conv_create(matrix_, &shape, &options, &residual, &static_conv_));
  int64_t p = 0, q = 0, bytes = 0;
  ASSERT_DONE(isobit_static_conv_output_size(static_conv_, kH, kW, &p, &q));
  ASSERT_DONE(isobit_static_conv_workspace_create(static_conv_, kImages, kH, kW, 1, &on_host_));
  Random random(7);
  std::vector<int16_t> x(kImages * kH * kW * kStrideOfX);
  for (int16_t& code : x) code = static_cast<int16_t>(random.between(-2048, 2047));
  std::vector<int8_t> added(static_cast<size_t>(kImages * p * q * kStrideOfY));
  for (int8_t& code : added) code = static_cast<int8_t>(random.between(-128, 127));
  const auto x_count = static_cast<int64_t>(x.size()), y_count = static_cast<int64_t>(added.size());
  std::vector<uint8_t> expected(added.size(), GuardedDeviceBuffer::kCanary);
  isobit_linear_run_options run{};
  run.struct_size = sizeof run;
  run.x_stride = kStrideOfX;
  run.y_stride = kStrideOfY;
  const auto run_on_host = [&] {
    return isobit_static_conv_forward(static_conv_, x.data(), x_count, expected.data(), y_count, kImages, kH, kW,
                                      on_host_, added.data(), y_count, &run);
  };
  ASSERT_DONE(run_on_host());

  ASSERT_DONE(isobit_device_static_conv_create(static_conv_, 0, &device_static_conv_));
  ASSERT_DONE(isobit_device_static_conv_workspace_bytes(device_static_conv_, kImages, kH, kW, &bytes));
  GuardedDeviceBuffer x_d(2 * x_count), y_d(y_count), added_d(y_count), workspace(bytes);
  x_d.write(x);
  added_d.write(added);
  const Stream stream;
  isobit_device_run_options there{};
  there.struct_size = sizeof there;
  there.x_stride = kStrideOfX;
  there.y_stride = kStrideOfY;
  there.stream = stream.stream;
  const auto run_there = [&](int64_t images, const void* from, const void* adding, int64_t workspace_bytes) {
    return isobit_device_static_conv_forward(device_static_conv_, from, x_count, y_d.data(), y_count, images, kH, kW,
                                             workspace.data(), workspace_bytes, adding, adding == nullptr ? 0 : y_count,
                                             &there);
  };
  const auto check = [&] {
    return isobit_device_static_conv_check_input(device_static_conv_, workspace.data(), bytes, stream.stream);
  };
  ASSERT_DONE(run_there(kImages, x_d.data(), added_d.data(), bytes));
  ASSERT_DONE(check());
  EXPECT_EQ(y_d.read<uint8_t>(), expected);

  x[(2 * kW + 5) * kStrideOfX + 4] = 2048;
  x_d.write(x);
  ASSERT_DONE(run_there(kImages, x_d.data(), added_d.data(), bytes));
  ASSERT_EQ(check(), ISOBIT_INVALID_ARGUMENT);
  const std::string told = isobit_last_error();
  ASSERT_EQ(run_on_host(), ISOBIT_INVALID_ARGUMENT);
  EXPECT_EQ(told, isobit_last_error());

  const auto expect_refused = [&](int32_t status, const std::string& words) {
    EXPECT_EQ(status, ISOBIT_INVALID_ARGUMENT) << words;
    EXPECT_EQ(std::string(isobit_last_error()).find(words), 0u) << isobit_last_error();
  };
  expect_refused(run_there(kImages, x_d.data(), added_d.data(), 0), "workspace has 0 bytes");
  expect_refused(run_there(kImages, x_d.data(), nullptr, bytes), "layer: residual has 0 bytes");
  expect_refused(run_there(-1, x_d.data(), added_d.data(), bytes), "images is -1, must be 0..2147483647");
  expect_refused(run_there(kImages, x.data(), added_d.data(), bytes), "x ");         // memory of the host
  expect_refused(run_there(kImages, x_d.data(), added.data(), bytes), "residual ");  // as well
  expect_refused(isobit_device_static_conv_workspace_bytes(device_static_conv_, 1, 0, kW, &bytes), "layer: ");
  there.reserved = 1;
  expect_refused(run_there(kImages, x_d.data(), added_d.data(), bytes), "options->reserved is 1, must be 0..0");
}

TEST_F(CDevice, RefusalsByName) {
  quantize(kK);
  ASSERT_EQ(isobit_device_linear_create(matrix_, nullptr, 1 << 20, &device_layer_), ISOBIT_FAILED_PRECONDITION);
  EXPECT_EQ(device_layer_, nullptr);
  EXPECT_EQ(std::string(isobit_last_error()).find("device 1048576: "), 0u) << isobit_last_error();
  ASSERT_DONE(isobit_device_linear_create(matrix_, nullptr, 0, &device_layer_));
  std::vector<float> x(kK), y(kN);
  int64_t bytes = 0;
  ASSERT_DONE(isobit_device_linear_workspace_bytes(device_layer_, 1, &bytes));
  const GuardedDeviceBuffer workspace(bytes);
  ASSERT_EQ(isobit_device_linear_forward(device_layer_, x.data(), ISOBIT_F32, kK, y.data(), ISOBIT_F32, kN, 1,
                                         workspace.data(), bytes, nullptr),
            ISOBIT_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(isobit_last_error()).find("x "), 0u) << isobit_last_error();  // memory of the host
}

}  // namespace
}  // namespace isobit
