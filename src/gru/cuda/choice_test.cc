// SPDX-License-Identifier: Apache-2.0
// Which kernel the estimates choose, beside times that were measured; how a batch is spread. No device is needed.
#include "gru/cuda/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gru/cuda/plan.h"

namespace isobit::cuda {
namespace {

constexpr int32_t kBlocks = 132;  // of an H100, one a processor

int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

/// What an H100 has room for.
DeviceRoom room_of(const RunSize& run) {
  const auto clusters = [](int64_t blocks) {
    constexpr int64_t kClusters[] = {132, 66, 39, 30, 22, 17, 15, 15, 9};
    return blocks <= 9 ? kClusters[blocks - 1] : 7;
  };
  const int64_t hidden = run.hidden;
  DeviceRoom room;
  room.processors = room.products_blocks = kBlocks;
  room.cluster_teams = clusters(hidden <= 128 ? 1 : hidden <= 256 ? 2 : hidden <= 512 ? pieces(hidden, 128) : 16);
  room.cluster_many_teams = clusters(pieces(hidden, 64));
  room.cluster_many_tiles = run.h_planes == 1 || hidden <= 512 ? 7 : hidden <= 768 ? 5 : 2;
  room.portable_teams = kBlocks / pieces(hidden, hidden <= 128 ? 128 : hidden <= 256 ? 64 : hidden <= 512 ? 32 : 16);
  return room;
}

struct MeasuredCase {
  RunSize run{};
  std::map<EstimatedKernel, double> microseconds;

  [[nodiscard]] double estimate(EstimatedKernel kernel) const {
    return estimated_microseconds(kernel, run, room_of(run));
  }
  /// How much longer than the fastest of these kernels the one takes that has the least estimate; the file has no times
  /// of kernels that take over four times as long as the fastest.
  [[nodiscard]] double slowdown(const std::vector<EstimatedKernel>& kernels) const {
    const auto time = [&](EstimatedKernel kernel) {
      const auto found = microseconds.find(kernel);
      return found == microseconds.end() ? 1e9 : found->second;
    };
    const auto chosen =
        *std::min_element(kernels.begin(), kernels.end(), [&](auto a, auto b) { return estimate(a) < estimate(b); });
    const auto fastest =
        *std::min_element(kernels.begin(), kernels.end(), [&](auto a, auto b) { return time(a) < time(b); });
    return time(chosen) / time(fastest);
  }
  /// On an H100.
  [[nodiscard]] std::vector<EstimatedKernel> kernels() const {
    std::vector<EstimatedKernel> runs = {EstimatedKernel::kStep};
    runs.push_back(run.hidden <= 1024 ? EstimatedKernel::kCluster : EstimatedKernel::kGrid);
    if (run.hidden > 256) runs.push_back(EstimatedKernel::kProducts);
    if (run.hidden > 256 && run.hidden <= 1024) runs.push_back(EstimatedKernel::kClusterMany);
    return runs;
  }
  /// Among the cases that the benchmarks list, which have C = H: scripts/bench.sh --cuda gru, and bench/shapes/gru.txt.
  [[nodiscard]] bool is_listed() const {
    if (run.inputs != run.hidden) return false;
    const auto has = [&](std::initializer_list<int64_t> batches) {
      return std::find(batches.begin(), batches.end(), run.batch) != batches.end();
    };
    if (run.hidden >= 64 && (run.steps == 1 || run.steps == 256) && has({1, 4, 16, 64, 256})) return true;
    return run.steps == 256 && run.h_planes == 1 && run.hidden <= 1024 && has({1, 8});
  }
};

/// Of bench/results/h100/gru_kernels.csv: commit, device, H, C, batch, steps, width of h, copies, kernel, microseconds.
std::vector<MeasuredCase> measured_cases() {
  const std::map<std::string, EstimatedKernel> kernels = {
      {"step", EstimatedKernel::kStep},       {"products", EstimatedKernel::kProducts},
      {"cluster", EstimatedKernel::kCluster}, {"cluster_many", EstimatedKernel::kClusterMany},
      {"grid", EstimatedKernel::kGrid},       {"portable", EstimatedKernel::kPortable}};
  std::ifstream file(std::filesystem::path(ISOBIT_TESTDATA).parent_path() / "bench/results/h100/gru_kernels.csv");
  std::map<std::vector<int64_t>, MeasuredCase> cases;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::stringstream fields(line);
    std::vector<std::string> field(10);
    for (std::string& one : field) std::getline(fields, one, ',');
    std::vector<int64_t> size;
    for (int i = 2; i < 8; ++i) size.push_back(std::stoll(field[static_cast<size_t>(i)]));
    MeasuredCase& one = cases[size];
    one.run = {size[1], size[0], size[2], size[3], 1, static_cast<int32_t>(size[4] / 8), size[5] == 1};
    one.microseconds[kernels.at(field[8])] = std::stod(field[9]);
  }
  std::vector<MeasuredCase> all;
  for (auto& [size, one] : cases) all.push_back(std::move(one));
  return all;
}

class CudaChoiceTimes : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(ISOBIT_TESTDATA)) GTEST_SKIP() << "the sources, which have the times, are not here";
    cases_ = measured_cases();
    ASSERT_GT(cases_.size(), 5000u);
  }

  /// The share of cases whose slowdown is at most `limit`; prints what is.
  static double share(const char* what, const std::vector<double>& slowdowns, double limit) {
    const auto within = std::count_if(slowdowns.begin(), slowdowns.end(), [&](double s) { return s <= limit; });
    std::printf("%s: %td of %zu within %.2f, at most %.2f\n", what, within, slowdowns.size(), limit,
                *std::max_element(slowdowns.begin(), slowdowns.end()));
    return static_cast<double>(within) / static_cast<double>(slowdowns.size());
  }

  std::vector<MeasuredCase> cases_;
};

