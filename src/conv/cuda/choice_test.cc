// SPDX-License-Identifier: Apache-2.0
// Which kernel the estimates choose, beside times that were measured. No device is needed.
#include "conv/cuda/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "isobit/conv.h"

namespace isobit::cuda {
namespace {

struct MeasuredRun {
  ConvWork work{};
  std::map<ConvKernel, double> microseconds;
};

/// Of bench/results/h100/conv_kernels.csv: commit, device, images, H, W, C, O, R, stride, dilation, groups, kernel,
/// microseconds, and the terms, which must be those of conv_terms().
void read_runs(std::vector<MeasuredRun>& runs) {
  constexpr int64_t kProcessors = 132;  // of an H100
  constexpr size_t kSizes = 9, kFirstSize = 2, kKernel = 11, kTerms = 13;
  std::ifstream file(std::filesystem::path(ISOBIT_TESTDATA).parent_path() / "bench/results/h100/conv_kernels.csv");
  std::map<std::vector<int64_t>, MeasuredRun> found;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::stringstream stream(line);
    std::vector<std::string> field(kTerms + kConvTerms);
    for (std::string& one : field) std::getline(stream, one, ',');
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < kSizes; ++i) sizes.push_back(std::stoll(field[kFirstSize + i]));
    const ConvAxis axis{.kernel = sizes[5],
                        .stride = sizes[6],
                        .dilation = sizes[7],
                        .pad_before = sizes[7] * (sizes[5] / 2),
                        .pad_after = sizes[7] * (sizes[5] / 2)};
    const ConvShape shape{.channels = sizes[3], .outputs = sizes[4], .groups = sizes[8], .rows = axis, .columns = axis};
    const Result<ImageSize> size = conv_output_size(shape, {sizes[1], sizes[2]}, "measured");
    ASSERT_TRUE(size.ok()) << line;
    MeasuredRun& run = found[sizes];
    run.work = ConvWork::of(shape, sizes[0] * size->rows * size->columns, 1, kProcessors);
    const auto* const name = std::find(std::begin(kConvKernelNames), std::end(kConvKernelNames), field[kKernel]);
    ASSERT_NE(name, std::end(kConvKernelNames)) << line;
    const auto kernel = static_cast<ConvKernel>(name - std::begin(kConvKernelNames));
    run.microseconds[kernel] = std::stod(field[kKernel + 1]);
    const auto terms = conv_terms(kernel, run.work);
    for (size_t i = 0; i < terms.size(); ++i)
      ASSERT_NEAR(std::stod(field[kTerms + i]), terms[i], 1e-5 * terms[i]) << line << ", term " << i;
  }
  for (auto& [sizes, run] : found) runs.push_back(run);
}

TEST(CudaConvChoice, TheChosenKernelIsAmongTheFastest) {
  if (!std::filesystem::exists(ISOBIT_TESTDATA)) GTEST_SKIP() << "the sources, which have the times, are not here";
  std::vector<MeasuredRun> runs;
  ASSERT_NO_FATAL_FAILURE(read_runs(runs));
  ASSERT_GT(runs.size(), 80u);
  std::vector<double> slowdowns;
  for (const MeasuredRun& run : runs) {
    const auto less = [&](const auto& a, const auto& b) {
      return estimated_microseconds(a.first, run.work) < estimated_microseconds(b.first, run.work);
    };
    const auto by_time = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto chosen = std::min_element(run.microseconds.begin(), run.microseconds.end(), less);
    const auto fastest = std::min_element(run.microseconds.begin(), run.microseconds.end(), by_time);
    slowdowns.push_back(chosen->second / fastest->second);
  }
  std::sort(slowdowns.begin(), slowdowns.end());
  const auto within = [&](double limit) {
    const auto count = std::upper_bound(slowdowns.begin(), slowdowns.end(), limit) - slowdowns.begin();
    return static_cast<double>(count) / static_cast<double>(slowdowns.size());
  };
  std::printf("%zu runs: %.3f within 1.10 of the fastest, at most %.2f\n", slowdowns.size(), within(1.10),
              slowdowns.back());
  EXPECT_GE(within(1.10), 0.98);
  EXPECT_LE(slowdowns.back(), 1.25);
}

TEST(CudaConvChoice, MoreWorkTakesLonger) {
  const ConvWork work{.rows = 4000, .groups = 2, .outputs = 64, .depth = 576, .copied = false, .processors = 132};
  for (int i = 0; i < kConvKernels; ++i) {
    const auto kernel = static_cast<ConvKernel>(i);
    ConvWork more = work;
    more.rows *= 16;
    EXPECT_GT(estimated_microseconds(kernel, more), estimated_microseconds(kernel, work)) << to_string(kernel);
    more = work;
    more.depth *= 16;
    EXPECT_GT(estimated_microseconds(kernel, more), estimated_microseconds(kernel, work)) << to_string(kernel);
  }
}

}  // namespace
}  // namespace isobit::cuda
