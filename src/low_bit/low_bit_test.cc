// SPDX-License-Identifier: Apache-2.0
// The canonical form of low-bit weights: what codes stand for, and what is refused.
#include "isobit/low_bit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/half.h"

namespace isobit {
namespace {

Array bytes_of(const std::vector<uint8_t>& bytes, const std::vector<int64_t>& shape) {
  return Array::copy_of(bytes.data(), shape);
}
Array floats_of(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  return Array::copy_of(values.data(), shape);
}

/// Two rows of ten 4-bit codes, groups of eight: the second group of a row is short. Codes 0 1 .. 9 and 15 14 .. 6.
LowBitParameters four_bits(LowBitKind kind) {
  LowBitParameters p;
  p.rows = 2;
  p.columns = 10;
  p.bits = 4;
  p.group = 8;
  p.kind = kind;
  p.codes = bytes_of({0x10, 0x32, 0x54, 0x76, 0x98, 0, 0, 0, 0xef, 0xcd, 0xab, 0x89, 0x67, 0, 0, 0}, {2, 8});
  p.scales = floats_of({0.5f, 2.0f, -1.0f, 0.25f}, {2, 2});
  if (kind == LowBitKind::kZeroPoint) p.zero_points = bytes_of({0, 16, 3, 8}, {2, 2});
  if (kind == LowBitKind::kOffset) p.offsets = floats_of({1.0f, -1.0f, 0.0f, 100.0f}, {2, 2});
  return p;
}

std::vector<float> decoded(const LowBitParameters& p) {
  const Result<LowBitMatrix> matrix = LowBitMatrix::create(p, "W");
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  std::vector<float> w(static_cast<size_t>(p.rows * p.columns));
  EXPECT_TRUE(matrix->dequantize(w).ok());
  for (int64_t n = 0; n < p.rows; ++n)
    for (int64_t k = 0; k < p.columns; ++k) {
      const int64_t g = k / p.group;
      const auto v = static_cast<float>(matrix->value(n, k));
      EXPECT_EQ(w[static_cast<size_t>(n * p.columns + k)], matrix->scale(n, g) * v + matrix->offset(n, g));
    }
  ThreadPool pool(3);
  std::vector<float> again(w.size());
  EXPECT_TRUE(matrix->dequantize(again, &pool).ok());
  EXPECT_EQ(w, again);
  return w;
}

TEST(LowBitMatrix, FourBitsOfEachKind) {
  EXPECT_EQ(decoded(four_bits(LowBitKind::kSymmetric)),
            (std::vector<float>{-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0,     2,  //
                                -7, -6,   -5, -4,   -3, -2,   -1, 0,    -0.25, -0.5}));
  EXPECT_EQ(decoded(four_bits(LowBitKind::kZeroPoint)),
            (std::vector<float>{0,   0.5, 1,   1.5, 2,  2.5, 3,  3.5, -16,   -14,  //
                                -12, -11, -10, -9,  -8, -7,  -6, -5,  -0.25, -0.5}));
  EXPECT_EQ(decoded(four_bits(LowBitKind::kOffset)),
            (std::vector<float>{1,   1.5, 2,   2.5, 3,   3.5, 4,  4.5, 15,     17,  //
                                -15, -14, -13, -12, -11, -10, -9, -8,  101.75, 101.5}));
  LowBitParameters middle = four_bits(LowBitKind::kOffset);
  middle.zero_point = 8;
  EXPECT_EQ(decoded(middle), (std::vector<float>{-3, -2.5, -2, -1.5, -1, -0.5, 0,  0.5, -1,    1,  //
                                                 -7, -6,   -5, -4,   -3, -2,   -1, 0,   99.75, 99.5}));
}

TEST(LowBitMatrix, OtherWidths) {
  LowBitParameters p;
  p.rows = 1;
  p.columns = 5;
  p.group = 5;
  p.scales = floats_of({0.5f}, {1, 1});
  p.bits = 1;  // codes 1 0 1 1 0
  p.codes = bytes_of({0x0d, 0, 0, 0}, {1, 4});
  EXPECT_EQ(decoded(p), (std::vector<float>{0.5, -0.5, 0.5, 0.5, -0.5}));
  p.bits = 2;  // codes 0 1 2 3 2
  p.codes = bytes_of({0xe4, 0x02, 0, 0}, {1, 4});
  EXPECT_EQ(decoded(p), (std::vector<float>{-1, -0.5, 0, 0.5, 0}));
  p.bits = 8;
  p.codes = bytes_of({0, 1, 128, 129, 255, 0, 0, 0}, {1, 8});
  EXPECT_EQ(decoded(p), (std::vector<float>{-64, -63.5, 0, 0.5, 63.5}));
  p.kind = LowBitKind::kZeroPoint;
  p.zero_points = Array::zeros(Dtype::kU16, {1, 1});
  p.zero_points.data<uint16_t>()[0] = 256;
  EXPECT_EQ(decoded(p), (std::vector<float>{-128, -127.5, -64, -63.5, -0.5}));
  p.bits = 1;
  p.codes = bytes_of({0x0d, 0, 0, 0}, {1, 4});
  p.zero_points = bytes_of({1}, {1, 1});
  EXPECT_EQ(decoded(p), (std::vector<float>{0, -0.5, 0, 0, -0.5}));
}

TEST(LowBitMatrix, ScalesOfHalfPrecision) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    LowBitParameters p = four_bits(LowBitKind::kOffset);
    const std::vector<float> expected = decoded(p);
    for (Array* array : {&p.scales, &p.offsets}) {
      Array half = Array::zeros(dtype, array->shape);
      for (int64_t i = 0; i < half.size(); ++i) {
        const float value = array->data<float>()[i];
        half.data<uint16_t>()[i] = dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
      }
      *array = half;
    }
    EXPECT_EQ(decoded(p), expected);
    EXPECT_EQ(LowBitMatrix::create(p, "W")->size_bytes(), 2 * 8 + 2 * 4 * 2);
  }
}

