// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_REPORT_GGUF_H_
#define ISOBIT_REPORT_GGUF_H_

#include <string>

#include "isobit/gguf.h"
#include "report/json.h"

namespace isobit {

/// A line of text for each value, shortened, and their JSON.
OrderedJson describe_gguf_metadata(const GgufMetadata& metadata, std::string& text);

}  // namespace isobit

#endif  // ISOBIT_REPORT_GGUF_H_
