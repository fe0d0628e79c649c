// SPDX-License-Identifier: Apache-2.0
// The JSON text under the key "isobit" in the safetensors metadata of saved models and tables (docs/formats.md), read
// so that a missing, unknown or wrong field is refused by name.
#ifndef ISOBIT_IO_METADATA_H_
#define ISOBIT_IO_METADATA_H_

#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/container.h"
#include "isobit/grid.h"
#include "isobit/status.h"

namespace isobit {

using Json = nlohmann::json;  // objects are sorted by key: the same content gives the same bytes

inline constexpr const char* kMetadataKey = "isobit";

/// Why a file or what shall be written to one is refused. Thrown by the code of saved forms only, and caught in
/// without_refusal(): reading has some hundred places that can fail, and none of them has anything to clean up.
struct Refusal {
  Status status;
};

[[noreturn]] inline void refuse_file(const std::string& what) { throw Refusal{{StatusCode::kInvalidFile, what}}; }
[[noreturn]] inline void refuse_argument(const std::string& what) {
  throw Refusal{{StatusCode::kInvalidArgument, what}};
}

template <typename Body>
auto without_refusal(const std::string& path, Body body) -> decltype(body()) {
  return without_exceptions(path, [&]() -> decltype(body()) {
    try {
      return body();
    } catch (const Refusal& refusal) {
      return refusal.status;
    } catch (const Json::exception&) {
      return Status(StatusCode::kInvalidArgument, path + ": a name, hash or note is not valid UTF-8");
    }
  });
}

/// A value as messages show it; of arrays and objects only that they are such: nothing limits their depth.
inline std::string json_text(const Json& json) {
  return json.is_structured() ? std::string("an ") + json.type_name() : in_quotes(json.dump());
}

/// A float or double as printf's %a has it, the same in every locale; "inf" and "nan" as those.
template <typename T>
std::string hexadecimal(T value) {
  char digits[64];
  const T magnitude = std::signbit(value) ? -value : value;
  const auto written = std::to_chars(std::begin(digits), std::end(digits), magnitude, std::chars_format::hex);
  return (std::signbit(value) ? "-" : "") + std::string(std::isfinite(value) ? "0x" : "") +
         std::string(std::begin(digits), written.ptr);
}

/// Finite values only.
template <typename T>
std::optional<T> parse_hexadecimal(std::string_view text) {
  const bool negative = text.starts_with("-");
  if (negative) text.remove_prefix(1);
  if (!text.starts_with("0x") || text.starts_with("0x-")) return std::nullopt;
  T value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + 2, end, value, std::chars_format::hex);
  if (parsed.ec != std::errc() || parsed.ptr != end || !std::isfinite(value)) return std::nullopt;
  return negative ? -value : value;
}

/// An object of the JSON text. Every field is asked for by name and type; finish() refuses what nobody asked for.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) refuse_file(where_ + " is not a JSON object");
  }

  const Json& get(const std::string& name) {
    const auto found = json_.find(name);
    if (found == json_.end()) refuse_file(where_ + ": field " + in_quotes(name) + " is missing");
    used_.insert(name);
    return *found;
  }

  int64_t integer(const std::string& name, int64_t low, int64_t high) {
    const Json& value = get(name);
    const std::string limit = ", must be an integer in " + std::to_string(low) + ".." + std::to_string(high);
    const std::string field = where_ + ": field " + in_quotes(name) + " is ";
    if (!value.is_number_integer()) refuse_file(field + "a " + value.type_name() + limit);
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
      refuse_file(field + std::to_string(value.get<uint64_t>()) + limit);
    const auto number = value.get<int64_t>();
    if (number < low || number > high) refuse_file(field + std::to_string(number) + limit);
    return number;
  }
  int32_t integer32(const std::string& name, int32_t low = INT32_MIN, int32_t high = INT32_MAX) {
    return static_cast<int32_t>(integer(name, low, high));
  }

  bool boolean(const std::string& name) {
    const Json& value = get(name);
    if (!value.is_boolean()) refuse_type(name, value, "true or false");
    return value.get<bool>();
  }

  const std::string& string(const std::string& name) {
    const Json& value = get(name);
    if (!value.is_string()) refuse_type(name, value, "a string");
    return value.get_ref<const std::string&>();
  }

  const Json& list(const std::string& name) {
    const Json& value = get(name);
    if (!value.is_array() || value.empty()) refuse_type(name, value, "a list that is not empty");
    return value;
  }

  Fields object(const std::string& name) { return {get(name), where_ + ": " + name}; }

  /// What `parse` makes of a string; `choices` for the message.
  template <typename T>
  T choice(const std::string& name, std::optional<T> (*parse)(std::string_view), const char* choices) {
    const std::string& text = string(name);
    const std::optional<T> value = parse(text);
    if (!value) refuse_file(where_ + ": field " + in_quotes(name) + " is " + in_quotes(text) + ", must be " + choices);
    return *value;
  }

  /// Whether an optional field is there.
  [[nodiscard]] bool has(const std::string& name) const { return json_.contains(name); }

  /// The names of all fields, of an object whose keys are content.
  [[nodiscard]] std::vector<std::string> keys() const {
    std::vector<std::string> names;
    for (const auto& item : json_.items()) names.push_back(item.key());
    return names;
  }

  void finish() const {
    for (const auto& item : json_.items())
      if (!used_.contains(item.key())) refuse_file(where_ + ": unknown field " + in_quotes(item.key()));
  }

  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  [[noreturn]] void refuse_type(const std::string& name, const Json& value, const std::string& expected) const {
    refuse_file(where_ + ": field " + in_quotes(name) + " is " + (value.empty() ? "an empty " : "a ") +
                value.type_name() + ", must be " + expected);
  }

  const Json& json_;
  std::string where_;
  std::set<std::string> used_;
};

