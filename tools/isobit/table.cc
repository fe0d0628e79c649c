// SPDX-License-Identifier: Apache-2.0
// isobit table fit, check, show, compare, export, run.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data.h"
#include "device.h"
#include "isobit/arrays.h"
#include "isobit/fp16_export.h"
#include "isobit/fp16_function.h"
#include "isobit/fp16_table.h"
#include "isobit/nearest.h"
#include "isobit/parallel.h"
#include "isobit/report.h"
#include "models.h"
#include "progress.h"
#include "tables.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr int32_t kMaxSteps = 4096;
constexpr size_t kMaxIntervals = 256;

/// "1,8x32,1": steps of each interval, NxM for N intervals of M.
Result<std::vector<int32_t>> parse_steps(const std::string& text) {
  const auto refuse = [&] {
    return bad_option("--steps " + text + ": expected numbers of steps of the intervals, 1.." +
                      std::to_string(kMaxSteps) + ", at most " + std::to_string(kMaxIntervals) +
                      " of them, NxM for N times M: 1,8x32,1");
  };
  std::vector<int32_t> steps;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int32_t count = 1, length = 0;
    auto parsed = std::from_chars(at, end, length);
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == 'x') {
      count = length;
      parsed = std::from_chars(parsed.ptr + 1, end, length);
    }
    if (parsed.ec != std::errc() || length < 1 || length > kMaxSteps || count < 1 ||
        steps.size() + static_cast<size_t>(count) > kMaxIntervals)
      return refuse();
    steps.insert(steps.end(), static_cast<size_t>(count), length);
    if (parsed.ptr == end) return steps;
    if (*parsed.ptr != ',') return refuse();
    at = parsed.ptr + 1;
  }
}

Result<Fp16FitOptions> fit_options(const TableFitOptions& options) {
  Fp16FitOptions fit;
  ISOBIT_ASSIGN_OR_RETURN(fit.model, parse_fp16_model(options.model));
  ISOBIT_ASSIGN_OR_RETURN(fit.half_values, parse_value_type(options.values));
  ISOBIT_ASSIGN_OR_RETURN(fit.steps, parse_steps(options.steps));
  if (options.goal != "max_ulp" && options.goal != "mean_relative")
    return bad_option("--goal " + options.goal + ": " + expected_one_of(options.goal, {"max_ulp", "mean_relative"}));
  fit.goal = options.goal == "max_ulp" ? Fp16Goal::kMaxUlp : Fp16Goal::kMeanRelative;
  fit.beta = options.beta;
  if (!options.range.empty()) {
    if (!parse_range(options.range, fit.low, fit.high))
      return bad_option("--range " + options.range + ": expected LOW:HIGH, two numbers");
    fit.plain = true;
  }
  return fit;
}

/// A row of an integer table's errors.
std::string integer_row(const std::string& name, const ActivationTable& table, const TableErrors& e) {
  return format("%-17s %-8s %-12s %2d -> %2d bits %8lld LSB at %6lld %9.4f LSB %8.3f%% %8.3f%%\n", name.c_str(),
                std::string(to_string(table.function)).c_str(), std::string(to_string(table.kind)).c_str(),
                table.input.bits, table.output.bits, static_cast<long long>(e.max_lsb),
                static_cast<long long>(e.worst_code), e.mean_lsb, 100 * e.share_exact, 100 * e.share_within_lsb);
}

Value integer_json(const std::string& name, const ActivationTable& table, const TableErrors& e) {
  Value json = Value::object();
  json.set("name", name).set("function", to_string(table.function)).set("kind", to_string(table.kind));
  json.set("input", Value::parsed(grid_json(table.input))).set("output", Value::parsed(grid_json(table.output)));
  json.set("inputs", e.inputs).set("max_lsb", e.max_lsb).set("worst_code", e.worst_code).set("mean_lsb", e.mean_lsb);
  json.set("share_exact", e.share_exact).set("share_within_lsb", e.share_within_lsb);
  return json;
}

/// The correctly rounded results of the table's function; `values_file` (npy, 65536 float64) for a custom one.
Result<std::vector<uint16_t>> exact_results(const Fp16Table& table, const std::string& values_file) {
  if (table.function != "custom") {
    if (values_file.empty()) return fp16_exact(table.function, table.beta);
    return bad_option("--exact " + values_file + ": the function is " + table.function + ", whose values are known");
  }
  if (values_file.empty())
    return bad_option("the function of the table is the user's own; --exact FILE.npy gives its 65536 values");
  ISOBIT_ASSIGN_OR_RETURN(const auto values, load_fp16_values(values_file));
  return fp16_exact(values);
}

