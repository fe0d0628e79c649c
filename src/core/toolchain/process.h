// SPDX-License-Identifier: Apache-2.0
// Other programs, started without a shell, and folders for what passes between.
#ifndef ISOBIT_CORE_TOOLCHAIN_PROCESS_H_
#define ISOBIT_CORE_TOOLCHAIN_PROCESS_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/status.h"

namespace isobit {

struct ProcessResult {
  int exit_status = 0;  // 128 + its number where a signal ended it
  std::string output, error;
};
/// Runs a program, found on PATH, to its end; `input` is its standard input. Errors: kFailedPrecondition where there is
/// no such program; kIo. An exit status other than 0 is no error.
Result<ProcessResult> run_process(const std::vector<std::string>& words, std::string_view input = {});

/// A folder for temporary files that is gone when the object is.
class WorkFolder {
 public:
  /// Its name begins with `purpose`. kIo where none can be made.
  static Result<WorkFolder> create(std::string_view purpose);
  WorkFolder(WorkFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder();
  [[nodiscard]] Status write(const std::string& name, std::string_view text) const;
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace isobit

#endif  // ISOBIT_CORE_TOOLCHAIN_PROCESS_H_
