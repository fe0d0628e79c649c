// SPDX-License-Identifier: Apache-2.0
// Convolutions on CUDA devices, through libisobit_cuda.so.
#include <cstdint>
#include <iterator>
#include <utility>

#include "c/boundary.h"
#include "c/conv.h"
#include "c/device.h"
#include "c/low_bit.h"
#include "isobit/low_bit.h"

using ConvOnDevice = isobit::c::OnDevice<isobit_cuda_conv>;

struct isobit_device_conv {
  ConvOnDevice on_device;
};

struct isobit_device_static_conv {
  ConvOnDevice on_device;
  isobit::c::ConvTypes types;
};

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

namespace {

/// As OnDevice::create.
template <typename Make>
Result<ConvOnDevice> conv_on_device(Make make) {
  return ConvOnDevice::create(&isobit_cuda_functions::conv_destroy, make);
}

/// Of a layer of either kind, as what follows.
template <typename Layer>
int32_t ask_workspace_bytes(const Layer* layer, int64_t images, const ImageSize& image, int64_t* bytes) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(bytes, "bytes"));
    return layer->on_device.call(&isobit_cuda_functions::conv_workspace_bytes, images, image.rows, image.columns,
                                 bytes);
  });
}

Status forward(const ConvOnDevice& layer, const TypedArrays& arrays, int64_t images, const ImageSize& image,
               void* workspace, int64_t workspace_bytes, const isobit_device_run_options* options,
               isobit_cuda_conv_run run = {}) {
  ISOBIT_RETURN_IF_ERROR(set_run(arrays, workspace, workspace_bytes, options, run));
  run.images = images;
  run.rows = image.rows;
  run.columns = image.columns;
  return layer.call(&isobit_cuda_functions::conv_run, &run);
}

template <typename Layer>
int32_t check_input(const Layer* layer, const void* workspace, int64_t workspace_bytes, int64_t images,
                    const ImageSize& image, void* stream) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_array(workspace, workspace_bytes, 1, "workspace"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    return layer->on_device.call(&isobit_cuda_functions::conv_check_input, workspace, workspace_bytes, images,
                                 image.rows, image.columns, stream);
  });
}

}  // namespace

int32_t isobit_device_conv_create(const isobit_low_bit* matrix, const isobit_conv_shape* shape,
                                  const isobit_linear_options* options, int32_t device, isobit_device_conv** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_device_conv> {
    ISOBIT_ASSIGN_OR_RETURN(const ConvForm form, conv_form(matrix, shape, options));
    ISOBIT_RETURN_IF_ERROR(check_no_path(form.options.path));
    ISOBIT_ASSIGN_OR_RETURN(const auto saved, saved_low_bit({.matrices = {{"layer", matrix->matrix}}}));
    const isobit_cuda_conv_shape of = cuda::library_shape(form.shape);
    const isobit_cuda_linear_options how = cuda::library_options(form.options);
    ISOBIT_ASSIGN_OR_RETURN(auto made, conv_on_device([&](const auto& functions, isobit_cuda_conv** conv) {
                              return functions.conv_create(saved.data(), std::ssize(saved), &of, &how, "layer", device,
                                                           conv);
                            }));
    return isobit_device_conv{std::move(made)};
  });
}

void isobit_device_conv_destroy(isobit_device_conv* layer) { delete layer; }

int32_t isobit_device_conv_workspace_bytes(const isobit_device_conv* layer, int64_t images, int64_t rows,
                                           int64_t columns, int64_t* bytes) {
  return ask_workspace_bytes(layer, images, {rows, columns}, bytes);
}

int32_t isobit_device_conv_forward(const isobit_device_conv* layer, const void* x, int32_t x_dtype, int64_t x_count,
                                   void* y, int32_t y_dtype, int64_t y_count, int64_t images, int64_t rows,
                                   int64_t columns, void* workspace, int64_t workspace_bytes,
                                   const isobit_device_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(layer, "layer"));
    ISOBIT_RETURN_IF_ERROR(check_between(images, 0, kMaxExtent, "images"));
    ISOBIT_ASSIGN_OR_RETURN(const TypedArrays of, typed_arrays(x, x_dtype, x_count, y, y_dtype, y_count));
    return forward(layer->on_device, of, images, {rows, columns}, workspace, workspace_bytes, options);
  });
}

int32_t isobit_device_conv_check_input(const isobit_device_conv* layer, const void* workspace, int64_t workspace_bytes,
                                       int64_t images, int64_t rows, int64_t columns, void* stream) {
  return check_input(layer, workspace, workspace_bytes, images, {rows, columns}, stream);
}

int32_t isobit_device_static_conv_create(const isobit_static_conv* host_layer, int32_t device,
                                         isobit_device_static_conv** layer) {
  return make_handle(layer, "layer", [&]() -> Result<isobit_device_static_conv> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(host_layer, "host_layer"));
    ISOBIT_ASSIGN_OR_RETURN(const auto saved, host_layer->layer.saved_bytes());
    ISOBIT_ASSIGN_OR_RETURN(auto made, conv_on_device([&](const auto& functions, isobit_cuda_conv** conv) {
                              return functions.conv_create_static(saved.data(), std::ssize(saved), device, conv);
                            }));
    return isobit_device_static_conv{std::move(made), ConvTypes(host_layer->layer.parameters())};
  });
}

void isobit_device_static_conv_destroy(isobit_device_static_conv* layer) { delete layer; }

int32_t isobit_device_static_conv_workspace_bytes(const isobit_device_static_conv* layer, int64_t images, int64_t rows,
                                                  int64_t columns, int64_t* bytes) {
  return ask_workspace_bytes(layer, images, {rows, columns}, bytes);
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
    isobit_cuda_conv_run run{};
    run.residual = arrays.residual.data();
    run.residual_bytes = std::ssize(arrays.residual);
    return forward(layer->on_device, {arrays.x, layer->types.x, arrays.y, layer->types.y}, images, {rows, columns},
                   workspace, workspace_bytes, options, run);
  });
}

int32_t isobit_device_static_conv_check_input(const isobit_device_static_conv* layer, const void* workspace,
                                              int64_t workspace_bytes, void* stream) {
  return check_input(layer, workspace, workspace_bytes, /*images=*/0, {}, stream);  // which a layer of codes never asks
}
