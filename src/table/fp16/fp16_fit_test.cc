// SPDX-License-Identifier: Apache-2.0
// Whole fits, which take seconds each. fp16_builtin_test.cc looks at what they reach.
#include "table/fp16/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "isobit/fp16_table.h"
#include "table/fp16/exact.h"

namespace isobit {
namespace {

constexpr Fp16Model kModels[] = {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu};

/// The published cut points of SiLU.
const std::vector<float> kPublishedSilu = {
    -20.359375f,         -17.109375f,  -8.3671875f, -1.9755859375f, -0.255615234375f, -0.007244110107421875f,
    0.0072174072265625f, 0.228515625f, 1.58203125f, 10.46875f,      65504.0f};

TEST(Fp16Fit, MakesTheBuiltInTables) {
  for (const char* function : {"silu", "exp", "sqrt"})
    EXPECT_EQ(fit_fp16_table(function, {}).value(), builtin_fp16_table(function).value()) << function;
}

/// Better than the fit for the other goal, and than the function's values at the published cut points.
TEST(Fp16Fit, MeanRelative) {
  for (const char* function : {"silu", "sigmoid", "exp"})
    for (const Fp16Model model : {Fp16Model::kF32, Fp16Model::kNliCpu}) {
      if (model != Fp16Model::kF32 && function != std::string("silu")) continue;
      const Fp16Exact exact = fp16_exact_values(function, 1.0).value();
      Fp16FitOptions options;
      options.model = model;
      options.goal = Fp16Goal::kMeanRelative;
      const Fp16Table table = fit_fp16_table(function, options).value();
      EXPECT_TRUE(check_fp16_table(table, function).ok());
      const double error = fp16_mean_relative(table, exact);
      const double other = fp16_mean_relative(builtin_fp16_table(function, model).value(), exact);
      std::printf("%-8s mean relative error %.7f, for the other goal %.7f\n", function, error, other);
      EXPECT_LE(error, other) << function;
      if (table.reduction != Fp16Reduction::kNone) continue;
      options.goal = Fp16Goal::kMaxUlp;
      EXPECT_LE(error, fp16_mean_relative(import_fp16_table(function, kPublishedSilu, options).value(), exact));
      if (function == std::string("silu")) {
        EXPECT_EQ(table(0), 0);
        EXPECT_LT(error, 0.7 * other);
      }
    }
}

TEST(Fp16Fit, OtherGeometriesAndModels) {
  for (const Fp16Model model : kModels)
    for (const bool half : {false, true})
      for (const Fp16Goal goal : {Fp16Goal::kMaxUlp, Fp16Goal::kMeanRelative}) {
        if (half != (model == Fp16Model::kNliCpu)) continue;
        if (goal == Fp16Goal::kMeanRelative && model == Fp16Model::kNliGpu) continue;
        Fp16FitOptions options;
        options.model = model;
        options.half_values = half;
        options.goal = goal;
        options.steps = {1, 4, 4, 4, 4, 4, 4, 4, 4, 1};
        const Fp16Table table = fit_fp16_table("sigmoid", options).value();
        EXPECT_EQ(table.pieces[0].values.size(), 35u);
        EXPECT_TRUE(check_fp16_table(table, "t").ok());
        EXPECT_TRUE(std::isfinite(table.certificate.max_ulp));
      }
}

}  // namespace
}  // namespace isobit
