// SPDX-License-Identifier: Apache-2.0
// Low-bit weights and linear layers on them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "cuda.h"
#include "cuda/library.h"
#include "errors.h"
#include "export.h"
#include "gru.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/pack.h"
#include "isobit/report.h"
#include "names.h"
#include "path.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

constexpr auto kFloats = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
using Range = std::optional<std::pair<float, float>>;

LowBitKind kind_named(const std::string& text) {
  return parse_name("kind", text, low_bit_kind_from_string, "symmetric, zero_point, offset");
}
LowBitMethod method_named(const std::string& text) {
  return parse_name("method", text, low_bit_method_from_string, "absmax, minmax, mse");
}
LinearClamp clamp_of(const Range& range) { return range ? LinearClamp{range->first, range->second} : LinearClamp(); }

/// A matrix, and the order of its columns where that is not x's.
struct LowBit {
  LowBitMatrix matrix;
  std::vector<int32_t> permutation;
};

std::unique_ptr<LowBit> quantize_matrix(nb::any weights, int32_t bits, std::optional<int64_t> group,
                                        const std::string& kind, const std::optional<std::string>& method,
                                        const std::string& scales, Pool* pool) {
  const Array array = array_of(Input(weights, "weights", kFloats));
  LowBitOptions options;
  options.bits = bits;
  options.kind = kind_named(kind);
  options.method = method ? method_named(*method) : default_low_bit_method(bits, options.kind);
  options.scales = dtype_named("scales", scales, kFloats);
  const int64_t columns = array.shape.empty() ? 0 : array.shape.back();
  options.group = group ? *group : columns;
  const nb::gil_scoped_release release;
  const PoolUse use(pool);
  return std::make_unique<LowBit>(LowBit{take(quantize_low_bit(array, options, "weights", use.pool)), {}});
}

std::unique_ptr<LowBit> load_matrix(const Path& path, const std::optional<std::string>& name) {
  const LowBitFile file = take(load_low_bit(path.text));
  const std::string found = take(find_low_bit_matrix(file, path.text, name.value_or("")));
  return std::make_unique<LowBit>(LowBit{file.matrices.at(found), low_bit_permutation(file, found)});
}

void save_matrix(const LowBit& self, const Path& path, const std::string& name) {
  LowBitFile file;
  file.matrices.emplace(name, self.matrix);
  if (!self.permutation.empty()) {
    Array order = Array::zeros(Dtype::kS32, {static_cast<int64_t>(self.permutation.size())});
    std::copy(self.permutation.begin(), self.permutation.end(), order.data<int32_t>());
    file.arrays.emplace(low_bit_permutation_name(name), std::move(order));
  }
  const nb::gil_scoped_release release;
  check(save_low_bit(path.text, file));
}

nb::any dequantize_matrix(const LowBit& self, nb::any like) {
  const Array values = take(dequantize_low_bit(self.matrix, self.permutation));
  NewArray made = new_array(like, Dtype::kF32, {self.matrix.rows(), self.matrix.columns()});
  std::copy(values.bytes.begin(), values.bytes.end(), made.bytes.begin());
  return nb::borrow<nb::any>(made.array);
}

/// The rows of x [..., K], and the shape of y [..., N].
struct Rows {
  int64_t count = 1;
  std::vector<int64_t> y_shape;
};
Rows rows_of(const Input& x, int64_t columns, int64_t outputs) {
  if (x.shape().empty() || x.shape().back() != columns)
    refuse("x has shape " + shape_text(x.shape()) + ", must be [..., " + std::to_string(columns) + "]");
  Rows rows;
  rows.y_shape = x.shape();
  rows.y_shape.back() = outputs;
  for (size_t i = 0; i + 1 < x.shape().size(); ++i) rows.count *= x.shape()[i];
  return rows;
}

/// A layer, what it was made of, and its copies on devices.
struct Linear {
  LinearLayer layer;
  std::shared_ptr<const LowBit> weights;
  std::vector<float> bias;
  LinearClamp clamp;
  bool has_path;
  OnDevices<isobit_cuda_linear> copies{};
  std::map<int, nb::object> orders{};  // weights->permutation, in tensors

