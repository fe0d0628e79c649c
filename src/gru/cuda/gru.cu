// SPDX-License-Identifier: Apache-2.0
// The host's side of the GRU on a device: memory, checks, layers and directions.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>

#include "core/codes.h"
#include "core/cuda/arguments.h"
#include "core/cuda/buffer.h"
#include "core/cuda/launch.h"
#include "core/cuda/quantize.cuh"
#include "core/cuda/side_stream.h"
#include "core/cuda/upload.h"
#include "core/run_options.h"
#include "gru/cuda/gru.h"
#include "gru/cuda/tables.h"
#include "isobit/cuda/gru.h"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kNanBytes = kNanPlaces * sizeof(unsigned long long);

constexpr DeviceKernel kKernels[] = {
#define ISOBIT_CUDA_GRU_KERNEL(name, what, is_taken, supports, scratch_bytes, launch, beside) \
  {name, what, is_taken, supports, scratch_bytes, launch, beside},
#include "gru/cuda/kernels.inc"
#undef ISOBIT_CUDA_GRU_KERNEL
};
constexpr DeviceGruKernel kKernelNames[] = {
#define ISOBIT_CUDA_GRU_KERNEL(name, what, is_taken, supports, scratch_bytes, launch, beside) {name, what},
#include "gru/cuda/kernels.inc"
#undef ISOBIT_CUDA_GRU_KERNEL
};

int64_t size_of(Dtype dtype) { return static_cast<int64_t>(size_in_bytes(dtype)); }

