// SPDX-License-Identifier: Apache-2.0
// What layers on CUDA devices share; they are reached through libisobit_cuda.so.
#ifndef ISOBIT_C_DEVICE_H_
#define ISOBIT_C_DEVICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "c/boundary.h"
#include "cuda/library.h"
#include "isobit/cpu.h"
#include "isobit/dtype.h"
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

/// Of the options of a layer.
inline Status check_no_path(const std::optional<CpuPath>& path) {
  if (!path) return {};
  return refuse("options->cpu_path is " + std::to_string(number_of(*path)) +
                ", must be ISOBIT_CPU_DEFAULT, 0, for a device");
}

/// All of a run that layers of every kind have. options: NULL: the defaults.
template <typename Run>
Status set_run(const TypedArrays& arrays, void* workspace, int64_t workspace_bytes,
               const isobit_device_run_options* options, Run& run) {
  ISOBIT_ASSIGN_OR_RETURN(const auto memory, writable_bytes_of(workspace, workspace_bytes, Dtype::kU8, "workspace"));
  isobit_device_run_options c;
  ISOBIT_RETURN_IF_ERROR(read_optional_struct(options, c, "options"));
  ISOBIT_RETURN_IF_ERROR(check_zero(c.reserved, "options->reserved"));
  run.x_stride = c.x_stride;
  run.y_stride = c.y_stride;
  run.stream = c.stream;
  cuda::set_arrays(arrays.x, arrays.x_dtype, arrays.y, arrays.y_dtype, memory, run);
  return {};
}

}  // namespace isobit::c

#endif  // ISOBIT_C_DEVICE_H_
