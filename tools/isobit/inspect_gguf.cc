// SPDX-License-Identifier: Apache-2.0
// isobit inspect of a GGUF file, whatever model it holds.
#include <algorithm>
#include <map>
#include <string>
#include <type_traits>
#include <variant>

#include "isobit/arrays.h"
#include "isobit/gguf.h"
#include "low_bit.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr size_t kShownElements = 6, kShownCharacters = 60;  // of an array, and in text of a string

Value value_json(const GgufValue& value) {
  const auto* list = std::get_if<GgufValue::List>(&value.value);
  if (list == nullptr) {
    return std::visit(
        [](const auto& item) {
          if constexpr (std::is_same_v<std::decay_t<decltype(item)>, GgufValue::List>) {
            return Value();
          } else {
            return Value(item);
          }
        },
        value.value);
  }
  Value items = Value::array();
  for (size_t i = 0; i < std::min(list->size(), kShownElements); ++i) items.add(value_json((*list)[i]));
  return items;
}

std::string value_text(const GgufValue& value) {
  if (const auto* text = std::get_if<std::string>(&value.value)) {
    return "\"" + escaped(text->substr(0, kShownCharacters)) + (text->size() > kShownCharacters ? "...\"" : "\"");
  }
  if (const auto* real = std::get_if<double>(&value.value)) return format("%.9g", *real);
  const auto* list = std::get_if<GgufValue::List>(&value.value);
  if (list == nullptr) return value_json(value).to_json();
  std::string text;
  for (size_t i = 0; i < std::min(list->size(), kShownElements); ++i) {
    text += (i > 0 ? ", " : "") + value_text((*list)[i]);
  }
  return "[" + text + (list->size() > kShownElements ? ", ...]" : "]");
}

/// "u32"; "string[49152]".
std::string type_text(const GgufValue& value) {
  const auto* list = std::get_if<GgufValue::List>(&value.value);
  if (list == nullptr) return std::string(to_string(value.type));
  return std::string(to_string(value.element_type)) + "[" + std::to_string(list->size()) + "]";
}

}  // namespace

Value describe_gguf_metadata(const GgufMetadata& metadata, std::string& text) {
  Value json = Value::object();
  for (const auto& [key, value] : metadata) {
    Value entry = Value::object();
    entry.set("type", to_string(value.type));
    if (const auto* list = std::get_if<GgufValue::List>(&value.value)) {
      entry.set("element_type", to_string(value.element_type)).set("length", list->size());
    }
    entry.set("value", value_json(value));
    json.set(key, std::move(entry));
    text += format("  %-40s %-14s %s\n", escaped(key).c_str(), type_text(value).c_str(), value_text(value).c_str());
  }
  return json;
}

namespace {

struct Total {
  int64_t tensors = 0;
  int64_t elements = 0;
  uint64_t bytes = 0;
  bool readable = true;

  void add(const GgufTensor& tensor) {
    int64_t size = 1;
    for (const int64_t dimension : tensor.shape) size *= dimension;
    ++tensors;
    elements += size;
    bytes += tensor.size_bytes;
    readable = readable && tensor.readable;
  }
  [[nodiscard]] Value json() const {
    Value out = Value::object();
    out.set("tensors", tensors).set("elements", elements).set("bytes", bytes);
    return out;
  }
};

void describe_tensors(const GgufFile& file, Outcome& out) {
  Value tensors = Value::array(), types = Value::object();
  Total total;
  std::map<std::string_view, Total> totals;
  out.text += "\ntensors\n";
  for (const GgufTensor& tensor : file.tensors()) {
    Value entry = Value::object();
    entry.set("name", tensor.name).set("shape", shape_json(tensor.shape)).set("type", tensor.type);
    entry.set("bytes", tensor.size_bytes).set("offset", tensor.offset).set("readable", tensor.readable);
    tensors.add(std::move(entry));
    out.text +=
        format("  %-40s %-20s %-8s %12llu bytes\n", escaped(tensor.name).c_str(), shape_text(tensor.shape).c_str(),
               std::string(tensor.type).c_str(), static_cast<unsigned long long>(tensor.size_bytes));
    total.add(tensor);
    totals[tensor.type].add(tensor);
  }
  out.text += "\ntotals\n";
  const auto row = [&out](const std::string& name, const Total& sum) {
    out.text += format("  %-8s %12s %14lld elements %14llu bytes%s\n", name.c_str(),
                       count_text(sum.tensors, "tensor").c_str(), static_cast<long long>(sum.elements),
                       static_cast<unsigned long long>(sum.bytes), sum.readable ? "" : "  (listed, not read)");
  };
  for (const auto& [type, sum] : totals) {
    Value entry = sum.json();
    entry.set("readable", sum.readable);
    types.set(std::string(type), std::move(entry));
    row(std::string(type), sum);
  }
  total.readable = true;  // the rows above say which types are not
  row("all", total);
  out.json.set("tensors", std::move(tensors)).set("types", std::move(types)).set("total", total.json());
}

Result<Outcome> export_tensor(const GgufFile& file, const InspectOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(Array array, file.read(options.tensor));
  if (array.dtype != Dtype::kF32) array = Array::copy_of(array.to_float().data(), array.shape);
  ISOBIT_RETURN_IF_ERROR(save_npy(options.output, array));
  const GgufTensor& tensor = *file.find_tensor(options.tensor);
  Outcome out;
  out.json.set("file", options.file).set("tensor", tensor.name).set("type", tensor.type);
  out.json.set("shape", shape_json(tensor.shape)).set("output", options.output);
  out.text = options.output + ": " + escaped(tensor.name) + ", " + shape_text(tensor.shape) + ", " +
             std::string(tensor.type) + " as float32\n";
  return out;
}

}  // namespace

Result<Outcome> inspect_gguf(const InspectOptions& options, const GgufFile& file) {
  if (!options.tensor.empty() || !options.output.empty()) return export_tensor(file, options);
  Outcome out;
  const GgufValue* entry = file.find_metadata("general.architecture");
  const auto* architecture = entry == nullptr ? nullptr : std::get_if<std::string>(&entry->value);
  out.json.set("file", options.file).set("kind", "gguf").set("bytes", file.size_bytes());
  out.json.set("version", file.version()).set("alignment", file.alignment());
  out.json.set("architecture", architecture == nullptr ? Value() : Value(*architecture));
  out.text = options.file + ": GGUF version " + std::to_string(file.version()) + ", architecture " +
             (architecture == nullptr ? "not given" : escaped(*architecture)) + ", " +
             std::to_string(file.size_bytes()) + " bytes, tensors aligned to " + std::to_string(file.alignment()) +
             "\n";
  const std::string split = file.split_text();
  if (!split.empty()) out.text += split + "\n";
  out.json.set("split", split.empty() ? Value() : Value(split));
  out.text += "\nmetadata\n";
  out.json.set("metadata", describe_gguf_metadata(file.metadata(), out.text));
  describe_tensors(file, out);
  return out;
}

}  // namespace isobit::tool
