// SPDX-License-Identifier: Apache-2.0
// The GRU nodes of an ONNX model's main graph.
#ifndef ISOBIT_IO_ONNX_GRU_NODES_H_
#define ISOBIT_IO_ONNX_GRU_NODES_H_

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/onnx/graph.h"

namespace isobit::onnx {

inline constexpr std::array<std::string_view, 3> kGruParts = {"W", "R", "B"};  // inputs 1 to 3 of the operator

struct GruNode {
  const Node* node = nullptr;
  std::string name;                                    // no other one in the file has it
  GruSize size;                                        // H of R
  Status refusal;                                      // why isobit does not compute this node
  std::array<std::optional<Array>, 3> parts;           // nothing: it cannot be read, or there is no B
  std::map<std::string, std::string> properties = {};  // what docs/formats.md lists
};

/// In the order of the graph. `name` of the file, for messages; `model_path` as in read_tensor().
Result<std::vector<GruNode>> read_gru_nodes(const Model& model, const std::string& name, const std::string& model_path);

}  // namespace isobit::onnx

#endif  // ISOBIT_IO_ONNX_GRU_NODES_H_
