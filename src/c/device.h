// SPDX-License-Identifier: Apache-2.0
// What layers on CUDA devices share; they are reached through libisobit_cuda.so.
#ifndef ISOBIT_C_DEVICE_H_
#define ISOBIT_C_DEVICE_H_

#include <cstdint>
#include <memory>

#include "c/boundary.h"
#include "cuda/library.h"
#include "isobit/isobit.h"
#include "isobit/status.h"

namespace isobit::c {

/// A Layer of libisobit_cuda.so.
template <typename Layer>
struct OnDevice {
  const isobit_cuda_functions* functions;
  std::unique_ptr<Layer, void (*)(Layer*)> layer;

  /// make(functions, out) calls the function that makes it, and gives what that returned; destroy: the one that ends
  /// it.
  template <typename Make>
  static Result<OnDevice> create(void (*isobit_cuda_functions::*destroy)(Layer*), Make make) {
    ISOBIT_ASSIGN_OR_RETURN(const isobit_cuda_functions* const functions, cuda::library_functions());
    Layer* made = nullptr;
    ISOBIT_RETURN_IF_ERROR(cuda::library_status(*functions, make(*functions, &made)));
    return OnDevice{functions, {made, functions->*destroy}};
  }
  /// Calls a function of the library on the layer, which returns a status.
  template <typename Function, typename... Arguments>
  [[nodiscard]] Status call(Function isobit_cuda_functions::*function, Arguments... arguments) const {
    return cuda::library_status(*functions, (functions->*function)(layer.get(), arguments...));
  }
};

/// Strides and stream, into the run of a layer; NULL: the defaults.
template <typename Run>
Status read_device_options(const isobit_device_run_options* in, Run& run) {
  isobit_device_run_options c;
  ISOBIT_RETURN_IF_ERROR(read_optional_struct(in, c, "options"));
  ISOBIT_RETURN_IF_ERROR(check_zero(c.reserved, "options->reserved"));
  run.x_stride = c.x_stride;
  run.y_stride = c.y_stride;
  run.stream = c.stream;
  return {};
}

}  // namespace isobit::c

#endif  // ISOBIT_C_DEVICE_H_
