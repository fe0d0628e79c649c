// SPDX-License-Identifier: Apache-2.0
// Saved models: round trips, equal bytes, and files that lie.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "io/test_files.h"
#include "isobit/gru.h"

namespace isobit {
namespace {

using Json = nlohmann::json;

struct Spec {
  std::string label;
  std::string bits = "8";
  ScaleKind scale = ScaleKind::kPow2;
  int64_t layers = 1;
  int32_t directions = 1;
  std::string table{};  // empty: the default
};

constexpr int64_t kInputs = 3;
constexpr int64_t kHidden = 5;
constexpr int64_t kSteps = 6;
constexpr int64_t kBatch = 2;

std::vector<float> random_values(std::mt19937& random, int64_t count, float limit) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = limit * (static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  return out;
}

std::vector<float> input() {
  std::mt19937 random(7);
  return random_values(random, kSteps * kBatch * kInputs, 2.0f);
}

Result<GruModel> make_model(const Spec& spec, const std::string& name = "enc") {
  std::mt19937 random(1);
  GruWeights weights;
  weights.directions = spec.directions;
  weights.name = name;
  weights.source_hash = "0123456789abcdef";
  for (int64_t i = 0; i < spec.layers * spec.directions; ++i) {
    GruLayerWeights layer;
    layer.input_size = i < spec.directions ? kInputs : spec.directions * kHidden;
    layer.hidden_size = kHidden;
    layer.W = random_values(random, 3 * kHidden * layer.input_size, 0.7f);
    layer.R = random_values(random, 3 * kHidden * kHidden, 0.5f);
    layer.bw = random_values(random, 3 * kHidden, 0.3f);
    layer.br = random_values(random, 3 * kHidden, 0.3f);
    weights.layers.push_back(std::move(layer));
  }
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(std::move(weights)));
  ISOBIT_RETURN_IF_ERROR(calibrator.observe(input(), kSteps, kBatch));
  GruQuantization quantization;
  quantization.scale = spec.scale;
  ISOBIT_RETURN_IF_ERROR(apply_bits(spec.bits, quantization));
  if (!spec.table.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(quantization.table, parse_table_options(spec.table));
  }
  return calibrator.finish(quantization);
}

std::vector<float> run(const GruModel& model) {
  GruState state = model.initial_state(kBatch);
  Workspace workspace = model.workspace(kBatch, kSteps);
  std::vector<float> y(static_cast<size_t>(kSteps * kBatch * model.output_size()));
  RunOptions options{.whole_sequence = true};
  options.path = CpuPath::kReference;
  const Status status = model.forward(input(), y, kSteps, state, workspace, options);
  EXPECT_TRUE(status.ok()) << status.message();
  return y;
}

void expect_equal(const GruModelParameters& a, const GruModelParameters& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.source_hash, b.source_hash);
  EXPECT_EQ(a.directions, b.directions);
  EXPECT_EQ(a.notes, b.notes);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    SCOPED_TRACE("layer direction " + std::to_string(i));
    const GruLayerParameters& p = a.layers[i];
    const GruLayerParameters& q = b.layers[i];
    EXPECT_EQ(p.input_size, q.input_size);
    EXPECT_EQ(p.hidden_size, q.hidden_size);
    for (size_t tensor = 0; tensor < kGruTensorCount; ++tensor)
      EXPECT_EQ(p.grids[tensor], q.grids[tensor]) << kGruTensorNames[tensor];
    EXPECT_EQ(p.W_grid, q.W_grid);
    EXPECT_EQ(p.R_grid, q.R_grid);
    EXPECT_EQ(p.bw_grid, q.bw_grid);
    EXPECT_EQ(p.br_grid, q.br_grid);
    EXPECT_EQ(p.W, q.W);
    EXPECT_EQ(p.R, q.R);
    EXPECT_EQ(p.bw, q.bw);
    EXPECT_EQ(p.br, q.br);
    EXPECT_EQ(p.bw_to_acc, q.bw_to_acc);
    EXPECT_EQ(p.br_to_acc, q.br_to_acc);
    EXPECT_EQ(p.acc_to_ih, q.acc_to_ih);
    EXPECT_EQ(p.acc_to_hh, q.acc_to_hh);
    EXPECT_EQ(p.ih_to_gate, q.ih_to_gate);
    EXPECT_EQ(p.hh_to_gate, q.hh_to_gate);
    EXPECT_EQ(p.rhh_to_n, q.rhh_to_n);
    EXPECT_EQ(p.n_to_h, q.n_to_h);
    EXPECT_EQ(p.u_to_one, q.u_to_one);
    EXPECT_EQ(p.one, q.one);
    EXPECT_EQ(p.rounding, q.rounding);
    for (size_t gate = 0; gate < 3; ++gate) EXPECT_EQ(p.tables[gate], q.tables[gate]) << "gate " << gate;
  }
}

