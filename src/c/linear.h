// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_C_LINEAR_H_
#define ISOBIT_C_LINEAR_H_

#include "isobit/linear.h"

#include <cstdint>
#include <vector>

#include "isobit/dtype.h"
#include "isobit/isobit.h"
#include "isobit/status.h"

struct isobit_linear {
  isobit::LinearLayer layer;
  std::vector<int32_t> permutation;  // of its matrix

  int64_t columns() const { return layer.columns(); }
  int64_t x_bytes() const { return layer.activations() == isobit::LinearActivations::kFloat ? 4 : 8; }  // at most
};

struct isobit_static_linear {
  isobit::StaticLinearLayer layer;
  std::vector<int32_t> permutation;

  int64_t columns() const { return layer.parameters().columns; }
  int64_t x_bytes() const { return static_cast<int64_t>(isobit::size_in_bytes(layer.parameters().x_dtype())); }
};

namespace isobit::c {

/// NULL: the defaults.
Result<LinearOptions> layer_options(const isobit_linear_options* in);

}  // namespace isobit::c

#endif  // ISOBIT_C_LINEAR_H_
