// SPDX-License-Identifier: Apache-2.0
// Loading of float weights, their checks, and the grammar of bit widths.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <tuple>

#include "isobit/arrays.h"
#include "isobit/gru.h"

namespace isobit {
namespace {

/// A file of the running test, removed at its end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& extension) {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = ::testing::TempDir() + "isobit_" + test->test_suite_name() + "_" + test->name() + extension;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Element i is first + i.
Array counting(std::vector<int64_t> shape, float first) {
  Array array = Array::zeros(Dtype::kF32, std::move(shape));
  for (int64_t i = 0; i < array.size(); ++i) array.data<float>()[i] = first + static_cast<float>(i);
  return array;
}

using Arrays = std::map<std::string, Array>;

/// One layer and direction with PyTorch's names.
void add_pytorch(Arrays& arrays, const std::string& prefix, const std::string& suffix, int64_t C, int64_t H,
                 float first) {
  arrays[prefix + "weight_ih" + suffix] = counting({3 * H, C}, first);
  arrays[prefix + "weight_hh" + suffix] = counting({3 * H, H}, first + 100);
  arrays[prefix + "bias_ih" + suffix] = counting({3 * H}, first + 200);
  arrays[prefix + "bias_hh" + suffix] = counting({3 * H}, first + 300);
}

void add_short(Arrays& arrays, const std::string& prefix, int64_t C, int64_t H) {
  arrays[prefix + "w_ih"] = counting({3 * H, C}, 0);
  arrays[prefix + "w_hh"] = counting({3 * H, H}, 100);
  arrays[prefix + "b_ih"] = counting({3 * H}, 200);
  arrays[prefix + "b_hh"] = counting({3 * H}, 300);
}

Result<GruWeights> load(const Arrays& arrays, const GruLoadOptions& options = {}) {
  const TemporaryFile file(".npz");
  EXPECT_TRUE(save_npz(file.path(), arrays).ok());
  return load_gru(file.path(), options);
}

void expect_error(const Result<GruWeights>& result, StatusCode code, std::initializer_list<const char*> texts) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  for (const char* text : texts) {
    EXPECT_NE(result.status().message().find(text), std::string::npos) << result.status().message();
  }
}

TEST(GateOrder, Text) {
  EXPECT_EQ(to_string(GateOrder::kUrn), "urn");
  EXPECT_EQ(to_string(GateOrder::kRun), "pytorch");
  EXPECT_EQ(to_string(GateOrder::kOnnx), "onnx");
  EXPECT_EQ(gate_order_from_string("pytorch"), GateOrder::kRun);
  EXPECT_EQ(gate_order_from_string("PyTorch"), std::nullopt);
}

TEST(LoadGru, PytorchNamesAndGateOrder) {
  Arrays arrays;
  add_pytorch(arrays, "gru.", "_l0", 1, 2, 0);
  arrays["embedding"] = counting({5, 5}, 0);
  const auto weights = load(arrays);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->name, "gru");
  EXPECT_EQ(weights->directions, 1);
  ASSERT_EQ(weights->layers.size(), 1U);
  const GruLayerWeights& layer = weights->layers[0];
  EXPECT_EQ(layer.input_size, 1);
  EXPECT_EQ(layer.hidden_size, 2);
  // The file has r, z, n; z is u.
  EXPECT_EQ(layer.W, (std::vector<float>{2, 3, 0, 1, 4, 5}));
  EXPECT_EQ(layer.R, (std::vector<float>{104, 105, 106, 107, 100, 101, 102, 103, 108, 109, 110, 111}));
  EXPECT_EQ(layer.bw, (std::vector<float>{202, 203, 200, 201, 204, 205}));
  EXPECT_EQ(layer.br, (std::vector<float>{302, 303, 300, 301, 304, 305}));
  for (const GateOrder order : {GateOrder::kUrn, GateOrder::kOnnx}) {
    const auto same_order = load(arrays, {"", order, true});
    ASSERT_TRUE(same_order.ok());
    EXPECT_EQ(same_order->layers[0].bw, (std::vector<float>{200, 201, 202, 203, 204, 205}));
  }
}

TEST(LoadGru, SafetensorsWithLayersAndDirections) {
  ArrayFile content;
  add_pytorch(content.arrays, "", "_l0", 3, 2, 0);
  add_pytorch(content.arrays, "", "_l0_reverse", 3, 2, 1000);
  add_pytorch(content.arrays, "", "_l1", 4, 2, 2000);
  add_pytorch(content.arrays, "", "_l1_reverse", 4, 2, 3000);
  const TemporaryFile file(".safetensors");
  ASSERT_TRUE(save_safetensors(file.path(), content).ok());
  const auto weights = load_gru(file.path(), {"", GateOrder::kUrn, true});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->name, "");
  EXPECT_EQ(weights->directions, 2);
  EXPECT_EQ(weights->layer_count(), 2);
  EXPECT_EQ(weights->output_size(), 4);
  ASSERT_EQ(weights->layers.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(weights->layers[i].W[0], 1000.0f * static_cast<float>(i));
  EXPECT_EQ(weights->layers[2].input_size, 4);

  content.metadata["linear_before_reset"] = "0";
  ASSERT_TRUE(save_safetensors(file.path(), content).ok());
  expect_error(load_gru(file.path()), StatusCode::kUnsupported,
               {"linear_before_reset", "before the matrix product", "--reset after overrules the file"});
  const auto overruled = load_gru(file.path(), {.prefix = "", .reset_after = true});
  ASSERT_TRUE(overruled.ok()) << overruled.status().message();
  EXPECT_EQ(overruled->report.notes,
            std::vector<std::string>{"metadata 'linear_before_reset' = '0', which --reset after overrules"});
  EXPECT_EQ(overruled->source_hash, weights->source_hash);
  content.metadata = {{"reset_after", "True"}};
  ASSERT_TRUE(save_safetensors(file.path(), content).ok());
  EXPECT_TRUE(load_gru(file.path()).ok());
}

