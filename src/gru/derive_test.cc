// SPDX-License-Identifier: Apache-2.0
// From float weights and ranges to the integers of a model, rescale encoding, and states handed between models,
// against the oracle.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "core/codes.h"
#include "core/random.h"
#include "gru/dead_rows.h"
#include "gru/rescale.h"
#include "testing/oracle.h"

namespace isobit {
namespace {

using testing::Json;

double double_of_bits(const std::string& hex) {
  return std::bit_cast<double>(static_cast<uint64_t>(std::stoull(hex, nullptr, 16)));
}

/// The floats of nested lists of bit patterns, in order.
void floats_of(const Json& j, std::vector<float>& out) {
  if (!j.is_array()) return out.push_back(testing::float_of_bits(j));
  for (const Json& one : j) floats_of(one, out);
}
std::vector<float> floats_of(const Json& j) {
  std::vector<float> out;
  floats_of(j, out);
  return out;
}

std::vector<int64_t> codes_of(const void* codes, const Grid& grid, int64_t count) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(load_code(codes, grid.dtype(), i));
  return out;
}

// ---------------------------------------------------------------------------------------------------------------
// Encoding

/// What the case expects of an encoder: the same pair, or a refusal.
void expect_encoded(const Json& c, const Result<RescaleParameters>& encoded) {
  ASSERT_EQ(encoded.ok(), !c.contains("refused")) << c.dump() << encoded.status().message();
  if (encoded.ok()) {
    EXPECT_EQ(*encoded, testing::rescale_of(c)) << c.dump();
  }
}

TEST(Encode, EqualsTheOracle) {
  int compared = 0;
  int refused = 0;
  for (const Json& c : testing::oracle_cases("rescale.json")) {
    const std::string op = c.at("op");
    if (op == "apply") continue;  // gru_test
    const Int128 bound = c.at("bound").get<int64_t>();
    if (op == "shift") {
      expect_encoded(c, encode_shift(c.at("derived_n").get<int64_t>(), bound));
    } else {
      const double rho = double_of_bits(c.at("rho"));
      expect_encoded(c, encode_ratio(rho, bound));
      if (op == "ratio") {
        // The ratio itself, made as section 2 says: products first, then one division.
        double product[2] = {1, 1};
        for (const Json& scale : c.at("over")) product[0] *= static_cast<double>(testing::float_of_bits(scale));
        for (const Json& scale : c.at("under")) product[1] *= static_cast<double>(testing::float_of_bits(scale));
        EXPECT_EQ(product[0] / product[1], rho) << c.dump();
      }
    }
    ++compared;
    refused += c.contains("refused") ? 1 : 0;
  }
  EXPECT_GT(compared, 500);
  EXPECT_GT(refused, 10);
}

// ---------------------------------------------------------------------------------------------------------------
// Whole models

GridOptions options_of(const Json& j) {
  GridOptions options;
  options.bits = j.at("bits");
  options.is_signed = j.at("signed");
  options.symmetric = !j.contains("symmetric") || j.at("symmetric").get<bool>();  // rows always are
  if (!j.at("steps").is_null()) options.steps = j.at("steps").get<int64_t>();
  return options;
}

GruWeights weights_of(const Json& c) {
  GruWeights weights;
  weights.layers.push_back(
      {c.at("C"), c.at("H"), floats_of(c.at("W")), floats_of(c.at("R")), floats_of(c.at("bw")), floats_of(c.at("br"))});
  return weights;
}

GruQuantization quantization_of(const Json& c) {
  GruQuantization quantization;
  quantization.scale = c.at("power_of_two").get<bool>() ? ScaleKind::kPow2 : ScaleKind::kReal;
  quantization.rounding = testing::rounding_of(c.at("mode"));
  quantization.table = TableOptions{};  // the oracle's are all direct
  for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
    const std::string name(kGruTensorNames[static_cast<size_t>(tensor)]);
    const bool is_row = tensor >= kW && tensor <= kBr;
    const Json& j = c.at(is_row ? "rows" : "tensors").at(name);
    quantization.tensors[static_cast<size_t>(tensor)] = options_of(j);
  }
  return quantization;
}

