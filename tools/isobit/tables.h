// SPDX-License-Identifier: Apache-2.0
// Tables as the verbs find and describe them.
#ifndef ISOBIT_TOOLS_TABLES_H_
#define ISOBIT_TOOLS_TABLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "isobit/fp16_table.h"
#include "isobit/gru.h"
#include "isobit/status.h"
#include "isobit/table.h"
#include "value.h"
#include "verbs.h"

namespace isobit::tool {

/// Whether isobit has a function of this name, and so its table.
bool is_function(const std::string& name);

Result<Fp16Model> parse_fp16_model(const std::string& text);
/// The value of a float16 code; finite.
double value_of_f16(uint16_t code);
/// "f32" or "f16"; whether values are float16 numbers.
Result<bool> parse_value_type(const std::string& text);

/// A file whose name may have been meant for a function's.
Result<ArrayReader> open_table_file(const std::string& path);
/// A built-in table when `table` names a function, else a saved one.
Result<Fp16Table> find_fp16_table(const std::string& table, const TableSourceOptions& source);
/// The correctly rounded results of the table's function; `values_file` (npy, 65536 float64) for a custom one.
Result<std::vector<uint16_t>> exact_results(const Fp16Table& table, const std::string& values_file);
/// 65536 float64 values of an npy file.
Result<std::vector<double>> load_function_values(const std::string& path);

/// "silu, model f32, 259 float32 values".
std::string fp16_table_text(const Fp16Table& table);
/// Function, model, type of the values, entries, certificate.
Value fp16_table_json(const Fp16Table& table);
/// The head of the table that certificate_row makes rows of.
std::string certificate_head();
std::string certificate_row(const std::string& name, const Fp16Table& table);

/// Errors of an integer table over all inputs, in units of the output's last bit.
struct IntegerErrors {
  int64_t inputs = 0;
  int64_t max_lsb = 0;
  int64_t worst_code = 0;
  double mean_lsb = 0;
  double share_exact = 0;
  double share_within_lsb = 0;
};
Result<IntegerErrors> integer_errors(const ActivationTable& table);
/// One gate of an integer model: "l0.u".
struct GateTable {
  std::string name;
  const ActivationTable* table = nullptr;
};
std::vector<GateTable> gate_tables(const GruModel& model);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_TABLES_H_
