// SPDX-License-Identifier: Apache-2.0
// isobit table fit, check, show, compare, export, run.
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "device.h"
#include "isobit/arrays.h"
#include "isobit/files.h"
#include "isobit/fp16_export.h"
#include "isobit/fp16_function.h"
#include "isobit/fp16_table.h"
#include "isobit/nearest.h"
#include "isobit/parallel.h"
#include "isobit/report.h"
#include "isobit/sequences.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

Result<Fp16FitOptions> fit_options(const TableFitOptions& options) {
  Fp16FitOptions fit;
  ISOBIT_ASSIGN_OR_RETURN(fit.model, parse_fp16_model(options.model));
  ISOBIT_ASSIGN_OR_RETURN(fit.half_values, parse_value_type(options.values));
  ISOBIT_ASSIGN_OR_RETURN(fit.steps, prefixed("--", parse_fp16_steps(options.steps)));  // "steps ..."
  ISOBIT_ASSIGN_OR_RETURN(const bool mean, parse_second("--goal", options.goal, "max_ulp", "mean_relative"));
  fit.goal = mean ? Fp16Goal::kMeanRelative : Fp16Goal::kMaxUlp;
  fit.beta = options.beta;
  ISOBIT_ASSIGN_OR_RETURN(const auto range, parse_range("--range", options.range));
  if (range) std::tie(fit.low, fit.high) = *range;
  fit.plain = range.has_value();
  return fit;
}

Value fp16_table_json(const Fp16Table& table) { return Value::parsed(describe_table(table).json); }

/// What `table` names is read, unless it is built in.
Status claim_table(const std::string& table, const std::string& option, FileClaims& files) {
  return is_fp16_function(table) ? Status() : files.reads(table, option);
}

/// The directory is there afterwards.
Status make_directory(const std::string& path, const char* option) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return {};
  return {StatusCode::kIo, std::string(option) + " " + path + ": " + error.message()};
}

}  // namespace

Result<Outcome> table_fit(const TableFitOptions& options) {
  FileClaims files;
  ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kSafetensors, files));
  ISOBIT_RETURN_IF_ERROR(claim_table(options.function, "FUNCTION", files));
  ISOBIT_ASSIGN_OR_RETURN(Fp16FitOptions fit, fit_options(options));
  Progress progress("fitting", options.quiet);
  fit.progress = [](void* context, double fraction) { static_cast<Progress*>(context)->update(fraction); };
  fit.progress_context = &progress;
  const auto fit_one = [&]() -> Result<Fp16Table> {
    if (!options.cut_points.empty()) {
      const std::vector<float> cuts(options.cut_points.begin(), options.cut_points.end());
      return import_fp16_table(options.function, cuts, fit);
    }
    if (!options.function.ends_with(".npy")) return fit_fp16_table(options.function, fit);
    ISOBIT_ASSIGN_OR_RETURN(const auto values, load_fp16_values(options.function));
    return fit_fp16_table(values, fit);
  };
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, fit_one());
  ISOBIT_RETURN_IF_ERROR(save_fp16_table(options.output, table));
  Outcome out;
  out.json.set("output", options.output).set("table", fp16_table_json(table));
  out.text = certificate_head() + "\n" + certificate_row(table) + "\nsaved " + options.output + "\n";
  return out;
}

Result<Outcome> table_check(const TableCheckOptions& options) {
  if (options.tables.empty() && !options.all)
    return bad_option("nothing to check; expected files with tables, or --all for those that are built in");
  Progress progress("checking", options.quiet);
  TableChecks checks;
  for (const std::string& file : options.tables) {
    ISOBIT_ASSIGN_OR_RETURN(const ArrayReader reader, open_table_file(file));
    if (reader.kind() != FileKind::kFp16Table) {
      ISOBIT_ASSIGN_OR_RETURN(const auto models, GruModel::load_all(reader));
      for (const GruModel& model : models) ISOBIT_RETURN_IF_ERROR(checks.add(file, model));
      continue;
    }
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, load_fp16_table(reader));
    ISOBIT_ASSIGN_OR_RETURN(const auto exact, fp16_exact(table, options.exact));
    ISOBIT_RETURN_IF_ERROR(checks.add(file, table, exact, std::numeric_limits<double>::infinity()));
  }
  if (options.all) {
    const auto functions = fp16_functions();
    for (size_t i = 0; i < functions.size(); ++i) {
      const std::string function(functions[i]);
      ISOBIT_ASSIGN_OR_RETURN(const auto exact, fp16_exact(function));
      for (const std::string& model : options.model)
        for (const std::string& values : options.values) {
          ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, find_fp16_table(function, {model, values}));
          const double promised = promised_ulp(function, table.model, table.half_values);
          ISOBIT_RETURN_IF_ERROR(checks.add(function, table, exact, promised));
        }
      progress.update(static_cast<double>(i + 1) / static_cast<double>(functions.size()));
    }
  }
  Outcome out = Outcome().add(checks.describe());
  out.failure = checks.failure();
  return out;
}

