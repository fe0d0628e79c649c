// SPDX-License-Identifier: Apache-2.0
// Parts of a page: isobit/report.h, GruPage.
#ifndef ISOBIT_REPORT_HTML_PAGE_H_
#define ISOBIT_REPORT_HTML_PAGE_H_

#include <cstdint>
#include <string>

#include "isobit/report.h"

namespace isobit {

/// Layers and directions that are shown one by one, so that a page stays small.
inline constexpr int64_t kMostLayers = 16;

/// "2<sup>−7</sup>", for weights that of the rows.
std::string step_html(const GruLayerParameters& layer, int32_t tensor);
/// The name of a sequence without the folders that all names begin with.
std::string sequence_html(const GruPage& page, int64_t sequence);
/// Says that there are more than kMostLayers, if so.
std::string left_out_html(const GruPage& page);

/// Sections of a comparison; empty where it has no profile.
std::string over_time(const GruPage& page);
std::string histograms(const GruPage& page);
Result<std::string> table_errors_section(const GruPage& page);

/// Quality over bytes of the front, a colour and a shape a speed class.
std::string front_chart(const GruTuneResult& result);

}  // namespace isobit

#endif  // ISOBIT_REPORT_HTML_PAGE_H_
