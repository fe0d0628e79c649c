// SPDX-License-Identifier: Apache-2.0
// Convolutions of static codes on CUDA devices, through libisobit_cuda.so.
#include <cstdint>
#include <iterator>
#include <utility>

#include "c/boundary.h"
#include "c/conv.h"
#include "c/device.h"

struct isobit_device_static_conv {
  isobit::c::OnDevice<isobit_cuda_conv> on_device;
  isobit::c::ConvTypes types;
};

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

int32_t isobit_device_static_conv_create(const isobit_static_conv* host_layer, int32_t device,
                                         isobit_device_static_conv** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_device_static_conv> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(host_layer, "host_layer"));
    ISOBIT_ASSIGN_OR_RETURN(const auto saved, host_layer->layer.saved_bytes());
    const auto make = [&](const isobit_cuda_functions& functions, isobit_cuda_conv** made) {
      return functions.conv_create(saved.data(), std::ssize(saved), device, made);
    };
    ISOBIT_ASSIGN_OR_RETURN(auto made, OnDevice<isobit_cuda_conv>::create(&isobit_cuda_functions::conv_destroy, make));
    return isobit_device_static_conv{std::move(made), ConvTypes(host_layer->layer.parameters())};
  });
}

void isobit_device_static_conv_destroy(isobit_device_static_conv* layer) { delete layer; }

int32_t isobit_device_static_conv_workspace_bytes(const isobit_device_static_conv* layer, int64_t images, int64_t rows,
                                                  int64_t columns, int64_t* bytes) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(bytes, "bytes"));
    return layer->on_device.call(&isobit_cuda_functions::conv_workspace_bytes, images, rows, columns, bytes);
  });
}

int32_t isobit_device_static_conv_forward(const isobit_device_static_conv* layer, const void* x, int64_t x_count,
                                          void* y, int64_t y_count, int64_t images, int64_t rows, int64_t columns,
                                          void* workspace, int64_t workspace_bytes, const void* residual,
                                          int64_t residual_count, const isobit_device_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    ISOBIT_ASSIGN_OR_RETURN(const ConvArrays arrays,
                            conv_arrays(layer->types, x, x_count, y, y_count, residual, residual_count));
    ISOBIT_RETURN_IF_ERROR(check_array(workspace, workspace_bytes, 1, "workspace"));
    isobit_cuda_conv_run run{};
    ISOBIT_RETURN_IF_ERROR(read_device_options(options, run));
    run.x = arrays.x.data();
    run.x_bytes = std::ssize(arrays.x);
    run.y = arrays.y.data();
    run.y_bytes = std::ssize(arrays.y);
    run.residual = arrays.residual.data();
    run.residual_bytes = std::ssize(arrays.residual);
    run.workspace = workspace;
    run.workspace_bytes = workspace_bytes;
    run.images = images;
    run.rows = rows;
    run.columns = columns;
    return layer->on_device.call(&isobit_cuda_functions::conv_run, &run);
  });
}

int32_t isobit_device_static_conv_check_input(const isobit_device_static_conv* layer, const void* workspace,
                                              int64_t workspace_bytes, void* stream) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_array(workspace, workspace_bytes, 1, "workspace"));
    return layer->on_device.call(&isobit_cuda_functions::conv_check_input, workspace, workspace_bytes, stream);
  });
}
