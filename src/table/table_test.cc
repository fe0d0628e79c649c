// SPDX-License-Identifier: Apache-2.0
#include "isobit/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "table/exact.h"

namespace isobit {
namespace {

constexpr Activation kFunctions[] = {Activation::kSigmoid, Activation::kTanh};

Grid pow2_grid(int bits, bool is_signed, int shift, int64_t zero_point = 0) {
  Grid grid;
  grid.bits = bits;
  grid.is_signed = is_signed;
  grid.shift = shift;
  grid.zero_point = zero_point;
  return grid;
}

Grid real_grid(int bits, bool is_signed, float scale, int64_t zero_point = 0) {
  Grid grid = pow2_grid(bits, is_signed, 0, zero_point);
  grid.kind = ScaleKind::kReal;
  grid.real_scale = scale;
  return grid;
}

/// u16 shift 16 or s16 shift 15.
Grid output16(Activation function) {
  return function == Activation::kSigmoid ? pow2_grid(16, false, 16) : pow2_grid(16, true, 15);
}
Grid output8(Activation function) {
  return function == Activation::kSigmoid ? pow2_grid(8, false, 8) : pow2_grid(8, true, 7);
}

TableOptions options_of(const std::string& text) { return parse_table_options(text).value(); }

std::string describe(const Grid& grid) {
  return std::string(grid.is_signed ? "s" : "u") + std::to_string(grid.bits) + " scale " +
         std::to_string(grid.scale()) + " zero point " + std::to_string(grid.zero_point);
}

int64_t clamp(int64_t x, int64_t low, int64_t high) { return std::min(std::max(x, low), high); }

/// Everything that fit_table promises, over all inputs.
void expect_good(const ActivationTable& table) {
  SCOPED_TRACE(std::string(to_string(table.function)) + " " + std::string(to_string(table.kind)) + " " +
               std::string(to_string(table.rounding)) + " from " + describe(table.input) + " to " +
               describe(table.output));
  const ExactFunction exact = exact_function(table.function, table.input, table.output);
  const int64_t min = table.input.min();
  const int64_t max = table.input.max();
  std::vector<int64_t> y;
  for (int64_t q = min; q <= max; ++q) y.push_back(table(q));

  TableCertificate certificate{0, min};
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t error = std::abs(y[i] - exact.codes[i]);
    if (error > certificate.max_error_lsb) certificate = {error, min + static_cast<int64_t>(i)};
    ASSERT_GE(y[i], table.low);
    ASSERT_LE(y[i], table.high);
    ASSERT_LE(y[i == 0 ? 0 : i - 1], y[i]) << "not monotone at " << min + static_cast<int64_t>(i);
  }
  EXPECT_EQ(table.certificate, certificate);
  EXPECT_EQ(table(std::numeric_limits<int64_t>::min()), y.front());
  EXPECT_EQ(table(std::numeric_limits<int64_t>::max()), y.back());

