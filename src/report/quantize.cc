// SPDX-License-Identifier: Apache-2.0
// What calibration saw and chose, as text and JSON.
#include <algorithm>
#include <utility>

#include "isobit/gru.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
namespace {

/// That a bare width widened the biases, where it did and no entry names them.
std::string biases_text(const GruModelParameters& parameters) {
  const auto bits = parameters.notes.find("bits");
  if (bits == parameters.notes.end()) return {};
  for (const char* name : {"biases=", "bw=", "br=", "all="})
    if (bits->second.find(name) != std::string::npos) return {};
  int32_t widest = 0;
  for (const GruLayerParameters& layer : parameters.layers) widest = std::max(widest, layer.grids[kBw].bits);
  if (widest <= 8) return {};
  return "biases have " + std::to_string(widest) + " bits, as with every bare width above 8; --bits " + bits->second +
         ",biases=8 keeps 8\n";
}

}  // namespace

Description describe_calibration(const GruModel& model, const GruCalibrator& calibrator) {
  const GruModelParameters& parameters = model.parameters();
  OrderedJson grids = OrderedJson::array();
  std::string text;
  for (size_t i = 0; i < parameters.layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const std::string label = layer_label(layer, parameters.directions);
    text += "layer " + label + "\n";
    for (int32_t t = 0; t < kGruTensorCount; ++t) {
      const std::string name(kGruTensorNames[static_cast<size_t>(t)]);
      const Grid& grid = parameters.layers[i].grids[static_cast<size_t>(t)];
      OrderedJson entry = {{"layer", label}, {"tensor", name}};
      if (t >= kW && t <= kBr) {
        entry.update({{"bits", grid.bits}, {"signed", grid.is_signed}, {"per_row", true}});
        text += format("  %-5s %2d bits %-8s  a scale for each row\n", name.c_str(), grid.bits,
                       grid.is_signed ? "signed" : "unsigned");
      } else {
        const TensorStatistics& statistics = calibrator.statistics(layer, static_cast<GruTensor>(t));
        // The outputs of sigmoid and tanh have fixed ranges and are not observed.
        const bool observed = statistics.count() > 0;
        entry.update({{"grid", json_of(grid)},
                      {"observed_min", observed ? OrderedJson(statistics.min()) : OrderedJson()},
                      {"observed_max", observed ? OrderedJson(statistics.max()) : OrderedJson()}});
        text += format("  %-5s %s", name.c_str(), grid_text(grid).c_str());
        if (observed) {
          text += format(", observed %.5g..%.5g", static_cast<double>(statistics.min()),
                         static_cast<double>(statistics.max()));
        }
        text += "\n";
      }
      grids.push_back(std::move(entry));
    }
  }
  return {.text = text + biases_text(parameters), .json = json_line({{"grids", std::move(grids)}})};
}

Description describe_clipping(const ClippedInputs& inputs, const Grid& grid, const std::string& input,
                              const std::string& likely) {
  constexpr double kWarnPercent = 1.0;
  const double percent =
      inputs.values == 0 ? 0.0 : 100.0 * static_cast<double>(inputs.clipped) / static_cast<double>(inputs.values);
  const std::string range = format("%.5g..%.5g", static_cast<double>(dequantize_value(grid, grid.min())),
                                   static_cast<double>(dequantize_value(grid, grid.max())));
  Description out{
      .text = format("clipped %.3g %% of the inputs to the range of the input grid, %s\n", percent, range.c_str()),
      .json = json_line({{"clipped", inputs.clipped}, {"clipped_percent", percent}})};
  if (percent > kWarnPercent)
    out.warnings.push_back(
        format("%.3g %% of the inputs of %s lie outside the range of the input grid, %s, and are clipped; likely: %s",
               percent, input.c_str(), range.c_str(), likely.c_str()));
  return out;
}

}  // namespace isobit
