// SPDX-License-Identifier: Apache-2.0
#include "isobit/nearest.h"

#include <algorithm>
#include <cctype>

namespace isobit {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// Letters to add, drop, replace or swap with their neighbour.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

std::string_view nearest_name(std::string_view word, std::span<const std::string_view> names) {
  constexpr size_t kMaxLength = 64;  // of a word that someone meant as a name
  if (word.empty() || word.size() > kMaxLength) return {};
  const std::string typed = lower_case(word);
  const size_t few = std::max<size_t>(1, typed.size() / 3);
  std::string_view nearest, abbreviated;
  size_t least = few + 1;
  for (const std::string_view name : names) {
    const std::string candidate = lower_case(name);
    if (const size_t d = distance(typed, candidate); d < least && d < std::max(typed.size(), candidate.size())) {
      least = d;
      nearest = name;
    }
    if (abbreviated.empty() && typed.size() > 1 && candidate.find(typed) != std::string::npos) abbreviated = name;
  }
  return nearest.empty() ? abbreviated : nearest;
}

std::string nearest_hint(std::string_view word, std::span<const std::string_view> names) {
  const std::string_view name = nearest_name(word, names);
  return name.empty() ? std::string() : "; nearest: " + std::string(name);
}

std::string expected_one_of(std::string_view word, std::span<const std::string_view> names) {
  std::string text = "expected ";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text + nearest_hint(word, names);
}

}  // namespace isobit
