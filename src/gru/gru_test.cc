// SPDX-License-Identifier: Apache-2.0
// The integer GRU against the oracle, on every path that this machine can run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/codes.h"
#include "gru/cpu/layer.h"
#include "gru/rescale.h"
#include "testing/oracle.h"

namespace isobit {
namespace {

using testing::Json;

struct Codes {
  Dtype dtype = Dtype::kS8;
  std::vector<std::byte> bytes;
  Codes(const Grid& grid, const std::vector<int64_t>& values)
      : dtype(grid.dtype()), bytes(values.size() * size_in_bytes(grid.dtype())) {
    for (size_t i = 0; i < values.size(); ++i) store_code(bytes.data(), dtype, static_cast<int64_t>(i), values[i]);
  }
  [[nodiscard]] std::vector<int64_t> values() const {
    std::vector<int64_t> out(bytes.size() / size_in_bytes(dtype));
    for (size_t i = 0; i < out.size(); ++i) out[i] = load_code(bytes.data(), dtype, static_cast<int64_t>(i));
    return out;
  }
};

/// Compares what the reference shows with the oracle's trace[t][n] of one layer direction.
class TraceChecker : public GruCodeObserver {
 public:
  explicit TraceChecker(const Json& trace) : trace_(trace) {}
  void observe(int32_t tensor, int64_t /*layer*/, int64_t sequence, int64_t step, std::span<const int64_t> codes) override {
    const Json& expected = trace_.at(static_cast<size_t>(step)).at(static_cast<size_t>(sequence));
    const std::string name(kGruTensorNames[static_cast<size_t>(tensor)]);
    if (!expected.is_object() || !expected.contains(name)) return;
    EXPECT_EQ(std::vector<int64_t>(codes.begin(), codes.end()), testing::flatten(expected.at(name)))
        << name << " at step " << step << ", sequence " << sequence;
    ++compared;
  }
  int compared = 0;

