// SPDX-License-Identifier: Apache-2.0
// The text form of calibration methods.
#include "isobit/calibration.h"

#include <charconv>
#include <string>

#include "core/float_mode.h"
#include "core/number_text.h"
#include "isobit/nearest.h"

namespace isobit {
namespace {

constexpr int kMaxDecimals = 9;
constexpr std::string_view kPercentilePrefix = "percentile:";
constexpr std::string_view kEmaPrefix = "ema:";
constexpr std::string_view kMethodNames[] = {"minmax", "percentile", "sqnr", "ema"};

Status invalid(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The decimal P as numerator / denominator in lowest powers of ten; false if it is not one, or above 100.
bool parse_percentile(std::string_view text, CalibrationOptions& options) {
  const size_t point = text.find('.');
  std::string_view decimals;
  if (point != std::string_view::npos) {
    decimals = text.substr(point + 1);
    text = text.substr(0, point);
    if (decimals.empty() || decimals.size() > kMaxDecimals) return false;
  }
  if (text.empty() || text.size() > 3) return false;
  int64_t numerator = 0;
  int64_t denominator = 1;
  for (const char c : text) {
    if (!is_digit(c)) return false;
    numerator = 10 * numerator + (c - '0');
  }
  for (const char c : decimals) {
    if (!is_digit(c)) return false;
    numerator = 10 * numerator + (c - '0');
    denominator *= 10;
  }
  while (denominator > 1 && numerator % 10 == 0) {
    numerator /= 10;
    denominator /= 10;
  }
  options.percentile_numerator = numerator;
  options.percentile_denominator = denominator;
  return true;
}

bool parse_decay(std::string_view text, CalibrationOptions& options) {
  if (text.empty() || !(is_digit(text.front()) || text.front() == '.')) return false;  // no sign, no "inf"
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.ema_decay);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_method(std::string_view text, CalibrationOptions& options) {
  if (text == "minmax") return true;
  if (text == "sqnr") {
    options.method = CalibrationMethod::kSqnr;
    return true;
  }
  if (text == "ema") {
    options.method = CalibrationMethod::kEma;
    return true;
  }
  if (text.substr(0, kPercentilePrefix.size()) == kPercentilePrefix) {
    options.method = CalibrationMethod::kPercentile;
    return parse_percentile(text.substr(kPercentilePrefix.size()), options);
  }
  if (text.substr(0, kEmaPrefix.size()) == kEmaPrefix) {
    options.method = CalibrationMethod::kEma;
    return parse_decay(text.substr(kEmaPrefix.size()), options);
  }
  return false;
}

}  // namespace

Status check_calibration_options(const CalibrationOptions& options) {
  const DefaultFloatMode mode;
  switch (options.method) {
    case CalibrationMethod::kMinMax:
    case CalibrationMethod::kSqnr: return {};
    case CalibrationMethod::kPercentile: {
      int64_t power = 1;
      for (int k = 0; k < kMaxDecimals && power < options.percentile_denominator; ++k) power *= 10;
      if (power != options.percentile_denominator) {
        return invalid("percentile denominator " + std::to_string(options.percentile_denominator) +
                       "; it must be a power of ten, 1 to 10^9");
      }
      if (options.percentile_numerator <= 0 || options.percentile_numerator > 100 * power) {
        return invalid("percentile " + std::to_string(options.percentile_numerator) + "/" + std::to_string(power) +
                       "; it must be above 0 and at most 100");
      }
      return {};
    }
    case CalibrationMethod::kEma:
      if (!(options.ema_decay >= 0 && options.ema_decay < 1)) {
        return invalid("ema decay " + number_text(options.ema_decay) + "; it must be at least 0 and below 1");
      }
      return {};
  }
  return invalid("calibration method " + std::to_string(static_cast<int32_t>(options.method)) + "; it must be 0 to 3");
}

std::string to_string(const CalibrationOptions& options) {
  const DefaultFloatMode mode;
  switch (options.method) {
    case CalibrationMethod::kMinMax: return "minmax";
    case CalibrationMethod::kSqnr: return "sqnr";
    case CalibrationMethod::kEma: return std::string(kEmaPrefix) + number_text(options.ema_decay + 0.0);  // no "-0"
    case CalibrationMethod::kPercentile: break;
  }
  if (!check_calibration_options(options).ok()) return "invalid";
  std::string text =
      std::string(kPercentilePrefix) + std::to_string(options.percentile_numerator / options.percentile_denominator);
  int64_t rest = options.percentile_numerator % options.percentile_denominator;
  if (rest > 0) text += '.';
  for (int64_t place = options.percentile_denominator / 10; rest > 0; place /= 10) {
    text += static_cast<char>('0' + rest / place);
    rest %= place;
  }
  return text;
}

Result<CalibrationOptions> parse_calibration_options(std::string_view text) {
  const DefaultFloatMode mode;
  CalibrationOptions options;
  if (!parse_method(text, options) || !check_calibration_options(options).ok()) {
    return invalid("calibration \"" + std::string(text) +
                   "\": it must be minmax, percentile:P with 0 < P <= 100 and at most 9 decimals, sqnr, or ema:D with "
                   "0 <= D < 1" +
                   nearest_hint(text.substr(0, text.find(':')), kMethodNames));
  }
  return options;
}

}  // namespace isobit
