// SPDX-License-Identifier: Apache-2.0
// Arguments that are words.
#ifndef ISOBIT_PYTHON_NAMES_H_
#define ISOBIT_PYTHON_NAMES_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "errors.h"
#include "isobit/cpu.h"
#include "isobit/grid.h"
#include "isobit/report.h"
#include "isobit/rounding.h"

namespace isobit::python {

/// What `text` means to `parse`, an optional; refuses any other word.
template <typename Parse>
auto parse_name(const char* argument, const std::string& text, Parse parse, const char* names) {
  const auto value = parse(text);
  if (!value) refuse(std::string(argument) + " is '" + text + "', must be one of " + names);
  return *value;
}

inline std::optional<CpuPath> path_named(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  return parse_name("path", *text, cpu_path_from_string, "reference, scalar, avx2, avxvnni, avx512vnni, amx");
}
inline ScaleKind scale_named(const std::string& text) {
  return parse_name("scale", text, scale_kind_from_string, "pow2, real");
}
inline Rounding rounding_named(const std::string& text) {
  return parse_name("rounding", text, rounding_from_string, "nearest_even, nearest_up, nearest_away, floor");
}

/// Text, JSON and warnings.
using Said = std::tuple<std::string, std::string, std::vector<std::string>>;
inline Said said(const Description& description) { return {description.text, description.json, description.warnings}; }

/// dict[str, Any]
using Facts = nanobind::typed<nanobind::dict, nanobind::str, nanobind::any>;

inline Facts grid_dict(const Grid& grid) {
  Facts dict;
  dict["bits"] = grid.bits;
  dict["signed"] = grid.is_signed;
  dict["scale"] = static_cast<double>(grid.scale());
  dict["zero_point"] = grid.zero_point;
  dict["dtype"] = std::string(to_string(grid.dtype()));
  return dict;
}

}  // namespace isobit::python

#endif  // ISOBIT_PYTHON_NAMES_H_
