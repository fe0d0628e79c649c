// SPDX-License-Identifier: Apache-2.0
#include "gru.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "errors.h"
#include "export.h"
#include "isobit/compare.h"
#include "isobit/gru_files.h"
#include "isobit/report.h"
#include "isobit/tune.h"
#include "names.h"
#include "path.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

GateOrder gate_order_of(const std::string& text) {
  return parse_name("gate_order", text, gate_order_from_string, "urn, pytorch, onnx");
}

// ---- Weights

GruWeights load_weights(const Path& path, const std::optional<std::string>& prefix,
                        const std::optional<std::string>& gate_order, const std::optional<std::string>& layout,
                        const std::optional<std::string>& reset, const std::vector<std::string>& layer) {
  GruLoadOptions options;
  if (prefix) {
    options.prefix = *prefix;
    options.unprefixed = prefix->empty();
  }
  for (const std::string& text : layer) check(apply_layer(text, options));
  if (gate_order) options.gate_order = gate_order_of(*gate_order);
  if (layout) options.layout = parse_name("layout", *layout, gru_layout_from_string, "rows, columns");
  if (reset && *reset != "after" && *reset != "before") refuse("reset is '" + *reset + "', must be after or before");
  if (reset) options.reset_after = *reset == "after";
  const nb::gil_scoped_release release;
  return take(load_gru(path.text, options));
}

/// Rows [3H, width] in the order u, r, n.
std::vector<float> in_order(const Input& values, int64_t hidden, GateOrder order) {
  const std::span<const float> from = values.values<float>();
  std::vector<float> to(from.begin(), from.end());
  const auto block = to.size() / 3;
  if (order == GateOrder::kRun && hidden > 0) std::rotate(to.begin(), to.begin() + block, to.begin() + 2 * block);
  return to;
}

}  // namespace

GruWeights gru_weights_of_arrays(const std::vector<std::vector<nb::any>>& layers, int directions,
                                 const std::string& gate_order, const std::string& name) {
  const GateOrder order = gate_order_of(gate_order);
  GruWeights weights;
  weights.directions = directions;
  weights.name = name;
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string label = "layers[" + std::to_string(l) + "]";
    if (layers[l].size() != 4)
      refuse(label + " has " + std::to_string(layers[l].size()) + " arrays, must have W, R, bw, br");
    const std::array<const char*, 4> names = {"W", "R", "bw", "br"};
    std::array<std::optional<Input>, 4> arrays;
    for (size_t i = 0; i < 4; ++i) arrays[i].emplace(layers[l][i], (label + "." + names[i]).c_str(), Dtype::kF32);
    const std::vector<int64_t>& r = arrays[1]->shape();
    const std::vector<int64_t>& w = arrays[0]->shape();
    if (r.size() != 2 || r[0] != 3 * r[1]) refuse(label + ".R has shape " + shape_text(r) + ", must be [3 * H, H]");
    const int64_t hidden = r[1];
    if (w.size() != 2 || w[0] != 3 * hidden)
      refuse(label + ".W has shape " + shape_text(w) + ", must be [" + std::to_string(3 * hidden) + ", C]");
    for (const size_t i : {2, 3})
      if (arrays[i]->shape() != std::vector<int64_t>{3 * hidden})
        refuse(label + "." + names[i] + " has shape " + shape_text(arrays[i]->shape()) + ", must be [" +
               std::to_string(3 * hidden) + "]");
    weights.layers.push_back({w[1], hidden, in_order(*arrays[0], hidden, order), in_order(*arrays[1], hidden, order),
                              in_order(*arrays[2], hidden, order), in_order(*arrays[3], hidden, order)});
  }
  check(check_weights(weights));
  return weights;
}

