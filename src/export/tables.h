// SPDX-License-Identifier: Apache-2.0
// Activation tables in exported C.
#ifndef ISOBIT_EXPORT_TABLES_H_
#define ISOBIT_EXPORT_TABLES_H_

#include <string>

#include "export/program.h"
#include "isobit/status.h"
#include "isobit/table.h"

namespace isobit {

/// What the C of a table depends on, but for its numbers.
struct TableForm {
  TableKind kind = TableKind::kDirect;
  Dtype values = Dtype::kS8;  // entries, anchors or intercepts: s8, u8, s16, u16, s32 or s64
  Dtype thresholds = Dtype::kS16;
  bool is_wide = false;  // arithmetic of 64 bits

  /// Of the pointer to a table: "const int8_t *", "const $_segments_s32 *".
  [[nodiscard]] std::string pointer() const;
  /// Tells the functions of two tables apart.
  [[nodiscard]] std::string key() const;
};
TableForm form_of(const ActivationTable& table);

/// Of the values in the export.
int64_t table_bytes(const ActivationTable& table);

/// Adds a table; equal ones are one. Returns what a pointer to it is initialised with.
std::string add_table(CProgram& program, const std::string& name, const ActivationTable& table);

/// Adds `int32_t f(pointer table, int32_t index)`, the output code for the input code `index` above the smallest, which
/// is within its grid. Returns its name. `table`: any of this form, for its shifts.
std::string look_up_function(CProgram& program, const ActivationTable& table);

}  // namespace isobit

#endif  // ISOBIT_EXPORT_TABLES_H_
