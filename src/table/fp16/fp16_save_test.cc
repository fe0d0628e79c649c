// SPDX-License-Identifier: Apache-2.0
// Saved FP16 tables: what is saved is what is read, and every damage is refused by name.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/container.h"
#include "isobit/arrays.h"
#include "isobit/fp16_table.h"

namespace isobit {
namespace {

using Json = nlohmann::json;

Fp16Pieces small_pieces(Fp16Model model) {
  Fp16Pieces pieces{
      {1, 4, 2, 1}, {-1.0f, -0.5f, 0.5f, 0.5f, 1.0f}, {}, {-0.0f, 0.0f, 0.25f, 0.5f, 0.5f, 0.75f, 1.0f, 1.5f, 2.0f}};
  set_scales(pieces, model);
  return pieces;
}

Fp16Table small_table(Fp16Reduction reduction = Fp16Reduction::kNone, bool half_values = false) {
  Fp16Table table;
  table.function = reduction == Fp16Reduction::kNone ? "swish" : std::string(to_string(reduction));
  if (reduction == Fp16Reduction::kNone) table.beta = -1.7;
  table.model = Fp16Model::kNliGpu;
  table.half_values = half_values;
  table.reduction = reduction;
  const int pieces = reduction == Fp16Reduction::kSin || reduction == Fp16Reduction::kCos ? 2 : 1;
  for (int i = 0; i < pieces; ++i) table.pieces.push_back(small_pieces(table.model));
  table.certificate = {std::numeric_limits<double>::infinity(), 0.1, 0x7bff, 1e-3, 0.25, 0.75};
  return table;
}

class SavedFp16Table : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "isobit_fp16_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = (folder_ / "table.safetensors").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Saves a good table, changes the file, and returns what loading it says.
  std::string refusal(const std::function<void(ArrayFile&, Json&)>& change) {
    EXPECT_TRUE(save_fp16_table(path_, small_table()).ok());
    Result<ArrayFile> file = load_arrays(path_);
    EXPECT_TRUE(file.ok());
    Json json = Json::parse(file->metadata["isobit"]);
    change(*file, json);
    file->metadata["isobit"] = json.dump();
    EXPECT_TRUE(save_safetensors(path_, *file).ok());
    const Result<Fp16Table> table = load_fp16_table(path_);
    EXPECT_FALSE(table.ok());
    return table.ok() ? "accepted" : table.status().message();
  }