__global__ void __launch_bounds__(kThreads) fill_codes(void* codes, Dtype dtype, int64_t code, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    switch (size_in_bytes(dtype)) {
      case 1: static_cast<uint8_t*>(codes)[i] = static_cast<uint8_t>(code); break;
      case 2: static_cast<uint16_t*>(codes)[i] = static_cast<uint16_t>(code); break;
      default: static_cast<uint32_t*>(codes)[i] = static_cast<uint32_t>(code); break;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_codes(const float* values, DeviceFloats floats, void* codes, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride)
    static_cast<T*>(codes)[i] = static_cast<T>(quantize_float<int64_t>(floats, values[i]));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_codes(const void* codes, int64_t zero_point, float scale, float* values, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride)
    values[i] = dequantize_difference(static_cast<int64_t>(static_cast<const T*>(codes)[i]) - zero_point, scale);
}

unsigned blocks_for(int64_t count, const DeviceLimits& limits) {
  return static_cast<unsigned>(std::min((count - 1) / kThreads + 1, int64_t{16} * limits.processors));
}

void add_matrix(Upload& upload, const CodeMatrix& codes, const CodeMatrix& biases, const Grid& activation,
                const std::vector<RescaleParameters>& bias_to_acc, const std::vector<RescaleParameters>& acc_to_out,
                DeviceMatrix& matrix) {
  matrix.dtype = codes.dtype();
  matrix.columns = codes.columns();
  matrix.zero_point = activation.zero_point;
  const auto rows = static_cast<size_t>(codes.rows());
  std::vector<int64_t> row_sums(rows);
  std::vector<int64_t> bias_codes(rows);
  isobit::with_code_type(codes.dtype(), [&](auto zero) {
    const auto* code = reinterpret_cast<const decltype(zero)*>(codes.data());
    for (size_t row = 0; row < rows; ++row)
      for (int64_t k = 0; k < codes.columns(); ++k) row_sums[row] += static_cast<int64_t>(*code++);
  });
  for (size_t row = 0; row < rows; ++row) bias_codes[row] = biases.at(static_cast<int64_t>(row), 0);
  const auto bytes = static_cast<size_t>(codes.rows() * codes.columns()) * size_in_bytes(codes.dtype());
  upload.add(std::span(codes.data(), bytes), matrix.codes);
  upload.add(std::span<const int64_t>(row_sums), matrix.row_sums);
  upload.add(std::span<const int64_t>(bias_codes), matrix.biases);
  upload.add(std::span(bias_to_acc), matrix.bias_to_acc);
  upload.add(std::span(acc_to_out), matrix.acc_to_out);
}

/// Why kernels cannot run a layer: what the pointers in DeviceLayer point to.
struct Refusals {
  std::array<std::string, kPersistentForms> persistent;
  std::string step;
};

/// `refusals` outlives the layer.
Status add_layer(Upload& upload, const GruLayerParameters& p, DeviceLayer& layer, Refusals& refusals) {
  layer.input_size = p.input_size;
  layer.hidden_size = p.hidden_size;
  layer.x_dtype = p.grids[kX].dtype();
  layer.h_dtype = p.grids[kH].dtype();
  layer.cell = view_of(p);
  layer.x = range_of(p.grids[kX]);
  layer.x_inverse_scale = p.grids[kX].inverse_scale();
  layer.h_scale = p.grids[kH].scale();
  add_matrix(upload, p.W, p.bw, p.grids[kX], p.bw_to_acc, p.acc_to_ih, layer.W);
  add_matrix(upload, p.R, p.br, p.grids[kH], p.br_to_acc, p.acc_to_hh, layer.R);
  for (size_t gate = 0; gate < 3; ++gate) upload_table(upload, p.tables[gate], layer.cell.tables[gate]);
  ISOBIT_ASSIGN_OR_RETURN(const PersistentPack persistent, pack_persistent(p));
  refusals.persistent = persistent.refusals;
  for (size_t form = 0; form < kPersistentForms; ++form)
    layer.persistent_refusals[form] = refusals.persistent[form].c_str();
  layer.persistent = persistent.layer;
  if (std::find(std::begin(layer.persistent.fits), std::end(layer.persistent.fits), true) !=
      std::end(layer.persistent.fits)) {
    PersistentLayer& to = layer.persistent;
    upload.add(std::span(persistent.fragments), to.fragments);
    upload.add(std::span(persistent.grid_fragments), to.grid_fragments);
    upload.add(std::span(persistent.tables), to.tables);
    // Nothing of those types that the layer does not have.
    const auto add_rows = [&]<typename Ratio>(Ratio) {
      const auto& rows = std::get<PersistentRowsPack<Ratio>>(persistent.rows);
      upload.add(std::span(rows.start), std::get<PersistentRows<Ratio>>(to.rows).start);
      upload.add(std::span(rows.ratio), std::get<PersistentRows<Ratio>>(to.rows).ratio);
    };
    add_rows(float());
    add_rows(Fixed());
    add_rows(WideFixed());
    add_rows(double());
    const auto add_product = [&](const auto& matrix, auto& product) {
      upload.add(std::span(matrix.w), product.shape.w);
      upload.add(std::span(matrix.image), product.shape.image);
      upload.add(std::span(matrix.start), product.start);
      upload.add(std::span(matrix.ratio), product.ratio);
      upload.add(std::span(matrix.again), product.again);
    };
    const auto add_products = [&](const auto& packs, auto& products) {
      std::apply(
          [&](const auto&... matrix) {
            std::apply([&](auto&... product) { (add_product(matrix, product), ...); }, products);
          },
          packs);
    };
    add_products(persistent.W, to.W);
    add_products(persistent.R, to.R);
  }
  if (const Result<StepPack> pack = pack_step(p); pack.ok()) {
    StepLayer& to = layer.step;
    to = pack->layer;
    upload.add(std::span(pack->W), to.W.fragments);
    upload.add(std::span(pack->R), to.R.fragments);
    upload.add(std::span(pack->rows), to.rows);
    upload.add(std::span(pack->tables), to.tables);
    to.supported = true;
  } else {
    if (pack.status().code() != StatusCode::kUnsupported) return pack.status();
    refusals.step = pack.status().message();
    layer.step_refusal = refusals.step.c_str();
  }
  return {};
}

}  // namespace