TEST(LoadGru, ShortNamesAndPrefixes) {
  Arrays arrays;
  add_short(arrays, "enc_", 3, 2);
  add_short(arrays, "dec_", 4, 2);
  // An LSTM has the same names and is not a GRU.
  arrays["lstm.weight_ih_l0"] = counting({8, 3}, 0);
  arrays["lstm.weight_hh_l0"] = counting({8, 2}, 0);
  const TemporaryFile file(".npz");
  ASSERT_TRUE(save_npz(file.path(), arrays).ok());
  const auto prefixes = list_grus(file.path());
  ASSERT_TRUE(prefixes.ok());
  EXPECT_EQ(*prefixes, (std::vector<std::string>{"dec", "enc"}));
  const auto weights = load_gru(file.path(), {"dec", {}, true});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->name, "dec");
  EXPECT_EQ(weights->input_size(), 4);
  EXPECT_EQ(weights->layers[0].bw, (std::vector<float>{202, 203, 200, 201, 204, 205}));
  expect_error(load_gru(file.path()), StatusCode::kInvalidArgument, {"'dec', 'enc'", "prefix"});
  expect_error(load_gru(file.path(), {"x", {}, true}), StatusCode::kInvalidArgument, {"'x'", "'dec', 'enc'"});
  expect_error(load_gru(file.path(), {"lstm", {}, true}), StatusCode::kInvalidFile,
               {"'lstm.weight_hh_l0'", "(8, 2)", "LSTM"});
}

TEST(LoadGru, MissingBiasesAreZero) {
  Arrays arrays;
  add_short(arrays, "", 3, 2);
  arrays.erase("b_hh");
  const auto one = load(arrays);
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(one->layers[0].bw[0], 202.0f);
  EXPECT_EQ(one->layers[0].br, std::vector<float>(6));
  arrays.erase("b_ih");
  const auto none = load(arrays);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->layers[0].bw, std::vector<float>(6));
}

TEST(LoadGru, WhatWasAssumed) {
  Arrays arrays;
  add_pytorch(arrays, "g.", "_l0", 3, 2, 0);
  const auto given = [&](const GruLoadOptions& options) {
    const auto weights = load(arrays, options);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    const GruLoadReport& report = weights->report;
    return std::tuple(!report.gate_order_assumed, !report.layout_assumed, !report.reset_assumed);
  };
  EXPECT_EQ(given({}), std::tuple(false, false, false));
  EXPECT_EQ(given({.prefix = "g", .gate_order = GateOrder::kRun}), std::tuple(true, false, false));
  EXPECT_EQ(given({.prefix = "g", .layout = GruLayout::kRows}), std::tuple(false, true, false));
  EXPECT_EQ(given({.prefix = "g", .reset_after = true}), std::tuple(false, false, true));
}

TEST(LoadGru, Refusals) {
  Arrays good;
  add_pytorch(good, "g.", "_l0", 3, 2, 0);
  add_pytorch(good, "g.", "_l1", 2, 2, 0);
  ASSERT_TRUE(load(good).ok());
  expect_error(load(good, {"", {}, false}), StatusCode::kUnsupported, {"reset_after", "before the matrix product"});
  expect_error(load(good, {"", static_cast<GateOrder>(7), true}), StatusCode::kInvalidArgument, {"gate_order", "7"});
  expect_error(load({{"a", counting({2}, 0)}}), StatusCode::kInvalidFile, {"no GRU"});

  Arrays bad = good;
  bad["g.bias_hh_l1"] = counting({5}, 0);
  expect_error(load(bad), StatusCode::kInvalidFile, {"'g.bias_hh_l1'", "(5,)", "(6,)"});
  bad = good;
  bad["g.weight_ih_l0"] = counting({5, 3}, 0);
  expect_error(load(bad), StatusCode::kInvalidFile, {"'g.weight_ih_l0'", "(5, 3)", "(6, C)"});
  bad = good;
  bad["g.weight_hh_l0"] = counting({7, 2}, 0);
  expect_error(load(bad), StatusCode::kInvalidFile, {"'g.weight_hh_l0'", "(7, 2)", "(3 * H, H)"});
  bad = good;
  bad["g.weight_ih_l1"] = counting({6, 3}, 0);  // the layer below has 2 outputs
  expect_error(load(bad), StatusCode::kInvalidFile, {"'g.weight_ih_l1'", "layer 1", "C is 3", "must be 2"});
  bad = good;
  bad.erase("g.weight_hh_l1");
  expect_error(load(bad), StatusCode::kInvalidFile, {"'g'", "weight_hh_l1"});
  bad = good;
  add_pytorch(bad, "g.", "_l0_reverse", 3, 2, 0);
  expect_error(load(bad), StatusCode::kInvalidFile, {"weight_ih_l1_reverse"});
  bad = good;
  bad["g.bias_hh_l1"] = Array::zeros(Dtype::kS32, {6});
  expect_error(load(bad), StatusCode::kInvalidFile, {"'g.bias_hh_l1'", "s32", "f32"});
  bad = good;
  bad["g_w_ih"] = counting({6, 3}, 0);
  expect_error(load(bad), StatusCode::kInvalidFile, {"'g.weight_ih_l0'", "'g_w_ih'", "same tensor"});
  bad = good;
  bad["g.weight_hh_l1"].data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  expect_error(load(bad, {"", GateOrder::kUrn, true}), StatusCode::kInvalidFile,
               {"g.weight_hh_l1[2, 1] is nan", "must be finite"});
}