Result<Outcome> table_show(const TableShowOptions& options) {
  FileClaims files;
  if (!options.svg.empty()) ISOBIT_RETURN_IF_ERROR(check_output(options.svg, "--svg", OutputKind::kSvg, files));
  ISOBIT_RETURN_IF_ERROR(claim_table(options.table, "TABLE", files));
  if (!options.exact.empty()) ISOBIT_RETURN_IF_ERROR(files.reads(options.exact, "--exact"));
  Outcome out;
  std::string svg;
  std::optional<ArrayReader> file;  // none: a function
  if (!is_fp16_function(options.table)) {
    ISOBIT_ASSIGN_OR_RETURN(file, open_table_file(options.table));
  }
  if (!file || file->kind() == FileKind::kFp16Table) {
    if (!options.gate.empty())
      return bad_option("--gate " + options.gate + ": " + options.table + " is no integer model");
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table,
                            file ? load_fp16_table(*file) : find_fp16_table(options.table, options.source));
    ISOBIT_ASSIGN_OR_RETURN(const auto exact, fp16_exact(table, options.exact));
    ISOBIT_ASSIGN_OR_RETURN(const std::string plot, text_plot(table, exact));
    out.text = fp16_table_text(table) + "\n" + certificate_head() + "\n" + certificate_row(table) + "\n\n" + plot;
    out.json = fp16_table_json(table);
    if (!options.svg.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(svg, svg_of_table(table, exact));
    }
  } else {
    ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(*file, options.layer));
    ISOBIT_ASSIGN_OR_RETURN(const ActivationTable* table, find_gate_table(model, options.gate));
    ISOBIT_ASSIGN_OR_RETURN(const auto exact, exact_codes(table->function, table->input, table->output));
    ISOBIT_ASSIGN_OR_RETURN(const Description description, describe_table(*table, options.gate));
    ISOBIT_ASSIGN_OR_RETURN(const std::string plot, text_plot(*table, exact));
    out.text = "input: " + grid_text(table->input) + "\noutput: " + grid_text(table->output) + "\n";
    out.add(description).text += "\n" + plot;
    if (!options.svg.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(svg, svg_of_table(*table, exact));
    }
  }
  if (!options.svg.empty()) {
    ISOBIT_RETURN_IF_ERROR(write_text(svg, options.svg, out));
    out.json.set("svg", options.svg);
  }
  return out;
}

Result<Outcome> table_compare(const TableCompareOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table first, find_fp16_table(options.first, options.source));
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table second, find_fp16_table(options.second, options.source));
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Difference difference, compare_fp16_tables(first, second));
  return Outcome().add(describe_difference(first, second, difference));
}

