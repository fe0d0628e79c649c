// SPDX-License-Identifier: Apache-2.0
// A JSON value to print.
#ifndef ISOBIT_TOOLS_VALUE_H_
#define ISOBIT_TOOLS_VALUE_H_

#include <concepts>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace isobit::tool {

class Value {
 public:
  Value() = default;  // null
  /// Numbers (NaN, infinity: null), texts and lists of them.
  template <typename T>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): the constraint leaves copies and moves alone
  requires(!std::same_as<std::remove_cvref_t<T>, Value>) Value(T&& value)
      : json_(std::forward<T>(value)) {}  // NOLINT: implicit

  static Value array() { return Value(Json::array()); }
  static Value object() { return Value(Json::object()); }
  static Value parsed(std::string_view json) { return Value(Json::parse(json)); }

  Value& add(Value item) {
    json_.push_back(std::move(item.json_));
    return *this;
  }
  Value& set(const std::string& key, Value item) {
    json_[key] = std::move(item.json_);
    return *this;
  }
  /// Sets the keys of another object.
  void update(const Value& other) { json_.update(other.json_); }

  /// One line, keys in the order in which they were set. File names need not be UTF-8; JSON must be.
  [[nodiscard]] std::string to_json() const { return json_.dump(-1, ' ', false, Json::error_handler_t::replace); }

 private:
  using Json = nlohmann::ordered_json;
  Json json_;
};

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_VALUE_H_
