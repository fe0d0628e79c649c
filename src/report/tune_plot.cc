// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <string>

#include "isobit/report.h"
#include "isobit/text.h"
#include "report/gnuplot.h"

namespace isobit {
namespace {

constexpr std::array<const char*, 6> kColours = {"#0b7285", "#2b8a3e", "#e67700", "#c2255c", "#5f3dc4", "#495057"};

}  // namespace

Result<std::string> svg_of_front(const GruTuneResult& result, bool is_metric) {
  std::string script =
      "set encoding utf8\nset decimalsign '.'\nset minussign\n"
      "set terminal svg size 880,560 fixed font 'DejaVu Sans,13' background 'white' noenhanced\n"
      "set border 3 lc rgb '#7b8794'\nset tics nomirror out scale 0.6\nset grid lc rgb '#e4e7eb' lt 1 lw 1\n"
      "set title 'What each size can reach' font 'DejaVu Sans Bold,17'\n"
      "set xlabel 'bytes of the saved model / 1000'\nset key bottom right\nset offsets graph 0.03, 0.03, 0.05, 0.05\n";
  script += std::string("set ylabel '") + (is_metric ? "metric" : "SQNR of the outputs, dB") + "'\n";
  std::string plots;
  for (size_t i = 0; i < kColours.size(); ++i) {
    const auto speed = static_cast<SpeedClass>(i + 1);
    std::string rows;
    for (const GruTunePoint& point : result.front) {
      const bool is_shown = point.speed == speed && std::isfinite(point.quality);
      if (is_shown) rows += format("%.9g %.9g\n", static_cast<double>(point.bytes) / 1000, point.quality);
    }
    if (rows.empty()) continue;
    script += format("$class%zu << EOD\n", i + 1) + rows + "EOD\n";
    plots += format("$class%zu using 1:2 with points pt 7 ps 0.8 lc rgb '%s' title '%zu %s', ", i + 1, kColours[i],
                    i + 1, std::string(to_string(speed)).c_str());
  }
  const double chosen = std::isfinite(result.chosen.quality) ? result.chosen.quality : 0;
  script += format("$chosen << EOD\n%.9g %.9g\nEOD\n", static_cast<double>(result.chosen.bytes) / 1000, chosen);
  return run_gnuplot(script + "plot " + plots +
                     "$chosen using 1:2 with points pt 6 ps 2 lw 2 lc rgb '#212529' title 'chosen'\n");
}

}  // namespace isobit