struct DeviceGru::Data {
  GruModel model;
  mutable SideStream side;  // of models of two directions
  std::shared_ptr<const std::byte> memory;
  std::vector<DeviceLayer> layers;  // l * directions + d
  std::vector<Refusals> refusals;   // of each
  DeviceLimits limits;

  /// Offsets into a workspace, multiples of 256; it begins with the places of NaN (DeviceFloats::nans).
  struct Layout {
    int64_t between[2] = {0, 0};  // codes between layers
    int64_t scratch[2] = {0, 0};  // of each direction
    int64_t total = 0;
  };
  /// What the layers of a run share.
  struct Call {
    const DeviceKernel* kernel;
    int64_t steps;
    int64_t batch;
    const std::byte* state;
    std::byte* next_state;  // may be `state`
    std::byte* workspace;
    Layout layout;
    const RunOptions& options;
  };

  [[nodiscard]] int64_t directions() const { return model.parameters().directions; }
  [[nodiscard]] int64_t layer_state_bytes(size_t layer, int64_t batch) const {
    return product_of_sizes({batch, model.hidden_size(), size_of(layers[layer].h_dtype)});
  }
  [[nodiscard]] int64_t state_bytes(int64_t batch) const;
  [[nodiscard]] Layout layout(int64_t batch, int64_t steps) const;
  [[nodiscard]] Result<const DeviceKernel*> choose(int64_t batch, int64_t steps, std::string_view requested,
                                                   bool codes_with_next_state) const;
  [[nodiscard]] Result<Call> prepare(const NamedBuffer& x, const NamedBuffer& y, int64_t steps, int64_t batch,
                                     bool floats, std::span<std::byte> state, std::span<std::byte> workspace,
                                     const RunOptions& options) const;
  [[nodiscard]] Status check_state(const char* name, const GruState& state) const;
  [[nodiscard]] Status check_floats(std::span<const float> h, std::span<const std::byte> state, int64_t batch) const;
  [[nodiscard]] Status copy_state(const Call& call) const;
  /// x and y: codes, or floats.
  [[nodiscard]] Status run_layers(const Call& call, const void* x, void* y, bool floats) const;
};

int64_t DeviceGru::Data::state_bytes(int64_t batch) const {
  int64_t total = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer)
    total = sum_of_sizes(total, aligned_size(layer_state_bytes(layer, batch)));
  return total;
}

DeviceGru::Data::Layout DeviceGru::Data::layout(int64_t batch, int64_t steps) const {
  Layout layout;
  const auto take = [&](int64_t bytes) {
    const int64_t offset = layout.total;
    layout.total = sum_of_sizes(layout.total, aligned_size(bytes));
    return offset;
  };
  take(kNanBytes);
  if (model.layer_count() > 1) {
    int64_t code_bytes = 0;
    for (const DeviceLayer& layer : layers) code_bytes = std::max(code_bytes, size_of(layer.h_dtype));
    for (int64_t& offset : layout.between)
      offset = take(product_of_sizes({steps, batch, model.output_size(), code_bytes}));
  }
  int64_t scratch = 0;  // any kernel may be asked for
  if (batch > 0 && steps > 0)
    for (const DeviceKernel& kernel : kKernels)
      scratch = std::max(scratch, kernel.scratch_bytes(layers, batch, steps, limits));
  for (int64_t d = 0; d < directions(); ++d) layout.scratch[d] = take(scratch);
  return layout;
}

Result<const DeviceKernel*> DeviceGru::Data::choose(int64_t batch, int64_t steps, std::string_view requested,
                                                    bool codes_with_next_state) const {
  const DeviceLayer& first = layers.front();
  const bool aligned_rows = first.input_size * size_of(first.x_dtype) % kRowAlignment == 0 &&
                            first.hidden_size * size_of(first.h_dtype) % kRowAlignment == 0;
  const bool copies = steps == 1 && !(codes_with_next_state && aligned_rows);
  std::string names;
  for (const DeviceKernel& kernel : kKernels) {
    if (!requested.empty() && kernel.name != requested) {
      names += (names.empty() ? "" : ", ") + std::string(kernel.name);
      continue;
    }
    if (requested.empty() && !kernel.is_taken(layers, batch, steps, copies, limits)) continue;
    const Status status = kernel.supports(layers, batch, steps, limits);
    if (status.ok()) return &kernel;
    if (!requested.empty())
      return Status(status.code(), "kernel '" + std::string(requested) + "': " + status.message());
  }
  return refuse_argument("kernel is '" + std::string(requested) + "', must be one of " + names);
}

