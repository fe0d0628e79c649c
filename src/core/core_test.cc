// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "core/fixed.h"
#include "core/random.h"
#include "core/ratio.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "isobit/cpu.h"
#include "isobit/grid.h"
#include "isobit/nearest.h"
#include "isobit/parallel.h"
#include "isobit/text.h"
#include "testing/oracle.h"

namespace isobit {
namespace {

TEST(RoundShift, AllSixteenBitValuesAgainstDivision) {
  for (int n = 1; n <= 17; ++n)
    for (int64_t x = -32768; x <= 32767; ++x) {
      const double v = static_cast<double>(x) / static_cast<double>(int64_t{1} << n);  // exact
      ASSERT_EQ(round_shift(x, n, Rounding::kNearestEven), static_cast<int64_t>(std::nearbyint(v)));
      ASSERT_EQ(round_shift(x, n, Rounding::kNearestUp), static_cast<int64_t>(std::floor(v + 0.5)));
      ASSERT_EQ(round_shift(x, n, Rounding::kNearestAway), static_cast<int64_t>(std::round(v)));
      ASSERT_EQ(round_shift(x, n, Rounding::kFloor), static_cast<int64_t>(std::floor(v)));
    }
}

TEST(RunOptions, WhatIsNotKnownIsRefusedByName) {
  ThreadPool pool(1);
  const int64_t lengths[] = {1};
  const uint8_t mask[] = {1};
  std::byte state[1];
  char stream = 0;
  const struct {
    RunOptionSet set;
    const char* name;
    RunOptions options;
  } all[] = {
      {kPathOption, "path", {.path = CpuPath::kScalar}},
      {kKernelOption, "kernel", {.kernel = "fast"}},
      {kPoolOption, "pool", {.pool = &pool}},
      {kStreamOption, "stream", {.stream = reinterpret_cast<CUstream_st*>(&stream)}},
      {kSequenceOptions, "lengths", {.lengths = lengths}},
      {kSequenceOptions, "zoneout_mask", {.zoneout_mask = mask}},
      {kSequenceOptions, "batch_first", {.batch_first = true}},
      {kSequenceOptions, "whole_sequence", {.whole_sequence = true}},
      {kNextStateOption, "next_state", {.next_state = state}},
      {kRowOptions, "x_stride", {.x_stride = 8}},
      {kRowOptions, "y_stride", {.y_stride = 8}},
      {kRowOptions, "unchecked", {.unchecked = true}},
  };
  EXPECT_TRUE(refuse_options({}, 0, "a layer").ok());
  for (const auto& one : all) {
    EXPECT_TRUE(refuse_options(one.options, one.set, "a layer").ok()) << one.name;
    EXPECT_EQ(refuse_options(one.options, ~one.set, "a layer").message(),
              std::string("options.") + one.name + " is set, which means nothing to a layer; leave it at its default");
  }
}

TEST(Workspace, IsRefusedWhereItDoesNotFit) {
  static int released = 0;
  alignas(64) std::byte memory[128];
  {
    const Workspace device(memory, 64, 1, [](std::byte*) { ++released; });
    EXPECT_TRUE(workspace_fits(device, 64, 1));
    for (const std::optional<int> other : {std::optional<int>(), std::optional<int>(0)})
      EXPECT_FALSE(workspace_fits(device, 64, other));
    EXPECT_EQ(refuse_workspace(device, 64, {}, "3 rows", "workspace(m)").message(),
              "workspace is memory of CUDA device 1, must be of the host; make it with workspace(m)");
    EXPECT_EQ(refuse_workspace(device, 65, 1, "3 rows", "workspace(m)").message(),
              "workspace has 64 bytes, must have at least 65 for 3 rows; make it with workspace(m)");
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  EXPECT_FALSE(workspace_fits(Workspace(64), 64, 0));
  EXPECT_TRUE(workspace_fits(Workspace(), 0));
  const std::span<std::byte> all(memory);
  const Workspace own(all.first(64)), odd(all.subspan(8, 64));
  EXPECT_TRUE(workspace_fits(own, 64));
  EXPECT_FALSE(workspace_fits(odd, 64));
  EXPECT_EQ(refuse_workspace(odd, 64, {}, "3 rows", "workspace(m)").message(),
            "workspace is not aligned to 64 bytes, must be");
}

/// nearest_even(sum * multiplier / 2^bits), in integers alone.
int64_t nearest_even_of(int64_t sum, int64_t multiplier, int bits) {
  return round_shift(sum * multiplier, bits, Rounding::kNearestEven);
}

TEST(Ratio, FixedAndShiftEqualTheRescaleWhereTheyExist) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  int fixed = 0, shifts = 0;
  for (const int32_t multiplier : {1, 2, 3, 1 << 23, (1 << 24) + 1, 1 << 30, kMost - 1, kMost})
    for (int shift = kMinShift; shift <= kMaxShift; ++shift) {
      const RescaleParameters r{multiplier, shift};
      const double ratio = std::ldexp(multiplier, -shift);
      if (const std::optional<Fixed> f = to_fixed(r)) {
        ++fixed;
        ASSERT_LT(ratio, 0.25);
        ASSERT_TRUE(f->multiplier >= 0 && f->shift >= 1 && f->shift <= 30) << multiplier << " " << shift;
        for (const int32_t sum : {0, 1, -1, 3, 12345678, -(1 << 24) - 1, 1 << 30, -(1 << 30), kMost, -kMost - 1}) {
          const int64_t expected = shift > 62 ? 0 : nearest_even_of(sum, multiplier, shift);
          ASSERT_EQ(nearest_even_of(sum, f->multiplier, 32 + f->shift), expected)
              << sum << " * " << multiplier << " / 2^" << shift;
          ASSERT_EQ(rescale_even(sum, *f), expected) << sum << " * " << multiplier << " / 2^" << shift;
        }
      } else {
        ASSERT_GE(ratio, 0.2499) << multiplier << " " << shift;
      }
      if (const std::optional<Fixed> s = to_shift(r)) {
        ++shifts;
        ASSERT_EQ(std::ldexp(1.0, -s->shift), ratio);
      } else {
        int exponent = 0;
        ASSERT_TRUE(std::frexp(ratio, &exponent) != 0.5 || exponent > 0 || exponent < -29) << ratio;
      }
    }
  EXPECT_GT(fixed, 500);
  EXPECT_EQ(shifts, 4 * 30);
}

/// Sums at ties, beside them and elsewhere; of 32 bits and of 40.
TEST(Ratio, IntegersRoundLikeTheRescale) {
  Random random(4711);
  int ties = 0, fixed = 0, wide = 0, shifts = 0;
  for (int i = 0; i < 200000; ++i) {
    const bool is_wide = random.one_in(2);
    const int bits = is_wide ? WideFixed::kSumBits : Fixed::kSumBits;
    RescaleParameters r{1, static_cast<int32_t>(random.between(2, 62))};
    if (random.one_in(2))
      r.multiplier = static_cast<int32_t>(random.between(1, (int64_t{1} << random.between(1, 31)) - 1));
    int64_t sum = random.between(0, (int64_t{1} << random.between(1, bits)) - 1);
    const int zeros = r.shift - 1 - std::countr_zero(static_cast<uint32_t>(r.multiplier));
    if (zeros >= 0 && zeros < bits) sum = sum >> zeros << zeros | int64_t{1} << zeros;  // times the multiplier: a tie
    const bool is_tie = zeros >= 0 && zeros < bits;
    if (random.one_in(4)) sum = std::min(sum + 1, (int64_t{1} << bits) - 1);
    if (random.one_in(2)) sum = -sum;
    const Int128 product = static_cast<Int128>(sum) * r.multiplier;
    const Int128 down = product >> r.shift;
    const Int128 twice_rest = (product - (down << r.shift)) * 2;  // against one unit, 2^shift
    const Int128 unit = static_cast<Int128>(1) << r.shift;
    const auto expected =
        static_cast<int64_t>(down + (twice_rest > unit || (twice_rest == unit && down % 2 != 0) ? 1 : 0));
    if (std::abs(expected) > 1 << 29) continue;
    ties += is_tie ? 1 : 0;
    if (is_wide) {
      if (const std::optional<WideFixed> f = to_fixed<WideFixed>(r)) {
        ++wide;
        ASSERT_EQ(rescale_even(sum, *f), expected) << sum << " * " << r.multiplier << " / 2^" << r.shift;
      }
    } else if (const std::optional<Fixed> f = to_fixed(r)) {
      ++fixed;
      ASSERT_EQ(rescale_even(static_cast<int32_t>(sum), *f), expected)
          << sum << " * " << r.multiplier << " / 2^" << r.shift;
    }
    if (const std::optional<WideFixed> s = to_shift<WideFixed>(r)) {
      ++shifts;
      ASSERT_EQ(shift_even(sum + (int64_t{1} << (s->shift - 1)) - 1, s->shift), expected) << sum << " / 2^" << s->shift;
    }
  }
  EXPECT_GT(ties, 10000);
  EXPECT_GT(fixed, 10000);
  EXPECT_GT(wide, 10000);
  EXPECT_GT(shifts, 10000);
}

TEST(Bits, EveryCodeOfEveryWidthRoundTrips) {
  for (const int bits : {1, 2, 4, 8}) {
    const int64_t count = 37;
    std::vector<uint8_t> row(static_cast<size_t>(packed_bytes(count, bits)));
    for (int64_t k = 0; k < count; ++k)
      pack_code(row.data(), k, bits, static_cast<uint32_t>(k * 7) & ((1U << bits) - 1));
    for (int64_t k = 0; k < count; ++k)
      ASSERT_EQ(unpack_code(row.data(), k, bits), static_cast<uint32_t>(k * 7) & ((1U << bits) - 1));
  }
  const uint8_t byte = 0xe4;  // codes 0 1 2 3 of two bits: low bits first
  EXPECT_EQ(unpack_code(&byte, 3, 2), 3U);
  EXPECT_EQ(unpack_code(&byte, 1, 2), 1U);
}

TEST(Grid, QuantizeAndDequantizeEqualTheOracle) {
  int compared = 0;
  for (const testing::Json& c : testing::oracle_cases("quantize.json")) {
    if (c.value("type", "f32") != "f32") continue;
    const Grid grid = testing::grid_of(c.at("grid"));
    if (c.at("op") == "quantize") {
      for (size_t i = 0; i < c.at("x").size(); ++i, ++compared)
        ASSERT_EQ(quantize_value(grid, testing::float_of_bits(c.at("x").at(i))), c.at("q").at(i).get<int64_t>())
            << c.at("grid").dump() << " x " << c.at("x").at(i);
    } else {
      for (size_t i = 0; i < c.at("q").size(); ++i, ++compared)
        ASSERT_EQ(std::bit_cast<uint32_t>(dequantize_value(grid, c.at("q").at(i).get<int64_t>())),
                  std::bit_cast<uint32_t>(testing::float_of_bits(c.at("x").at(i))))
            << c.at("grid").dump() << " q " << c.at("q").at(i);
    }
  }
  EXPECT_GT(compared, 1000);
}

TEST(Grid, NanIsRefusedWithItsIndex) {
  const float x[3] = {0.0f, 1.0f, std::numeric_limits<float>::quiet_NaN()};
  int8_t codes[3] = {1, 2, 3};
  const Status status = quantize(Grid{}, x, codes, "x");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("x[2] is NaN"), std::string::npos);
  EXPECT_EQ(codes[0], 1);  // nothing half-written
}

TEST(Grid, ClippedIsWhatLiesHalfAStepBeyondTheEnds) {
  Grid grid;
  grid.zero_point = -28;  // -100 to 155 steps of 2^-shift
  grid.shift = 2;
  const float low = -25.125f, high = 38.875f;
  const float beyond = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0,   low,    std::nextafter(low, -beyond), high, std::nextafter(high, beyond), beyond,
                                nan, -beyond};
  EXPECT_EQ(count_clipped(grid, x), 4);
  EXPECT_EQ(count_clipped(grid, {}), 0);
  grid.kind = ScaleKind::kReal;
  grid.real_scale = 0.25f;
  EXPECT_EQ(count_clipped(grid, x), 4);
}

