// SPDX-License-Identifier: Apache-2.0
#include "isobit/fp16_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "core/half.h"
#include "table/fp16/exact.h"
#include "table/fp16/reference.h"

namespace isobit {
namespace {

constexpr Fp16Model kModels[] = {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu};
constexpr uint16_t kMinusInfinity = 0xfc00;

/// The published cut points of SiLU.
const std::vector<float> kPublishedSilu = {
    -20.359375f,         -17.109375f,  -8.3671875f, -1.9755859375f, -0.255615234375f, -0.007244110107421875f,
    0.0072174072265625f, 0.228515625f, 1.58203125f, 10.46875f,      65504.0f};

Fp16Table table_of(std::vector<int32_t> steps, std::vector<float> cut_points, std::vector<float> values,
                   Fp16Model model = Fp16Model::kF32) {
  Fp16Table table;
  table.function = "custom";
  table.model = model;
  Fp16Pieces pieces;
  pieces.steps = std::move(steps);
  pieces.cut_points = std::move(cut_points);
  pieces.values = std::move(values);
  set_scales(pieces, model);
  table.pieces.push_back(std::move(pieces));
  return table;
}

float at(const Fp16Table& table, float x) { return f16_to_f32(table(f32_to_f16(x))); }

/// Section 13 once more, written from the text, for f32 and no range reduction.
uint16_t by_the_text(const Fp16Pieces& t, uint16_t code) {
  if ((code & 0x7fffu) > 0x7c00u) return 0x7e00;
  const float x = f16_to_f32(code);
  if (x >= t.cut_points.back()) return f32_to_f16(t.values.back());
  if (x <= t.cut_points.front()) return f32_to_f16(t.values.front());
  const auto above = std::upper_bound(t.cut_points.begin(), t.cut_points.end(), x);
  const size_t i = static_cast<size_t>(above - t.cut_points.begin()) - 1;
  size_t base = 0;
  for (size_t k = 0; k < i; ++k) base += static_cast<size_t>(t.steps[k]);
  const float difference = x - t.cut_points[i];
  const float p = difference * t.scales[i];
  const float length = static_cast<float>(t.steps[i]);
  const size_t j = static_cast<size_t>(std::min(std::floor(p), length));
  const size_t next = std::min(j + 1, static_cast<size_t>(t.steps[i]));
  return f32_to_f16(std::fma(p - std::floor(p), t.values[base + next] - t.values[base + j], t.values[base + j]));
}

TEST(Fp16Table, EvaluatesByTheText) {
  const Fp16Table table = import_fp16_table("silu", kPublishedSilu, {}).value();
  for (uint32_t x = 0; x < 65536; ++x)
    ASSERT_EQ(table(static_cast<uint16_t>(x)), by_the_text(table.pieces[0], static_cast<uint16_t>(x))) << x;
}

TEST(Fp16Table, SpecialArguments) {
  for (const Fp16Model model : kModels) {
    const Fp16Table table = table_of({1, 2, 4}, {-2, -1, -1, 3}, {5, 6, 7, 8, 9, 10, 12, 14}, model);
    ASSERT_TRUE(check_fp16_table(table, "t").ok()) << check_fp16_table(table, "t").message();
    for (const uint32_t nan : {0x7c01u, 0x7e00u, 0x7fffu, 0xfc01u, 0xfe00u, 0xffffu})
      EXPECT_EQ(table(static_cast<uint16_t>(nan)), 0x7e00);
    EXPECT_EQ(table(0x7c00), f32_to_f16(14));
    EXPECT_EQ(table(0xfc00), f32_to_f16(5));
    EXPECT_EQ(at(table, -65504), 5);
    EXPECT_EQ(at(table, -2), 5);
    EXPECT_EQ(at(table, -1.5f), 5.5f);
    EXPECT_EQ(at(table, -1), 8);  // the interval of width 0 is never selected, the one after it begins
    EXPECT_EQ(at(table, 0), 9);
    EXPECT_EQ(table(0x8000), table(0));
    EXPECT_EQ(at(table, 0x1p-24f), 9);
    EXPECT_EQ(at(table, -0x1p-24f), 9);
    EXPECT_EQ(at(table, 0.5f), 9.5f);
    EXPECT_EQ(at(table, 2.5f), 13);
    EXPECT_EQ(at(table, 3), 14);
    EXPECT_EQ(at(table, 65504), 14);
  }
}

TEST(Fp16Table, SubnormalArgumentsAndResults) {
  const Fp16Table table = table_of({1, 1}, {-0x1p-14f, 0, 0x1p-14f}, {-0x1p-14f, 0, 0x1p-14f});
  for (uint32_t x = 0; x <= 0x400; ++x) {
    EXPECT_EQ(table(static_cast<uint16_t>(x)), x);
    if (x != 0) {
      EXPECT_EQ(table(static_cast<uint16_t>(x | 0x8000u)), x | 0x8000u);
    }
  }
}

TEST(Fp16Table, ModelsRoundWhereTheyShould) {
  // Width 3: 1/3 in float32 and in float16.
  EXPECT_EQ(table_of({1}, {0, 3}, {0, 1}).pieces[0].scales[0], 1.0f / 3.0f);
  EXPECT_EQ(table_of({1}, {0, 3}, {0, 1}, Fp16Model::kNliGpu).pieces[0].scales[0], 0x1.554p-2f);
  // The difference of the cut points, 4096.5, is no float16 number: 4096 in the other models.
  EXPECT_EQ(table_of({1}, {-0.5f, 4096}, {0, 1}).pieces[0].scales[0], 1.0f / 4096.5f);
  EXPECT_EQ(table_of({1}, {-0.5f, 4096}, {0, 1}, Fp16Model::kNliCpu).pieces[0].scales[0], 1.0f / 4096.0f);
  // x - c = 1026.5 is no float16 number: 1026 in nli_cpu.
  const Fp16Table gpu = table_of({1}, {-0.5f, 4096}, {0, 12288}, Fp16Model::kNliGpu);
  const Fp16Table cpu = table_of({1}, {-0.5f, 4096}, {0, 12288}, Fp16Model::kNliCpu);
  EXPECT_EQ(at(gpu, 1026), 3080);  // 3079.5
  EXPECT_EQ(at(cpu, 1026), 3078);
}

TEST(Fp16Table, PublishedModelsDisagree) {
  Fp16FitOptions options;
  options.model = Fp16Model::kNliGpu;
  const Fp16Table gpu = import_fp16_table("silu", kPublishedSilu, options).value();
  options.model = Fp16Model::kNliCpu;
  const Fp16Table cpu = import_fp16_table("silu", kPublishedSilu, options).value();
  int finite = 0, differ = 0;
  for (uint32_t x = 0; x < 65536; ++x) {
    if ((x & 0x7fffu) >= 0x7c00u) continue;
    ++finite;
    differ += gpu(static_cast<uint16_t>(x)) != cpu(static_cast<uint16_t>(x)) ? 1 : 0;
  }
  const double share = 100.0 * differ / finite;
  std::printf("nli_gpu and nli_cpu differ on %d of %d finite inputs, %.2f %%\n", differ, finite, share);
  EXPECT_GE(share, 37.0);
  EXPECT_LE(share, 39.0);
}

TEST(Fp16Table, RefusesLies) {
  const Fp16Table good = table_of({1, 2}, {-1, 0, 1}, {0, 1, 2, 3});
  ASSERT_TRUE(check_fp16_table(good, "t").ok());
  const auto refused = [&](const char* text, auto change) {
    Fp16Table table = good;
    change(table);
    const Status status = check_fp16_table(table, "t");
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.code(), StatusCode::kInvalidFile);
    EXPECT_EQ(status.message().rfind("table t: " + std::string(text), 0), 0u) << status.message();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  refused("function is \"sillu\"", [](Fp16Table& t) { t.function = "sillu"; });
  refused("beta is 2", [](Fp16Table& t) { t.beta = 2; });
  refused("model is 3", [](Fp16Table& t) { t.model = static_cast<Fp16Model>(3); });
  refused("reduction is 9", [](Fp16Table& t) { t.reduction = static_cast<Fp16Reduction>(9); });
  refused("reduction is exp", [](Fp16Table& t) { t.reduction = Fp16Reduction::kExp; });
  refused("number of pieces is 2", [](Fp16Table& t) { t.pieces.push_back(t.pieces[0]); });
  refused("number of pieces is 0", [](Fp16Table& t) { t.pieces.clear(); });
  refused("number of intervals is 0", [](Fp16Table& t) { t.pieces[0].steps.clear(); });
  refused("steps[1] is 0", [](Fp16Table& t) { t.pieces[0].steps[1] = 0; });
  refused("steps[0] is 4097", [](Fp16Table& t) { t.pieces[0].steps[0] = 4097; });
  refused("number of cut points is 2", [](Fp16Table& t) { t.pieces[0].cut_points.pop_back(); });
  refused("number of scales is 3", [](Fp16Table& t) { t.pieces[0].scales.push_back(1); });
  refused("number of values is 3", [](Fp16Table& t) { t.pieces[0].values.pop_back(); });
  refused("cut_points[1] is nan", [&](Fp16Table& t) { t.pieces[0].cut_points[1] = nan; });
  refused("cut_points[2] is inf", [&](Fp16Table& t) { t.pieces[0].cut_points[2] = infinity; });
  refused("cut_points[1] is 0.100000001", [](Fp16Table& t) { t.pieces[0].cut_points[1] = 0.1f; });
  refused("cut_points[1] is -2", [](Fp16Table& t) { t.pieces[0].cut_points[1] = -2; });
  refused("last of the cut points is 1", [](Fp16Table& t) { t.pieces[0].cut_points = {1, 1, 1}; });
  refused("scales[0] is 1.00000012", [](Fp16Table& t) { t.pieces[0].scales[0] = 0x1.000002p0f; });
  refused("scales[0] is nan", [&](Fp16Table& t) { t.pieces[0].scales[0] = nan; });
  refused("values[3] is -inf", [&](Fp16Table& t) { t.pieces[0].values[3] = -infinity; });
  refused("values[2] is 0.100000001", [](Fp16Table& t) {
    t.half_values = true;
    t.pieces[0].values[2] = 0.1f;
  });
  refused("cut_points[2] is 5.96046448e-08", [](Fp16Table& t) {  // 2 / 2^-24 is no float16 number
    t.model = Fp16Model::kNliGpu;
    t.pieces[0].cut_points[2] = 0x1p-24f;
  });
  refused("certificate max_ulp is -1", [](Fp16Table& t) { t.certificate.max_ulp = -1; });
  refused("certificate mean_ulp is 2", [](Fp16Table& t) { t.certificate.mean_ulp = 2; });
  refused("certificate share_within_ulp is 1.5", [](Fp16Table& t) { t.certificate.share_within_ulp = 1.5; });
  refused("certificate worst_code is 31744", [](Fp16Table& t) { t.certificate.worst_code = 0x7c00; });
}

TEST(Fp16Table, ReductionsAtSpecialArguments) {
  struct Case {
    const char* function;
    uint16_t x, result;
  };
  const Case cases[] = {
      {"sin", 0x0000, 0x0000},           {"sin", 0x8000, 0x8000},         {"sin", 0x7c00, 0x7e00},
      {"cos", 0x0000, 0x3c00},           {"cos", 0xfc00, 0x7e00},         {"exp", 0x0000, 0x3c00},
      {"exp", 0x8000, 0x3c00},           {"exp", 0x7c00, 0x7c00},         {"exp", 0xfc00, 0x0000},
      {"exp", 0x7bff, 0x7c00},           {"exp", 0xfbff, 0x0000},         {"log", 0x3c00, 0x0000},
      {"log", 0x0000, kMinusInfinity},   {"log", 0x8000, kMinusInfinity}, {"log", 0xbc00, 0x7e00},
      {"log", 0x7c00, 0x7c00},           {"reciprocal", 0x0000, 0x7c00},  {"reciprocal", 0x8000, kMinusInfinity},
      {"reciprocal", 0xfc00, 0x8000},    {"reciprocal", 0xc000, 0xb800},  {"rsqrt", 0x0000, 0x7c00},
      {"rsqrt", 0x8000, kMinusInfinity}, {"rsqrt", 0x7c00, 0x0000},       {"rsqrt", 0xbc00, 0x7e00},
      {"rsqrt", 0x4400, 0x3800},         {"sqrt", 0x8000, 0x8000},        {"sqrt", 0x4400, 0x4000},
      {"sqrt", 0x7c00, 0x7c00},          {"sqrt", 0x8001, 0x7e00},        {"sqrt", 0x0000, 0x0000}};
  std::string name;
  Fp16Table table;
  std::vector<uint16_t> exact;
  for (const Case& c : cases) {
    if (name != c.function) {
      name = c.function;
      table = builtin_fp16_table(name).value();
      exact = fp16_exact(name).value();
      EXPECT_LE(table.certificate.max_ulp, 1.0) << name;
      EXPECT_EQ(certify(table, exact).value(), table.certificate);
      for (const uint32_t nan : {0x7c01u, 0xffffu}) EXPECT_EQ(table(static_cast<uint16_t>(nan)), 0x7e00) << name;
    }
    EXPECT_EQ(table(c.x), c.result) << name << " at " << c.x;
    EXPECT_EQ(exact[c.x], c.result) << name << " at " << c.x;
  }
}

TEST(Fp16Certificate, MustBeTrueAndKeepThePromise) {
  Fp16Table table = builtin_fp16_table("silu").value();
  const std::vector<uint16_t> exact = fp16_exact("silu").value();
  EXPECT_EQ(promised_ulp("silu", Fp16Model::kF32, false), 1.0);
  EXPECT_TRUE(std::isinf(promised_ulp("silu", Fp16Model::kF32, true)));
  EXPECT_TRUE(std::isinf(promised_ulp("silu", Fp16Model::kNliGpu, false)));
  EXPECT_TRUE(check_fp16_certificate(table, exact, 1.0).ok());
  Status status = check_fp16_certificate(table, exact, 0.25);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(" ULP, must be at most 0.25"), std::string::npos) << status.message();
  table.certificate.max_ulp = 0.5;
  status = check_fp16_certificate(table, exact, 1.0);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message().find("the certificate says 0.5 ULP, "), 0U) << status.message();
  EXPECT_EQ(check_fp16_certificate(table, {1, 2}, 1.0).code(), StatusCode::kInvalidArgument);
}

