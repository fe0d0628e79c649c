// SPDX-License-Identifier: Apache-2.0
// Pictures of tables: SVG drawn by gnuplot, and bars of text for a terminal.
#ifndef ISOBIT_TOOLS_PLOT_H_
#define ISOBIT_TOOLS_PLOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "isobit/fp16_table.h"
#include "isobit/status.h"
#include "isobit/table.h"

namespace isobit::tool {

/// Function and table over the input, and below them the error at every finite float16 input in ULP. `exact` is
/// fp16_exact of the table's function, 65536 codes. The same arguments give the same bytes (of one gnuplot).
/// Errors: kFailedPrecondition where gnuplot is not on PATH; kIo where it fails; kInvalidArgument for a wrong `exact`.
Result<std::string> svg_of_table(const Fp16Table& table, const std::vector<uint16_t>& exact);
/// The same with the error at every input code in LSB of the output. `exact` is exact_codes of the table's function.
Result<std::string> svg_of_table(const ActivationTable& table, const std::vector<int32_t>& exact);

/// Errors over ranges of the input as lines of text, at most 80 columns.
Result<std::string> text_plot(const Fp16Table& table, const std::vector<uint16_t>& exact);
Result<std::string> text_plot(const ActivationTable& table, const std::vector<int32_t>& exact);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_PLOT_H_
