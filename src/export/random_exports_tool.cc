// SPDX-License-Identifier: Apache-2.0
// Exports of random models, and a program that runs the self-test of each: what tests compile for many processors.
// usage: random_exports COUNT SEED TARGET STEPS FOLDER
//
// In FOLDER: batch_0.c and further ones, each with up to 50 exports; batches.h with `int32_t run_batches(void)`, which
// gives the number of exports that differ and calls `void differs(const char *what, int32_t index)` for each.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include "conv/random_layer.h"
#include "core/random.h"
#include "core/toolchain/c_source.h"
#include "gru/random_model.h"
#include "isobit/export.h"

namespace isobit {
namespace {

constexpr int64_t kBatch = 50;

struct Batches {
  std::filesystem::path folder;
  std::string sources, states, calls;
  int64_t count = 0, batches = 0;

  void write(const std::string& name, const std::string& text) const {
    std::ofstream out(folder / name, std::ios::binary);
    out << text;
    out.close();
    if (!out) {
      std::fprintf(stderr, "%s: cannot be written\n", (folder / name).c_str());
      std::exit(2);
    }
  }

  void end_batch() {
    if (sources.empty()) return;
    const std::string number = std::to_string(batches++);
    write("batch_" + number + ".c", sources + "\n#include \"batches.h\"\n\nint32_t run_batch_" + number +
                                        "(void)\n{\n  int32_t index, failures = 0;\n  static union {\n" + states +
                                        "  } ram;\n  (void)ram;\n" + calls + "  return failures;\n}\n");
    sources.clear();
    states.clear();
    calls.clear();
  }

