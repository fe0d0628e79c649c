// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_REPORT_GNUPLOT_H_
#define ISOBIT_REPORT_GNUPLOT_H_

#include <string>

#include "isobit/status.h"

namespace isobit {

/// Runs gnuplot on a script and returns the SVG that it draws. Files rather than pipes: neither side can wait for the
/// other. kFailedPrecondition where gnuplot is not on PATH; kIo where it fails.
Result<std::string> run_gnuplot(const std::string& script);

}  // namespace isobit

#endif  // ISOBIT_REPORT_GNUPLOT_H_