  // Mirrored outputs, wherever the mirrored code exists. A tie may break the other way in some modes. Anchors mirror
  // when f(0) lies on one, and floor then needs a guard bit for its half.
  const int64_t z = table.input.zero_point;
  const bool symmetric =
      exact.has_center && exact.low < exact.center && exact.center < exact.high &&
      (table.kind != TableKind::kInterpolated || ((z - min) % (int64_t{1} << table.fraction_bits) == 0 &&
                                                  (table.rounding != Rounding::kFloor || table.guard_bits > 0)));
  const bool exactly = table.kind == TableKind::kDirect || table.rounding == Rounding::kNearestEven ||
                       (table.rounding == Rounding::kNearestAway && exact.center == 0);
  for (int64_t d = 0; symmetric && z - d >= min && z + d <= max; ++d) {
    const int64_t left = y[static_cast<size_t>(z - d - min)];
    const int64_t right = y[static_cast<size_t>(z + d - min)];
    // Of the two, the one that is not clamped decides.
    const int64_t error = std::min(std::abs(right - clamp(2 * exact.center - left, table.low, table.high)),
                                   std::abs(left - clamp(2 * exact.center - right, table.low, table.high)));
    ASSERT_LE(error, exactly ? 0 : 1) << "not symmetric at " << z + d;
  }
  const Status status = check_table(table, "t");
  EXPECT_TRUE(status.ok()) << status.message();
}

ActivationTable fit(Activation function, const Grid& input, const Grid& output, const std::string& options,
                    Rounding rounding = Rounding::kNearestEven) {
  Result<ActivationTable> table = fit_table(function, input, output, options_of(options), rounding);
  EXPECT_TRUE(table.ok()) << table.status().message();
  if (!table.ok()) return {};
  EXPECT_EQ(table->rounding, rounding);
  return *std::move(table);
}

TEST(TableOptions, Text) {
  EXPECT_EQ(to_string(options_of("direct")), "direct");
  EXPECT_EQ(to_string(options_of("interpolated")), "interpolated");
  EXPECT_EQ(to_string(options_of("segments:2")), "segments:2");
  EXPECT_EQ(options_of("segments:256").segments, 256);
  for (const char* bad : {"", "Direct", "segments", "segments:", "segments:1", "segments:257", "segments:16x",
                          "segments:-3", "segments: 4", "segments:99999999999", "direct "}) {
    const Result<TableOptions> result = parse_table_options(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_NE(result.status().message().find('"' + std::string(bad) + '"'), std::string::npos);
  }
  EXPECT_EQ(default_table_options(12).kind, TableKind::kDirect);
  EXPECT_EQ(default_table_options(13).kind, TableKind::kInterpolated);
  EXPECT_EQ(to_string(Activation::kSigmoid), "sigmoid");
  EXPECT_EQ(to_string(Activation::kTanh), "tanh");
}

TEST(Table, HandMadeValues) {
  const ActivationTable sigmoid =
      fit(Activation::kSigmoid, pow2_grid(8, true, 4), output8(Activation::kSigmoid), "direct");
  EXPECT_EQ(sigmoid(0), 128);
  EXPECT_EQ(sigmoid(16), 187);    // 256 / (1 + e^-1) = 187.15
  EXPECT_EQ(sigmoid(-16), 69);    // 68.85
  EXPECT_EQ(sigmoid(-128), 0);    // 0.086
  EXPECT_EQ(sigmoid(127), 255);   // 255.9 has code 256: saturates
  EXPECT_EQ(sigmoid(1000), 255);  // clamped to 127 first
  EXPECT_EQ(sigmoid.low, 0);
  EXPECT_EQ(sigmoid.high, 255);

  const ActivationTable tanh = fit(Activation::kTanh, pow2_grid(8, true, 4), output8(Activation::kTanh), "direct");
  EXPECT_EQ(tanh(0), 0);
  EXPECT_EQ(tanh(1), 8);        // 7.99
  EXPECT_EQ(tanh(16), 97);      // 97.48
  EXPECT_EQ(tanh(127), 127);    // 128.0 has no code
  EXPECT_EQ(tanh(-128), -128);  // -128.0 has
  EXPECT_EQ(tanh.low, -128);
  EXPECT_EQ(tanh.high, 127);

  // With 255 steps a sigmoid never exceeds 1, which is code 200 + z here.
  const ActivationTable coarse =
      fit(Activation::kSigmoid, pow2_grid(8, true, 3, 5), real_grid(8, false, 1.0f / 200, 7), "direct");
  EXPECT_EQ(coarse.low, 7);
  EXPECT_EQ(coarse.high, 207);
  EXPECT_EQ(coarse(5), 107);
  EXPECT_EQ(coarse(127), 207);
}

TEST(Table, ErrorsOverAllInputs) {
  ActivationTable table = fit(Activation::kTanh, pow2_grid(8, true, 4), output8(Activation::kTanh), "direct");
  TableErrors errors = table_errors(table).value();
  EXPECT_EQ(errors.inputs, 256);
  EXPECT_EQ(errors.max_lsb, 0);
  EXPECT_EQ(errors.worst_code, -128);
  EXPECT_EQ(errors.share_exact, 1);
  // A wrong entry is found whatever the certificate says.
  table.entries[128] += 3;
  table.entries[130] -= 1;
  errors = table_errors(table).value();
  EXPECT_EQ(errors.max_lsb, 3);
  EXPECT_EQ(errors.worst_code, 0);
  EXPECT_EQ(errors.mean_lsb, 4.0 / 256);
  EXPECT_EQ(errors.share_exact, 254.0 / 256);
  EXPECT_EQ(errors.share_within_lsb, 255.0 / 256);
  table.entries.pop_back();
  EXPECT_EQ(table_errors(table).status().code(), StatusCode::kInvalidFile);
}

TEST(Table, TiesOfTheExactFunction) {
  // sigmoid / 1: exactly one half at 0, which goes to even; the smallest step away from it decides otherwise.
  for (const Grid& input : {pow2_grid(8, true, 62), real_grid(8, true, std::ldexp(1.0f, -126))}) {
    const std::vector<int32_t> codes = exact_codes(Activation::kSigmoid, input, pow2_grid(8, false, 0)).value();
    EXPECT_EQ(codes[127], 0);
    EXPECT_EQ(codes[128], 0);
    EXPECT_EQ(codes[129], 1);
  }
  // tanh(x) / (2 S_in) for tiny x is a little less than q / 2: every tie goes towards zero, at any scale.
  for (const int exponent : {-60, -70, -85, -100, -124}) {
    const Grid input = real_grid(16, true, std::ldexp(1.0f, exponent));
    const Grid output = real_grid(16, true, std::ldexp(1.0f, exponent + 1));
    const std::vector<int32_t> codes = exact_codes(Activation::kTanh, input, output).value();
    for (int64_t q = input.min(); q <= input.max(); ++q)
      ASSERT_EQ(codes[static_cast<size_t>(q - input.min())], q / 2) << q << " at 2^" << exponent;
  }
  // 1 / S_out = 1/2: both bounds round to 0.
  EXPECT_EQ(exact_codes(Activation::kTanh, pow2_grid(4, true, -20), pow2_grid(8, true, -1)).value(),
            std::vector<int32_t>(16, 0));
}

/// Grids of every width, sign and kind, also useless ones.
Grid random_grid(std::mt19937& random, int bits, int shift_low, int shift_high) {
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  Grid grid = pow2_grid(bits, below(2) == 1, shift_low + static_cast<int>(below(shift_high - shift_low + 1)));
  switch (below(4)) {
    case 0: break;
    case 1: grid.zero_point = grid.min() + below(uint32_t{1} << bits); break;
    case 2: grid.zero_point = grid.is_signed ? 0 : int64_t{1} << (bits - 1); break;
    default: grid.zero_point = below(2) == 0 ? grid.min() : grid.max(); break;
  }
  if (below(2) == 1) {
    grid.kind = ScaleKind::kReal;
    grid.real_scale = std::ldexp(1.0f + static_cast<float>(below(1 << 23)) / (1 << 23), -grid.shift);
    grid.shift = 0;
  }
  return grid;
}

TEST(Table, ExactCodesAreWithinHalfOfTheRealFunction) {
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const int bits = i < 8 ? 16 : 1 + i % 12;
    const Grid input = random_grid(random, bits, bits - 8, bits);
    const Grid output = random_grid(random, 1 + static_cast<int>(random() % 16), -2, 18);
    const Activation function = kFunctions[i % 2];
    SCOPED_TRACE(describe(input) + " to " + describe(output));
    const std::vector<int32_t> codes = exact_codes(function, input, output).value();
    ASSERT_EQ(codes.size(), size_t{1} << bits);
    for (int64_t q = input.min(); q <= input.max(); ++q) {
      const long double x = static_cast<long double>(q - input.zero_point) * input.scale();
      const long double f = function == Activation::kSigmoid ? 1 / (1 + std::exp(-x)) : std::tanh(x);
      const long double real = f / output.scale() + static_cast<long double>(output.zero_point);
      const long double bounded =
          std::min(std::max(real, static_cast<long double>(output.min())), static_cast<long double>(output.max()));
      ASSERT_LE(std::abs(static_cast<long double>(codes[static_cast<size_t>(q - input.min())]) - bounded), 0.5L + 1e-9L)
          << q;
    }
  }
}

TEST(Table, EveryKindOnManyGrids) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const int bits = 1 + i % 12;
    // Mostly useful ranges, sometimes a step function or an almost constant one.
    const Grid input = i % 8 == 0 ? random_grid(random, bits, -32, 60) : random_grid(random, bits, bits - 6, bits - 1);
    const int out_bits = 1 + static_cast<int>(random() % 16);
    const Grid output =
        i % 7 == 0 ? random_grid(random, out_bits, -32, 60) : random_grid(random, out_bits, out_bits - 2, out_bits);
    const int segments = i % 5 == 0 ? 2 + static_cast<int>(random() % 255) : 2 + static_cast<int>(random() % 20);
    const Rounding rounding = kAllRoundings[random() % 4];
    TableOptions interpolated = options_of("interpolated");
    interpolated.guard_bits = static_cast<int32_t>(random() % 9);
    for (const TableOptions& options :
         {options_of("direct"), interpolated, options_of("segments:" + std::to_string(segments))}) {
      const Result<ActivationTable> table = fit_table(kFunctions[i % 2], input, output, options, rounding);
      ASSERT_TRUE(table.ok()) << table.status().message();
      expect_good(*table);
      if (options.kind == TableKind::kSegments) {
        EXPECT_EQ(static_cast<int>(table->slopes.size()), segments);
      } else {
        EXPECT_LE(table->certificate.max_error_lsb, table->kind == TableKind::kDirect ? 0 : 1);
        EXPECT_TRUE(table->kind == options.kind || options.kind == TableKind::kInterpolated);
        EXPECT_TRUE(table->kind == TableKind::kDirect || bits >= 6);
      }
      if (HasFailure()) FAIL() << "case " << i << " " << to_string(options);
    }
  }
}

