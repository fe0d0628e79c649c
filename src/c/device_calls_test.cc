// SPDX-License-Identifier: Apache-2.0
// What the functions of libisobit.so for CUDA devices hand on to libisobit_cuda.so, without a device:
// src/cuda/recorder.cc takes its place.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "c/api_test.h"
#include "core/random.h"
#include "isobit/isobit.h"

namespace isobit {
namespace {

using StaticConv = Owned<isobit_static_conv, isobit_static_conv_destroy>;
using DeviceConv = Owned<isobit_device_conv, isobit_device_conv_destroy>;
using DeviceStaticConv = Owned<isobit_device_static_conv, isobit_device_static_conv_destroy>;

constexpr int64_t kC = 3, kO = 4;

void quantize(int64_t rows, int64_t columns, Matrix& matrix) {
  Random random(3);
  const std::vector<float> weights = random_floats(random, rows * columns);
  auto low_bit = sized<isobit_low_bit_options>();
  low_bit.bits = 8;
  low_bit.group = columns;
  low_bit.scale_dtype = ISOBIT_F32;
  ASSERT_DONE(isobit_low_bit_quantize(weights.data(), ISOBIT_F32, rows * columns, rows, columns, &low_bit, nullptr,
                                      matrix.out()));
}

/// 1 x 1; x of 12 bits in 16, y of 8, a residual of 16.
void make(bool adds, StaticConv& layer) {
  Matrix matrix;
  quantize(kO, kC, matrix);
  auto shape = sized<isobit_conv_shape>();
  shape.channels = kC;
  shape.outputs = kO;
  auto options = sized<isobit_static_linear_options>();
  options.input = {12, 1, ISOBIT_SCALE_POW2, 9, 0.0f, 0, 3};
  options.has_output = 1;
  options.output = {8, 0, ISOBIT_SCALE_POW2, 3, 0.0f, 0, 100};
  const isobit_grid residual = {16, 1, ISOBIT_SCALE_POW2, 9, 0.0f, 0, 0};
  ASSERT_DONE(isobit_static_conv_create(matrix, &shape, &options, adds ? &residual : nullptr, layer.out()));
}

class DeviceCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("ISOBIT_CUDA_LIBRARY", ISOBIT_CUDA_RECORDER, 1), 0);
    void* const library = dlopen(ISOBIT_CUDA_RECORDER, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    told_ = reinterpret_cast<const char* (*)()>(dlsym(library, "isobit_cuda_told"));
    ASSERT_NE(told_, nullptr) << dlerror();
    told_();
  }
  void expect_told(const std::string& lines) { EXPECT_EQ(told_(), lines); }

  const char* (*told_)() = nullptr;
};

std::string line(const std::string& function, std::initializer_list<int64_t> values) {
  std::string text = function;
  for (const int64_t value : values) text += " " + std::to_string(value);
  return text + "\n";
}
int64_t number_of(const void* address) { return reinterpret_cast<intptr_t>(address); }
int64_t bits_of(float value) { return std::bit_cast<int32_t>(value); }

