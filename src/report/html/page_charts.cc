// SPDX-License-Identifier: Apache-2.0
// The pictures of a page.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "report/html/chart.h"
#include "report/html/markup.h"
#include "report/html/page.h"
#include "report/table_bins.h"

namespace isobit {
namespace {

constexpr size_t kSeries = 6;        // colours of lines
constexpr size_t kWorstListed = 5;   // sequences
constexpr size_t kFewSequences = 8;  // a histogram of fewer says nothing
constexpr double kMostTicks = 32;    // codes that are drawn one by one

std::string chart_figure(const std::string& caption, const std::string& detail, const std::string& chart) {
  return "<figure><figcaption><b>" + caption + "</b> <small>" + detail + "</small></figcaption>\n" + chart +
         "</figure>\n";
}

std::string part_of_svg(const std::string& element, const std::string& attributes) {
  return "<" + element + " " + attributes + "/>";
}

std::string small_text(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" text-anchor=\"" + anchor + "\">" + text +
         "</text>";
}

std::string rectangle(double x, double y, double width, double height, const char* fill) {
  return part_of_svg("rect", std::string("class=\"") + fill + "\" x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) +
                                 "\" width=\"" + coordinate(width) + "\" height=\"" + coordinate(height) + "\"");
}

std::vector<double> roots(const std::vector<uint64_t>& counts) {
  std::vector<double> out;
  out.reserve(counts.size());
  for (const uint64_t count : counts) out.push_back(std::sqrt(static_cast<double>(count)));
  return out;
}

// ---------------------------------------------------------------------------------------------------------------
// Errors over time

double rms_of(const ErrorOverTime::Slice& slice) { return std::sqrt(slice.error / static_cast<double>(slice.count)); }

double middle_of(const ErrorOverTime& errors, size_t slice) {
  return (static_cast<double>(slice) + 0.5) * static_cast<double>(errors.slice_steps) - 0.5;
}

template <typename Value>
std::vector<ChartPoint> points_of(const ErrorOverTime& errors, Value value) {
  std::vector<ChartPoint> points;
  for (size_t i = 0; i < errors.slices.size(); ++i) {
    if (errors.slices[i].count > 0) points.push_back({middle_of(errors, i), value(errors.slices[i])});
  }
  return points;
}

double largest_y(const std::vector<ChartPoint>& points) {
  double largest = 0;
  for (const ChartPoint& point : points) largest = std::max(largest, point.y);
  return largest;
}

/// From 0 up to a round number above `most`.
ChartAxis error_axis(double most, const std::string& label) {
  return {.low = 0, .high = most > 0 ? axis_end(most) : 1, .label = label};
}

ChartAxis step_axis(const ErrorOverTime& errors) {
  const auto end = static_cast<double>(static_cast<int64_t>(errors.slices.size()) * errors.slice_steps);
  const std::string every =
      errors.slice_steps > 1 ? "; a point is " + whole_html(errors.slice_steps) + " steps" : std::string();
  return {.low = 0, .high = std::max(1.0, end - 1), .label = "step" + every, .is_whole = true};
}

/// A line, or a dot where there is one point only.
void add_line(Chart& chart, const std::vector<ChartPoint>& points, size_t series) {
  const std::string number = std::to_string(series % kSeries + 1);
  if (points.size() == 1) {
    chart.dot(points.front(), 0, "f" + number, "");
  } else {
    chart.line(points, "l" + number);
  }
}

std::string all_sequences_chart(const GruPage& page) {
  const GruComparisonReport& report = *page.comparison;
  const int32_t directions = page.model->parameters().directions;
  std::vector<const TensorComparison*> rows;
  int64_t part = -1;
  for (const TensorComparison& row : report.tensors) {
    if (row.tensor != kH || row.over_time.slices.empty()) continue;
    rows.push_back(&row);
    const bool is_output = row.layer / directions == page.model->layer_count() - 1;
    if (is_output && row.first_part.step >= 0 && (part < 0 || row.first_part.step < part)) part = row.first_part.step;
  }
  if (rows.empty()) return "";
  if (rows.size() > kSeries) rows.erase(rows.begin(), rows.end() - kSeries);
  std::vector<std::vector<ChartPoint>> lines;
  double most = 0;
  for (const TensorComparison* row : rows) {
    lines.push_back(points_of(row->over_time, rms_of));
    most = std::max(most, largest_y(lines.back()));
  }
  Chart chart("RMS error of h at each step, over all sequences", step_axis(rows.front()->over_time),
              error_axis(most, "RMS error of h"));
  std::string keys;
  for (size_t i = 0; i < lines.size(); ++i) {
    add_line(chart, lines[i], i);
    keys += key_html(1, "f" + std::to_string(i + 1)) + layer_label(rows[i]->layer, directions);
  }
  if (part >= 0) chart.mark(static_cast<double>(part), "output parts at step " + whole_html(part));
  return chart_figure("All sequences", part < 0 ? "the output never parts" : "",
                      "<div class=\"keys\">" + keys + "</div>\n" + chart.svg());
}

std::string worst_sequence_chart(const GruPage& page) {
  const GruComparisonReport& report = *page.comparison;
  if (report.worst_sequence < 0 || report.worst_over_time.slices.empty()) return "";
  const SequenceComparison& worst = report.by_sequence[static_cast<size_t>(report.worst_sequence)];
  const ErrorOverTime& errors = report.worst_over_time;
  const auto largest = points_of(errors, [](const ErrorOverTime::Slice& slice) { return slice.largest; });
  Chart chart("Error of the output at each step of the worst sequence", step_axis(errors),
              error_axis(largest_y(largest), "error of the output"));
  chart.area(largest, "pale");
  add_line(chart, points_of(errors, rms_of), 0);
  if (worst.first_part >= 0) {
    chart.mark(static_cast<double>(worst.first_part), "parts at step " + whole_html(worst.first_part));
  }
  return chart_figure(
      "Worst sequence",
      sequence_html(page, report.worst_sequence) + ", " + db_html(worst.sqnr_db) +
          (std::isfinite(worst.sqnr_db) ? " dB" : ""),
      "<div class=\"keys\">" + key_html(1, "f1") + "RMS" + key_html(1, "pale") + "largest</div>\n" + chart.svg());
}

std::string sequences_chart(const GruComparisonReport& report) {
  std::vector<double> values;
  for (const SequenceComparison& sequence : report.by_sequence) {
    if (sequence.steps > 0 && std::isfinite(sequence.sqnr_db)) values.push_back(sequence.sqnr_db);
  }
  if (values.size() < kFewSequences) return "";
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const double width = round_up(std::max(0.1, (*most - *least) / 20));
  const double low = std::floor(*least / width) * width;
  std::vector<int64_t> counts(static_cast<size_t>((*most - low) / width) + 1);
  for (const double value : values) ++counts[static_cast<size_t>((value - low) / width)];
  const auto highest = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
  Chart chart("How many sequences have which SQNR",
              {.low = low, .high = low + width * static_cast<double>(counts.size()), .label = "SQNR of the output, dB"},
              {.low = 0, .high = std::max(1.0, axis_end(highest)), .label = "sequences", .is_whole = true});
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const double at = low + width * static_cast<double>(i);
    chart.bar(at, at + width, static_cast<double>(counts[i]), "fill");
  }
  return chart_figure("Sequence by sequence", "bins of " + digits_html(width, 3) + " dB", chart.svg());
}

std::string worst_list(const GruPage& page) {
  const GruComparisonReport& report = *page.comparison;
  std::vector<size_t> order;
  for (size_t i = 0; i < report.by_sequence.size(); ++i) {
    if (report.by_sequence[i].steps > 0) order.push_back(i);
  }
  const size_t shown = std::min(order.size(), kWorstListed);
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(), [&](size_t a, size_t b) {
        return std::make_pair(report.by_sequence[a].sqnr_db, a) < std::make_pair(report.by_sequence[b].sqnr_db, b);
      });
  std::string rows;
  for (size_t i = 0; i < shown; ++i) {
    const SequenceComparison& sequence = report.by_sequence[order[i]];
    rows += "<tr><td class=\"left long\">" + sequence_html(page, static_cast<int64_t>(order[i])) + "</td><td>" +
            whole_html(sequence.steps) + "</td><td>" + db_html(sequence.sqnr_db) + "</td><td>" +
            (sequence.first_part < 0 ? "never" : whole_html(sequence.first_part)) + "</td></tr>\n";
  }
  return "<figure><figcaption><b>Least SQNR</b></figcaption>\n<div class=\"wide\"><table><thead><tr>"
         "<th scope=\"col\">sequence</th><th scope=\"col\">steps</th><th scope=\"col\">SQNR, dB</th>"
         "<th scope=\"col\">parts at step</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div></figure>\n";
}

