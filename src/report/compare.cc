// SPDX-License-Identifier: Apache-2.0
// Float and integer models side by side, and what wider tensors give, as text and JSON.
#include "isobit/compare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
namespace {

constexpr double kFullBarDb = 60.0;
constexpr int kBarWidth = 10;

/// An SQNR: "35.2", "exact" or "-inf".
std::string db_text(double db) { return std::isfinite(db) ? format("%.1f", db) : (db > 0 ? "exact" : "-inf"); }

OrderedJson json_of(const ComparePlace& place, const std::vector<std::string>& sequences) {
  if (place.step < 0) return nullptr;
  if (place.sequence < 0) return {{"row", place.step}, {"column", place.index}};
  return {{"sequence", sequences[static_cast<size_t>(place.sequence)]}, {"step", place.step}, {"index", place.index}};
}

OrderedJson json_of(const ChannelSqnr& worst) {
  if (worst.channel < 0) return nullptr;
  return {{"channel", worst.channel}, {"sqnr_db", worst.sqnr_db}};
}

OrderedJson json_of(const ErrorOverTime& errors) {
  OrderedJson rms = OrderedJson::array(), largest = OrderedJson::array();
  for (const ErrorOverTime::Slice& slice : errors.slices) {
    rms.push_back(slice.count == 0 ? OrderedJson()
                                   : OrderedJson(std::sqrt(slice.error / static_cast<double>(slice.count))));
    largest.push_back(slice.count == 0 ? OrderedJson() : OrderedJson(slice.largest));
  }
  return {{"slice_steps", errors.slice_steps}, {"rms_error", std::move(rms)}, {"largest_error", std::move(largest)}};
}

/// What GruCompareOptions::profile adds to a tensor.
void add_profile(const TensorComparison& row, OrderedJson& json) {
  if (!row.values.counts.empty()) {
    json["histogram"] = {{"low", row.values.low},
                         {"high", row.values.high},
                         {"covered_low", row.values.covered_low},
                         {"covered_high", row.values.covered_high},
                         {"counts", row.values.counts}};
  }
  if (!row.codes.empty()) json["codes"] = row.codes;
  if (!row.over_time.slices.empty()) json["over_time"] = json_of(row.over_time);
}

OrderedJson json_of(const std::vector<SequenceComparison>& compared, const std::vector<std::string>& names) {
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < compared.size(); ++i) {
    const SequenceComparison& one = compared[i];
    list.push_back({{"sequence", names[i]},
                    {"steps", one.steps},
                    {"sqnr_db", one.sqnr_db},
                    {"first_part", one.first_part < 0 ? OrderedJson() : OrderedJson(one.first_part)}});
  }
  return list;
}

std::string bar_text(double db) {
  const double share = std::clamp(db / kFullBarDb, 0.0, 1.0);
  const int filled = static_cast<int>(std::lround(share * kBarWidth));
  return std::string(filled, '#') + std::string(kBarWidth - filled, '.');
}

/// A list for db of each layer, which become cells of a row of `text`.
OrderedJson describe_layers(const GruOutputSqnr& sqnr, std::string& text) {
  for (const double db : sqnr.layer_db) text += format(" %8s", db_text(db).c_str());
  return sqnr.layer_db;
}

}  // namespace

