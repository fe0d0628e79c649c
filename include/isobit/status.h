// SPDX-License-Identifier: Apache-2.0
// Errors at the door of every public function. Nothing in isobit throws or aborts across its API.
#ifndef ISOBIT_STATUS_H_
#define ISOBIT_STATUS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace isobit {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,     // a value that the caller passed is outside its limits
  kInvalidFile = 2,         // a file's content is truncated, inconsistent or of an unknown version
  kIo = 3,                  // the operating system refused a read or a write
  kUnsupported = 4,         // well-formed, but isobit refuses it by name
  kOverflow = 5,            // the overflow proof failed (numerics.md, section 8)
  kFailedPrecondition = 6,  // called in the wrong order, e.g. finish() before observe()
};

/// A code and a message that names the argument or file, the value and the limit. Success costs two words.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : error_(std::make_shared<Error>(Error{code, std::move(message)})) {}

  [[nodiscard]] bool ok() const { return error_ == nullptr; }
  [[nodiscard]] StatusCode code() const { return ok() ? StatusCode::kOk : error_->code; }
  [[nodiscard]] const std::string& message() const {
    static const std::string none;
    return ok() ? none : error_->message;
  }

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

/// Either a value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}        // NOLINT: implicit on purpose

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Status& status() const { return status_; }

  [[nodiscard]] T& value() & { return *value_; }
  [[nodiscard]] const T& value() const& { return *value_; }
  [[nodiscard]] T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace isobit

/// Returns from the enclosing function when `expression` (a Status) is an error.
#define ISOBIT_RETURN_IF_ERROR(expression)                  \
  do {                                                      \
    ::isobit::Status isobit_status_ = (expression);         \
    if (!isobit_status_.ok()) return isobit_status_;        \
  } while (false)

#define ISOBIT_CONCAT_INNER_(a, b) a##b
#define ISOBIT_CONCAT_(a, b) ISOBIT_CONCAT_INNER_(a, b)
/// `ISOBIT_ASSIGN_OR_RETURN(auto x, f());` where f returns a Result.
#define ISOBIT_ASSIGN_OR_RETURN(declaration, expression)                                  \
  auto ISOBIT_CONCAT_(isobit_result_, __LINE__) = (expression);                           \
  if (!ISOBIT_CONCAT_(isobit_result_, __LINE__).ok())                                     \
    return ISOBIT_CONCAT_(isobit_result_, __LINE__).status();                             \
  declaration = *std::move(ISOBIT_CONCAT_(isobit_result_, __LINE__))

#endif  // ISOBIT_STATUS_H_
