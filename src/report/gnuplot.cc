// SPDX-License-Identifier: Apache-2.0
#include "report/gnuplot.h"

#include <algorithm>

#include "core/toolchain/process.h"
#include "isobit/report.h"

namespace isobit {

Result<std::string> run_gnuplot(const std::string& script) {
  // -d: no ~/.gnuplot, which could change the picture.
  const Result<ProcessResult> run = run_process({"gnuplot", "-d"}, script);
  if (!run.ok()) {
    return Status(run.status().code(),
                  run.status().message() + "; gnuplot draws the SVG: install it (Debian: gnuplot-nox)");
  }
  if (run->exit_status != 0) {
    std::string message = run->error;
    message.erase(0, message.find_first_not_of(" \n"));
    std::replace(message.begin(), message.end(), '\n', ' ');
    return Status(StatusCode::kIo, "gnuplot failed: " + message.substr(0, 300));
  }
  if (run->output.find("</svg>") == std::string::npos) return Status(StatusCode::kIo, "gnuplot wrote no complete SVG");
  return run->output;
}

Status check_gnuplot() { return run_gnuplot("set terminal svg\nplot 0\n").status(); }

}  // namespace isobit
