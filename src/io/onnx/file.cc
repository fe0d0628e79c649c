// SPDX-License-Identifier: Apache-2.0
// ONNX: the GRU nodes of the main graph as arrays NODE.W, NODE.R and NODE.B, and as metadata NODE.KEY what else decides
// what a node computes (docs/formats.md). A node that isobit does not compute spoils its own arrays, no other ones.
#include <algorithm>
#include <array>
#include <protozero/exception.hpp>
#include <protozero/types.hpp>
#include <protozero/varint.hpp>
#include <set>
#include <utility>

#include "io/onnx/gru_nodes.h"

namespace isobit {
namespace {

/// `body` reads protobuf: what protozero throws becomes an error that names the file.
template <typename Body>
auto without_protozero(const std::string& name, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const protozero::exception& error) {
    return Status(StatusCode::kInvalidFile,
                  name + ": is an ONNX model that is damaged or cut short (" + error.what() + ")");
  }
}

class OnnxContainer : public Container {
 public:
  explicit OnnxContainer(std::vector<onnx::GruNode> nodes) {
    for (onnx::GruNode& gru : nodes) {
      for (auto& [key, value] : gru.properties) metadata.emplace(gru.name + "." + key, std::move(value));
      for (size_t i = 0; i < gru.parts.size(); ++i) add_part(gru, i);
    }
  }
  [[nodiscard]] Result<Array> read(size_t index) const override { return arrays_[places[index]]; }

 private:
  void add_part(onnx::GruNode& gru, size_t i) {
    std::optional<Array>& part = gru.parts[i];
    if (!part && gru.refusal.ok()) return;  // there is no B
    ArrayEntry entry{gru.name + "." + std::string(onnx::kGruParts[i]), "not read", std::nullopt, {}, 0};
    if (part) {
      entry.type = to_string(part->dtype);
      entry.shape = part->shape;
      entry.size_bytes = part->bytes.size();
      if (gru.refusal.ok()) entry.dtype = part->dtype;
    }
    add(std::move(entry), gru.refusal, arrays_.size());
    arrays_.push_back(part ? *std::move(part) : Array());
  }

  std::vector<Array> arrays_;
};

/// Its operators, for a model without a GRU.
std::string operators_text(const onnx::Model& model) {
  constexpr size_t kLimit = 12;
  std::set<std::string_view> ops;
  for (const onnx::Node& node : model.nodes) ops.insert(node.op);
  std::string text;
  size_t count = 0;
  for (const std::string_view op : ops) {
    if (count++ == kLimit) return text + ", ...";
    text += (text.empty() ? "" : ", ") + in_quotes(op);
  }
  return text.empty() ? "none" : text;
}

Result<SharedContainer> open(const FileContent& content, const std::string& model_path) {
  const std::string& name = content.name();
  const std::string_view bytes(reinterpret_cast<const char*>(content.data()), content.size_bytes());
  const onnx::Model model = onnx::parse_model(bytes);
  if (!model.has_graph) return Status(StatusCode::kInvalidFile, name + ": is an ONNX model without a graph");
  ISOBIT_ASSIGN_OR_RETURN(auto nodes, onnx::read_gru_nodes(model, name, model_path));
  if (nodes.empty())
    return Status(StatusCode::kUnsupported, name +
                                                ": is an ONNX model without a GRU node, and isobit reads no other "
                                                "ones; functions and the bodies of If, Loop and Scan are not "
                                                "searched; its operators: " +
                                                operators_text(model));
  const auto container = std::make_shared<OnnxContainer>(std::move(nodes));
  ISOBIT_RETURN_IF_ERROR(container->finish(name));
  return SharedContainer(container);
}

/// The fields of ModelProto.
bool is_field_of_model(uint64_t number, protozero::pbf_wire_type type) {
  constexpr uint64_t kNumbers[] = {1, 5};                               // ir_version, model_version
  constexpr uint64_t kMessages[] = {2, 3, 4, 6, 7, 8, 14, 20, 25, 26};  // texts and messages; 7 is the graph
  const auto has = [number](const auto& list) {
    return std::find(std::begin(list), std::end(list), number) != std::end(list);
  };
  return type == protozero::pbf_wire_type::varint
             ? has(kNumbers)
             : type == protozero::pbf_wire_type::length_delimited && has(kMessages);
}

}  // namespace

Result<bool> has_onnx_graph(const FileContent& content) {
  constexpr int kMaxFields = 64;  // before the graph; writers go by the number of a field
  std::array<char, 2 * protozero::max_varint_length> head;
  uint64_t at = 0;
  for (int i = 0; i < kMaxFields && at < content.size_bytes(); ++i) {
    const uint64_t count = std::min<uint64_t>(head.size(), content.size_bytes() - at);
    ISOBIT_RETURN_IF_ERROR(content.read(at, head.data(), count));
    const char* begin = head.data();
    const char* const end = begin + count;
    try {
      const uint64_t key = protozero::decode_varint(&begin, end);
      const uint64_t value = protozero::decode_varint(&begin, end);  // a number, or the length of what follows
      const auto type = static_cast<protozero::pbf_wire_type>(key & 7);
      if (!is_field_of_model(key >> 3, type)) return false;
      if (key >> 3 == 7) return true;
      at += static_cast<uint64_t>(begin - head.data());
      if (type == protozero::pbf_wire_type::varint) continue;
      if (value > content.size_bytes() - at) return false;
      at += value;
    } catch (const protozero::exception&) {
      return false;
    }
  }
  return false;
}

Result<SharedContainer> open_onnx(const SharedContent& content) {
  return without_protozero(content->name(), [&]() -> Result<SharedContainer> {
    const std::string model_path = content->is_file() ? content->name() : "";
    ISOBIT_ASSIGN_OR_RETURN(const SharedContent whole, FileContent::load(content));
    return open(*whole, model_path);
  });
}

Result<std::vector<std::string>> list_external_files(const SharedContent& content) {
  return without_protozero(content->name(), [&]() -> Result<std::vector<std::string>> {
    ISOBIT_ASSIGN_OR_RETURN(const SharedContent whole, FileContent::load(content));
    const std::string_view bytes(reinterpret_cast<const char*>(whole->data()), whole->size_bytes());
    const onnx::Model model = onnx::parse_model(bytes);
    std::set<std::string> paths;
    for (const auto& [name, message] : model.initialisers) {
      const onnx::Tensor tensor = onnx::parse_tensor(message);
      if (!tensor.is_external) continue;
      if (Result<std::string> path = onnx::external_path(tensor, content->name(), ""); path.ok()) paths.insert(*path);
    }
    return std::vector<std::string>(paths.begin(), paths.end());
  });
}

}  // namespace isobit
