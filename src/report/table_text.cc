// SPDX-License-Identifier: Apache-2.0
// Tables as lines of text.
#include <algorithm>
#include <cmath>
#include <utility>

#include "isobit/report.h"
#include "isobit/text.h"
#include "report/table_bins.h"

namespace isobit {
namespace {

constexpr int kBarWidth = 28;

struct Row {
  std::string low, high;
  Bin bin;
};

/// '#' up to the mean, '=' up to the largest error; a mark for every error that is not 0.
std::string bar_text(const Bin& bin, double full) {
  if (bin.infinite > 0) return std::string(kBarWidth, '!');
  const auto length = [&](double error) {
    return error == 0 || full == 0 ? 0 : std::max(1, static_cast<int>(std::lround(error / full * kBarWidth)));
  };
  const int most = length(bin.max);
  const int mean = std::min(static_cast<int>(std::lround(full == 0 ? 0 : bin.mean() / full * kBarWidth)), most);
  std::string bar = std::string(static_cast<size_t>(mean), '#');
  bar.append(static_cast<size_t>(most - mean), '=');
  bar.append(static_cast<size_t>(kBarWidth - most), '.');
  return bar;
}

std::string rows_text(const std::vector<Row>& all, const std::string& unit) {
  std::vector<Row> rows;
  Bin total;
  for (const Row& row : all) {
    total.add(row.bin);
    const auto is_exact = [](const Bin& bin) { return bin.exact == bin.count; };
    if (!rows.empty() && is_exact(rows.back().bin) && is_exact(row.bin)) {  // neighbours without an error are one row
      rows.back().high = row.high;
      rows.back().bin.add(row.bin);
    } else {
      rows.push_back(row);
    }
  }
  std::string text;
  if (total.exact < total.count) {
    text = "bars: # mean, = largest error, full at " + short_number(total.max) + " " + unit +
           (total.infinite > 0 ? "; ! infinite\n" : "\n");
  }
  text += format("%-23s %9s %8s %7s\n", "input", ("max " + unit).c_str(), "mean", "exact");
  for (const Row& row : rows) {
    const Bin& bin = row.bin;
    const std::string inputs = row.low == row.high ? row.low : row.low + " .. " + row.high;
    // Rounded down: 100 % means all.
    const double percent = std::floor(1000.0 * static_cast<double>(bin.exact) / static_cast<double>(bin.count)) / 10;
    text += format("%-23s %9s %8.3g %5.1f %%  %s\n", inputs.c_str(),
                   bin.infinite > 0 ? "infinite" : short_number(bin.max).c_str(), bin.mean(), percent,
                   bar_text(bin, total.max).c_str());
  }
  return text;
}

}  // namespace

Result<std::string> text_plot(const Fp16Table& table, const std::vector<uint16_t>& exact) {
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, table.function));
  ISOBIT_RETURN_IF_ERROR(check_exact(exact.size(), 65536));
  // Magnitudes below 2^-10, then two binades a row.
  std::vector<int> starts = {1};
  for (int exponent = -10; exponent <= 14; exponent += 2) starts.push_back(order_of(std::ldexp(1.0, exponent)));
  std::vector<std::pair<int, int>> ranges;
  for (size_t i = starts.size(); i-- > 0;)
    ranges.emplace_back(i + 1 < starts.size() ? -(starts[i + 1] - 1) : -kLastFinite, -starts[i]);
  ranges.emplace_back(0, 0);
  for (size_t i = 0; i < starts.size(); ++i)
    ranges.emplace_back(starts[i], i + 1 < starts.size() ? starts[i + 1] - 1 : kLastFinite);

  std::vector<Row> rows;
  rows.reserve(ranges.size());
  for (const auto& [low, high] : ranges) {
    rows.push_back({short_number(value_of_order(low)), short_number(value_of_order(high)),
                    bin_of_orders(table, exact, low, high)});
  }
  return rows_text(rows, "ULP");
}

Result<std::string> text_plot(const ActivationTable& table, const std::vector<int32_t>& exact) {
  ISOBIT_RETURN_IF_ERROR(check_table(table, to_string(table.function)));
  const int64_t first = table.input.min(), last = table.input.max();
  ISOBIT_RETURN_IF_ERROR(check_exact(exact.size(), static_cast<size_t>(last - first + 1)));
  const int64_t width = std::max<int64_t>(1, (last - first + 24) / 24);
  std::vector<Row> rows;
  for (int64_t begin = first; begin <= last; begin += width) {
    Row row;
    const int64_t end = std::min(begin + width - 1, last);
    for (int64_t q = begin; q <= end; ++q)
      row.bin.add(std::abs(static_cast<double>(table(q) - exact[static_cast<size_t>(q - first)])));
    row.low = std::to_string(begin);
    row.high = std::to_string(end);
    rows.push_back(row);
  }
  return rows_text(rows, "LSB");
}

}  // namespace isobit
