// SPDX-License-Identifier: Apache-2.0
#include "report/html/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "report/html/markup.h"

namespace isobit {
namespace {

constexpr double kWidth = 560;
constexpr double kLeft = 58;
constexpr double kRight = 14;
constexpr double kTop = 28;
constexpr double kBottom = 44;

/// Around 0, 5 units to each side: what differs in form needs no colour to be told apart.
constexpr std::array<const char*, 6> kShapes = {"M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
                                                "M-4.5-4.5h9v9h-9z",
                                                "M0-6L5.5 4.5h-11z",
                                                "M0-6L6 0 0 6-6 0z",
                                                "M0 6L5.5-4.5h-11z",
                                                "M-1.7-5.5h3.4v3.8h3.8v3.4h-3.8v3.8h-3.4v-3.8h-3.8v-3.4h3.8z"};

/// 1, 2 or 5 times a power of ten: about `count` steps in `range`.
double tick_step(double range, int count, bool is_whole) {
  const double raw = range / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) {
      step = factor * power;
      break;
    }
  }
  return is_whole ? std::max(1.0, step) : step;
}

std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + coordinate(value) + "\"";
}

std::string rectangle(double x, double y, double width, double height, const std::string& fill_class) {
  return "<rect class=\"" + fill_class + "\"" + attribute("x", x) + attribute("y", y) +
         attribute("width", std::max(0.0, width)) + attribute("height", std::max(0.0, height)) + "/>";
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* text_class = "") {
  return "<text" + attribute("x", x) + attribute("y", y) + " text-anchor=\"" + anchor + "\"" +
         (*text_class == 0 ? "" : std::string(" class=\"") + text_class + "\"") + ">" + text + "</text>";
}

}  // namespace

