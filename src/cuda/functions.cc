// SPDX-License-Identifier: Apache-2.0
#include "cuda/functions.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/cuda/status.h"
#include "isobit/arrays.h"
#include "isobit/conv.h"
#include "isobit/cuda/conv.h"
#include "isobit/cuda/fp16_table.h"
#include "isobit/cuda/gru.h"
#include "isobit/cuda/gru_qat.h"
#include "isobit/cuda/gru_training.h"
#include "isobit/cuda/linear.h"
#include "isobit/dtype.h"
#include "isobit/gru.h"
#include "isobit/gru_training.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/run.h"
#include "isobit/status.h"

extern "C" __attribute__((visibility("default"))) isobit_cuda_table_type isobit_cuda_table;

struct isobit_cuda_gru {
  isobit::cuda::DeviceGru gru;
};
struct isobit_cuda_gru_training {
  isobit::cuda::DeviceGruTraining training;
};
struct isobit_cuda_gru_qat {
  isobit::cuda::DeviceGruQat qat;
};
struct isobit_cuda_linear {
  std::variant<isobit::cuda::DeviceLinear, isobit::cuda::DeviceStaticLinear> layer;
};
struct isobit_cuda_conv {
  std::variant<isobit::cuda::DeviceConv, isobit::cuda::DeviceStaticConv> layer;
};
struct isobit_cuda_function {
  isobit::cuda::DeviceFp16Function function;
  int device;
};

namespace isobit::cuda {
namespace {

thread_local std::string last_error_text;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

const char* last_error() { return last_error_text.c_str(); }

/// Runs the body of a function, which returns a Status.
template <typename Body>
int32_t guarded(Body&& body) noexcept {
  try {
    const Status status = std::forward<Body>(body)();
    if (!status.ok()) last_error_text = status.message();
    return static_cast<int32_t>(status.code());
  } catch (const std::bad_alloc&) {
    last_error_text.clear();
    last_error_text.append("no memory");  // fits a string's own bytes
  } catch (const std::exception& error) {
    last_error_text = error.what();
  }
  return static_cast<int32_t>(StatusCode::kIo);
}

/// The thread's current device as long as this lives.
class CurrentDevice {
 public:
  CurrentDevice() = default;
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  Status set(int device) {
    const std::string what = "device " + std::to_string(device);
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&before_), what));
    if (before_ == device) return {};
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device), what));
    changed_ = true;
    return {};
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// The same for a body that needs it.
template <typename Body>
int32_t guarded_on(int device, Body&& body) noexcept {
  return guarded([&]() -> Status {
    CurrentDevice current;
    ISOBIT_RETURN_IF_ERROR(current.set(device));
    return std::forward<Body>(body)();
  });
}

/// The handle of what make() gives on a device.
template <typename Handle, typename Make>
Status make_on(int device, Handle** handle, Make&& make) {
  CurrentDevice current;
  ISOBIT_RETURN_IF_ERROR(current.set(device));
  ISOBIT_ASSIGN_OR_RETURN(auto made, std::forward<Make>(make)());
  *handle = new Handle{std::move(made)};
  return {};
}

/// The Model whose file `saved` is.
template <typename Model>
Result<Model> load_saved(const void* saved, int64_t saved_bytes, const char* name) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::view(saved, static_cast<size_t>(saved_bytes), name));
  return Model::load(file);
}

/// The handle of a copy of it on a device.
template <typename Model, typename OnDevice, typename Handle>
int32_t create_saved(const void* saved, int64_t saved_bytes, const char* name, int32_t device, Handle** handle) {
  *handle = nullptr;
  return guarded([&]() -> Status {
    ISOBIT_ASSIGN_OR_RETURN(const Model loaded, load_saved<Model>(saved, saved_bytes, name));
    return make_on(device, handle, [&] { return OnDevice::create(loaded, device); });
  });
}

/// The handle of a layer that make(matrix) gives, of the one matrix of a file.
template <typename Handle, typename Make>
int32_t create_of_matrix(const void* weights, int64_t weights_bytes, int32_t device, Handle** handle, Make&& make) {
  *handle = nullptr;
  return guarded([&]() -> Status {
    const std::string name = "the weights";
    ISOBIT_ASSIGN_OR_RETURN(const LowBitFile file, parse_low_bit(weights, static_cast<size_t>(weights_bytes), name));
    if (file.matrices.size() != 1)
      return {StatusCode::kInvalidArgument,
              name + " are " + std::to_string(file.matrices.size()) + " matrices, must be 1"};
    return make_on(device, handle, [&] { return std::forward<Make>(make)(file.matrices.begin()->second); });
  });
}

