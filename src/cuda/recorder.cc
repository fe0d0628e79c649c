// SPDX-License-Identifier: Apache-2.0
// A libisobit_cuda.so for tests without a device. It has convolutions and the training of GRUs only, computes nothing,
// and tells what its functions were given.
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "cuda/functions.h"

struct isobit_cuda_conv {
  int32_t device;
};
struct isobit_cuda_gru_training {
  int32_t device;
};
struct isobit_cuda_gru_qat {
  int32_t device;
};

extern "C" {
__attribute__((visibility("default"))) isobit_cuda_table_type isobit_cuda_table;
/// Since it was last asked, a line each: the function, and its numbers, bits of floats and addresses in their order.
/// Valid until then.
__attribute__((visibility("default"))) const char* isobit_cuda_told();
}

namespace {

constexpr int32_t kInvalidArgument = 1;
constexpr int64_t kWorkspaceBytes = 768;
std::string told;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

void tell(const std::string& what, std::initializer_list<int64_t> values) {
  told += what;
  for (const int64_t value : values) told += " " + std::to_string(value);
  told += "\n";
}
int64_t number_of(const void* address) { return reinterpret_cast<intptr_t>(address); }

const char* last_error() { return "refused by the recorder"; }

int64_t bits_of(float value) { return std::bit_cast<int32_t>(value); }

int32_t make(int32_t device, isobit_cuda_conv** conv) {
  *conv = device < 0 ? nullptr : new isobit_cuda_conv{device};
  return device < 0 ? kInvalidArgument : 0;
}

/// Of the bias, how many and the last.
int32_t conv_create(const void* weights, int64_t weights_bytes, const isobit_cuda_conv_shape* shape,
                    const isobit_cuda_linear_options* options, const char* name, int32_t device,
                    isobit_cuda_conv** conv) {
  tell("conv_create " + std::string(name), {weights != nullptr && weights_bytes > 0 ? 1 : 0, device, shape->channels,
                                            shape->outputs, shape->groups, shape->transposed});
  for (const isobit_cuda_conv_axis& axis : {shape->rows, shape->columns})
    tell("axis", {axis.kernel, axis.stride, axis.dilation, axis.pad_before, axis.pad_after, axis.more});
  const int64_t count = options->bias_count;
  tell("options", {options->activations, bits_of(options->lo), bits_of(options->hi), count,
                   count == 0 ? 0 : bits_of(options->bias[count - 1])});
  return make(device, conv);
}

int32_t conv_create_static(const void* layer, int64_t layer_bytes, int32_t device, isobit_cuda_conv** conv) {
  tell("conv_create_static", {layer != nullptr && layer_bytes > 0 ? 1 : 0, device});
  return make(device, conv);
}

void conv_destroy(isobit_cuda_conv* conv) {
  tell("conv_destroy", {conv->device});
  delete conv;
}

int32_t conv_workspace_bytes(const isobit_cuda_conv* conv, int64_t images, int64_t rows, int64_t columns,
                             int64_t* bytes) {
  tell("conv_workspace_bytes", {conv->device, images, rows, columns});
  if (rows == 0) return kInvalidArgument;
  *bytes = kWorkspaceBytes;
  return 0;
}

int32_t conv_run(const isobit_cuda_conv* conv, const isobit_cuda_conv_run* run) {
  tell("conv_run",
       {conv->device, number_of(run->x), run->x_bytes, number_of(run->y), run->y_bytes, number_of(run->residual),
        run->residual_bytes, number_of(run->workspace), run->workspace_bytes, run->images, run->rows, run->columns,
        run->x_stride, run->y_stride, number_of(run->stream), run->x_dtype, run->y_dtype});
  return run->rows == 0 ? kInvalidArgument : 0;
}

int32_t conv_check_input(const isobit_cuda_conv* conv, const void* workspace, int64_t workspace_bytes, int64_t images,
                         int64_t rows, int64_t columns, void* stream) {
  tell("conv_check_input",
       {conv->device, number_of(workspace), workspace_bytes, images, rows, columns, number_of(stream)});
  return kInvalidArgument;
}

int32_t gru_training_create(const isobit_cuda_gru_training_sizes* sizes, const char* name, int32_t device,
                            isobit_cuda_gru_training** training) {
  tell("gru_training_create " + std::string(name),
       {device, sizes->steps, sizes->batch, sizes->input_size, sizes->hidden_size, sizes->layers, sizes->directions});
  *training = device < 0 ? nullptr : new isobit_cuda_gru_training{device};
  return device < 0 ? kInvalidArgument : 0;
}

void gru_training_destroy(isobit_cuda_gru_training* training) {
  tell("gru_training_destroy", {training->device});
  delete training;
}

int64_t gru_training_workspace_bytes(const isobit_cuda_gru_training* training) {
  tell("gru_training_workspace_bytes", {training->device});
  return kWorkspaceBytes;
}

void tell_run(const std::string& what, int32_t device, const isobit_cuda_gru_training_run& run) {
  tell(what, {device, number_of(run.workspace), run.workspace_bytes, number_of(run.lengths), run.lengths_count,
              number_of(run.zoneout_mask), run.zoneout_mask_count, number_of(run.stream)});
  const auto tell_floats = [](const std::string& name, const isobit_cuda_floats& of) {
    tell(name, {number_of(of.data), of.count});
  };
  for (int64_t i = 0; i < run.weights_count; ++i) tell_floats("weights", run.weights[i]);
  for (const isobit_cuda_floats& of :
       {run.x, run.first, run.y, run.saved, run.last, run.dy, run.last_gradient, run.dx, run.first_gradient})
    tell_floats("floats", of);
  for (int64_t i = 0; i < run.gradients_count; ++i) tell_floats("gradients", run.gradients[i]);
}

int32_t gru_training_forward(const isobit_cuda_gru_training* training, const isobit_cuda_gru_training_run* run) {
  tell_run("gru_training_forward", training->device, *run);
  return run->x.count == 0 ? kInvalidArgument : 0;
}

int32_t gru_training_backward(const isobit_cuda_gru_training* training, const isobit_cuda_gru_training_run* run) {
  tell_run("gru_training_backward", training->device, *run);
  return run->x.count == 0 ? kInvalidArgument : 0;
}

int32_t gru_qat_create(const void* model, int64_t model_bytes, const isobit_cuda_row_options* rows, int64_t rows_count,
                       int32_t rows_kept, const char* name, int32_t device, isobit_cuda_gru_qat** qat) {
  tell("gru_qat_create " + std::string(name),
       {model != nullptr && model_bytes > 0 ? 1 : 0, device, rows_kept, rows_count});
  for (int64_t i = 0; i < rows_count; ++i)
    tell("rows", {rows[i].bits, rows[i].is_signed, rows[i].symmetric, rows[i].steps});
  *qat = device < 0 ? nullptr : new isobit_cuda_gru_qat{device};
  return device < 0 ? kInvalidArgument : 0;
}

void gru_qat_destroy(isobit_cuda_gru_qat* qat) {
  tell("gru_qat_destroy", {qat->device});
  delete qat;
}

int64_t gru_qat_saved_bytes(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch) {
  tell("gru_qat_saved_bytes", {qat->device, steps, batch});
  return 256 * steps * batch;
}

int64_t gru_qat_workspace_bytes(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch) {
  tell("gru_qat_workspace_bytes", {qat->device, steps, batch});
  return kWorkspaceBytes;
}

int32_t tell_qat_run(const std::string& what, const isobit_cuda_gru_qat* qat, const isobit_cuda_gru_qat_run& run) {
  tell_run(what, qat->device, run.arrays);
  tell("saved", {number_of(run.saved), run.saved_bytes, run.steps, run.batch});
  return run.steps == 0 ? kInvalidArgument : 0;
}

int32_t gru_qat_forward(const isobit_cuda_gru_qat* qat, const isobit_cuda_gru_qat_run* run) {
  return tell_qat_run("gru_qat_forward", qat, *run);
}

int32_t gru_qat_backward(const isobit_cuda_gru_qat* qat, const isobit_cuda_gru_qat_run* run) {
  return tell_qat_run("gru_qat_backward", qat, *run);
}

/// Shares are 0, 1/16, 2/16, ...
int32_t gru_qat_check(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch, void* saved, int64_t saved_bytes,
                      void* stream, double* shares, int64_t shares_count) {
  tell("gru_qat_check", {qat->device, steps, batch, number_of(saved), saved_bytes, number_of(stream), shares_count});
  for (int64_t i = 0; i < shares_count; ++i) shares[i] = static_cast<double>(i) / 16;
  return steps == 1 ? kInvalidArgument : 0;
}

constexpr isobit_cuda_functions recorded_functions() {
  isobit_cuda_functions functions{};
  functions.version = ISOBIT_CUDA_FUNCTIONS_VERSION;
  functions.release = ISOBIT_VERSION;
  functions.last_error = last_error;
  functions.gru_training_create = gru_training_create;
  functions.gru_training_destroy = gru_training_destroy;
  functions.gru_training_workspace_bytes = gru_training_workspace_bytes;
  functions.gru_training_forward = gru_training_forward;
  functions.gru_training_backward = gru_training_backward;
  functions.gru_qat_create = gru_qat_create;
  functions.gru_qat_destroy = gru_qat_destroy;
  functions.gru_qat_saved_bytes = gru_qat_saved_bytes;
  functions.gru_qat_workspace_bytes = gru_qat_workspace_bytes;
  functions.gru_qat_forward = gru_qat_forward;
  functions.gru_qat_backward = gru_qat_backward;
  functions.gru_qat_check = gru_qat_check;
  functions.conv_create = conv_create;
  functions.conv_create_static = conv_create_static;
  functions.conv_destroy = conv_destroy;
  functions.conv_workspace_bytes = conv_workspace_bytes;
  functions.conv_run = conv_run;
  functions.conv_check_input = conv_check_input;
  return functions;
}
constexpr isobit_cuda_functions kFunctions = recorded_functions();

}  // namespace

const isobit_cuda_functions* isobit_cuda_table(int32_t) { return &kFunctions; }

const char* isobit_cuda_told() {
  static std::string last;
  last = std::exchange(told, {});
  return last.c_str();
}
