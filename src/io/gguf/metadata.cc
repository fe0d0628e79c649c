// SPDX-License-Identifier: Apache-2.0
// The metadata of a GGUF file as JSON text (docs/formats.md): a list, in the order of the file.
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "core/float_mode.h"
#include "io/metadata.h"
#include "isobit/gguf.h"

namespace isobit {
namespace {

constexpr int kMaxNesting = 8;  // of arrays in arrays, as in the file
constexpr GgufValueType kTypes[] = {
    GgufValueType::kU8,  GgufValueType::kS8,  GgufValueType::kU16,  GgufValueType::kS16,    GgufValueType::kU32,
    GgufValueType::kS32, GgufValueType::kF32, GgufValueType::kBool, GgufValueType::kString, GgufValueType::kArray,
    GgufValueType::kU64, GgufValueType::kS64, GgufValueType::kF64};
constexpr const char* kTypeNames = "u8, s8, u16, s16, u32, s32, f32, bool, string, array, u64, s64 or f64";

std::optional<GgufValueType> parse_type(std::string_view text) {
  for (const GgufValueType type : kTypes)
    if (text == to_string(type)) return type;
  return std::nullopt;
}

Json json_of(const GgufValue& value);

/// The fields of an array.
void put_list(const GgufValue& value, Json& json) {
  json["element_type"] = std::string(to_string(value.element_type));
  Json& items = json["value"] = Json::array();
  for (const GgufValue& item : std::get<GgufValue::List>(value.value)) items.push_back(json_of(item));
}

/// Of arrays in arrays: an object.
Json json_of(const GgufValue& value) {
  if (const auto* real = std::get_if<double>(&value.value))
    return std::isnan(*real) ? "nan" : std::isinf(*real) ? (*real < 0 ? "-inf" : "inf") : hexadecimal(*real);
  if (const auto* integer = std::get_if<int64_t>(&value.value)) return *integer;
  if (const auto* integer = std::get_if<uint64_t>(&value.value)) return *integer;
  if (const auto* boolean = std::get_if<bool>(&value.value)) return *boolean;
  if (const auto* text = std::get_if<std::string>(&value.value)) return *text;
  Json json = Json::object();
  put_list(value, json);
  return json;
}

/// One line; throws Json::exception for text that is not UTF-8.
std::string entry_text(const std::string& key, const GgufValue& value) {
  Json json = {{"key", key}, {"type", std::string(to_string(value.type))}};
  if (value.type == GgufValueType::kArray) {
    put_list(value, json);
  } else {
    json["value"] = json_of(value);
  }
  return json.dump();
}

[[noreturn]] void refuse_value(const std::string& where, const Json& json, const std::string& limit) {
  refuse_file(where + " is " + json_text(json) + ", must be " + limit);
}

template <typename T, typename Widest>
void read_integer(const Json& json, const std::string& where, GgufValue& out) {
  constexpr T kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  const std::string limit = "an integer in " + std::to_string(kLow) + ".." + std::to_string(kHigh);
  if (!json.is_number_integer()) refuse_value(where, json, limit);
  // A JSON integer without a sign is unsigned here; one with a sign is negative, or -0.
  const bool fits = json.is_number_unsigned() ? json.get<uint64_t>() <= static_cast<uint64_t>(kHigh)
                                              : json.get<int64_t>() <= 0 && std::is_signed_v<T> &&
                                                    json.get<int64_t>() >= static_cast<int64_t>(kLow);
  if (!fits) refuse_value(where, json, limit);
  out.value = static_cast<Widest>(json.get<Widest>());
}

void read_real(const Json& json, const std::string& where, bool is_float, GgufValue& out) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  std::optional<double> value = parse_hexadecimal<double>(text);
  if (text == "nan") value = std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") value = kInfinity;
  if (text == "-inf") value = -kInfinity;
  if (!value || (is_float && std::isfinite(*value) && static_cast<double>(static_cast<float>(*value)) != *value))
    refuse_value(where, json, is_float ? "a float32 as hexadecimal text" : "a float64 as hexadecimal text");
  out.value = *value;
}

void read_value(const Json& json, const std::string& where, int nesting, GgufValue& out);

void read_list(Fields& fields, int nesting, GgufValue& out) {
  if (nesting == kMaxNesting)
    refuse_file(fields.where() + ": arrays are nested more than " + std::to_string(kMaxNesting) + " deep");
  out.element_type = fields.choice("element_type", parse_type, kTypeNames);
  const Json& items = fields.get("value");
  if (!items.is_array()) refuse_value(fields.where() + ": field 'value'", items, "a list");
  auto& list = out.value.emplace<GgufValue::List>(items.size());
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].type = out.element_type;
    read_value(items[i], fields.where() + ": element " + std::to_string(i), nesting + 1, list[i]);
  }
}

