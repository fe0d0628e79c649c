// SPDX-License-Identifier: Apache-2.0
// Every row of kernels.inc against the normative evaluation, byte for byte.
#include "isobit/fp16_function.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "table/fp16/reference.h"
#include "testing/guarded_bytes.h"
#include "testing/required.h"

namespace isobit {
namespace {

using isobit::testing::GuardedBytes;
using isobit::testing::required;

constexpr Fp16Model kModels[] = {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu};
constexpr Dtype kDtypes[] = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
constexpr std::byte kCanary{0xa5};

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

/// Values as elements of a type; f32 to f16 and bf16 as the conversions do it.
std::vector<std::byte> elements(const std::vector<float>& values, Dtype dtype) {
  std::vector<std::byte> out(values.size() * size_in_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == Dtype::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
    if (dtype == Dtype::kF32) {
      std::memcpy(out.data() + 4 * i, &values[i], 4);
    } else {
      std::memcpy(out.data() + 2 * i, &half, 2);
    }
  }
  return out;
}

/// What section 13 asks for, element by element, from the results of all codes.
std::vector<std::byte> expected_of(const std::vector<uint16_t>& results, std::span<const std::byte> x, Dtype x_dtype,
                                   Dtype y_dtype) {
  const size_t count = x.size() / size_in_bytes(x_dtype);
  std::vector<std::byte> y(count * size_in_bytes(y_dtype));
  for (size_t i = 0; i < count; ++i) {
    uint16_t half = 0;
    float wide = 0;
    std::memcpy(&half, x.data() + 2 * i, 2);  // inside x for 32-bit elements, too
    if (x_dtype == Dtype::kF32) std::memcpy(&wide, x.data() + 4 * i, 4);
    const uint16_t code = x_dtype == Dtype::kF16    ? half
                          : x_dtype == Dtype::kBF16 ? f32_to_f16(bf16_to_f32(half))
                                                    : f32_to_f16(wide);
    const float result = f16_to_f32(results[code]);
    const uint16_t narrow = y_dtype == Dtype::kF16 ? results[code] : f32_to_bf16(result);
    if (y_dtype == Dtype::kF32) {
      std::memcpy(y.data() + 4 * i, &result, 4);
    } else {
      std::memcpy(y.data() + 2 * i, &narrow, 2);
    }
  }
  return y;
}

std::vector<uint16_t> results_of(const Fp16Table& table) {
  std::vector<uint16_t> results(65536);
  for (uint32_t code = 0; code < 65536; ++code) results[code] = table(static_cast<uint16_t>(code));
  return results;
}

std::vector<uint16_t> all_codes() {
  std::vector<uint16_t> codes(65536);
  std::iota(codes.begin(), codes.end(), uint16_t{0});
  return codes;
}

/// -1, or the first element that differs.
int64_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b, Dtype dtype) {
  if (a.size() != b.size()) return 0;
  const auto at = std::mismatch(a.begin(), a.end(), b.begin());
  return at.first == a.end() ? -1 : (at.first - a.begin()) / static_cast<int64_t>(size_in_bytes(dtype));
}

float random_f16(Random& random, float low, float high) {
  const double share = static_cast<double>(random.next() >> 11) * 0x1p-53;
  const double value = static_cast<double>(low) + share * (static_cast<double>(high) - static_cast<double>(low));
  return f16_to_f32(f32_to_f16(static_cast<float>(value)));
}

/// The arguments that a reduction looks up.
std::pair<float, float> range_of(Fp16Reduction reduction) {
  switch (reduction) {
    case Fp16Reduction::kSin:
    case Fp16Reduction::kCos: return {-0.8f, 0.8f};
    case Fp16Reduction::kExp: return {-0.36f, 0.36f};
    case Fp16Reduction::kLog: return {0.7f, 1.42f};
    case Fp16Reduction::kReciprocal: return {1, 2};
    case Fp16Reduction::kRsqrt:
    case Fp16Reduction::kSqrt: return {1, 4};
    case Fp16Reduction::kInverseSigmoid: return {0, 1};
    case Fp16Reduction::kNone: break;
  }
  return {-65504, 65504};
}

enum class Values { kSmooth, kCodes, kSigns, kHuge };

float random_value(Random& random, Values kind, size_t index) {
  switch (kind) {
    case Values::kSmooth: return 0.5f + 1.5f * static_cast<float>(index % 997) / 997.0f;
    case Values::kCodes: return f16_to_f32(static_cast<uint16_t>(random.next() & 0xfbffu));  // finite, either sign
    case Values::kSigns: {
      constexpr float kFew[] = {0.0f, -0.0f, 1.0f, -1.0f, 0x1p-24f, -0x1p-24f, 0x1p-140f, -0x1p-140f};
      return kFew[random.next() % std::size(kFew)];
    }
    case Values::kHuge: break;
  }
  if (random.one_in(2)) return random.one_in(2) ? 3e38f : -3e38f;  // differences overflow
  uint32_t bits = static_cast<uint32_t>(random.next());            // any finite float32
  if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0xff7fffffu;
  return __builtin_bit_cast(float, bits);
}

/// A table that check_fp16_table accepts, with equal cut points now and then.
Fp16Table random_table(Random& random, Fp16Model model, Fp16Reduction reduction, size_t intervals, int32_t most_steps,
                       Values kind) {
  Fp16Table table;
  table.function = reduction == Fp16Reduction::kNone ? "custom" : std::string(to_string(reduction));
  table.model = model;
  table.reduction = reduction;
  table.half_values = kind == Values::kCodes;
  const size_t pieces_count = reduction == Fp16Reduction::kSin || reduction == Fp16Reduction::kCos ? 2 : 1;
  while (table.pieces.size() < pieces_count) {
    Fp16Pieces pieces;
    const auto [low, high] = range_of(reduction);
    const float span = random.one_in(2) ? 1.0f : 0.01f;  // of all arguments, or most lie beyond the table
    for (size_t i = 0; i <= intervals; ++i) {
      float cut = random_f16(random, low * span, high * span);
      if (reduction == Fp16Reduction::kNone && random.one_in(2))  // cut points near 0, of either sign
        cut = f16_to_f32(static_cast<uint16_t>(random.next() & 0xbfffu));
      if (reduction != Fp16Reduction::kNone) cut *= 1.0f + 1e-4f * static_cast<float>(random.between(-3, 3));
      if (cut == 0) cut = random.one_in(2) ? 0.0f : -0.0f;
      pieces.cut_points.push_back(cut);
    }
    std::sort(pieces.cut_points.begin(), pieces.cut_points.end());
    if (random.one_in(4) && intervals > 2) pieces.cut_points[1] = pieces.cut_points[0];
    if (random.one_in(4) && intervals > 2) pieces.cut_points[intervals - 1] = pieces.cut_points[intervals];
    for (size_t i = 0; i < intervals; ++i)
      pieces.steps.push_back(random.one_in(3) ? most_steps : static_cast<int32_t>(random.between(1, most_steps)));
    for (size_t i = 0; i < intervals; ++i) {  // intervals too narrow or too wide for a scale become empty
      Fp16Pieces one{{pieces.steps[i]}, {pieces.cut_points[i], pieces.cut_points[i + 1]}, {}, {}};
      set_scales(one, model);
      if (!(one.scales[0] > 0 && std::isfinite(one.scales[0]))) pieces.cut_points[i + 1] = pieces.cut_points[i];
    }
    const int32_t entries = std::accumulate(pieces.steps.begin(), pieces.steps.end(), 1);
    for (int32_t i = 0; i < entries; ++i) pieces.values.push_back(random_value(random, kind, static_cast<size_t>(i)));
    set_scales(pieces, model);
    table.pieces.push_back(std::move(pieces));
    if (table.pieces.back().cut_points.front() == table.pieces.back().cut_points.back()) table.pieces.pop_back();
  }
  const Status status = check_fp16_table(table, "random");
  EXPECT_TRUE(status.ok()) << status.message();
  return table;
}

Fp16Pieces sampled(double (*f)(double), double low, double high, Fp16Model model) {
  Fp16Pieces pieces;
  pieces.steps = fp16_steps_259();
  const size_t count = pieces.steps.size();
  double base = 0;
  for (size_t i = 0; i <= count; ++i) {  // all steps of one width
    pieces.cut_points.push_back(static_cast<float>(low + (high - low) * base / 258));
    if (i < count) base += pieces.steps[i];
  }
  for (size_t i = 0; i < count; ++i) {
    const double c = pieces.cut_points[i], width = pieces.cut_points[i + 1] - c;
    for (int j = 0; j < pieces.steps[i]; ++j)
      pieces.values.push_back(static_cast<float>(f(c + width * j / pieces.steps[i])));
  }
  pieces.values.push_back(static_cast<float>(f(pieces.cut_points.back())));
  set_scales(pieces, model);
  return pieces;
}

/// Tables as they are fitted, but with uniform cut points.
Fp16Table reduced_table(Fp16Reduction reduction, Fp16Model model) {
  Fp16Table table;
  table.function = to_string(reduction);
  table.model = model;
  table.reduction = reduction;
  const auto add = [&](double (*f)(double), double low, double high) {
    table.pieces.push_back(sampled(f, low, high, model));
  };
  switch (reduction) {
    case Fp16Reduction::kSin:
    case Fp16Reduction::kCos:
      add([](double x) { return std::sin(x); }, -0.7875, 0.7875);
      add([](double x) { return std::cos(x); }, -0.7875, 0.7875);
      break;
    case Fp16Reduction::kExp: add([](double x) { return std::exp(x); }, -0.3472, 0.3472); break;
    case Fp16Reduction::kLog: add([](double x) { return std::log(x); }, 0.7070, 1.4150); break;
    case Fp16Reduction::kReciprocal: add([](double x) { return 1 / x; }, 1, 2); break;
    case Fp16Reduction::kRsqrt: add([](double x) { return 1 / std::sqrt(x); }, 1, 4); break;
    default: add([](double x) { return std::sqrt(x); }, 1, 4); break;
  }
  return table;
}

const Fp16Table& published_silu(Fp16Model model) {
  static const std::vector<Fp16Table> tables = [] {  // a second each: it is certified
    std::vector<Fp16Table> made;
    for (const Fp16Model each : kModels) {
      Fp16FitOptions options;
      options.model = each;
      made.push_back(import_fp16_table(
                         "silu",
                         {-20.359375f, -17.109375f, -8.3671875f, -1.9755859375f, -0.255615234375f,
                          -0.007244110107421875f, 0.0072174072265625f, 0.228515625f, 1.58203125f, 10.46875f, 65504.0f},
                         options)
                         .value());
    }
    return made;
  }();
  return tables[static_cast<size_t>(model)];
}

/// Runs all codes, and says which result is wrong.
void check_all_codes(const Fp16Function& function, std::string_view kernel) {
  static const std::vector<uint16_t> codes = all_codes();
  std::vector<uint16_t> y(codes.size());
  const Status status = function.forward(bytes_of(codes), Dtype::kF16, std::as_writable_bytes(std::span(y)),
                                         Dtype::kF16, {.kernel = kernel});
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < codes.size(); ++i)
    ASSERT_EQ(y[i], function.results()[i]) << kernel << ", code " << i << ", " << f16_to_f32(codes[i]);
}

