// SPDX-License-Identifier: Apache-2.0
// Saved static linear layers as text and JSON.
#include <cstdint>
#include <string>
#include <vector>

#include "io/container.h"
#include "isobit/linear.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {

Result<Description> describe_static_linear(const ArrayReader& file) {
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<StaticLinearLayer> layers, StaticLinearLayer::load_all(file));
  std::string text =
      file.name() + format(": %zu static linear %s\n", layers.size(), layers.size() == 1 ? "layer" : "layers");
  OrderedJson entries = OrderedJson::array();
  for (const StaticLinearLayer& layer : layers) {
    const StaticLinearParameters& p = layer.parameters();
    const int64_t bound = layer.accumulator_bound();
    const int32_t bits = bound <= INT32_MAX ? 32 : 64;
    OrderedJson entry = {{"name", layer.name()},
                         {"rows", p.rows},
                         {"columns", p.columns},
                         {"weight_bits", p.weight_bits},
                         {"rounding", to_string(p.rounding)},
                         {"accumulator_bits", bits},
                         {"accumulator_bound", bound},
                         {"input_grid", json_of(p.input)},
                         {"output_grid", p.output ? json_of(*p.output) : OrderedJson()}};
    text += "\n\"" + escaped(layer.name()) + "\": " + std::to_string(p.columns) + " -> " + std::to_string(p.rows) +
            ", weights " + std::to_string(p.weight_bits) + " bits, " + std::string(to_string(p.rounding)) + "\n";
    text += "  x    " + grid_text(p.input) + "\n";
    text += "  acc  " + std::to_string(bits) + " bits, at most " + std::to_string(bound) + "\n";
    if (p.output) {
      entry["lo"] = p.lo;
      entry["hi"] = p.hi;
      text += "  y    " + grid_text(*p.output) + ", clamped to " + std::to_string(p.lo) + ".." + std::to_string(p.hi) +
              "\n";
    }
    entries.push_back(std::move(entry));
  }
  const OrderedJson json = {{"file", file.name()}, {"kind", "static_linear"}, {"layers", std::move(entries)}};
  return Description{text, json_line(json)};
}

}  // namespace isobit