TEST(LowBitMatrix, AProductIsRoundedBeforeTheOffsetIsAdded) {
  LowBitParameters p = four_bits(LowBitKind::kOffset);
  p.scales = floats_of({0x1.000002p0f, 1, 1, 1}, {2, 2});
  p.offsets = floats_of({-3.0f, 0, 0, 0}, {2, 2});
  // 3 * S = 0x1.800003p1 is no float32 and goes to 0x1.800004p1; a fused multiply-add would give 0x1.8p-22.
  EXPECT_EQ(decoded(p)[3], 0x1p-21f);
}

std::string refusal(LowBitKind kind, const std::function<void(LowBitParameters&)>& change) {
  LowBitParameters p = four_bits(kind);
  change(p);
  const Result<LowBitMatrix> matrix = LowBitMatrix::create(std::move(p), "W");
  EXPECT_FALSE(matrix.ok());
  if (matrix.ok()) return "accepted";
  EXPECT_EQ(matrix.status().code(), StatusCode::kInvalidArgument);
  return matrix.status().message();
}

TEST(LowBitMatrix, EveryBadFieldIsNamed) {
  constexpr auto symmetric = LowBitKind::kSymmetric;
  constexpr auto zero_point = LowBitKind::kZeroPoint;
  constexpr auto offset = LowBitKind::kOffset;
  using P = LowBitParameters;
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.bits = 3; }), "W: bits is 3, must be 1, 2, 4 or 8");
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.rows = 0; }), "W: N is 0, must be 1..2147483647");
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.columns = 0; }), "W: K is 0, must be 1..2147483647");
  for (const int64_t group : {int64_t{0}, int64_t{-8}, int64_t{4}, int64_t{9}, int64_t{16}})
    EXPECT_EQ(refusal(symmetric, [&](P& p) { p.group = group; }),
              "W: group is " + std::to_string(group) + ", must be K, 10, or a multiple of 8 below it");
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.kind = static_cast<LowBitKind>(3); }), "W: kind is 3, must be 0..2");
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.zero_point = 8; }),
            "W: the zero point of the matrix is 8, must be 0 in the kind symmetric");
  EXPECT_EQ(refusal(offset, [](P& p) { p.zero_point = 7; }), "W: the zero point of the matrix is 7, must be 0 or 8");
  EXPECT_EQ(refusal(symmetric,
                    [](P& p) {
                      p.codes = Array::zeros(Dtype::kS8, {2, 8});
                    }),
            "W: codes are s8, must be u8");
  EXPECT_EQ(refusal(symmetric,
                    [](P& p) {
                      p.codes = Array::zeros(Dtype::kU8, {2, 5});
                    }),
            "W: codes have the shape (2, 5), must have (2, 8)");
  EXPECT_NE(refusal(symmetric, [](P& p) { p.codes.bytes.pop_back(); }).find("W: codes: shape (2, 8)"),
            std::string::npos);
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.codes.data<uint8_t>()[14] = 0x20; }),
            "W: codes[1, 13] is 2, must be 0 (padding)");
  EXPECT_EQ(refusal(symmetric,
                    [](P& p) {
                      p.scales = Array::zeros(Dtype::kF64, {2, 2});
                    }),
            "W: scales are f64, must be f32, f16 or bf16");
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.scales.shape = {4}; }), "W: scales have the shape (4,), must have (2, 2)");
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.offsets = p.scales; }),
            "W: offsets of the shape (2, 2) were given, the kind has none");
  EXPECT_EQ(refusal(offset,
                    [](P& p) {
                      p.offsets = Array::zeros(Dtype::kF16, {2, 2});
                    }),
            "W: offsets are f16, must be f32");
  EXPECT_EQ(refusal(zero_point,
                    [](P& p) {
                      p.zero_points = Array::zeros(Dtype::kU16, {2, 2});
                    }),
            "W: zero_points are u16, must be u8");
  EXPECT_EQ(refusal(zero_point, [](P& p) { p.zero_points.data<uint8_t>()[1] = 17; }),
            "W: zero_points[0, 1] is 17, must be 0..16");
}

