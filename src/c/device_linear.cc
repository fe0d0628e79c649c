// SPDX-License-Identifier: Apache-2.0
// Linear layers on CUDA devices, through libisobit_cuda.so.
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "c/boundary.h"
#include "c/device.h"
#include "c/linear.h"
#include "c/low_bit.h"
#include "isobit/low_bit.h"

struct isobit_device_linear {
  isobit::c::OnDevice<isobit_cuda_linear> on_device;
};

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

namespace {

/// As OnDevice::create.
template <typename Make>
Result<isobit_device_linear> device_layer(Make make) {
  ISOBIT_ASSIGN_OR_RETURN(auto made,
                          OnDevice<isobit_cuda_linear>::create(&isobit_cuda_functions::linear_destroy, make));
  return isobit_device_linear{std::move(made)};
}

/// A device gets rows of x as they are.
Status check_order(const std::vector<int32_t>& permutation, const char* name) {
  if (permutation.empty()) return {};
  return {StatusCode::kUnsupported,
          std::string(name) + " has its columns in another order than x (GPTQ with groups in the order of " +
              "activations), which is not supported on a device from C; use isobit_linear_create, or Python"};
}

}  // namespace

int32_t isobit_device_linear_create(const isobit_low_bit* matrix, const isobit_linear_options* options, int32_t device,
                                    isobit_device_linear** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_device_linear> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(matrix, "matrix"));
    ISOBIT_ASSIGN_OR_RETURN(const LinearOptions how, layer_options(options));
    ISOBIT_RETURN_IF_ERROR(check_no_path(how.path));
    ISOBIT_RETURN_IF_ERROR(check_order(matrix->permutation, "matrix"));
    ISOBIT_ASSIGN_OR_RETURN(const auto saved, saved_low_bit({.matrices = {{"layer", matrix->matrix}}}));
    const isobit_cuda_linear_options of_layer = cuda::library_options(how);
    return device_layer([&](const isobit_cuda_functions& functions, isobit_cuda_linear** made) {
      return functions.linear_create(saved.data(), std::ssize(saved), &of_layer, device, made);
    });
  });
}

int32_t isobit_device_linear_create_static(const isobit_static_linear* host_layer, int32_t device,
                                           isobit_device_linear** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_device_linear> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(host_layer, "host_layer"));
    ISOBIT_RETURN_IF_ERROR(check_order(host_layer->permutation, "host_layer"));
    ISOBIT_ASSIGN_OR_RETURN(const auto saved, host_layer->layer.saved_bytes());
    return device_layer([&](const isobit_cuda_functions& functions, isobit_cuda_linear** made) {
      return functions.linear_create_static(saved.data(), std::ssize(saved), device, made);
    });
  });
}

void isobit_device_linear_destroy(isobit_device_linear* layer) { delete layer; }

int32_t isobit_device_linear_workspace_bytes(const isobit_device_linear* layer, int64_t m, int64_t* bytes) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(bytes, "bytes"));
    ISOBIT_RETURN_IF_ERROR(check_between(m, 0, kMaxExtent, "m"));
    const auto& [functions, linear] = layer->on_device;
    *bytes = functions->linear_workspace_bytes(linear.get(), m);
    return {};
  });
}

int32_t isobit_device_linear_forward(const isobit_device_linear* layer, const void* x, int32_t x_dtype, int64_t x_count,
                                     void* y, int32_t y_dtype, int64_t y_count, int64_t m, void* workspace,
                                     int64_t workspace_bytes, const isobit_device_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(m, 0, kMaxExtent, "m"));
    ISOBIT_ASSIGN_OR_RETURN(const TypedArrays of, typed_arrays(x, x_dtype, x_count, y, y_dtype, y_count));
    isobit_cuda_linear_run run{};
    ISOBIT_RETURN_IF_ERROR(set_run(of, workspace, workspace_bytes, options, run));
    run.rows = m;
    return layer->on_device.call(&isobit_cuda_functions::linear_run, &run);
  });
}

int32_t isobit_device_linear_check_input(const isobit_device_linear* layer, void* workspace, int64_t workspace_bytes,
                                         int64_t m, void* stream) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_array(workspace, workspace_bytes, 1, "workspace"));
    ISOBIT_RETURN_IF_ERROR(check_between(m, 0, kMaxExtent, "m"));
    return layer->on_device.call(&isobit_cuda_functions::linear_check_input, workspace, workspace_bytes, m, stream);
  });
}