Result<Outcome> table_export(const TableExportOptions& options) {
  if (options.c.empty() && options.hex.empty()) return bad_option("nothing to write; expected --c DIR or --hex FILE");
  FileClaims claims;
  if (!options.hex.empty()) ISOBIT_RETURN_IF_ERROR(check_output(options.hex, "--hex", OutputKind::kHex, claims));
  ISOBIT_RETURN_IF_ERROR(claim_table(options.table, "TABLE", claims));
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, find_fp16_table(options.table, options.source));
  Outcome out;
  Value files = Value::array();
  // All texts are made before the first file is written.
  std::vector<std::pair<std::string, std::string>> texts;
  if (!options.c.empty()) {
    const std::string name = options.name.empty() ? "isobit_" + table.function : options.name;
    ISOBIT_ASSIGN_OR_RETURN(const auto sources, prefixed("--name " + name + ": ", export_fp16_c(table, name)));
    for (const ExportedFile& file : sources) {
      texts.emplace_back(options.c + "/" + file.name, file.text);
      ISOBIT_RETURN_IF_ERROR(claims.writes(texts.back().first, "--c"));
    }
  }
  if (!options.hex.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(std::string hex, export_fp16_hex(table));
    texts.emplace_back(options.hex, std::move(hex));
  }
  if (!options.c.empty()) ISOBIT_RETURN_IF_ERROR(make_directory(options.c, "--c"));
  for (const auto& [path, text] : texts) {
    ISOBIT_RETURN_IF_ERROR(write_text(text, path, out));
    files.add(path);
  }
  out.json.set("files", std::move(files)).set("table", fp16_table_json(table));
  return out;
}

Result<Outcome> table_run(const TableRunOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims files;
  ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kArray, files));
  ISOBIT_RETURN_IF_ERROR(files.reads(options.input, "INPUT"));
  if (options.table != "softmax") ISOBIT_RETURN_IF_ERROR(claim_table(options.table, "TABLE", files));
  Outcome out;
  std::string label;
  ISOBIT_ASSIGN_OR_RETURN(const Array x, load_only_array(options.input, label, out.warnings));
  Dtype dtype = x.dtype == Dtype::kBF16 ? Dtype::kF32 : x.dtype;  // npy has no bfloat16
  if (!options.dtype.empty()) {
    if (options.dtype != "f16" && options.dtype != "f32")
      return bad_option("--dtype " + options.dtype + ": expected f16 or f32, the types of npy that tables give");
    dtype = options.dtype == "f16" ? Dtype::kF16 : Dtype::kF32;
  }
  if (x.dtype != Dtype::kF16 && x.dtype != Dtype::kBF16 && x.dtype != Dtype::kF32)
    return bad_option(label + " is " + std::string(to_string(x.dtype)) + "; a table takes f16, bf16 or f32");
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device, options.threads));
  if (device && !options.kernel.empty())
    return refuse_on_device(options.device, "--kernel " + options.kernel, "the device has one for each operation");
  Array y = Array::zeros(dtype, x.shape);
  ThreadPool pool(options.threads);
  const isobit::RunOptions run{.kernel = options.kernel, .pool = &pool};
  std::string kernel = options.kernel;
  if (options.table == "softmax") {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table exp, find_fp16_table("exp", options.source));
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table reciprocal, find_fp16_table("reciprocal", options.source));
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Softmax softmax, Fp16Softmax::create(exp, reciprocal));
    if (x.shape.empty()) return bad_option(label + " has no dimension to take the softmax over");
    ISOBIT_RETURN_IF_ERROR(device ? device->forward(softmax, x.bytes, x.dtype, y.bytes, y.dtype, x.shape.back())
                                  : softmax.forward(x.bytes, x.dtype, y.bytes, y.dtype, x.shape.back(), run));
  } else {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, find_fp16_table(options.table, options.source));
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Function function, Fp16Function::create(table));
    if (!device && kernel.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(kernel, function.default_kernel());
    }
    ISOBIT_RETURN_IF_ERROR(device ? device->forward(function, x.bytes, x.dtype, y.bytes, y.dtype)
                                  : function.forward(x.bytes, x.dtype, y.bytes, y.dtype, run));
  }
  ISOBIT_RETURN_IF_ERROR(save_npy(options.output, y));
  out.json.set("output", options.output).set("elements", y.size()).set("dtype", to_string(dtype));
  if (!kernel.empty()) out.json.set("kernel", kernel);
  if (device) out.json.set("device", options.device);
  const std::string how = device ? " on " + device->text() : kernel.empty() ? std::string() : " with kernel " + kernel;
  out.text = format("%s of %lld elements%s\nsaved %s\n", options.table.c_str(), static_cast<long long>(y.size()),
                    how.c_str(), options.output.c_str());
  return out;
}

}  // namespace isobit::tool
