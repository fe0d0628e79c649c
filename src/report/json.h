// SPDX-License-Identifier: Apache-2.0
// JSON of reports: keys in the order in which they were set.
#ifndef ISOBIT_REPORT_JSON_H_
#define ISOBIT_REPORT_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "isobit/grid.h"
#include "isobit/low_bit_import.h"

namespace isobit {

using OrderedJson = nlohmann::ordered_json;

/// One line. Names in files need not be UTF-8, JSON must be. NaN and infinity are null.
std::string json_line(const OrderedJson& json);

/// What json_line() wrote.
OrderedJson parse_json(const std::string& text);

OrderedJson json_of(const Grid& grid);
OrderedJson json_of(const CheckpointDescription& description);

}  // namespace isobit

#endif  // ISOBIT_REPORT_JSON_H_
