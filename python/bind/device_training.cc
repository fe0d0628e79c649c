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

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

using Arrays = std::vector<nb::any>;
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

/// An array that the library reads.
isobit_cuda_floats floats_of(std::span<const float> array) {
  return {const_cast<float*>(array.data()), std::ssize(array)};  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

/// An argument that is read, or None.
struct Read {
  Read(const nb::any& array, const char* name, Dtype dtype, int device) {
    if (array.is_none()) return;
    input.emplace(array, name, dtype, Places::kHostOrDevice);
    if (input->device() != device)
      refuse_type(std::string(name) + " is " + place_text(input->device()) + ", must be " + place_text(device) +
                  ", as x");
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
  Written(const nb::any& array, const char* name, int device) {
    if (array.is_none()) return;
    const Input shape(array, name, Dtype::kF32, Places::kHostOrDevice);
    output.emplace(array, name, Dtype::kF32, shape.shape(), Device(device));
  }
  [[nodiscard]] isobit_cuda_floats floats() const {
    if (!output) return {nullptr, 0};
    return {reinterpret_cast<float*>(output->bytes().data()),
            std::ssize(output->bytes()) / static_cast<int64_t>(sizeof(float))};
  }

  std::optional<Output> output;
};

int device_of_x(const Input& x) {
  if (!x.device()) refuse_type("x is on the host, must be on a CUDA device");
  if (x.shape().size() != 3) refuse("x has shape " + shape_text(x.shape()) + ", must be [T, N, C]");
  return *x.device();
}

/// A call with what forward and backward both read.
struct DeviceCall {
  DeviceCall(const nb::any& x_array, const nb::any& first_array, const Arrays& weight_arrays, int directions,
             const nb::any& lengths_array, const nb::any& mask_array)
      : like(x_array),
        x(x_array, "x", Dtype::kF32, Places::kHostOrDevice),
        device(device_of_x(x)),
        first(first_array, "h_0", Dtype::kF32, device),
        lengths(lengths_array, "lengths", Dtype::kS64, device),
        mask(mask_array, "zoneout", Dtype::kU8, device) {
    if (directions < 1 || weight_arrays.empty() || weight_arrays.size() % (4 * static_cast<size_t>(directions)) != 0)
      refuse("weights has " + std::to_string(weight_arrays.size()) +
             " arrays, must have 4 * layers * directions, directions " + std::to_string(directions));
    for (const nb::any& array : weight_arrays) weights.emplace_back(array, "weights", Dtype::kF32, device);
    for (const Read& of : weights) weight_floats.push_back(of.floats());
    if (!weights[1].input || weights[1].input->shape().size() != 2) refuse("weights[1] must be [3H, H]");
    sizes = {
        x.shape()[0], x.shape()[1], x.shape()[2], weights[1].input->shape()[1], std::ssize(weights) / 4 / directions,
        directions};
    run.x = floats_of(x.values<float>());
    run.first = first.floats();
    run.weights = weight_floats.data();
    run.weights_count = std::ssize(weight_floats);
    run.lengths = lengths.values<int64_t>().data();
    run.lengths_count = std::ssize(lengths.values<int64_t>());
    run.zoneout_mask = mask.values<uint8_t>().data();
    run.zoneout_mask_count = std::ssize(mask.values<uint8_t>());
  }

  /// Enqueues the forward or the backward of `run`.
  void enqueue(int32_t (*isobit_cuda_functions::*function)(const isobit_cuda_gru_training*,
                                                           const isobit_cuda_gru_training_run*)) {
    const isobit_cuda_functions& functions = cuda_functions();
    Training training;
    {
      const nb::gil_scoped_release release;
      training = trainings().get(sizes, device);
    }
    const NewArray workspace =
        new_array(like, Dtype::kU8, {functions.gru_training_workspace_bytes(training.get())}, device);
    const Stream stream(like);
    run.workspace = workspace.bytes.data();
    run.workspace_bytes = std::ssize(workspace.bytes);
    run.stream = stream.handle;
    const nb::gil_scoped_release release;
    check_cuda((functions.*function)(training.get(), &run));
  }

  nb::handle like;  // x, of the caller
  Input x;
  int device;
  Read first, lengths, mask;
  std::vector<Read> weights;
  std::vector<isobit_cuda_floats> weight_floats;
  isobit_cuda_gru_training_sizes sizes{};
  isobit_cuda_gru_training_run run{};
};

void device_forward(const nb::any& x, const nb::any& first, const Arrays& weights, int directions,
                    const nb::any& lengths, const nb::any& mask, const nb::any& y, const nb::any& last,
                    const nb::any& saved) {
  DeviceCall call(x, first, weights, directions, lengths, mask);
  const Written y_out(y, "y", call.device), last_out(last, "h_n", call.device), saved_out(saved, "saved", call.device);
  call.run.y = y_out.floats();
  call.run.last = last_out.floats();
  call.run.saved = saved_out.floats();
  call.enqueue(&isobit_cuda_functions::gru_training_forward);
}

void device_backward(const nb::any& x, const nb::any& first, const Arrays& weights, int directions,
                     const nb::any& lengths, const nb::any& mask, const nb::any& y, const nb::any& saved,
                     const nb::any& dy, const nb::any& last_gradient, const nb::any& dx, const nb::any& first_gradient,
                     const Arrays& gradients) {
  DeviceCall call(x, first, weights, directions, lengths, mask);
  const int device = call.device;
  const Read y_in(y, "y", Dtype::kF32, device), saved_in(saved, "saved", Dtype::kF32, device),
      dy_in(dy, "dy", Dtype::kF32, device), last_in(last_gradient, "the gradient of h_n", Dtype::kF32, device);
  const Written dx_out(dx, "dx", device), first_out(first_gradient, "the gradient of h_0", device);
  std::vector<Written> into;
  std::vector<isobit_cuda_floats> into_floats;
  for (const nb::any& array : gradients) into_floats.push_back(into.emplace_back(array, "gradients", device).floats());
  call.run.y = y_in.floats();
  call.run.saved = saved_in.floats();
  call.run.dy = dy_in.floats();
  call.run.last_gradient = last_in.floats();
  call.run.dx = dx_out.floats();
  call.run.first_gradient = first_out.floats();
  call.run.gradients = into_floats.data();
  call.run.gradients_count = std::ssize(into_floats);
  call.enqueue(&isobit_cuda_functions::gru_training_backward);
}

}  // namespace

void bind_device_training(nb::module_& m) {
  m.def("gru_device_forward", &device_forward, "x"_a, "first"_a.none(), "weights"_a, "directions"_a, "lengths"_a.none(),
        "mask"_a.none(), "y"_a, "last"_a, "saved"_a, "DeviceGruTraining::forward.");
  m.def("gru_device_backward", &device_backward, "x"_a, "first"_a.none(), "weights"_a, "directions"_a,
        "lengths"_a.none(), "mask"_a.none(), "y"_a, "saved"_a, "dy"_a, "last_gradient"_a.none(), "dx"_a.none(),
        "first_gradient"_a.none(), "gradients"_a, "DeviceGruTraining::backward.");
}

}  // namespace isobit::python
