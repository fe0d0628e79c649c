// SPDX-License-Identifier: Apache-2.0
// Charts as inline SVG, coloured by the classes of the style in markup.cc.
#ifndef ISOBIT_REPORT_HTML_CHART_H_
#define ISOBIT_REPORT_HTML_CHART_H_

#include <string>
#include <vector>

namespace isobit {

struct ChartPoint {
  double x = 0, y = 0;
};

struct ChartAxis {
  double low = 0, high = 1;  // low < high
  std::string label{};       // with its unit; as HTML
  bool is_whole = false;     // ticks at whole numbers only
};

/// Two axes, ticks at round numbers with grid lines, and whatever is added. Marks are cut off at the ends of the axes.
class Chart {
 public:
  /// `what`: one sentence for who cannot see it, as HTML.
  Chart(const std::string& what, ChartAxis x, ChartAxis y, double height = 300);

  /// Joined by lines. `line`: class of the style, "l1".
  void line(const std::vector<ChartPoint>& points, const std::string& line_class);
  /// From the axis y = low up to the points.
  void area(const std::vector<ChartPoint>& points, const std::string& fill_class);
  void bar(double x_low, double x_high, double y, const std::string& fill_class);
  /// shape: 0 to 5. tip (optional): what is shown when the pointer rests on it, as HTML.
  void dot(ChartPoint at, size_t shape, const std::string& fill_class, const std::string& tip);
  void ring(ChartPoint at, const std::string& text);
  /// A vertical line with a text at its upper end.
  void mark(double x, const std::string& text);
  [[nodiscard]] std::string svg() const;

 private:
  [[nodiscard]] double x_of(double x) const;
  [[nodiscard]] double y_of(double y) const;
  [[nodiscard]] std::string path_of(const std::vector<ChartPoint>& points) const;

  std::string what_;
  ChartAxis x_, y_;
  double height_;
  std::string marks_, texts_;
};

/// 1, 2 or 5 times a power of ten, at least `value`, which is above 0.
double round_up(double value);
/// The end of an axis from 0 that holds `most`, above 0, and ends with a tick.
double axis_end(double most);
/// A number on a tick whose neighbours are `step` away.
std::string tick_html(double value, double step);

/// A series in a key: a square, or the shape of its dots.
std::string key_html(size_t shape, const std::string& fill_class);

/// A bar of 0 to 1 in a table; `pale` (0 to 1) is behind it.
std::string bar_html(double share, double pale = 0, const char* fill_class = "fill");

/// An outline of bins of equal width above `base`, the highest one `height` high.
std::string steps_path(const std::vector<double>& heights, double width, double base, double height);

}  // namespace isobit

#endif  // ISOBIT_REPORT_HTML_CHART_H_
