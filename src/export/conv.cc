// SPDX-License-Identifier: Apache-2.0
// Convolutions of static codes as C99.
#include <algorithm>
#include <cstddef>

#include "export/interface.h"
#include "export/selftest.h"
#include "export/static_rows.h"
#include "isobit/conv.h"
#include "isobit/export.h"

namespace isobit {
namespace {

constexpr std::string_view kHeader = R"(
#define @NAME_CHANNELS @CHANNELSu
#define @NAME_OUTPUTS @OUTPUTSu
@GRIDS
/* Rows or columns of y for so many of x. */
#define @NAME_OUTPUT_ROWS(rows) @ROWS_FORMULA
#define @NAME_OUTPUT_COLUMNS(columns) @COLUMNS_FORMULA

/* What is used during a call: @SCRATCH bytes. */
@STRUCT
#define @NAME_SCRATCH_BYTES @SCRATCHu
#define @NAME_SELFTEST_OUTPUTS @TESTEDu

/* x: [rows][columns][@NAME_CHANNELS]. y: [@NAME_OUTPUT_ROWS(rows)][@NAME_OUTPUT_COLUMNS(columns)][@NAME_OUTPUTS]; both
   must be at least 1. Codes of x are @NAME_INPUT_MIN to @NAME_INPUT_MAX, which is not checked.@RESIDUAL_TEXT */
void $_run($_scratch *scratch, const $_input *x, int32_t rows, int32_t columns, $_output *y@RESIDUAL);

/* Computes an image whose results isobit has stored: -1, or the index of the first that is another one.
   y: @NAME_SELFTEST_OUTPUTS codes. */
int32_t $_selftest($_scratch *scratch, $_output *y);
)";

constexpr std::string_view kPixel = R"(
/* The row or column of x that tap `tap` of the kernel meets for output `output`; below 0 or from `pixels` on: none. */
static int32_t @F(int32_t output, int32_t tap)
{
@BODY}
)";

constexpr std::string_view kCode = R"(
void $_run($_scratch *scratch, const $_input *x, int32_t rows, int32_t columns, $_output *y@RESIDUAL)
{
  const int32_t output_rows = @NAME_OUTPUT_ROWS(rows);
  const int32_t output_columns = @NAME_OUTPUT_COLUMNS(columns);
  int32_t p, q, r, s;
  uint32_t group, c;
  for (p = 0; p < output_rows; ++p) {
    for (q = 0; q < output_columns; ++q) {
      for (group = 0; group < @GROUPSu; ++group) {
        /* All codes of x that these outputs multiply; outside of the image the zero point. */
        $_input *patch = scratch->patch;
        for (r = 0; r < @R; ++r) {
          const int32_t i = $_row(p, r);
          for (s = 0; s < @S; ++s) {
            const int32_t j = $_column(q, s);
            const int is_inside = (i >= 0) && (i < rows) && (j >= 0) && (j < columns);
            const uint32_t pixel = is_inside ? (((uint32_t)i * (uint32_t)columns) + (uint32_t)j) : 0u;
            const $_input *from = x + (pixel * @NAME_CHANNELS) + (group * @DEPTHu);
            for (c = 0; c < @DEPTHu; ++c) {
              *patch++ = is_inside ? from[c] : @ZERO;
            }
          }
        }
        $_rows(scratch->patch, group * @WIDTHu, (group + 1u) * @WIDTHu, y@RESIDUAL_NAME@PREPARED);
      }
      y += @NAME_OUTPUTS;
@NEXT_RESIDUAL    }
  }
}

int32_t $_selftest($_scratch *scratch, $_output *y)
{
  int32_t index;
  $_run(scratch, $_selftest_x, @TEST_ROWS, @TEST_COLUMNS, y@SELFTEST_RESIDUAL);
  for (index = 0; index < (int32_t)@NAME_SELFTEST_OUTPUTS; ++index) {
    if (y[index] != $_selftest_y[index]) {
      return index;
    }
  }
  return -1;
}
)";