/// A calibrator that saw exactly the ranges of the case, times a factor, and the configuration of the case.
Result<GruModelParameters> derive_case(const Json& c, float factor = 1) {
  ISOBIT_ASSIGN_OR_RETURN(const GruCalibrator calibrator, GruCalibrator::create(weights_of(c)));
  for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
    const std::string name(kGruTensorNames[static_cast<size_t>(tensor)]);
    const bool is_row = tensor >= kW && tensor <= kBr;
    const Json& j = c.at(is_row ? "rows" : "tensors").at(name);
    if (!j.contains("min")) continue;
    const float range[2] = {testing::float_of_bits(j.at("min")) * factor, testing::float_of_bits(j.at("max")) * factor};
    // No run of the float forward has exactly these ranges, so they are put where a run would have put them.
    const_cast<TensorStatistics&>(calibrator.statistics(0, GruTensor{tensor})).observe(range, 2);
  }
  return calibrator.derive(quantization_of(c));
}

void expect_equal(const GruLayerParameters& p, const GruLayerParameters& expected) {
  EXPECT_EQ(p.input_size, expected.input_size);
  EXPECT_EQ(p.hidden_size, expected.hidden_size);
  for (size_t tensor = 0; tensor < kGruTensorCount; ++tensor)
    EXPECT_EQ(p.grids[tensor], expected.grids[tensor]) << kGruTensorNames[tensor];
  EXPECT_EQ(p.W_grid, expected.W_grid);
  EXPECT_EQ(p.R_grid, expected.R_grid);
  EXPECT_EQ(p.bw_grid, expected.bw_grid);
  EXPECT_EQ(p.br_grid, expected.br_grid);
  EXPECT_EQ(p.W, expected.W);
  EXPECT_EQ(p.R, expected.R);
  EXPECT_EQ(p.bw, expected.bw);
  EXPECT_EQ(p.br, expected.br);
  EXPECT_EQ(p.bw_to_acc, expected.bw_to_acc);
  EXPECT_EQ(p.br_to_acc, expected.br_to_acc);
  EXPECT_EQ(p.acc_to_ih, expected.acc_to_ih);
  EXPECT_EQ(p.acc_to_hh, expected.acc_to_hh);
  EXPECT_EQ(p.ih_to_gate, expected.ih_to_gate);
  EXPECT_EQ(p.hh_to_gate, expected.hh_to_gate);
  EXPECT_EQ(p.rhh_to_n, expected.rhh_to_n);
  EXPECT_EQ(p.n_to_h, expected.n_to_h);
  EXPECT_EQ(p.u_to_one, expected.u_to_one);
  EXPECT_EQ(p.one, expected.one);
  for (size_t gate = 0; gate < 3; ++gate) {
    EXPECT_EQ(p.tables[gate].entries, expected.tables[gate].entries) << "gate " << gate;
    EXPECT_EQ(p.tables[gate].low, expected.tables[gate].low) << "gate " << gate;
    EXPECT_EQ(p.tables[gate].high, expected.tables[gate].high) << "gate " << gate;
  }
}

/// The rows of a matrix whose grid is not the one of their weights.
std::vector<int64_t> moved_rows(const std::vector<float>& values, const std::vector<Grid>& grids,
                                const GridOptions& options) {
  const auto rows = static_cast<int64_t>(grids.size());
  const auto own =
      derive_row_grids(values, rows, static_cast<int64_t>(values.size()) / rows, options, grids[0].kind, "t", true);
  EXPECT_TRUE(own.ok()) << own.status().message();
  std::vector<int64_t> moved;
  for (size_t row = 0; own.ok() && row < grids.size(); ++row)
    if (grids[row] != (*own)[row]) moved.push_back(static_cast<int64_t>(row));
  return moved;
}

