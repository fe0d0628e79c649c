// SPDX-License-Identifier: Apache-2.0
// The messages of an ONNX file as far as they are needed: views into the bytes of the file, which outlive them.
// Everything here throws protozero's exceptions where a message is damaged.
#ifndef ISOBIT_IO_ONNX_MESSAGES_H_
#define ISOBIT_IO_ONNX_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace isobit::onnx {

/// TensorProto.
struct Tensor {
  std::string_view message;  // typed elements are read from it
  int64_t type = 0;          // data_type, see tensor.h
  std::vector<int64_t> shape;
  std::optional<std::string_view> raw;
  bool is_external = false;
  std::vector<std::pair<std::string_view, std::string_view>> external;  // keys and values of external_data
};
Tensor parse_tensor(std::string_view message);

/// AttributeProto. A field that the message does not have is empty.
struct Attribute {
  std::string_view name;
  std::optional<float> f;
  std::optional<int64_t> i;
  std::optional<std::string_view> s;
  std::optional<std::string_view> t;  // TensorProto
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
};
Attribute parse_attribute(std::string_view message);

/// NodeProto.
struct Node {
  size_t index = 0;  // in the graph
  std::string_view name;
  std::string_view op;
  std::string_view domain;
  std::vector<std::string_view> inputs;  // "": one that is left out
  std::vector<std::string_view> outputs;
  std::vector<std::string_view> attributes;  // AttributeProto

  [[nodiscard]] bool is(std::string_view name_of_op) const {
    return op == name_of_op && (domain.empty() || domain == "ai.onnx");
  }
  [[nodiscard]] std::string_view input(size_t at) const { return at < inputs.size() ? inputs[at] : ""; }
  [[nodiscard]] std::optional<Attribute> attribute(std::string_view name_of_attribute) const;
};

/// GraphProto of a ModelProto, without the graphs inside its nodes.
struct Model {
  bool has_graph = false;
  std::vector<Node> nodes;
  std::vector<std::pair<std::string_view, std::string_view>> initialisers;  // name and TensorProto
  std::vector<std::string_view> inputs;
};
Model parse_model(std::string_view message);

}  // namespace isobit::onnx

#endif  // ISOBIT_IO_ONNX_MESSAGES_H_