TEST_F(DeviceCalls, StaticConvolutions) {
  StaticConv host;
  make(true, host);
  DeviceStaticConv layer;
  ASSERT_DONE(isobit_device_static_conv_create(host, 2, layer.out()));
  host.out();  // ends it: the layer on the device does not need it
  expect_told(line("conv_create_static", {1, 2}));
  int64_t bytes = 0;
  ASSERT_DONE(isobit_device_static_conv_workspace_bytes(layer, 2, 5, 6, &bytes));
  EXPECT_EQ(bytes, 768);
  expect_told(line("conv_workspace_bytes", {2, 2, 5, 6}));

  // Never read: the recorder computes nothing.
  std::vector<int16_t> x(180), residual(240);
  std::vector<uint8_t> y(240), workspace(768);
  auto options = sized<isobit_device_run_options>();
  options.x_stride = 3;
  options.y_stride = 9;
  options.stream = &options;
  ASSERT_DONE(isobit_device_static_conv_forward(layer, x.data(), 180, y.data(), 239, 2, 5, 6, workspace.data(), 767,
                                                residual.data(), 238, &options));
  expect_told(
      line("conv_run", {2, number_of(x.data()), 360, number_of(y.data()), 239, number_of(residual.data()), 476,
                        number_of(workspace.data()), 767, 2, 5, 6, 3, 9, number_of(&options), ISOBIT_S16, ISOBIT_U8}));
  ASSERT_DONE(
      isobit_device_static_conv_forward(layer, nullptr, 0, nullptr, 0, 0, 5, 6, nullptr, 0, nullptr, 0, nullptr));
  expect_told(line("conv_run", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6, 0, 0, 0, ISOBIT_S16, ISOBIT_U8}));
  refused(isobit_device_static_conv_check_input(layer, workspace.data(), 767, &options), "refused by the recorder");
  expect_told(line("conv_check_input", {2, number_of(workspace.data()), 767, 0, 1, 1, number_of(&options)}));
  layer.out();
  expect_told(line("conv_destroy", {2}));
}

TEST_F(DeviceCalls, WhatTheLibraryRefuses) {
  StaticConv host;
  make(false, host);
  isobit_device_static_conv* none = nullptr;
  refused(isobit_device_static_conv_create(host, -1, &none), "refused by the recorder");
  EXPECT_EQ(none, nullptr);
  DeviceStaticConv layer;
  ASSERT_DONE(isobit_device_static_conv_create(host, 0, layer.out()));
  int64_t bytes = -9;
  refused(isobit_device_static_conv_workspace_bytes(layer, 2, 0, 6, &bytes), "refused by the recorder");
  EXPECT_EQ(bytes, -9);
  refused(isobit_device_static_conv_forward(layer, nullptr, 0, nullptr, 0, 0, 0, 6, nullptr, 0, nullptr, 0, nullptr),
          "refused by the recorder");
}