/// Width, sign and kind of a grid; the whole of it with scale and zero point.
inline Json grid_form_json(const Grid& grid, ScaleKind kind) {
  return {{"bits", grid.bits}, {"signed", grid.is_signed}, {"kind", std::string(to_string(kind))}};
}
inline Json json_of_grid(const Grid& grid) {
  Json json = grid_form_json(grid, grid.kind);
  json["zero_point"] = grid.zero_point;
  if (grid.kind == ScaleKind::kPow2) {
    json["shift"] = grid.shift;
  } else {
    json["scale"] = hexadecimal(grid.real_scale);
  }
  return json;
}

/// Whoever takes the grid checks shift and scale. finish() is the caller's.
inline Grid read_grid_form(Fields& fields, int32_t least_bits, int32_t most_bits) {
  Grid grid;
  grid.bits = fields.integer32("bits", least_bits, most_bits);
  grid.is_signed = fields.boolean("signed");
  grid.kind = fields.choice("kind", scale_kind_from_string, "pow2 or real");
  return grid;
}
inline Grid read_grid(Fields& fields, int32_t least_bits, int32_t most_bits) {
  Grid grid = read_grid_form(fields, least_bits, most_bits);
  grid.zero_point = fields.integer("zero_point", grid.min(), grid.max());
  if (grid.kind == ScaleKind::kPow2) {
    grid.shift = fields.integer32("shift");
  } else {
    grid.real_scale = fields.choice("scale", parse_hexadecimal<float>, "a hexadecimal float32 such as 0x1.8p-5");
  }
  return grid;
}

/// A decimal integer in 0..2^63 - 1.
inline std::optional<int64_t> parse_bound(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0) return std::nullopt;
  return value;
}
/// The bound of an accumulator, whose `bits` must be those that it needs.
inline int64_t read_accumulator(Fields accumulator) {
  const auto bound = accumulator.choice("bound", parse_bound, "a decimal integer in 0..9223372036854775807");
  const int64_t bits = accumulator.integer("bits", 32, 64);
  if (bits != (bound <= INT32_MAX ? 32 : 64))
    refuse_file(accumulator.where() + ": field 'bits' is " + std::to_string(bits) + ", must be " +
                (bound <= INT32_MAX ? "32" : "64") + " for the bound " + std::to_string(bound));
  accumulator.finish();
  return bound;
}

/// Before all other fields: another version may have other ones.
inline void check_format_version(Fields& root, const std::string& path, int64_t supported) {
  if (const int64_t version = root.integer("format_version", 0, INT64_MAX); version != supported)
    throw Refusal{{StatusCode::kUnsupported, path + ": format version " + std::to_string(version) +
                                                 " is not supported, this isobit reads format version " +
                                                 std::to_string(supported)}};
}

/// The text under "isobit"; `kind` for the message of a file that has none.
inline Json parse_metadata(const std::string& path, const ArrayFile& file, const char* kind) {
  const auto text = file.metadata.find(kMetadataKey);
  if (text == file.metadata.end())
    refuse_file(path + ": no 'isobit' in the safetensors metadata: not a saved isobit " + kind);
  Json json = Json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse_file(path + ": metadata 'isobit' is not JSON");
  return json;
}

/// Removes a tensor from the file: what is left at the end is unknown. Its size is checked against the JSON text here,
/// so nothing after this allocates more than a small multiple of the file.
inline Array take_tensor(const std::string& path, std::map<std::string, Array>& arrays, const std::string& name,
                         Dtype dtype, const std::vector<int64_t>& shape) {
  auto node = arrays.extract(name);
  if (node.empty()) refuse_file(path + ": tensor " + in_quotes(name) + " is missing");
  Array& array = node.mapped();
  if (array.dtype != dtype)
    refuse_file(path + ": tensor " + in_quotes(name) + " is " + std::string(to_string(array.dtype)) + ", must be " +
                std::string(to_string(dtype)));
  if (array.shape != shape)
    refuse_file(path + ": tensor " + in_quotes(name) + " has the shape " + shape_text(array.shape) + ", must be " +
                shape_text(shape));
  return std::move(array);
}

}  // namespace isobit

#endif  // ISOBIT_IO_METADATA_H_
