// SPDX-License-Identifier: Apache-2.0
// The search for bit widths.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <functional>
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
#include "isobit/tune.h"
#include "names.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

/// Float outputs on data that calibration did not see.
struct Validation {
  GruValidation validation;
};

void add_sequences(Validation& self, nb::handle x, int64_t steps, int64_t batch, bool batch_first,
                   const std::vector<int64_t>& lengths) {
  const Input input(x, "x", Dtype::kF32);
  const nb::gil_scoped_release release;
  check(self.validation.add({steps, batch, input.values<float>(), batch_first, lengths}));
}

Facts settings_dict(const GruTunePoint& point) {
  Facts dict;
  dict["bits"] = point.settings.bits;
  dict["method"] = point.settings.method;
  dict["table"] = point.settings.table;
  dict["scale"] = std::string(to_string(point.settings.scale));
  dict["quality"] = point.quality;
  dict["bytes"] = point.bytes;
  return dict;
}

struct Search {
  std::optional<double> target;
  std::optional<int64_t> max_bytes;
  std::optional<std::string> like, scale, method, table;
  std::string rounding;
  std::function<double(const Gru&)> metric;
  std::function<bool(double, int64_t, std::optional<double>)> progress;
};

/// As isobit._reports.Tuning takes it.
using Tuned = std::tuple<std::optional<Gru>, bool, bool, Facts, std::vector<Facts>, std::string, Said, GruTuneResult>;

Tuned tune(const Calibrator& calibrator, Validation& validation, const Search& search, Pool* pool) {
  GruTuneOptions options;
  options.target = search.target;
  options.max_bytes = search.max_bytes;
  options.rounding = rounding_named(search.rounding);
  if (search.scale) options.scale = scale_named(*search.scale);
  options.method = search.method;
  options.table = search.table;
  if (search.like) options.like = options.settings_with(*search.like);
  // What Python raises ends the search, and is raised again when nothing of C++ is on the stack.
  std::optional<nb::python_error> raised;
  if (search.metric)
    options.metric = [&](const GruModel& model) -> isobit::Result<double> {
      const nb::gil_scoped_acquire acquire;
      try {
        return search.metric(Gru(model));
      } catch (nb::python_error& error) {
        raised.emplace(std::move(error));
        return Status(StatusCode::kInvalidArgument, "the metric failed");
      }
    };
  options.progress = [&](const GruTuneProgress& now) {
    const nb::gil_scoped_acquire acquire;
    try {
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
      if (!search.progress) return true;
      return search.progress(now.fraction, now.evaluations,
                             now.best == nullptr ? std::optional<double>() : now.best->quality);
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      return false;
    }
  };
  std::optional<isobit::Result<GruTuneResult>> found;
  {
    const nb::gil_scoped_release release;
    const PoolUse use(pool);
    options.pool = use.pool;
    found.emplace(tune_gru(calibrator.calibrator, validation.validation, options));
  }
  if (raised) throw std::move(*raised);
  const GruTuneResult result = take(std::move(*found));
  std::vector<Facts> front;
  for (const GruTunePoint& point : result.front) front.push_back(settings_dict(point));
  return {result.model ? std::optional<Gru>(*result.model) : std::nullopt,
          result.reached,
          result.interrupted,
          settings_dict(result.chosen),
          front,
          result.reached ? std::string() : unreached_text(result, options),
          said(describe_search(result)),
          result};
}

}  // namespace

void bind_tune(nb::module_& m) {
  nb::class_<GruTuneResult>(m, "GruTuneResult");
  nb::class_<Validation>(m, "GruValidation")
      .def(nb::new_([](const GruWeights& weights) {
             return std::make_unique<Validation>(Validation{take(GruValidation::create(weights))});
           }),
           "weights"_a)
      .def("add", &add_sequences, "x"_a, "steps"_a, "batch"_a, "batch_first"_a, "lengths"_a);
  m.def(
      "tune",
      [](const Calibrator& calibrator, Validation& validation, std::optional<double> target,
         std::optional<int64_t> max_bytes, std::optional<std::string> like, std::optional<std::string> scale,
         std::optional<std::string> method, std::optional<std::string> table, std::string rounding,
         std::function<double(const Gru&)> metric, std::function<bool(double, int64_t, std::optional<double>)> progress,
         Pool* pool) {
        return tune(calibrator, validation,
                    {target, max_bytes, std::move(like), std::move(scale), std::move(method), std::move(table),
                     std::move(rounding), std::move(metric), std::move(progress)},
                    pool);
      },
      "calibrator"_a, "validation"_a, "target"_a.none(), "max_bytes"_a.none(), "like"_a.none(), "scale"_a.none(),
      "method"_a.none(), "table"_a.none(), "rounding"_a, "metric"_a.none(), "progress"_a.none(), "pool"_a.none());
}

}  // namespace isobit::python
