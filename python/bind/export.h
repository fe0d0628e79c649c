// SPDX-License-Identifier: Apache-2.0
// export_c() of every model that has one.
#ifndef ISOBIT_PYTHON_EXPORT_H_
#define ISOBIT_PYTHON_EXPORT_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "errors.h"
#include "isobit/export.h"
#include "names.h"
#include "path.h"

namespace isobit::python {

template <typename Model>
Facts export_model(const Model& model, const Path& folder, const std::optional<std::string>& name,
                   const std::string& target, int64_t selftest_steps, bool float_entry, bool allow_large_tables,
                   bool measure, bool force) {
  CExportOptions options;
  options.name = name.value_or("");
  options.target = parse_name("target", target, c_target_from_string,
                              "generic, cortex-m3, cortex-m4, cortex-m7, cortex-m33, cortex-m55");
  options.selftest_steps = selftest_steps;
  options.float_entry = float_entry;
  options.allow_large_tables = allow_large_tables;
  Description description;
  {
    const nanobind::gil_scoped_release release;
    const CExport code = take(export_c(model, options));
    check(write_c_export(code, folder.text, force));
    std::optional<CMeasurement> measured;
    if (measure) measured = take(measure_c_export(code, options.target));
    description = describe_c_export(code, measured, "measure is False");
  }
  return nanobind::cast<Facts>(nanobind::module_::import_("json").attr("loads")(description.json));
}

/// Adds export_c() to the class of a model.
template <typename Model>
void bind_export_c(nanobind::class_<Model>& to) {
  namespace nb = nanobind;
  using namespace nb::literals;  // NOLINT
  to.def("export_c", &export_model<Model>, "folder"_a, nb::kw_only(), "name"_a = nb::none(), "target"_a = "generic",
         "selftest_steps"_a = 8, "float_entry"_a = false, "allow_large_tables"_a = false, "measure"_a = false,
         "force"_a = false,
         "C99 with the same bytes, for microcontrollers (docs/microcontrollers.md): NAME.h, NAME.c, NAME_data.c and\n"
         "NAME.cmake in folder, all or none. name: a C identifier, by default made from the model's. target: generic,\n"
         "cortex-m3, cortex-m4, cortex-m7, cortex-m33 or cortex-m55. float_entry: a GRU of one direction also gets a "
         "step\n"
         "that takes and gives float32. allow_large_tables: activation tables above 16 KB. measure: compile it with\n"
         "arm-none-eabi-gcc and count instructions with qemu-system-arm. force: overwrite an earlier export.\n"
         "Returns the bytes of flash and RAM and the work of a step, as `isobit export c --json` prints them.");
}

}  // namespace isobit::python

#endif  // ISOBIT_PYTHON_EXPORT_H_
