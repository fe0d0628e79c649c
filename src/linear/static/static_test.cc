// SPDX-License-Identifier: Apache-2.0
// Products of static codes and their rescale, on every path, against section 12 of numerics.md in plain words.
#include "linear/static/static.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/fixed.h"
#include "core/random.h"
#include "isobit/grid.h"
#include "testing/guarded_bytes.h"

namespace isobit {
namespace {

using isobit::testing::GuardedBytes;

struct Layer {
  int64_t n, k, m;
  bool is_signed;  // x and y
  int bytes;       // of a code of x and of y: 1 or 2
  Rounding rounding;
  int extra_shift;  // of every rescale
};

template <typename T>
void compare(CpuPath path, const Layer& layer, Random& random) {
  const auto [n, k, m, is_signed, bytes, rounding, extra_shift] = layer;
  const Dtype dtype = code_dtype(8 * bytes, is_signed);
  const int64_t qmin = code_min(8 * bytes, is_signed);
  const int64_t qmax = code_max(8 * bytes, is_signed);
  const int64_t zero_x = random.between(qmin, qmax);
  const auto zero_y = static_cast<int32_t>(random.between(qmin, qmax));
  const auto lo = static_cast<int32_t>(random.between(qmin, zero_y));
  const auto hi = static_cast<int32_t>(random.between(zero_y, qmax));
  std::vector<int32_t> weights(static_cast<size_t>(n * k));
  for (int32_t& v : weights) v = static_cast<int32_t>(random.between(-128, 127));
  std::vector<uint8_t> codes(static_cast<size_t>(m * k * bytes));
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.next());
  const PackedWeights packed = pack_weights(weights.data(), n, k).value();
  const GuardedBytes start_memory(packed.padded_n() * static_cast<int64_t>(sizeof(T)));
  T* const start = reinterpret_cast<T*>(start_memory.data());
  std::fill_n(start, packed.padded_n(), T{0});
  std::vector<RescaleParameters> rescales;
  std::vector<int64_t> bounds;
  std::vector<int64_t> biases;
  for (int64_t row = 0; row < n; ++row) {
    int64_t sum = 0;
    int64_t magnitude = 0;
    for (int64_t i = 0; i < k; ++i) {
      sum += weights[static_cast<size_t>(row * k + i)];
      magnitude += std::abs(weights[static_cast<size_t>(row * k + i)]);
    }
    biases.push_back(random.between(-100000, 100000));
    start[row] = static_cast<T>(biases.back() - (zero_x + storage_offset(dtype)) * sum);
    bounds.push_back(magnitude * (qmax - qmin) + 100000);
    // Powers of two have ties; the others have every bit.
    rescales.push_back(
        {static_cast<int32_t>(random.one_in(2) ? int64_t{1} << 30 : random.between(int64_t{1} << 30, INT32_MAX)),
         static_cast<int32_t>(random.between(32, 44)) + extra_shift});
  }
  const StaticOutput output(rescales, bounds, rounding, zero_y, lo, hi, bytes);
  const int64_t row_bytes = packed_row_bytes(dtype, k);
  const LinearKernel kernel = linear_kernel(path);
  const bool tiled = bytes == 1 && takes_tiles(kernel, packed, m);
  const GuardedBytes u((tiled ? round_up_to_tile(m) : m) * row_bytes);
  std::fill_n(u.data(), u.bytes().size(), uint8_t{0});
  for (int64_t i = 0; i < m; ++i)
    pack_activations_row(codes.data() + i * k * bytes, dtype, k,
                         u.data() + (tiled ? tiled_row_at(i, row_bytes) : i * row_bytes),
                         tiled ? kTileBytes : kTileColumns);
  const GuardedBytes y(m * n * bytes, random.one_in(2));
  const GuardedBytes scratch(kStaticScratch * static_cast<int64_t>(sizeof(T)));
  static_product<T>(kernel, static_rescale(path), packed, packed.all_blocks(), {u.data(), row_bytes, bytes, m, tiled},
                    start, output, y.data(), n, reinterpret_cast<T*>(scratch.data()));
  ASSERT_TRUE(y.untouched_around());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t row = 0; row < n; ++row) {
      const auto r = static_cast<size_t>(row);
      int64_t acc = biases[r];
      for (int64_t c = 0; c < k; ++c) {
        const int64_t code = load_code(codes.data(), dtype, i * k + c);
        acc += (code - zero_x) * weights[static_cast<size_t>(row * k + c)];
      }
      const int64_t rescaled = round_shift(acc * rescales[r].multiplier, rescales[r].shift, rounding);
      ASSERT_EQ(load_code(y.data(), dtype, i * n + row), std::clamp<int64_t>(rescaled + zero_y, lo, hi))
          << to_string(path) << " " << to_string(rounding) << " y[" << i << ", " << row << "], acc " << acc;
    }
}

