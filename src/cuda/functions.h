// SPDX-License-Identifier: Apache-2.0
// libisobit_cuda.so: isobit::cuda for programs that look for it at run time and work without it, such as the Python
// package. It exports one symbol, isobit_cuda_table(), which gives a table of functions. Both sides are built from one
// release of isobit, which the table names; nothing of C++ crosses.
//
// Status. Functions that return an int32_t give 0 or a number of isobit::StatusCode; last_error()
// says why. No exception leaves the library. A call leaves the thread's current device as it was.
//
// Pointers called device memory are of the object's device; types are numbers of isobit::Dtype, streams cudaStream_t.
// What "asynchronous on the stream" promises is in include/isobit/cuda/, whose functions these are.
#ifndef ISOBIT_CUDA_FUNCTIONS_H_
#define ISOBIT_CUDA_FUNCTIONS_H_

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Of what is below; another number with each change.
#define ISOBIT_CUDA_FUNCTIONS_VERSION 5

typedef struct isobit_cuda_gru isobit_cuda_gru;                    // DeviceGru
typedef struct isobit_cuda_gru_training isobit_cuda_gru_training;  // DeviceGruTraining
typedef struct isobit_cuda_gru_qat isobit_cuda_gru_qat;            // DeviceGruQat
typedef struct isobit_cuda_linear isobit_cuda_linear;              // DeviceLinear or DeviceStaticLinear
typedef struct isobit_cuda_conv isobit_cuda_conv;                  // DeviceConv or DeviceStaticConv
typedef struct isobit_cuda_function isobit_cuda_function;          // DeviceFp16Function

// DeviceGru::forward of arrays in device memory.
typedef struct isobit_cuda_gru_run {
  const void* x;  // [T, N, C]; [N, T, C] with batch_first
  int64_t x_bytes;
  void* y;
  int64_t y_bytes;
  void* state;  // continues from it and leaves the last state there
  int64_t state_bytes;
  void* workspace;
  int64_t workspace_bytes;
  const int64_t* lengths;  // [N] in device memory; NULL: T for all
  int64_t lengths_count;
  int64_t steps, batch;
  void* stream;
  int32_t x_dtype, y_dtype;
  int32_t batch_first, whole_sequence;
} isobit_cuda_gru_run;

// GruTrainingSizes.
typedef struct isobit_cuda_gru_training_sizes {
  int64_t steps, batch, input_size, hidden_size, layers, directions;
} isobit_cuda_gru_training_sizes;

// An array of floats in device memory; of an optional one that is not there NULL and 0.
typedef struct isobit_cuda_floats {
  float* data;
  int64_t count;
} isobit_cuda_floats;

// DeviceGruTraining::forward and backward of arrays in device memory. Forward reads weights, x, first, lengths and the
// mask, and writes y, saved and last. Backward reads y, saved, dy and last_gradient, too, and writes dx, first_gradient
// and gradients.
typedef struct isobit_cuda_gru_training_run {
  // In host memory: W, R, bw and br of each direction of each layer, whose rows are those of the gates u, r, n.
  const isobit_cuda_floats* weights;
  int64_t weights_count;  // arrays
  isobit_cuda_floats x, first;
  isobit_cuda_floats y, saved, last;
  isobit_cuda_floats dy, last_gradient;
  isobit_cuda_floats dx, first_gradient;
  const isobit_cuda_floats* gradients;  // in host memory: arrays as weights
  int64_t gradients_count;
  void* workspace;
  int64_t workspace_bytes;
  const int64_t* lengths;  // [N]; NULL: T for all
  int64_t lengths_count;
  const uint8_t* zoneout_mask;  // [layers, T, N, directions * H]; NULL: all 1
  int64_t zoneout_mask_count;
  void* stream;
} isobit_cuda_gru_training_run;

// GridOptions of rows of weights.
typedef struct isobit_cuda_row_options {
  int32_t bits;
  int32_t is_signed, symmetric;  // 0 or 1
  int64_t steps;                 // -1: the default
} isobit_cuda_row_options;

