// SPDX-License-Identifier: Apache-2.0
// Every row of kernels.inc: the bound of docs/numerics.md, section 10, against float64, and rows that depend on
// nothing but themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "core/bits.h"
#include "linear/float/float.h"
#include "linear/layer_reference.h"
#include "low_bit/parts.h"
#include "testing/guarded_bytes.h"
#include "testing/required.h"
#include "testing/sanitized.h"

namespace isobit {
namespace {

using isobit::testing::GuardedBytes;
using isobit::testing::required;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr FloatEpilogue kNothing{nullptr, -kInfinity, kInfinity};

struct Row {
  const char* name;
  CpuPath path;
};

const Row kRows[] = {
#define ISOBIT_FLOAT_KERNEL(name, path) {#name, CpuPath::path},
#include "linear/float/kernels.inc"
#undef ISOBIT_FLOAT_KERNEL
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

class FloatLinear : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    const CpuPath path = GetParam().path;
    if (cpu_can_run(path)) return;
    ASSERT_FALSE(required(path)) << "ISOBIT_REQUIRE names " << to_string(path) << ": " << cpu_cannot_run_reason(path);
    GTEST_SKIP() << cpu_cannot_run_reason(path);
  }
  FloatLinearKernel kernel() const { return float_linear_kernel(GetParam().path); }
};

struct Form {
  int64_t n, k, group;
  int bits;
  LowBitKind kind;
  Dtype scales;

  std::string text() const {
    return "n=" + std::to_string(n) + " k=" + std::to_string(k) + " group=" + std::to_string(group) +
           " bits=" + std::to_string(bits) + " " + std::string(to_string(kind)) + " " + std::string(to_string(scales));
  }
};

uint16_t to_half(float value, Dtype dtype) { return dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value); }

void set(Array& array, int64_t i, float value) {
  if (array.dtype == Dtype::kF32) {
    array.data<float>()[i] = value;
  } else {
    array.data<uint16_t>()[i] = to_half(value, array.dtype);
  }
}

LowBitMatrix random_matrix(const Form& form, std::mt19937& random) {
  LowBitParameters p;
  p.rows = form.n;
  p.columns = form.k;
  p.bits = form.bits;
  p.group = form.group;
  p.kind = form.kind;
  const int64_t groups = low_bit_groups(form.k, form.group);
  const int64_t row_bytes = low_bit_row_bytes(form.k, form.bits);
  p.codes = Array::zeros(Dtype::kU8, {form.n, row_bytes});
  p.scales = Array::zeros(form.scales, {form.n, groups});
  if (form.kind == LowBitKind::kOffset) {
    p.offsets = Array::zeros(form.scales, {form.n, groups});
    p.zero_point = random() % 2 == 0 ? 0 : 1 << (form.bits - 1);
  }
  if (form.kind == LowBitKind::kZeroPoint)
    p.zero_points = Array::zeros(low_bit_zero_point_dtype(form.bits), {form.n, groups});
  std::uniform_real_distribution<float> scale(0.01f, 0.1f);
  std::uniform_real_distribution<float> offset(-1.0f, 1.0f);
  for (int64_t n = 0; n < form.n; ++n) {
    for (int64_t k = 0; k < form.k; ++k)
      pack_code(p.codes.data<uint8_t>() + n * row_bytes, k, form.bits,
                static_cast<uint32_t>(random()) % (1u << form.bits));
    for (int64_t i = n * groups; i < (n + 1) * groups; ++i) {
      set(p.scales, i, random() % 8 == 0 ? -scale(random) : scale(random));
      if (form.kind == LowBitKind::kOffset) set(p.offsets, i, offset(random));
      if (form.kind != LowBitKind::kZeroPoint) continue;
      const auto z = static_cast<uint16_t>(random() % ((1u << form.bits) + 1));
      if (form.bits == 8) {
        p.zero_points.data<uint16_t>()[i] = z;
      } else {
        p.zero_points.data<uint8_t>()[i] = static_cast<uint8_t>(z);
      }
    }
  }
  Result<LowBitMatrix> matrix = LowBitMatrix::create(std::move(p), "W");
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  return *matrix;
}