// ---------------------------------------------------------------------------------------------------------------
// Values and tables

/// One histogram: what the grid does not cover is shaded, the values at its ends are below.
std::string histogram_figure(const GruLayerParameters& layer, const TensorComparison& row) {
  constexpr double kWidth = 236, kBase = 82, kHeight = 74;
  const GridHistogram& bins = row.values;
  const Grid& grid = layer.grids[static_cast<size_t>(row.tensor)];
  const bool is_weight = row.tensor >= kW && row.tensor <= kBr;
  const auto x_of = [&](double code) { return kWidth * (code - bins.low) / (bins.high - bins.low); };
  const auto value_html = [&](double code) {
    if (is_weight) return digits_html(code, 6);
    return digits_html((code - static_cast<double>(grid.zero_point)) * static_cast<double>(grid.scale()), 3);
  };
  const double low = x_of(bins.covered_low), high = x_of(bins.covered_high);
  const auto zero = is_weight ? 0.0 : static_cast<double>(grid.zero_point);
  std::string svg = rectangle(0, kBase - kHeight, low, kHeight, "off") +
                    rectangle(high, kBase - kHeight, kWidth - high, kHeight, "off");
  svg += "<path class=\"fill\" d=\"" + steps_path(roots(bins.counts), kWidth, kBase, kHeight) + "\"/>";
  std::string tics;
  if (bins.covered_high - bins.covered_low <= kMostTicks) {
    for (double code = std::ceil(bins.covered_low); code <= bins.covered_high; ++code) {
      tics += "M" + coordinate(x_of(code)) + " " + coordinate(kBase) + "v4";
    }
  }
  svg += "<path class=\"axis\" d=\"M0 " + coordinate(kBase) + "H" + coordinate(kWidth) + tics + "\"/>";
  for (const double x : {low, high}) {
    svg += "<path class=\"clip\" d=\"M" + coordinate(x) + " " + coordinate(kBase - kHeight) + "V" + coordinate(kBase) +
           "\"/>";
  }
  svg += small_text(low, kBase + 17, "middle", value_html(bins.covered_low)) +
         small_text(high, kBase + 17, "middle", value_html(bins.covered_high));
  if (x_of(zero) > 0.3 * kWidth && x_of(zero) < 0.7 * kWidth) svg += small_text(x_of(zero), kBase + 17, "middle", "0");
  const std::string name(kGruTensorNames[row.tensor]);
  const double clipped =
      100.0 * static_cast<double>(row.clipped) / static_cast<double>(std::max<uint64_t>(1, row.count));
  std::string detail = std::to_string(grid.bits) + " bits, step " + step_html(layer, row.tensor);
  if (is_weight) detail += ", codes of each row";
  if (row.clipped > 0) detail += ", " + digits_html(clipped, 2) + " % clipped";
  return chart_figure(name, detail,
                      "<svg class=\"chart\" viewBox=\"0 0 236 102\" role=\"img\" aria-label=\"histogram of " + name +
                          "\">" + svg + "</svg>\n");
}

