// SPDX-License-Identifier: Apache-2.0
// Quantisers of low-bit weights: hand-computed cases, properties on random weights, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "isobit/low_bit.h"

namespace isobit {
namespace {

Array matrix_of(const std::vector<float>& values, int64_t rows, Dtype dtype = Dtype::kF32) {
  Array array = Array::zeros(dtype, {rows, static_cast<int64_t>(values.size()) / rows});
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::kF32) {
      array.data<float>()[i] = values[i];
    } else {
      array.data<uint16_t>()[i] = dtype == Dtype::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
    }
  }
  return array;
}

LowBitMatrix quantized(const Array& weights, const LowBitOptions& options, ThreadPool* pool = nullptr) {
  const Result<LowBitMatrix> matrix = quantize_low_bit(weights, options, "W", pool);
  if (!matrix.ok()) ADD_FAILURE() << matrix.status().message();
  return *matrix;
}

std::vector<uint32_t> codes_of(const LowBitMatrix& m, int64_t row = 0) {
  std::vector<uint32_t> codes;
  for (int64_t k = 0; k < m.columns(); ++k) codes.push_back(m.code(row, k));
  return codes;
}

std::vector<float> decoded(const LowBitMatrix& m) {
  std::vector<float> w(static_cast<size_t>(m.rows() * m.columns()));
  EXPECT_TRUE(m.dequantize(w).ok());
  return w;
}

/// Roughly normal; some rows small, some one-sided.
std::vector<float> random_weights(int64_t rows, int64_t columns, uint64_t seed) {
  Random random(seed);
  std::vector<float> values;
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t k = 0; k < columns; ++k) {
      int64_t sum = 0;
      for (int i = 0; i < 6; ++i) sum += random.between(-1000, 1000);
      values.push_back(static_cast<float>(n % 3 == 1 ? std::abs(sum) : sum) * (n % 4 == 2 ? 1e-9f : 1e-3f));
    }
  return values;
}

constexpr LowBitKind kKinds[] = {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset};
constexpr Dtype kScales[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};

LowBitMethod plain_method(LowBitKind kind) {
  return kind == LowBitKind::kSymmetric ? LowBitMethod::kAbsmax : LowBitMethod::kMinmax;
}

TEST(QuantizeLowBit, SymmetricByHand) {
  // 4 bits: S = max(3.5 / 7, 2 / 8). 0.25 / S is a tie, to even.
  const LowBitMatrix four = quantized(matrix_of({3.5f, -2.0f, 0.25f, 0.75f, 0.0f}, 1), {.bits = 4, .group = 5});
  EXPECT_EQ(four.scale(0, 0), 0.5f);
  EXPECT_EQ(codes_of(four), (std::vector<uint32_t>{15, 4, 8, 10, 8}));
  // The negative side has a code more: S = max(1 / 7, 8 / 8).
  const LowBitMatrix negative = quantized(matrix_of({1.0f, -8.0f, 2.6f}, 1), {.bits = 4, .group = 3});
  EXPECT_EQ(negative.scale(0, 0), 1.0f);
  EXPECT_EQ(codes_of(negative), (std::vector<uint32_t>{9, 0, 11}));
  const LowBitMatrix two = quantized(matrix_of({0.5f, -2.0f, 1.0f, -0.4f}, 1), {.bits = 2, .group = 4});
  EXPECT_EQ(two.scale(0, 0), 1.0f);
  EXPECT_EQ(codes_of(two), (std::vector<uint32_t>{2, 0, 3, 2}));
  const LowBitMatrix eight = quantized(matrix_of({127.0f, -1.0f, 0.5f, -100.4f}, 1), {.bits = 8, .group = 4});
  EXPECT_EQ(eight.scale(0, 0), 1.0f);
  EXPECT_EQ(codes_of(eight), (std::vector<uint32_t>{255, 127, 128, 28}));
  // 1 bit: the mean magnitude, and the sign; zeros of either sign are +1.
  const LowBitMatrix one = quantized(matrix_of({3.0f, -1.0f, 0.0f, -0.0f}, 1), {.bits = 1, .group = 4});
  EXPECT_EQ(one.scale(0, 0), 1.0f);
  EXPECT_EQ(codes_of(one), (std::vector<uint32_t>{1, 0, 1, 1}));
}