/// A file of `header` (its braces are left out) and, after it, the bytes of W, R and both biases, H = 2, C = 3.
std::string with_foreign_tensor(const std::string& type, int64_t elements, size_t bytes) {
  const std::pair<const char*, std::vector<int64_t>> parts[] = {
      {"weight_ih", {6, 3}}, {"weight_hh", {6, 2}}, {"bias_ih", {6}}, {"bias_hh", {6}}};
  std::string header = R"({"other":{"dtype":")" + type + R"(","shape":[)" + std::to_string(elements) +
                       R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}";
  std::string data(bytes, 'x');
  for (const auto& [name, shape] : parts) {
    const Array array = counting(shape, 0);
    header += std::string(R"(,"g.)") + name + R"(_l0":{"dtype":"F32","shape":[)" + std::to_string(shape[0]) +
              (shape.size() == 2 ? "," + std::to_string(shape[1]) : "") + R"(],"data_offsets":[)" +
              std::to_string(data.size()) + "," + std::to_string(data.size() + array.bytes.size()) + "]}";
    data.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  }
  header += "}";
  std::string length(8, '\0');
  for (size_t i = 0; i < 4; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return length + header + data;
}

TEST(LoadGru, IgnoresArraysOfTypesThatAreNotRead) {
  const TemporaryFile file(".safetensors");
  for (const auto& [type, elements, bytes] :
       {std::tuple{"F8_E4M3", 5, 5}, {"F4", 4, 2}, {"C64", 1, 8}, {"U64", 2, 16}, {"FUTURE", 3, 7}}) {
    const std::string content = with_foreign_tensor(type, elements, static_cast<size_t>(bytes));
    ASSERT_TRUE(write_file_atomically(file.path(), content.data(), content.size()).ok());
    const auto weights = load_gru(file.path());
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->name, "g");
    // Who asks for it is told its name and type.
    expect_error(load_gru(file.path(), {.prefix = "x",
                                        .arrays = {{"x.weight_ih_l0", "g.weight_ih_l0"},
                                                   {"x.weight_hh_l0", "g.weight_hh_l0"},
                                                   {"x.bias_ih_l0", "other"}}}),
                 StatusCode::kUnsupported, {"'other'", type});
  }
}

TEST(FindGrus, NamesOtherNetworks) {
  Arrays arrays;
  add_pytorch(arrays, "good.", "_l0", 3, 2, 0);
  arrays["projected.weight_ih_l0"] = counting({8, 3}, 0);
  arrays["projected.weight_hh_l0"] = counting({8, 1}, 0);
  arrays["projected.weight_hr_l0"] = counting({1, 2}, 0);
  arrays["lstm.weight_ih_l0"] = counting({8, 3}, 0);
  arrays["lstm.weight_hh_l0"] = counting({8, 2}, 0);
  arrays["rnn.weight_ih_l0"] = counting({2, 3}, 0);
  arrays["rnn.weight_hh_l0"] = counting({2, 2}, 0);
  arrays["half.weight_ih_l0"] = counting({6, 3}, 0);
  arrays["odd.weight_ih_l0"] = counting({6}, 0);
  arrays["odd.weight_hh_l0"] = counting({6, 2, 1, 1}, 0);
  arrays["twice.weight_ih_l0"] = counting({6, 3}, 0);
  arrays["twice.weight_ih"] = counting({6, 3}, 0);
  arrays["twice.weight_hh"] = counting({6, 2}, 0);
  arrays["dense/kernel"] = counting({3, 6}, 0);
  arrays["head.W"] = counting({3, 6}, 0);
  const TemporaryFile file(".npz");
  ASSERT_TRUE(save_npz(file.path(), arrays).ok());
  const auto reader = ArrayReader::open(file.path());
  ASSERT_TRUE(reader.ok());
  const auto found = find_grus(*reader);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const std::pair<const char*, const char*> expected[] = {{"good", ""},
                                                          {"half", "no array weight_hh_l0"},
                                                          {"lstm", "LSTM"},
                                                          {"odd", "(6, 2, 1, 1)"},
                                                          {"projected", "LSTM with proj_size"},
                                                          {"rnn", "plain RNN"},
                                                          {"twice", "name the same tensor"}};
  ASSERT_EQ(found->size(), std::size(expected));
  for (size_t i = 0; i < found->size(); ++i) {
    const GruCandidate& candidate = (*found)[i];
    EXPECT_EQ(candidate.prefix, expected[i].first);
    EXPECT_EQ(candidate.is_gru, i == 0) << candidate.problem;
    EXPECT_NE(candidate.problem.find(expected[i].second), std::string::npos) << candidate.problem;
    if (i > 0) {
      expect_error(load_gru(*reader, {.prefix = candidate.prefix}), StatusCode::kInvalidFile, {expected[i].second});
    }
  }
  EXPECT_EQ(load_gru(*reader)->name, "good");
  EXPECT_EQ(*list_grus(file.path()), std::vector<std::string>{"good"});
}

