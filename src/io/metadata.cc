// SPDX-License-Identifier: Apache-2.0
#include "io/metadata.h"

namespace isobit {

std::string json_text(const Json& json) {
  return json.is_structured() ? std::string("an ") + json.type_name() : in_quotes(json.dump());
}

const Json& Fields::get(const std::string& name) {
  const auto found = json_.find(name);
  if (found == json_.end()) refuse_file(where_ + ": field " + in_quotes(name) + " is missing");
  used_.insert(name);
  return *found;
}

int64_t Fields::integer(const std::string& name, int64_t low, int64_t high) {
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

bool Fields::boolean(const std::string& name) {
  const Json& value = get(name);
  if (!value.is_boolean()) refuse_type(name, value, "true or false");
  return value.get<bool>();
}

const std::string& Fields::string(const std::string& name) {
  const Json& value = get(name);
  if (!value.is_string()) refuse_type(name, value, "a string");
  return value.get_ref<const std::string&>();
}

const Json& Fields::list(const std::string& name) {
  const Json& value = get(name);
  if (!value.is_array() || value.empty()) refuse_type(name, value, "a list that is not empty");
  return value;
}

std::vector<std::string> Fields::keys() const {
  std::vector<std::string> names;
  for (const auto& item : json_.items()) names.push_back(item.key());
  return names;
}

void Fields::finish() const {
  for (const auto& item : json_.items())
    if (!used_.contains(item.key())) refuse_file(where_ + ": unknown field " + in_quotes(item.key()));
}

void Fields::refuse_type(const std::string& name, const Json& value, const std::string& expected) const {
  refuse_file(where_ + ": field " + in_quotes(name) + " is " + (value.empty() ? "an empty " : "a ") +
              value.type_name() + ", must be " + expected);
}

Json grid_form_json(const Grid& grid, ScaleKind kind) {
  return {{"bits", grid.bits}, {"signed", grid.is_signed}, {"kind", std::string(to_string(kind))}};
}

Json json_of_grid(const Grid& grid) {
  Json json = grid_form_json(grid, grid.kind);
  json["zero_point"] = grid.zero_point;
  if (grid.kind == ScaleKind::kPow2) {
    json["shift"] = grid.shift;
  } else {
    json["scale"] = hexadecimal(grid.real_scale);
  }
  return json;
}

Grid read_grid_form(Fields& fields, int32_t least_bits, int32_t most_bits) {
  Grid grid;
  grid.bits = fields.integer32("bits", least_bits, most_bits);
  grid.is_signed = fields.boolean("signed");
  grid.kind = fields.choice("kind", scale_kind_from_string, "pow2 or real");
  return grid;
}

Grid read_grid(Fields& fields, int32_t least_bits, int32_t most_bits) {
  Grid grid = read_grid_form(fields, least_bits, most_bits);
  grid.zero_point = fields.integer("zero_point", grid.min(), grid.max());
  if (grid.kind == ScaleKind::kPow2) {
    grid.shift = fields.integer32("shift");
  } else {
    grid.real_scale = fields.choice("scale", parse_hexadecimal<float>, "a hexadecimal float32 such as 0x1.8p-5");
  }
  return grid;
}

std::optional<int64_t> parse_bound(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0) return std::nullopt;
  return value;
}

int64_t read_accumulator(Fields accumulator) {
  const auto bound = accumulator.choice("bound", parse_bound, "a decimal integer in 0..9223372036854775807");
  const int64_t bits = accumulator.integer("bits", 32, 64);
  if (bits != (bound <= INT32_MAX ? 32 : 64))
    refuse_file(accumulator.where() + ": field 'bits' is " + std::to_string(bits) + ", must be " +
                (bound <= INT32_MAX ? "32" : "64") + " for the bound " + std::to_string(bound));
  accumulator.finish();
  return bound;
}

int64_t check_format_version(Fields& root, const std::string& path, int64_t newest) {
  const int64_t version = root.integer("format_version", 0, INT64_MAX);
  if (version < 1 || version > newest)
    throw Refusal{{StatusCode::kUnsupported, path + ": format version " + std::to_string(version) +
                                                 " is not supported, this isobit reads format version " +
                                                 (newest > 1 ? "1 to " : "") + std::to_string(newest)}};
  return version;
}

Json parse_metadata(const std::string& path, const ArrayFile& file, const char* kind) {
  const auto text = file.metadata.find(kMetadataKey);
  if (text == file.metadata.end())
    refuse_file(path + ": no 'isobit' in the safetensors metadata: not a saved isobit " + kind);
  Json json = Json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse_file(path + ": metadata 'isobit' is not JSON");
  return json;
}

Array take_tensor(const std::string& path, std::map<std::string, Array>& arrays, const std::string& name, Dtype dtype,
                  const std::vector<int64_t>& shape) {
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
