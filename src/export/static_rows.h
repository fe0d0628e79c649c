// SPDX-License-Identifier: Apache-2.0
// Layers of static codes as C99: what linear layers and convolutions share.
#ifndef ISOBIT_EXPORT_STATIC_ROWS_H_
#define ISOBIT_EXPORT_STATIC_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "export/product.h"
#include "export/program.h"
#include "isobit/conv.h"
#include "isobit/linear.h"

namespace isobit {

/// The code and the constants of a layer.
struct StaticRows {
  Product product;
  /// `void f(const X *x, uint32_t first, uint32_t end, Y *y)`: rows [first, end) of y from one row of x; then residual
  /// codes where there are such, and where the product is prepared the buffer.
  std::string function;
};
StaticRows add_static_rows(CProgram& program, const StaticLinearParameters& layer,
                           const std::optional<StaticResidual>& residual);

/// Types and constants of x, y and the residual, for the header.
std::string static_grids(const StaticLinearParameters& layer, const std::optional<StaticResidual>& residual);

/// What the comment at the top of each file says of a layer.
std::vector<std::string> static_head(const std::string& what, const StaticLinearParameters& layer);

}  // namespace isobit

#endif  // ISOBIT_EXPORT_STATIC_ROWS_H_
