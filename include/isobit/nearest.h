// SPDX-License-Identifier: Apache-2.0
// Messages about a word that is none of a list: what may stand there, and what was most likely meant.
#ifndef ISOBIT_NEAREST_H_
#define ISOBIT_NEAREST_H_

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace isobit {

/// The name that `word` most likely stands for: the one with the fewest letters to add, drop, replace or swap with the
/// next, if they are few, or else one that it abbreviates. Empty: none. Upper case counts as lower case.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> names);

/// "; nearest: NAME", or nothing.
std::string nearest_hint(std::string_view word, std::span<const std::string_view> names);

/// "expected a, b or c; nearest: b".
std::string expected_one_of(std::string_view word, std::span<const std::string_view> names);
inline std::string expected_one_of(std::string_view word, std::initializer_list<std::string_view> names) {
  return expected_one_of(word, std::span(names.begin(), names.size()));
}

}  // namespace isobit

#endif  // ISOBIT_NEAREST_H_
