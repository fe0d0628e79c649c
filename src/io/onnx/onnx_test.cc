// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "io/onnx/seed.h"
#include "io/test_files.h"
#include "isobit/files.h"
#include "isobit/gru.h"
#include "isobit/pack.h"
#include "isobit/sequences.h"

namespace isobit {
namespace {

namespace fs = std::filesystem;
using namespace onnx;  // NOLINT: of the models that these tests write

const std::string kAfter = attribute("linear_before_reset", int64_t{1});

Result<ArrayReader> view(const std::string& text) { return ArrayReader::view(text.data(), text.size(), "m.onnx"); }

/// What load_gru() makes of a model in memory.
Result<GruWeights> load(const TestModel& model, const GruLoadOptions& options = {}) {
  const std::string text = model.text();
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader reader, view(text));
  return load_gru(reader, options);
}

void expect_refused(const Status& status, StatusCode code, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_TRUE(status.message().find("m.onnx") != std::string::npos) << status.message();
  for (const std::string& word : words) EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

std::vector<std::string> names_of(const TestModel& model) {
  const std::string text = model.text();
  const auto reader = view(text);
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  std::vector<std::string> names;
  const auto candidates = find_grus(*reader);
  for (const GruCandidate& candidate : *candidates) names.push_back(candidate.prefix);
  return names;
}

bool has_note(const GruWeights& weights, const std::string& text) {
  return std::any_of(weights.report.notes.begin(), weights.report.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST(Onnx, ANode) {
  TestModel model;
  model.inputs = {"x"};
  model.gru("enc/GRU", "x", 3, 2);
  const std::string text = model.text();
  const auto reader = view(text);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->kind(), FileKind::kOnnx);
  ASSERT_EQ(reader->entries().size(), 3U);
  EXPECT_EQ(reader->entries()[0].name, "enc/GRU.B");
  EXPECT_EQ(reader->entries()[2].shape, (std::vector<int64_t>{1, 6, 3}));
  EXPECT_EQ(reader->metadata().at("enc/GRU.linear_before_reset"), "1");
  EXPECT_EQ(reader->metadata().at("enc/GRU.X"), "the model's input 'x'");
  const auto weights = load_gru(*reader);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->name, "enc/GRU");
  EXPECT_EQ(weights->report.gate_order, GateOrder::kOnnx);
  EXPECT_FALSE(weights->report.gate_order_assumed || weights->report.layout_assumed || weights->report.reset_assumed);
  EXPECT_TRUE(weights->report.notes.empty());
  ASSERT_EQ(weights->layers.size(), 1U);
  // z, r, h are u, r, n: the blocks stay where they are, and B is the bias of W, then that of R.
  EXPECT_EQ(weights->layers[0].W[7], 7.0f / 64);
  EXPECT_EQ(weights->layers[0].R[11], 11.0f / 64);
  EXPECT_EQ(weights->layers[0].bw[5], 5.0f / 64);
  EXPECT_EQ(weights->layers[0].br[0], 6.0f / 64);
}

TEST(Onnx, BothDirectionsAndNoBias) {
  TestModel model;
  model.gru("g", "x", 3, 2, 2);
  const auto both = load(model);
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->directions, 2);
  EXPECT_EQ(both->layers[1].W[0], 18.0f / 64);
  EXPECT_EQ(both->layers[1].bw[0], 12.0f / 64);
  TestModel bare;
  bare.gru("a", "x", 3, 2);
  bare.nodes.clear();
  bare.node("GRU", {"x", "a_W", "a_R"}, {"y"}, {kAfter}, "bare");
  bare.node("GRU", {"x", "a_W", "a_R", ""}, {"y2"}, {kAfter}, "empty");
  for (const char* name : {"bare", "empty"}) {
    const auto weights = load(bare, {.prefix = name});
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->layers[0].bw, std::vector<float>(6));
    EXPECT_EQ(weights->layers[0].br, std::vector<float>(6));
  }
}

TEST(Onnx, NamesOfNodes) {
  TestModel model;
  model.gru("same", "x", 1, 1);
  model.gru("same", "x", 1, 1);
  model.nodes.pop_back();
  model.node("GRU", {"x", "same_W", "same_R"}, {"", "only_h"}, {kAfter}, "same");
  model.node("GRU", {"x", "same_W", "same_R"}, {"17"}, {kAfter});
  model.node("GRU", {"x", "same_W", "same_R"}, {}, {kAfter});
  model.node("GRU", {"x", "same_W", "same_R"}, {"z"}, {kAfter}, "17");
  model.node("GRU", {"x", "same_W", "same_R"}, {"o"}, {kAfter}, "other", "com.example");
  EXPECT_EQ(names_of(model), (std::vector<std::string>{"#3", "17", "17#4", "only_h", "same_y"}));
  expect_refused(load(model).status(), StatusCode::kInvalidArgument, {"5 GRUs", "'only_h'", "'17#4'"});
  expect_refused(load(model, {.prefix = "same"}).status(), StatusCode::kInvalidArgument, {"no GRU 'same'", "'same_y'"});
}