/// LinearOptions or ConvOptions.
template <typename Options>
Options options_of(const isobit_cuda_linear_options& options) {
  return {.activations = static_cast<decltype(Options::activations)>(options.activations),
          .bias = {options.bias, static_cast<size_t>(options.bias_count)},
          .clamp = {options.lo, options.hi}};
}

std::span<const std::byte> bytes_of(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)};
}
std::span<std::byte> bytes_of(void* data, int64_t bytes) {
  return {static_cast<std::byte*>(data), static_cast<size_t>(bytes)};
}
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

/// Of the run of a layer.
template <typename Run>
RunOptions run_options(const Run& run) {
  RunOptions options;
  options.stream = stream_of(run.stream);
  options.x_stride = run.x_stride;
  options.y_stride = run.y_stride;
  return options;
}

/// The device of a layer of floats or of static codes.
template <typename Handle>
int device_of(const Handle* handle) {
  return std::visit([](const auto& layer) { return layer.device(); }, handle->layer);
}

// ---- GRUs

int32_t gru_create(const void* model, int64_t model_bytes, int32_t device, isobit_cuda_gru** gru) {
  return create_saved<GruModel, DeviceGru>(model, model_bytes, "the model", device, gru);
}

void gru_destroy(isobit_cuda_gru* gru) { delete gru; }

int64_t gru_state_bytes(const isobit_cuda_gru* gru, int64_t batch) { return gru->gru.state_bytes(batch); }

int64_t gru_workspace_bytes(const isobit_cuda_gru* gru, int64_t batch, int64_t steps) {
  return gru->gru.workspace_bytes(batch, steps);
}

int32_t gru_initial_state(const isobit_cuda_gru* gru, void* state, int64_t state_bytes, int64_t batch, void* stream) {
  return guarded_on(gru->gru.device(),
                    [&] { return gru->gru.initial_state(bytes_of(state, state_bytes), batch, stream_of(stream)); });
}

int32_t gru_state_from_float(const isobit_cuda_gru* gru, const float* h, int64_t h_count, void* state,
                             int64_t state_bytes, int64_t batch, void* stream) {
  return guarded_on(gru->gru.device(), [&] {
    return gru->gru.state_from_float({h, static_cast<size_t>(h_count)}, bytes_of(state, state_bytes), batch,
                                     stream_of(stream));
  });
}

int32_t gru_state_to_float(const isobit_cuda_gru* gru, const void* state, int64_t state_bytes, float* h,
                           int64_t h_count, int64_t batch, void* stream) {
  return guarded_on(gru->gru.device(), [&] {
    return gru->gru.state_to_float(bytes_of(state, state_bytes), {h, static_cast<size_t>(h_count)}, batch,
                                   stream_of(stream));
  });
}

int32_t gru_run(const isobit_cuda_gru* gru, const isobit_cuda_gru_run* run) {
  return guarded_on(gru->gru.device(), [&] {
    RunOptions options;
    options.stream = stream_of(run->stream);
    options.batch_first = run->batch_first != 0;
    options.whole_sequence = run->whole_sequence != 0;
    options.lengths = {run->lengths, static_cast<size_t>(run->lengths_count)};
    return gru->gru.forward(bytes_of(run->x, run->x_bytes), static_cast<Dtype>(run->x_dtype),
                            bytes_of(run->y, run->y_bytes), static_cast<Dtype>(run->y_dtype), run->steps, run->batch,
                            bytes_of(run->state, run->state_bytes), bytes_of(run->workspace, run->workspace_bytes),
                            options);
  });
}

int32_t gru_check_input(const isobit_cuda_gru* gru, const void* workspace, int64_t workspace_bytes, void* stream) {
  return guarded_on(gru->gru.device(),
                    [&] { return DeviceGru::check_input(bytes_of(workspace, workspace_bytes), stream_of(stream)); });
}

// ---- Training of GRUs

std::span<float> floats_of(const isobit_cuda_floats& array) { return {array.data, static_cast<size_t>(array.count)}; }

