// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_TOOLS_TEXT_H_
#define ISOBIT_TOOLS_TEXT_H_

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/status.h"

namespace isobit::tool {

/// printf into a string.
__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...);

enum class Style { kHeading, kError, kWarning };
/// In colour where the stream is a terminal and NO_COLOR (no-color.org) is not set; else the text as it is.
std::string styled(std::string_view text, Style style, std::FILE* stream);

/// "1 file", "3 files".
std::string count_text(int64_t count, std::string_view noun);

/// "[3, 4]".
std::string shape_text(std::span<const int64_t> shape);

/// An SQNR: "35.2", "exact" or "-inf".
std::string db_text(double db);

/// Splits at commas; an empty text has no parts.
std::vector<std::string> split_list(const std::string& text);

/// Two floats of "LOW:HIGH"; false for any other text.
bool parse_range(std::string_view text, float& low, float& high);

/// kInvalidArgument: what every wrong option is.
Status bad_option(std::string message);

/// JSON's escapes without the quotes: control characters of a file never reach a terminal.
std::string escaped(const std::string& text);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_TEXT_H_
