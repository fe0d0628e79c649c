// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_TOOLS_PLOT_FRONT_H_
#define ISOBIT_TOOLS_PLOT_FRONT_H_

#include <string>

#include "isobit/status.h"
#include "isobit/tune.h"

namespace isobit::tool {

/// SVG of the front of a search: quality over bytes, a colour a speed class. Errors as run_gnuplot().
Result<std::string> svg_of_front(const GruTuneResult& result, bool is_metric);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_PLOT_FRONT_H_
