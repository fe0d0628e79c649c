// SPDX-License-Identifier: Apache-2.0
// FP16 tables as text and JSON.
#include "core/half.h"
#include "isobit/report.h"
#include "report/json.h"
#include "report/text.h"

namespace isobit {
namespace {

OrderedJson json_of(const Fp16Table& table) {
  const Fp16Certificate& c = table.certificate;
  OrderedJson pieces = OrderedJson::array();
  for (const Fp16Pieces& piece : table.pieces)
    pieces.push_back({{"entries", piece.values.size()}, {"steps", piece.steps}, {"cut_points", piece.cut_points}});
  OrderedJson certificate = {{"max_ulp", c.max_ulp},
                             {"mean_ulp", c.mean_ulp},
                             {"worst_code", c.worst_code},
                             {"worst_input", f16_to_f32(c.worst_code)},
                             {"max_absolute", c.max_absolute},
                             {"share_exact", c.share_exact},
                             {"share_within_ulp", c.share_within_ulp}};
  return {{"function", table.function},
          {"beta", table.beta},
          {"model", to_string(table.model)},
          {"values", table.half_values ? "f16" : "f32"},
          {"reduction", to_string(table.reduction)},
          {"pieces", std::move(pieces)},
          {"certificate", std::move(certificate)}};
}

}  // namespace

std::string fp16_table_text(const Fp16Table& table) {
  size_t entries = 0;
  for (const Fp16Pieces& pieces : table.pieces) entries += pieces.values.size();
  std::string text = table.function;
  if (table.function == "swish") text += format("(beta %g)", table.beta);
  text += ", model " + std::string(to_string(table.model)) + ", " + std::to_string(entries) +
          (table.half_values ? " float16" : " float32") + " values";
  if (table.pieces.size() == 2) text += " in two tables, sin and cos";
  if (table.reduction != Fp16Reduction::kNone) text += ", range reduction " + std::string(to_string(table.reduction));
  return text;
}

std::string certificate_head() {
  return format("%-17s %-8s %-6s %9s %9s %14s %10s %9s %9s", "function", "model", "values", "max ULP", "mean ULP",
                "at x =", "max abs", "exact", "<= 1 ULP");
}

std::string certificate_row(const Fp16Table& table) {
  const Fp16Certificate& c = table.certificate;
  return format("%-17s %-8s %-6s %9.4g %9.4f %14.6g %10.3g %8.3f%% %8.3f%%", table.function.c_str(),
                std::string(to_string(table.model)).c_str(), table.half_values ? "f16" : "f32", c.max_ulp, c.mean_ulp,
                static_cast<double>(f16_to_f32(c.worst_code)), c.max_absolute, 100 * c.share_exact,
                100 * c.share_within_ulp);
}

Description describe_table(const Fp16Table& table) {
  Description out{.text = "FP16 table: " + fp16_table_text(table) + "\n", .json = json_line(json_of(table))};
  for (const Fp16Pieces& pieces : table.pieces) {
    out.text += "cut points:";
    for (const float cut : pieces.cut_points) out.text += format(" %.9g", static_cast<double>(cut));
    out.text += "\nsteps:";
    for (const int32_t steps : pieces.steps) out.text += " " + std::to_string(steps);
    out.text += "\n";
  }
  out.text += certificate_head() + "\n" + certificate_row(table) + "\n";
  return out;
}

}  // namespace isobit
