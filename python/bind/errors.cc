// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <vector>

namespace isobit::python {
namespace nb = nanobind;

void bind_errors(nb::module_& m) {
  static std::vector<PyObject*> types;  // by StatusCode, from kInvalidArgument on; as long as the interpreter
  m.def("set_exceptions", [](const nb::typed<nb::tuple, nb::any, nb::ellipsis>& by_code) {
    for (const nb::handle type : by_code) types.push_back(nb::borrow(type).release().ptr());
  });
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const StatusError& status) {
      const size_t index = static_cast<size_t>(status.code()) - 1;
      PyErr_SetString(index < types.size() ? types[index] : PyExc_RuntimeError, status.what());
    }
  });
}

}  // namespace isobit::python
