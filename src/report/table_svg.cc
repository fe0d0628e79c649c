// SPDX-License-Identifier: Apache-2.0
// Tables as SVG.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "isobit/fp16_export.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "report/gnuplot.h"
#include "report/table_bins.h"

namespace isobit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kSvgBins = 640;
constexpr const char* kFunctionColour = "#f4a259";
constexpr const char* kTableColour = "#1d3557";
constexpr const char* kMaxColour = "#a8c5da";
constexpr const char* kMeanColour = "#1d3557";
constexpr const char* kCutColour = "#9aa5b1";
constexpr const char* kTextColour = "#52606d";
constexpr const char* kWrongColour = "#c1121f";

/// What both kinds of table have in a picture. Texts must not hold quotes or backslashes.
struct Picture {
  std::string title;  // "e^-x" and the like are set as formulas
  std::string lines[2];
  std::string curves;  // rows "x exact table"; an empty row is a gap
  std::string cuts;    // rows "x table"
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  std::vector<double> upper_cuts;  // x of the cut points
  std::string cut_name = "cut point";
  std::string y_label;

  std::vector<Bin> bins;
  double bins_end = 0;
  std::vector<double> lower_cuts;
  std::string tics;  // of the lower x axis; empty: gnuplot's own
  std::string lower_x_label, error_label;
};

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