  [[nodiscard]] const std::vector<int32_t>& permutation() const { return weights->permutation; }
  /// The copy on a device, made when it is first asked for.
  [[nodiscard]] const isobit_cuda_linear* on(int device) const {
    const isobit_cuda_functions& functions = cuda_functions();
    return copies.get(device, functions.linear_destroy, [&](isobit_cuda_linear** made) {
      const std::vector<std::byte> saved = take(saved_low_bit({.matrices = {{"layer", weights->matrix}}}));
      const isobit_cuda_linear_options options =
          cuda::library_options(LinearOptions{.activations = layer.activations(), .bias = bias, .clamp = clamp});
      return functions.linear_create(saved.data(), std::ssize(saved), &options, device, made);
    });
  }
};

std::unique_ptr<Linear> make_linear(const std::shared_ptr<LowBit>& weights, const std::string& activations,
                                    nb::any bias, const Range& clamp, const std::optional<std::string>& path) {
  LinearOptions options;
  options.activations =
      parse_name("activations", activations, linear_activations_from_string, "float, int8, int8_asymmetric");
  options.clamp = clamp_of(clamp);
  options.path = path_named(path);
  std::optional<Input> values;
  if (!bias.is_none()) options.bias = values.emplace(bias, "bias", Dtype::kF32).values<float>();
  const nb::gil_scoped_release release;
  return std::make_unique<Linear>(Linear{take(LinearLayer::create(weights->matrix, options, "layer")),
                                         weights,
                                         {options.bias.begin(), options.bias.end()},
                                         options.clamp,
                                         path.has_value()});
}

/// A run on rows on a device, in the order of torch's current stream. x: the tensor, or one beside it.
void run_rows(const isobit_cuda_linear* layer, nb::handle x, const Stream& stream, const Input& input,
              const Returned& y, Dtype y_dtype, int64_t rows) {
  const isobit_cuda_functions& functions = cuda_functions();
  const NewArray workspace = new_array(x, Dtype::kU8, {functions.linear_workspace_bytes(layer, rows)}, input.device());
  isobit_cuda_linear_run run{};
  cuda::set_arrays(input.bytes(), input.dtype(), y.bytes(), y_dtype, workspace.bytes, run);
  run.rows = rows;
  run.stream = stream.handle;
  check_cuda(functions.linear_run(layer, &run));
}

/// The call with x on a device.
void run_linear_on_device(Linear& self, nb::any x, const Input& input, const Rows& rows, const Returned& y) {
  const int device = *input.device();
  const isobit_cuda_linear* const layer = self.on(device);
  const Stream stream(x);
  std::optional<Input> permuted;
  if (!self.permutation().empty()) {
    const nb::module_ arrays = nb::module_::import_("isobit._arrays");
    nb::object order = self.orders[device];  // ours as long as it is used, whatever other threads do
    if (!order.is_valid()) self.orders[device] = order = arrays.attr("order")(x, self.permutation());
    permuted.emplace(arrays.attr("permuted")(x, order), "x", input.dtype(), Places::kHostOrDevice);
    order.attr("record_stream")(stream.object);
  }
  run_rows(layer, x, stream, permuted ? *permuted : input, y, input.dtype(), rows.count);
}

nb::any run_linear(Linear& self, nb::any x, nb::any out, Pool* pool) {
  const Input input(x, "x", kFloats, Places::kHostOrDevice);
  const Rows rows = rows_of(input, self.layer.columns(), self.layer.rows());
  if (input.device()) {
    refuse_on_device("pool", pool != nullptr);
    refuse_on_device("path", self.has_path);
  }
  const Returned y(x, out, input.dtype(), rows.y_shape, input.device());
  if (input.device()) {
    run_linear_on_device(self, x, input, rows, y);
  } else {
    const nb::gil_scoped_release release;
    Array permuted;
    std::span<const std::byte> bytes = input.bytes();
    if (!self.permutation().empty()) {
      permuted = array_of(input);
      check(permute_columns(permuted, self.permutation()));
      bytes = permuted.bytes;
    }
    const PoolUse use(pool);
    Workspace workspace = self.layer.workspace(rows.count, use.threads());
    check(
        self.layer.forward(bytes, input.dtype(), y.bytes(), input.dtype(), rows.count, workspace, {.pool = use.pool}));
  }
  return nb::borrow<nb::any>(y.array());
}

