// SPDX-License-Identifier: Apache-2.0
// Convolutions and pools of libisobit.so against the C++ library that the test itself has inside: the same bytes, and
// refusals by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c/api_test.h"
#include "core/codes.h"
#include "core/random.h"
#include "io/test_files.h"
#include "isobit/conv.h"
#include "isobit/isobit.h"
#include "isobit/low_bit.h"
#include "testing/allocations.h"

namespace isobit {
namespace {

using Conv = Owned<isobit_conv, isobit_conv_destroy>;
using StaticConv = Owned<isobit_static_conv, isobit_static_conv_destroy>;
using Stream = Owned<isobit_static_conv_stream, isobit_static_conv_stream_destroy>;
using StreamState = Owned<isobit_static_conv_state, isobit_static_conv_state_destroy>;
using PoolLayer = Owned<isobit_static_pool, isobit_static_pool_destroy>;
using Bytes = std::vector<std::byte>;

Bytes random_codes(Random& random, int64_t count, const Grid& grid) {
  Bytes codes(static_cast<size_t>(count) * size_in_bytes(grid.dtype()));
  for (int64_t i = 0; i < count; ++i) store_code(codes.data(), grid.dtype(), i, random.between(grid.min(), grid.max()));
  return codes;
}

isobit_grid grid_of(const Grid& grid) {
  return {grid.bits,
          grid.is_signed ? 1 : 0,
          static_cast<int32_t>(grid.kind),
          grid.shift,
          grid.kind == ScaleKind::kReal ? grid.real_scale : 0.0f,
          0,
          grid.zero_point};
}

/// Zero where that is the default.
isobit_conv_axis axis_of(const ConvAxis& axis) {
  const auto zero_for_one = [](int64_t value) { return value == 1 ? 0 : value; };
  return {zero_for_one(axis.kernel),
          zero_for_one(axis.stride),
          zero_for_one(axis.dilation),
          axis.pad_before,
          axis.pad_after,
          axis.more};
}

isobit_conv_shape shape_of(const ConvShape& in) {
  auto shape = sized<isobit_conv_shape>();
  shape.transposed = in.transposed ? 1 : 0;
  shape.channels = in.channels;
  shape.outputs = in.outputs;
  shape.groups = in.groups == 1 ? 0 : in.groups;
  shape.rows = axis_of(in.rows);
  shape.columns = axis_of(in.columns);
  return shape;
}

void expect_axis(const isobit_conv_axis& axis, const ConvAxis& expected) {
  EXPECT_EQ(axis.kernel, expected.kernel);
  EXPECT_EQ(axis.stride, expected.stride);
  EXPECT_EQ(axis.dilation, expected.dilation);
  EXPECT_EQ(axis.pad_before, expected.pad_before);
  EXPECT_EQ(axis.pad_after, expected.pad_after);
  EXPECT_EQ(axis.more, expected.more);
}

void expect_grid(const isobit_grid& grid, const Grid& expected) {
  EXPECT_EQ(grid.bits, expected.bits);
  EXPECT_EQ(grid.is_signed, expected.is_signed ? 1 : 0);
  EXPECT_EQ(grid.scale_kind, static_cast<int32_t>(expected.kind));
  EXPECT_EQ(grid.shift, expected.shift);
  EXPECT_EQ(grid.real_scale, expected.real_scale);
  EXPECT_EQ(grid.zero_point, expected.zero_point);
}

/// Of either kind of layer.
template <typename Info>
void expect_shape(const Info& info, const ConvShape& expected) {
  EXPECT_EQ(info.transposed, expected.transposed ? 1 : 0);
  EXPECT_EQ(info.channels, expected.channels);
  EXPECT_EQ(info.outputs, expected.outputs);
  EXPECT_EQ(info.groups, expected.groups);
  expect_axis(info.rows, expected.rows);
  expect_axis(info.columns, expected.columns);
}

/// Random weights [rows, columns], in C as well.
LowBitMatrix random_weights(Random& random, int64_t rows, int64_t columns, const LowBitOptions& how, Matrix& in_c) {
  const std::vector<float> weights = random_floats(random, rows * columns);
  auto options = sized<isobit_low_bit_options>();
  options.bits = how.bits;
  options.group = how.group;
  options.kind = static_cast<int32_t>(how.kind);
  options.method = static_cast<int32_t>(how.method);
  options.scale_dtype = static_cast<int32_t>(how.scales);
  EXPECT_DONE(isobit_low_bit_quantize(weights.data(), ISOBIT_F32, rows * columns, rows, columns, &options, nullptr,
                                      in_c.out()));
  Result<LowBitMatrix> quantized = quantize_low_bit(Array::copy_of(weights.data(), {rows, columns}), how, "w");
  EXPECT_TRUE(quantized.ok()) << quantized.status().message();
  return *std::move(quantized);
}

constexpr Grid kX{.bits = 8, .is_signed = true, .shift = 5, .zero_point = 3};
constexpr Grid kWideX{.bits = 12, .is_signed = true, .shift = 9, .zero_point = -30};
constexpr Grid kY{.bits = 8, .is_signed = false, .kind = ScaleKind::kReal, .real_scale = 0.11f, .zero_point = 100};
constexpr Grid kWideY{.bits = 16, .is_signed = true, .kind = ScaleKind::kReal, .real_scale = 0.002f, .zero_point = 0};
constexpr Grid kAdded{.bits = 8, .is_signed = true, .shift = 4, .zero_point = -7};

struct How {
  ConvShape shape;
  ImageSize image;
  Grid input = kX;
  std::optional<Grid> output = kY;
  std::optional<Grid> residual{};
  int32_t weight_bits = 8;
};

/// What C takes to make a layer, and the layer in C++.
struct Made {
  explicit Made(const How& how) : shape(shape_of(how.shape)), options(sized<isobit_static_linear_options>()) {
    Random random(11);
    const int64_t outputs = how.shape.outputs, depth = how.shape.depth();
    const LowBitMatrix weights =
        random_weights(random, outputs, depth, {.bits = how.weight_bits, .group = depth}, matrix);
    bias = random_floats(random, outputs);
    options.input = grid_of(how.input);
    options.bias = bias.data();
    options.bias_count = outputs;
    if (how.output) {
      options.has_output = options.has_clamp = 1;
      options.output = grid_of(*how.output);
      options.clamp_lo = -9.0f;
      options.clamp_hi = 20.0f;
    }
    if (how.residual) residual = grid_of(*how.residual);

    StaticLinearOptions derive{.input = how.input, .output = how.output, .bias = bias};
    if (how.output) derive.clamp = {-9.0f, 20.0f};
    parameters.shape = how.shape;
    const Result<StaticLinearParameters> linear = derive_static_linear(weights, derive, "conv");
    EXPECT_TRUE(linear.ok()) << linear.status().message();
    parameters.linear = *linear;
    if (how.residual) parameters.residual = *derive_static_residual(*how.residual, *how.output, "conv");
    const Result<StaticConvLayer> made = StaticConvLayer::create(parameters, "conv");
    EXPECT_TRUE(made.ok()) << made.status().message();
    layer = *made;
  }
  [[nodiscard]] int32_t create(isobit_static_conv** out) const {
    return isobit_static_conv_create(matrix, &shape, &options, residual ? &*residual : nullptr, out);
  }

