// SPDX-License-Identifier: Apache-2.0
#include "isobit/export.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "conv/random_layer.h"
#include "core/toolchain/c_source.h"
#include "core/toolchain/process.h"
#include "gru/random_model.h"
#include "io/test_files.h"

namespace isobit {
namespace {

RandomShape plain_shape() {
  RandomShape shape;
  shape.input = 6;
  shape.hidden = 5;
  return shape;
}

GruModel model_of(const RandomShape& shape, uint64_t seed = 1) {
  Random random(seed);
  for (;;) {
    Result<GruModel> model = random_model(random, shape);
    if (model.ok()) return *std::move(model);
  }
}

void refused(const Status& status, StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

std::vector<std::byte> codes_of(Random& random, const Grid& grid, int64_t count) {
  return random_tensor(random, count, grid);
}

TEST(CExport, IsTheSameEveryTime) {
  const GruModel model = model_of(plain_shape());
  const CExport first = export_c(model, {.name = "enc"}).value(), second = export_c(model, {.name = "enc"}).value();
  ASSERT_EQ(first.files.size(), 4u);
  for (size_t i = 0; i < first.files.size(); ++i) EXPECT_EQ(first.files[i].text, second.files[i].text);
  EXPECT_EQ(first.sizes.state_bytes, 5);
  EXPECT_EQ(first.sizes.multiply_adds, 3 * 5 * (6 + 5));
}

TEST(CExport, EqualTablesAreOne) {
  RandomShape shape = plain_shape();
  shape.layers = 2;
  GruModelParameters p = model_of(shape).parameters();
  for (GruLayerParameters& layer : p.layers) {
    layer.tables = p.layers[0].tables;
    for (const GruTensor tensor : {kUIn, kRIn, kNIn, kU, kRGate, kN}) layer.grids[tensor] = p.layers[0].grids[tensor];
    ASSERT_TRUE(derive_rescales(layer, "layer").ok());
  }
  const GruModel model = GruModel::create(p).value();
  const CExport code = export_c(model, {.name = "enc"}).value();
  const CExport other = export_c(model_of(plain_shape()), {.name = "enc"}).value();
  EXPECT_EQ(code.sizes.tables_bytes, other.sizes.tables_bytes);
}

TEST(CExport, RefusesNamesStepsAndWidths) {
  const GruModel model = model_of(plain_shape());
  for (const char* name : {"2fast", "a-b", "int", "_enc", "enc_", "a__b", "ünder"})
    refused(export_c(model, {.name = name}).status(), StatusCode::kInvalidArgument, name);
  refused(export_c(model, {.name = std::string(41, 'a')}).status(), StatusCode::kInvalidArgument, "41 characters");
  for (const int64_t steps : {int64_t{0}, int64_t{1001}, std::numeric_limits<int64_t>::min()})
    refused(export_c(model, {.name = "a", .selftest_steps = steps}).status(), StatusCode::kInvalidArgument,
            "selftest_steps is " + std::to_string(steps) + ", must be 1 to 1000");
  RandomShape wide = plain_shape();
  wide.x_bits = 17;
  wide.kind = ScaleKind::kReal;
  refused(export_c(model_of(wide), {.name = "enc"}).status(), StatusCode::kUnsupported,
          "l0: x has 17 bits, exported C takes at most 16; quantise with --bits x=16");
  RandomShape two = plain_shape();
  two.directions = 2;
  refused(export_c(model_of(two), {.name = "enc", .float_entry = true}).status(), StatusCode::kUnsupported,
          "float_entry");
}

TEST(CExport, LargeTablesNeedToBeAllowed) {
  RandomShape shape = plain_shape();
  shape.gate_out_bits = 16;
  GruModelParameters p = model_of(shape).parameters();
  GruLayerParameters& layer = p.layers[0];
  Grid& input = layer.grids[kNIn];
  input = {.bits = 14, .shift = 11};
  layer.tables[2] =
      fit_table(Activation::kTanh, input, layer.grids[kN], {.kind = TableKind::kDirect}, layer.rounding).value();
  ASSERT_TRUE(derive_rescales(layer, "layer").ok());
  const GruModel model = GruModel::create(p).value();
  refused(export_c(model, {.name = "enc"}).status(), StatusCode::kUnsupported,
          "table of n of l0 has 32768 bytes, must have at most 16384; quantise with --table segments:16");
  EXPECT_TRUE(export_c(model, {.name = "enc", .allow_large_tables = true}).ok());
}

TEST(CExport, NamesComeFromTheModel) {
  GruModelParameters p = model_of(plain_shape()).parameters();
  const auto name_of = [&](const std::string& model) {
    p.name = model;
    return export_c(GruModel::create(p).value()).value().name;
  };
  EXPECT_EQ(name_of(""), "gru");
  EXPECT_EQ(name_of("enc.gru-1"), "enc_gru_1");
  EXPECT_EQ(name_of("1st"), "gru_1st");
  EXPECT_EQ(name_of("double"), "gru_double");
  EXPECT_EQ(name_of("..."), "gru");
}

TEST(CExport, NamesOfFilesEndNoComment) {
  GruModelParameters p = model_of(plain_shape()).parameters();
  p.name = "a */ int main(void) { return 7; } /* $ @NAME\n#error";
  const GruModel model = GruModel::create(p).value();
  const CExport code = export_c(model, {.name = "enc"}).value();
  for (const ExportedFile& file : code.files) EXPECT_EQ(file.text.find("*/"), file.text.find("*/\n")) << file.name;
  EXPECT_NE(code.files[0].text.find("$ @NAME\\n#error"), std::string::npos);
  Random random(8);
  const Result<CCheck> check = check_c_export(code, model, codes_of(random, model.input_grid(), 6), 1, 1);
  ASSERT_TRUE(check.ok()) << check.status().message();
  EXPECT_EQ(check->first_difference, "");
}

TEST(CExport, UnsignedWeightsAndRowsOfZeros) {
  Random random(9);
  for (const int32_t bits : {2, 4, 8, 11}) {
    RandomShape shape = plain_shape();
    shape.weight_bits = bits;
    GruModelParameters p = model_of(shape).parameters();
    GruLayerParameters& layer = p.layers[0];
    layer.grids[kW].is_signed = false;
    for (Grid& grid : layer.W_grid) grid.is_signed = false;
    layer.W_grid[0].shift = -32;
    layer.W = random_codes(random, 15, 6, layer.grids[kW]);
    for (int64_t k = 0; k < 6; ++k) layer.W.set(0, k, 0);
    layer.bw.set(0, 0, 0);
    ASSERT_TRUE(derive_rescales(layer, "layer").ok());
    const GruModel model = GruModel::create(p).value();
    for (const CTarget target : {CTarget::kGeneric, CTarget::kCortexM4, CTarget::kCortexM55}) {
      const CExport code = export_c(model, {.name = "enc", .target = target}).value();
      const std::vector<std::byte> x = codes_of(random, model.input_grid(), 20 * 6);
      const Result<CCheck> check =
          check_c_export(code, model, x, 20, 1, "cc -fsanitize=undefined -fno-sanitize-recover");
      ASSERT_TRUE(check.ok()) << check.status().message();
      EXPECT_EQ(check->first_difference, "") << bits;
    }
  }
}

TEST(CExport, SizesOfImagesAreThoseOfTheLibrary) {
  Random random(10);
  StaticConvParameters p;
  p.shape = {.rows = {.kernel = 3, .stride = 2}, .columns = {.kernel = 4, .dilation = 2, .pad_before = 1}};
  p.linear = random_conv_linear(random, 1, 12, Grid{}, Grid{});
  const CExport code = export_c(StaticConvLayer::create(p, "c").value(), {.name = "c"}).value();
  const TemporaryFolder folder;
  ASSERT_TRUE(write_c_export(code, folder.file("c")).ok());
  std::ofstream(folder.file("c/main.c")) << "#include \"c.h\"\n#include <stdio.h>\nint main(void)\n{\n  int n;\n"
                                            "  for (n = 1; n < 12; ++n)\n    printf(\"%d %d \", C_OUTPUT_ROWS(n), "
                                            "C_OUTPUT_COLUMNS(n));\n  return 0;\n}\n";
  ASSERT_EQ(run_process({"cc", "-o", folder.file("main"), folder.file("c/main.c")}).value().exit_status, 0);
  std::istringstream sizes(run_process({folder.file("main")}).value().output);
  for (int64_t n = 1; n < 12; ++n) {
    int64_t rows = 0, columns = 0;
    sizes >> rows >> columns;
    EXPECT_EQ(rows, n < 3 ? 0 : (n - 3) / 2 + 1);
    EXPECT_EQ(columns, n + 1 < 7 ? 0 : n + 1 - 7 + 1);
  }
}

TEST(CExport, IsATargetOfCMake) {
  const CExport code = export_c(model_of(plain_shape()), {.name = "enc"}).value();
  const std::string& text = code.files[3].text;
  EXPECT_NE(text.find("add_library(enc STATIC ${CMAKE_CURRENT_LIST_DIR}/enc.c ${CMAKE_CURRENT_LIST_DIR}/enc_data.c)"),
            std::string::npos)
      << text;
}

TEST(CExport, WritesAllFilesOrNone) {
  const CExport code = export_c(model_of(plain_shape()), {.name = "enc"}).value();
  const TemporaryFolder folder;
  const std::string out = folder.file("a/b");
  ASSERT_TRUE(write_c_export(code, out).ok());
  for (const ExportedFile& file : code.files) {
    std::ifstream in(out + "/" + file.name, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_EQ(text.str(), file.text);
  }
  refused(write_c_export(code, out), StatusCode::kInvalidArgument, "is not empty");
  EXPECT_TRUE(write_c_export(code, out, true).ok());
  refused(write_c_export(code, out + "/enc.h"), StatusCode::kInvalidArgument, "is no folder");
  const std::string blocked = folder.file("blocked");
  std::filesystem::create_directories(blocked + "/enc_data.c/full");
  refused(write_c_export(code, blocked, true), StatusCode::kInvalidArgument, "enc_data.c: is no file");
  EXPECT_FALSE(std::filesystem::exists(blocked + "/enc.h"));
}

TEST(CExport, ChecksItself) {
  Random random(4);
  for (const int32_t directions : {1, 2}) {
    RandomShape shape = plain_shape();
    shape.layers = 2;
    shape.directions = directions;
    const GruModel model = model_of(shape);
    for (const CTarget target : {CTarget::kGeneric, CTarget::kCortexM4, CTarget::kCortexM55}) {
      const CExport code = export_c(model, {.name = "enc", .target = target}).value();
      const std::vector<std::byte> x = codes_of(random, model.input_grid(), 9 * 3 * 6);
      const Result<CCheck> check = check_c_export(code, model, x, 9, 3);
      ASSERT_TRUE(check.ok()) << check.status().message();
      EXPECT_EQ(check->codes_compared, 9 * 3 * 5 * directions);
      EXPECT_EQ(check->first_difference, "");
    }
  }
}

TEST(CExport, ChecksLayersOfStaticCodes) {
  Random random(5);
  const StaticLinearLayer linear =
      StaticLinearLayer::create(random_conv_linear(random, 7, 33, random_code_grid(random, 8), Grid{}), "fc").value();
  const CExport code = export_c(linear, {.target = CTarget::kCortexM33}).value();
  EXPECT_EQ(code.name, "fc");
  const Result<CCheck> check = check_c_export(code, linear, codes_of(random, linear.input_grid(), 5 * 33), 5);
  ASSERT_TRUE(check.ok()) << check.status().message();
  EXPECT_EQ(check->first_difference, "");
  for (int i = 0; i < 4;) {
    RandomStaticConv c = RandomStaticConv::random(random);
    c.p.residual.reset();
    const Result<StaticConvLayer> layer = StaticConvLayer::create(c.p, "conv");
    if (!layer.ok()) continue;
    ++i;
    const CExport of_conv = export_c(*layer).value();
    const int64_t count = c.images * c.image.rows * c.image.columns * c.p.shape.channels;
    const Result<CCheck> same =
        check_c_export(of_conv, *layer, codes_of(random, c.p.linear.input, count), c.images, c.image);
    ASSERT_TRUE(same.ok()) << same.status().message();
    EXPECT_EQ(same->first_difference, "");
  }
}

TEST(CExport, CheckNamesTheFirstDifference) {
  const GruModel model = model_of(plain_shape());
  CExport code = export_c(model, {.name = "enc"}).value();
  Random random(6);
  const std::vector<std::byte> x = codes_of(random, model.input_grid(), 4 * 6);
  for (ExportedFile& file : code.files)
    if (file.name == "enc.c") file.text = replace_all(file.text, "n + p->h_zero", "n + p->h_zero + (unit == 2u)");
  const Result<CCheck> check = check_c_export(code, model, x, 4, 1);
  ASSERT_TRUE(check.ok()) << check.status().message();
  EXPECT_EQ(check->first_difference.rfind("y[0, 0, 2] is ", 0), 0u) << check->first_difference;
  refused(check_c_export(code, model, x, 5, 1).status(), StatusCode::kInvalidArgument, "must have 30 codes");
  refused(check_c_export(code, model, x, 4, 1, "no-such-compiler -x").status(), StatusCode::kFailedPrecondition,
          "no-such-compiler cannot be run");
  refused(check_c_export(code, model, x, 4, 1, "false").status(), StatusCode::kFailedPrecondition, "refuses");
}

TEST(CExport, FloatsAreQuantisedAsTheLibraryDoes) {
  for (const ScaleKind kind : {ScaleKind::kPow2, ScaleKind::kReal}) {
    RandomShape shape = plain_shape();
    shape.kind = kind;
    shape.x_bits = kind == ScaleKind::kReal ? 16 : 8;
    const GruModel model = model_of(shape);
    const CExport code = export_c(model, {.name = "enc", .float_entry = true}).value();
    Random random(7);
    std::vector<float> x = random_floats(random, model.input_grid(), 40 * 6);
    std::vector<float> expected(40 * 5);
    GruState state = model.initial_state(1);
    Workspace workspace = model.workspace(1, 40);
    ASSERT_TRUE(model.forward(x, expected, 40, state, workspace).ok());
    const TemporaryFolder folder;
    ASSERT_TRUE(write_c_export(code, folder.file("c")).ok());
    std::ofstream(folder.file("c/main.c")) << "#include \"enc.h\"\n#include <stdio.h>\nint main(void)\n{\n"
                                              "  enc_state state;\n  enc_scratch scratch;\n  float x[ENC_INPUTS], "
                                              "y[ENC_OUTPUTS];\n  enc_init_state(&state);\n"
                                              "  while (fread(x, sizeof x, 1, stdin) == 1) {\n"
                                              "    enc_step_float(&state, &scratch, x, y);\n"
                                              "    fwrite(y, sizeof y, 1, stdout);\n  }\n  return 0;\n}\n";
    for (const char* optimisation : {"-O0", "-O3"}) {
      const ProcessResult compiled =
          run_process({"cc", "-std=c99", optimisation, "-o", folder.file("c/main"), folder.file("c/main.c"),
                       folder.file("c/enc.c"), folder.file("c/enc_data.c")})
              .value();
      ASSERT_EQ(compiled.exit_status, 0) << compiled.error;
      const std::string input(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float));
      const ProcessResult run = run_process({folder.file("c/main")}, input).value();
      ASSERT_EQ(run.output.size(), expected.size() * sizeof(float));
      EXPECT_EQ(std::memcmp(run.output.data(), expected.data(), run.output.size()), 0) << optimisation;
    }
  }
}

TEST(CExport, CountsInstructions) {
  const GruModel model = model_of(plain_shape());
  const CExport code = export_c(model, {.name = "enc", .target = CTarget::kCortexM4}).value();
  refused(measure_c_export(code, CTarget::kGeneric).status(), StatusCode::kInvalidArgument, "is no Cortex-M");
  const Result<CMeasurement> measured = measure_c_export(code, CTarget::kCortexM4);
  if (!measured.ok()) {
    refused(measured.status(), StatusCode::kFailedPrecondition, "cannot be run");
    EXPECT_NE(describe_c_export(code, std::nullopt, measured.status().message()).text.find("not known"),
              std::string::npos);
    GTEST_SKIP() << "SKIP_NO_EMULATOR: " << measured.status().message();
  }
  CExport wrong = code;
  wrong.files[1].text = replace_all(wrong.files[1].text, "n + p->h_zero", "n + p->h_zero + 1");
  refused(measure_c_export(wrong, CTarget::kCortexM4).status(), StatusCode::kIo, "the self-test failed");
  EXPECT_GT(measured->code_bytes, 100);
  EXPECT_LT(measured->code_bytes, 4096);
  EXPECT_GT(measured->instructions, code.sizes.multiply_adds);
  EXPECT_GT(measured->stack_bytes, 0);
  EXPECT_NE(describe_c_export(code, *measured).text.find("instructions"), std::string::npos);
}

}  // namespace
}  // namespace isobit