constexpr std::string_view kCheck = R"(    static $_scratch scratch;
    const size_t of_x = (size_t)first * (size_t)second * @NAME_CHANNELS;
    const size_t of_y = (size_t)(@NAME_OUTPUT_ROWS(first) * @NAME_OUTPUT_COLUMNS(second)) * @NAME_OUTPUTS;
    $_output *y = memory(of_y * sizeof *y);
    size_t at;
    if (count % of_x != 0) return 6;
    for (at = 0; at < count; at += of_x) {
      $_run(&scratch, x + at, first, second, y);
      put(y, of_y);
    }
)";

std::string number(int64_t value) { return std::to_string(value); }

/// The number of outputs for `pixels`, in C.
std::string size_formula(const ConvAxis& axis, bool transposed, const std::string& pixels) {
  const int64_t pads = axis.pad_before + axis.pad_after;
  if (transposed)
    return "(((" + pixels + ") - 1) * " + number(axis.stride) + " + (" + number(axis.extent() - pads + axis.more) +
           "))";
  const std::string least = number(axis.extent() - pads);
  return "(((" + pixels + ") < " + least + ") ? 0 : ((((" + pixels + ") - (" + least + ")) / " + number(axis.stride) +
         ") + 1))";
}

std::string pixel_body(const ConvAxis& axis, bool transposed) {
  if (!transposed)
    return "  return (output * " + number(axis.stride) + ") + (tap * " + number(axis.dilation) + ") - " +
           number(axis.pad_before) + ";\n";
  const std::string first = "output + " + number(axis.pad_before) + " - (tap * " + number(axis.dilation) + ")";
  if (axis.stride == 1) return "  return " + first + ";\n";
  return "  const int32_t at = " + first + ";\n  return ((at < 0) || ((at % " + number(axis.stride) +
         ") != 0)) ? -1 : (at / " + number(axis.stride) + ");\n";
}

int64_t outputs_of(const ConvAxis& axis, bool transposed, int64_t pixels) {
  const int64_t pads = axis.pad_before + axis.pad_after;
  if (transposed) return (pixels - 1) * axis.stride + axis.extent() - pads + axis.more;
  return pixels + pads < axis.extent() ? 0 : (pixels + pads - axis.extent()) / axis.stride + 1;
}

/// The rows or columns of a small image with two outputs, or with one where two need much more.
int64_t test_size(const ConvAxis& axis, bool transposed) {
  constexpr int64_t kSmall = 64;
  int64_t pixels = transposed ? 3 : 1;
  while (outputs_of(axis, transposed, pixels) < (pixels < kSmall ? 2 : 1)) ++pixels;
  return pixels;
}

}  // namespace

