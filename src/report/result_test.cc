// SPDX-License-Identifier: Apache-2.0
// What is said of results: the numbers are those of the result, and what cannot be said is null or left out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/test_files.h"
#include "isobit/report.h"

namespace isobit {
namespace {

using Json = nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// H = 2, C = 3, one layer; its weights do not matter.
GruWeights small_weights() {
  GruWeights weights;
  weights.name = "enc";
  GruLayerWeights layer;
  layer.input_size = 3;
  layer.hidden_size = 2;
  layer.W.assign(18, 0.5f);
  layer.R.assign(12, -0.25f);
  layer.bw.assign(6, 0.125f);
  layer.br.assign(6, 0.0f);
  weights.layers = {layer};
  return weights;
}

TEST(Describe, Reading) {
  GruWeights weights = small_weights();
  const Description assumed = describe_reading(weights, "FILE");
  EXPECT_TRUE(holds(assumed.text, "gate order: pytorch (reset, update, new: r z n), assumed (--gate-order says"));
  EXPECT_TRUE(assumed.warnings.empty());
  weights.report.gate_order_assumed = false;
  weights.report.layout = GruLayout::kColumns;
  weights.report.layout_note = "layout columns, as the shapes say";
  weights.report.notes = {"W (1, 6, 3): one direction"};
  weights.report.unused = {"enc.a", "enc.b\x1b"};
  const Description given = describe_reading(weights, "FILE");
  EXPECT_TRUE(holds(given.text, "r z n), as given\n"));
  EXPECT_TRUE(holds(given.text, "read: W (1, 6, 3): one direction\n"));
  ASSERT_EQ(given.warnings.size(), 2U);
  EXPECT_TRUE(holds(given.warnings[0], "FILE: GRU \"enc\": layout columns, as the shapes say; --layout"));
  EXPECT_TRUE(holds(given.warnings[1], "enc.a, enc.b\\u001b;"));
  const Json json = Json::parse(given.json);
  EXPECT_EQ(json["gate_order_assumed"], false);
  EXPECT_EQ(json["layout_assumed"], true);
  EXPECT_EQ(json["layout"], "columns");
  EXPECT_EQ(json["notes"], Json({"W (1, 6, 3): one direction", "layout columns, as the shapes say"}));
  EXPECT_EQ(json["unused"].size(), 2U);
}

TEST(Describe, Calibration) {
  const Result<GruQuantization> wide = GruSettings{.bits = "16"}.quantization();
  ASSERT_TRUE(wide.ok());
  Result<GruCalibrator> calibrator = GruCalibrator::create(small_weights(), *wide);
  ASSERT_TRUE(calibrator.ok());
  const std::vector<float> x = {-1, 0, 1, 2, 1, 0};
  ASSERT_TRUE(calibrator->observe(x, 2, 1).ok());
  const Result<GruModel> model = calibrator->finish(*wide);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Description description = describe_calibration(*model, *calibrator);
  const Json grids = Json::parse(description.json)["grids"];
  ASSERT_EQ(grids.size(), static_cast<size_t>(kGruTensorCount));
  EXPECT_EQ(grids[kX]["tensor"], "x");
  EXPECT_EQ(grids[kX]["observed_max"], 2.0);
  EXPECT_EQ(grids[kX]["grid"]["bits"], 16);
  EXPECT_EQ(grids[kW]["per_row"], true);
  EXPECT_TRUE(grids[kU]["observed_min"].is_null());  // a fixed range
  EXPECT_TRUE(holds(description.text, "biases have 16 bits, as with every bare width above 8; --bits 16,biases=8"));
  const Result<GruQuantization> named = GruSettings{.bits = "16,biases=8"}.quantization();
  ASSERT_TRUE(named.ok());
  EXPECT_FALSE(holds(describe_calibration(*calibrator->finish(*named), *calibrator).text, "biases have"));
}

TEST(Describe, Clipping) {
  const Grid grid{.bits = 8, .is_signed = true, .kind = ScaleKind::kPow2, .shift = 7};
  const Description few = describe_clipping({1, 100}, grid, "x.npy", "other units");
  EXPECT_TRUE(few.warnings.empty());
  EXPECT_EQ(Json::parse(few.json), Json({{"clipped", 1}, {"clipped_percent", 1.0}}));
  const Description many = describe_clipping({2, 100}, grid, "x.npy", "other units");
  ASSERT_EQ(many.warnings.size(), 1U);
  EXPECT_TRUE(holds(many.warnings[0], "2 % of the inputs of x.npy lie outside"));
  EXPECT_TRUE(holds(many.warnings[0], "-1..0.99219, and are clipped; likely: other units"));
  EXPECT_EQ(Json::parse(describe_clipping({}, grid, "x.npy", "").json)["clipped_percent"], 0.0);
}

TEST(Describe, Comparison) {
  GruComparisonReport report{.sequences = 2, .steps = 9, .tensors = {}};
  TensorComparison x, w;
  x.layer = w.layer = 1;
  x.tensor = kX;
  x.count = 200;
  x.sqnr_db = 35.25;
  x.own_sqnr_db = kInfinity;
  x.worst = {.channel = 1, .sqnr_db = 30};
  x.clipped = 3;
  x.first_part = {.sequence = 1, .step = 4, .index = 0};
  w.tensor = kW;
  w.count = 18;
  w.exact = true;
  w.sqnr_db = kInfinity;
  w.largest_error_at = {.sequence = -1, .step = 5, .index = 2};
  report.tensors = {x, w};
  const Description description = describe_comparison(report, 2, {"a", "b, sequence 0"}, 1.5);
  const Json json = Json::parse(description.json);
  EXPECT_EQ(json["steps"], 9);
  EXPECT_EQ(json["part_codes"], 1.5);
  const Json& activation = json["tensors"][0];
  EXPECT_EQ(activation["layer"], "l0_reverse");
  EXPECT_EQ(activation["sqnr_db"], 35.25);
  EXPECT_TRUE(activation["own_sqnr_db"].is_null());  // infinite
  EXPECT_TRUE(activation["own_worst_channel"].is_null());
  EXPECT_EQ(activation["worst_channel"], Json({{"channel", 1}, {"sqnr_db", 30.0}}));
  EXPECT_EQ(activation["clipped_percent"], 1.5);
  EXPECT_EQ(activation["first_part"], Json({{"sequence", "b, sequence 0"}, {"step", 4}, {"index", 0}}));
  EXPECT_TRUE(activation["largest_error_at"].is_null());
  EXPECT_EQ(json["tensors"][1]["largest_error_at"], Json({{"row", 5}, {"column", 2}}));
  EXPECT_TRUE(holds(description.text, "2 sequences, 9 steps; bars: SQNR"));
  EXPECT_TRUE(holds(description.text, "> 1.5 codes"));
  EXPECT_TRUE(holds(description.text, "35.2  ######....")) << description.text;
  EXPECT_TRUE(holds(description.text, "step 4 (b, sequence 0)"));
  EXPECT_TRUE(holds(description.text, "exact  ##########"));
}

TEST(Describe, Ablation) {
  GruAblation ablation;
  ablation.bits = "8";
  ablation.sqnr = {.output_db = 20, .layer_db = {21, 20}};
  ablation.goal_db = 36;
  GruAblationRow wide, refused;
  wide.set = "h=16";
  wide.bits = "8,h=16";
  wide.sqnr = {.output_db = 40, .layer_db = {41, 40}};
  wide.gain_db = 20;
  refused.set = "W=16";
  refused.bits = "8,W=16";
  refused.refused = "no scale";
  ablation.rows = {wide, refused};
  ablation.advice = 0;
  ablation.sentence = "widen h";
  const Description description = describe_ablation(ablation);
  Json json = Json::parse(description.json);
  EXPECT_EQ(json["layer_sqnr_db"], Json({21.0, 20.0}));
  EXPECT_EQ(json["rows"][0]["gain_db"], 20.0);
  EXPECT_EQ(json["rows"][1]["refused"], "no scale");
  EXPECT_FALSE(json["rows"][1].contains("sqnr_db"));
  EXPECT_EQ(json["advice"], Json({{"set", "h=16"}, {"bits", "8,h=16"}, {"sqnr_db", 40.0}}));
  EXPECT_TRUE(holds(description.text, "W=16  refused: no scale\n"));
  EXPECT_TRUE(holds(description.text, "\nwiden h\n"));
  ablation.advice = -1;
  EXPECT_TRUE(Json::parse(describe_ablation(ablation).json)["advice"].is_null());
}

TEST(Describe, Search) {
  GruTuneResult result;
  const GruTunePoint small{.settings = {.bits = "4"}, .quality = 20.5, .sqnr = {}, .bytes = 100};
  GruTunePoint large{.settings = {.bits = "16", .reason = "why"}, .quality = 40, .sqnr = {}, .bytes = 400};
  result.chosen = large;
  large.settings.reason.clear();
  result.front = {large, small};
  result.reached = true;
  result.evaluations = 7;
  const Description plain = describe_search(result);
  EXPECT_TRUE(holds(plain.text, "models tried: 7\n"));
  EXPECT_TRUE(holds(plain.text, "->  40.00 dB        400  6 ")) << plain.text;
  EXPECT_TRUE(holds(plain.text, "   20.50 dB        100  6 "));
  EXPECT_TRUE(holds(plain.text, "chosen: 40.00 dB, 400 bytes, "));
  EXPECT_FALSE(holds(plain.text, "commands"));
  EXPECT_FALSE(Json::parse(plain.json)["chosen"].contains("command"));
  const Description commands = describe_search(result, [](const GruSettings& s) { return "make " + s.bits; });
  EXPECT_TRUE(holds(commands.text, "commands, in the order of the table:\n  make 16\n  make 4\n"));
  EXPECT_EQ(Json::parse(commands.json)["front"][1]["command"], "make 4");
  result.reached = false;
  result.judged = true;
  EXPECT_TRUE(holds(describe_search(result).text, "best: 40, 400 bytes"));
  EXPECT_EQ(unreached_text(result, {}), "no model that was tried reaches 35; the best has 40 with --bits 16");
  EXPECT_EQ(unreached_text(result, {.target = 50.5}),
            "no model that was tried reaches 50.5; the best has 40 with "
            "--bits 16");
  EXPECT_EQ(unreached_text(result, {.max_bytes = 10}),
            "no model that was tried has at most 10 bytes; the smallest has 400, with 40");
  EXPECT_EQ(sqnr_text({.output_db = 1, .layer_db = {1.25}}), "SQNR of the output: 1.2 dB");
  EXPECT_EQ(sqnr_text({.output_db = 1, .layer_db = {kInfinity, -kInfinity}}),
            "SQNR of the outputs of each layer: exact, -inf dB");
}

TEST(Describe, Packing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.npz");
  ASSERT_TRUE(save_npz(path, {{"a", iota_f32({8, 64})}, {"b", iota_f32({7})}}).ok());
  const PackOptions options{.bits = 8};
  Result<Packing> packing = Packing::plan(path, options);
  ASSERT_TRUE(packing.ok()) << packing.status().message();
  PackDescription description("MODEL", options, *packing);
  EXPECT_EQ(description.share_done(), 0.0);
  std::vector<double> shares;
  ASSERT_TRUE(std::move(*packing)
                  .rehearse(nullptr,
                            [&](const PackTensor& tensor, const PackedTensor& packed) {
                              description.add(tensor, packed);
                              shares.push_back(description.share_done());
                            })
                  .ok());
  EXPECT_EQ(shares, (std::vector<double>{2048.0 / 2076.0, 1.0}));
  const Description all = description.describe();
  const Json json = Json::parse(all.json);
  EXPECT_TRUE(json["checkpoint"].is_null());
  EXPECT_TRUE(json["metadata"].is_null());
  ASSERT_EQ(json["tensors"].size(), 2U);
  EXPECT_EQ(json["tensors"][0]["bits"], 8);
  EXPECT_EQ(json["tensors"][0]["method"], "absmax");
  EXPECT_GT(json["tensors"][0]["sqnr_db"], 20.0);
  EXPECT_EQ(json["tensors"][1]["action"], "keep");
  EXPECT_FALSE(json["tensors"][1].contains("bits"));
  EXPECT_TRUE(json["tensors"][1]["sqnr_db"].is_null());
  EXPECT_EQ(json["total"]["bytes"], 2076);
  EXPECT_TRUE(holds(all.text, "MODEL: 2 tensors; quantised by absmax, the default at 8 bits\n")) << all.text;
  EXPECT_TRUE(holds(all.text, "as it is"));
}

TEST(Describe, TableChecks) {
  Result<Fp16Table> table = builtin_fp16_table("silu");
  const Result<std::vector<uint16_t>> exact = fp16_exact("silu");
  ASSERT_TRUE(table.ok() && exact.ok());
  TableChecks checks;
  ASSERT_TRUE(checks.add("good", *table, *exact, table->certificate.max_ulp).ok());
  EXPECT_TRUE(checks.failure().empty());
  ASSERT_TRUE(checks.add("promised", *table, *exact, table->certificate.max_ulp / 2).ok());
  table->certificate.mean_ulp *= 2;
  ASSERT_TRUE(checks.add("wrong", *table, *exact, kInfinity).ok());
  EXPECT_FALSE(checks.add("short", *table, {1, 2}, kInfinity).ok());  // an argument, not a failure
  const Description description = checks.describe();
  const Json json = Json::parse(description.json);
  EXPECT_EQ(json["failed"], 2);
  ASSERT_EQ(json["tables"].size(), 3U);
  EXPECT_EQ(json["tables"][0]["ok"], true);
  EXPECT_EQ(json["tables"][2]["ok"], false);
  EXPECT_EQ(json["tables"][2]["name"], "wrong");
  EXPECT_TRUE(holds(description.text, "  ok, at most 1 ULP\n"));
  EXPECT_TRUE(holds(description.text, "  FAILED: "));
  EXPECT_TRUE(holds(description.text, "3 tables, 2 failed\n"));
  EXPECT_TRUE(holds(checks.failure(), "promised: "));
  EXPECT_TRUE(holds(checks.failure(), "\nwrong: "));
}

TEST(Describe, TableDifference) {
  const Result<Fp16Table> first = builtin_fp16_table("silu"), second = builtin_fp16_table("silu", Fp16Model::kNliCpu);
  ASSERT_TRUE(first.ok() && second.ok());
  const Description none = describe_difference(*first, *first, {.inputs = 100});
  EXPECT_EQ(Json::parse(none.json), Json({{"inputs", 100}, {"different", 0}, {"share", 0.0}}));
  const Description some = describe_difference(
      *first, *second, {.inputs = 100, .different = 25, .first_code = 0x3c00, .first_input = 1, .first_result = 1});
  EXPECT_EQ(Json::parse(some.json)["first_code"], 0x3c00);
  EXPECT_TRUE(holds(some.text, "25 of 100 finite float16 inputs give other bits: 25.00 %\n"));
  EXPECT_TRUE(holds(some.text, "code 0x3c00 (1): 0x0001 and 0x0000\n"));
}

TEST(Describe, Verification) {
  VerifyReport report;
  report.kernels = {{.name = "gru_avx2", .path = "avx2", .outputs_compared = 10, .bytes_compared = 40},
                    {.name = "gru_amx", .path = "amx", .outputs_compared = 5, .bytes_compared = 20}};
  report.expected_by = {{"scalar", 6}};
  EXPECT_TRUE(failure_text(report).empty());
  const Description good = describe_verification(report);
  EXPECT_FALSE(Json::parse(good.json).contains("missing"));
  EXPECT_EQ(Json::parse(good.json)["expected_by"], Json({{"scalar", 6}, {"reference", 9}}));
  EXPECT_TRUE(holds(good.text, "all: 9 outputs compared with the reference, 6 with scalar of the CPU"));
  report.kernels[1].different = 1;
  report.kernels[1].first_difference = "H=3: 1, must be 2";
  report.missing = {"no_path", "cuda"};
  const Json json = Json::parse(describe_verification(report, "cuda:0").json);
  EXPECT_EQ(json["different"], 1);
  EXPECT_EQ(json["kernels"][1]["first_difference"], "H=3: 1, must be 2");
  EXPECT_FALSE(json["kernels"][0].contains("first_difference"));
  EXPECT_EQ(json["missing"], Json({"no_path", "cuda"}));
  EXPECT_EQ(failure_text(report),
            "gru_amx: H=3: 1, must be 2\n"
            "ISOBIT_REQUIRE names no_path, which was not compared: no such path\n"
            "ISOBIT_REQUIRE names cuda, which was not compared: no such path");
}

TEST(Describe, Fingerprints) {
  const Description description = describe_fingerprints({{"gru", "ab"}, {"linear", "cd"}});
  EXPECT_EQ(description.text, "gru ab\nlinear cd\n");
  EXPECT_EQ(Json::parse(description.json)["fingerprints"], Json({{"gru", "ab"}, {"linear", "cd"}}));
}

TEST(Describe, Support) {
  const Description description = describe_support();
  const Json json = Json::parse(description.json);
  ASSERT_EQ(json["kernels"].size(), std::size(kAllCpuPaths));
  for (size_t i = 0; i < std::size(kAllCpuPaths); ++i) {
    EXPECT_EQ(json["kernels"][i]["name"], to_string(kAllCpuPaths[i]));
    EXPECT_EQ(json["kernels"][i]["usable"], cpu_can_run(kAllCpuPaths[i]));
    EXPECT_EQ(json["kernels"][i]["reason"].is_null(), cpu_can_run(kAllCpuPaths[i]));
  }
  for (const Json& operation : json["operations"]) EXPECT_TRUE(holds(description.text, operation));
  for (const char* list : {"linear_kernels", "conv_kernels"}) {
    ASSERT_FALSE(json[list].empty()) << list;
    for (const Json& kernel : json[list]) EXPECT_TRUE(holds(description.text, kernel["name"])) << kernel;
  }
}

}  // namespace
}  // namespace isobit
