// SPDX-License-Identifier: Apache-2.0
// Every row of kernels.inc against section 11 of numerics.md in plain words, and the oracle's vectors, byte for
// byte.
#include "linear/int8/int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "core/half.h"
#include "core/random.h"
#include "low_bit/parts.h"
#include "product/product.h"
#include "testing/guarded_bytes.h"
#include "testing/oracle.h"
#include "testing/required.h"
#include "testing/sanitized.h"

namespace isobit {
namespace {

using isobit::testing::GuardedBytes;
using isobit::testing::Json;
using isobit::testing::required;

struct Row {
  CpuPath path;
  const char* name;
};

const Row kRows[] = {
#define ISOBIT_INT8_KERNELS(path, name) {CpuPath::path, #name},
#include "linear/int8/kernels.inc"
#undef ISOBIT_INT8_KERNELS
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

/// What section 11 makes of one group of one row of x.
struct Group {
  std::vector<int32_t> codes;
  float scale = 0.0f;
  float offset = 0.0f;
};

Group quantized(const std::vector<float>& x, bool asymmetric) {
  Group out;
  out.codes.resize(x.size());
  const float high = *std::max_element(x.begin(), x.end());
  float range = asymmetric ? high - *std::min_element(x.begin(), x.end()) : 0.0f;
  if (!asymmetric)
    for (const float value : x) range = std::max(range, std::fabs(value));
  if (range < 0x1p-118f) {
    if (asymmetric) out.offset = high;
    return out;
  }
  const float steps = asymmetric ? 255.0f : 127.0f;
  out.scale = range / steps;
  if (asymmetric) out.offset = std::fma(-127.0f, out.scale, high);
  const float inverse = steps / range;
  for (size_t k = 0; k < x.size(); ++k) {
    const float difference = asymmetric ? x[k] - out.offset : x[k];
    const float product = difference * inverse;
    out.codes[k] = static_cast<int32_t>(
        std::clamp(static_cast<double>(std::nearbyint(product)), asymmetric ? -128.0 : -127.0, 127.0));
  }
  return out;
}

std::vector<Group> quantized_row(const LowBitMatrix& w, const std::vector<float>& x, bool asymmetric) {
  std::vector<Group> out;
  const int64_t group = w.parameters().group;
  for (int64_t begin = 0; begin < w.columns(); begin += group) {
    const int64_t end = std::min(begin + group, w.columns());
    out.push_back(quantized({x.begin() + begin, x.begin() + end}, asymmetric));
  }
  return out;
}

/// y of T.
float finished(float total, float bias, float lo, float hi) {
  const float y = total + bias;
  return std::isnan(y) ? std::numeric_limits<float>::quiet_NaN() : std::clamp(y, lo, hi);
}

/// T of one output.
float promoted(const LowBitMatrix& w, int64_t n, const std::vector<Group>& groups, bool asymmetric) {
  float total = 0.0f;
  float acc = 0.0f;
  int64_t k = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto g = static_cast<int64_t>(i);
    int32_t d = 0;
    int32_t t = 0;
    int32_t v_sum = 0;
    for (const int32_t a : groups[i].codes) {
      const int32_t v = w.value(n, k++);
      d += a * v;
      t += a;
      v_sum += v;
    }
    const float scale = w.scale(n, g);
    const float both = scale * groups[i].scale;
    acc = std::fma(static_cast<float>(d), both, acc);
    if (asymmetric) {
      const float shifted = scale * groups[i].offset;
      acc = std::fma(static_cast<float>(v_sum), shifted, acc);
    }
    if (w.parameters().kind == LowBitKind::kOffset) {
      float x = groups[i].scale * static_cast<float>(t);
      if (asymmetric) x = std::fma(groups[i].offset, static_cast<float>(groups[i].codes.size()), x);
      acc = std::fma(w.offset(n, g), x, acc);
    }
    if (i % 16 == 15 || i + 1 == groups.size()) {
      total = total + acc;
      acc = 0.0f;
    }
  }
  return total;
}

float random_float(Random& random, int exponents) {
  const float mantissa = static_cast<float>(random.between(-(1 << 20), 1 << 20)) * 0x1p-20f;
  return std::ldexp(mantissa, static_cast<int>(random.between(-exponents, exponents)));
}

/// Codes of every value, scales of either sign, every zero point.
LowBitMatrix random_matrix(Random& random, int64_t rows, int64_t columns, int64_t group, int bits, LowBitKind kind,
                           Dtype store) {
  LowBitParameters p;
  p.rows = rows;
  p.columns = columns;
  p.bits = bits;
  p.group = group;
  p.kind = kind;
  const int64_t groups = low_bit_groups(columns, group);
  p.codes = Array::zeros(Dtype::kU8, {rows, low_bit_row_bytes(columns, bits)});
  const int64_t row_bytes = low_bit_row_bytes(columns, bits);
  const bool largest = random.one_in(8);
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t k = 0; k < columns; ++k)
      pack_code(p.codes.data<uint8_t>() + n * row_bytes, k, bits,
                static_cast<uint32_t>(largest ? (1 << bits) - 1 : random.between(0, (1 << bits) - 1)));
  const auto numbers = [&] {
    Array out = Array::zeros(store, {rows, groups});
    for (int64_t i = 0; i < rows * groups; ++i) {
      float value = random_float(random, 6);
      if (value == 0.0f) value = 1.0f;
      if (store == Dtype::kF32) out.data<float>()[i] = value;
      if (store == Dtype::kF16) out.data<uint16_t>()[i] = f32_to_f16(value);
      if (store == Dtype::kBF16) out.data<uint16_t>()[i] = f32_to_bf16(value);
    }
    return out;
  };
  p.scales = numbers();
  if (kind == LowBitKind::kOffset) {
    p.offsets = numbers();
    p.zero_point = random.one_in(2) ? 0 : 1 << (bits - 1);
  }
  if (kind == LowBitKind::kZeroPoint) {
    p.zero_points = Array::zeros(low_bit_zero_point_dtype(bits), {rows, groups});
    for (int64_t i = 0; i < rows * groups; ++i) {
      const int64_t z = random.between(0, int64_t{1} << bits);
      if (bits == 8) {
        p.zero_points.data<uint16_t>()[i] = static_cast<uint16_t>(z);
      } else {
        p.zero_points.data<uint8_t>()[i] = static_cast<uint8_t>(z);
      }
    }
  }
  Result<LowBitMatrix> matrix = LowBitMatrix::create(std::move(p), "W");
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  return std::move(matrix).value();
}

uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

/// Rows of x in their own type, and widened.
struct Input {
  Dtype dtype;
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<std::vector<float>> values;
};

Input random_input(Random& random, int64_t m, int64_t columns, int64_t group, Dtype dtype) {
  Input input{dtype, {}, {}};
  for (int64_t row = 0; row < m; ++row) {
    std::vector<float> values(static_cast<size_t>(columns));
    std::vector<uint8_t> bytes(static_cast<size_t>(columns) * size_in_bytes(dtype));
    int64_t style = 0;
    float shift = 0.0f;
    for (size_t k = 0; k < values.size(); ++k) {
      if (static_cast<int64_t>(k) % group == 0) {
        style = random.between(0, 9);
        shift = random_float(random, 4);
      }
      float value = random_float(random, 0);
      if (style == 0) value = 0.0f;
      if (style == 1) value = static_cast<float>(random.between(-254, 254)) * 0.5f;  // next to ties
      if (style == 2) value = shift;
      if (style == 3) value += 64.0f * shift;
      if (style == 4) value = std::ldexp(value, -118);
      if (style == 5) value = static_cast<float>(random.between(0, 1)) * 255.0f;
      if (dtype == Dtype::kF32) {
        std::memcpy(bytes.data() + 4 * k, &value, sizeof value);
      } else {
        const uint16_t half = dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
        value = dtype == Dtype::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
        std::memcpy(bytes.data() + 2 * k, &half, sizeof half);
      }
      values[k] = value;
    }
    input.values.push_back(values);
    input.bytes.push_back(bytes);
  }
  return input;
}

class Int8 : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    kernels_ = int8_kernels(GetParam().path);
    if (kernels_ != nullptr) return;
    ASSERT_FALSE(required(GetParam().path)) << cpu_cannot_run_reason(GetParam().path);
    GTEST_SKIP() << cpu_cannot_run_reason(GetParam().path);
  }

  /// Quantises and multiplies between guard pages, the tiles in `parts` ranges, and compares with the words above.
  void compare(const LowBitMatrix& w, const Input& input, bool asymmetric, int64_t parts) {
    Random random(16);
    const Result<PackedLowBit> packed = pack_low_bit(w, asymmetric, "W");
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    const auto m = static_cast<int64_t>(input.values.size());
    const int64_t groups = packed->groups();
    const GuardedBytes codes(m * packed->code_bytes());
    const GuardedBytes scales(m * groups * static_cast<int64_t>(sizeof(Int8Group)));
    auto* x_codes = reinterpret_cast<int8_t*>(codes.data());
    auto* x_groups = reinterpret_cast<Int8Group*>(scales.data());
    std::vector<std::vector<Group>> expected;
    for (int64_t row = 0; row < m; ++row) {
      const auto r = static_cast<size_t>(row);
      const GuardedBytes x(static_cast<int64_t>(input.bytes[r].size()));
      std::memcpy(x.data(), input.bytes[r].data(), input.bytes[r].size());
      EXPECT_TRUE(quantize_row(*kernels_, *packed, x.data(), input.dtype, x_codes + row * packed->code_bytes(),
                               x_groups + row * groups));
      expected.push_back(quantized_row(w, input.values[r], asymmetric));
      const int8_t* got = x_codes + row * packed->code_bytes();
      for (int64_t g = 0; g < groups; ++g) {
        const Group& group = expected[r][static_cast<size_t>(g)];
        ASSERT_EQ(bits_of(x_groups[row * groups + g].scale), bits_of(group.scale)) << "Sa, row " << row << " g " << g;
        ASSERT_EQ(x_groups[row * groups + g].offset, group.offset) << "Oa, row " << row << " g " << g;
        for (const int32_t code : group.codes) ASSERT_EQ(*got++, code) << "row " << row << " group " << g;
        for (auto k = static_cast<int64_t>(group.codes.size());
             k < int8_padded(static_cast<int64_t>(group.codes.size())); ++k)
          ASSERT_EQ(*got++, 0) << "padding of row " << row << " group " << g;
      }
    }
    const GuardedBytes y(m * w.rows() * 4);
    auto* results = reinterpret_cast<float*>(y.data());
    const GuardedBytes added(packed->padded_rows() * 4);
    auto* bias = reinterpret_cast<float*>(added.data());
    for (int64_t n = 0; n < packed->padded_rows(); ++n) bias[n] = random_float(random, 6);
    const float hi = random.one_in(2) ? std::numeric_limits<float>::infinity() : std::fabs(random_float(random, 6));
    const float lo = random.one_in(2) ? -hi : 0.0f;
    const GuardedBytes scratch((packed->scratch_bytes() + 63) / 64 * 64);
    for (int64_t part = 0; part < parts; ++part) {
      const TileRange tiles{packed->tiles() * part / parts, packed->tiles() * (part + 1) / parts};
      int8_product(*kernels_, *packed, tiles, {x_codes, x_groups, m}, {bias, lo, hi},
                   results + tiles.begin * kInt8TileRows, w.rows(), scratch.data());
    }
    const auto check = [&] {
      for (int64_t row = 0; row < m; ++row)
        for (int64_t n = 0; n < w.rows(); ++n) {
          const float value = finished(promoted(w, n, expected[static_cast<size_t>(row)], asymmetric), bias[n], lo, hi);
          const float got = results[row * w.rows() + n];
          ASSERT_EQ(bits_of(got), bits_of(value)) << "y[" << row << ", " << n << "] is " << got << ", not " << value;
        }
    };
    check();
    if (HasFatalFailure() || !int8_takes_tiles(*kernels_, *packed, m)) return;
    ++tiled_runs_;
    const int64_t padded = round_up_to_tile(m);
    const GuardedBytes tiled_codes(padded * packed->code_bytes());
    const GuardedBytes tiled_scales(padded * groups * static_cast<int64_t>(sizeof(Int8Group)));
    auto* t_codes = reinterpret_cast<int8_t*>(tiled_codes.data());
    auto* t_groups = reinterpret_cast<Int8Group*>(tiled_scales.data());
    for (int64_t row = 0; row < m; ++row)
      int8_pack_row(*packed, x_codes + row * packed->code_bytes(), x_groups + row * groups, row, t_codes, t_groups);
    std::memset(y.data(), 0xa5, static_cast<size_t>(m * w.rows() * 4));
    const int64_t split = m / 2 / kTileRows * kTileRows;
    for (int64_t part = 0; part < parts; ++part) {
      const TileRange tiles{packed->tiles() * part / parts, packed->tiles() * (part + 1) / parts};
      float* const at = results + tiles.begin * kInt8TileRows;
      for (const auto& [begin, end] : {std::pair{int64_t{0}, split}, std::pair{split, m}})
        int8_product(*kernels_, *packed, tiles,
                     {t_codes + begin * packed->code_bytes(), t_groups + begin * groups, end - begin, true},
                     {bias, lo, hi}, at + begin * w.rows(), w.rows(), scratch.data());
    }
    check();
  }

  const Int8Kernels* kernels_ = nullptr;
  int tiled_runs_ = 0;
};