TEST(Table, SixteenBitGridsOfEveryKind) {
  const Grid grids[][2] = {
      {pow2_grid(16, false, 13, 32768), pow2_grid(12, true, 11)},
      {real_grid(16, true, 2.7e-4f, 1234), real_grid(16, true, 3.1e-5f, -3)},
      {pow2_grid(16, false, 12), pow2_grid(16, true, 15)},              // positive inputs only
      {pow2_grid(16, true, 12), pow2_grid(8, true, 15)},                // most outputs saturate
      {pow2_grid(16, true, 0, 77), pow2_grid(16, true, 14)},            // a step
      {pow2_grid(16, true, -32), pow2_grid(16, true, 15)},              // -1, 0, 1
      {pow2_grid(16, true, 40), pow2_grid(16, true, 15)},               // a constant
      {pow2_grid(16, true, 12, 32767), pow2_grid(16, true, 15, 9000)},  // negative inputs only
  };
  for (size_t i = 0; i < std::size(grids); ++i)
    for (const char* options : {"interpolated", "segments:16"})
      expect_good(fit(kFunctions[i % 2 == 0 ? 1 : 0], grids[i][0], grids[i][1], options, kAllRoundings[i % 4]));
}

// s16 shift 12, the range [-8, 8), to 16 bits. The naive fits of this project's sources need 513 anchors for 2 LSB,
// and reach 803 LSB with 16 segments.
TEST(Table, InterpolatedReachesOneLsbInSixteenBits) {
  for (const Activation function : kFunctions) {
    for (const Rounding rounding : kAllRoundings) {
      const ActivationTable table =
          fit(function, pow2_grid(16, true, 12), output16(function), "interpolated", rounding);
      expect_good(table);
      EXPECT_EQ(table.kind, TableKind::kInterpolated);
      EXPECT_EQ(table.certificate.max_error_lsb, 1);
      EXPECT_EQ(table.interval_bits, function == Activation::kSigmoid ? 9 : 10);
      EXPECT_EQ(table.fraction_bits, 16 - table.interval_bits);
      EXPECT_EQ(table.origin, -32768);
    }
  }
}

