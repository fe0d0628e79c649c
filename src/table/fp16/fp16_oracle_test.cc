// SPDX-License-Identifier: Apache-2.0
// FP16 tables and functions against the oracle's digests over all 65536 codes (testdata/fp16.json; oracle/README.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "isobit/fp16_table.h"

namespace isobit {
namespace {

using nlohmann::json;

constexpr Fp16Model kModels[] = {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu};

json cases() {
  std::ifstream file(ISOBIT_TESTDATA "/fp16.json");
  EXPECT_TRUE(file.good());
  return json::parse(file).at("cases");
}

/// FNV-1a 64 over codes as little-endian uint16.
template <typename Code>
std::string digest(const Code& code_of) {
  uint64_t hash = 0xcbf29ce484222325;
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t code = code_of(static_cast<uint16_t>(i));
    for (const unsigned byte : {code & 255U, static_cast<unsigned>(code) >> 8}) hash = (hash ^ byte) * 0x100000001b3;
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

TEST(Fp16Oracle, Conversions) {
  int compared = 0;
  for (const json& c : cases()) {
    if (!c.contains("conversion")) continue;
    const std::string name = c.at("conversion");
    Random random(1);
    const auto code_of = [&](uint16_t code) {
      if (name == "float32_to_float16")
        return f32_to_f16(std::bit_cast<float>(static_cast<uint32_t>(random.next() >> 32)));
      return name == "bfloat16_to_float16" ? f32_to_f16(bf16_to_f32(code)) : f32_to_bf16(f16_to_f32(code));
    };
    // The oracle's only NaN is 0x7E00, or 0x7FC0 in bfloat16; conversions here keep sign and payload.
    const bool to_bf16 = name == "float16_to_bfloat16";
    const auto plain_nan = [&](uint16_t code) {
      const uint16_t result = code_of(code);
      const bool nan = (result & 0x7FFF) > (to_bf16 ? 0x7F80 : 0x7C00);
      return nan ? static_cast<uint16_t>(to_bf16 ? 0x7FC0 : 0x7E00) : result;
    };
    EXPECT_EQ(digest(plain_nan), c.at("digest")) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 3);
}

TEST(Fp16Oracle, CorrectlyRoundedFunctions) {
  const json all = cases();
  std::vector<std::string> probes;
  int compared = 0;
  for (const json& c : all) {
    if (c.contains("x")) probes = c.at("x").get<std::vector<std::string>>();
    if (!c.contains("function")) continue;
    const std::string name = c.at("function");
    double beta = 1.0;
    if (c.contains("beta"))
      beta = std::bit_cast<double>(static_cast<uint64_t>(std::stoull(c.at("beta").get<std::string>(), nullptr, 16)));
    SCOPED_TRACE(name + " beta " + std::to_string(beta));
    const Result<std::vector<uint16_t>> exact = fp16_exact(name, beta);
    ASSERT_TRUE(exact.ok()) << exact.status().message();
    std::string y;
    for (const std::string& probe : probes) {
      char text[6];
      std::snprintf(text, sizeof text, "%04x ", (*exact)[std::stoul(probe, nullptr, 16)]);
      y += text;
    }
    y.pop_back();
    EXPECT_EQ(y, c.at("y"));
    EXPECT_EQ(digest([&](uint16_t code) { return (*exact)[code]; }), c.at("all"));
    ++compared;
  }
  EXPECT_EQ(compared, 27);
}

const std::vector<float> kSiluCuts = {-20.359375f,         -17.109375f,  -8.3671875f, -1.9755859375f, -0.255615234375f,
                                      -0.007244110107421875f, 0.0072174072265625f, 0.228515625f, 1.58203125f, 10.46875f,
                                      65504.0f};

std::vector<int32_t> steps_of(const std::string& name) {
  if (name == "259") return fp16_steps_259();
  if (name == "35") return {1, 4, 4, 4, 4, 4, 4, 4, 4, 1};
  if (name == "16x16") return std::vector<int32_t>(16, 16);
  return {5, 1, 300, 2, 77, 4096};
}

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

/// Cut points and values by the integer formulas of oracle/README.md.
Fp16Pieces synthetic(const json& c, Random& random) {
  Fp16Pieces pieces;
  pieces.steps = steps_of(c.at("steps"));
  const auto n = static_cast<int64_t>(pieces.steps.size());
  if (c.at("cuts") == "silu") {
    pieces.cut_points = kSiluCuts;
  } else if (c.at("cuts") == "codes") {
    for (int64_t i = 0; i <= n; ++i) {
      const int64_t order = static_cast<int64_t>(random.next() % 63487) - 31743;
      pieces.cut_points.push_back(f16_to_f32(static_cast<uint16_t>(order >= 0 ? order : 0x8000 | -order)));
    }
    std::sort(pieces.cut_points.begin(), pieces.cut_points.end());
    pieces.cut_points[static_cast<size_t>(n / 2 + 1)] = pieces.cut_points[static_cast<size_t>(n / 2)];
  } else {
    const auto range = c.at("cuts").get<std::vector<int64_t>>();  // a, b, shift, jitter
    for (int64_t i = 0; i <= n; ++i) {
      int64_t cut = i == 0 ? range[0] : range[1];
      if (i > 0 && i < n) {
        const auto jitter = static_cast<int64_t>(random.next() % static_cast<uint64_t>(2 * range[3] + 1)) - range[3];
        cut = range[0] + floor_divide((range[1] - range[0]) * (64 * i + jitter), 64 * n);
      }
      pieces.cut_points.push_back(std::ldexp(static_cast<float>(cut), static_cast<int>(-range[2])));
    }
  }
  int64_t count = 1;
  for (const int32_t steps : pieces.steps) count += steps;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t u = random.next();
    float v = -0.0f;
    if ((u >> 5 & 31) != 0) {
      v = std::ldexp(static_cast<float>(static_cast<int64_t>(u >> 40) - (1 << 23)), static_cast<int>(-7 - (u & 31)));
      if (c.at("half").get<bool>()) v = std::min(std::max(f16_to_f32(f32_to_f16(v)), -65504.0f), 65504.0f);
    }
    pieces.values.push_back(v);
  }
  return pieces;
}

TEST(Fp16Oracle, TablesOverAllCodes) {
  const std::string names[] = {"", "sin", "cos", "exp", "log", "reciprocal", "rsqrt", "sqrt"};
  int compared = 0;
  int index = 0;
  for (const json& c : cases()) {
    ++index;
    if (!c.contains("steps")) continue;
    for (size_t m = 0; m < c.at("all").size(); ++m) {
      SCOPED_TRACE("case " + std::to_string(index) + " " + c.dump().substr(0, 90) + " model " +
                   std::string(to_string(kModels[m])));
      Fp16Table table;
      if (c.contains("sampled")) {
        Fp16FitOptions options;
        options.model = kModels[m];
        options.half_values = c.at("half");
        Result<Fp16Table> imported = import_fp16_table("silu", kSiluCuts, options);
        ASSERT_TRUE(imported.ok()) << imported.status().message();
        table = *std::move(imported);
      } else {
        Random random(c.at("seed").get<uint64_t>());
        table.function = "custom";
        table.model = kModels[m];
        table.half_values = c.at("half");
        if (c.contains("reduction")) {
          const std::string reduction = c.at("reduction");
          for (int i = 1; i < 8; ++i)
            if (names[i] == reduction) table.reduction = static_cast<Fp16Reduction>(i);
        }
        const bool two = table.reduction == Fp16Reduction::kSin || table.reduction == Fp16Reduction::kCos;
        for (int i = 0; i < (two ? 2 : 1); ++i) {
          table.pieces.push_back(synthetic(c, random));
          set_scales(table.pieces.back(), table.model);
        }
      }
      EXPECT_EQ(digest(table), c.at("all")[m]);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 56);
}

}  // namespace
}  // namespace isobit