/// Plain text to gnuplot's markup: exponents raised, sqrt and beta as signs.
std::string formula_markup(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i);
    if (rest.starts_with("sqrt ")) {
      out += "√";
      i += 4;
    } else if (rest.starts_with("sqrt(")) {
      out += "√";
      i += 3;
    } else if (rest.starts_with("beta")) {
      out += "β";
      i += 3;
    } else if (text[i] == '^') {
      // up to the end of "(...)", or of one letter or number with a sign
      size_t end = i + 1;
      const bool bracket = end < text.size() && text[end] == '(';
      if (bracket) {
        end = std::min(text.find(')', end), text.size() - 1);
      } else if (end + 1 < text.size() && text[end] == '-') {
        ++end;
      }
      out += "^{" + formula_markup(text.substr(i + (bracket ? 2 : 1), end - i - (bracket ? 2 : 0))) + "}";
      i = end;
    } else if (text[i] == '-') {
      out += "−";
    } else if (text[i] == '_') {
      out += "\\\\_";
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string vertical_line(double x) {
  return format("set arrow from first %.9g, graph 0 to first %.9g, graph 1 nohead back lc rgb '%s' dt 3 lw 1\n", x, x,
                kCutColour);
}

/// Beside the axis, at the same place whatever the width of the numbers.
std::string y_title(const std::string& text, double y) {
  return "set label 9 " + quoted(text) + format(" at screen 0.018,%.3f center rotate noenhanced\n", y);
}

/// Marks of a logarithmic axis that begins at 0: powers of two, or of ten where there would be too many.
std::string error_tics(double max, double top) {
  std::string tics = "0";
  if (max <= 300) {
    for (int tic = 1; tic <= top; tic *= 2) tics += format(", %d", tic);
    return tics;
  }
  int exponent = 1;
  for (double tic = 10; tic <= top; tic *= 10, ++exponent)
    tics += exponent < 4 ? format(", %.0f", tic) : format(", '10^{%d}' %.0f", exponent, tic);
  return tics;
}

std::string script_of(const Picture& picture) {
  std::string script = "$curves << EOD\n" + picture.curves + "EOD\n$cuts << EOD\n" + picture.cuts + "EOD\n";
  script += "$bins << EOD\n";
  for (const Bin& bin : picture.bins) script += format("%.9g %.9g %.9g\n", bin.first, bin.max, bin.mean());
  script += format("%.9g 0 0\nEOD\n$wrong << EOD\n", picture.bins_end);
  for (size_t i = 0; i < picture.bins.size(); ++i) {
    const double end = i + 1 < picture.bins.size() ? picture.bins[i + 1].first : picture.bins_end;
    if (picture.bins[i].infinite > 0) script += format("%.9g\n", (picture.bins[i].first + end) / 2);
  }
  script += "EOD\n";
  const Bin total = total_of(picture.bins);

  script +=
      "set encoding utf8\nset decimalsign '.'\nset minussign\n"
      "set terminal svg size 960,760 fixed font 'DejaVu Sans,13' background 'white' enhanced\n"
      "set multiplot\nset border 3 lc rgb '#7b8794'\nset tics nomirror out scale 0.6\n"
      "set grid lc rgb '#e4e7eb' lt 1 lw 1\nset lmargin at screen 0.085\nset rmargin at screen 0.972\n";
  script +=
      "set label 1 " + quoted(formula_markup(picture.title)) + " at screen 0.02,0.962 font 'DejaVu Sans Bold,20'\n";
  for (int i = 0; i < 2; ++i) {
    script += format("set label %d ", i + 2) + quoted(picture.lines[i]) +
              format(" at screen 0.02,%.3f noenhanced font 'DejaVu Sans,13' textcolor rgb '%s'\n", 0.922 - 0.030 * i,
                     kTextColour);
  }

  script += "set tmargin at screen 0.835\nset bmargin at screen 0.49\n";
  for (const double x : picture.upper_cuts) script += vertical_line(x);
  script += format("set xrange [%.9g:%.9g]\nset yrange [%.9g:%.9g]\n", picture.x_low, picture.x_high, picture.y_low,
                   picture.y_high);
  script += y_title(picture.y_label, 0.6625) +
            "set key at screen 0.978,0.872 right top horizontal reverse Left samplen 2 width 1 noenhanced\n";
  script += format(
      "plot $curves using 1:2 with lines lw 7 lc rgb '%s' title 'function', "
      "$curves using 1:3 with lines lw 1.8 lc rgb '%s' title 'table'",
      kFunctionColour, kTableColour);
  if (!picture.cuts.empty()) {
    script += format(", $cuts using 1:2 with points pt 7 ps 0.55 lc rgb '%s' title '%s'", kTableColour,
                     picture.cut_name.c_str());
  }

  script += "\nunset label\nunset arrow\nset tmargin at screen 0.385\nset bmargin at screen 0.085\n";
  for (const double x : picture.lower_cuts) script += vertical_line(x);
  script += format("set xrange [%.9g:%.9g]\n", picture.bins.front().first, picture.bins_end);
  // Small errors must stay visible beside a large one.
  const double top = total.max <= 4 ? std::max(total.max, 1.0) * 1.15 : total.max * 1.3;
  script += format("set yrange [0:%.9g]\n", top);
  if (total.max > 4) {
    script += "set nonlinear y via log(1 + y) inverse exp(y) - 1\nset ytics (" + error_tics(total.max, top) + ")\n";
  }
  script += "set xlabel " + quoted(picture.lower_x_label) + "\n" + y_title(picture.error_label, 0.235) +
            "set key at screen 0.978,0.422 right top horizontal reverse Left samplen 2 width 1\n";
  if (!picture.tics.empty()) script += "set xtics (" + picture.tics + ")\n";
  script += format(
      "plot $bins using 1:2 with fillsteps fs solid noborder lc rgb '%s' title 'largest error', "
      "$bins using 1:3 with steps lw 1.4 lc rgb '%s' title 'mean'",
      kMaxColour, kMeanColour);
  if (total.infinite > 0) {
    script += format(", $wrong using 1:(%.9g) with points pt 9 ps 0.6 lc rgb '%s' title 'infinite'",
                     total.max <= 4 ? top * 0.95 : std::expm1(std::log1p(top) * 0.95), kWrongColour);
  }
  return script + "\nunset multiplot\n";
}

/// Limits of y: all of the function, unless a few values are far from the rest.
void set_y_range(Picture& picture, std::vector<double> values) {
  if (values.empty()) return;
  std::sort(values.begin(), values.end());
  const size_t rank = values.size() / 64;
  double low = values[rank], high = values[values.size() - 1 - rank];
  const double middle = high - low;
  if (values.back() - values.front() < 4 * middle || middle == 0) {
    low = values.front();
    high = values.back();
  }
  const double margin = high > low ? 0.06 * (high - low) : 1;
  picture.y_low = low - margin;
  picture.y_high = high + margin;
}

/// "10^{-3}" and so on at float16 orders.
std::string order_tics() {
  std::string tics = "'0' 0";
  for (int exponent = -3; exponent <= 4; ++exponent) {
    const int order = order_of(std::pow(10.0, exponent));
    const std::string text =
        exponent == 0 ? "1" : (exponent == 1 ? "10" : format("10^{%s%d}", exponent < 0 ? "−" : "", std::abs(exponent)));
    tics += format(", '%s' %d, '−%s' %d", text.c_str(), order, text.c_str(), -order);
  }
  return tics;
}

}  // namespace