/// Above: the largest error in each bin of input codes; below: how often the codes were used. An exact table has the
/// lower part only.
std::string table_figure(const std::string& name, const ActivationTable& table, const std::vector<Bin>& bins,
                         const std::vector<uint64_t>& used) {
  constexpr double kWidth = 340, kPart = 50, kTitle = 16;
  const Bin total = total_of(bins);
  const bool is_exact = total.max == 0;
  std::vector<double> largest;
  double weighted = 0, uses = 0;
  for (size_t i = 0; i < bins.size(); ++i) {
    largest.push_back(bins[i].max);
    weighted += bins[i].mean() * static_cast<double>(used[i]);
    uses += static_cast<double>(used[i]);
  }
  const auto value_html = [&](int64_t code) {
    const double scale = static_cast<double>(table.input.scale());
    return digits_html(static_cast<double>(code - table.input.zero_point) * scale, 3);
  };
  std::string svg, axes;
  double base = kPart;
  const auto add = [&](const char* fill, const std::vector<double>& heights) {
    svg += std::string("<path class=\"") + fill + "\" d=\"" + steps_path(heights, kWidth, base, kPart - 4) + "\"/>";
    axes += "M0 " + coordinate(base) + "H" + coordinate(kWidth);
  };
  std::string detail = std::string(to_string(table.function)) + ", " + std::string(to_string(table.kind)) + ", " +
                       std::to_string(table.input.bits) + " to " + std::to_string(table.output.bits) + " bits; ";
  if (is_exact) {
    detail += "exact at every code";
  } else {
    base += kTitle;
    add("f2", largest);
    svg += small_text(0, 11, "start", "at most " + digits_html(total.max, 3) + " LSB");
    base += kPart + 6;
    const auto share = static_cast<double>(total.exact) / static_cast<double>(total.count);
    detail += fixed_html(100 * share, 1) + " % of the codes exact; on average " +
              digits_html(uses > 0 ? weighted / uses : 0, 2) + " LSB where it was used";
  }
  add("fill", roots(used));
  svg += "<path class=\"axis\" d=\"" + axes + "\"/>" +
         small_text(0, base + kTitle, "start", value_html(table.input.min())) +
         small_text(kWidth, base + kTitle, "end", value_html(table.input.max()));
  return chart_figure(html_text(name), detail,
                      "<svg class=\"chart\" viewBox=\"0 0 340 " + coordinate(base + kTitle + 4) +
                          "\" role=\"img\" aria-label=\"errors of the table " + html_text(name) +
                          ", and the codes that were used\">" + svg + "</svg>\n");
}

}  // namespace

