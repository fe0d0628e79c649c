// SPDX-License-Identifier: Apache-2.0
// What an export needs of a microcontroller.
#include <algorithm>

#include "isobit/export.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
namespace {

std::string row(const char* group, const std::string& what, int64_t number, const std::string& unit) {
  return format("%-8s %-44s %12lld %s\n", group, what.c_str(), static_cast<long long>(number), unit.c_str());
}

}  // namespace

Description describe_c_export(const CExport& code, const std::optional<CMeasurement>& measured,
                              const std::string& why_not) {
  const CExportSizes& s = code.sizes;
  OrderedJson json = {
      {"name", code.name},
      {"model", code.model},
      {"target", std::string(to_string(code.target))},
      {"flash",
       {{"weights_bytes", s.weights_bytes}, {"tables_bytes", s.tables_bytes}, {"constants_bytes", s.other_bytes}}},
      {"ram", {{"state_bytes", s.state_bytes}, {"scratch_bytes", s.scratch_bytes}}},
      {"step", {{"multiply_adds", s.multiply_adds}}},
      {"selftest",
       {{"bytes", s.selftest_bytes},
        {"clamped_tensors", code.coverage.clamps},
        {"tensors", code.coverage.all_clamps},
        {"rescales_with_ties", code.coverage.ties}}}};
  std::string text = code.model + ", for " + std::string(to_string(code.target)) + "\n\n";
  text += row("flash", "weights", s.weights_bytes, "bytes");
  text += row("", "activation tables", s.tables_bytes, "bytes");
  text += row("", "constants of rows and layers", s.other_bytes, "bytes");
  if (measured) {
    const std::string helpers = count_text(static_cast<int64_t>(measured->helpers.size()), "function");
    text += row("", "code, " + measured->optimisation, measured->code_bytes, "bytes");
    text += row("", "code of the compiler's library, " + helpers, measured->helper_bytes, "bytes");
    json["flash"].update({{"code_bytes", measured->code_bytes}, {"helper_bytes", measured->helper_bytes}});
    json["flash"]["helpers"] = measured->helpers;
  }
  text += row("RAM", "state", s.state_bytes, "bytes");
  text += row("", "scratch", s.scratch_bytes, "bytes");
  if (measured) {
    text += row("", "stack", measured->stack_bytes, "bytes");
    json["ram"]["stack_bytes"] = measured->stack_bytes;
  }
  text += row("step", "multiply-adds", s.multiply_adds, "");
  if (measured) {
    text += row("", "instructions (not cycles)", measured->instructions, "");
    json["step"]["instructions"] = measured->instructions;
    json["measured"] = {{"core", std::string(to_string(measured->core))},
                        {"compiler", measured->compiler},
                        {"emulator", measured->emulator},
                        {"optimisation", measured->optimisation}};
    text += "         counted on an emulated " + std::string(to_string(measured->core)) + ": " + measured->emulator +
            "\n         " + measured->compiler + "\n";
  } else {
    json["measured"] = nullptr;
    json["why_not_measured"] = why_not;
    text += "         code, stack and instructions are not known: " + why_not + "\n";
  }
  text += row("test", "vectors of " + code.name + "_selftest, if it is called", s.selftest_bytes, "bytes");
  text += "\n";
  return {.text = text, .json = json_line(json)};
}

}  // namespace isobit