TEST(LoadGru, ListsArraysThatAreNotUsed) {
  Arrays arrays;
  add_pytorch(arrays, "gru.", "_l0", 3, 2, 0);
  const auto plain = load(arrays);
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(plain->report.unused.empty());
  arrays["gru.layernorm.weight"] = counting({6}, 0);
  arrays["gru.ln_ih_l0"] = counting({6}, 0);
  arrays["gru.peephole"] = counting({2}, 0);
  arrays["gru.other.weight_ih_l0"] = counting({8, 3}, 0);  // of an LSTM: a network of its own
  arrays["gru.other.weight_hh_l0"] = counting({8, 2}, 0);
  arrays["gru.other.scale"] = counting({1}, 0);
  arrays["gru_2.bias"] = counting({2}, 0);
  arrays["fc.weight"] = counting({2, 2}, 0);
  const auto weights = load(arrays);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->report.unused, (std::vector<std::string>{"gru.layernorm.weight", "gru.ln_ih_l0", "gru.peephole"}));
  EXPECT_EQ(weights->source_hash, plain->source_hash);
}

TEST(LoadGru, RemovesALeadingOneWhateverTheNames) {
  Arrays plain, leading;
  add_pytorch(plain, "gru.", "_l0", 3, 2, 0);
  for (const auto& [name, array] : plain) {
    leading[name] = array;
    leading[name].shape.insert(leading[name].shape.begin(), 1);
  }
  const auto wanted = load(plain), weights = load(leading);
  ASSERT_TRUE(wanted.ok() && weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->layers[0].W, wanted->layers[0].W);
  EXPECT_EQ(weights->layers[0].R, wanted->layers[0].R);
  EXPECT_EQ(weights->layers[0].bw, wanted->layers[0].bw);
  EXPECT_FALSE(weights->report.notes.empty());
}

TEST(LoadGru, RefusesStaleCopies) {
  Arrays good;
  add_pytorch(good, "gru.", "_l0", 3, 2, 0);
  for (const char* name : {"gru.weight_hh_l0_raw", "gru.weight_hh_l0_g", "gru.weight_ih_l0_v", "gru.weight_hh_l0_orig",
                           "gru.weight_hh_l0_mask", "gru.parametrizations.weight_hh_l0.original0"}) {
    Arrays arrays = good;
    arrays[name] = counting({6, 2}, 500);
    expect_error(load(arrays), StatusCode::kUnsupported, {name, "stale copy", "--layer gru=gru.weight_ih_l0,"});
    const std::map<std::string, std::string> chosen = {{"gru.weight_ih_l0", "gru.weight_ih_l0"},
                                                       {"gru.weight_hh_l0", "gru.weight_hh_l0"}};
    const auto copy = load(arrays, {.prefix = "gru", .arrays = chosen});
    ASSERT_TRUE(copy.ok()) << copy.status().message();
    EXPECT_EQ(copy->layers[0].R[0], 104.0f);
    EXPECT_EQ(copy->layers[0].bw, std::vector<float>(6));  // only what was given
    EXPECT_NE(std::find(copy->report.unused.begin(), copy->report.unused.end(), name), copy->report.unused.end());
  }
  // Wrappers put the copy one level below the trained array, or above it.
  for (const auto& [prefix, raw] : {std::pair{"gru.module.", "gru.weight_hh_l0_raw"},
                                    std::pair{"gru.", "gru.module.weight_hh_l0_raw"},
                                    std::pair{"0.gru.0.module.", "0.gru.0.weight_hh_l0_raw"}}) {
    Arrays arrays;
    add_pytorch(arrays, prefix, "_l0", 3, 2, 0);
    arrays[raw] = counting({6, 2}, 500);
    expect_error(load(arrays), StatusCode::kUnsupported, {raw, "stale copy"});
  }
  // The trained one, beside the copy and without it.
  Arrays arrays = good;
  arrays["gru.weight_hh_l0_raw"] = counting({6, 2}, 500);
  const std::map<std::string, std::string> trained = {{"gru.weight_ih_l0", "gru.weight_ih_l0"},
                                                      {"gru.weight_hh_l0", "gru.weight_hh_l0_raw"}};
  EXPECT_EQ(load(arrays, {.prefix = "gru", .arrays = trained})->layers[0].R[0], 504.0f);
  arrays.erase("gru.weight_hh_l0");
  expect_error(load(arrays), StatusCode::kInvalidFile,
               {"no array weight_hh_l0", "'gru.weight_hh_l0_raw'",
                "--layer gru=gru.weight_ih_l0,gru.weight_hh_l0_raw,gru.bias_ih_l0,gru.bias_hh_l0"});
  EXPECT_EQ(load(arrays, {.prefix = "gru", .arrays = trained})->layers[0].R[0], 504.0f);
}

TEST(LoadGru, RefusesOtherActivations) {
  ArrayFile content;
  add_pytorch(content.arrays, "g.", "_l0", 3, 2, 0);
  const TemporaryFile file(".safetensors");
  const auto load_with = [&](const std::string& key, const std::string& value) {
    content.metadata = {{key, value}};
    EXPECT_TRUE(save_safetensors(file.path(), content).ok());
    return load_gru(file.path());
  };
  for (const auto& [key, value] : {std::pair{"activation", "relu"},
                                   {"g.recurrent_activation", "hard_sigmoid"},
                                   {"gate_activation", "tanh"},
                                   {"activations", "[\"Sigmoid\", \"Relu\"]"},
                                   {"g.activations", "HardSigmoid,Tanh"}}) {
    expect_error(load_with(key, value), StatusCode::kUnsupported, {key, "sigmoid for u and r and tanh for n"});
  }
  for (const auto& [key, value] : {std::pair{"activation", "tanh"},
                                   {"g.recurrent_activation", "sigmoid"},
                                   {"gate_activation", "Sigmoid"},
                                   {"activations", "[\"Sigmoid\", \"Tanh\", \"Sigmoid\", \"Tanh\"]"},
                                   {"h.activation", "relu"}}) {
    EXPECT_TRUE(load_with(key, value).ok()) << key;
  }
}

