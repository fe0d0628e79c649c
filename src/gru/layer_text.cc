// SPDX-License-Identifier: Apache-2.0
// The text form of which arrays are a GRU.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "isobit/gru_files.h"

namespace isobit {

Status apply_layer(const std::string& text, GruLoadOptions& options) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "layer " + text + ": " + why);
  };
  const size_t equals = text.find('=');
  std::string prefix = text.substr(0, equals);
  if (equals != std::string::npos) {
    std::string place = "_l0";
    const size_t end = prefix.size() - (prefix.ends_with("_reverse") ? std::strlen("_reverse") : 0);
    const size_t digits = prefix.find_last_not_of("0123456789", end - 1) + 1;
    if (digits < end && digits >= 2 && prefix.compare(digits - 2, 2, "_l") == 0) {
      place = prefix.substr(digits - 2);
      prefix.resize(digits - 2);
    }
    std::vector<std::string> names;
    for (size_t begin = equals + 1; begin <= text.size();) {
      const size_t comma = std::min(text.find(',', begin), text.size());
      names.push_back(text.substr(begin, comma - begin));
      begin = comma + 1;
    }
    if (prefix.empty() || names.size() < 2 || names.size() > 4 ||
        std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); }))
      return refuse("expected NAME=W,R, NAME=W,R,BW,BR, or NAME=W,R,B with both biases in B");
    const char* const tensors[] = {".weight_ih", ".weight_hh", ".bias_ih", ".bias_hh"};
    for (size_t i = 0; i < names.size(); ++i) {
      std::string meaning = prefix;
      meaning.append(tensors[i]).append(place);
      if (!options.arrays.emplace(std::move(meaning), names[i]).second)
        return refuse("layer " + place.substr(1) + " is given twice");
    }
  }
  if (!options.prefix.empty() && options.prefix != prefix) return refuse("another one names " + options.prefix);
  options.prefix = prefix;
  return {};
}

}  // namespace isobit
