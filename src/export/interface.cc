// SPDX-License-Identifier: Apache-2.0
#include "export/interface.h"

#include <algorithm>
#include <cctype>

#include "core/toolchain/c_source.h"
#include "export/tables.h"
#include "isobit/report.h"
#include "isobit/text.h"

namespace isobit {
namespace {

constexpr int64_t kMostSteps = 1000;

/// A float32 as C99 reads it back.
std::string c_float(float value) {
  std::string text = format("%.9g", static_cast<double>(value));  // enough digits for every float32
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

constexpr std::string_view kQuantize = R"(
/* The code of a number: x / scale rounded to the nearest integer, ties to even, plus the zero point, clamped. Rounded in
   integers, so that no option of a compiler changes it. A NaN gives the zero point. */
static int32_t $_quantize(float x)
{
  union {
    float number;
    uint32_t bits;
  } v;
  uint32_t magnitude;
  int32_t code;
  v.number = x * @INVERSEf;
  magnitude = v.bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) { /* NaN */
    return @ZERO;
  }
  if (magnitude >= 0x48800000u) { /* 2^18, beyond every grid */
    code = 0x40000;
  } else if (magnitude >= 0x3F000000u) { /* 1/2 */
    const uint32_t shift = 150u - (magnitude >> 23);
    const uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
    const uint32_t rest = significand & (((uint32_t)1 << shift) - 1u);
    const uint32_t half = (uint32_t)1 << (shift - 1u);
    code = (int32_t)(significand >> shift);
    if ((rest > half) || ((rest == half) && ((code & 1) != 0))) {
      ++code;
    }
  } else {
    code = 0;
  }
  if ((v.bits >> 31) != 0u) {
    code = -code;
  }
  return @CLAMP(code + @ZERO, @MIN, @MAX);
}
)";

constexpr std::string_view kCheckProgram = R"(#include "$.h"

#include <stdio.h>
#include <stdlib.h>

static void *memory(size_t bytes)
{
  void *const at = malloc(bytes + 1);
  if (at == 0) exit(3);
  return at;
}

static void put(const $_output *y, size_t codes)
{
  if (fwrite(y, sizeof *y, codes, stdout) != codes) exit(4);
}

int main(void)
{
  int32_t sizes[2];
  size_t count = 0, room = 65536, read;
  $_input *x = memory(room * sizeof *x);
  if (fread(sizes, sizeof *sizes, 2, stdin) != 2) return 5;
  while ((read = fread(x + count, sizeof *x, room - count, stdin)) > 0) {
    count += read;
    if (count < room) continue;
    room *= 2;
    x = realloc(x, room * sizeof *x);
    if (x == 0) return 3;
  }
  {
    const int32_t first = sizes[0], second = sizes[1];
@BODY  }
  return 0;
}
)";

constexpr std::string_view kMeasureProgram = R"(#define @NAME_INTERNAL
#include "$.h"
#include "machine.h"

@OBJECTS
static void steps(void)
{
@STEPS}

int main(void)
{
  uint32_t instructions, stack;
  if (@SELFTEST >= 0) {
    machine_write("the self-test failed");
    return 1;
  }
  machine_paint_stack();
  steps();
  stack = machine_stack_used();
  machine_start_count();
  steps();
  instructions = machine_stop_count();
  machine_write("instructions ");
  machine_write_number(instructions / (uint32_t)(@COUNT));
  machine_write("\nstack ");
  machine_write_number(stack);
  machine_write("\n");
  return 0;
}
)";

}  // namespace

std::string measure_program(const CProgram& program, const std::string& objects, const std::string& selftest,
                            const std::string& steps, const std::string& count) {
  return program.named(fill(std::string(kMeasureProgram),
                            {{"@OBJECTS", objects}, {"@SELFTEST", selftest}, {"@STEPS", steps}, {"@COUNT", count}}));
}

std::string check_program(const CProgram& program, const std::string& body) {
  return program.named(fill(std::string(kCheckProgram), {{"@BODY", body}}));
}

std::string_view to_string(CTarget target) {
  switch (target) {
    case CTarget::kGeneric: return "generic";
    case CTarget::kCortexM3: return "cortex-m3";
    case CTarget::kCortexM4: return "cortex-m4";
    case CTarget::kCortexM7: return "cortex-m7";
    case CTarget::kCortexM33: return "cortex-m33";
    case CTarget::kCortexM55: return "cortex-m55";
  }
  return "";
}