TEST(Table, SegmentsReachTheMinimaxError) {
  for (const Activation function : kFunctions) {
    // tanh(x) = 2 sigmoid(2x) - 1: on [-4, 4) to s16 shift 15 it is the same curve as sigmoid on [-8, 8).
    const Grid input = pow2_grid(16, true, function == Activation::kSigmoid ? 12 : 13);
    for (const Rounding rounding : kAllRoundings) {
      const ActivationTable sixteen = fit(function, input, output16(function), "segments:16", rounding);
      expect_good(sixteen);
      EXPECT_LE(sixteen.certificate.max_error_lsb, 87);  // the bound of unconstrained pieces is 86
      EXPECT_GE(sixteen.shift, 24);
      const ActivationTable many = fit(function, input, output16(function), "segments:32", rounding);
      EXPECT_LE(many.certificate.max_error_lsb, 23);  // 22
    }
    EXPECT_LE(fit(function, input, output16(function), "segments:256").certificate.max_error_lsb, 1);
  }
}

TEST(Table, FallsBackToDirect) {
  // 4096 intervals of 16 codes cannot follow a step.
  const ActivationTable step =
      fit(Activation::kSigmoid, pow2_grid(16, true, 0), output16(Activation::kSigmoid), "interpolated");
  EXPECT_EQ(step.kind, TableKind::kDirect);
  EXPECT_EQ(step.certificate, (TableCertificate{0, -32768}));
  EXPECT_TRUE(step.anchors.empty());
  EXPECT_EQ(step, fit(Activation::kSigmoid, pow2_grid(16, true, 0), output16(Activation::kSigmoid), "direct"));
}