  isobit_conv_shape shape;
  isobit_static_linear_options options;
  std::optional<isobit_grid> residual{};
  Matrix matrix;
  std::vector<float> bias;
  StaticConvParameters parameters;
  std::optional<StaticConvLayer> layer;
};

/// Memory for a number of rows, some elements apart.
int64_t elements(int64_t rows, int64_t stride, int64_t columns) { return (rows - 1) * stride + columns; }
int64_t size_of(const Grid& grid) { return static_cast<int64_t>(size_in_bytes(grid.dtype())); }

const How kLayers[] = {
    {{.channels = 5,
      .outputs = 7,
      .rows = {.kernel = 3, .stride = 2, .pad_before = 1, .pad_after = 2},
      .columns = {.kernel = 2, .dilation = 3, .pad_before = 3}},
     {9, 8}},
    {{.channels = 8, .outputs = 6, .groups = 2, .rows = {.kernel = 3}, .columns = {.kernel = 3}},
     {6, 5},
     kWideX,
     kWideY,
     kAdded,
     4},
    {{.channels = 6,
      .outputs = 12,
      .groups = 6,
      .rows = {.kernel = 3, .pad_before = 1, .pad_after = 1},
      .columns = {.kernel = 3, .pad_before = 1, .pad_after = 1}},
     {7, 7},
     kX,
     kY,
     kY},
    {{.channels = 4,
      .outputs = 5,
      .rows = {.kernel = 3, .stride = 2, .pad_before = 1, .more = 1},
      .columns = {.kernel = 2, .stride = 3, .more = 2},
      .transposed = true},
     {4, 3},
     kX,
     std::nullopt},
    {{.channels = 16, .outputs = 9}, {1, 30}, kX, kY, kAdded, 1},
};

TEST(ConvApi, ConvolutionsAreTheLibrarys) {
  constexpr int64_t kImages = 2;
  Pool pool;
  ASSERT_DONE(isobit_pool_create(2, pool.out()));
  for (const How& how : kLayers) {
    SCOPED_TRACE("layer " + std::to_string(&how - kLayers));
    Made made(how);
    const ConvShape& shape = how.shape;
    const StaticLinearParameters& linear = made.parameters.linear;
    const ImageSize size = *conv_output_size(shape, how.image, "conv");
    const int64_t x_stride = shape.channels + 2, y_stride = shape.outputs + 1;
    const int64_t x_count = elements(kImages * how.image.rows * how.image.columns, x_stride, shape.channels);
    const int64_t y_count = elements(kImages * size.rows * size.columns, y_stride, shape.outputs);
    Random random(5);
    const Bytes x = random_codes(random, x_count, how.input);
    Bytes added;
    if (how.residual) added = random_codes(random, y_count, *how.residual);
    const auto added_count = how.residual ? y_count : 0;
    Bytes expected(static_cast<size_t>(y_count) * size_in_bytes(linear.y_dtype()), std::byte{77});
    const Bytes untouched = expected;
    Result<Workspace> workspace = made.layer->workspace(kImages, how.image);
    ASSERT_TRUE(workspace.ok());
    RunOptions run;
    run.x_stride = x_stride;
    run.y_stride = y_stride;
    const Status status = made.layer->forward(x, expected, kImages, how.image, *workspace, run, added);
    ASSERT_TRUE(status.ok()) << status.message();

    for (const int32_t path : {ISOBIT_CPU_DEFAULT, ISOBIT_CPU_SCALAR, ISOBIT_CPU_REFERENCE}) {
      made.options.cpu_path = path;
      StaticConv layer;
      ASSERT_DONE(made.create(layer.out()));
      auto info = sized<isobit_static_conv_info>();
      ASSERT_DONE(isobit_static_conv_get_info(layer, &info));
      EXPECT_EQ(info.cpu_path, path == ISOBIT_CPU_DEFAULT ? static_cast<int32_t>(made.layer->path()) + 1 : path);
      EXPECT_EQ(info.x_dtype, static_cast<int32_t>(linear.x_dtype()));
      EXPECT_EQ(info.y_dtype, static_cast<int32_t>(linear.y_dtype()));
      EXPECT_EQ(info.has_output, how.output ? 1 : 0);
      EXPECT_EQ(info.has_residual, how.residual ? 1 : 0);
      EXPECT_EQ(info.residual_dtype, how.residual ? static_cast<int32_t>(how.residual->dtype()) : 0);
      expect_shape(info, shape);
      expect_grid(info.input, how.input);
      if (how.output) expect_grid(info.output, *how.output);
      if (how.residual) expect_grid(info.residual, *how.residual);
      int64_t rows = 0, columns = 0;
      ASSERT_DONE(isobit_static_conv_output_size(layer, how.image.rows, how.image.columns, &rows, &columns));
      EXPECT_EQ(rows, size.rows);
      EXPECT_EQ(columns, size.columns);

      LinearScratch scratch;
      ASSERT_DONE(
          isobit_static_conv_workspace_create(layer, kImages, how.image.rows, how.image.columns, 2, scratch.out()));
      EXPECT_GT(isobit_linear_workspace_size_bytes(scratch), 0);
      auto options = sized<isobit_linear_run_options>();
      options.x_stride = x_stride;
      options.y_stride = y_stride;
      for (isobit_pool* const threads : {pool.get(), static_cast<isobit_pool*>(nullptr)}) {
        options.pool = threads;
        Bytes y = untouched;
        int32_t done = 0;
        const auto forward = [&] {
          done = isobit_static_conv_forward(layer, x.data(), x_count, y.data(), y_count, kImages, how.image.rows,
                                            how.image.columns, scratch, added.data(), added_count, &options);
        };
        const int allocations = testing::allocations_of(forward);
        ASSERT_DONE(done);
        EXPECT_EQ(y, expected);
        // A thread that begins may allocate, so the pool's run is first; the reference does.
        if (threads == nullptr && info.cpu_path != ISOBIT_CPU_REFERENCE) {
          EXPECT_EQ(allocations, 0);
        }
        if (!how.residual || how.residual->dtype() != linear.y_dtype()) continue;
        Bytes both = added;  // y is the residual itself
        ASSERT_DONE(isobit_static_conv_forward(layer, x.data(), x_count, both.data(), y_count, kImages, how.image.rows,
                                               how.image.columns, scratch, both.data(), y_count, &options));
        for (int64_t i = 0; i < y_count; ++i)
          ASSERT_EQ(load_code(both.data(), linear.y_dtype(), i),
                    load_code(i % y_stride < shape.outputs ? expected.data() : added.data(), linear.y_dtype(), i));
      }
    }
  }
}

struct FloatHow {
  ConvShape shape;
  ImageSize image;
  ConvActivations activations;
  LowBitOptions weights;
  bool shared = false;  // weights [O, R * S * C / groups], with the group of a row
  Dtype x_dtype = Dtype::kF32, y_dtype = Dtype::kF32;
};

/// What C takes to make a layer of floating-point images, and what C++ takes.
struct FloatMade {
  explicit FloatMade(const FloatHow& how) : shape(shape_of(how.shape)), options(sized<isobit_linear_options>()) {
    Random random(11);
    const int64_t outputs = how.shape.outputs, depth = how.shape.depth();
    const int64_t taps = how.shape.rows.kernel * how.shape.columns.kernel;
    LowBitOptions of = how.weights;
    if (how.shared) of.group = depth;
    weights = how.shared ? random_weights(random, outputs, depth, of, matrix)
                         : random_weights(random, outputs * taps, how.shape.group_channels(), of, matrix);
    bias = random_floats(random, outputs);
    options.activations = static_cast<int32_t>(how.activations);
    options.bias = bias.data();
    options.bias_count = outputs;
    options.has_clamp = 1;
    options.clamp_lo = -9.0f;
    options.clamp_hi = 20.0f;
    cpp_options = {.activations = how.activations, .bias = bias, .clamp = {-9.0f, 20.0f}};
  }

