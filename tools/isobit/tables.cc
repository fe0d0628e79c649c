// SPDX-License-Identifier: Apache-2.0
#include "tables.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "data.h"
#include "isobit/arrays.h"
#include "isobit/nearest.h"
#include "models.h"
#include "text.h"

namespace isobit::tool {
namespace {

constexpr size_t kCodes = 65536;

Status no_table(const std::string& name) {
  return {StatusCode::kIo,
          name + ": no such file, and no function that is built in; " + expected_one_of(name, fp16_functions())};
}

}  // namespace

bool is_function(const std::string& name) {
  const auto functions = fp16_functions();
  return std::find(functions.begin(), functions.end(), name) != functions.end();
}

double value_of_f16(uint16_t code) {
  const int exponent = (code >> 10) & 0x1f;
  const int mantissa = code & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

Result<Fp16Model> parse_fp16_model(const std::string& text) {
  const auto model = fp16_model_from_string(text);
  if (model) return *model;
  return Status(StatusCode::kInvalidArgument,
                "--model " + text + ": " + expected_one_of(text, {"f32", "nli_gpu", "nli_cpu"}));
}

Result<bool> parse_value_type(const std::string& text) {
  if (text == "f32" || text == "f16") return text == "f16";
  return Status(StatusCode::kInvalidArgument, "--values " + text + ": " + expected_one_of(text, {"f32", "f16"}));
}

Result<ArrayReader> open_table_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) ? ArrayReader::open(path) : no_table(path);
}

Result<Fp16Table> find_fp16_table(const std::string& table, const TableSourceOptions& source) {
  if (!is_function(table)) {
    ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, open_table_file(table));
    return load_fp16_table(file);
  }
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Model model, parse_fp16_model(source.model));
  ISOBIT_ASSIGN_OR_RETURN(const bool half_values, parse_value_type(source.values));
  return builtin_fp16_table(table, model, half_values);
}

Result<std::vector<double>> load_function_values(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayFile file, load_arrays(path));
  if (file.arrays.size() != 1)
    return Status(StatusCode::kInvalidArgument, path + ": holds " + std::to_string(file.arrays.size()) +
                                                    " arrays; expected one, 65536 float64 values");
  const auto& [name, array] = *file.arrays.begin();
  if (array.dtype != Dtype::kF64 || array.size() != static_cast<int64_t>(kCodes))
    return Status(StatusCode::kInvalidArgument, array_label(path, name) + " is " + std::string(to_string(array.dtype)) +
                                                    " " + shape_text(array.shape) +
                                                    "; expected f64 [65536], one value for each float16 code");
  return std::vector<double>(array.data<double>(), array.data<double>() + kCodes);
}

Result<std::vector<uint16_t>> exact_results(const Fp16Table& table, const std::string& values_file) {
  if (table.function != "custom") {
    if (values_file.empty()) return fp16_exact(table.function, table.beta);
    return Status(StatusCode::kInvalidArgument,
                  "--exact " + values_file + ": the function is " + table.function + ", whose values are known");
  }
  if (values_file.empty())
    return Status(StatusCode::kInvalidArgument,
                  "the function of the table is the user's own; --exact FILE.npy gives its 65536 values");
  ISOBIT_ASSIGN_OR_RETURN(const auto values, load_function_values(values_file));
  return fp16_exact(values);
}

std::string fp16_table_text(const Fp16Table& table) {
  size_t entries = 0;
  for (const Fp16Pieces& pieces : table.pieces) entries += pieces.values.size();
  std::string text = table.function;
  if (table.function == "swish") text += format("(beta %g)", table.beta);
  text += ", model " + std::string(to_string(table.model)) + ", " + std::to_string(entries) +
          (table.half_values ? " float16" : " float32") + " values";
  if (table.pieces.size() == 2) text += " in two tables, sin and cos";
  if (table.reduction != Fp16Reduction::kNone) text += ", range reduction " + std::string(to_string(table.reduction));
  return text;
}

Value fp16_table_json(const Fp16Table& table) {
  const Fp16Certificate& c = table.certificate;
  Value certificate = Value::object(), pieces = Value::array();
  certificate.set("max_ulp", c.max_ulp).set("mean_ulp", c.mean_ulp).set("worst_code", c.worst_code);
  certificate.set("worst_input", value_of_f16(c.worst_code)).set("max_absolute", c.max_absolute);
  certificate.set("share_exact", c.share_exact).set("share_within_ulp", c.share_within_ulp);
  for (const Fp16Pieces& piece : table.pieces) {
    Value entry = Value::object(), steps = Value::array(), cuts = Value::array();
    for (const int32_t n : piece.steps) steps.add(n);
    for (const float cut : piece.cut_points) cuts.add(static_cast<double>(cut));
    entry.set("entries", piece.values.size()).set("steps", std::move(steps)).set("cut_points", std::move(cuts));
    pieces.add(std::move(entry));
  }
  Value json = Value::object();
  json.set("function", table.function).set("beta", table.beta).set("model", to_string(table.model));
  json.set("values", table.half_values ? "f16" : "f32").set("reduction", to_string(table.reduction));
  json.set("pieces", std::move(pieces)).set("certificate", std::move(certificate));
  return json;
}

std::string certificate_head() {
  return format("%-17s %-8s %-6s %9s %9s %14s %10s %9s %9s", "function", "model", "values", "max ULP", "mean ULP",
                "at x =", "max abs", "exact", "<= 1 ULP");
}

std::string certificate_row(const std::string& name, const Fp16Table& table) {
  const Fp16Certificate& c = table.certificate;
  return format("%-17s %-8s %-6s %9.4g %9.4f %14.6g %10.3g %8.3f%% %8.3f%%", name.c_str(),
                std::string(to_string(table.model)).c_str(), table.half_values ? "f16" : "f32", c.max_ulp, c.mean_ulp,
                value_of_f16(c.worst_code), c.max_absolute, 100 * c.share_exact, 100 * c.share_within_ulp);
}

Result<IntegerErrors> integer_errors(const ActivationTable& table) {
  ISOBIT_ASSIGN_OR_RETURN(const auto exact, exact_codes(table.function, table.input, table.output));
  IntegerErrors errors;
  int64_t sum = 0, equal = 0, within = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const int64_t q = table.input.min() + static_cast<int64_t>(i);
    const int64_t error = std::abs(table(q) - exact[i]);
    sum += error;
    equal += error == 0 ? 1 : 0;
    within += error <= 1 ? 1 : 0;
    if (error > errors.max_lsb || i == 0) {
      errors.max_lsb = error;
      errors.worst_code = q;
    }
  }
  errors.inputs = static_cast<int64_t>(exact.size());
  const auto count = static_cast<double>(exact.size());
  errors.mean_lsb = static_cast<double>(sum) / count;
  errors.share_exact = static_cast<double>(equal) / count;
  errors.share_within_lsb = static_cast<double>(within) / count;
  return errors;
}

std::vector<GateTable> gate_tables(const GruModel& model) {
  std::vector<GateTable> tables;
  const GruModelParameters& p = model.parameters();
  for (size_t i = 0; i < p.layers.size(); ++i)
    for (size_t gate = 0; gate < p.layers[i].tables.size(); ++gate)
      tables.push_back(
          {layer_label(static_cast<int64_t>(i), p.directions) + "." + "urn"[gate], &p.layers[i].tables[gate]});
  return tables;
}

}  // namespace isobit::tool