class Fp16Kernels : public ::testing::TestWithParam<Fp16Kernel> {
 protected:
  void SetUp() override {
    const CpuPath path = GetParam().path;
    if (cpu_can_run(path)) return;
    ASSERT_FALSE(required(path)) << "ISOBIT_REQUIRE names " << to_string(path) << ": " << cpu_cannot_run_reason(path);
    GTEST_SKIP() << cpu_cannot_run_reason(path);
  }

  /// Runs x as elements of every type against the results of all codes.
  void check(const Fp16Function& function, const std::vector<uint16_t>& results, std::span<const std::byte> x,
             Dtype x_dtype) const {
    for (const Dtype y_dtype : kDtypes) {
      const std::vector<std::byte> expected = expected_of(results, x, x_dtype, y_dtype);
      std::vector<std::byte> y(expected.size());
      const Status status = function.forward(x, x_dtype, y, y_dtype, {.kernel = GetParam().name});
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(first_difference(y, expected, y_dtype), -1) << to_string(x_dtype) << " to " << to_string(y_dtype);
    }
  }
};

TEST_P(Fp16Kernels, EveryCodeOfTablesAsTheyAreUsed) {
  for (const Fp16Model model : kModels) {
    SCOPED_TRACE(to_string(model));
    check_all_codes(*Fp16Function::create(published_silu(model)), GetParam().name);
    for (const Fp16Reduction reduction :
         {Fp16Reduction::kSin, Fp16Reduction::kCos, Fp16Reduction::kExp, Fp16Reduction::kLog,
          Fp16Reduction::kReciprocal, Fp16Reduction::kRsqrt, Fp16Reduction::kSqrt}) {
      SCOPED_TRACE(to_string(reduction));
      check_all_codes(*Fp16Function::create(reduced_table(reduction, model)), GetParam().name);
    }
  }
}

