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
std::string json_text(const Json& json);

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

  const Json& get(const std::string& name);

  int64_t integer(const std::string& name, int64_t low, int64_t high);
  int32_t integer32(const std::string& name, int32_t low = INT32_MIN, int32_t high = INT32_MAX) {
    return static_cast<int32_t>(integer(name, low, high));
  }

  bool boolean(const std::string& name);

  const std::string& string(const std::string& name);

  const Json& list(const std::string& name);

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
  [[nodiscard]] std::vector<std::string> keys() const;

  void finish() const;

  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  [[noreturn]] void refuse_type(const std::string& name, const Json& value, const std::string& expected) const;

  const Json& json_;
  std::string where_;
  std::set<std::string> used_;
};

/// Width, sign and kind of a grid; the whole of it with scale and zero point.
Json grid_form_json(const Grid& grid, ScaleKind kind);
Json json_of_grid(const Grid& grid);

/// Whoever takes the grid checks shift and scale. finish() is the caller's.
Grid read_grid_form(Fields& fields, int32_t least_bits, int32_t most_bits);
Grid read_grid(Fields& fields, int32_t least_bits, int32_t most_bits);

/// A decimal integer in 0..2^63 - 1.
std::optional<int64_t> parse_bound(std::string_view text);
/// The bound of an accumulator, whose `bits` must be those that it needs.
int64_t read_accumulator(Fields accumulator);

/// The version, 1 to `newest`. Before all other fields: another version may have other ones.
int64_t check_format_version(Fields& root, const std::string& path, int64_t newest);

/// The text under "isobit"; `kind` for the message of a file that has none.
Json parse_metadata(const std::string& path, const ArrayFile& file, const char* kind);

/// Removes a tensor from the file: what is left at the end is unknown. Its size is checked against the JSON text here,
/// so nothing after this allocates more than a small multiple of the file.
Array take_tensor(const std::string& path, std::map<std::string, Array>& arrays, const std::string& name, Dtype dtype,
                  const std::vector<int64_t>& shape);

}  // namespace isobit

#endif  // ISOBIT_IO_METADATA_H_
