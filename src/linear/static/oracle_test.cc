// SPDX-License-Identifier: Apache-2.0
// Layers of static codes on every kernel, and their calibration, against the vectors of the independent oracle:
// numerics.md, section 12. One that follows a GRU goes through a file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/codes.h"
#include "io/test_files.h"
#include "isobit/gru.h"
#include "isobit/linear.h"
#include "testing/oracle.h"

namespace isobit {
namespace {

using testing::Json;

std::vector<Json> cases_of(const std::string& op) {
  std::vector<Json> out;
  for (const Json& one : testing::oracle_cases("static_linear.json"))
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

std::optional<Grid> output_of(const Json& one) {
  if (one.at("y_grid").is_null()) return std::nullopt;
  return testing::grid_of(one.at("y_grid"));
}

/// Weights as section 12 makes them of floats, where the case has these, else as they are.
LowBitMatrix matrix_of(const Json& one) {
  if (!one.contains("rows")) return *LowBitMatrix::create(testing::low_bit_of(one.at("weights")), "W");
  const Array rows = testing::float_rows_of(one.at("rows"), Dtype::kF32);
  return *quantize_low_bit(rows,
                           {.bits = one.at("weights").at("bits"),
                            .group = rows.shape[1],
                            .method = *low_bit_method_from_string(one.at("method").get<std::string>())},
                           "W");
}

Result<StaticLinearParameters> parameters_of(const Json& one, const Grid& input) {
  const std::vector<float> bias = floats_of(one.at("bias"));
  return derive_static_linear(matrix_of(one),
                              {.input = input,
                               .output = output_of(one),
                               .bias = bias,
                               .clamp = clamp_of(one.at("act")),
                               .rounding = testing::rounding_of(one.at("mode"))},
                              "fc");
}

void expect_integers(const Json& one, const StaticLinearParameters& p, int64_t bound) {
  EXPECT_EQ(p.bias, Array::copy_of(one.at("bias_s32").get<std::vector<int32_t>>().data(), {p.rows}));
  std::vector<RescaleParameters> rescales;
  if (!one.at("rescales").is_null()) rescales = testing::rescales_of(one.at("rescales"));
  EXPECT_EQ(p.rescales, rescales);
  const std::vector<int64_t> bounds = testing::flatten(one.at("bounds"));
  EXPECT_EQ(bound, *std::max_element(bounds.begin(), bounds.end()));
}

Array codes_of(const Grid& grid, const std::vector<int64_t>& values, int64_t columns) {
  Array out = Array::zeros(grid.dtype(), {static_cast<int64_t>(values.size()) / columns, columns});
  for (size_t i = 0; i < values.size(); ++i)
    store_code(out.bytes.data(), out.dtype, static_cast<int64_t>(i), values[i]);
  return out;
}

std::vector<int64_t> run(const StaticLinearLayer& layer, const Array& x) {
  const StaticLinearParameters& p = layer.parameters();
  const int64_t m = x.shape[0];
  Array y = Array::zeros(p.y_dtype(), {m, p.rows});
  Workspace workspace = layer.workspace(m);
  const Status status = layer.forward_codes(x.bytes, y.bytes, m, workspace);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<int64_t> out;
  for (int64_t i = 0; i < y.size(); ++i) out.push_back(load_code(y.bytes.data(), y.dtype, i));
  return out;
}

std::vector<CpuPath> paths() {
  std::vector<CpuPath> out;
  for (const CpuPath path : kAllCpuPaths)
    if (cpu_can_run(path)) out.push_back(path);
  return out;
}

TEST(StaticLinearOracle, EveryWidth) {
  int refused = 0;
  int kept = 0;
  for (const Json& one : cases_of("static")) {
    SCOPED_TRACE(one.dump().substr(0, 2000));
    const Result<StaticLinearParameters> p = parameters_of(one, testing::grid_of(one.at("x_grid")));
    if (one.contains("refused")) {
      ++refused;
      EXPECT_FALSE(p.ok() && StaticLinearLayer::create(*p, "fc").ok());
      continue;
    }
    ++kept;
    ASSERT_TRUE(p.ok()) << p.status().message();
    const Array x = codes_of(p->input, testing::flatten(one.at("x")), p->columns);
    for (const CpuPath path : paths()) {
      const Result<StaticLinearLayer> layer = StaticLinearLayer::create(*p, "fc", path);
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      if (path == CpuPath::kReference) expect_integers(one, *p, layer->accumulator_bound());
      EXPECT_EQ(run(*layer, x), testing::flatten(one.at("y"))) << layer->kernel_name();
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(kept, 0);
}

GridOptions options_of(const Json& tensor) {
  return {.bits = tensor.at("bits"), .is_signed = tensor.at("signed"), .symmetric = tensor.at("symmetric")};
}

TEST(StaticLinearOracle, Calibration) {
  int refused = 0;
  int dead = 0;
  for (const Json& one : cases_of("calibrated")) {
    SCOPED_TRACE(one.dump().substr(0, 2000));
    const Array rows = testing::float_rows_of(one.at("rows"), Dtype::kF32);
    const std::vector<float> bias = floats_of(one.at("bias"));
    Result<StaticLinearCalibrator> calibrator =
        StaticLinearCalibrator::create(rows, bias, clamp_of(one.at("act")), "fc");
    ASSERT_TRUE(calibrator.ok()) << calibrator.status().message();
    Status observed;
    for (const Json& sequence : one.at("sequences")) {
      const Array x = testing::float_rows_of(sequence, Dtype::kF32);
      const Status status = calibrator->observe({x.data<float>(), static_cast<size_t>(x.size())}, x.shape[0]);
      if (!status.ok()) observed = status;
    }
    StaticLinearQuantization q;
    const auto method = one.at("method").get<std::string>();
    const bool is_number = method.find_first_not_of("0123456789.") == std::string::npos;
    q.x_method = q.y_method = *parse_calibration_options(is_number ? "percentile:" + method : method);
    q.scale = one.at("power_of_two") ? ScaleKind::kPow2 : ScaleKind::kReal;
    q.weight_bits = one.at("weight_bits");
    q.weight_method = *low_bit_method_from_string(one.at("weight_method").get<std::string>());
    q.rounding = testing::rounding_of(one.at("mode"));
    if (one.at("x").is_null()) {
      q.input = testing::grid_of(one.at("given_x"));
    } else {
      q.x = options_of(one.at("x"));
    }
    q.y.reset();
    if (!one.at("y").is_null()) q.y = options_of(one.at("y"));
    const Result<StaticLinearLayer> layer = calibrator->finish(q);
    if (one.contains("refused")) {
      ++refused;
      EXPECT_FALSE(observed.ok() && layer.ok());
      continue;
    }
    ASSERT_TRUE(observed.ok()) << observed.message();
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    const StaticLinearParameters& p = layer->parameters();
    EXPECT_EQ(p.input, testing::grid_of(one.at("x_grid")));
    EXPECT_EQ(p.output, output_of(one));
    EXPECT_EQ(std::vector<int64_t>(p.weights.data<int8_t>(), p.weights.data<int8_t>() + p.weights.size()),
              testing::flatten(one.at("v")));
    EXPECT_EQ(std::vector<float>(p.scales.data<float>(), p.scales.data<float>() + p.rows), floats_of(one.at("S_w")));
    expect_integers(one, p, layer->accumulator_bound());
    dead += static_cast<int>(one.at("dead").size());
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(dead, 0);
}

/// A GRU, its codes of h, and a layer on their grid: both saved, loaded, and run on every path.
TEST(StaticLinearOracle, AfterAGruWith16BitStates) {
  const TemporaryFolder folder;
  int wide = 0;
  for (const Json& one : cases_of("after_gru")) {
    GruModelParameters parameters;
    parameters.layers = {testing::layer_of(one.at("gru"), testing::rounding_of(one.at("mode")))};
    for (ActivationTable& table : parameters.layers[0].tables) {
      ASSERT_EQ(table.kind, TableKind::kDirect);
      table.certificate = {0, table.input.min()};  // which is that of every direct table
    }
    const Result<GruModel> made = GruModel::create(parameters);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const std::string gru_path = folder.file("gru.safetensors");
    ASSERT_TRUE(made->save(gru_path).ok());
    const Result<GruModel> gru = GruModel::load(gru_path);
    ASSERT_TRUE(gru.ok()) << gru.status().message();

    const Result<StaticLinearParameters> p = parameters_of(one, gru->output_grid());
    ASSERT_TRUE(p.ok()) << p.status().message();
    const std::string path = folder.file("fc.safetensors");
    const Result<StaticLinearLayer> derived = StaticLinearLayer::create(*p, "fc");
    ASSERT_TRUE(derived.ok()) << derived.status().message();
    ASSERT_TRUE(derived->save(path).ok());
    expect_integers(one, *p, derived->accumulator_bound());

    const auto steps = static_cast<int64_t>(one.at("x").size());
    const auto batch = static_cast<int64_t>(one.at("x").at(0).size());
    const Array x = codes_of(gru->input_grid(), testing::flatten(one.at("x")), gru->input_size());
    for (const CpuPath cpu_path : paths()) {
      SCOPED_TRACE(to_string(cpu_path));
      const Result<StaticLinearLayer> layer = StaticLinearLayer::load(path, "", cpu_path);
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      EXPECT_EQ(layer->parameters(), *p);
      EXPECT_EQ(layer->input_grid(), gru->output_grid());
      Array h = Array::zeros(gru->output_grid().dtype(), {steps * batch, gru->output_size()});
      wide += h.dtype == Dtype::kS16 || h.dtype == Dtype::kU16 ? 1 : 0;
      GruState state = gru->initial_state(batch);
      Workspace workspace = gru->workspace(batch, steps);
      const Status status = gru->forward_codes(x.bytes, h.bytes, steps, state, workspace, {.path = cpu_path});
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<int64_t> codes;
      for (int64_t i = 0; i < h.size(); ++i) codes.push_back(load_code(h.bytes.data(), h.dtype, i));
      EXPECT_EQ(codes, testing::flatten(one.at("h")));
      EXPECT_EQ(run(*layer, h), testing::flatten(one.at("y")));
    }
  }
  EXPECT_GT(wide, 0);
}

}  // namespace
}  // namespace isobit
