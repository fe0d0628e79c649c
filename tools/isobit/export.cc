// SPDX-License-Identifier: Apache-2.0
// isobit export c.
#include <string>
#include <utility>

#include "isobit/export.h"
#include "isobit/files.h"
#include "isobit/fp16_export.h"
#include "isobit/gru_files.h"
#include "isobit/sequences.h"
#include "models.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

Result<CTarget> parse_target(const char* option, const std::string& text) {
  return parse_word(option, text, c_target_from_string,
                    {"generic", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"});
}

/// The rows of the only array of a file, as codes of `grid`.
struct CheckData {
  std::vector<int64_t> shape;
  std::vector<std::byte> codes;
};
Result<CheckData> load_codes(const std::string& path, const Grid& grid, Outcome& out) {
  std::string label;
  ISOBIT_ASSIGN_OR_RETURN(const Array array, load_only_array(path, label, out.warnings));
  const std::vector<float> x = array.to_float();
  if (x.empty()) return bad_option("--check " + path + ": shape is " + list_text(array.shape) + ", which has no data");
  CheckData data{array.shape, std::vector<std::byte>(x.size() * size_in_bytes(grid.dtype()))};
  ISOBIT_RETURN_IF_ERROR(quantize(grid, x, data.codes.data(), label));
  return data;
}

Status bad_shape(const std::string& path, std::span<const int64_t> shape, const std::string& expected) {
  return bad_option("--check " + path + ": shape is " + list_text(shape) + ", must be " + expected);
}

Result<CCheck> check(const ExportOptions& options, const CExport& code, const GruModel& model, Outcome& out) {
  ISOBIT_ASSIGN_OR_RETURN(const CheckData data, load_codes(options.check, model.input_grid(), out));
  const size_t dimensions = data.shape.size();
  if ((dimensions != 2 && dimensions != 3) || data.shape.back() != model.input_size())
    return bad_shape(
        options.check, data.shape,
        "[T, " + std::to_string(model.input_size()) + "] or [T, N, " + std::to_string(model.input_size()) + "]");
  return check_c_export(code, model, data.codes, data.shape[0], dimensions == 3 ? data.shape[1] : 1);
}

Result<CCheck> check(const ExportOptions& options, const CExport& code, const StaticLinearLayer& layer, Outcome& out) {
  ISOBIT_ASSIGN_OR_RETURN(const CheckData data, load_codes(options.check, layer.input_grid(), out));
  const int64_t columns = layer.parameters().columns;
  if (data.shape.size() != 2 || data.shape[1] != columns)
    return bad_shape(options.check, data.shape, "[M, " + std::to_string(columns) + "]");
  return check_c_export(code, layer, data.codes, data.shape[0]);
}

Result<CCheck> check(const ExportOptions& options, const CExport& code, const StaticConvLayer& layer, Outcome& out) {
  const StaticConvParameters& p = layer.parameters();
  ISOBIT_ASSIGN_OR_RETURN(const CheckData data, load_codes(options.check, p.linear.input, out));
  if (data.shape.size() != 4 || data.shape[3] != p.shape.channels)
    return bad_shape(options.check, data.shape, "[B, H, W, " + std::to_string(p.shape.channels) + "]");
  return check_c_export(code, layer, data.codes, data.shape[0], {data.shape[1], data.shape[2]});
}

/// Tables check themselves, by NAME_selftest or NAME_test.c.
template <typename Table>
Result<CCheck> check(const ExportOptions& options, const CExport& code, const Table& /*table*/, Outcome& /*out*/) {
  return bad_option("--check " + options.check + ": " + code.model + " has no data; its self-test holds what is right");
}

/// Exports, checks and writes a model of any kind.
template <typename Model>
Result<Outcome> export_model(const ExportOptions& options, const CExportOptions& how, CTarget core,
                             const Model& model) {
  Outcome out;
  ISOBIT_ASSIGN_OR_RETURN(const CExport code, prefixed(options.model + ": ", export_c(model, how)));
  if (!options.check.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(const CCheck checked, check(options, code, model, out));
    out.json.set(
        "check",
        Value::object().set("codes", checked.codes_compared).set("first_difference", checked.first_difference));
    out.text += "check    " + std::to_string(checked.codes_compared) + " codes of " + options.check +
                (checked.first_difference.empty() ? " equal those of isobit run\n" : "\n");
    if (!checked.first_difference.empty()) out.failure = "--check " + options.check + ": " + checked.first_difference;
  }
  FileClaims claims;
  ISOBIT_RETURN_IF_ERROR(claims.reads(options.model, "MODEL"));
  if (!options.check.empty()) ISOBIT_RETURN_IF_ERROR(claims.reads(options.check, "--check"));
  for (const ExportedFile& file : code.files)
    ISOBIT_RETURN_IF_ERROR(claims.writes(options.output + "/" + file.name, "-o"));
  std::optional<CMeasurement> measured;
  std::string why_not = "the generic target is no core; give --target or --core";
  if (core != CTarget::kGeneric) {
    const Result<CMeasurement> measurement = measure_c_export(code, core);
    if (measurement.ok()) {
      measured = *measurement;
    } else {
      why_not = measurement.status().message();
      // What compiles and runs there must do so, and be right.
      if (measurement.status().code() == StatusCode::kIo) out.failure = std::string(to_string(core)) + ": " + why_not;
    }
  }
  if (out.failure.empty()) ISOBIT_RETURN_IF_ERROR(write_c_export(code, options.output, options.force));
  const std::string checked = std::exchange(out.text, {});
  out.add(describe_c_export(code, measured, why_not));
  out.text += checked;
  if (out.failure.empty()) {
    Value files = Value::array();
    for (const ExportedFile& file : code.files) files.add(options.output + "/" + file.name);
    out.json.set("files", std::move(files));
    out.text +=
        "wrote    " + count_text(static_cast<int64_t>(code.files.size()), "file") + " in " + options.output + "\n";
  }
  return out;
}

}  // namespace

Result<Outcome> export_c(const ExportOptions& options) {
  CExportOptions how;
  how.name = options.name;
  how.allow_large_tables = options.allow_large_tables;
  how.float_entry = options.float_entry;
  how.selftest_steps = options.selftest_steps;
  ISOBIT_ASSIGN_OR_RETURN(how.target, parse_target("--target", options.target));
  CTarget core = how.target;
  if (!options.core.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(core, parse_target("--core", options.core));
  }
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(options.model));
  const bool is_one = file.kind() == FileKind::kFp16Table;  // a file has one table
  if (is_one && !options.layer.empty()) return bad_option("--layer " + options.layer + ": an FP16 table has no layers");
  if (!options.gate.empty() &&
      (is_one || file.kind() == FileKind::kStaticLinear || file.kind() == FileKind::kStaticConv))
    return bad_option("--gate " + options.gate + ": " + options.model + " is no GRU");
  switch (file.kind()) {
    case FileKind::kStaticLinear: {
      ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer layer, StaticLinearLayer::load(file, options.layer));
      return export_model(options, how, core, layer);
    }
    case FileKind::kStaticConv: {
      ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer layer, StaticConvLayer::load(file, options.layer));
      return export_model(options, how, core, layer);
    }
    case FileKind::kFp16Table: {
      ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, load_fp16_table(file));
      return export_model(options, how, core, table);
    }
    default: break;
  }
  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(file, options.layer));
  if (options.gate.empty()) return export_model(options, how, core, model);
  ISOBIT_ASSIGN_OR_RETURN(const ActivationTable* table, find_gate_table(model, options.gate));
  return export_model(options, how, core, *table);
}

}  // namespace isobit::tool
