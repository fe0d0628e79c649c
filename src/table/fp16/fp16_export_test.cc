// SPDX-License-Identifier: Apache-2.0
// Exported C is compiled and run, and its result for every code compared with the reference.
#include "isobit/fp16_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "isobit/arrays.h"

namespace isobit {
namespace {

constexpr Fp16Model kModels[] = {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu};
const std::vector<float> kSiluCuts = {
    -20.359375f,         -17.109375f,  -8.3671875f, -1.9755859375f, -0.255615234375f, -0.007244110107421875f,
    0.0072174072265625f, 0.228515625f, 1.58203125f, 10.46875f,      65504.0f};

struct Named {
  std::string name;
  Fp16Table table;
};

float random_value(Random& random, bool half) {
  const uint64_t u = random.next();
  const int64_t magnitude = static_cast<int64_t>(u >> 40) - (1 << 23);
  switch (u % 16) {
    case 0: return -0.0f;
    case 1: return 0.0f;
    case 2:
      if (!half) return std::ldexp(static_cast<float>(magnitude), -149 + static_cast<int>((u >> 8) % 12));
      [[fallthrough]];
    case 3:
      if (!half) return std::ldexp(static_cast<float>(magnitude), 100);
      [[fallthrough]];
    default: break;
  }
  const float value = std::ldexp(static_cast<float>(magnitude), -7 - static_cast<int>(u % 32));
  return half ? std::clamp(f16_to_f32(f32_to_f16(value)), -65504.0f, 65504.0f) : value;
}

/// Random cut points over [low, high], one interval without width, and random values.
Fp16Pieces random_pieces(std::vector<int32_t> steps, float low, float high, const Fp16Table& table, Random& random) {
  Fp16Pieces pieces;
  pieces.steps = std::move(steps);
  const size_t n = pieces.steps.size();
  for (size_t i = 0; i <= n; ++i) {
    const float jitter = static_cast<float>(random.between(-200, 200)) / 1000.0f;
    const float share = i == 0 ? 0.0f : (i == n ? 1.0f : (static_cast<float>(i) + jitter) / static_cast<float>(n));
    const float cut = low + (high - low) * share;
    pieces.cut_points.push_back(table.reduction == Fp16Reduction::kNone ? f16_to_f32(f32_to_f16(cut)) : cut);
  }
  if (n > 3) pieces.cut_points[2] = pieces.cut_points[1];
  int32_t count = 1;
  for (const int32_t s : pieces.steps) count += s;
  for (int32_t i = 0; i < count; ++i) pieces.values.push_back(random_value(random, table.half_values));
  set_scales(pieces, table.model);
  return pieces;
}

/// Every range reduction with every model and both kinds of values; real functions; all float16 numbers as cut points.
std::vector<Named> make_tables() {
  const std::vector<int32_t> geometries[] = {
      fp16_steps_259(), {5, 1, 300, 2, 77, 4096}, std::vector<int32_t>(32, 3), {7}};
  const struct {
    Fp16Reduction reduction;
    float low, high;
  } kinds[] = {{Fp16Reduction::kNone, -30.0f, 60.0f},       {Fp16Reduction::kSin, -0.786f, 0.786f},
               {Fp16Reduction::kCos, -0.77f, 0.786f},       {Fp16Reduction::kExp, -0.3466f, 0.3466f},
               {Fp16Reduction::kLog, 0.7072f, 1.4143f},     {Fp16Reduction::kReciprocal, 1.0f, 2.0f},
               {Fp16Reduction::kRsqrt, 1.0f, 4.0f},         {Fp16Reduction::kSqrt, 1.01f, 3.9f},
               {Fp16Reduction::kInverseSigmoid, 0.0f, 1.0f}};
  std::vector<Named> result;
  Random random(5);
  for (const auto& kind : kinds) {
    for (const Fp16Model model : kModels) {
      for (const bool half : {false, true}) {
        Fp16Table table;
        table.reduction = kind.reduction;
        table.function = kind.reduction == Fp16Reduction::kNone ? "custom" : std::string(to_string(kind.reduction));
        table.model = model;
        table.half_values = half;
        const bool two = kind.reduction == Fp16Reduction::kSin || kind.reduction == Fp16Reduction::kCos;
        for (int i = 0; i < (two ? 2 : 1); ++i)
          table.pieces.push_back(
              random_pieces(geometries[result.size() % 4 + (i == 0 || result.size() % 4 == 3 ? 0 : 1)], kind.low,
                            kind.high, table, random));
        result.push_back({"f" + std::to_string(result.size()), std::move(table)});
      }
    }
  }
  for (const Fp16Model model : kModels) {
    Fp16FitOptions options;
    options.model = model;
    options.half_values = model == Fp16Model::kNliCpu;
    Result<Fp16Table> silu = import_fp16_table("silu", kSiluCuts, options);
    EXPECT_TRUE(silu.ok()) << silu.status().message();
    if (silu.ok()) result.push_back({"silu_" + std::string(to_string(model)), *std::move(silu)});
  }
  Fp16Table wide;  // differences and positions of every size
  wide.function = "custom";
  wide.pieces.push_back(random_pieces({1, 4096, 4096, 2}, -65504.0f, 65504.0f, wide, random));
  wide.pieces[0].cut_points = {-65504.0f, -0x1p-24f, -0.0f, 0x1p-24f, 65504.0f};
  set_scales(wide.pieces[0], wide.model);
  result.push_back({"wide", wide});
  return result;
}

const std::vector<Named>& tables() {
  static const std::vector<Named> all = make_tables();
  return all;
}

class Fp16ExportC : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_STRNE(ISOBIT_C_COMPILER, "") << "no C compiler (cc, gcc or clang) was found when CMake ran";
    path_ = (std::filesystem::temp_directory_path() / "isobit_fp16_export_XXXXXX").string();
    ASSERT_NE(::mkdtemp(path_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  void write(const std::string& name, const std::string& text) const {
    const std::string path = std::filesystem::path(path_) / name;
    const Status status = write_file_atomically(path, text.data(), text.size());
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void write_export(const Named& named) const {
    const Result<std::vector<ExportedFile>> files = export_fp16_c(named.table, named.name);
    ASSERT_TRUE(files.ok()) << files.status().message();
    ASSERT_EQ(files->size(), 3);
    for (const ExportedFile& file : *files) write(file.name, file.text);
  }
  [[nodiscard]] bool runs(const std::string& command) const {
    return std::system(("cd '" + path_ + "' && " + command).c_str()) == 0;
  }
  [[nodiscard]] static std::string compiler(const char* path, const std::string& options) {
    return "'" + std::string(path) + "' -std=c99 -Wall -Wextra -Wshadow -Wconversion -Werror -pedantic " + options +
           " ";
  }

  /// One program with all exported functions; it writes all results to a file.
  void compare_every_code(const std::vector<Named>& all) const {
    std::string program = "#include <stdint.h>\n#include <stdio.h>\n", sources, body;
    for (const Named& named : all) {
      write_export(named);
      program += "#include \"" + named.name + ".h\"\n";
      sources += named.name + ".c ";
      body += "  for (x = 0; x < 65536; ++x) y[x] = " + named.name + "((uint16_t)x);\n  fwrite(y, 2, 65536, file);\n";
    }
    write("all.c", program + "static uint16_t y[65536];\nint main(void)\n{\n  uint32_t x;\n" +
                       "  FILE *file = fopen(\"all.bin\", \"wb\");\n  if (file == NULL) return 1;\n" + body +
                       "  return fclose(file);\n}\n");
    ASSERT_TRUE(runs(compiler(ISOBIT_C_COMPILER, "-O1 -ffreestanding -c") + sources));
    ASSERT_TRUE(runs(compiler(ISOBIT_C_COMPILER, "-O1") + "-o all all.c *.o && ./all"));
    const Result<std::vector<std::byte>> bytes = read_file(std::filesystem::path(path_) / "all.bin");
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    ASSERT_EQ(bytes->size(), all.size() * 65536 * 2);
    size_t at = 0;
    for (const Named& named : all) {
      int different = 0;
      for (uint32_t x = 0; x < 65536; ++x, at += 2) {
        uint16_t y = 0;
        std::memcpy(&y, bytes->data() + at, 2);
        const uint16_t expected = named.table(static_cast<uint16_t>(x));
        if (y != expected && different++ == 0)
          ADD_FAILURE() << named.name << " " << to_string(named.table.reduction) << " " << to_string(named.table.model)
                        << std::hex << " at " << x << ": " << y << ", must be " << expected;
      }
      EXPECT_EQ(different, 0) << named.name;
    }
  }

  std::string path_;
};

TEST(Fp16Export, EveryFunctionHasItsFormula) {
  for (const std::string_view function : fp16_functions()) {
    SCOPED_TRACE(function);
    const Fp16Table table = builtin_fp16_table(function, kModels[0], false).value();
    const auto files = export_fp16_c(table, "name");
    ASSERT_TRUE(files.ok()) << files.status().message();
    for (const ExportedFile& file : *files) EXPECT_EQ(file.text.find("user's own"), std::string::npos) << file.name;
  }
}

TEST_F(Fp16ExportC, EveryCodeOfEveryTable) {
  ASSERT_EQ(tables().size(), 58);
  compare_every_code(tables());
}

TEST_F(Fp16ExportC, EveryCodeOfEveryBuiltInTable) {
  std::vector<Named> all;
  for (const std::string_view function : fp16_functions())
    for (const Fp16Model model : kModels)
      for (const bool half : {false, true})
        all.push_back(
            {"builtin_" + std::string(function) + "_" + std::string(to_string(model)) + (half ? "_f16" : "_f32"),
             builtin_fp16_table(function, model, half).value()});
  ASSERT_EQ(all.size(), 6 * fp16_functions().size());
  compare_every_code(all);
}

// The exported test with the options that change floating-point results, were there any.
TEST_F(Fp16ExportC, OwnTestWithEveryCompiler) {
  const std::vector<Named>& all = tables();
  std::vector<std::string> compilers;
  for (const char* options : {"-O0", "-O2", "-O2 -march=native -ffp-contract=fast",
                              "-Os -ffast-math -fsanitize=undefined "
                              "-fno-sanitize-recover=all"})
    compilers.push_back(compiler(ISOBIT_C_COMPILER, options));
  if (*ISOBIT_CLANG != '\0') compilers.push_back(compiler(ISOBIT_CLANG, "-O2 -march=native"));
  for (const size_t i : {6U, 24U, 56U}) {  // sin, log, silu with model nli_cpu
    write_export(all[i]);
    for (const std::string& command : compilers)
      EXPECT_TRUE(runs(command + "-o own " + all[i].name + ".c " + all[i].name + "_test.c && ./own")) << command;
  }
}

// The test must notice a wrong value.
TEST_F(Fp16ExportC, OwnTestFails) {
  const Named& named = tables()[56];
  write_export(named);
  Named wrong = named;
  wrong.table.pieces[0].values[200] += 0.5f;
  const Result<std::vector<ExportedFile>> files = export_fp16_c(wrong.table, named.name);
  ASSERT_TRUE(files.ok());
  write(named.name + ".c", (*files)[1].text);
  const std::string build =
      compiler(ISOBIT_C_COMPILER, "-O1") + "-o own " + named.name + ".c " + named.name + "_test.c";
  ASSERT_TRUE(runs(build));
  EXPECT_FALSE(runs("./own"));
}

// C++ may include the header; nothing but stdint.h is used.
TEST_F(Fp16ExportC, HeaderInCxx) {
  const Named named = tables().front();
  write_export(named);
  write("user.cc", "#include \"" + named.name + ".h\"\nint main() { return " + named.name + "(0x7e01) != 0x7e00; }\n");
  EXPECT_TRUE(runs(compiler(ISOBIT_C_COMPILER, "-c") + named.name + ".c && '" ISOBIT_CXX_COMPILER "' -o user user.cc " +
                   named.name + ".o && ./user"));
  const Result<std::vector<ExportedFile>> files = export_fp16_c(named.table, named.name);
  ASSERT_TRUE(files.ok());
  for (const ExportedFile& file : {(*files)[0], (*files)[1]})
    for (size_t i = 0; (i = file.text.find("#include", i)) != std::string::npos; ++i)
      EXPECT_TRUE(file.text.substr(i, 19) == "#include <stdint.h>" || file.text.substr(i, 13) == "#include \"f0.");
}

TEST(Fp16Export, Names) {
  const Fp16Table table = tables().front().table;
  for (const char* name : {"silu", "a", "Silu_2", "isobit_exp"}) EXPECT_TRUE(export_fp16_c(table, name).ok()) << name;
  for (const char* name : {"", "2silu", "si lu", "si-lu", "../silu", "sil\xc3\xbc", "int", "exp", "_silu", "a__b",
                           "class", "a;b", "a123456789012345678901234567890123456789012"}) {
    const auto files = export_fp16_c(table, name);
    ASSERT_FALSE(files.ok()) << name;
    EXPECT_EQ(files.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(files.status().message().find(name), std::string::npos) << files.status().message();
  }
}

TEST(Fp16Export, RefusesTables) {
  Fp16Table table = tables().front().table;
  table.pieces[0].values[0] = 3e38f;
  table.pieces[0].values[1] = -3e38f;
  EXPECT_EQ(export_fp16_c(table, "far").status().code(), StatusCode::kUnsupported);
  table.pieces[0].values.pop_back();
  EXPECT_EQ(export_fp16_c(table, "short_one").status().code(), StatusCode::kInvalidFile);
  EXPECT_EQ(export_fp16_hex(table).status().code(), StatusCode::kInvalidFile);
}

TEST(Fp16Export, WithoutTest) {
  const auto files = export_fp16_c(tables().front().table, "f", {.with_test = false});
  ASSERT_TRUE(files.ok());
  ASSERT_EQ(files->size(), 2);
  EXPECT_EQ((*files)[0].name, "f.h");
  EXPECT_EQ((*files)[1].name, "f.c");
}

// Read back with nothing but what docs/formats.md says.
TEST(Fp16Export, Image) {
  for (const Named& named : tables()) {
    const Result<std::string> text = export_fp16_hex(named.table);
    ASSERT_TRUE(text.ok()) << text.status().message();
    std::vector<std::string> words;
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("//", 0) == 0) continue;
      if (line[0] == '@') {
        EXPECT_EQ(std::stoul(line.substr(1), nullptr, 16), words.size());
        continue;
      }
      EXPECT_EQ(line.find_first_not_of("0123456789abcdef"), std::string::npos) << line;
      words.push_back(line);
    }
    size_t at = 0;
    const auto integer = [&] { return static_cast<uint32_t>(std::stoul(words.at(at++), nullptr, 16)); };
    const auto floats = [&](size_t count) {
      std::vector<float> result;
      for (size_t i = 0; i < count; ++i) {
        const bool half = words.at(at).size() == 4;
        const uint32_t word = integer();
        result.push_back(half ? f16_to_f32(static_cast<uint16_t>(word)) : std::bit_cast<float>(word));
      }
      return result;
    };
    Fp16Table table;
    table.function = named.table.function;
    table.certificate = named.table.certificate;
    table.model = static_cast<Fp16Model>(integer());
    table.reduction = static_cast<Fp16Reduction>(integer());
    const uint32_t value_bits = integer();
    table.half_values = value_bits == 16;
    const uint32_t pieces_count = integer();
    for (uint32_t i = 0; i < pieces_count; ++i) {
      Fp16Pieces pieces;
      const uint32_t n = integer();
      size_t count = 1;
      for (uint32_t j = 0; j < n; ++j) {
        pieces.steps.push_back(static_cast<int32_t>(integer()));
        count += static_cast<size_t>(pieces.steps.back());
      }
      pieces.cut_points = floats(n + 1);
      pieces.scales = floats(n);
      EXPECT_EQ(words.at(at).size() * 4, value_bits);
      pieces.values = floats(count);
      table.pieces.push_back(std::move(pieces));
    }
    EXPECT_EQ(at, words.size());
    EXPECT_EQ(table, named.table) << named.name;
    for (size_t i = 0; i < table.pieces.size(); ++i)  // == does not see the sign of a zero
      for (size_t j = 0; j < table.pieces[i].values.size(); ++j)
        EXPECT_EQ(std::signbit(table.pieces[i].values[j]), std::signbit(named.table.pieces[i].values[j]));
  }
}

}  // namespace
}  // namespace isobit
