// SPDX-License-Identifier: Apache-2.0
// Training of GRUs, as isobit.torch calls it: arrays of weights and gradients are in PyTorch's gate order, r, z, n.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "errors.h"
#include "gru.h"
#include "isobit/gru_qat.h"
#include "isobit/gru_training.h"
#include "isobit/table.h"
#include "isobit/tune.h"
#include "names.h"
#include "training.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

/// MemoryError with a text, which std::bad_alloc has not.
template <typename Work>
auto with_memory(const char* what, Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    const nb::gil_scoped_acquire gil;
    PyErr_SetString(PyExc_MemoryError,
                    (std::string(what) + " of a GRU: there is not enough memory; use shorter or fewer "
                                         "sequences, or torch.utils.checkpoint")
                        .c_str());
    throw nb::python_error();
  }
}

std::span<float> floats_of(const Output& output) {
  return {reinterpret_cast<float*>(output.bytes().data()), output.bytes().size() / sizeof(float)};
}

/// An argument that may be None.
struct Optional {
  Optional(const nb::any& array, const char* name, Dtype dtype) {
    if (!array.is_none()) input.emplace(array, name, dtype);
  }
  template <typename T>
  [[nodiscard]] std::span<const T> values() const {
    return input ? input->values<T>() : std::span<const T>();
  }
  std::optional<Input> input;
};

/// weight_ih, weight_hh, bias_ih, bias_hh of each direction of each layer: blocks in the order u, r, n.
GruWeights weights_of(const Arrays& arrays, int directions, const std::string& name) {
  std::vector<std::vector<nb::any>> layers;
  for (size_t i = 0; i + 3 < arrays.size(); i += 4)
    layers.push_back({arrays[i], arrays[i + 1], arrays[i + 2], arrays[i + 3]});
  return gru_weights_of_arrays(layers, directions, "pytorch", name);
}

std::vector<GruTrainingWeights> views_of(const GruWeights& weights) {
  std::vector<GruTrainingWeights> views;
  for (const GruLayerWeights& of : weights.layers) views.push_back({of.W, of.R, of.bw, of.br});
  return views;
}

/// Arrays that gradients are written to: blocks of gates in PyTorch's order once put() was called.
struct Gradients {
  Gradients(const Arrays& arrays, const char* name) {
    std::vector<std::span<float>> views;
    for (const nb::any& array : arrays) {
      const Input shape(array, name, Dtype::kF32);
      outputs.emplace_back(array, name, Dtype::kF32, shape.shape(), Device());
      views.push_back(floats_of(outputs.back()));
    }
    for (size_t i = 0; i + 3 < views.size(); i += 4)
      into.push_back({views[i], views[i + 1], views[i + 2], views[i + 3]});
  }
  void put() {
    for (const GruTrainingGradients& of : into)
      for (const std::span<float> rows : {of.W, of.R, of.bw, of.br}) {
        const auto block = static_cast<std::ptrdiff_t>(rows.size() / 3);
        std::swap_ranges(rows.begin(), rows.begin() + block, rows.begin() + block);
      }
  }
  std::vector<Output> outputs;
  std::vector<GruTrainingGradients> into;
};

GruTrainingSizes sizes_of(const GruWeights& weights, const Input& x) {
  return {.steps = x.shape()[0],
          .batch = x.shape()[1],
          .input_size = weights.input_size(),
          .hidden_size = weights.hidden_size(),
          .layers = weights.layer_count(),
          .directions = weights.directions};
}

void check_x(const Input& x) {
  if (x.shape().size() != 3) refuse("x has shape " + shape_text(x.shape()) + ", must be [T, N, C]");
}

/// An array that may be None, which is written.
std::optional<Output> written(const nb::any& array, const char* name, Dtype dtype = Dtype::kF32) {
  if (array.is_none()) return std::nullopt;
  const Input shape(array, name, dtype);
  return std::optional<Output>(std::in_place, array, name, dtype, shape.shape(), Device());
}
std::span<float> floats_of(const std::optional<Output>& output) {
  return output ? floats_of(*output) : std::span<float>();
}

// ---- Floats

