// SPDX-License-Identifier: Apache-2.0
// Linear layers on every kernel against the vectors of the independent oracle: numerics.md, sections 10 to 12.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/codes.h"
#include "isobit/linear.h"
#include "linear/layer_reference.h"
#include "testing/oracle.h"

namespace isobit {
namespace {

using testing::Json;

std::vector<Json> cases_of(const std::string& op) {
  std::vector<Json> out;
  for (const Json& one : testing::built_oracle_cases("low_bit.json"))
    if (one.at("op") == op) out.push_back(one);
  return out;
}

std::vector<float> floats_of(const Json& list) {
  std::vector<float> out;
  if (list.is_null()) return out;
  for (const Json& bits : list) out.push_back(testing::float_of_bits(bits));
  return out;
}

LinearClamp clamp_of(const Json& act) {
  if (act.is_null()) return LinearClamp::none();
  return {testing::float_of_bits(act.at(0)), testing::float_of_bits(act.at(1))};
}

LowBitMatrix matrix_of(const Json& weights) { return *LowBitMatrix::create(testing::low_bit_of(weights), "W"); }

double double_of_bits(const std::string& hex) {
  return std::bit_cast<double>(static_cast<uint64_t>(std::stoull(hex, nullptr, 16)));
}

/// The kernels of an operation that run here.
std::vector<LinearLayerKernel> kernels_of(const std::string& operation) {
  std::vector<LinearLayerKernel> out;
  for (const LinearLayerKernel& kernel : linear_layer_kernels())
    if (kernel.operation == operation && cpu_can_run(kernel.path)) out.push_back(kernel);
  return out;
}

Status run(const LinearLayer& layer, const Array& x, Array& y, bool unchecked) {
  Workspace workspace = layer.workspace(x.shape[0]);
  return layer.forward(x.bytes, x.dtype, y.bytes, y.dtype, x.shape[0], workspace, {.unchecked = unchecked});
}

TEST(LinearOracle, QuantisedActivations) {
  int64_t groups = 0;
  for (const Json& one : cases_of("on_the_fly")) {
    const LowBitMatrix matrix = matrix_of(one.at("weights"));
    const Array x = testing::float_rows_of(one.at("x"), testing::float_dtype_of(one.at("x_type")));
    const bool asymmetric = one.at("asymmetric");
    const int64_t columns = matrix.columns();
    const int64_t size = matrix.parameters().group;
    std::vector<float> row(static_cast<size_t>(columns));
    std::vector<int8_t> codes(row.size());
    for (int64_t m = 0; m < x.shape[0]; ++m) {
      for (int64_t k = 0; k < columns; ++k)
        row[static_cast<size_t>(k)] = load_float(x.bytes.data(), x.dtype, m * columns + k);
      for (int64_t g = 0; g < matrix.groups(); ++g) {
        const int64_t count = std::min(size, columns - g * size);
        ReferenceGroup group;
        const bool finite = reference_quantize(row.data() + g * size, count, asymmetric, codes.data(), group);
        const Json& expected = one.at("groups").at(static_cast<size_t>(m)).at(static_cast<size_t>(g));
        ASSERT_EQ(finite, !expected.is_null());
        ++groups;
        if (!finite) continue;
        EXPECT_EQ(std::vector<int64_t>(codes.begin(), codes.begin() + count), testing::flatten(expected.at("a")));
        EXPECT_EQ(std::bit_cast<uint32_t>(group.scale),
                  std::bit_cast<uint32_t>(testing::float_of_bits(expected.at("Sa"))));
        EXPECT_EQ(group.offset, testing::float_of_bits(expected.at("Oa")));  // +0 is -0 here
      }
    }
  }
  EXPECT_GT(groups, 0);
}

TEST(LinearOracle, OnTheFly) {
  const std::vector<Json> cases = cases_of("on_the_fly");
  ASSERT_FALSE(cases.empty());
  int refused = 0;
  for (const Json& one : cases) {
    SCOPED_TRACE(one.at("weights").dump());
    const LowBitMatrix matrix = matrix_of(one.at("weights"));
    const std::vector<float> bias = floats_of(one.at("bias"));
    const Array x = testing::float_rows_of(one.at("x"), testing::float_dtype_of(one.at("x_type")));
    const Array expected = testing::float_rows_of(one.at("y"), testing::float_dtype_of(one.at("y_type")));
    int64_t first_bad = -1;
    for (size_t m = 0; m < one.at("groups").size() && first_bad < 0; ++m)
      for (const Json& group : one.at("groups").at(m))
        if (group.is_null()) first_bad = static_cast<int64_t>(m);
    for (const LinearLayerKernel& kernel : kernels_of("linear_int8")) {
      const Result<LinearLayer> layer = LinearLayer::create(
          matrix,
          {.activations = one.at("asymmetric") ? LinearActivations::kInt8Asymmetric : LinearActivations::kInt8,
           .bias = bias,
           .clamp = clamp_of(one.at("act")),
           .path = kernel.path},
          "fc");
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      if (kernel.path != CpuPath::kAmx) {  // which has none for some layers
        EXPECT_EQ(layer->kernel_name(), kernel.name);
      }
      Array y = Array::zeros(expected.dtype, expected.shape);
      ASSERT_TRUE(run(*layer, x, y, true).ok());
      EXPECT_EQ(y, expected) << kernel.name;
      Array untouched = Array::zeros(expected.dtype, expected.shape);
      const Status checked = run(*layer, x, untouched, false);
      EXPECT_EQ(checked.ok(), first_bad < 0);
      if (checked.ok()) continue;
      ++refused;
      EXPECT_EQ(checked.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(checked.message().starts_with("x[" + std::to_string(first_bad) + "] ")) << checked.message();
      EXPECT_EQ(untouched, Array::zeros(expected.dtype, expected.shape));
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(LinearOracle, Float) {
  const std::vector<Json> cases = cases_of("float");
  ASSERT_FALSE(cases.empty());
  for (const Json& one : cases) {
    SCOPED_TRACE(one.at("weights").dump());
    const LowBitMatrix matrix = matrix_of(one.at("weights"));
    const std::vector<float> bias = floats_of(one.at("bias"));
    const Array x = testing::float_rows_of(one.at("x"), testing::float_dtype_of(one.at("x_type")));
    const ReferenceWeights weights = reference_weights(matrix);
    const std::vector<float> values = x.to_float();
    for (const LinearLayerKernel& kernel : kernels_of("linear_float")) {
      const Result<LinearLayer> layer = LinearLayer::create(matrix, {.bias = bias, .path = kernel.path}, "fc");
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      EXPECT_EQ(layer->kernel_name(), kernel.name);
      Array y = Array::zeros(x.dtype, {x.shape[0], matrix.rows()});
      ASSERT_TRUE(run(*layer, x, y, false).ok());
      for (int64_t m = 0; m < x.shape[0]; ++m) {
        ReferenceRowError error;
        for (int64_t n = 0; n < matrix.rows(); ++n) {
          ReferenceSum sum = reference_sum(weights, n, values.data() + m * matrix.columns(),
                                           bias.empty() ? 0.0f : bias[static_cast<size_t>(n)]);
          sum.value = double_of_bits(one.at("y").at(static_cast<size_t>(m)).at(static_cast<size_t>(n)));
          error.add(load_float(y.bytes.data(), y.dtype, m * matrix.rows() + n), sum);
        }
        EXPECT_LT(error.relative(matrix.columns()), reference_limit(x.dtype, matrix.columns())) << kernel.name;
      }
    }
  }
}

TEST(LinearOracle, Static) {
  int refused = 0;
  int kept = 0;
  for (const Json& one : cases_of("static")) {
    SCOPED_TRACE(one.dump());
    LowBitMatrix matrix = matrix_of(one.at("weights"));
    if (one.contains("rows")) {  // the fill of rows of zeros is ours to do
      const LowBitMethod method = *low_bit_method_from_string(one.at("method").get<std::string>());
      matrix = *quantize_low_bit(testing::float_rows_of(one.at("rows"), Dtype::kF32),
                                 {.bits = 8, .group = matrix.columns(), .method = method}, "W");
    }
    const std::vector<float> bias = floats_of(one.at("bias"));
    StaticLinearOptions options{.input = testing::grid_of(one.at("x_grid")),
                                .bias = bias,
                                .clamp = clamp_of(one.at("act")),
                                .rounding = testing::rounding_of(one.at("mode"))};
    if (!one.at("y_grid").is_null()) options.output = testing::grid_of(one.at("y_grid"));
    Result<StaticLinearParameters> p = derive_static_linear(matrix, options, "fc");
    if (one.contains("refused")) {
      ++refused;
      EXPECT_FALSE(p.ok() && StaticLinearLayer::create(*p, "fc").ok());
      continue;
    }
    ++kept;
    ASSERT_TRUE(p.ok()) << p.status().message();
    EXPECT_EQ(p->bias, Array::copy_of(one.at("bias_s32").get<std::vector<int32_t>>().data(), {matrix.rows()}));
    std::vector<RescaleParameters> rescales;
    if (!one.at("rescales").is_null()) rescales = testing::rescales_of(one.at("rescales"));
    EXPECT_EQ(p->rescales, rescales);
    const std::vector<int64_t> codes = testing::flatten(one.at("x"));
    const auto m = static_cast<int64_t>(one.at("x").size());
    Array x = Array::zeros(p->x_dtype(), {m, matrix.columns()});
    for (size_t i = 0; i < codes.size(); ++i) x.bytes[i] = static_cast<std::byte>(codes[i]);
    const std::vector<int64_t> expected = testing::flatten(one.at("y"));
    for (const LinearLayerKernel& kernel : kernels_of("linear_static")) {
      const Result<StaticLinearLayer> layer = StaticLinearLayer::create(*p, "fc", kernel.path);
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      EXPECT_EQ(layer->kernel_name(), kernel.name);
      Array y = Array::zeros(p->y_dtype(), {m, matrix.rows()});
      Workspace workspace = layer->workspace(m);
      ASSERT_TRUE(layer->forward_codes(x.bytes, y.bytes, m, workspace).ok());
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(load_code(y.bytes.data(), y.dtype, static_cast<int64_t>(i)), expected[i]) << kernel.name << " " << i;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(kept, 0);
}

}  // namespace
}  // namespace isobit