  isobit_conv_shape shape;
  isobit_linear_options options;
  Matrix matrix;
  std::optional<LowBitMatrix> weights;
  std::vector<float> bias;
  ConvOptions cpp_options;
};

Bytes random_numbers(Random& random, int64_t count, Dtype dtype) {
  Bytes numbers(static_cast<size_t>(count) * size_in_bytes(dtype));
  int64_t i = 0;
  for (const float value : random_floats(random, count)) {
    if (dtype == Dtype::kF64) {
      const double wide = value;
      std::memcpy(numbers.data() + static_cast<size_t>(i) * sizeof wide, &wide, sizeof wide);
    } else {
      store_float(numbers.data(), dtype, i, value);
    }
    ++i;
  }
  return numbers;
}

constexpr ConvAxis kSame{.kernel = 3, .pad_before = 1, .pad_after = 1};
const FloatHow kFloatLayers[] = {
    {{.channels = 16,
      .outputs = 7,
      .rows = {.kernel = 3, .stride = 2, .pad_before = 1, .pad_after = 2},
      .columns = {.kernel = 2, .dilation = 3, .pad_before = 3}},
     {9, 8},
     ConvActivations::kFloat,
     {.bits = 4, .group = 8}},
    {{.channels = 3,
      .outputs = 5,
      .rows = {.kernel = 3, .stride = 2, .pad_before = 1, .more = 1},
      .columns = {.kernel = 2, .stride = 3, .more = 2},
      .transposed = true},
     {4, 3},
     ConvActivations::kFloat,
     {.bits = 8, .kind = LowBitKind::kOffset, .method = LowBitMethod::kMinmax, .scales = Dtype::kBF16},
     true,
     Dtype::kBF16,
     Dtype::kBF16},
    {{.channels = 5, .outputs = 6, .rows = kSame, .columns = {.kernel = 2}},
     {6, 5},
     ConvActivations::kInt8,
     {.bits = 8, .kind = LowBitKind::kZeroPoint, .method = LowBitMethod::kMinmax},
     true,
     Dtype::kF64,
     Dtype::kF16},
    {{.channels = 24, .outputs = 9}, {1, 30}, ConvActivations::kInt8, {.bits = 1, .group = 8}},
    {{.channels = 16, .outputs = 6, .groups = 2, .rows = {.kernel = 3}, .columns = {.kernel = 3}},
     {6, 5},
     ConvActivations::kInt8Asymmetric,
     {.bits = 2, .group = 8, .kind = LowBitKind::kZeroPoint, .method = LowBitMethod::kMinmax},
     false,
     Dtype::kBF16},
    {{.channels = 6, .outputs = 12, .groups = 6, .rows = kSame, .columns = kSame},
     {7, 7},
     ConvActivations::kInt8PerImage,
     {.bits = 4},
     true,
     Dtype::kF16},
};

TEST(ConvApi, FloatConvolutionsAreTheLibrarys) {
  constexpr int64_t kImages = 2;
  Pool pool;
  ASSERT_DONE(isobit_pool_create(2, pool.out()));
  for (const FloatHow& how : kFloatLayers) {
    SCOPED_TRACE("layer " + std::to_string(&how - kFloatLayers));
    FloatMade made(how);
    const ConvShape& shape = how.shape;
    const ImageSize size = *conv_output_size(shape, how.image, "conv");
    const int64_t x_stride = shape.channels + 2, y_stride = shape.outputs + 1;
    const int64_t x_count = elements(kImages * how.image.rows * how.image.columns, x_stride, shape.channels);
    const int64_t y_count = elements(kImages * size.rows * size.columns, y_stride, shape.outputs);
    const auto x_dtype = static_cast<int32_t>(how.x_dtype), y_dtype = static_cast<int32_t>(how.y_dtype);
    Random random(5);
    const Bytes x = random_numbers(random, x_count, how.x_dtype);
    const Bytes untouched(static_cast<size_t>(y_count) * size_in_bytes(how.y_dtype), std::byte{77});
    for (const int32_t path : {ISOBIT_CPU_DEFAULT, ISOBIT_CPU_SCALAR, ISOBIT_CPU_REFERENCE}) {
      SCOPED_TRACE("path " + std::to_string(path));
      if (path != ISOBIT_CPU_DEFAULT) made.cpp_options.path = static_cast<CpuPath>(path - 1);
      const Result<ConvLayer> of_library = ConvLayer::create(shape, *made.weights, made.cpp_options, "conv");
      ASSERT_TRUE(of_library.ok()) << of_library.status().message();
      Result<Workspace> workspace = of_library->workspace(kImages, how.image, 2);
      ASSERT_TRUE(workspace.ok());
      Bytes expected = untouched;
      const Status status = of_library->forward(x, how.x_dtype, expected, how.y_dtype, kImages, how.image, *workspace,
                                                {.x_stride = x_stride, .y_stride = y_stride});
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_NE(expected, untouched);

      made.options.cpu_path = path;
      Conv layer;
      ASSERT_DONE(isobit_conv_create(made.matrix, &made.shape, &made.options, layer.out()));
      auto info = sized<isobit_conv_info>();
      ASSERT_DONE(isobit_conv_get_info(layer, &info));
      EXPECT_EQ(info.activations, static_cast<int32_t>(how.activations));
      EXPECT_EQ(info.cpu_path, static_cast<int32_t>(of_library->path()) + 1);
      expect_shape(info, shape);
      int64_t rows = 0, columns = 0;
      ASSERT_DONE(isobit_conv_output_size(layer, how.image.rows, how.image.columns, &rows, &columns));
      EXPECT_EQ(rows, size.rows);
      EXPECT_EQ(columns, size.columns);
      LinearScratch scratch;
      ASSERT_DONE(isobit_conv_workspace_create(layer, kImages, how.image.rows, how.image.columns, 2, scratch.out()));
      EXPECT_EQ(isobit_linear_workspace_size_bytes(scratch), workspace->size_bytes());
      auto options = sized<isobit_linear_run_options>();
      options.x_stride = x_stride;
      options.y_stride = y_stride;
      for (isobit_pool* const threads : {pool.get(), static_cast<isobit_pool*>(nullptr)}) {
        options.pool = threads;
        Bytes y = untouched;
        int32_t done = 0;
        const auto forward = [&] {
          done = isobit_conv_forward(layer, x.data(), x_dtype, x_count, y.data(), y_dtype, y_count, kImages,
                                     how.image.rows, how.image.columns, scratch, &options);
        };
        const int allocations = testing::allocations_of(forward);
        ASSERT_DONE(done);
        EXPECT_EQ(y, expected);
        // A thread that begins may allocate, so the pool's run is first; the reference does.
        if (threads == nullptr && info.cpu_path != ISOBIT_CPU_REFERENCE) {
          EXPECT_EQ(allocations, 0);
        }
      }
    }
  }
}

TEST(ConvApi, SavedLayers) {
  const How& how = kLayers[1];
  const Made made(how);
  const TemporaryFolder folder;
  const std::string path = folder.file("conv.safetensors");
  ASSERT_TRUE(made.layer->save(path).ok());
  const ImageSize size = *conv_output_size(how.shape, how.image, "conv");
  const int64_t x_count = how.image.rows * how.image.columns * how.shape.channels;
  const int64_t y_count = size.rows * size.columns * how.shape.outputs;
  Random random(3);
  const Bytes x = random_codes(random, x_count, how.input), added = random_codes(random, y_count, *how.residual);
  Bytes expected(static_cast<size_t>(y_count * size_of(*how.output)));
  Result<Workspace> workspace = made.layer->workspace(1, how.image);
  ASSERT_TRUE(made.layer->forward(x, expected, 1, how.image, *workspace, {}, added).ok());
  for (const char* name : {static_cast<const char*>(nullptr), "conv"}) {
    StaticConv layer;
    LinearScratch scratch;
    ASSERT_DONE(isobit_static_conv_load(path.c_str(), name, ISOBIT_CPU_SCALAR, layer.out()));
    auto info = sized<isobit_static_conv_info>();
    ASSERT_DONE(isobit_static_conv_get_info(layer, &info));
    EXPECT_EQ(info.cpu_path, ISOBIT_CPU_SCALAR);
    expect_grid(info.output, *how.output);
    ASSERT_DONE(isobit_static_conv_workspace_create(layer, 1, how.image.rows, how.image.columns, 1, scratch.out()));
    Bytes y(expected.size());
    ASSERT_DONE(isobit_static_conv_forward(layer, x.data(), x_count, y.data(), y_count, 1, how.image.rows,
                                           how.image.columns, scratch, added.data(), y_count, nullptr));
    EXPECT_EQ(y, expected);
  }
  isobit_static_conv* none = nullptr;
  expect_refusals({
      {"path is NULL", [&] { return isobit_static_conv_load(nullptr, nullptr, ISOBIT_CPU_DEFAULT, &none); }},
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_static_conv_load(path.c_str(), nullptr, ISOBIT_CPU_DEFAULT, nullptr); }},
      {"cpu_path is 7, must be 0..6", [&] { return isobit_static_conv_load(path.c_str(), nullptr, 7, &none); }},
      {path + ": no layer 'fd'; the name must be one of 'conv'",
       [&] { return isobit_static_conv_load(path.c_str(), "fd", ISOBIT_CPU_DEFAULT, &none); }},
      {"/nowhere/c: cannot open: No such file or directory",
       [&] { return isobit_static_conv_load("/nowhere/c", nullptr, ISOBIT_CPU_DEFAULT, &none); }, ISOBIT_IO},
  });
  EXPECT_EQ(none, nullptr);
}

TEST(ConvApi, StreamsAreTheWhole) {
  const How how{{.channels = 4, .outputs = 3, .columns = {.kernel = 3, .stride = 2, .dilation = 2, .pad_before = 4}},
                {1, 20},
                kX,
                kY,
                kAdded};
  constexpr int64_t kImages = 2, kC = 4, kO = 3, kColumns = 20, kOutputs = 10;
  const Made made(how);
  StaticConv layer;
  Stream stream;
  StreamState state;
  LinearScratch scratch;
  ASSERT_DONE(made.create(layer.out()));
  ASSERT_DONE(isobit_static_conv_stream_create(layer, stream.out()));
  layer.out();  // ends it
  ASSERT_DONE(isobit_static_conv_state_create(stream, kImages, 8, state.out()));
  ASSERT_DONE(isobit_static_conv_stream_workspace_create(stream, kImages, 8, 1, scratch.out()));
  Random random(9);
  const Bytes x = random_codes(random, kImages * kColumns * kC, kX);
  const Bytes added = random_codes(random, kImages * kOutputs * kO, kAdded);
  Bytes expected(static_cast<size_t>(kImages * kOutputs * kO));
  Result<Workspace> workspace = made.layer->workspace(kImages, how.image);
  ASSERT_TRUE(made.layer->forward(x, expected, kImages, how.image, *workspace, {}, added).ok());
  for (int again = 0; again < 2; ++again) {
    int64_t first = 0;
    for (const int64_t count : {2, 8, 0, 6, 4}) {
      const auto columns_of = [&](const Bytes& all, int64_t from, int64_t some, int64_t width) {
        Bytes out;
        for (int64_t b = 0; b < kImages; ++b) {
          const auto begin = all.begin() + b * static_cast<int64_t>(all.size()) / kImages + from * width;
          out.insert(out.end(), begin, begin + some * width);
        }
        return out;
      };
      const Bytes part = columns_of(x, first, count, kC), more = columns_of(added, first / 2, count / 2, kO);
      Bytes y(more.size());
      const auto y_count = static_cast<int64_t>(y.size());
      int32_t done = 0;
      const auto forward = [&] {
        done = isobit_static_conv_stream_forward(stream, part.data(), static_cast<int64_t>(part.size()), y.data(),
                                                 y_count, count, state, scratch, more.data(), y_count, nullptr);
      };
      const int allocations = testing::allocations_of(forward);
      if (made.layer->path() != CpuPath::kReference) {
        EXPECT_EQ(allocations, 0);
      }
      ASSERT_DONE(done);
      EXPECT_EQ(y, columns_of(expected, first / 2, count / 2, kO)) << "columns from " << first;
      first += count;
    }
    ASSERT_EQ(first, kColumns);
    ASSERT_DONE(isobit_static_conv_state_reset(state));
  }
}