/// GruTrainingWeights or GruTrainingGradients.
template <typename Of>
std::vector<Of> directions_of(const isobit_cuda_floats* arrays, int64_t count) {
  std::vector<Of> directions;
  for (int64_t i = 0; i + 3 < count; i += 4)
    directions.push_back(
        {floats_of(arrays[i]), floats_of(arrays[i + 1]), floats_of(arrays[i + 2]), floats_of(arrays[i + 3])});
  return directions;
}

RunOptions training_options(const isobit_cuda_gru_training_run& run) {
  RunOptions options;
  options.stream = stream_of(run.stream);
  options.lengths = {run.lengths, static_cast<size_t>(run.lengths_count)};
  options.zoneout_mask = {run.zoneout_mask, static_cast<size_t>(run.zoneout_mask_count)};
  return options;
}

int32_t gru_training_create(const isobit_cuda_gru_training_sizes* sizes, const char* name, int32_t device,
                            isobit_cuda_gru_training** training) {
  *training = nullptr;
  return guarded([&]() -> Status {
    const GruTrainingSizes of{.steps = sizes->steps,
                              .batch = sizes->batch,
                              .input_size = sizes->input_size,
                              .hidden_size = sizes->hidden_size,
                              .layers = sizes->layers,
                              .directions = sizes->directions};
    return make_on(device, training, [&] { return DeviceGruTraining::create(of, name, device); });
  });
}

void gru_training_destroy(isobit_cuda_gru_training* training) { delete training; }

int64_t gru_training_workspace_bytes(const isobit_cuda_gru_training* training) {
  return training->training.workspace_bytes();
}

int32_t gru_training_forward(const isobit_cuda_gru_training* training, const isobit_cuda_gru_training_run* run) {
  return guarded_on(training->training.device(), [&] {
    return training->training.forward(
        directions_of<GruTrainingWeights>(run->weights, run->weights_count), floats_of(run->x), floats_of(run->y),
        floats_of(run->saved), bytes_of(run->workspace, run->workspace_bytes),
        {.first = floats_of(run->first), .last = floats_of(run->last)}, training_options(*run));
  });
}

int32_t gru_training_backward(const isobit_cuda_gru_training* training, const isobit_cuda_gru_training_run* run) {
  return guarded_on(training->training.device(), [&] {
    return training->training.backward(directions_of<GruTrainingWeights>(run->weights, run->weights_count),
                                       floats_of(run->x), floats_of(run->y), floats_of(run->saved), floats_of(run->dy),
                                       floats_of(run->dx),
                                       directions_of<GruTrainingGradients>(run->gradients, run->gradients_count),
                                       bytes_of(run->workspace, run->workspace_bytes),
                                       {.first = floats_of(run->first),
                                        .last_gradient = floats_of(run->last_gradient),
                                        .first_gradient = floats_of(run->first_gradient)},
                                       training_options(*run));
  });
}

// ---- Quantisation-aware training of GRUs

/// The options that gave the model its grids, as far as rows of other weights need them.
Result<GruQuantization> quantization_of(const GruModelParameters& model,
                                        std::span<const isobit_cuda_row_options> rows) {
  constexpr std::array kRowTensors = {kW, kR, kBw, kBr};
  const size_t layers = model.layers.size() / static_cast<size_t>(model.directions);
  if (rows.size() != kRowTensors.size() * layers)
    return Status(StatusCode::kInvalidArgument, "rows has " + std::to_string(rows.size()) + " elements, must have " +
                                                    std::to_string(kRowTensors.size() * layers) +
                                                    ": those of W, R, bw and br of each layer");
  GruQuantization quantization;
  quantization.scale = model.layers[0].grids[kH].kind;
  quantization.rounding = model.layers[0].rounding;
  for (size_t l = 0; l < layers; ++l) {
    GruLayerQuantization& layer = quantization.layers[static_cast<int64_t>(l)];
    for (size_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      const Grid& grid = model.layers[l * static_cast<size_t>(model.directions)].grids[tensor];
      layer.tensors[tensor] = {.bits = grid.bits, .is_signed = grid.is_signed, .symmetric = grid.zero_point == 0};
    }
    for (size_t i = 0; i < kRowTensors.size(); ++i) {
      const isobit_cuda_row_options& of = rows[kRowTensors.size() * l + i];
      GridOptions& options = layer.tensors[kRowTensors[i]];
      options = {.bits = of.bits, .is_signed = of.is_signed != 0, .symmetric = of.symmetric != 0};
      if (of.steps != -1) options.steps = of.steps;
    }
  }
  return quantization;
}