TEST(StaticProduct, EveryPathAndRounding) {
  Random random(21);
  for (const CpuPath path : kAllCpuPaths) {
    if (linear_kernel(path) == nullptr) continue;
    for (const Rounding rounding : kAllRoundings)
      for (int i = 0; i < 12; ++i) {
        const Layer layer{random.between(1, 230),
                          random.between(1, 200),
                          i == 0  ? kStaticRows + 3
                          : i < 4 ? random.between(16, 70)
                                  : random.between(1, 9),
                          random.one_in(2),
                          i % 2 + 1,
                          rounding,
                          0};
        compare<int32_t>(path, layer, random);
        compare<int64_t>(path, layer, random);
        if (HasFatalFailure()) return;
      }
  }
}

/// A rescale upwards, whose results float64 lanes do not hold: the slower way is taken, with the same bytes.
TEST(StaticProduct, ResultsBeyondFloat64) {
  Random random(22);
  for (const CpuPath path : kAllCpuPaths) {
    if (linear_kernel(path) == nullptr) continue;
    for (const Rounding rounding : kAllRoundings)
      for (const int64_t m : {3, 35}) {
        compare<int32_t>(path, {40, 100, m, true, 1, rounding, -38}, random);
        compare<int32_t>(path, {40, 50, m, false, 2, rounding, -34}, random);
      }
  }
}

/// Sums start + u, u = 0 to 255, around `middle`, to codes in registers where float lanes are proved, and by the slower
/// way else.
struct Sums {
  std::vector<RescaleParameters> rescales;
  std::vector<int64_t> middles, bounds;
  Rounding rounding;
  int32_t zero_point, lo, hi;
};

void compare_sums(CpuPath path, const Sums& sums, bool has_codes, Random& random) {
  constexpr int64_t kRows = 256;
  const auto n = static_cast<int64_t>(sums.rescales.size());
  const PackedWeights packed = pack_weights(std::vector<int32_t>(static_cast<size_t>(n), 1).data(), n, 1).value();
  std::vector<int32_t> start(static_cast<size_t>(packed.padded_n()));
  for (int64_t i = 0; i < n; ++i)
    start[static_cast<size_t>(i)] = static_cast<int32_t>(sums.middles[static_cast<size_t>(i)] - kRows / 2);
  const int64_t row_bytes = packed_row_bytes(Dtype::kU8, 1);
  std::vector<uint8_t> u(static_cast<size_t>(kRows * row_bytes));
  for (int64_t m = 0; m < kRows; ++m) u[static_cast<size_t>(m * row_bytes)] = static_cast<uint8_t>(m);
  const int64_t first = random.between(0, kRows - 1), rows = random.between(1, kRows - first);
  const StaticOutput output(sums.rescales, sums.bounds, sums.rounding, sums.zero_point, sums.lo, sums.hi);
  ASSERT_EQ(output.has_codes(), has_codes);
  const int64_t y_stride = n + random.between(0, 3);
  const GuardedBytes y((rows - 1) * y_stride + n, random.one_in(2));
  std::fill_n(y.data(), y.bytes().size(), uint8_t{0x77});
  std::vector<int32_t> scratch(kStaticScratch);
  static_product<int32_t>(linear_kernel(path), static_rescale(path), packed, packed.all_blocks(),
                          {u.data() + first * row_bytes, row_bytes, 1, rows}, start.data(), output, y.data(), y_stride,
                          scratch.data());
  ASSERT_TRUE(y.untouched_around());
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t i = 0; i < y_stride && m * y_stride + i < static_cast<int64_t>(y.bytes().size()); ++i) {
      const auto c = static_cast<size_t>(i);
      const uint8_t code = y.data()[m * y_stride + i];
      if (i >= n) {
        ASSERT_EQ(code, 0x77) << "between rows";
        continue;
      }
      const int64_t acc = start[c] + first + m;
      const int64_t rescaled = round_shift(acc * sums.rescales[c].multiplier, sums.rescales[c].shift, sums.rounding);
      ASSERT_EQ(code, static_cast<uint8_t>(std::clamp<int64_t>(rescaled + sums.zero_point, sums.lo, sums.hi)))
          << to_string(path) << " " << to_string(sums.rounding) << ", acc " << acc << " * "
          << sums.rescales[c].multiplier << " * 2^-" << sums.rescales[c].shift << ", zero point " << sums.zero_point;
    }
}

