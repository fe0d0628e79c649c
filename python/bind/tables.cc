// SPDX-License-Identifier: Apache-2.0
// FP16 tables: activation functions as hardware with a small table computes them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arrays.h"
#include "cuda.h"
#include "errors.h"
#include "gru.h"
#include "isobit/fp16_function.h"
#include "isobit/fp16_table.h"
#include "isobit/report.h"
#include "names.h"
#include "path.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

constexpr auto kFloats = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};

Fp16Model model_named(const std::string& text) {
  return parse_name("model", text, fp16_model_from_string, "f32, nli_gpu, nli_cpu");
}

/// A function, and its copies on devices.
struct Table : Fp16Function {
  Table(Fp16Function function) : Fp16Function(std::move(function)) {}  // NOLINT: implicit on purpose
  OnDevices<isobit_cuda_function> copies;
};

std::unique_ptr<Table> builtin(const std::string& function, const std::string& model, bool half_values) {
  return std::make_unique<Table>(
      take(Fp16Function::create(take(builtin_fp16_table(function, model_named(model), half_values)))));
}

std::unique_ptr<Table> fit(nb::any function, const std::string& model, bool half_values, const std::string& goal,
                           double beta) {
  Fp16FitOptions options;
  options.model = model_named(model);
  options.half_values = half_values;
  options.beta = beta;
  if (goal != "max_ulp" && goal != "mean_relative") refuse("goal is '" + goal + "', must be max_ulp or mean_relative");
  options.goal = goal == "max_ulp" ? Fp16Goal::kMaxUlp : Fp16Goal::kMeanRelative;
  std::string name;
  if (nb::try_cast(function, name)) {
    const nb::gil_scoped_release release;
    return std::make_unique<Table>(take(Fp16Function::create(take(fit_fp16_table(name, options)))));
  }
  const Input values(function, "function", Dtype::kF64);
  const nb::gil_scoped_release release;
  const std::span<const double> numbers = values.values<double>();
  return std::make_unique<Table>(
      take(Fp16Function::create(take(fit_fp16_table(std::vector<double>(numbers.begin(), numbers.end()), options)))));
}

void apply_on_device(const Table& self, nb::handle x, const Input& input, const Returned& y, Dtype y_dtype) {
  const isobit_cuda_functions& functions = cuda_functions();
  const isobit_cuda_function* const function =
      self.copies.get(*input.device(), functions.function_destroy, [&](isobit_cuda_function** made) {
        return functions.function_create(self.results().data(), static_cast<int64_t>(self.results().size()),
                                         *input.device(), made);
      });
  check_cuda(functions.function_run(
      function, input.bytes().data(), static_cast<int64_t>(input.bytes().size()), static_cast<int32_t>(input.dtype()),
      y.bytes().data(), static_cast<int64_t>(y.bytes().size()), static_cast<int32_t>(y_dtype), Stream(x).handle));
}

nb::any apply(const Table& self, nb::any x, nb::any out, const std::optional<std::string>& dtype,
              const std::string& kernel, Pool* pool) {
  const Input input(x, "x", kFloats, Places::kHostOrDevice);
  const Dtype y_dtype = dtype ? dtype_named("dtype", *dtype, kFloats) : input.dtype();
  if (input.device()) {
    refuse_on_device("pool", pool != nullptr);
    refuse_on_device("kernel", !kernel.empty());
  }
  const Returned y(x, out, y_dtype, input.shape(), input.device());
  if (input.device()) {
    apply_on_device(self, x, input, y, y_dtype);
  } else {
    const nb::gil_scoped_release release;
    const PoolUse use(pool);
    check(self.forward(input.bytes(), input.dtype(), y.bytes(), y_dtype, {.kernel = kernel, .pool = use.pool}));
  }
  return nb::borrow<nb::any>(y.array());
}

Facts certificate(const Table& self) {
  const Fp16Certificate& c = self.table().certificate;
  Facts dict;
  dict["max_ulp"] = c.max_ulp;
  dict["mean_ulp"] = c.mean_ulp;
  dict["worst_code"] = c.worst_code;
  dict["max_absolute"] = c.max_absolute;
  dict["share_exact"] = c.share_exact;
  dict["share_within_ulp"] = c.share_within_ulp;
  return dict;
}

}  // namespace

void bind_tables(nb::module_& m) {
  nb::class_<Table>(
      m, "Table",
      "y = table(x), float16 to float16, as hardware with a small table of floats computes it. A table\n"
      "that isobit carries: function 'silu', 'gelu', 'tanh', ... (functions()); model 'f32', 'nli_gpu' or\n"
      "'nli_cpu'; half_values: its values are float16 numbers.")
      .def(nb::new_(&builtin), "function"_a, "model"_a = "f32", "half_values"_a = false)
      .def_static(
          "load",
          [](const Path& path) {
            return std::make_unique<Table>(take(Fp16Function::create(take(load_fp16_table(path.text)))));
          },
          "path"_a, "A table that save() or `isobit table fit` wrote.")
      .def_static(
          "fit", &fit, "function"_a, nb::kw_only(), "model"_a = "f32", "half_values"_a = false, "goal"_a = "max_ulp",
          "beta"_a = 1.0,
          "Cut points and values chosen together. function: a name, or 65536 float64 values, one for each float16\n"
          "code. goal: 'max_ulp' or 'mean_relative'. beta: of 'swish'.")
      .def_static(
          "functions",
          [] {
            std::vector<std::string> names;
            for (const std::string_view name : fp16_functions()) names.emplace_back(name);
            return names;
          },
          "The names of the functions that isobit knows.")
      .def_prop_ro("function", [](const Table& self) { return self.table().function; })
      .def_prop_ro("certificate", &certificate,
                   "Errors over every finite float16 input against the correctly rounded result.")
      .def(
          "save", [](const Table& self, const Path& path) { check(save_fp16_table(path.text, self.table())); },
          "path"_a)
      .def("__call__", &apply, "x"_a, nb::kw_only(), "out"_a = nb::none(), "dtype"_a = nb::none(), "kernel"_a = "",
           "pool"_a.none() = nb::none(),
           "x float32, float16 or bfloat16, of any shape: rounded to float16; y is the float16 result widened or "
           "rounded to\n"
           "`dtype` ('f32', 'f16', 'bf16'; default that of x). NaN gives NaN. out: an array of y's shape and dtype. x "
           "may\n"
           "be a torch.Tensor on a CUDA device; pool and kernel mean nothing there.")
      .def("__repr__", [](const Table& self) { return "<isobit.Table " + fp16_table_text(self.table()) + ">"; });
}

}  // namespace isobit::python