/// A layer of static codes, and its copies on devices.
struct StaticLinear : StaticLinearLayer {
  StaticLinear(StaticLinearLayer layer) : StaticLinearLayer(std::move(layer)) {}  // NOLINT: implicit on purpose
  [[nodiscard]] const isobit_cuda_linear* on(int device) const {
    return copies.get(device, *this, &isobit_cuda_functions::linear_create_static,
                      &isobit_cuda_functions::linear_destroy);
  }

  OnDevices<isobit_cuda_linear> copies;
};

nb::any run_static(const StaticLinear& self, nb::any x, nb::any out, Pool* pool) {
  const StaticLinearParameters& p = self.parameters();
  const Input input(x, "x", p.x_dtype(), Places::kHostOrDevice);
  const Rows rows = rows_of(input, p.columns, p.rows);
  if (input.device()) refuse_on_device("pool", pool != nullptr);
  const Returned y(x, out, p.y_dtype(), rows.y_shape, input.device());
  if (input.device()) {
    run_rows(self.on(*input.device()), x, Stream(x), input, y, p.y_dtype(), rows.count);
  } else {
    const nb::gil_scoped_release release;
    const PoolUse use(pool);
    Workspace workspace = self.workspace(rows.count, use.threads());
    check(self.forward_codes(input.bytes(), y.bytes(), rows.count, workspace, {.pool = use.pool}));
  }
  return nb::borrow<nb::any>(y.array());
}

/// Numbers in and out: quantised on the input grid, dequantised from the output grid.
nb::any run_static_floats(const StaticLinear& self, nb::any x, nb::any out, Pool* pool) {
  const StaticLinearParameters& p = self.parameters();
  const Input input(x, "x", Dtype::kF32);
  const Rows rows = rows_of(input, p.columns, p.rows);
  if (!p.output) refuse("the layer has no output grid: its results are accumulators; use run_codes()");
  const Returned y(x, out, Dtype::kF32, rows.y_shape);
  {
    const nb::gil_scoped_release release;
    std::vector<std::byte> x_codes(static_cast<size_t>(rows.count * p.columns) * size_in_bytes(p.x_dtype()));
    std::vector<std::byte> y_codes(static_cast<size_t>(rows.count * p.rows) * size_in_bytes(p.y_dtype()));
    check(quantize(p.input, input.values<float>(), x_codes.data(), "x"));
    const PoolUse use(pool);
    Workspace workspace = self.workspace(rows.count, use.threads());
    check(self.forward_codes(x_codes, y_codes, rows.count, workspace, {.pool = use.pool}));
    dequantize(*p.output, y_codes.data(),
               {reinterpret_cast<float*>(y.bytes().data()), y.bytes().size() / sizeof(float)});
  }
  return nb::borrow<nb::any>(y.array());
}

struct StaticCalibrator {
  StaticLinearCalibrator calibrator;
  int64_t columns;
};

std::unique_ptr<StaticCalibrator> make_static_calibrator(nb::any weights, nb::any bias, const Range& clamp,
                                                         const std::string& name) {
  const Array array = array_of(Input(weights, "weights", kFloats));
  std::optional<Input> values;
  if (!bias.is_none()) values.emplace(bias, "bias", Dtype::kF32);
  return std::make_unique<StaticCalibrator>(
      StaticCalibrator{take(StaticLinearCalibrator::create(
                           array, values ? values->values<float>() : std::span<const float>(), clamp_of(clamp), name)),
                       array.shape.empty() ? 0 : array.shape.back()});
}

void observe_static(StaticCalibrator& self, nb::any x, Pool* pool) {
  const Input input(x, "x", Dtype::kF32);
  const Rows rows = rows_of(input, self.columns, 0);
  const nb::gil_scoped_release release;
  const PoolUse use(pool);
  check(self.calibrator.observe(input.values<float>(), rows.count, 1, use.pool));
}

std::unique_ptr<StaticLinear> finish_static(const StaticCalibrator& self, int32_t x_bits, int32_t y_bits,
                                            int32_t weight_bits, const std::string& method, const std::string& scale,
                                            const std::string& rounding, const Gru* after) {
  StaticLinearQuantization q;
  q.x.bits = x_bits;
  if (after != nullptr) q.input = after->output_grid();
  q.y->bits = y_bits;
  q.weight_bits = weight_bits;
  q.x_method = q.y_method = take(parse_calibration_options(method));
  q.scale = scale_named(scale);
  q.rounding = rounding_named(rounding);
  const nb::gil_scoped_release release;
  return std::make_unique<StaticLinear>(take(self.calibrator.finish(q)));
}

