// SPDX-License-Identifier: Apache-2.0
#include "models.h"

#include <filesystem>
#include <system_error>

#include "isobit/files.h"
#include "isobit/gru_files.h"
#include "isobit/nearest.h"
#include "text.h"

namespace isobit::tool {
namespace {

std::optional<Dtype> scales_from_string(std::string_view text) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
    if (text == to_string(dtype)) return dtype;
  return std::nullopt;
}

}  // namespace

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

Result<const ActivationTable*> find_gate_table(const GruModel& model, const std::string& gate) {
  const std::vector<GateTable> tables = gate_tables(model);
  std::vector<std::string_view> names;
  for (const GateTable& table : tables) {
    if (table.name == gate) return table.table;
    names.push_back(table.name);
  }
  return bad_option("--gate " + gate + ": " + expected_one_of(gate, names));
}

void warn_of_clipping(const ClippedInputs& inputs, const Grid& grid, const std::string& input, Outcome& out) {
  for (const std::string& warning : describe_clipping(inputs, grid, input, kOtherUnits).warnings)
    out.warnings.push_back(warning);
}

Result<Array> load_only_array(const std::string& path, std::string& label, std::vector<std::string>& warnings) {
  ISOBIT_ASSIGN_OR_RETURN(ArrayFile file, load_data(path, warnings));
  if (file.arrays.size() != 1)
    return bad_option(path + ": holds " + std::to_string(file.arrays.size()) + " arrays; expected one");
  label = array_label(path, file.arrays.begin()->first);
  return std::move(file.arrays.begin()->second);
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

Result<isobit::PackOptions> parse_form(const FormOptions& options) {
  isobit::PackOptions out{.bits = options.bits, .group = options.group};
  ISOBIT_RETURN_IF_ERROR(parse_word_if_given("--kind", options.kind, low_bit_kind_from_string,
                                             {"symmetric", "zero_point", "offset"}, out.kind));
  ISOBIT_RETURN_IF_ERROR(parse_word_if_given("--method", options.method, low_bit_method_from_string,
                                             {"absmax", "minmax", "mse"}, out.method));
  ISOBIT_RETURN_IF_ERROR(
      parse_word_if_given("--scales", options.scales, scales_from_string, {"f32", "f16", "bf16"}, out.scales));
  ISOBIT_RETURN_IF_ERROR(parse_word_if_given("--weight-layout", options.weight_layout, conv_layout_from_string,
                                             {"oihw", "ohwi", "iohw"}, out.conv_layout));
  return out;
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

std::pair<std::string, std::string> split_weights(const std::string& weights) {
  std::error_code error;
  std::string path = weights, tensor;
  for (size_t colon = path.rfind(':'); colon != std::string::npos && !std::filesystem::exists(path, error);
       colon = path.rfind(':')) {
    tensor = weights.substr(colon + 1);
    path.resize(colon);
  }
  return {path, tensor};
}

Result<LayerWeights> load_weights(const ArrayReader& file, const std::string& tensor, const std::string& bias) {
  ISOBIT_ASSIGN_OR_RETURN(const LowBitFile content, load_low_bit(file));
  ISOBIT_ASSIGN_OR_RETURN(const std::string name, find_low_bit_matrix(content, file.name(), tensor));
  LayerWeights out{name, content.matrices.at(name), low_bit_permutation(content, name)};
  if (const auto found = content.convolutions.find(name); found != content.convolutions.end())
    out.convolution = found->second;
  if (bias.empty()) return out;
  const auto found = content.arrays.find(bias);
  if (found == content.arrays.end()) {
    std::vector<std::string_view> names;
    for (const auto& [other, array] : content.arrays) names.push_back(other);
    return bad_option("--bias " + bias + ": " + file.name() + " holds no such array; isobit inspect lists them" +
                      escaped(nearest_hint(bias, names)));
  }
  out.bias = found->second.to_float();
  return out;
}

Status check_layer(const LayerOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims files;
  ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kArray, files));
  ISOBIT_RETURN_IF_ERROR(files.reads(split_weights(options.weights).first, "WEIGHTS"));
  return files.reads(options.input, "X");
}

Result<LinearClamp> parse_clamp(const std::string& text) {
  if (text == "none") return LinearClamp();
  if (text == "relu") return LinearClamp::relu();
  if (text == "relu6") return LinearClamp::relu6();
  const auto range = parse_range(text);
  if (range) return LinearClamp{range->first, range->second};
  return bad_option("--clamp " + text + ": expected none, relu, relu6 or LOW:HIGH, two numbers");
}

Result<Array> load_x(const LayerOptions& options, std::string& label, std::vector<std::string>& warnings) {
  ISOBIT_ASSIGN_OR_RETURN(Array x, load_only_array(options.input, label, warnings));
  if (!is_float(x.dtype)) return bad_option(label + " is " + std::string(to_string(x.dtype)) + "; expected floats");
  if (x.dtype == Dtype::kBF16 && options.activations != "static")
    return bad_option(label + " is bf16, and y has the type of X; " + options.output +
                      " is npy, which has no bf16: convert X to f32 or f16");
  if (x.dtype == Dtype::kF64 && options.activations == "float") return Array::copy_of(x.to_float().data(), x.shape);
  return x;
}

Dtype y_dtype_of(const Array& x) { return x.dtype == Dtype::kF64 ? Dtype::kF32 : x.dtype; }

void describe_layer(const LayerOptions& options, const LayerWeights& weights, const std::string& kernel,
                    const std::string& where, const Array& x, const Array& y, Outcome& out) {
  const LowBitParameters& p = weights.matrix.parameters();
  out.json.set("weights", options.weights).set("matrix", weights.name).set("rows", p.rows).set("columns", p.columns);
  out.json.set("bits", p.bits).set("kind", to_string(p.kind)).set("group", p.group);
  out.json.set("scales", to_string(p.scales.dtype));
  out.json.set("activations", options.activations).set("kernel", kernel).set("clamp", options.clamp);
  out.json.set("input", options.input).set("input_shape", x.shape);
  out.json.set("output", options.output).set("output_shape", y.shape).set("dtype", to_string(y.dtype));
  out.text =
      escaped(weights.name) + ": " +
      (weights.convolution ? conv_text(*weights.convolution) : list_text(std::vector<int64_t>{p.rows, p.columns})) +
      ", " + form_text(p) + "; activations " + options.activations + ", kernel " + kernel + where + "\n";
}

}  // namespace isobit::tool