/// Rows of x and y of one type between pages that cannot be touched, with the strides given.
class Rows {
 public:
  Rows(Dtype dtype, int64_t m, int64_t width, int64_t stride)
      : dtype_(dtype),
        stride_(stride),
        bytes_(count(m, width, stride) * static_cast<int64_t>(size_in_bytes(dtype))),
        memory_(bytes_) {
    std::memset(memory_.data(), 0x5A, static_cast<size_t>(bytes_));
  }
  void* data() const { return memory_.data(); }
  int64_t stride() const { return stride_; }
  void set(int64_t row, int64_t column, float value) {
    if (dtype_ == Dtype::kF32) {
      std::memcpy(at(row, column), &value, sizeof value);
    } else {
      const uint16_t half = to_half(value, dtype_);
      std::memcpy(at(row, column), &half, sizeof half);
    }
  }
  float get(int64_t row, int64_t column) const {
    if (dtype_ == Dtype::kF32) {
      float value;
      std::memcpy(&value, at(row, column), sizeof value);
      return value;
    }
    uint16_t half;
    std::memcpy(&half, at(row, column), sizeof half);
    return dtype_ == Dtype::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
  uint8_t* at(int64_t row, int64_t column) const {
    return memory_.data() + (row * stride_ + column) * static_cast<int64_t>(size_in_bytes(dtype_));
  }
  bool same_row(int64_t row, const Rows& other, int64_t other_row, int64_t width) const {
    return std::memcmp(at(row, 0), other.at(other_row, 0), static_cast<size_t>(width) * size_in_bytes(dtype_)) == 0;
  }
  bool untouched(int64_t row, int64_t from, int64_t to) const {
    return std::all_of(at(row, from), at(row, to), [](uint8_t byte) { return byte == 0x5A; });
  }

 private:
  static int64_t count(int64_t m, int64_t width, int64_t stride) { return m == 0 ? 0 : (m - 1) * stride + width; }

  Dtype dtype_;
  int64_t stride_;
  int64_t bytes_;
  GuardedBytes memory_;
};

/// Normal numbers with a mean.
void fill(Rows& x, int64_t m, int64_t k, float mean, std::mt19937& random) {
  std::normal_distribution<float> normal(mean, 1.0f);
  for (int64_t row = 0; row < m; ++row)
    for (int64_t i = 0; i < k; ++i) x.set(row, i, normal(random));
}

struct Layer {
  FloatLinearKernel kernel;
  PackedFloatWeights weights;

