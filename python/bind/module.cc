// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include "errors.h"
#include "gru.h"

NB_MODULE(_isobit, m) {
  m.doc() = "The extension module behind the package isobit.";
  isobit::python::bind_errors(m);
  isobit::python::bind_gru(m);
  isobit::python::bind_linear(m);
  isobit::python::bind_conv(m);
  isobit::python::bind_tables(m);
  isobit::python::bind_training(m);
  isobit::python::bind_device_training(m);
  isobit::python::bind_tune(m);
  isobit::python::bind_checks(m);
  isobit::python::bind_pages(m);
}
