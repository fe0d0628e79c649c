// SPDX-License-Identifier: Apache-2.0
// ONNX models for tests and fuzz targets, written by protozero. Numbers of fields are those of onnx.proto.
#ifndef ISOBIT_IO_ONNX_SEED_H_
#define ISOBIT_IO_ONNX_SEED_H_

#include <cstdint>
#include <protozero/pbf_writer.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobit::onnx {

using Writer = protozero::pbf_writer;

inline constexpr int64_t kFloat = 1, kInt32 = 6, kInt64 = 7, kString = 8, kFloat16 = 10, kDouble = 11, kBfloat16 = 16;

/// A message that `write` fills.
template <typename Write>
std::string message(Write write) {
  std::string out;
  Writer writer(out);
  write(writer);
  return out;
}

/// A TensorProto without elements; `more` adds them.
template <typename Write>
std::string tensor_of(std::string_view name, int64_t type, const std::vector<int64_t>& shape, Write more) {
  return message([&](Writer& tensor) {
    tensor.add_packed_int64(1, shape.begin(), shape.end());
    tensor.add_int64(2, type);
    tensor.add_string(8, name.data(), name.size());
    more(tensor);
  });
}
template <typename T>
std::string raw_tensor(std::string_view name, int64_t type, const std::vector<int64_t>& shape,
                       const std::vector<T>& values) {
  return tensor_of(name, type, shape, [&](Writer& tensor) {
    tensor.add_bytes(9, reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  });
}
inline std::string floats(std::string_view name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return raw_tensor(name, kFloat, shape, values);
}
inline std::string integers(std::string_view name, const std::vector<int64_t>& values) {
  return raw_tensor(name, kInt64, {static_cast<int64_t>(values.size())}, values);
}

template <typename Write>
std::string attribute_of(std::string_view name, Write value) {
  return message([&](Writer& writer) {
    writer.add_string(1, name.data(), name.size());
    value(writer);
  });
}
inline std::string attribute(std::string_view name, int64_t value) {
  return attribute_of(name, [&](Writer& writer) { writer.add_int64(3, value); });
}
inline std::string attribute(std::string_view name, const std::string& text) {
  return attribute_of(name, [&](Writer& writer) { writer.add_string(4, text); });
}
inline std::string attribute(std::string_view name, const std::vector<int64_t>& values) {
  return attribute_of(name, [&](Writer& writer) { writer.add_packed_int64(8, values.begin(), values.end()); });
}
inline std::string attribute(std::string_view name, const std::vector<std::string>& texts) {
  return attribute_of(name, [&](Writer& writer) {
    for (const std::string& text : texts) writer.add_string(9, text);
  });
}
inline std::string tensor_attribute(std::string_view name, const std::string& tensor) {
  return attribute_of(name, [&](Writer& writer) { writer.add_message(5, tensor); });
}

using Texts = std::vector<std::string>;

struct TestModel {
  Texts nodes, initialisers, inputs;

  void node(const std::string& op, const Texts& in, const Texts& out, const Texts& attributes = {},
            const std::string& name = "", const std::string& domain = "") {
    nodes.push_back(message([&](Writer& writer) {
      for (const std::string& text : in) writer.add_string(1, text);
      for (const std::string& text : out) writer.add_string(2, text);
      writer.add_string(3, name);
      writer.add_string(4, op);
      for (const std::string& attribute : attributes) writer.add_message(5, attribute);
      writer.add_string(7, domain);
    }));
  }

  /// A GRU node with the initialisers NAME_W, NAME_R, NAME_B, whose values are 0, 1/64, 2/64, ..., and its output
  /// NAME_y. `more`: further inputs.
  void gru(const std::string& name, const std::string& x, int64_t channels, int64_t hidden, int64_t directions = 1,
           Texts attributes = {attribute("linear_before_reset", int64_t{1})}, const Texts& more = {}) {
    const std::vector<std::pair<const char*, std::vector<int64_t>>> parts = {{"_W", {directions, 3 * hidden, channels}},
                                                                             {"_R", {directions, 3 * hidden, hidden}},
                                                                             {"_B", {directions, 6 * hidden}}};
    for (const auto& [part, shape] : parts) {
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      std::vector<float> values(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i % 64) / 64;
      initialisers.push_back(floats(name + part, shape, values));
    }
    attributes.push_back(attribute("hidden_size", hidden));
    if (directions == 2) attributes.push_back(attribute("direction", "bidirectional"));
    Texts in = {x, name + "_W", name + "_R", name + "_B"};
    in.insert(in.end(), more.begin(), more.end());
    node("GRU", in, {name + "_y", name + "_h"}, attributes, name);
  }

  [[nodiscard]] std::string text() const {
    const std::string graph = message([&](Writer& writer) {
      for (const std::string& node : nodes) writer.add_message(1, node);
      writer.add_string(2, "graph");
      for (const std::string& tensor : initialisers) writer.add_message(5, tensor);
      for (const std::string& input : inputs)
        writer.add_message(11, message([&](Writer& value) { value.add_string(1, input); }));
    });
    return message([&](Writer& writer) {
      writer.add_int64(1, 8);
      writer.add_string(2, "test");
      writer.add_message(7, graph);
      writer.add_message(8, message([](Writer& opset) { opset.add_int64(2, 17); }));
    });
  }
};

/// Two bidirectional GRUs of which one feeds the other as PyTorch exports it; zeros as PyTorch makes them; elements in
/// every form but external.
inline TestModel seed_model() {
  TestModel model;
  model.inputs = {"x"};
  model.node("Shape", {"x"}, {"shape"});
  model.node("Constant", {}, {"one"}, {tensor_attribute("value", integers("", {1}))});
  model.node("Gather", {"shape", "one"}, {"n"});
  model.node("Concat", {"one", "n", "one"}, {"state_shape"}, {attribute("axis", int64_t{0})});
  model.node("ConstantOfShape", {"state_shape"}, {"zeros"}, {tensor_attribute("value", floats("", {1}, {0}))});
  model.node("Slice", {"zeros", "one", "one"}, {"h0"});
  model.gru("a", "x", 2, 2, 2, {attribute("linear_before_reset", int64_t{1})}, {"", "h0"});
  model.node("Transpose", {"a_y"}, {"a_t"}, {attribute("perm", std::vector<int64_t>{0, 2, 1, 3})}, "t");
  model.initialisers.push_back(integers("to", {0, 0, -1}));
  model.node("Reshape", {"a_t", "to"}, {"b_x"}, {}, "r");
  model.gru("b", "b_x", 4, 2, 2,
            {attribute("linear_before_reset", int64_t{1}),
             attribute("activations", Texts{"Sigmoid", "Tanh", "Sigmoid", "Tanh"})},
            {"", "h0"});
  // One direction, of which one weight is a constant, and elements are typed.
  const std::vector<float> w(6, 0.5f);
  model.node("Constant", {}, {"c_W"}, {tensor_attribute("value", floats("", {1, 6, 1}, w))});
  model.initialisers.push_back(tensor_of("c_R", kFloat, {1, 6, 2}, [](Writer& tensor) {
    const std::vector<float> half(6, 0.25f);
    tensor.add_packed_float(4, half.begin(), half.end());
    for (const float value : half) tensor.add_float(4, value);
  }));
  model.initialisers.push_back(tensor_of("c_B", kFloat16, {1, 12}, [](Writer& tensor) {
    const std::vector<int32_t> ones(12, 0x3c00);
    tensor.add_packed_int32(5, ones.begin(), ones.end());
  }));
  model.node("Identity", {"c_R"}, {"c_R2"});
  model.node("GRU", {"x", "c_W", "c_R2", "c_B", "lengths", "h1"}, {"c_y"},
             {attribute("linear_before_reset", int64_t{1})});
  return model;
}

}  // namespace isobit::onnx

#endif  // ISOBIT_IO_ONNX_SEED_H_