void float_forward(const nb::any& x, const nb::any& first, const Arrays& weights, int directions,
                   const nb::any& lengths, const nb::any& mask, const nb::any& y, const nb::any& last,
                   const nb::any& saved, Pool* pool) {
  const Input x_in(x, "x", Dtype::kF32);
  check_x(x_in);
  const Optional first_in(first, "h_0", Dtype::kF32), lengths_in(lengths, "lengths", Dtype::kS64),
      mask_in(mask, "zoneout", Dtype::kU8);
  const std::optional<Output> y_out = written(y, "y"), last_out = written(last, "h_n"),
                              saved_out = written(saved, "saved");
  const GruWeights of = weights_of(weights, directions, "");
  const nb::gil_scoped_release release;
  with_memory("training", [&] {
    const GruTraining training = take(GruTraining::create(sizes_of(of, x_in), "training"));
    const PoolUse use(pool);
    Workspace workspace = training.workspace(use.threads());
    RunOptions options;
    options.pool = use.pool;
    options.lengths = lengths_in.values<int64_t>();
    options.zoneout_mask = mask_in.values<uint8_t>();
    check(training.forward(views_of(of), x_in.values<float>(), floats_of(y_out), floats_of(saved_out), workspace,
                           {.first = first_in.values<float>(), .last = floats_of(last_out)}, options));
  });
}

void float_backward(const nb::any& x, const nb::any& first, const Arrays& weights, int directions,
                    const nb::any& lengths, const nb::any& mask, const nb::any& y, const nb::any& saved,
                    const nb::any& dy, const nb::any& last_gradient, const nb::any& dx, const nb::any& first_gradient,
                    const Arrays& gradients, Pool* pool) {
  const Input x_in(x, "x", Dtype::kF32), y_in(y, "y", Dtype::kF32), saved_in(saved, "saved", Dtype::kF32),
      dy_in(dy, "dy", Dtype::kF32);
  check_x(x_in);
  const Optional first_in(first, "h_0", Dtype::kF32), lengths_in(lengths, "lengths", Dtype::kS64),
      mask_in(mask, "zoneout", Dtype::kU8), last_in(last_gradient, "the gradient of h_n", Dtype::kF32);
  const std::optional<Output> dx_out = written(dx, "dx"), first_out = written(first_gradient, "the gradient of h_0");
  Gradients into(gradients, "gradients");
  const GruWeights of = weights_of(weights, directions, "");
  const nb::gil_scoped_release release;
  with_memory("training", [&] {
    const GruTraining training = take(GruTraining::create(sizes_of(of, x_in), "training"));
    const PoolUse use(pool);
    Workspace workspace = training.workspace(use.threads());
    RunOptions options;
    options.pool = use.pool;
    options.lengths = lengths_in.values<int64_t>();
    options.zoneout_mask = mask_in.values<uint8_t>();
    check(training.backward(views_of(of), x_in.values<float>(), y_in.values<float>(), saved_in.values<float>(),
                            dy_in.values<float>(), floats_of(dx_out), into.into, workspace,
                            {.first = first_in.values<float>(),
                             .last_gradient = last_in.values<float>(),
                             .first_gradient = floats_of(first_out)},
                            options));
    into.put();
  });
}

// ---- Integers

/// A grid that can be learned: of a direction of a layer, and a tensor. Directions share x and h.
using Learned = std::pair<int64_t, GruTensor>;
std::vector<Learned> learned_grids(int64_t directions, int64_t count) {
  std::vector<Learned> learned;
  for (int64_t i = 0; i < count; ++i)
    for (const GruTensor tensor : kGruCalibratedTensors)
      if ((tensor != kX || i == 0) && (tensor != kH || i % directions == 0)) learned.emplace_back(i, tensor);
  return learned;
}
std::vector<Learned> learned_grids(const GruModel& model) {
  return learned_grids(model.parameters().directions, std::ssize(model.parameters().layers));
}
const Grid& grid_of(const GruModel& model, const Learned& which) {
  return model.parameters().layers[static_cast<size_t>(which.first)].grids[which.second];
}
/// "l0.h", "l1.reverse.ih": as they are told in `bits`, but for the direction.
std::string name_of(const Learned& which, int64_t directions) {
  return "l" + std::to_string(which.first / directions) + (which.first % directions == 1 ? ".reverse." : ".") +
         std::string(kGruTensorNames[which.second]);
}

