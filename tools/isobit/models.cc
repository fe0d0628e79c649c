// SPDX-License-Identifier: Apache-2.0
#include "models.h"

#include <filesystem>
#include <system_error>

#include "isobit/gru_files.h"
#include "isobit/linear.h"
#include "isobit/nearest.h"
#include "text.h"

namespace isobit::tool {

Result<GruLoadOptions> parse_source(const FloatModelOptions& options) {
  GruLoadOptions load;
  for (const std::string& layer : options.layer)
    ISOBIT_RETURN_IF_ERROR(prefixed("--", apply_layer(layer, load)));  // "layer ..."
  ISOBIT_RETURN_IF_ERROR(parse_word_if_given("--gate-order", options.gate_order, gate_order_from_string,
                                             {"urn", "pytorch", "onnx"}, load.gate_order));
  ISOBIT_RETURN_IF_ERROR(
      parse_word_if_given("--layout", options.layout, gru_layout_from_string, {"rows", "columns"}, load.layout));
  if (!options.reset.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(const bool before, parse_second("--reset", options.reset, "after", "before"));
    load.reset_after = !before;
  }
  return load;
}

Result<GruModel> load_integer_model(const std::string& path, const std::string& layer) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load_integer_model(file, layer);
}

Result<GruModel> load_integer_model(const ArrayReader& file, const std::string& layer) {
  if (file.kind() != FileKind::kGruModels && file.kind() != FileKind::kOtherSaved) {
    return Status(StatusCode::kInvalidFile, file.name() + ": holds no integer model (no \"isobit\" in its metadata); " +
                                                "isobit quantize makes one from a float model");
  }
  return GruModel::load(file, layer);
}

void warn_of_clipping(const ClippedInputs& inputs, const Grid& grid, const std::string& input, Outcome& out) {
  for (const std::string& warning : describe_clipping(inputs, grid, input, kOtherUnits).warnings)
    out.warnings.push_back(warning);
}

Status claim_output(const std::string& path, bool dry_run, FileClaims& files) {
  if (dry_run) return {};
  if (path.empty()) return bad_option("-o OUT is missing; --dry-run reports without writing");
  return check_output(path, "-o", OutputKind::kSafetensors, files);
}

Status write_text(const std::string& text, const std::string& path, Outcome& out) {
  ISOBIT_RETURN_IF_ERROR(write_file_atomically(path, text.data(), text.size()));
  out.text += "saved " + path + "\n";
  return {};
}

Status write_page(const GruPage& page, const std::string& path, Outcome& out) {
  ISOBIT_ASSIGN_OR_RETURN(const std::string html, html_page(page));
  return write_text(html, path, out);
}

void add_saved(const std::string& path, Outcome& out) {
  std::error_code error;
  const auto bytes = path.empty() ? 0 : std::filesystem::file_size(path, error);
  out.json.set("output", path.empty() ? Value() : Value(path));
  out.json.set("bytes", path.empty() || error ? Value() : Value(bytes));
  out.text += path.empty() ? "dry run: nothing written\n"
                           : "saved " + path + (error ? "" : ", " + std::to_string(bytes) + " bytes") + "\n";
}

Result<Fp16Model> parse_fp16_model(const std::string& text) {
  return parse_word("--model", text, fp16_model_from_string, {"f32", "nli_gpu", "nli_cpu"});
}

Result<bool> parse_value_type(const std::string& text) { return parse_second("--values", text, "f32", "f16"); }

Status check_function_name(const std::string& function) {
  if (function.ends_with(".npy") || is_fp16_function(function)) return {};
  return bad_option("FUNCTION " + function + ": " + expected_one_of(function, fp16_functions()) +
                    "; or an npy with the values of a function of your own");
}

Result<Fp16Table> find_fp16_table(const std::string& table, const TableSourceOptions& source) {
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Model model, parse_fp16_model(source.model));
  ISOBIT_ASSIGN_OR_RETURN(const bool half_values, parse_value_type(source.values));
  return isobit::find_fp16_table(table, model, half_values);
}

Result<std::optional<CpuPath>> parse_kernel(const std::string& text) {
  if (text.empty()) return std::optional<CpuPath>();
  const auto path = cpu_path_from_string(text);
  if (!path) {
    std::vector<std::string_view> names;
    for (const CpuPath known : kAllCpuPaths) names.push_back(to_string(known));
    return bad_option("--kernel " + text + ": no such kernel; " + expected_one_of(text, names));
  }
  if (!cpu_can_run(*path)) {
    return Status(StatusCode::kUnsupported, "--kernel " + text + ": this machine cannot run it (" +
                                                std::string(cpu_cannot_run_reason(*path)) +
                                                "); isobit supported lists the usable ones");
  }
  return std::optional<CpuPath>(path);
}

Result<std::optional<CpuPath>> parse_linear_kernel(const std::string& text, std::string_view operation) {
  std::vector<std::string_view> names;
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != operation) continue;
    if (kernel.name == text) return parse_kernel(std::string(to_string(kernel.path)));
    names.push_back(kernel.name);
  }
  if (text.empty() || cpu_path_from_string(text)) return parse_kernel(text);
  return bad_option("--kernel " + text + ": no kernel of " + std::string(operation) + "; " +
                    expected_one_of(text, names) + "; what follows the operation in one of them will do, as in avx2");
}

Status check_threads(int threads) {
  if (threads >= 0 && threads <= 1024) return {};
  return bad_option("--threads " + std::to_string(threads) + ": expected 1 to 1024, or 0 for one per processor");
}

}  // namespace isobit::tool
