// SPDX-License-Identifier: Apache-2.0
// Convolutions of floating-point images: against the vectors of the oracle, every path against the reference, and what
// they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "conv/oracle_shape_test.h"
#include "conv/random_float_layer.h"
#include "core/codes.h"
#include "core/random.h"
#include "isobit/conv.h"
#include "isobit/parallel.h"
#include "testing/allocations.h"
#include "testing/guarded_bytes.h"
#include "testing/required.h"
#include "testing/sanitized.h"

namespace isobit {
namespace {

using testing::GuardedBytes;
using testing::Json;

/// Runs body(path) on all that this machine has.
template <typename Body>
void for_paths(const Body& body) {
  for (const CpuPath path : kAllCpuPaths) {
    SCOPED_TRACE(to_string(path));
    if (!cpu_can_run(path)) {
      EXPECT_FALSE(testing::required(path)) << cpu_cannot_run_reason(path);
      continue;
    }
    body(path);
  }
}

void texts_of(const Json& list, std::vector<std::string>& out) {
  if (!list.is_array()) return out.push_back(list.get<std::string>());
  for (const Json& one : list) texts_of(one, out);
}

/// Nested lists of bit patterns.
Array floats_of(const Json& nested, Dtype dtype) {
  std::vector<std::string> texts;
  texts_of(nested, texts);
  return testing::float_rows_of(Json::array({texts}), dtype);
}

/// [O * R * S, C / groups] of a matrix for each (r, s).
LowBitMatrix interleaved(const Json& taps) {
  std::vector<LowBitParameters> parts;
  for (const Json& one : taps) parts.push_back(testing::low_bit_of(one));
  LowBitParameters all = parts[0];
  const auto count = static_cast<int64_t>(parts.size());
  const auto weave = [&](Array LowBitParameters::*field) {
    const Array& first = parts[0].*field;
    if (first.bytes.empty()) return;
    const size_t row = first.bytes.size() / static_cast<size_t>(all.rows);
    Array out = Array::zeros(first.dtype, {all.rows * count, first.size() / all.rows});
    for (int64_t o = 0; o < all.rows; ++o)
      for (int64_t tap = 0; tap < count; ++tap)
        std::memcpy(out.bytes.data() + static_cast<size_t>(o * count + tap) * row,
                    (parts[static_cast<size_t>(tap)].*field).bytes.data() + static_cast<size_t>(o) * row, row);
    all.*field = std::move(out);
  };
  weave(&LowBitParameters::codes);
  weave(&LowBitParameters::scales);
  weave(&LowBitParameters::zero_points);
  weave(&LowBitParameters::offsets);
  all.rows *= count;
  return *LowBitMatrix::create(std::move(all), "W");
}

struct OracleCase {
  ConvShape shape;
  ImageSize image;
  int64_t images;
  Array x;
  std::vector<float> bias;
  LinearClamp clamp;

  OracleCase(const Json& one, int64_t outputs)
      : shape(testing::conv_shape_of(one, outputs, testing::channels_of(one.at("x")))),
        image(testing::image_size_of(one.at("x"))),
        images(static_cast<int64_t>(one.at("x").size())),
        x(floats_of(one.at("x"), Dtype::kF32)) {
    for (const Json& bits : one.at("bias")) bias.push_back(testing::float_of_bits(bits));
    if (const Json& act = one.at("act"); !act.is_null())
      clamp = {testing::float_of_bits(act.at(0)), testing::float_of_bits(act.at(1))};
  }