 private:
  const Json& trace_;
};

/// Runs a case layer by layer (the oracle's layers may differ in H) and compares y and h_last.
void run_case(const Json& c, CpuPath path, int* ran) {
  const Rounding rounding = testing::rounding_of(c.at("mode"));
  const int64_t T = c.at("T");
  const int64_t N = c.at("N");
  const auto directions = c.at("directions").get<size_t>();
  const std::vector<int64_t> lengths = c.at("lengths").is_null() ? std::vector<int64_t>() : testing::flatten(c.at("lengths"));
  std::vector<int64_t> chunks = c.at("chunks").is_null() ? std::vector<int64_t>{T} : testing::flatten(c.at("chunks"));
  std::vector<int64_t> x = testing::flatten(c.at("x"));
  for (size_t l = 0; l < c.at("layers").size(); ++l) {
    std::vector<int64_t> y;
    for (size_t d = 0; d < directions; ++d) {
      const size_t index = l * directions + d;
      Result<GruLayer> created =
          GruLayer::create(testing::layer_of(c.at("layers").at(l).at(d), rounding), "layer " + std::to_string(index));
      ASSERT_TRUE(created.ok()) << created.status().message();
      const GruLayer& layer = *created;
      if (path != CpuPath::kReference && !layer.supports_packed().ok()) return;
      const GruLayerParameters& p = layer.parameters();
      const int64_t H = p.hidden_size;
      const Codes x_codes(p.grids[kX], x);
      std::vector<int64_t> h0(static_cast<size_t>(N * H), p.grids[kH].zero_point);
      if (!c.at("h0").is_null()) h0 = testing::flatten(c.at("h0").at(index));
      Codes h(p.grids[kH], h0);
      const auto width = static_cast<int64_t>(directions) * H;
      if (y.empty()) y.assign(static_cast<size_t>(T * N * width), INT64_MIN);
      Codes y_codes(p.grids[kH], std::vector<int64_t>(static_cast<size_t>(T * N * H), p.grids[kH].zero_point));
      std::vector<uint8_t> mask;
      if (!c.at("masks").is_null())
        for (const int64_t m : testing::flatten(c.at("masks").at(index))) mask.push_back(static_cast<uint8_t>(m));
      int64_t first = 0;
      for (const int64_t steps : chunks) {
        std::vector<std::byte> scratch(static_cast<size_t>(layer.scratch_bytes(N, steps)) + 64);
        LayerRun run;
        run.steps = steps;
        run.end = N;
        run.reverse = d == 1;
        run.x = x_codes.bytes.data() + static_cast<size_t>(first * N * p.input_size) * size_in_bytes(x_codes.dtype);
        run.x_strides = {N * p.input_size, p.input_size};
        run.y = y_codes.bytes.data() + static_cast<size_t>(first * N * H) * size_in_bytes(y_codes.dtype);
        run.y_strides = {N * H, H};
        run.h = h.bytes.data();
        run.lengths = lengths;
        run.mask = mask.empty() ? nullptr : mask.data() + first * N * H;
        run.batch = N;
        run.mask_width = H;
        run.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
        if (path == CpuPath::kReference && !c.at("trace").is_null() && chunks.size() == 1 && c.at("layers").size() == 1) {
          TraceChecker checker(c.at("trace").at(index));
          run.observer = &checker;
          layer.run(path, run);
          EXPECT_GT(checker.compared, 0);
        } else {
          layer.run(path, run);
        }
        first += steps;
      }
      ASSERT_EQ(first, T);
      EXPECT_EQ(h.values(), testing::flatten(c.at("h_last").at(index))) << "h_last of " << index;
      const std::vector<int64_t> own = y_codes.values();
      for (int64_t row = 0; row < T * N; ++row)
        for (int64_t i = 0; i < H; ++i)
          y[static_cast<size_t>(row * width + static_cast<int64_t>(d) * H + i)] = own[static_cast<size_t>(row * H + i)];
    }
    x = y;
  }
  EXPECT_EQ(x, testing::flatten(c.at("y")));
  ++*ran;
}

class GruOracle : public ::testing::TestWithParam<CpuPath> {};

TEST_P(GruOracle, EveryCaseGivesTheSameBytes) {
  if (!cpu_can_run(GetParam())) {
    const char* required = std::getenv("ISOBIT_REQUIRE");
    const std::string name(to_string(GetParam()));
    ASSERT_TRUE(required == nullptr || std::string(required).find(name) == std::string::npos) << name << " is required";
    GTEST_SKIP() << cpu_cannot_run_reason(GetParam());
  }
  const Json cases = testing::oracle_cases("gru.json");
  int ran = 0;
  for (const Json& c : cases) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    run_case(c, GetParam(), &ran);
  }
  // The reference runs all; the packed kernels all but the cases with widths above 16 bits.
  EXPECT_GE(ran, GetParam() == CpuPath::kReference ? static_cast<int>(cases.size()) : static_cast<int>(cases.size()) * 3 / 4);
}

INSTANTIATE_TEST_SUITE_P(Paths, GruOracle, ::testing::ValuesIn(kAllCpuPaths),
                         [](const auto& path) { return std::string(to_string(path.param)); });

TEST(Rescale, AppliesAsTheOracleDoes) {
  int compared = 0;
  for (const Json& c : testing::oracle_cases("rescale.json")) {
    if (c.at("op") == "apply") {
      const RescaleParameters r = testing::rescale_of(c);
      for (const Rounding mode : kAllRoundings) {
        EXPECT_EQ(round_shift(c.at("x").get<int64_t>() * r.multiplier, r.shift, mode),
                  c.at("y").at(static_cast<size_t>(mode)).get<int64_t>())
            << c.dump();
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(RoundShift, EqualsTheOracle) {
  int compared = 0;
  for (const Json& c : testing::oracle_cases("round_shift.json"))
    for (const Rounding mode : kAllRoundings) {
      EXPECT_EQ(round_shift(c.at("x").get<int64_t>(), c.at("n").get<int>(), mode),
                c.at("y").at(static_cast<size_t>(mode)).get<int64_t>())
          << c.dump();
      ++compared;
    }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace isobit