// Kernels that this machine cannot run are left out here; Fp16Kernels reports them.
TEST(Fp16Function, EveryCodeOfRandomTables) {
  constexpr struct {
    size_t intervals;
    int32_t most_steps;
    bool every_kind;
  } kShapes[] = {{1, 1, false},  {3, 4096, false}, {10, 32, true},  {14, 9, true},
                 {15, 33, true}, {31, 5, false},   {256, 12, false}};
  Random random(7);
  for (const Fp16Model model : kModels) {
    for (int32_t reduction = 0; reduction <= 8; ++reduction) {
      for (const auto& [intervals, most_steps, every_kind] : kShapes) {
        for (const Values kind : {Values::kCodes, Values::kSmooth, Values::kSigns, Values::kHuge}) {
          if (!every_kind && kind != Values::kCodes) continue;
          SCOPED_TRACE(std::string(to_string(model)) + " reduction " + std::to_string(reduction) + " intervals " +
                       std::to_string(intervals) + " steps " + std::to_string(most_steps) + " values " +
                       std::to_string(static_cast<int>(kind)));
          const Fp16Table table =
              random_table(random, model, static_cast<Fp16Reduction>(reduction), intervals, most_steps, kind);
          const Result<Fp16Function> function = Fp16Function::create(table);
          ASSERT_TRUE(function.ok()) << function.status().message();
          for (const Fp16Kernel& kernel : fp16_kernels()) {
            if (cpu_can_run(kernel.path) && kernel.name != "reference") check_all_codes(*function, kernel.name);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(Fp16Kernels, EveryTypeAndEveryRounding) {
  std::vector<uint32_t> bits;
  for (uint32_t code = 0; code < 65536; ++code) {  // each float16, halfway to the next one, and next to both
    const uint32_t at = __builtin_bit_cast(uint32_t, f16_to_f32(static_cast<uint16_t>(code)));
    const uint32_t next = __builtin_bit_cast(uint32_t, f16_to_f32(static_cast<uint16_t>(code + 1)));
    const uint32_t half = static_cast<uint32_t>((uint64_t{at} + next) / 2);
    for (const uint32_t value : {at, half})
      for (const uint32_t near : {value - 1, value, value + 1}) bits.push_back(near);
  }
  // The largest that rounds to 65504, the smallest subnormals of both types, NaNs of every kind.
  for (const uint32_t value : {0x477fefffu, 0x477ff000u, 0x33000000u, 0x33000001u, 1u, 0x7fffffu, 0x800000u,
                               0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fa00000u, 0x7fc00000u, 0x7fffffffu})
    for (const uint32_t sign : {0u, 0x80000000u}) bits.push_back(value | sign);
  Random random(11);
  while (bits.size() < size_t{1} << 20) bits.push_back(static_cast<uint32_t>(random.next()));
  const Fp16Table tables[] = {published_silu(Fp16Model::kF32), reduced_table(Fp16Reduction::kSin, Fp16Model::kNliGpu),
                              reduced_table(Fp16Reduction::kExp, Fp16Model::kNliCpu)};
  for (const Fp16Table& table : tables) {
    SCOPED_TRACE(table.function);
    const Fp16Function function = *Fp16Function::create(table);
    const std::vector<uint16_t> results = results_of(table);
    ASSERT_TRUE(std::equal(results.begin(), results.end(), function.results().begin(), function.results().end()));
    check(function, results, bytes_of(all_codes()), Dtype::kF16);
    check(function, results, bytes_of(all_codes()), Dtype::kBF16);
    check(function, results, bytes_of(bits), Dtype::kF32);
    if (GetParam().name == "reference") continue;
    for (uint32_t& value : bits) value = static_cast<uint32_t>(random.next());
    check(function, results, bytes_of(bits), Dtype::kF32);
  }
}

TEST_P(Fp16Kernels, OddSizesBetweenGuardPages) {
  const Fp16Table& table = published_silu(Fp16Model::kF32);
  const Fp16Function function = *Fp16Function::create(table);
  const std::vector<uint16_t> results = results_of(table);
  Random random(13);
  for (const size_t count :
       {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 1023, 1024, 1025, 1039, 2047, 2049, 3001}) {
    for (const bool at_end : {true, false}) {
      for (const Dtype x_dtype : kDtypes) {
        for (const Dtype y_dtype : kDtypes) {
          SCOPED_TRACE(std::to_string(count) + " " + std::string(to_string(x_dtype)) + " to " +
                       std::string(to_string(y_dtype)));
          const GuardedBytes x(static_cast<int64_t>(count * size_in_bytes(x_dtype)), at_end);
          const GuardedBytes y(static_cast<int64_t>(count * size_in_bytes(y_dtype)), at_end);
          for (std::byte& byte : x.bytes()) byte = static_cast<std::byte>(random.next());
          ASSERT_TRUE(function.forward(x.bytes(), x_dtype, y.bytes(), y_dtype, {.kernel = GetParam().name}).ok());
          const std::vector<std::byte> expected = expected_of(results, x.bytes(), x_dtype, y_dtype);
          ASSERT_EQ(first_difference(y.bytes(), expected, y_dtype), -1);
          ASSERT_TRUE(x.untouched_around() && y.untouched_around());
          if (size_in_bytes(x_dtype) != size_in_bytes(y_dtype)) continue;
          ASSERT_TRUE(function.forward(x.bytes(), x_dtype, x.bytes(), y_dtype, {.kernel = GetParam().name}).ok());
          ASSERT_EQ(first_difference(x.bytes(), expected, y_dtype), -1) << "in place";
          ASSERT_TRUE(x.untouched_around());
        }
      }
    }
  }
}

TEST_P(Fp16Kernels, ThreadsDoNotMatter) {
  const Fp16Table table = reduced_table(Fp16Reduction::kSqrt, Fp16Model::kNliGpu);
  const Fp16Function function = *Fp16Function::create(table);
  const std::vector<uint16_t> results = results_of(table);
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (const size_t count : {0, 1, 1024, 1025, 5000, 20000}) {
      std::vector<uint16_t> x(count), y(count);
      std::iota(x.begin(), x.end(), static_cast<uint16_t>(count));
      ASSERT_TRUE(function
                      .forward(bytes_of(x), Dtype::kF16, std::as_writable_bytes(std::span(y)), Dtype::kF16,
                               {.kernel = GetParam().name, .pool = &pool})
                      .ok());
      const std::vector<std::byte> expected = expected_of(results, bytes_of(x), Dtype::kF16, Dtype::kF16);
      EXPECT_EQ(first_difference(bytes_of(y), expected, Dtype::kF16), -1) << threads << " threads, " << count;
    }
  }
}

const auto kernel_name = [](const ::testing::TestParamInfo<Fp16Kernel>& row) { return std::string(row.param.name); };
INSTANTIATE_TEST_SUITE_P(All, Fp16Kernels, ::testing::ValuesIn(fp16_kernels().begin(), fp16_kernels().end()),
                         kernel_name);

class Fp16SoftmaxKernels : public Fp16Kernels {};

Fp16Softmax uniform_softmax(Fp16Model model) {
  return *Fp16Softmax::create(reduced_table(Fp16Reduction::kExp, model),
                              reduced_table(Fp16Reduction::kReciprocal, model));
}

/// Rows of every kind that the definition tells apart.
std::vector<float> softmax_rows(Random& random, size_t rows, size_t columns) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x;
  for (size_t row = 0; row < rows; ++row) {
    const float scale = std::ldexp(1.0f, static_cast<int>(row % 5) * 4 - 6);  // 2^-6 to 2^10
    std::vector<float> values(columns);
    for (float& value : values) value = random_f16(random, -scale, scale);
    float& one = values[random.next() % columns];
    switch (row) {
      case 1: std::fill(values.begin(), values.end(), -kInfinity); break;
      case 2: one = kInfinity; break;
      case 3: one = std::numeric_limits<float>::quiet_NaN(); break;
      case 4: one = -std::numeric_limits<float>::quiet_NaN(); break;
      case 5: one = -kInfinity; break;
      case 6:
        std::fill(values.begin(), values.end(), 0.0f);
        one = -0.0f;
        break;
      case 7:
        std::fill(values.begin(), values.end(), -65504.0f);
        one = 65504.0f;
        break;
      case 8:
        std::fill(values.begin(), values.end(), -kInfinity);
        one = -3.0f;
        break;
      case 9:
        for (float& value : values) value = f16_to_f32(static_cast<uint16_t>(random.next() & 0xfbffu));
        break;
      case 10: std::fill(values.begin(), values.end(), -65504.0f); break;
      default: break;
    }
    x.insert(x.end(), values.begin(), values.end());
  }
  return x;
}

TEST_P(Fp16SoftmaxKernels, GiveTheBytesOfTheReference) {
  constexpr size_t kRows = 13;
  Random random(17);
  for (const Fp16Model model : kModels) {
    std::vector<Fp16Softmax> tables = {uniform_softmax(model)};
    for (const size_t intervals : {2, 40}) {  // any values of the ranges
      Fp16Table exp = random_table(random, model, Fp16Reduction::kExp, intervals, 20, Values::kSmooth);
      Fp16Table reciprocal = random_table(random, model, Fp16Reduction::kReciprocal, intervals, 20, Values::kSmooth);
      for (float& value : exp.pieces[0].values)
        value = random.one_in(3) ? 2.0f : 0.5f + static_cast<float>(random.between(0, 1536)) / 1024.0f;
      tables.push_back(*Fp16Softmax::create(exp, reciprocal));
    }
    for (const Fp16Softmax& softmax : tables) {
      for (const size_t columns : {1, 2, 15, 16, 31, 32, 33, 100, 1023, 1024, 1025, 2100, 4096, 4097}) {
        if (columns > 1100 && GetParam().name == "reference") continue;
        const std::vector<float> x = softmax_rows(random, columns > 1100 ? 11 : kRows, columns);
        for (const Dtype x_dtype : kDtypes) {
          for (const Dtype y_dtype : kDtypes) {
            if (columns > 1100 && x_dtype != y_dtype) continue;
            SCOPED_TRACE(std::string(to_string(model)) + " columns " + std::to_string(columns) + " " +
                         std::string(to_string(x_dtype)) + " to " + std::string(to_string(y_dtype)));
            const std::vector<std::byte> in = elements(x, x_dtype);
            std::vector<std::byte> expected(x.size() * size_in_bytes(y_dtype));
            ASSERT_TRUE(
                softmax.forward(in, x_dtype, expected, y_dtype, static_cast<int64_t>(columns), {.kernel = "reference"})
                    .ok());
            const GuardedBytes guarded_x(static_cast<int64_t>(in.size()));
            const GuardedBytes y(static_cast<int64_t>(expected.size()));
            std::copy(in.begin(), in.end(), guarded_x.bytes().begin());
            ThreadPool pool(2);
            const RunOptions options{.kernel = GetParam().name, .pool = columns % 2 == 1 ? &pool : nullptr};
            const int64_t n = static_cast<int64_t>(columns);
            ASSERT_TRUE(softmax.forward(guarded_x.bytes(), x_dtype, y.bytes(), y_dtype, n, options).ok());
            ASSERT_EQ(first_difference(y.bytes(), expected, y_dtype), -1);
            ASSERT_TRUE(y.untouched_around());
            if (size_in_bytes(x_dtype) != size_in_bytes(y_dtype)) continue;
            ASSERT_TRUE(softmax.forward(guarded_x.bytes(), x_dtype, guarded_x.bytes(), y_dtype, n, options).ok());
            ASSERT_EQ(first_difference(guarded_x.bytes(), expected, y_dtype), -1) << "in place";
          }
        }
      }
    }
  }
}

TEST_P(Fp16SoftmaxKernels, OrderDoesNotMatterAndTheResultIsRight) {
  Random random(19);
  for (const Fp16Model model : kModels) {
    const Fp16Softmax softmax = uniform_softmax(model);
    for (const size_t columns : {5, 64, 777, 5000}) {
      std::vector<uint16_t> x(columns), y(columns), shuffled(columns), y_shuffled(columns);
      for (uint16_t& code : x) code = f32_to_f16(random_f16(random, -12, 12));
      std::vector<size_t> order(columns);
      std::iota(order.begin(), order.end(), size_t{0});
      for (size_t i = columns; i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
      for (size_t i = 0; i < columns; ++i) shuffled[i] = x[order[i]];
      const RunOptions options{.kernel = GetParam().name};
      const int64_t n = static_cast<int64_t>(columns);
      ASSERT_TRUE(
          softmax.forward(bytes_of(x), Dtype::kF16, std::as_writable_bytes(std::span(y)), Dtype::kF16, n, options)
              .ok());
      ASSERT_TRUE(softmax
                      .forward(bytes_of(shuffled), Dtype::kF16, std::as_writable_bytes(std::span(y_shuffled)),
                               Dtype::kF16, n, options)
                      .ok());
      double largest = -1e9, sum = 0;
      for (const uint16_t code : x) largest = std::max(largest, static_cast<double>(f16_to_f32(code)));
      for (const uint16_t code : x) sum += std::exp(f16_to_f32(code) - largest);
      for (size_t i = 0; i < columns; ++i) {
        ASSERT_EQ(y_shuffled[i], y[order[i]]) << i;
        const double truth = std::exp(f16_to_f32(x[i]) - largest) / sum;
        // Half a unit of float16, and what interpolation and the models add; the only tolerance here.
        const double tolerance = truth * (model == Fp16Model::kF32 ? 0x1p-11 + 1e-5 : 0x1p-11 + 1e-4) + 0x1p-25;
        ASSERT_NEAR(f16_to_f32(y[i]), truth, tolerance) << i << " of " << columns << ", " << to_string(model);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fp16SoftmaxKernels,
                         ::testing::ValuesIn(fp16_softmax_kernels().begin(), fp16_softmax_kernels().end()),
                         kernel_name);

/// Section 13 once more, written from the text, for model f32.
float look_up_by_the_text(const Fp16Pieces& t, float x) {
  if (x <= t.cut_points.front()) return t.values.front();
  if (x >= t.cut_points.back()) return t.values.back();
  const auto above = std::upper_bound(t.cut_points.begin(), t.cut_points.end(), x);
  const size_t i = static_cast<size_t>(above - t.cut_points.begin()) - 1;
  size_t base = 0;
  for (size_t k = 0; k < i; ++k) base += static_cast<size_t>(t.steps[k]);
  const float p = (x - t.cut_points[i]) * t.scales[i];
  const size_t length = static_cast<size_t>(t.steps[i]);
  const size_t j = std::min(static_cast<size_t>(std::floor(p)), length);
  const float left = t.values[base + j], right = t.values[base + std::min(j + 1, length)];
  return std::fma(p - std::floor(p), right - left, left);
}

TEST(Fp16Softmax, FollowsTheText) {
  const Fp16Softmax softmax = uniform_softmax(Fp16Model::kF32);
  Random random(23);
  for (const size_t columns : {1, 3, 50, 1000}) {
    std::vector<uint16_t> x(columns), y(columns);
    for (uint16_t& code : x) code = f32_to_f16(random_f16(random, -20, 20));
    if (columns == 50) x[7] = 0xfc00;
    ASSERT_TRUE(softmax
                    .forward(bytes_of(x), Dtype::kF16, std::as_writable_bytes(std::span(y)), Dtype::kF16,
                             static_cast<int64_t>(columns), {.kernel = "reference"})
                    .ok());
    float m = -std::numeric_limits<float>::infinity();
    for (const uint16_t code : x) m = std::max(m, f16_to_f32(code));
    std::vector<float> e(columns, 0.0f);
    uint64_t sum = 0;
    for (size_t i = 0; i < columns; ++i) {
      const float d = f16_to_f32(x[i]) - m;
      if (std::isinf(d)) continue;
      const float k = std::rint(d * 0x1.715476p+0f);
      const float r = std::fma(-k, -0x1.950d88p-54f, std::fma(-k, -0x1.05c610p-29f, std::fma(-k, 0x1.62e430p-1f, d)));
      e[i] = std::ldexp(look_up_by_the_text(softmax.exp_table().pieces[0], r), static_cast<int>(std::max(k, -64.0f)));
      sum += static_cast<uint64_t>(std::rint(std::ldexp(e[i], 30)));
    }
    int k = 0;
    const float m2 = 2 * std::frexp(static_cast<float>(sum), &k);
    const float q = std::ldexp(look_up_by_the_text(softmax.reciprocal_table().pieces[0], m2), 30 - (k - 1));
    for (size_t i = 0; i < columns; ++i) ASSERT_EQ(y[i], f32_to_f16(e[i] * q)) << i << " of " << columns;
  }
}

TEST(Fp16Softmax, RefusesByName) {
  const Fp16Table exp = reduced_table(Fp16Reduction::kExp, Fp16Model::kF32);
  const Fp16Table reciprocal = reduced_table(Fp16Reduction::kReciprocal, Fp16Model::kF32);
  const auto refusal = [](const Fp16Table& e, const Fp16Table& r) {
    const Result<Fp16Softmax> made = Fp16Softmax::create(e, r);
    return made.ok() ? "" : made.status().message();
  };
  EXPECT_EQ(refusal(exp, reciprocal), "");
  EXPECT_EQ(refusal(reciprocal, exp), "table exp: reduction is reciprocal, must be exp");
  EXPECT_EQ(refusal(exp, exp), "table reciprocal: reduction is exp, must be reciprocal");
  EXPECT_EQ(refusal(exp, reduced_table(Fp16Reduction::kReciprocal, Fp16Model::kNliCpu)),
            "table reciprocal: model is nli_cpu, must be f32, that of the exp table");
  Fp16Table wrong = exp;
  wrong.pieces[0].values[3] = 2.5f;
  EXPECT_EQ(refusal(wrong, reciprocal), "table exp: values[3] is 2.5, must be in [0.5, 2] for a softmax");
  wrong = reciprocal;
  wrong.pieces[0].values[4] = 0.125f;
  EXPECT_EQ(refusal(exp, wrong), "table reciprocal: values[4] is 0.125, must be in [0.25, 2] for a softmax");
  wrong = exp;
  wrong.pieces[0].scales[0] = 1;
  EXPECT_EQ(refusal(wrong, reciprocal).rfind("table exp: scales[0] is 1, must be", 0), 0u);

  const Fp16Softmax softmax = *Fp16Softmax::create(exp, reciprocal);
  std::vector<uint16_t> x(12), y(12);
  const auto run = [&](int64_t columns, std::string_view kernel = {}, Dtype dtype = Dtype::kF16) {
    return softmax.forward(bytes_of(x), dtype, std::as_writable_bytes(std::span(y)), dtype, columns,
                           {.kernel = kernel});
  };
  EXPECT_TRUE(run(4).ok());
  EXPECT_EQ(run(0).message(), "columns is 0, must be in [1, 2147483647]");
  EXPECT_EQ(run(int64_t{1} << 31).message(), "columns is 2147483648, must be in [1, 2147483647]");
  EXPECT_EQ(run(5).message(), "x has 12 elements, must be a multiple of columns, 5");
  EXPECT_EQ(run(4, "fast").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(4, "fast").message().rfind("kernel is 'fast', must be one of reference", 0), 0u);
  EXPECT_EQ(run(4, "", Dtype::kS8).code(), StatusCode::kUnsupported);
}

TEST(Fp16Function, RefusesByName) {
  const Fp16Function function = *Fp16Function::create(published_silu(Fp16Model::kF32));
  std::vector<std::byte> memory(64, kCanary);
  const size_t offset = (4 - reinterpret_cast<uintptr_t>(memory.data()) % 4) % 4;
  const std::span<std::byte> aligned = std::span(memory).subspan(offset);
  const auto run = [&](size_t x_at, size_t x_bytes, Dtype x_dtype, size_t y_at, size_t y_bytes, Dtype y_dtype,
                       std::string_view kernel = {}) {
    const Status status = function.forward(aligned.subspan(x_at, x_bytes), x_dtype, aligned.subspan(y_at, y_bytes),
                                           y_dtype, {.kernel = kernel});
    EXPECT_TRUE(status.ok() || std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == kCanary; }));
    return std::pair(status.code(), status.message());
  };
  const auto is = [](const std::pair<StatusCode, std::string>& status, StatusCode code, const std::string& text) {
    EXPECT_EQ(status.first, code) << status.second;
    EXPECT_NE(status.second.find(text), std::string::npos) << status.second;
  };
  for (const Dtype dtype : {Dtype::kS8, Dtype::kU16, Dtype::kS32, Dtype::kF64}) {
    is(run(0, 8, dtype, 32, 8, Dtype::kF16), StatusCode::kUnsupported,
       "x is of type " + std::string(to_string(dtype)) + ", must be f16, bf16 or f32");
    is(run(0, 8, Dtype::kF16, 32, 8, dtype), StatusCode::kUnsupported,
       "y is of type " + std::string(to_string(dtype)) + ", must be f16, bf16 or f32");
  }
  const StatusCode wrong = StatusCode::kInvalidArgument;
  is(run(0, 7, Dtype::kF16, 32, 8, Dtype::kF16), wrong, "x has 7 bytes, must be a multiple of 2 for f16");
  is(run(0, 8, Dtype::kF16, 32, 6, Dtype::kF32), wrong, "y has 6 bytes, must be a multiple of 4 for f32");
  is(run(1, 8, Dtype::kF16, 32, 8, Dtype::kF16), wrong, "x is at address ");
  is(run(0, 8, Dtype::kF16, 34, 16, Dtype::kF32), wrong, "must be a multiple of 4 for f32");
  is(run(0, 8, Dtype::kF16, 32, 6, Dtype::kF16), wrong, "y has 3 elements, must be as many as x, 4");
  is(run(0, 8, Dtype::kF16, 32, 8, Dtype::kF32), wrong, "y has 2 elements, must be as many as x, 4");
  is(run(0, 8, Dtype::kF16, 6, 8, Dtype::kF16), wrong, "y overlaps x");
  is(run(6, 8, Dtype::kF16, 0, 8, Dtype::kF16), wrong, "y overlaps x");
  is(run(0, 8, Dtype::kF16, 0, 16, Dtype::kF32), wrong, "y overlaps x");
  is(run(0, 8, Dtype::kF16, 32, 8, Dtype::kF16, "sse"), wrong,
     "kernel is 'sse', must be one of reference, direct_scalar");
  for (const Fp16Kernel& kernel : fp16_kernels()) {
    if (cpu_can_run(kernel.path)) continue;
    is(run(0, 8, Dtype::kF16, 32, 8, Dtype::kF16, kernel.name), StatusCode::kFailedPrecondition,
       "kernel '" + std::string(kernel.name) + "' cannot run here: the processor lacks");
  }
  const auto with = [&](const RunOptions& options) {
    const Status status = function.forward(aligned.first(8), Dtype::kF16, aligned.subspan(8, 8), Dtype::kF16, options);
    return std::pair(status.code(), status.message());
  };
  is(with({.path = CpuPath::kScalar, .kernel = "reference"}), wrong, "kernel and options.path are both set");
  is(with({.path = static_cast<CpuPath>(99)}), wrong, "path is 99");
  is(with({.batch_first = true}), wrong, "options.batch_first is set, which means nothing to an FP16 table on the CPU");
  for (const CpuPath path : kAllCpuPaths)
    is(with({.path = path}), cpu_can_run(path) ? StatusCode::kOk : StatusCode::kFailedPrecondition,
       cpu_can_run(path) ? "" : "cannot run here");
  is(run(0, 8, Dtype::kF16, 8, 8, Dtype::kF16), StatusCode::kOk, "");  // neighbours
  is(run(0, 0, Dtype::kF16, 0, 0, Dtype::kF32), StatusCode::kOk, "");

  Fp16Table lie = published_silu(Fp16Model::kF32);
  lie.pieces[0].cut_points[2] = lie.pieces[0].cut_points[1] - 1;
  const Result<Fp16Function> refused = Fp16Function::create(lie);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message().rfind("table silu: cut_points[2] is", 0), 0u) << refused.status().message();
}

/// Sets ISOBIT_CPU for a scope.
class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* before = std::getenv("ISOBIT_CPU"); before != nullptr) before_ = before;
    setenv("ISOBIT_CPU", value, 1);
  }
  ~Environment() {
    if (before_) {
      setenv("ISOBIT_CPU", before_->c_str(), 1);
    } else {
      unsetenv("ISOBIT_CPU");
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::optional<std::string> before_;
};

TEST(Fp16Function, TheDefaultKernelFollowsTheEnvironment) {
  const Fp16Table& table = published_silu(Fp16Model::kF32);
  const auto default_of = [&](const char* path) {
    const Environment environment(path);
    return Fp16Function::create(table)->default_kernel();
  };
  EXPECT_EQ(*default_of("reference"), "reference");
  EXPECT_EQ(*default_of("scalar"), "direct_scalar");
  if (cpu_can_run(CpuPath::kAvx2)) {
    EXPECT_EQ(*default_of("avx2"), "direct_avx2");
  }
  if (cpu_can_run(CpuPath::kAvxVnni)) {
    EXPECT_EQ(*default_of("avxvnni"), "direct_avx2");
  }
  if (cpu_can_run(CpuPath::kAvx512Vnni)) {
    EXPECT_EQ(*default_of("avx512vnni"), "direct_avx512vnni");
  }
  EXPECT_NE(default_of("mmx").status().message().find("ISOBIT_CPU is 'mmx'"), std::string::npos);
}

TEST_P(Fp16Kernels, NanOfAnOverflowIsTheQuietNan) {
  Fp16Table table;
  table.function = "custom";
  table.pieces.push_back({{2}, {-1, 1}, {1}, {3e38f, -3e38f, 3e38f}});
  EXPECT_EQ(table(0), 0x7e00);  // 0 * infinity
  const Fp16Function function = *Fp16Function::create(table);
  EXPECT_EQ(function.results()[0], 0x7e00);
  EXPECT_EQ(function.results()[f32_to_f16(-1.0f)], 0x7c00);
  check_all_codes(function, GetParam().name);
}

}  // namespace
}  // namespace isobit
