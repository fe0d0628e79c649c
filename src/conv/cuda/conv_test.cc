// SPDX-License-Identifier: Apache-2.0
// DeviceStaticConv against StaticConvLayer on the CPU, byte for byte.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conv/random_layer.h"
#include "core/codes.h"
#include "core/random.h"
#include "isobit/cuda/conv.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using testing::GuardedDeviceBuffer;
using testing::Stream;

class CudaConv : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }
};

std::vector<uint8_t> random_codes(Random& random, const Grid& grid, int64_t count) {
  std::vector<uint8_t> codes(static_cast<size_t>(count) * size_in_bytes(grid.dtype()));
  for (int64_t i = 0; i < count; ++i)
    store_code(reinterpret_cast<std::byte*>(codes.data()), grid.dtype(), i, random.between(grid.min(), grid.max()));
  return codes;
}
std::span<std::byte> bytes_of(std::vector<uint8_t>& codes) { return std::as_writable_bytes(std::span(codes)); }

/// One layer, and one run of it on the host and on the device.
struct BothSides {
  explicit BothSides(const RandomStaticConv& c) : host(*StaticConvLayer::create(c.p, "conv")), layer(c) {
    Result<DeviceStaticConv> made = DeviceStaticConv::create(host);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) device.emplace(*std::move(made));
  }

  /// How many outputs there are; 0 where the comparison failed.
  int64_t compare(Random& random, int64_t x_more, int64_t y_more, bool graph, std::string_view kernel = {}) const {
    const StaticConvParameters& p = layer.p;
    const int64_t pixels = layer.images * layer.image.rows * layer.image.columns;
    const int64_t outputs = layer.images * layer.size.rows * layer.size.columns;
    const RunOptions strides{.x_stride = p.shape.channels + x_more, .y_stride = p.shape.outputs + y_more};
    std::vector<uint8_t> x = random_codes(random, p.linear.input, pixels * strides.x_stride);
    std::vector<uint8_t> added;
    if (p.residual) added = random_codes(random, p.residual->grid, outputs * strides.y_stride);
    const auto y_bytes = static_cast<int64_t>(size_in_bytes(p.linear.y_dtype()));
    std::vector<uint8_t> expected(static_cast<size_t>(outputs * strides.y_stride * y_bytes),
                                  GuardedDeviceBuffer::kCanary);
    Workspace workspace = *host.workspace(layer.images, layer.image);
    EXPECT_TRUE(
        host.forward(bytes_of(x), bytes_of(expected), layer.images, layer.image, workspace, strides, bytes_of(added))
            .ok());

    const Stream stream;
    const int64_t needed = *device->workspace_bytes(layer.images, layer.image, kernel);
    GuardedDeviceBuffer x_d(static_cast<int64_t>(x.size())), y_d(static_cast<int64_t>(expected.size())),
        added_d(static_cast<int64_t>(added.size())), workspace_d(needed);
    x_d.write(x);
    added_d.write(added);
    RunOptions options = strides;
    options.stream = stream.stream;
    options.kernel = kernel;
    const auto run = [&] {
      return device->forward(x_d.bytes(), y_d.bytes(), layer.images, layer.image, workspace_d.bytes(), options,
                             p.residual ? added_d.bytes() : std::span<std::byte>());
    };
    const Status status = graph ? testing::through_graph(stream.stream, run) : run();
    EXPECT_TRUE(status.ok()) << status.message();
    const Status checked = device->check_input(workspace_d.bytes(), stream.stream);
    EXPECT_TRUE(checked.ok()) << checked.message();
    const bool same = y_d.read<uint8_t>() == expected;
    EXPECT_TRUE(same) << layer.text() << ", " << kernel;
    static_cast<void>(workspace_d.read<uint8_t>());
    static_cast<void>(x_d.read<uint8_t>());
    return same ? outputs * p.shape.outputs : 0;
  }

  StaticConvLayer host;
  RandomStaticConv layer;
  std::optional<DeviceStaticConv> device;
};

TEST_F(CudaConv, RandomLayersGiveTheBytesOfTheHost) {
  constexpr std::string_view kGeneral[] = {"direct",      "product",    "tile_128x128",
                                           "tile_128x64", "tile_64x64", "tile_64x32"};
  Random random(17);
  std::map<std::string_view, int64_t> outputs;
  int residuals = 0, transposed = 0;
  for (int i = 0; i < (testing::sanitized() ? 40 : 800) && !HasFailure(); ++i) {
    const RandomStaticConv c = RandomStaticConv::random(random);
    const Status proof = StaticConvLayer::create(c.p, "conv", CpuPath::kReference).status();
    if (proof.code() == StatusCode::kOverflow) continue;
    ASSERT_TRUE(proof.ok()) << proof.message();
    const BothSides run(c);
    ASSERT_TRUE(run.device.has_value());
    for (const std::string_view kernel : kGeneral) {
      if (!run.device->workspace_bytes(c.images, c.image, kernel).ok()) continue;
      // tile copies whole pieces of 16 codes where channels allow it.
      const bool whole = kernel.starts_with("tile") && c.p.shape.group_channels() % 16 == 0;
      const int64_t x_more = whole ? 16 * random.between(0, 1) : random.between(0, 2);
      outputs[kernel] += run.compare(random, x_more, random.between(0, 2), i % 7 == 0, kernel);
    }
    residuals += c.p.residual.has_value();
    transposed += c.p.shape.transposed;
  }
  for (const std::string_view kernel : kGeneral) EXPECT_GT(outputs[kernel], testing::sanitized() ? 0 : 10000) << kernel;
  EXPECT_GT(residuals, 2);
  EXPECT_GT(transposed, 2);
}