Status DeviceGru::Data::check_state(const char* name, const GruState& state) const {
  if (state.layer_count() != static_cast<int64_t>(layers.size()))
    return refuse_argument(std::string(name) + " has " + std::to_string(state.layer_count()) +
                           " layer directions, must have " + std::to_string(layers.size()));
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const auto bytes = static_cast<int64_t>(state.layer(static_cast<int64_t>(layer)).size());
    const int64_t expected = layer_state_bytes(layer, state.batch());
    if (bytes != expected)
      return refuse_argument(std::string(name) + " has " + std::to_string(bytes) + " bytes in layer direction " +
                             std::to_string(layer) + ", must have " + std::to_string(expected));
  }
  return {};
}

/// A state in device memory, and the floats that it becomes or comes of.
Status DeviceGru::Data::check_floats(std::span<const float> h, std::span<const std::byte> state, int64_t batch) const {
  ISOBIT_RETURN_IF_ERROR(check_batch(batch));
  ISOBIT_RETURN_IF_ERROR(check_room({"state", state}, state_bytes(batch), batch));
  const NamedBuffer floats{"h", std::as_bytes(h)};
  ISOBIT_RETURN_IF_ERROR(
      check_size(floats, {static_cast<int64_t>(layers.size()), batch, model.hidden_size()}, Dtype::kF32));
  ISOBIT_RETURN_IF_ERROR(check_apart({floats, {"state", state}}));
  ISOBIT_RETURN_IF_ERROR(check_current_device(limits.device, "the model"));
  ISOBIT_RETURN_IF_ERROR(check_on_device(floats, limits.device));
  return check_on_device({"state", state}, limits.device);
}

/// What both entries check before they enqueue anything; their own is the size of x and y.
Result<DeviceGru::Data::Call> DeviceGru::Data::prepare(const NamedBuffer& x, const NamedBuffer& y, int64_t steps,
                                                       int64_t batch, bool floats, std::span<std::byte> state,
                                                       std::span<std::byte> workspace,
                                                       const RunOptions& options) const {
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kKernelOption | kStreamOption | kSequenceOptions | kNextStateOption,
                                        "a GRU on a device"));
  const std::span<std::byte> next_state = options.next_state.empty() ? state : options.next_state;
  Call call{nullptr, steps, batch, state.data(), next_state.data(), workspace.data(), layout(batch, steps), options};
  ISOBIT_RETURN_IF_ERROR(check_room({"state", state}, state_bytes(batch), batch));
  ISOBIT_RETURN_IF_ERROR(check_room({"next_state", next_state}, state_bytes(batch), batch));
  ISOBIT_RETURN_IF_ERROR(check_room({"workspace", workspace}, call.layout.total, batch));
  ISOBIT_RETURN_IF_ERROR(
      check_apart({x, y, {"state", state}, {"workspace", workspace}, {"next_state", options.next_state}}));
  if (!options.lengths.empty() && static_cast<int64_t>(options.lengths.size()) != batch)
    return refuse_argument("lengths has " + std::to_string(options.lengths.size()) + " values, must have " +
                           std::to_string(batch) + " (the batch)");
  if (!options.zoneout_mask.empty() && model.layer_count() != 1)
    return refuse_argument("a zoneout mask is for models of one layer, this one has " +
                           std::to_string(model.layer_count()));
  const int64_t masked = product_of_sizes({steps, batch, model.output_size()});
  if (!options.zoneout_mask.empty() && static_cast<int64_t>(options.zoneout_mask.size()) != masked)
    return refuse_argument("the zoneout mask has " + std::to_string(options.zoneout_mask.size()) +
                           " values, must have " + std::to_string(masked) + " ([T, N, directions * H])");
  if (directions() == 2 && !options.whole_sequence)
    return refuse_argument(
        "the model is bidirectional, and its reverse direction begins at the last step: x must hold whole sequences, "
        "not pieces; set whole_sequence where it does");
  if (reinterpret_cast<uintptr_t>(options.lengths.data()) % sizeof(int64_t) != 0)
    return refuse_argument("lengths is not aligned to its elements of 8 bytes");
  ISOBIT_RETURN_IF_ERROR(check_current_device(limits.device, "the model"));
  ISOBIT_RETURN_IF_ERROR(check_stream(options.stream, limits.device));
  for (const NamedBuffer& buffer : {x,
                                    y,
                                    {"state", state},
                                    {"next_state", options.next_state},
                                    {"workspace", workspace},
                                    {"lengths", std::as_bytes(options.lengths)},
                                    {"zoneout_mask", std::as_bytes(options.zoneout_mask)}})
    ISOBIT_RETURN_IF_ERROR(check_on_device(buffer, limits.device));
  ISOBIT_ASSIGN_OR_RETURN(call.kernel, choose(batch, steps, options.kernel, !floats && call.next_state != call.state));
  return call;
}

