// SPDX-License-Identifier: Apache-2.0
// What is said of models, tables and weights: the JSON has what the objects have, the text names it.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gru/random_model.h"
#include "io/gguf/seed.h"
#include "io/test_files.h"
#include "isobit/conv.h"
#include "isobit/report.h"

namespace isobit {
namespace {

using Json = nlohmann::json;

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Describe, IntegerModels) {
  Random random(3);
  RandomShape shape = random_shape(random);
  shape.layers = 2;
  shape.directions = 2;
  const Result<GruModel> model = random_model(random, shape);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const TemporaryFolder folder;
  const std::string path = folder.file("model.safetensors");
  ASSERT_TRUE(model->save(path).ok());
  const Result<ArrayReader> file = ArrayReader::open(path);
  ASSERT_TRUE(file.ok());
  const Result<Description> shortened = describe_integer_models(*file),
                            whole = describe_integer_models(*file, {}, true);
  ASSERT_TRUE(shortened.ok() && whole.ok()) << shortened.status().message();
  EXPECT_EQ(shortened->json, whole->json);
  EXPECT_LT(shortened->text.size(), whole->text.size());
  EXPECT_TRUE(holds(whole->text, "bidirectional, " + std::to_string(shape.input)));
  const Json gru = Json::parse(whole->json)["grus"].at(0);
  EXPECT_EQ(gru["hidden_size"], shape.hidden);
  ASSERT_EQ(gru["layers"].size(), 4U);
  EXPECT_EQ(gru["layers"][3]["layer"], "l1_reverse");
  for (size_t i = 0; i < 4; ++i) {
    const Json& layer = gru["layers"][i];
    const GruLayerParameters& p = model->parameters().layers[i];
    EXPECT_EQ(layer["grids"]["x"]["zero_point"], p.grids[kX].zero_point);
    EXPECT_EQ(layer["grids"]["W"]["rows"], 3 * shape.hidden);
    EXPECT_EQ(layer["rescales"]["acc_to_ih"]["multiplier"].size(), p.acc_to_ih.size());
    EXPECT_EQ(layer["tables"][2]["max_error_lsb"], p.tables[2].certificate.max_error_lsb);
    EXPECT_EQ(layer["overflow_proof"].size(), model->overflow_proof(static_cast<int64_t>(i)).size());
  }
  EXPECT_EQ(describe_integer_models(*file, "other").status().code(), StatusCode::kInvalidArgument);
  const std::vector<GateTable> gates = gate_tables(*model);
  ASSERT_EQ(gates.size(), 12U);
  EXPECT_EQ(gates[4].name, "l0_reverse.r");
  EXPECT_EQ(gates[4].table, &model->parameters().layers[1].tables[1]);
}

TEST(Describe, StaticConvolutions) {
  const ConvShape shape{.channels = 4, .outputs = 6, .groups = 2, .rows = {.kernel = 3, .stride = 2, .pad_after = 1}};
  Array weights = Array::zeros(Dtype::kF32, {6, shape.depth()});
  for (int64_t i = 0; i < weights.size(); ++i) weights.data<float>()[i] = static_cast<float>(i % 7) - 3.0f;
  const Grid grid{.bits = 8, .shift = 3};
  StaticConvParameters p{.shape = shape};
  p.linear = *derive_static_linear(*quantize_low_bit(weights, {.bits = 8, .group = shape.depth()}, "stem"),
                                   {.input = grid, .output = grid}, "stem");
  p.residual = *derive_static_residual(grid, grid, "stem");
  const Result<StaticConvLayer> layer = StaticConvLayer::create(p, "stem");
  ASSERT_TRUE(layer.ok()) << layer.status().message();
  const TemporaryFolder folder;
  const std::string path = folder.file("convs.safetensors");
  ASSERT_TRUE(layer->save(path).ok());
  const Result<Description> told = describe_file(*ArrayReader::open(path));
  ASSERT_TRUE(told.ok()) << told.status().message();
  EXPECT_TRUE(holds(told->text, ": 1 static convolution\n")) << told->text;
  EXPECT_TRUE(holds(told->text, "\"stem\": 4 -> 6 channels in 2 groups, weights 8 bits")) << told->text;
  EXPECT_TRUE(holds(told->text, "  rows    kernel 3, stride 2, dilation 1, pads 0 and 1\n")) << told->text;
  const Json json = Json::parse(told->json)["layers"][0];
  EXPECT_EQ(json["row_axis"]["stride"], 2);
  EXPECT_EQ(json["residual_grid"], json["input_grid"]);
  EXPECT_EQ(json["accumulator_bound"], layer->accumulator_bound());
}

TEST(Describe, Tables) {
  const Result<Fp16Table> table = builtin_fp16_table("sin", Fp16Model::kNliGpu, true);
  ASSERT_TRUE(table.ok());
  const Description description = describe_table(*table);
  const Json json = Json::parse(description.json);
  EXPECT_EQ(json["function"], "sin");
  EXPECT_EQ(json["model"], "nli_gpu");
  EXPECT_EQ(json["pieces"].size(), 2U);
  EXPECT_EQ(json["pieces"][1]["cut_points"].get<std::vector<float>>(), table->pieces[1].cut_points);
  EXPECT_EQ(json["certificate"]["max_ulp"], table->certificate.max_ulp);
  EXPECT_TRUE(holds(description.text, fp16_table_text(*table)));
  EXPECT_TRUE(holds(description.text, certificate_row(*table)));
}

/// Whatever a file holds is described by its kind, and what cannot be read of it is listed.
TEST(Describe, Files) {
  const TemporaryFolder folder;
  const auto description = [&](const std::string& name, const DescribeOptions& options = {}) {
    const Result<ArrayReader> file = ArrayReader::open(folder.file(name));
    EXPECT_TRUE(file.ok()) << file.status().message();
    return describe_file(*file, options);
  };
  std::map<std::string, Array> arrays = {{"a.weight_ih_l0", iota_f32({6, 3})},
                                         {"a.weight_hh_l0", iota_f32({6, 2})},
                                         {"b.weight_ih_l0", iota_f32({8, 3})},
                                         {"b.weight_hh_l0", iota_f32({8, 2})}};
  ASSERT_TRUE(save_npz(folder.file("float.npz"), arrays).ok());
  const Result<Description> floats = description("float.npz");
  ASSERT_TRUE(floats.ok()) << floats.status().message();
  Json json = Json::parse(floats->json);
  EXPECT_EQ(json["kind"], "float");
  EXPECT_EQ(json["not_read"], Json::array());
  ASSERT_EQ(json["grus"].size(), 1U);
  EXPECT_EQ(json["grus"][0]["name"], "a");
  EXPECT_EQ(json["grus"][0]["reset_assumed"], true);
  EXPECT_EQ(json["grus"][0]["layers"][0]["parameters"], 42);
  ASSERT_EQ(json["others"].size(), 1U);
  EXPECT_EQ(json["others"][0]["name"], "b");
  EXPECT_TRUE(holds(floats->text, "float model, 1 GRU\n"));
  EXPECT_TRUE(holds(floats->text, "not a GRU that isobit converts: \"b\""));
  EXPECT_EQ(description("float.npz", {.load = {.prefix = "b"}}).status().code(), StatusCode::kInvalidFile);

  ASSERT_TRUE(save_npz(folder.file("arrays.npz"), {{"x", iota_f32({4})}}).ok());
  const Result<Description> others = description("arrays.npz");
  ASSERT_TRUE(others.ok());
  json = Json::parse(others->json);
  EXPECT_EQ(json["kind"], "arrays");
  EXPECT_EQ(json["arrays"][0]["shape"], Json({4}));
  ASSERT_EQ(others->warnings.size(), 1U);
  EXPECT_TRUE(holds(others->warnings[0], "no GRU found; expected names ending in"));

  LowBitFile low;
  low.matrices.emplace("w", *quantize_low_bit(iota_f32({3, 24}), {.group = 8}, "w"));
  ASSERT_TRUE(save_low_bit(folder.file("low.safetensors"), low).ok());
  EXPECT_EQ(Json::parse(description("low.safetensors")->json)["kind"], "low_bit");
  ASSERT_TRUE(save_fp16_table(folder.file("table.safetensors"), *builtin_fp16_table("silu")).ok());
  EXPECT_EQ(Json::parse(description("table.safetensors")->json)["function"], "silu");
}

TEST(Describe, Gguf) {
  const std::vector<std::byte> bytes = gguf_seed_file();
  const Result<GgufFile> file = GgufFile::view(bytes.data(), bytes.size(), "seed.gguf");
  ASSERT_TRUE(file.ok());
  const Description description = describe_gguf(*file);
  const Json json = Json::parse(description.json);
  EXPECT_EQ(json["metadata"].size(), file->metadata().size());
  ASSERT_EQ(json["tensors"].size(), file->tensors().size());
  uint64_t total = 0;
  for (size_t i = 0; i < file->tensors().size(); ++i) {
    EXPECT_EQ(json["tensors"][i]["name"], file->tensors()[i].name);
    total += file->tensors()[i].size_bytes;
  }
  EXPECT_EQ(json["total"]["bytes"], total);
  EXPECT_TRUE(holds(description.text, "seed.gguf: GGUF version "));
}

/// Names that are no UTF-8, and control characters, reach neither JSON nor a terminal.
TEST(Describe, LowBitWeights) {
  const Result<LowBitMatrix> matrix = quantize_low_bit(iota_f32({3, 24}), {.group = 8}, "W");
  ASSERT_TRUE(matrix.ok());
  LowBitFile content;
  content.matrices.emplace("fc\x1b[31m", *matrix);
  content.arrays["bias\xff"] = iota_f32({3});
  const Result<Description> description = describe_low_bit(content, "FILE");
  ASSERT_TRUE(description.ok());
  const Json json = Json::parse(description->json);
  EXPECT_EQ(json["matrices"][0]["bits_per_weight"], matrix->bits_per_weight());
  EXPECT_EQ(json["matrices"][0]["permuted"], false);
  EXPECT_EQ(json["arrays"][0]["shape"], Json({3}));
  EXPECT_TRUE(json["gguf_metadata"].is_null());
  EXPECT_TRUE(holds(description->text, "4 bits symmetric, group 8, f32")) << description->text;
  EXPECT_FALSE(holds(description->text, "\x1b"));
  content.metadata["gguf"] = "{";
  EXPECT_EQ(describe_low_bit(content, "FILE").status().code(), StatusCode::kInvalidFile);
}

}  // namespace
}  // namespace isobit