TEST(Grid, ChecksNameTheFieldAndTheLimit) {
  EXPECT_NE(check_grid({33, true}, "h").message().find("1..32"), std::string::npos);
  EXPECT_NE(check_grid({8, true, ScaleKind::kPow2, 63}, "h").message().find("-32..62"), std::string::npos);
  EXPECT_NE(check_grid({8, true, ScaleKind::kPow2, 0, 1.0f, 128}, "h").message().find("-128..127"), std::string::npos);
  EXPECT_FALSE(check_grid({8, true, ScaleKind::kReal, 0, 0.0f}, "h").ok());
}

TEST(Nearest, TheNameThatWasMeant) {
  const std::vector<std::string_view> names = {"quantize",   "run",  "compare", "nearest_even",
                                               "nearest_up", "silu", "elu"};
  const std::pair<const char*, const char*> cases[] = {{"quantise", "quantize"},
                                                       {"quntaize", "quantize"},
                                                       {"RUN", "run"},
                                                       {"urn", "run"},
                                                       {"compar", "compare"},
                                                       {"nearest_evn", "nearest_even"},
                                                       {"up", "nearest_up"},
                                                       {"sillu", "silu"},
                                                       {"sil", "silu"},
                                                       {"export", ""},
                                                       {"x", ""},
                                                       {"", ""},
                                                       {"compare", "compare"},
                                                       {"quant", "quantize"}};
  for (const auto& [word, expected] : cases) EXPECT_EQ(nearest_name(word, names), expected) << word;
  EXPECT_EQ(nearest_name(std::string(1000, 'q'), names), "");
  EXPECT_EQ(expected_one_of("pow3", {"pow2", "real"}), "expected pow2 or real; nearest: pow2");
  EXPECT_EQ(expected_one_of("log", {"pow2", "real", "own"}), "expected pow2, real or own");
}