std::vector<std::byte> content(const std::string& path) {
  Result<std::vector<std::byte>> bytes = read_file(path);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes.ok() ? *bytes : std::vector<std::byte>();
}

class SaveRoundTrip : public ::testing::TestWithParam<Spec> {};

TEST_P(SaveRoundTrip, GivesTheSameModelAndTheSameBytes) {
  const Result<GruModel> model = make_model(GetParam());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const TemporaryFolder folder;
  const std::string first = folder.file("first.safetensors");
  const std::string second = folder.file("second.safetensors");
  const Status saved = model->save(first);
  ASSERT_TRUE(saved.ok()) << saved.message();
  const Result<GruModel> loaded = GruModel::load(first);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  expect_equal(model->parameters(), loaded->parameters());
  EXPECT_EQ(run(*model), run(*loaded));
  ASSERT_TRUE(loaded->save(second).ok());
  EXPECT_EQ(content(first), content(second));
}

INSTANTIATE_TEST_SUITE_P(
    Specs, SaveRoundTrip,
    ::testing::Values(Spec{"Bits8"}, Spec{"Bits4", "4,biases=8"}, Spec{"Bits4Everywhere", "8,weights=4,biases=4"},
                      Spec{"Bits3", "8,weights=3"}, Spec{"Bits2", "8,weights=2"}, Spec{"Bits16", "16"},
                      Spec{"Mixed", "8,linear=16,gate_in=12"}, Spec{"Real", "8", ScaleKind::kReal},
                      Spec{"RealBits4", "8,weights=4", ScaleKind::kReal},
                      Spec{"TwoLayersBidirectional", "8", ScaleKind::kPow2, 2, 2},
                      Spec{"Segments", "8", ScaleKind::kPow2, 1, 1, "segments:8"},
                      Spec{"Interpolated", "8,gate_in=12", ScaleKind::kPow2, 1, 1, "interpolated"}),
    [](const auto& tested) { return tested.param.label; });