Result<CExport> export_c(const StaticConvLayer& layer, const CExportOptions& options) {
  const StaticConvParameters& parameters = layer.parameters();
  const StaticLinearParameters& p = parameters.linear;
  const ConvShape& shape = parameters.shape;
  ISOBIT_ASSIGN_OR_RETURN(const std::string name, c_name_of(options, layer.name(), "conv"));
  if (options.float_entry) return no_float_entry();
  CProgram program(name, options.target, p.rounding);
  const StaticRows rows = add_static_rows(program, p, parameters.residual);

  const ImageSize image = {test_size(shape.rows, shape.transposed), test_size(shape.columns, shape.transposed)};
  ISOBIT_ASSIGN_OR_RETURN(const ImageSize result, conv_output_size(shape, image, name));
  Random random(1);
  const int64_t outputs = result.rows * result.columns * shape.outputs;
  std::vector<std::byte> x(static_cast<size_t>(image.rows * image.columns * shape.channels) *
                           size_in_bytes(p.x_dtype()));
  std::vector<std::byte> y(static_cast<size_t>(outputs) * size_in_bytes(p.y_dtype())), residual;
  random_codes_of(random, p.input, shape.channels, x);
  if (parameters.residual) {
    residual.resize(static_cast<size_t>(outputs) * size_in_bytes(parameters.residual->grid.dtype()));
    random_codes_of(random, parameters.residual->grid, shape.outputs, residual);
  }
  ISOBIT_ASSIGN_OR_RETURN(Workspace workspace, layer.workspace(1, image));
  ISOBIT_RETURN_IF_ERROR(layer.forward(x, y, 1, image, workspace, {}, residual));
  program.add_data_comment("What $_selftest compares");
  const auto add_vectors = [&](const std::string& of, Dtype dtype, std::span<const std::byte> codes) {
    program.make_external(program.add_array(dtype, "selftest_" + of, widened_codes(codes, dtype), DataPart::kSelftest));
  };
  add_vectors("x", p.x_dtype(), x);
  add_vectors("y", p.y_dtype(), y);
  if (parameters.residual) add_vectors("residual", parameters.residual->grid.dtype(), residual);

  const Product& product = rows.product;
  CStruct scratch;
  scratch.add("$_input", static_cast<int64_t>(size_in_bytes(p.x_dtype())), "patch", shape.depth());
  if (product.is_prepared())
    scratch.add(product.prepared_type(), product.prepared_element_bytes(), "prepared", product.prepared_elements());
  program.sizes.scratch_bytes = scratch.bytes();
  program.sizes.multiply_adds = shape.outputs * shape.depth();

  CExport out;
  out.name = name;
  out.model = std::string(shape.transposed ? "transposed convolution" : "convolution") + " \"" + layer.name() + "\", " +
              number(shape.channels) + " -> " + number(shape.outputs) + ", kernel " + number(shape.rows.kernel) +
              " x " + number(shape.columns.kernel) + (shape.groups == 1 ? "" : ", " + number(shape.groups) + " groups");
  out.target = options.target;
  out.x_dtype = p.x_dtype();
  out.y_dtype = p.y_dtype();
  std::vector<std::string> head = static_head(out.model, p);
  add_closing_lines(head, options.target);
  for (const auto& [function, axis] : {std::pair("$_row", &shape.rows), std::pair("$_column", &shape.columns)})
    program.add_function(function,
                         fill(std::string(kPixel), {{"@F", function}, {"@BODY", pixel_body(*axis, shape.transposed)}}));
  const bool has_residual = parameters.residual.has_value();
  const std::string header =
      fill(std::string(kHeader), {{"@CHANNELS", number(shape.channels)},
                                  {"@OUTPUTSu", number(shape.outputs) + "u"},
                                  {"@GRIDS", static_grids(p, parameters.residual)},
                                  {"@ROWS_FORMULA", size_formula(shape.rows, shape.transposed, "rows")},
                                  {"@COLUMNS_FORMULA", size_formula(shape.columns, shape.transposed, "columns")},
                                  {"@SCRATCH", number(program.sizes.scratch_bytes)},
                                  {"@STRUCT", scratch.text("$_scratch")},
                                  {"@TESTED", number(outputs)},
                                  {"@RESIDUAL_TEXT", has_residual ? " residual: codes as y." : ""},
                                  {"@RESIDUAL", has_residual ? ", const $_residual *residual" : ""}});
  const std::string code =
      fill(std::string(kCode), {{"@NEXT_RESIDUAL", has_residual ? "      residual += @NAME_OUTPUTS;\n" : ""},
                                {"@SELFTEST_RESIDUAL", has_residual ? ", $_selftest_residual" : ""},
                                {"@RESIDUAL_NAME", has_residual ? ", residual" : ""},
                                {"@RESIDUAL", has_residual ? ", const $_residual *residual" : ""},
                                {"@PREPARED", product.is_prepared() ? ", scratch->prepared" : ""},
                                {"@GROUPS", number(shape.groups)},
                                {"@WIDTH", number(shape.outputs / shape.groups)},
                                {"@DEPTH", number(shape.group_channels())},
                                {"@ZERO", "($_input)" + c_number(p.input.zero_point)},
                                {"@TEST_ROWS", number(image.rows)},
                                {"@TEST_COLUMNS", number(image.columns)},
                                {"@R", number(shape.rows.kernel)},
                                {"@S", number(shape.columns.kernel)}});
  out.files = program.files(head, header, code);
  if (!has_residual) out.check_program = check_program(program, std::string(kCheck));
  out.measure_program = measure_program(
      program, "static $_scratch scratch;\nstatic $_output y[@NAME_SELFTEST_OUTPUTS];\n", "$_selftest(&scratch, y)",
      "  $_run(&scratch, $_selftest_x, " + number(image.rows) + ", " + number(image.columns) + ", y" +
          (has_residual ? ", $_selftest_residual" : "") + ");\n",
      number(result.rows * result.columns));
  out.sizes = program.sizes;
  return out;
}

}  // namespace isobit
