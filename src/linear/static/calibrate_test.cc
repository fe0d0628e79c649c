// SPDX-License-Identifier: Apache-2.0
// StaticLinearCalibrator: what statistics depend on, what is refused, and how near the integers are to the floats.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/codes.h"
#include "core/random.h"
#include "isobit/linear.h"

namespace isobit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_floats(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = static_cast<float>(random.between(-4000, 4000)) / 1000.0f;
  return out;
}

Array matrix(int64_t rows, int64_t columns, uint64_t seed) {
  return Array::copy_of(random_floats(rows * columns, seed).data(), {rows, columns});
}

StaticLinearCalibrator calibrator_of(const Array& weights, std::span<const float> bias,
                                     const LinearClamp& clamp = LinearClamp::none()) {
  Result<StaticLinearCalibrator> made = StaticLinearCalibrator::create(weights, bias, clamp, "fc");
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *std::move(made);
}

void expect_refused(const Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), message);
}

void expect_same(const StaticLinearCalibrator& a, const StaticLinearCalibrator& b) {
  EXPECT_EQ(a.x_statistics(), b.x_statistics());
  EXPECT_EQ(a.y_statistics(), b.y_statistics());
}

/// Sequences of 300 steps, which is more than are computed together.
TEST(StaticLinearCalibrator, StatisticsDependOnSequencesOnly) {
  constexpr int64_t kSteps = 300, kBatch = 3, kRows = 5, kColumns = 7;
  const Array weights = matrix(kRows, kColumns, 1);
  const std::vector<float> bias = random_floats(kRows, 2);
  const std::vector<float> x = random_floats(kSteps * kBatch * kColumns, 3);
  StaticLinearCalibrator whole = calibrator_of(weights, bias, LinearClamp::relu());
  ASSERT_TRUE(whole.observe(x, kSteps, kBatch).ok());
  EXPECT_EQ(whole.x_statistics().count(), static_cast<uint64_t>(kSteps * kBatch * kColumns));
  EXPECT_EQ(whole.y_statistics().count(), static_cast<uint64_t>(kSteps * kBatch * kRows));
  EXPECT_EQ(whole.y_statistics().min(), 0.0f);

  StaticLinearCalibrator threads = calibrator_of(weights, bias, LinearClamp::relu());
  ThreadPool pool(3);
  ASSERT_TRUE(threads.observe(x, kSteps, kBatch, &pool).ok());
  expect_same(whole, threads);

  // One sequence after the other, the last one first, in calibrators of their own.
  StaticLinearCalibrator merged = calibrator_of(weights, bias, LinearClamp::relu());
  for (int64_t b = kBatch - 1; b >= 0; --b) {
    std::vector<float> sequence;
    for (int64_t t = 0; t < kSteps; ++t)
      for (int64_t k = 0; k < kColumns; ++k)
        sequence.push_back(x[static_cast<size_t>((t * kBatch + b) * kColumns + k)]);
    StaticLinearCalibrator one = calibrator_of(weights, bias, LinearClamp::relu());
    ASSERT_TRUE(one.observe(sequence, kSteps).ok());
    ASSERT_TRUE(merged.merge(one).ok());
  }
  expect_same(whole, merged);
}

TEST(StaticLinearCalibrator, HalfWeightsWiden) {
  Array half = Array::zeros(Dtype::kF16, {2, 3});
  Array widened = Array::zeros(Dtype::kF32, {2, 3});
  for (int64_t i = 0; i < 6; ++i) {
    store_float(half.bytes.data(), Dtype::kF16, i, 0.1f * static_cast<float>(i) - 0.2f);
    widened.data<float>()[i] = load_float(half.bytes.data(), Dtype::kF16, i);
  }
  const std::vector<float> x = random_floats(30, 4);
  StaticLinearCalibrator a = calibrator_of(half, {});
  StaticLinearCalibrator b = calibrator_of(widened, {});
  ASSERT_TRUE(a.observe(x, 10).ok() && b.observe(x, 10).ok());
  expect_same(a, b);
  EXPECT_TRUE(a.merge(b).ok());
}