  /// Rows [first, first + m) of x to rows [0, m) of y, the outputs of `blocks`.
  void run(const Rows& x, int64_t first, const Rows& y, Dtype dtype, int64_t m, const FloatEpilogue& epilogue,
           BlockRange blocks) const {
    const int64_t bytes = (float_linear_workspace_bytes(weights, m) + 63) / 64 * 64;
    const GuardedBytes workspace(bytes);
    std::memset(workspace.data(), 0xFF, static_cast<size_t>(bytes));  // NaN: nothing of it may reach a result
    float_linear(kernel, weights, blocks, {x.at(first, 0), y.data(), dtype, x.stride(), y.stride(), m}, epilogue,
                 workspace.data());
  }
  void run(const Rows& x, int64_t first, const Rows& y, Dtype dtype, int64_t m,
           const FloatEpilogue& epilogue = kNothing) const {
    run(x, first, y, dtype, m, epilogue, weights.all_blocks());
  }
};

/// What section 10 bounds, of one row.
double error_of_row(const ReferenceWeights& weights, const Rows& x, const Rows& y, int64_t row, const float* bias) {
  std::vector<float> values(static_cast<size_t>(weights.k));
  for (int64_t k = 0; k < weights.k; ++k) values[static_cast<size_t>(k)] = x.get(row, k);
  ReferenceRowError error;
  for (int64_t n = 0; n < weights.n; ++n)
    error.add(static_cast<double>(y.get(row, n)),
              reference_sum(weights, n, values.data(), bias == nullptr ? 0.0f : bias[n]));
  return error.relative(weights.k);
}

/// Bound, invariance of rows and ranges, and no write beside the outputs.
void check(FloatLinearKernel kernel, const Form& form, Dtype dtype, int64_t m) {
  SCOPED_TRACE(form.text() + " " + std::string(to_string(dtype)) + " m=" + std::to_string(m));
  std::mt19937 random(static_cast<uint32_t>(m * 7919 + form.n * 131 + form.k * 7 + form.bits));  // all in the trace
  const LowBitMatrix matrix = random_matrix(form, random);
  Result<PackedFloatWeights> packed = pack_float_weights(matrix);
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  const Layer layer{kernel, *packed};
  Rows x(dtype, m, form.k, form.k + 3);
  fill(x, m, form.k, random() % 2 == 0 ? 0.0f : 0.5f, random);
  const GuardedBytes bias_bytes(form.n * 4);
  auto* const bias = reinterpret_cast<float*>(bias_bytes.data());
  for (int64_t n = 0; n < form.n; ++n) bias[n] = static_cast<float>(random() % 1000) / 1000.0f;
  const FloatEpilogue epilogue{bias, -kInfinity, kInfinity};
  const Rows y(dtype, m, form.n, form.n + 5);
  layer.run(x, 0, y, dtype, m, epilogue);
  const ReferenceWeights reference = reference_weights(matrix);
  for (int64_t row = 0; row < m; ++row) {
    ASSERT_LT(error_of_row(reference, x, y, row, bias), reference_limit(dtype, form.k)) << "row " << row;
    ASSERT_TRUE(row + 1 == m || y.untouched(row, form.n, form.n + 5)) << "row " << row;
  }
  const Rows alone(dtype, 1, form.n, form.n);
  for (int64_t row = 0; row < m; ++row) {
    layer.run(x, row, alone, dtype, 1, epilogue);
    ASSERT_TRUE(y.same_row(row, alone, 0, form.n)) << "row " << row << " alone is another";
  }
  const Rows pieces(dtype, m, form.n, form.n + 5);
  const int32_t blocks = packed->all_blocks().end;
  for (int32_t begin = 0; begin < blocks;) {
    const int32_t end = std::min(blocks, begin + 1 + static_cast<int32_t>(random() % 3));
    layer.run(x, 0, pieces, dtype, m, epilogue, {begin, end});
    ASSERT_TRUE(end == blocks || pieces.untouched(0, packed->first_row(end), form.n)) << "blocks to " << end;
    begin = end;
  }
  for (int64_t row = 0; row < m; ++row)
    ASSERT_TRUE(y.same_row(row, pieces, row, form.n)) << "row " << row << " in ranges of blocks is another";
}

/// The error of a result that cancels is measured by its terms; without terms there is none.
TEST(ReferenceRowError, IsThatOfTheText) {
  const auto relative = [](double y, double value, double terms, int64_t k) {
    ReferenceRowError error;
    error.add(y, {value, terms});
    return error.relative(k);
  };
  EXPECT_EQ(relative(2.5, 2, 3, 4), 0.25);
  EXPECT_EQ(relative(0.5, 0, 64, 4), 0.125);  // 64 / (8 * 2) = 4
  EXPECT_EQ(relative(1.5, 1, 64, 4), 0.125);
  EXPECT_EQ(relative(0, 0, 0, 4), 0);
  EXPECT_EQ(relative(0.5, 0, 0, 4), kInfinity);
}

constexpr LowBitKind kKinds[] = {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset};
constexpr Dtype kFloats[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};

TEST_P(FloatLinear, AllFormsAreWithinTheBoundAndTheirRowsDependOnThemselvesOnly) {
  // n, k, group: whole and short blocks of outputs, whole and short groups, groups that fill no word, one group.
  const int64_t shapes[][3] = {{64, 128, 64},   {83, 200, 64}, {5, 7, 7},     {16, 8, 8},
                               {130, 61, 8},    {48, 72, 24},  {7, 300, 300}, {70, 264, 136},
                               {129, 1100, 32}, {300, 40, 40}, {1, 520, 128}};
  int i = 0;
  for (const auto& [n, k, group] : shapes) {
    for (const int bits : {1, 2, 4, 8}) {
      for (const LowBitKind kind : kKinds) {
        const int64_t m = 1 + (i * 7) % 15;
        check(kernel(), {n, k, group, bits, kind, kFloats[i % 3]}, kFloats[i / 3 % 3], m);
        if (HasFatalFailure()) return;
        ++i;
      }
    }
  }
}

TEST_P(FloatLinear, EveryNumberOfRows) {
  const Form form{100, 72, 64, 4, LowBitKind::kOffset, Dtype::kF32};
  for (int64_t m = 1; m <= 70; m += isobit::testing::kSanitized ? 3 : 1) {
    check(kernel(), form, Dtype::kF32, m);
    if (HasFatalFailure()) return;
  }
  for (const int64_t m : {int64_t{kFloatRows}, int64_t{kFloatRows} + 1, int64_t{2} * kFloatRows + 5}) {
    check(kernel(), {30, 40, 8, 2, LowBitKind::kZeroPoint, Dtype::kBF16}, Dtype::kF16, m);
    if (HasFatalFailure()) return;
  }
}

TEST_P(FloatLinear, NoRows) {
  std::mt19937 random(1);
  const Form form{20, 16, 16, 4, LowBitKind::kSymmetric, Dtype::kF32};
  const Layer layer{kernel(), *pack_float_weights(random_matrix(form, random))};
  const Rows nothing(Dtype::kF32, 0, 20, 20);
  layer.run(nothing, 0, nothing, Dtype::kF32, 0);
}

TEST_P(FloatLinear, ZerosGiveZero) {
  std::mt19937 random(2);
  for (const LowBitKind kind : kKinds) {
    const Form form{70, 200, 64, 4, kind, Dtype::kF32};
    const Layer layer{kernel(), *pack_float_weights(random_matrix(form, random))};
    Rows x(Dtype::kF32, 1, form.k, form.k);
    for (int64_t k = 0; k < form.k; ++k) x.set(0, k, 0.0f);
    const Rows y(Dtype::kF32, 1, form.n, form.n);
    layer.run(x, 0, y, Dtype::kF32, 1);
    for (int64_t n = 0; n < form.n; ++n) ASSERT_EQ(y.get(0, n), 0.0f) << to_string(kind) << " output " << n;
  }
  // v = 0 everywhere, by codes that are the z of their groups.
  LowBitParameters p;
  p.rows = 5;
  p.columns = 40;
  p.group = 8;
  p.kind = LowBitKind::kZeroPoint;
  p.codes = Array::zeros(Dtype::kU8, {5, 20});
  p.scales = Array::zeros(Dtype::kF32, {5, 5});
  p.zero_points = Array::zeros(Dtype::kU8, {5, 5});
  for (std::byte& byte : p.codes.bytes) byte = std::byte{0x33};
  for (std::byte& z : p.zero_points.bytes) z = std::byte{3};
  for (int64_t i = 0; i < 25; ++i) p.scales.data<float>()[i] = 0.1f;
  const Result<LowBitMatrix> matrix = LowBitMatrix::create(p, "W");
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  const Layer layer{kernel(), *pack_float_weights(*matrix)};
  Rows ones(Dtype::kF32, 9, 40, 43);
  fill(ones, 9, 40, 1.0f, random);
  const Rows y(Dtype::kF32, 9, 5, 5);
  layer.run(ones, 0, y, Dtype::kF32, 9);
  for (int64_t row = 0; row < 9; ++row)
    for (int64_t n = 0; n < 5; ++n) ASSERT_EQ(y.get(row, n), 0.0f);
}

TEST_P(FloatLinear, WhatIsNotFiniteStaysInItsRow) {
  std::mt19937 random(3);
  for (const int bits : {1, 2, 4, 8}) {
    for (const LowBitKind kind : kKinds) {
      const Form form{90, 100, 32, bits, kind, Dtype::kF16};
      SCOPED_TRACE(form.text());
      const Layer layer{kernel(), *pack_float_weights(random_matrix(form, random))};
      constexpr int64_t kM = 11;
      Rows x(Dtype::kF32, kM, form.k, form.k + 3);
      fill(x, kM, form.k, 0.0f, random);
      const Rows finite(Dtype::kF32, kM, form.n, form.n);
      layer.run(x, 0, finite, Dtype::kF32, kM);
      for (const int64_t row : {2, 5, 10}) x.set(row, 17 + row, row == 5 ? kInfinity : kNan);
      const Rows y(Dtype::kF32, kM, form.n, form.n);
      layer.run(x, 0, y, Dtype::kF32, kM);
      for (int64_t row = 0; row < kM; ++row) {
        const bool touched = row == 2 || row == 5 || row == 10;
        ASSERT_EQ(y.same_row(row, finite, row, form.n), !touched) << "row " << row;
        for (int64_t n = 0; n < form.n && touched && row != 5; ++n) ASSERT_TRUE(std::isnan(y.get(row, n)));
      }
    }
  }
}

/// Weights of which each output is one element of x: v = 1 on the diagonal, else 0, and S = 1.
LowBitMatrix identity(int64_t n) {
  LowBitParameters p;
  p.rows = n;
  p.columns = n;
  p.bits = 8;
  p.group = n;
  const int64_t row_bytes = low_bit_row_bytes(n, 8);
  p.codes = Array::zeros(Dtype::kU8, {n, row_bytes});
  for (int64_t row = 0; row < n; ++row)
    for (int64_t k = 0; k < n; ++k)
      p.codes.data<uint8_t>()[row * row_bytes + k] = static_cast<uint8_t>(128 + (row == k));
  p.scales = Array::zeros(Dtype::kF32, {n, 1});
  for (int64_t row = 0; row < n; ++row) p.scales.data<float>()[row] = 1.0f;
  Result<LowBitMatrix> matrix = LowBitMatrix::create(std::move(p), "W");
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  return *matrix;
}

TEST_P(FloatLinear, BiasThenClampThenOneRounding) {
  constexpr int64_t kN = 37;
  const Layer layer{kernel(), *pack_float_weights(identity(kN))};
  std::vector<float> bias(kN);
  for (int64_t n = 0; n < kN; ++n) bias[static_cast<size_t>(n)] = 0.0001f * static_cast<float>(n * n);
  for (const Dtype dtype : kFloats) {
    for (const auto& [lo, hi] : {std::pair{-kInfinity, kInfinity}, std::pair{0.0f, kInfinity}, std::pair{0.0f, 6.0f},
                                 std::pair{-0.3f, 0.7f}}) {
      for (const int64_t m : {int64_t{1}, int64_t{9}}) {
        Rows x(dtype, m, kN, kN);
        for (int64_t row = 0; row < m; ++row)
          for (int64_t n = 0; n < kN; ++n) x.set(row, n, static_cast<float>((n * 7 + row) % 23 - 8));
        const Rows y(dtype, m, kN, kN);
        layer.run(x, 0, y, dtype, m, {bias.data(), lo, hi});
        for (int64_t row = 0; row < m; ++row) {
          for (int64_t n = 0; n < kN; ++n) {
            const float sum = x.get(row, n) + bias[static_cast<size_t>(n)];
            const float clamped = sum < lo ? lo : sum > hi ? hi : sum;
            Rows expected(dtype, 1, 1, 1);
            expected.set(0, 0, clamped);
            ASSERT_EQ(y.get(row, n), expected.get(0, 0)) << to_string(dtype) << " [" << row << ", " << n << "]";
          }
        }
      }
    }
  }
}

TEST_P(FloatLinear, ClampKeepsNan) {
  const Layer layer{kernel(), *pack_float_weights(identity(20))};
  for (const Dtype dtype : kFloats) {
    Rows x(dtype, 1, 20, 20);
    for (int64_t n = 0; n < 20; ++n) x.set(0, n, kNan);
    const Rows y(dtype, 1, 20, 20);
    layer.run(x, 0, y, dtype, 1, {nullptr, 0.0f, 6.0f});
    for (int64_t n = 0; n < 20; ++n) ASSERT_TRUE(std::isnan(y.get(0, n))) << to_string(dtype) << " output " << n;
  }
}

/// Section 10: NaN of whatever sign and bits, and those that sums make of infinities, are one NaN in y.
TEST_P(FloatLinear, EveryNanIsOneNan) {
  std::mt19937 random(5);
  const float kNans[] = {__builtin_bit_cast(float, 0x7fc12345u), __builtin_bit_cast(float, 0xffc00000u),
                         __builtin_bit_cast(float, 0x7f800001u), kNan};
  const float clamps[][2] = {{-kInfinity, kInfinity}, {0.0f, 6.0f}};
  for (const int bits : {1, 2, 4, 8})
    for (const LowBitKind kind : kKinds) {
      const Form form{70, 150, 32, bits, kind, Dtype::kF32};
      const Layer layer{kernel(), *pack_float_weights(random_matrix(form, random))};
      for (const Dtype dtype : kFloats) {
        SCOPED_TRACE(form.text() + " " + std::string(to_string(dtype)));
        constexpr int64_t kM = 9;  // each row has a NaN but the last, whose terms have infinities of both signs
        Rows x(dtype, kM, form.k, form.k), one(dtype, 1, 1, 1);
        fill(x, kM, form.k, 0.0f, random);
        for (int64_t row = 0; row + 1 < kM; ++row) x.set(row, 11 * row, kNans[row % 4]);
        for (int64_t k = 0; k < form.k; ++k) x.set(kM - 1, k, k % 2 == 0 ? kInfinity : -kInfinity);
        one.set(0, 0, kNan);
        for (const auto& [lo, hi] : clamps) {
          const Rows y(dtype, kM, form.n, form.n), alone(dtype, 1, form.n, form.n);
          const auto check_row = [&](const Rows& of, int64_t at, int64_t row) {
            for (int64_t n = 0; n < form.n; ++n)
              ASSERT_EQ(std::memcmp(of.at(at, n), one.at(0, 0), size_in_bytes(dtype)), 0)
                  << "row " << row << ", output " << n << " is " << of.get(at, n);
          };
          layer.run(x, 0, y, dtype, kM, {nullptr, lo, hi});
          for (int64_t row = 0; row < kM; ++row) {
            check_row(y, row, row);
            if (HasFatalFailure()) return;
            layer.run(x, row, alone, dtype, 1, {nullptr, lo, hi});
            check_row(alone, 0, row);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
}

TEST_P(FloatLinear, TheBoundTellsAWrongCode) {
  std::mt19937 random(4);
  const Form form{64, 256, 64, 4, LowBitKind::kSymmetric, Dtype::kF32};
  const LowBitMatrix matrix = random_matrix(form, random);
  LowBitParameters changed = matrix.parameters();
  changed.codes.bytes[77] ^= std::byte{0x10};  // one weight of 16384, by one step
  const Layer layer{kernel(), *pack_float_weights(*LowBitMatrix::create(changed, "W"))};
  Rows x(Dtype::kF32, 1, form.k, form.k);
  fill(x, 1, form.k, 0.0f, random);
  const Rows y(Dtype::kF32, 1, form.n, form.n);
  layer.run(x, 0, y, Dtype::kF32, 1);
  EXPECT_GT(error_of_row(reference_weights(matrix), x, y, 0, nullptr), reference_limit(Dtype::kF32, form.k));
}

INSTANTIATE_TEST_SUITE_P(Kernels, FloatLinear, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(FloatLinearKernels, APathTakesThatOfTheNearestBeforeAndTheReferenceHasNone) {
  EXPECT_EQ(float_linear_kernel(CpuPath::kReference), nullptr);
  EXPECT_EQ(float_linear_kernel(CpuPath::kScalar), float_linear_scalar);
  if (cpu_can_run(CpuPath::kAmx)) {
    EXPECT_NE(float_linear_kernel(CpuPath::kAmx), nullptr);
    EXPECT_EQ(float_linear_kernel(CpuPath::kAmx), float_linear_kernel(CpuPath::kAvx512Vnni));
  }
  if (!cpu_can_run(CpuPath::kAvxVnni)) GTEST_SKIP() << cpu_cannot_run_reason(CpuPath::kAvxVnni);
  EXPECT_NE(float_linear_kernel(CpuPath::kAvxVnni), nullptr);
  EXPECT_EQ(float_linear_kernel(CpuPath::kAvxVnni), float_linear_kernel(CpuPath::kAvx2));
}

}  // namespace
}  // namespace isobit