int32_t gru_qat_create(const void* model, int64_t model_bytes, const isobit_cuda_row_options* rows, int64_t rows_count,
                       int32_t rows_kept, const char* name, int32_t device, isobit_cuda_gru_qat** qat) {
  *qat = nullptr;
  return guarded([&]() -> Status {
    ISOBIT_ASSIGN_OR_RETURN(const GruModel loaded, load_saved<GruModel>(model, model_bytes, "the model"));
    ISOBIT_ASSIGN_OR_RETURN(const GruQuantization quantization,
                            quantization_of(loaded.parameters(), {rows, static_cast<size_t>(rows_count)}));
    return make_on(device, qat, [&] {
      return DeviceGruQat::create(loaded, quantization, name, device,
                                  rows_kept != 0 ? GruRowGrids::kKept : GruRowGrids::kDerived);
    });
  });
}

void gru_qat_destroy(isobit_cuda_gru_qat* qat) { delete qat; }

int64_t gru_qat_saved_bytes(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch) {
  return qat->qat.saved_bytes(steps, batch);
}

int64_t gru_qat_workspace_bytes(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch) {
  return qat->qat.workspace_bytes(steps, batch);
}

int32_t gru_qat_forward(const isobit_cuda_gru_qat* qat, const isobit_cuda_gru_qat_run* run) {
  return guarded_on(qat->qat.device(), [&] {
    const isobit_cuda_gru_training_run& of = run->arrays;
    return qat->qat.forward(directions_of<GruTrainingWeights>(of.weights, of.weights_count), floats_of(of.x),
                            run->steps, run->batch, floats_of(of.y), bytes_of(run->saved, run->saved_bytes),
                            bytes_of(of.workspace, of.workspace_bytes),
                            {.first = floats_of(of.first), .last = floats_of(of.last)}, training_options(of));
  });
}

int32_t gru_qat_backward(const isobit_cuda_gru_qat* qat, const isobit_cuda_gru_qat_run* run) {
  return guarded_on(qat->qat.device(), [&] {
    const isobit_cuda_gru_training_run& of = run->arrays;
    return qat->qat.backward(
        run->steps, run->batch, bytes_of(run->saved, run->saved_bytes), floats_of(of.dy), floats_of(of.dx),
        directions_of<GruTrainingGradients>(of.gradients, of.gradients_count),
        bytes_of(of.workspace, of.workspace_bytes),
        {.last_gradient = floats_of(of.last_gradient), .first_gradient = floats_of(of.first_gradient)},
        training_options(of));
  });
}

int32_t gru_qat_check(const isobit_cuda_gru_qat* qat, int64_t steps, int64_t batch, void* saved, int64_t saved_bytes,
                      void* stream, double* shares, int64_t shares_count) {
  return guarded_on(qat->qat.device(), [&]() -> Status {
    ISOBIT_ASSIGN_OR_RETURN(const GruQatShares found,
                            qat->qat.check(steps, batch, bytes_of(saved, saved_bytes), stream_of(stream)));
    std::vector<double> all;
    for (const std::array<double, kGruTensorCount>& of : found.clipped)
      for (const GruTensor tensor : kGruCalibratedTensors)
        if (tensor != kX) all.push_back(of[tensor]);
    all.push_back(found.clipped_inputs);
    if (std::ssize(all) != shares_count)
      return {StatusCode::kInvalidArgument, "shares has " + std::to_string(shares_count) + " elements, must have " +
                                                std::to_string(all.size()) + ": 6 * layers * directions + 1"};
    std::ranges::copy(all, shares);
    return {};
  });
}

// ---- Linear layers

int32_t linear_create(const void* weights, int64_t weights_bytes, const isobit_cuda_linear_options* options,
                      int32_t device, isobit_cuda_linear** linear) {
  return create_of_matrix(weights, weights_bytes, device, linear, [&](const LowBitMatrix& matrix) {
    return DeviceLinear::create(matrix, options_of<LinearOptions>(*options), "layer", device);
  });
}