Result<std::string> svg_of_table(const Fp16Table& table, const std::vector<uint16_t>& exact) {
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, table.function));
  ISOBIT_RETURN_IF_ERROR(check_exact(exact.size(), 65536));
  Picture picture;
  const bool custom = table.function == "custom";
  picture.title = custom ? "custom function" : table.function + "(x) = " + fp16_formula(table.function, table.beta);
  size_t values = 0;
  for (const Fp16Pieces& pieces : table.pieces) values += pieces.values.size();
  const bool plain = table.reduction == Fp16Reduction::kNone || table.reduction == Fp16Reduction::kInverseSigmoid;
  picture.lines[0] = format("model %s, %zu %s values", std::string(to_string(table.model)).c_str(), values,
                            table.half_values ? "float16" : "float32");
  if (!plain) {
    const std::vector<float>& cuts = table.pieces.front().cut_points;
    picture.lines[0] += format(", range reduction to [%s, %s]", short_number(static_cast<double>(cuts.front())).c_str(),
                               short_number(static_cast<double>(cuts.back())).c_str());
  }

  // The lower picture first: its sums are in the text above the upper one.
  constexpr int kCount = 2 * kLastFinite + 1;
  constexpr int kWidth = (kCount + static_cast<int>(kSvgBins) - 1) / static_cast<int>(kSvgBins);
  for (int first = -kLastFinite; first <= kLastFinite; first += kWidth)
    picture.bins.push_back(bin_of_orders(table, exact, first, std::min(first + kWidth - 1, kLastFinite)));
  picture.bins_end = kLastFinite + 1;
  const Bin total = total_of(picture.bins);
  const double share = 100.0 * static_cast<double>(total.exact) / static_cast<double>(total.count);
  picture.lines[1] = format("all %lld finite inputs: error ", static_cast<long long>(total.count));
  if (total.infinite > 0)
    picture.lines[1] += format("infinite at %lld of them, elsewhere ", static_cast<long long>(total.infinite));
  picture.lines[1] += format("at most %s ULP, on average %.3g ULP; %.2f %% exact", short_number(total.max).c_str(),
                             total.mean(), share);
  picture.tics = order_tics();
  picture.lower_x_label = "x, every float16 number the same width";
  picture.error_label = "error in ULP";

  double low = kInfinity, high = -kInfinity;
  for (int order = order_of(-8.0); order <= order_of(8.0); ++order) {
    if (!std::isfinite(value_of(exact[code_of_order(order)]))) continue;
    low = std::min(low, value_of_order(order));
    high = std::max(high, value_of_order(order));
  }
  if (!(low < high)) {
    low = -8;
    high = 8;
  }
  picture.x_low = low;
  picture.x_high = high;
  std::vector<double> heights;
  constexpr int kSamples = 640;
  for (int i = 0; i <= kSamples; ++i) {
    const uint16_t code = code_of_order(order_of(low + (high - low) * i / kSamples));
    const double truth = value_of(exact[code]), value = value_of(table(code));
    if (!std::isfinite(truth) || !std::isfinite(value)) {
      picture.curves += "\n";
      continue;
    }
    heights.push_back(truth);
    picture.curves += format("%.9g %.9g %.9g\n", value_of(code), truth, value);
  }
  set_y_range(picture, heights);
  picture.y_label = custom ? "y" : table.function + "(x)";
  if (plain && table.pieces.front().cut_points.size() <= 64) {
    for (const float cut : table.pieces.front().cut_points) {
      const auto x = static_cast<double>(cut);
      if (x >= low && x <= high) {
        picture.upper_cuts.push_back(x);
        const double y = value_of(table(code_of_order(order_of(x))));
        if (std::isfinite(y)) picture.cuts += format("%.9g %.9g\n", x, y);
      }
      if (std::abs(x) <= 65504) picture.lower_cuts.push_back(order_of(x));
    }
  }
  return run_gnuplot(script_of(picture));
}

