// SPDX-License-Identifier: Apache-2.0
#include "io/onnx/graph.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace isobit::onnx {

namespace {

/// Operators whose output has no values but those of these inputs.
bool only_moves_values(const Node& node) {
  constexpr std::string_view kOps[] = {"Cast",  "Concat", "Expand",  "Flatten", "Gather",    "Identity", "Reshape",
                                       "Slice", "Split",  "Squeeze", "Tile",    "Transpose", "Unsqueeze"};
  return std::any_of(std::begin(kOps), std::end(kOps), [&node](std::string_view op) { return node.is(op); });
}

bool all_zero(const Array& array) {
  const std::vector<float> values = array.to_float();
  // A float64 below float32's range becomes 0, too: its bytes must be those of 0 or -0.
  return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; }) &&
         (array.dtype != Dtype::kF64 || std::all_of(array.data<double>(), array.data<double>() + values.size(),
                                                    [](double value) { return value == 0; }));
}

}  // namespace

/// T and N stand for themselves: primes that are no other size.
struct Graph::Axis {
  char label;
  int64_t size;
};

Graph::Graph(const Model& model, std::string name, std::string model_path)
    : name_(std::move(name)), model_path_(std::move(model_path)), model_(model) {
  for (const auto& [tensor, message] : model.initialisers) initialisers_.emplace(tensor, message);
  for (const Node& node : model.nodes)
    for (const std::string_view output : node.outputs)
      if (!output.empty() && !producers_.emplace(output, node.index).second && twice_.empty()) twice_ = output;
  inputs_.insert(model.inputs.begin(), model.inputs.end());
}

Status Graph::check() const {
  if (twice_.empty()) return {};
  return {StatusCode::kInvalidFile, name_ + ": two nodes give the value " + in_quotes(twice_)};
}

const Node* Graph::producer(std::string_view value, size_t reader) const {
  const auto found = producers_.find(value);
  return found == producers_.end() || found->second >= reader ? nullptr : &model_.nodes[found->second];
}

std::string Graph::describe(std::string_view value, size_t reader) const {
  if (initialisers_.contains(value)) return "the initialiser " + in_quotes(value);
  if (inputs_.contains(value)) return "the model's input " + in_quotes(value);
  const Node* const node = producer(value, reader);
  if (node == nullptr) return in_quotes(value) + ", which nothing before it gives";
  const std::string name = node->name.empty() ? "a node" : "the node " + in_quotes(node->name);
  return "the output " + in_quotes(value) + " of " + name + " (" + std::string(node->op) + ")";
}

Result<Array> Graph::constant(std::string_view value, size_t reader, const std::string& what) const {
  const Node* node = producer(value, reader);
  for (; node != nullptr && node->is("Identity"); node = producer(value, reader)) {
    value = node->input(0);
    reader = node->index;
  }
  const auto initialiser = initialisers_.find(value);
  if (initialiser != initialisers_.end())
    return read_tensor(parse_tensor(initialiser->second), model_path_, what + " " + in_quotes(value));
  if (node != nullptr && node->is("Constant")) {
    if (const auto attribute = node->attribute("value"); attribute && attribute->t)
      return read_tensor(parse_tensor(*attribute->t), model_path_, what + " " + in_quotes(value));
    if (const auto attribute = node->attribute("value_ints"); attribute && !attribute->ints.empty())
      return Array::copy_of(attribute->ints.data(), {std::ssize(attribute->ints)});
    if (const auto attribute = node->attribute("value_int"); attribute && attribute->i)
      return Array::copy_of(&*attribute->i, {});
    if (const auto attribute = node->attribute("value_floats"); attribute && !attribute->floats.empty())
      return Array::copy_of(attribute->floats.data(), {std::ssize(attribute->floats)});
    if (const auto attribute = node->attribute("value_float"); attribute && attribute->f)
      return Array::copy_of(&*attribute->f, {});
  }
  return Status(StatusCode::kUnsupported, what + " is " + describe(value, reader) +
                                              ", must be an initialiser or a constant; if it is computed from such, "
                                              "fold the model's constants first");
}

std::optional<std::string> Graph::why_not_zero(std::string_view value, size_t reader) const {
  std::vector<std::pair<std::string_view, size_t>> left = {{value, reader}};
  std::set<size_t> seen;  // nodes
  while (!left.empty()) {
    const auto [name, before] = left.back();
    left.pop_back();
    const Node* const node = initialisers_.contains(name) ? nullptr : producer(name, before);
    if (node != nullptr && only_moves_values(*node)) {
      const size_t count = !seen.insert(node->index).second ? 0 : node->is("Concat") ? node->inputs.size() : 1;
      for (size_t i = 0; i < count; ++i) left.emplace_back(node->input(i), node->index);
      continue;
    }
    if (node != nullptr && node->is("ConstantOfShape")) {
      const auto fill = node->attribute("value");
      if (!fill || !fill->t) continue;
      const Result<Array> array = read_tensor(parse_tensor(*fill->t), model_path_, name_);
      if (array.ok() && all_zero(*array)) continue;
    } else if (const Result<Array> array = constant(name, before, name_); array.ok() && all_zero(*array)) {
      continue;
    }
    return describe(value, reader) + (name == value ? "" : ", from " + describe(name, before));
  }
  return std::nullopt;
}