TEST(LoadGru, NamesOfGruCell) {
  Arrays usual, cell;
  add_pytorch(usual, "cells.0.", "_l0", 3, 2, 0);
  add_pytorch(cell, "cells.0.", "", 3, 2, 0);
  const auto weights = load(cell);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->name, "cells.0");
  EXPECT_EQ(weights->layers[0].W, load(usual)->layers[0].W);
  EXPECT_EQ(weights->layers[0].br, load(usual)->layers[0].br);
  EXPECT_EQ(weights->report.gate_order, GateOrder::kRun);
  EXPECT_EQ(weights->report.layout, GruLayout::kRows);
}

/// A weight in row 3H of isobit's order, column c: no two are alike.
GruLayerWeights distinct_layer(int64_t C, int64_t H, float first) {
  GruLayerWeights layer;
  layer.input_size = C;
  layer.hidden_size = H;
  const auto values = [&first](int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = first++;
    return out;
  };
  layer.W = values(3 * H * C);
  layer.R = values(3 * H * H);
  layer.bw = values(3 * H);
  layer.br = values(3 * H);
  return layer;
}

std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
  return out;
}

Array array_of(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  return Array::copy_of(values.data(), shape);
}

void expect_layer(const GruLayerWeights& layer, const GruLayerWeights& wanted) {
  EXPECT_EQ(layer.input_size, wanted.input_size);
  EXPECT_EQ(layer.W, wanted.W);
  EXPECT_EQ(layer.R, wanted.R);
  EXPECT_EQ(layer.bw, wanted.bw);
  EXPECT_EQ(layer.br, wanted.br);
}