Status DeviceGru::Data::copy_state(const Call& call) const {
  if (call.next_state == call.state) return {};
  int64_t at = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const int64_t bytes = layer_state_bytes(layer, call.batch);
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaMemcpyAsync(call.next_state + at, call.state + at, static_cast<size_t>(bytes),
                                    cudaMemcpyDeviceToDevice, call.options.stream),
                    "copying the state"));
    at += aligned_size(bytes);
  }
  return {};
}

Status DeviceGru::Data::run_layers(const Call& call, const void* x, void* y, bool floats) const {
  if (call.batch == 0) return {};
  if (call.steps == 0) return copy_state(call);
  const int64_t hidden = model.hidden_size();
  const int64_t output = model.output_size();
  const auto outer = [&](int64_t width) {
    return call.options.batch_first ? DeviceStrides{width, call.steps * width}
                                    : DeviceStrides{call.batch * width, width};
  };
  const DeviceStrides inner{call.batch * output, output};
  int64_t state = 0;  // of the layer, in both states
  const auto run_layer = [&](int64_t l, int64_t d, int64_t of_state, cudaStream_t stream) {
    const DeviceLayer& layer = layers[static_cast<size_t>(l * directions() + d)];
    const bool last = l + 1 == model.layer_count();
    std::byte* const into = last ? static_cast<std::byte*>(y) : call.workspace + call.layout.between[l % 2];
    DeviceRun run{};
    run.steps = call.steps;
    run.batch = call.batch;
    run.x = l == 0 ? x : call.workspace + call.layout.between[(l + 1) % 2];
    run.x_strides = l == 0 ? outer(layer.input_size) : inner;
    run.y_scale = last && floats ? layer.h_scale : 0.0f;
    run.y = into + d * hidden * run.y_element_bytes(size_of(layer.h_dtype));
    run.y_strides = last ? outer(output) : inner;
    run.state = call.state + of_state;
    run.next_state = call.next_state + of_state;
    run.lengths = call.options.lengths.empty() ? nullptr : call.options.lengths.data();
    run.mask = call.options.zoneout_mask.empty() ? nullptr : call.options.zoneout_mask.data() + d * hidden;
    run.mask_width = output;
    run.reverse = d == 1;
    if (l == 0 && floats) {
      run.floats.first = static_cast<const float*>(x);
      run.floats.inverse_scale = layer.x_inverse_scale;
      run.floats.min = layer.x.min;
      run.floats.max = layer.x.max;
      run.floats.zero_point = layer.x.zero_point;
      // Both directions read the same floats.
      run.floats.nans = d == 0 ? reinterpret_cast<unsigned long long*>(call.workspace) : nullptr;
      run.floats.begins = d == 0;
    }
    run.scratch = call.workspace + call.layout.scratch[d];
    return call.kernel->launch(layer, run, limits, stream);
  };
  for (int64_t l = 0; l < model.layer_count(); ++l) {
    const auto index = static_cast<size_t>(l * directions());
    const int64_t forward = state;
    const int64_t backward = forward + aligned_size(layer_state_bytes(index, call.batch));
    state = backward;
    if (directions() == 1) {
      ISOBIT_RETURN_IF_ERROR(run_layer(l, 0, forward, call.options.stream));
      continue;
    }
    state += aligned_size(layer_state_bytes(index + 1, call.batch));
    if (call.kernel->beside(layers[index], call.batch, call.steps) &&
        call.kernel->beside(layers[index + 1], call.batch, call.steps)) {
      ISOBIT_RETURN_IF_ERROR(side.beside(
          call.options.stream, [&](cudaStream_t stream) { return run_layer(l, 1, backward, stream); },
          [&] { return run_layer(l, 0, forward, call.options.stream); }));
    } else {
      ISOBIT_RETURN_IF_ERROR(run_layer(l, 0, forward, call.options.stream));
      ISOBIT_RETURN_IF_ERROR(run_layer(l, 1, backward, call.options.stream));
    }
  }
  return {};
}