std::string over_time(const GruPage& page) {
  if (page.comparison->by_sequence.empty()) return "";
  return "<h2>Error over time</h2>\n<div class=\"pair\">\n" + all_sequences_chart(page) + worst_sequence_chart(page) +
         sequences_chart(*page.comparison) + worst_list(page) + "</div>\n";
}

std::string histograms(const GruPage& page) {
  const GruModelParameters& p = page.model->parameters();
  std::string out;
  int64_t layer = -1;
  for (const TensorComparison& row : page.comparison->tensors) {
    if (row.values.counts.empty() || row.layer >= kMostLayers) continue;
    if (row.layer != layer) {
      if (layer >= 0) out += "</div>\n";
      layer = row.layer;
      out += "<h3>" + layer_label(layer, p.directions) + "</h3>\n<div class=\"cards\">\n";
    }
    out += histogram_figure(p.layers[static_cast<size_t>(row.layer)], row);
  }
  if (out.empty()) return "";
  return "<h2>Values on their grids</h2>\n<p class=\"soft\">Float values; the height is the square root of their "
         "number, so that the ends of a distribution are seen. Dashed lines are the ends of what the grid covers; what "
         "lies beyond is clipped.</p>\n" +
         out + "</div>\n" + left_out_html(page);
}

Result<std::string> table_errors_section(const GruPage& page) {
  constexpr std::array<GruTensor, 3> kInputs = {kUIn, kRIn, kNIn};
  const GruModelParameters& p = page.model->parameters();
  const std::vector<GateTable> tables = gate_tables(*page.model);
  std::string out;
  for (const TensorComparison& row : page.comparison->tensors) {
    const auto gate = static_cast<size_t>(std::find(kInputs.begin(), kInputs.end(), row.tensor) - kInputs.begin());
    if (row.codes.empty() || gate == kInputs.size() || row.layer >= kMostLayers) continue;
    const GateTable& one = tables[static_cast<size_t>(row.layer) * kInputs.size() + gate];
    const ActivationTable& table = p.layers[static_cast<size_t>(row.layer)].tables[gate];
    const int64_t codes = table.input.max() - table.input.min() + 1;
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<int32_t> exact, exact_codes(table.function, table.input, table.output));
    const std::vector<Bin> bins = bins_of_codes(table, exact, codes / static_cast<int64_t>(row.codes.size()));
    out += table_figure(one.name, table, bins, row.codes);
  }
  if (out.empty()) return out;
  return "<h2>Activation tables</h2>\n<p class=\"soft\">Errors against the correctly rounded function, in units of the "
         "output’s last bit (LSB), over the input, and how often the integer model used each input code. Errors "
         "matter where codes are used.</p>\n<div class=\"keys\">" +
         key_html(1, "f2") + "largest error" + key_html(1, "fill") + "times used, square root</div>\n" +
         "<div class=\"cards tables\">\n" + out + "</div>\n" + left_out_html(page);
}