TEST(Save, KeepsSeveralGrusByName) {
  const Result<GruModel> enc = make_model(Spec{"enc"}, "enc");
  const Result<GruModel> dec = make_model(Spec{"dec", "4,biases=8"}, "dec");
  ASSERT_TRUE(enc.ok() && dec.ok());
  const TemporaryFolder folder;
  const std::string path = folder.file("two.safetensors");
  const GruModel* const models[] = {&*enc, &*dec};
  ASSERT_TRUE(GruModel::save_all(path, models).ok());

  const Result<GruModel> unnamed = GruModel::load(path);
  EXPECT_EQ(unnamed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unnamed.status().message().find("'enc', 'dec'"), std::string::npos) << unnamed.status().message();
  const Result<GruModel> wrong = GruModel::load(path, "other");
  EXPECT_NE(wrong.status().message().find("no GRU 'other'"), std::string::npos) << wrong.status().message();
  const Result<GruModel> named = GruModel::load(path, "dec");
  ASSERT_TRUE(named.ok()) << named.status().message();
  expect_equal(named->parameters(), dec->parameters());
  const auto all = GruModel::load_all(path);
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_EQ(all->size(), 2u);
  expect_equal((*all)[0].parameters(), enc->parameters());
  expect_equal((*all)[1].parameters(), dec->parameters());

  const GruModel* const twice[] = {&*enc, &*enc};
  EXPECT_EQ(GruModel::save_all(path, twice).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(GruModel::save_all(path, {}).ok());
  const GruModel* const null[] = {nullptr};
  EXPECT_FALSE(GruModel::save_all(path, null).ok());
}

TEST(Save, RefusesAFileThatIsNoModel) {
  const TemporaryFolder folder;
  EXPECT_FALSE(GruModel::load(folder.file("absent")).ok());
  ArrayFile file;
  file.arrays["a"] = Array::zeros(Dtype::kF32, {2});
  const std::string path = folder.file("weights.safetensors");
  ASSERT_TRUE(save_safetensors(path, file).ok());
  EXPECT_NE(GruModel::load(path).status().message().find("not a saved isobit model"), std::string::npos);
}

Result<GruModel> with_notes(const GruModel& model, std::map<std::string, std::string> notes) {
  GruModelParameters parameters = model.parameters();
  parameters.notes = std::move(notes);
  return GruModel::create(std::move(parameters));
}

TEST(SaveNotes, AreKeptAndDecideNothing) {
  const Result<GruModel> plain = make_model(Spec{"plain"});
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  const std::map<std::string, std::string> notes = {{"bits", "8"}, {"reason", "\"quoted\",\n\u00e4 \t\\"}, {"empty", ""}};
  const Result<GruModel> noted = with_notes(*plain, notes);
  ASSERT_TRUE(noted.ok()) << noted.status().message();
  const TemporaryFolder folder;
  const std::string path = folder.file("noted.safetensors");
  ASSERT_TRUE(noted->save(path).ok());
  const Result<GruModel> loaded = GruModel::load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->parameters().notes, notes);
  EXPECT_EQ(run(*loaded), run(*plain));

  // Without notes the field is not there, as in files that were saved before there were any.
  const std::string without = folder.file("plain.safetensors");
  ASSERT_TRUE(plain->save(without).ok());
  Result<ArrayFile> file = load_arrays(path);
  Result<ArrayFile> plain_file = load_arrays(without);
  ASSERT_TRUE(file.ok() && plain_file.ok());
  Json json = Json::parse(file->metadata.at("isobit"));
  EXPECT_EQ(json["grus"][0].erase("notes"), 1u);
  EXPECT_EQ(json.dump(), plain_file->metadata.at("isobit"));
}

TEST(SaveNotes, Limits) {
  const Result<GruModel> plain = make_model(Spec{"plain"});
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  const auto refuses = [&](const std::map<std::string, std::string>& notes, const std::string& expected) {
    EXPECT_EQ(with_notes(*plain, notes).status().message(), expected);
  };
  refuses({{"", "a"}}, "the key of a note has 0 bytes, must have 1 to 64");
  refuses({{std::string(65, 'k'), "a"}}, "the key of a note has 65 bytes, must have 1 to 64");
  refuses({{"reason", std::string(65537, 'a')}}, "note reason has 65537 bytes, must have at most 65536");
  std::map<std::string, std::string> many;
  for (int i = 0; i < 65; ++i) many[std::to_string(i)] = "a";
  refuses(many, "65 notes, must be at most 64");
  many.erase("0");
  many["1"] = std::string(65536, 'a');
  EXPECT_TRUE(with_notes(*plain, many).ok());

  const Result<GruModel> latin = with_notes(*plain, {{"reason", "\xe4"}});
  ASSERT_TRUE(latin.ok());
  const TemporaryFolder folder;
  EXPECT_NE(latin->save(folder.file("m.safetensors")).message().find("not valid UTF-8"), std::string::npos);
}

