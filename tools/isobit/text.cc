// SPDX-License-Identifier: Apache-2.0
#include "text.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace isobit::tool {

std::string styled(std::string_view text, Style style, std::FILE* stream) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool plain = (no_colour != nullptr && *no_colour != 0) || isatty(fileno(stream)) == 0 ||
                     (terminal != nullptr && std::string_view(terminal) == "dumb");
  if (plain) return std::string(text);
  const char* const codes[] = {"1", "1;31", "1;33"};
  return format("\033[%sm%s\033[0m", codes[static_cast<size_t>(style)], std::string(text).c_str());
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size() && !text.empty();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::optional<std::pair<float, float>> parse_range(std::string_view text) {
  const auto number = [](std::string_view part, float& value) {
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), value);
    return parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
  };
  const size_t colon = text.find(':');
  std::pair<float, float> range;
  if (colon == std::string_view::npos || !number(text.substr(0, colon), range.first) ||
      !number(text.substr(colon + 1), range.second))
    return std::nullopt;
  return range;
}

Result<std::optional<std::pair<float, float>>> parse_range(const char* option, const std::string& text) {
  const auto range = parse_range(text);
  if (range || text.empty()) return range;
  return bad_option(std::string(option) + " " + text + ": expected LOW:HIGH, two numbers");
}

Status bad_option(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status prefixed(const std::string& prefix, const Status& status) {
  return status.ok() ? status : Status(status.code(), prefix + status.message());
}

Status check_range(const std::string& option, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return bad_option(option + " " + std::to_string(value) + ": expected " + std::to_string(low) + " to " +
                    std::to_string(high));
}

Result<bool> parse_second(const char* option, const std::string& text, std::string_view first,
                          std::string_view second) {
  if (text == first || text == second) return text == second;
  return bad_option(std::string(option) + " " + text + ": " + expected_one_of(text, {first, second}));
}

}  // namespace isobit::tool