bool has_note(const GruWeights& weights, const char* text) {
  return std::any_of(weights.report.notes.begin(), weights.report.notes.end(),
                     [text](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST(LoadGru, ArraysOfOnnx) {
  const GruLayerWeights forward = distinct_layer(4, 2, 1), reverse = distinct_layer(4, 2, 1000);
  Arrays one;
  one["net.W"] = array_of(forward.W, {1, 6, 4});
  one["net.R"] = array_of(forward.R, {1, 6, 2});
  one["net.B"] = array_of(joined(forward.bw, forward.br), {1, 12});
  const auto weights = load(one);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->name, "net");
  expect_layer(weights->layers[0], forward);
  EXPECT_EQ(weights->report.gate_order, GateOrder::kOnnx);
  EXPECT_TRUE(has_note(*weights, "'net.W' (1, 6, 4): its leading 1 is removed"));
  EXPECT_TRUE(has_note(*weights, "'net.B' (1, 12): the bias of W, then that of R"));
  EXPECT_TRUE(has_note(*weights, "gate order is onnx"));

  const Arrays two = {{"W", array_of(joined(forward.W, reverse.W), {2, 6, 4})},
                      {"R", array_of(joined(forward.R, reverse.R), {2, 6, 2})},
                      {"B", array_of(joined(joined(forward.bw, forward.br), joined(reverse.bw, reverse.br)), {2, 12})}};
  const auto both = load(two);
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->directions, 2);
  ASSERT_EQ(both->layers.size(), 2U);
  expect_layer(both->layers[0], forward);
  expect_layer(both->layers[1], reverse);
  EXPECT_TRUE(has_note(*both, "counts directions"));

  // Under names of their own, with a gate order that is given.
  const Arrays own = {{"onnx::GRU_1", one.at("net.W")}, {"onnx::GRU_2", one.at("net.R")}, {"3", one.at("net.B")}};
  std::map<std::string, std::string> names = {
      {"g.weight_ih_l0", "onnx::GRU_1"}, {"g.weight_hh_l0", "onnx::GRU_2"}, {"g.bias_ih_l0", "3"}};
  expect_layer(load(own, {.prefix = "g", .arrays = names})->layers[0], forward);
  const auto swapped = load(own, {.prefix = "g", .gate_order = GateOrder::kRun, .arrays = names});
  ASSERT_TRUE(swapped.ok());
  EXPECT_EQ(swapped->layers[0].bw, (std::vector<float>{forward.bw[2], forward.bw[3], forward.bw[0], forward.bw[1],
                                                       forward.bw[4], forward.bw[5]}));

  Arrays single = own;
  single["3"] = counting({6}, 0);
  expect_error(load(single, {.prefix = "g", .arrays = names}), StatusCode::kInvalidFile,
               {"'3'", "(6,)", "(1, 12)", "no second bias"});

  Arrays bad = one;
  bad["net.B"] = counting({1, 6}, 0);
  expect_error(load(bad), StatusCode::kInvalidFile, {"'net.B'", "(1, 6)", "(1, 12)"});
  bad = one;
  bad["net.R"] = counting({3, 6, 2}, 0);
  expect_error(load(bad), StatusCode::kInvalidFile, {"'net.R'", "(3, 6, 2)"});
  bad = two;
  bad["W"] = counting({1, 6, 4}, 0);
  expect_error(load(bad), StatusCode::kInvalidFile, {"'W'", "(1, 6, 4)"});
}

TEST(LoadGru, LayoutsOfKerasAndHaste) {
  const GruLayerWeights layer = distinct_layer(4, 2, 1);
  const Array W = array_of(transposed(layer.W, 6, 4), {4, 6}), R = array_of(transposed(layer.R, 6, 2), {2, 6});
  const Array bw = array_of(layer.bw, {6}), br = array_of(layer.br, {6});
  const Arrays haste = {{"h/kernel", W}, {"h/recurrent_kernel", R}, {"h/bias", bw}, {"h/recurrent_bias", br}};
  const Arrays keras = {{"gru/cell/kernel:0", W},
                        {"gru/cell/recurrent_kernel:0", R},
                        {"gru/cell/bias:0", array_of(joined(layer.bw, layer.br), {2, 6})}};
  for (const Arrays& arrays : {haste, keras}) {
    const auto weights = load(arrays);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    expect_layer(weights->layers[0], layer);
    EXPECT_EQ(weights->report.layout, GruLayout::kColumns);
    EXPECT_EQ(weights->report.gate_order, GateOrder::kOnnx);
    EXPECT_TRUE(has_note(*weights, "Keras and Haste"));
  }
  const std::map<std::string, std::string> by_name = {{"g.weight_ih_l0", "h/kernel"},
                                                      {"g.weight_hh_l0", "h/recurrent_kernel"},
                                                      {"g.bias_ih_l0", "h/bias"},
                                                      {"g.bias_hh_l0", "h/recurrent_bias"}};
  expect_layer(load(haste, {.prefix = "g", .arrays = by_name})->layers[0], layer);
  Arrays before = haste;  // a single bias: Keras with reset_after = False
  before.erase("h/recurrent_bias");
  expect_error(load(before), StatusCode::kUnsupported, {"'h/bias'", "reset_after = False"});

  // Names of PyTorch, whose order they keep.
  Arrays columns = {{"g.weight_ih_l0", W}, {"g.weight_hh_l0", R}, {"g.bias_ih_l0", bw}, {"g.bias_hh_l0", br}};
  const GruLoadOptions urn{.prefix = "", .gate_order = GateOrder::kUrn};
  const auto recognised = load(columns, urn);
  ASSERT_TRUE(recognised.ok()) << recognised.status().message();
  expect_layer(recognised->layers[0], layer);
  EXPECT_TRUE(recognised->report.layout_note.starts_with("layout columns, as the shapes"));
  EXPECT_EQ(load(columns)->report.gate_order, GateOrder::kRun);
  expect_error(load(columns, {.prefix = "", .layout = GruLayout::kRows}), StatusCode::kInvalidFile,
               {"'g.weight_hh_l0'", "(2, 6)", "layout columns"});

  // C = 3H: the shape of W fits both, so the default of the names holds.
  const GruLayerWeights square = distinct_layer(6, 2, 1);
  columns["g.weight_ih_l0"] = array_of(transposed(square.W, 6, 6), {6, 6});
  expect_error(load(columns, urn), StatusCode::kInvalidFile, {"'g.weight_hh_l0'", "layout columns"});
  const auto given = load(columns, {.prefix = "", .gate_order = GateOrder::kUrn, .layout = GruLayout::kColumns});
  ASSERT_TRUE(given.ok()) << given.status().message();
  EXPECT_EQ(given->layers[0].W, square.W);
  Arrays named = haste;
  named["h/kernel"] = columns["g.weight_ih_l0"];
  EXPECT_EQ(load(named)->layers[0].W, square.W);

  columns["g.weight_ih_l0"] = W;
  columns["g.weight_hh_l0"].data<float>()[1 * 6 + 4] = std::numeric_limits<float>::infinity();
  expect_error(load(columns), StatusCode::kInvalidFile, {"g.weight_hh_l0[1, 4] is inf"});
}

TEST(LoadGru, ErrorsHaveTheIndicesOfTheFile) {
  Arrays good;
  add_pytorch(good, "g.", "_l0", 4, 2, 0);
  Arrays bad = good;
  bad["g.weight_ih_l0"].data<float>()[3 * 4 + 3] = std::numeric_limits<float>::quiet_NaN();
  expect_error(load(bad), StatusCode::kInvalidFile, {"g.weight_ih_l0[3, 3] is nan"});
  bad = good;
  bad["g.bias_hh_l0"].data<float>()[1] = -std::numeric_limits<float>::infinity();
  expect_error(load(bad), StatusCode::kInvalidFile, {"g.bias_hh_l0[1] is -inf"});
  bad = good;
  const double wide[] = {0, 0, 1e300, 0, 0, 0};
  bad["g.bias_ih_l0"] = Array::copy_of(wide, {6});
  expect_error(load(bad), StatusCode::kInvalidFile, {"g.bias_ih_l0[2] is 1e+300", "inf as float32"});
  bad = good;
  Array half = Array::zeros(Dtype::kF16, {6});
  half.data<uint16_t>()[4] = 0x7c00;
  bad["g.bias_ih_l0"] = half;
  expect_error(load(bad), StatusCode::kInvalidFile, {"g.bias_ih_l0[4] is inf"});
  const Arrays own = {{"a", good["g.weight_ih_l0"]}, {"b", counting({6, 2}, std::numeric_limits<float>::infinity())}};
  expect_error(load(own, {.prefix = "g", .arrays = {{"g.weight_ih_l0", "a"}, {"g.weight_hh_l0", "b"}}}),
               StatusCode::kInvalidFile, {"b[0, 0] is inf"});
}

TEST(LoadGru, AnEmptyPrefixBesideOthers) {
  Arrays arrays;
  add_pytorch(arrays, "", "_l0", 3, 2, 0);
  add_pytorch(arrays, "dec.", "_l0", 4, 2, 0);
  expect_error(load(arrays), StatusCode::kInvalidArgument, {"2 GRUs", "'', 'dec'"});
  const auto weights = load(arrays, {.prefix = "", .unprefixed = true});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->input_size(), 3);
  EXPECT_TRUE(weights->report.unused.empty());
}