TEST(QuantizeLowBit, ZeroPointByHand) {
  LowBitOptions options{.bits = 4, .group = 4, .kind = LowBitKind::kZeroPoint, .method = LowBitMethod::kMinmax};
  const LowBitMatrix mixed = quantized(matrix_of({-1.0f, 6.5f, 0.0f, 1.3f}, 1), options);
  EXPECT_EQ(mixed.scale(0, 0), 0.5f);  // 7.5 / 15
  EXPECT_EQ(mixed.zero_point(0, 0), 2);
  EXPECT_EQ(codes_of(mixed), (std::vector<uint32_t>{0, 15, 2, 5}));
  const LowBitMatrix positive = quantized(matrix_of({15.0f, 7.0f, 6.0f, 1.0f}, 1), options);  // widened to 0..15
  EXPECT_EQ(positive.zero_point(0, 0), 0);
  EXPECT_EQ(codes_of(positive), (std::vector<uint32_t>{15, 7, 6, 1}));
  const LowBitMatrix negative = quantized(matrix_of({-15.0f, -7.0f, -6.0f, -1.0f}, 1), options);
  EXPECT_EQ(negative.zero_point(0, 0), 15);
  EXPECT_EQ(codes_of(negative), (std::vector<uint32_t>{0, 8, 9, 14}));
  options.bits = 8;
  const LowBitMatrix eight = quantized(matrix_of({-127.5f, 0.0f, 127.5f, 0.6f}, 1), options);
  EXPECT_EQ(eight.zero_point(0, 0), 128);  // 127.5: a tie, to even
  EXPECT_EQ(codes_of(eight), (std::vector<uint32_t>{0, 128, 255, 129}));
}

TEST(QuantizeLowBit, OffsetByHand) {
  LowBitOptions options{.bits = 2, .group = 4, .kind = LowBitKind::kOffset, .method = LowBitMethod::kMinmax};
  const LowBitMatrix m = quantized(matrix_of({10.0f, 11.5f, 10.2f, 10.8f}, 1), options);
  EXPECT_EQ(m.scale(0, 0), 0.5f);
  EXPECT_EQ(m.offset(0, 0), 10.0f);
  EXPECT_EQ(m.zero_point(0, 0), 0);
  EXPECT_EQ(codes_of(m), (std::vector<uint32_t>{0, 3, 0, 2}));
  // A constant group is exact.
  EXPECT_EQ(decoded(quantized(matrix_of({0.1f, 0.1f, 0.1f, 0.1f}, 1), options)), std::vector<float>(4, 0.1f));
  options.bits = 1;
  EXPECT_EQ(decoded(quantized(matrix_of({-3.0f, 1.0f, -1.5f, 0.5f}, 1), options)),
            (std::vector<float>{-3.0f, 1.0f, -3.0f, 1.0f}));
}

TEST(QuantizeLowBit, GroupsAreSeparateAndTheLastMayBeShort) {
  std::vector<float> values(2 * 19, 0.0f);
  values[0] = 7.0f;        // row 0, group 0
  values[15] = 70.0f;      // row 0, group 1
  values[18] = 0.07f;      // row 0, group 2 of three elements
  values[19 + 17] = 0.7f;  // row 1, group 2
  const LowBitMatrix m = quantized(matrix_of(values, 2), {.bits = 4, .group = 8});
  ASSERT_EQ(m.groups(), 3);
  EXPECT_EQ(m.row_bytes(), 12);  // 19 nibbles in 10 bytes
  for (const auto& [n, g, scale] :
       {std::tuple{0, 0, 1.0f}, {0, 1, 10.0f}, {0, 2, 0.01f}, {1, 0, 0.0f}, {1, 1, 0.0f}, {1, 2, 0.1f}})
    EXPECT_EQ(m.scale(n, g), scale) << n << ", " << g;
  for (int64_t n = 0; n < 2; ++n)
    for (int64_t k = 0; k < 19; ++k)
      EXPECT_EQ(m.code(n, k), values[static_cast<size_t>(n * 19 + k)] > 0 ? 15U : 8U) << n << ", " << k;
}

