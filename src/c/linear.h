// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_C_LINEAR_H_
#define ISOBIT_C_LINEAR_H_

#include "isobit/linear.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "isobit/conv.h"
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

/// Of layers of every kind.
struct isobit_linear_workspace {
  isobit::Workspace workspace;
  std::vector<std::byte> x = {};  // rows in the order of columns, of layers that have a permutation
};

namespace isobit::c {

/// NULL: the defaults.
Result<LinearOptions> layer_options(const isobit_linear_options* in);
Result<ConvOptions> conv_layer_options(const isobit_linear_options* in);

struct StaticOptions {
  StaticLinearOptions derive;
  std::optional<CpuPath> path;
};
Result<StaticOptions> static_layer_options(const isobit_static_linear_options* in);

/// NULL: the defaults.
Result<RunOptions> run_options(const isobit_linear_run_options* in);
/// Of static codes, where `unchecked` has no meaning.
Result<RunOptions> static_run_options(const isobit_linear_run_options* in);

}  // namespace isobit::c

#endif  // ISOBIT_C_LINEAR_H_
