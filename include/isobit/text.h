// SPDX-License-Identifier: Apache-2.0
// Texts of which messages and reports are made.
#ifndef ISOBIT_TEXT_H_
#define ISOBIT_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace isobit {

/// printf into a string.
__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...);

/// "1 file", "3 files".
std::string count_text(int64_t count, std::string_view noun);

}  // namespace isobit

#endif  // ISOBIT_TEXT_H_