void check_learned(const char* name, size_t count, size_t wanted) {
  if (count != wanted)
    refuse(std::string(name) + " has " + std::to_string(count) + " elements, must have " + std::to_string(wanted) +
           ", one for each grid");
}

/// Steps 2^l; l is rounded, half to even, where scales are powers of two. None: the grids as they are.
std::vector<GruGridChange> changes_of(const GruModel& model, const std::optional<std::vector<double>>& log2_steps) {
  std::vector<GruGridChange> changes;
  if (!log2_steps) return changes;
  const std::vector<Learned> learned = learned_grids(model);
  check_learned("log2_steps", log2_steps->size(), learned.size());
  for (size_t i = 0; i < learned.size(); ++i) {
    const double l = (*log2_steps)[i];
    if (!(std::abs(l) <= 1000))
      refuse("log2_steps[" + std::to_string(i) + "], of " + name_of(learned[i], model.parameters().directions) +
             ", is " + std::to_string(l) + ", must be -62 to 32; lower the learning rate of grids");
    GruGridChange& change = changes.emplace_back();
    change.layer = learned[i].first;
    change.tensor = learned[i].second;
    if (grid_of(model, learned[i]).kind == ScaleKind::kPow2) {
      change.shift = static_cast<int32_t>(-std::nearbyint(l));
    } else {
      change.scale = static_cast<float>(std::exp2(l));
    }
  }
  return changes;
}

/// The integers of these weights.
GruModel model_with(const GruQat& self, const Arrays& weights, const std::optional<std::vector<double>>& log2_steps) {
  const GruWeights of = weights_of(weights, self.model.parameters().directions, self.model.parameters().name);
  const std::vector<GruGridChange> changes = changes_of(self.model, log2_steps);
  const nb::gil_scoped_release release;
  return self.with(of, changes);
}

/// Of a pickled one: the model's file, bits, method, scale, rounding, table, whether rows keep their grids.
using QatState = std::tuple<nb::bytes, std::string, std::string, std::string, std::string, std::string, bool>;

GruSettings settings_of(const std::string& bits, const std::string& method, const std::string& scale,
                        const std::string& rounding, const std::string& table) {
  GruSettings settings;
  settings.bits = bits;
  settings.method = method;
  settings.table = table;
  settings.scale = scale_named(scale);
  settings.rounding = rounding_named(rounding);
  return settings;
}

std::unique_ptr<GruQat> make_qat(const Calibrator& calibrator, const std::string& bits,
                                 const std::optional<std::string>& method, const std::string& scale,
                                 const std::string& rounding, const std::string& table) {
  if (method && *method != calibrator.method && method->find("ema") != std::string::npos)
    refuse("method is '" + *method + "', must be that of calibrating, '" + calibrator.method +
           "', or one without ema, whose decay acts while data is observed");
  const GruSettings settings = settings_of(bits, method.value_or(calibrator.method), scale, rounding, table);
  GruQuantization quantization = take(settings.quantization());
  const nb::gil_scoped_release release;
  auto tables = std::make_shared<TableCache>();
  GruModel model = take(calibrator.calibrator.finish(quantization, tables.get()));
  return std::make_unique<GruQat>(
      GruQat{settings, std::move(quantization), std::move(model), GruRowGrids::kDerived, std::move(tables)});
}

