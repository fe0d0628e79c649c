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
  for (const auto& [base, mask] : {std::pair(0xc800U, 0x1ffU), std::pair(0xcd50U, 7U)}) {
    Codes row = {0};
    for (int j = 0; j < 999; ++j) row.push_back(static_cast<uint16_t>(base | (random.next() & mask)));
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

  /// `values`: "f32", "f16" or "steep".
  [[nodiscard]] std::optional<Fp16Softmax> make(Fp16Model model, const std::string& values) const {
    std::vector<Fp16Table> tables;
    Random random(78);
    for (const char* name : {"exp", "reciprocal"}) {
      std::vector<float> cuts;
      for (const int32_t cut : cases_.front().at(name).get<std::vector<int32_t>>())
        cuts.push_back(std::ldexp(static_cast<float>(cut), -12));
      Fp16Table table;
      if (values == "steep") {
        table.function = name;
        table.model = model;
        table.pieces.push_back({{4096}, {cuts.front(), cuts.back()}, {}, {}});
        for (int i = 0; i <= 4096; ++i)
          table.pieces[0].values.push_back(0.5f + std::ldexp(static_cast<float>(random.next() >> 41), -23));
        set_scales(table.pieces[0], model);
      } else {
        Fp16FitOptions options;
        options.model = model;
        options.half_values = values == "f16";
        Result<Fp16Table> imported = import_fp16_table(name, cuts, options);
        EXPECT_TRUE(imported.ok()) << imported.status().message();
        if (!imported.ok()) return std::nullopt;
        table = *std::move(imported);
      }
      table.reduction = tables.empty() ? Fp16Reduction::kExp : Fp16Reduction::kReciprocal;
      tables.push_back(std::move(table));
    }
    Result<Fp16Softmax> softmax = Fp16Softmax::create(tables[0], tables[1]);
    EXPECT_TRUE(softmax.ok()) << softmax.status().message();
    return softmax.ok() ? std::optional(*softmax) : std::nullopt;
  }

  static Codes run(const Fp16Softmax& softmax, const Codes& x, std::string_view kernel) {
    Codes y(x.size(), 0x1234);
    RunOptions options;
    options.kernel = kernel;
    const Status status =
        softmax.forward(std::as_bytes(std::span(x)), Dtype::kF16, std::as_writable_bytes(std::span(y)), Dtype::kF16,
                        static_cast<int64_t>(x.size()), options);
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }

  std::vector<json> cases_;
};

TEST_F(Fp16SoftmaxOracle, EveryKernel) {
  const std::vector<Codes> rows = synthetic_rows();
  int digests = 0, compared = 0;
  for (size_t kind = 0; kind < 9; ++kind) {
    const auto model = static_cast<Fp16Model>(kind % 3);
    const std::string values = kind < 3 ? "f32" : (kind < 6 ? "f16" : "steep");
    const std::optional<Fp16Softmax> softmax = make(model, values);
    ASSERT_TRUE(softmax.has_value());
    for (const Fp16Kernel& kernel : fp16_softmax_kernels()) {
      if (!cpu_can_run(kernel.path)) continue;
      SCOPED_TRACE(std::string(to_string(model)) + ", " + values + ", " + std::string(kernel.name));
      const int before = digests;
      for (const json& c : cases_) {
        if (c.at("softmax") == "row" && kind < 6) {
          EXPECT_EQ(run(*softmax, parse(c.at("row")), kernel.name), parse(c.at("y")[kind])) << c.at("row");
          ++compared;
        } else if (c.at("softmax") == "digest" && c.at("model") == to_string(model) && c.at("values") == values) {
          Codes all;
          for (const Codes& row : rows) {
            const Codes y = run(*softmax, row, kernel.name);
            all.insert(all.end(), y.begin(), y.end());
          }
          EXPECT_EQ(digest(all), c.at("digest"));
          ++digests;
        }
      }
      EXPECT_EQ(digests, before + 1);
    }
  }
  EXPECT_GE(digests, 9);
  EXPECT_EQ(compared * 3, 9 * 2 * digests);
}

}  // namespace
}  // namespace isobit
