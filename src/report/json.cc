// SPDX-License-Identifier: Apache-2.0
#include "report/json.h"

namespace isobit {

std::string json_line(const OrderedJson& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

OrderedJson parse_json(const std::string& text) { return OrderedJson::parse(text); }

}  // namespace isobit
