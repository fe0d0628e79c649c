// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_TOOLS_TEXT_H_
#define ISOBIT_TOOLS_TEXT_H_

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/nearest.h"
#include "isobit/status.h"
#include "isobit/text.h"

namespace isobit::tool {

enum class Style { kHeading, kError, kWarning };
/// In colour where the stream is a terminal and NO_COLOR (no-color.org) is not set; else the text as it is.
std::string styled(std::string_view text, Style style, std::FILE* stream);

/// Splits at commas; an empty text has no parts.
std::vector<std::string> split_list(const std::string& text);

/// Two floats of "LOW:HIGH"; nothing for any other text.
std::optional<std::pair<float, float>> parse_range(std::string_view text);
/// The same of an option, which refuses another text that is not empty.
Result<std::optional<std::pair<float, float>>> parse_range(const char* option, const std::string& text);

/// kInvalidArgument: what every wrong option is.
Status bad_option(std::string message);

/// What is no success gets `prefix` before its message.
Status prefixed(const std::string& prefix, const Status& status);
template <typename T>
Result<T> prefixed(const std::string& prefix, Result<T> result) {
  return result.ok() ? std::move(result) : prefixed(prefix, result.status());
}

/// Refuses a number that is not `low` to `high`.
Status check_range(const std::string& option, int64_t value, int64_t low, int64_t high);

/// What `text` means to `parse`, an optional, or a refusal that lists the names.
template <typename Parse>
auto parse_word(const char* option, const std::string& text, Parse parse, std::initializer_list<std::string_view> names)
    -> Result<typename decltype(parse(std::string_view(text)))::value_type> {
  const auto value = parse(std::string_view(text));
  if (value) return *value;
  return bad_option(std::string(option) + " " + text + ": " + expected_one_of(text, names));
}
/// The same into `value`, which an empty text leaves as it is.
template <typename Parse, typename Value>
Status parse_word_if_given(const char* option, const std::string& text, Parse parse,
                           std::initializer_list<std::string_view> names, Value& value) {
  if (text.empty()) return {};
  ISOBIT_ASSIGN_OR_RETURN(value, parse_word(option, text, parse, names));
  return {};
}
/// Whether `text` is the second of two words; refuses any other.
Result<bool> parse_second(const char* option, const std::string& text, std::string_view first, std::string_view second);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_TEXT_H_
