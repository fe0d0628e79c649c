// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_C_CONV_H_
#define ISOBIT_C_CONV_H_

#include "isobit/conv.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "isobit/dtype.h"
#include "isobit/isobit.h"
#include "isobit/status.h"

struct isobit_static_conv {
  isobit::StaticConvLayer layer;
};

namespace isobit::c {

/// What isobit_conv_create is given of a layer.
struct ConvForm {
  ConvShape shape;
  ConvOptions options;
};
Result<ConvForm> conv_form(const isobit_low_bit* matrix, const isobit_conv_shape* shape,
                           const isobit_linear_options* options);

/// Types of the arrays of a call.
struct ConvTypes {
  explicit ConvTypes(const StaticConvParameters& p)
      : x(p.linear.x_dtype()), y(p.linear.y_dtype()), residual(p.residual ? p.residual->grid.dtype() : Dtype::kS8) {}
  Dtype x, y;
  Dtype residual;  // where the layer adds none, it refuses what is given
};

struct ConvArrays {
  std::span<const std::byte> x;
  std::span<std::byte> y;
  std::span<const std::byte> residual;
};
Result<ConvArrays> conv_arrays(const ConvTypes& types, const void* x, int64_t x_count, void* y, int64_t y_count,
                               const void* residual, int64_t residual_count);

}  // namespace isobit::c

#endif  // ISOBIT_C_CONV_H_