TEST(Onnx, ModelsWithoutAGru) {
  TestModel model;
  expect_refused(load(model).status(), StatusCode::kUnsupported, {"without a GRU node", "none"});
  model.node("LSTM", {"x"}, {"y"});
  model.node("Conv", {"y"}, {"z"});
  expect_refused(load(model).status(), StatusCode::kUnsupported, {"'Conv', 'LSTM'", "bodies"});
}

// ---------------------------------------------------------------------------------------------------------------
// Elements

/// A GRU of C = H = 1 whose W is `tensor`, called "W".
TestModel with_w(const std::string& tensor) {
  TestModel model;
  model.initialisers = {tensor, floats("R", {1, 3, 1}, {0, 0, 0})};
  model.node("GRU", {"x", "W", "R"}, {"y"}, {kAfter}, "g");
  return model;
}

TEST(Onnx, EveryFormOfElements) {
  const std::vector<float> values = {0.5f, -1.0f, 2.0f};
  const std::vector<int64_t> shape = {1, 3, 1};
  const std::vector<int32_t> half = {0x3800, 0xbc00, 0x4000}, brain = {0x3f00, 0xbf80, 0x4000};
  const std::vector<double> doubles = {0.5, -1.0, 2.0};
  const std::string tensors[] = {
      floats("W", shape, values),
      tensor_of("W", kFloat, shape, [&](Writer& t) { t.add_packed_float(4, values.begin(), values.end()); }),
      tensor_of("W", kFloat, shape,
                [&](Writer& t) {
                  for (const float v : values) t.add_float(4, v);
                }),
      raw_tensor("W", kDouble, shape, doubles),
      tensor_of("W", kDouble, shape, [&](Writer& t) { t.add_packed_double(10, doubles.begin(), doubles.end()); }),
      tensor_of("W", kDouble, shape,
                [&](Writer& t) {
                  for (const double v : doubles) t.add_double(10, v);
                }),
      raw_tensor("W", kFloat16, shape, std::vector<uint16_t>(half.begin(), half.end())),
      tensor_of("W", kFloat16, shape, [&](Writer& t) { t.add_packed_int32(5, half.begin(), half.end()); }),
      tensor_of("W", kFloat16, shape,
                [&](Writer& t) {
                  for (const int32_t v : half) t.add_int32(5, v);
                }),
      raw_tensor("W", kBfloat16, shape, std::vector<uint16_t>(brain.begin(), brain.end())),
      tensor_of("W", kBfloat16, shape, [&](Writer& t) { t.add_packed_int32(5, brain.begin(), brain.end()); }),
      message([&](Writer& t) {  // dimensions one by one
        for (const int64_t size : shape) t.add_int64(1, size);
        t.add_int64(2, kFloat);
        t.add_packed_float(4, values.begin(), values.end());
        t.add_string(8, "W");
      }),
  };
  for (const std::string& tensor : tensors) {
    const auto weights = load(with_w(tensor));
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->layers[0].W, values);
  }
}

TEST(Onnx, ConstantsAndIdentities) {
  TestModel model = with_w(floats("other", {1, 3, 1}, {1, 2, 3}));
  model.nodes.clear();
  model.node("Constant", {}, {"c"}, {tensor_attribute("value", floats("", {1, 3, 1}, {1, 2, 3}))});
  model.node("Identity", {"c"}, {"i"});
  model.node("Identity", {"i"}, {"W"});
  model.node("Identity", {"other"}, {"W2"});
  model.node("GRU", {"x", "W", "R"}, {"y"}, {kAfter}, "g");
  model.node("GRU", {"x", "W2", "R"}, {"z"}, {kAfter}, "h");
  for (const char* name : {"g", "h"}) {
    const auto weights = load(model, {.prefix = name});
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->layers[0].W, (std::vector<float>{1, 2, 3}));
  }
  model.node("Mul", {"W", "W"}, {"W3"}, {}, "times");
  model.node("GRU", {"x", "W3", "R"}, {"v"}, {kAfter}, "computed");
  model.node("GRU", {"x", "x", "R"}, {"w"}, {kAfter}, "fed");
  model.node("GRU", {"x", "", "R"}, {"u"}, {kAfter}, "missing");
  model.node("GRU", {"x"}, {"t"}, {kAfter}, "nothing");
  model.node("GRU", {"x", "later", "R"}, {"s"}, {kAfter}, "early");
  model.node("Identity", {"other"}, {"later"});
  expect_refused(load(model, {.prefix = "computed"}).status(), StatusCode::kUnsupported,
                 {"'computed'", "W is the output 'W3' of the node 'times' (Mul)", "fold"});
  expect_refused(load(model, {.prefix = "fed"}).status(), StatusCode::kUnsupported, {"W is 'x', which nothing"});
  expect_refused(load(model, {.prefix = "missing"}).status(), StatusCode::kInvalidFile, {"W is missing"});
  expect_refused(load(model, {.prefix = "nothing"}).status(), StatusCode::kInvalidFile, {"W is missing"});
  expect_refused(load(model, {.prefix = "early"}).status(), StatusCode::kUnsupported,
                 {"'later', which nothing before"});
}