// DeviceGruQat::forward and backward of arrays in device memory. Forward reads x, first, weights, lengths and the mask,
// and writes y, saved and last. Backward reads saved, dy, last_gradient, lengths and the mask, and writes dx,
// first_gradient and gradients.
typedef struct isobit_cuda_gru_qat_run {
  isobit_cuda_gru_training_run arrays;  // all but its saved, which is not read
  void* saved;
  int64_t saved_bytes;
  int64_t steps, batch;
} isobit_cuda_gru_qat_run;

// forward of DeviceLinear or DeviceStaticLinear of arrays in device memory.
typedef struct isobit_cuda_linear_run {
  const void* x;  // [rows, K]
  int64_t x_bytes;
  void* y;  // [rows, N]
  int64_t y_bytes;
  void* workspace;
  int64_t workspace_bytes;
  int64_t rows;
  int64_t x_stride, y_stride;  // elements from row to row; 0: K, N
  void* stream;
  int32_t x_dtype, y_dtype;
} isobit_cuda_linear_run;

// forward of DeviceConv or DeviceStaticConv of arrays in device memory.
typedef struct isobit_cuda_conv_run {
  const void* x;  // [images, rows, columns, C]
  int64_t x_bytes;
  void* y;  // [images, P, Q, O]
  int64_t y_bytes;
  const void* residual;  // of static codes, as y; NULL: none
  int64_t residual_bytes;
  void* workspace;
  int64_t workspace_bytes;
  int64_t images, rows, columns;
  int64_t x_stride, y_stride;  // elements from pixel to pixel; 0: C, O
  void* stream;
  int32_t x_dtype, y_dtype;  // of static codes those of the layer
} isobit_cuda_conv_run;

// LinearOptions or ConvOptions.
typedef struct isobit_cuda_linear_options {
  const float* bias;  // [N] or [O]; NULL: none
  int64_t bias_count;
  int32_t activations;  // a number of isobit::LinearActivations or isobit::ConvActivations
  float lo, hi;         // the clamp
} isobit_cuda_linear_options;

// ConvAxis.
typedef struct isobit_cuda_conv_axis {
  int64_t kernel, stride, dilation, pad_before, pad_after, more;
} isobit_cuda_conv_axis;

// ConvShape.
typedef struct isobit_cuda_conv_shape {
  int64_t channels, outputs, groups;
  isobit_cuda_conv_axis rows, columns;
  int32_t transposed;
} isobit_cuda_conv_shape;