  void add(const CExport& code, const std::string& more_state, const std::string& call, const std::string& text) {
    for (const ExportedFile& file : code.files) write(file.name, file.text);
    sources += "#include \"" + code.name + ".c\"\n#include \"" + code.name + "_data.c\"\n";
    states += "    struct {\n" + more_state + "    } " + code.name + ";\n";
    calls +=
        "  index = " + call + ";\n  if (index >= 0) {\n    ++failures;\n    differs(\"" + text + "\", index);\n  }\n";
    if (++count % kBatch == 0) end_batch();
  }
};

std::string described(const RandomShape& s, uint64_t seed, int64_t index) {
  std::string text = "seed " + std::to_string(seed) + " model " + std::to_string(index) + ", C " +
                     std::to_string(s.input) + " H " + std::to_string(s.hidden) + " layers " +
                     std::to_string(s.layers) + " directions " + std::to_string(s.directions) + ", bits x " +
                     std::to_string(s.x_bits) + " h " + std::to_string(s.h_bits) + " weights " +
                     std::to_string(s.weight_bits) + " linear " + std::to_string(s.linear_bits);
  return text + ", " + std::string(to_string(s.kind)) + ", " + std::string(to_string(s.rounding));
}

void add_gru(Batches& batches, const GruModel& model, const CExport& code, int64_t steps, const std::string& text) {
  const std::string& n = code.name;
  std::string state = "      " + n + "_state state;\n      " + n + "_scratch scratch;\n";
  std::string arguments = "&ram." + n + ".state, &ram." + n + ".scratch";
  if (model.parameters().directions == 2) {
    const std::string size = std::to_string(steps * model.output_size());
    state += "      " + n + "_output y[" + size + "];\n";
    arguments += ", ram." + n + ".y";
    for (int64_t l = 0; l + 1 < model.layer_count(); ++l) {
      const Dtype dtype = model.parameters().layers[static_cast<size_t>(2 * l)].grids[kH].dtype();
      const std::string name = "layer" + std::to_string(l), type(to_string(dtype));
      state +=
          "      " + std::string(type[0] == 'u' ? "uint" : "int") + type.substr(1) + "_t " + name + "[" + size + "];\n";
      arguments += ", ram." + n + "." + name;
    }
  }
  batches.add(code, state, n + "_selftest(" + arguments + ")", text);
}

void add_static(Batches& batches, const CExport& code, const char* outputs, const std::string& text) {
  const std::string &n = code.name, ram = "ram." + code.name;
  batches.add(code, "      " + n + "_scratch scratch;\n      " + n + "_output y[" + upper_case(n) + outputs + "];\n",
              n + "_selftest(&" + ram + ".scratch, " + ram + ".y)", text);
}

/// The model with other weights, which the random ones never have.
Result<GruModel> with_unsigned_weights(Random& random, const GruModel& model) {
  GruModelParameters p = model.parameters();
  for (GruLayerParameters& layer : p.layers) {
    for (const auto& [tensor, rows, codes] :
         {std::tuple(kW, &layer.W_grid, &layer.W), std::tuple(kR, &layer.R_grid, &layer.R)}) {
      layer.grids[tensor].is_signed = false;
      for (Grid& grid : *rows) grid.is_signed = false;
      *codes = random_codes(random, codes->rows(), codes->columns(), layer.grids[tensor]);
    }
    ISOBIT_RETURN_IF_ERROR(derive_rescales(layer, "layer"));
  }
  return GruModel::create(std::move(p));
}

/// The tables of a GRU that is not exported whole.
Status add_tables(Batches& batches, const GruModel& model, const CExportOptions& options, const std::string& text) {
  for (const ActivationTable& table : model.parameters().layers[0].tables) {
    CExportOptions of_table = options;
    of_table.name += "_" + std::string(to_string(table.kind)) + std::to_string(batches.count % kBatch);
    ISOBIT_ASSIGN_OR_RETURN(const CExport code, export_c(table, of_table));
    batches.add(code, "      int32_t unused;\n", code.name + "_selftest()", text + ": " + code.model);
  }
  return {};
}

/// Seven GRUs, of one of which also the tables, two convolutions and a linear layer, and so on.
Status add_random(Batches& batches, Random& random, uint64_t seed, int64_t index, const CExportOptions& options) {
  const std::string number = "seed " + std::to_string(seed) + " model " + std::to_string(index);
  const auto is_refused = [](const Status& status) {  // by the proof, as it must
    return status.code() == StatusCode::kOverflow;
  };
  if (index % 10 == 3 || index % 10 == 6) {
    const RandomStaticConv conv = RandomStaticConv::random(random);
    const Result<StaticConvLayer> layer = StaticConvLayer::create(conv.p, "conv");
    if (!layer.ok()) return is_refused(layer.status()) ? Status() : layer.status();
    ISOBIT_ASSIGN_OR_RETURN(const CExport code, export_c(*layer, options));
    add_static(batches, code, "_SELFTEST_OUTPUTS", number + ": " + replace_all(code.model, "\"", "'"));
  } else if (index % 10 == 9) {
    const Grid input = random_code_grid(random, random.one_in(3) ? 16 : 8);
    std::optional<Grid> output;
    if (!random.one_in(4)) output = random_code_grid(random, random.one_in(3) ? 16 : 8);
    const Result<StaticLinearLayer> layer = StaticLinearLayer::create(
        random_conv_linear(random, random.between(1, 70), random.between(1, 300), input, output), "linear");
    if (!layer.ok()) return is_refused(layer.status()) ? Status() : layer.status();
    ISOBIT_ASSIGN_OR_RETURN(const CExport code, export_c(*layer, options));
    add_static(batches, code, "_OUTPUTS", number + ": " + replace_all(code.model, "\"", "'"));
  } else {
    const RandomShape shape = random_shape(random);
    Result<GruModel> model = random_model(random, shape);
    if (model.ok() && random.one_in(6)) model = with_unsigned_weights(random, *model);
    if (!model.ok()) return is_refused(model.status()) ? Status() : model.status();
    CExportOptions of_gru = options;
    of_gru.float_entry = shape.directions == 1 && index % 4 == 0;
    ISOBIT_ASSIGN_OR_RETURN(const CExport code, export_c(*model, of_gru));
    add_gru(batches, *model, code, options.selftest_steps, described(shape, seed, index));
    if (index % 10 == 4) return add_tables(batches, *model, options, number);
  }
  return {};
}

Status run(int64_t count, uint64_t seed, CTarget target, int64_t steps, const std::string& folder) {
  Batches batches;
  batches.folder = folder;
  Random random(seed);
  for (int64_t index = 0; batches.count < count; ++index) {
    CExportOptions options;
    options.name = "m" + std::to_string(index);
    options.target = target;
    options.selftest_steps = steps;
    options.allow_large_tables = true;
    ISOBIT_RETURN_IF_ERROR(add_random(batches, random, seed, index, options));
  }
  batches.end_batch();
  std::string header = "#include <stdint.h>\n\nvoid differs(const char *what, int32_t index);\n", calls;
  for (int64_t b = 0; b < batches.batches; ++b) {
    header += "int32_t run_batch_" + std::to_string(b) + "(void);\n";
    calls += "  failures += run_batch_" + std::to_string(b) + "();\n";
  }
  batches.write("batches.h", header + "int32_t run_batches(void);\n");
  batches.write("batches.c", "#include \"batches.h\"\n\nint32_t run_batches(void)\n{\n  int32_t failures = 0;\n" +
                                 calls + "  return failures;\n}\n");
  return {};
}

}  // namespace
}  // namespace isobit

int main(int argc, char** argv) {
  if (argc != 6 || !isobit::c_target_from_string(argv[3])) {
    std::fputs("usage: random_exports COUNT SEED TARGET STEPS FOLDER\n", stderr);
    return 2;
  }
  const isobit::Status status = isobit::run(std::atoll(argv[1]), static_cast<uint64_t>(std::atoll(argv[2])),
                                            *isobit::c_target_from_string(argv[3]), std::atoll(argv[4]), argv[5]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