int32_t linear_create_static(const void* layer, int64_t layer_bytes, int32_t device, isobit_cuda_linear** linear) {
  return create_saved<StaticLinearLayer, DeviceStaticLinear>(layer, layer_bytes, "the layer", device, linear);
}

void linear_destroy(isobit_cuda_linear* linear) { delete linear; }

int64_t linear_workspace_bytes(const isobit_cuda_linear* linear, int64_t rows) {
  return std::visit([&](const auto& layer) { return layer.workspace_bytes(rows); }, linear->layer);
}

int32_t linear_run(const isobit_cuda_linear* linear, const isobit_cuda_linear_run* run) {
  return guarded_on(device_of(linear), [&] {
    return std::visit(
        [&](const auto& layer) {
          return layer.forward(bytes_of(run->x, run->x_bytes), static_cast<Dtype>(run->x_dtype),
                               bytes_of(run->y, run->y_bytes), static_cast<Dtype>(run->y_dtype), run->rows,
                               bytes_of(run->workspace, run->workspace_bytes), run_options(*run));
        },
        linear->layer);
  });
}

int32_t linear_check_input(const isobit_cuda_linear* linear, void* workspace, int64_t workspace_bytes, int64_t rows,
                           void* stream) {
  return guarded_on(device_of(linear), [&] {
    return std::visit(
        [&](const auto& layer) {
          return layer.check_input(bytes_of(workspace, workspace_bytes), rows, stream_of(stream));
        },
        linear->layer);
  });
}

// ---- Convolutions

ConvAxis axis_of(const isobit_cuda_conv_axis& axis) {
  return {.kernel = axis.kernel,
          .stride = axis.stride,
          .dilation = axis.dilation,
          .pad_before = axis.pad_before,
          .pad_after = axis.pad_after,
          .more = axis.more};
}

int32_t conv_create(const void* weights, int64_t weights_bytes, const isobit_cuda_conv_shape* shape,
                    const isobit_cuda_linear_options* options, const char* name, int32_t device,
                    isobit_cuda_conv** conv) {
  return create_of_matrix(weights, weights_bytes, device, conv, [&](const LowBitMatrix& matrix) {
    const ConvShape of{.channels = shape->channels,
                       .outputs = shape->outputs,
                       .groups = shape->groups,
                       .rows = axis_of(shape->rows),
                       .columns = axis_of(shape->columns),
                       .transposed = shape->transposed != 0};
    return DeviceConv::create(of, matrix, options_of<ConvOptions>(*options), name, device);
  });
}

int32_t conv_create_static(const void* layer, int64_t layer_bytes, int32_t device, isobit_cuda_conv** conv) {
  return create_saved<StaticConvLayer, DeviceStaticConv>(layer, layer_bytes, "the layer", device, conv);
}

void conv_destroy(isobit_cuda_conv* conv) { delete conv; }

int32_t conv_workspace_bytes(const isobit_cuda_conv* conv, int64_t images, int64_t rows, int64_t columns,
                             int64_t* bytes) {
  return guarded([&]() -> Status {
    const auto ask = [&](const auto& layer) { return layer.workspace_bytes(images, {rows, columns}); };
    ISOBIT_ASSIGN_OR_RETURN(*bytes, std::visit(ask, conv->layer));
    return {};
  });
}

Status run_conv(const DeviceStaticConv& layer, const isobit_cuda_conv_run& run) {
  return layer.forward(bytes_of(run.x, run.x_bytes), bytes_of(run.y, run.y_bytes), run.images, {run.rows, run.columns},
                       bytes_of(run.workspace, run.workspace_bytes), run_options(run),
                       bytes_of(run.residual, run.residual_bytes));
}
Status run_conv(const DeviceConv& layer, const isobit_cuda_conv_run& run) {
  if (run.residual_bytes != 0)
    return {StatusCode::kInvalidArgument, layer.name() + ": residual has " + std::to_string(run.residual_bytes) +
                                              " bytes, must have 0: the layer is one of floating-point images"};
  return layer.forward(bytes_of(run.x, run.x_bytes), static_cast<Dtype>(run.x_dtype), bytes_of(run.y, run.y_bytes),
                       static_cast<Dtype>(run.y_dtype), run.images, {run.rows, run.columns},
                       bytes_of(run.workspace, run.workspace_bytes), run_options(run));
}
int32_t conv_run(const isobit_cuda_conv* conv, const isobit_cuda_conv_run* run) {
  return guarded_on(device_of(conv),
                    [&] { return std::visit([&](const auto& layer) { return run_conv(layer, *run); }, conv->layer); });
}

