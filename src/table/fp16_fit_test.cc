// SPDX-License-Identifier: Apache-2.0
// Whole fits, which take seconds each: every function that must be within 1 ULP on every finite float16 input is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "core/half.h"
#include "isobit/fp16_table.h"

namespace isobit {
namespace {

constexpr Fp16Model kModels[] = {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu};

float at(const Fp16Table& table, float x) { return f16_to_f32(table(f32_to_f16(x))); }

/// Monotone where the exact results are, on each side of `turn`.
void expect_monotone(const Fp16Table& table, float from, float to, int way) {
  float before = 0;
  bool first = true;
  for (int32_t key = -0x7bff; key <= 0x7bff; ++key) {
    const uint16_t code = static_cast<uint16_t>(key < 0 ? 0x8000 | -key : key);
    const float x = f16_to_f32(code);
    if (x < from || x > to) continue;
    const float y = f16_to_f32(table(code));
    if (!first) {
      ASSERT_GE(static_cast<float>(way) * (y - before), 0) << table.function << " at " << x;
    }
    before = y;
    first = false;
  }
}

TEST(Fp16Fit, WithinOneUlp) {
  for (const char* function : {"silu", "gelu", "sigmoid", "tanh", "exp", "mish", "softplus", "hardswish", "elu", "sin",
                               "cos", "log", "reciprocal", "rsqrt", "sqrt", "erf"}) {
    const Fp16Table table = fit_fp16_table(function, {}).value();
    const Fp16Certificate& c = table.certificate;
    std::printf("%-10s max %g mean %.5f exact %.4f\n", function, c.max_ulp, c.mean_ulp, c.share_exact);
    EXPECT_LE(c.max_ulp, 1.0) << function;
    EXPECT_EQ(c.share_within_ulp, 1.0);
    EXPECT_TRUE(check_fp16_table(table, function).ok());
    EXPECT_LE(table.pieces[0].values.size(), 259u);
    if (table.reduction != Fp16Reduction::kNone) continue;
    EXPECT_EQ(table.pieces[0].values.size(), 259u);
    const std::vector<uint16_t> exact = fp16_exact(function).value();
    EXPECT_EQ(at(table, 0), f16_to_f32(exact[0])) << function;
    const bool turns = table.function == "silu" || table.function == "gelu" || table.function == "mish" ||
                       table.function == "hardswish";
    if (table.function == "silu") expect_monotone(table, -65504, -1.35f, -1);
    expect_monotone(table, table.function == "silu" ? -1.2f : turns ? -0.7f : -65504.0f, 65504, 1);
  }
}

TEST(Fp16Fit, IsDeterministic) { EXPECT_EQ(fit_fp16_table("elu", {}).value(), fit_fp16_table("elu", {}).value()); }

TEST(Fp16Fit, OtherGeometriesAndModels) {
  for (const Fp16Model model : kModels)
    for (const bool half : {false, true}) {
      Fp16FitOptions options;
      options.model = model;
      options.half_values = half;
      options.steps = {1, 4, 4, 4, 4, 4, 4, 4, 4, 1};
      const Fp16Table table = fit_fp16_table("sigmoid", options).value();
      EXPECT_EQ(table.pieces[0].values.size(), 35u);
      EXPECT_TRUE(check_fp16_table(table, "t").ok());
      EXPECT_TRUE(std::isfinite(table.certificate.max_ulp));
    }
}

}  // namespace
}  // namespace isobit