TEST(Onnx, ChainsOfIdentitiesCostNoStack) {
  TestModel model = with_w(floats("i0", {1, 3, 1}, {1, 2, 3}));
  model.nodes.clear();
  constexpr int kLength = 200000;
  for (int i = 0; i < kLength; ++i) model.node("Identity", {"i" + std::to_string(i)}, {"i" + std::to_string(i + 1)});
  const std::string end = "i" + std::to_string(kLength);
  model.node("GRU", {end, end, "R", "", "", end}, {"y"}, {kAfter}, "g");
  const auto weights = load(model);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_TRUE(has_note(*weights, "starts from"));
}

TEST(Onnx, DamagedTensorsAreRefusedByName) {
  const auto none = [](Writer& /*tensor*/) {};
  const int64_t large = int64_t{1} << 62;
  const struct {
    std::string tensor;
    StatusCode code;
    std::vector<std::string> words;
  } cases[] = {
      {tensor_of("W", kFloat, {1, 3, -1}, none), StatusCode::kInvalidFile, {"W 'W'", "(1, 3, -1)", "0 or more"}},
      {tensor_of("W", kFloat, {1, large, 4}, none), StatusCode::kInvalidFile, {"4611686018427387904", "2^63"}},
      {tensor_of("W", kFloat, {large, large, 0}, none), StatusCode::kInvalidFile, {"2^63"}},
      {tensor_of("W", kFloat, std::vector<int64_t>(65, 1), none), StatusCode::kInvalidFile, {"at most 64"}},
      {tensor_of("W", kFloat, {1, 3, 1}, none), StatusCode::kInvalidFile, {"FLOAT needs 12 bytes", "has 0"}},
      {floats("W", {1, 3, 1}, {1, 2}), StatusCode::kInvalidFile, {"needs 12 bytes", "has 8"}},
      {floats("W", {1, 3, 1000000000000}, {1, 2}), StatusCode::kInvalidFile, {"needs 12000000000000", "has 8"}},
      {tensor_of("W", kFloat, {1, 1, 1},
                 [](Writer& t) {
                   t.add_float(4, 1);
                   t.add_bytes(9, "abcd", 4);
                 }),
       StatusCode::kInvalidFile,
       {"twice"}},
      {tensor_of("W", kFloat, {1, 3, 1}, [](Writer& t) { t.add_double(10, 1); }), StatusCode::kInvalidFile, {"has 0"}},
      {tensor_of("W", kFloat, {1, 3, 1}, [](Writer& t) { t.add_int64(4, 1); }), StatusCode::kInvalidFile, {"has 0"}},
      {tensor_of("W", kFloat16, {1, 1, 1}, [](Writer& t) { t.add_int32(5, 65536); }),
       StatusCode::kInvalidFile,
       {"65536", "0 to 65535"}},
      {tensor_of("W", kString, {1, 3, 1}, none), StatusCode::kUnsupported, {"STRING"}},
      {tensor_of("W", 99, {1, 3, 1}, none), StatusCode::kUnsupported, {"type 99"}},
      {tensor_of("W", -1, {1, 3, 1}, none), StatusCode::kUnsupported, {"type -1"}},
      {raw_tensor("W", kInt32, {1, 3, 1}, std::vector<int32_t>{1, 2, 3}), StatusCode::kInvalidFile, {"codes"}},
      {floats("W", {3, 1}, {1, 2, 3}), StatusCode::kInvalidFile, {"W has the shape (3, 1)", "3 dimensions"}},
      {floats("W", {2, 3, 1}, {1, 2, 3, 4, 5, 6}), StatusCode::kInvalidFile, {"(2, 3, 1)", "1, the number of dir"}},
      {floats("W", {1, 2, 1}, {1, 2}), StatusCode::kInvalidFile, {"'g.W' has the shape (1, 2, 1)"}},
      {floats("W", {1, 3, 1}, {1, std::numeric_limits<float>::infinity(), 0}), StatusCode::kInvalidFile, {"g.W[0, 1, 0] is inf"}},
  };
  for (const auto& c : cases) expect_refused(load(with_w(c.tensor)).status(), c.code, c.words);
}

TEST(Onnx, DamagedFilesAreRefused) {
  const std::string valid = seed_model().text();
  ASSERT_TRUE(view(valid).ok());
  const size_t graph_end = valid.size() - 4;  // the version of the operators follows
  for (size_t size = 0; size < valid.size(); ++size) {
    const std::vector<char> cut(valid.begin(), valid.begin() + static_cast<ptrdiff_t>(size));
    const auto reader = ArrayReader::view(cut.data(), cut.size(), "cut");
    EXPECT_EQ(reader.ok(), size == graph_end) << size;
    if (reader.ok()) continue;
    EXPECT_EQ(reader.status().message().rfind("cut: ", 0), 0U) << reader.status().message();
    EXPECT_TRUE(size < 11 || reader.status().message().find("damaged or cut short") != std::string::npos) << size;
  }
  std::vector<char> damaged(valid.begin(), valid.end());
  for (char& byte : damaged) {
    const char original = byte;
    for (const int value : {0, 1, 0x7f, 0x80, 0xff, original + 1, original ^ 8}) {
      byte = static_cast<char>(value);
      const auto reader = ArrayReader::view(damaged.data(), damaged.size(), "damaged");
      if (!reader.ok()) continue;
      for (const ArrayEntry& entry : reader->entries()) {
        const auto array = reader->read(entry.name);
        EXPECT_EQ(array.ok(), entry.dtype.has_value());
        if (array.ok()) expect_consistent(*array);
      }
    }
    byte = original;
  }
}