std::optional<CTarget> c_target_from_string(std::string_view text) {
  for (const CTarget target : kAllCTargets)
    if (text == to_string(target)) return target;
  return std::nullopt;
}

Result<std::string> c_name_of(const CExportOptions& options, std::string_view model, std::string_view fallback) {
  if (options.selftest_steps < 1 || options.selftest_steps > kMostSteps)
    return Status(StatusCode::kInvalidArgument, "selftest_steps is " + std::to_string(options.selftest_steps) +
                                                    ", must be 1 to " + std::to_string(kMostSteps));
  if (!options.name.empty()) {
    ISOBIT_RETURN_IF_ERROR(check_c_name(options.name));
    return options.name;
  }
  std::string name;
  for (const char c : model) {
    const bool is_letter = std::isalnum(static_cast<unsigned char>(c)) != 0 && static_cast<unsigned char>(c) < 128;
    if (is_letter) name += c;
    if (!is_letter && !name.empty() && name.back() != '_') name += '_';
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  if (name.empty()) name = fallback;
  if (std::isdigit(static_cast<unsigned char>(name[0])) != 0 || !check_c_name(name).ok())
    name = (std::string(fallback) + "_" + name).substr(0, 40);
  ISOBIT_RETURN_IF_ERROR(check_c_name(name));
  return name;
}

Status check_table_size(const ActivationTable& table, const CExportOptions& options, const std::string& what) {
  const int64_t bytes = table_bytes(table);
  if (bytes <= kLargeTableBytes || options.allow_large_tables) return {};
  return {StatusCode::kUnsupported, what + " has " + std::to_string(bytes) + " bytes, must have at most " +
                                        std::to_string(kLargeTableBytes) +
                                        "; quantise with --table segments:16 (or another number), or allow it with "
                                        "--allow-large-tables"};
}

void CStruct::add(const std::string& type, int64_t element_bytes, const std::string& name, int64_t count) {
  members_[element_bytes].push_back("  " + type + " " + name + "[" + std::to_string(count) + "];\n");
  bytes_ += element_bytes * count;
  alignment_ = std::max(alignment_, element_bytes);
}

std::string CStruct::text(const std::string& name) const {
  std::string lines;
  for (auto at = members_.rbegin(); at != members_.rend(); ++at)
    for (const std::string& member : at->second) lines += member;
  if (lines.empty()) lines = "  uint8_t unused; /* other targets need memory here */\n";
  return "typedef struct {\n" + lines + "} " + name + ";\n";
}

int64_t CStruct::bytes() const { return (bytes_ + alignment_ - 1) / alignment_ * alignment_; }

std::string grid_constants(const std::string& type, const std::string& tensor, const Grid& grid) {
  const std::string prefix = "#define @NAME_" + upper_case(type) + "_";
  return "\n/* A code of " + tensor + ": it stands for (code - zero point) * scale. */\ntypedef " +
         c_type(grid.dtype()) + " $_" + type + ";\n" + prefix + "MIN (" + std::to_string(grid.min()) + ")\n" + prefix +
         "MAX " + std::to_string(grid.max()) + "\n" + prefix + "ZERO_POINT (" + std::to_string(grid.zero_point) +
         ")\n" + prefix + "SCALE " + c_float(grid.scale()) + "\n";
}

void add_quantize(CProgram& program, const Grid& grid) {
  program.add_function("$_quantize", fill(std::string(kQuantize), {{"@INVERSEf", c_float(grid.inverse_scale())},
                                                                   {"@ZERO", "(" + c_number(grid.zero_point) + ")"},
                                                                   {"@MIN", c_number(grid.min())},
                                                                   {"@MAX", c_number(grid.max())},
                                                                   {"@CLAMP", program.clamp(false)}}));
}

void add_closing_lines(std::vector<std::string>& head, CTarget target) {
  head.push_back("");
  head.push_back("Made by isobit for the target " + std::string(to_string(target)) +
                 ". These files are yours: use, change and pass them on as you like.");
  head.push_back("They come without any warranty.");
}

}  // namespace isobit