std::string front_chart(const GruTuneResult& result) {
  double low = std::numeric_limits<double>::infinity(), high = -low, most_bytes = 0, least_bytes = low;
  const auto see = [&](const GruTunePoint& point) {
    if (!std::isfinite(point.quality)) return;
    low = std::min(low, point.quality);
    high = std::max(high, point.quality);
    least_bytes = std::min(least_bytes, static_cast<double>(point.bytes) / 1000);
    most_bytes = std::max(most_bytes, static_cast<double>(point.bytes) / 1000);
  };
  for (const GruTunePoint& point : result.front) see(point);
  see(result.chosen);
  if (low > high) return "";
  const double y_margin = std::max(0.06 * (high - low), 1e-3 * std::max(1.0, std::abs(high)));
  const double x_margin = std::max(0.06 * (most_bytes - least_bytes), 0.01 * most_bytes);
  Chart chart("Quality over bytes of the models of the front",
              {.low = std::max(0.0, least_bytes - x_margin), .high = most_bytes + x_margin, .label = "saved model, kB"},
              {.low = low - y_margin,
               .high = high + y_margin,
               .label = result.judged ? "metric" : "quality: SQNR of the worst layer’s output, dB"},
              340);
  std::string keys;
  for (size_t speed = 0; speed < kSeries; ++speed) {
    const std::string fill = "f" + std::to_string(speed + 1);
    const auto speed_class = static_cast<SpeedClass>(speed + 1);
    bool is_used = false;
    for (const GruTunePoint& point : result.front) {
      if (point.speed != speed_class || !std::isfinite(point.quality)) continue;
      is_used = true;
      chart.dot({static_cast<double>(point.bytes) / 1000, point.quality}, speed, fill,
                html_text(point.settings.command_options()));
    }
    if (is_used) keys += key_html(speed, fill) + html_text(to_string(speed_class));
  }
  if (std::isfinite(result.chosen.quality)) {
    chart.ring({static_cast<double>(result.chosen.bytes) / 1000, result.chosen.quality},
               result.reached ? "chosen" : "best");
  }
  return "<figure class=\"single\"><div class=\"keys\">" + keys + "</div>\n" + chart.svg() + "</figure>\n";
}

}  // namespace isobit