TEST(ConvApi, PoolsAreTheLibrarys) {
  constexpr int64_t kImages = 2, kC = 5, kXStride = 6, kYStride = 8;
  constexpr ImageSize kImage{7, 6};
  Pool pool;
  ASSERT_DONE(isobit_pool_create(2, pool.out()));
  for (const bool max : {true, false})
    for (const bool counts_outside : {false, true})
      for (const bool same : {true, false}) {
        if (max && (counts_outside || !same)) continue;
        StaticPoolParameters p{.kind = max ? PoolKind::kMax : PoolKind::kAverage,
                               .rows = {.kernel = 3, .stride = 2, .pad_before = 1, .pad_after = 1},
                               .columns = {.kernel = 2, .pad_after = 1},
                               .input = kWideX,
                               .output = same ? kWideX : kY,
                               .counts_outside = counts_outside,
                               .rounding = Rounding::kFloor};
        const Result<StaticPool> expected_layer = StaticPool::create(p, "pool");
        ASSERT_TRUE(expected_layer.ok()) << expected_layer.status().message();
        const ImageSize size = *conv_output_size({.rows = p.rows, .columns = p.columns}, kImage, "pool");
        auto options = sized<isobit_static_pool_options>();
        options.kind = max ? ISOBIT_POOL_MAX : ISOBIT_POOL_AVERAGE;
        options.counts_outside = counts_outside ? 1 : 0;
        options.rounding = ISOBIT_FLOOR;
        options.rows = axis_of(p.rows);
        options.columns = axis_of(p.columns);
        options.input = grid_of(p.input);
        if (!same) options.output = grid_of(p.output);
        PoolLayer layer;
        ASSERT_DONE(isobit_static_pool_create(&options, layer.out()));
        auto info = sized<isobit_static_pool_info>();
        ASSERT_DONE(isobit_static_pool_get_info(layer, &info));
        EXPECT_EQ(info.kind, options.kind);
        EXPECT_EQ(info.x_dtype, ISOBIT_S16);
        EXPECT_EQ(info.y_dtype, same ? ISOBIT_S16 : ISOBIT_U8);
        int64_t rows = 0, columns = 0;
        ASSERT_DONE(isobit_static_pool_output_size(layer, kImage.rows, kImage.columns, &rows, &columns));
        EXPECT_EQ(rows, size.rows);
        EXPECT_EQ(columns, size.columns);

        const int64_t x_count = elements(kImages * kImage.rows * kImage.columns, kXStride, kC);
        const int64_t y_count = elements(kImages * rows * columns, kYStride, kC);
        Random random(15);
        const Bytes x = random_codes(random, x_count, p.input);
        Bytes expected(static_cast<size_t>(y_count * size_of(p.output)), std::byte{77});
        const Bytes untouched = expected;
        RunOptions run;
        run.x_stride = kXStride;
        run.y_stride = kYStride;
        const Status status = expected_layer->forward(x, expected, kImages, kImage, kC, run);
        ASSERT_TRUE(status.ok()) << status.message();
        auto run_options = sized<isobit_linear_run_options>();
        run_options.x_stride = kXStride;
        run_options.y_stride = kYStride;
        for (isobit_pool* const threads : {pool.get(), static_cast<isobit_pool*>(nullptr)}) {
          run_options.pool = threads;
          Bytes y = untouched;
          int32_t done = 0;
          const auto forward = [&] {
            done = isobit_static_pool_forward(layer, x.data(), x_count, y.data(), y_count, kImages, kImage.rows,
                                              kImage.columns, kC, &run_options);
          };
          const int allocations = testing::allocations_of(forward);
          if (threads == nullptr) {
            EXPECT_EQ(allocations, 0);
          }
          ASSERT_DONE(done);
          EXPECT_EQ(y, expected);
        }
      }
}

const How kSmall{
    {.channels = 4, .outputs = 3, .rows = {.kernel = 3, .pad_before = 1, .pad_after = 1}, .columns = {.kernel = 2}},
    {5, 4},
    {.bits = 5, .is_signed = true, .shift = 3},
    kY,
    {{.bits = 5, .is_signed = true, .shift = 3}}};

TEST(ConvApi, RefusesToCreate) {
  const Made made(kSmall);
  const Made other(kLayers[4]);
  isobit_static_conv* none = nullptr;
  struct Call {
    const isobit_low_bit* matrix;
    isobit_conv_shape shape;
    isobit_static_linear_options options;
    std::optional<isobit_grid> residual;
  };
  const auto create = [&](auto&& change) {
    return [&, change] {
      Call c{made.matrix, made.shape, made.options, made.residual};
      change(c);
      return isobit_static_conv_create(c.matrix, &c.shape, &c.options, c.residual ? &*c.residual : nullptr, &none);
    };
  };
  const isobit_conv_shape& shape = made.shape;
  const isobit_static_linear_options& options = made.options;
  expect_refusals({
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_static_conv_create(made.matrix, &shape, &options, nullptr, nullptr); }},
      {"matrix is NULL", create([](Call& c) { c.matrix = nullptr; })},
      {"shape is NULL", [&] { return isobit_static_conv_create(made.matrix, nullptr, &options, nullptr, &none); }},
      {"options is NULL", [&] { return isobit_static_conv_create(made.matrix, &shape, nullptr, nullptr, &none); }},
      {too_small<isobit_conv_shape>("shape"), create([](Call& c) { c.shape.struct_size = sizeof c.shape - 1; })},
      {too_small<isobit_static_linear_options>("options"),
       create([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"shape->transposed is 2, must be 0..1", create([](Call& c) { c.shape.transposed = 2; })},
      {"shape: channels is 0, must be 1 to 2147483647", create([](Call& c) { c.shape.channels = 0; })},
      {"shape: outputs is -1, must be 1 to 2147483647", create([](Call& c) { c.shape.outputs = -1; })},
      {"shape: groups is 2, must be a divisor of 4 channels and 3 outputs",
       create([](Call& c) { c.shape.groups = 2; })},
      {"shape: rows.kernel is -1, must be 1 to 2147483647", create([](Call& c) { c.shape.rows.kernel = -1; })},
      {"shape: rows.stride is -2, must be 1 to 2147483647", create([](Call& c) { c.shape.rows.stride = -2; })},
      {"shape: columns.dilation is 2147483648, must be 1 to 2147483647",
       create([](Call& c) { c.shape.columns.dilation = int64_t{1} << 31; })},
      {"shape: columns.pad_before is -1, must be 0 to 2147483647",
       create([](Call& c) { c.shape.columns.pad_before = -1; })},
      {"shape: rows.pad_after is -1, must be 0 to 2147483647", create([](Call& c) { c.shape.rows.pad_after = -1; })},
      {"shape: rows.more is 1, must be 0 where the convolution is not transposed",
       create([](Call& c) { c.shape.rows.more = 1; })},
      {"matrix has 3 rows, must have 5, the outputs of shape", create([](Call& c) { c.shape.outputs = 5; })},
      {"matrix has 24 columns, must have 2 * 2 * 4 (R * S * C / groups)",
       create([](Call& c) { c.shape.rows.kernel = 2; })},
      {"matrix has 9 rows, must have 3, the outputs of shape", create([&](Call& c) { c.matrix = other.matrix; })},
      {"options->cpu_path is 7, must be 0..6", create([](Call& c) { c.options.cpu_path = 7; })},
      {"layer: bias has 2 elements, must have 3 or none", create([](Call& c) { c.options.bias_count = 2; })},
      {"layer: input: bits is 17, must be 2..16", create([](Call& c) { c.options.input.bits = 17; })},
      {"residual is a grid, must be NULL where options->has_output is 0", create([](Call& c) {
         c.options.has_output = c.options.has_clamp = 0;
         c.options.clamp_lo = c.options.clamp_hi = 0.0f;
       })},
      {"residual.reserved is 1, must be 0..0", create([](Call& c) { c.residual->reserved = 1; })},
      {"grid of residual: bits is 0, must be 1..32", create([](Call& c) { c.residual = isobit_grid{}; })},
      {"layer: residual: bits is 17, must be 2..16", create([](Call& c) { c.residual->bits = 17; })},
  });
  EXPECT_EQ(none, nullptr);
}

TEST(ConvApi, RefusesColumnsInAnotherOrder) {
  const Made made(kSmall);
  const std::vector<float> weights(72, 1.0f);
  const Result<LowBitMatrix> matrix =
      quantize_low_bit(Array::copy_of(weights.data(), {3, 24}), {.bits = 8, .group = 24}, "w");
  ASSERT_TRUE(matrix.ok());
  std::vector<int32_t> permutation(24);
  for (size_t j = 0; j < permutation.size(); ++j) permutation[j] = static_cast<int32_t>(j * 5 % 24);
  LowBitFile file;
  file.matrices.emplace("w", *matrix);
  file.arrays["w.permutation"] = Array::copy_of(permutation.data(), {24});
  const TemporaryFolder folder;
  const std::string path = folder.file("w.safetensors");
  ASSERT_TRUE(save_low_bit(path, file).ok());
  Matrix permuted;
  ASSERT_DONE(isobit_low_bit_load(path.c_str(), nullptr, permuted.out()));
  isobit_static_conv* none = nullptr;
  isobit_conv* no_conv = nullptr;
  isobit_device_conv* none_there = nullptr;
  const std::string message = "matrix has its columns in another order than x, must have them in the order (r, s, c)";
  expect_refusals({
      {message, [&] { return isobit_static_conv_create(permuted, &made.shape, &made.options, nullptr, &none); }},
      {message, [&] { return isobit_conv_create(permuted, &made.shape, nullptr, &no_conv); }},
      {message, [&] { return isobit_device_conv_create(permuted, &made.shape, nullptr, 0, &none_there); }},
  });
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(no_conv, nullptr);
  EXPECT_EQ(none_there, nullptr);
}

