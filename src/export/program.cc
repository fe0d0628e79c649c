// SPDX-License-Identifier: Apache-2.0
#include "export/program.h"

#include <cstddef>

#include "core/toolchain/c_source.h"
#include "isobit/arrays.h"
#include "isobit/text.h"

namespace isobit {
namespace {

constexpr size_t kLineWidth = 100;

/// The numbers in lines, each indented.
std::string in_lines(const std::vector<std::string>& numbers) {
  std::string text, line;
  for (const std::string& number : numbers) {
    if (line.size() + number.size() + 2 > kLineWidth) {
      text += "  " + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + number + ",";
  }
  return text + "  " + line + "\n";
}

/// A line of a comment, whatever names of files it holds.
std::string in_comment(const std::string& text) { return fill(escaped(text), {{"*/", "* /"}, {"/*", "/ *"}}); }

constexpr std::string_view kShiftNegative = R"(  if (n <= 0) {
    return x * ((@T)1 << -n);
  }
)";
constexpr std::string_view kShiftZero = R"(  if (n == 0) {
    return x;
  }
)";
constexpr std::string_view kShiftLong = R"(  if (n >= @BITS) {
    return @REST;
  }
)";
constexpr std::string_view kRoundShift = R"(
/* x / 2^n rounded to an integer: @RULE. The results fit, as isobit has proved. */
static @T $_round_shift_@BITS(@T x, int32_t n)
{
@BRANCHES@BODY}
)";

std::string rule(Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearestEven: return "the nearest one, ties to even";
    case Rounding::kNearestUp: return "the nearest one, ties upwards";
    case Rounding::kNearestAway: return "the nearest one, ties away from zero";
    case Rounding::kFloor: return "the next one below";
  }
  return {};
}

std::string body(Rounding rounding) {
  if (rounding == Rounding::kFloor) return "  return x >> n;\n";
  if (rounding == Rounding::kNearestUp) return "  return (x >> n) + ((x >> (n - 1)) & 1);\n";
  const std::string tie = rounding == Rounding::kNearestEven ? "(quotient & 1) != 0" : "x >= 0";
  return "  const @T quotient = x >> n;\n"
         "  const @U rest = (@U)x & (((@U)1 << n) - 1u);\n"
         "  const @U half = (@U)1 << (n - 1);\n"
         "  return ((rest > half) || ((rest == half) && (" +
         tie + "))) ? (quotient + 1) : quotient;\n";
}

constexpr std::string_view kClamp = R"(
static @T $_clamp_@BITS(@T x, @T low, @T high)
{
  if (x < low) {
    return low;
  }
  return (x > high) ? high : x;
}
)";

constexpr std::string_view kCodeHead = R"(
#define @NAME_INTERNAL
#include "$.h"

/* C99 leaves two things open that this code needs, and that every compiler it is for does: a right shift of a negative
   number is its floor, and a conversion to int32_t keeps the low bits. Where that is not so, this does not compile. */
typedef char $_shift_is_floor[((int32_t)-3 >> 1) == -2 ? 1 : -1];
typedef char $_conversion_wraps[(int32_t)0xFFFFFFFEu == -2 ? 1 : -1];
)";

constexpr std::string_view kCMake =
    R"(# @name.cmake: include(path/to/@name.cmake), then target_link_libraries(your_program PRIVATE @name). Needs C.
add_library(@name STATIC ${CMAKE_CURRENT_LIST_DIR}/@name.c ${CMAKE_CURRENT_LIST_DIR}/@name_data.c)
target_include_directories(@name PUBLIC ${CMAKE_CURRENT_LIST_DIR})
)";

}  // namespace

std::string fill(std::string text, Words words) {
  for (const auto& [word, value] : words) text = replace_all(std::move(text), word, value);
  return text;
}

std::string c_type(Dtype dtype) {
  const std::string_view name = to_string(dtype);  // "s8", "u16"
  return (name.front() == 'u' ? "uint" : "int") + std::string(name.substr(1)) + "_t";
}

std::string c_number(int64_t value) {
  if (value == INT64_MIN) return "(-INT64_C(9223372036854775807) - 1)";
  if (value == INT32_MIN) return "(-2147483647 - 1)";
  if (value > INT32_MAX || value < INT32_MIN)
    return value < 0 ? "-INT64_C(" + std::to_string(-value) + ")" : "INT64_C(" + std::to_string(value) + ")";
  return std::to_string(value);
}

CProgram::CProgram(std::string name, CTarget target, Rounding rounding)
    : name_(std::move(name)), upper_(upper_case(name_)), target_(target), rounding_(rounding) {}

std::string CProgram::named(std::string text) const { return fill(std::move(text), {{"@NAME", upper_}, {"$", name_}}); }

std::string CProgram::add_function(const std::string& name, const std::string& text) {
  if (functions_.insert(name).second) code_ += named(text);
  return named(name);
}

std::string CProgram::round_shift(bool is_wide) {
  rounders_[is_wide ? 1 : 0].is_used = true;
  return named(is_wide ? "$_round_shift_64" : "$_round_shift_32");
}

void CProgram::note_shift(bool is_wide, int shift) {
  Rounder& rounder = rounders_[is_wide ? 1 : 0];
  rounder.is_negative |= shift < 0;
  rounder.is_zero |= shift == 0;
  rounder.is_long |= shift >= (is_wide ? 64 : 32);
}

std::string CProgram::clamp(bool is_wide) {
  clamps_[is_wide ? 1 : 0] = true;
  return named(is_wide ? "$_clamp_64" : "$_clamp_32");
}