TEST_F(CudaChoiceTimes, TheChosenKernelIsAmongTheFastest) {
  std::vector<double> listed, others;
  for (const MeasuredCase& one : cases_) (one.is_listed() ? listed : others).push_back(one.slowdown(one.kernels()));
  ASSERT_GT(listed.size(), 300u);
  EXPECT_EQ(share("listed", listed, 1.10), 1.0);
  EXPECT_GE(share("others", others, 1.10), 0.98);
  EXPECT_GE(share("others", others, 1.25), 0.99);
}

/// As on devices without clusters, which have these two.
TEST_F(CudaChoiceTimes, PortableTakesItsRuns) {
  std::vector<double> slowdowns;
  for (const MeasuredCase& one : cases_)
    if (one.microseconds.count(EstimatedKernel::kPortable) > 0 && one.microseconds.count(EstimatedKernel::kStep) > 0)
      slowdowns.push_back(one.slowdown({EstimatedKernel::kPortable, EstimatedKernel::kStep}));
  ASSERT_GT(slowdowns.size(), 3000u);
  EXPECT_GE(share("portable or step", slowdowns, 1.25), 0.99);
}

/// The terms of choice.cu and of scripts/fit_cost.py are the same: other ones would give other times.
TEST_F(CudaChoiceTimes, EstimatesAreTheTimes) {
  std::map<EstimatedKernel, std::vector<double>> ratios;
  for (const MeasuredCase& one : cases_)
    for (const auto& [kernel, microseconds] : one.microseconds) {
      const double ratio = one.estimate(kernel) / microseconds;
      ratios[kernel].push_back(std::max(ratio, 1 / ratio));
    }
  ASSERT_EQ(ratios.size(), 6u);
  for (const auto& [kernel, of_kernel] : ratios)
    EXPECT_GE(share("estimates", of_kernel, 1.25), 0.9) << "kernel " << static_cast<int>(kernel);
}

TEST(CudaChoice, WavesOfTeamsAreAlike) {
  const auto expect = [](int64_t batch, int64_t waves, int64_t tiles) {
    const BatchSpread spread = batch_spread(640, 7, 7, kBlocks, batch);  // as on an H100
    EXPECT_EQ(spread.waves, waves) << batch << " sequences";
    EXPECT_EQ(spread.tiles, tiles) << batch << " sequences";
  };
  expect(392, 1, 7);
  expect(393, 2, 4);  // not seven, and seven again for the last sequence
  expect(448, 2, 4);
  expect(784, 2, 7);
  expect(785, 3, 5);
  expect(113, 1, 3);
}

TEST(CudaChoice, ProductsTakeFewRounds) {
  const auto rounds = [](int32_t hidden, int64_t batch) {
    return batch_spread(hidden, 7, 7, kBlocks, batch).product_rounds;
  };
  EXPECT_EQ(rounds(528, 1024), 2) << "not four of 48 columns";
  EXPECT_EQ(rounds(768, 512), 1);
  EXPECT_EQ(rounds(768, 513), 1);
  EXPECT_EQ(rounds(768, 641), 2);
}

}  // namespace
}  // namespace isobit::cuda