TEST(Fp16Tables, Differences) {
  const Fp16Table first = table_of({1, 1}, {-1.0f, 0.0f, 1.0f}, {0.0f, 0.0f, 1.0f});
  const Fp16Table second = table_of({1, 1}, {-1.0f, 0.0f, 1.0f}, {0.0f, 0.0f, 2.0f});
  Fp16Difference difference = compare_fp16_tables(first, first).value();
  EXPECT_EQ(difference.inputs, 2 * 0x7c00);
  EXPECT_EQ(difference.different, 0);
  EXPECT_FALSE(difference.first_code.has_value());
  difference = compare_fp16_tables(first, second).value();
  EXPECT_EQ(difference.different, 0x7bff);  // every positive number
  EXPECT_EQ(difference.first_code, 1);
  EXPECT_EQ(difference.first_input, 0x1p-24);
  EXPECT_EQ(difference.first_result, 1);
  EXPECT_EQ(difference.second_result, 2);
  EXPECT_FALSE(compare_fp16_tables(first, Fp16Table{}).ok());
}

TEST(Fp16Exact, KnownResults) {
  const auto at_code = [](const char* function, uint16_t x) { return fp16_exact(function).value()[x]; };
  EXPECT_EQ(at_code("silu", 0x0001), 0x0001);        // 2^-25 + 2^-50: just above the tie
  EXPECT_EQ(at_code("silu", 0x8001), 0x8000);        // -2^-25 + 2^-50: just inside it
  EXPECT_EQ(at_code("square", 0x0c00), 0x0001);      // 2^-24
  EXPECT_EQ(at_code("leaky_relu", 0x8032), 0x8000);  // -50 / 100 of the smallest: a tie, to even
  EXPECT_EQ(at_code("sigmoid", 0x0000), 0x3800);
  EXPECT_EQ(at_code("sin", 0x7bff), f64_to_f16(std::sin(65504.0)));
  EXPECT_EQ(at_code("selu", 0xfc00), at_code("selu", 0xfbff));
  EXPECT_EQ(fp16_exact("swish", 1.0).value(), fp16_exact("silu").value());
  EXPECT_EQ(fp16_exact("swish", 1e-300).value()[0x0001], 0x0001);
  EXPECT_EQ(fp16_exact("swish", -1e-300).value()[0x0001], 0x0000);
  EXPECT_FALSE(fp16_exact("sillu").ok());
  EXPECT_FALSE(fp16_exact("swish", std::numeric_limits<double>::infinity()).ok());
}

