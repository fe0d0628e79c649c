// SPDX-License-Identifier: Apache-2.0
// What exported C shares, whatever it computes.
#ifndef ISOBIT_CORE_TOOLCHAIN_C_SOURCE_H_
#define ISOBIT_CORE_TOOLCHAIN_C_SOURCE_H_

#include <string>
#include <string_view>

#include "isobit/status.h"

namespace isobit {

/// Refuses what cannot be the name of exported functions: no identifier, more than 40 characters, taken by C or C++.
Status check_c_name(std::string_view name);

/// Letters A to Z in place of a to z.
std::string upper_case(std::string text);
std::string replace_all(std::string text, std::string_view from, std::string_view to);

}  // namespace isobit

#endif  // ISOBIT_CORE_TOOLCHAIN_C_SOURCE_H_
