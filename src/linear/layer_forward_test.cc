// SPDX-License-Identifier: Apache-2.0
// What calls of linear layers promise besides their numbers: they allocate nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/codes.h"
#include "isobit/linear.h"
#include "testing/allocations.h"

namespace isobit {
namespace {

constexpr int64_t kRows = 100;  // more than one block of every kernel, the last one not full
constexpr int64_t kColumns = 192;
constexpr int64_t kManyRows = 40;  // of x: beyond those that decode weights in registers, enough for tiles

Array random_floats(int64_t rows, int64_t columns) {
  std::mt19937 random(1);
  Array out = Array::zeros(Dtype::kF32, {rows, columns});
  for (int64_t i = 0; i < out.size(); ++i) out.data<float>()[i] = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  return out;
}

/// Calls forward(m, options) for few and many rows, without a pool and with pools.
template <typename Forward>
void expect_no_allocations(const Forward& forward) {
  for (const int threads : {0, 1, 3}) {  // 0: no pool
    std::optional<ThreadPool> pool;
    if (threads > 0) testing::start(pool.emplace(threads));
    for (const int64_t m : {int64_t{1}, int64_t{5}, kManyRows}) {
      Status status;
      EXPECT_EQ(testing::allocations_of([&] { status = forward(m, {.pool = pool ? &*pool : nullptr}); }), 0)
          << m << " rows, threads " << threads;
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST(LinearLayer, AllocatesNothing) {
  const Array weights = random_floats(kRows, kColumns);
  const Array floats = random_floats(kManyRows, kColumns);
  std::vector<std::byte> y(static_cast<size_t>(kManyRows * kRows) * sizeof(float));
  // Groups that AMX takes, a ragged one, and whole rows.
  for (const LowBitOptions& how :
       {LowBitOptions{.bits = 4, .group = 64}, {.bits = 1, .group = 40}, {.bits = 8, .group = kColumns}}) {
    const Result<LowBitMatrix> matrix = quantize_low_bit(weights, how, "W");
    ASSERT_TRUE(matrix.ok()) << matrix.status().message();
    for (const CpuPath path : kAllCpuPaths)
      for (const auto activations :
           {LinearActivations::kFloat, LinearActivations::kInt8, LinearActivations::kInt8Asymmetric}) {
        if (!cpu_can_run(path)) continue;
        const Result<LinearLayer> layer =
            LinearLayer::create(*matrix, {.activations = activations, .path = path}, "fc");
        ASSERT_TRUE(layer.ok()) << layer.status().message();
        Workspace workspace = layer->workspace(kManyRows, 3);
        for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
          SCOPED_TRACE(std::string(to_string(path)) + ", " + std::string(to_string(activations)) + ", bits " +
                       std::to_string(how.bits) + ", " + std::string(to_string(dtype)));
          Array x = Array::zeros(dtype, floats.shape);
          for (int64_t i = 0; i < x.size(); ++i) store_float(x.bytes.data(), dtype, i, floats.data<float>()[i]);
          expect_no_allocations([&](int64_t m, const RunOptions& options) {
            return layer->forward(x.bytes, dtype, y, dtype, m, workspace, options);
          });
        }
      }
  }
}

TEST(StaticLinearLayer, AllocatesNothing) {
  const Result<LowBitMatrix> matrix =
      quantize_low_bit(random_floats(kRows, kColumns), {.bits = 8, .group = kColumns}, "W");
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  const Grid grid{.kind = ScaleKind::kReal, .real_scale = 0.1f};
  const std::vector<std::byte> x(static_cast<size_t>(kManyRows * kColumns), std::byte{3});
  std::vector<std::byte> y(static_cast<size_t>(kManyRows * kRows) * sizeof(int32_t));
  for (const std::optional<Grid>& output : {std::optional(grid), std::optional<Grid>()}) {
    const Result<StaticLinearParameters> parameters =
        derive_static_linear(*matrix, {.input = grid, .output = output}, "fc");
    ASSERT_TRUE(parameters.ok()) << parameters.status().message();
    for (const CpuPath path : kAllCpuPaths) {
      if (!cpu_can_run(path)) continue;
      SCOPED_TRACE(std::string(to_string(path)) + (output ? ", codes" : ", accumulators"));
      const Result<StaticLinearLayer> layer = StaticLinearLayer::create(*parameters, "fc", path);
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      Workspace workspace = layer->workspace(kManyRows, 3);
      expect_no_allocations(
          [&](int64_t m, const RunOptions& options) { return layer->forward_codes(x, y, m, workspace, options); });
    }
  }
}

TEST(LinearForward, WorkspacesHoldFewerRows) {
  Array values = Array::zeros(Dtype::kF32, {80, 64});
  for (int64_t i = 0; i < values.size(); ++i) values.data<float>()[i] = static_cast<float>(i % 7) - 3.0f;
  const LowBitMatrix weights = *quantize_low_bit(values, {.bits = 4, .group = 64}, "W");
  for (const LinearActivations activations : {LinearActivations::kFloat, LinearActivations::kInt8}) {
    const LinearLayer layer = *LinearLayer::create(weights, {.activations = activations}, "fc");
    for (int64_t m = 1; m < 400; ++m)
      EXPECT_GE(layer.workspace(m).size_bytes(), layer.workspace(m - 1).size_bytes()) << m;
  }
}

}  // namespace
}  // namespace isobit
