// SPDX-License-Identifier: Apache-2.0
#include "cuda.h"

#include <nanobind/stl/pair.h>

#include <utility>

#include "cuda/library.h"

namespace isobit::python {
namespace nb = nanobind;

const isobit_cuda_functions& cuda_functions() { return *take(cuda::library_functions()); }

void check_cuda(int32_t code) { check(cuda::library_status(cuda_functions(), code)); }

Stream::Stream(nb::handle tensor) {
  const auto [stream, number] =
      nb::cast<std::pair<nb::object, uintptr_t>>(nb::module_::import_("isobit._arrays").attr("stream")(tensor));
  object = stream;
  handle = reinterpret_cast<void*>(number);
}

}  // namespace isobit::python