TEST(Fp16Exact, HalvesOfFloat64) {
  EXPECT_EQ(f64_to_f16(65519.999999999), 0x7bff);
  EXPECT_EQ(f64_to_f16(65520.0), 0x7c00);
  EXPECT_EQ(f64_to_f16(-1e300), 0xfc00);
  EXPECT_EQ(f64_to_f16(0x1p-25), 0x0000);
  EXPECT_EQ(f64_to_f16(0x1.0000000000001p-25), 0x0001);
  EXPECT_EQ(f64_to_f16(-0x1p-1074), 0x8000);
  EXPECT_EQ(f64_to_f16(0x1.0020000000001p0), 0x3c01);  // float32 on the way would make it a tie
}

TEST(Fp16Exact, OfTheUsersOwnValues) {
  std::vector<double> values(65536, 0.0);
  values[1] = 65519.999;
  values[2] = -65520;
  values[3] = 0x1.0020000000001p0;
  values[0x7c00] = std::numeric_limits<double>::infinity();
  values[0x7c01] = 5;
  const std::vector<uint16_t> codes = fp16_exact(values).value();
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(codes[1], 0x7bff);
  EXPECT_EQ(codes[2], kMinusInfinity);
  EXPECT_EQ(codes[3], 0x3c01);
  EXPECT_EQ(codes[0x7c00], 0x7c00);
  EXPECT_EQ(codes[0x7c01], 0x7e00);  // no value for a NaN
  values[0xfbff] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(fp16_exact(values).status().message(), "values[64511] is nan, must be finite");
  values.pop_back();
  EXPECT_EQ(fp16_exact(values).status().message(), "values: 65535 of them, must be 65536");
}

