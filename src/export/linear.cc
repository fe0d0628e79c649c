// SPDX-License-Identifier: Apache-2.0
// Linear layers of static codes as C99.
#include <algorithm>
#include <cstddef>

#include "export/interface.h"
#include "export/selftest.h"
#include "export/static_rows.h"
#include "isobit/export.h"

namespace isobit {
namespace {

constexpr std::string_view kHeader = R"(
#define @NAME_INPUTS @INPUTSu
#define @NAME_OUTPUTS @OUTPUTSu
@GRIDS
/* What is used during a call: @SCRATCH bytes. */
@STRUCT
#define @NAME_SCRATCH_BYTES @SCRATCHu
#define @NAME_SELFTEST_ROWS @ROWSu

/* One row: x [@NAME_INPUTS] and y [@NAME_OUTPUTS] codes, which do not overlap. Codes of x are @NAME_INPUT_MIN to
   @NAME_INPUT_MAX, which is not checked. */
void $_run($_scratch *scratch, const $_input *x, $_output *y);

/* Computes rows whose results isobit has stored: -1, or the index m * @NAME_OUTPUTS + n of the first that is another
   one. y: @NAME_OUTPUTS codes. */
int32_t $_selftest($_scratch *scratch, $_output *y);
)";

constexpr std::string_view kCode = R"(
void $_run($_scratch *scratch, const $_input *x, $_output *y)
{
@UNUSED  $_rows(x, 0u, @NAME_OUTPUTS, y@PREPARED);
}

int32_t $_selftest($_scratch *scratch, $_output *y)
{
  uint32_t m;
  uint32_t n;
  for (m = 0; m < @NAME_SELFTEST_ROWS; ++m) {
    $_run(scratch, $_selftest_x + (m * @NAME_INPUTS), y);
    for (n = 0; n < @NAME_OUTPUTS; ++n) {
      const uint32_t index = (m * @NAME_OUTPUTS) + n;
      if (y[n] != $_selftest_y[index]) {
        return (int32_t)index;
      }
    }
  }
  return -1;
}
)";

constexpr std::string_view kCheck = R"(    static $_scratch scratch;
    static $_output y[@NAME_OUTPUTS];
    int32_t m;
    if (count != (size_t)first * @NAME_INPUTS || second != 1) return 6;
    for (m = 0; m < first; ++m) {
      $_run(&scratch, x + (size_t)m * @NAME_INPUTS, y);
      put(y, @NAME_OUTPUTS);
    }
)";

}  // namespace

Result<CExport> export_c(const StaticLinearLayer& layer, const CExportOptions& options) {
  const StaticLinearParameters& p = layer.parameters();
  ISOBIT_ASSIGN_OR_RETURN(const std::string name, c_name_of(options, layer.name(), "linear"));
  if (options.float_entry) return no_float_entry();
  CProgram program(name, options.target, p.rounding);
  const StaticRows rows = add_static_rows(program, p, std::nullopt);

  Random random(1);
  std::vector<std::byte> x(static_cast<size_t>(options.selftest_steps * p.columns) * size_in_bytes(p.x_dtype()));
  std::vector<std::byte> y(static_cast<size_t>(options.selftest_steps * p.rows) * size_in_bytes(p.y_dtype()));
  random_codes_of(random, p.input, p.columns, x);
  Workspace workspace = layer.workspace(options.selftest_steps);
  ISOBIT_RETURN_IF_ERROR(layer.forward_codes(x, y, options.selftest_steps, workspace));
  program.add_data_comment("What $_selftest compares");
  program.make_external(
      program.add_array(p.x_dtype(), "selftest_x", widened_codes(x, p.x_dtype()), DataPart::kSelftest));
  program.make_external(
      program.add_array(p.y_dtype(), "selftest_y", widened_codes(y, p.y_dtype()), DataPart::kSelftest));

  const bool is_prepared = rows.product.is_prepared();
  CExport out;
  out.name = name;
  out.model = "linear layer \"" + layer.name() + "\", " + std::to_string(p.columns) + " -> " + std::to_string(p.rows);
  out.target = options.target;
  out.x_dtype = p.x_dtype();
  out.y_dtype = p.y_dtype();
  CStruct scratch;
  if (is_prepared)
    scratch.add(rows.product.prepared_type(), rows.product.prepared_element_bytes(), "prepared",
                rows.product.prepared_elements());
  program.sizes.scratch_bytes = scratch.bytes();
  program.sizes.multiply_adds = p.rows * p.columns;
  std::vector<std::string> head = static_head(out.model, p);
  add_closing_lines(head, options.target);
  const std::string header = fill(std::string(kHeader), {{"@INPUTS", std::to_string(p.columns)},
                                                         {"@OUTPUTS", std::to_string(p.rows)},
                                                         {"@GRIDS", static_grids(p, std::nullopt)},
                                                         {"@SCRATCH", std::to_string(program.sizes.scratch_bytes)},
                                                         {"@STRUCT", scratch.text("$_scratch")},
                                                         {"@ROWS", std::to_string(options.selftest_steps)}});
  const std::string code =
      fill(std::string(kCode), {{"@UNUSED", is_prepared ? "" : "  (void)scratch; /* other targets need it */\n"},
                                {"@PREPARED", is_prepared ? ", scratch->prepared" : ""}});
  out.files = program.files(head, header, code);
  out.check_program = check_program(program, std::string(kCheck));
  out.measure_program = measure_program(program, "static $_scratch scratch;\nstatic $_output y[@NAME_OUTPUTS];\n",
                                        "$_selftest(&scratch, y)",
                                        "  uint32_t m;\n  for (m = 0; m < @NAME_SELFTEST_ROWS; ++m) $_run(&scratch, "
                                        "$_selftest_x + m * @NAME_INPUTS, y);\n",
                                        "@NAME_SELFTEST_ROWS");
  out.sizes = program.sizes;
  return out;
}

}  // namespace isobit
