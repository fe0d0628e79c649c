// SPDX-License-Identifier: Apache-2.0
// Status to exceptions.
#ifndef ISOBIT_PYTHON_ERRORS_H_
#define ISOBIT_PYTHON_ERRORS_H_

#include <nanobind/nanobind.h>

#include <exception>
#include <string>
#include <utility>

#include "isobit/status.h"

namespace isobit::python {

/// What bound functions throw; the translator makes an exception of it, by its code.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  [[nodiscard]] const char* what() const noexcept override { return status_.message().c_str(); }
  [[nodiscard]] StatusCode code() const { return status_.code(); }

 private:
  Status status_;
};

inline void check(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}

template <typename T>
T take(Result<T> result) {
  check(result.status());
  return *std::move(result);
}

[[noreturn]] inline void refuse(std::string message) {
  throw StatusError(Status(StatusCode::kInvalidArgument, std::move(message)));
}

[[noreturn]] inline void refuse_unsupported(std::string message) {
  throw StatusError(Status(StatusCode::kUnsupported, std::move(message)));
}

/// TypeError, as Python says it of arguments of another kind.
[[noreturn]] inline void refuse_type(const std::string& message) { throw nanobind::type_error(message.c_str()); }

void bind_errors(nanobind::module_& m);

}  // namespace isobit::python

#endif  // ISOBIT_PYTHON_ERRORS_H_