Said pack_model(const Path& model, const Path& output, std::optional<int32_t> bits, std::optional<int64_t> group,
                const std::optional<std::string>& kind, const std::optional<std::string>& method,
                const std::optional<std::string>& scales, const std::vector<std::string>& include,
                const std::vector<std::string>& exclude, const std::optional<std::string>& checkpoint_format,
                bool requantize, const std::optional<std::string>& weight_layout, std::optional<int64_t> groups,
                Pool* pool, const std::function<void(double)>& progress) {
  PackOptions options;
  options.bits = bits;
  options.group = group;
  if (kind) options.kind = kind_named(*kind);
  if (method) options.method = method_named(*method);
  if (scales) options.scales = dtype_named("scales", *scales, kFloats);
  options.include = include;
  options.exclude = exclude;
  if (checkpoint_format)
    options.checkpoint_format =
        parse_name("checkpoint_format", *checkpoint_format, checkpoint_format_from_string, "gptq, gptq_v2, awq");
  options.requantize = requantize;
  if (weight_layout)
    options.conv_layout = parse_name("weight_layout", *weight_layout, conv_layout_from_string, "ohwi, oihw, iohw");
  options.conv_groups = groups;
  std::optional<PackDescription> description;
  {
    const nb::gil_scoped_release release;
    FileClaims files;
    check(files.writes(output.text, "output"));
    check(claim_checkpoint(model.text, "model", files));
    Packing packing = take(Packing::plan(model.text, options));
    description.emplace(model.text, options, packing);
    const PoolUse use(pool);
    const auto report = [&](const PackTensor& tensor, const PackedTensor& packed) {
      description->add(tensor, packed);
      if (!progress) return;
      const nb::gil_scoped_acquire acquire;
      progress(description->share_done());
    };
    check(save_low_bit(output.text, take(std::move(packing).run(use.pool, report))));
  }
  return said(description->describe());
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<LowBit>(
      m, "LowBit",
      "A matrix [N, K] of 1, 2, 4 or 8 bits: W[n, k] = S[n, g] * v[n, k] + O[n, g] (docs/numerics.md, section 9).")
      .def_static(
          "quantize", &quantize_matrix, "weights"_a, nb::kw_only(), "bits"_a = 4, "group"_a = 64,
          "kind"_a = "symmetric", "method"_a = nb::none(), "scales"_a = "f32", "pool"_a.none() = nb::none(),
          "weights [N, K], float32, float16 or bfloat16. group: elements that share a scale, a multiple of 8 below K;\n"
          "None: a row. kind: 'symmetric', 'zero_point' or 'offset'. method: 'absmax', 'minmax' or 'mse'; default "
          "that\n"
          "of the width. scales: 'f32', 'f16' or 'bf16'.")
      .def_static("load", &load_matrix, "path"_a, "name"_a = nb::none(),
                  "A matrix that save(), pack() or `isobit pack` wrote. name: of a file with several.")
      .def("save", &save_matrix, "path"_a, "name"_a = "weight")
      .def("dequantize", &dequantize_matrix, "like"_a,
           "W [N, K] in float32, an array of the library that `like` belongs to.")
      .def_prop_ro("shape", [](const LowBit& self) { return std::pair(self.matrix.rows(), self.matrix.columns()); })
      .def_prop_ro("bits", [](const LowBit& self) { return self.matrix.parameters().bits; })
      .def_prop_ro("size_bytes", [](const LowBit& self) { return self.matrix.size_bytes(); })
      .def("__repr__", [](const LowBit& self) {
        return "<isobit.LowBit [" + std::to_string(self.matrix.rows()) + ", " + std::to_string(self.matrix.columns()) +
               "], " + form_text(self.matrix.parameters()) + ">";
      });

  nb::class_<Linear>(
      m, "Linear",
      "y = act(x W^T + bias) on low-bit weights. activations: 'float', 'int8' (rows of x as 8-bit codes of each\n"
      "group, the same bytes everywhere) or 'int8_asymmetric'. clamp: (lowest, highest) of y. path: kernels of one\n"
      "instruction set.")
      .def(nb::new_(&make_linear), "weights"_a, nb::kw_only(), "activations"_a = "int8", "bias"_a = nb::none(),
           "clamp"_a = nb::none(), "path"_a = nb::none())
      .def_prop_ro("kernel", [](const Linear& self) { return std::string(self.layer.kernel_name()); })
      .def_prop_ro("size_bytes", [](const Linear& self) { return self.layer.size_bytes(); })
      .def(
          "__call__", &run_linear, "x"_a, nb::kw_only(), "out"_a = nb::none(), "pool"_a.none() = nb::none(),
          "x [..., K] to y [..., N] of the same dtype: float32, float16 or bfloat16. A row that is not finite is "
          "refused by\n"
          "its index, but with 'float' activations. x may be a torch.Tensor on a CUDA device, where a call cannot wait "
          "to\n"
          "say so: every element of such a row of y is NaN there. pool and path mean nothing there.");

  nb::class_<StaticCalibrator>(
      m, "StaticLinearCalibrator",
      "Statistics of x and of y = act(x W^T + bias), for a layer of static codes. weights [N, K] and\n"
      "bias [N], float32; clamp: (lowest, highest) of y.")
      .def(nb::new_(&make_static_calibrator), "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "clamp"_a = nb::none(),
           "name"_a = "layer")
      .def("observe", &observe_static, "x"_a, nb::kw_only(), "pool"_a.none() = nb::none(),
           "x [..., K], float32, finite.")
      .def(
          "merge",
          [](StaticCalibrator& self, const StaticCalibrator& other) { check(self.calibrator.merge(other.calibrator)); },
          "other"_a)
      .def("finish", &finish_static, nb::kw_only(), "x_bits"_a = 8, "y_bits"_a = 8, "weight_bits"_a = 8,
           "method"_a = "minmax", "scale"_a = "pow2", "rounding"_a = "nearest_even", "after"_a.none() = nb::none(),
           "x_bits, y_bits: 2..16; weight_bits: 1, 2, 4 or 8. after: a Gru whose output codes the layer takes, in\n"
           "place of x_bits. Raises OverflowError where accumulators do not fit.");

  nb::class_<StaticLinear> fixed(m, "StaticLinear", "A linear layer of codes on fixed grids; integers only.");
  bind_export_c(fixed);
  fixed
      .def_static(
          "load",
          [](const Path& path, const std::string& name) {
            return std::make_unique<StaticLinear>(take(StaticLinearLayer::load(path.text, name)));
          },
          "path"_a, "name"_a = "", "A layer that save() wrote. name: of a file with several.")
      .def(
          "save", [](const StaticLinear& self, const Path& path) { check(self.save(path.text)); }, "path"_a)
      .def_prop_ro("name", &StaticLinear::name)
      .def_prop_ro("kernel", [](const StaticLinear& self) { return std::string(self.kernel_name()); })
      .def_prop_ro("input_grid", [](const StaticLinear& self) { return grid_dict(self.input_grid()); })
      .def_prop_ro("output_grid",
                   [](const StaticLinear& self) -> std::optional<Facts> {
                     if (!self.output_grid()) return std::nullopt;
                     return grid_dict(*self.output_grid());
                   })
      .def("__call__", &run_static_floats, "x"_a, nb::kw_only(), "out"_a = nb::none(), "pool"_a.none() = nb::none(),
           "x [..., K] float32 to y [..., N] float32: quantised on input_grid, dequantised from output_grid.")
      .def("run_codes", &run_static, "x"_a, nb::kw_only(), "out"_a = nb::none(), "pool"_a.none() = nb::none(),
           "x: codes of input_grid, y: codes of output_grid, or int32 accumulators. A code outside the grid is refused "
           "by\n"
           "its place. x may be a torch.Tensor on a CUDA device, where such a code counts as the nearer end of the "
           "grid; "
           "pool means nothing there.");

  m.def("pack", &pack_model, "model"_a, "output"_a, "bits"_a, "group"_a, "kind"_a, "method"_a, "scales"_a, "include"_a,
        "exclude"_a, "checkpoint_format"_a, "requantize"_a, "weight_layout"_a.none(), "groups"_a.none(),
        "pool"_a.none(), "progress"_a.none());
}

}  // namespace isobit::python