TEST(StaticLinearCalibrator, RefusesWhatItIsMadeOf) {
  const auto status = [](const Array& weights, std::span<const float> bias, const LinearClamp& clamp = {},
                         double decay = 0.9) {
    return StaticLinearCalibrator::create(weights, bias, clamp, "fc", decay).status();
  };
  Array weights = matrix(2, 3, 1);
  expect_refused(status(Array::zeros(Dtype::kF64, {2, 3}), {}), "fc: weights are f64, must be f32, f16 or bf16");
  expect_refused(status(Array::zeros(Dtype::kF32, {6}), {}),
                 "fc: weights have the shape (6,), must have two dimensions, (N, K), of at least 1");
  expect_refused(status(Array::zeros(Dtype::kF32, {2, 0}), {}),
                 "fc: weights have the shape (2, 0), must have two dimensions, (N, K), of at least 1");
  expect_refused(status(weights, std::vector<float>{1}), "fc: bias has 1 elements, must have 2 or none");
  expect_refused(status(weights, std::vector<float>{1, -kInfinity}), "fc: bias[1] is -inf, must be finite");
  expect_refused(status(weights, {}, {1, 0}), "fc: clamp.lo is 1, must be at most clamp.hi, 0");
  expect_refused(status(weights, {}, {}, 1.0), "fc: ema decay 1; it must be at least 0 and below 1");
  weights.data<float>()[4] = kNan;
  expect_refused(status(weights, {}), "fc: weights[1, 1] is nan, must be finite");
}

TEST(StaticLinearCalibrator, RefusesData) {
  StaticLinearCalibrator calibrator = calibrator_of(matrix(2, 3, 1), {});
  std::vector<float> x = random_floats(12, 1);
  expect_refused(calibrator.observe(x, -1), "fc: steps is -1, must be at least 0");
  expect_refused(calibrator.observe(x, 1, -2), "fc: batch is -2, must be at least 0");
  expect_refused(calibrator.observe(x, 3), "fc: x has 12 elements, must have 9: 3 steps of 1 sequences of 3");
  expect_refused(
      calibrator.observe(x, INT64_MAX, 4),
      "fc: x has 12 elements, must have 110680464442257309684: 9223372036854775807 steps of 4 sequences of 3");
  x[7] = kNan;
  expect_refused(calibrator.observe(x, 2, 2), "fc: x[1, 0, 1] is nan, must be finite");
  x[7] = 3e38f;
  x[8] = 3e38f;
  const Status status = calibrator.observe(x, 2, 2);
  EXPECT_TRUE(status.message().starts_with("fc: y[1, 0, ")) << status.message();
  EXPECT_TRUE(status.message().ends_with("] exceeds float32; the weights or x are too large"));
  EXPECT_EQ(calibrator.x_statistics().count(), 0u);
  EXPECT_TRUE(calibrator.observe({}, 0).ok());
  EXPECT_EQ(calibrator.derive({}).status().code(), StatusCode::kFailedPrecondition);
}

TEST(StaticLinearCalibrator, RefusesOtherCalibrators) {
  const Array weights = matrix(2, 3, 1);
  const std::vector<float> bias = {1, 2};
  StaticLinearCalibrator calibrator = calibrator_of(weights, bias);
  const std::string has = "fc: the calibrator to merge has ";
  expect_refused(calibrator.merge(calibrator_of(matrix(2, 3, 2), bias)),
                 has + "other weights, must have the same shape and values");
  expect_refused(calibrator.merge(calibrator_of(weights, {})), has + "another bias, must have the same values");
  expect_refused(calibrator.merge(calibrator_of(weights, bias, LinearClamp::relu())),
                 has + "another clamp, must have the same");
  expect_refused(calibrator.merge(*StaticLinearCalibrator::create(weights, bias, {}, "fc", 0.5)),
                 has + "the ema decay 0.5, must be 0.9");
}

