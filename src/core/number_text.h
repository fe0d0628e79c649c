// SPDX-License-Identifier: Apache-2.0
// Numbers in messages and in the text form of options.
#ifndef ISOBIT_CORE_NUMBER_TEXT_H_
#define ISOBIT_CORE_NUMBER_TEXT_H_

#include <charconv>
#include <string>

namespace isobit {

/// The shortest decimal that reads back as `value`; the same text in every locale.
inline std::string number_text(double value) {
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

/// At most so many digits, as printf's %.*g has them.
inline std::string short_text(double value, int digits) {
  char buffer[64];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, digits).ptr);
}

}  // namespace isobit

#endif  // ISOBIT_CORE_NUMBER_TEXT_H_
