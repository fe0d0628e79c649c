// SPDX-License-Identifier: Apache-2.0
// Comparisons and self-checks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "errors.h"
#include "gru.h"
#include "isobit/compare.h"
#include "isobit/report.h"
#include "isobit/verify.h"
#include "names.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

struct Comparison {
  GruComparison comparison;
  int32_t directions;
  double part_codes;
  std::vector<std::string> names;
};

}  // namespace

void bind_checks(nb::module_& m) {
  nb::class_<Comparison>(m, "GruComparison")
      .def(nb::new_([](const GruWeights& weights, const Gru& model, double part_codes, float zoneout) {
             GruCompareOptions options;
             options.part_codes = part_codes;
             options.zoneout = zoneout;
             return std::make_unique<Comparison>(Comparison{
                 take(GruComparison::create(weights, model, options)), model.parameters().directions, part_codes, {}});
           }),
           "weights"_a, "model"_a, "part_codes"_a, "zoneout"_a)
      .def(
          "add",
          [](Comparison& self, nb::handle x, int64_t steps, int64_t batch, bool batch_first,
             const std::vector<int64_t>& lengths, const std::string& name) {
            const Input input(x, "x", Dtype::kF32);
            const nb::gil_scoped_release release;
            check(self.comparison.add({steps, batch, input.values<float>(), batch_first, lengths}));
            for (int64_t n = 0; n < batch; ++n)
              self.names.push_back(batch == 1 ? name : name + "[" + std::to_string(n) + "]");
          },
          "x"_a, "steps"_a, "batch"_a, "batch_first"_a, "lengths"_a, "name"_a)
      .def("finish", [](Comparison& self) {
        std::optional<GruComparisonReport> report;
        {
          const nb::gil_scoped_release release;
          report = take(self.comparison.finish());
        }
        return said(describe_comparison(*report, self.directions, self.names, self.part_codes));
      });

  m.def(
      "verify",
      [](const Gru* model, const std::string& operation, uint64_t outputs, uint64_t seed,
         const std::vector<std::string>& required) {
        VerifyOptions options;
        options.operation = operation;
        options.outputs = outputs;
        options.seed = seed;
        options.required = required;
        std::optional<VerifyReport> report;
        {
          const nb::gil_scoped_release release;
          report = take(model == nullptr ? verify_kernels(options) : verify_model(*model, options));
        }
        return std::pair(failure_text(*report), said(describe_verification(*report)));
      },
      "model"_a.none(), "operation"_a, "outputs"_a, "seed"_a, "required"_a);
  m.def(
      "fingerprint", [] { return take(fingerprint_all(std::nullopt)); }, nb::call_guard<nb::gil_scoped_release>());
  m.def("supported", [] { return said(describe_support()); });
}

}  // namespace isobit::python