/// A model with every kind of table, a packed tensor and two directions.
TEST_P(SaveRoundTrip, SizesAreThoseOfTheFile) {
  const Result<GruModel> model = make_model(GetParam());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const TemporaryFolder folder;
  ASSERT_TRUE(model->save(folder.file("m.safetensors")).ok());
  const Result<GruSizes> sizes = model->sizes();
  ASSERT_TRUE(sizes.ok()) << sizes.status().message();
  EXPECT_EQ(sizes->total_bytes(), std::ssize(content(folder.file("m.safetensors"))));
  const Result<ArrayFile> file = load_arrays(folder.file("m.safetensors"));
  ASSERT_TRUE(file.ok());
  int64_t weights = 0, tables = 0;
  for (const auto& [name, array] : file->arrays) {
    const bool is_weights = name.ends_with(".W") || name.ends_with(".R") || name.ends_with(".bw") || name.ends_with(".br");
    if (is_weights) weights += std::ssize(array.bytes);
    if (name.find(".table.") != std::string::npos) tables += std::ssize(array.bytes);
  }
  EXPECT_EQ(sizes->weights_bytes, weights);
  EXPECT_EQ(sizes->tables_bytes, tables);
  EXPECT_GT(weights, 0);
  EXPECT_GT(tables, 0);
  EXPECT_GT(sizes->other_bytes, 0);
}

class SaveTampered : public ::testing::Test {
 protected:
  void SetUp() override {
    Spec spec{"tampered", "8,weights=3", ScaleKind::kPow2, 1, 2};
    const Result<GruModel> model = make_model(spec);
    ASSERT_TRUE(model.ok()) << model.status().message();
    ASSERT_TRUE(model->save(path()).ok());
    Result<ArrayFile> file = load_arrays(path());
    ASSERT_TRUE(file.ok());
    file_ = *std::move(file);
    json_ = Json::parse(file_.metadata.at("isobit"));
  }

  [[nodiscard]] std::string path() const { return folder_.file("model.safetensors"); }

  /// Saves a changed copy; its refusal must contain `expected`.
  void refuses(const std::function<void(ArrayFile&, Json&)>& change, const std::string& expected) {
    ArrayFile file = file_;
    Json json = json_;
    change(file, json);
    file.metadata["isobit"] = json.dump();
    expect_refusal(file, expected);
  }

  void expect_refusal(const ArrayFile& file, const std::string& expected) {
    ASSERT_TRUE(save_safetensors(path(), file).ok());
    const Result<GruModel> loaded = GruModel::load(path());
    ASSERT_FALSE(loaded.ok()) << "not refused: " << expected;
    EXPECT_NE(loaded.status().message().find(expected), std::string::npos)
        << loaded.status().message() << "\nshould name " << expected;
    EXPECT_NE(loaded.status().message().find(path()), std::string::npos) << loaded.status().message();
  }

  TemporaryFolder folder_;
  ArrayFile file_;
  Json json_;
};

TEST_F(SaveTampered, UnknownVersionNamesBoth) {
  refuses([](ArrayFile&, Json& json) { json["format_version"] = 2; },
          "format version 2 is not supported, this isobit reads format version 1");
  refuses([](ArrayFile&, Json& json) { json.erase("format_version"); }, "field 'format_version' is missing");
}