Result<std::string> svg_of_table(const ActivationTable& table, const std::vector<int32_t>& exact) {
  ISOBIT_RETURN_IF_ERROR(check_table(table, to_string(table.function)));
  const int64_t first = table.input.min(), last = table.input.max();
  ISOBIT_RETURN_IF_ERROR(check_exact(exact.size(), static_cast<size_t>(last - first + 1)));
  Picture picture;
  const std::string name(to_string(table.function));
  picture.title = name + (table.function == Activation::kSigmoid ? "(x) = 1 / (1 + e^-x)" : "(x)");
  TableOptions options;
  options.kind = table.kind;
  options.segments = static_cast<int32_t>(table.slopes.size());
  options.guard_bits = table.guard_bits;
  const auto grid_text = [](const Grid& grid) {
    return format("%d bits %s, scale %.6g", grid.bits, grid.is_signed ? "signed" : "unsigned",
                  static_cast<double>(grid.scale()));
  };
  picture.lines[0] = to_string(options) + " table, input " + grid_text(table.input) + ", output " +
                     grid_text(table.output) + ", " + std::string(to_string(table.rounding));

  const int64_t width = std::max<int64_t>(1, (last - first + static_cast<int64_t>(kSvgBins)) / kSvgBins);
  picture.bins = bins_of_codes(table, exact, width);
  picture.bins_end = static_cast<double>(last + 1);
  const Bin total = total_of(picture.bins);
  picture.lines[1] = format("all %lld inputs: error at most %s LSB of the output, on average %.3g LSB; %.2f %% exact",
                            static_cast<long long>(total.count), short_number(total.max).c_str(), total.mean(),
                            100.0 * static_cast<double>(total.exact) / static_cast<double>(total.count));
  picture.lower_x_label = "input code";
  picture.error_label = "error in LSB";

  std::vector<double> heights;
  const int64_t step = std::max<int64_t>(1, (last - first) / 640);
  const auto value = [](const Grid& grid, int64_t code) {
    return static_cast<double>(code - grid.zero_point) * static_cast<double>(grid.scale());
  };
  for (int64_t q = first; q <= last; q += step) {
    const double truth = value(table.output, exact[static_cast<size_t>(q - first)]);
    heights.push_back(truth);
    picture.curves += format("%.9g %.9g %.9g\n", value(table.input, q), truth, value(table.output, table(q)));
  }
  set_y_range(picture, heights);
  picture.x_low = value(table.input, first);
  picture.x_high = value(table.input, last + 1);
  picture.y_label = name + "(x)";
  picture.cut_name = "threshold";
  if (table.thresholds.size() <= 64) {
    for (const int32_t q : table.thresholds) {
      if (q == last) break;  // unused ones
      picture.upper_cuts.push_back(value(table.input, q));
      picture.cuts += format("%.9g %.9g\n", picture.upper_cuts.back(), value(table.output, table(q)));
      picture.lower_cuts.push_back(q);
    }
  }
  return run_gnuplot(script_of(picture));
}

}  // namespace isobit
