// SPDX-License-Identifier: Apache-2.0
// What every exported file begins with: names, grids as constants of C, and what there is to say of the code.
#ifndef ISOBIT_EXPORT_INTERFACE_H_
#define ISOBIT_EXPORT_INTERFACE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "export/program.h"
#include "isobit/export.h"
#include "isobit/table.h"

namespace isobit {

/// The name that the options give, or else one made from that of the model; `fallback` where it has none. Checks the
/// options, too.
Result<std::string> c_name_of(const CExportOptions& options, std::string_view model, std::string_view fallback);

/// Refuses a table above kLargeTableBytes that the options do not allow; `what`: "table of u of l0".
Status check_table_size(const ActivationTable& table, const CExportOptions& options, const std::string& what);

/// What has no float variant.
inline Status no_float_entry() {
  return {StatusCode::kUnsupported, "float_entry: only GRUs of one direction have a step in floats"};
}

/// A struct of arrays, the widest elements first, so that nothing lies between them.
class CStruct {
 public:
  /// `type`: of C, of so many bytes an element.
  void add(const std::string& type, int64_t element_bytes, const std::string& name, int64_t count);
  /// Its declaration; of a struct without members one that is not used.
  [[nodiscard]] std::string text(const std::string& name) const;
  /// What sizeof gives; 0 without members.
  [[nodiscard]] int64_t bytes() const;

 private:
  std::map<int64_t, std::vector<std::string>> members_;
  int64_t bytes_ = 0, alignment_ = 1;
};

/// The type of the codes of a tensor, "$_input", and the constants of its grid, @NAME_INPUT_MIN and others.
std::string grid_constants(const std::string& type, const std::string& tensor, const Grid& grid);

/// Adds `int32_t $_quantize(float x)` for the input grid: numerics.md, section 3.
void add_quantize(CProgram& program, const Grid& grid);

/// CExport::check_program: reads two int32, `first` and `second`, then x until its end; `body` are the statements that
/// take the `count` codes at x and write what they give with put(y, codes).
std::string check_program(const CProgram& program, const std::string& body);

/// CExport::measure_program: `objects` are declared once, `selftest` is called first and must give -1, `steps` runs
/// `count` steps.
std::string measure_program(const CProgram& program, const std::string& objects, const std::string& selftest,
                            const std::string& steps, const std::string& count);

/// The lines that close the comment at the top of each file.
void add_closing_lines(std::vector<std::string>& head, CTarget target);

}  // namespace isobit

#endif  // ISOBIT_EXPORT_INTERFACE_H_
