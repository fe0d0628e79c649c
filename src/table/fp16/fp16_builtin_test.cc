// SPDX-License-Identifier: Apache-2.0
// All built-in FP16 tables on all inputs.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "core/half.h"
#include "isobit/fp16_table.h"

namespace isobit {
namespace {

constexpr Fp16Model kModels[] = {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu};

class Builtin : public testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(Fp16, Builtin, testing::ValuesIn(fp16_functions()),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(Builtin, HasItsCertificate) {
  const std::string_view function = GetParam();
  const std::vector<uint16_t> exact = fp16_exact(function).value();
  for (const Fp16Model model : kModels)
    for (const bool half : {false, true}) {
      const Fp16Table table = builtin_fp16_table(function, model, half).value();
      const Fp16Certificate& c = table.certificate;
      std::printf("%s %s %s max_ulp %g mean_ulp %.5f share_exact %.4f\n", table.function.c_str(),
                  std::string(to_string(model)).c_str(), half ? "float16" : "float32", c.max_ulp, c.mean_ulp,
                  c.share_exact);
      const Status kept = check_fp16_certificate(table, exact, promised_ulp(function, model, half));
      EXPECT_TRUE(kept.ok()) << kept.message();
      EXPECT_EQ(table(0), exact[0]);  // f(0) is exact in every table
      for (const uint16_t nan : {uint16_t{0x7c01}, uint16_t{0xffff}}) EXPECT_EQ(table(nan), 0x7e00);
    }
}

/// Where the exact results rise or fall over the whole of [from, to], so do those of the table.
TEST_P(Builtin, IsMonotoneWhereTheFunctionIs) {
  struct Stretch {
    const char* function;
    float from, to;
    int way;
  };
  constexpr float kEnd = 65504;
  const Stretch stretches[] = {{"silu", -kEnd, -1.5f, -1},
                               {"silu", -1.1f, kEnd, 1},
                               {"gelu", -kEnd, -0.9f, -1},
                               {"gelu", -0.6f, kEnd, 1},
                               {"mish", -1.0f, kEnd, 1},
                               {"hardswish", -1.3f, kEnd, 1},
                               {"sigmoid", -kEnd, kEnd, 1},
                               {"tanh", -kEnd, kEnd, 1},
                               {"softplus", -kEnd, kEnd, 1},
                               {"elu", -kEnd, kEnd, 1},
                               {"selu", -kEnd, kEnd, 1},
                               {"hardsigmoid", -kEnd, kEnd, 1},
                               {"relu", -kEnd, kEnd, 1},
                               {"leaky_relu", -kEnd, kEnd, 1},
                               {"relu6", -kEnd, kEnd, 1},
                               {"erf", -kEnd, kEnd, 1},
                               {"square", -kEnd, 0, -1},
                               {"square", 0, kEnd, 1},
                               {"inverse_sigmoid", 0, 1, 1},
                               {"exp", -kEnd, kEnd, 1},
                               {"log", 0, kEnd, 1},
                               {"sqrt", 0, kEnd, 1},
                               {"rsqrt", 0x1p-24f, kEnd, -1},
                               {"reciprocal", 0x1p-24f, kEnd, -1},
                               {"reciprocal", -kEnd, -0x1p-24f, -1}};
  for (const Stretch& stretch : stretches) {
    if (GetParam() != stretch.function) continue;
    for (const Fp16Model model : kModels)
      for (const bool half : {false, true}) {
        const Fp16Table table = builtin_fp16_table(stretch.function, model, half).value();
        float before = 0;
        bool first = true;
        for (int32_t key = -0x7bff; key <= 0x7bff; ++key) {
          const uint16_t code = static_cast<uint16_t>(key < 0 ? 0x8000 | -key : key);
          const float x = f16_to_f32(code);
          if (x < stretch.from || x > stretch.to) continue;
          const float y = f16_to_f32(table(code));
          if (!first) {
            ASSERT_TRUE(stretch.way > 0 ? y >= before : y <= before)
                << stretch.function << " " << to_string(model) << (half ? " float16" : " float32") << " at " << x;
          }
          before = y;
          first = false;
        }
      }
  }
}

TEST(Fp16Builtin, WithinOneUlp) {
  for (const char* function : {"silu", "gelu", "sigmoid", "tanh", "exp", "mish", "softplus", "hardswish", "elu", "sin",
                               "cos", "log", "reciprocal", "rsqrt", "sqrt", "erf"}) {
    const Fp16Table table = builtin_fp16_table(function).value();
    EXPECT_LE(table.certificate.max_ulp, 1.0) << function;
    EXPECT_EQ(table.certificate.share_within_ulp, 1.0) << function;
  }
}

}  // namespace
}  // namespace isobit
