// SPDX-License-Identifier: Apache-2.0
// Products of static codes and their rescale, on every path, against section 12 of numerics.md in plain words.
#include "linear/static/static.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
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

}  // namespace
}  // namespace isobit
