// SPDX-License-Identifier: Apache-2.0
// Tables as text and JSON.
#include <cmath>
#include <utility>

#include "core/half.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

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

Description describe_difference(const Fp16Table& first, const Fp16Table& second, const Fp16Difference& difference) {
  const double share = static_cast<double>(difference.different) / static_cast<double>(difference.inputs);
  OrderedJson json = {{"inputs", difference.inputs}, {"different", difference.different}, {"share", share}};
  std::string text =
      "first:  " + fp16_table_text(first) + "\nsecond: " + fp16_table_text(second) + "\n" +
      format("%lld of %lld finite float16 inputs give other bits: %.2f %%\n",
             static_cast<long long>(difference.different), static_cast<long long>(difference.inputs), 100 * share);
  if (difference.first_code) {
    json.update({{"first_code", *difference.first_code},
                 {"first_result", difference.first_result},
                 {"second_result", difference.second_result}});
    text += format("the first of them: code 0x%04x (%g): 0x%04x and 0x%04x\n", *difference.first_code,
                   difference.first_input, difference.first_result, difference.second_result);
  }
  return {.text = std::move(text), .json = json_line(json)};
}

Result<Description> describe_table(const ActivationTable& table, const std::string& name) {
  ISOBIT_ASSIGN_OR_RETURN(const TableErrors e, table_errors(table));
  const OrderedJson json = {{"name", name},
                            {"function", to_string(table.function)},
                            {"kind", to_string(table.kind)},
                            {"input", json_of(table.input)},
                            {"output", json_of(table.output)},
                            {"inputs", e.inputs},
                            {"max_lsb", e.max_lsb},
                            {"worst_code", e.worst_code},
                            {"mean_lsb", e.mean_lsb},
                            {"share_exact", e.share_exact},
                            {"share_within_lsb", e.share_within_lsb}};
  return Description{
      .text = format("%-17s %-8s %-12s %2d -> %2d bits %8lld LSB at %6lld %9.4f LSB %8.3f%% %8.3f%%\n", name.c_str(),
                     std::string(to_string(table.function)).c_str(), std::string(to_string(table.kind)).c_str(),
                     table.input.bits, table.output.bits, static_cast<long long>(e.max_lsb),
                     static_cast<long long>(e.worst_code), e.mean_lsb, 100 * e.share_exact, 100 * e.share_within_lsb),
      .json = json_line(json)};
}

struct TableChecks::Impl {
  /// `problem`: empty where there is none.
  void add(const std::string& name, const std::string& problem, OrderedJson table) {
    table["ok"] = problem.empty();
    json.push_back(std::move(table));
    if (problem.empty()) return;
    ++failed;
    failure += (failure.empty() ? "" : "\n") + name + ": " + problem;
  }

  std::string text, failure;
  OrderedJson json = OrderedJson::array();
  size_t failed = 0;
  bool has_head = false;  // of the certificates of FP16 tables
};

TableChecks::TableChecks() : impl_(std::make_unique<Impl>()) {}
TableChecks::TableChecks(TableChecks&&) noexcept = default;
TableChecks& TableChecks::operator=(TableChecks&&) noexcept = default;
TableChecks::~TableChecks() = default;

Status TableChecks::add(const std::string& name, const Fp16Table& table, const std::vector<uint16_t>& exact,
                        double limit) {
  Status status = check_fp16_certificate(table, exact, limit);
  if (!status.ok() && status.code() != StatusCode::kFailedPrecondition) return status;
  const std::string kept = std::isinf(limit) ? "ok" : format("ok, at most %g ULP", limit);
  if (!std::exchange(impl_->has_head, true)) impl_->text += certificate_head() + "\n";
  impl_->text += certificate_row(table) + "  " + (status.ok() ? kept : "FAILED: " + status.message()) + "\n";
  OrderedJson json = json_of(table);
  json["name"] = name;
  impl_->add(name, status.message(), std::move(json));
  return {};
}

Status TableChecks::add(const std::string& path, const GruModel& model) {
  impl_->text += path + ": largest, mean error, share exact, share within 1 LSB\n";
  for (const GateTable& gate : gate_tables(model)) {
    ISOBIT_ASSIGN_OR_RETURN(const Description table, describe_table(*gate.table, gate.name));
    OrderedJson json = parse_json(table.json);
    const bool is_true = json["max_lsb"] == gate.table->certificate.max_error_lsb;
    impl_->text += table.text;
    impl_->add(path + " " + gate.name, is_true ? "" : "the certificate says otherwise", std::move(json));
  }
  return {};
}

const std::string& TableChecks::failure() const { return impl_->failure; }

Description TableChecks::describe() const {
  return {.text = impl_->text + format("%zu tables, %zu failed\n", impl_->json.size(), impl_->failed),
          .json = json_line({{"tables", impl_->json}, {"failed", impl_->failed}})};
}

}  // namespace isobit