  std::filesystem::path folder_;
  std::string path_;
};

#define EXPECT_REFUSES(text, ...) EXPECT_NE(refusal(__VA_ARGS__).find(text), std::string::npos) << refusal(__VA_ARGS__)

TEST_F(SavedFp16Table, ComesBackAsItWas) {
  for (const bool half_values : {false, true}) {
    for (int32_t i = 0; i <= static_cast<int32_t>(Fp16Reduction::kInverseSigmoid); ++i) {
      const Fp16Table table = small_table(static_cast<Fp16Reduction>(i), half_values);
      const Status status = save_fp16_table(path_, table);
      ASSERT_TRUE(status.ok()) << status.message();
      const Result<Fp16Table> loaded = load_fp16_table(path_);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      EXPECT_TRUE(*loaded == table);
      // -0 == 0: the bytes say more.
      const Result<std::vector<std::byte>> first = read_file(path_);
      ASSERT_TRUE(save_fp16_table(path_, *loaded).ok());
      const Result<std::vector<std::byte>> second = read_file(path_);
      ASSERT_TRUE(first.ok() && second.ok());
      EXPECT_EQ(*first, *second);
    }
  }
}

TEST_F(SavedFp16Table, ABadTableIsNotSaved) {
  Fp16Table table = small_table();
  table.pieces[0].values.pop_back();
  const Status status = save_fp16_table(path_, table);
  EXPECT_NE(status.message().find("number of values is 8"), std::string::npos) << status.message();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SavedFp16Table, EveryMissingOrUnknownFieldIsNamed) {
  const std::vector<std::string> fields = {"function", "beta", "model", "values", "reduction", "certificate", "pieces"};
  for (const std::string& field : fields)
    EXPECT_REFUSES("field '" + field + "' is missing", [&](ArrayFile&, Json& j) { j["fp16_table"].erase(field); });
  for (const char* field : {"max_ulp", "mean_ulp", "worst_code", "max_absolute", "share_exact", "share_within_ulp"})
    EXPECT_REFUSES(std::string("field '") + field + "' is missing",
                   [&](ArrayFile&, Json& j) { j["fp16_table"]["certificate"].erase(field); });
  EXPECT_REFUSES("unknown field 'extra'", [](ArrayFile&, Json& j) { j["fp16_table"]["extra"] = 1; });
  EXPECT_REFUSES("unknown field 'extra'", [](ArrayFile&, Json& j) { j["extra"] = 1; });
  EXPECT_REFUSES("format version 2", [](ArrayFile&, Json& j) { j["format_version"] = 2; });
  EXPECT_REFUSES("field 'model' is 'nli'", [](ArrayFile&, Json& j) { j["fp16_table"]["model"] = "nli"; });
  EXPECT_REFUSES("field 'beta' is 'one'", [](ArrayFile&, Json& j) { j["fp16_table"]["beta"] = "one"; });
  EXPECT_REFUSES("function is \"sloth\"", [](ArrayFile&, Json& j) { j["fp16_table"]["function"] = "sloth"; });
  EXPECT_REFUSES("certificate mean_ulp is",
                 [](ArrayFile&, Json& j) { j["fp16_table"]["certificate"]["mean_ulp"] = "-0x1p+0"; });
}

TEST_F(SavedFp16Table, EveryDamagedTensorIsNamed) {
  for (const char* name : {"pieces.0.steps", "pieces.0.cut_points", "pieces.0.scales", "pieces.0.values"}) {
    const std::string quoted = std::string("tensor '") + name + "'";
    EXPECT_REFUSES(quoted + " is missing", [&](ArrayFile& f, Json&) { f.arrays.erase(name); });
    EXPECT_REFUSES(quoted + " is s8",
                   [&](ArrayFile& f, Json&) { f.arrays[name] = Array::zeros(Dtype::kS8, f.arrays[name].shape); });
    EXPECT_REFUSES(quoted + " has the shape (1,)",
                   [&](ArrayFile& f, Json&) { f.arrays[name] = Array::zeros(f.arrays[name].dtype, {1}); });
  }
  EXPECT_REFUSES("unknown tensor 'pieces.1.values'",
                 [](ArrayFile& f, Json&) { f.arrays["pieces.1.values"] = f.arrays["pieces.0.values"]; });
  const auto set = [](const char* name, int64_t index, float value) {
    return [=](ArrayFile& f, Json&) { f.arrays[name].data<float>()[index] = value; };
  };
  EXPECT_REFUSES("cut_points[1] is -2, must be at least cut_points[0], -1", set("pieces.0.cut_points", 1, -2.0f));
  EXPECT_REFUSES("cut_points[1] is inf, must be finite",
                 set("pieces.0.cut_points", 1, std::numeric_limits<float>::infinity()));
  EXPECT_REFUSES("cut_points[1] is 0.100000001, must be a float16 number", set("pieces.0.cut_points", 1, 0.1f));
  EXPECT_REFUSES("scales[1] is 5, must be 4", set("pieces.0.scales", 1, 5.0f));
  EXPECT_REFUSES("values[3] is nan, must be finite",
                 set("pieces.0.values", 3, std::numeric_limits<float>::quiet_NaN()));
  EXPECT_REFUSES("must be 9, the sum of the steps plus 1", [](ArrayFile& f, Json& j) {
    j["fp16_table"]["pieces"][0]["entries"] = 8;
    f.arrays["pieces.0.values"] = Array::zeros(Dtype::kF32, {8});
  });
  EXPECT_REFUSES("number of pieces is 2, must be 1", [](ArrayFile& f, Json& j) {
    j["fp16_table"]["pieces"].push_back(j["fp16_table"]["pieces"][0]);
    for (const char* what : {"steps", "cut_points", "scales", "values"})
      f.arrays[std::string("pieces.1.") + what] = f.arrays[std::string("pieces.0.") + what];
  });
}

TEST_F(SavedFp16Table, OtherFilesAreRefused) {
  ASSERT_TRUE(write_file_atomically(path_, "no table", 8).ok());
  EXPECT_FALSE(load_fp16_table(path_).ok());
  ASSERT_TRUE(save_safetensors(path_, {}).ok());
  const Result<Fp16Table> table = load_fp16_table(path_);
  ASSERT_FALSE(table.ok());
  EXPECT_NE(table.status().message().find("not a saved isobit table"), std::string::npos);
  EXPECT_FALSE(load_fp16_table((folder_ / "absent").string()).ok());
}

TEST_F(SavedFp16Table, ByNameOrFile) {
  ASSERT_TRUE(save_fp16_table(path_, small_table()).ok());
  EXPECT_EQ(find_fp16_table(path_).value(), small_table());
  EXPECT_EQ(find_fp16_table("tanh", Fp16Model::kNliCpu, true).value(),
            builtin_fp16_table("tanh", Fp16Model::kNliCpu, true).value());
  EXPECT_TRUE(is_fp16_function("tanh"));
  EXPECT_FALSE(is_fp16_function(path_));
  const Status missing = find_fp16_table("tanj").status();
  EXPECT_EQ(missing.code(), StatusCode::kIo);
  EXPECT_NE(missing.message().find("tanj: no such file, and no function that is built in; expected "), std::string::npos);
  EXPECT_NE(missing.message().find("nearest: tanh"), std::string::npos) << missing.message();
  EXPECT_TRUE(check_table_name(path_).ok());
  EXPECT_TRUE(check_table_name("tanh").ok());
  EXPECT_TRUE(check_table_name("softmax", true).ok());
  EXPECT_EQ(check_table_name("softmax").code(), StatusCode::kIo);
  EXPECT_NE(check_table_name("softmx", true).message().find("nearest: softmax"), std::string::npos);
}

TEST(Fp16Steps, Text) {
  EXPECT_EQ(parse_fp16_steps("1,8x32,1").value(), fp16_steps_259());
  EXPECT_EQ(parse_fp16_steps("4096").value(), std::vector<int32_t>{4096});
  EXPECT_EQ(parse_fp16_steps("256x1").value().size(), 256U);
  for (const char* wrong : {"", "0", "-1", "4097", "257x1", "256x1,1", "2x", "x2", "1,", "1;2", "1 ", "0x1", "a",
                            "99999999999", "99999999999x1"}) {
    const Status status = parse_fp16_steps(wrong).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_EQ(status.message().find("steps " + std::string(wrong) + ": expected "), 0U) << status.message();
  }
}

TEST_F(SavedFp16Table, ExactResults) {
  Fp16Table table = builtin_fp16_table("silu").value();
  EXPECT_EQ(fp16_exact(table).value(), fp16_exact("silu").value());
  const std::string file = (folder_ / "values.npy").string();
  EXPECT_NE(fp16_exact(table, file).status().message().find("the function is silu, whose values are known"),
            std::string::npos);
  table.function = "custom";
  EXPECT_NE(fp16_exact(table).status().message().find("--exact FILE.npy"), std::string::npos);
  const Array values = Array::zeros(Dtype::kF64, {65536});
  ASSERT_TRUE(save_npy(file, values).ok());
  EXPECT_EQ(fp16_exact(table, file).value(), fp16_exact(std::vector<double>(65536)).value());
}

TEST_F(SavedFp16Table, ValuesOfAFunction) {
  const std::string file = (folder_ / "values.npy").string();
  Array values = Array::zeros(Dtype::kF64, {65536});
  values.data<double>()[3] = 0.5;
  ASSERT_TRUE(save_npy(file, values).ok());
  const Result<std::vector<double>> loaded = load_fp16_values(file);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ((*loaded)[3], 0.5);
  ASSERT_TRUE(save_npy(file, Array::zeros(Dtype::kF32, {2, 3})).ok());
  EXPECT_EQ(load_fp16_values(file).status().message(),
            file + " is f32 [2, 3]; expected f64 [65536], one value for each float16 code");
}

}  // namespace
}  // namespace isobit
