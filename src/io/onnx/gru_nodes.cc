// SPDX-License-Identifier: Apache-2.0
#include "io/onnx/gru_nodes.h"

#include <algorithm>
#include <set>
#include <utility>

namespace isobit::onnx {
namespace {

constexpr int64_t kMaxHidden = int64_t{1} << 24;  // as load_gru() has it

/// Reads one node; what cannot be computed or read becomes its refusal.
class NodeReader {
 public:
  NodeReader(const Graph& graph, const std::string& file, GruNode& gru) : graph_(graph), file_(file), gru_(gru) {}

  void read() {
    gru_.properties["linear_before_reset"] = "0";  // ONNX's default
    for (const std::string_view message : gru_.node->attributes) keep(read_attribute(parse_attribute(message)));
    for (size_t i = 0; i < kGruParts.size(); ++i) keep(read_part(i));
  }

 private:
  void keep(const Status& status) {
    if (gru_.refusal.ok()) gru_.refusal = status;
  }
  [[nodiscard]] std::string what() const { return file_ + ": the GRU node " + in_quotes(gru_.name) + ": "; }
  [[nodiscard]] Status invalid(const std::string& text) const { return {StatusCode::kInvalidFile, what() + text}; }
  [[nodiscard]] Status unsupported(const std::string& text) const { return {StatusCode::kUnsupported, what() + text}; }

  Status read_attribute(const Attribute& attribute) {
    const std::string name(attribute.name);
    if (name == "direction") return read_direction(attribute.s.value_or(""));
    if (name == "activations") {
      std::string text;
      for (const std::string_view word : attribute.strings) text.append(text.empty() ? "" : ", ").append(word);
      gru_.properties[name] = text;
      return {};
    }
    if (name == "clip") return unsupported("clip is not supported: isobit limits nothing before an activation");
    // For other activations, and of the first version of the operator.
    if (name == "activation_alpha" || name == "activation_beta" || name == "output_sequence") return {};
    if (name != "hidden_size" && name != "linear_before_reset" && name != "layout")
      return unsupported("the attribute " + in_quotes(name) + " is not known");
    if (!attribute.i) return invalid(name + " is no integer");
    const int64_t value = *attribute.i;
    const std::string text = name + " = " + std::to_string(value);
    if (name == "hidden_size") {
      hidden_size_ = value;
      return {};
    }
    if (value != 0 && value != 1) return invalid(text + ", must be 0 or 1");
    if (name == "layout") return value == 0 ? Status() : unsupported(text + " is not supported; export it with 0");
    gru_.properties[name] = std::to_string(value);
    return {};
  }

  Status read_direction(std::string_view direction) {
    if (direction == "reverse")
      return unsupported("direction = reverse is not supported; forward and bidirectional are");
    if (direction != "forward" && direction != "bidirectional")
      return invalid("direction = " + in_quotes(direction) + ", must be forward, reverse or bidirectional");
    gru_.size.directions = direction == "forward" ? 1 : 2;
    return {};
  }

  Status read_part(size_t i) {
    const std::string name(kGruParts[i]);
    const std::string_view value = gru_.node->input(i + 1);
    if (value.empty()) return name == "B" ? Status() : invalid(name + " is missing");
    ISOBIT_ASSIGN_OR_RETURN(gru_.parts[i], graph_.constant(value, gru_.node->index, what() + name));
    if (name == "B") return {};
    const std::vector<int64_t>& shape = gru_.parts[i]->shape;
    const std::string text = name + " has the shape " + shape_text(shape);
    if (shape.size() != 3 || shape[0] != gru_.size.directions)
      return invalid(text + ", must have 3 dimensions, the first of them " + std::to_string(gru_.size.directions) +
                     ", the number of directions");
    if (name == "W") return {};
    if (hidden_size_ && shape[2] != *hidden_size_)
      return invalid(text + ", but hidden_size = " + std::to_string(*hidden_size_));
    gru_.size.hidden = shape[2];
    return {};
  }

  const Graph& graph_;
  const std::string& file_;
  GruNode& gru_;
  std::optional<int64_t> hidden_size_;
};

/// A node without a name, or with that of another one, is called by its first output, as values have one name each.
void name_nodes(std::vector<GruNode>& nodes) {
  std::map<std::string_view, int> counts;
  for (const GruNode& gru : nodes) ++counts[gru.node->name];
  std::set<std::string> used;
  for (GruNode& gru : nodes) {
    std::string_view name = gru.node->name;
    if (name.empty() || counts[name] > 1) {
      const auto& outputs = gru.node->outputs;
      const auto first =
          std::find_if(outputs.begin(), outputs.end(), [](std::string_view text) { return !text.empty(); });
      if (first != outputs.end()) name = *first;
    }
    gru.name = name;
    if (name.empty() || used.contains(gru.name)) gru.name += "#" + std::to_string(gru.node->index);
    used.insert(gru.name);
  }
}

/// Where X, the lengths and the first state come from.
void read_inputs(const Graph& graph, const std::map<size_t, GruSize>& sizes, const std::map<size_t, std::string>& names,
                 GruNode& gru) {
  const Node& node = *gru.node;
  gru.properties["X"] = graph.describe(node.input(0), node.index);
  if (const Node* const before = graph.gru_behind(node.input(0), node.index, sizes); before != nullptr)
    gru.properties["fed_by"] = names.at(before->index);
  if (const std::string_view lengths = node.input(4); !lengths.empty())
    gru.properties["sequence_lens"] = graph.describe(lengths, node.index);
  if (const std::string_view state = node.input(5); !state.empty())
    if (const auto reason = graph.why_not_zero(state, node.index)) gru.properties["initial_h"] = *reason;
}

}  // namespace

Result<std::vector<GruNode>> read_gru_nodes(const Model& model, const std::string& name,
                                            const std::string& model_path) {
  const Graph graph(model, name, model_path);
  ISOBIT_RETURN_IF_ERROR(graph.check());
  std::vector<GruNode> nodes;
  for (const Node& node : model.nodes)
    if (node.is("GRU")) nodes.emplace_back().node = &node;
  name_nodes(nodes);
  std::map<size_t, GruSize> sizes;
  std::map<size_t, std::string> names;
  for (GruNode& gru : nodes) {
    NodeReader(graph, name, gru).read();
    names[gru.node->index] = gru.name;
    if (gru.refusal.ok() && gru.size.hidden >= 1 && gru.size.hidden <= kMaxHidden) sizes[gru.node->index] = gru.size;
  }
  for (GruNode& gru : nodes) read_inputs(graph, sizes, names, gru);
  return nodes;
}

}  // namespace isobit::onnx
