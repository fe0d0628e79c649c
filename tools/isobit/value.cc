// SPDX-License-Identifier: Apache-2.0
#include "value.h"

#include <nlohmann/json.hpp>

namespace isobit::tool {

struct ValueConverter {
  static nlohmann::ordered_json convert(const Value& value) {
    switch (value.kind_) {
      case Value::Kind::kNull: return nullptr;
      case Value::Kind::kBool: return value.integer_ != 0;
      case Value::Kind::kInteger: return value.integer_;
      case Value::Kind::kUnsigned: return static_cast<uint64_t>(value.integer_);
      case Value::Kind::kReal: return value.real_;
      case Value::Kind::kString: return value.text_;
      case Value::Kind::kArray: {
        auto out = nlohmann::ordered_json::array();
        for (const Value& item : value.items_) out.push_back(convert(item));
        return out;
      }
      case Value::Kind::kObject: {
        auto out = value.text_.empty() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::parse(value.text_);
        for (size_t i = 0; i < value.items_.size(); ++i) out[value.keys_[i]] = convert(value.items_[i]);
        return out;
      }
    }
    return nullptr;
  }
};

std::string Value::to_json() const {
  // File names need not be UTF-8; JSON must be.
  return ValueConverter::convert(*this).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace isobit::tool
