// SPDX-License-Identifier: Apache-2.0
// Options of tables as the verbs read them.
#ifndef ISOBIT_TOOLS_TABLES_H_
#define ISOBIT_TOOLS_TABLES_H_

#include <string>

#include "isobit/fp16_table.h"
#include "isobit/status.h"
#include "verbs.h"

namespace isobit::tool {

Result<Fp16Model> parse_fp16_model(const std::string& text);
/// "f32" or "f16"; whether values are float16 numbers.
Result<bool> parse_value_type(const std::string& text);

/// A built-in table when `table` names a function, else a saved one.
Result<Fp16Table> find_fp16_table(const std::string& table, const TableSourceOptions& source);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_TABLES_H_
