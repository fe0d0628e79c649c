// SPDX-License-Identifier: Apache-2.0
#include "models.h"

#include <algorithm>
#include <utility>

#include "isobit/gru_files.h"
#include "isobit/linear.h"
#include "isobit/nearest.h"
#include "text.h"

namespace isobit::tool {
namespace {

std::string gate_order_text(GateOrder order) {
  switch (order) {
    case GateOrder::kUrn: return "urn (update, reset, new)";
    case GateOrder::kRun: return "pytorch (reset, update, new: r z n)";
    case GateOrder::kOnnx: return "onnx (update, reset, new: z r h)";
  }
  return "";
}

}  // namespace

namespace {

Status apply_layers(const FloatModelOptions& options, GruLoadOptions& load) {
  for (const std::string& layer : options.layer)
    if (const Status status = apply_layer(layer, load); !status.ok())
      return {status.code(), "--" + status.message()};  // "layer ..."
  return {};
}

}  // namespace

Result<std::string> gru_prefix(const FloatModelOptions& options) {
  GruLoadOptions load;
  ISOBIT_RETURN_IF_ERROR(apply_layers(options, load));
  return load.prefix;
}

namespace {

Result<FloatModel> load_float_model(const ArrayReader& file, const FloatModelOptions& options, GruLoadOptions load) {
  FloatModel model;
  ISOBIT_RETURN_IF_ERROR(apply_layers(options, load));
  if (!options.gate_order.empty()) {
    load.gate_order = gate_order_from_string(options.gate_order);
    if (!load.gate_order) {
      return Status(StatusCode::kInvalidArgument, "--gate-order " + options.gate_order + ": " +
                                                      expected_one_of(options.gate_order, {"urn", "pytorch", "onnx"}));
    }
    model.gate_order_assumed = false;
  }
  if (!options.layout.empty()) {
    load.layout = gru_layout_from_string(options.layout);
    if (!load.layout) {
      return Status(StatusCode::kInvalidArgument,
                    "--layout " + options.layout + ": " + expected_one_of(options.layout, {"rows", "columns"}));
    }
    model.layout_assumed = false;
  }
  if (!options.reset.empty()) {
    if (options.reset != "after" && options.reset != "before") {
      return Status(StatusCode::kInvalidArgument,
                    "--reset " + options.reset + ": " + expected_one_of(options.reset, {"after", "before"}));
    }
    model.reset_assumed = false;
    load.reset_after = options.reset == "after";
  }
  ISOBIT_ASSIGN_OR_RETURN(model.weights, load_gru(file, load));
  return model;
}

std::string given_text(bool assumed, const char* option) {
  return assumed ? std::string(", assumed (") + option + " says otherwise)\n" : ", as given\n";
}

}  // namespace

Result<FloatModel> load_float_model(const ArrayReader& file, const FloatModelOptions& options) {
  return load_float_model(file, options, GruLoadOptions{});
}

Result<FloatModel> load_float_model(const std::string& path, const FloatModelOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load_float_model(file, options);
}

Result<FloatModel> load_float_model(const ArrayReader& file, const FloatModelOptions& options,
                                    const std::string& prefix) {
  GruLoadOptions load;
  load.prefix = prefix;
  load.unprefixed = prefix.empty();
  return load_float_model(file, options, load);
}

std::string assumptions_text(const FloatModel& model) {
  const GruLoadReport& report = model.weights.report;
  const bool rows = report.layout == GruLayout::kRows;
  std::string text =
      "gate order: " + gate_order_text(report.gate_order) + given_text(model.gate_order_assumed, "--gate-order") +
      "layout: " + (rows ? "rows, W [3H, C] and R [3H, H]" : "columns, W [C, 3H] and R [H, 3H]") +
      given_text(model.layout_assumed, "--layout") + "reset: after the matrix product, r * (R h + br)" +
      given_text(model.reset_assumed, "--reset") + "activations: sigmoid (u), sigmoid (r), tanh (n), assumed\n";
  for (const std::string& note : report.notes) text += "read: " + note + "\n";
  return text;
}

void warn_of_doubts(const FloatModel& model, const std::string& file, std::vector<std::string>& warnings) {
  const GruLoadReport& report = model.weights.report;
  const std::string gru = file + ": GRU \"" + escaped(model.weights.name) + "\": ";
  if (!report.layout_note.empty()) warnings.push_back(gru + report.layout_note + "; --layout says otherwise");
  if (report.unused.empty()) return;
  std::string names;
  for (const std::string& name : report.unused) names += (names.empty() ? "" : ", ") + escaped(name);
  warnings.push_back(gru + "arrays that are not used: " + names +
                     "; if the network computes with them, it is another one");
}

void set_assumptions(const FloatModel& model, Value& json) {
  const GruLoadReport& report = model.weights.report;
  Value notes = Value::array(), unused = Value::array();
  for (const std::string& note : report.notes) notes.add(note);
  if (!report.layout_note.empty()) notes.add(report.layout_note);
  for (const std::string& name : report.unused) unused.add(name);
  json.set("gate_order", to_string(report.gate_order))
      .set("gate_order_assumed", model.gate_order_assumed)
      .set("layout", to_string(report.layout))
      .set("layout_assumed", model.layout_assumed)
      .set("reset", "after")
      .set("reset_assumed", model.reset_assumed)
      .set("notes", std::move(notes))
      .set("unused", std::move(unused));
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

Status describe_sizes(const GruModel& model, Value& json, std::string& text) {
  ISOBIT_ASSIGN_OR_RETURN(const Description sizes, isobit::describe_sizes(model));
  json.set("sizes", Value::parsed(sizes.json));
  text += sizes.text;
  return {};
}

void describe_clipping(int64_t clipped, int64_t count, const Grid& grid, const std::string& input, const char* likely,
                       Outcome& out) {
  constexpr double kWarnPercent = 1.0;
  const double percent = count == 0 ? 0.0 : 100.0 * static_cast<double>(clipped) / static_cast<double>(count);
  out.json.set("clipped", clipped).set("clipped_percent", percent);
  const std::string range = format("%.5g..%.5g", static_cast<double>(dequantize_value(grid, grid.min())),
                                   static_cast<double>(dequantize_value(grid, grid.max())));
  out.text += format("clipped %.3g %% of the inputs to the range of the input grid, %s\n", percent, range.c_str());
  if (percent <= kWarnPercent) return;
  out.warnings.push_back(
      format("%.3g %% of the inputs of %s lie outside the range of the input grid, %s, and "
             "are clipped; likely: %s",
             percent, input.c_str(), range.c_str(), likely));
}

Result<std::optional<CpuPath>> parse_kernel(const std::string& text) {
  if (text.empty()) return std::optional<CpuPath>();
  const auto path = cpu_path_from_string(text);
  if (!path) {
    std::vector<std::string_view> names;
    for (const CpuPath known : kAllCpuPaths) names.push_back(to_string(known));
    return Status(StatusCode::kInvalidArgument,
                  "--kernel " + text + ": no such kernel; " + expected_one_of(text, names));
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
  return Status(StatusCode::kInvalidArgument, "--kernel " + text + ": no kernel of " + std::string(operation) + "; " +
                                                  expected_one_of(text, names) +
                                                  "; what follows the operation in one of them will do, as in avx2");
}

Status check_threads(int threads) {
  if (threads >= 0 && threads <= 1024) return {};
  return {StatusCode::kInvalidArgument,
          "--threads " + std::to_string(threads) + ": expected 1 to 1024, or 0 for one per processor"};
}

}  // namespace isobit::tool