TEST_F(CudaConv, DepthwiseLayersGiveTheBytesOfTheHost) {
  Random random(21);
  for (int i = 0; i < (testing::sanitized() ? 8 : 120) && !HasFailure(); ++i) {
    RandomStaticConv c;
    const int64_t kernel = i % 2 == 0 ? 3 : 5;
    const int64_t channels = 4 * random.between(1, 20);
    c.p.shape = {.channels = channels,
                 .outputs = channels,
                 .groups = channels,
                 .rows = random_depthwise_axis(random, kernel),
                 .columns = random_depthwise_axis(random, kernel)};
    c.images = random.between(1, 3);
    c.image = {random.between(17, 40), random.between(17, 40)};
    c.size = *conv_output_size(c.p.shape, c.image, "conv");
    const Grid x = random_code_grid(random, 8);
    const int32_t y_bits[] = {8, 8, 12, 0};
    const int32_t bits = y_bits[i % 4];
    std::optional<Grid> y;
    if (bits != 0) y = random_code_grid(random, bits);
    c.p.linear = random_conv_linear(random, channels, kernel * kernel, x, y);
    if (y && random.one_in(3)) c.p.residual = StaticResidual{x, {1 << 28, 29}};
    const BothSides run(c);
    ASSERT_TRUE(run.device.has_value());
    EXPECT_GT(run.compare(random, random.one_in(2) ? 4 : 0, random.between(0, 2), false, "depthwise"), 0);
  }
}

/// Shapes of networks, which take many rows, several parts, and vectors of 8 codes.
TEST_F(CudaConv, LayersOfNetworks) {
  Random random(18);
  const ConvAxis three{.kernel = 3, .pad_before = 1, .pad_after = 1}, one{};
  const ConvAxis three_by_two{.kernel = 3, .stride = 2, .pad_after = 1};
  const ConvAxis seven{.kernel = 7, .stride = 2, .pad_before = 3, .pad_after = 3};
  const struct {
    ConvShape shape;
    ImageSize image;
  } cases[] = {{{.channels = 64, .outputs = 64, .rows = three, .columns = three}, {28, 28}},
               {{.channels = 256, .outputs = 64, .rows = one, .columns = one}, {28, 28}},
               {{.channels = 128, .outputs = 256, .rows = three_by_two, .columns = three_by_two}, {14, 15}},
               {{.channels = 3, .outputs = 64, .rows = seven, .columns = seven}, {56, 56}},
               {{.channels = 96, .outputs = 96, .groups = 96, .rows = three, .columns = three}, {28, 28}},
               {{.channels = 64, .outputs = 128, .groups = 4, .rows = three, .columns = three}, {14, 14}},
               {{.channels = 64, .outputs = 64, .rows = three, .columns = three}, {112, 112}}};
  for (const auto& one_case : cases) {
    if (testing::sanitized() && one_case.image.rows > 30) continue;
    for (const bool residual : {false, true}) {
      RandomStaticConv c;
      c.p.shape = one_case.shape;
      c.image = one_case.image;
      c.size = *conv_output_size(c.p.shape, c.image, "conv");
      c.images = 2;
      const Grid x{.bits = 8, .is_signed = !residual, .zero_point = residual ? 131 : -7};
      const Grid y{.bits = 8, .is_signed = true, .zero_point = 5};
      c.p.linear = random_conv_linear(random, c.p.shape.outputs, c.p.shape.depth(), x, y);
      if (residual) c.p.residual = StaticResidual{x, {1 << 28, 29}};
      const BothSides run(c);
      ASSERT_TRUE(run.device.has_value());
      EXPECT_GT(run.compare(random, 0, 0, false), 0);
      // racecheck does not follow stages of shared memory that are used again.
      if (!testing::racecheck() && run.device->workspace_bytes(c.images, c.image, "product").ok()) {
        EXPECT_GT(run.compare(random, 0, 0, false, "product"), 0);
      }
    }
  }
}