TEST(StaticLinearCalibrator, RefusesQuantizations) {
  StaticLinearCalibrator calibrator = calibrator_of(matrix(2, 3, 1), {}, LinearClamp::relu());
  ASSERT_TRUE(calibrator.observe(random_floats(30, 1), 10).ok());
  const auto refused = [&](auto&& change, const std::string& message) {
    StaticLinearQuantization q;
    change(q);
    expect_refused(calibrator.derive(q).status(), message);
  };
  using Q = StaticLinearQuantization;
  refused([](Q& q) { q.x.bits = 17; }, "fc: x: bits is 17, must be 2..16");
  refused([](Q& q) { q.y->bits = 1; }, "fc: y: bits is 1, must be 2..16");
  refused([](Q& q) { q.x.bits = 33; }, "fc: x: 33 bits; the width must be 1 to 32");
  refused([](Q& q) { q.input = Grid{.bits = 20}; }, "fc: input: bits is 20, must be 2..16");
  refused([](Q& q) { q.weight_bits = 3; }, "fc: weight_bits is 3, must be 1, 2, 4 or 8");
  refused([](Q& q) { q.weight_method = LowBitMethod::kMinmax; },
          "fc: method is minmax, must be absmax or mse for the kind symmetric");
  refused([](Q& q) { q.y.reset(); }, "fc: a clamp of 0..inf was given, must be none without an output grid");
  StaticLinearQuantization no_path;
  EXPECT_EQ(calibrator.finish(no_path, static_cast<CpuPath>(9)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(calibrator.finish(no_path).ok());
}

/// A larger scale, which other widths take for such a row, would change the weights.
TEST(StaticLinearCalibrator, RefusesDeadRowsOfOneBit) {
  Array weights = matrix(2, 3, 1);
  for (int64_t k = 0; k < 3; ++k) weights.data<float>()[3 + k] = 1e-20f;
  const std::vector<float> bias = {0.5f, 2.0f};
  StaticLinearCalibrator calibrator = calibrator_of(weights, bias);
  ASSERT_TRUE(calibrator.observe(random_floats(30, 1), 10).ok());
  EXPECT_TRUE(calibrator.derive({.weight_bits = 2}).ok());
  EXPECT_EQ(calibrator.derive({.weight_bits = 1}).status().code(), StatusCode::kOverflow);
  EXPECT_EQ(
      calibrator.derive({.weight_bits = 1}).status().message(),
      "fc: row 1: the bias 2 has too many steps of x on the scale of the weights, and a larger scale would change "
      "weights of 1 bit, which have no zero; use 2 bits or more");
}

/// Of x that was observed, and 16 bits for x and y, results are as near as 8-bit weights and their bias allow.
TEST(StaticLinearCalibrator, ResultsAreNearTheFloats) {
  constexpr int64_t kSteps = 64, kRows = 9, kColumns = 40;
  const Array weights = matrix(kRows, kColumns, 5);
  const std::vector<float> bias = random_floats(kRows, 6);
  const std::vector<float> x = random_floats(kSteps * kColumns, 7);
  StaticLinearCalibrator calibrator = calibrator_of(weights, bias);
  ASSERT_TRUE(calibrator.observe(x, kSteps).ok());
  double last = 0;
  for (const int32_t bits : {4, 8, 16}) {
    StaticLinearQuantization q;
    q.x.bits = q.y->bits = bits;
    const Result<StaticLinearLayer> layer = calibrator.finish(q);
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    const Grid& in = layer->input_grid();
    const Grid& out = *layer->output_grid();
    Array codes = Array::zeros(in.dtype(), {kSteps, kColumns});
    ASSERT_TRUE(quantize(in, x, codes.bytes.data(), "x").ok());
    Array y = Array::zeros(out.dtype(), {kSteps, kRows});
    Workspace workspace = layer->workspace(kSteps);
    ASSERT_TRUE(layer->forward_codes(codes.bytes, y.bytes, kSteps, workspace).ok());
    double signal = 0;
    double noise = 0;
    for (int64_t i = 0; i < kSteps; ++i)
      for (int64_t n = 0; n < kRows; ++n) {
        double sum = static_cast<double>(bias[static_cast<size_t>(n)]);
        for (int64_t k = 0; k < kColumns; ++k)
          sum += static_cast<double>(weights.data<float>()[n * kColumns + k]) *
                 static_cast<double>(x[static_cast<size_t>(i * kColumns + k)]);
        const double code =
            static_cast<double>(dequantize_value(out, load_code(y.bytes.data(), y.dtype, i * kRows + n)));
        signal += sum * sum;
        noise += (sum - code) * (sum - code);
      }
    const double decibels = 10 * std::log10(signal / noise);
    EXPECT_GT(decibels, bits == 4 ? 12 : bits == 8 ? 35 : 42) << bits << " bits";
    EXPECT_GT(decibels, last);
    last = decibels;
  }
}

}  // namespace
}  // namespace isobit