nb::bytes bytes_of(const GruModel& model) {
  const std::vector<std::byte> bytes = take(model.saved_bytes());
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
GruModel model_of(const nb::bytes& bytes) {
  return take(GruModel::load(take(ArrayReader::view(bytes.data(), bytes.size(), "a pickled GRU"))));
}

/// Shares of clamps: h, ih, hh, u_in, r_in, n_in of each direction of each layer, then x.
std::vector<double> shares_of(const GruQatRun& run) {
  std::vector<double> shares;
  for (int64_t i = 0; i < run.sizes().layers * run.sizes().directions; ++i)
    for (const GruTensor tensor : {kH, kIh, kHh, kUIn, kRIn, kNIn}) shares.push_back(run.clipped(i, tensor));
  shares.push_back(run.clipped_inputs());
  return shares;
}

/// A grid as numbers: bits, whether it is signed, whether its scale is a power of two, shift, scale, zero point.
using GridNumbers = std::array<double, 6>;
GridNumbers numbers_of(const Grid& grid) {
  return {
      static_cast<double>(grid.bits),  grid.is_signed ? 1.0 : 0.0,           grid.kind == ScaleKind::kPow2 ? 1.0 : 0.0,
      static_cast<double>(grid.shift), static_cast<double>(grid.real_scale), static_cast<double>(grid.zero_point)};
}
Grid grid_of_numbers(std::span<const double> numbers) {
  return {static_cast<int32_t>(numbers[0]),
          numbers[1] != 0,
          numbers[2] != 0 ? ScaleKind::kPow2 : ScaleKind::kReal,
          static_cast<int32_t>(numbers[3]),
          static_cast<float>(numbers[4]),
          static_cast<int64_t>(numbers[5])};
}

/// Shares of clamps, and each learned grid.
using Forwarded = std::pair<std::vector<double>, std::vector<GridNumbers>>;

Forwarded qat_forward(const GruQat& self, const nb::any& x, const nb::any& first, const Arrays& weights,
                      const std::optional<std::vector<double>>& log2_steps, bool learn, const nb::any& lengths,
                      const nb::any& mask, const nb::any& y, const nb::any& last, const nb::any& saved, Pool* pool) {
  const Input x_in(x, "x", Dtype::kF32);
  check_x(x_in);
  const Optional first_in(first, "h_0", Dtype::kF32), lengths_in(lengths, "lengths", Dtype::kS64),
      mask_in(mask, "zoneout", Dtype::kU8);
  const std::optional<Output> y_out = written(y, "y"), last_out = written(last, "h_n"),
                              saved_out = written(saved, "saved", Dtype::kU8);
  const GruWeights of = weights_of(weights, self.model.parameters().directions, self.model.parameters().name);
  const std::vector<GruGridChange> changes = changes_of(self.model, log2_steps);
  const nb::gil_scoped_release release;
  return with_memory("training", [&] {
    const PoolUse use(pool);
    RunOptions options;
    options.pool = use.pool;
    options.lengths = lengths_in.values<int64_t>();
    options.zoneout_mask = mask_in.values<uint8_t>();
    const GruModel model = self.with(of, changes);
    const GruQatRun run = take(GruQatRun::forward(
        model, x_in.values<float>(), x_in.shape()[0], x_in.shape()[1], floats_of(y_out),
        {.first = first_in.values<float>(), .last = floats_of(last_out)}, options, {.learn_grids = learn}));
    if (saved_out) check(run.save(saved_out->bytes()));
    Forwarded forwarded{shares_of(run), {}};
    for (const Learned& which : learned_grids(model)) forwarded.second.push_back(numbers_of(grid_of(model, which)));
    return forwarded;
  });
}

/// grids: those of the forward, where gradients of learned ones are wanted, and where these go: [K], of log2 of steps,
/// or [K, 2], of ranges.
void qat_backward(const nb::any& saved, const nb::any& dy, const nb::any& last_gradient, const nb::any& dx,
                  const nb::any& first_gradient, const Arrays& gradients,
                  const std::optional<std::vector<std::vector<double>>>& grids, const nb::any& learned_gradient,
                  int directions, Pool* pool) {
  const Input saved_in(saved, "saved", Dtype::kU8), dy_in(dy, "dy", Dtype::kF32);
  const Optional last_in(last_gradient, "the gradient of h_n", Dtype::kF32);
  const std::optional<Output> dx_out = written(dx, "dx"), first_out = written(first_gradient, "the gradient of h_0"),
                              learned_out = written(learned_gradient, "the gradient of grids");
  Gradients into(gradients, "gradients");
  const std::vector<Learned> learned = learned_grids(directions, std::ssize(into.into));
  const std::span<float> out = floats_of(learned_out);
  const bool of_steps = out.size() == learned.size();
  if (grids) {
    check_learned("grids", grids->size(), learned.size());
    check_learned("the gradient of grids", out.size(), of_steps ? learned.size() : 2 * learned.size());
    for (const std::vector<double>& numbers : *grids)
      check_learned("a grid's numbers", numbers.size(), std::tuple_size_v<GridNumbers>);
  }
  const nb::gil_scoped_release release;
  with_memory("training", [&] {
    const PoolUse use(pool);
    std::span<const std::byte> bytes = saved_in.bytes();
    std::vector<int64_t> aligned;  // a tensor may begin anywhere
    if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(int64_t) != 0) {
      aligned.resize(bytes.size() / sizeof(int64_t) + 1);
      bytes = std::as_bytes(std::span(aligned)).first(bytes.size());
      std::ranges::copy(saved_in.bytes(), reinterpret_cast<std::byte*>(aligned.data()));
    }
    const GruQatRun run = take(GruQatRun::restore(bytes));
    std::vector<GruGridGradients> sums(grids ? into.into.size() : 0);
    check(run.backward(dy_in.values<float>(), floats_of(dx_out), into.into,
                       {.last_gradient = last_in.values<float>(), .first_gradient = floats_of(first_out)}, use.pool,
                       sums));
    into.put();
    for (size_t i = 0; grids && i < learned.size(); ++i) {
      const GruGridGradient& of = sums[static_cast<size_t>(learned[i].first)][learned[i].second];
      if (of_steps) {
        out[i] = log2_step_gradient(of, grid_of_numbers((*grids)[i]));
      } else {
        out[2 * i] = of.below, out[2 * i + 1] = of.above;
      }
    }
  });
}