TEST(LowBitMatrix, BadScalesAndOffsetsAreNamed) {
  constexpr auto symmetric = LowBitKind::kSymmetric;
  using P = LowBitParameters;
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(refusal(symmetric, [&](P& p) { p.scales.data<float>()[3] = infinity; }),
            "W: scales[1, 1] is inf, must be finite");
  EXPECT_EQ(refusal(symmetric, [&](P& p) { p.scales.data<float>()[0] = std::nanf(""); }),
            "W: scales[0, 0] is nan, must be finite");
  EXPECT_EQ(refusal(LowBitKind::kOffset, [&](P& p) { p.offsets.data<float>()[2] = -infinity; }),
            "W: offsets[1, 0] is -inf, must be finite");
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.scales.data<float>()[2] = 0x1p125f; }),
            "W: scales[1, 0] is 4.253529586511731e+37, must be small enough for the weight of code 0 to be finite");
  EXPECT_EQ(refusal(symmetric, [](P& p) { p.scales.data<float>()[2] = -0.0f; }),
            "W: scales[1, 0] is 0, must be not 0 where codes[1, 0] is 15, not 8");
  LowBitParameters zero = four_bits(LowBitKind::kZeroPoint);  // codes of nothing but z
  zero.scales.data<float>()[3] = 0;
  zero.zero_points.data<uint8_t>()[3] = 9;
  zero.codes.data<uint8_t>()[12] = 0x99;
  EXPECT_EQ(decoded(zero)[19], 0.0f);
}

TEST(LowBitMatrix, ASpanOfTheWrongSizeIsRefused) {
  const Result<LowBitMatrix> matrix = LowBitMatrix::create(four_bits(LowBitKind::kSymmetric), "W");
  ASSERT_TRUE(matrix.ok());
  std::vector<float> w(19);
  EXPECT_EQ(matrix->dequantize(w).message(), "dequantize: w has 19 elements, must have 20, N * K");
}

TEST(LowBitNames, GoBothWays) {
  for (const auto kind : {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset})
    EXPECT_EQ(low_bit_kind_from_string(to_string(kind)), kind);
  for (const auto method : {LowBitMethod::kAbsmax, LowBitMethod::kMinmax, LowBitMethod::kMse})
    EXPECT_EQ(low_bit_method_from_string(to_string(method)), method);
  EXPECT_FALSE(low_bit_kind_from_string("asymmetric"));
  EXPECT_FALSE(low_bit_method_from_string(""));
}

}  // namespace
}  // namespace isobit