typedef struct isobit_cuda_functions {
  int32_t version;      // ISOBIT_CUDA_FUNCTIONS_VERSION of the library; the first two fields keep their places for ever
  const char* release;  // of isobit, "0.2.0": another one may give other bytes

  // Why the last call that failed on this thread did. Valid until the next one fails on it.
  const char* (*last_error)(void);

  // model: what GruModel::saved_bytes() gave. Checks every field of it, copies it to the device and waits for that.
  int32_t (*gru_create)(const void* model, int64_t model_bytes, int32_t device, isobit_cuda_gru** gru);
  void (*gru_destroy)(isobit_cuda_gru* gru);  // NULL does nothing
  // Bytes of device memory, from a multiple of 256 on: of a state, and for a run.
  int64_t (*gru_state_bytes)(const isobit_cuda_gru* gru, int64_t batch);
  int64_t (*gru_workspace_bytes)(const isobit_cuda_gru* gru, int64_t batch, int64_t steps);
  // h = 0; h [layers * directions, N, H] of f32 to codes and back, all in device memory. Asynchronous on the stream.
  int32_t (*gru_initial_state)(const isobit_cuda_gru* gru, void* state, int64_t state_bytes, int64_t batch,
                               void* stream);
  int32_t (*gru_state_from_float)(const isobit_cuda_gru* gru, const float* h, int64_t h_count, void* state,
                                  int64_t state_bytes, int64_t batch, void* stream);
  int32_t (*gru_state_to_float)(const isobit_cuda_gru* gru, const void* state, int64_t state_bytes, float* h,
                                int64_t h_count, int64_t batch, void* stream);
  // Asynchronous on the stream.
  int32_t (*gru_run)(const isobit_cuda_gru* gru, const isobit_cuda_gru_run* run);
  // Waits for the stream; an error with the index of the first NaN of x in the last run that used this workspace.
  int32_t (*gru_check_input)(const isobit_cuda_gru* gru, const void* workspace, int64_t workspace_bytes, void* stream);

  // name: the training in messages. Copies nothing to the device.
  int32_t (*gru_training_create)(const isobit_cuda_gru_training_sizes* sizes, const char* name, int32_t device,
                                 isobit_cuda_gru_training** training);
  void (*gru_training_destroy)(isobit_cuda_gru_training* training);  // NULL does nothing
  // Bytes of device memory, from a multiple of 256 on, for forward and for backward.
  int64_t (*gru_training_workspace_bytes)(const isobit_cuda_gru_training* training);
  // Asynchronous on the stream.
  int32_t (*gru_training_forward)(const isobit_cuda_gru_training* training, const isobit_cuda_gru_training_run* run);
  int32_t (*gru_training_backward)(const isobit_cuda_gru_training* training, const isobit_cuda_gru_training_run* run);

  // model: as of gru_create. rows: of each layer those of W, R, bw and br. rows_kept: 1 for GruRowGrids::kKept, else 0.
  // name: the training in messages. Checks every field of the model, copies its tables to the device and waits for
  // that.
  int32_t (*gru_qat_create)(const void* model, int64_t model_bytes, const isobit_cuda_row_options* rows,
                            int64_t rows_count, int32_t rows_kept, const char* name, int32_t device,
                            isobit_cuda_gru_qat** qat);
  void (*gru_qat_destroy)(isobit_cuda_gru_qat* qat);  // NULL does nothing
  // Bytes of device memory, from a multiple of 256 on: of what a backward needs of its forward, and for either of them.
  int64_t (*gru_qat_saved_bytes)(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch);
  int64_t (*gru_qat_workspace_bytes)(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch);
  // Asynchronous on the stream.
  int32_t (*gru_qat_forward)(const isobit_cuda_gru_qat* qat, const isobit_cuda_gru_qat_run* run);
  int32_t (*gru_qat_backward)(const isobit_cuda_gru_qat* qat, const isobit_cuda_gru_qat_run* run);
  // Waits for the stream; an error with what the forward met that wrote `saved`, where it counts. shares, in host
  // memory: what its clamps changed of h, ih, hh, u_in, r_in and n_in of each direction of each layer, then of x.
  int32_t (*gru_qat_check)(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch, void* saved,
                           int64_t saved_bytes, void* stream, double* shares, int64_t shares_count);

  // weights: what saved_low_bit() gave for one matrix. Checks every field of it, copies it to the device and waits for
  // that.
  int32_t (*linear_create)(const void* weights, int64_t weights_bytes, const isobit_cuda_linear_options* options,
                           int32_t device, isobit_cuda_linear** linear);
  // layer: what StaticLinearLayer::saved_bytes() gave; the same of it.
  int32_t (*linear_create_static)(const void* layer, int64_t layer_bytes, int32_t device, isobit_cuda_linear** linear);
  void (*linear_destroy)(isobit_cuda_linear* linear);  // NULL does nothing
  // Bytes of device memory, from a multiple of 256 on, for a run of so many rows.
  int64_t (*linear_workspace_bytes)(const isobit_cuda_linear* linear, int64_t rows);
  // Asynchronous on the stream.
  int32_t (*linear_run)(const isobit_cuda_linear* linear, const isobit_cuda_linear_run* run);
  // Waits for the stream; an error with the first row of x that is not finite, or the first code outside the grid, in
  // the last run, of so many rows, that used this workspace.
  int32_t (*linear_check_input)(const isobit_cuda_linear* linear, void* workspace, int64_t workspace_bytes,
                                int64_t rows, void* stream);

  // weights: what saved_low_bit() gave for one matrix; name: the layer in messages. All else as linear_create.
  int32_t (*conv_create)(const void* weights, int64_t weights_bytes, const isobit_cuda_conv_shape* shape,
                         const isobit_cuda_linear_options* options, const char* name, int32_t device,
                         isobit_cuda_conv** conv);
  // layer: what StaticConvLayer::saved_bytes() gave; the same of it.
  int32_t (*conv_create_static)(const void* layer, int64_t layer_bytes, int32_t device, isobit_cuda_conv** conv);
  void (*conv_destroy)(isobit_cuda_conv* conv);  // NULL does nothing
  // Bytes of device memory, from a multiple of 256 on, for a run of so many images of that size.
  int32_t (*conv_workspace_bytes)(const isobit_cuda_conv* conv, int64_t images, int64_t rows, int64_t columns,
                                  int64_t* bytes);
  // Asynchronous on the stream.
  int32_t (*conv_run)(const isobit_cuda_conv* conv, const isobit_cuda_conv_run* run);
  // Waits for the stream; an error with the first pixel or image of x that could not be quantised, or the first code
  // outside the grid, of those that outputs read, in the last run, of so many images of that size, that used this
  // workspace.
  int32_t (*conv_check_input)(const isobit_cuda_conv* conv, const void* workspace, int64_t workspace_bytes,
                              int64_t images, int64_t rows, int64_t columns, void* stream);

  // results: those of Fp16Function::results(), 65536 codes of f16. Waits until they are on the device.
  int32_t (*function_create)(const uint16_t* results, int64_t results_count, int32_t device,
                             isobit_cuda_function** function);
  void (*function_destroy)(isobit_cuda_function* function);
  // y[i] = f(x[i]), f16, bf16 or f32 in and out. Asynchronous on the stream.
  int32_t (*function_run)(const isobit_cuda_function* function, const void* x, int64_t x_bytes, int32_t x_dtype,
                          void* y, int64_t y_bytes, int32_t y_dtype, void* stream);
} isobit_cuda_functions;