/// Every field of the JSON, one at a time: removed, and replaced by values of every wrong kind.
TEST_F(SaveTampered, EveryFieldIsNeededAndTyped) {
  const Json flat = json_.flatten();
  std::set<std::string> pointers;
  for (const auto& item : flat.items())
    for (Json::json_pointer at(item.key()); !at.empty(); at.pop_back()) pointers.insert(at.to_string());
  ASSERT_GT(pointers.size(), 150u);
  for (const std::string& text : pointers) {
    if (text.find("/layers/1") != std::string::npos) continue;  // the same fields again
    SCOPED_TRACE(text);
    const Json::json_pointer at(text);
    const std::string key = at.back();
    if (!json_.at(at.parent_pointer()).is_object()) continue;
    refuses([&](ArrayFile&, Json& json) { json.at(at.parent_pointer()).erase(key); }, "field '" + key + "' is missing");
    for (const Json& wrong : {Json(), Json(1.5), Json::array(), Json::array({1}), Json(Json::object()),
                              Json(UINT64_MAX), Json(int64_t{1} << 40), Json(INT64_MIN), Json("no")}) {
      if (wrong.is_string() && (key == "name" || key == "source_hash")) continue;                   // any text is valid
      if (wrong.is_number_integer() && json_.at(at).is_number_integer() && key == "one") continue;  // below
      refuses([&](ArrayFile&, Json& json) { json.at(at) = wrong; }, "");
    }
  }
  refuses([](ArrayFile&, Json& json) { json["grus"][0]["layers"][0]["one"] = -1000; }, "the code of 1");
  refuses([](ArrayFile&, Json& json) { json["grus"][0]["layers"][0]["extra"] = 1; }, "unknown field 'extra'");
  for (const Json& wrong : {Json(), Json(1), Json("text"), Json::array({"text"})})
    refuses([&](ArrayFile&, Json& json) { json["grus"][0]["notes"] = wrong; }, "notes is not a JSON object");
  refuses([](ArrayFile&, Json& json) { json["grus"][0]["notes"] = Json::object(); }, "notes is empty");
  for (const Json& wrong : {Json(), Json(1), Json::array(), Json::object()})
    refuses([&](ArrayFile&, Json& json) { json["grus"][0]["notes"]["bits"] = wrong; }, "field 'bits' is a");
  refuses([](ArrayFile&, Json& json) { json["grus"][0]["notes"][""] = "text"; }, "the key of a note has 0 bytes");
  refuses([](ArrayFile&, Json& json) { json["grus"].push_back(json["grus"][0]); }, "two GRUs are named 'enc'");
  ArrayFile file = file_;
  file.metadata["isobit"] = "{";
  expect_refusal(file, "not JSON");
  file.metadata["isobit"] = std::string(100000, '[');
  expect_refusal(file, "not JSON");
}

TEST_F(SaveTampered, EveryTensorIsNeededAndShaped) {
  for (const auto& [name, array] : file_.arrays) {
    const std::string tensor = name;  // copies: clang++ 14 cannot capture a structured binding
    const std::vector<int64_t> whole = array.shape;
    refuses([&](ArrayFile& file, Json&) { file.arrays.erase(tensor); }, "tensor '" + tensor + "' is missing");
    refuses(
        [&](ArrayFile& file, Json&) {
          std::vector<int64_t> shape = file.arrays[tensor].shape;
          ++shape[0];
          file.arrays[tensor] = Array::zeros(file.arrays[tensor].dtype, shape);
        },
        "tensor '" + tensor + "' has the shape");
    refuses([&](ArrayFile& file, Json&) { file.arrays[tensor] = Array::zeros(Dtype::kF64, whole); },
            "tensor '" + tensor + "' is f64");
  }
  refuses([](ArrayFile& file, Json&) { file.arrays["enc.l0.more"] = Array::zeros(Dtype::kS8, {1}); },
          "unknown tensor 'enc.l0.more'");
}

TEST_F(SaveTampered, SizesAreCheckedBeforeAnythingIsAllocated) {
  for (const char* size : {"input_size", "hidden_size"}) {
    refuses([&](ArrayFile&, Json& json) { json["grus"][0]["layers"][0][size] = 1 << 24; }, "has the shape");
    refuses([&](ArrayFile&, Json& json) { json["grus"][0]["layers"][0][size] = (1 << 24) + 1; }, size);
    refuses([&](ArrayFile&, Json& json) { json["grus"][0]["layers"][0][size] = 0; }, size);
  }
}

