// SPDX-License-Identifier: Apache-2.0
#include "tables.h"

#include "isobit/arrays.h"
#include "isobit/nearest.h"
#include "text.h"

namespace isobit::tool {

Result<Fp16Model> parse_fp16_model(const std::string& text) {
  const auto model = fp16_model_from_string(text);
  if (model) return *model;
  return bad_option("--model " + text + ": " + expected_one_of(text, {"f32", "nli_gpu", "nli_cpu"}));
}

Result<bool> parse_value_type(const std::string& text) {
  if (text == "f32" || text == "f16") return text == "f16";
  return bad_option("--values " + text + ": " + expected_one_of(text, {"f32", "f16"}));
}

Result<Fp16Table> find_fp16_table(const std::string& table, const TableSourceOptions& source) {
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Model model, parse_fp16_model(source.model));
  ISOBIT_ASSIGN_OR_RETURN(const bool half_values, parse_value_type(source.values));
  return isobit::find_fp16_table(table, model, half_values);
}

}  // namespace isobit::tool