Value fp16_table_json(const Fp16Table& table) { return Value::parsed(describe_table(table).json); }

/// What is checked of a table, and gathered for the report.
class Checker {
 public:
  /// The stored certificate must be what the table and the exact function give; a built-in table must keep its promise.
  Status check(const std::string& name, const Fp16Table& table, const std::vector<uint16_t>& exact, double limit) {
    Status status = check_fp16_certificate(table, exact, limit);
    if (!status.ok() && status.code() != StatusCode::kFailedPrecondition) return status;
    const std::string kept = std::isinf(limit) ? "ok" : format("ok, at most %g ULP", limit);
    if (fp16_rows_++ == 0) text_ += certificate_head() + "\n";
    text_ += certificate_row(table) + "  " + (status.ok() ? kept : "FAILED: " + status.message()) + "\n";
    finish(name, status.message(), fp16_table_json(table).set("name", name));
    return {};
  }

  /// GruModel::load has recomputed the stored certificates; this shows the rest of the errors.
  Status check(const std::string& file, const GruModel& model) {
    text_ += file + ": largest, mean error, share exact, share within 1 LSB\n";
    for (const GateTable& gate : gate_tables(model)) {
      ISOBIT_ASSIGN_OR_RETURN(const TableErrors errors, table_errors(*gate.table));
      text_ += integer_row(gate.name, *gate.table, errors);
      const bool same = errors.max_lsb == gate.table->certificate.max_error_lsb;
      finish(file + " " + gate.name, same ? "" : "the certificate says otherwise",
             integer_json(gate.name, *gate.table, errors));
    }
    return {};
  }

  Outcome outcome() && {
    Outcome out;
    out.text = std::move(text_);
    out.text += format("%zu tables, %zu failed\n", tables_, failed_);
    out.json.set("tables", std::move(json_)).set("failed", failed_);
    out.failure = std::move(failure_);
    return out;
  }

 private:
  /// `problem`: empty where there is none.
  void finish(const std::string& name, const std::string& problem, Value json) {
    ++tables_;
    json_.add(std::move(json.set("ok", problem.empty())));
    if (problem.empty()) return;
    ++failed_;
    failure_ += (failure_.empty() ? "" : "\n") + name + ": " + problem;
  }

  std::string text_, failure_;
  Value json_ = Value::array();
  size_t tables_ = 0, failed_ = 0, fp16_rows_ = 0;
};

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
  if (!options.function.ends_with(".npy") && !is_fp16_function(options.function))
    return bad_option("FUNCTION " + options.function + ": " + expected_one_of(options.function, fp16_functions()) +
                      "; or an npy with the values of a function of your own");
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
  Checker checker;
  for (const std::string& file : options.tables) {
    ISOBIT_ASSIGN_OR_RETURN(const ArrayReader reader, open_table_file(file));
    if (reader.kind() != FileKind::kFp16Table) {
      ISOBIT_ASSIGN_OR_RETURN(const auto models, GruModel::load_all(reader));
      for (const GruModel& model : models) ISOBIT_RETURN_IF_ERROR(checker.check(file, model));
      continue;
    }
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, load_fp16_table(reader));
    ISOBIT_ASSIGN_OR_RETURN(const auto exact, exact_results(table, options.exact));
    ISOBIT_RETURN_IF_ERROR(checker.check(file, table, exact, std::numeric_limits<double>::infinity()));
  }
  if (options.all) {
    std::vector<std::pair<Fp16Model, bool>> variants;
    for (const std::string& model : options.model) {
      for (const std::string& values : options.values) {
        ISOBIT_ASSIGN_OR_RETURN(const Fp16Model parsed, parse_fp16_model(model));
        ISOBIT_ASSIGN_OR_RETURN(const bool half_values, parse_value_type(values));
        variants.emplace_back(parsed, half_values);
      }
    }
    const auto functions = fp16_functions();
    for (size_t i = 0; i < functions.size(); ++i) {
      const std::string function(functions[i]);
      ISOBIT_ASSIGN_OR_RETURN(const auto exact, fp16_exact(function));
      for (const auto& [model, half_values] : variants) {
        ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, builtin_fp16_table(function, model, half_values));
        ISOBIT_RETURN_IF_ERROR(checker.check(function, table, exact, promised_ulp(function, model, half_values)));
      }
      progress.update(static_cast<double>(i + 1) / static_cast<double>(functions.size()));
    }
  }
  return std::move(checker).outcome();
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
    ISOBIT_ASSIGN_OR_RETURN(const auto exact, exact_results(table, options.exact));
    ISOBIT_ASSIGN_OR_RETURN(const std::string plot, text_plot(table, exact));
    out.text = fp16_table_text(table) + "\n" + certificate_head() + "\n" + certificate_row(table) + "\n\n" + plot;
    out.json = fp16_table_json(table);
    if (!options.svg.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(svg, svg_of_table(table, exact));
    }
  } else {
    ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(*file, options.layer));
    std::vector<std::string_view> names;
    const ActivationTable* table = nullptr;
    const std::vector<GateTable> gates = gate_tables(model);
    for (const GateTable& gate : gates) {
      names.push_back(gate.name);
      if (gate.name == options.gate) table = gate.table;
    }
    if (table == nullptr) return bad_option("--gate " + options.gate + ": " + expected_one_of(options.gate, names));
    ISOBIT_ASSIGN_OR_RETURN(const auto exact, exact_codes(table->function, table->input, table->output));
    ISOBIT_ASSIGN_OR_RETURN(const TableErrors errors, table_errors(*table));
    ISOBIT_ASSIGN_OR_RETURN(const std::string plot, text_plot(*table, exact));
    out.text = "input: " + grid_text(table->input) + "\noutput: " + grid_text(table->output) + "\n" +
               integer_row(options.gate, *table, errors) + "\n" + plot;
    out.json = integer_json(options.gate, *table, errors);
    if (!options.svg.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(svg, svg_of_table(*table, exact));
    }
  }
  if (!options.svg.empty()) {
    ISOBIT_RETURN_IF_ERROR(write_file_atomically(options.svg, svg.data(), svg.size()));
    out.json.set("svg", options.svg);
    out.text += "saved " + options.svg + "\n";
  }
  return out;
}

