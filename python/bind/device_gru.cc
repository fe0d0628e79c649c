// SPDX-License-Identifier: Apache-2.0
// Calls and states of GRUs on CUDA devices. Memory is torch's and everything goes to its current stream: what a call
// leaves behind may be used again by whatever comes into that stream next.
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "cuda.h"
#include "cuda/library.h"
#include "errors.h"
#include "gru.h"

namespace isobit::python {
namespace nb = nanobind;
namespace {

int64_t size_of(std::span<const std::byte> bytes) { return static_cast<int64_t>(bytes.size()); }

/// Memory of a state without its content.
DeviceState new_device_state(const Gru& gru, int64_t batch, nb::handle like, int device) {
  const int64_t bytes = cuda_functions().gru_state_bytes(gru.on(device), batch);
  NewArray memory = new_array(like, Dtype::kU8, {bytes}, device);
  return {device, batch, std::move(memory.array), memory.bytes, {}, {}};
}

/// To call once a call was enqueued: torch does not give the memory of a state to others before it is done, even where
/// it came from another stream.
void keep_until_done(const DeviceState& state, const Stream& stream) {
  if (!state.bytes.empty()) state.tensor.attr("record_stream")(stream.object);
}

/// Lengths on the device of x: an array that is there, or a copy of numbers.
struct DeviceLengths {
  DeviceLengths(nb::handle lengths, nb::handle x, int device, const Extents& extents) {
    if (lengths.is_none()) return;
    if (!nb::hasattr(lengths, "__dlpack_device__") || !device_of(lengths, "lengths")) {
      const std::vector<int64_t> numbers = lengths_of(lengths);
      check_count(numbers.size(), extents);
      for (size_t n = 0; n < numbers.size(); ++n)
        if (numbers[n] < 0 || numbers[n] > extents.steps)
          refuse("lengths[" + std::to_string(n) + "] is " + std::to_string(numbers[n]) + ", must be 0.." +
                 std::to_string(extents.steps) + " (the steps)");
      if (numbers.empty()) return;
      copy = nb::module_::import_("isobit._arrays").attr("on_device")(x, numbers);
      lengths = copy;
    }
    input.emplace(lengths, "lengths", Dtype::kS64, Places::kHostOrDevice);
    if (input->device() != device)
      refuse_type("lengths is " + place_text(input->device()) + ", must be " + place_text(device) +
                  ", as x, or numbers");
    if (input->shape().size() != 1)
      refuse("lengths has shape " + shape_text(input->shape()) + ", must be [" + std::to_string(extents.batch) + "]");
    check_count(static_cast<size_t>(input->shape()[0]), extents);
    values = input->values<int64_t>();
  }
  static void check_count(size_t count, const Extents& extents) {
    if (static_cast<int64_t>(count) != extents.batch)
      refuse("lengths has " + std::to_string(count) + " values, must have " + std::to_string(extents.batch) +
             " (the batch)");
  }

  nb::object copy;
  std::optional<Input> input;
  std::span<const int64_t> values;
};

}  // namespace

const isobit_cuda_gru* Gru::on(int device) const {
  return copies.get(device, *this, &isobit_cuda_functions::gru_create, &isobit_cuda_functions::gru_destroy);
}

DeviceState device_state(const Gru& gru, int64_t batch, nb::handle like, int device, const Input* h) {
  const isobit_cuda_functions& functions = cuda_functions();
  const isobit_cuda_gru* const on_device = gru.on(device);
  DeviceState state = new_device_state(gru, batch, like, device);
  const Stream stream(like);
  if (h == nullptr) {
    check_cuda(functions.gru_initial_state(on_device, state.bytes.data(), size_of(state.bytes), batch, stream.handle));
  } else {
    const std::span<const float> values = h->values<float>();
    check_cuda(functions.gru_state_from_float(on_device, values.data(), static_cast<int64_t>(values.size()),
                                              state.bytes.data(), size_of(state.bytes), batch, stream.handle));
  }
  return state;
}

nb::any run_on_device(const Gru& gru, const Call& call, const Input& x, const Extents& extents, Dtype y_dtype,
                      const std::vector<int64_t>& y_shape) {
  const int device = *x.device();
  refuse_on_device("pool", call.pool != nullptr);
  refuse_on_device("path", call.path.has_value());
  const isobit_cuda_functions& functions = cuda_functions();
  const isobit_cuda_gru* const on_device = gru.on(device);
  State* const given = state_of(call);
  std::unique_lock<std::mutex> lock;
  std::optional<DeviceState> own;
  if (given != nullptr) {
    lock = given->lock();
    check_state(*given, gru, extents, device);
  } else {
    own = device_state(gru, extents.batch, call.x, device, nullptr);
  }
  DeviceState& state = own ? *own : *given->on_device;
  const DeviceLengths lengths(call.lengths, call.x, device, extents);
  const Returned y(call.x, call.out, y_dtype, y_shape, device);
  NewArray workspace =
      new_array(call.x, Dtype::kU8, {functions.gru_workspace_bytes(on_device, extents.batch, extents.steps)}, device);
  const Stream stream(call.x);

  isobit_cuda_gru_run run{};
  cuda::set_arrays(x.bytes(), x.dtype(), y.bytes(), y_dtype, workspace.bytes, run);
  run.state = state.bytes.data();
  run.state_bytes = size_of(state.bytes);
  run.lengths = lengths.values.data();
  run.lengths_count = static_cast<int64_t>(lengths.values.size());
  run.steps = extents.steps;
  run.batch = extents.batch;
  run.stream = stream.handle;
  run.batch_first = call.batch_first && !extents.single ? 1 : 0;
  run.whole_sequence = call.whole_sequence.value_or(call.state.is_none()) ? 1 : 0;
  check_cuda(functions.gru_run(on_device, &run));
  if (given != nullptr) {
    keep_until_done(state, stream);
    state.workspace = x.dtype() == Dtype::kF32 ? std::move(workspace) : NewArray();
    state.stream = stream;
  }
  return nb::borrow<nb::any>(y.array());
}

nb::object device_state_values(State& state, nb::handle like) {
  const auto lock = state.lock();
  const DeviceState& of = *state.on_device;
  const isobit_cuda_functions& functions = cuda_functions();
  NewArray made = new_array(
      like, Dtype::kF32,
      {static_cast<int64_t>(state.model.parameters().layers.size()), of.batch, state.model.hidden_size()}, of.device);
  const Stream stream(like);
  check_cuda(functions.gru_state_to_float(state.model.on(of.device), of.bytes.data(), size_of(of.bytes),
                                          reinterpret_cast<float*>(made.bytes.data()), size_of(made.bytes) / 4,
                                          of.batch, stream.handle));
  keep_until_done(of, stream);
  return made.array;
}

std::unique_ptr<State> copy_device_state(State& state) {
  const auto lock = state.lock();
  const DeviceState& of = *state.on_device;
  DeviceState copy = new_device_state(state.model, of.batch, of.tensor, of.device);
  copy.tensor.attr("copy_")(of.tensor);
  keep_until_done(of, Stream(of.tensor));
  return std::make_unique<State>(state.model, std::move(copy));
}

void check_device_input(State& state) {
  const auto lock = state.lock();
  const DeviceState& of = *state.on_device;
  if (of.workspace.bytes.empty()) return;
  const isobit_cuda_functions& functions = cuda_functions();
  const isobit_cuda_gru* const on_device = state.model.on(of.device);
  const nb::gil_scoped_release release;
  check_cuda(
      functions.gru_check_input(on_device, of.workspace.bytes.data(), size_of(of.workspace.bytes), of.stream->handle));
}

}  // namespace isobit::python