TEST(Text, OfAnyLength) {
  EXPECT_EQ(format("%d %s", 3, "steps"), "3 steps");
  EXPECT_EQ(format("%s", ""), "");
  const std::string text(5000, 'x');
  EXPECT_EQ(format("[%s]", text.c_str()), "[" + text + "]");
}

TEST(Text, OneOrSeveral) {
  EXPECT_EQ(count_text(0, "file"), "0 files");
  EXPECT_EQ(count_text(1, "file"), "1 file");
  EXPECT_EQ(count_text(2, "file"), "2 files");
}

TEST(ThreadPool, EveryItemOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t items : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(items));
      pool.for_ranges(items, [&](int part, int64_t begin, int64_t end) {
        EXPECT_EQ(begin, items * part / threads);
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const auto& count : seen) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(Cpu, TheEnvironmentForcesAPathOrSaysWhyNot) {
  const char* before = std::getenv("ISOBIT_CPU");
  const std::string saved = before == nullptr ? "" : before;
  setenv("ISOBIT_CPU", "scalar", 1);
  EXPECT_EQ(*default_cpu_path(), CpuPath::kScalar);
  setenv("ISOBIT_CPU", "mmx", 1);
  EXPECT_NE(default_cpu_path().status().message().find("'mmx'"), std::string::npos);
  if (before == nullptr) {
    unsetenv("ISOBIT_CPU");
  } else {
    setenv("ISOBIT_CPU", saved.c_str(), 1);
  }
  for (const CpuPath path : kAllCpuPaths) {
    EXPECT_EQ(cpu_path_from_string(to_string(path)), path);
    EXPECT_EQ(cpu_can_run(path), cpu_cannot_run_reason(path).empty());
  }
}

}  // namespace
}  // namespace isobit
