// SPDX-License-Identifier: Apache-2.0
// Convolutions of static codes on every path against the reference, byte for byte, and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "conv/random_layer.h"
#include "conv/reference.h"
#include "core/codes.h"
#include "core/random.h"
#include "isobit/conv.h"
#include "isobit/parallel.h"
#include "testing/guarded_bytes.h"
#include "testing/required.h"
#include "testing/sanitized.h"

namespace isobit {
namespace {

using testing::GuardedBytes;

/// Rows of codes of a grid, `stride` from one to the next.
void fill(Random& random, const Grid& grid, GuardedBytes& memory) {
  const auto count = static_cast<int64_t>(memory.bytes().size() / size_in_bytes(grid.dtype()));
  for (int64_t i = 0; i < count; ++i)
    store_code(memory.data(), grid.dtype(), i, random.between(grid.min(), grid.max()));
}
std::span<std::byte> bytes_of(GuardedBytes& memory) {
  return {reinterpret_cast<std::byte*>(memory.data()), memory.bytes().size()};
}

int64_t compare(const RandomStaticConv& c, Random& random) {
  const ConvShape& shape = c.p.shape;
  const StaticLinearParameters& linear = c.p.linear;
  const int64_t x_stride = shape.channels + random.between(0, 2), y_stride = shape.outputs + random.between(0, 2);
  const int64_t pixels = c.image.rows * c.image.columns, outputs = c.size.rows * c.size.columns;
  const auto size = [&](int64_t rows, int64_t stride, int64_t columns, Dtype dtype) {
    return ((c.images * rows - 1) * stride + columns) * static_cast<int64_t>(size_in_bytes(dtype));
  };
  GuardedBytes x(size(pixels, x_stride, shape.channels, linear.x_dtype()));
  fill(random, linear.input, x);
  GuardedBytes residual(c.p.residual ? size(outputs, y_stride, shape.outputs, c.p.residual->grid.dtype()) : 0);
  if (c.p.residual) fill(random, c.p.residual->grid, residual);

  std::vector<int64_t> expected;
  for (int64_t b = 0; b < c.images; ++b) {
    std::vector<int32_t> image;
    for (int64_t i = 0; i < pixels; ++i)
      for (int64_t k = 0; k < shape.channels; ++k)
        image.push_back(static_cast<int32_t>(load_code(x.data(), linear.x_dtype(), (b * pixels + i) * x_stride + k) -
                                             linear.input.zero_point));
    std::vector<int64_t> added;
    for (int64_t i = 0; c.p.residual && i < outputs; ++i)
      for (int64_t o = 0; o < shape.outputs; ++o)
        added.push_back(load_code(residual.data(), c.p.residual->grid.dtype(), (b * outputs + i) * y_stride + o));
    const std::vector<int64_t> y =
        reference_static_conv(c.p, c.image, c.size, image.data(), added.empty() ? nullptr : added.data());
    expected.insert(expected.end(), y.begin(), y.end());
  }

  int64_t compared = 0;
  for (const CpuPath path : kAllCpuPaths) {
    SCOPED_TRACE(to_string(path));
    if (!cpu_can_run(path)) {
      EXPECT_FALSE(testing::required(path)) << cpu_cannot_run_reason(path);
      continue;
    }
    const Result<StaticConvLayer> layer = StaticConvLayer::create(c.p, "conv", path);
    if (!layer.ok()) {
      ADD_FAILURE() << layer.status().message();
      return 0;
    }
    EXPECT_EQ(layer->path(), path);
    for (const int32_t threads : {1, 3}) {
      ThreadPool pool(threads);
      Result<Workspace> workspace = layer->workspace(c.images, c.image, threads);
      if (!workspace.ok()) {
        ADD_FAILURE() << workspace.status().message();
        return 0;
      }
      std::memset(workspace->data(), 0x5a, static_cast<size_t>(workspace->size_bytes()));
      GuardedBytes y(size(outputs, y_stride, shape.outputs, linear.y_dtype()));
      std::memset(y.data(), 0x77, y.bytes().size());
      const RunOptions options{.pool = threads == 1 ? nullptr : &pool, .x_stride = x_stride, .y_stride = y_stride};
      const Status status =
          layer->forward(bytes_of(x), bytes_of(y), c.images, c.image, *workspace, options, bytes_of(residual));
      if (!status.ok()) {
        ADD_FAILURE() << status.message();
        return 0;
      }
      for (int64_t i = 0; i < c.images * outputs; ++i)
        for (int64_t o = 0; o < y_stride && i * y_stride + o < size(outputs, y_stride, shape.outputs, Dtype::kU8);
             ++o) {
          const int64_t code = load_code(y.data(), linear.y_dtype(), i * y_stride + o);
          if (o >= shape.outputs) {
            uint8_t untouched[4];
            std::memset(untouched, 0x77, sizeof untouched);
            EXPECT_EQ(code, load_code(untouched, linear.y_dtype(), 0)) << "between pixels";
          } else if (code != expected[static_cast<size_t>(i * shape.outputs + o)]) {
            ADD_FAILURE() << "output " << i << ", channel " << o << ": " << code << ", must be "
                          << expected[static_cast<size_t>(i * shape.outputs + o)];
            return 0;
          }
          ++compared;
        }
    }
  }
  return compared;
}

TEST(StaticConv, EveryPathEqualsTheReference) {
  Random random(2026);
  int64_t compared = 0;
  int depthwise = 0, transposed = 0, residuals = 0, wide_codes = 0, large = 0;
  for (int i = 0; i < (testing::kSanitized ? 40 : 600) && !::testing::Test::HasFailure(); ++i) {
    const RandomStaticConv c = RandomStaticConv::random(random);
    SCOPED_TRACE(c.text());
    compared += compare(c, random);
    depthwise += c.p.shape.groups > 1 && c.p.shape.groups == c.p.shape.channels;
    transposed += c.p.shape.transposed;
    residuals += c.p.residual.has_value();
    wide_codes += c.p.linear.input.bits > 8;
    large += c.size.rows * c.size.columns > 600;  // more outputs than are computed together
  }
  std::printf("%lld outputs compared\n", static_cast<long long>(compared));
  if (testing::kSanitized) return;  // too few cases for all kinds
  EXPECT_GT(std::min({depthwise, transposed, residuals, wide_codes, large}), 3);
}

// x of unsigned bytes without pads, in whole quads: kernels read x itself, to its last byte.
TEST(StaticConv, ReadsXInPlace) {
  Random random(41);
  for (int i = 0; i < (testing::kSanitized ? 10 : 80) && !::testing::Test::HasFailure(); ++i) {
    RandomStaticConv c;
    const int64_t groups = random.one_in(3) ? 2 : 1;
    c.p.shape = {.channels = 4 * groups * random.between(1, 20), .outputs = groups * random.between(2, 50)};
    c.p.shape.groups = groups;
    for (ConvAxis* const axis : {&c.p.shape.rows, &c.p.shape.columns})
      *axis = {.kernel = random.between(1, 3), .stride = random.between(1, 3), .dilation = random.between(1, 2)};
    c.image = {random.between(5, 9), random.between(5, 9)};
    if (random.one_in(4)) c.image = {random.between(30, 40), random.between(30, 40)};
    c.images = random.between(1, 3);
    c.size = conv_output_size(c.p.shape, c.image, "conv").value();
    c.p.linear = random_conv_linear(random, c.p.shape.outputs, c.p.shape.depth(),
                                    {.bits = 8, .is_signed = false, .zero_point = random.between(0, 255)},
                                    random_code_grid(random, 8));
    SCOPED_TRACE(c.text());
    compare(c, random);
  }
}

/// Of most kinds that there are: y of 8 and 16 bits, or acc, some with a residual.
void add_layer(RandomStaticConv& c, Random& random, int32_t x_bits) {
  const Grid output = random_code_grid(random, random.one_in(5) ? 16 : 8);
  c.p.linear = random_conv_linear(random, c.p.shape.outputs, c.p.shape.depth(), random_code_grid(random, x_bits),
                                  random.one_in(6) ? std::nullopt : std::optional(output));
  if (c.p.linear.output && random.one_in(5))
    c.p.residual = StaticResidual{random_code_grid(random, 8), {static_cast<int32_t>(random.between(1, 1 << 30)), 29}};
}

// Kernels of 3 x 3, whose columns are shared by outputs of a row, and those beside them; blocks of channels and their
// rests; outputs of few channels as one of many; sums that become codes where they are, and all others.
TEST(StaticConv, DepthwiseColumns) {
  Random random(43);
  for (int i = 0; i < (testing::kSanitized ? 8 : 90) && !::testing::Test::HasFailure(); ++i) {
    RandomStaticConv c;
    ConvShape& shape = c.p.shape;
    const int64_t channels[] = {2, 3, 7, 12, 15, 16, 31, 32, 33, 63, 64, 65, 96, 97, 128, 200};
    shape.channels = shape.groups = channels[random.between(0, 15)];
    shape.outputs = shape.channels * (random.one_in(4) ? 2 : 1);
    shape.transposed = random.one_in(6);
    for (ConvAxis* const axis : {&shape.rows, &shape.columns}) {
      axis->kernel = random.one_in(5) ? random.between(2, 5) : 3;
      axis->stride = random.between(1, 3);
      axis->dilation = random.one_in(3) ? random.between(2, 4) : 1;
      axis->pad_before = random.between(0, 2), axis->pad_after = random.between(0, 2);
    }
    c.image = {random.between(17, 20), random.between(17, shape.channels < 17 ? 70 : 20)};
    c.images = random.between(1, 2);
    c.size = conv_output_size(shape, c.image, "conv").value();
    add_layer(c, random, random.one_in(5) ? 16 : 8);
    SCOPED_TRACE(c.text());
    compare(c, random);
  }
}

// So many that AMX takes their rows, which are gathered before.
TEST(StaticConv, ManyOutputs) {
  Random random(47);
  for (int i = 0; i < (testing::kSanitized ? 2 : 10) && !::testing::Test::HasFailure(); ++i) {
    RandomStaticConv c;
    ConvShape& shape = c.p.shape;
    shape.groups = random.one_in(4) ? 2 : 1;
    shape.channels = shape.groups * random.between(61, 80);
    shape.outputs = shape.groups * random.between(256, 300);
    shape.transposed = random.one_in(6);
    for (ConvAxis* const axis : {&shape.rows, &shape.columns}) {
      axis->kernel = random.between(1, 3);
      axis->stride = random.between(1, 2);
      axis->dilation = random.one_in(4) ? 2 : 1;
      axis->pad_before = random.between(0, 1), axis->pad_after = random.between(0, 1);
    }
    c.image = {random.between(5, 9), random.between(5, 9)};
    if (random.one_in(4)) c.image = {random.between(16, 20), random.between(16, 20)};
    c.size = conv_output_size(shape, c.image, "conv").value();
    add_layer(c, random, 8);
    SCOPED_TRACE(c.text());
    compare(c, random);
  }
}

// Residuals that add more than y has, against sums as large, in 16 bits and beyond.
TEST(StaticConv, LargeResiduals) {
  Random random(44);
  for (int i = 0; i < (testing::kSanitized ? 15 : 150) && !::testing::Test::HasFailure(); ++i) {
    RandomStaticConv c;
    ConvShape& shape = c.p.shape;
    shape.groups = random.one_in(2) ? 1 : 20;
    shape.channels = shape.groups == 1 ? random.between(1, 30) : shape.groups;
    shape.outputs = shape.groups == 1 ? random.between(1, 150) : shape.groups;
    c.image = c.size = {random.between(3, 9), random.between(3, 9)};
    c.p.linear = random_conv_linear(random, shape.outputs, shape.depth(), random_code_grid(random, 8),
                                    random_code_grid(random, 8));
    const int32_t up = static_cast<int32_t>(random.between(0, 18));
    for (RescaleParameters& r : c.p.linear.rescales) r.shift -= up;
    // Of 255 * 2^7 and more it is no longer one of 16 bits for certain.
    c.p.residual = StaticResidual{random_code_grid(random, 8),
                                  {static_cast<int32_t>(random.between(1 << 29, 1 << 30)),
                                   std::max<int32_t>(29 - up, static_cast<int32_t>(random.between(18, 30)))}};
    SCOPED_TRACE(c.text());
    compare(c, random);
  }
}

TEST(StaticConv, ChunksGiveTheBytesOfTheWhole) {
  Random random(31);
  int chunks = 0;
  for (int index = 0; index < 60; ++index) {
    StaticConvParameters p;
    const bool depthwise = random.one_in(3);
    p.shape.channels = random.between(1, 20);
    p.shape.groups = depthwise ? p.shape.channels : 1;
    p.shape.outputs = depthwise ? p.shape.channels : random.between(1, 20);
    ConvAxis& axis = p.shape.columns;
    axis = {.kernel = random.between(1, 5), .stride = random.between(1, 3), .dilation = random.between(1, 3)};
    axis.pad_before = random.between(std::max<int64_t>(0, axis.extent() - axis.stride), axis.extent() - 1);
    const Grid output = random_code_grid(random, 8);
    p.linear = random_conv_linear(random, p.shape.outputs, p.shape.depth(),
                                  random_code_grid(random, random.one_in(3) ? 16 : 8), output);
    if (random.one_in(3)) p.residual = StaticResidual{random_code_grid(random, 8), {1 << 29, 29}};
    const int64_t images = random.between(1, 3), columns = axis.stride * random.between(8, 20);
    SCOPED_TRACE("kernel " + std::to_string(axis.kernel) + " stride " + std::to_string(axis.stride) + " dilation " +
                 std::to_string(axis.dilation) + " pad " + std::to_string(axis.pad_before));
    const int64_t x_bytes = p.shape.channels * static_cast<int64_t>(size_in_bytes(p.linear.x_dtype()));
    const int64_t outputs = columns / axis.stride;
    GuardedBytes x(images * columns * x_bytes), residual(p.residual ? images * outputs * p.shape.outputs : 0);
    fill(random, p.linear.input, x);
    if (p.residual) fill(random, p.residual->grid, residual);

    const Result<StaticConvLayer> layer = StaticConvLayer::create(p, "whole");
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    Result<Workspace> workspace = layer->workspace(images, {1, columns});
    ASSERT_TRUE(workspace.ok()) << workspace.status().message();
    std::vector<std::byte> whole(static_cast<size_t>(images * outputs * p.shape.outputs));
    ASSERT_TRUE(layer->forward(bytes_of(x), whole, images, {1, columns}, *workspace, {}, bytes_of(residual)).ok());

    const Result<StaticConvStream> stream = StaticConvStream::create(p, "stream");
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    Result<StaticConvState> state = stream->state(images, columns);
    ASSERT_TRUE(state.ok()) << state.status().message();
    Result<Workspace> of_chunks = stream->workspace(images, columns);
    ASSERT_TRUE(of_chunks.ok()) << of_chunks.status().message();
    for (int64_t first = 0; first < columns; ++chunks) {
      const int64_t count = std::min(columns - first, axis.stride * random.between(0, 4));
      const int64_t y_first = first / axis.stride, y_count = count / axis.stride;
      // Of each image the same columns.
      std::vector<std::byte> part, added, y(static_cast<size_t>(images * y_count * p.shape.outputs));
      for (int64_t b = 0; b < images; ++b) {
        const std::byte* const from = bytes_of(x).data() + (b * columns + first) * x_bytes;
        part.insert(part.end(), from, from + count * x_bytes);
        if (!p.residual) continue;
        const std::byte* const codes = bytes_of(residual).data() + (b * outputs + y_first) * p.shape.outputs;
        added.insert(added.end(), codes, codes + y_count * p.shape.outputs);
      }
      const Status status = stream->forward(part, y, images, count, *state, *of_chunks, {}, added);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int64_t b = 0; b < images; ++b)
        ASSERT_TRUE(std::equal(y.begin() + b * y_count * p.shape.outputs,
                               y.begin() + (b + 1) * y_count * p.shape.outputs,
                               whole.begin() + (b * outputs + y_first) * p.shape.outputs))
            << "columns " << first << " to " << first + count;
      first += count;
    }
  }
  EXPECT_GT(chunks, 300);
}

TEST(StaticConv, StreamsRefuseByName) {
  Random random(5);
  StaticConvParameters p;
  p.shape = {.channels = 2, .outputs = 3, .columns = {.kernel = 3, .stride = 2, .dilation = 2, .pad_before = 4}};
  p.linear = random_conv_linear(random, 3, p.shape.depth(), {.bits = 8}, Grid{.bits = 8});
  const Result<StaticConvStream> stream = StaticConvStream::create(p, "s1");
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  const std::pair<std::function<void(ConvShape&)>, const char*> cases[] = {
      {[](ConvShape& s) { s.columns.pad_before = 2; }, "s1: columns.pad_before is 2, must be 3..4 in a stream"},
      {[](ConvShape& s) { s.columns.pad_before = 5; }, "s1: columns.pad_before is 5, must be 3..4 in a stream"},
      {[](ConvShape& s) { s.columns.pad_after = 1; }, "s1: columns.pad_after is 1, must be 0 in a stream"},
      {[](ConvShape& s) { s.rows.pad_before = 1; }, "s1: rows have a kernel, a stride or pads"},
      {[](ConvShape& s) { s.transposed = true; }, "s1: the convolution is transposed"},
  };
  for (const auto& [change, message] : cases) {
    StaticConvParameters bad = p;
    change(bad.shape);
    const Status status = StaticConvStream::create(bad, "s1").status();
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status.message();
  }
  EXPECT_FALSE(stream->state(0, 4).ok());
  Result<StaticConvState> state = stream->state(2, 6);
  ASSERT_TRUE(state.ok());
  Result<Workspace> workspace = stream->workspace(2, 6);
  ASSERT_TRUE(workspace.ok());
  std::vector<std::byte> x(2 * 6 * 2), y(2 * 3 * 3);
  const auto message = [&](int64_t images, int64_t columns) {
    return std::string(stream->forward(x, y, images, columns, *state, *workspace).message());
  };
  EXPECT_EQ(message(2, 6), "");
  EXPECT_EQ(message(1, 6), "s1: images is 1, but the state is of 2, or of another stream");
  EXPECT_EQ(message(2, 3).find("s1: columns is 3, must be 0 to 6"), 0u);
  EXPECT_EQ(message(2, 8).find("s1: columns is 8, must be 0 to 6"), 0u);

  // As many codes seen, of fewer channels: runs of this stream have no room there.
  StaticConvParameters narrow = p;
  narrow.shape.channels = 1;
  narrow.shape.columns = {.kernel = 9, .pad_before = 8};
  narrow.linear = random_conv_linear(random, 3, 9, {.bits = 8}, Grid{.bits = 8});
  const Result<StaticConvStream> other = StaticConvStream::create(narrow, "s2");
  ASSERT_TRUE(other.ok()) << other.status().message();
  state = other->state(2, 6);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(message(2, 6), "s1: images is 2, but the state is of 2, or of another stream");

  p.linear.input = {.bits = 4, .is_signed = false};
  const Result<StaticConvStream> coarse = StaticConvStream::create(p, "s3");
  ASSERT_TRUE(coarse.ok()) << coarse.status().message();
  state = coarse->state(2, 6);
  ASSERT_TRUE(state.ok());
  x[2 * 3 + 1] = std::byte{16};
  EXPECT_EQ(std::string(coarse->forward(x, y, 2, 6, *state, *workspace).message()),
            "s3: x[3, 1] is 16, must be 0..15, a code of the input grid");
}

TEST(StaticConv, AWorkspaceOfAStreamHoldsShorterChunks) {
  Random random(6);
  StaticConvParameters p;
  p.shape = {.channels = 16, .outputs = 3, .columns = {.kernel = 3, .stride = 2, .pad_before = 2}};
  p.linear = random_conv_linear(random, 3, p.shape.depth(), {.bits = 8}, Grid{.bits = 8});
  for (const std::optional<CpuPath> path : {std::optional<CpuPath>(), std::optional(CpuPath::kReference)}) {
    const Result<StaticConvStream> stream = StaticConvStream::create(p, "s", path);
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    constexpr int64_t kImages = 5, kColumns = 1201;
    Result<StaticConvState> state = stream->state(kImages, kColumns);
    Result<Workspace> workspace = stream->workspace(kImages, kColumns);
    ASSERT_TRUE(state.ok() && workspace.ok());
    std::vector<std::byte> x(kImages * kColumns * 16), y(x.size());
    for (int64_t columns = 0; columns < kColumns; columns += path ? 240 : 2) {
      const Status status = stream->forward(x, y, kImages, columns, *state, *workspace);
      ASSERT_TRUE(status.ok()) << columns << ": " << status.message();
    }
  }
  const Result<StaticConvStream> stream = StaticConvStream::create(p, "s");
  EXPECT_TRUE(stream->workspace(1, 1).ok());
  EXPECT_EQ(std::string(stream->workspace(0, 6).status().message()), "s: images is 0, must be 1 to 2147483647");
  EXPECT_EQ(std::string(stream->workspace(1, 0).status().message()), "s: columns is 0, must be 1 to 2147483647");
}

RandomStaticConv small_case() {
  Random random(7);
  RandomStaticConv c;
  c.p.shape = {
      .channels = 4, .outputs = 3, .rows = {.kernel = 3, .pad_before = 1, .pad_after = 1}, .columns = {.kernel = 2}};
  c.image = {5, 4};
  c.size = {5, 3};
  c.p.linear = random_conv_linear(random, 3, c.p.shape.depth(), {.bits = 5, .is_signed = true},
                                  Grid{.bits = 8, .is_signed = true, .zero_point = 3});
  return c;
}

TEST(StaticConv, RefusesByName) {
  const RandomStaticConv good = small_case();
  ASSERT_TRUE(StaticConvLayer::create(good.p, "c1").ok());
  const std::pair<std::function<void(StaticConvParameters&)>, const char*> cases[] = {
      {[](StaticConvParameters& p) { p.shape.groups = 3; }, "c1: groups is 3, must be a divisor of"},
      {[](StaticConvParameters& p) { p.shape.outputs = 4; }, "c1: linear.rows is 3, must be 4, as the shape says"},
      {[](StaticConvParameters& p) { p.shape.rows.kernel = 2; }, "c1: linear.columns is 24, must be 16"},
      {[](StaticConvParameters& p) { p.linear.hi = 400; }, "c1: hi is 400"},
      {[](StaticConvParameters& p) {
         p.residual = StaticResidual{{.bits = 1}, {1, 0}};
       },
       "c1: residual.grid"},
      {[](StaticConvParameters& p) {
         p.residual = StaticResidual{{.bits = 8}, {0, 0}};
       },
       "residual.rescale is 0 * 2^-0"},
      {[](StaticConvParameters& p) {
         p.residual = StaticResidual{{.bits = 16}, {1 << 30, -32}};
       },
       "c1: output 0 with its residual can reach"},
  };
  for (const auto& [change, message] : cases) {
    StaticConvParameters p = good.p;
    change(p);
    const Status status = StaticConvLayer::create(p, "c1").status();
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status.message();
  }
}

TEST(StaticConv, NamesItsKernel) {
  const RandomStaticConv c = small_case();
  for (const LinearLayerKernel& kernel : static_conv_kernels()) {
    if (!cpu_can_run(kernel.path)) continue;
    const Result<StaticConvLayer> layer = StaticConvLayer::create(c.p, "c1", kernel.path);
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    EXPECT_EQ(layer->kernel_name(), kernel.name);
  }
}

TEST(StaticConv, RefusesRuns) {
  const RandomStaticConv c = small_case();
  const Result<StaticConvLayer> layer = StaticConvLayer::create(c.p, "c1");
  ASSERT_TRUE(layer.ok()) << layer.status().message();
  std::vector<std::byte> x(2 * 5 * 4 * 4), y(2 * 5 * 3 * 3), residual(y.size());
  Result<Workspace> workspace = layer->workspace(2, c.image);
  ASSERT_TRUE(workspace.ok());
  const auto refused = [&](int64_t images, const ImageSize& image, std::span<const std::byte> xs,
                           std::span<std::byte> ys, Workspace& w, std::span<const std::byte> rs = {}) {
    return std::string(layer->forward(xs, ys, images, image, w, {}, rs).message());
  };
  EXPECT_EQ(refused(2, c.image, x, y, *workspace), "");
  EXPECT_EQ(refused(0, c.image, {}, {}, *workspace), "");
  const auto has = [](const std::string& message, const char* text) {
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  has(refused(-1, c.image, x, y, *workspace), "c1: images is -1, must be at least 0");
  has(refused(2, {5, 1}, x, y, *workspace), "columns: dilation * (kernel - 1) + 1 is 2, must be at most the padded");
  has(refused(3, c.image, x, y, *workspace), "x has 160 bytes, must have at least 240");
  has(refused(2, c.image, x, std::span(y).first(80), *workspace), "y has 80 bytes, must have at least 90");
  has(refused(2, c.image, x, std::span(x).first(90), *workspace), "y overlaps x");
  has(refused(2, c.image, x, y, *workspace, residual), "c1: residual has 90 bytes, must be empty");
  Workspace none;
  has(refused(2, c.image, x, y, none), "2 images");
  x[4 * 7 + 2] = std::byte{16};
  has(refused(2, c.image, x, y, *workspace), "c1: x[7, 2] is 16, must be -16..15, a code of the input grid");
  has(std::string(layer->workspace(int64_t{1} << 58, {1 << 20, 4}).status().message()), "c1: x has");

  StaticConvParameters adds = c.p;
  adds.residual = StaticResidual{{.bits = 4, .is_signed = true}, {1, 0}};
  const Result<StaticConvLayer> adding = StaticConvLayer::create(adds, "c2");
  ASSERT_TRUE(adding.ok()) << adding.status().message();
  x[4 * 7 + 2] = std::byte{0};
  has(std::string(adding->forward(x, y, 2, c.image, *workspace).message()), "c2: residual has 0 bytes");
  std::vector<std::byte> twice(91);
  has(std::string(adding->forward(x, std::span(twice).first(90), 2, c.image, *workspace, {}, std::span(twice).last(90))
                      .message()),
      "y overlaps residual, must be apart from it");
  std::fill(y.begin(), y.end(), std::byte{0});
  EXPECT_EQ(std::string(adding->forward(x, y, 2, c.image, *workspace, {}, y).message()), "");
  residual[4] = std::byte{9};
  has(std::string(adding->forward(x, y, 2, c.image, *workspace, {}, residual).message()),
      "c2: residual[1, 1] is 9, must be -8..7, a code of the residual grid");
}

}  // namespace
}  // namespace isobit