std::string CProgram::round_shift_text(bool is_wide) const {
  const Rounder& rounder = rounders_[is_wide ? 1 : 0];
  if (!rounder.is_used) return {};
  std::string branches;
  if (rounder.is_negative) {
    branches += kShiftNegative;
  } else if (rounder.is_zero) {
    branches += kShiftZero;
  }
  if (rounder.is_long) branches += kShiftLong;
  const std::string bits = is_wide ? "64" : "32", type = sum_type(is_wide);
  return fill(std::string(kRoundShift), {{"@BRANCHES", branches},
                                         {"@BODY", body(rounding_)},
                                         {"@REST", rounding_ == Rounding::kFloor ? "(x < 0) ? -1 : 0" : "0"},
                                         {"@RULE", rule(rounding_)},
                                         {"@BITS", bits},
                                         {"@T", type},
                                         {"@U", "u" + type}});
}

int64_t& CProgram::bytes_of(DataPart part) {
  switch (part) {
    case DataPart::kWeights: return sizes.weights_bytes;
    case DataPart::kTables: return sizes.tables_bytes;
    case DataPart::kSelftest: return sizes.selftest_bytes;
    case DataPart::kOther: break;
  }
  return sizes.other_bytes;
}

std::string CProgram::add_array(Dtype type, const std::string& name, std::span<const int64_t> values, DataPart part,
                                bool is_shared) {
  std::vector<std::string> numbers;
  for (const int64_t value : values) numbers.push_back(c_number(value));
  const std::string lines = in_lines(numbers);
  if (is_shared) {
    const auto [at, is_new] = shared_.emplace(c_type(type) + lines, named("$_" + name));
    if (!is_new) return at->second;
  }
  data_ += named("static const " + c_type(type) + " $_" + name + "[") + std::to_string(values.size()) + "] = {\n" +
           lines + "};\n";
  bytes_of(part) += static_cast<int64_t>(values.size() * size_in_bytes(type));
  return named("$_" + name);
}

std::string CProgram::add_words(const std::string& name, std::span<const uint32_t> words, DataPart part) {
  std::vector<std::string> numbers;
  for (const uint32_t word : words) numbers.push_back(format("0x%08Xu", word));
  data_ += named("static const uint32_t $_" + name + "[") + std::to_string(words.size()) + "] = {\n" +
           in_lines(numbers) + "};\n";
  bytes_of(part) += static_cast<int64_t>(words.size() * sizeof(uint32_t));
  return named("$_" + name);
}

void CProgram::make_external(const std::string& name) {
  // "static const T name[3] = {" or "static const T name = {", at the beginning of a line.
  const std::string of_file = "static const ";
  size_t at = data_.find(" " + name + "[");
  if (at == std::string::npos) at = data_.find(" " + name + " = ");
  const size_t line = data_.rfind(of_file, at), end = data_.find(" =", at);
  const std::string declaration = data_.substr(line + of_file.size(), end - line - of_file.size());
  data_.erase(line, std::string_view("static ").size());
  add_internal(name, "extern const " + declaration + ";\n");
}

std::string CProgram::add_object(const std::string& type, const std::string& name,
                                 const std::vector<std::string>& members, int64_t bytes) {
  std::string lines;
  for (const std::string& member : members) lines += "  " + named(member) + "\n";
  std::string in_c = named("$_" + name);
  const std::string of_type = named("const " + type);
  const auto [at, is_new] = shared_.emplace(of_type + lines, in_c);
  if (!is_new) return at->second;
  data_ += "static " + of_type + " " + in_c + " = {\n" + lines + "};\n";
  sizes.other_bytes += bytes;
  return in_c;
}

void CProgram::add_internal(const std::string& key, const std::string& text) {
  if (internal_keys_.insert(key).second) internal_ += named(text);
}

std::vector<ExportedFile> CProgram::files(const std::vector<std::string>& head, const std::string& public_header,
                                          const std::string& code) const {
  // The header says all; the other files the first line and the last two.
  const auto top = [&](const std::string& ending, const std::string& what, bool is_whole) {
    std::string text = "/* " + name_ + ending + ": " + what + "\n";
    for (size_t i = 0; i < head.size(); ++i)
      if (is_whole || i == 0 || i + 2 >= head.size())
        text += (head[i].empty() ? "" : "   " + in_comment(head[i])) + "\n";
    return text + "*/\n";
  };
  std::string header = top(".h", "what a program calls.", true);
  header += named(
      "#ifndef @NAME_H_\n#define @NAME_H_\n\n#include <stdint.h>\n\n#ifdef __cplusplus\nextern \"C\" {\n"
      "#endif\n");
  header += named(public_header);
  if (!internal_.empty())
    header += named("\n#ifdef @NAME_INTERNAL /* what $.c and $_data.c share */\n") + internal_ + "#endif\n";
  header += named("\n#ifdef __cplusplus\n}\n#endif\n\n#endif /* @NAME_H_ */\n");
  std::string source = top(".c", "the code.", false) + named(std::string(kCodeHead));
  for (const bool is_wide : {false, true})
    if (clamps_[is_wide ? 1 : 0])
      source += named(fill(std::string(kClamp), {{"@BITS", is_wide ? "64" : "32"}, {"@T", sum_type(is_wide)}}));
  for (const bool is_wide : {false, true}) source += named(round_shift_text(is_wide));
  source += code_ + named(code);
  const std::string data = top("_data.c", "constants, for flash memory.", false) +
                           named("#define @NAME_INTERNAL\n#include \"$.h\"\n") + data_;
  const std::string cmake = fill(std::string(kCMake), {{"@name", name_}});
  return {{name_ + ".h", std::move(header)},
          {name_ + ".c", std::move(source)},
          {name_ + "_data.c", data},
          {name_ + ".cmake", cmake}};
}

}  // namespace isobit