TEST(Fp16Builtin, EveryTableIsSound) {
  for (const std::string_view function : fp16_functions())
    for (const Fp16Model model : kModels)
      for (const bool half : {false, true}) {
        const auto table = builtin_fp16_table(function, model, half);
        ASSERT_TRUE(table.ok()) << table.status().message();
        EXPECT_EQ(table->function, function);
        EXPECT_EQ(table->model, model);
        EXPECT_EQ(table->half_values, half);
        EXPECT_TRUE(check_fp16_table(*table, "t").ok()) << check_fp16_table(*table, "t").message();
      }
}

TEST(Fp16Builtin, CertificatesOfAFew) {
  for (const char* function : {"relu", "square", "reciprocal"}) {
    const std::vector<uint16_t> exact = fp16_exact(function).value();
    for (const Fp16Model model : kModels)
      for (const bool half : {false, true}) {
        const Fp16Table table = builtin_fp16_table(function, model, half).value();
        EXPECT_EQ(certify(table, exact).value(), table.certificate) << function;
      }
  }
}

TEST(Fp16Builtin, RefusesWhatItHasNot) {
  const auto unknown = builtin_fp16_table("sillu");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.status().message().rfind("function is \"sillu\", must be one of: silu, gelu, gelu_tanh, ", 0), 0u)
      << unknown.status().message();
  EXPECT_FALSE(builtin_fp16_table("silu", static_cast<Fp16Model>(3)).ok());
}