namespace {

// ---- Sequences

Extents extents_of(std::span<const int64_t> shape, int64_t channels, bool batch_first) {
  const bool single = shape.size() == 2;
  if ((!single && shape.size() != 3) || shape.back() != channels) {
    const std::string c = std::to_string(channels);
    refuse("x has shape " + shape_text(shape) + ", must be " + (batch_first ? "[N, T, " : "[T, N, ") + c + "] or [T, " +
           c + "]");
  }
  if (single) return {shape[0], 1, true};
  return batch_first ? Extents{shape[1], shape[0], false} : Extents{shape[0], shape[1], false};
}

std::vector<int64_t> output_shape(const Extents& extents, int64_t width, bool batch_first) {
  if (extents.single) return {extents.steps, width};
  if (batch_first) return {extents.batch, extents.steps, width};
  return {extents.steps, extents.batch, width};
}

// ---- The float forward

nb::typed<nb::tuple, nb::any, nb::any> forward_float(const GruWeights& weights, nb::any x, nb::any h0,
                                                     const std::optional<std::vector<int64_t>>& lengths) {
  const Input input(x, "x", Dtype::kF32);
  const Extents extents = extents_of(input.shape(), weights.input_size(), /*batch_first=*/false);
  const std::vector<int64_t> state_shape = {std::ssize(weights.layers), extents.batch, weights.hidden_size()};
  std::optional<Input> first;
  if (!h0.is_none()) {
    first.emplace(h0, "h0", Dtype::kF32);
    if (first->shape() != state_shape)
      refuse("h0 has shape " + shape_text(first->shape()) + ", must be " + shape_text(state_shape));
  }
  const NewArray y = new_array(x, Dtype::kF32, output_shape(extents, weights.output_size(), false));
  const NewArray last = new_array(x, Dtype::kF32, state_shape);
  const auto floats = [](const NewArray& array) {
    return std::span(reinterpret_cast<float*>(array.bytes.data()), array.bytes.size() / sizeof(float));
  };
  {
    const nb::gil_scoped_release release;
    GruFloatArguments arguments;
    arguments.steps = extents.steps;
    arguments.batch = extents.batch;
    arguments.x = input.values<float>();
    arguments.y = floats(y);
    arguments.h_last = floats(last);
    if (lengths) arguments.lengths = *lengths;
    if (first) arguments.h0 = first->values<float>();
    check(gru_forward_float(weights, arguments));
  }
  return nb::make_tuple(y.array, last.array);
}

// ---- Calibration

std::unique_ptr<Calibrator> make_calibrator(const GruWeights& weights, const std::string& method) {
  GruQuantization methods;
  check(apply_methods(method, methods));
  return std::make_unique<Calibrator>(Calibrator{take(GruCalibrator::create(weights, methods)), method});
}

void observe(Calibrator& self, nb::any x, const std::optional<std::vector<int64_t>>& lengths, bool batch_first,
             nb::any h0, float zoneout, Pool* pool) {
  const Input input(x, "x", Dtype::kF32);
  const GruWeights& weights = self.calibrator.weights();
  const Extents extents = extents_of(input.shape(), weights.input_size(), batch_first);
  std::optional<Input> first;
  if (!h0.is_none()) first.emplace(h0, "h0", Dtype::kF32);
  const nb::gil_scoped_release release;
  std::vector<float> swapped;
  std::span<const float> values = input.values<float>();
  if (batch_first && !extents.single) {
    const auto width = static_cast<size_t>(weights.input_size());
    swapped.resize(values.size());
    for (int64_t n = 0; n < extents.batch; ++n)
      for (int64_t t = 0; t < extents.steps; ++t)
        std::copy_n(values.data() + static_cast<size_t>(n * extents.steps + t) * width, width,
                    swapped.data() + static_cast<size_t>(t * extents.batch + n) * width);
    values = swapped;
  }
  const PoolUse use(pool);
  check(self.calibrator.observe(values, extents.steps, extents.batch, lengths ? *lengths : std::vector<int64_t>(),
                                first ? first->values<float>() : std::span<const float>(), use.pool, zoneout));
}

// ---- Running

nb::any run(const Gru& gru, const Call& call, bool codes) {
  const Dtype x_dtype = codes ? gru.input_grid().dtype() : Dtype::kF32;
  const Dtype y_dtype = codes ? gru.output_grid().dtype() : Dtype::kF32;
  const Input x(call.x, "x", x_dtype, Places::kHostOrDevice);
  const Extents extents = extents_of(x.shape(), gru.input_size(), call.batch_first);
  const std::vector<int64_t> shape = output_shape(extents, gru.output_size(), call.batch_first);
  if (x.device()) return run_on_device(gru, call, x, extents, y_dtype, shape);
  if (codes && gru.input_grid().bits != static_cast<int32_t>(8 * size_in_bytes(x_dtype))) {
    check(check_codes(array_of(x), gru.input_grid(), "x"));
  }
  State* state = state_of(call);
  std::unique_ptr<State> own;
  if (state == nullptr) {
    own = std::make_unique<State>(gru, gru.initial_state(extents.batch));
    state = own.get();
  }
  const Returned y(call.x, call.out, y_dtype, shape);
  const std::vector<int64_t> lengths = lengths_of(call.lengths);
  RunOptions options;
  options.path = path_named(call.path);
  options.lengths = lengths;
  options.batch_first = call.batch_first && !extents.single;
  options.whole_sequence = call.whole_sequence.value_or(call.state.is_none());

  {
    const nb::gil_scoped_release release;
    const PoolUse use(call.pool);
    options.pool = use.pool;
    const int threads = use.threads();
    const std::lock_guard<std::mutex> state_lock(state->mutex);
    check_state(*state, gru, extents, std::nullopt);
    if (extents.steps > state->workspace_steps || threads > state->workspace_threads) {
      state->workspace = gru.workspace(extents.batch, extents.steps, threads);
      state->workspace_steps = extents.steps;
      state->workspace_threads = threads;
    }
    check(gru.forward(x.bytes(), x_dtype, y.bytes(), y_dtype, extents.steps, state->state, state->workspace, options));
  }
  return nb::borrow<nb::any>(y.array());
}

std::unique_ptr<State> initial_state(const Gru& gru, int64_t batch, nb::any h, nb::any like) {
  if (batch < 0) refuse("batch is " + std::to_string(batch) + ", must not be negative");
  const Device device = like.is_none() ? std::nullopt : device_of(like, "like");
  if (h.is_none()) {
    if (device) {
      check_tensor(like, "like", device);
      return std::make_unique<State>(gru, device_state(gru, batch, like, *device, nullptr));
    }
    return std::make_unique<State>(gru, gru.initial_state(batch));
  }
  const Input values(h, "h", Dtype::kF32, Places::kHostOrDevice);
  if (!like.is_none() && values.device() != device)
    refuse_type("h is " + place_text(values.device()) + ", must be " + place_text(device) + ", as like");
  const std::vector<int64_t> expected = {static_cast<int64_t>(gru.parameters().layers.size()), batch,
                                         gru.hidden_size()};
  if (values.shape() != expected)
    refuse("h has shape " + shape_text(values.shape()) + ", must be " + shape_text(expected));
  if (values.device()) return std::make_unique<State>(gru, device_state(gru, batch, h, *values.device(), &values));
  return std::make_unique<State>(gru, take(gru.state_from_float(values.values<float>(), batch)));
}

nb::any state_values(State& self, nb::any like) {
  if (const Device device = device_of(like, "like"); device != self.device())
    refuse_type("like is " + place_text(device) + ", must be " + place_text(self.device()) + ", as the state");
  if (self.on_device) {
    check_tensor(like, "like", self.device());
    return nb::borrow<nb::any>(device_state_values(self, like));
  }
  NewArray made =
      new_array(like, Dtype::kF32, {self.state.layer_count(), self.state.batch(), self.model.hidden_size()});
  const auto lock = self.lock();
  self.model.state_to_float(self.state, {reinterpret_cast<float*>(made.bytes.data()), made.bytes.size() / 4});
  return nb::borrow<nb::any>(made.array);
}

std::unique_ptr<State> copy_state(State& self) {
  if (self.on_device) return copy_device_state(self);
  const auto lock = self.lock();
  return std::make_unique<State>(self.model, self.state);
}

std::unique_ptr<State> state_from(const Gru& gru, const Gru& other, State& state) {
  if (state.on_device)
    refuse_unsupported("state is " + place_text(state.device()) +
                       ", must be on the host: devices do not requantise states of another model");
  const auto lock = state.lock();
  return std::make_unique<State>(gru, take(gru.state_from(other, state.state)));
}

std::string model_text(const GruModel& model) {
  const GruModelParameters& p = model.parameters();
  return gru_text(p.name, model.layer_count(), p.directions, model.input_size(), model.output_size());
}

template <bool kCodes>
void bind_call(nb::class_<Gru>& gru, const char* name, const char* doc) {
  gru.def(
      name,
      [](const Gru& self, nb::any x, nb::any state, nb::any lengths, bool batch_first,
         std::optional<bool> whole_sequence, nb::any out, Pool* pool, std::optional<std::string> path) {
        return run(self, {x, state, lengths, batch_first, whole_sequence, out, pool, std::move(path)}, kCodes);
      },
      "x"_a, "state"_a = nb::none(), nb::kw_only(), "lengths"_a = nb::none(), "batch_first"_a = false,
      "whole_sequence"_a = nb::none(), "out"_a = nb::none(), "pool"_a.none() = nb::none(), "path"_a = nb::none(), doc);
}

constexpr const char* kCallDoc =
    "x [T, N, C] float32 to y [T, N, directions * H]: quantised on input_grid, computed in integers, dequantised from\n"
    "output_grid. x may be [T, C] (one sequence), or [N, T, C] with batch_first; y has its form and belongs to its\n"
    "library.\n\n"
    "state: of initial_state(); continues from it and leaves the last state there. None: from h = 0.\n"
    "lengths: N integers in 0..T; past its length a sequence's state stays and y is 0.\n"
    "whole_sequence: x holds whole sequences, not pieces. Bidirectional models want it; default: without a state.\n"
    "out: a contiguous array of y's shape, which is returned.\n"
    "pool: of ThreadPool; bytes never depend on it. path: kernels of one instruction set (supported()).\n\n"
    "On a CUDA device x is a torch.Tensor. state and out must be there, too; lengths may be, in int64, and what lies\n"
    "outside 0..T then counts as the nearer end; pool and path mean nothing. The call goes to torch's current stream\n"
    "and waits for nothing, so a NaN counts as zero (GruState.check_input() tells). It needs libisobit_cuda.so.\n\n"
    "Raises InvalidArgumentError for shapes, lengths, a NaN (by its index) and a state of another model, TypeError "
    "for\n"
    "other types and arrays that are not where x is, NotSupportedError without libisobit_cuda.so.";
constexpr const char* kCodesDoc =
    "The same of codes: x of input_grid's dtype, y of output_grid's. A code outside input_grid is refused by its "
    "place;\n"
    "on a CUDA device nothing looks for it.";

}  // namespace