TEST(Onnx, OtherProtobufsAreNoModels) {
  const std::string graph = message([](Writer& w) { w.add_string(2, "graph"); });
  const auto kind = [](const std::function<void(Writer&)>& write) {
    const std::string text = message(write);
    const TemporaryFolder folder;
    std::ofstream(folder.file("f"), std::ios::binary) << text;
    return *file_kind(folder.file("f"));
  };
  EXPECT_EQ(kind([&](Writer& w) { w.add_int64(1, 8), w.add_message(7, graph); }), FileKind::kOnnx);
  EXPECT_EQ(
      kind([&](Writer& w) { w.add_int64(1, 8), w.add_string(6, std::string(9000, 'x')), w.add_message(7, graph); }),
      FileKind::kOnnx);
  EXPECT_EQ(kind([&](Writer& w) { w.add_int64(1, 8), w.add_message(2, graph); }), FileKind::kUnknown);
  EXPECT_EQ(kind([&](Writer& w) { w.add_int64(1, 8), w.add_fixed32(3, 8), w.add_message(7, graph); }),
            FileKind::kUnknown);
  EXPECT_EQ(kind([&](Writer& w) { w.add_int64(1, 8), w.add_string(9, "x"), w.add_message(7, graph); }),
            FileKind::kUnknown);
}

// ---------------------------------------------------------------------------------------------------------------
// External data

class OnnxExternal : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(at("models/data"));
    std::ofstream(at("models/data/w.bin"), std::ios::binary) << std::string(8, '\0') << bytes_;
    std::ofstream(at("secret.bin"), std::ios::binary) << std::string(8, '\0') << bytes_;
  }
  [[nodiscard]] std::string at(const std::string& name) const { return folder_.file(name); }

  static std::string external(const std::vector<std::pair<std::string, std::string>>& keys) {
    return tensor_of("W", kFloat, {1, 3, 1}, [&](Writer& t) {
      for (const auto& [key, value] : keys)
        t.add_message(13, message([&key = key, &value = value](Writer& entry) {
                        entry.add_string(1, key);
                        entry.add_string(2, value);
                      }));
      t.add_int64(14, 1);
    });
  }
  [[nodiscard]] Result<GruWeights> read(const std::vector<std::pair<std::string, std::string>>& keys) const {
    const std::string text = with_w(external(keys)).text();
    std::ofstream(at("models/m.onnx"), std::ios::binary) << text;
    return load_gru(at("models/m.onnx"));
  }

  const std::vector<float> values_ = {1, 2, 3};
  const std::string bytes_{reinterpret_cast<const char*>(values_.data()), 12};
  TemporaryFolder folder_;
};

TEST_F(OnnxExternal, IsReadFromTheFolderOfTheModel) {
  fs::create_symlink("data/w.bin", at("models/link.bin"));
  fs::create_directory_symlink("models", at("other"));
  for (const char* location : {"data/w.bin", "./data/w.bin", "link.bin"}) {
    for (const auto& more : {std::vector<std::pair<std::string, std::string>>{{"length", "12"}}, {}}) {
      std::vector<std::pair<std::string, std::string>> keys = {{"location", location}, {"offset", "8"}};
      keys.insert(keys.end(), more.begin(), more.end());
      const auto weights = read(keys);
      ASSERT_TRUE(weights.ok()) << weights.status().message();
      EXPECT_EQ(weights->layers[0].W, values_);
      const auto through_link = load_gru(at("other/m.onnx"));
      ASSERT_TRUE(through_link.ok()) << through_link.status().message();
    }
  }
  // The path of a model may be relative, and have no folder.
  const fs::path before = fs::current_path();
  fs::current_path(at("models"));
  EXPECT_TRUE(load_gru("m.onnx").ok());
  fs::current_path(before);
  // Nobody may overwrite what the model needs.
  FileClaims claims;
  ASSERT_TRUE(claims.reads(at("models/m.onnx"), "MODEL").ok());
  EXPECT_FALSE(claims.writes(at("models/data/w.bin"), "-o").ok());
  EXPECT_TRUE(claims.writes(at("models/new.bin"), "-o").ok());
}

