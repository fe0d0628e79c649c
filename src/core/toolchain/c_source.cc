// SPDX-License-Identifier: Apache-2.0
#include "core/toolchain/c_source.h"

#include <algorithm>
#include <cstddef>

namespace isobit {
namespace {

/// Keywords of C and C++, and the functions of <math.h>, which a compiler may know by name.
bool is_taken(std::string_view name) {
  static constexpr std::string_view kTaken =
      " alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const "
      "const_cast "
      "consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum explicit export "
      "extern false float for friend goto if inline int long main mutable namespace new noexcept not not_eq nullptr "
      "operator or or_eq private protected public register reinterpret_cast requires restrict return short signed "
      "sizeof "
      "static static_assert static_cast struct switch template this thread_local throw true try typedef typeid "
      "typename "
      "typeof typeof_unqual union unsigned using virtual void volatile wchar_t while xor xor_eq "
      "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma "
      "fmax fmin fmod frexp gamma hypot ilogb j0 j1 jn ldexp lgamma llrint llround log log10 log1p log2 logb lrint "
      "lround "
      "modf nan nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan tanh "
      "tgamma trunc y0 y1 yn abs div exit ";
  return kTaken.find(" " + std::string(name) + " ") != std::string_view::npos;
}

}  // namespace

std::string upper_case(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

Status check_c_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const bool identifier = !name.empty() && letter(name.front()) && std::all_of(name.begin(), name.end(), [&](char c) {
    return letter(c) || (c >= '0' && c <= '9');
  });
  const std::string quoted = "name \"" + std::string(name) + "\": ";
  if (!identifier) return {StatusCode::kInvalidArgument, quoted + "is no C identifier (letters, digits, _)"};
  if (name.size() > 40)
    return {StatusCode::kInvalidArgument,
            quoted + "has " + std::to_string(name.size()) + " characters, must have at most 40"};
  if (name.front() == '_' || name.back() == '_' || name.find("__") != std::string_view::npos)
    return {StatusCode::kInvalidArgument,
            quoted + "begins or ends with _ or has two of them; names with two are those of C and C++"};
  if (is_taken(name))
    return {StatusCode::kInvalidArgument,
            quoted + "is a word or a function of C or C++; take isobit_" + std::string(name) + ", for example"};
  return {};
}

}  // namespace isobit
