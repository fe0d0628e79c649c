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

void bind_checks(nb::module_& m) {
  nb::class_<Comparison>(m, "GruComparison")
      .def(nb::new_([](const GruWeights& weights, const Gru& model, double part_codes, float zoneout, bool ablate) {
             GruCompareOptions options;
             options.part_codes = part_codes;
             options.zoneout = zoneout;
             options.profile = true;
             auto made = std::make_unique<Comparison>(
                 Comparison{take(GruComparison::create(weights, model, options)), model, part_codes, {}, {}, {}, {}});
             if (ablate) made->validation = take(GruValidation::create(weights, {.zoneout = zoneout}));
             return made;
           }),
           "weights"_a, "model"_a, "part_codes"_a, "zoneout"_a, "ablate"_a)
      .def(
          "add",
          [](Comparison& self, nb::handle x, int64_t steps, int64_t batch, bool batch_first,
             const std::vector<int64_t>& lengths, const std::string& name) {
            const Input input(x, "x", Dtype::kF32);
            const nb::gil_scoped_release release;
            const GruSequences data{steps, batch, input.values<float>(), batch_first, lengths};
            check(self.comparison.add(data));
            if (self.validation) check(self.validation->add(data));
            for (int64_t n = 0; n < batch; ++n)
              self.names.push_back(batch == 1 ? name : name + "[" + std::to_string(n) + "]");
          },
          "x"_a, "steps"_a, "batch"_a, "batch_first"_a, "lengths"_a, "name"_a)
      .def("finish",
           [](Comparison& self) {
             {
               const nb::gil_scoped_release release;
               self.report = take(self.comparison.finish());
               if (self.validation) self.ablation = take(ablate(*self.validation, self.model, {.alone = true}));
             }
             return said(
                 describe_comparison(*self.report, self.model.parameters().directions, self.names, self.part_codes));
           })
      .def_prop_ro("ablation", [](const Comparison& self) -> std::optional<Said> {
        if (!self.ablation) return std::nullopt;
        return said(describe_ablation(*self.ablation));
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