TEST(QuantizeLowBit, ZerosOfEitherSignGiveTheSameBytes) {
  for (const LowBitKind kind : kKinds)
    for (const int bits : {1, 2, 4, 8})
      for (const LowBitMethod method : {plain_method(kind), LowBitMethod::kMse}) {
        const LowBitOptions options{.bits = bits, .group = 8, .kind = kind, .method = method};
        const LowBitMatrix plus = quantized(matrix_of(std::vector<float>(9, 0.0f), 1), options);
        const LowBitMatrix minus = quantized(matrix_of(std::vector<float>(9, -0.0f), 1), options);
        EXPECT_EQ(plus, minus);
        EXPECT_EQ(plus.parameters().scales.bytes, std::vector<std::byte>(8));  // +0
        for (const float value : decoded(plus)) EXPECT_EQ(value, 0.0f);
        for (int64_t k = 0; k < 9; ++k) EXPECT_EQ(plus.code(0, k), static_cast<uint32_t>(plus.zero_point(0, 0)));
      }
}

TEST(QuantizeLowBit, ParametersAreRoundedOnceAndCodesComeFromThem) {
  // S = 0x1.002p0 + 2^-30 / 3, just above the middle of two float16 numbers; the nearest float32 is that middle, and a
  // second rounding would take it to 1.
  const LowBitOptions offset{
      .bits = 2, .group = 2, .kind = LowBitKind::kOffset, .method = LowBitMethod::kMinmax, .scales = Dtype::kF16};
  EXPECT_EQ(quantized(matrix_of({3 * 0x1.002p0f, -0x1p-30f}, 1), offset).scale(0, 0), 0x1.004p0f);
  EXPECT_EQ(quantized(matrix_of({3 * 0x1.002p0f, 0.0f}, 1), offset).scale(0, 0), 1.0f);
  // S = 127.49609375 / 127 = 1.00390625 goes to 1 in bfloat16: 64.6 / S is 65 then, not 64.
  const LowBitMatrix m =
      quantized(matrix_of({127.49609375f, 64.6f}, 1), {.bits = 8, .group = 2, .scales = Dtype::kBF16});
  EXPECT_EQ(m.scale(0, 0), 1.0f);
  EXPECT_EQ(codes_of(m), (std::vector<uint32_t>{255, 193}));
}

TEST(QuantizeLowBit, MseTakesTheBestFactor) {
  // One outlier among small values: with absmax they all become 0.
  std::vector<float> values(64, 0.4f);
  values[5] = 7.0f;
  const Array weights = matrix_of(values, 1);
  const LowBitMatrix absmax = quantized(weights, {.bits = 4, .group = 64});
  const LowBitMatrix mse = quantized(weights, {.bits = 4, .group = 64, .method = LowBitMethod::kMse});
  EXPECT_EQ(absmax.scale(0, 0), 1.0f);
  // Every factor by hand: small values become rint(0.4 / f) * f, the outlier 7 f.
  double least = std::numeric_limits<double>::infinity();
  float best = 0;
  for (int i = 0; i < 32; ++i) {
    const double f = 1 - i / 64.0;
    const double small = static_cast<double>(0.4f) - std::rint(static_cast<double>(0.4f) / f) * f;
    const double error = 63 * small * small + (7 - 7 * f) * (7 - 7 * f);
    if (error < least) {
      least = error;
      best = static_cast<float>(f);
    }
  }
  EXPECT_LT(best, 1.0f);
  EXPECT_EQ(mse.scale(0, 0), best);
  EXPECT_GT(*sqnr(weights, mse, "W"), *sqnr(weights, absmax, "W"));
}

TEST(QuantizeLowBit, NoErrorAboveHalfAStep) {
  for (const LowBitKind kind : kKinds)
    for (const int bits : {1, 2, 4, 8})
      for (const int64_t columns : {1, 8, 63, 200}) {
        if (kind == LowBitKind::kSymmetric && bits == 1) continue;  // the mean magnitude bounds no single error
        const int64_t rows = 12;
        const std::vector<float> values = random_weights(rows, columns, static_cast<uint64_t>(columns));
        const LowBitOptions options{
            .bits = bits, .group = std::min<int64_t>(columns, 24), .kind = kind, .method = plain_method(kind)};
        const LowBitMatrix m = quantized(matrix_of(values, rows), options);
        const std::vector<float> w = decoded(m);
        for (int64_t i = 0; i < rows * columns; ++i) {
          const auto step = static_cast<double>(m.scale(i / columns, i % columns / options.group));
          const auto value = static_cast<double>(values[static_cast<size_t>(i)]);
          // Rounding of S, O, S * v and the sum: a few units in the last place of the largest number.
          const double slack = 1e-6 * (std::fabs(value) + step * (1 << bits));
          ASSERT_LE(std::fabs(static_cast<double>(w[static_cast<size_t>(i)]) - value), step / 2 + slack)
              << to_string(kind) << " bits " << bits << " K " << columns << " at " << i;
        }
      }
}