std::unique_ptr<GruQat> with_ranges(const GruQat& self, const std::vector<std::pair<double, double>>& ranges,
                                    const Arrays& weights) {
  const std::vector<Learned> learned = learned_grids(self.model);
  check_learned("ranges", ranges.size(), learned.size());
  std::vector<GruGridChange> changes;
  for (size_t i = 0; i < learned.size(); ++i)
    changes.push_back({.layer = learned[i].first, .tensor = learned[i].second, .range = ranges[i]});
  const GruWeights of = weights_of(weights, self.model.parameters().directions, self.model.parameters().name);
  const nb::gil_scoped_release release;
  return std::make_unique<GruQat>(
      GruQat{self.settings, self.quantization, self.with(of, changes), self.rows, self.tables});
}

std::unique_ptr<GruQat> with_rows_kept(const GruQat& self, const Arrays& weights,
                                       const std::optional<std::vector<double>>& log2_steps) {
  GruModel model = model_with(self, weights, log2_steps);
  return std::make_unique<GruQat>(
      GruQat{self.settings, self.quantization, std::move(model), GruRowGrids::kKept, self.tables});
}

}  // namespace

void bind_training(nb::module_& m) {
  m.def("gru_float_forward", &float_forward, "x"_a, "first"_a.none(), "weights"_a, "directions"_a, "lengths"_a.none(),
        "mask"_a.none(), "y"_a, "last"_a, "saved"_a, "pool"_a.none(), "GruTraining::forward.");
  m.def("gru_float_backward", &float_backward, "x"_a, "first"_a.none(), "weights"_a, "directions"_a, "lengths"_a.none(),
        "mask"_a.none(), "y"_a, "saved"_a, "dy"_a, "last_gradient"_a.none(), "dx"_a.none(), "first_gradient"_a.none(),
        "gradients"_a, "pool"_a.none(), "GruTraining::backward.");
  nb::class_<GruQat>(m, "GruQat", "Grids and tables of activations, for quantisation-aware training. Immutable.")
      .def(nb::new_(&make_qat), "calibrator"_a, "bits"_a, "method"_a.none(), "scale"_a, "rounding"_a, "table"_a)
      .def(
          "model",
          [](const GruQat& self, const Arrays& weights, const std::optional<std::vector<double>>& log2_steps) {
            return Gru(model_with(self, weights, log2_steps));
          },
          "weights"_a, "log2_steps"_a.none(), "The integer GRU of these weights.")
      .def("forward", &qat_forward, "x"_a, "first"_a.none(), "weights"_a, "log2_steps"_a.none(), "learn"_a,
           "lengths"_a.none(), "mask"_a.none(), "y"_a, "last"_a, "saved"_a.none(), "pool"_a.none(),
           "GruQatRun::forward and save.")
      .def("with_ranges", &with_ranges, "ranges"_a, "weights"_a, "The same with other ranges of learned grids.")
      .def("with_rows_kept", &with_rows_kept, "weights"_a, "log2_steps"_a.none(),
           "The same, whose rows keep the grids that these weights have.")
      .def_prop_ro(
          "base", [](const GruQat& self) { return Gru(self.model); }, "Of the weights that it was made with.")
      .def_prop_ro(
          "rows_kept", [](const GruQat& self) { return self.rows == GruRowGrids::kKept; },
          "Whether rows of W and R keep their grids.")
      .def_prop_ro(
          "learned",
          [](const GruQat& self) {
            std::vector<std::string> names;
            for (const Learned& which : learned_grids(self.model))
              names.push_back(name_of(which, self.model.parameters().directions));
            return names;
          },
          "Names of the grids that can be learned.")
      .def_prop_ro(
          "log2_steps",
          [](const GruQat& self) {
            std::vector<double> steps;
            for (const Learned& which : learned_grids(self.model))
              steps.push_back(std::log2(static_cast<double>(grid_of(self.model, which).scale())));
            return steps;
          },
          "Of each of them.")
      .def_prop_ro(
          "ranges",
          [](const GruQat& self) {
            std::vector<std::pair<double, double>> ranges;
            for (const Learned& which : learned_grids(self.model)) {
              const Grid& grid = grid_of(self.model, which);
              ranges.emplace_back(static_cast<double>(dequantize_value(grid, grid.min())),
                                  static_cast<double>(dequantize_value(grid, grid.max())));
            }
            return ranges;
          },
          "Of each of them.")
      .def("__getstate__",
           [](const GruQat& self) {
             const GruSettings& s = self.settings;
             return QatState(bytes_of(self.model), s.bits, s.method, std::string(to_string(s.scale)),
                             std::string(to_string(s.rounding)), s.table, self.rows == GruRowGrids::kKept);
           })
      .def("__setstate__", [](GruQat& self, const QatState& state) {
        const auto& [model, bits, method, scale, rounding, table, rows_kept] = state;
        const GruSettings settings = settings_of(bits, method, scale, rounding, table);
        const GruRowGrids rows = rows_kept ? GruRowGrids::kKept : GruRowGrids::kDerived;
        new (&self) GruQat{settings, take(settings.quantization()), model_of(model), rows};
      });
  m.def(
      "gru_hand_over",
      [](const Gru& from, const Gru& to, const nb::any& h, const nb::any& out, const nb::any& passed) {
        const Input h_in(h, "h", Dtype::kF32);
        if (h_in.shape().size() != 3)
          refuse("h has shape " + shape_text(h_in.shape()) + ", must be [layers * directions, N, H]");
        const Output out_out(out, "out", Dtype::kF32, h_in.shape(), Device()),
            passed_out(passed, "passed", Dtype::kU8, h_in.shape(), Device());
        check(hand_over(from, to, h_in.values<float>(), h_in.shape()[1], floats_of(out_out),
                        {reinterpret_cast<uint8_t*>(passed_out.bytes().data()), passed_out.bytes().size()}));
      },
      "from_gru"_a, "to_gru"_a, "h"_a, "out"_a, "passed"_a, "isobit::hand_over.");
  m.def("gru_qat_backward", &qat_backward, "saved"_a, "dy"_a, "last_gradient"_a.none(), "dx"_a.none(),
        "first_gradient"_a.none(), "gradients"_a, "grids"_a.none(), "learned_gradient"_a.none(), "directions"_a,
        "pool"_a.none(), "GruQatRun::restore and backward.");
}

}  // namespace isobit::python
