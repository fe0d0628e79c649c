// SPDX-License-Identifier: Apache-2.0
// Pages in HTML that are well-formed XML: text, numbers, style. Numbers are the same in every locale.
#ifndef ISOBIT_REPORT_HTML_MARKUP_H_
#define ISOBIT_REPORT_HTML_MARKUP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace isobit {

/// Any text as an element or an attribute shows it, at most `most` bytes of it: markup is escaped; control characters
/// and what is not UTF-8 are U+FFFD.
std::string html_text(std::string_view text, size_t most = 400);

/// "-0.250" with so many decimals; "−" is the minus sign. Infinite: "∞", "−∞".
std::string fixed_html(double value, int decimals);
/// At most so many digits: "0.0312", "4.1e−7".
std::string digits_html(double value, int digits);
/// "1,234,567".
std::string whole_html(int64_t value);
/// The same for digits of any number.
std::string grouped_html(std::string digits);
/// An SQNR: "35.2", "exact" or "−∞".
std::string db_html(double db);
/// "812 bytes", "12.4 kB", "1.29 MB".
std::string bytes_html(int64_t bytes);
/// For coordinates: at most two decimals.
std::string coordinate(double value);

/// A page with this title. `body` is what <main> holds.
std::string html_document(std::string_view title, const std::string& body);
/// A <div> for a notebook, with its style.
std::string html_division(const std::string& body);

}  // namespace isobit

#endif  // ISOBIT_REPORT_HTML_MARKUP_H_