TEST(QuantizeLowBit, MseIsNeverWorseAndThreadsChangeNothing) {
  ThreadPool pool(3);
  for (const LowBitKind kind : kKinds)
    for (const int bits : {1, 2, 4, 8})
      for (const Dtype scales : kScales)
        for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
          std::vector<float> values = random_weights(7, 83, 5);
          if (scales == Dtype::kF16)
            for (float& value : values) value *= 1e8f;  // f16 scales refuse the small rows as they are
          if (scales == Dtype::kF16)
            for (size_t i = 0; i < values.size(); ++i)
              if (i / 83 % 4 != 2) values[i] *= 1e-6f;
          const Array weights = matrix_of(values, 7, dtype);
          LowBitOptions options{
              .bits = bits, .group = 16, .kind = kind, .method = plain_method(kind), .scales = scales};
          const LowBitMatrix plain = quantized(weights, options);
          EXPECT_EQ(plain, quantized(weights, options, &pool));
          options.method = LowBitMethod::kMse;
          const LowBitMatrix mse = quantized(weights, options);
          EXPECT_EQ(mse, quantized(weights, options, &pool));
          const Result<double> better = sqnr(weights, mse, "W");
          ASSERT_TRUE(better.ok());
          EXPECT_GE(*better,
                    *sqnr(weights, plain, "W") - 1e-4);  // the sqnr sees the float32 rounding, the fit does not
          EXPECT_EQ(*better, *sqnr(weights, mse, "W", &pool));
        }
}

TEST(QuantizeLowBit, WhatIsOnTheGridComesBackExactly) {
  Random random(11);
  for (const int bits : {2, 4, 8}) {
    std::vector<float> values(96);
    for (float& value : values)
      value = static_cast<float>(random.between(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)) / 8;
    for (size_t g = 0; g < 96; g += 32) values[g] = -static_cast<float>(1 << (bits - 1)) / 8;  // the scale is 1/8
    for (const Dtype scales : kScales)
      for (const Dtype dtype : kScales) {
        const LowBitMatrix m = quantized(matrix_of(values, 3, dtype), {.bits = bits, .group = 32, .scales = scales});
        EXPECT_EQ(decoded(m), values);
        EXPECT_EQ(*sqnr(matrix_of(values, 3), m, "W"), std::numeric_limits<double>::infinity());
      }
  }
}

TEST(Sqnr, ByHand) {
  const Array weights = matrix_of({1.0f, -1.0f, 0.5f, -0.7f}, 2);
  const LowBitMatrix m = quantized(matrix_of({1.0f, -1.0f, 1.0f, -1.0f}, 2), {.bits = 1, .group = 2});
  EXPECT_NEAR(*sqnr(weights, m, "W"), 10 * std::log10(2.74 / 0.34), 1e-6);
  const Result<double> wrong = sqnr(matrix_of({1.0f, 2.0f}, 1), m, "W");
  EXPECT_EQ(wrong.status().message(), "W: weights have the shape (1, 2), the low-bit matrix has (2, 2)");
}

std::string refusal(const Array& weights, const LowBitOptions& options) {
  ThreadPool pool(2);
  const Result<LowBitMatrix> alone = quantize_low_bit(weights, options, "W");
  const Result<LowBitMatrix> threads = quantize_low_bit(weights, options, "W", &pool);
  EXPECT_FALSE(alone.ok());
  EXPECT_EQ(alone.status().message(), threads.status().message());
  return alone.status().message();
}

