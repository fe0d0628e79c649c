// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "conv/oracle_shape_test.h"
#include "core/codes.h"
#include "isobit/conv.h"
#include "isobit/parallel.h"
#include "testing/oracle.h"
#include "testing/required.h"

namespace isobit {
namespace {

using testing::Json;

bool has(const Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

std::vector<std::byte> bytes_of(const std::vector<int64_t>& codes, Dtype dtype) {
  std::vector<std::byte> bytes(codes.size() * size_in_bytes(dtype));
  for (size_t i = 0; i < codes.size(); ++i) store_code(bytes.data(), dtype, static_cast<int64_t>(i), codes[i]);
  return bytes;
}

TEST(Conv, StaticOracleVectors) {
  int plain = 0;
  int grouped = 0;
  int transposed = 0;
  int residuals = 0;
  for (const Json& one : testing::built_oracle_cases("low_bit.json")) {
    if (one.at("op") != "static_convolution") continue;
    SCOPED_TRACE(one.dump());
    const Result<LowBitMatrix> matrix = LowBitMatrix::create(testing::low_bit_of(one.at("weights")), "W");
    ASSERT_TRUE(matrix.ok()) << matrix.status().message();
    std::vector<float> bias;
    for (const Json& bits : one.at("bias")) bias.push_back(testing::float_of_bits(bits));
    StaticLinearOptions options{.input = testing::grid_of(one.at("x_grid")),
                                .output = testing::grid_of(one.at("y_grid")),
                                .bias = bias,
                                .rounding = testing::rounding_of(one.at("mode"))};
    if (const Json& act = one.at("act"); !act.is_null())
      options.clamp = {testing::float_of_bits(act.at(0)), testing::float_of_bits(act.at(1))};
    const Result<StaticLinearParameters> linear = derive_static_linear(*matrix, options, "conv");
    ASSERT_TRUE(linear.ok()) << linear.status().message();

    const Json& images = one.at("x");
    const ImageSize image = testing::image_size_of(images);
    StaticConvParameters p{testing::conv_shape_of(one, matrix->rows(), testing::channels_of(images)), *linear};
    EXPECT_EQ(p.shape.depth(), matrix->columns());
    std::vector<int64_t> residual;
    if (one.contains("residual")) {
      const Grid grid = testing::grid_of(one.at("residual_grid"));
      const Result<StaticResidual> added = derive_static_residual(grid, *linear->output, "conv");
      ASSERT_TRUE(added.ok()) << added.status().message();
      p.residual = *added;
      residual = testing::flatten(one.at("residual"));
    }
    const std::vector<std::byte> x = bytes_of(testing::flatten(images), linear->x_dtype());
    const std::vector<int64_t> expected = testing::flatten(one.at("y"));
    const std::vector<std::byte> y = bytes_of(expected, linear->y_dtype());
    const auto batch = static_cast<int64_t>(images.size());
    for (const CpuPath path : kAllCpuPaths) {
      SCOPED_TRACE(to_string(path));
      if (!cpu_can_run(path)) {
        EXPECT_FALSE(testing::required(path)) << cpu_cannot_run_reason(path);
        continue;
      }
      const Result<StaticConvLayer> layer = StaticConvLayer::create(p, "conv", path);
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      Result<Workspace> workspace = layer->workspace(batch, image);
      ASSERT_TRUE(workspace.ok()) << workspace.status().message();
      std::vector<std::byte> got(y.size());
      const std::vector<std::byte> added =
          p.residual ? bytes_of(residual, p.residual->grid.dtype()) : std::vector<std::byte>{};
      const Status status = layer->forward(x, got, batch, image, *workspace, {}, added);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(got, y);
    }
    residuals += p.residual.has_value();
    ++(p.shape.transposed ? transposed : p.shape.groups > 1 ? grouped : plain);
  }
  EXPECT_GT(plain, 0);
  EXPECT_GT(grouped, 0);
  EXPECT_GT(transposed, 0);
  EXPECT_GT(residuals, 0);
}

TEST(Conv, PoolOracleVectors) {
  int cases = 0;
  for (const Json& one : testing::built_oracle_cases("low_bit.json")) {
    if (one.at("op") != "pool") continue;
    SCOPED_TRACE(one.dump());
    const Json& images = one.at("x");
    const int64_t channels = testing::channels_of(images);
    const ConvShape shape = testing::conv_shape_of(one, channels, channels);
    const ImageSize image = testing::image_size_of(images);
    const Grid input = testing::grid_of(one.at("x_grid"));
    const std::vector<std::byte> x = bytes_of(testing::flatten(images), input.dtype());
    const std::tuple<const char*, PoolKind, bool> kinds[] = {{"max", PoolKind::kMax, false},
                                                             {"average", PoolKind::kAverage, false},
                                                             {"average_of_window", PoolKind::kAverage, true}};
    for (const auto& [key, kind, counts_outside] : kinds) {
      SCOPED_TRACE(key);
      const Result<StaticPool> pool =
          StaticPool::create({.kind = kind,
                              .rows = shape.rows,
                              .columns = shape.columns,
                              .input = input,
                              .output = kind == PoolKind::kMax ? input : testing::grid_of(one.at("y_grid")),
                              .counts_outside = counts_outside,
                              .rounding = testing::rounding_of(one.at("mode"))},
                             "pool1");
      ASSERT_TRUE(pool.ok()) << pool.status().message();
      const std::vector<std::byte> expected =
          bytes_of(testing::flatten(one.at(key)), pool->parameters().output.dtype());
      for (const int32_t threads : {1, 3}) {
        ThreadPool workers(threads);
        std::vector<std::byte> y(expected.size());
        const Status status = pool->forward(x, y, static_cast<int64_t>(images.size()), image, channels,
                                            {.pool = threads == 1 ? nullptr : &workers});
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(y, expected);
      }
    }
    ++cases;
  }
  EXPECT_GT(cases, 0);
}

TEST(Conv, PoolRefusesByName) {
  const StaticPoolParameters good{.rows = {.kernel = 2, .stride = 2}, .columns = {.kernel = 3, .pad_before = 2}};
  const Result<StaticPool> pool = StaticPool::create(good, "pool1");
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  const std::pair<std::function<void(StaticPoolParameters&)>, const char*> cases[] = {
      {[](StaticPoolParameters& p) { p.rows.kernel = 0; }, "pool1: rows.kernel is 0"},
      {[](StaticPoolParameters& p) { p.columns.pad_after = 3; }, "pool1: columns has a pad of 3, must be smaller than"},
      {[](StaticPoolParameters& p) { p.input.bits = 1; }, "pool1: input"},
      {[](StaticPoolParameters& p) { p.output.shift = 1; }, "pool1: output is another grid than input"},
      {[](StaticPoolParameters& p) { p.kind = static_cast<PoolKind>(2); }, "pool1: kind is 2, must be 0 or 1"},
      {[](StaticPoolParameters& p) { p.rows.kernel = p.columns.kernel = 2048; }, "the window has 4194304 pixels"},
  };
  for (const auto& [change, message] : cases) {
    StaticPoolParameters p = good;
    change(p);
    const Status status = StaticPool::create(p, "pool1").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(has(status, message)) << status.message();
  }
  std::vector<std::byte> x(4 * 4 * 3), y(2 * 4 * 3);
  EXPECT_TRUE(pool->forward(x, y, 1, {4, 4}, 3).ok());
  EXPECT_TRUE(has(pool->forward(x, y, -1, {4, 4}, 3), "pool1: images is -1"));
  EXPECT_TRUE(has(pool->forward(x, y, 1, {1, 4}, 3), "must be at most the padded image, 1"));
  EXPECT_TRUE(has(pool->forward(x, y, 1, {4, 4}, 0), "pool1: channels is 0"));
  EXPECT_TRUE(has(pool->forward(x, y, 2, {4, 4}, 3), "x has 48 bytes, must have at least 96"));
  const Result<StaticPool> apart =
      StaticPool::create({.columns = {.kernel = 2, .dilation = 3, .pad_before = 1, .pad_after = 1}}, "pool2");
  ASSERT_TRUE(apart.ok()) << apart.status().message();
  EXPECT_TRUE(has(apart->forward(x, y, 1, {1, 2}, 3), "pool2: columns: output 0 has no pixel of x in its window"));
}

TEST(Conv, Sizes) {
  const auto size = [](const ConvAxis& rows, int64_t pixels, bool transposed = false) {
    ConvShape shape{.rows = rows, .transposed = transposed};
    const Result<ImageSize> y = conv_output_size(shape, {pixels, 1}, "conv");
    return y.ok() ? y->rows : -1;
  };
  EXPECT_EQ(size({.kernel = 3, .pad_before = 1, .pad_after = 1}, 7), 7);
  EXPECT_EQ(size({.kernel = 3, .stride = 2, .pad_after = 1}, 8), 4);  // SAME of TensorFlow
  EXPECT_EQ(size({.kernel = 3, .dilation = 3}, 7), 1);
  EXPECT_EQ(size({.kernel = 3, .dilation = 3}, 6), -1);
  EXPECT_EQ(size({.kernel = 2, .stride = 2}, 5, true), 10);
  EXPECT_EQ(size({.kernel = 4, .stride = 2, .pad_before = 1, .pad_after = 1, .more = 1}, 5, true), 11);
  EXPECT_EQ(size({.kernel = 1, .pad_before = 1}, 1, true), -1);
}

TEST(Conv, RefusesByName) {
  const ConvShape good{.channels = 6, .outputs = 4, .groups = 2, .rows = {.kernel = 3}, .columns = {.kernel = 2}};
  ASSERT_TRUE(check_conv_shape(good, "conv1").ok());
  constexpr int64_t kHuge = int64_t{1} << 40;
  const std::pair<std::function<void(ConvShape&)>, const char*> cases[] = {
      {[](ConvShape& s) { s.channels = 0; }, "conv1: channels is 0, must be 1 to 2147483647"},
      {[](ConvShape& s) { s.outputs = -4; }, "outputs is -4"},
      {[](ConvShape& s) { s.groups = 4; }, "groups is 4, must be a divisor of 6 channels and 4 outputs"},
      {[](ConvShape& s) { s.groups = 0; }, "groups is 0"},
      {[](ConvShape& s) { s.rows.kernel = 0; }, "rows.kernel is 0"},
      {[](ConvShape& s) { s.columns.stride = 0; }, "columns.stride is 0"},
      {[](ConvShape& s) { s.columns.dilation = 0; }, "columns.dilation is 0"},
      {[](ConvShape& s) { s.rows.pad_after = -1; }, "rows.pad_after is -1, must be 0 to"},
      {[=](ConvShape& s) { s.rows.pad_before = kHuge; }, "rows.pad_before is 1099511627776"},
      {[](ConvShape& s) { s.rows.dilation = INT32_MAX; }, "rows: dilation * (kernel - 1) + 1 is 4294967295"},
      {[](ConvShape& s) { s.rows.kernel = s.columns.kernel = 1 << 20; }, "kernel elements is 1099511627776"},
      {[](ConvShape& s) { s.rows.more = 1; }, "rows.more is 1, must be 0 where the convolution is not transposed"},
      {[](ConvShape& s) { s.transposed = true, s.rows = {.kernel = 3, .stride = 2, .more = 2}; },
       "rows.more is 2, must be 0 to 1"},
  };
  for (const auto& [change, message] : cases) {
    ConvShape shape = good;
    change(shape);
    const Status status = check_conv_shape(shape, "conv1");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(has(status, message)) << status.message();
  }
  const std::pair<ImageSize, const char*> images[] = {
      {{0, 5}, "conv1: the image's rows is 0"},
      {{5, kHuge}, "the image's columns is 1099511627776"},
      {{2, 5}, "rows: dilation * (kernel - 1) + 1 is 3, must be at most the padded image, 2"},
  };
  for (const auto& [image, message] : images) {
    const Status status = conv_output_size(good, image, "conv1").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(has(status, message)) << status.message();
  }
}

TEST(Conv, ShapesOfAttributes) {
  const ConvWeights weights{.outputs = 6, .kernel_rows = 3, .kernel_columns = 2, .channels = 4};
  const Result<ConvShape> shape = conv_shape_of(weights,
                                                {.stride = {1, 2},
                                                 .dilation = {3, 4},
                                                 .padding = {5, 6, 7, 8},
                                                 .output_padding = {1, 0},
                                                 .groups = 2,
                                                 .transposed = true},
                                                "conv1");
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  const ConvAxis rows{.kernel = 3, .stride = 1, .dilation = 3, .pad_before = 5, .pad_after = 6, .more = 1};
  const ConvAxis columns{.kernel = 2, .stride = 2, .dilation = 4, .pad_before = 7, .pad_after = 8};
  EXPECT_EQ(
      *shape,
      (ConvShape{.channels = 8, .outputs = 6, .groups = 2, .rows = rows, .columns = columns, .transposed = true}));
  constexpr int64_t kMost = INT64_MAX;
  for (const auto& [groups, message] :
       {std::pair<int64_t, const char*>{0, "conv1: groups is 0, must be 1 to 6, the output channels"},
        {kMost, "conv1: groups is 9223372036854775807, must be 1 to 6, the output channels"},
        {4, "conv1: groups is 4, must be a divisor of 16 channels and 6 outputs"}}) {
    const Status status = conv_shape_of(weights, {.groups = groups}, "conv1").status();
    EXPECT_EQ(status.message(), message);
  }
  const Status wide = conv_shape_of({.outputs = 2, .channels = kMost}, {.groups = 2}, "conv1").status();
  EXPECT_TRUE(has(wide, "conv1: channels is 9223372036854775807")) << wide.message();
}

}  // namespace
}  // namespace isobit
