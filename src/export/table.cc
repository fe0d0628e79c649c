// SPDX-License-Identifier: Apache-2.0
// Activation tables alone as C99.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "export/interface.h"
#include "export/tables.h"
#include "isobit/export.h"
#include "isobit/report.h"

namespace isobit {
namespace {

constexpr int64_t kVectors = 64;

constexpr std::string_view kHeader = R"(@GRIDS
/* @FUNCTION at a code of x, which is clamped to @NAME_INPUT_MIN..@NAME_INPUT_MAX. */
$_output $_look_up(int32_t x);

/* Looks up codes whose results isobit has stored: -1, or the index of the first that is another one. */
int32_t $_selftest(void);
)";

constexpr std::string_view kCode = R"(
$_output $_look_up(int32_t x)
{
  return ($_output)@LOOK_UP(@TABLE, @CLAMP(x, @NAME_INPUT_MIN, @NAME_INPUT_MAX) - (@NAME_INPUT_MIN));
}

int32_t $_selftest(void)
{
  int32_t i;
  for (i = 0; i < @COUNT; ++i) {
    if ($_look_up($_selftest_x[i]) != $_selftest_y[i]) {
      return i;
    }
  }
  return -1;
}
)";

/// Codes over all of the grid, its ends among them, and one beyond each.
std::vector<int64_t> vectors_of(const Grid& grid) {
  std::vector<int64_t> codes = {grid.min() - 1, grid.max() + 1};
  const int64_t count = std::min(kVectors, grid.max() - grid.min() + 1);
  for (int64_t i = 0; i < count; ++i)
    codes.push_back(grid.min() + i * (grid.max() - grid.min()) / std::max<int64_t>(count - 1, 1));
  return codes;
}

}  // namespace

Result<CExport> export_c(const ActivationTable& table, const CExportOptions& options) {
  const std::string function(to_string(table.function));
  ISOBIT_ASSIGN_OR_RETURN(const std::string name, c_name_of(options, function + "_table", "table"));
  ISOBIT_RETURN_IF_ERROR(check_table(table, name));
  ISOBIT_RETURN_IF_ERROR(check_table_size(table, options, function));
  if (options.float_entry) return no_float_entry();
  CProgram program(name, options.target, table.rounding);
  const std::string look_up = look_up_function(program, table);
  program.add_data_comment("the table");
  std::string pointer = add_table(program, "values", table);
  const std::string object = pointer.front() == '&' ? pointer.substr(1) : pointer;
  program.make_external(object);
  const std::vector<int64_t> x = vectors_of(table.input);
  std::vector<int64_t> y;
  y.reserve(x.size());
  for (const int64_t code : x) y.push_back(table(code));
  program.add_data_comment("What $_selftest compares");
  program.make_external(program.add_array(Dtype::kS32, "selftest_x", x, DataPart::kSelftest));
  program.make_external(program.add_array(table.output.dtype(), "selftest_y", y, DataPart::kSelftest));

  CExport out;
  out.name = name;
  out.model = std::string(to_string(table.kind)) + " table of " + function;
  out.target = options.target;
  out.x_dtype = table.input.dtype();
  out.y_dtype = table.output.dtype();
  std::vector<std::string> head = {out.model + ", rounding " + std::string(to_string(table.rounding)) + ".", "",
                                   "x:" + grid_text(table.input), "y:" + grid_text(table.output),
                                   "largest error, in units of y: " + std::to_string(table.certificate.max_error_lsb)};
  add_closing_lines(head, options.target);
  const std::string header =
      fill(std::string(kHeader),
           {{"@GRIDS", grid_constants("input", "x", table.input) + grid_constants("output", "y", table.output)},
            {"@FUNCTION", function}});
  out.files = program.files(head, header,
                            fill(std::string(kCode), {{"@LOOK_UP", look_up},
                                                      {"@TABLE", pointer},
                                                      {"@CLAMP", program.clamp(false)},
                                                      {"@COUNT", std::to_string(x.size())}}));
  out.sizes = program.sizes;
  return out;
}

Result<CExport> export_c(const Fp16Table& table, const CExportOptions& options) {
  if (options.float_entry) return no_float_entry();
  ISOBIT_ASSIGN_OR_RETURN(const std::string name, c_name_of(options, "isobit_" + table.function, "table"));
  CExport out;
  out.name = name;
  out.model = "FP16 table of " + table.function;
  out.target = options.target;
  out.x_dtype = out.y_dtype = Dtype::kF16;
  ISOBIT_ASSIGN_OR_RETURN(out.files, export_fp16_c(table, name));
  const int64_t value_bytes = table.half_values ? 2 : 4;
  for (const Fp16Pieces& pieces : table.pieces) {
    out.sizes.tables_bytes += static_cast<int64_t>(pieces.values.size()) * value_bytes;
    out.sizes.other_bytes += static_cast<int64_t>(pieces.steps.size() * 4 + pieces.cut_points.size() * 4);
  }
  return out;
}

}  // namespace isobit