TEST(QuantizeLowBit, BadInputIsNamed) {
  const Array good = matrix_of(std::vector<float>(32, 1.0f), 2);
  EXPECT_EQ(refusal(Array::zeros(Dtype::kF64, {2, 16}), {.group = 8}), "W: weights are f64, must be f32, f16 or bf16");
  EXPECT_EQ(refusal(Array::zeros(Dtype::kF32, {32}), {.group = 8}),
            "W: weights have the shape (32,), must have two dimensions, (N, K)");
  EXPECT_EQ(refusal(Array::zeros(Dtype::kF32, {0, 16}), {.group = 8}), "W: N is 0, must be 1..2147483647");
  EXPECT_EQ(refusal(Array::zeros(Dtype::kF32, {2, 0}), {.group = 8}), "W: K is 0, must be 1..2147483647");
  EXPECT_EQ(refusal(good, {.group = 64}), "W: group is 64, must be K, 16, or a multiple of 8 below it");
  EXPECT_EQ(refusal(good, {.group = 12}), "W: group is 12, must be K, 16, or a multiple of 8 below it");
  EXPECT_EQ(refusal(good, {.bits = 5, .group = 8}), "W: bits is 5, must be 1, 2, 4 or 8");
  EXPECT_EQ(refusal(good, {.group = 8, .scales = Dtype::kU8}), "W: scales are u8, must be f32, f16 or bf16");
  EXPECT_EQ(refusal(good, {.group = 8, .method = LowBitMethod::kMinmax}),
            "W: method is minmax, must be absmax or mse for the kind symmetric");
  EXPECT_EQ(refusal(good, {.group = 8, .kind = LowBitKind::kOffset}),
            "W: method is absmax, must be minmax or mse for the kind offset");
  EXPECT_EQ(refusal(good, {.group = 8, .method = static_cast<LowBitMethod>(9)}), "W: method is 9, must be 0..2");
  Array cut = good;
  cut.bytes.pop_back();
  EXPECT_NE(refusal(cut, {.group = 8}).find("W: weights: shape (2, 16)"), std::string::npos);
}

TEST(QuantizeLowBit, BadValuesAreNamed) {
  for (const Dtype dtype : kScales) {
    std::vector<float> values(32, 1.0f);
    values[30] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(refusal(matrix_of(values, 2, dtype), {.group = 8}), "W[1, 14] is -inf, must be finite");
    values[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(refusal(matrix_of(values, 2, dtype), {.group = 8}), "W[0, 3] is nan, must be finite");
  }
  std::vector<float> values(32, 7.0f);
  for (size_t i = 24; i < 32; ++i) values[i] = 7e-6f;
  LowBitOptions options{.group = 8, .scales = Dtype::kF16};
  EXPECT_NE(refusal(matrix_of(values, 2), options).find("W: row 1, group 1: the scale"), std::string::npos);
  EXPECT_NE(refusal(matrix_of(values, 2), options)
                .find("is below the smallest normal float16 number, 6.103515625e-05; choose scales in bf16 or f32"),
            std::string::npos);
  options.scales = Dtype::kBF16;
  EXPECT_TRUE(quantize_low_bit(matrix_of(values, 2), options, "W").ok());
  options.scales = Dtype::kF16;
  values.assign(32, 1e6f);
  EXPECT_EQ(refusal(matrix_of(values, 2), options),
            "W: row 0, group 0: the scale is above the largest number of its type, f16; the weights are "
            "1e+06..1e+06");
  options.kind = LowBitKind::kOffset;
  options.method = LowBitMethod::kMse;
  EXPECT_NE(refusal(matrix_of(values, 2), options).find("W: row 0, group 0: the offset is above"), std::string::npos);
}

TEST(QuantizeLowBit, DefaultMethodIsOneThatTheKindHas) {
  const Array weights = matrix_of(random_weights(7, 83, 5), 7);
  for (const LowBitKind kind : {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset})
    for (const int32_t bits : {1, 2, 4, 8}) {
      const LowBitMethod method = default_low_bit_method(bits, kind);
      EXPECT_EQ(method == LowBitMethod::kMse, bits <= 2);
      EXPECT_TRUE(quantize_low_bit(weights, {.bits = bits, .group = 8, .kind = kind, .method = method}, "w").ok());
    }
}

}  // namespace
}  // namespace isobit
