// SPDX-License-Identifier: Apache-2.0
// Training of GRUs on CUDA devices, as isobit.torch calls it. Arrays of weights and gradients are in isobit's gate
// order, u, r, n. Memory is torch's and everything goes to its current stream, as in device_gru.cc.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "cuda.h"
#include "errors.h"
#include "gru.h"
#include "training.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

using Training = std::shared_ptr<const isobit_cuda_gru_training>;

/// Of the sizes that were used last, on their devices. Who has got one keeps it, whatever is dropped here.
class Trainings {
 public:
  /// The GIL is not held.
  Training get(const isobit_cuda_gru_training_sizes& s, int device) {
    const Key key = {s.steps, s.batch, s.input_size, s.hidden_size, s.layers, s.directions, device};
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = std::ranges::find(kept_, key, &Kept::first); found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().second;
    }
    const isobit_cuda_functions& functions = cuda_functions();
    isobit_cuda_gru_training* made = nullptr;
    check_cuda(functions.gru_training_create(&s, "training", device, &made));
    kept_.emplace_front(key, Training(made, functions.gru_training_destroy));
    if (kept_.size() > kMost) kept_.pop_back();
    return kept_.front().second;
  }

 private:
  static constexpr size_t kMost = 64;
  using Key = std::array<int64_t, 7>;
  using Kept = std::pair<Key, Training>;
  std::mutex mutex_;
  std::list<Kept> kept_;  // the last one used first
};

Trainings& trainings() {
  static Trainings all;
  return all;
}

// ---- Arguments