TEST(Table, RefusesWhatItDoesNotSupport) {
  const Grid good = pow2_grid(8, true, 4);
  const auto message = [](const Result<ActivationTable>& result) {
    EXPECT_FALSE(result.ok());
    return result.status().message();
  };
  const TableOptions direct;
  const auto refused = [&](const Grid& input, const Grid& output) {
    return fit_table(Activation::kTanh, input, output, direct, Rounding::kNearestEven);
  };
  EXPECT_EQ(message(refused(pow2_grid(17, true, 4), good)),
            "activation table: its input is 17 bits wide, the limit is 16");
  EXPECT_EQ(message(refused(good, pow2_grid(32, false, 4))),
            "activation table: its output is 32 bits wide, the limit is 16");
  EXPECT_EQ(refused(pow2_grid(17, true, 4), good).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(exact_codes(Activation::kTanh, good, pow2_grid(17, true, 4)).status().code(), StatusCode::kUnsupported);
  EXPECT_FALSE(refused(pow2_grid(0, true, 4), good).ok());
  EXPECT_FALSE(refused(good, pow2_grid(8, true, 63)).ok());
  EXPECT_FALSE(refused(good, pow2_grid(8, true, 7, 128)).ok());
  EXPECT_FALSE(refused(good, real_grid(8, true, std::numeric_limits<float>::quiet_NaN())).ok());
  EXPECT_FALSE(refused(good, real_grid(8, true, std::numeric_limits<float>::infinity())).ok());
  EXPECT_FALSE(fit_table(static_cast<Activation>(2), good, good, direct, Rounding::kFloor).ok());
  EXPECT_FALSE(fit_table(Activation::kTanh, good, good, direct, static_cast<Rounding>(4)).ok());
  EXPECT_FALSE(exact_codes(static_cast<Activation>(-1), good, good).ok());
  for (const int32_t segments : {-1, 0, 1, 257}) {
    TableOptions options = options_of("segments:16");
    options.segments = segments;
    EXPECT_NE(
        message(fit_table(Activation::kTanh, good, good, options, Rounding::kFloor)).find(std::to_string(segments)),
        std::string::npos);
  }
  for (const int32_t guard_bits : {-1, 9}) {
    TableOptions options = options_of("interpolated");
    options.guard_bits = guard_bits;
    EXPECT_FALSE(fit_table(Activation::kTanh, good, good, options, Rounding::kFloor).ok());
  }
  TableOptions options;
  options.kind = static_cast<TableKind>(3);
  EXPECT_FALSE(fit_table(Activation::kTanh, good, good, options, Rounding::kFloor).ok());
}

TEST(CheckTable, RejectsTamperedTables) {
  const auto rejects = [](ActivationTable table, const char* why, auto change) {
    ASSERT_TRUE(check_table(table, "r").ok());
    change(table);
    const Status status = check_table(table, "layer 0 r");
    ASSERT_FALSE(status.ok()) << why;
    EXPECT_NE(status.message().find("layer 0 r"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  using Table = ActivationTable;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const Grid input = pow2_grid(10, true, 7);
  const Table direct = fit(Activation::kSigmoid, input, output16(Activation::kSigmoid), "direct");
  rejects(direct, "function", [](Table& t) { t.function = static_cast<Activation>(7); });
  rejects(direct, "rounding", [](Table& t) { t.rounding = static_cast<Rounding>(-1); });
  rejects(direct, "kind", [](Table& t) { t.kind = static_cast<TableKind>(99); });
  rejects(direct, "kind", [](Table& t) { t.kind = TableKind::kSegments; });
  rejects(direct, "kind", [](Table& t) { t.anchors.push_back(1); });
  rejects(direct, "bits", [](Table& t) { t.input.bits = 200; });
  rejects(direct, "17 bits", [](Table& t) { t.input.bits = 17; });
  rejects(direct, "zero point", [](Table& t) { t.output.zero_point = kHuge; });
  rejects(direct, "lowest output", [](Table& t) { t.low = 1; });
  rejects(direct, "highest output", [](Table& t) { t.high = kHuge; });
  rejects(direct, "number of entries", [](Table& t) { t.entries.pop_back(); });
  rejects(direct, "number of entries", [](Table& t) { t.entries.clear(); });
  rejects(direct, "an entry", [](Table& t) { t.entries[5] = 65536; });
  rejects(direct, "error of a direct table", [](Table& t) { t.entries[5] += 1; });
  rejects(direct, "certified error", [](Table& t) { t.certificate.max_error_lsb = 1; });
  rejects(direct, "worst input", [](Table& t) { t.certificate.worst_code = 0; });

  const Table interpolated = fit(Activation::kTanh, input, output8(Activation::kTanh), "interpolated");
  ASSERT_EQ(interpolated.kind, TableKind::kInterpolated);
  rejects(interpolated, "interval bits", [](Table& t) { t.interval_bits = -1; });
  rejects(interpolated, "interval bits", [](Table& t) { t.interval_bits = 64; });
  rejects(interpolated, "fraction bits", [](Table& t) { t.fraction_bits = -1; });
  rejects(interpolated, "fraction bits", [](Table& t) { t.fraction_bits = 63; });
  rejects(interpolated, "guard bits", [](Table& t) { t.guard_bits = 9; });
  rejects(interpolated, "origin", [](Table& t) { t.origin = -kHuge; });
  rejects(interpolated, "number of anchors", [](Table& t) { t.anchors.pop_back(); });
  rejects(interpolated, "anchor 2 overflows", [](Table& t) { t.anchors[3] = kHuge; });
  rejects(interpolated, "overflows", [](Table& t) { t.anchors[0] = -kHuge - 1; });
  rejects(interpolated, "certified error", [](Table& t) { t.anchors[20] += 1 << 8; });

  const Table segments = fit(Activation::kTanh, input, output16(Activation::kTanh), "segments:8");
  rejects(segments, "segment shift", [](Table& t) { t.shift = 32; });
  rejects(segments, "segment shift", [](Table& t) { t.shift = -1; });
  rejects(segments, "number of thresholds", [](Table& t) { t.thresholds.pop_back(); });
  rejects(segments, "number of intercepts", [](Table& t) { t.intercepts.push_back(0); });
  rejects(segments, "number of slopes", [](Table& t) { t.slopes.clear(); });
  rejects(segments, "number of slopes", [](Table& t) { t.slopes.resize(257); });
  rejects(segments, "ascending", [](Table& t) { std::swap(t.thresholds[1], t.thresholds[2]); });
  rejects(segments, "a threshold", [](Table& t) { t.thresholds.back() = 512; });
  rejects(segments, "a threshold", [](Table& t) { t.thresholds.front() = -513; });
  rejects(segments, "segment 7 overflows", [](Table& t) { t.intercepts[7] = kHuge; });
  rejects(segments, "certified", [](Table& t) { t.intercepts[3] += int64_t{1} << (t.shift + 7); });
}

// Tables from the independent Python implementation, evaluated here: testdata/table.json.
Grid json_grid(const nlohmann::json& json) {
  Grid grid = pow2_grid(json.at("bits"), json.at("signed"), 0, json.at("zero_point"));
  if (json.contains("shift")) {
    grid.shift = json.at("shift");
  } else {
    const uint32_t bits = static_cast<uint32_t>(std::stoul(json.at("scale").get<std::string>(), nullptr, 16));
    grid.kind = ScaleKind::kReal;
    std::memcpy(&grid.real_scale, &bits, sizeof(bits));
  }
  return grid;
}

/// FNV-1a 64 over the codes of all inputs as little-endian int64: outputs_fnv1a64 of oracle/README.md.
template <typename Code>
std::string digest(const Grid& input, const Code& code_of) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t q = input.min(); q <= input.max(); ++q) {
    auto code = static_cast<uint64_t>(static_cast<int64_t>(code_of(q)));
    for (int byte = 0; byte < 8; ++byte, code >>= 8) hash = (hash ^ (code & 255)) * 0x100000001b3;
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

TEST(Table, AgreesWithTheOracle) {
  std::ifstream file(std::string(ISOBIT_TESTDATA) + "/table.json");
  ASSERT_TRUE(file.is_open()) << "testdata/table.json is missing";
  const nlohmann::json data = nlohmann::json::parse(file);
  int index = 0;
  int codes_compared = 0;
  int digests_compared = 0;
  for (const nlohmann::json& json : data.at("cases")) {
    const std::string kind = json.at("kind");
    SCOPED_TRACE("case " + std::to_string(index++) + " " + kind);
    ActivationTable table;
    table.function = json.at("function") == "sigmoid" ? Activation::kSigmoid : Activation::kTanh;
    table.input = json_grid(json.at("in"));
    table.output = json_grid(json.at("out"));
    const ExactFunction exact = exact_function(table.function, table.input, table.output);
    table.low = json.at("lo");
    table.high = json.at("hi");
    EXPECT_EQ(exact.low, table.low);
    EXPECT_EQ(exact.high, table.high);
    if (kind == "direct" || kind == "direct_sampled") {
      EXPECT_EQ(digest(table.input, [&](int64_t q) { return exact.codes[static_cast<size_t>(q - table.input.min())]; }),
                json.at("outputs_fnv1a64"));
      ++digests_compared;
    }
    if (kind == "direct") {
      EXPECT_EQ(exact.codes, json.at("entries").get<std::vector<int32_t>>());
      codes_compared += static_cast<int>(exact.codes.size());
      continue;
    }
    const std::vector<int64_t> q = json.at("q");
    if (kind == "direct_sampled") {
      const std::vector<int32_t> y = json.at("y");
      for (size_t i = 0; i < q.size(); ++i)
        ASSERT_EQ(exact.codes[static_cast<size_t>(q[i] - table.input.min())], y[i]) << "input " << q[i];
      codes_compared += static_cast<int>(y.size());
      continue;
    }
    if (kind == "interpolated") {
      table.kind = TableKind::kInterpolated;
      table.origin = json.at("q0");
      table.interval_bits = json.at("k");
      table.fraction_bits = json.at("F");
      table.guard_bits = json.at("G");
      table.anchors = json.at("anchors").get<std::vector<int64_t>>();
    } else {
      ASSERT_EQ(kind, "segments");
      table.kind = TableKind::kSegments;
      table.thresholds = json.at("t").get<std::vector<int32_t>>();
      table.slopes = json.at("b").get<std::vector<int32_t>>();
      table.intercepts = json.at("c").get<std::vector<int64_t>>();
      table.shift = json.at("shift");
    }
    for (const Rounding rounding : kAllRoundings) {
      const std::vector<int64_t> y = json.at("y").at(std::string(to_string(rounding)));
      table.rounding = rounding;
      ASSERT_EQ(y.size(), q.size());
      for (size_t i = 0; i < q.size(); ++i)
        ASSERT_EQ(table(q[i]), y[i]) << "input " << q[i] << " " << to_string(rounding);
      codes_compared += static_cast<int>(y.size());
      EXPECT_EQ(digest(table.input, table), json.at("outputs_fnv1a64").at(std::string(to_string(rounding))))
          << to_string(rounding);
      ++digests_compared;
    }
    // Whatever its error, such a table is valid once its certificate says so.
    Status status = check_table(table, "t");
    EXPECT_TRUE(status.ok() || status.message().find("certified") != std::string::npos) << status.message();
  }
  EXPECT_GT(codes_compared, 10000);
  EXPECT_GT(digests_compared, 127);
}

}  // namespace
}  // namespace isobit