TEST_F(CudaConv, CodesOutsideTheGrid) {
  Random random(19);
  for (const int64_t channels : {3, 32}) {
    RandomStaticConv c;
    c.p.shape = {.channels = channels, .outputs = 40, .rows = {.kernel = 2}, .columns = {.kernel = 2}};
    c.image = {6, 5};
    c.size = *conv_output_size(c.p.shape, c.image, "conv");
    const Grid grid{.bits = 5, .is_signed = true};
    c.p.linear = random_conv_linear(random, 40, c.p.shape.depth(), grid, Grid{.bits = 8});
    const BothSides run(c);
    ASSERT_TRUE(run.device.has_value());
    std::vector<uint8_t> x = random_codes(random, grid, 30 * channels), y(20 * 40);
    x[static_cast<size_t>(7 * channels + 1)] = 16;
    x[static_cast<size_t>(9 * channels)] = 0x80;
    std::vector<uint8_t> clamped = x, expected(y.size());
    clamped[static_cast<size_t>(7 * channels + 1)] = 15;
    clamped[static_cast<size_t>(9 * channels)] = static_cast<uint8_t>(-16);
    Workspace workspace = *run.host.workspace(1, c.image);
    ASSERT_TRUE(run.host.forward(bytes_of(clamped), bytes_of(expected), 1, c.image, workspace).ok());
    const std::string told = run.host.forward(bytes_of(x), bytes_of(y), 1, c.image, workspace).message();
    GuardedDeviceBuffer x_d(static_cast<int64_t>(x.size())), y_d(static_cast<int64_t>(y.size())),
        workspace_d(*run.device->workspace_bytes(1, c.image));
    x_d.write(x);
    ASSERT_TRUE(run.device->forward(x_d.bytes(), y_d.bytes(), 1, c.image, workspace_d.bytes()).ok());
    EXPECT_EQ(run.device->check_input(workspace_d.bytes(), nullptr).message(), told);
    EXPECT_EQ(y_d.read<uint8_t>(), expected);
  }
}

TEST_F(CudaConv, RefusalsByName) {
  Random random(20);
  RandomStaticConv c;
  c.p.shape = {.channels = 16, .outputs = 16};
  c.image = c.size = {3, 4};
  c.p.linear = random_conv_linear(random, 16, 16, Grid{.bits = 8}, Grid{.bits = 8});
  const BothSides run(c);
  ASSERT_TRUE(run.device.has_value());
  const int64_t needed = *run.device->workspace_bytes(1, c.image);
  GuardedDeviceBuffer x(12 * 16), y(12 * 16), workspace(needed);
  std::vector<uint8_t> host(12 * 16);
  const auto told = [&](std::span<std::byte> from, std::span<std::byte> to, int64_t images, std::span<std::byte> memory,
                        const RunOptions& options, std::span<std::byte> residual) {
    return run.device->forward(from, to, images, c.image, memory, options, residual).message();
  };
  const auto begins = [](const std::string& text, const std::string& with) {
    EXPECT_EQ(text.substr(0, with.size()), with);
  };
  begins(told(x.bytes(), y.bytes(), -1, workspace.bytes(), {}, {}), "conv: images is -1, must be at least 0");
  begins(told(x.bytes().first(191), y.bytes(), 1, workspace.bytes(), {}, {}),
         "x has 191 bytes, must have at least 192");
  begins(told(bytes_of(host), y.bytes(), 1, workspace.bytes(), {}, {}), "x is host memory");
  begins(told(x.bytes(), y.bytes(), 1, workspace.bytes().first(128), {}, {}), "workspace has 128 bytes, must have ");
  begins(told(x.bytes(), x.bytes(), 1, workspace.bytes(), {}, {}), "y overlaps x");
  begins(told(x.bytes(), y.bytes(), 1, workspace.bytes(), {}, y.bytes()),
         "conv: residual has 192 bytes, must be empty");
  begins(told(x.bytes(), y.bytes(), 1, workspace.bytes(), {.batch_first = true}, {}), "options.batch_first is set");
  begins(
      told(x.bytes(), y.bytes(), 1, workspace.bytes(), {.kernel = "fast"}, {}),
      "conv: kernel is 'fast', must be one of tile_128x128, tile_128x64, tile_64x64, tile_64x32, depthwise, product, "
      "direct");
  GuardedDeviceBuffer wide(12 * 17);
  begins(told(wide.bytes(), y.bytes(), 1, workspace.bytes(), {.kernel = "tile_64x32", .x_stride = 17}, {}),
         "conv: kernel is tile_64x32, which needs x and x_stride to be multiples of 16");
  begins(told(wide.bytes(), y.bytes(), 1, workspace.bytes(), {.kernel = "depthwise"}, {}),
         "conv: kernel is depthwise, which does not run this layer; direct does");
  EXPECT_EQ(told(wide.bytes(), y.bytes(), 1, workspace.bytes(), {.x_stride = 17}, {}), "");  // direct
  EXPECT_FALSE(DeviceStaticConv::create(run.host, 1 << 20).ok());
}

}  // namespace
}  // namespace isobit::cuda
