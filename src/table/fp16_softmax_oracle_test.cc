// SPDX-License-Identifier: Apache-2.0
// Softmax against the oracle (testdata/fp16.json; oracle/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "isobit/fp16_function.h"

namespace isobit {
namespace {

using nlohmann::json;
using Codes = std::vector<uint16_t>;

Codes parse(const std::string& text) {
  Codes codes;
  std::istringstream words(text);
  for (std::string word; words >> word;) codes.push_back(static_cast<uint16_t>(std::stoul(word, nullptr, 16)));
  return codes;
}

std::string digest(const Codes& codes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint16_t code : codes)
    for (const unsigned byte : {code & 255U, static_cast<unsigned>(code) >> 8}) hash = (hash ^ byte) * 0x100000001b3;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

/// The rows of the digests, by the formula of oracle/README.md.
std::vector<Codes> synthetic_rows() {
  std::vector<Codes> rows;
  Random random(77);
  for (uint32_t i = 1; i <= 41; ++i) {
    const uint32_t n = i <= 40 ? i : 1000;
    Codes row;
    for (uint32_t j = 0; j < n; ++j) {
      const uint64_t u = random.next();
      row.push_back(static_cast<uint16_t>((u & 0x83ff) | (8 + n % 13 + (u >> 32) % 8) << 10));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

class Fp16SoftmaxOracle : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(ISOBIT_TESTDATA "/fp16.json");
    ASSERT_TRUE(file.good());
    const json all = json::parse(file);
    for (const json& c : all.at("cases"))
      if (c.contains("softmax")) cases_.push_back(c);
    ASSERT_EQ(cases_.front().at("softmax"), "tables");
  }

  [[nodiscard]] std::optional<Fp16Softmax> make(Fp16Model model, bool half) const {
    std::vector<Fp16Table> tables;
    for (const char* name : {"exp", "reciprocal"}) {
      std::vector<float> cuts;
      for (const int32_t cut : cases_.front().at(name).get<std::vector<int32_t>>())
        cuts.push_back(std::ldexp(static_cast<float>(cut), -12));
      Fp16FitOptions options;
      options.model = model;
      options.half_values = half;
      Result<Fp16Table> table = import_fp16_table(name, cuts, options);
      EXPECT_TRUE(table.ok()) << table.status().message();
      if (!table.ok()) return std::nullopt;
      tables.push_back(*std::move(table));
      tables.back().reduction = tables.size() == 1 ? Fp16Reduction::kExp : Fp16Reduction::kReciprocal;
    }
    Result<Fp16Softmax> softmax = Fp16Softmax::create(tables[0], tables[1]);
    EXPECT_TRUE(softmax.ok()) << softmax.status().message();
    return softmax.ok() ? std::optional(*softmax) : std::nullopt;
  }

  static Codes run(const Fp16Softmax& softmax, const Codes& x, std::string_view kernel) {
    Codes y(x.size(), 0x1234);
    Fp16RunOptions options;
    options.kernel = kernel;
    const Status status = softmax.run(std::as_bytes(std::span(x)), Dtype::kF16, std::as_writable_bytes(std::span(y)),
                                      Dtype::kF16, static_cast<int64_t>(x.size()), options);
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }

  std::vector<json> cases_;
};

TEST_F(Fp16SoftmaxOracle, EveryKernel) {
  const std::vector<Codes> rows = synthetic_rows();
  int digests = 0, compared = 0;
  for (size_t kind = 0; kind < 6; ++kind) {
    const auto model = static_cast<Fp16Model>(kind % 3);
    const bool half = kind >= 3;
    const std::optional<Fp16Softmax> softmax = make(model, half);
    ASSERT_TRUE(softmax.has_value());
    for (const Fp16Kernel& kernel : fp16_softmax_kernels()) {
      if (!cpu_can_run(kernel.path)) continue;
      SCOPED_TRACE(std::string(to_string(model)) + (half ? ", float16 values, " : ", ") + std::string(kernel.name));
      for (const json& c : cases_) {
        if (c.at("softmax") == "row") {
          EXPECT_EQ(run(*softmax, parse(c.at("row")), kernel.name), parse(c.at("y")[kind])) << c.at("row");
          ++compared;
        } else if (c.at("softmax") == "digest" && c.at("model") == to_string(model) && c.at("half") == half) {
          Codes all;
          for (const Codes& row : rows) {
            const Codes y = run(*softmax, row, kernel.name);
            all.insert(all.end(), y.begin(), y.end());
          }
          EXPECT_EQ(digest(all), c.at("digest"));
          ++digests;
        }
      }
    }
  }
  EXPECT_GE(digests, 6);
  EXPECT_EQ(compared, 9 * digests);
}

}  // namespace
}  // namespace isobit
