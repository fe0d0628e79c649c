// SPDX-License-Identifier: Apache-2.0
// What a search for widths found, as text and JSON.
#include "isobit/tune.h"

#include <utility>

#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
namespace {

using Command = std::function<std::string(const GruSettings&)>;

OrderedJson json_of(const GruTunePoint& point, const Command& command) {
  OrderedJson json = {{"quality", point.quality},
                      {"layer_sqnr_db", point.sqnr.layer_db},
                      {"bytes", point.bytes},
                      {"speed_class", static_cast<int>(point.speed)},
                      {"speed", to_string(point.speed)},
                      {"bits", point.settings.bits},
                      {"method", point.settings.method},
                      {"scale", to_string(point.settings.scale)},
                      {"table", point.settings.table}};
  if (command) json["command"] = command(point.settings);
  return json;
}

}  // namespace

std::string quality_text(double quality, bool is_metric) {
  return is_metric ? format("%.6g", quality) : format("%.2f dB", quality);
}

Description describe_search(const GruTuneResult& result, const Command& command) {
  std::string text =
      "models tried: " + std::to_string(result.evaluations) + "\n" +
      format("   %9s %10s  %-36s %s\n", result.judged ? "metric" : "quality", "bytes", "speed class", "settings");
  GruSettings chosen = result.chosen.settings;
  chosen.reason.clear();
  OrderedJson front = OrderedJson::array();
  std::string commands;
  for (const GruTunePoint& point : result.front) {
    const std::string settings = point.settings.command_options();
    text += format("%-2s %9s %10lld  %-36s %s\n", settings == chosen.command_options() ? "->" : "",
                   quality_text(point.quality, result.judged).c_str(), static_cast<long long>(point.bytes),
                   format("%d %s", static_cast<int>(point.speed), std::string(to_string(point.speed)).c_str()).c_str(),
                   settings.c_str());
    if (command) commands += "  " + command(point.settings) + "\n";
    front.push_back(json_of(point, command));
  }
  if (command) text += "commands, in the order of the table:\n" + commands;
  text += std::string(result.interrupted ? "best so far: "
                      : result.reached   ? "chosen: "
                                         : "best: ") +
          quality_text(result.chosen.quality, result.judged) + ", " + std::to_string(result.chosen.bytes) + " bytes, " +
          std::string(to_string(result.chosen.speed)) + "\n";
  if (command) text += "  " + command(result.chosen.settings) + "\n";
  const OrderedJson json = {{"evaluations", result.evaluations},
                            {"reached", result.reached},
                            {"interrupted", result.interrupted},
                            {"front", std::move(front)},
                            {"chosen", json_of(result.chosen, command)}};
  return {.text = std::move(text), .json = json_line(json)};
}

std::string unreached_text(const GruTuneResult& result, const GruTuneOptions& options) {
  const GruTunePoint& chosen = result.chosen;
  const std::string has = quality_text(chosen.quality, result.judged);
  if (options.max_bytes) {
    return format("no model that was tried has at most %lld bytes; the smallest has %lld, with %s",
                  static_cast<long long>(*options.max_bytes), static_cast<long long>(chosen.bytes), has.c_str());
  }
  return format("no model that was tried reaches %.6g; the best has ",
                options.target.value_or(GruTuneOptions::kDefaultTargetDb)) +
         has + " with --bits " + chosen.settings.bits;
}

}  // namespace isobit