Result<Outcome> table_compare(const TableCompareOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table first, find_fp16_table(options.first, options.source));
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table second, find_fp16_table(options.second, options.source));
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Difference difference, compare_fp16_tables(first, second));
  Outcome out;
  const double share = static_cast<double>(difference.different) / static_cast<double>(difference.inputs);
  out.text =
      "first:  " + fp16_table_text(first) + "\nsecond: " + fp16_table_text(second) + "\n" +
      format("%lld of %lld finite float16 inputs give other bits: %.2f %%\n",
             static_cast<long long>(difference.different), static_cast<long long>(difference.inputs), 100 * share);
  out.json.set("inputs", difference.inputs).set("different", difference.different).set("share", share);
  if (difference.first_code) {
    out.json.set("first_code", *difference.first_code);
    out.json.set("first_result", difference.first_result).set("second_result", difference.second_result);
    out.text += format("the first of them: code 0x%04x (%g): 0x%04x and 0x%04x\n", *difference.first_code,
                       difference.first_input, difference.first_result, difference.second_result);
  }
  return out;
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
    const auto sources = export_fp16_c(table, name);
    if (!sources.ok()) return Status(sources.status().code(), "--name " + name + ": " + sources.status().message());
    for (const ExportedFile& file : *sources) {
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
    ISOBIT_RETURN_IF_ERROR(write_file_atomically(path, text.data(), text.size()));
    files.add(path);
    out.text += "saved " + path + "\n";
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
  ISOBIT_ASSIGN_OR_RETURN(const ArrayFile file, load_data(options.input, out.warnings));
  if (file.arrays.size() != 1)
    return bad_option(options.input + ": holds " + std::to_string(file.arrays.size()) + " arrays; expected one");
  const auto& [name, x] = *file.arrays.begin();
  const std::string label = array_label(options.input, name);
  Dtype dtype = x.dtype == Dtype::kBF16 ? Dtype::kF32 : x.dtype;  // npy has no bfloat16
  if (!options.dtype.empty()) {
    if (options.dtype != "f16" && options.dtype != "f32")
      return bad_option("--dtype " + options.dtype + ": expected f16 or f32, the types of npy that tables give");
    dtype = options.dtype == "f16" ? Dtype::kF16 : Dtype::kF32;
  }
  if (x.dtype != Dtype::kF16 && x.dtype != Dtype::kBF16 && x.dtype != Dtype::kF32)
    return bad_option(label + " is " + std::string(to_string(x.dtype)) + "; a table takes f16, bf16 or f32");
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  if (device && options.threads != 1)
    return refuse_on_device(options.device, "--threads " + std::to_string(options.threads), "they are the CPU's");
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