State* state_of(const Call& call) {
  State* state = nullptr;
  if (!call.state.is_none() && (!nb::try_cast(call.state, state) || state == nullptr))
    refuse_type("state is " + std::string(nb::str(call.state.type().attr("__name__")).c_str()) +
                ", must be what initial_state() makes, or None");
  return state;
}

void check_state(const State& state, const GruModel& model, const Extents& extents, Device device) {
  if (state.device() != device)
    refuse_type("state is " + place_text(state.device()) + ", must be " + place_text(device) +
                ", as x; initial_state(batch, like=x) makes one there");
  if (&state.model.parameters() != &model.parameters())
    refuse("state was made by another model; use state_from() for it");
  if (state.batch() != extents.batch)
    refuse("state has " + std::to_string(state.batch()) + " sequences, x has " + std::to_string(extents.batch));
}

std::vector<int64_t> lengths_of(nb::handle lengths) {
  std::vector<int64_t> values;
  if (lengths.is_none() || nb::try_cast(lengths, values)) return values;
  if (!nb::hasattr(lengths, "__dlpack__"))
    refuse_type("lengths is " + std::string(nb::str(lengths.type().attr("__name__")).c_str()) +
                ", must be a sequence of integers or an array of int64");
  const Input array(lengths, "lengths", Dtype::kS64);
  values.assign(array.values<int64_t>().begin(), array.values<int64_t>().end());
  return values;
}