const FloatHow kSmallFloat{kSmall.shape, kSmall.image, ConvActivations::kInt8, {.bits = 8}, true};

TEST(ConvApi, RefusesToCreateFloat) {
  const FloatMade made(kSmallFloat);
  FloatHow other = kSmallFloat;
  other.weights = {.bits = 1, .group = 4};
  other.shared = false;
  const FloatMade small(other);
  other.weights = {.bits = 4, .kind = LowBitKind::kZeroPoint, .method = LowBitMethod::kMinmax};
  other.shared = true;
  const FloatMade zero_points(other);
  const FloatMade wide({{.channels = 65536}, {1, 1}, ConvActivations::kFloat, {.bits = 1}, true});
  isobit_conv* none = nullptr;
  struct Call {
    const isobit_low_bit* matrix;
    isobit_conv_shape shape;
    isobit_linear_options options;
  };
  const auto create = [&](auto&& change) {
    return [&, change] {
      Call c{made.matrix, made.shape, made.options};
      change(c);
      return isobit_conv_create(c.matrix, &c.shape, &c.options, &none);
    };
  };
  expect_refusals({
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_conv_create(made.matrix, &made.shape, &made.options, nullptr); }},
      {"matrix is NULL", create([](Call& c) { c.matrix = nullptr; })},
      {"shape is NULL", [&] { return isobit_conv_create(made.matrix, nullptr, &made.options, &none); }},
      {too_small<isobit_conv_shape>("shape"), create([](Call& c) { c.shape.struct_size = sizeof c.shape - 1; })},
      {"shape->transposed is -1, must be 0..1", create([](Call& c) { c.shape.transposed = -1; })},
      {"shape: channels is 0, must be 1 to 2147483647", create([](Call& c) { c.shape.channels = 0; })},
      {"shape: rows.more is 1, must be 0 where the convolution is not transposed",
       create([](Call& c) { c.shape.rows.more = 1; })},
      {too_small<isobit_linear_options>("options"),
       create([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"options->activations is 4, must be 0..3", create([](Call& c) { c.options.activations = 4; })},
      {"options->cpu_path is 7, must be 0..6", create([](Call& c) { c.options.cpu_path = 7; })},
      {"options->has_clamp is 2, must be 0..1", create([](Call& c) { c.options.has_clamp = 2; })},
      {"options->has_clamp is 0, so clamp_lo and clamp_hi must be 0", create([](Call& c) { c.options.has_clamp = 0; })},
      {"layer: clamp.lo is 21, must be at most clamp.hi, 20", create([](Call& c) { c.options.clamp_lo = 21.0f; })},
      {"options->bias is NULL, but has 3 elements", create([](Call& c) { c.options.bias = nullptr; })},
      {"layer: bias has 2 elements, must have 3 or none", create([](Call& c) { c.options.bias_count = 2; })},
      {"layer: weights are [3, 24], must be [12, 4] (O * R * S, C / groups), or [3, 16] with one group a row",
       create([](Call& c) { c.shape.rows.kernel = 2; })},
      {"layer: blocks of channels are filled up to a multiple of 8, which int8_asymmetric does not support with "
       "symmetric weights of 1 bit; use int8, or such channels",
       create([&](Call& c) {
         c.matrix = small.matrix;
         c.options.activations = ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC;
       }),
       ISOBIT_UNSUPPORTED},
      {"layer: weights are [18, 4] with 1 groups a row, must be [3, 24] with 1 for int8_per_image",
       create([&](Call& c) {
         c.matrix = small.matrix;
         c.options.activations = ISOBIT_ACTIVATIONS_INT8_PER_IMAGE;
       })},
      {"layer: kind is zero_point, must be symmetric for int8_per_image", create([&](Call& c) {
         c.matrix = zero_points.matrix;
         c.options.activations = ISOBIT_ACTIVATIONS_INT8_PER_IMAGE;
       })},
      {"layer: R * S * C / groups is 65536, must be at most 65535 for int8_per_image",
       [&] {
         auto options = sized<isobit_linear_options>();
         options.activations = ISOBIT_ACTIVATIONS_INT8_PER_IMAGE;
         return isobit_conv_create(wide.matrix, &wide.shape, &options, &none);
       },
       ISOBIT_UNSUPPORTED},
  });
  EXPECT_EQ(none, nullptr);

  Conv defaults;
  ASSERT_DONE(isobit_conv_create(made.matrix, &made.shape, nullptr, defaults.out()));
  auto info = sized<isobit_conv_info>();
  ASSERT_DONE(isobit_conv_get_info(defaults, &info));
  EXPECT_EQ(info.activations, ISOBIT_ACTIVATIONS_FLOAT);
}

