// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calibrate/derive_grid.h"
#include "isobit/calibration.h"

namespace isobit {
namespace {

constexpr ScaleKind kPow2 = ScaleKind::kPow2;
constexpr ScaleKind kReal = ScaleKind::kReal;

GridOptions make_options(int bits, bool is_signed, bool symmetric, std::optional<int64_t> steps = std::nullopt) {
  GridOptions options;
  options.bits = bits;
  options.is_signed = is_signed;
  options.symmetric = symmetric;
  options.steps = steps;
  return options;
}

CalibrationOptions parsed(std::string_view text) {
  auto options = parse_calibration_options(text);
  EXPECT_TRUE(options.ok()) << text << ": " << options.status().message();
  return options.ok() ? *options : CalibrationOptions{};
}

Grid derived(float min, float max, const GridOptions& options, ScaleKind kind, int64_t steps) {
  auto grid = derive_grid(min, max, options, kind, steps, "t");
  EXPECT_TRUE(grid.ok()) << grid.status().message();
  return grid.ok() ? *grid : Grid{};
}

Grid chosen(const TensorStatistics& statistics, const GridOptions& options, ScaleKind kind, std::string_view method) {
  auto grid = choose_grid(statistics, options, kind, parsed(method), "t");
  EXPECT_TRUE(grid.ok()) << grid.status().message();
  return grid.ok() ? *grid : Grid{};
}

void expect_refused(const Status& status, StatusCode code, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << "\"" << word << "\" is not in: " << status.message();
  }
}

TensorStatistics observed(const std::vector<float>& x) {
  TensorStatistics statistics;
  statistics.observe(x.data(), static_cast<int64_t>(x.size()));
  return statistics;
}

/// Non-empty bins by i.
std::map<int, uint64_t> bins_of(const TensorStatistics& statistics) {
  std::map<int, uint64_t> bins;
  for (size_t k = 0; k < statistics.bins().size(); ++k) {
    if (statistics.bins()[k] > 0) bins[static_cast<int>(k) - 2048] = statistics.bins()[k];
  }
  return bins;
}

/// The float32 with the 16 high bits of x and all low bits set, the end of its bin of the second histogram; 0 for +0.
float bin_end(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return bits < 0x10000 ? 0 : std::bit_cast<float>(bits | 0xffffu);
}

/// The range of a percentile straight from the samples: the ends of the bins of the first and the last sample that
/// are not among the m outside.
std::pair<float, float> range_without(std::vector<float> x, size_t m) {
  std::sort(x.begin(), x.end());
  return {std::clamp(bin_end(x[m]), x.front(), x.back()),
          std::clamp(bin_end(x[x.size() - 1 - m]), x.front(), x.back())};
}

// ---------------------------------------------------------------------------------------------- derive_grid

TEST(DeriveGrid, OutputsOfTheActivations) {
  const Grid sigmoid = derived(0, 1, make_options(8, false, false), kPow2, 256);
  EXPECT_EQ(sigmoid.shift, 8);
  EXPECT_EQ(sigmoid.zero_point, 0);
  const Grid tanh = derived(-1, 1, make_options(8, true, false), kPow2, 256);
  EXPECT_EQ(tanh.shift, 7);
  EXPECT_EQ(tanh.zero_point, 0);
  // With 2^8 - 1 steps the largest value keeps its code, at half the resolution.
  EXPECT_EQ(derived(0, 1, make_options(8, false, false), kPow2, 255).shift, 7);
}

TEST(DeriveGrid, WorkedByHand) {
  // raw = 4/255 is above 2^-6, so s = 5; -1 is 32 steps below zero: z = -128 + 32.
  const Grid asymmetric = derived(-1, 3, make_options(8, true, false), kPow2, 255);
  EXPECT_EQ(asymmetric.shift, 5);
  EXPECT_EQ(asymmetric.zero_point, -96);
  // raw = max(3/127, 1/128).
  EXPECT_EQ(derived(-1, 3, make_options(8, true, true), kReal, 255).real_scale, static_cast<float>(3.0 / 127));
  EXPECT_EQ(derived(-3, 1, make_options(8, true, true), kReal, 255).real_scale, static_cast<float>(3.0 / 128));
  EXPECT_EQ(derived(-1, 3, make_options(8, false, true), kReal, 255).real_scale, static_cast<float>(3.0 / 255));
  // Widened to contain 0 on either side.
  EXPECT_EQ(derived(2, 3, make_options(8, false, false), kReal, 255),
            derived(0, 3, make_options(8, false, false), kReal, 255));
  EXPECT_EQ(derived(-3, -2, make_options(8, true, false), kPow2, 255).zero_point, 127 - 63);  // s = 6: 192 steps
  // rint to even: min/S = -0.5 and -1.5.
  EXPECT_EQ(derived(-0.5f, 254, make_options(8, false, false), kPow2, 255).zero_point, 0);
  EXPECT_EQ(derived(-1.5f, 253, make_options(8, false, false), kPow2, 255).zero_point, 2);
}

TEST(DeriveGrid, NothingButZero) {
  for (const ScaleKind kind : {kPow2, kReal}) {
    const Grid grid = derived(0, 0, make_options(8, true, false), kind, 255);
    EXPECT_EQ(grid.shift, 0);
    EXPECT_EQ(grid.real_scale, 1.0f);
    EXPECT_EQ(grid.zero_point, 0);
    EXPECT_EQ(grid.kind, kind);
  }
  // A symmetric unsigned grid has no code for a negative value.
  EXPECT_EQ(derived(-5, 0, make_options(8, false, true), kPow2, 255).shift, 0);
}

TEST(DeriveGrid, ExactAtPowersOfTwo) {
  for (int exponent = -60; exponent <= 30; ++exponent) {
    const float top = std::ldexp(255.0f, exponent);
    const auto options = make_options(32, false, false, 255);  // the cap is 62
    EXPECT_EQ(derived(0, top, options, kPow2, 1).shift, -exponent);
    EXPECT_EQ(derived(0, std::nextafter(top, 0.0f), options, kPow2, 1).shift, -exponent);
    EXPECT_EQ(derived(0, std::nextafter(top, FLT_MAX), options, kPow2, 1).shift, -exponent - 1);
  }
}

TEST(DeriveGrid, CapAndFloor) {
  EXPECT_EQ(derived(0, FLT_TRUE_MIN, make_options(8, false, false), kPow2, 255).shift, 38);
  EXPECT_EQ(derived(0, FLT_TRUE_MIN, make_options(1, false, false), kPow2, 1).shift, 31);
  EXPECT_EQ(derived(0, FLT_TRUE_MIN, make_options(32, false, false), kPow2, 4294967295).shift, 62);
  EXPECT_EQ(derived(-FLT_TRUE_MIN, 0, make_options(8, false, false), kPow2, 255).zero_point, 0);
  EXPECT_EQ(derived(0, 0x1p32f, make_options(1, false, false), kPow2, 1).shift, -32);
  const auto options = make_options(1, false, false);
  expect_refused(derive_grid(0, 0x1p33f, options, kPow2, 1, "h").status(), StatusCode::kInvalidArgument,
                 {"h", "8589934592", "-33", "-32", "use general scales"});
}

TEST(DeriveGrid, RealScalesAreNormal) {
  const auto options = make_options(1, false, false);
  EXPECT_EQ(derived(0, FLT_MIN, options, kReal, 1).real_scale, FLT_MIN);
  EXPECT_EQ(derived(0, FLT_MAX, options, kReal, 1).real_scale, FLT_MAX);
  expect_refused(derive_grid(0, std::nextafter(FLT_MIN, 0.0f), options, kReal, 1, "h").status(),
                 StatusCode::kInvalidArgument, {"h", "normal float32", "1.1754943508222875e-38", "set values this small to 0"});
  expect_refused(derive_grid(-FLT_MAX, FLT_MAX, options, kReal, 1, "h").status(), StatusCode::kInvalidArgument,
                 {"h", "6.805646932770577e+38", "3.4028234663852886e+38"});
}

TEST(DeriveGrid, Refusals) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto status = [](float min, float max, const GridOptions& options, int64_t steps) {
    return derive_grid(min, max, options, kPow2, steps, "gate u").status();
  };
  const auto bad = StatusCode::kInvalidArgument;
  expect_refused(status(-1, 1, make_options(1, true, true), 1), bad, {"gate u", "1 steps", "symmetric", "2"});
  EXPECT_TRUE(status(-1, 1, make_options(1, true, true), 2).ok());
  expect_refused(status(-1, 1, make_options(0, true, false), 1), bad, {"gate u", "0 bits", "1 to 32"});
  expect_refused(status(-1, 1, make_options(33, true, false), 1), bad, {"gate u", "33 bits", "1 to 32"});
  expect_refused(status(-1, 1, make_options(8, true, false, 0), 255), bad, {"gate u", "0 steps", "256"});
  expect_refused(status(-1, 1, make_options(8, true, false, 257), 255), bad, {"gate u", "257 steps", "256"});
  expect_refused(status(nan, 1, make_options(8, true, false), 255), bad, {"gate u", "nan"});
  expect_refused(status(0, INFINITY, make_options(8, true, false), 255), bad, {"gate u", "inf"});
  expect_refused(status(2, 1, make_options(8, true, false), 255), bad, {"gate u", "[2, 1]"});
}

