// SPDX-License-Identifier: Apache-2.0
#include "export/static_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "core/rescale.h"
#include "export/interface.h"
#include "isobit/report.h"
#include "isobit/text.h"

namespace isobit {
namespace {

constexpr std::string_view kRows = R"(
/* Outputs [first, end) of a row of x:
     acc = W x - zero point of x * sum of the row of W + bias
     y = clamp(acc * multiplier / 2^shift@PLUS_TEXT + zero point of y), rounded */
static void @F(const $_input *x, uint32_t first, uint32_t end, $_output *y@ARGUMENTS)
{
@PREPARE  uint32_t row;
  uint32_t i;
  uint32_t count;
  for (row = first; row < end; row += count) {
    @S sums[3];
    count = ((end - row) >= 3u) ? 3u : 1u; /* of the last rows, each three times */
    @MULTIPLY($_W + (row * @ROWu), (count == 3u) ? @ROWu : 0u, @X, @COUNTu, sums);
    for (i = 0; i < count; ++i) {
      const @S acc = @SUM + $_start[row + i];
      y[row + i] = @Y;
    }
  }
}
)";

int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

}  // namespace

StaticRows add_static_rows(CProgram& program, const StaticLinearParameters& layer,
                           const std::optional<StaticResidual>& residual) {
  const auto weight = [&](int64_t n, int64_t k) -> int64_t {
    return layer.weights.data<int8_t>()[n * layer.columns + k];
  };
  std::vector<int64_t> start, multipliers, shifts;
  Int128 largest = 0;
  for (int64_t n = 0; n < layer.rows; ++n) {
    int64_t sum = 0, magnitudes = 0;
    for (int64_t k = 0; k < layer.columns; ++k) {
      sum += weight(n, k);
      magnitudes += magnitude(weight(n, k));
    }
    start.push_back(layer.bias.data<int32_t>()[n] - layer.input.zero_point * sum);
    // Sums of products alone, and with what is added to them.
    largest = std::max({largest, magnitudes * largest_code(layer.input), static_cast<Int128>(magnitude(start.back())),
                        magnitudes * largest_difference(layer.input) + magnitude(layer.bias.data<int32_t>()[n])});
  }
  for (const RescaleParameters& ratio : layer.rescales) {
    multipliers.push_back(ratio.multiplier);
    shifts.push_back(ratio.shift);
  }
  StaticRows rows;
  rows.function = "$_rows";
  Product& product = rows.product;
  product = choose_product(program.target(), layer.weight_bits, true, layer.x_dtype(), largest_code(layer.input),
                           layer.columns, largest);
  const bool is_sign = layer.weight_bits == 1;  // v = 2 * stored - 1
  program.add_data_comment("weights: " + std::to_string(layer.rows) + " x " + std::to_string(layer.columns) + ", " +
                           count_text(layer.weight_bits, "bit"));
  // The code names its arrays, which are in the other file.
  const std::string W = add_weights(program, "W", product, layer.rows, [&](int64_t n, int64_t k) {
    return is_sign ? (weight(n, k) + 1) / 2 : weight(n, k) + product.offset;
  });
  program.make_external(W);
  program.make_external(
      program.add_array(product.is_wide ? Dtype::kS64 : Dtype::kS32, "start", start, DataPart::kOther));
  std::string y = "($_output)acc";
  if (layer.output) {
    program.make_external(program.add_array(Dtype::kS32, "multiplier", multipliers, DataPart::kOther));
    program.make_external(program.add_array(Dtype::kS8, "shift", shifts, DataPart::kOther));
    const std::string round = program.round_shift(true);
    for (const RescaleParameters& ratio : layer.rescales) program.note_shift(true, ratio.shift);
    y = round + "((int64_t)acc * $_multiplier[row + i], $_shift[row + i])";
    if (residual) {
      program.note_shift(true, residual->rescale.shift);
      y += " +\n        " + round + "((int64_t)(residual[row + i] - " + c_number(residual->grid.zero_point) + ") * " +
           c_number(residual->rescale.multiplier) + ", " + c_number(residual->rescale.shift) + ")";
    }
    const int64_t z = layer.output->zero_point;
    y = "($_output)(" + program.clamp(true) + "(" + y + ", " + c_number(layer.lo - z) + ", " + c_number(layer.hi - z) +
        ") + " + c_number(z) + ")";
  }
  std::string prepare_text, sum = is_sign ? "(2 * sums[i])" : "sums[i]";
  if (product.is_prepared() || product.needs_sum()) {
    const std::string call = prepare(program, product) + "(x, " + std::to_string(layer.columns) + "u" +
                             (product.is_prepared() ? ", prepared" : "") + ");\n";
    prepare_text = product.needs_sum()
                       ? "  const " + product.sum() + " less = " + c_number(product.offset) + " * " + call
                       : "  " + call;
    if (product.needs_sum()) sum += " - less";
  }
  program.add_function(
      rows.function,
      fill(std::string(kRows),
           {{"@PREPARE", prepare_text},
            {"@PLUS_TEXT", residual ? " + residual * its ratio" : ""},
            {"@ARGUMENTS", (residual ? std::string(", const $_residual *residual") : std::string()) +
                               (product.is_prepared() ? ", " + product.prepared_type() + " *prepared" : std::string())},
            {"@MULTIPLY", multiply(program, product)},
            {"@ROW", std::to_string(product.row_elements())},
            {"@COUNT", std::to_string(product.count())},
            {"@SUM", sum},
            {"@F", rows.function},
            {"@X", product.is_prepared() ? "prepared" : "x"},
            {"@Y", y},
            {"@S", product.sum()}}));
  return rows;
}

std::string static_grids(const StaticLinearParameters& layer, const std::optional<StaticResidual>& residual) {
  std::string text = grid_constants("input", "x", layer.input);
  text += layer.output ? grid_constants("output", "y", *layer.output)
                       : "\n/* An accumulator: it stands for code * scale of x * scale of its row of W. */\n"
                         "typedef int32_t $_output;\n";
  if (residual) text += grid_constants("residual", "the residual", residual->grid);
  return text;
}

std::vector<std::string> static_head(const std::string& what, const StaticLinearParameters& layer) {
  std::vector<std::string> head = {what + ", rounding " + std::string(to_string(layer.rounding)) + ".", "",
                                   "x:" + grid_text(layer.input)};
  if (layer.output) head.push_back("y:" + grid_text(*layer.output));
  return head;
}

}  // namespace isobit