Status check_conv(const DeviceStaticConv& layer, std::span<const std::byte> workspace, int64_t, const ImageSize&,
                  cudaStream_t stream) {
  return layer.check_input(workspace, stream);
}
Status check_conv(const DeviceConv& layer, std::span<const std::byte> workspace, int64_t images, const ImageSize& image,
                  cudaStream_t stream) {
  return layer.check_input(workspace, images, image, stream);
}
int32_t conv_check_input(const isobit_cuda_conv* conv, const void* workspace, int64_t workspace_bytes, int64_t images,
                         int64_t rows, int64_t columns, void* stream) {
  return guarded_on(device_of(conv), [&] {
    const auto check = [&](const auto& layer) {
      return check_conv(layer, bytes_of(workspace, workspace_bytes), images, {rows, columns}, stream_of(stream));
    };
    return std::visit(check, conv->layer);
  });
}

// ---- Functions of float16

int32_t function_create(const uint16_t* results, int64_t results_count, int32_t device,
                        isobit_cuda_function** function) {
  *function = nullptr;
  return guarded_on(device, [&]() -> Status {
    ISOBIT_ASSIGN_OR_RETURN(DeviceFp16Function made,
                            DeviceFp16Function::create({results, static_cast<size_t>(results_count)}));
    *function = new isobit_cuda_function{std::move(made), device};
    return {};
  });
}

void function_destroy(isobit_cuda_function* function) { delete function; }

int32_t function_run(const isobit_cuda_function* function, const void* x, int64_t x_bytes, int32_t x_dtype, void* y,
                     int64_t y_bytes, int32_t y_dtype, void* stream) {
  return guarded_on(function->device, [&] {
    RunOptions options;
    options.stream = stream_of(stream);
    return function->function.forward(bytes_of(x, x_bytes), static_cast<Dtype>(x_dtype), bytes_of(y, y_bytes),
                                      static_cast<Dtype>(y_dtype), options);
  });
}

constexpr isobit_cuda_functions kFunctions = {
    .version = ISOBIT_CUDA_FUNCTIONS_VERSION,
    .release = ISOBIT_VERSION,
    .last_error = last_error,
    .gru_create = gru_create,
    .gru_destroy = gru_destroy,
    .gru_state_bytes = gru_state_bytes,
    .gru_workspace_bytes = gru_workspace_bytes,
    .gru_initial_state = gru_initial_state,
    .gru_state_from_float = gru_state_from_float,
    .gru_state_to_float = gru_state_to_float,
    .gru_run = gru_run,
    .gru_check_input = gru_check_input,
    .gru_training_create = gru_training_create,
    .gru_training_destroy = gru_training_destroy,
    .gru_training_workspace_bytes = gru_training_workspace_bytes,
    .gru_training_forward = gru_training_forward,
    .gru_training_backward = gru_training_backward,
    .gru_qat_create = gru_qat_create,
    .gru_qat_destroy = gru_qat_destroy,
    .gru_qat_saved_bytes = gru_qat_saved_bytes,
    .gru_qat_workspace_bytes = gru_qat_workspace_bytes,
    .gru_qat_forward = gru_qat_forward,
    .gru_qat_backward = gru_qat_backward,
    .gru_qat_check = gru_qat_check,
    .linear_create = linear_create,
    .linear_create_static = linear_create_static,
    .linear_destroy = linear_destroy,
    .linear_workspace_bytes = linear_workspace_bytes,
    .linear_run = linear_run,
    .linear_check_input = linear_check_input,
    .conv_create = conv_create,
    .conv_create_static = conv_create_static,
    .conv_destroy = conv_destroy,
    .conv_workspace_bytes = conv_workspace_bytes,
    .conv_run = conv_run,
    .conv_check_input = conv_check_input,
    .function_create = function_create,
    .function_destroy = function_destroy,
    .function_run = function_run,
};

}  // namespace
}  // namespace isobit::cuda

const isobit_cuda_functions* isobit_cuda_table(int32_t) { return &isobit::cuda::kFunctions; }