TEST_P(Int8, RandomLayers) {
  Random random(11);
  const Dtype types[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
  const LowBitKind kinds[] = {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset};
  for (const int bits : {1, 2, 4, 8})
    for (const LowBitKind kind : kinds)
      for (const bool asymmetric : {false, true})
        for (int i = 0; i < (testing::kSanitized ? 4 : 12); ++i) {
          const int64_t group_of[] = {8, 16, 24, 32, 64, 128, 40, 256, 520};  // the last is cut by panels
          const int64_t group = group_of[random.between(0, 8)];
          int64_t columns = random.between(1, 25 * group);
          if (columns > 1300) columns = random.between(1, 1300);
          if (i == 0) columns = group * random.between(16, 17) + 3;  // more than one chunk
          const int64_t m = i < 3 ? 1 : random.between(1, 70);
          const int64_t n = random.between(1, 70);
          const Dtype store = types[random.between(0, 2)];
          const Dtype dtype = types[random.between(0, 2)];
          const int64_t real_group = columns <= group ? columns : group;
          const LowBitMatrix w = random_matrix(random, n, columns, real_group, bits, kind, store);
          SCOPED_TRACE("bits " + std::to_string(bits) + " " + std::string(to_string(kind)) +
                       (asymmetric ? " asymmetric" : "") + " m " + std::to_string(m) + " n " + std::to_string(n) +
                       " k " + std::to_string(columns) + " group " + std::to_string(real_group) + " " +
                       std::string(to_string(store)) + " x " + std::string(to_string(dtype)));
          compare(w, random_input(random, m, columns, real_group, dtype), asymmetric, random.between(1, 3));
          if (HasFatalFailure()) return;
        }
}

/// From 16 rows on kernels of tiles multiply groups of 64 to 1024.
TEST_P(Int8, TiledGroups) {
  Random random(17);
  const LowBitKind kinds[] = {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset};
  for (const int bits : {1, 2, 4, 8})
    for (const LowBitKind kind : kinds)
      for (const bool asymmetric : {false, true})
        for (const int64_t group : {64, 128, 192, 1024}) {
          if (group > 128 && (testing::kSanitized || bits != 4)) continue;
          const int64_t columns = std::min<int64_t>(random.between(1, 9) * group + random.between(1, 99), 2200);
          const int64_t m = random.between(15, 70);
          const int64_t n = random.between(1, 70);
          const LowBitMatrix w = random_matrix(random, n, columns, group, bits, kind, Dtype::kF32);
          SCOPED_TRACE("bits " + std::to_string(bits) + " " + std::string(to_string(kind)) +
                       (asymmetric ? " asymmetric" : "") + " m " + std::to_string(m) + " n " + std::to_string(n) +
                       " k " + std::to_string(columns) + " group " + std::to_string(group));
          compare(w, random_input(random, m, columns, group, Dtype::kF32), asymmetric, random.between(1, 3));
          if (HasFatalFailure()) return;
        }
  const LowBitMatrix w = random_matrix(random, 50, 1200, 64, 4, LowBitKind::kZeroPoint, Dtype::kBF16);
  compare(w, random_input(random, kInt8MaxM + 40, 1200, 64, Dtype::kF32), true, 2);
  EXPECT_EQ(tiled_runs_ > 20, kernels_->tiled != nullptr) << tiled_runs_;
}

/// More rows of x than are run together, and more outputs than stay in the cache together.
TEST_P(Int8, ManyRowsAndOutputs) {
  Random random(12);
  const LowBitMatrix w = random_matrix(random, 300, 96, 32, 4, LowBitKind::kSymmetric, Dtype::kF16);
  compare(w, random_input(random, kInt8MaxM + 9, 96, 32, Dtype::kF32), false, 1);
}

/// Sums close to the ends of int32.
TEST_P(Int8, LargestGroup) {
  Random random(13);
  for (const LowBitKind kind : {LowBitKind::kSymmetric, LowBitKind::kZeroPoint}) {
    const LowBitMatrix w = random_matrix(random, 2, kMaxInt8Group, kMaxInt8Group, 8, kind, Dtype::kF32);
    for (const int64_t m : {1, 8}) {
      Input input = random_input(random, m, kMaxInt8Group, kMaxInt8Group, Dtype::kF32);
      for (std::vector<float>& row : input.values) std::fill(row.begin() + 1, row.end(), -1.0f);
      for (size_t r = 0; r < input.values.size(); ++r)
        std::memcpy(input.bytes[r].data(), input.values[r].data(), input.bytes[r].size());
      for (const bool asymmetric : {false, true}) compare(w, input, asymmetric, 1);
    }
  }
}

TEST_P(Int8, RowsThatAreNotFinite) {
  Random random(14);
  const LowBitMatrix w = random_matrix(random, 3, 70, 32, 4, LowBitKind::kSymmetric, Dtype::kF32);
  for (const bool asymmetric : {false, true}) {
    const Result<PackedLowBit> packed = pack_low_bit(w, asymmetric, "W");
    ASSERT_TRUE(packed.ok());
    std::vector<int8_t> codes(static_cast<size_t>(packed->code_bytes()));
    std::vector<Int8Group> groups(static_cast<size_t>(packed->groups()));
    const auto finite = [&](const std::vector<float>& x) {
      return quantize_row(*kernels_, *packed, x.data(), Dtype::kF32, codes.data(), groups.data());
    };
    const std::vector<float> ordinary = random_input(random, 1, 70, 32, Dtype::kF32).values[0];
    EXPECT_TRUE(finite(ordinary));
    for (const size_t k : {0, 7, 31, 32, 63, 64, 69})
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
        std::vector<float> x = ordinary;
        x[k] = bad;
        EXPECT_FALSE(finite(x)) << "x[" << k << "] = " << bad;
      }
    std::vector<float> wide = ordinary;
    wide[33] = 3e38f;
    wide[40] = -3e38f;
    EXPECT_EQ(finite(wide), !asymmetric) << "a range that overflows";
    wide[33] = ordinary[33];
    EXPECT_TRUE(finite(wide));
  }
}