TEST(Fp16Fit, CustomFunctions) {
  std::vector<double> values(65536, std::numeric_limits<double>::quiet_NaN());
  for (uint32_t x = 0; x < 65536; ++x)
    if ((x & 0x7fffu) < 0x7c00u) values[x] = std::abs(static_cast<double>(f16_to_f32(static_cast<uint16_t>(x)))) / 2;
  const Fp16Table table = fit_fp16_table(values, {}).value();
  EXPECT_EQ(table.function, "custom");
  EXPECT_EQ(table.certificate.max_ulp, 0);
  values[0x3c00] = std::numeric_limits<double>::infinity();
  const auto refused = fit_fp16_table(values, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "values[15360] is inf, must be finite");
  values.pop_back();
  EXPECT_FALSE(fit_fp16_table(values, {}).ok());
}

TEST(Fp16Fit, ReportsProgress) {
  struct Seen {
    double last = 0;
    int calls = 0;
    bool falls = false;
  };
  for (const Fp16Goal goal : {Fp16Goal::kMaxUlp, Fp16Goal::kMeanRelative}) {
    Seen seen;
    Fp16FitOptions options;
    options.goal = goal;
    options.progress_context = &seen;
    options.progress = [](void* context, double fraction) {
      Seen& s = *static_cast<Seen*>(context);
      s.falls = s.falls || !(fraction >= s.last && fraction <= 1);
      s.last = fraction;
      ++s.calls;
    };
    ASSERT_TRUE(fit_fp16_table("reciprocal", options).ok());
    EXPECT_FALSE(seen.falls);
    EXPECT_EQ(seen.last, 1.0);
    EXPECT_GT(seen.calls, 100);
  }
}

TEST(Fp16Fit, RefusesBadOptions) {
  Fp16FitOptions options;
  EXPECT_FALSE(fit_fp16_table("sillu", options).ok());
  options.steps = {1, 0};
  EXPECT_FALSE(fit_fp16_table("silu", options).ok());
  options.steps.clear();
  EXPECT_FALSE(fit_fp16_table("silu", options).ok());
  EXPECT_FALSE(import_fp16_table("silu", {0, 1}, {}).ok());
  options.steps = {1};
  EXPECT_FALSE(import_fp16_table("silu", {1, 0}, options).ok());
  EXPECT_FALSE(import_fp16_table("exp", {0, 100}, options).ok());  // e^100 is no float16 number
  EXPECT_TRUE(import_fp16_table("exp", {0, 1}, options).ok());
}

}  // namespace
}  // namespace isobit