// ---------------------------------------------------------------------------------------------------------------
// From one GRU to the next

const Node* Graph::gru_behind(std::string_view value, size_t reader, const std::map<size_t, GruSize>& sizes) const {
  std::vector<const Node*> between;
  const Node* node = producer(value, reader);
  for (; node != nullptr && !node->is("GRU"); node = producer(node->input(0), node->index)) {
    if (!node->is("Identity") && !node->is("Squeeze") && !node->is("Transpose") && !node->is("Reshape")) return nullptr;
    value = node->input(0);
    between.push_back(node);
  }
  if (node == nullptr || node->outputs.empty() || node->outputs[0] != value) return nullptr;
  const auto size = sizes.find(node->index);
  if (size == sizes.end()) return nullptr;
  Axes axes = {{'T', 65537}, {'D', size->second.directions}, {'N', 131071}, {'H', size->second.hidden}};
  for (auto op = between.rbegin(); op != between.rend(); ++op) {
    if ((*op)->is("Transpose") && !transpose(**op, axes)) return nullptr;
    if ((*op)->is("Squeeze") && !squeeze(**op, axes)) return nullptr;
    if ((*op)->is("Reshape") && !reshape(**op, axes)) return nullptr;
  }
  const bool is_sequence = axes.size() == 3 && axes[0].label == 'T' && axes[1].label == 'N' && axes[2].label == 'H';
  return is_sequence ? node : nullptr;
}

std::optional<std::vector<int64_t>> Graph::integers(std::string_view value, size_t reader) const {
  const Result<Array> array = constant(value, reader, name_);
  if (!array.ok() || array->dtype != Dtype::kS64) return std::nullopt;
  return std::vector<int64_t>(array->data<int64_t>(), array->data<int64_t>() + array->size());
}

std::optional<std::vector<int64_t>> Graph::axes_of(const Node& node) const {
  if (const auto attribute = node.attribute("axes")) return attribute->ints;
  return integers(node.input(1), node.index);
}

bool Graph::transpose(const Node& node, Axes& axes) const {
  std::vector<int64_t> order(axes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (const auto attribute = node.attribute("perm")) order = attribute->ints;
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < axes.size(); ++i)
    if (sorted.size() != axes.size() || sorted[i] != static_cast<int64_t>(i)) return false;
  Axes out;
  for (const int64_t axis : order) out.push_back(axes[static_cast<size_t>(axis)]);
  axes = out;
  return true;
}

/// Of one direction: the axis of directions only.
bool Graph::squeeze(const Node& node, Axes& axes) const {
  const auto rank = std::ssize(axes);
  const auto directions = std::find_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.label == 'D'; });
  if (directions == axes.end() || directions->size != 1) return false;
  if (!node.input(1).empty() || node.attribute("axes")) {
    const auto removed = axes_of(node);
    if (!removed || removed->size() != 1) return false;
    const int64_t axis = (*removed)[0] < 0 ? (*removed)[0] + rank : (*removed)[0];
    if (axis != directions - axes.begin()) return false;
  }
  axes.erase(directions);
  return true;
}

/// The shape that results must be what it is with the axis of directions removed, or joined with H.
bool Graph::reshape(const Node& node, Axes& axes) const {
  std::optional<std::vector<int64_t>> shape = integers(node.input(1), node.index);
  const auto keep_zeros = node.attribute("allowzero");
  if (!shape || (keep_zeros && keep_zeros->i.value_or(0) != 0)) return false;
  const auto product = [](int64_t total, const Axis& axis) { return total * axis.size; };
  int64_t left = std::accumulate(axes.begin(), axes.end(), int64_t{1}, product);
  int64_t* rest = nullptr;
  for (size_t i = 0; i < shape->size(); ++i) {
    int64_t& size = (*shape)[i];
    if (size == 0 && i < axes.size()) size = axes[i].size;
    if (size == -1 && rest == nullptr) {
      rest = &size;
    } else if (size < 1 || left % size != 0) {
      return false;
    } else {
      left /= size;
    }
  }
  if (rest != nullptr) *rest = left;
  const auto gives = [&shape](const Axes& form) {
    return std::equal(form.begin(), form.end(), shape->begin(), shape->end(),
                      [](const Axis& axis, int64_t size) { return axis.size == size; });
  };
  if (gives(axes)) return true;
  const auto directions = std::find_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.label == 'D'; });
  if (directions == axes.end()) return false;
  const auto at = directions - axes.begin();
  const int64_t count = directions->size;
  axes.erase(directions);
  if (at < std::ssize(axes) && axes[static_cast<size_t>(at)].label == 'H') {
    axes[static_cast<size_t>(at)].size *= count;
  } else if (count != 1) {
    return false;
  }
  return gives(axes);
}

}  // namespace isobit::onnx
