// SPDX-License-Identifier: Apache-2.0
// A GGUF file as text and JSON, whatever model it holds.
#include "report/gguf.h"

#include <algorithm>
#include <map>
#include <string>
#include <type_traits>
#include <variant>

#include "io/container.h"
#include "isobit/report.h"
#include "isobit/text.h"

namespace isobit {
namespace {

constexpr size_t kShownElements = 6, kShownCharacters = 60;  // of an array, and in text of a string

OrderedJson json_of(const GgufValue& value) {
  return std::visit(
      [](const auto& item) -> OrderedJson {
        if constexpr (std::is_same_v<std::decay_t<decltype(item)>, GgufValue::List>) {
          OrderedJson items = OrderedJson::array();
          for (size_t i = 0; i < std::min(item.size(), kShownElements); ++i) items.push_back(json_of(item[i]));
          return items;
        } else {
          return item;
        }
      },
      value.value);
}

std::string text_of(const GgufValue& value) {
  if (const auto* text = std::get_if<std::string>(&value.value)) {
    return "\"" + escaped(text->substr(0, kShownCharacters)) + (text->size() > kShownCharacters ? "...\"" : "\"");
  }
  if (const auto* real = std::get_if<double>(&value.value)) return format("%.9g", *real);
  const auto* list = std::get_if<GgufValue::List>(&value.value);
  if (list == nullptr) return json_line(json_of(value));
  std::string text;
  for (size_t i = 0; i < std::min(list->size(), kShownElements); ++i) text += (i > 0 ? ", " : "") + text_of((*list)[i]);
  return "[" + text + (list->size() > kShownElements ? ", ...]" : "]");
}

/// "u32"; "string[49152]".
std::string type_text(const GgufValue& value) {
  const auto* list = std::get_if<GgufValue::List>(&value.value);
  if (list == nullptr) return std::string(to_string(value.type));
  return std::string(to_string(value.element_type)) + "[" + std::to_string(list->size()) + "]";
}

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
  [[nodiscard]] OrderedJson json() const { return {{"tensors", tensors}, {"elements", elements}, {"bytes", bytes}}; }
};

void describe_tensors(const GgufFile& file, OrderedJson& json, std::string& text) {
  OrderedJson tensors = OrderedJson::array(), types = OrderedJson::object();
  Total total;
  std::map<std::string_view, Total> totals;
  text += "\ntensors\n";
  for (const GgufTensor& tensor : file.tensors()) {
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"type", tensor.type},
                       {"bytes", tensor.size_bytes},
                       {"offset", tensor.offset},
                       {"readable", tensor.readable}});
    text += format("  %-40s %-20s %-8s %12llu bytes\n", escaped(tensor.name).c_str(), list_text(tensor.shape).c_str(),
                   tensor.type.c_str(), static_cast<unsigned long long>(tensor.size_bytes));
    total.add(tensor);
    totals[tensor.type].add(tensor);
  }
  text += "\ntotals\n";
  const auto row = [&text](const std::string& name, const Total& sum, const char* note) {
    text +=
        format("  %-8s %12s %14lld elements %14llu bytes%s\n", name.c_str(), count_text(sum.tensors, "tensor").c_str(),
               static_cast<long long>(sum.elements), static_cast<unsigned long long>(sum.bytes), note);
  };
  for (const auto& [type, sum] : totals) {
    OrderedJson entry = sum.json();
    entry["readable"] = sum.readable;
    types[std::string(type)] = std::move(entry);
    row(std::string(type), sum, sum.readable ? "" : "  (listed, not read)");
  }
  row("all", total, "");
  json["tensors"] = std::move(tensors);
  json["types"] = std::move(types);
  json["total"] = total.json();
}

}  // namespace

OrderedJson describe_gguf_metadata(const GgufMetadata& metadata, std::string& text) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [key, value] : metadata) {
    OrderedJson entry = {{"type", to_string(value.type)}};
    if (const auto* list = std::get_if<GgufValue::List>(&value.value)) {
      entry["element_type"] = to_string(value.element_type);
      entry["length"] = list->size();
    }
    entry["value"] = json_of(value);
    json[key] = std::move(entry);
    text += format("  %-40s %-14s %s\n", escaped(key).c_str(), type_text(value).c_str(), text_of(value).c_str());
  }
  return json;
}

Description describe_gguf(const GgufFile& file) {
  const GgufValue* entry = file.find_metadata("general.architecture");
  const auto* architecture = entry == nullptr ? nullptr : std::get_if<std::string>(&entry->value);
  const std::string split = file.split_text();
  OrderedJson json = {{"file", file.name()},
                      {"kind", "gguf"},
                      {"bytes", file.size_bytes()},
                      {"version", file.version()},
                      {"alignment", file.alignment()},
                      {"architecture", architecture == nullptr ? OrderedJson() : OrderedJson(*architecture)},
                      {"split", split.empty() ? OrderedJson() : OrderedJson(split)}};
  std::string text = file.name() + ": GGUF version " + std::to_string(file.version()) + ", architecture " +
                     (architecture == nullptr ? "not given" : escaped(*architecture)) + ", " +
                     std::to_string(file.size_bytes()) + " bytes, tensors aligned to " +
                     std::to_string(file.alignment()) + "\n";
  if (!split.empty()) text += split + "\n";
  text += "\nmetadata\n";
  json["metadata"] = describe_gguf_metadata(file.metadata(), text);
  describe_tensors(file, json, text);
  return {.text = std::move(text), .json = json_line(json)};
}

}  // namespace isobit