TEST_F(DeviceCalls, StaticConvolutionsAreRefusedAtTheDoor) {
  StaticConv host;
  make(true, host);
  DeviceStaticConv layer;
  ASSERT_DONE(isobit_device_static_conv_create(host, 0, layer.out()));
  told_();
  std::vector<int16_t> x(180), residual(240);
  std::vector<uint8_t> y(240), workspace(768);
  struct Call {
    const void* x;
    int64_t x_count;
    void* y;
    int64_t y_count, images;
    void* workspace;
    int64_t workspace_bytes;
    const void* residual;
    int64_t residual_count;
    isobit_device_run_options options;
  };
  const auto forward = [&](auto&& change) {
    return [&, change] {
      Call c{x.data(),         180, y.data(),        240, 2,
             workspace.data(), 768, residual.data(), 240, sized<isobit_device_run_options>()};
      change(c);
      return isobit_device_static_conv_forward(layer, c.x, c.x_count, c.y, c.y_count, c.images, 5, 6, c.workspace,
                                               c.workspace_bytes, c.residual, c.residual_count, &c.options);
    };
  };
  const auto* const odd = reinterpret_cast<const char*>(x.data()) + 1;
  int64_t bytes = -9;
  expect_refusals({
      {"images is -1, must be 0..2147483647", forward([](Call& c) { c.images = -1; })},
      {"x is NULL, but has 180 elements", forward([](Call& c) { c.x = nullptr; })},
      {"x is at address " + address_text(odd) + ", must be a multiple of 2", forward([&](Call& c) { c.x = odd; })},
      {"y is NULL, but has 240 elements", forward([](Call& c) { c.y = nullptr; })},
      {"y has -1 elements, must have 0..576460752303423487", forward([](Call& c) { c.y_count = -1; })},
      {"residual is NULL, but has 240 elements", forward([](Call& c) { c.residual = nullptr; })},
      {"workspace is NULL, but has 768 elements", forward([](Call& c) { c.workspace = nullptr; })},
      {too_small<isobit_device_run_options>("options"),
       forward([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"options->reserved is 1, must be 0..0", forward([](Call& c) { c.options.reserved = 1; })},
      {"images is -2, must be 0..2147483647",
       [&] { return isobit_device_static_conv_workspace_bytes(layer, -2, 5, 6, &bytes); }},
      {"bytes is NULL", [&] { return isobit_device_static_conv_workspace_bytes(layer, 2, 5, 6, nullptr); }},
      {"workspace is NULL, but has 768 elements",
       [&] { return isobit_device_static_conv_check_input(layer, nullptr, 768, nullptr); }},
  });
  EXPECT_EQ(bytes, -9);
  expect_told("");
}

TEST_F(DeviceCalls, Convolutions) {
  Matrix matrix;
  quantize(8 * 2 * 3, 2, matrix);
  auto shape = sized<isobit_conv_shape>();
  shape.channels = 4;
  shape.outputs = 8;
  shape.groups = 2;
  shape.transposed = 1;
  shape.rows = {2, 2, 3, 4, 5, 1};
  shape.columns = {3, 0, 0, 1, 2, 0};
  auto options = sized<isobit_linear_options>();
  options.activations = ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC;
  options.has_clamp = 1;
  options.clamp_lo = -1.5f;
  options.clamp_hi = 6.0f;
  std::vector<float> bias(8);
  bias[7] = 0.25f;
  options.bias = bias.data();
  options.bias_count = 8;
  DeviceConv layer;
  ASSERT_DONE(isobit_device_conv_create(matrix, &shape, &options, 2, layer.out()));
  matrix.out();  // ends it
  expect_told(line("conv_create layer", {1, 2, 4, 8, 2, 1}) + line("axis", {2, 2, 3, 4, 5, 1}) +
              line("axis", {3, 1, 1, 1, 2, 0}) +
              line("options", {2, bits_of(-1.5f), bits_of(6.0f), 8, bits_of(0.25f)}));
  int64_t bytes = 0;
  ASSERT_DONE(isobit_device_conv_workspace_bytes(layer, 2, 5, 6, &bytes));
  EXPECT_EQ(bytes, 768);
  expect_told(line("conv_workspace_bytes", {2, 2, 5, 6}));

  // Never read: the recorder computes nothing, and knows no sizes.
  std::vector<double> x(240);
  std::vector<uint16_t> y(480);
  std::vector<uint8_t> workspace(768);
  auto run = sized<isobit_device_run_options>();
  run.x_stride = 5;
  run.y_stride = 9;
  run.stream = &run;
  ASSERT_DONE(isobit_device_conv_forward(layer, x.data(), ISOBIT_F64, 239, y.data(), ISOBIT_BF16, 479, 2, 5, 6,
                                         workspace.data(), 767, &run));
  expect_told(
      line("conv_run", {2, number_of(x.data()), 239 * 8, number_of(y.data()), 479 * 2, 0, 0,
                        number_of(workspace.data()), 767, 2, 5, 6, 5, 9, number_of(&run), ISOBIT_F64, ISOBIT_BF16}));
  ASSERT_DONE(
      isobit_device_conv_forward(layer, nullptr, ISOBIT_F32, 0, nullptr, ISOBIT_F16, 0, 0, 5, 6, nullptr, 0, nullptr));
  expect_told(line("conv_run", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6, 0, 0, 0, ISOBIT_F32, ISOBIT_F16}));
  refused(isobit_device_conv_check_input(layer, workspace.data(), 767, 2, 5, 6, &run), "refused by the recorder");
  expect_told(line("conv_check_input", {2, number_of(workspace.data()), 767, 2, 5, 6, number_of(&run)}));
  refused(isobit_device_conv_workspace_bytes(layer, 2, 0, 6, &bytes), "refused by the recorder");
  EXPECT_EQ(bytes, 768);
  refused(
      isobit_device_conv_forward(layer, nullptr, ISOBIT_F32, 0, nullptr, ISOBIT_F32, 0, 0, 0, 6, nullptr, 0, nullptr),
      "refused by the recorder");
  told_();
  layer.out();
  expect_told(line("conv_destroy", {2}));
}

TEST_F(DeviceCalls, ConvolutionsWithoutOptions) {
  Matrix matrix;
  quantize(kO, kC, matrix);
  auto shape = sized<isobit_conv_shape>();
  shape.channels = kC;
  shape.outputs = kO;
  isobit_device_conv* none = nullptr;
  refused(isobit_device_conv_create(matrix, &shape, nullptr, -1, &none), "refused by the recorder");
  EXPECT_EQ(none, nullptr);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::string nothing = line("axis", {1, 1, 1, 0, 0, 0});
  expect_told(line("conv_create layer", {1, -1, kC, kO, 1, 0}) + nothing + nothing +
              line("options", {0, bits_of(-kInfinity), bits_of(kInfinity), 0, 0}));
}

TEST_F(DeviceCalls, ConvolutionsAreRefusedAtTheDoor) {
  Matrix matrix;
  quantize(kO, kC, matrix);
  auto shape = sized<isobit_conv_shape>();
  shape.channels = kC;
  shape.outputs = kO;
  DeviceConv layer;
  ASSERT_DONE(isobit_device_conv_create(matrix, &shape, nullptr, 0, layer.out()));
  told_();
  std::vector<float> x(180), y(240);
  std::vector<uint8_t> workspace(768);
  struct Call {
    const void* x;
    int32_t x_dtype;
    int64_t x_count;
    void* y;
    int32_t y_dtype;
    int64_t y_count, images;
    void* workspace;
    int64_t workspace_bytes;
    isobit_device_run_options options;
  };
  const auto forward = [&](auto&& change) {
    return [&, change] {
      Call c{x.data(),   ISOBIT_F32,
             180,        y.data(),
             ISOBIT_F32, 240,
             2,          workspace.data(),
             768,        sized<isobit_device_run_options>()};
      change(c);
      return isobit_device_conv_forward(layer, c.x, c.x_dtype, c.x_count, c.y, c.y_dtype, c.y_count, c.images, 5, 6,
                                        c.workspace, c.workspace_bytes, &c.options);
    };
  };
  const auto* const odd = reinterpret_cast<const char*>(x.data()) + 2;
  int64_t bytes = -9;
  expect_refusals({
      {"images is -1, must be 0..2147483647", forward([](Call& c) { c.images = -1; })},
      {"x_dtype is -1, must be 0..10", forward([](Call& c) { c.x_dtype = -1; })},
      {"y_dtype is 99, must be 0..10", forward([](Call& c) { c.y_dtype = 99; })},
      {"x is NULL, but has 180 elements", forward([](Call& c) { c.x = nullptr; })},
      {"x is at address " + address_text(odd) + ", must be a multiple of 4", forward([&](Call& c) { c.x = odd; })},
      {"y is NULL, but has 240 elements", forward([](Call& c) { c.y = nullptr; })},
      {"y has -1 elements, must have 0..576460752303423487", forward([](Call& c) { c.y_count = -1; })},
      {"workspace is NULL, but has 768 elements", forward([](Call& c) { c.workspace = nullptr; })},
      {too_small<isobit_device_run_options>("options"),
       forward([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"options->reserved is 1, must be 0..0", forward([](Call& c) { c.options.reserved = 1; })},
      {"images is -2, must be 0..2147483647",
       [&] { return isobit_device_conv_workspace_bytes(layer, -2, 5, 6, &bytes); }},
      {"bytes is NULL", [&] { return isobit_device_conv_workspace_bytes(layer, 2, 5, 6, nullptr); }},
      {"workspace is NULL, but has 768 elements",
       [&] { return isobit_device_conv_check_input(layer, nullptr, 768, 2, 5, 6, nullptr); }},
      {"images is -3, must be 0..2147483647",
       [&] { return isobit_device_conv_check_input(layer, workspace.data(), 768, -3, 5, 6, nullptr); }},
  });
  EXPECT_EQ(bytes, -9);
  expect_told("");
}

}  // namespace
}  // namespace isobit
