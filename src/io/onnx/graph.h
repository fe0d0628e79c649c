// SPDX-License-Identifier: Apache-2.0
// What the graph of an ONNX model says about a value: where it comes from, and what is known of it without running the
// model. Nodes are sorted, as ONNX demands: a value comes from a node before the one that reads it.
#ifndef ISOBIT_IO_ONNX_GRAPH_H_
#define ISOBIT_IO_ONNX_GRAPH_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/onnx/tensor.h"

namespace isobit::onnx {

/// H and the number of directions of a GRU node.
struct GruSize {
  int64_t hidden = 0;
  int64_t directions = 1;
};

class Graph {
 public:
  /// `name` of the file, for messages; `model_path` as in read_tensor().
  Graph(const Model& model, std::string name, std::string model_path);

  /// Refuses a value that two nodes give.
  [[nodiscard]] Status check() const;
  /// The node that gives a value to the node with that index; nullptr: none.
  [[nodiscard]] const Node* producer(std::string_view value, size_t reader) const;
  /// "the output of node 'Relu_2' (Relu)", "the model's input 'h0'".
  [[nodiscard]] std::string describe(std::string_view value, size_t reader) const;
  /// The tensor of an initialiser or a Constant node, also through Identity nodes. kUnsupported, and says what it is,
  /// where there is none.
  [[nodiscard]] Result<Array> constant(std::string_view value, size_t reader, const std::string& what) const;
  /// Nothing: it is zero whatever the model's inputs are. Else what it is.
  [[nodiscard]] std::optional<std::string> why_not_zero(std::string_view value, size_t reader) const;
  /// The GRU node whose output Y, [T, D, N, H], is `value` as [T, N, D * H], of which nodes between may change the
  /// shape only; nullptr: none. `sizes` has those of the GRU nodes.
  [[nodiscard]] const Node* gru_behind(std::string_view value, size_t reader,
                                       const std::map<size_t, GruSize>& sizes) const;

 private:
  [[nodiscard]] std::optional<std::vector<int64_t>> integers(std::string_view value, size_t reader) const;
  /// An attribute, or in later versions of the operator an input.
  [[nodiscard]] std::optional<std::vector<int64_t>> axes_of(const Node& node) const;

  struct Axis;
  using Axes = std::vector<Axis>;
  [[nodiscard]] bool transpose(const Node& node, Axes& axes) const;
  [[nodiscard]] bool squeeze(const Node& node, Axes& axes) const;
  [[nodiscard]] bool reshape(const Node& node, Axes& axes) const;

  std::string name_;
  std::string model_path_;
  const Model& model_;
  std::map<std::string_view, std::string_view> initialisers_;
  std::map<std::string_view, size_t> producers_;
  std::set<std::string_view> inputs_;
  std::string_view twice_;  // a value that two nodes give
};

}  // namespace isobit::onnx

#endif  // ISOBIT_IO_ONNX_GRAPH_H_