/// An array that the library reads.
isobit_cuda_floats floats_of(std::span<const float> array) {
  return {const_cast<float*>(array.data()), std::ssize(array)};  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

/// An argument that is read, or None.
struct Read {
  Read(const nb::any& array, const char* name, Dtype dtype, int device, const char* as = "x") {
    if (array.is_none()) return;
    input.emplace(array, name, dtype, Places::kHostOrDevice);
    if (input->device() != device)
      refuse_type(std::string(name) + " is " + place_text(input->device()) + ", must be " + place_text(device) +
                  ", as " + as);
  }
  template <typename T>
  [[nodiscard]] std::span<const T> values() const {
    return input ? input->values<T>() : std::span<const T>();
  }
  [[nodiscard]] isobit_cuda_floats floats() const { return floats_of(values<float>()); }

  std::optional<Input> input;
};

/// An argument that is written, or None.
struct Written {
  Written(const nb::any& array, const char* name, int device, Dtype dtype = Dtype::kF32) {
    if (array.is_none()) return;
    const Input shape(array, name, dtype, Places::kHostOrDevice);
    output.emplace(array, name, dtype, shape.shape(), Device(device));
  }
  [[nodiscard]] isobit_cuda_floats floats() const {
    if (!output) return {nullptr, 0};
    return {reinterpret_cast<float*>(output->bytes().data()),
            std::ssize(output->bytes()) / static_cast<int64_t>(sizeof(float))};
  }

  std::optional<Output> output;
};

/// The device of an array of steps, which says where a call runs.
int device_of_steps(const Input& array, const std::string& name, const char* features) {
  if (!array.device()) refuse_type(name + " is on the host, must be on a CUDA device");
  if (array.shape().size() != 3)
    refuse(name + " has shape " + shape_text(array.shape()) + ", must be [T, N, " + features + "]");
  return *array.device();
}

/// A call with what forward and backward both have: an array of steps, lengths and a mask.
struct DeviceCall {
  DeviceCall(const nb::any& array, const char* name, const char* features, const nb::any& lengths_array,
             const nb::any& mask_array)
      : like(array),
        of_steps(array, name, Dtype::kF32, Places::kHostOrDevice),
        device(device_of_steps(of_steps, name, features)),
        lengths(lengths_array, "lengths", Dtype::kS64, device, name),
        mask(mask_array, "zoneout", Dtype::kU8, device, name) {
    run.lengths = lengths.values<int64_t>().data();
    run.lengths_count = std::ssize(lengths.values<int64_t>());
    run.zoneout_mask = mask.values<uint8_t>().data();
    run.zoneout_mask_count = std::ssize(mask.values<uint8_t>());
  }

  /// function(run), which returns a status, with a workspace of so many bytes, on torch's current stream.
  template <typename Function>
  void enqueue(int64_t workspace_bytes, Function function) {
    const NewArray workspace = new_array(like, Dtype::kU8, {workspace_bytes}, device);
    const Stream stream(like);
    run.workspace = workspace.bytes.data();
    run.workspace_bytes = std::ssize(workspace.bytes);
    run.stream = stream.handle;
    const nb::gil_scoped_release release;
    check_cuda(function(run));
  }

  nb::handle like;  // of the caller
  Input of_steps;
  int device;
  Read lengths, mask;
  isobit_cuda_gru_training_run run{};
};

/// A call with x, the first states and the weights.
struct CallOfWeights : DeviceCall {
  CallOfWeights(const nb::any& x_array, const nb::any& first_array, const Arrays& weight_arrays, int directions,
                const nb::any& lengths_array, const nb::any& mask_array)
      : DeviceCall(x_array, "x", "C", lengths_array, mask_array), first(first_array, "h_0", Dtype::kF32, device) {
    if (directions < 1 || weight_arrays.empty() || weight_arrays.size() % (4 * static_cast<size_t>(directions)) != 0)
      refuse("weights has " + std::to_string(weight_arrays.size()) +
             " arrays, must have 4 * layers * directions, directions " + std::to_string(directions));
    for (const nb::any& array : weight_arrays) weights.emplace_back(array, "weights", Dtype::kF32, device);
    for (const Read& of : weights) weight_floats.push_back(of.floats());
    if (!weights[1].input || weights[1].input->shape().size() != 2) refuse("weights[1] must be [3H, H]");
    sizes = {of_steps.shape()[0],
             of_steps.shape()[1],
             of_steps.shape()[2],
             weights[1].input->shape()[1],
             std::ssize(weights) / 4 / directions,
             directions};
    run.x = floats_of(of_steps.values<float>());
    run.first = first.floats();
    run.weights = weight_floats.data();
    run.weights_count = std::ssize(weight_floats);
  }

  Read first;
  std::vector<Read> weights;
  std::vector<isobit_cuda_floats> weight_floats;
  isobit_cuda_gru_training_sizes sizes{};
};

/// What a forward writes, but for what it keeps.
struct Results {
  Results(const nb::any& y, const nb::any& last, DeviceCall& call)
      : y_out(y, "y", call.device), last_out(last, "h_n", call.device) {
    call.run.y = y_out.floats();
    call.run.last = last_out.floats();
  }
  Written y_out, last_out;
};

/// Gradients that a backward writes, and that of the last states.
struct Gradients {
  Gradients(const nb::any& last_gradient, const nb::any& dx, const nb::any& first_gradient, const Arrays& gradients,
            DeviceCall& call, const char* as)
      : last_in(last_gradient, "the gradient of h_n", Dtype::kF32, call.device, as),
        dx_out(dx, "dx", call.device),
        first_out(first_gradient, "the gradient of h_0", call.device) {
    for (const nb::any& array : gradients)
      into_floats.push_back(into.emplace_back(array, "gradients", call.device).floats());
    call.run.last_gradient = last_in.floats();
    call.run.dx = dx_out.floats();
    call.run.first_gradient = first_out.floats();
    call.run.gradients = into_floats.data();
    call.run.gradients_count = std::ssize(into_floats);
  }
  Read last_in;
  Written dx_out, first_out;
  std::vector<Written> into;
  std::vector<isobit_cuda_floats> into_floats;
};

// ---- Floats

/// Enqueues the forward or the backward.
void enqueue_floats(CallOfWeights& call,
                    int32_t (*isobit_cuda_functions::*function)(const isobit_cuda_gru_training*,
                                                                const isobit_cuda_gru_training_run*)) {
  const isobit_cuda_functions& functions = cuda_functions();
  Training training;
  {
    const nb::gil_scoped_release release;
    training = trainings().get(call.sizes, call.device);
  }
  call.enqueue(functions.gru_training_workspace_bytes(training.get()),
               [&](const isobit_cuda_gru_training_run& run) { return (functions.*function)(training.get(), &run); });
}

void device_forward(const nb::any& x, const nb::any& first, const Arrays& weights, int directions,
                    const nb::any& lengths, const nb::any& mask, const nb::any& y, const nb::any& last,
                    const nb::any& saved) {
  CallOfWeights call(x, first, weights, directions, lengths, mask);
  const Results results(y, last, call);
  const Written saved_out(saved, "saved", call.device);
  call.run.saved = saved_out.floats();
  enqueue_floats(call, &isobit_cuda_functions::gru_training_forward);
}

void device_backward(const nb::any& x, const nb::any& first, const Arrays& weights, int directions,
                     const nb::any& lengths, const nb::any& mask, const nb::any& y, const nb::any& saved,
                     const nb::any& dy, const nb::any& last_gradient, const nb::any& dx, const nb::any& first_gradient,
                     const Arrays& gradients) {
  CallOfWeights call(x, first, weights, directions, lengths, mask);
  const int device = call.device;
  const Read y_in(y, "y", Dtype::kF32, device), saved_in(saved, "saved", Dtype::kF32, device),
      dy_in(dy, "dy", Dtype::kF32, device);
  const Gradients into(last_gradient, dx, first_gradient, gradients, call, "x");
  call.run.y = y_in.floats();
  call.run.saved = saved_in.floats();
  call.run.dy = dy_in.floats();
  enqueue_floats(call, &isobit_cuda_functions::gru_training_backward);
}

// ---- Integers

/// Enqueues the forward or the backward, which writes or reads `saved`.
void enqueue_integers(const GruQat& qat, DeviceCall& call, std::span<const std::byte> saved,
                      int32_t (*isobit_cuda_functions::*function)(const isobit_cuda_gru_qat*,
                                                                  const isobit_cuda_gru_qat_run*)) {
  const isobit_cuda_functions& functions = cuda_functions();
  const isobit_cuda_gru_qat* const on_device = qat.on(call.device);
  isobit_cuda_gru_qat_run run{};
  run.saved = const_cast<std::byte*>(saved.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  run.saved_bytes = std::ssize(saved);
  run.steps = call.of_steps.shape()[0];
  run.batch = call.of_steps.shape()[1];
  call.enqueue(functions.gru_qat_workspace_bytes(on_device, run.steps, run.batch),
               [&](const isobit_cuda_gru_training_run& arrays) {
                 run.arrays = arrays;
                 return (functions.*function)(on_device, &run);
               });
}

void qat_device_forward(const GruQat& qat, const nb::any& x, const nb::any& first, const Arrays& weights,
                        const nb::any& lengths, const nb::any& mask, const nb::any& y, const nb::any& last,
                        const nb::any& saved) {
  CallOfWeights call(x, first, weights, qat.model.parameters().directions, lengths, mask);
  const Results results(y, last, call);
  const Written saved_out(saved, "saved", call.device, Dtype::kU8);
  enqueue_integers(qat, call, saved_out.output->bytes(), &isobit_cuda_functions::gru_qat_forward);
}

void qat_device_backward(const GruQat& qat, const nb::any& dy, const nb::any& last_gradient, const nb::any& lengths,
                         const nb::any& mask, const nb::any& saved, const nb::any& dx, const nb::any& first_gradient,
                         const Arrays& gradients) {
  DeviceCall call(dy, "dy", "directions * H", lengths, mask);
  const Read saved_in(saved, "saved", Dtype::kU8, call.device, "dy");
  const Gradients into(last_gradient, dx, first_gradient, gradients, call, "dy");
  call.run.dy = floats_of(call.of_steps.values<float>());
  enqueue_integers(qat, call, saved_in.values<std::byte>(), &isobit_cuda_functions::gru_qat_backward);
}

/// Shares of clamps, in the order of GruQat.forward.
std::vector<double> qat_device_check(const GruQat& qat, int64_t steps, int64_t batch, const nb::any& saved) {
  const Device device = device_of(saved, "saved");
  if (!device) refuse_type("saved is on the host, must be on a CUDA device");
  const Written saved_out(saved, "saved", *device, Dtype::kU8);  // clamps are counted in it
  const std::span<std::byte> bytes = saved_out.output->bytes();
  const isobit_cuda_functions& functions = cuda_functions();
  const isobit_cuda_gru_qat* const on_device = qat.on(*device);
  const Stream stream(saved);
  std::vector<double> shares(6 * qat.model.parameters().layers.size() + 1);
  const nb::gil_scoped_release release;
  check_cuda(functions.gru_qat_check(on_device, steps, batch, bytes.data(), std::ssize(bytes), stream.handle,
                                     shares.data(), std::ssize(shares)));
  return shares;
}

}  // namespace

const isobit_cuda_gru_qat* GruQat::on(int device) const {
  const isobit_cuda_functions& functions = cuda_functions();
  return copies.get(device, functions.gru_qat_destroy, [&](isobit_cuda_gru_qat** made) {
    const std::vector<std::byte> saved = take(model.saved_bytes());
    std::vector<isobit_cuda_row_options> options;
    for (int64_t layer = 0; layer < model.layer_count(); ++layer)
      for (const GruTensor tensor : {kW, kR, kBw, kBr}) {
        const GridOptions& of = quantization.layer(layer).tensors[tensor];
        options.push_back({of.bits, of.is_signed ? 1 : 0, of.symmetric ? 1 : 0, of.steps.value_or(-1)});
      }
    return functions.gru_qat_create(saved.data(), std::ssize(saved), options.data(), std::ssize(options),
                                    rows == GruRowGrids::kKept ? 1 : 0, "training", device, made);
  });
}

void bind_device_training(nb::module_& m) {
  m.def("gru_device_forward", &device_forward, "x"_a, "first"_a.none(), "weights"_a, "directions"_a, "lengths"_a.none(),
        "mask"_a.none(), "y"_a, "last"_a, "saved"_a, "DeviceGruTraining::forward.");
  m.def("gru_device_backward", &device_backward, "x"_a, "first"_a.none(), "weights"_a, "directions"_a,
        "lengths"_a.none(), "mask"_a.none(), "y"_a, "saved"_a, "dy"_a, "last_gradient"_a.none(), "dx"_a.none(),
        "first_gradient"_a.none(), "gradients"_a, "DeviceGruTraining::backward.");
  m.def("gru_qat_device_forward", &qat_device_forward, "qat"_a, "x"_a, "first"_a.none(), "weights"_a,
        "lengths"_a.none(), "mask"_a.none(), "y"_a, "last"_a, "saved"_a, "DeviceGruQat::forward.");
  m.def("gru_qat_device_backward", &qat_device_backward, "qat"_a, "dy"_a, "last_gradient"_a.none(), "lengths"_a.none(),
        "mask"_a.none(), "saved"_a, "dx"_a.none(), "first_gradient"_a.none(), "gradients"_a, "DeviceGruQat::backward.");
  m.def("gru_qat_device_check", &qat_device_check, "qat"_a, "steps"_a, "batch"_a, "saved"_a, "DeviceGruQat::check.");
  m.def(
      "gru_qat_device_saved_bytes",
      [](const GruQat& qat, int device, int64_t steps, int64_t batch) {
        return cuda_functions().gru_qat_saved_bytes(qat.on(device), steps, batch);
      },
      "qat"_a, "device"_a, "steps"_a, "batch"_a, "DeviceGruQat::saved_bytes.");
}

}  // namespace isobit::python