  [[nodiscard]] Array run(const LowBitMatrix& weights, ConvActivations activations, bool clamps, Dtype y_dtype,
                          CpuPath path) const {
    const Result<ConvLayer> layer = ConvLayer::create(
        shape, weights,
        {.activations = activations, .bias = bias, .clamp = clamps ? clamp : LinearClamp::none(), .path = path},
        "conv");
    EXPECT_TRUE(layer.ok()) << layer.status().message();
    if (!layer.ok()) return {};
    const ImageSize size = *conv_output_size(shape, image, "conv");
    Array y = Array::zeros(y_dtype, {1, images * size.rows * size.columns * shape.outputs});
    Result<Workspace> workspace = layer->workspace(images, image);
    EXPECT_TRUE(workspace.ok()) << workspace.status().message();
    const Status status = layer->forward(x.bytes, Dtype::kF32, y.bytes, y_dtype, images, image, *workspace);
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }
};

TEST(ConvLayer, OracleVectors) {
  int cases = 0, asymmetric = 0, refused = 0;
  for (const Json& one : testing::built_oracle_cases("low_bit.json")) {
    if (one.at("op") != "convolution") continue;
    SCOPED_TRACE(one.dump());
    const LowBitMatrix weights = interleaved(one.at("weights"));
    const auto taps = static_cast<int64_t>(one.at("weights").size());
    const OracleCase c(one, weights.rows() / taps);
    const ConvActivations activations =
        one.at("asymmetric") ? ConvActivations::kInt8Asymmetric : ConvActivations::kInt8;
    const Array expected = floats_of(one.at("y"), testing::float_dtype_of(one.at("y_type")));
    const Array exact = floats_of(one.at("exact"), Dtype::kF64);
    const Result<ConvLayer> made = ConvLayer::create(c.shape, weights, {.activations = activations}, "conv");
    if (!made.ok()) {  // what blocks cannot be filled up with
      EXPECT_EQ(made.status().code(), StatusCode::kUnsupported) << made.status().message();
      EXPECT_NE(made.status().message().find("blocks of channels are filled up to a multiple of 8"), std::string::npos);
      EXPECT_EQ(activations, ConvActivations::kInt8Asymmetric);
      ++refused;
    }
    for_paths([&](CpuPath path) {
      if (made.ok()) {
        EXPECT_EQ(c.run(weights, activations, true, expected.dtype, path).bytes, expected.bytes);
      }
      const Array y = c.run(weights, ConvActivations::kFloat, false, Dtype::kF32, path);
      double error = 0, size = 0;
      for (int64_t i = 0; i < y.size(); ++i) {
        const double right = exact.data<double>()[i];
        error += std::pow(static_cast<double>(y.data<float>()[i]) - right, 2);
        size += right * right;
      }
      EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(static_cast<double>(c.shape.depth())) * std::sqrt(size));
    });
    asymmetric += made.ok() && activations == ConvActivations::kInt8Asymmetric;
    ++cases;
  }
  EXPECT_GT(cases, 30);
  EXPECT_GT(asymmetric, 10);
  EXPECT_LT(refused, cases / 4);
}

TEST(ConvLayer, PerImageOracleVectors) {
  int cases = 0;
  for (const Json& one : testing::built_oracle_cases("low_bit.json")) {
    if (one.at("op") != "per_image_convolution") continue;
    SCOPED_TRACE(one.dump());
    const LowBitMatrix weights = *LowBitMatrix::create(testing::low_bit_of(one.at("weights")), "W");
    const OracleCase c(one, weights.rows());
    const Array expected = floats_of(one.at("y"), testing::float_dtype_of(one.at("y_type")));
    for_paths([&](CpuPath path) {
      EXPECT_EQ(c.run(weights, ConvActivations::kInt8PerImage, true, expected.dtype, path).bytes, expected.bytes);
    });
    ++cases;
  }
  EXPECT_GT(cases, 8);
}

RandomConv random_case(Random& random, ConvActivations activations, bool wild) {
  Result<RandomConv> c = RandomConv::random(random, activations, wild);
  EXPECT_TRUE(c.ok()) << c.status().message();
  return *std::move(c);
}

/// y of a call with guarded memory. `wild`: unchecked.
std::vector<std::byte> run(const RandomConv& c, CpuPath path, ThreadPool* pool, bool wild = false) {
  const Result<ConvLayer> layer = ConvLayer::create(c.shape, c.weights, c.options(path), "conv");
  if (!layer.ok()) {
    ADD_FAILURE() << layer.status().message();
    return {};
  }
  Result<Workspace> workspace = layer->workspace(c.images, c.image, pool == nullptr ? 1 : pool->threads());
  EXPECT_TRUE(workspace.ok());
  GuardedBytes memory(workspace->size_bytes(), false);
  Workspace own(memory.bytes());
  GuardedBytes y(c.outputs() * c.shape.outputs * static_cast<int64_t>(size_in_bytes(c.y_dtype)));
  const std::span<std::byte> out = y.bytes();
  const Status status =
      layer->forward(c.x.bytes, c.x.dtype, out, c.y_dtype, c.images, c.image, own, {.pool = pool, .unchecked = wild});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(y.untouched_around() && memory.untouched_around());
  return {out.begin(), out.end()};
}

TEST(ConvLayer, PathsGiveTheBytesOfTheReference) {
  Random random(91);
  ThreadPool pool(3);
  for (const ConvActivations activations :
       {ConvActivations::kInt8, ConvActivations::kInt8Asymmetric, ConvActivations::kInt8PerImage}) {
    for (int i = 0; i < (testing::kSanitized ? 15 : 60); ++i) {
      const bool wild = i % 3 == 0;
      const RandomConv c = random_case(random, activations, wild);
      SCOPED_TRACE(c.text() + ", case " + std::to_string(i));
      const std::vector<std::byte> expected = run(c, CpuPath::kReference, nullptr, wild);
      for_paths([&](CpuPath path) {
        EXPECT_EQ(run(c, path, nullptr, wild), expected);
        EXPECT_EQ(run(c, path, &pool, wild), expected);
      });
    }
  }
}

TEST(ConvLayer, FloatOutputsDoNotDependOnTheImagesBesideThem) {
  Random random(92);
  ThreadPool pool(2);
  for (int i = 0; i < (testing::kSanitized ? 10 : 40); ++i) {
    const RandomConv c = random_case(random, ConvActivations::kFloat, false);
    SCOPED_TRACE(c.text());
    for_paths([&](CpuPath path) {
      const std::vector<std::byte> all = run(c, path, nullptr);
      EXPECT_EQ(run(c, path, &pool), all);
      RandomConv last = c;
      last.images = 1;
      const size_t bytes = c.x.bytes.size() / static_cast<size_t>(c.images);
      last.x.bytes.assign(c.x.bytes.end() - static_cast<std::ptrdiff_t>(bytes), c.x.bytes.end());
      const size_t of_image = all.size() / static_cast<size_t>(c.images);
      EXPECT_EQ(run(last, path, nullptr),
                std::vector<std::byte>(all.end() - static_cast<std::ptrdiff_t>(of_image), all.end()));
    });
  }
}

TEST(ConvLayer, WorkspacesHoldFewerImages) {
  Array values = Array::zeros(Dtype::kF32, {80 * 9, 64});
  for (int64_t i = 0; i < values.size(); ++i) values.data<float>()[i] = static_cast<float>(i % 7) - 3.0f;
  const LowBitMatrix weights = *quantize_low_bit(values, {.bits = 4, .group = 64}, "W");
  const ConvAxis same{.kernel = 3, .pad_before = 1, .pad_after = 1};
  for (const ConvActivations activations : {ConvActivations::kFloat, ConvActivations::kInt8}) {
    const ConvLayer layer = *ConvLayer::create({.channels = 64, .outputs = 80, .rows = same, .columns = same}, weights,
                                               {.activations = activations}, "conv");
    for (int64_t images = 2; images < 40; ++images)
      EXPECT_GE(layer.workspace(images, {14, 14})->size_bytes(), layer.workspace(images - 1, {14, 14})->size_bytes())
          << images;
  }
}

class Refusals : public ::testing::Test {
 protected:
  static LowBitMatrix matrix(int64_t rows, int64_t columns, const LowBitOptions& options) {
    Array values = Array::zeros(Dtype::kF32, {rows, columns});
    for (int64_t i = 0; i < values.size(); ++i) values.data<float>()[i] = static_cast<float>(i % 7) - 3.0f;
    return *quantize_low_bit(values, options, "W");
  }
  static std::string create(const LowBitMatrix& weights, ConvOptions options, ConvShape shape = kShape) {
    const Result<ConvLayer> layer = ConvLayer::create(shape, weights, options, "conv");
    return layer.ok() ? "accepted" : layer.status().message();
  }
  static constexpr ConvShape kShape{
      .channels = 4, .outputs = 2, .rows = {.kernel = 3, .pad_before = 1, .pad_after = 1}, .columns = {.kernel = 2}};
};

TEST_F(Refusals, Weights) {
  const LowBitMatrix own = matrix(12, 4, {.bits = 4, .group = 4}), shared = matrix(2, 24, {.bits = 4, .group = 24});
  EXPECT_EQ(create(own, {}), "accepted");
  EXPECT_EQ(create(shared, {}), "accepted");
  EXPECT_EQ(create(shared, {.activations = ConvActivations::kInt8PerImage}), "accepted");
  EXPECT_EQ(create(matrix(2, 25, {.bits = 4, .group = 25}), {}),
            "conv: weights are [2, 25], must be [12, 4] (O * R * S, C / groups), or [2, 24] with one group a row");
  EXPECT_EQ(create(matrix(2, 24, {.bits = 4, .group = 8}), {}),
            "conv: weights have 3 groups a row of all (r, s), must have 1; groups along the channels are for weights "
            "[O * R * S, C / groups]");
  EXPECT_EQ(create(own, {.activations = ConvActivations::kInt8PerImage}),
            "conv: weights are [12, 4] with 1 groups a row, must be [2, 24] with 1 for int8_per_image");
  EXPECT_EQ(
      create(matrix(2, 24, {.bits = 4, .group = 24, .kind = LowBitKind::kOffset, .method = LowBitMethod::kMinmax}),
             {.activations = ConvActivations::kInt8PerImage}),
      "conv: kind is offset, must be symmetric for int8_per_image");
  EXPECT_EQ(create(matrix(12, 4, {.bits = 4, .group = 4, .kind = LowBitKind::kOffset, .method = LowBitMethod::kMinmax}),
                   {.activations = ConvActivations::kInt8Asymmetric}),
            "conv: blocks of channels are filled up to a multiple of 8, which int8_asymmetric does not support with "
            "weights of the kind offset; use int8, or such channels");
  EXPECT_EQ(create(matrix(12, 4, {.bits = 1, .group = 4}), {.activations = ConvActivations::kInt8Asymmetric}),
            "conv: blocks of channels are filled up to a multiple of 8, which int8_asymmetric does not support with "
            "symmetric weights of 1 bit; use int8, or such channels");
  ConvShape deep = kShape;
  deep.channels = 65536;
  deep.columns.kernel = deep.rows.kernel = 1;
  EXPECT_EQ(
      create(matrix(2, 65536, {.bits = 8, .group = 65536}), {.activations = ConvActivations::kInt8PerImage}, deep),
      "conv: R * S * C / groups is 65536, must be at most 65535 for int8_per_image");
  EXPECT_EQ(create(own, {.activations = static_cast<ConvActivations>(4)}), "conv: activations is 4, must be 0..3");
  const std::vector<float> bias(3);
  EXPECT_EQ(create(own, {.bias = bias}), "conv: bias has 3 elements, must have 2 or none");
  ConvShape wrong = kShape;
  wrong.columns.stride = 0;
  EXPECT_NE(create(own, {}, wrong).find("columns.stride is 0"), std::string::npos) << create(own, {}, wrong);
}

TEST_F(Refusals, Images) {
  const LowBitMatrix own = matrix(12, 4, {.bits = 4, .group = 4}), shared = matrix(2, 24, {.bits = 4, .group = 24});
  const ImageSize image{3, 5};
  for (const ConvActivations activations :
       {ConvActivations::kInt8, ConvActivations::kInt8Asymmetric, ConvActivations::kInt8PerImage}) {
    const bool per_image = activations == ConvActivations::kInt8PerImage;
    const ConvLayer layer = *ConvLayer::create(kShape, per_image ? shared : own, {.activations = activations}, "conv");
    Workspace workspace = *layer.workspace(2, image);
    std::vector<float> x(2 * 15 * 4, 1.0f), y(2 * 12 * 2, 9.0f);
    const auto run = [&](bool unchecked) {
      return layer
          .forward(std::as_bytes(std::span(x)), Dtype::kF32, std::as_writable_bytes(std::span(y)), Dtype::kF32, 2,
                   image, workspace, {.unchecked = unchecked})
          .message();
    };
    x[(15 + 7) * 4 + 2] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(run(false), per_image ? "x[1] has a NaN or an infinity, must be finite, or the call unchecked"
                                    : "x[1, 1, 2] has a NaN, an infinity, or a block of channels whose range is "
                                      "infinite, must be finite, or the call unchecked");
    EXPECT_EQ(y, std::vector<float>(y.size(), 9.0f));
    EXPECT_EQ(run(true), "");
    // The pixel (1, 2) is read by all rows, and the columns 1 and 2.
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t q = i / 2 % 4;
      EXPECT_EQ(std::isnan(y[i]), i >= 24 && (per_image || q == 1 || q == 2)) << i;
    }
    std::fill(x.begin(), x.end(), 1.0f);
    x[0] = std::numeric_limits<float>::max();
    x[1] = -x[0];
    EXPECT_EQ(run(false).empty(), activations != ConvActivations::kInt8Asymmetric);
  }
  const ConvLayer layer = *ConvLayer::create(kShape, own, {}, "conv");
  Workspace workspace = *layer.workspace(1, image), small = *layer.workspace(0, image);
  std::vector<float> x(60), y(24);
  const auto run = [&](int64_t images, const ImageSize& size, Workspace& memory, Dtype x_dtype, size_t x_count,
                       const RunOptions& options) {
    return layer
        .forward(std::as_bytes(std::span(x).first(x_count)), x_dtype, std::as_writable_bytes(std::span(y)), Dtype::kF32,
                 images, size, memory, options)
        .message();
  };
  EXPECT_EQ(run(-1, image, workspace, Dtype::kF32, 60, {}), "conv: images is -1, must be at least 0");
  EXPECT_NE(run(1, {1, 1}, workspace, Dtype::kF32, 60, {}).find("columns"), std::string::npos);
  EXPECT_NE(run(1, image, workspace, Dtype::kS8, 60, {}).find("x is of type s8"), std::string::npos);
  EXPECT_NE(run(1, image, workspace, Dtype::kF32, 59, {}).find("x has 236 bytes, must have at least 240"),
            std::string::npos);
  EXPECT_EQ(run(1, image, workspace, Dtype::kF32, 60, {.x_stride = 3}), "x_stride is 3, must be at least 4, or 0");
  EXPECT_NE(run(1, image, small, Dtype::kF32, 60, {}).find("workspace has"), std::string::npos);
  EXPECT_EQ(run(0, image, small, Dtype::kF32, 60, {}), "");
}

}  // namespace
}  // namespace isobit