/// Every width, signedness and symmetry, against the definition: 2^-s is the smallest power of two whose N steps
/// reach from min to max (symmetric: half of the steps to the farther end).
TEST(DeriveGrid, SweepIsTheFinestThatCovers) {
  const std::vector<std::pair<float, float>> ranges = {{0, 1},     {-1, 1},          {-0.3f, 0.7f}, {-5, 0.125f},
                                                       {-100, 27}, {0.25f, 1000.5f}, {-3, -2},      {-1e-5f, 3e-6f}};
  for (int bits = 1; bits <= 32; ++bits) {
    for (const bool is_signed : {false, true}) {
      for (const bool symmetric : {false, true}) {
        for (const int64_t steps : {(int64_t{1} << bits) - 1, int64_t{1} << bits}) {
          if (symmetric && is_signed && steps < 2) continue;
          for (const auto& [low, high] : ranges) {
            SCOPED_TRACE(testing::Message() << bits << " bits, signed " << is_signed << ", symmetric " << symmetric
                                            << ", N " << steps << ", [" << low << ", " << high << "]");
            const long double min = std::min(low, 0.0f);
            const long double max = std::max(high, 0.0f);
            const auto options = make_options(bits, is_signed, symmetric);
            const Grid grid = derived(low, high, options, kPow2, steps);
            const auto covers = [&](int shift) {
              const long double step = std::ldexp(1.0L, -shift);
              const auto n = static_cast<long double>(steps);
              if (!symmetric) return n * step >= max - min;
              if (!is_signed) return n * step >= max;
              return std::floor(n / 2) * step >= max && std::ceil(n / 2) * step >= -min;
            };
            if (symmetric && !is_signed && max == 0) {
              EXPECT_EQ(grid.shift, 0);
              continue;
            }
            EXPECT_TRUE(covers(grid.shift)) << grid.shift;
            if (grid.shift < std::min(62, bits + 30)) {
              EXPECT_FALSE(covers(grid.shift + 1)) << grid.shift;
            }
            EXPECT_GE(grid.zero_point, grid.min());
            EXPECT_LE(grid.zero_point, grid.max());
            if (symmetric) {
              EXPECT_EQ(grid.zero_point, 0);
            }

            // General scales: with 2^b - 1 steps both ends lie within half a step (and S's rounding) of a code.
            const Grid real = derived(low, high, options, kReal, steps);
            if (symmetric) {
              EXPECT_EQ(real.zero_point, 0);
            }
            if (steps == (int64_t{1} << bits) - 1) {
              const long double scale = static_cast<long double>(real.real_scale);
              const long double slack = 0.5L + std::ldexp(static_cast<long double>(steps), -23);
              const auto z = static_cast<long double>(real.zero_point);
              EXPECT_LE(max / scale + z, static_cast<long double>(real.max()) + slack);
              if (is_signed || !symmetric) {
                EXPECT_GE(min / scale + z, static_cast<long double>(real.min()) - slack);
              }
            }
          }
        }
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------- derive_row_grids

std::vector<Grid> row_grids(const std::vector<float>& values, int64_t rows, ScaleKind kind, bool follow) {
  auto grids = derive_row_grids(values, rows, rows == 0 ? 1 : static_cast<int64_t>(values.size()) / rows,
                                make_options(8, true, true), kind, "W", follow);
  EXPECT_TRUE(grids.ok()) << grids.status().message();
  return grids.ok() ? *grids : std::vector<Grid>{};
}

TEST(DeriveRowGrids, WorkedByHand) {
  // N = 256: raw = max(max, -min)/128.
  const auto grids = row_grids({1, -0.5f, -2, 0.25f, 0, 0, 0.1f, 0.01f}, 4, kPow2, true);
  ASSERT_EQ(grids.size(), 4u);
  EXPECT_EQ(grids[0].shift, 7);
  EXPECT_EQ(grids[1].shift, 6);
  EXPECT_EQ(grids[2].shift, 10);  // all zero: follows the finest row
  EXPECT_EQ(grids[3].shift, 10);  // 0.1/128 = 1.6 * 2^-11
  const auto real = row_grids({1, -0.5f, -2, 0.25f, 0, 0, 0.1f, 0.01f}, 4, kReal, true);
  ASSERT_EQ(real.size(), 4u);
  EXPECT_EQ(real[1].real_scale, 2.0f / 128);
  EXPECT_EQ(real[2].real_scale, 0.1f / 128);
  for (const Grid& grid : grids) EXPECT_EQ(grid.zero_point, 0);
}

TEST(DeriveRowGrids, ZeroRows) {
  EXPECT_EQ(row_grids({0, 4}, 2, kPow2, false)[0].shift, 0);  // a bias of 0
  EXPECT_EQ(row_grids({0, 4}, 2, kPow2, true)[0].shift, 5);
  EXPECT_EQ(row_grids({0, 400}, 2, kPow2, true)[0].shift, -2);  // the others may be coarser than 1
  EXPECT_EQ(row_grids({0, 400}, 2, kReal, true)[0].real_scale, 3.125f);
  EXPECT_EQ(row_grids({0, -0.0f}, 2, kPow2, true)[1].shift, 0);
  EXPECT_EQ(row_grids({0, -0.0f}, 2, kReal, true)[1].real_scale, 1.0f);
  EXPECT_TRUE(row_grids({}, 0, kPow2, true).empty());
}

TEST(DeriveRowGrids, StepsAndRefusals) {
  const std::vector<float> values = {1, 2, 3, INFINITY};
  const auto status = [&](int64_t rows, int64_t columns, const GridOptions& options, size_t count) {
    return derive_row_grids(std::span(values).first(count), rows, columns, options, kPow2, "R", true).status();
  };
  const auto symmetric = make_options(8, true, true);
  const auto bad = StatusCode::kInvalidArgument;
  expect_refused(status(2, 1, make_options(8, true, false), 2), bad, {"R", "symmetric"});
  expect_refused(status(2, 2, symmetric, 4), bad, {"R", "row 1", "column 1", "inf"});
  expect_refused(status(2, 2, symmetric, 3), bad, {"R", "3 values", "2 rows of 2"});
  expect_refused(status(1, 0, symmetric, 0), bad, {"R", "0 columns"});
  expect_refused(status(-1, -3, symmetric, 3), bad, {"R", "-1 rows"});
  expect_refused(status(1, 1, make_options(40, true, true), 1), bad, {"R", "40 bits"});
  const std::vector<float> large = {1, 1e20f};
  expect_refused(derive_row_grids(large, 2, 1, symmetric, kPow2, "R", true).status(), bad, {"R[1]", "-32"});
  const auto odd =
      derive_row_grids(std::span(values).first(1), 1, 1, make_options(8, true, true, 255), kReal, "R", true);
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ((*odd)[0].real_scale, 1.0f / 127);
}

// ---------------------------------------------------------------------------------------------- statistics

TEST(Statistics, WorkedByHand) {
  TensorStatistics statistics = observed({0.75f, -0.25f, 0, 0.4999f});
  EXPECT_EQ(statistics.count(), 4u);
  EXPECT_EQ(statistics.min(), -0.25f);
  EXPECT_EQ(statistics.max(), 0.75f);
  EXPECT_EQ(statistics.exponent(), 0);  // 2048 bins a unit
  EXPECT_EQ(bins_of(statistics), (std::map<int, uint64_t>{{-512, 1}, {0, 1}, {1023, 1}, {1536, 1}}));
  const float one = 1;  // 1 is not below 2^0
  statistics.observe(&one, 1);
  EXPECT_EQ(statistics.exponent(), 1);
  EXPECT_EQ(bins_of(statistics), (std::map<int, uint64_t>{{-256, 1}, {0, 1}, {511, 1}, {768, 1}, {1024, 1}}));
}

TEST(Statistics, EndsOfFloat32) {
  EXPECT_EQ(observed({FLT_TRUE_MIN}).exponent(), -148);
  EXPECT_EQ(bins_of(observed({FLT_TRUE_MIN})), (std::map<int, uint64_t>{{1024, 1}}));
  EXPECT_EQ(bins_of(observed({-FLT_TRUE_MIN})), (std::map<int, uint64_t>{{-1024, 1}}));
  EXPECT_EQ(observed({FLT_MAX}).exponent(), 128);
  EXPECT_EQ(bins_of(observed({FLT_MAX, -FLT_MAX})), (std::map<int, uint64_t>{{-2048, 1}, {2047, 1}}));
  // The largest jump of E: floor sends every small negative sample to bin -1.
  TensorStatistics statistics = observed({FLT_TRUE_MIN, -FLT_TRUE_MIN, -2 * FLT_TRUE_MIN});
  const float top = FLT_MAX;
  statistics.observe(&top, 1);
  EXPECT_EQ(bins_of(statistics), (std::map<int, uint64_t>{{-1, 2}, {0, 1}, {2047, 1}}));
  EXPECT_EQ(statistics, observed({FLT_MAX, -2 * FLT_TRUE_MIN, FLT_TRUE_MIN, -FLT_TRUE_MIN}));
}

TEST(Statistics, ZerosOnly) {
  TensorStatistics statistics = observed({0, -0.0f});
  EXPECT_EQ(statistics.exponent(), 0);
  EXPECT_FALSE(std::signbit(statistics.min()));
  EXPECT_FALSE(std::signbit(statistics.max()));
  EXPECT_EQ(bins_of(statistics), (std::map<int, uint64_t>{{0, 2}}));
  statistics.merge(observed({0x1p-20f}));
  EXPECT_EQ(statistics, observed({0x1p-20f, 0, 0}));
  EXPECT_EQ(statistics.exponent(), -19);
  TensorStatistics other = observed({0x1p-20f});
  other.merge(observed({0, 0}));
  EXPECT_EQ(statistics, other);
  statistics.observe(nullptr, 0);
  EXPECT_EQ(statistics, other);
  other.merge(TensorStatistics());
  EXPECT_EQ(statistics, other);
}

TEST(Statistics, MergesWithItself) {
  TensorStatistics statistics = observed({1, -2, 3});
  statistics.merge(statistics);
  EXPECT_EQ(statistics, observed({1, -2, 3, 1, -2, 3}));
}

TEST(Statistics, EmaRange) {
  TensorStatistics statistics(0.75);
  EXPECT_FALSE(statistics.ema_range().has_value());
  const float low[] = {-1, -2, 0};
  const float high[] = {1, 3, 8};
  statistics.observe_sequence_ranges(low, high, 0);
  EXPECT_FALSE(statistics.ema_range().has_value());
  statistics.observe_sequence_ranges(low, high, 3);
  // -1, -1.25, -0.9375 and 1, 1.5, 3.125.
  EXPECT_EQ(statistics.ema_range(), std::pair(-0.9375, 3.125));
  statistics.observe_sequence_ranges(low + 1, high, 1);
  EXPECT_EQ(statistics.ema_range(), std::pair(-2.0, 3.125));
  TensorStatistics other(0.75);
  other.observe_sequence_ranges(low, high + 2, 1);
  TensorStatistics merged = other;
  merged.merge(statistics);
  EXPECT_EQ(merged.ema_range(), std::pair(-2.0, 8.0));
  statistics.merge(other);
  EXPECT_EQ(merged, statistics);
}

/// Any finite float32, with magnitudes near each other more often than not, and zeros.
rc::Gen<float> sample() {
  const auto any_bits = rc::gen::map(rc::gen::arbitrary<uint32_t>(), [](uint32_t bits) {
    const auto x = std::bit_cast<float>(bits);
    return std::isfinite(x) ? x : 0.0f;
  });
  const auto near_one =
      rc::gen::map(rc::gen::inRange(-(1 << 20), 1 << 20), [](int k) { return std::ldexp(static_cast<float>(k), -16); });
  const auto power =
      rc::gen::map(rc::gen::inRange(-298, 256), [](int k) { return std::ldexp(k % 2 == 0 ? 1.0f : -1.0f, k / 2); });
  return rc::gen::weightedOneOf<float>(
      {{2, any_bits}, {6, near_one}, {2, power}, {1, rc::gen::just(0.0f)}, {1, rc::gen::just(-0.0f)}});
}

/// Straight from the definition: E from the whole data, then each sample's bin by a search over the edges.
TEST(Statistics, EqualsTheDefinition) {
  EXPECT_TRUE(rc::check("histogram by definition", [] {
    const auto x = *rc::gen::container<std::vector<float>>(sample());
    const TensorStatistics statistics = observed(x);
    RC_ASSERT(statistics.count() == x.size());
    if (x.empty()) return;
    RC_ASSERT(statistics.min() == *std::min_element(x.begin(), x.end()));
    RC_ASSERT(statistics.max() == *std::max_element(x.begin(), x.end()));
    double magnitude = 0;
    for (const float v : x) magnitude = std::max(magnitude, std::fabs(static_cast<double>(v)));
    int exponent = -148;
    while (std::ldexp(1.0, exponent) <= magnitude) ++exponent;
    if (magnitude == 0) exponent = 0;
    RC_ASSERT(statistics.exponent() == exponent);
    std::map<int, uint64_t> expected;
    for (const float v : x) {
      int low = -2048;  // the last edge low * 2^(E-11) that is at most v
      int high = 2048;
      while (high - low > 1) {
        const int middle = (low + high) >> 1;
        (std::ldexp(static_cast<double>(middle), exponent - 11) <= static_cast<double>(v) ? low : high) = middle;
      }
      ++expected[low];
    }
    RC_ASSERT(bins_of(statistics) == expected);

    std::map<uint32_t, uint64_t> by_high_bits;
    for (const float v : x) ++by_high_bits[v == 0 ? 0 : std::bit_cast<uint32_t>(v) >> 16];
    float last = -INFINITY;
    for (const TensorStatistics::FloatBin& bin : statistics.float_bins()) {
      RC_ASSERT(by_high_bits.at(bin.high_bits) == bin.count);
      by_high_bits.erase(bin.high_bits);
      const float end = bin_end(std::bit_cast<float>(uint32_t{bin.high_bits} << 16));
      RC_ASSERT(last < end);  // in the order of the numbers
      last = end;
    }
    RC_ASSERT(by_high_bits.empty());
  }));
}

TEST(Statistics, OrderAndPartitionDoNotMatter) {
  EXPECT_TRUE(rc::check("shuffled, split and merged in any order", [] {
    auto x = *rc::gen::container<std::vector<float>>(sample());
    const TensorStatistics whole = observed(x);
    for (size_t k = x.size(); k > 1; --k) std::swap(x[k - 1], x[*rc::gen::inRange<size_t>(0, k)]);
    const size_t part_count = *rc::gen::inRange<size_t>(1, 6);
    std::vector<TensorStatistics> parts(part_count);
    for (size_t k = 0; k < x.size();) {  // runs of any length, each to any part
      const size_t run = std::min(x.size() - k, *rc::gen::inRange<size_t>(1, 8));
      parts[*rc::gen::inRange<size_t>(0, part_count)].observe(x.data() + k, static_cast<int64_t>(run));
      k += run;
    }
    while (parts.size() > 1) {  // any two, either way round
      const size_t to = *rc::gen::inRange<size_t>(0, parts.size());
      const size_t from = (to + *rc::gen::inRange<size_t>(1, parts.size())) % parts.size();
      parts[to].merge(parts[from]);
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(from));
    }
    RC_ASSERT(parts[0] == whole);
  }));
}

TEST(Statistics, AllocatesOnlyOnce) {
  TensorStatistics statistics = observed({FLT_TRUE_MIN});
  const uint64_t* data = statistics.bins().data();
  for (int e = -140; e < 128; e += 7) {
    const float x = std::ldexp(1.0f, e);
    statistics.observe(&x, 1);
  }
  EXPECT_EQ(statistics.bins().data(), data);
}

// ---------------------------------------------------------------------------------------------- choose_grid

/// One unsigned bit and one step: the scale is the width of the chosen range, so positive data shows its upper end.
float upper_end(const TensorStatistics& statistics, std::string_view method) {
  return chosen(statistics, make_options(1, false, false), kReal, method).real_scale;
}

TEST(ChooseGrid, MinMaxHasACodeForTheLargest) {
  const Grid grid = chosen(observed({-1, 0.5f, 1}), make_options(8, true, false), kPow2, "minmax");
  EXPECT_EQ(grid.shift, 6);  // N = 255: with s = 7 the value 1 would have no code
  EXPECT_EQ(grid.zero_point, -64);
  EXPECT_EQ(chosen(observed({-1, 0.5f, 1}), make_options(8, true, false, 256), kPow2, "minmax").shift, 7);
}

TEST(ChooseGrid, PercentileByHand) {
  // 200 samples 1/2048, 2/2048, ..., each in a bin of its own: 8 bits hold each k.
  std::vector<float> x;
  for (int k = 1; k <= 200; ++k) x.push_back(static_cast<float>(k) / 2048);
  const TensorStatistics statistics = observed(x);
  ASSERT_EQ(statistics.float_bins().size(), 200u);
  EXPECT_EQ(upper_end(statistics, "percentile:100"), 200.0f / 2048);
  EXPECT_EQ(upper_end(statistics, "percentile:99.000001"), 200.0f / 2048);          // m = 0
  EXPECT_EQ(upper_end(statistics, "percentile:99"), bin_end(199.0f / 2048));           // m = 1
  EXPECT_EQ(upper_end(statistics, "percentile:90"), bin_end(190.0f / 2048));           // m = 10
  EXPECT_EQ(upper_end(statistics, "percentile:0.000000001"), bin_end(101.0f / 2048));  // m = 99
}

TEST(ChooseGrid, PercentileByDefinition) {
  EXPECT_TRUE(rc::check("both ends of a percentile range", [] {
    const auto x = *rc::gen::nonEmpty(rc::gen::container<std::vector<float>>(
        rc::gen::map(rc::gen::inRange(-4096, 4096), [](int k) { return static_cast<float>(k) / 1024; })));
    const int64_t numerator = *rc::gen::inRange<int64_t>(1, 1001);
    const TensorStatistics statistics = observed(x);
    CalibrationOptions calibration;
    calibration.method = CalibrationMethod::kPercentile;
    calibration.percentile_numerator = numerator;
    calibration.percentile_denominator = 10;
    const auto [low, high] = range_without(x, x.size() * static_cast<size_t>(1000 - numerator) / 2000);
    const auto options = make_options(8, true, false);
    const auto grid = choose_grid(statistics, options, kReal, calibration, "t");
    const auto expected = derive_grid(low, high, options, kReal, 255, "t");
    const bool zeros_only = statistics.min() == 0 && statistics.max() == 0;
    RC_ASSERT(grid.ok() == (zeros_only || low != 0 || high != 0));
    if (!grid.ok()) return;
    RC_ASSERT(expected.ok());
    RC_ASSERT(*grid == *expected);
  }));
}

/// In dB, over all samples but the last.
double sqnr_but_last(const std::vector<float>& x, const Grid& grid) {
  double signal = 0;
  double noise = 0;
  for (size_t k = 0; k + 1 < x.size(); ++k) {
    const auto value = static_cast<double>(x[k]);
    const double error = static_cast<double>(dequantize_value(grid, quantize_value(grid, x[k]))) - value;
    signal += value * value;
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

TEST(ChooseGrid, AnOutlierDoesNotRuleAPercentile) {
  std::vector<float> x;
  uint32_t state = 1;
  for (int k = 0; k < 12800; ++k) {
    float sum = 0;  // of four: a bell
    for (int part = 0; part < 4; ++part) {
      state = state * 1664525 + 1013904223;
      sum += static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    }
    x.push_back(sum);
  }
  x.back() = 1;
  for (const ScaleKind kind : {kPow2, kReal}) {
    const auto sqnr = [&](float outlier) {
      x.back() = outlier;
      return sqnr_but_last(x, chosen(observed(x), make_options(8, true, false), kind, "percentile:99.9"));
    };
    const double without = sqnr(1);
    EXPECT_GT(without, 33);
    for (const float outlier : {1e4f, -1e4f, 1e6f, -1e6f, FLT_MAX}) EXPECT_NEAR(sqnr(outlier), without, 0.5) << outlier;
  }
}

TEST(ChooseGrid, PercentileOfNearlyAllZeros) {
  std::vector<float> x(1000, 0.0f);
  x[0] = 1;
  x[1] = -2;
  const auto options = make_options(8, true, false);
  for (const ScaleKind kind : {kPow2, kReal}) {
    expect_refused(choose_grid(observed(x), options, kind, parsed("percentile:99"), "x").status(),
                   StatusCode::kInvalidArgument, {"x: ", "percentile:99 is [0, 0]", "higher percentile"});
    EXPECT_EQ(chosen(observed(x), options, kind, "percentile:99.9"), chosen(observed(x), options, kind, "minmax"));
    EXPECT_TRUE(choose_grid(observed({0, 0}), options, kind, parsed("percentile:50"), "x").ok());
    // The search goes as far as without outliers: percentile 99 has no step.
    EXPECT_TRUE(choose_grid(observed(x), options, kind, parsed("sqnr"), "x").ok());
  }
}

TEST(ChooseGrid, PercentileIsCountedInIntegers) {
  // 2^63 samples by doubling: m = floor(2^63 * 10^-9 / 200) = 46116860, which 64-bit products cannot reach.
  TensorStatistics many = observed({0.5f});
  for (int k = 0; k < 63; ++k) many.merge(many);
  TensorStatistics few = observed({0.75f});
  for (int k = 0; k < 25; ++k) few.merge(few);
  ASSERT_EQ(many.count(), uint64_t{1} << 63);
  many.merge(few);  // 2^25 = 33554432 samples of 0.75 lie outside
  EXPECT_EQ(upper_end(many, "percentile:99.999999999"), bin_end(0.5f));
  many.merge(few);  // 2^26 = 67108864 do not
  EXPECT_EQ(upper_end(many, "percentile:99.999999999"), 0.75f);
}

TEST(ChooseGrid, Ema) {
  TensorStatistics statistics(0.75);
  const float x[] = {1, 3, 8};
  const float zeros[] = {0, 0, 0};
  statistics.observe(x, 3);
  const auto options = make_options(8, false, false);
  expect_refused(choose_grid(statistics, options, kPow2, parsed("ema:0.75"), "h").status(),
                 StatusCode::kFailedPrecondition, {"h", "sequence"});
  statistics.observe_sequence_ranges(zeros, x, 3);
  EXPECT_EQ(upper_end(statistics, "ema:0.75"), 3.125f);
  EXPECT_EQ(upper_end(statistics, "minmax"), 8.0f);
  expect_refused(choose_grid(statistics, options, kPow2, parsed("ema"), "h").status(), StatusCode::kFailedPrecondition,
                 {"h", "0.9", "0.75"});
}

TEST(ChooseGrid, EmptyStatisticsAndBadOptions) {
  const TensorStatistics empty;
  const auto options = make_options(8, false, false);
  for (const char* method : {"minmax", "percentile:99", "sqnr", "ema"}) {
    expect_refused(choose_grid(empty, options, kPow2, parsed(method), "h").status(), StatusCode::kFailedPrecondition,
                   {"h", "no samples"});
  }
  CalibrationOptions calibration;
  calibration.method = CalibrationMethod::kPercentile;
  calibration.percentile_denominator = 20;
  expect_refused(choose_grid(observed({1}), options, kPow2, calibration, "h").status(), StatusCode::kInvalidArgument,
                 {"h", "20", "power of ten"});
  expect_refused(choose_grid(observed({1}), make_options(0, true, false), kPow2, {}, "h").status(),
                 StatusCode::kInvalidArgument, {"h", "0 bits"});
  expect_refused(choose_grid(observed({-1, 1}), make_options(1, true, true), kPow2, {}, "h").status(),
                 StatusCode::kInvalidArgument, {"h", "symmetric"});
}

TEST(ChooseGrid, SqnrByHand) {
  // 10000 samples near 1 and one at 8, one unsigned bit (N = 1): s = -3 covers. The codes 0 and 1 of the shifts
  // -3, -2, -1, 0 stand for 0 and 8, 4, 2, 1: only 1 is near the many, at the price of clipping one sample to 1.
  std::vector<float> x(10000, 1.0f);
  x.push_back(8);
  const Grid grid = chosen(observed(x), make_options(1, false, true), kPow2, "sqnr");
  EXPECT_EQ(grid.shift, 0);
  // The other way round nothing beats the covering shift, which is exact for 8 but for the centre of its bin.
  std::vector<float> y(10000, 8.0f);
  y.push_back(1);
  EXPECT_EQ(chosen(observed(y), make_options(1, false, true), kPow2, "sqnr").shift, -3);
  // All samples equal: the covering grid and finer ones; zeros alone keep the grid of zeros.
  EXPECT_EQ(chosen(observed({0, 0}), make_options(8, false, false), kPow2, "sqnr").shift, 0);
  // Never above the cap.
  EXPECT_EQ(chosen(observed({FLT_TRUE_MIN}), make_options(8, false, false), kPow2, "sqnr").shift, 38);
  EXPECT_GE(chosen(observed({2 * FLT_MIN}), make_options(1, false, false), kReal, "sqnr").real_scale, FLT_MIN);
}

/// The search again, from the definition, in another arithmetic: the winner is no worse than any candidate.
TEST(ChooseGrid, SqnrIsTheLeastOfItsCandidates) {
  EXPECT_TRUE(rc::check("no candidate is better", [] {
    const auto x = *rc::gen::nonEmpty(rc::gen::container<std::vector<float>>(rc::gen::map(
        rc::gen::inRange(-4096, 8192), [](int k) { return std::ldexp(static_cast<float>(k * k % 9973 - 2000), -9); })));
    const int bits = *rc::gen::inRange(1, 9);
    const bool is_signed = *rc::gen::arbitrary<bool>();
    const bool symmetric = *rc::gen::arbitrary<bool>() && !(is_signed && bits == 1);
    const ScaleKind kind = *rc::gen::element(kPow2, kReal);
    const auto options = make_options(bits, is_signed, symmetric);
    const TensorStatistics statistics = observed(x);
    const auto bins = bins_of(statistics);
    const auto error = [&](const Grid& grid) {
      long double sum = 0;
      const auto scale = static_cast<long double>(scale_f64(grid));
      for (const auto& [i, samples] : bins) {
        const long double centre = std::ldexp(i + 0.5L, statistics.exponent() - 11);
        long double code = std::nearbyint(centre / scale) + static_cast<long double>(grid.zero_point);
        code = std::clamp(code, static_cast<long double>(grid.min()), static_cast<long double>(grid.max()));
        const long double difference = (code - static_cast<long double>(grid.zero_point)) * scale - centre;
        sum += static_cast<long double>(samples) * difference * difference;
      }
      return sum;
    };
    const auto best = choose_grid(statistics, options, kind, parsed("sqnr"), "t");
    const auto covering = choose_grid(statistics, options, kind, {}, "t");
    RC_ASSERT(best.ok() && covering.ok());
    if (statistics.min() == 0 && statistics.max() == 0) return;
    const long double least = error(*best) * (1 + 1e-9L);
    bool is_candidate = false;
    // Candidates go down to the scale of percentile 99.
    const auto [low, high] = range_without(x, x.size() / 200);
    const auto last = derive_grid(low, high, options, kind, (int64_t{1} << bits) - 1, "t");
    RC_ASSERT(last.ok());
    const bool has_step = high > 0 || (low < 0 && (is_signed || !symmetric));
    const double last_scale = has_step ? scale_f64(*last) : INFINITY;
    double reached = INFINITY;
    for (int j = 0; j < (kind == kPow2 ? 4 : 13) || reached > last_scale; ++j) {
      Grid grid = *covering;
      if (kind == kPow2) {
        grid.shift += j;
      } else {
        grid.real_scale = static_cast<float>(static_cast<double>(grid.real_scale) / std::pow(2.0, j / 4.0));
      }
      const auto clamped = [&](double code) {
        return std::clamp(code, static_cast<double>(grid.min()), static_cast<double>(grid.max()));
      };
      const double scale = scale_f64(grid);
      reached = scale;
      const double z_a = clamped(static_cast<double>(grid.min()) -
                                 std::nearbyint(std::min(static_cast<double>(statistics.min()), 0.0) / scale));
      const double z_b = clamped(static_cast<double>(grid.max()) -
                                 std::nearbyint(std::max(static_cast<double>(statistics.max()), 0.0) / scale));
      for (int i = 0; i <= (symmetric ? 0 : 16); ++i) {
        grid.zero_point = symmetric ? 0 : static_cast<int64_t>(z_a + std::nearbyint((z_b - z_a) * i / 16));
        is_candidate = is_candidate || grid == *best;
        RC_ASSERT(least <= error(grid) * (1 + 2e-9L));
      }
    }
    RC_ASSERT(is_candidate);
  }));
}

// ---------------------------------------------------------------------------------------------- text

TEST(CalibrationOptions, ParseAndPrint) {
  EXPECT_EQ(parsed("minmax"), CalibrationOptions{});
  EXPECT_EQ(parsed("sqnr").method, CalibrationMethod::kSqnr);
  EXPECT_EQ(parsed("ema"), parsed("ema:0.9"));
  EXPECT_EQ(parsed("ema:0").ema_decay, 0);
  const CalibrationOptions percentile = parsed("percentile:99.990");
  EXPECT_EQ(percentile.percentile_numerator, 9999);
  EXPECT_EQ(percentile.percentile_denominator, 100);
  EXPECT_EQ(parsed("percentile:100.000000000"), parsed("percentile:100"));
  for (const char* text :
       {"minmax", "sqnr", "ema:0.9", "ema:0", "ema:0.30000000000000004", "ema:1e-300", "percentile:100",
        "percentile:99.99", "percentile:0.000000001", "percentile:50.05", "percentile:7"}) {
    EXPECT_EQ(to_string(parsed(text)), text);
  }
  EXPECT_EQ(to_string(parsed("percentile:099.50")), "percentile:99.5");
  CalibrationOptions negative_zero = parsed("ema");
  negative_zero.ema_decay = -0.0;
  EXPECT_EQ(to_string(negative_zero), "ema:0");
}

TEST(CalibrationOptions, Refusals) {
  for (const char* text : {"",
                           "max",
                           "minmax ",
                           "Minmax",
                           "minmax:1",
                           "sqnr:1",
                           "percentile",
                           "percentile:",
                           "percentile:0",
                           "percentile:0.0",
                           "percentile:100.1",
                           "percentile:101",
                           "percentile:-1",
                           "percentile:+1",
                           "percentile:.5",
                           "percentile:99.",
                           "percentile:99.1234567891",
                           "percentile:1e1",
                           "percentile:99,9",
                           "percentile:9999",
                           "percentile:18446744073709551615",
                           "ema:",
                           "ema:1",
                           "ema:1.5",
                           "ema:-0.5",
                           "ema:-0",
                           "ema:nan",
                           "ema:inf",
                           "ema:0.9x",
                           "ema: 0.9",
                           "ema:1e-999"}) {
    const auto options = parse_calibration_options(text);
    ASSERT_FALSE(options.ok()) << text;
    expect_refused(options.status(), StatusCode::kInvalidArgument,
                   {std::string(text) + "\":", "minmax", "percentile:P", "sqnr", "ema:D"});
  }
}

TEST(CalibrationOptions, CheckedByHand) {
  CalibrationOptions options;
  options.ema_decay = 7;  // not used by minmax
  EXPECT_TRUE(check_calibration_options(options).ok());
  options.method = CalibrationMethod::kEma;
  expect_refused(check_calibration_options(options), StatusCode::kInvalidArgument, {"7", "below 1"});
  options.method = CalibrationMethod::kPercentile;
  options.percentile_numerator = 1001;
  options.percentile_denominator = 10;
  expect_refused(check_calibration_options(options), StatusCode::kInvalidArgument, {"1001/10", "100"});
  EXPECT_EQ(to_string(options), "invalid");
  options.percentile_denominator = 10'000'000'000;
  EXPECT_FALSE(check_calibration_options(options).ok());
  options.percentile_denominator = 0;
  EXPECT_FALSE(check_calibration_options(options).ok());
  options.method = static_cast<CalibrationMethod>(9);
  expect_refused(check_calibration_options(options), StatusCode::kInvalidArgument, {"9"});
}

// ---------------------------------------------------------------------------------------------- oracle

nlohmann::json load_cases(const std::string& file) {
  std::ifstream stream(std::string(ISOBIT_TESTDATA) + "/" + file);
  EXPECT_TRUE(stream.good()) << file;
  return stream.good() ? nlohmann::json::parse(stream).at("cases") : nlohmann::json::array();
}

float float_of(const nlohmann::json& bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(bits.get<std::string>(), nullptr, 16)));
}

GridOptions options_of(const nlohmann::json& item) {
  return make_options(item.at("bits"), item.at("signed"), item.value("symmetric", true),
                      item.at("steps").get<int64_t>());
}

ScaleKind kind_of(const nlohmann::json& item) { return item.at("power_of_two") ? kPow2 : kReal; }

void expect_grid(const Grid& grid, const nlohmann::json& expected) {
  EXPECT_EQ(grid.zero_point, expected.value("zero_point", int64_t{0}));
  if (expected.contains("shift")) {
    EXPECT_EQ(grid.kind, kPow2);
    EXPECT_EQ(grid.shift, expected.at("shift").get<int>());
  } else {
    EXPECT_EQ(grid.kind, kReal);
    EXPECT_EQ(grid.real_scale, float_of(expected.at("scale")));
  }
}

TEST(Oracle, Grid) {
  for (const auto& item : load_cases("grid.json")) {
    SCOPED_TRACE(item.dump());
    const auto grid =
        derive_grid(float_of(item.at("min")), float_of(item.at("max")), options_of(item), kind_of(item), 1, "t");
    ASSERT_EQ(grid.ok(), !item.contains("refused")) << grid.status().message();
    if (grid.ok()) expect_grid(*grid, item);
  }
}

TEST(Oracle, PerChannel) {
  for (const auto& item : load_cases("per_channel.json")) {
    SCOPED_TRACE(item.dump());
    std::vector<float> values;
    const auto& rows = item.at("rows");
    for (const auto& row : rows) {
      for (const auto& value : row) values.push_back(float_of(value));
    }
    const auto row_count = static_cast<int64_t>(rows.size());
    const auto grids = derive_row_grids(values, row_count, static_cast<int64_t>(values.size()) / row_count,
                                        options_of(item), kind_of(item), "t", item.at("all_zero_rule"));
    ASSERT_TRUE(grids.ok()) << grids.status().message();
    ASSERT_EQ(grids->size(), rows.size());
    const char* key = item.at("power_of_two") ? "shift" : "scale";
    for (size_t row = 0; row < grids->size(); ++row) expect_grid((*grids)[row], {{key, item.at(key).at(row)}});
  }
}

/// One TensorStatistics per sequence, merged as often as the case has copies; `reverse` is the other direction's time
/// order.
TensorStatistics statistics_of(const nlohmann::json& item, bool reverse) {
  TensorStatistics merged;
  const auto& sequences = item.at("sequences");
  for (size_t k = 0; k < sequences.size(); ++k) {
    const auto& sequence = sequences[k];
    TensorStatistics statistics;
    std::vector<float> lows;
    std::vector<float> highs;
    for (const auto& step : sequence) {
      std::vector<float> x;
      for (const auto& value : step) x.push_back(float_of(value));
      statistics.observe(x.data(), static_cast<int64_t>(x.size()));
      lows.push_back(*std::min_element(x.begin(), x.end()));
      highs.push_back(*std::max_element(x.begin(), x.end()));
    }
    if (reverse) {
      std::reverse(lows.begin(), lows.end());
      std::reverse(highs.begin(), highs.end());
    }
    statistics.observe_sequence_ranges(lows.data(), highs.data(), static_cast<int64_t>(lows.size()));
    const int copies = item.contains("copies") ? item.at("copies").at(k).get<int>() : 1;
    for (int copy = 0; copy < copies; ++copy) merged.merge(statistics);
  }
  return merged;
}

TEST(Oracle, Calibrate) {
  for (const auto& item : load_cases("calibrate.json")) {
    SCOPED_TRACE(item.dump());
    const TensorStatistics statistics = statistics_of(item, false);
    EXPECT_EQ(statistics.count(), item.at("count").get<uint64_t>());
    EXPECT_EQ(statistics.min(), float_of(item.at("min")));
    EXPECT_EQ(statistics.max(), float_of(item.at("max")));
    EXPECT_EQ(statistics.exponent(), item.at("E").is_null() ? 0 : item.at("E").get<int>());
    std::map<int, uint64_t> bins;
    for (const auto& bin : item.at("bins")) bins[bin.at(0)] = bin.at(1);
    EXPECT_EQ(bins_of(statistics), bins);
    if (item.contains("bins16")) {
      std::vector<TensorStatistics::FloatBin> float_bins;
      for (const auto& bin : item.at("bins16")) float_bins.push_back({bin.at(0), bin.at(1)});
      EXPECT_EQ(statistics.float_bins(), float_bins);
    }
    for (const auto& result : item.at("results")) {
      SCOPED_TRACE(result.dump());
      std::string method = result.at("method");
      if (method == "percentile") method.append(":").append(result.at("p"));
      const bool reverse = result.value("reverse", false);
      const auto grid = choose_grid(reverse ? statistics_of(item, true) : statistics, options_of(item), kind_of(item),
                                    parsed(method), "t");
      ASSERT_EQ(grid.ok(), !result.contains("refused")) << grid.status().message();
      if (grid.ok()) expect_grid(*grid, result.at("grid"));
    }
  }
}

}  // namespace
}  // namespace isobit
