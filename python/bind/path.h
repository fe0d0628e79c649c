// SPDX-License-Identifier: Apache-2.0
// The path of a file: str or os.PathLike.
#ifndef ISOBIT_PYTHON_PATH_H_
#define ISOBIT_PYTHON_PATH_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace isobit::python {
struct Path {
  std::string text;
};
}  // namespace isobit::python

namespace nanobind::detail {
/// As nanobind/stl/filesystem.h, but for the type in stubs, which mypy --strict takes.
template <>
struct type_caster<isobit::python::Path> {
  NB_TYPE_CASTER(isobit::python::Path, const_name("str | os.PathLike[str]"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    PyObject* converted = nullptr;
    if (PyUnicode_FSConverter(source.ptr(), &converted) == 0) {
      PyErr_Clear();
      return false;
    }
    const object bytes = steal(converted);
    value.text = PyBytes_AsString(converted);
    return true;
  }
};
}  // namespace nanobind::detail

#endif  // ISOBIT_PYTHON_PATH_H_