Result<DeviceLimits> current_device_limits() {
  DeviceLimits limits;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&limits.device), "the current device"));
  const auto ask = [&](cudaDeviceAttr attribute, int& value, const char* what) {
    return cuda_status(cudaDeviceGetAttribute(&value, attribute, limits.device), what);
  };
  ISOBIT_RETURN_IF_ERROR(ask(cudaDevAttrMultiProcessorCount, limits.processors, "processors"));
  ISOBIT_RETURN_IF_ERROR(ask(cudaDevAttrComputeCapabilityMajor, limits.major, "compute capability"));
  ISOBIT_RETURN_IF_ERROR(ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, limits.block_shared, "shared memory of a block"));
  ISOBIT_RETURN_IF_ERROR(
      ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor, limits.processor_shared, "shared memory of a processor"));
  return limits;
}

Status DeviceGru::check_device() {
  ISOBIT_ASSIGN_OR_RETURN(const DeviceLimits limits, current_device_limits());
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, fill_codes);
  if (error == cudaSuccess) return {};
  return {StatusCode::kUnsupported,
          cuda_status(error, "the build has no code for device " + std::to_string(limits.device)).message()};
}

Result<DeviceGru> DeviceGru::create(const GruModel& model, std::optional<int> device) {
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  ISOBIT_RETURN_IF_ERROR(check_device());
  auto data = std::make_shared<Data>();
  data->model = model;
  ISOBIT_ASSIGN_OR_RETURN(data->limits, current_device_limits());
  const std::vector<GruLayerParameters>& layers = model.parameters().layers;
  data->layers.resize(layers.size());
  Upload upload;
  data->refusals.resize(layers.size());
  for (size_t i = 0; i < layers.size(); ++i)
    ISOBIT_RETURN_IF_ERROR(add_layer(upload, layers[i], data->layers[i], data->refusals[i]));
  ISOBIT_ASSIGN_OR_RETURN(data->memory, upload.finish());
  if (data->directions() == 2) ISOBIT_RETURN_IF_ERROR(data->side.create());
  DeviceGru gru;
  gru.data_ = std::move(data);
  return gru;
}

const GruModel& DeviceGru::model() const { return data_->model; }
int DeviceGru::device() const { return data_->limits.device; }

Result<std::string_view> DeviceGru::choose_kernel(int64_t batch, int64_t steps, std::string_view requested,
                                                  bool codes_with_next_state) const {
  ISOBIT_RETURN_IF_ERROR(check_run(batch, steps));
  ISOBIT_ASSIGN_OR_RETURN(const DeviceKernel* kernel, data_->choose(batch, steps, requested, codes_with_next_state));
  return kernel->name;
}