TEST_F(OnnxExternal, EverythingElseIsRefused) {
  fs::create_symlink("../secret.bin", at("models/out.bin"));
  fs::create_directory_symlink("..", at("models/up"));
  fs::create_symlink("loop.bin", at("models/loop.bin"));
  ASSERT_EQ(mkfifo(at("models/pipe.bin").c_str(), 0600), 0);
  const std::string folder = at("models");
  const struct {
    std::string location;
    std::vector<std::string> words;
  } cases[] = {
      {"", {"file ''", "relative path"}},
      {"../secret.bin", {"'../secret.bin'", "without .."}},
      {"data/../data/w.bin", {"without .."}},
      {folder + "/data/w.bin", {"relative path"}},
      {"out.bin", {"'out.bin', a link to", "not in the model's folder"}},
      {"up/secret.bin", {"'up/secret.bin', a link to", "not in the model's folder"}},
      {"loop.bin", {"cannot be opened"}},
      {"missing.bin", {"cannot be opened", "No such file"}},
      {"data", {"no regular file"}},
      {".", {"no regular file"}},
      {"pipe.bin", {"no regular file"}},
      {std::string("data/w.bin\0x", 12), {"relative path"}},
      {"*/_ORT_MEM_ADDR_/*", {"cannot be opened"}},
  };
  for (const auto& c : cases) {
    const Status status = read({{"location", c.location}, {"offset", "8"}}).status();
    ASSERT_FALSE(status.ok()) << c.location;
    expect_refused(status, status.code(), {"W 'W'"});
    for (const std::string& word : c.words)
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
  const struct {
    std::string key, value;
    std::vector<std::string> words;
  } numbers[] = {
      {"offset", "9", {"12 bytes from byte 9", "which has 20"}},
      {"offset", "18446744073709551615", {"from byte 18446744073709551615", "which has 20"}},
      {"offset", "18446744073709551616", {"the offset '18446744073709551616'", "a number of bytes"}},
      {"offset", "-8", {"the offset '-8'"}},
      {"offset", "8 ", {"the offset '8 '"}},
      {"offset", "", {"the offset ''"}},
      {"length", "11", {"the length 11", "needs 12 bytes"}},
      {"length", "x", {"the length 'x'"}},
  };
  for (const auto& c : numbers)
    expect_refused(read({{"location", "data/w.bin"}, {c.key, c.value}}).status(), StatusCode::kInvalidFile, c.words);
  const std::string text = with_w(external({{"location", "data/w.bin"}, {"offset", "8"}})).text();
  const auto in_memory = view(text);
  ASSERT_TRUE(in_memory.ok());
  expect_refused(load_gru(*in_memory).status(), StatusCode::kUnsupported, {"'data/w.bin'", "in memory"});
}

// ---------------------------------------------------------------------------------------------------------------
// What isobit does not compute

TEST(Onnx, NodesThatAreNotComputedAreRefusedByName) {
  const struct {
    std::string attribute;
    StatusCode code;
    std::vector<std::string> words;
  } cases[] = {
      {attribute("activations", Texts{"Relu", "Tanh"}), StatusCode::kUnsupported, {"activations = 'Relu, Tanh'"}},
      {attribute("activations", Texts{"Sigmoid", "Sigmoid"}), StatusCode::kUnsupported, {"'Sigmoid, Sigmoid'"}},
      {attribute("activations", Texts{"HardSigmoid", "Tanh"}), StatusCode::kUnsupported, {"'HardSigmoid, Tanh'"}},
      {attribute_of("clip", [](Writer& w) { w.add_float(2, 3); }), StatusCode::kUnsupported, {"clip"}},
      {attribute("layout", int64_t{1}), StatusCode::kUnsupported, {"layout = 1"}},
      {attribute("layout", int64_t{2}), StatusCode::kInvalidFile, {"layout = 2"}},
      {attribute("layout", "1"), StatusCode::kInvalidFile, {"layout is no integer"}},
      {attribute("direction", "reverse"), StatusCode::kUnsupported, {"direction = reverse"}},
      {attribute("direction", "backward"), StatusCode::kInvalidFile, {"direction = 'backward'"}},
      {attribute("direction", "bidirectional"), StatusCode::kInvalidFile, {"(1, 3, 1)", "2, the number of dir"}},
      {attribute("linear_before_reset", int64_t{7}), StatusCode::kInvalidFile, {"linear_before_reset = 7"}},
      {attribute("hidden_size", int64_t{2}), StatusCode::kInvalidFile, {"R has the shape", "hidden_size = 2"}},
      {attribute("peephole", int64_t{1}), StatusCode::kUnsupported, {"'peephole' is not known"}},
  };
  for (const auto& c : cases) {
    TestModel model = with_w(floats("W", {1, 3, 1}, {1, 2, 3}));
    model.nodes.clear();
    model.node("GRU", {"x", "W", "R"}, {"y"}, {kAfter, c.attribute}, "bad");
    expect_refused(load(model).status(), c.code, c.words);
    expect_refused(load(model).status(), c.code, {"the GRU node 'bad'"});
    model.node("GRU", {"x", "W", "R"}, {"z"}, {kAfter}, "good");  // one that is refused spoils no other one
    EXPECT_TRUE(load(model, {.prefix = "good"}).ok());
  }
  TestModel model = with_w(floats("W", {1, 3, 1}, {1, 2, 3}));
  model.nodes.clear();
  model.node("GRU", {"x", "W", "R"}, {"y"},
             {kAfter, attribute("activations", Texts{"sigmoid", "Tanh"}), attribute("layout", int64_t{0}),
              attribute("direction", "forward"), attribute("activation_alpha", Texts{})},
             "good");
  EXPECT_TRUE(load(model).ok());
}

TEST(Onnx, ResetBeforeTheProduct) {
  TestModel model = with_w(floats("W", {1, 3, 1}, {1, 2, 3}));
  for (const bool is_said : {false, true}) {
    model.nodes.clear();
    model.node("GRU", {"x", "W", "R"}, {"y"}, is_said ? Texts{attribute("linear_before_reset", int64_t{0})} : Texts{},
               "g");
    expect_refused(load(model).status(), StatusCode::kUnsupported,
                   {"the GRU node 'g': linear_before_reset = '0'", "--reset after", "onnxscript issue 2852"});
    const auto forced = load(model, {.prefix = "g", .reset_after = true});
    ASSERT_TRUE(forced.ok()) << forced.status().message();
    EXPECT_TRUE(has_note(*forced, "linear_before_reset = '0', which --reset after overrules"));
  }
}

TEST(Onnx, ArraysOfAModelCannotBeNamed) {
  TestModel model;
  model.gru("g", "x", 1, 1);
  GruLoadOptions options;
  options.prefix = "n";
  options.arrays = {{"n.weight_ih_l0", "g.W"}, {"n.weight_hh_l0", "g.R"}};
  expect_refused(load(model, options).status(), StatusCode::kInvalidArgument, {"--layer NODE"});
}

TEST(Onnx, AModelIsNoDataAndIsNotPacked) {
  TestModel model;
  model.gru("g", "x", 1, 1);
  const TemporaryFolder folder;
  const std::string path = folder.file("m.onnx");
  std::ofstream(path, std::ios::binary) << model.text();
  std::vector<std::string> warnings;
  expect_refused(load_data(path, warnings).status(), StatusCode::kUnsupported, {"data is npy, npz or safetensors"});
  expect_refused(Packing::plan(path, {}).status(), StatusCode::kInvalidArgument, {"GRU nodes are read"});
}

// ---------------------------------------------------------------------------------------------------------------
// First states and lengths

TEST(Onnx, FirstStatesThatAreZeroAndOthers) {
  const std::string zero = floats("zero", {1, 1, 1}, {-0.0f}), one = floats("one", {1, 1, 1}, {1});
  const auto note_of = [&](const std::function<void(TestModel&)>& add) {
    TestModel model = with_w(floats("W", {1, 3, 1}, {1, 2, 3}));
    model.nodes.clear();
    model.initialisers.push_back(zero);
    model.initialisers.push_back(one);
    model.initialisers.push_back(integers("n", {1}));
    model.inputs = {"x", "state"};
    add(model);
    model.node("GRU", {"x", "W", "R", "", "", "h"}, {"y"}, {kAfter}, "g");
    const auto weights = load(model);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    std::string notes;
    for (const std::string& note : weights->report.notes) notes += note;
    return notes;
  };
  const auto zeros = tensor_attribute("value", floats("", {1}, {0}));
  const auto ones = tensor_attribute("value", floats("", {1}, {1}));
  const std::function<void(TestModel&)> zero_states[] = {
      [](TestModel& m) { m.node("Identity", {"zero"}, {"h"}); },
      [](TestModel& m) {
        m.node("Constant", {}, {"h"}, {tensor_attribute("value", floats("", {1, 1, 1}, {0}))});
      },
      [](TestModel& m) {
        m.node("Constant", {}, {"h"}, {attribute_of("value_float", [](Writer& w) { w.add_float(2, 0); })});
      },
      [](TestModel& m) { m.node("ConstantOfShape", {"shape"}, {"h"}); },
      [&](TestModel& m) { m.node("ConstantOfShape", {"shape"}, {"h"}, {zeros}); },
      [&](TestModel& m) {
        m.node("ConstantOfShape", {"shape"}, {"a"}, {zeros});
        m.node("Slice", {"a", "n", "n"}, {"b"});
        m.node("Concat", {"b", "zero", "b"}, {"c"});
        m.node("Expand", {"c", "state"}, {"d"});
        m.node("Unsqueeze", {"d", "n"}, {"e"});
        m.node("Gather", {"e", "state"}, {"h"});
      },
  };
  for (const auto& add : zero_states) EXPECT_EQ(note_of(add), "");
  const std::pair<std::function<void(TestModel&)>, const char*> others[] = {
      {[](TestModel& m) { m.node("Identity", {"one"}, {"h"}); }, "from the initialiser 'one'"},
      {[](TestModel& m) { m.node("Identity", {"state"}, {"h"}); }, "from the model's input 'state'"},
      {[](TestModel& m) { m.node("Tanh", {"zero"}, {"h"}, {}, "t"); }, "of the node 't' (Tanh)"},
      {[&](TestModel& m) { m.node("ConstantOfShape", {"n"}, {"h"}, {ones}, "c"); },
       "of the node 'c' (ConstantOfShape)"},
      {[](TestModel& m) {
         m.node("Concat", {"zero", "one"}, {"h"});
       },
       "from the initialiser 'one'"},
      {[](TestModel& m) { m.node("Identity", {"h"}, {"h"}); }, "the output 'h' of a node (Identity)"},  // a cycle
      {[](TestModel& /*m*/) {}, "'h', which nothing before it gives"},
      {[](TestModel& m) {
         m.node("Gather", {"one", "zero"}, {"h"});
       },
       "from the initialiser 'one'"},
      {[](TestModel& m) { m.node("Identity", {"zero"}, {"h"}, {}, "i", "com.example"); }, "of the node 'i'"},
  };
  for (const auto& [add, words] : others) {
    const std::string note = note_of(add);
    EXPECT_NE(note.find(words), std::string::npos) << note;
    EXPECT_NE(note.find("give it as the first state"), std::string::npos) << note;
  }
}

TEST(Onnx, Lengths) {
  TestModel model = with_w(floats("W", {1, 3, 1}, {1, 2, 3}));
  model.nodes.clear();
  model.inputs = {"x", "lengths"};
  model.node("GRU", {"x", "W", "R", "", "lengths"}, {"y"}, {kAfter}, "g");
  const auto weights = load(model);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_TRUE(has_note(*weights, "'g' takes lengths from the model's input 'lengths'"));
}

// ---------------------------------------------------------------------------------------------------------------
// Nodes that feed each other

using Add = std::function<void(TestModel&)>;
std::vector<int64_t> axes(std::vector<int64_t> list) { return list; }

/// GRUs a and b, H = 2, with what `between` makes of a_y as b_x.
TestModel two(int64_t directions, const Add& between) {
  TestModel model;
  model.inputs = {"x"};
  model.gru("a", "x", 3, 2, directions);
  between(model);
  model.gru("b", "b_x", 2 * directions, 2, directions);
  return model;
}

TEST(Onnx, NodesThatFeedEachOtherAreLayers) {
  const std::pair<int64_t, Add> cases[] = {
      {1, [](TestModel& m) { m.node("Squeeze", {"a_y"}, {"b_x"}, {attribute("axes", axes({1}))}); }},
      {1, [](TestModel& m) { m.node("Squeeze", {"a_y"}, {"b_x"}, {attribute("axes", axes({-3}))}); }},
      {1, [](TestModel& m) { m.node("Squeeze", {"a_y"}, {"b_x"}); }},
      {1,
       [](TestModel& m) {
         m.initialisers.push_back(integers("one", {1}));
         m.node("Squeeze", {"a_y", "one"}, {"b_x"});
       }},
      {1,
       [](TestModel& m) {  // batch first between them, as of two layers of a framework
         m.node("Constant", {}, {"one"}, {attribute("value_ints", axes({1}))});
         m.node("Squeeze", {"a_y", "one"}, {"s"});
         m.node("Transpose", {"s"}, {"t"}, {attribute("perm", axes({1, 0, 2}))});
         m.node("Identity", {"t"}, {"i"});
         m.node("Transpose", {"i"}, {"b_x"}, {attribute("perm", axes({1, 0, 2}))});
       }},
      {1,
       [](TestModel& m) {
         m.initialisers.push_back(integers("to", {0, -1, 2}));
         m.node("Reshape", {"a_y", "to"}, {"b_x"});
       }},
      {2,
       [](TestModel& m) {
         m.initialisers.push_back(integers("to", {0, 0, -1}));
         m.node("Transpose", {"a_y"}, {"t"}, {attribute("perm", axes({0, 2, 1, 3}))});
         m.node("Reshape", {"t", "to"}, {"b_x"});
       }},
      {2,
       [](TestModel& m) {
         m.initialisers.push_back(integers("to", {0, -1, 4}));
         m.node("Transpose", {"a_y"}, {"t"}, {attribute("perm", axes({0, 2, 1, 3}))});
         m.node("Reshape", {"t", "to"}, {"b_x"}, {attribute("allowzero", int64_t{0})});
       }},
  };
  for (const auto& [directions, add] : cases) {
    const TestModel model = two(directions, add);
    EXPECT_EQ(names_of(model), (std::vector<std::string>{"a,b"}));
    for (const char* prefix : {"", "a,b"}) {
      const auto weights = load(model, {.prefix = prefix});
      ASSERT_TRUE(weights.ok()) << weights.status().message();
      EXPECT_EQ(weights->name, "a,b");
      EXPECT_EQ(weights->layer_count(), 2);
      EXPECT_EQ(weights->directions, directions);
      EXPECT_TRUE(has_note(*weights, "2 layers, as each node feeds the next: 'a' 'b'"));
    }
    EXPECT_EQ(load(model, {.prefix = "b"})->layer_count(), 1);
    EXPECT_EQ(load(model, {.prefix = "b"})->input_size(), 2 * directions);
  }
}

TEST(Onnx, OtherNodesBetweenAreNoLayers) {
  const std::pair<int64_t, Add> cases[] = {
      {1, [](TestModel& m) { m.node("Relu", {"a_y"}, {"b_x"}, {}, "relu"); }},
      {1, [](TestModel& m) { m.node("Squeeze", {"a_h"}, {"b_x"}); }},  // the last state
      {1, [](TestModel& m) { m.node("Squeeze", {"a_y"}, {"b_x"}, {attribute("axes", axes({2}))}); }},
      {1,
       [](TestModel& m) {
         m.node("Squeeze", {"a_y"}, {"b_x"}, {attribute("axes", axes({1, 2}))});
       }},
      {1,
       [](TestModel& m) {
         m.node("Squeeze", {"a_y", "computed"}, {"b_x"});
       }},
      {1, [](TestModel& m) { m.node("Identity", {"a_y"}, {"b_x"}); }},  // four axes
      {2, [](TestModel& m) { m.node("Squeeze", {"a_y"}, {"b_x"}); }},
      {1,
       [](TestModel& m) {  // time and batch change places
         m.node("Squeeze", {"a_y"}, {"s"}, {attribute("axes", axes({1}))});
         m.node("Transpose", {"s"}, {"b_x"}, {attribute("perm", axes({1, 0, 2}))});
       }},
      {1,
       [](TestModel& m) {  // reverses the axes
         m.node("Squeeze", {"a_y"}, {"s"}, {attribute("axes", axes({1}))});
         m.node("Transpose", {"s"}, {"b_x"});
       }},
      {1,
       [](TestModel& m) {
         m.node("Transpose", {"a_y"}, {"b_x"}, {attribute("perm", axes({0, 0, 1, 2}))});
       }},
      {1, [](TestModel& m) { m.node("Transpose", {"a_y"}, {"b_x"}, {attribute("perm", axes({0}))}); }},
      {2,
       [](TestModel& m) {  // without the transposition the directions of a step are those of sequences
         m.initialisers.push_back(integers("to", {0, 0, -1}));
         m.node("Reshape", {"a_y", "to"}, {"b_x"});
       }},
      {2,
       [](TestModel& m) {
         m.initialisers.push_back(integers("to", {-1, 1, 4}));
         m.node("Transpose", {"a_y"}, {"t"}, {attribute("perm", axes({0, 2, 1, 3}))});
         m.node("Reshape", {"t", "to"}, {"b_x"});
       }},
      {2,
       [](TestModel& m) {
         m.initialisers.push_back(integers("to", {0, 0, -1}));
         m.node("Transpose", {"a_y"}, {"t"}, {attribute("perm", axes({0, 2, 1, 3}))});
         m.node("Reshape", {"t", "to"}, {"b_x"}, {attribute("allowzero", int64_t{1})});
       }},
      {2,
       [](TestModel& m) {
         m.initialisers.push_back(integers("to", {-1, -1, 4}));
         m.node("Transpose", {"a_y"}, {"t"}, {attribute("perm", axes({0, 2, 1, 3}))});
         m.node("Reshape", {"t", "to"}, {"b_x"});
       }},
  };
  for (const auto& [directions, add] : cases) {
    const TestModel model = two(directions, add);
    EXPECT_EQ(names_of(model), (std::vector<std::string>{"a", "b"}));
    expect_refused(load(model).status(), StatusCode::kInvalidArgument, {"2 GRUs", "'a', 'b'"});
    expect_refused(load(model, {.prefix = "a,b"}).status(), StatusCode::kInvalidArgument,
                   {"layer 'a,b'", "'b' does not read the output Y of 'a'", "its X is the output 'b_x'"});
    EXPECT_TRUE(load(model, {.prefix = "b"}).ok());
  }
  expect_refused(load(two(1, cases[0].second), {.prefix = "a,c"}).status(), StatusCode::kInvalidArgument,
                 {"no GRU 'a,c'", "'a', 'b'"});
}

TEST(Onnx, LongerListsAndForks) {
  const auto squeeze = [](TestModel& m, const std::string& from, const std::string& to) {
    m.node("Squeeze", {from}, {to});
  };
  TestModel model;
  model.gru("a", "x", 3, 2);
  squeeze(model, "a_y", "b_x");
  model.gru("b", "b_x", 2, 2);
  squeeze(model, "b_y", "c_x");
  model.gru("c", "c_x", 2, 2);
  EXPECT_EQ(names_of(model), (std::vector<std::string>{"a,b,c"}));
  EXPECT_EQ(load(model)->layer_count(), 3);
  EXPECT_EQ(load(model, {.prefix = "b,c"})->layer_count(), 2);
  expect_refused(load(model, {.prefix = "a,c"}).status(), StatusCode::kInvalidArgument, {"'c' does not read"});
  expect_refused(load(model, {.prefix = "c,b"}).status(), StatusCode::kInvalidArgument, {"'b' does not read"});
  squeeze(model, "b_y", "d_x");
  model.gru("d", "d_x", 2, 2);  // b feeds both
  squeeze(model, "d_y", "e_x");
  model.gru("e", "e_x", 2, 4);  // another H: no layer of the same GRU
  EXPECT_EQ(names_of(model), (std::vector<std::string>{"a,b", "c", "d", "e"}));
  EXPECT_EQ(load(model, {.prefix = "a,b,d"})->layer_count(), 3);
  expect_refused(load(model, {.prefix = "d,e"}).status(), StatusCode::kInvalidFile, {"H"});
}

TEST(Onnx, TheSeedHasWhatItSays) {
  const TestModel model = seed_model();
  EXPECT_EQ(names_of(model), (std::vector<std::string>{"a,b", "c_y"}));
  const auto both = load(model, {.prefix = "a,b"});
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->report.notes.size(), 1U);
  const auto one = load(model, {.prefix = "c_y"});
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(one->layers[0].R, std::vector<float>(12, 0.25f));
  EXPECT_EQ(one->layers[0].br, std::vector<float>(6, 1.0f));
  EXPECT_EQ(one->report.notes.size(), 2U);
}

TEST(Onnx, TwoNodesThatGiveTheSameValue) {
  TestModel model;
  model.gru("a", "x", 1, 1);
  model.node("Relu", {"x"}, {"a_y"});
  expect_refused(load(model).status(), StatusCode::kInvalidFile, {"two nodes give the value 'a_y'"});
}

}  // namespace
}  // namespace isobit