TEST(Derive, EqualsTheOracleAndRunsTheSame) {
  int runs = 0;
  int refused = 0;
  size_t dead = 0;
  for (const Json& c : testing::oracle_cases("gru_float.json")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    Result<GruModelParameters> parameters = derive_case(c);
    if (c.contains("refused")) {
      EXPECT_FALSE(parameters.ok() && GruModel::create(*std::move(parameters)).ok());
      ++refused;
      continue;
    }
    ASSERT_TRUE(parameters.ok()) << parameters.status().message();
    if (c.contains("dead")) {
      const GruLayerParameters& p = parameters->layers[0];
      const GruWeights weights = weights_of(c);
      const auto moved_W = moved_rows(weights.layers[0].W, p.W_grid, options_of(c.at("rows").at("W")));
      const auto moved_R = moved_rows(weights.layers[0].R, p.R_grid, options_of(c.at("rows").at("R")));
      EXPECT_EQ(moved_W, c.at("dead").at("W").get<std::vector<int64_t>>());
      EXPECT_EQ(moved_R, c.at("dead").at("R").get<std::vector<int64_t>>());
      dead += moved_W.size() + moved_R.size();
    }
    expect_equal(parameters->layers[0], testing::layer_of(c.at("unit"), testing::rounding_of(c.at("mode"))));

    const Result<GruModel> model = GruModel::create(*std::move(parameters));
    ASSERT_TRUE(model.ok()) << model.status().message();
    const int64_t T = c.at("T");
    const int64_t N = c.at("N");
    const std::vector<float> x = floats_of(c.at("x"));
    const Grid& h_grid = model->output_grid();
    const int64_t outputs = T * N * model->output_size();
    std::vector<std::byte> x_codes(x.size() * size_in_bytes(model->input_grid().dtype()));
    ASSERT_TRUE(quantize(model->input_grid(), x, x_codes.data(), "x").ok());
    EXPECT_EQ(codes_of(x_codes.data(), model->input_grid(), static_cast<int64_t>(x.size())),
              testing::flatten(c.at("x_codes")));
    for (const CpuPath path : kAllCpuPaths) {
      if (!cpu_can_run(path)) continue;
      SCOPED_TRACE(to_string(path));
      if (path != CpuPath::kReference && (h_grid.bits > 16 || !model->supports(path).ok())) {
        EXPECT_EQ(model->supports(path).code(), StatusCode::kUnsupported);
        continue;
      }
      ASSERT_TRUE(model->supports(path).ok()) << model->supports(path).message();
      RunOptions options{.whole_sequence = true};
      options.path = path;
      Workspace workspace = model->workspace(N, T);
      GruState state = model->initial_state(N);
      std::vector<float> y(static_cast<size_t>(outputs));
      ASSERT_TRUE(model->forward(x, y, T, state, workspace, options).ok());
      const std::vector<float> expected = floats_of(c.at("y"));
      ASSERT_EQ(y.size(), expected.size());
      for (size_t i = 0; i < y.size(); ++i)
        EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected[i])) << i;
      EXPECT_EQ(codes_of(state.layer(0).data(), h_grid, N * model->hidden_size()),
                testing::flatten(c.at("h_last_codes")));

      state = model->initial_state(N);
      std::vector<std::byte> y_codes(static_cast<size_t>(outputs) * size_in_bytes(h_grid.dtype()));
      ASSERT_TRUE(model->forward_codes(x_codes, y_codes, T, state, workspace, options).ok());
      EXPECT_EQ(codes_of(y_codes.data(), h_grid, outputs), testing::flatten(c.at("y_codes")));
      ++runs;
    }
  }
  EXPECT_GE(runs, 24);  // twelve cases, reference and scalar at least
  EXPECT_GT(refused, 0);
  EXPECT_GT(dead, 0u);
}

// ---------------------------------------------------------------------------------------------------------------
// Models with a nearly dead row

constexpr int64_t kInputs = 4;
constexpr int64_t kHidden = 6;
constexpr int64_t kSteps = 50;

GruWeights random_weights() {
  Random random(3);
  const auto values = [&](int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = static_cast<float>(random.between(-1000, 1000)) / 1500.0f;
    return out;
  };
  GruWeights weights;
  weights.layers.push_back({kInputs, kHidden, values(3 * kHidden * kInputs), values(3 * kHidden * kHidden),
                            values(3 * kHidden), values(3 * kHidden)});
  return weights;
}

std::vector<float> random_input() {
  Random random(5);
  std::vector<float> x(static_cast<size_t>(kSteps * kInputs));
  for (float& value : x) value = static_cast<float>(random.between(-1000, 1000)) / 800.0f;
  return x;
}

void scale_row(std::vector<float>& values, size_t row, int64_t columns, float factor) {
  for (size_t k = 0; k < static_cast<size_t>(columns); ++k) values[row * static_cast<size_t>(columns) + k] *= factor;
}

/// Quantised with the ranges of random_input().
Result<GruModel> quantized(const GruWeights& weights, const std::string& bits, ScaleKind scale) {
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(weights));
  ISOBIT_RETURN_IF_ERROR(calibrator.observe(random_input(), kSteps, 1));
  GruQuantization quantization;
  quantization.scale = scale;
  ISOBIT_RETURN_IF_ERROR(apply_bits(bits, quantization));
  return calibrator.finish(quantization);
}