void bind_gru(nb::module_& m) {
  nb::class_<Pool>(
      m, "ThreadPool",
      "Threads that a call splits its work among. threads: 1..1024, the caller's included; 0: one for each\n"
      "processor that this process may use.")
      .def(
          "__init__",
          [](Pool* self, int threads) {
            if (threads < 0 || threads > 1024) refuse("threads is " + std::to_string(threads) + ", must be 0..1024");
            new (self) Pool(threads);
          },
          "threads"_a = 0)
      .def_prop_ro("threads", [](const Pool& self) { return self.pool.threads(); });

  nb::class_<GruWeights>(m, "GruWeights", "Float weights of a GRU, of load_gru() or gru_weights().")
      .def_ro("name", &GruWeights::name, "The prefix of its arrays in the file.")
      .def_ro("directions", &GruWeights::directions)
      .def_prop_ro("layers", &GruWeights::layer_count)
      .def_prop_ro("input_size", &GruWeights::input_size, "C")
      .def_prop_ro("hidden_size", &GruWeights::hidden_size, "H")
      .def_prop_ro("output_size", &GruWeights::output_size, "directions * H")
      .def_prop_ro("gate_order", [](const GruWeights& self) { return std::string(to_string(self.report.gate_order)); })
      .def_prop_ro(
          "notes", [](const GruWeights& self) { return self.report.notes; }, "What load_gru() recognised and did.")
      .def("forward", &forward_float, "x"_a, "h0"_a = nb::none(), nb::kw_only(), "lengths"_a = nb::none(),
           "The float GRU: x [T, N, C] or [T, C], float32, to y [T, N, directions * H] or [T, directions * H], and\n"
           "the last state, [layers * directions, N, H]. h0: the first one, else zeros. lengths: N integers in 0..T.\n"
           "For comparisons: its bits depend on the machine's libm.")
      .def("__repr__", [](const GruWeights& self) { return "<isobit.GruWeights " + gru_text(self) + ">"; });
  m.def("load_gru", &load_weights, "path"_a, "prefix"_a = nb::none(), nb::kw_only(), "gate_order"_a = nb::none(),
        "layout"_a = nb::none(), "reset"_a = nb::none(), "layer"_a = std::vector<std::string>(),
        "Reads a float GRU of an npz, safetensors, GGUF or ONNX file, with names of PyTorch, ONNX, Keras or Haste.\n\n"
        "prefix: of its arrays, or the GRU node of an ONNX model (nodes that feed each other: 'A,B'), where the file\n"
        "has several. gate_order: 'urn', 'pytorch' or 'onnx', else that of the names. layout: 'rows' or 'columns'.\n"
        "reset: 'after' overrules a file that says otherwise. layer: for arrays with names of their own,\n"
        "NAME=W,R[,BW,BR] for each layer and direction. Raises IoError, InvalidFileError, NotSupportedError and\n"
        "InvalidArgumentError, which name the file's own arrays.");
  m.def(
      "gru_weights", &gru_weights_of_arrays, "layers"_a, nb::kw_only(), "directions"_a = 1, "gate_order"_a = "pytorch",
      "name"_a = "",
      "Float weights of arrays: for each layer and direction (index l * directions + d) W [3H, C], R [3H, H], bw [3H]\n"
      "and br [3H], float32, the blocks of gates in gate_order.");

  nb::class_<Calibrator>(
      m, "Calibrator",
      "Runs a float GRU over data and keeps statistics of every tensor, no copy of the data.\n\n"
      "method: how ranges are chosen: 'minmax', 'percentile:99.99', 'sqnr', 'ema:0.9', or a list where\n"
      "later entries win, 'minmax,x=sqnr'.")
      .def(nb::new_(&make_calibrator), "weights"_a, nb::kw_only(), "method"_a = "minmax")
      .def("observe", &observe, "x"_a, "lengths"_a = nb::none(), nb::kw_only(), "batch_first"_a = false,
           "h0"_a = nb::none(), "zoneout"_a = 0.0f, "pool"_a.none() = nb::none(),
           "x [T, N, C] or [T, C], float32, finite; [N, T, C] with batch_first. lengths: N integers in 0..T. h0: "
           "[layers *\n"
           "directions, N, H]. zoneout: probability of inference.")
      .def(
          "merge", [](Calibrator& self, const Calibrator& other) { check(self.calibrator.merge(other.calibrator)); },
          "other"_a, "Adds the statistics of a calibrator with the same weights; exact, in any order.")
      .def(
          "finish",
          [](const Calibrator& self, const std::string& bits, const std::string& scale, const std::string& rounding,
             const std::string& table) {
            GruSettings settings;
            settings.bits = bits;
            settings.method = self.method;
            settings.table = table;
            settings.scale = scale_named(scale);
            settings.rounding = rounding_named(rounding);
            const GruQuantization quantization = take(settings.quantization());
            const nb::gil_scoped_release release;
            return Gru(take(self.calibrator.finish(quantization)));
          },
          nb::kw_only(), "bits"_a = "8", "scale"_a = "pow2", "rounding"_a = "nearest_even", "table"_a = "default",
          "The integer GRU. bits: '8', a named setting ('small', 'balanced', 'precise'), or a list where later "
          "entries\n"
          "win, '8,linear=16,h=16'. scale: 'pow2' or 'real'. rounding: 'nearest_even', 'nearest_up', 'nearest_away' "
          "or\n"
          "'floor'. table: 'default', 'direct', 'interpolated' or 'segments:N'.\n\n"
          "Raises OverflowError, which names the tensor that does not fit, and FailedPreconditionError before "
          "anything\n"
          "was observed.");

  nb::class_<State>(m, "GruState",
                    "Codes of h of every layer and direction, on the host or on a CUDA device. It belongs to one model "
                    "and is used by\n"
                    "one call at a time.")
      .def_prop_ro("batch", &State::batch)
      .def_prop_ro("device", &State::device, "The number of the CUDA device; None: the host.")
      .def("values", &state_values, "like"_a,
           "h as numbers, [layers * directions, N, H] float32, an array of the library that `like` belongs to and "
           "where\n"
           "`like` lies, which must be where the state is.")
      .def("copy", &copy_state)
      .def(
          "check_input",
          [](State& self) {
            if (self.on_device) check_device_input(self);
          },
          "Waits for the last call with this state on a CUDA device, whose x was float32, and raises\n"
          "InvalidArgumentError with the index of the first NaN of x. On the host the call itself does.");

  nb::class_<Gru> gru(m, "Gru", "An integer GRU. Immutable; any number of threads may use it.");
  bind_call<false>(gru, "__call__", kCallDoc);
  bind_call<true>(gru, "run_codes", kCodesDoc);
  gru.def_prop_ro("name", [](const Gru& self) { return self.parameters().name; })
      .def_prop_ro("layers", &GruModel::layer_count)
      .def_prop_ro("directions", [](const Gru& self) { return self.parameters().directions; })
      .def_prop_ro("input_size", &GruModel::input_size, "C")
      .def_prop_ro("hidden_size", &GruModel::hidden_size, "H")
      .def_prop_ro("output_size", &GruModel::output_size, "directions * H")
      .def_prop_ro(
          "input_grid", [](const Gru& self) { return grid_dict(self.input_grid()); },
          "value = (code - zero_point) * scale")
      .def_prop_ro("output_grid", [](const Gru& self) { return grid_dict(self.output_grid()); })
      .def_prop_ro(
          "bits", [](const Gru& self) { return bits_text(self.parameters()); },
          "Widths and signs, as Calibrator.finish() takes them.")
      .def_prop_ro(
          "notes", [](const Gru& self) { return self.parameters().notes; }, "How the model was made.")
      .def_prop_ro(
          "size_bytes", [](const Gru& self) { return take(self.sizes()).total_bytes(); },
          "Of the file that save() writes.")
      .def("initial_state", &initial_state, "batch"_a = 1, "h"_a = nb::none(), nb::kw_only(), "like"_a = nb::none(),
           "The state before the first step: h = 0, or h [layers * directions, N, H] in float32, quantised. It is "
           "where\n"
           "the array `like` or h is: on the host, or on a CUDA device.")
      .def("state_from", &state_from, "model"_a, "state"_a,
           "The state of another model with as many layers, directions and hidden units, requantised in integers to "
           "the\n"
           "grids of this one, as from an encoder to a decoder. On the host.")
      .def(
          "save", [](const Gru& self, const Path& path) { check(self.save(path.text)); }, "path"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "One safetensors file (docs/formats.md); it appears whole or not at all. The same model gives the same "
          "bytes.")
      .def(
          "export_onnx",
          [](const Gru&, nb::args, nb::kwargs) {
            refuse_unsupported("export_onnx: isobit writes no ONNX yet; save the model and run it by isobit");
          },
          nb::sig("def export_onnx(self, *args: object, **kwargs: object) -> None"),
          "Raises NotSupportedError: there is no export to ONNX yet.")
      .def("__getstate__",
           [](const Gru& self) {
             const std::vector<std::byte> bytes = take(self.saved_bytes());
             return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
           })
      .def("__setstate__",
           [](Gru& self, const nb::bytes& state) {
             new (&self)
                 Gru(take(GruModel::load(take(ArrayReader::view(state.data(), state.size(), "a pickled Gru")))));
           })
      .def("_repr_html_",
           [](const Gru& self) {
             GruPage page;
             page.model = &self;
             return take(html_part(page));
           })
      .def("__repr__", [](const Gru& self) {
        return "<isobit.Gru " + model_text(self) + ", bits " + bits_text(self.parameters()) + ">";
      });
  bind_export_c(gru);
  m.def(
      "load", [](const Path& path, const std::string& name) { return Gru(take(GruModel::load(path.text, name))); },
      "path"_a, "name"_a = "", nb::call_guard<nb::gil_scoped_release>(),
      "An integer GRU that Gru.save() or `isobit quantize` wrote. name: of a file with several. Every field is "
      "checked\n"
      "and the overflow proof made anew.");
}

}  // namespace isobit::python