Description describe_comparison(const GruComparisonReport& report, int32_t directions,
                                const std::vector<std::string>& sequences, double part_codes) {
  std::string text =
      count_text(report.sequences, "sequence") + ", " + count_text(report.steps, "step") +
      format(
          "; bars: SQNR, full at %.0f dB; own: of the tensor's float values on its own grid, and the worst "
          "channel of that; parts: first step with |float - fixed| > %g codes\n",
          kFullBarDb, part_codes);
  text += format("%-11s %-5s %8s  %-*s %9s %12s %8s  %-16s %9s  %s\n", "layer", "name", "SQNR dB", kBarWidth, "",
                 "cosine", "largest err", "own dB", "worst channel", "clipped", "parts");
  OrderedJson tensors = OrderedJson::array();
  for (const TensorComparison& row : report.tensors) {
    const std::string layer = layer_label(row.layer, directions);
    const std::string name(kGruTensorNames[row.tensor]);
    const double clipped = 100.0 * static_cast<double>(row.clipped) / static_cast<double>(row.count);
    const bool is_weight = row.tensor >= kW && row.tensor <= kBr;
    tensors.push_back({{"layer", layer},
                       {"tensor", name},
                       {"values", row.count},
                       {"exact", row.exact},
                       {"sqnr_db", row.sqnr_db},
                       {"worst_channel", json_of(row.worst)},
                       {"own_sqnr_db", row.own_sqnr_db},
                       {"own_worst_channel", json_of(row.own_worst)},
                       {"cosine", row.cosine},
                       {"largest_error", row.largest_error},
                       {"largest_error_at", json_of(row.largest_error_at, sequences)},
                       {"clipped_percent", clipped},
                       {"first_part", json_of(row.first_part, sequences)}});
    add_profile(row, tensors.back());
    const ChannelSqnr& worst = row.own_worst;
    const std::string parts = is_weight ? ""
                              : row.first_part.step < 0
                                  ? "never"
                                  : format("step %lld (%s)", static_cast<long long>(row.first_part.step),
                                           sequences[static_cast<size_t>(row.first_part.sequence)].c_str());
    const std::string channel = worst.channel < 0
                                    ? ""
                                    : format("%s %lld: %s", is_weight ? "row" : "",
                                             static_cast<long long>(worst.channel), db_text(worst.sqnr_db).c_str());
    text += format("%-11s %-5s %8s  %s %9.6f %12.5g %8s  %-16s %7.3f %%  %s\n", layer.c_str(), name.c_str(),
                   db_text(row.sqnr_db).c_str(), bar_text(row.sqnr_db).c_str(), row.cosine, row.largest_error,
                   db_text(row.own_sqnr_db).c_str(), channel.c_str(), clipped, parts.c_str());
  }
  OrderedJson json = {{"sequences", report.sequences},
                      {"steps", report.steps},
                      {"part_codes", part_codes},
                      {"output_sqnr_db", report.output_sqnr_db},
                      {"output_rms_error", report.output_rms_error},
                      {"tensors", std::move(tensors)}};
  if (!report.by_sequence.empty()) json["by_sequence"] = json_of(report.by_sequence, sequences);
  if (report.worst_sequence >= 0) {
    json["worst_sequence"] = {{"sequence", sequences[static_cast<size_t>(report.worst_sequence)]},
                              {"over_time", json_of(report.worst_over_time)}};
  }
  return {.text = std::move(text), .json = json_line(json)};
}

Description describe_ablation(const GruAblation& ablation) {
  size_t width = ablation.bits.size();
  for (const GruAblationRow& row : ablation.rows) width = std::max(width, row.set.size());
  const auto line = [&](const std::string& set) { return format("%-*s", static_cast<int>(width), set.c_str()); };
  std::string text =
      "with these tensors at 16 bits over the same range, everything else as it is: SQNR of h in dB\n" + line("");
  for (size_t l = 0; l < ablation.sqnr.layer_db.size(); ++l) text += format(" %8s", format("l%zu", l).c_str());
  text += format(" %8s %14s\n", "gain", "weights grow") + line(ablation.bits);
  OrderedJson json = {{"bits", ablation.bits},
                      {"sqnr_db", ablation.sqnr.output_db},
                      {"layer_sqnr_db", describe_layers(ablation.sqnr, text)}};
  text += "\n";
  OrderedJson rows = OrderedJson::array();
  for (const GruAblationRow& row : ablation.rows) {
    OrderedJson entry = {{"set", row.set}, {"bits", row.bits}};
    text += line(row.set);
    if (row.refused.empty()) {
      entry["sqnr_db"] = row.sqnr.output_db;
      entry["layer_sqnr_db"] = describe_layers(row.sqnr, text);
      text += format(" %+8.1f %8lld bytes\n", row.gain_db, static_cast<long long>(row.weight_bytes));
      entry["gain_db"] = row.gain_db;
    } else {
      entry["refused"] = row.refused;
      text += "  refused: " + row.refused + "\n";
    }
    entry["weight_bytes"] = row.weight_bytes;
    rows.push_back(std::move(entry));
  }
  json["goal_db"] = ablation.goal_db;
  json["rows"] = std::move(rows);
  json["advice"] = nullptr;
  if (ablation.advice >= 0) {
    const GruAblationRow& row = ablation.rows[static_cast<size_t>(ablation.advice)];
    json["advice"] = {{"set", row.set}, {"bits", row.bits}, {"sqnr_db", row.sqnr.output_db}};
  }
  json["sentence"] = ablation.sentence;
  for (const GruTensorAlone& one : ablation.alone) {
    OrderedJson entry = {{"layer", one.layer}, {"tensor", kGruTensorNames[one.tensor]}};
    if (one.refused.empty()) entry["sqnr_db"] = one.sqnr_db;
    if (!one.refused.empty()) entry["refused"] = one.refused;
    json["alone"].push_back(std::move(entry));
  }
  text += "\n" + ablation.sentence + "\n";
  return {.text = std::move(text), .json = json_line(json)};
}

std::string sqnr_text(const GruOutputSqnr& sqnr) {
  std::string layers;
  for (const double db : sqnr.layer_db) layers += (layers.empty() ? "" : ", ") + db_text(db);
  return std::string("SQNR of the output") + (sqnr.layer_db.size() > 1 ? "s of each layer: " : ": ") + layers + " dB";
}

}  // namespace isobit
