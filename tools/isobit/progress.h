// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_TOOLS_PROGRESS_H_
#define ISOBIT_TOOLS_PROGRESS_H_

#include <chrono>
#include <string>

namespace isobit::tool {

/// A bar with the remaining time on stderr, only when stderr is a terminal; the line is gone when the object is.
class Progress {
 public:
  Progress(std::string label, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// fraction: 0 to 1. note: after the remaining time.
  void update(double fraction, const std::string& note = {});

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool shown_;
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_PROGRESS_H_
