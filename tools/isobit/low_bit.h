// SPDX-License-Identifier: Apache-2.0
// Low-bit weights as the verbs read and describe them.
#ifndef ISOBIT_TOOLS_LOW_BIT_H_
#define ISOBIT_TOOLS_LOW_BIT_H_

#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/low_bit.h"
#include "isobit/nearest.h"
#include "text.h"
#include "value.h"

namespace isobit::tool {

/// nearest_hint() among the keys of a map.
template <typename Map>
std::string nearest_key(const std::string& name, const Map& map) {
  std::vector<std::string_view> names;
  names.reserve(map.size());
  for (const auto& [key, value] : map) names.push_back(key);
  return escaped(nearest_hint(name, names));
}

/// bits, kind, group and scales.
inline void set_form(const LowBitParameters& p, Value& json) {
  json.set("bits", p.bits).set("kind", to_string(p.kind)).set("group", p.group);
  json.set("scales", to_string(p.scales.dtype));
}

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_LOW_BIT_H_