static_assert(sizeof(isobit_cuda_gru_run) == 120 && offsetof(isobit_cuda_gru_run, x_dtype) == 104,
              "isobit_cuda_gru_run");
static_assert(sizeof(isobit_cuda_gru_training_sizes) == 48, "isobit_cuda_gru_training_sizes");
static_assert(sizeof(isobit_cuda_gru_training_run) == 232 && offsetof(isobit_cuda_gru_training_run, stream) == 224,
              "isobit_cuda_gru_training_run");
static_assert(sizeof(isobit_cuda_row_options) == 24 && offsetof(isobit_cuda_row_options, steps) == 16,
              "isobit_cuda_row_options");
static_assert(sizeof(isobit_cuda_gru_qat_run) == 264 && offsetof(isobit_cuda_gru_qat_run, batch) == 256,
              "isobit_cuda_gru_qat_run");
static_assert(sizeof(isobit_cuda_linear_run) == 88 && offsetof(isobit_cuda_linear_run, x_dtype) == 80,
              "isobit_cuda_linear_run");
static_assert(sizeof(isobit_cuda_conv_run) == 120 && offsetof(isobit_cuda_conv_run, x_dtype) == 112,
              "isobit_cuda_conv_run");
static_assert(sizeof(isobit_cuda_conv_shape) == 128 && offsetof(isobit_cuda_conv_shape, transposed) == 120,
              "isobit_cuda_conv_shape");
static_assert(sizeof(isobit_cuda_linear_options) == 32 && offsetof(isobit_cuda_linear_options, hi) == 24,
              "isobit_cuda_linear_options");
static_assert(offsetof(isobit_cuda_functions, version) == 0 && offsetof(isobit_cuda_functions, release) == 8,
              "what is read before the versions are known to be the same");
static_assert(sizeof(isobit_cuda_functions) == 39 * 8, "a change of isobit_cuda_functions is another version");

// `version`: that of the caller. A library that has no such table gives its own.
#define ISOBIT_CUDA_TABLE_SYMBOL "isobit_cuda_table"
typedef const isobit_cuda_functions* isobit_cuda_table_type(int32_t version);

#ifdef __cplusplus
}
#endif

#endif  // ISOBIT_CUDA_FUNCTIONS_H_