TEST(ConvApi, RefusesFloatRuns) {
  const FloatMade made(kSmallFloat);
  Conv layer;
  LinearScratch scratch, small;
  ASSERT_DONE(isobit_conv_create(made.matrix, &made.shape, &made.options, layer.out()));
  ASSERT_DONE(isobit_conv_workspace_create(layer, 2, 5, 4, 1, scratch.out()));
  ASSERT_DONE(isobit_conv_workspace_create(layer, 0, 5, 2, 1, small.out()));
  isobit_linear_workspace* nowhere = nullptr;
  isobit_conv_info info{};
  info.struct_size = sizeof info - 1;
  int64_t p = -9, q = -9;
  expect_refusals({
      {"layer is NULL", [&] { return isobit_conv_get_info(nullptr, &info); }},
      {"info is NULL", [&] { return isobit_conv_get_info(layer, nullptr); }},
      {too_small<isobit_conv_info>("info"), [&] { return isobit_conv_get_info(layer, &info); }},
      {"layer is NULL", [&] { return isobit_conv_output_size(nullptr, 5, 4, &p, &q); }},
      {"output_rows is NULL", [&] { return isobit_conv_output_size(layer, 5, 4, nullptr, &q); }},
      {"output_columns is NULL", [&] { return isobit_conv_output_size(layer, 5, 4, &p, nullptr); }},
      {"layer: columns: dilation * (kernel - 1) + 1 is 2, must be at most the padded image, 1",
       [&] { return isobit_conv_output_size(layer, 5, 1, &p, &q); }},
      {"workspace is NULL, must point to where the handle goes",
       [&] { return isobit_conv_workspace_create(layer, 1, 5, 4, 1, nullptr); }},
      {"layer is NULL", [&] { return isobit_conv_workspace_create(nullptr, 1, 5, 4, 1, &nowhere); }},
      {"images is -1, must be 0..2147483647",
       [&] { return isobit_conv_workspace_create(layer, -1, 5, 4, 1, &nowhere); }},
      {"threads is 1025, must be 1..1024",
       [&] { return isobit_conv_workspace_create(layer, 1, 5, 4, 1025, &nowhere); }},
      {"layer: the image's columns is -4, must be 1 to 2147483647",
       [&] { return isobit_conv_workspace_create(layer, 1, 5, -4, 1, &nowhere); }},
      {"layer: x has 39614081201791936601413124092 elements, must have at most 288230376151711744",
       [&] {
         constexpr int64_t kMost = (int64_t{1} << 31) - 1;
         return isobit_conv_workspace_create(layer, kMost, kMost, kMost, 1, &nowhere);
       }},
  });
  EXPECT_EQ(nowhere, nullptr);
  EXPECT_EQ(p, -9);
  EXPECT_EQ(q, -9);

  std::vector<float> x(2 * 5 * 4 * 4, 1.0f), y(2 * 5 * 3 * 3, -99.0f);
  const std::vector<float> untouched = y;
  struct Call {
    const isobit_conv* layer;
    const void* x;
    int32_t x_dtype;
    int64_t x_count;
    void* y;
    int32_t y_dtype;
    int64_t y_count;
    int64_t images, rows, columns;
    isobit_linear_workspace* workspace;
    isobit_linear_run_options options;
  };
  const auto forward = [&](auto&& change) {
    return [&, change] {
      Call c{layer, x.data(), ISOBIT_F32, 160, y.data(), ISOBIT_F32,
             90,    2,        5,          4,   scratch,  sized<isobit_linear_run_options>()};
      change(c);
      return isobit_conv_forward(c.layer, c.x, c.x_dtype, c.x_count, c.y, c.y_dtype, c.y_count, c.images, c.rows,
                                 c.columns, c.workspace, &c.options);
    };
  };
  const auto* odd = reinterpret_cast<const char*>(x.data()) + 2;
  expect_refusals({
      {"layer is NULL", forward([](Call& c) { c.layer = nullptr; })},
      {"workspace is NULL", forward([](Call& c) { c.workspace = nullptr; })},
      {"workspace has " + std::to_string(isobit_linear_workspace_size_bytes(small)) + " bytes, must have at least " +
           std::to_string(isobit_linear_workspace_size_bytes(scratch)) +
           " for 2 images on 1 thread; make it with workspace(images, image, threads)",
       forward([&](Call& c) { c.workspace = small; })},
      {"images is -1, must be 0..2147483647", forward([](Call& c) { c.images = -1; })},
      {"layer: the image's rows is -5, must be 1 to 2147483647", forward([](Call& c) { c.rows = -5; })},
      {"x is NULL, but has 160 elements", forward([](Call& c) { c.x = nullptr; })},
      {"x is at address " + address_text(odd) + ", must be a multiple of 4", forward([&](Call& c) { c.x = odd; })},
      {"x has 636 bytes, must have at least 640: 40 rows of 4 elements of f32, 4 from one to the next",
       forward([](Call& c) { c.x_count = 159; })},
      {"y is NULL, but has 90 elements", forward([](Call& c) { c.y = nullptr; })},
      {"y has 356 bytes, must have at least 360: 30 rows of 3 elements of f32, 3 from one to the next",
       forward([](Call& c) { c.y_count = 89; })},
      {"y overlaps x, must be apart from it", forward([&](Call& c) { c.y = x.data() + 159; })},
      {"x_dtype is 99, must be 0..10", forward([](Call& c) { c.x_dtype = 99; })},
      {"y_dtype is -1, must be 0..10", forward([](Call& c) { c.y_dtype = -1; })},
      {"x is of type u8, must be f32, f16, bf16 or f64", forward([](Call& c) { c.x_dtype = ISOBIT_U8; }),
       ISOBIT_UNSUPPORTED},
      {"y is of type s32, must be f32, f16 or bf16", forward([](Call& c) { c.y_dtype = ISOBIT_S32; }),
       ISOBIT_UNSUPPORTED},
      {too_small<isobit_linear_run_options>("options"),
       forward([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"options->unchecked is 2, must be 0..1", forward([](Call& c) { c.options.unchecked = 2; })},
      {"x_stride is 3, must be at least 4, or 0", forward([](Call& c) { c.options.x_stride = 3; })},
      {"y_stride is -3, must be at least 3, or 0", forward([](Call& c) { c.options.y_stride = -3; })},
  });
  const auto unchanged = [](Call&) {};
  x[(20 + 2 * 4 + 1) * 4] = std::numeric_limits<float>::infinity();
  expect_refusals(
      {{"x[1, 2, 1] has a NaN, an infinity, or a block of channels whose range is infinite, must be "
        "finite, or the call unchecked",
        forward(unchanged)}});
  EXPECT_EQ(y, untouched);
  // Three rows and two columns of outputs read the pixel.
  ASSERT_DONE(forward([](Call& c) { c.options.unchecked = 1; })());
  for (int64_t i = 0; i < 90; ++i) {
    const int64_t image = i / 45, row = i / 9 % 5, column = i / 3 % 3;
    EXPECT_EQ(std::isnan(y[static_cast<size_t>(i)]), image == 1 && row >= 1 && row <= 3 && column <= 1) << i;
  }
  ASSERT_DONE(forward([](Call& c) {
    c.images = c.x_count = c.y_count = 0;
    c.x = c.y = nullptr;
  })());

  isobit_linear_options options = made.options;
  options.activations = ISOBIT_ACTIVATIONS_INT8_PER_IMAGE;
  ASSERT_DONE(isobit_conv_create(made.matrix, &made.shape, &options, layer.out()));
  ASSERT_DONE(isobit_conv_workspace_create(layer, 2, 5, 4, 1, scratch.out()));
  y = untouched;
  expect_refusals({{"x[1] has a NaN or an infinity, must be finite, or the call unchecked", forward(unchanged)}});
  EXPECT_EQ(y, untouched);
  ASSERT_DONE(forward([](Call& c) { c.options.unchecked = 1; })());
  for (size_t i = 0; i < 90; ++i) EXPECT_EQ(std::isnan(y[i]), i >= 45) << i;

  options.activations = ISOBIT_ACTIVATIONS_FLOAT;
  ASSERT_DONE(isobit_conv_create(made.matrix, &made.shape, &options, layer.out()));
  expect_refusals({{"y is of type f16, must be that of x, f32, in a layer of float activations",
                    forward([](Call& c) { c.y_dtype = ISOBIT_F16; }), ISOBIT_UNSUPPORTED}});
}

TEST(ConvApi, RefusesRuns) {
  const Made made(kSmall);
  How plain = kSmall;
  plain.residual.reset();
  StaticConv layer, without;
  LinearScratch scratch, small;
  ASSERT_DONE(made.create(layer.out()));
  ASSERT_DONE(Made(plain).create(without.out()));
  ASSERT_DONE(isobit_static_conv_workspace_create(layer, 2, 5, 4, 1, scratch.out()));
  ASSERT_DONE(isobit_static_conv_workspace_create(layer, 0, 5, 2, 1, small.out()));
  isobit_linear_workspace* nowhere = nullptr;
  isobit_static_conv_info info{};
  info.struct_size = sizeof info - 1;
  int64_t p = -9, q = -9;
  expect_refusals({
      {"layer is NULL", [&] { return isobit_static_conv_get_info(nullptr, &info); }},
      {"info is NULL", [&] { return isobit_static_conv_get_info(layer, nullptr); }},
      {too_small<isobit_static_conv_info>("info"), [&] { return isobit_static_conv_get_info(layer, &info); }},
      {"layer is NULL", [&] { return isobit_static_conv_output_size(nullptr, 5, 4, &p, &q); }},
      {"output_rows is NULL", [&] { return isobit_static_conv_output_size(layer, 5, 4, nullptr, &q); }},
      {"output_columns is NULL", [&] { return isobit_static_conv_output_size(layer, 5, 4, &p, nullptr); }},
      {"layer: the image's rows is 0, must be 1 to 2147483647",
       [&] { return isobit_static_conv_output_size(layer, 0, 4, &p, &q); }},
      {"layer: columns: dilation * (kernel - 1) + 1 is 2, must be at most the padded image, 1",
       [&] { return isobit_static_conv_output_size(layer, 5, 1, &p, &q); }},
      {"workspace is NULL, must point to where the handle goes",
       [&] { return isobit_static_conv_workspace_create(layer, 1, 5, 4, 1, nullptr); }},
      {"layer is NULL", [&] { return isobit_static_conv_workspace_create(nullptr, 1, 5, 4, 1, &nowhere); }},
      {"images is -1, must be 0..2147483647",
       [&] { return isobit_static_conv_workspace_create(layer, -1, 5, 4, 1, &nowhere); }},
      {"threads is 1025, must be 1..1024",
       [&] { return isobit_static_conv_workspace_create(layer, 1, 5, 4, 1025, &nowhere); }},
      {"layer: the image's columns is -4, must be 1 to 2147483647",
       [&] { return isobit_static_conv_workspace_create(layer, 1, 5, -4, 1, &nowhere); }},
      {"layer: x has 39614081201791936601413124092 elements, must have at most 288230376151711744",
       [&] {
         constexpr int64_t kMost = (int64_t{1} << 31) - 1;
         return isobit_static_conv_workspace_create(layer, kMost, kMost, kMost, 1, &nowhere);
       }},
  });
  EXPECT_EQ(nowhere, nullptr);
  EXPECT_EQ(p, -9);
  EXPECT_EQ(q, -9);

  Bytes x(2 * 5 * 4 * 4), y(2 * 5 * 3 * 3, std::byte{77}), residual(y.size());
  const Bytes untouched = y;
  struct Call {
    const isobit_static_conv* layer;
    const void* x;
    int64_t x_count;
    void* y;
    int64_t y_count;
    int64_t images, rows, columns;
    isobit_linear_workspace* workspace;
    const void* residual;
    int64_t residual_count;
    isobit_linear_run_options options;
  };
  const auto forward = [&](auto&& change) {
    return [&, change] {
      Call c{layer, x.data(), 160,     y.data(),        90, 2,
             5,     4,        scratch, residual.data(), 90, sized<isobit_linear_run_options>()};
      change(c);
      return isobit_static_conv_forward(c.layer, c.x, c.x_count, c.y, c.y_count, c.images, c.rows, c.columns,
                                        c.workspace, c.residual, c.residual_count, &c.options);
    };
  };
  expect_refusals({
      {"layer is NULL", forward([](Call& c) { c.layer = nullptr; })},
      {"workspace is NULL", forward([](Call& c) { c.workspace = nullptr; })},
      {"workspace has " + std::to_string(isobit_linear_workspace_size_bytes(small)) + " bytes, must have at least " +
           std::to_string(isobit_linear_workspace_size_bytes(scratch)) +
           " for 2 images on 1 thread; make it with workspace(images, image, threads)",
       forward([&](Call& c) { c.workspace = small; })},
      {"images is -1, must be 0..2147483647", forward([](Call& c) { c.images = -1; })},
      {"layer: the image's rows is -5, must be 1 to 2147483647", forward([](Call& c) { c.rows = -5; })},
      {"layer: columns: dilation * (kernel - 1) + 1 is 2, must be at most the padded image, 1",
       forward([](Call& c) { c.columns = 1; })},
      {"x is NULL, but has 160 elements", forward([](Call& c) { c.x = nullptr; })},
      {"x has 159 bytes, must have at least 160: 40 rows of 4 elements of s8, 4 from one to the next",
       forward([](Call& c) { c.x_count = 159; })},
      {"y is NULL, but has 90 elements", forward([](Call& c) { c.y = nullptr; })},
      {"y has 89 bytes, must have at least 90: 30 rows of 3 elements of u8, 3 from one to the next",
       forward([](Call& c) { c.y_count = 89; })},
      {"y overlaps x, must be apart from it", forward([&](Call& c) { c.y = x.data() + 159; })},
      {"residual is NULL, but has 90 elements", forward([](Call& c) { c.residual = nullptr; })},
      {"residual has -1 elements, must have 0..576460752303423487", forward([](Call& c) { c.residual_count = -1; })},
      {"residual has 89 bytes, must have at least 90: 30 rows of 3 elements of s8, 3 from one to the next",
       forward([](Call& c) { c.residual_count = 89; })},
      {"y overlaps residual, must be apart from it", forward([&](Call& c) {
         c.y = residual.data() + 1;
         c.y_count = 90;
       })},
      {"layer: residual has 0 bytes, must be codes as y: the layer adds a residual",
       forward([](Call& c) { c.residual_count = 0; })},
      {"layer: residual has 90 bytes, must be empty: the layer adds none",
       forward([&](Call& c) { c.layer = without; })},
      {too_small<isobit_linear_run_options>("options"),
       forward([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"options->unchecked is 1, must be 0..0", forward([](Call& c) { c.options.unchecked = 1; })},
      {"x_stride is 3, must be at least 4, or 0", forward([](Call& c) { c.options.x_stride = 3; })},
      {"y_stride is 2, must be at least 3, or 0", forward([](Call& c) { c.options.y_stride = 2; })},
  });
  x[4 * 7 + 2] = std::byte{16};
  residual[3 * 4 + 1] = std::byte{0x80};
  const auto unchanged = [](Call&) {};
  expect_refusals(
      {{"layer: residual[4, 1] is -128, must be -16..15, a code of the residual grid", forward(unchanged)}});
  residual[3 * 4 + 1] = std::byte{0};
  expect_refusals({{"layer: x[7, 2] is 16, must be -16..15, a code of the input grid", forward(unchanged)}});
  EXPECT_EQ(y, untouched);
  x[4 * 7 + 2] = std::byte{0};
  ASSERT_DONE(forward(unchanged)());
  EXPECT_NE(y, untouched);
  ASSERT_DONE(forward([](Call& c) {
    c.images = c.x_count = c.y_count = c.residual_count = 0;
    c.x = c.y = nullptr;
    c.residual = nullptr;
  })());
}

TEST(ConvApi, RefusesStreams) {
  How how = kSmall;
  how.shape.rows = {};
  how.shape.columns = {.kernel = 3, .pad_before = 2};
  how.residual.reset();
  const Made made(how);
  StaticConv layer, square;
  Stream stream, same;
  StreamState state, others;
  LinearScratch scratch, small;
  ASSERT_DONE(made.create(layer.out()));
  ASSERT_DONE(Made(kSmall).create(square.out()));
  ASSERT_DONE(isobit_static_conv_stream_create(layer, stream.out()));
  ASSERT_DONE(isobit_static_conv_stream_create(layer, same.out()));
  ASSERT_DONE(isobit_static_conv_state_create(stream, 2, 6, state.out()));
  ASSERT_DONE(isobit_static_conv_state_create(same, 2, 6, others.out()));
  ASSERT_DONE(isobit_static_conv_stream_workspace_create(stream, 2, 6, 1, scratch.out()));
  ASSERT_DONE(isobit_static_conv_stream_workspace_create(stream, 1, 1, 1, small.out()));
  isobit_static_conv_stream* no_stream = nullptr;
  isobit_static_conv_state* no_state = nullptr;
  isobit_linear_workspace* nowhere = nullptr;
  expect_refusals({
      {"stream is NULL, must point to where the handle goes",
       [&] { return isobit_static_conv_stream_create(layer, nullptr); }},
      {"layer is NULL", [&] { return isobit_static_conv_stream_create(nullptr, &no_stream); }},
      {"layer: rows have a kernel, a stride or pads, must have none in a stream",
       [&] { return isobit_static_conv_stream_create(square, &no_stream); }},
      {"state is NULL, must point to where the handle goes",
       [&] { return isobit_static_conv_state_create(stream, 2, 6, nullptr); }},
      {"stream is NULL", [&] { return isobit_static_conv_state_create(nullptr, 2, 6, &no_state); }},
      {"layer: images is 0, must be 1 to 2147483647",
       [&] { return isobit_static_conv_state_create(stream, 0, 6, &no_state); }},
      {"layer: columns is -6, must be 1 to 2147483647",
       [&] { return isobit_static_conv_state_create(stream, 2, -6, &no_state); }},
      {"state is NULL", [&] { return isobit_static_conv_state_reset(nullptr); }},
      {"workspace is NULL, must point to where the handle goes",
       [&] { return isobit_static_conv_stream_workspace_create(stream, 2, 6, 1, nullptr); }},
      {"stream is NULL", [&] { return isobit_static_conv_stream_workspace_create(nullptr, 2, 6, 1, &nowhere); }},
      {"threads is 0, must be 1..1024",
       [&] { return isobit_static_conv_stream_workspace_create(stream, 2, 6, 0, &nowhere); }},
      {"layer: images is -2, must be 1 to 2147483647",
       [&] { return isobit_static_conv_stream_workspace_create(stream, -2, 6, 1, &nowhere); }},
  });
  EXPECT_EQ(no_stream, nullptr);
  EXPECT_EQ(no_state, nullptr);
  EXPECT_EQ(nowhere, nullptr);

  Bytes x(2 * 6 * 4), y(2 * 6 * 3, std::byte{77});
  const Bytes untouched = y;
  struct Call {
    const isobit_static_conv_stream* stream;
    const void* x;
    int64_t x_count;
    void* y;
    int64_t y_count;
    int64_t columns;
    isobit_static_conv_state* state;
    isobit_linear_workspace* workspace;
    int64_t residual_count;
    isobit_linear_run_options options;
  };
  const auto forward = [&](auto&& change) {
    return [&, change] {
      Call c{stream, x.data(), 48, y.data(), 36, 6, state, scratch, 0, sized<isobit_linear_run_options>()};
      change(c);
      return isobit_static_conv_stream_forward(c.stream, c.x, c.x_count, c.y, c.y_count, c.columns, c.state,
                                               c.workspace, untouched.data(), c.residual_count, &c.options);
    };
  };
  x[4 * 7 + 2] = std::byte{16};
  expect_refusals({
      {"stream is NULL", forward([](Call& c) { c.stream = nullptr; })},
      {"state is NULL", forward([](Call& c) { c.state = nullptr; })},
      {"state was made by another stream", forward([&](Call& c) { c.state = others; })},
      {"workspace is NULL", forward([](Call& c) { c.workspace = nullptr; })},
      {"layer: columns is 7, must be 0 to 6, those of the state, and a multiple of the stride, 1",
       forward([](Call& c) { c.columns = 7; })},
      {"x has 47 bytes, must have at least 48: 12 rows of 4 elements of s8, 4 from one to the next",
       forward([](Call& c) { c.x_count = 47; })},
      {"y has 35 bytes, must have at least 36: 12 rows of 3 elements of u8, 3 from one to the next",
       forward([](Call& c) { c.y_count = 35; })},
      {"y overlaps x, must be apart from it", forward([&](Call& c) { c.y = x.data(); })},
      {"options->unchecked is 1, must be 0..0", forward([](Call& c) { c.options.unchecked = 1; })},
      {"layer: x[7, 2] is 16, must be -16..15, a code of the input grid", forward([](Call&) {})},
  });
  x[4 * 7 + 2] = std::byte{0};
  expect_refusals({
      {"layer: residual has 36 bytes, must be empty: the layer adds none",
       forward([](Call& c) { c.residual_count = 36; })},
      {"workspace has " + std::to_string(isobit_linear_workspace_size_bytes(small)) + " bytes, must have at least " +
           std::to_string(isobit_linear_workspace_size_bytes(scratch)) +
           " for 2 images on 1 thread; make it with workspace(images, image, threads)",
       forward([&](Call& c) { c.workspace = small; })},
  });
  EXPECT_EQ(y, untouched);
}

TEST(ConvApi, RefusesPools) {
  isobit_static_pool* none = nullptr;
  using Options = isobit_static_pool_options;
  const auto right = [] {
    auto options = sized<Options>();
    options.rows.kernel = 2;
    options.columns = {2, 2, 0, 1, 0, 0};
    options.input = grid_of(kSmall.input);
    return options;
  };
  const auto create = [&](auto&& change) {
    return [&, change] {
      Options options = right();
      change(options);
      return isobit_static_pool_create(&options, &none);
    };
  };
  const Options options = right();
  expect_refusals({
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_static_pool_create(&options, nullptr); }},
      {"options is NULL", [&] { return isobit_static_pool_create(nullptr, &none); }},
      {too_small<Options>("options"), create([](Options& o) { o.struct_size = sizeof o - 1; })},
      {"options->kind is 2, must be 0..1", create([](Options& o) { o.kind = 2; })},
      {"options->counts_outside is -1, must be 0..1", create([](Options& o) { o.counts_outside = -1; })},
      {"options->rounding is 4, must be 0..3", create([](Options& o) { o.rounding = 4; })},
      {"layer: rows.kernel is -1, must be 1 to 2147483647", create([](Options& o) { o.rows.kernel = -1; })},
      {"layer: rows has a pad of 2, must be smaller than its window, 2",
       create([](Options& o) { o.rows.pad_after = 2; })},
      {"layer: columns.more is 1, must be 0 where the convolution is not transposed",
       create([](Options& o) { o.columns.more = 1; })},
      {"options->input.is_signed is 2, must be 0..1", create([](Options& o) { o.input.is_signed = 2; })},
      {"grid of options->input: bits is 0, must be 1..32", create([](Options& o) { o.input = {}; })},
      {"grid of options->output: bits is 0, must be 1..32", create([](Options& o) { o.output.shift = 3; })},
      {"layer: input: bits is 17, must be 2..16", create([](Options& o) { o.input.bits = 17; })},
      {"layer: output is another grid than input, must be the same for the largest code",
       create([](Options& o) { o.output = grid_of(kY); })},
  });
  EXPECT_EQ(none, nullptr);

  PoolLayer layer;
  ASSERT_DONE(isobit_static_pool_create(&options, layer.out()));
  isobit_static_pool_info info{};
  info.struct_size = sizeof info - 1;
  int64_t p = -9, q = -9;
  expect_refusals({
      {"layer is NULL", [&] { return isobit_static_pool_get_info(nullptr, &info); }},
      {"info is NULL", [&] { return isobit_static_pool_get_info(layer, nullptr); }},
      {too_small<isobit_static_pool_info>("info"), [&] { return isobit_static_pool_get_info(layer, &info); }},
      {"layer is NULL", [&] { return isobit_static_pool_output_size(nullptr, 3, 5, &p, &q); }},
      {"output_rows is NULL", [&] { return isobit_static_pool_output_size(layer, 3, 5, nullptr, &q); }},
      {"output_columns is NULL", [&] { return isobit_static_pool_output_size(layer, 3, 5, &p, nullptr); }},
      {"layer: rows: dilation * (kernel - 1) + 1 is 2, must be at most the padded image, 1",
       [&] { return isobit_static_pool_output_size(layer, 1, 5, &p, &q); }},
  });
  EXPECT_EQ(p, -9);
  EXPECT_EQ(q, -9);

  Bytes x(2 * 3 * 5 * 4), y(2 * 2 * 3 * 4, std::byte{77});  // P = 2, Q = 3
  const Bytes untouched = y;
  struct Call {
    const isobit_static_pool* layer;
    const void* x;
    int64_t x_count;
    void* y;
    int64_t y_count;
    int64_t images, rows, columns, channels;
    isobit_linear_run_options options;
  };
  const auto forward = [&](auto&& change) {
    return [&, change] {
      Call c{layer, x.data(), 120, y.data(), 48, 2, 3, 5, 4, sized<isobit_linear_run_options>()};
      change(c);
      return isobit_static_pool_forward(c.layer, c.x, c.x_count, c.y, c.y_count, c.images, c.rows, c.columns,
                                        c.channels, &c.options);
    };
  };
  expect_refusals({
      {"layer is NULL", forward([](Call& c) { c.layer = nullptr; })},
      {"images is -1, must be 0..2147483647", forward([](Call& c) { c.images = -1; })},
      {"layer: the image's columns is 0, must be 1 to 2147483647", forward([](Call& c) { c.columns = 0; })},
      {"layer: channels is 0, must be 1 to 2147483647", forward([](Call& c) { c.channels = 0; })},
      {"x is NULL, but has 120 elements", forward([](Call& c) { c.x = nullptr; })},
      {"x has 119 bytes, must have at least 120: 30 rows of 4 elements of s8, 4 from one to the next",
       forward([](Call& c) { c.x_count = 119; })},
      {"y has 47 bytes, must have at least 48: 12 rows of 4 elements of s8, 4 from one to the next",
       forward([](Call& c) { c.y_count = 47; })},
      {"y overlaps x, must be apart from it", forward([&](Call& c) { c.y = x.data() + 8; })},
      {"options->unchecked is 1, must be 0..0", forward([](Call& c) { c.options.unchecked = 1; })},
      {too_small<isobit_linear_run_options>("options"),
       forward([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"x_stride is 3, must be at least 4, or 0", forward([](Call& c) { c.options.x_stride = 3; })},
      {"y_stride is -4, must be at least 4, or 0", forward([](Call& c) { c.options.y_stride = -4; })},
  });
  x[4 * 7 + 2] = std::byte{16};
  expect_refusals({{"layer: x[7, 2] is 16, must be -16..15, a code of the input grid", forward([](Call&) {})}});
  EXPECT_EQ(y, untouched);
}

TEST(ConvApi, RefusesDevices) {
  ASSERT_EQ(setenv("ISOBIT_CUDA_LIBRARY", "/nowhere/cuda.so", 1), 0);
  const Made made(kSmall);
  StaticConv layer;
  ASSERT_DONE(made.create(layer.out()));
  Random random(5);
  Matrix matrix;
  random_weights(random, 4, 3, {.bits = 4, .group = 3}, matrix);
  const isobit_conv_shape shape = shape_of({.channels = 3, .outputs = 4});
  auto avx2 = sized<isobit_linear_options>();
  avx2.cpu_path = ISOBIT_CPU_AVX2;
  auto fourth = sized<isobit_linear_options>();
  fourth.activations = 4;
  auto three = shape;
  three.groups = 3;
  isobit_device_conv* none_of_floats = nullptr;
  isobit_device_static_conv* none = nullptr;
  int64_t bytes = -9;
  int8_t x[4] = {};
  expect_refusals({
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_device_static_conv_create(layer, 0, nullptr); }},
      {"host_layer is NULL", [&] { return isobit_device_static_conv_create(nullptr, 0, &none); }},
      {"layer is NULL", [&] { return isobit_device_static_conv_workspace_bytes(nullptr, 1, 1, 1, &bytes); }},
      {"layer is NULL",
       [&] { return isobit_device_static_conv_forward(nullptr, x, 4, x, 4, 1, 1, 1, x, 4, nullptr, 0, nullptr); }},
      {"layer is NULL", [&] { return isobit_device_static_conv_check_input(nullptr, x, 4, nullptr); }},
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_device_conv_create(matrix, &shape, nullptr, 0, nullptr); }},
      {"matrix is NULL", [&] { return isobit_device_conv_create(nullptr, &shape, nullptr, 0, &none_of_floats); }},
      {"shape is NULL", [&] { return isobit_device_conv_create(matrix, nullptr, nullptr, 0, &none_of_floats); }},
      {"shape: groups is 3, must be a divisor of 3 channels and 4 outputs",
       [&] { return isobit_device_conv_create(matrix, &three, nullptr, 0, &none_of_floats); }},
      {"options->cpu_path is 3, must be ISOBIT_CPU_DEFAULT, 0, for a device",
       [&] { return isobit_device_conv_create(matrix, &shape, &avx2, 0, &none_of_floats); }},
      {"options->activations is 4, must be 0..3",
       [&] { return isobit_device_conv_create(matrix, &shape, &fourth, 0, &none_of_floats); }},
      {"layer is NULL", [&] { return isobit_device_conv_workspace_bytes(nullptr, 1, 1, 1, &bytes); }},
      {"layer is NULL",
       [&] { return isobit_device_conv_forward(nullptr, x, ISOBIT_F32, 1, x, ISOBIT_F32, 1, 1, 1, 1, x, 4, nullptr); }},
      {"layer is NULL", [&] { return isobit_device_conv_check_input(nullptr, x, 4, 1, 1, 1, nullptr); }},
  });
  EXPECT_EQ(bytes, -9);
  refused(isobit_device_conv_create(matrix, &shape, nullptr, 0, &none_of_floats), ISOBIT_UNSUPPORTED,
          "a CUDA device needs libisobit_cuda.so, which ISOBIT_CUDA_LIBRARY names: /nowhere/cuda.so: cannot open");
  EXPECT_EQ(none_of_floats, nullptr);
  refused(isobit_device_static_conv_create(layer, 0, &none), ISOBIT_UNSUPPORTED,
          "a CUDA device needs libisobit_cuda.so, which ISOBIT_CUDA_LIBRARY names: /nowhere/cuda.so: cannot open");
  EXPECT_EQ(none, nullptr);
}

TEST(ConvApi, NullIsDestroyed) {
  isobit_conv_destroy(nullptr);
  isobit_static_conv_destroy(nullptr);
  isobit_static_conv_stream_destroy(nullptr);
  isobit_static_conv_state_destroy(nullptr);
  isobit_static_pool_destroy(nullptr);
  isobit_device_conv_destroy(nullptr);
  isobit_device_static_conv_destroy(nullptr);
}

}  // namespace
}  // namespace isobit