TEST_F(SaveTampered, ValuesAreChecked) {
  const auto byte = [](ArrayFile& file, const char* name, size_t index, int value) {
    file.arrays.at(name).bytes.at(index) = static_cast<std::byte>(value);
  };
  // 3-bit codes in 4-bit places: 8 and above stand for nothing; C = 3 leaves half a byte of padding.
  refuses([&](ArrayFile& file, Json&) { byte(file, "enc.l0.W", 0, 0x08); }, "tensor 'enc.l0.W' row 0 holds 8");
  refuses([&](ArrayFile& file, Json&) { byte(file, "enc.l0.reverse.W", 1, 0x10); }, "must be 0 (padding)");
  refuses([](ArrayFile& file, Json&) { file.arrays.at("enc.l0.W.shift").data<int32_t>()[3] = 63; }, "shift is 63");
  refuses([](ArrayFile& file, Json&) { file.arrays.at("enc.l0.acc_to_ih.multiplier").data<int32_t>()[3] = 0; },
          "multiplier is 0");
  // One LSB off in one entry: the certificate is no longer true.
  refuses(
      [](ArrayFile& file, Json&) {
        std::byte& entry = file.arrays.at("enc.l0.table.r.entries").bytes[128];
        entry = static_cast<std::byte>(static_cast<int>(entry) ^ 1);
      },
      "table of r");
  refuses([](ArrayFile&, Json& json) { json["grus"][0]["layers"][0]["tables"]["n"]["max_error_lsb"] = 1; },
          "certified error");
  refuses([](ArrayFile&, Json& json) { json["grus"][0]["layers"][0]["accumulators"]["hh"]["bound"] = "1"; },
          "field 'bound' is 1, but the accumulator can reach");
  refuses([](ArrayFile&, Json& json) { json["grus"][0]["layers"][0]["accumulators"]["hh"]["bits"] = 64; },
          "field 'bits' is 64");
  refuses([](ArrayFile&, Json& json) { json["grus"][0]["rounding"] = "up"; }, "field 'rounding' is 'up'");
}

TEST_F(SaveTampered, TruncatedAnywhere) {
  const std::vector<std::byte> bytes = content(path());
  for (size_t size = 0; size < bytes.size(); size += size < 16 ? 1 : 61) {
    ASSERT_TRUE(write_file_atomically(path(), bytes.data(), size).ok());
    const Result<GruModel> loaded = GruModel::load(path());
    ASSERT_FALSE(loaded.ok()) << size;
    EXPECT_NE(loaded.status().message().find(path()), std::string::npos) << loaded.status().message();
  }
}

TEST(SaveTables, TamperedValuesAreRefused) {
  for (const char* table : {"interpolated", "segments:8"}) {
    const Result<GruModel> model = make_model(Spec{"table", "8", ScaleKind::kPow2, 1, 1, table});
    ASSERT_TRUE(model.ok()) << model.status().message();
    const TemporaryFolder folder;
    const std::string path = folder.file("model.safetensors");
    ASSERT_TRUE(model->save(path).ok());
    Result<ArrayFile> file = load_arrays(path);
    ASSERT_TRUE(file.ok());
    const bool segments = std::string(table) != "interpolated";
    const auto found = file->arrays.find(segments ? "enc.l0.table.n.intercepts" : "enc.l0.table.n.anchors");
    ASSERT_NE(found, file->arrays.end());
    found->second.data<int64_t>()[found->second.size() / 2] += int64_t{1} << 40;  // past any shift
    ASSERT_TRUE(save_safetensors(path, *file).ok());
    const Result<GruModel> loaded = GruModel::load(path);
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.status().message().find("table of n"), std::string::npos) << loaded.status().message();
  }
}

}  // namespace
}  // namespace isobit
