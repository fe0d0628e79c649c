// SPDX-License-Identifier: Apache-2.0
// Saved layers of static codes, linear ones and convolutions, as text and JSON.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/container.h"
#include "isobit/conv.h"
#include "isobit/linear.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
namespace {

/// What both kinds have; `size`: what stands behind the name.
void describe(const StaticLinearParameters& p, const std::string& name, int64_t bound, const std::string& size,
              std::string& text, OrderedJson& entry) {
  const int32_t bits = bound <= INT32_MAX ? 32 : 64;
  entry = {{"name", name},
           {"rows", p.rows},
           {"columns", p.columns},
           {"weight_bits", p.weight_bits},
           {"rounding", to_string(p.rounding)},
           {"accumulator_bits", bits},
           {"accumulator_bound", bound},
           {"input_grid", json_of(p.input)},
           {"output_grid", p.output ? json_of(*p.output) : OrderedJson()}};
  text += "\n\"" + escaped(name) + "\": " + size + ", weights " + std::to_string(p.weight_bits) + " bits, " +
          std::string(to_string(p.rounding)) + "\n";
  text += "  x    " + grid_text(p.input) + "\n";
  text += "  acc  " + std::to_string(bits) + " bits, at most " + std::to_string(bound) + "\n";
  if (p.output) {
    entry["lo"] = p.lo;
    entry["hi"] = p.hi;
    text +=
        "  y    " + grid_text(*p.output) + ", clamped to " + std::to_string(p.lo) + ".." + std::to_string(p.hi) + "\n";
  }
}

std::string axis_text(const char* name, const ConvAxis& axis) {
  std::string text = std::string("  ") + name + " kernel " + std::to_string(axis.kernel) + ", stride " +
                     std::to_string(axis.stride) + ", dilation " + std::to_string(axis.dilation) + ", pads " +
                     std::to_string(axis.pad_before) + " and " + std::to_string(axis.pad_after);
  if (axis.more > 0) text += ", " + std::to_string(axis.more) + " more";
  return text + "\n";
}

OrderedJson json_of(const ConvAxis& axis) {
  return {{"kernel", axis.kernel},         {"stride", axis.stride},       {"dilation", axis.dilation},
          {"pad_before", axis.pad_before}, {"pad_after", axis.pad_after}, {"more", axis.more}};
}

Description description(const ArrayReader& file, const std::string& what, const char* kind, size_t layers,
                        const std::string& text, OrderedJson entries) {
  const OrderedJson json = {{"file", file.name()}, {"kind", kind}, {"layers", std::move(entries)}};
  return {file.name() + ": " + std::to_string(layers) + " static " + what + (layers == 1 ? "" : "s") + "\n" + text,
          json_line(json)};
}

}  // namespace

Result<Description> describe_static_linear(const ArrayReader& file) {
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<StaticLinearLayer> layers, StaticLinearLayer::load_all(file));
  std::string text;
  OrderedJson entries = OrderedJson::array();
  for (const StaticLinearLayer& layer : layers) {
    const StaticLinearParameters& p = layer.parameters();
    OrderedJson entry;
    describe(p, layer.name(), layer.accumulator_bound(), std::to_string(p.columns) + " -> " + std::to_string(p.rows),
             text, entry);
    entries.push_back(std::move(entry));
  }
  return description(file, "linear layer", "static_linear", layers.size(), text, std::move(entries));
}

Result<Description> describe_static_conv(const ArrayReader& file) {
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<StaticConvLayer> layers, StaticConvLayer::load_all(file));
  std::string text;
  OrderedJson entries = OrderedJson::array();
  for (const StaticConvLayer& layer : layers) {
    const StaticConvParameters& p = layer.parameters();
    const ConvShape& shape = p.shape;
    OrderedJson entry;
    describe(p.linear, layer.name(), layer.accumulator_bound(),
             std::string(shape.transposed ? "transposed " : "") + std::to_string(shape.channels) + " -> " +
                 std::to_string(shape.outputs) + " channels" +
                 (shape.groups == 1 ? "" : " in " + std::to_string(shape.groups) + " groups"),
             text, entry);
    text += axis_text("rows   ", shape.rows) + axis_text("columns", shape.columns);
    entry["channels"] = shape.channels;
    entry["groups"] = shape.groups;
    entry["transposed"] = shape.transposed;
    entry["row_axis"] = json_of(shape.rows);
    entry["column_axis"] = json_of(shape.columns);
    if (p.residual) {
      text += "  residual " + grid_text(p.residual->grid) + "\n";
      entry["residual_grid"] = json_of(p.residual->grid);
    }
    entries.push_back(std::move(entry));
  }
  return description(file, "convolution", "static_conv", layers.size(), text, std::move(entries));
}

}  // namespace isobit