/// Sums that lie between two codes, beside that, and at the ends of what float lanes hold.
TEST(StaticProduct, CodesWhereTheyChange) {
  Random random(23);
  for (const CpuPath path : kAllCpuPaths) {
    if (linear_kernel(path) == nullptr) continue;
    for (int i = 0; i < 400 && !HasFatalFailure(); ++i) {
      const bool is_signed = random.one_in(2);
      const int64_t qmin = code_min(8, is_signed), qmax = code_max(8, is_signed);
      Sums sums{.rescales = {},
                .middles = {},
                .bounds = {},
                .rounding = kAllRoundings[static_cast<size_t>(random.between(0, 3))],
                .zero_point = static_cast<int32_t>(random.between(qmin, qmax)),
                .lo = 0,
                .hi = 0};
      if (random.one_in(3)) sums.zero_point = static_cast<int32_t>(random.one_in(2) ? qmin : qmax);
      sums.lo = static_cast<int32_t>(random.one_in(2) ? qmin : random.between(qmin, sums.zero_point));
      sums.hi = static_cast<int32_t>(random.one_in(2) ? qmax : random.between(sums.zero_point, qmax));
      for (int64_t n = random.between(1, 90); n > 0; --n) {
        // 2^-15 is the least ratio of sums beyond 2^24.
        const int bits = static_cast<int>(random.between(0, 30)), exponent = static_cast<int>(random.between(-15, 3));
        int64_t multiplier = random.between(int64_t{1} << bits, (int64_t{2} << bits) - 1);
        if (random.one_in(4)) multiplier = int64_t{1} << bits;
        int shift = bits - exponent;
        while (shift - std::countr_zero(static_cast<uint32_t>(multiplier)) < 11)
          if (multiplier > INT32_MAX / 4) {
            multiplier |= 1;
          } else {
            multiplier = 2 * multiplier + 1, ++shift;
          }
        const double ratio = std::ldexp(static_cast<double>(multiplier), -shift);
        const int64_t between = random.between(qmin - 2, qmax + 1);  // this code and the next
        auto middle = static_cast<int64_t>((static_cast<double>(between - sums.zero_point) + 0.5) / ratio);
        const int64_t most = std::min<int64_t>(INT32_MAX - 256, static_cast<int64_t>(0x1p29 / ratio));
        if (random.one_in(8)) middle = random.one_in(2) ? most : -most;
        sums.rescales.push_back({static_cast<int32_t>(multiplier), shift});
        sums.middles.push_back(middle);
        sums.bounds.push_back(std::abs(middle) + 128);
      }
      compare_sums(path, sums, sums.rounding != Rounding::kFloor, random);
    }
  }
}

/// Ratios that float lanes are not proved for, or that have many sums between two codes.
TEST(StaticProduct, CodesThatFloatLanesDoNotHold) {
  Random random(24);
  const std::pair<RescaleParameters, int64_t> beyond[] = {
      {{(1 << 30) + 1, 46}, (1 << 24) + 1},  // below 2^-15
      {{3, 42}, 1 << 20},                    // below 2^-40
      {{1 << 20, 30}, 1 << 20},              // one sum in 2^10
      {{INT32_MAX, 0}, 1 << 20},             // no int32
  };
  for (const CpuPath path : kAllCpuPaths) {
    if (linear_kernel(path) == nullptr) continue;
    for (const auto& [rescale, bound] : beyond) {
      Sums sums{.rescales = {{1 << 30, 41}, rescale},
                .middles = {1024, bound - 128},
                .bounds = {1 << 20, bound},
                .rounding = Rounding::kNearestEven,
                .zero_point = 3,
                .lo = -128,
                .hi = 127};
      compare_sums(path, sums, false, random);
      sums.rescales.pop_back(), sums.middles.pop_back(), sums.bounds.pop_back();
      compare_sums(path, sums, true, random);
    }
  }
}

}  // namespace
}  // namespace isobit