/// Of the integer model's outputs against those of the float weights.
double output_sqnr(const GruWeights& weights, const GruModel& model) {
  const std::vector<float> x = random_input();
  std::vector<float> expected(static_cast<size_t>(kSteps * kHidden));
  GruFloatArguments arguments;
  arguments.steps = kSteps;
  arguments.batch = 1;
  arguments.x = x;
  arguments.y = expected;
  EXPECT_TRUE(gru_forward_float(weights, arguments).ok());
  std::vector<float> y(expected.size());
  GruState state = model.initial_state(1);
  Workspace workspace = model.workspace(1, kSteps);
  EXPECT_TRUE(model.forward(x, y, kSteps, state, workspace).ok());
  double signal = 0;
  double noise = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = static_cast<double>(y[i]) - static_cast<double>(expected[i]);
    signal += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

TEST(DeadRows, OneTinyRowOfAMatrixChangesNoOther) {
  constexpr size_t kRow = 7;
  for (const ScaleKind scale : {ScaleKind::kPow2, ScaleKind::kReal}) {
    for (const char* bits : {"8", "16", "8,linear=16,gate_in=12", "12,weights=4,biases=16"}) {
      for (const bool recurrent : {false, true}) {
        for (const float factor : {1e-18f, 1e-30f}) {
          SCOPED_TRACE(std::string(bits) + " " + std::string(to_string(scale)) + (recurrent ? " R" : " W"));
          const GruWeights sound = random_weights();
          GruWeights weights = sound;
          scale_row(recurrent ? weights.layers[0].R : weights.layers[0].W, kRow, recurrent ? kHidden : kInputs, factor);
          const Result<GruModel> before = quantized(sound, bits, scale);
          const Result<GruModel> model = quantized(weights, bits, scale);
          ASSERT_TRUE(before.ok()) << before.status().message();
          ASSERT_TRUE(model.ok()) << model.status().message();
          const GruLayerParameters& p = model->parameters().layers[0];
          const GruLayerParameters& q = before->parameters().layers[0];
          const CodeMatrix& codes = recurrent ? p.R : p.W;
          const CodeMatrix& old_codes = recurrent ? q.R : q.W;
          for (size_t row = 0; row < p.W_grid.size(); ++row) {
            if (row == kRow) continue;
            EXPECT_EQ(p.W_grid[row], q.W_grid[row]);
            EXPECT_EQ(p.R_grid[row], q.R_grid[row]);
            for (int64_t k = 0; k < codes.columns(); ++k)
              EXPECT_EQ(codes.at(static_cast<int64_t>(row), k), old_codes.at(static_cast<int64_t>(row), k));
          }
          EXPECT_GT(output_sqnr(weights, *model), output_sqnr(sound, *before) - 6);
        }
      }
    }
  }
}

TEST(DeadRows, WhatStaysRefusedNamesTheRow) {
  GruWeights weights = random_weights();
  scale_row(weights.layers[0].W, 7, kInputs, 1e4f);
  for (const ScaleKind scale : {ScaleKind::kPow2, ScaleKind::kReal}) {
    const Result<GruModel> refused = quantized(weights, "8,x=32,W=32", scale);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kOverflow);
    const std::string message = refused.status().message();
    for (const char* part : {"layer 0", "W row ", "(gate ", ", unit ", " can reach ", "use fewer bits for "})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(Derive, RowsAndBiasesTooSmallForAScaleCountAsZero) {
  for (const bool bias : {false, true}) {
    GruWeights weights = random_weights();
    std::vector<float>& values = bias ? weights.layers[0].bw : weights.layers[0].W;
    scale_row(values, 7, bias ? 1 : kInputs, 1e-40f);
    const Result<GruModel> tiny = quantized(weights, "8", ScaleKind::kReal);
    scale_row(values, 7, bias ? 1 : kInputs, 0.0f);
    const Result<GruModel> zero = quantized(weights, "8", ScaleKind::kReal);
    ASSERT_TRUE(tiny.ok() && zero.ok()) << tiny.status().message();
    const GruLayerParameters &a = tiny->parameters().layers[0], &b = zero->parameters().layers[0];
    EXPECT_EQ(a.W, b.W);
    EXPECT_EQ(a.W_grid, b.W_grid);
    EXPECT_EQ(a.bw, b.bw);
    EXPECT_EQ(a.bw_grid, b.bw_grid);
  }
}

TEST(Derive, ACodeOfOneForGatesWithGeneralScales) {
  for (const int32_t bits : {8, 12}) {
    const Result<GruModel> real = quantized(random_weights(), std::to_string(bits), ScaleKind::kReal);
    const Result<GruModel> pow2 = quantized(random_weights(), std::to_string(bits), ScaleKind::kPow2);
    ASSERT_TRUE(real.ok() && pow2.ok());
    const auto& grids = real->parameters().layers[0].grids;
    for (const GruTensor gate : {kU, kRGate}) {
      EXPECT_EQ(grids[gate].real_scale, static_cast<float>(1.0 / ((1 << bits) - 1)));
      EXPECT_EQ(pow2->parameters().layers[0].grids[gate].shift, bits);
    }
    EXPECT_EQ(real->parameters().layers[0].one, grids[kU].max());
    EXPECT_EQ(grids[kN].real_scale, std::ldexp(1.0f, 1 - bits));
  }
}

TEST(Derive, KeepsNotes) {
  Result<GruCalibrator> calibrator = GruCalibrator::create(random_weights());
  ASSERT_TRUE(calibrator.ok());
  ASSERT_TRUE(calibrator->observe(random_input(), kSteps, 1).ok());
  GruQuantization quantization;
  quantization.notes = {{"bits", "8"}, {"reason", "why not"}};
  const Result<GruModel> model = calibrator->finish(quantization);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->parameters().notes, quantization.notes);
  quantization.notes["long"] = std::string(65537, 'a');
  EXPECT_EQ(calibrator->finish(quantization).status().message(), "note long has 65537 bytes, must have at most 65536");
}

TEST(Derive, RefusesWithoutDataAndWhatCanOverflow) {
  GruWeights weights;
  weights.layers.push_back({2, 1, {1, 2, 3, 4, 5, 6}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}});
  Result<GruCalibrator> calibrator = GruCalibrator::create(weights);
  ASSERT_TRUE(calibrator.ok()) << calibrator.status().message();
  const Result<GruModel> empty = calibrator->finish({});
  EXPECT_EQ(empty.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(empty.status().message(), "x: no samples were observed; a range needs at least 1");

  const float x[] = {1, -1, 0.5f, 0.25f};
  ASSERT_TRUE(calibrator->observe(x, 2, 1).ok());
  EXPECT_TRUE(calibrator->finish({}).ok());
  GruQuantization wide;
  ASSERT_TRUE(apply_bits("8,x=32,W=32", wide).ok());
  const Result<GruModel> refused = calibrator->finish(wide);
  EXPECT_EQ(refused.status().code(), StatusCode::kOverflow);
  for (const char* part :
       {"layer 0: ih: ", " of W row ", " can reach 1", ", must stay within 9223372036854775807 (int64)"})
    EXPECT_NE(refused.status().message().find(part), std::string::npos) << refused.status().message();
}

// ---------------------------------------------------------------------------------------------------------------
// States between models

/// One input, one hidden unit, no weights: only its h grid and rounding mode matter here.
Result<GruModel> model_with_state(const Grid& h, Rounding rounding) {
  GruLayerParameters p;
  p.input_size = 1;
  p.hidden_size = 1;
  p.rounding = rounding;
  const auto grid = [&h](bool is_signed, int32_t shift) {
    Grid out;
    out.is_signed = is_signed;
    out.kind = h.kind;
    if (h.kind == ScaleKind::kPow2) {
      out.shift = shift;
    } else {
      out.real_scale = std::ldexp(1.0f, -shift);
    }
    return out;
  };
  p.grids.fill(grid(true, 4));
  p.grids[kH] = h;
  p.grids[kU] = p.grids[kRGate] = grid(false, 8);
  p.grids[kN] = grid(true, 7);
  const Grid row = grid(true, 7);
  for (std::vector<Grid>* grids : {&p.W_grid, &p.R_grid, &p.bw_grid, &p.br_grid}) grids->assign(3, row);
  for (const GruTensor tensor : {kW, kR, kBw, kBr}) p.grids[tensor] = row;
  for (CodeMatrix* matrix : {&p.W, &p.R, &p.bw, &p.br}) *matrix = CodeMatrix(Dtype::kS8, 3, 1);
  for (size_t gate = 0; gate < 3; ++gate) {
    ISOBIT_ASSIGN_OR_RETURN(p.tables[gate], fit_table(gate == 2 ? Activation::kTanh : Activation::kSigmoid,
                                                      p.grids[kUIn + gate], p.grids[kU + gate], {}, rounding));
  }
  ISOBIT_RETURN_IF_ERROR(derive_rescales(p, "layer 0"));
  GruModelParameters parameters;
  parameters.layers.push_back(std::move(p));
  return GruModel::create(std::move(parameters));
}

/// Weights that change and change back.
TEST(WithWeights, GivesWhatDeriveGives) {
  int models = 0;
  for (const Json& c : testing::oracle_cases("gru_float.json")) {
    const Result<GruModelParameters> derived = derive_case(c);
    if (!derived.ok()) continue;
    const GruQuantization quantization = quantization_of(c);
    const GruWeights weights = weights_of(c);
    GruWeights others = weights;
    for (GruLayerWeights& layer : others.layers)
      for (std::vector<float>* const values : {&layer.W, &layer.R, &layer.bw, &layer.br})
        for (size_t i = 0; i < values->size(); ++i) (*values)[i] *= i % 2 == 0 ? 0.5f : -0.75f;
    const Result<GruModelParameters> changed = with_weights(*derived, others, quantization);
    if (!changed.ok()) continue;  // rows of other weights may not fit
    const Result<GruModelParameters> back = with_weights(*changed, weights, quantization);
    ASSERT_TRUE(back.ok()) << back.status().message();
    expect_equal(back->layers[0], derived->layers[0]);
    models += changed->layers[0].W != derived->layers[0].W || changed->layers[0].W_grid != derived->layers[0].W_grid;
    GruWeights wider = weights;
    wider.layers[0].W.resize(wider.layers[0].W.size() / static_cast<size_t>(wider.layers[0].input_size) *
                             static_cast<size_t>(wider.layers[0].input_size + 1));
    wider.layers[0].input_size += 1;
    EXPECT_EQ(with_weights(*derived, wider, quantization).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_GT(models, 5);
}

/// Weights that become three times as large, and a third: their rows clip, or lose bits, and come back.
TEST(WithWeights, KeepsTheGridsOfRows) {
  int clipped = 0, dead = 0;
  for (const Json& c : testing::oracle_cases("gru_float.json")) {
    const Result<GruModelParameters> derived = derive_case(c);
    if (!derived.ok()) continue;
    SCOPED_TRACE(c.at("name").get<std::string>());
    const GruQuantization quantization = quantization_of(c);
    const GruWeights weights = weights_of(c);
    GruWeights others = weights;
    for (std::vector<float>* const values :
         {&others.layers[0].W, &others.layers[0].R, &others.layers[0].bw, &others.layers[0].br})
      for (size_t i = 0; i < values->size(); ++i) (*values)[i] *= i % 2 == 0 ? 3.0f : -0.33f;
    const Result<GruModelParameters> kept = with_weights(*derived, others, quantization, GruRowGrids::kKept);
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    GruLayerParameters wanted = derived->layers[0];
    const auto requantize = [&](const std::vector<float>& values, const std::vector<Grid>& grids, CodeMatrix& codes) {
      for (int64_t i = 0; i < std::ssize(values); ++i) {
        const Grid& grid = grids[static_cast<size_t>(i / codes.columns())];
        const int64_t code = quantize_value(grid, values[static_cast<size_t>(i)]);
        clipped += (code == grid.min() || code == grid.max()) &&
                           std::abs(dequantize_value(grid, code)) < std::abs(values[static_cast<size_t>(i)])
                       ? 1
                       : 0;
        codes.set(i / codes.columns(), i % codes.columns(), code);
      }
    };
    requantize(others.layers[0].W, wanted.W_grid, wanted.W);
    requantize(others.layers[0].R, wanted.R_grid, wanted.R);
    const Result<GruModelParameters> anew = with_weights(*derived, others, quantization);
    ASSERT_TRUE(anew.ok()) << anew.status().message();
    wanted.bw_grid = anew->layers[0].bw_grid;
    wanted.br_grid = anew->layers[0].br_grid;
    wanted.bw = anew->layers[0].bw;
    wanted.br = anew->layers[0].br;
    rescale_dead_rows(others.layers[0], wanted);
    ASSERT_TRUE(derive_rescales(wanted, "layer 0").ok());  // bounds of accumulators are those of the new codes
    expect_equal(kept->layers[0], wanted);
    if (kept->layers[0].W_grid != derived->layers[0].W_grid || kept->layers[0].R_grid != derived->layers[0].R_grid) {
      ++dead;
      continue;
    }
    const Result<GruModelParameters> back = with_weights(*kept, weights, quantization, GruRowGrids::kKept);
    ASSERT_TRUE(back.ok()) << back.status().message();
    expect_equal(back->layers[0], derived->layers[0]);
  }
  EXPECT_GT(clipped, 20);
  EXPECT_GT(dead, 0);
}

/// Ranges and steps of other ranges.
TEST(WithGrids, GivesWhatDeriveGives) {
  int models = 0;
  TableCache tables;
  for (const Json& c : testing::oracle_cases("gru_float.json")) {
    // By 4: shifts are 2 less, scales are exact, zero points stay.
    const Result<GruModelParameters> derived = derive_case(c), wanted = derive_case(c, 4);
    if (!derived.ok() || !wanted.ok()) continue;
    const GruQuantization quantization = quantization_of(c);
    const GruWeights weights = weights_of(c);
    std::vector<GruGridChange> ranges, steps;
    for (const GruTensor tensor : kGruCalibratedTensors) {
      const Json& j = c.at("tensors").at(std::string(kGruTensorNames[tensor]));
      ranges.push_back({.tensor = tensor,
                        .range = {{4 * testing::float_of_bits(j.at("min")), 4 * testing::float_of_bits(j.at("max"))}}});
      const Grid &from = derived->layers[0].grids[tensor], &to = wanted->layers[0].grids[tensor];
      if (from.zero_point != to.zero_point) continue;  // its shift is at a limit
      if (to.kind == ScaleKind::kPow2) {
        steps.push_back({.tensor = tensor, .shift = to.shift});
      } else {
        steps.push_back({.tensor = tensor, .scale = to.real_scale});
      }
    }
    for (const std::vector<GruGridChange>* const changes : {&ranges, &steps}) {
      if (changes->size() < kGruCalibratedTensors.size()) continue;
      const Result<GruModelParameters> found = with_grids(*derived, *changes, weights, quantization, &tables);
      ASSERT_TRUE(found.ok()) << found.status().message();
      expect_equal(found->layers[0], wanted->layers[0]);
      EXPECT_EQ(found->layers[0].tables, wanted->layers[0].tables);
      for (const ActivationTable& table : found->layers[0].tables) EXPECT_TRUE(tables.made(table));
      ++models;
    }
  }
  EXPECT_GT(models, 10);
}

GruWeights layered_weights(Random& random, int64_t layers, int32_t directions) {
  GruWeights weights;
  weights.directions = directions;
  const auto floats = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = static_cast<float>(random.between(-100, 100)) / 128;
    return values;
  };
  for (int64_t i = 0; i < layers * directions; ++i) {
    const int64_t inputs = i < directions ? kInputs : directions * kHidden;
    weights.layers.push_back({inputs, kHidden, floats(3 * kHidden * inputs), floats(3 * kHidden * kHidden),
                              floats(3 * kHidden), floats(3 * kHidden)});
  }
  return weights;
}

/// A calibrator of a GRU of 2 layers in both directions, which saw 5 steps.
GruCalibrator calibrator_of_layers(Random& random) {
  GruCalibrator calibrator = GruCalibrator::create(layered_weights(random, 2, 2)).value();
  std::vector<float> x(5 * 2 * kInputs);
  for (float& v : x) v = static_cast<float>(random.between(-300, 500)) / 128;
  EXPECT_TRUE(calibrator.observe(x, 5, 2).ok());
  return calibrator;
}

TEST(WithGrids, LayersAndDirectionsFollow) {
  Random random(40);
  for (const ScaleKind kind : {ScaleKind::kPow2, ScaleKind::kReal}) {
    const GruCalibrator calibrator = calibrator_of_layers(random);
    GruQuantization quantization;
    quantization.scale = kind;
    ASSERT_TRUE(apply_bits("8,l1.h=12,l1.gate_in=6", quantization).ok());
    const GruModelParameters wanted = calibrator.derive(quantization).value();
    GruQuantization searched = quantization;
    ASSERT_TRUE(apply_methods("percentile:80", searched).ok());
    const GruModelParameters narrow = calibrator.derive(searched).value();
    std::vector<GruGridChange> changes;
    for (int64_t layer = 0; layer < 4; ++layer)
      for (const GruTensor tensor : kGruCalibratedTensors) {
        if (tensor == kX && layer >= 2) continue;
        TensorStatistics statistics = calibrator.statistics(layer, tensor);
        const bool is_shared = tensor == kX || tensor == kH;
        if (is_shared) statistics.merge(calibrator.statistics(layer ^ 1, tensor));
        if (is_shared && random.one_in(2) && layer % 2 == 1) continue;  // the other direction's holds for both
        changes.push_back({.layer = layer, .tensor = tensor, .range = {{statistics.min(), statistics.max()}}});
      }
    const Result<GruModelParameters> found = with_grids(narrow, changes, calibrator.weights(), quantization);
    ASSERT_TRUE(found.ok()) << found.status().message();
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NE(narrow.layers[i].grids, wanted.layers[i].grids);
      expect_equal(found->layers[i], wanted.layers[i]);
      EXPECT_EQ(found->layers[i].tables, wanted.layers[i].tables);
    }
    EXPECT_TRUE(GruModel::create(*found).ok());
  }
}

TEST(WithGrids, RefusesByName) {
  Random random(41);
  const GruCalibrator calibrator = calibrator_of_layers(random);
  const GruModelParameters model = calibrator.derive({}).value();
  const auto message = [&](const std::vector<GruGridChange>& changes) {
    return with_grids(model, changes, calibrator.weights(), {}).status().message();
  };
  const auto begins = [](const std::string& found, const std::string& text) {
    EXPECT_EQ(found.substr(0, text.size()), text);
  };
  EXPECT_EQ(message({}), "");
  begins(message({{.layer = 4, .shift = 1}}), "the layer of a change of grids is 4, must be 0..3");
  begins(message({{.tensor = kU, .shift = 1}}), "layer 0 u: its grid cannot be changed, must be that of x, h, ih, hh");
  begins(message({{.tensor = GruTensor{14}, .shift = 1}}), "the tensor of a change of grids is 14, must be 0..13");
  begins(message({{.layer = 3, .tensor = kX, .shift = 1}}), "layer 1 reverse x: its grid is that of layer 0 reverse h");
  begins(message({{.layer = 2, .tensor = kIh}}), "layer 1 ih: 0 of shift, scale and range are given, must be 1");
  begins(message({{.tensor = kH, .scale = 0.5f}}),
         "layer 0 h: scale is given, must be shift: the model's scales are pow2");
  begins(message({{.layer = 1, .tensor = kHh, .shift = 63}}),
         "grid of layer 0 reverse hh: shift is 63, must be -32..62");
  begins(message({{.tensor = kNIn, .range = {{1.0, -1.0}}}}), "layer 0 n_in: the range [1, -1] must be finite");
  begins(message({{.tensor = kIh, .shift = 1}, {.tensor = kIh, .shift = 1}}),
         "layer 0 ih: its grid is changed twice, must be once");
  const std::string z = std::to_string(model.layers[0].grids[kH].zero_point);
  EXPECT_EQ(
      message({{.tensor = kH, .shift = 3}, {.layer = 1, .tensor = kH, .shift = 4}}),
      "layer 0 reverse h: one step is 0.0625 and z " + z + ", must be 0.125 and " + z + ": directions share this grid");
  EXPECT_EQ(message({{.tensor = kH, .shift = 5}, {.layer = 1, .tensor = kH, .shift = 5}}), "");
}

TEST(HandOver, EqualsTheOracle) {
  int compared = 0;
  for (const Json& c : testing::oracle_cases("handover.json")) {
    SCOPED_TRACE(c.dump());
    const Grid from = testing::grid_of(c.at("from"));
    const Grid to = testing::grid_of(c.at("to"));
    const std::vector<int64_t> q = testing::flatten(c.at("q"));
    const Result<GruModel> sender = model_with_state(from, Rounding::kNearestEven);
    ASSERT_TRUE(sender.ok()) << sender.status().message();
    GruState state = sender->initial_state(static_cast<int64_t>(q.size()));
    for (size_t i = 0; i < q.size(); ++i)
      store_code(state.layer(0).data(), from.dtype(), static_cast<int64_t>(i), q[i]);
    for (const Rounding rounding : kAllRoundings) {
      const Result<GruModel> receiver = model_with_state(to, rounding);
      ASSERT_TRUE(receiver.ok()) << receiver.status().message();
      const Result<GruState> received = receiver->state_from(*sender, state);
      ASSERT_TRUE(received.ok()) << received.status().message();
      EXPECT_EQ(codes_of(received->layer(0).data(), to, static_cast<int64_t>(q.size())),
                testing::flatten(c.at("y").at(std::string(to_string(rounding)))))
          << to_string(rounding);
      ++compared;
    }
  }
  EXPECT_GE(compared, 4 * 40);
}

TEST(HandOver, RefusesModelsThatDiffer) {
  Grid pow2;
  pow2.shift = 7;
  Grid real;
  real.kind = ScaleKind::kReal;
  real.real_scale = 0.01f;
  const Result<GruModel> a = model_with_state(pow2, Rounding::kNearestEven);
  const Result<GruModel> b = model_with_state(real, Rounding::kNearestEven);
  ASSERT_TRUE(a.ok() && b.ok());
  const Result<GruState> refused = b->state_from(*a, a->initial_state(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("power-of-two scales to one with real scales"), std::string::npos)
      << refused.status().message();
}

}  // namespace
}  // namespace isobit
