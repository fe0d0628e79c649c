// SPDX-License-Identifier: Apache-2.0
// Numbers of fields are those of onnx.proto. Every switch is over number and wire type together: protozero only asserts
// that a field is read as what it is.
#include "io/onnx/messages.h"

#include <protozero/pbf_reader.hpp>

namespace isobit::onnx {
namespace {

using protozero::pbf_reader;
using protozero::tag_and_type;
using Type = protozero::pbf_wire_type;

std::string_view bytes(pbf_reader& reader) {
  const protozero::data_view view = reader.get_view();
  return {view.data(), view.size()};
}

pbf_reader reader_of(std::string_view message) { return {message.data(), message.size()}; }

std::pair<std::string_view, std::string_view> parse_entry(std::string_view message) {
  std::pair<std::string_view, std::string_view> entry;
  for (pbf_reader reader = reader_of(message); reader.next();) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, Type::length_delimited): entry.first = bytes(reader); break;
      case tag_and_type(2, Type::length_delimited): entry.second = bytes(reader); break;
      default: reader.skip();
    }
  }
  return entry;
}

/// The field `name` of ValueInfoProto and of TensorProto has another number in each.
std::string_view name_in(std::string_view message, uint32_t field) {
  std::string_view name;
  for (pbf_reader reader = reader_of(message); reader.next(field, Type::length_delimited);) name = bytes(reader);
  return name;
}

Node parse_node(std::string_view message) {
  Node node;
  for (pbf_reader reader = reader_of(message); reader.next();) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, Type::length_delimited): node.inputs.push_back(bytes(reader)); break;
      case tag_and_type(2, Type::length_delimited): node.outputs.push_back(bytes(reader)); break;
      case tag_and_type(3, Type::length_delimited): node.name = bytes(reader); break;
      case tag_and_type(4, Type::length_delimited): node.op = bytes(reader); break;
      case tag_and_type(5, Type::length_delimited): node.attributes.push_back(bytes(reader)); break;
      case tag_and_type(7, Type::length_delimited): node.domain = bytes(reader); break;
      default: reader.skip();
    }
  }
  return node;
}

void parse_graph(std::string_view message, Model& model) {
  model.has_graph = true;
  for (pbf_reader reader = reader_of(message); reader.next();) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, Type::length_delimited):
        model.nodes.push_back(parse_node(bytes(reader)));
        model.nodes.back().index = model.nodes.size() - 1;
        break;
      case tag_and_type(5, Type::length_delimited): {
        const std::string_view tensor = bytes(reader);
        model.initialisers.emplace_back(name_in(tensor, 8), tensor);
        break;
      }
      case tag_and_type(11, Type::length_delimited): model.inputs.push_back(name_in(bytes(reader), 1)); break;
      default: reader.skip();
    }
  }
}

}  // namespace

Tensor parse_tensor(std::string_view message) {
  Tensor tensor;
  tensor.message = message;
  for (pbf_reader reader = reader_of(message); reader.next();) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, Type::varint): tensor.shape.push_back(reader.get_int64()); break;
      case tag_and_type(1, Type::length_delimited):
        for (const int64_t dimension : reader.get_packed_int64()) tensor.shape.push_back(dimension);
        break;
      case tag_and_type(2, Type::varint): tensor.type = reader.get_int64(); break;
      case tag_and_type(9, Type::length_delimited): tensor.raw = bytes(reader); break;
      case tag_and_type(13, Type::length_delimited): tensor.external.push_back(parse_entry(bytes(reader))); break;
      case tag_and_type(14, Type::varint): tensor.is_external = reader.get_int64() == 1; break;
      default: reader.skip();
    }
  }
  return tensor;
}

Attribute parse_attribute(std::string_view message) {
  Attribute attribute;
  for (pbf_reader reader = reader_of(message); reader.next();) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, Type::length_delimited): attribute.name = bytes(reader); break;
      case tag_and_type(2, Type::fixed32): attribute.f = reader.get_float(); break;
      case tag_and_type(3, Type::varint): attribute.i = reader.get_int64(); break;
      case tag_and_type(4, Type::length_delimited): attribute.s = bytes(reader); break;
      case tag_and_type(5, Type::length_delimited): attribute.t = bytes(reader); break;
      case tag_and_type(7, Type::fixed32): attribute.floats.push_back(reader.get_float()); break;
      case tag_and_type(7, Type::length_delimited):
        for (const float value : reader.get_packed_float()) attribute.floats.push_back(value);
        break;
      case tag_and_type(8, Type::varint): attribute.ints.push_back(reader.get_int64()); break;
      case tag_and_type(8, Type::length_delimited):
        for (const int64_t value : reader.get_packed_int64()) attribute.ints.push_back(value);
        break;
      case tag_and_type(9, Type::length_delimited): attribute.strings.push_back(bytes(reader)); break;
      default: reader.skip();
    }
  }
  return attribute;
}

std::optional<Attribute> Node::attribute(std::string_view name_of_attribute) const {
  for (const std::string_view message : attributes)
    if (name_in(message, 1) == name_of_attribute) return parse_attribute(message);
  return std::nullopt;
}

Model parse_model(std::string_view message) {
  Model model;
  for (pbf_reader reader = reader_of(message); reader.next();) {
    if (reader.tag_and_type() == tag_and_type(7, Type::length_delimited)) {
      parse_graph(bytes(reader), model);
    } else {
      reader.skip();
    }
  }
  return model;
}

}  // namespace isobit::onnx