TEST(LoadGru, SourceHash) {
  Arrays arrays;
  add_short(arrays, "", 3, 2);
  const std::string first = load(arrays)->source_hash;
  EXPECT_EQ(first.size(), 16U);
  arrays["other"] = counting({1}, 0);
  EXPECT_EQ(load(arrays)->source_hash, first);
  arrays["w_ih"].data<float>()[0] = 0.5f;
  EXPECT_NE(load(arrays)->source_hash, first);
}

TEST(CheckWeights, NamesTensorAndIndex) {
  GruWeights weights;
  EXPECT_FALSE(check_weights(weights).ok());
  weights.layers = {{2, 1, std::vector<float>(6), std::vector<float>(3), std::vector<float>(3), std::vector<float>(3)}};
  EXPECT_TRUE(check_weights(weights).ok());
  weights.directions = 3;
  EXPECT_NE(check_weights(weights).message().find("directions is 3"), std::string::npos);
  weights.directions = 1;
  weights.layers[0].br[2] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(check_weights(weights).message(), "layer 0: br[2] is inf, must be finite");
  weights.layers[0].br.pop_back();
  EXPECT_EQ(check_weights(weights).message(), "layer 0: br has 2 values, must have 3 x 1");
}

// ---------------------------------------------------------------------------------------------------------------
// Bit widths

std::array<int32_t, kGruTensorCount> bits_of(std::string_view text) {
  GruQuantization quantization;
  const Status status = apply_bits(text, quantization);
  EXPECT_TRUE(status.ok()) << status.message();
  std::array<int32_t, kGruTensorCount> bits{};
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = quantization.tensors[i].bits;
  return bits;
}

TEST(ApplyBits, Defaults) {
  const auto tensors = GruQuantization::default_tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].bits, 8);
    EXPECT_EQ(tensors[i].is_signed, i != kU && i != kRGate) << kGruTensorNames[i];
    EXPECT_EQ(tensors[i].symmetric, (i >= kW && i <= kBr) || i == kN) << kGruTensorNames[i];
    EXPECT_FALSE(tensors[i].steps);
  }
}

TEST(ApplyBits, NamesAndGroups) {
  using Bits = std::array<int32_t, kGruTensorCount>;
  //                                 x   h   W   R   bw  br  ih  hh  ui  ri  ni  u   r   n
  EXPECT_EQ(bits_of("16"), (Bits{16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16}));
  EXPECT_EQ(bits_of("7"), (Bits{7, 7, 7, 7, 8, 8, 7, 7, 7, 7, 7, 7, 7, 7}));
  EXPECT_EQ(bits_of("16,biases=8"), (Bits{16, 16, 16, 16, 8, 8, 16, 16, 16, 16, 16, 16, 16, 16}));
  EXPECT_EQ(bits_of("all=16"), (Bits{16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16}));
  EXPECT_EQ(bits_of("8,linear=16,gate_in=12"), (Bits{8, 8, 8, 8, 8, 8, 16, 16, 12, 12, 12, 8, 8, 8}));
  EXPECT_EQ(bits_of("weights=4,biases=32,gate_out=7"), (Bits{8, 8, 4, 4, 32, 32, 8, 8, 8, 8, 8, 7, 7, 7}));
  EXPECT_EQ(bits_of("r=3,R=5,u_in=1"), (Bits{8, 8, 8, 5, 8, 8, 8, 8, 1, 8, 8, 8, 3, 8}));
  // Later entries win, also over what would be refused alone.
  EXPECT_EQ(bits_of("bw=12,32,gate_in=16,gate_out=16,W=6"),
            (Bits{32, 32, 6, 32, 16, 16, 32, 32, 16, 16, 16, 16, 16, 16}));
}

TEST(ApplyBits, NamedSettings) {
  for (const NamedBits& named : named_bits()) EXPECT_EQ(bits_of(named.name), bits_of(named.bits)) << named.name;
  EXPECT_EQ(bits_of("small"), bits_of("8"));
  auto widened = bits_of("small");
  widened[kH] = 16;
  EXPECT_EQ(bits_of("precise,small,h=16"), widened);
}

TEST(ApplyBits, Layers) {
  GruQuantization q;
  ASSERT_TRUE(apply_bits("8,l1.h=16,l2=12,linear=10,l1.gate_out=9:steps=300,l3=small", q).ok());
  EXPECT_EQ(q.tensors[kH].bits, 8);
  EXPECT_EQ(q.tensors[kIh].bits, 10);
  EXPECT_EQ(&q.layer(0), &q);
  EXPECT_EQ(q.layer(1).tensors[kH].bits, 16);
  EXPECT_EQ(q.layer(1).tensors[kX].bits, 8);
  EXPECT_EQ(q.layer(1).tensors[kIh].bits, 10) << "a later entry for all layers reaches layer 1";
  EXPECT_EQ(q.layer(1).tensors[kU], (GridOptions{9, false, false, 300}));
  EXPECT_EQ(q.layer(2).tensors[kH].bits, 12);
  EXPECT_EQ(q.layer(2).tensors[kBw].bits, 16) << "a bare width above 8 widens the layer's biases";
  EXPECT_EQ(q.layer(3).tensors[kIh].bits, 8);
  EXPECT_EQ(q.tensors[kBw].bits, 8);
}