TEST_P(Int8, OracleVectors) {
  int64_t rows = 0;
  int64_t refused = 0;
  for (const Json& one : testing::built_oracle_cases("low_bit.json")) {
    if (one.at("op") != "on_the_fly" || one.at("x_type") == "f64") continue;
    const Result<LowBitMatrix> w = LowBitMatrix::create(testing::low_bit_of(one.at("weights")), "W");
    ASSERT_TRUE(w.ok()) << w.status().message();
    const bool asymmetric = one.at("asymmetric");
    const Result<PackedLowBit> packed = pack_low_bit(*w, asymmetric, "W");
    ASSERT_TRUE(packed.ok());
    const std::string type = one.at("x_type");
    const Dtype dtype = type == "f32" ? Dtype::kF32 : type == "f16" ? Dtype::kF16 : Dtype::kBF16;
    const Array x = testing::float_rows_of(one.at("x"), dtype);
    std::vector<int8_t> codes(static_cast<size_t>(packed->code_bytes()));
    std::vector<Int8Group> groups(static_cast<size_t>(packed->groups()));
    std::vector<float> y(static_cast<size_t>(packed->padded_rows()));
    std::vector<uint8_t> scratch(static_cast<size_t>(packed->scratch_bytes()));
    for (size_t m = 0; m < one.at("x").size(); ++m) {
      SCOPED_TRACE("row " + std::to_string(m) + " of " + one.at("weights").dump());
      const bool finite = quantize_row(*kernels_, *packed,
                                       x.data<uint8_t>() + m * static_cast<size_t>(w->columns()) * size_in_bytes(dtype),
                                       dtype, codes.data(), groups.data());
      bool expected_finite = true;
      const int8_t* got = codes.data();
      for (size_t g = 0; g < groups.size(); ++g) {
        const Json& expected = one.at("groups").at(m).at(g);
        if (expected.is_null()) {
          expected_finite = false;
          got += int8_padded(w->parameters().group);
          continue;
        }
        EXPECT_EQ(bits_of(groups[g].scale), bits_of(testing::float_of_bits(expected.at("Sa")))) << "group " << g;
        EXPECT_EQ(groups[g].offset, testing::float_of_bits(expected.at("Oa"))) << "group " << g;
        const auto a = expected.at("a").get<std::vector<int32_t>>();
        for (const int32_t code : a) EXPECT_EQ(*got++, code) << "group " << g;
        got += int8_padded(static_cast<int64_t>(a.size())) - static_cast<int64_t>(a.size());
      }
      EXPECT_EQ(finite, expected_finite);
      refused += finite ? 0 : 1;
      if (!finite || one.at("y_type") != "f32" || !one.at("act").is_null()) continue;
      std::vector<float> bias(y.size());
      if (!one.at("bias").is_null())
        for (size_t n = 0; n < one.at("bias").size(); ++n) bias[n] = testing::float_of_bits(one.at("bias").at(n));
      constexpr float kNone = std::numeric_limits<float>::infinity();
      int8_product(*kernels_, *packed, packed->all_tiles(), {codes.data(), groups.data(), 1},
                   {bias.data(), -kNone, kNone}, y.data(), w->rows(), scratch.data());
      for (int64_t n = 0; n < w->rows(); ++n) {
        const auto i = static_cast<size_t>(n);
        const float value = y[i];
        const float expected = testing::float_of_bits(one.at("y").at(m).at(i));
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_EQ(bits_of(value), bits_of(expected)) << "output " << n;
        }
      }
      ++rows;
    }
  }
  EXPECT_GT(rows, 50);
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Int8, ::testing::ValuesIn(kRows),
                         [](const ::testing::TestParamInfo<Row>& row) { return std::string(row.param.name); });

TEST(PackLowBit, RefusesGroupsOfMoreThanInt32Holds) {
  Random random(15);
  const LowBitMatrix w =
      random_matrix(random, 1, kMaxInt8Group + 1, kMaxInt8Group + 1, 1, LowBitKind::kSymmetric, Dtype::kF32);
  const Status status = pack_low_bit(w, false, "fc").status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("fc: group is 65536"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace isobit