int64_t DeviceGru::state_bytes(int64_t batch) const { return data_->state_bytes(batch); }
int64_t DeviceGru::workspace_bytes(int64_t batch, int64_t steps) const { return data_->layout(batch, steps).total; }

Status DeviceGru::initial_state(std::span<std::byte> state, int64_t batch, cudaStream_t stream) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(check_batch(batch));
  ISOBIT_RETURN_IF_ERROR(check_room({"state", state}, data.state_bytes(batch), batch));
  ISOBIT_RETURN_IF_ERROR(check_current_device(data.limits.device, "the model"));
  if (batch == 0) return {};
  ISOBIT_RETURN_IF_ERROR(check_on_device({"state", state}, data.limits.device));
  std::byte* codes = state.data();
  for (size_t i = 0; i < data.layers.size(); ++i) {
    const DeviceLayer& layer = data.layers[i];
    const int64_t count = batch * layer.hidden_size;
    ISOBIT_RETURN_IF_ERROR(launch_kernel("fill_codes", fill_codes, blocks_for(count, data.limits), kThreads, 0, stream,
                                         codes, layer.h_dtype, layer.cell.h.zero_point, count));
    codes += aligned_size(data.layer_state_bytes(i, batch));
  }
  return {};
}

Status DeviceGru::state_from_float(std::span<const float> h, std::span<std::byte> state, int64_t batch,
                                   cudaStream_t stream) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(data.check_floats(h, state, batch));
  if (batch == 0) return {};
  std::byte* codes = state.data();
  const float* values = h.data();
  for (size_t i = 0; i < data.layers.size(); ++i) {
    const Grid& grid = data.model.parameters().layers[i].grids[kH];
    const int64_t count = batch * data.model.hidden_size();
    DeviceFloats floats{};
    floats.inverse_scale = grid.inverse_scale();
    floats.min = grid.min();
    floats.max = grid.max();
    floats.zero_point = grid.zero_point;
    void (*kernel)(const float*, DeviceFloats, void*, int64_t) = nullptr;
    isobit::with_code_type(grid.dtype(), [&]<typename T>(T) { kernel = quantize_codes<T>; });
    ISOBIT_RETURN_IF_ERROR(launch_kernel("quantize_codes", kernel, blocks_for(count, data.limits), kThreads, 0, stream,
                                         values, floats, codes, count));
    codes += aligned_size(data.layer_state_bytes(i, batch));
    values += count;
  }
  return {};
}

Status DeviceGru::state_to_float(std::span<const std::byte> state, std::span<float> h, int64_t batch,
                                 cudaStream_t stream) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(data.check_floats(h, state, batch));
  if (batch == 0) return {};
  const std::byte* codes = state.data();
  float* values = h.data();
  for (size_t i = 0; i < data.layers.size(); ++i) {
    const Grid& grid = data.model.parameters().layers[i].grids[kH];
    const int64_t count = batch * data.model.hidden_size();
    void (*kernel)(const void*, int64_t, float, float*, int64_t) = nullptr;
    isobit::with_code_type(grid.dtype(), [&]<typename T>(T) { kernel = dequantize_codes<T>; });
    ISOBIT_RETURN_IF_ERROR(launch_kernel("dequantize_codes", kernel, blocks_for(count, data.limits), kThreads, 0,
                                         stream, codes, grid.zero_point, grid.scale(), values, count));
    codes += aligned_size(data.layer_state_bytes(i, batch));
    values += count;
  }
  return {};
}