TEST(ApplyMethods, TensorsAndLayers) {
  GruQuantization q;
  ASSERT_TRUE(apply_methods("sqnr,x=ema:0.95,l1.h=percentile:99.9,l1.gate_in=minmax", q).ok());
  EXPECT_EQ(to_string(q.methods[kX]), "ema:0.95");
  EXPECT_EQ(to_string(q.methods[kH]), "sqnr");
  EXPECT_EQ(to_string(q.layer(1).methods[kH]), "percentile:99.9");
  EXPECT_EQ(to_string(q.layer(1).methods[kNIn]), "minmax");
  EXPECT_EQ(to_string(q.layer(1).methods[kHh]), "sqnr");
  for (const char* text : {"W=sqnr", "biases=minmax", "u=minmax", "gate_out=sqnr", "best", "h=", "", "l=sqnr",
                           "l1.x=sqnr", "l1.=sqnr", "l99999.h=sqnr", "y=sqnr"}) {
    GruQuantization same = q;
    const Status status = apply_methods(std::string("minmax,") + text, q);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(q.methods, same.methods) << text;
  }
}

TEST(ApplyTables, Layers) {
  GruQuantization q;
  ASSERT_TRUE(apply_tables("direct,l1=segments:16,l2=default", q).ok());
  EXPECT_EQ(to_string(*q.table), "direct");
  EXPECT_EQ(to_string(*q.layer(1).table), "segments:16");
  EXPECT_FALSE(q.layer(2).table);
  for (const char* text : {"u=direct", "l1.u=direct", "table", ""}) EXPECT_FALSE(apply_tables(text, q).ok()) << text;
}

TEST(ApplyBits, Options) {
  GruQuantization quantization;
  ASSERT_TRUE(apply_bits("8:unsigned:symmetric,h=16:symmetric:signed,x=7:asymmetric:steps=100", quantization).ok());
  const auto& tensors = quantization.tensors;
  EXPECT_EQ(tensors[kH], (GridOptions{16, true, true, {}}));
  EXPECT_EQ(tensors[kX], (GridOptions{7, false, false, 100}));
  EXPECT_EQ(tensors[kIh], (GridOptions{8, false, true, {}}));
  EXPECT_EQ(tensors[kW], (GridOptions{8, true, true, {}}));
  // A new width has its own default steps, and keeps sign and symmetry.
  ASSERT_TRUE(apply_bits("x=6", quantization).ok());
  EXPECT_EQ(quantization.tensors[kX], (GridOptions{6, false, false, {}}));
  ASSERT_TRUE(apply_bits("8:asymmetric", quantization).ok());
  EXPECT_FALSE(quantization.tensors[kN].symmetric);
  EXPECT_TRUE(quantization.tensors[kR].symmetric);
}

TEST(ApplyBits, Refusals) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"", {"''", "1 to 32"}},
      {"8,", {"''"}},
      {"0", {"'0'", "1 to 32"}},
      {"h=33", {"'h=33'", "33 bits", "1 to 32"}},
      {"h= 8", {"'h= 8'"}},
      {"h=8x", {"'h=8x'"}},
      {"h=99999999999999999999", {"1 to 32"}},
      {"=8", {"unknown tensor ''"}},
      {"8,q=4", {"'q=4'", "unknown tensor 'q'", "u_in", "gate_out"}},
      {"l1.x=8", {"'l1.x=8'", "l0.h"}},
      {"l1.q=4", {"unknown tensor 'q'"}},
      {"lx.h=4", {"unknown tensor 'lx.h'"}},
      {"l1.h=17:steps=0", {"h has 0 steps"}},
      {"h=small", {"'h=small'", "leave the name out"}},
      {"smal", {"'smal'", "small", "precise"}},
      {"h=8:odd", {"'h=8:odd'", "'odd'", "asymmetric"}},
      {"h=8:", {"unknown option ''"}},
      {"h=8:steps=", {"'steps='"}},
      {"h=8:steps=257", {"h has 257 steps", "1 to 256"}},
      {"h=8:symmetric:steps=1", {"h has 1 steps", "2 to 256"}},
      {"r_in=17", {"'r_in=17'", "r_in has 17 bits", "at most 16"}},
      {"gate_out=20", {"'gate_out=20'", "u has 20 bits", "at most 16"}},
      {"32", {"'32'", "u_in has 32 bits", "at most 16"}},
      {"W=8:asymmetric", {"'W=8:asymmetric'", "W is asymmetric", "must be symmetric"}},
      {"biases=8:asymmetric", {"bw is asymmetric"}},
      {"all=8:asymmetric", {"W is asymmetric"}},
  };
  for (const auto& [text, parts] : cases) {
    GruQuantization quantization;
    const Status status = apply_bits(std::string("x=5,") + text, quantization);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    for (const char* part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos) << text << ": " << status.message();
    }
    EXPECT_EQ(quantization.tensors, GruQuantization::default_tensors()) << text;
  }
}

}  // namespace
}  // namespace isobit