double round_up(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

double axis_end(double most) {
  const double step = tick_step(most, 5, false);
  return std::ceil(most / step - 1e-9) * step;
}

std::string tick_html(double value, double step) {
  if (std::abs(value) < step / 2) return "0";
  if (std::abs(value) >= 1e6 || step < 1e-5) return digits_html(value, 3);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  if (decimals == 0) return whole_html(std::llround(value));
  return fixed_html(value, decimals);
}

Chart::Chart(const std::string& what, ChartAxis x, ChartAxis y, double height)
    : what_(what), x_(std::move(x)), y_(std::move(y)), height_(height) {}

double Chart::x_of(double x) const {
  return kLeft + (kWidth - kLeft - kRight) * std::clamp((x - x_.low) / (x_.high - x_.low), 0.0, 1.0);
}
double Chart::y_of(double y) const {
  return height_ - kBottom - (height_ - kBottom - kTop) * std::clamp((y - y_.low) / (y_.high - y_.low), 0.0, 1.0);
}

std::string Chart::path_of(const std::vector<ChartPoint>& points) const {
  std::string path;
  for (const ChartPoint& point : points) {
    path += (path.empty() ? "M" : "L") + coordinate(x_of(point.x)) + " " + coordinate(y_of(point.y));
  }
  return path;
}

void Chart::line(const std::vector<ChartPoint>& points, const std::string& line_class) {
  marks_ += "<path class=\"" + line_class + "\" d=\"" + path_of(points) + "\"/>";
}

void Chart::area(const std::vector<ChartPoint>& points, const std::string& fill_class) {
  if (points.empty()) return;
  const std::string base = coordinate(y_of(y_.low));
  marks_ += "<path class=\"" + fill_class + "\" d=\"" + path_of(points) + "L" + coordinate(x_of(points.back().x)) +
            " " + base + "L" + coordinate(x_of(points.front().x)) + " " + base + "z\"/>";
}

void Chart::bar(double x_low, double x_high, double y, const std::string& fill_class) {
  marks_ += rectangle(x_of(x_low) + 1, y_of(y), x_of(x_high) - x_of(x_low) - 2, y_of(y_.low) - y_of(y), fill_class);
}

void Chart::dot(ChartPoint at, size_t shape, const std::string& fill_class, const std::string& tip) {
  marks_ += "<path class=\"" + fill_class + "\" transform=\"translate(" + coordinate(x_of(at.x)) + " " +
            coordinate(y_of(at.y)) + ")\" d=\"" + kShapes[shape % kShapes.size()] + "\">" +
            (tip.empty() ? "" : "<title>" + tip + "</title>") + "</path>";
}

void Chart::ring(ChartPoint at, const std::string& text) {
  const double x = x_of(at.x), y = y_of(at.y);
  const bool is_right = x > kWidth - 150;
  texts_ += "<circle class=\"ring\"" + attribute("cx", x) + attribute("cy", y) + " r=\"9.5\"/>" +
            text_at(is_right ? x - 15 : x + 15, y + 4.5, is_right ? "end" : "start", text, "strong");
}

void Chart::mark(double x, const std::string& text) {
  const double at = x_of(x);
  const bool is_right = at > kWidth * 0.65;
  texts_ += "<path class=\"mark\" d=\"M" + coordinate(at) + " " + coordinate(kTop) + "V" +
            coordinate(height_ - kBottom) + "\"/>" +
            text_at(is_right ? at - 6 : at + 6, kTop + 12, is_right ? "end" : "start", text, "strong");
}

std::string Chart::svg() const {
  const double base = height_ - kBottom;
  std::string grid, labels;
  const double y_step = tick_step(y_.high - y_.low, 5, y_.is_whole);
  for (double tick = std::ceil(y_.low / y_step - 1e-9) * y_step; tick <= y_.high + y_step * 1e-9; tick += y_step) {
    const double y = y_of(tick);
    grid += "M" + coordinate(kLeft) + " " + coordinate(y) + "H" + coordinate(kWidth - kRight);
    labels += text_at(kLeft - 8, y + 4.5, "end", tick_html(tick, y_step));
  }
  std::string tics;
  const double x_step = tick_step(x_.high - x_.low, 6, x_.is_whole);
  for (double tick = std::ceil(x_.low / x_step - 1e-9) * x_step; tick <= x_.high + x_step * 1e-9; tick += x_step) {
    tics += "M" + coordinate(x_of(tick)) + " " + coordinate(base) + "v5";
    labels += text_at(x_of(tick), base + 20, "middle", tick_html(tick, x_step));
  }
  labels += text_at(kLeft + (kWidth - kLeft - kRight) / 2, height_ - 4, "middle", x_.label);
  // Above the axis rather than turned beside it: it is read without tilting the head.
  labels += text_at(0, 11, "start", y_.label);
  return "<svg class=\"chart\" viewBox=\"0 0 560 " + coordinate(height_) + "\" role=\"img\" aria-label=\"" + what_ +
         "\"><path class=\"grid\" d=\"" + grid + "\"/>" + marks_ + "<path class=\"axis\" d=\"M" + coordinate(kLeft) +
         " " + coordinate(base) + "H" + coordinate(kWidth - kRight) + tics + "\"/>" + texts_ + labels + "</svg>\n";
}

std::string key_html(size_t shape, const std::string& fill_class) {
  return "<svg class=\"key\" viewBox=\"-6 -6 12 12\" aria-hidden=\"true\"><path class=\"" + fill_class + "\" d=\"" +
         kShapes[shape % kShapes.size()] + "\"/></svg>";
}

std::string bar_html(double share, double pale, const char* fill_class) {
  const auto part = [](double value, const char* fill) {
    return rectangle(0, 0, 100 * std::clamp(value, 0.0, 1.0), 10, fill);
  };
  return "<svg class=\"bar\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">" +
         rectangle(0, 0, 100, 10, "rail") + (pale > share ? part(pale, "pale") : "") + part(share, fill_class) +
         "</svg>";
}

std::string steps_path(const std::vector<double>& heights, double width, double base, double height) {
  const double largest = heights.empty() ? 0 : *std::max_element(heights.begin(), heights.end());
  const double step = width / static_cast<double>(std::max<size_t>(1, heights.size()));
  std::string path = "M0 " + coordinate(base);
  double at = base;
  for (size_t i = 0; i < heights.size(); ++i) {
    const double y = largest > 0 ? base - height * heights[i] / largest : base;
    if (coordinate(y) != coordinate(at)) path += "H" + coordinate(step * static_cast<double>(i)) + "V" + coordinate(y);
    at = y;
  }
  return path + "H" + coordinate(width) + "V" + coordinate(base) + "z";
}

}  // namespace isobit