void read_value(const Json& json, const std::string& where, int nesting, GgufValue& out) {
  switch (out.type) {
    case GgufValueType::kU8: return read_integer<uint8_t, uint64_t>(json, where, out);
    case GgufValueType::kS8: return read_integer<int8_t, int64_t>(json, where, out);
    case GgufValueType::kU16: return read_integer<uint16_t, uint64_t>(json, where, out);
    case GgufValueType::kS16: return read_integer<int16_t, int64_t>(json, where, out);
    case GgufValueType::kU32: return read_integer<uint32_t, uint64_t>(json, where, out);
    case GgufValueType::kS32: return read_integer<int32_t, int64_t>(json, where, out);
    case GgufValueType::kU64: return read_integer<uint64_t, uint64_t>(json, where, out);
    case GgufValueType::kS64: return read_integer<int64_t, int64_t>(json, where, out);
    case GgufValueType::kF32: return read_real(json, where, true, out);
    case GgufValueType::kF64: return read_real(json, where, false, out);
    case GgufValueType::kBool:
      if (!json.is_boolean()) refuse_value(where, json, "true or false");
      out.value = json.get<bool>();
      return;
    case GgufValueType::kString:
      if (!json.is_string()) refuse_value(where, json, "a string");
      out.value = json.get<std::string>();
      return;
    case GgufValueType::kArray: {
      Fields fields(json, where);
      read_list(fields, nesting, out);
      fields.finish();
      return;
    }
  }
}

GgufMetadata read(const Json& json, const std::string& name) {
  if (!json.is_array()) refuse_file(name + " is " + json_text(json) + ", must be a list");
  GgufMetadata metadata(json.size());
  std::set<std::string_view> keys;
  for (size_t i = 0; i < metadata.size(); ++i) {
    auto& [key, value] = metadata[i];
    Fields fields(json[i], name + ": entry " + std::to_string(i));
    key = fields.string("key");
    if (!keys.insert(key).second) refuse_file(name + ": " + in_quotes(key) + " is there twice");
    value.type = fields.choice("type", parse_type, kTypeNames);
    if (value.type == GgufValueType::kArray) {
      read_list(fields, 0, value);
    } else {
      read_value(fields.get("value"), name + ": " + in_quotes(key), 0, value);
    }
    fields.finish();
  }
  return metadata;
}

}  // namespace

Result<GgufMetadataText> gguf_metadata_to_text(const GgufMetadata& metadata, size_t max_bytes) {
  return without_exceptions("GGUF metadata", [&]() -> Result<GgufMetadataText> {
    GgufMetadataText out;
    size_t bytes = 0;
    for (const auto& [key, value] : metadata) {
      std::string text;
      try {
        text = entry_text(key, value);
      } catch (const Json::exception&) {
        out.left_out.emplace_back(key, "its text is not UTF-8");
        continue;
      }
      const size_t entry_bytes = Json(text).dump().size();  // in a header, which is JSON itself
      if (entry_bytes > max_bytes - bytes) {
        out.left_out.emplace_back(key, "it has " + std::to_string(entry_bytes) + " bytes, and of " +
                                           std::to_string(max_bytes) + " there are " +
                                           std::to_string(max_bytes - bytes) + " left");
        continue;
      }
      bytes += entry_bytes;
      out.text += (out.text.empty() ? "[" : ",") + text;
    }
    out.text += out.text.empty() ? "[]" : "]";
    return out;
  });
}

Result<GgufMetadata> gguf_metadata_from_text(std::string_view text, const std::string& name) {
  const DefaultFloatMode mode;
  return without_refusal(name, [&]() -> Result<GgufMetadata> {
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) refuse_file(name + " is not JSON");
    return read(json, name);
  });
}

}  // namespace isobit