Status DeviceGru::upload_state(const GruState& from, std::span<std::byte> state, cudaStream_t stream) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(data.check_state("the state of the host", from));
  ISOBIT_RETURN_IF_ERROR(check_room({"state", state}, data.state_bytes(from.batch()), from.batch()));
  ISOBIT_RETURN_IF_ERROR(check_current_device(data.limits.device, "the model"));
  if (from.batch() == 0) return {};
  ISOBIT_RETURN_IF_ERROR(check_on_device({"state", state}, data.limits.device));
  std::byte* codes = state.data();
  for (int64_t i = 0; i < from.layer_count(); ++i) {
    const std::span<const std::byte> layer = from.layer(i);
    ISOBIT_RETURN_IF_ERROR(cuda_status(
        cudaMemcpyAsync(codes, layer.data(), layer.size(), cudaMemcpyHostToDevice, stream), "copying the state"));
    codes += aligned_size(static_cast<int64_t>(layer.size()));
  }
  return cuda_status(cudaStreamSynchronize(stream), "copying the state");
}

Status DeviceGru::download_state(std::span<const std::byte> state, GruState& to, cudaStream_t stream) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(data.check_state("the state of the host", to));
  ISOBIT_RETURN_IF_ERROR(check_room({"state", state}, data.state_bytes(to.batch()), to.batch()));
  ISOBIT_RETURN_IF_ERROR(check_current_device(data.limits.device, "the model"));
  if (to.batch() == 0) return {};
  ISOBIT_RETURN_IF_ERROR(check_on_device({"state", state}, data.limits.device));
  const std::byte* codes = state.data();
  for (int64_t i = 0; i < to.layer_count(); ++i) {
    const std::span<std::byte> layer = to.layer(i);
    ISOBIT_RETURN_IF_ERROR(cuda_status(
        cudaMemcpyAsync(layer.data(), codes, layer.size(), cudaMemcpyDeviceToHost, stream), "copying the state"));
    codes += aligned_size(static_cast<int64_t>(layer.size()));
  }
  return cuda_status(cudaStreamSynchronize(stream), "copying the state");
}

Status DeviceGru::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                          int64_t steps, int64_t batch, std::span<std::byte> state, std::span<std::byte> workspace,
                          const RunOptions& options) const {
  const Data& data = *data_;
  const Dtype x_codes = data.layers.front().x_dtype, y_codes = data.layers.back().h_dtype;
  const bool floats = x_dtype == Dtype::kF32 && y_dtype == Dtype::kF32;
  if (!floats && (x_dtype != x_codes || y_dtype != y_codes))
    return refuse_types(x_dtype, y_dtype, x_codes, y_codes, true);
  ISOBIT_RETURN_IF_ERROR(check_run(batch, steps));
  const NamedBuffer x_buffer{"x", x};
  const NamedBuffer y_buffer{"y", y};
  ISOBIT_RETURN_IF_ERROR(check_size(x_buffer, {steps, batch, data.model.input_size()}, x_dtype));
  ISOBIT_RETURN_IF_ERROR(check_size(y_buffer, {steps, batch, data.model.output_size()}, y_dtype));
  ISOBIT_ASSIGN_OR_RETURN(const Data::Call call,
                          data.prepare(x_buffer, y_buffer, steps, batch, floats, state, workspace, options));
  if (floats && x.empty())  // no kernel begins a search
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaMemsetAsync(call.workspace, 0xff, kNanBytes, options.stream), "resetting check_input"));
  return data.run_layers(call, x.data(), y.data(), floats);
}

Status DeviceGru::check_input(std::span<const std::byte> workspace, cudaStream_t stream) {
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
  ISOBIT_RETURN_IF_ERROR(check_alignment("workspace", workspace.data()));
  if (workspace.size() < kNanBytes)
    return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must be that of a run");
  std::array<unsigned long long, kNanPlaces> nans{};
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaMemcpyAsync(nans.data(), workspace.data(), kNanBytes, cudaMemcpyDeviceToHost, stream), "check_input"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "check_input"));
  const unsigned long long first_nan = *std::min_element(nans.begin(), nans.end());
  if (first_nan == kNoNan) return {};
  return refuse_argument("x[" + std::to_string(first_nan) + "] is NaN, must be a number");
}

std::span<const DeviceGruKernel> gru_kernels() { return kKernelNames; }

}  // namespace isobit::cuda
