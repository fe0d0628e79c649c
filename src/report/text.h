// SPDX-License-Identifier: Apache-2.0
// Texts that reports share.
#ifndef ISOBIT_REPORT_TEXT_H_
#define ISOBIT_REPORT_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace isobit {

/// printf into a string.
__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...);

/// An SQNR: "35.2", "exact" or "-inf".
std::string db_text(double db);

/// "1 file", "3 files".
std::string count_text(int64_t count, std::string_view noun);

}  // namespace isobit

#endif  // ISOBIT_REPORT_TEXT_H_
