// SPDX-License-Identifier: Apache-2.0
// What Python holds of a GRU.
#ifndef ISOBIT_PYTHON_GRU_H_
#define ISOBIT_PYTHON_GRU_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "cuda.h"
#include "isobit/compare.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "isobit/run.h"

namespace isobit::python {

/// One call at a time: others wait. Recursive for a metric that uses the pool of the search that calls it.
struct Pool {
  explicit Pool(int threads) : pool(threads) {}
  ThreadPool pool;
  std::recursive_mutex mutex;
};

/// The threads of a call that takes a pool or none; holds them until it ends.
struct PoolUse {
  explicit PoolUse(Pool* used) : pool(used == nullptr ? nullptr : &used->pool) {
    if (used != nullptr) lock = std::unique_lock(used->mutex);
  }
  [[nodiscard]] int threads() const { return pool == nullptr ? 1 : pool->threads(); }
  ThreadPool* pool;
  std::unique_lock<std::recursive_mutex> lock;
};

/// A model, and its copies on devices.
struct Gru : GruModel {
  Gru(GruModel model) : GruModel(std::move(model)) {}  // NOLINT: implicit on purpose
  /// The copy on a device, made when it is first asked for.
  [[nodiscard]] const isobit_cuda_gru* on(int device) const;

  OnDevices<isobit_cuda_gru> copies;
};

/// Codes of h in a tensor on a device.
struct DeviceState {
  int device = 0;
  int64_t batch = 0;
  nanobind::object tensor;
  std::span<std::byte> bytes;  // of the tensor
  NewArray workspace;          // of the last call, where its x was floats, and where it went, for check_input()
  std::optional<Stream> stream;
};

/// Codes of h, on the host or on a device, with the model that they are of and the scratch memory of its calls. One
/// call at a time: others wait.
struct State {
  Gru model;
  GruState state;
  std::optional<DeviceState> on_device;
  Workspace workspace;
  int64_t workspace_steps = -1;
  int workspace_threads = 0;
  std::mutex mutex;

  State(const Gru& of, GruState first) : model(of), state(std::move(first)) {}
  State(const Gru& of, DeviceState first) : model(of), on_device(std::move(first)) {}
  [[nodiscard]] int64_t batch() const { return on_device ? on_device->batch : state.batch(); }
  [[nodiscard]] Device device() const { return on_device ? Device(on_device->device) : std::nullopt; }
  /// Nobody waits for a state with the GIL, so whoever has the state may take it.
  [[nodiscard]] std::unique_lock<std::mutex> lock() {
    const nanobind::gil_scoped_release release;
    return std::unique_lock<std::mutex>(mutex);
  }
};

// ---- GRUs on devices

/// x [T, N, C] or [T, C]; [N, T, C] with batch_first.
struct Extents {
  int64_t steps = 0, batch = 1;
  bool single = false;
};

/// The arguments of a call of a Gru.
struct Call {
  nanobind::any x;
  nanobind::object state;
  nanobind::any lengths;
  bool batch_first;
  std::optional<bool> whole_sequence;
  nanobind::object out;
  Pool* pool;
  std::optional<std::string> path;
};
/// The state that a call names, or null.
State* state_of(const Call& call);
/// Whether the state is of this model, where x is, and of as many sequences.
void check_state(const State& state, const GruModel& model, const Extents& extents, Device device);
std::vector<int64_t> lengths_of(nanobind::handle lengths);

/// The call with x on a device, in the order of torch's current stream; y of this shape.
nanobind::any run_on_device(const Gru& gru, const Call& call, const Input& x, const Extents& extents, Dtype y_dtype,
                            const std::vector<int64_t>& y_shape);
/// h = 0, or the numbers of `h`, in memory of the device where `like` lies, a tensor.
DeviceState device_state(const Gru& gru, int64_t batch, nanobind::handle like, int device, const Input* h);
nanobind::object device_state_values(State& state, nanobind::handle like);
std::unique_ptr<State> copy_device_state(State& state);
void check_device_input(State& state);

/// Statistics, and the methods that they are for.
struct Calibrator {
  GruCalibrator calibrator;
  std::string method;
};

/// A comparison, and after finish() what it found.
struct Comparison {
  GruComparison comparison;
  GruModel model;
  double part_codes;
  std::optional<GruValidation> validation;  // the same data, for an ablation
  std::vector<std::string> names;           // of sequences
  std::optional<GruComparisonReport> report;
  std::optional<GruAblation> ablation;
};

/// W, R, bw and br of each direction of each layer.
GruWeights gru_weights_of_arrays(const std::vector<std::vector<nanobind::any>>& layers, int directions,
                                 const std::string& gate_order, const std::string& name);

void bind_gru(nanobind::module_& m);
void bind_checks(nanobind::module_& m);
void bind_conv(nanobind::module_& m);
void bind_device_training(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_pages(nanobind::module_& m);
void bind_tables(nanobind::module_& m);
void bind_training(nanobind::module_& m);
void bind_tune(nanobind::module_& m);

}  // namespace isobit::python

#endif  // ISOBIT_PYTHON_GRU_H_
