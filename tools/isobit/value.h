// SPDX-License-Identifier: Apache-2.0
// A JSON value to print. Only value.cc includes the JSON library, which costs seconds a file to compile.
#ifndef ISOBIT_TOOLS_VALUE_H_
#define ISOBIT_TOOLS_VALUE_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobit::tool {

class Value {
 public:
  Value() = default;                                                  // null
  Value(bool value) : kind_(Kind::kBool), integer_(value ? 1 : 0) {}  // NOLINT: implicit
  Value(std::unsigned_integral auto value) : kind_(Kind::kUnsigned), integer_(static_cast<int64_t>(value)) {}  // NOLINT
  Value(std::integral auto value) : kind_(Kind::kInteger), integer_(static_cast<int64_t>(value)) {}            // NOLINT
  Value(double value) : kind_(Kind::kReal), real_(value) {}                    // NOLINT: NaN, inf: null
  Value(std::string value) : kind_(Kind::kString), text_(std::move(value)) {}  // NOLINT
  Value(std::string_view value) : kind_(Kind::kString), text_(value) {}        // NOLINT
  Value(const char* value) : kind_(Kind::kString), text_(value) {}             // NOLINT

  static Value array() { return Value(Kind::kArray); }
  static Value object() { return Value(Kind::kObject); }
  /// What is written there; more keys may be set in an object.
  static Value parsed(std::string json) {
    Value out(Kind::kObject);
    out.text_ = std::move(json);
    return out;
  }
  template <typename Items>
  static Value list(const Items& items) {
    Value out(Kind::kArray);
    for (const auto& item : items) out.add(item);
    return out;
  }

  Value& add(Value item) {
    items_.push_back(std::move(item));
    return *this;
  }
  Value& set(std::string key, Value item) {
    keys_.push_back(std::move(key));
    return add(std::move(item));
  }

  /// One line, keys in the order in which they were set.
  [[nodiscard]] std::string to_json() const;

 private:
  enum class Kind { kNull, kBool, kInteger, kUnsigned, kReal, kString, kArray, kObject };
  explicit Value(Kind kind) : kind_(kind) {}
  friend struct ValueConverter;

  Kind kind_ = Kind::kNull;
  int64_t integer_ = 0;  // kUnsigned: its bits
  double real_ = 0;
  std::string text_;               // kObject: what it begins with
  std::vector<std::string> keys_;  // kObject: of items_
  std::vector<Value> items_;
};

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_VALUE_H_
